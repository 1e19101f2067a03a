"""Rows and claims of the papers' figures, for tests of `experiments`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd


def frame_of(module: Any, parameters: Any) -> pd.DataFrame:
    """All rows of a figure, each with its case."""
    rows = [{**case, **row} for case in module.cases(parameters) for row in module.run(case)]
    return pd.DataFrame(rows)


def verdicts(claims: Iterable[Any]) -> list[str]:
    return [claim.verdict for claim in claims]
