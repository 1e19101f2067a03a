"""Interquartile means with stratified bootstrap intervals, and the probability of improvement.

Definitions are those of Agarwal et al., "Deep reinforcement learning at the edge of the statistical
precipice" (NeurIPS 2021) and its library rliable. The library itself cannot be imported here: its intervals
come from arch, whose release 7.2 does not import beside pandas 3.

One thing is ours. There, every run of every task is a training of its own; here a policy that was trained
once runs on all workloads, on the same windows as all others. So a resample draws training seeds once for all
workloads, and windows once per workload for all training seeds (and, in `matched`, for all policies).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agents.statistics import CONFIDENCE, Interval

Floats = NDArray[np.float64]
Scores = Mapping[str, ArrayLike]
"""By workload: (training seeds, windows); a policy that is not trained has one row."""

RESAMPLES = 2_000


@dataclass(frozen=True)
class Draw:
    """One resample.

    Attributes:
        seeds: (S,) which training seeds.
        windows: by workload, (W,) which windows.
    """

    seeds: NDArray[np.int64]
    windows: dict[str, NDArray[np.int64]]


def draws(
    n_seeds: int, n_windows: Mapping[str, int], resamples: int = RESAMPLES, seed: int = 0
) -> Iterator[Draw]:
    """Resamples with replacement; windows are drawn before training seeds, so that policies with other
    numbers of these meet the same windows.
    """
    for k in range(resamples):
        rng = np.random.default_rng([seed, k])
        windows = {name: rng.integers(n, size=n) for name, n in n_windows.items()}
        yield Draw(rng.integers(n_seeds, size=n_seeds), windows)


def interquartile_mean(values: ArrayLike) -> float:
    """Mean of the middle half of all values of an array (a quarter of the values, rounded down, is cut off
    at each end, as SciPy's `trim_mean` does); NaN without any.
    """
    sample = np.sort(np.asarray(values, np.float64), axis=None)
    cut = len(sample) // 4
    return float(sample[cut : len(sample) - cut].mean()) if len(sample) else float("nan")


def stratified_interval(
    scores: Scores,
    statistic: Callable[[ArrayLike], float] = interquartile_mean,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """A statistic of all scores, and its 95 % percentile interval, workloads being the strata.

    Args:
        scores: by workload; all with the same number of training seeds.
        statistic: of all values together.
        resamples, seed: of the bootstrap.

    Returns:
        NaN bounds where there is one value per workload.

    Raises:
        ValueError: no scores, or workloads with different numbers of training seeds.
    """
    tables = {name: as_table(values) for name, values in scores.items()}
    heights = {len(table) for table in tables.values()}
    if len(heights) != 1:
        raise ValueError(
            f"scores: must have as many training seeds in all workloads, got {heights}"
        )
    centre = statistic(np.concatenate([table.ravel() for table in tables.values()]))
    if all(table.size == 1 for table in tables.values()):
        return Interval(centre, np.nan, np.nan)
    widths = {name: table.shape[1] for name, table in tables.items()}
    found = [
        statistic(
            np.concatenate([t[np.ix_(d.seeds, d.windows[n])].ravel() for n, t in tables.items()])
        )
        for d in draws(heights.pop(), widths, resamples, seed)
    ]
    return percentile_interval(centre, np.array(found))


def probability_of_improvement(values: Scores, others: Scores) -> float:
    """Chance that a run of one policy scores above one of another, on a workload drawn at random.

    Mean over the workloads of the Mann-Whitney statistic over all pairs of runs; ties count half.

    Raises:
        ValueError: other workloads, or none.
    """
    if set(values) != set(others) or not values:
        raise ValueError(f"workloads {sorted(values)} and {sorted(others)}: must be the same")
    return float(
        np.mean([_above(np.ravel(values[name]), np.ravel(others[name])) for name in values])
    )


def improvement_interval(
    values: Scores, others: Scores, *, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """`probability_of_improvement` with its interval; both policies meet the same resampled windows.

    Raises:
        ValueError: as there, or as `stratified_interval`.
    """
    first = {name: as_table(table) for name, table in values.items()}
    second = {name: as_table(others[name]) for name in others}
    centre = probability_of_improvement(first, second)
    widths = {name: table.shape[1] for name, table in first.items()}
    n_first = len(next(iter(first.values())))
    n_second = len(next(iter(second.values())))
    found = []
    both = zip(
        draws(n_first, widths, resamples, seed),
        draws(n_second, widths, resamples, seed),
        strict=True,
    )
    for a, b in both:
        one = {n: t[np.ix_(a.seeds, a.windows[n])] for n, t in first.items()}
        two = {n: t[np.ix_(b.seeds, b.windows[n])] for n, t in second.items()}
        found.append(probability_of_improvement(one, two))
    return percentile_interval(centre, np.array(found))


def percentile_interval(centre: float, resampled: Floats) -> Interval:
    """The middle 95 % of resampled statistics; NaN bounds where some of them are NaN."""
    if np.isnan(resampled).any():
        return Interval(centre, np.nan, np.nan)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(resampled, [tail, 100 - tail])
    return Interval(centre, float(low), float(high))


def as_table(values: ArrayLike) -> Floats:
    """(training seeds, windows) of scores; those of a policy without training may be flat.

    Raises:
        ValueError: neither.
    """
    table = np.asarray(values, np.float64)
    table = table[None, :] if table.ndim == 1 else table
    if table.ndim != 2 or table.size == 0:
        raise ValueError(f"scores of shape {table.shape}: must be (training seeds, windows)")
    return table


def _above(values: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """Share of pairs in which the first is larger; ties count half."""
    order = np.sort(others)
    below = np.searchsorted(order, values, side="left")
    upto = np.searchsorted(order, values, side="right")
    return float((below + 0.5 * (upto - below)).mean() / len(order))
