"""What observation blocks are made of: entries with a meaning and bounds, and fixed scales."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.snapshot import Snapshot

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Entry:
    """One number of an observation."""

    name: str
    meaning: str
    low: float = 0.0
    high: float = 1.0


class Block(Protocol):
    """A part of an observation."""

    name: str

    def entries(self) -> list[Entry]:
        """What the numbers are, in order."""

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        """(E, k) numbers, not yet clipped to their bounds."""


def check_names(field: str, given: object, known: Collection[str], what: str) -> tuple[str, ...]:
    """`given` as names of blocks or heads.

    Raises:
        ValueError: no sequence of names, an unknown name, or one that is given twice.
    """
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise ValueError(
            f"{field} = {given!r}: must be a sequence of names; there are {list(known)}"
        )
    for k, name in enumerate(given):
        if not isinstance(name, str) or name not in known:
            raise ValueError(f"{field} = {name!r}: unknown {what}; there are {list(known)}")
        if name in given[:k]:
            raise ValueError(f"{field}: {name!r} is named twice")
    return tuple(given)


def ranges(bounds: Sequence[str]) -> list[str]:
    """What lies up to the first of rising bounds, between two of them, and above the last, in words."""
    between = [f"{a} to {b}" for a, b in pairwise(bounds)]
    return [f"up to {bounds[0]}", *between, f"more than {bounds[-1]}"]


def log_scale(x: NDArray, full: float | NDArray) -> Floats:
    """0 at 0, 1 at `full`, logarithmic between."""
    return np.log1p(np.maximum(x, 0)) / np.log1p(full)


def share(part: NDArray, whole: NDArray) -> Floats:
    """`part / whole`, 0 where there is nothing."""
    return part / np.maximum(whole, 1)


def present(now: Snapshot) -> NDArray[np.int64]:
    """(E, P) instances that a target counts: those that serve or are on their way."""
    return now.pools["acquiring"] + now.pools["loading"] + now.pools["active"]


def past_means(history: NDArray, interval: NDArray, spans: Sequence[int]) -> list[Floats]:
    """Means over the last `spans` intervals of a history (E, k, C), as far as they have been; (E, C) each.

    Args:
        history: whole numbers by interval.
        interval: (E,) intervals that have ended.
        spans: numbers of intervals.
    """
    steps = interval[:, None] - 1 - np.arange(max(spans))
    known = steps >= 0
    past = history[np.arange(len(steps))[:, None], np.maximum(steps, 0)] * known[:, :, None]
    total, count = np.cumsum(past, axis=1), np.cumsum(known, axis=1)
    return [total[:, span - 1] / np.maximum(count[:, span - 1], 1)[:, None] for span in spans]
