"""Request spikes (Chiron, section 2.3): arrivals in an interval over those in the interval before."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmscale_env.workload.arrivals import generate_arrivals
from llmscale_env.workload.config import GammaArrivals
from llmscale_env.workload.requests import PS_PER_S


def counts_in_intervals(
    arrival_s: ArrayLike, width_s: float, horizon_s: float
) -> NDArray[np.int64]:
    """Arrivals in whole consecutive intervals from time 0; a part of one at the end is left out."""
    n = int(horizon_s / width_s + 1e-9)
    place = np.floor_divide(np.asarray(arrival_s, np.float64), width_s).astype(np.int64)
    return np.bincount(place[place < n], minlength=n)


def consecutive(bins: ArrayLike, width: int, step: int) -> NDArray[np.int64]:
    """Arrivals in pairs of consecutive intervals of `width` bins, a pair beginning every `step` bins.

    Returns:
        (n, 3): first bin of the later interval, arrivals in the earlier, arrivals in the later.
    """
    total = np.concatenate([[0], np.cumsum(np.asarray(bins, np.int64))])
    begin = np.arange(0, len(total) - 2 * width, step)
    middle, end = begin + width, begin + 2 * width
    before, after = total[middle] - total[begin], total[end] - total[middle]
    return np.stack([middle, before, after], axis=1)


def spike_ratios(before: ArrayLike, after: ArrayLike, least_before: int = 1) -> NDArray[np.float64]:
    """Spikes of pairs of consecutive intervals.

    The ratio to an empty interval is not defined. An interval is therefore taken to have held at least
    `least_before` requests, which keeps every spike finite and errs towards small ones; with 0, pairs
    whose first interval is empty are left out.
    """
    first, second = np.asarray(before, np.float64), np.asarray(after, np.float64)
    if least_before == 0:
        first, second = first[first > 0], second[first > 0]
    return second / np.maximum(first, least_before)


def quantiles(values: ArrayLike, levels: ArrayLike) -> NDArray[np.float64]:
    """Quantiles of a sample; NaN without any values."""
    sample = np.asarray(values, np.float64)
    wanted = np.atleast_1d(np.asarray(levels, np.float64))
    return np.quantile(sample, wanted) if len(sample) else np.full(len(wanted), np.nan)


def gamma_arrivals(cv: float) -> dict[str, Any]:
    """The change of a scenario with one stream, "interactive", that makes its arrivals bursty."""
    return {"workload.streams.interactive.arrivals": {"kind": "gamma", "cv": cv}}


def gamma_counts(
    rate_per_s: float, cv: float, width_s: float, horizon_s: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Arrivals of a Gamma renewal process in consecutive intervals."""
    drawn = generate_arrivals(GammaArrivals(cv=cv), rate_per_s, horizon_s, rng)
    return counts_in_intervals(drawn.arrival_ps / PS_PER_S, width_s, horizon_s)
