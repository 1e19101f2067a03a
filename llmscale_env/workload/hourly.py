"""Arrivals by hourly rates: the rate of every minute of an episode, and the arrivals of one hour.

The minutes' rates are drawn at once (a week has 10,080), arrivals hour by hour: an hour needs the
rates and a generator of its own, and nothing of the hours before it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmscale_env.workload.config import HourlyArrivals, LoadBurst
from llmscale_env.workload.requests import PS_PER_S
from llmscale_env.workload.tables import load_rates

MINUTE_S, HOUR_S = 60, 3600
MINUTES = HOUR_S // MINUTE_S
HOUR_PS = HOUR_S * PS_PER_S


def hourly_rpm(config: HourlyArrivals) -> NDArray[np.float64]:
    """(hours,) requests per minute of the table's series.

    Raises:
        ValueError: there is no such table or series.
    """
    rpm = load_rates(config.table).rpm
    if config.series not in rpm:
        raise ValueError(
            f"series = {config.series!r}: not in table {config.table}; there are {sorted(rpm)}"
        )
    return rpm[config.series]


def hourly_rate(config: HourlyArrivals) -> float:
    """Mean rate of its own, in requests/s, without bursts.

    Raises:
        ValueError: there is no such table or series.
    """
    return float(hourly_rpm(config).sum() / len(hourly_rpm(config)) / MINUTE_S)


def days_of(config: HourlyArrivals) -> int:
    """Whole days of the table.

    Raises:
        ValueError: there is no such table or series, or it is shorter than a day.
    """
    days = len(hourly_rpm(config)) // 24
    if not days:
        raise ValueError(f"start_s = 'random-day': table {config.table} is shorter than a day")
    return days


def on_day(config: HourlyArrivals, day: int) -> HourlyArrivals:
    """The same, with this day of the table, from 0, in place of "random-day"."""
    if config.start_s != "random-day":
        return config
    return config.model_copy(update={"start_s": float(day * 24 * HOUR_S)})


def expected_rates(
    config: HourlyArrivals, rate_per_s: float | None, start_s: float, n_hours: int
) -> NDArray[np.float64]:
    """(minutes,) requests/s expected in each minute of so many hours: what all draws have in common.

    Args:
        config: which table and series; its start, noise and bursts do not come in.
        rate_per_s: mean rate over the table; None: its own.
        start_s: time in the table.
        n_hours: how many.
    """
    rpm = hourly_rpm(config)
    middles_s = start_s + (np.arange(n_hours * MINUTES) + 0.5) * MINUTE_S
    place = middles_s / HOUR_S - 0.5
    left = np.floor(place).astype(np.int64)
    low, high = rpm[left % len(rpm)], rpm[(left + 1) % len(rpm)]
    between = low + (place - left) * (high - low)
    scale = 1.0 if rate_per_s is None else rate_per_s / hourly_rate(config)
    return np.round(between / MINUTE_S * scale, 12)


def minute_rates(
    config: HourlyArrivals, rate_per_s: float | None, n_hours: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """(minutes,) requests/s in each minute of so many hours, noise included, bursts not.

    A longer episode begins as a shorter one does.

    Args:
        config: the process.
        rate_per_s: mean rate over the table; None: its own.
        n_hours: how many.
        rng: each part of the noise draws from a child of it.
    """
    begin, noise, spikes, on_off = rng.spawn(4)
    hours = len(hourly_rpm(config))
    start_s = config.start_s
    if isinstance(start_s, str):
        start_s = begin.random() * hours * HOUR_S
    rates = expected_rates(config, rate_per_s, start_s, n_hours)
    n = len(rates)
    factor = np.ones(n)
    if config.noise_cv > 0:
        shape = 1 / config.noise_cv**2
        factor = np.round(noise.standard_gamma(shape, n) / shape, 9)
    if config.spike_share > 0:
        u = spikes.random((n, 2))
        low, high = config.spike_factors
        share = config.spike_share
        rest = (1 - share * (low + high) / 2) / (1 - share)
        factor = np.where(u[:, 0] < share, low + u[:, 1] * (high - low), factor * rest)
    if config.on_share < 1:
        factor = factor * np.where(_on(config, n, on_off), 1 / config.on_share, 0.0)
    return rates * factor


def _on(config: HourlyArrivals, n: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """(n,) which minutes are on: stays of both kinds in turn, started in equilibrium."""
    means = {True: config.mean_on_s, False: config.mean_on_s * (1 / config.on_share - 1)}
    on = bool(rng.random() < config.on_share)
    minutes = np.zeros(n, dtype=np.bool_)
    at = 0.0
    while at < n:
        stay = round(float(rng.standard_exponential()) * means[on] / MINUTE_S, 6)
        minutes[round(at) : round(at + stay)] = on
        at += stay
        on = not on
    return minutes


def place(
    counts: NDArray[np.int64],
    start_ps: NDArray[np.int64],
    width_ps: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """`counts[k]` arrivals at random in `[start_ps[k], start_ps[k] + width_ps[k])`, sorted."""
    offset = rng.random(int(counts.sum())) * np.repeat(width_ps, counts)
    return np.sort(np.repeat(start_ps, counts) + offset.astype(np.int64))


def piecewise_poisson(
    edges_ps: NDArray[np.int64], rate_per_s: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """A Poisson process whose rate is constant between edges."""
    width_ps = np.diff(edges_ps)
    counts = rng.poisson(rate_per_s * (width_ps / PS_PER_S))
    return place(counts, edges_ps[:-1], width_ps, rng)


def hour_arrivals(
    rates: NDArray[np.float64],
    bursts: tuple[LoadBurst, ...],
    hour: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Arrivals of one hour of the episode, sorted, in picoseconds from the episode's start.

    Args:
        rates: (minutes,) requests/s, as `minute_rates` gives them.
        bursts: of the episode.
        hour: which one; 0 is the first.
        rng: all draws come from here.
    """
    begin = hour * HOUR_PS
    edges = begin + np.arange(MINUTES + 1, dtype=np.int64) * MINUTE_S * PS_PER_S
    spans = [
        (round(b.at_s * PS_PER_S), round((b.at_s + b.duration_s) * PS_PER_S), b.factor)
        for b in bursts
    ]
    inside = [t for low, high, _ in spans for t in (low, high) if begin < t < begin + HOUR_PS]
    edges = np.unique(np.append(edges, np.array(inside, dtype=np.int64)))
    lows = edges[:-1]
    rate = rates[lows // (MINUTE_S * PS_PER_S)]
    for low, high, factor in spans:
        rate = np.where((lows >= low) & (lows < high), rate * factor, rate)
    return piecewise_poisson(edges, rate, rng)
