"""Ranges of a policy's parameters that a search looks through (`baselines.tune search=optuna`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_MOST = 1e12


def _check(low: float, high: float, log: bool) -> None:
    if not abs(low) <= _MOST or not abs(high) <= _MOST:
        raise ValueError(f"low = {low}, high = {high}: must be numbers up to {_MOST:g}")
    if not low <= high:
        raise ValueError(f"low = {low}: must be at most high = {high}")
    if log and not low > 0:
        raise ValueError(f"low = {low}: must be above 0 on a logarithmic scale")


@dataclass(frozen=True)
class Real:
    """Numbers in `low..high`, on a logarithmic scale where `log` says so.

    Raises:
        ValueError: an empty range, or a logarithmic one that does not begin above 0.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        _check(self.low, self.high, self.log)


@dataclass(frozen=True)
class Whole:
    """Integers in `low..high`, likewise."""

    low: int
    high: int
    log: bool = False

    def __post_init__(self) -> None:
        _check(self.low, self.high, self.log)


@dataclass(frozen=True)
class Choice:
    """One of a few values, in no order."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("values = (): must be at least one")


Part = Real | Whole | Choice
Space = Mapping[str, Part]

BATCH_LIMIT = Whole(16, 512, log=True)
"""Running requests per instance, for policies that set a fixed limit."""
