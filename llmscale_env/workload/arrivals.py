"""Arrival processes: from a configuration and a generator to sorted int64 picoseconds.

Reproducible bit for bit: numbers of arrivals are integers, places within a bin are a uniform times
a width (one correctly rounded product), and what must go through the C library's exponentials
(Gamma gaps, stays in a state, sinusoids) is rounded far above its last bit: gaps to nanoseconds,
stays to microseconds, factors to nine decimals. A difference in the last bit of such a function
therefore changes an episode with a chance below 1e-4, and the other processes not at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmscale_env.workload.config import (
    CountArrivals,
    DayArrivals,
    DiurnalArrivals,
    GammaArrivals,
    HourlyArrivals,
    LevelArrivals,
    MMPPArrivals,
    PoissonArrivals,
    SpikeArrivals,
    TraceArrivals,
)
from llmscale_env.workload.hourly import (
    HOUR_PS,
    hour_arrivals,
    hourly_rate,
    minute_rates,
    piecewise_poisson,
    place,
)
from llmscale_env.workload.readers import Trace, load_trace
from llmscale_env.workload.requests import PS_PER_S
from llmscale_env.workload.tables import CountTable, load_counts, load_hour_factors

_PS_PER_NS = 1_000
_PS_PER_US = 1_000_000


@dataclass(frozen=True)
class Arrivals:
    """Arrivals of one stream.

    Attributes:
        arrival_ps: (n,) int64, sorted, in [0, horizon).
        trace: the trace that is replayed, or None.
        rows: (n,) row of each request in the trace (only with one).
        copy: (n,) which copy of its row each request is, no two alike (only with a trace): rows come again
            in another round of the trace, and where a higher rate repeats them.
    """

    arrival_ps: NDArray[np.int64]
    trace: Trace | None = None
    rows: NDArray[np.int64] | None = None
    copy: NDArray[np.int64] | None = None


def to_ps(seconds: float) -> int:
    """Seconds as whole picoseconds."""
    return round(seconds * PS_PER_S)


def _gamma(
    config: GammaArrivals, rate_per_s: float, horizon_ps: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    shape = 1.0 / config.cv**2
    mean_gap_ns = 1e9 / rate_per_s
    # The first gap of a stationary renewal process is a uniform part of a length-biased gap, and a
    # length-biased Gamma is a Gamma of shape + 1: the mean count is then exact on any horizon.
    first = rng.random() * rng.standard_gamma(shape + 1.0)
    expected = rate_per_s * horizon_ps / PS_PER_S
    chunk = int(1.05 * expected + 4 * config.cv * expected**0.5) + 64
    times = [np.array([np.rint(first / shape * mean_gap_ns)], dtype=np.int64)]
    while times[-1][-1] * _PS_PER_NS < horizon_ps:
        gaps_ns = np.rint(rng.standard_gamma(shape, chunk) / shape * mean_gap_ns).astype(np.int64)
        times.append(times[-1][-1] + np.cumsum(gaps_ns))
    ps = np.concatenate(times) * _PS_PER_NS
    return ps[: np.searchsorted(ps, horizon_ps)]


def _alternating_edges(
    means_s: tuple[float, float],
    fixed: tuple[bool, bool],
    horizon_ps: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Edges (from 0 to the horizon) of stays that alternate between two kinds.

    A stay lasts its mean (`fixed`) or is exponential; stays are whole microseconds, at least one.
    """
    edges = [np.zeros(1, dtype=np.int64)]
    while edges[-1][-1] < horizon_ps:
        stays = np.stack([rng.standard_exponential(64) for _ in range(2)], axis=1)
        for k in range(2):
            stays[:, k] = means_s[k] if fixed[k] else stays[:, k] * means_s[k]
        stays_us = np.maximum(np.rint(stays.ravel() * 1e6).astype(np.int64), 1)
        edges.append(edges[-1][-1] + np.cumsum(stays_us) * _PS_PER_US)
    all_edges = np.concatenate(edges)
    return np.append(all_edges[all_edges < horizon_ps], horizon_ps)


def _mmpp(
    config: MMPPArrivals, rate_per_s: float, horizon_ps: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    on_share = config.mean_on_s / (config.mean_on_s + config.mean_off_s)
    on_rate = rate_per_s / (on_share + config.off_rate_fraction * (1 - on_share))
    on_first = rng.random() < on_share
    means_s = (config.mean_on_s, config.mean_off_s)
    edges = _alternating_edges(
        means_s if on_first else means_s[::-1], (False, False), horizon_ps, rng
    )
    on = (np.arange(len(edges) - 1) % 2 == 0) == on_first
    return piecewise_poisson(edges, np.where(on, on_rate, on_rate * config.off_rate_fraction), rng)


def level_shares(config: LevelArrivals) -> NDArray[np.float64]:
    """(n,) share of time at each level in equilibrium."""
    n = len(config.rates_per_s)
    following = _following(config)
    # Visits v with v P = v and sum 1: the last equation, which the others imply, gives way to the sum.
    equations = following.T - np.eye(n)
    equations[-1] = 1.0
    visits = np.linalg.solve(equations, np.append(np.zeros(n - 1), 1.0))
    time = np.maximum(visits, 0.0) * np.array(config.mean_stays_s)
    return np.round(time / time.sum(), 12)


def level_rate(config: LevelArrivals) -> float:
    """Mean rate of its own."""
    return float(level_shares(config) @ np.array(config.rates_per_s))


def _following(config: LevelArrivals) -> NDArray[np.float64]:
    n = len(config.rates_per_s)
    if config.next is None:
        return (1 - np.eye(n)) / (n - 1)
    rows = np.array(config.next)
    return rows / rows.sum(axis=1, keepdims=True)


def _levels(
    config: LevelArrivals,
    rate_per_s: float | None,
    rate_scale: float,
    horizon_ps: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    follow = np.cumsum(np.round(_following(config), 9), axis=1)
    shares = np.cumsum(level_shares(config))
    last = len(config.rates_per_s) - 1
    level = min(int(np.searchsorted(shares, rng.random(), side="right")), last)
    edges, levels = [0], []
    while edges[-1] < horizon_ps:
        stay_us = rng.standard_exponential() * config.mean_stays_s[level] * 1e6
        edges.append(edges[-1] + max(round(stay_us), 1) * _PS_PER_US)
        levels.append(level)
        level = min(int(np.searchsorted(follow[level], rng.random(), side="right")), last)
    edges[-1] = horizon_ps
    rates = np.array(config.rates_per_s)[levels]
    ps = piecewise_poisson(np.array(edges, dtype=np.int64), rates, rng)
    own = level_rate(config)
    scale = (1.0 if rate_per_s is None else rate_per_s / own) * rate_scale
    if scale != 1.0:
        ps, _, _ = _repeated(ps, scale, config.jitter_s, rng)
    return ps[: np.searchsorted(ps, horizon_ps)]


def diurnal_factor(config: DiurnalArrivals, time_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rate over mean rate at times of the period; mean 1 over a period.

    Raises:
        ValueError: if `profile` names no shipped profile.
    """
    hours = config.hour_factors
    if config.profile is not None:
        profiles = load_hour_factors()
        if config.profile not in profiles:
            raise ValueError(
                f"profile = {config.profile!r}: no such hour factors; there are {sorted(profiles)}"
            )
        hours = profiles[config.profile]
    if hours is None:
        angle = 2 * np.pi * ((time_s - config.peak_s) / config.period_s)
        return np.round(1 + config.amplitude * np.cos(angle), 9)
    factors = np.array(hours)
    n = len(factors)
    place = (time_s / config.period_s) * n - 0.5
    left = np.floor(place).astype(np.int64)
    part = place - left
    low, high = factors[left % n], factors[(left + 1) % n]
    return np.round((low + part * (high - low)) / (factors.sum() / n), 9)


def _diurnal(
    config: DiurnalArrivals, rate_per_s: float, horizon_ps: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    start_s = rng.random() * config.period_s if config.start_s == "random" else config.start_s
    bin_ps = to_ps(min(60.0, config.period_s / 288))
    edges = np.append(np.arange(0, horizon_ps, bin_ps, dtype=np.int64), horizon_ps)
    middles_s = (edges[:-1] + edges[1:]) / 2 / PS_PER_S
    rate = rate_per_s * diurnal_factor(config, start_s + middles_s)
    if config.noise_cv > 0:
        shape = 1 / config.noise_cv**2
        rate = rate * np.round(rng.standard_gamma(shape, len(rate)) / shape, 9)
    return piecewise_poisson(edges, rate, rng)


def _spikes(
    config: SpikeArrivals, rate_per_s: float, horizon_ps: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    if config.at_s:
        starts = np.array([to_ps(at) for at in config.at_s], dtype=np.int64)
        ends = starts + to_ps(config.duration_s)
        edges = np.unique(np.clip(np.concatenate([[0, horizon_ps], starts, ends]), 0, horizon_ps))
        inside = ((edges[:-1, None] >= starts) & (edges[:-1, None] < ends)).any(axis=1)
    else:
        edges = _alternating_edges(
            (config.every_s, config.duration_s), (False, True), horizon_ps, rng
        )
        inside = np.arange(len(edges) - 1) % 2 == 1
    return piecewise_poisson(edges, np.where(inside, rate_per_s * config.factor, rate_per_s), rng)


def _count_part(config: CountArrivals, table: CountTable) -> NDArray[np.int64]:
    """The part of the table between `from_s` and `to_s`."""
    first = int(config.from_s / table.bin_s)
    last = len(table.counts) if config.to_s is None else int(config.to_s / table.bin_s)
    part = table.counts[first:last]
    if len(part) == 0 or not part.any():
        raise ValueError(
            f"from_s = {config.from_s}, to_s = {config.to_s}: no arrivals in that part of "
            f"{config.table}, which is {table.duration_s:g} s long"
        )
    return part


def _window_start_ps(
    start: str | float, part_ps: int, step_ps: int, rng: np.random.Generator
) -> int:
    """Where in a part the window starts, in whole steps: at random, or as told."""
    if start == "random":
        return int(rng.integers(part_ps // step_ps)) * step_ps
    return to_ps(float(start)) % part_ps // step_ps * step_ps


def _counts(
    config: CountArrivals,
    rate_per_s: float | None,
    rate_scale: float,
    horizon_ps: int,
    rng: np.random.Generator,
) -> Arrivals:
    table = load_counts(config.table)
    part = _count_part(config, table)
    bin_ps = to_ps(table.bin_s)
    start_ps = _window_start_ps(config.start_s, len(part) * bin_ps, bin_ps, rng)
    native = int(part.sum()) / (len(part) * table.bin_s)
    scale = (1.0 if rate_per_s is None else rate_per_s / native) * rate_scale
    if config.trace_path is not None:
        trace = load_trace(config.trace_path, config.trace_format)
        from_ps = int(config.from_s / table.bin_s) * bin_ps
        return _replay(
            trace, (from_ps, from_ps + len(part) * bin_ps), start_ps, scale, 1.0, horizon_ps, rng
        )
    n_bins = -(-horizon_ps // bin_ps)
    window = part[(start_ps // bin_ps + np.arange(n_bins)) % len(part)]
    whole = int(scale)
    window = window * whole + rng.binomial(window, scale - whole)
    starts = np.arange(n_bins, dtype=np.int64) * bin_ps
    ps = place(window, starts, np.full(n_bins, bin_ps), rng)
    return Arrivals(ps[: np.searchsorted(ps, horizon_ps)])


def _replay(
    trace: Trace,
    part_ps: tuple[int, int],
    start_ps: int,
    copies: float,
    jitter_s: float,
    horizon_ps: int,
    rng: np.random.Generator,
    time_factor: float = 1.0,
) -> Arrivals:
    """A window of a trace, from `start_ps` within its part, stitched end to end.

    Every request appears `copies` times on average (a whole number of times and once more by
    chance); all but its first copy are moved by up to `jitter_s`. Times are multiplied by
    `time_factor`.
    """
    from_ps, to_end_ps = part_ps
    period_ps = to_end_ps - from_ps
    rows = np.flatnonzero((trace.arrival_ps >= from_ps) & (trace.arrival_ps < to_end_ps))
    since = trace.arrival_ps[rows] - from_ps - start_ps
    turned = np.argsort(since < 0, kind="stable")
    rows, since = rows[turned], since[turned]
    around = (since < 0).astype(np.int64)
    since = np.where(since < 0, since + period_ps, since)
    needed_ps = int(horizon_ps / time_factor) + 1
    tiles = -(-needed_ps // period_ps)
    ps = (since + np.arange(tiles, dtype=np.int64)[:, None] * period_ps).ravel()
    rows = np.tile(rows, tiles)
    copy = (around + np.arange(tiles)[:, None]).ravel()
    keep = np.searchsorted(ps, needed_ps)
    ps, rows, copy = ps[:keep], rows[:keep], copy[:keep]
    if time_factor != 1.0:
        ps = (ps * time_factor).astype(np.int64)
    if copies != 1.0:
        ps, source, nth = _repeated(ps, copies, jitter_s, rng)
        rows, copy = rows[source], copy[source] * (int(copies) + 1) + nth
    keep = np.searchsorted(ps, horizon_ps)
    return Arrivals(ps[:keep], trace, rows[:keep], copy[:keep])


def _repeated(
    ps: NDArray[np.int64], copies: float, jitter_s: float, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Every arrival `copies` times on average, sorted; which one each is a copy of, and which copy."""
    whole = int(copies)
    times = whole + (rng.random(len(ps)) < copies - whole)
    source = np.repeat(np.arange(len(ps)), times)
    further = np.zeros(len(source), dtype=bool)
    further[1:] = source[1:] == source[:-1]
    moved = (rng.random(len(source)) * to_ps(jitter_s)).astype(np.int64)
    ps = ps[source] + np.where(further, moved, 0)
    nth = np.arange(len(source)) - np.repeat(np.cumsum(times) - times, times)
    order = np.argsort(ps, kind="stable")
    return ps[order], source[order], nth[order]


def _trace(
    config: TraceArrivals,
    rate_per_s: float | None,
    rate_scale: float,
    horizon_ps: int,
    rng: np.random.Generator,
) -> Arrivals:
    trace = load_trace(
        config.path, config.format, config.sort, config.only_llm, config.hash_block_tokens
    )
    from_ps = to_ps(config.from_s)
    to_end_ps = trace.period_ps if config.to_s is None else to_ps(config.to_s)
    to_end_ps = min(to_end_ps, trace.period_ps)
    a, b = np.searchsorted(trace.arrival_ps, [from_ps, to_end_ps])
    if a >= b:
        raise ValueError(
            f"from_s = {config.from_s}, to_s = {config.to_s}: no arrivals in that part of "
            f"{trace.path}, which is {trace.period_ps / PS_PER_S:g} s long"
        )
    start_ps = _window_start_ps(config.start_s, to_end_ps - from_ps, 1, rng)
    native = float(b - a) / ((to_end_ps - from_ps) / PS_PER_S)
    scale = (1.0 if rate_per_s is None else rate_per_s / native) * rate_scale
    by_time = config.rescale == "time"
    return _replay(
        trace,
        (from_ps, to_end_ps),
        start_ps,
        1.0 if by_time else scale,
        config.jitter_s,
        horizon_ps,
        rng,
        time_factor=1.0 / scale if by_time else 1.0,
    )


AnyArrivals = (
    PoissonArrivals
    | GammaArrivals
    | MMPPArrivals
    | LevelArrivals
    | DiurnalArrivals
    | HourlyArrivals
    | DayArrivals
    | SpikeArrivals
    | CountArrivals
    | TraceArrivals
)


def hourly_rates(
    config: HourlyArrivals,
    rate_per_s: float | None,
    rate_scale: float,
    horizon_ps: int,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """(minutes,) requests/s in each minute of the hours that a horizon reaches into."""
    mean = hourly_rate(config) if rate_per_s is None else rate_per_s
    return minute_rates(config, mean * rate_scale, -(-horizon_ps // HOUR_PS), rng)


def generate_arrivals(
    config: AnyArrivals,
    rate_per_s: float | None,
    horizon_s: float,
    rng: np.random.Generator,
    *,
    rate_scale: float = 1.0,
) -> Arrivals:
    """Arrivals in [0, horizon).

    Args:
        config: the process.
        rate_per_s: mean rate (outside spikes for `spikes`); None, for a trace, its counts or levels
            fitted to it, is their own rate.
        horizon_s: length of the episode.
        rng: all draws come from here.
        rate_scale: multiplies the rate, given or own.

    Raises:
        ValueError: unknown table or profile, an empty part of a trace, a malformed trace.
        OSError: a trace file that cannot be read.
    """
    horizon_ps = to_ps(horizon_s)
    if isinstance(config, CountArrivals):
        return _counts(config, rate_per_s, rate_scale, horizon_ps, rng)
    if isinstance(config, TraceArrivals):
        return _trace(config, rate_per_s, rate_scale, horizon_ps, rng)
    if isinstance(config, LevelArrivals):
        return Arrivals(_levels(config, rate_per_s, rate_scale, horizon_ps, rng))
    if isinstance(config, HourlyArrivals) and config.start_s == "random-day":
        raise ValueError(
            "start_s = 'random-day': is drawn with all of a workload (`generate_requests`)"
        )
    if isinstance(config, HourlyArrivals):
        rates = hourly_rates(config, rate_per_s, rate_scale, horizon_ps, rng)
        hours = [
            hour_arrivals(rates, config.bursts, hour, child)
            for hour, child in enumerate(rng.spawn(-(-horizon_ps // HOUR_PS)))
        ]
        ps = np.concatenate(hours)
        return Arrivals(ps[: np.searchsorted(ps, horizon_ps)])
    if isinstance(config, DayArrivals):
        raise ValueError(
            "arrivals of kind days are drawn with all of a workload (`generate_requests`)"
        )
    if rate_per_s is None:
        raise ValueError(f"rate_per_s is missing: arrivals of kind {config.kind} need one")
    rate_per_s *= rate_scale
    if isinstance(config, GammaArrivals):
        return Arrivals(_gamma(config, rate_per_s, horizon_ps, rng))
    if isinstance(config, MMPPArrivals):
        return Arrivals(_mmpp(config, rate_per_s, horizon_ps, rng))
    if isinstance(config, DiurnalArrivals):
        return Arrivals(_diurnal(config, rate_per_s, horizon_ps, rng))
    if isinstance(config, SpikeArrivals):
        return Arrivals(_spikes(config, rate_per_s, horizon_ps, rng))
    edges = np.array([0, horizon_ps], dtype=np.int64)
    return Arrivals(piecewise_poisson(edges, np.array([rate_per_s]), rng))
