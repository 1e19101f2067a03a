"""Arrivals by real days, batch jobs at odd hours, and what is known of the day before.

A window of ten minutes is drawn from its rate and a generator of its own, so an episode that starts at any
time of a table of days costs what it serves. What came before it is counted and never drawn one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmscale_env.workload.config import (
    TEN_MINUTES_S,
    DayArrivals,
    JobsConfig,
    SLOClass,
    WorkloadConfig,
)
from llmscale_env.workload.hourly import place
from llmscale_env.workload.requests import PS_PER_S
from llmscale_env.workload.tables import load_counts, load_days

WINDOW_PS = TEN_MINUTES_S * PS_PER_S
DAY_S = 86_400
PAST_BIN_S = 10
"""Width of the bins in which the past is counted."""

_WINDOWS_PER_DAY = DAY_S // TEN_MINUTES_S
_WEEK = 7 * _WINDOWS_PER_DAY


@dataclass(frozen=True, eq=False)
class PastRequests:
    """What came before an episode, counted.

    Attributes:
        requests, input_tokens, predicted_tokens: (k, M, R, C) int64 by bin, LLM, region and class. The last
            bin ends where the episode begins. Tokens are counts times mean lengths.
        bin_s: width of a bin.
    """

    requests: NDArray[np.int64]
    input_tokens: NDArray[np.int64]
    predicted_tokens: NDArray[np.int64]
    bin_s: int = PAST_BIN_S

    @property
    def length_s(self) -> int:
        """How far back it goes."""
        return len(self.requests) * self.bin_s

    @cached_property
    def _sums(self) -> NDArray[np.int64]:
        """(k + 1, 2, C) prompt and predicted tokens before each bin."""
        each = np.stack([self.input_tokens, self.predicted_tokens], axis=1).sum(axis=(2, 3))
        return np.concatenate([np.zeros_like(each[:1]), np.cumsum(each, axis=0)])

    def tokens_by_class(
        self, from_s: float, to_s: float
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(C,) prompt and (C,) predicted tokens in [from, to), times counted from the episode's start.

        To the bin; what lies outside of what is known counts as none.
        """
        last = len(self.requests)
        first, end = (
            min(max(round((time_s + self.length_s) / self.bin_s), 0), last)
            for time_s in (from_s, to_s)
        )
        inputs, outputs = self._sums[max(end, first)] - self._sums[first]
        return inputs, outputs


def day_rates(config: DayArrivals) -> NDArray[np.float64]:
    """(windows,) rate of every ten minutes of the table over its mean.

    Raises:
        ValueError: there is no such table.
    """
    return load_days(config.table).reshape(-1)


def possible_starts(config: DayArrivals, horizon_s: float) -> NDArray[np.int64]:
    """Windows of the table in which an episode may start: all of it lies in days that are named.

    Raises:
        ValueError: there is none.
    """
    named = sorted(set(config.days))
    breaks = [0, *(k for k in range(1, len(named)) if named[k] != named[k - 1] + 1), len(named)]
    needed = -(-round(horizon_s) // TEN_MINUTES_S)
    found = []
    for a, b in pairwise(breaks):
        begin = (named[a] - 1) * _WINDOWS_PER_DAY
        end = begin + (b - a) * _WINDOWS_PER_DAY
        starts = np.arange(begin, end - needed + 1)
        if config.start_s != "random":
            starts = starts[starts % _WINDOWS_PER_DAY == config.start_s // TEN_MINUTES_S]
        found.append(starts)
    starts = np.concatenate(found)
    if len(starts) == 0:
        raise ValueError(
            f"days = {named}, start_s = {config.start_s}: an episode of {horizon_s:g} s does not lie in "
            "days that follow each other"
        )
    return starts


def draw_start(config: DayArrivals, horizon_s: float, rng: np.random.Generator) -> int:
    """The window in which an episode starts, each possible one alike."""
    starts = possible_starts(config, horizon_s)
    return int(starts[rng.integers(len(starts))])


def _rates_at(config: DayArrivals, windows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Relative rates of windows; those before the table are of a week later."""
    rates = day_rates(config)
    return rates[np.where(windows < 0, windows + _WEEK, windows) % len(rates)]


def _seconds(config: DayArrivals, rng: np.random.Generator) -> NDArray[np.float64]:
    """(600,) rate of each second of a window over the window's."""
    even: NDArray[np.float64] = np.ones(TEN_MINUTES_S)
    if config.seconds is None:
        return even
    counts = load_counts(config.seconds).counts
    first = int(rng.integers(len(counts)))
    shape = counts[(first + np.arange(TEN_MINUTES_S)) % len(counts)]
    total = int(shape.sum())
    return shape.astype(np.float64) * (TEN_MINUTES_S / total) if total else even


def window_arrivals(
    config: DayArrivals, mean_rate_per_s: float, start: int, k: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Arrivals in window `k` of an episode that starts at window `start` of the table.

    Returns:
        (n,) picoseconds from the episode's start, sorted.
    """
    rate = mean_rate_per_s * float(_rates_at(config, np.array([start + k]))[0])
    counts = rng.poisson(rate * _seconds(config, rng))
    begins = k * WINDOW_PS + np.arange(TEN_MINUTES_S, dtype=np.int64) * PS_PER_S
    return place(counts, begins, np.full(TEN_MINUTES_S, PS_PER_S), rng)


def past_counts(
    config: DayArrivals, mean_rate_per_s: float, start: int, k: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """(60,) requests by `PAST_BIN_S` in the window that is `k` + 1 windows before the start."""
    rate = mean_rate_per_s * float(_rates_at(config, np.array([start - k - 1]))[0])
    seconds = _seconds(config, rng).reshape(-1, PAST_BIN_S).sum(axis=1)
    return rng.poisson(rate * seconds)


def expected_requests(config: DayArrivals, mean_rate_per_s: float, horizon_s: float) -> float:
    """Mean requests of an episode over all possible starts."""
    starts = possible_starts(config, horizon_s)
    whole = int(horizon_s // TEN_MINUTES_S)
    part = horizon_s / TEN_MINUTES_S - whole
    sums = np.concatenate([[0.0], np.cumsum(day_rates(config))])
    found = float((sums[starts + whole] - sums[starts]).mean())
    if part:
        found += part * float(_rates_at(config, starts + whole).mean())
    return found * TEN_MINUTES_S * mean_rate_per_s


# ---- jobs ----------------------------------------------------------------------------------------


class Jobs(NamedTuple):
    """Jobs of an episode and of the time before it.

    Attributes:
        time_s: (n,) when they come, from the episode's start; negative: before.
        requests: (n,) int64.
        which: (n,) index into `JobsConfig.classes`.
    """

    time_s: NDArray[np.float64]
    requests: NDArray[np.int64]
    which: NDArray[np.int64]


def draw_jobs(
    config: JobsConfig, rate_scale: float, back_s: float, horizon_s: float, rng: np.random.Generator
) -> Jobs:
    """Jobs from `back_s` before an episode to its end, in order of time (to the microsecond)."""
    n = int(rng.poisson(config.per_day * (back_s + horizon_s) / DAY_S))
    time_s = np.sort(np.round(rng.random(n) * (back_s + horizon_s) - back_s, 6))
    low, high = config.n_requests
    size = rng.integers(low, high + 1, n)
    which = rng.integers(len(config.classes), size=n)
    return Jobs(time_s, np.rint(size * rate_scale).astype(np.int64), which)


def left_over(
    config: JobsConfig, targets_s: Sequence[float], jobs: Jobs
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What is left of jobs of before, by `JobsConfig.backlog`: (k,) requests and (k,) class of each.

    Args:
        config: of the jobs.
        targets_s: TTFT targets of its classes.
        jobs: as drawn.
    """
    targets = np.asarray(targets_s, float)
    before = jobs.time_s < 0
    if not config.backlog:
        before[:] = False
    deadline_s = targets[jobs.which[before]]
    left_s = deadline_s + jobs.time_s[before]
    fits = targets[None, :] <= left_s[:, None]
    longest = np.where(fits, targets[None, :], -1.0).argmax(axis=1)
    share = np.where(fits.any(axis=1), left_s / deadline_s, 0.0)
    requests = np.rint(jobs.requests[before] * share).astype(np.int64)
    return requests, longest


def expected_jobs(
    config: JobsConfig, targets_s: Sequence[float], rate_scale: float, horizon_s: float
) -> NDArray[np.float64]:
    """Mean requests of jobs by class of `JobsConfig.classes`, the backlog included."""
    size = sum(config.n_requests) / 2 * rate_scale
    per_s = config.per_day / DAY_S * size / len(targets_s)
    found = np.full(len(targets_s), per_s * horizon_s)
    if not config.backlog:
        return found
    targets = np.asarray(targets_s, float)
    for deadline_s in targets:
        # Jobs with `left` seconds to go, left from 0 to the deadline, have left / deadline of their requests.
        edges = np.sort(np.append(targets[targets < deadline_s], deadline_s))
        for low, high in pairwise(edges):
            found[int(np.flatnonzero(targets == low)[0])] += (
                per_s * (high**2 - low**2) / (2 * deadline_s)
            )
    return found


def longest_target_s(workload: WorkloadConfig, classes: Sequence[SLOClass]) -> float:
    """The longest deadline that a job may have; 0 without jobs."""
    targets = {c.name: c.ttft_s for c in classes}
    return max((targets[name] for job in workload.jobs for name in job.classes), default=0.0)
