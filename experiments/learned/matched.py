"""GPU-hours at matched attainment: what a policy needs to keep every class at 99 %, whatever its own taste.

Policies weigh GPUs against lateness differently, so equal settings say little. Each is therefore run at
several settings, and asked: what is the least it needs at 99 %? One setting on some windows and another on
the rest is a policy too, whose means lie on the straight line between theirs. So the answer is on the lower
edge of the hull of the settings' points (worst class's attainment, GPU-hours), at the target. For such a
mixture the worst class is no worse than the mean of the two worst, so the answer errs on the safe side.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from agents.statistics import CONFIDENCE, Interval

Floats = NDArray[np.float64]

TARGET = 0.99
RESAMPLES = 2_000


def at_target(share: Floats, hours: Floats, target: float = TARGET) -> float:
    """GPU-hours of the cheapest mixture of settings that reaches the target.

    Args:
        share: (K,) attainment of the worst class.
        hours: (K,) GPU-hours.
        target: that is to be reached.

    Returns:
        Infinity if no setting reaches it.
    """
    above, below = share >= target - 1e-12, share < target - 1e-12
    if not above.any():
        return math.inf
    best = float(hours[above].min())
    if below.any():
        s0, h0 = share[below][:, None], hours[below][:, None]
        part = (target - s0) / (share[above] - s0)
        best = min(best, float((h0 + part * (hours[above] - h0)).min()))
    return best


def matched_hours(
    hours: Floats, attainment: Floats, target: float = TARGET
) -> tuple[float, Floats]:
    """GPU-hours at the target, of all windows and of resamples of them.

    Args:
        hours: (K, windows) of each setting.
        attainment: (K, classes, windows).
        target: of every class.

    Returns:
        The hours, and (resamples,) of windows drawn with replacement, the same for every policy with as many
        windows. Infinite where no setting reaches the target.
    """
    n = hours.shape[1]
    drawn = np.random.default_rng(0).integers(n, size=(RESAMPLES, n))
    found = [
        at_target(
            attainment[:, :, rows].mean(axis=2).min(axis=1), hours[:, rows].mean(axis=1), target
        )
        for rows in (np.arange(n), *drawn)
    ]
    return found[0], np.array(found[1:])


def interval(mean: float, resampled: Floats) -> Interval:
    """A mean with the 95 % interval of its resamples, some of which may be infinite."""
    ends = [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]
    low, high = np.quantile(resampled, ends, method="nearest")
    return Interval(mean, float(low), float(high))


def difference(one: tuple[float, Floats], other: tuple[float, Floats]) -> Interval:
    """What one policy needs more than another on the same windows (`matched_hours` of both).

    Where neither reaches the target nobody knows, and that counts against the first.
    """
    with np.errstate(invalid="ignore"):
        apart = one[1] - other[1]
        mean = np.subtract(one[0], other[0])
    mean = math.inf if np.isnan(mean) else float(mean)
    return interval(mean, np.where(np.isnan(apart), math.inf, apart))
