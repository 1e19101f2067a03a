"""What can be said of policies that met the same episodes: means, differences, intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

CONFIDENCE = 0.95
FEW = 10
RESAMPLES = 10_000
_STUDENT = (
    *(12.706204736174694, 4.302652729749462, 3.1824463052837078, 2.7764451051977934),
    *(2.5705818356363146, 2.4469118511449786, 2.364624251592784, 2.306004135204166),
)
"""Quantiles of 0.975 of Student's t with 1 to 8 degrees of freedom: the core compares without SciPy."""


@dataclass(frozen=True)
class Interval:
    """A mean over episodes and the interval that holds it with 95 % confidence (NaN without episodes)."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        if np.isnan(self.low):
            return shown(self.mean)
        return f"{shown(self.mean)} [{shown(self.low)}, {shown(self.high)}]"


def shown(value: float, digits: int = 4) -> str:
    """A number as tables show it: so many digits, or all before the point where there are more."""
    whole = 1000 <= abs(value) < np.inf
    return f"{value:,.0f}" if whole else f"{value:.{digits}g}"


def mean_interval(values: ArrayLike) -> Interval:
    """Mean of a sample and its 95 % interval; NaN values are left out.

    From `FEW` values on, the percentile bootstrap (seeded: the same values give the same interval).
    Below, Student's t: resampling a handful of values covers far less than it claims. One value has
    no interval (NaN); equal ones have that value, which says nothing about other episodes.
    """
    sample = np.asarray(values, dtype=np.float64)
    sample = sample[~np.isnan(sample)]
    if len(sample) == 0:
        return Interval(np.nan, np.nan, np.nan)
    mean = float(sample.mean())
    if len(sample) == 1:
        return Interval(mean, np.nan, np.nan)
    if np.ptp(sample) == 0:
        return Interval(mean, mean, mean)
    if len(sample) < FEW:
        half = _STUDENT[len(sample) - 2] * float(sample.std(ddof=1)) / len(sample) ** 0.5
        return Interval(mean, mean - half, mean + half)

    drawn = np.random.default_rng(0).integers(0, len(sample), (RESAMPLES, len(sample)))
    outside = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(sample[drawn].mean(axis=1), (outside, 100 - outside))
    return Interval(mean, float(low), float(high))


def paired_difference(values: ArrayLike, others: ArrayLike) -> Interval:
    """Mean of `values - others` episode by episode, with its interval.

    Both policies met the same requests, so what makes an episode hard falls out of the difference.

    Raises:
        ValueError: different numbers of episodes.
    """
    a, b = np.asarray(values, np.float64), np.asarray(others, np.float64)
    if a.shape != b.shape:
        raise ValueError(f"{a.shape} and {b.shape} values: pairs need the same episodes")
    return mean_interval(a - b)


def interquartile_mean(values: ArrayLike) -> float:
    """Mean of the middle half of all values of an array (a quarter of the values, rounded down, is cut off
    at each end, as SciPy's `trim_mean` does); NaN without any.
    """
    sample = np.sort(np.asarray(values, np.float64), axis=None)
    cut = len(sample) // 4
    return float(sample[cut : len(sample) - cut].mean()) if len(sample) else float("nan")


def share_better(values: ArrayLike, others: ArrayLike) -> float:
    """Share of the episodes in which `values` is the larger one; ties count half."""
    a, b = np.asarray(values, np.float64), np.asarray(others, np.float64)
    return float(np.mean((a > b) + 0.5 * (a == b)))


def by_policy(rows: Sequence[Mapping[str, Any]], metric: str) -> dict[str, NDArray[np.float64]]:
    """Values of a metric per policy, in the order of their seeds.

    Raises:
        ValueError: the policies did not meet the same seeds.
    """
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        mine = found.setdefault(str(row["policy"]), {})
        mine[int(row["seed"])] = float(row[metric])
    seeds = {policy: sorted(mine) for policy, mine in found.items()}
    first = next(iter(seeds.values()), [])
    for policy, mine_seeds in seeds.items():
        if mine_seeds != first:
            raise ValueError(f"{policy} was not run on the same seeds as the first policy")
    return {p: np.array([found[p][seed] for seed in first]) for p in found}
