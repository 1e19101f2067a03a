"""Interquartile means with stratified bootstrap intervals, and the probability of improvement.

Definitions are those of Agarwal et al., "Deep reinforcement learning at the edge of the statistical
precipice" (NeurIPS 2021) and its library rliable. The library itself cannot be imported here: its intervals
come from arch, whose release 7.2 does not import beside pandas 3.

Two things are ours. There, every run of every task is a training of its own; here policies run on the same
windows as all others, and one that was trained once may run on several workloads. So a resample draws
windows once per workload for all policies, and training seeds once per training, on however many workloads
it runs. And five seeds, resampled, spread less than five seeds do: percentiles are taken further out, as
Hesterberg's expanded percentile interval takes them ("What teachers should know about the bootstrap", The
American Statistician 69, 2015), by the fewest things drawn from, be it seeds or windows.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agents.statistics import CONFIDENCE, Interval

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Scores = Mapping[str, ArrayLike]
"""By workload: (training seeds, windows); a policy that is not trained has one row."""

RESAMPLES = 2_000


def draws(name: str, n: int, resamples: int = RESAMPLES, seed: int = 0) -> Ints:
    """(resamples, n) draws with replacement from n things; the same name and numbers give the same draws."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return rng.integers(n, size=(resamples, n))


def window_draws(workload: str, n: int, resamples: int = RESAMPLES, seed: int = 0) -> Ints:
    """(resamples, n) windows of a workload: the same for every policy."""
    return draws(f"windows of {workload}", n, resamples, seed)


def seed_draws(training: str, n: int, resamples: int = RESAMPLES, seed: int = 0) -> Ints:
    """(resamples, n) training seeds: the same on every workload that the training runs on."""
    return draws(f"seeds of {training}", n, resamples, seed)


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
    trainings: Mapping[str, str] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """A statistic of all scores, and its 95 % interval, workloads being the strata.

    Args:
        scores: by workload.
        statistic: of all values together.
        trainings: by workload, the name of the training whose seeds its rows are; workloads of one training
            have the same seeds. None: all are of one.
        resamples, seed: of the bootstrap.

    Returns:
        NaN bounds where there is one value per workload.

    Raises:
        ValueError: no scores, or workloads of one training with different numbers of seeds.
    """
    tables = {name: as_table(values) for name, values in scores.items()}
    if not tables:
        raise ValueError("scores: there are none")
    centre = statistic(np.concatenate([table.ravel() for table in tables.values()]))
    some = [
        statistic(np.concatenate([table.ravel() for table in resample]))
        for resample in _resamples(tables, trainings, resamples, seed)
    ]
    return expanded_interval(centre, np.array(some), fewest(tables.values()))


def _resamples(
    tables: Mapping[str, Floats], trainings: Mapping[str, str] | None, resamples: int, seed: int
) -> list[list[Floats]]:
    """(resamples, workloads) tables drawn from tables."""
    of = {name: trainings[name] if trainings is not None else "" for name in tables}
    heights: dict[str, set[int]] = {}
    for name, table in tables.items():
        heights.setdefault(of[name], set()).add(len(table))
    for training, found in heights.items():
        if len(found) > 1:
            where = [name for name in tables if of[name] == training]
            raise ValueError(f"{where}: must have as many training seeds, got {sorted(found)}")
    drawn = {
        name: (
            seed_draws(of[name], table.shape[0], resamples, seed),
            window_draws(name, table.shape[1], resamples, seed),
        )
        for name, table in tables.items()
    }
    return [
        [table[np.ix_(drawn[name][0][k], drawn[name][1][k])] for name, table in tables.items()]
        for k in range(resamples)
    ]


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
    values: Scores,
    others: Scores,
    *,
    trainings: Mapping[str, str] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """`probability_of_improvement` with its interval; both policies meet the same resampled windows.

    Args:
        values, others: as there; `others` of a policy that is not trained, or of one training.
        trainings: of `values`, as `stratified_interval`.
        resamples, seed: of the bootstrap.

    Raises:
        ValueError: as there, or as `stratified_interval`.
    """
    first = {name: as_table(table) for name, table in values.items()}
    second = {name: as_table(others[name]) for name in first if name in others}
    centre = probability_of_improvement(first, {name: as_table(others[name]) for name in others})
    one = _resamples(first, trainings, resamples, seed)
    # Seeds of different trainings have nothing to do with each other.
    two = _resamples(second, dict.fromkeys(second, "the others"), resamples, seed)
    found = [
        float(np.mean([_above(a.ravel(), b.ravel()) for a, b in zip(x, y, strict=True)]))
        for x, y in zip(one, two, strict=True)
    ]
    n = fewest([*first.values(), *second.values()])
    return expanded_interval(centre, np.array(found), n)


def fewest(tables: Collection[Floats]) -> int:
    """The smallest number of seeds or windows that is drawn from; 1 where nothing is."""
    return min((n for table in tables for n in table.shape[:2] if n > 1), default=1)


def expanded_interval(centre: float, resampled: Floats, n: int) -> Interval:
    """95 % interval of resampled statistics: expanded percentiles, for samples of `n`.

    Args:
        centre: the statistic.
        resampled: (resamples,); infinite ones are endless, and so may the interval be.
        n: things that were drawn from; of 1 there is no interval (NaN bounds).
    """
    if n <= 1 or np.isnan(resampled).any():
        return Interval(centre, np.nan, np.nan)
    tail = expanded_tail(n)
    endless = np.isinf(resampled).any()
    low, high = np.percentile(
        resampled, [100 * tail, 100 * (1 - tail)], method="nearest" if endless else "linear"
    )
    return Interval(centre, float(low), float(high))


def expanded_tail(n: int) -> float:
    """Probability beyond each end: that of a normal variable beyond Student's t quantile of a sample of `n`,
    times sqrt(n / (n - 1)), for a sample's resamples spread by the divisor n. 2.5 % for large ones.
    """
    from scipy.stats import norm, t

    quantile = t.ppf((1 + CONFIDENCE) / 2, n - 1) * np.sqrt(n / (n - 1))
    return float(norm.sf(quantile))


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
