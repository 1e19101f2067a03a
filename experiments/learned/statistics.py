"""Interquartile means with stratified bootstrap intervals, and the probability of improvement.

Definitions are those of Agarwal et al., "Deep reinforcement learning at the edge of the statistical
precipice" (NeurIPS 2021) and its library rliable. The library itself cannot be imported here: its intervals
come from arch, whose release 7.2 does not import beside pandas 3.

Two things are ours. There, every run of every task is a training of its own; here policies run on the same
windows as all others, and one that was trained once may run on several workloads. So a resample draws
windows once per workload for all policies, and training seeds once per training, on however many workloads
it runs. And percentiles of resamples of a handful of seeds never leave the range of these seeds: with two of
them a "95 %" interval holds the truth every other time. So with fewer than ten things drawn from, be it seeds
or windows, the bootstrap gives the standard error, and the interval is Student's t; where the resamples reach
further to one side, it ends where they do. With more the interval is that of the percentiles, each side as
long as its own resamples say: where a few hard windows decide who keeps 99 %, they reach far up and hardly
down, and no policy may be thought to need less for that. One training has no interval: nobody knows what
another would have done.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agents.statistics import CONFIDENCE, FEW, Interval, interquartile_mean

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
        scores: by workload, each counting the same, however many training seeds it has.
        statistic: of all values together.
        trainings: by workload, the name of the training whose seeds its rows are; workloads of one training
            have the same seeds. None: nobody was trained, and there is one row.
        resamples, seed: of the bootstrap.

    Returns:
        NaN bounds where there is one value per workload, or one training seed.

    Raises:
        ValueError: no scores, or workloads of one training with different numbers of seeds.
    """
    tables = {name: as_table(values) for name, values in scores.items()}
    if not tables:
        raise ValueError("scores: there are none")
    centre = statistic(_together(list(tables.values())))
    some = [
        statistic(_together(resample))
        for resample in _resamples(tables, trainings, resamples, seed)
    ]
    n = min(fewest(table, trainings is not None) for table in tables.values())
    return t_interval(centre, np.array(some), n)


def _together(tables: Sequence[Floats]) -> Floats:
    """All values of all tables; rows of those with fewer are repeated, so that each weighs the same."""
    height = int(np.lcm.reduce([len(table) for table in tables]))
    return np.concatenate([np.repeat(t, height // len(t), axis=0).ravel() for t in tables])


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


def shares(drawn: Ints) -> Floats:
    """(resamples, n) of draws (resamples, n): which share of a resample's each thing is."""
    n = drawn.shape[1]
    counts = np.zeros(drawn.shape)
    np.add.at(counts, (np.arange(len(drawn))[:, None], drawn), 1.0 / n)
    return counts


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
        values, others: as there; `others` of a policy that is not trained.
        trainings: of `values`, as `stratified_interval`.
        resamples, seed: of the bootstrap.

    Raises:
        ValueError: as there, or as `stratified_interval`.
    """
    first = {name: as_table(table) for name, table in values.items()}
    centre = probability_of_improvement(first, others)
    second = {name: as_table(others[name]) for name in first}
    one = _resamples(first, trainings, resamples, seed)
    two = _resamples(second, None, resamples, seed)
    some = [
        float(np.mean([_above(a.ravel(), b.ravel()) for a, b in zip(x, y, strict=True)]))
        for x, y in zip(one, two, strict=True)
    ]
    n = min(fewest(table, trainings is not None) for table in first.values())
    found = t_interval(centre, np.array(some), n)
    low, high = (float(np.clip(v, 0.0, 1.0)) for v in (found.low, found.high))
    return Interval(centre, low, high)


def fewest(table: Floats, trained: bool) -> int:
    """The smaller one of the numbers of training seeds and windows of a table (seeds, windows).

    1, of which there is no interval, where there is one window, or one training of many that there could have
    been: nobody knows what another would have been like.
    """
    n_seeds, n_windows = table.shape
    return min(n_seeds, n_windows) if trained else n_windows


ENDLESS = 1 / 40
"""Share of infinite resamples from which an interval is endless."""


def t_interval(centre: float, resampled: Floats, n: int) -> Interval:
    """95 % interval of a statistic, from resamples of samples of `n`.

    Below `FEW` things Student's t with the bootstrap's standard error, or to the percentiles of the
    resamples, whichever is further on each side. From there on the percentiles, their distances from the
    statistic widened by as much as Student's t is wider than the normal law. Resamples spread by the divisor
    n where samples do by n - 1, hence a factor of sqrt(n / (n - 1)) in both.

    Args:
        centre: the statistic.
        resampled: (resamples,); where more than `ENDLESS` of them are infinite the upper end is, and fewer
            are left out of the standard error.
        n: things that were drawn from; of 1 there is no interval (NaN bounds).
    """
    if n <= 1 or np.isnan(centre) or np.isnan(resampled).any():
        return Interval(centre, np.nan, np.nan)
    from scipy.stats import norm, t

    finite = resampled[np.isfinite(resampled)]
    if len(finite) < 2:
        return Interval(centre, np.nan, np.inf)
    level = (1 + CONFIDENCE) / 2
    factor = t.ppf(level, n - 1) * np.sqrt(n / (n - 1))
    endless = 1 - len(finite) / len(resampled) > ENDLESS
    low = np.quantile(resampled, ENDLESS, method="lower")
    high = np.inf if endless else np.quantile(resampled, 1 - ENDLESS, method="lower")
    if n < FEW:
        half = factor * finite.std(ddof=1)
        return Interval(centre, float(min(centre - half, low)), float(max(centre + half, high)))
    wider = factor / norm.ppf(level)
    down, up = max(0.0, centre - low), max(0.0, high - centre)
    return Interval(centre, float(centre - wider * down), float(centre + wider * up))


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
