"""Rows and claims of the papers' figures, for tests of `experiments`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd


def frame_of(module: Any, parameters: Any) -> pd.DataFrame:
    """All rows of a figure, each with its case."""
    rows = [{**case, **row} for case in module.cases(parameters) for row in module.run(case)]
    return pd.DataFrame(rows)


def verdicts(claims: Iterable[Any]) -> list[str]:
    return [claim.verdict for claim in claims]


def made_up(module: Any, parameters: Any, rows: Callable[[Any], Any]) -> pd.DataFrame:
    """Cases of a figure, each with the row or the list of rows that `rows` says in place of a run."""
    found = [(case, rows(case)) for case in module.cases(parameters)]
    several = [(case, made if isinstance(made, list) else [made]) for case, made in found]
    return pd.DataFrame({**case, **row} for case, made in several for row in made)


def judged(module: Any, frame: pd.DataFrame, parameters: Any) -> dict[str, Any]:
    """Claims of a figure by sentence; its picture is drawn as well."""
    assert module.plot(frame, parameters) is not None
    return {claim.sentence: claim for claim in module.claims(frame, parameters)}
