"""One run of an experiment and what became of it; many of them side by side."""

from __future__ import annotations

import importlib
import math
import os
import time
import traceback
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmscale_env._spread import Launcher, spread

Case = Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What became of a run: rows, or the reason why there are none."""

    case: Case
    rows: list[dict[str, Any]]
    wall_s: float
    error: str = ""


def execute(module: str, case: Case) -> Outcome:
    """Do one run of an experiment; an exception becomes an `Outcome` with its text."""
    begin = time.perf_counter()
    try:
        rows = importlib.import_module(module).run(dict(case))
        plain = [{key: plain_value(value) for key, value in row.items()} for row in rows]
    except Exception as error:
        return Outcome(case, [], time.perf_counter() - begin, describe(error))
    return Outcome(case, plain, time.perf_counter() - begin)


def describe(error: Exception) -> str:
    """An exception in a line: its type, its text, and where it was raised."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}:{where.lineno})"


def plain_value(value: Any) -> Any:
    """A NumPy scalar as Python's, NaN and infinities as None, so that JSON can hold it.

    Raises:
        TypeError: it is neither text, number, truth value nor None.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int, bool)):
        return value
    raise TypeError(f"a row holds {value!r}: must be text, a number, a truth value or None")


def outcomes(
    module: str, cases: Sequence[Case], launcher: Launcher
) -> Generator[Outcome, None, None]:
    """Runs of an experiment as they end.

    Raises:
        Slip, WorkerLost, OtherCode: see `llmscale_env._spread.spread`.
    """
    calls = [(module, dict(case)) for case in cases]
    with closing(spread(execute, calls, launcher)) as ended:
        for _, outcome in ended:
            yield outcome
