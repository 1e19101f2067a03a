"""Whether a policy's knob was turned far enough: else nobody knows how little it needs."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from experiments.learned.matched import Settings

_FACTOR = re.compile(r"(.*\b)x([\d.e+-]+)")


def _knobs(settings: Settings) -> list[NDArray[np.int64]]:
    """Settings by what their knob turns around, from the lowest to the highest.

    A heuristic's by its factor; others (networks read at a quantile, what has no knob) by their GPU-hours.
    """
    hours = settings.points()[1]
    found: dict[str, list[tuple[float, int]]] = {}
    for k, label in enumerate(settings.labels):
        is_factor = _FACTOR.fullmatch(label)
        around, at = is_factor.groups() if is_factor else ("", hours[k])
        found.setdefault(around, []).append((float(at), k))
    return [np.array([k for _, k in sorted(knob)]) for knob in found.values()]


ANYTHING = 0.01
"""Of GPU-hours: a knob that moves less than this from one setting to the next no longer does."""


def low_end(settings: Settings, target: float) -> bool:
    """Whether the lowest setting of a knob reaches the target for least, and it was still going down."""
    share, hours = settings.points()
    reach = share >= target - 1e-12
    if not reach.any():
        return False
    least = hours[reach].min()
    for knob in _knobs(settings):
        low = knob[0]
        moves = len(knob) == 1 or hours[low] < (1 - ANYTHING) * hours[knob[1]]
        if reach[low] and hours[low] <= least and moves:
            return True
    return False


def ends_early(settings: Settings, target: float) -> bool:
    """Whether nothing reaches the target, and the highest setting of a knob was still going up."""
    share, hours = settings.points()
    if (share >= target - 1e-12).any():
        return False
    return any(
        len(knob) == 1 or hours[knob[-1]] > (1 + ANYTHING) * hours[knob[-2]]
        for knob in _knobs(settings)
    )
