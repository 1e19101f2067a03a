"""Workers needed (Eq. 7), and changes of demand at each heartbeat (section 5.2).

Above a lower bound R of the rate the number of workers is linear in it, N_w = ceil(k5 r_a + c5). R
exists because few requests in a heartbeat do not show the lengths' distribution: the standard error
of their mean, sigma / sqrt(n), says how well they do. The paper gives no number; here R is the rate
at which the error of both mean input and mean output falls to a given share of the mean.

"In every cluster heartbeat, we can reconfigure the cluster using change point detection": the paper
names no method. Here arrivals per heartbeat are made nearly normal with variance 1 (Anscombe's
transform of Poisson counts), and a penalised least-squares segmentation (PELT, by the library
ruptures) looks for changes of their mean; what came before the last change is forgotten. The
penalty is set from a chance of false alarm.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from baselines.aladdin.performance import fit_line

Below = Literal["margin", "line"]


# ---- Eq. 7 ----


def standard_error(values: ArrayLike, requests: float) -> float:
    """SEM of the mean of so many requests: sigma / sqrt(n).

    Args:
        values: (m,) input or output tokens in the history, at least two.
        requests: n, of a heartbeat.

    Raises:
        ValueError: fewer than two values, or no requests.
    """
    data = np.asarray(values, np.float64)
    if data.size < 2:
        raise ValueError(f"values: {data.size} given, at least 2 are needed")
    if not requests > 0:
        raise ValueError(f"requests = {requests}: must be positive")
    return float(data.std(ddof=1) / math.sqrt(requests))


def lower_rate(
    input_tokens: ArrayLike, output_tokens: ArrayLike, heartbeat_s: float, error: float = 0.1
) -> float:
    """R in requests/s: the rate at which a heartbeat shows both mean lengths to a relative error.

    Args:
        input_tokens, output_tokens: (m,) of the history.
        heartbeat_s: between two placements.
        error: SEM as a share of the mean (ours).

    Raises:
        ValueError: a value out of range.
    """
    for name, value in (("heartbeat_s", heartbeat_s), ("error", error)):
        if not value > 0:
            raise ValueError(f"{name} = {value}: must be positive")
    needed = 0.0
    for values in (input_tokens, output_tokens):
        mean = float(np.mean(np.asarray(values, np.float64)))
        needed = max(needed, (standard_error(values, 1.0) / (error * mean)) ** 2)
    return needed / heartbeat_s


@dataclass(frozen=True)
class WorkerLine:
    """Eq. 7.

    Attributes:
        per_rate: k5, workers per request/s.
        const: c5, workers.
        lower_rate: R in requests/s; at most this the line is not claimed to hold.
        error_at_lower: relative SEM at R.
        below: at most R, "margin" (ours) adds one and a half standard errors (`z`) of the demand,
            "line" does not.
        z: standard errors of the margin.

    Raises:
        ValueError: a value out of range.
    """

    per_rate: float
    const: float
    lower_rate: float = 0.0
    error_at_lower: float = 0.1
    below: Below = "margin"
    z: float = 1.5

    def __post_init__(self) -> None:
        if not (self.per_rate > 0 and math.isfinite(self.per_rate)):
            raise ValueError(f"per_rate = {self.per_rate}: must be positive and finite")
        if not math.isfinite(self.const):
            raise ValueError(f"const = {self.const}: must be finite")
        for name in ("lower_rate", "error_at_lower", "z"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least 0")
        if self.below not in ("margin", "line"):
            raise ValueError(f"below = {self.below!r}: must be 'margin' or 'line'")

    def workers(self, rate: float) -> int:
        """N_w for a rate in requests/s: 0 without arrivals, at least 1 with.

        Raises:
            ValueError: a negative rate.
        """
        if not rate >= 0:
            raise ValueError(f"rate = {rate}: must be at least 0")
        if rate == 0:
            return 0
        demand = self.per_rate * rate
        if self.below == "margin" and rate <= self.lower_rate:
            # The SEM goes with 1 / sqrt(n), and n with the rate.
            demand *= 1 + self.z * self.error_at_lower * math.sqrt(self.lower_rate / rate)
        return max(1, math.ceil(demand + self.const - 1e-9))


def fit_workers(
    rates: ArrayLike,
    workers: ArrayLike,
    *,
    lower_rate: float = 0.0,
    error_at_lower: float = 0.1,
    rounded: bool = False,
    below: Below = "margin",
) -> WorkerLine:
    """k5 and c5 from pairs of rate and workers needed (c5 may be negative).

    Args:
        rates: (n,) requests/s.
        workers: (n,) that were needed.
        lower_rate: R: only pairs above it count.
        error_at_lower: relative SEM at R.
        rounded: the workers are whole numbers, rounded up already, which is half a worker on
            average: take it off before Eq. 7 rounds up again (ours). The paper does not say.
        below: see `WorkerLine`.

    Raises:
        ValueError: too few pairs above R, rates that are all alike, or a line that falls.
    """
    r, n = np.asarray(rates, np.float64), np.asarray(workers, np.float64)
    if r.shape != n.shape:
        raise ValueError(f"{r.size} rates, {n.size} workers: needs one of each per pair")
    some = r > lower_rate
    if int(some.sum()) < 3:
        raise ValueError(f"{int(some.sum())} pairs above R = {lower_rate:g}: at least 3 are needed")
    # c5 may be negative, which `fit_line` does not allow: shift it away and back.
    shift = float(n[some].max()) + 1.0
    columns = {"per_rate": r[some], "const": np.ones(int(some.sum()))}
    target = n[some] - (0.5 if rounded else 0.0)
    line = fit_line(columns, target + shift)
    return WorkerLine(
        float(line.coefficients[0]),
        float(line.coefficients[1]) - shift,
        lower_rate,
        error_at_lower,
        below,
    )


# ---- change points ----


@lru_cache(maxsize=256)
def penalty(samples: int, false_alarm: float) -> float:
    """Of a change, in units of squared standard deviations.

    A look at `samples` values without a change finds one with at most this chance: at each place
    the gain of a split is chi-square with one degree of freedom, and there are `samples` places
    (Bonferroni).

    Raises:
        ValueError: a chance outside 0..1, or no samples.
    """
    from scipy.stats import chi2

    if not 0 < false_alarm < 1:
        raise ValueError(f"false_alarm = {false_alarm}: must be between 0 and 1")
    if samples < 1:
        raise ValueError(f"samples = {samples}: must be at least 1")
    return float(chi2.isf(false_alarm / samples, 1))


def dispersion(counts: ArrayLike) -> float:
    """Variance over mean of counts, at least 1, from their successive differences.

    Differences do not see changes of the mean, but where they happen; a median does not see those.
    """
    root = _stable(counts)
    if len(root) < 8:
        return 1.0
    steps = np.median(np.abs(np.diff(root))) / (NormalDist().inv_cdf(0.75) * math.sqrt(2.0))
    return max(1.0, float(steps) ** 2)


def change_points(
    counts: ArrayLike, *, false_alarm: float = 1e-3, over: float = 1.0, shortest: int = 2
) -> list[int]:
    """Where the mean of arrivals per heartbeat changes.

    Args:
        counts: (n,) arrivals of each heartbeat.
        false_alarm: chance of one or more in counts without a change.
        over: variance over mean of the counts (`dispersion`); 1: Poisson.
        shortest: heartbeats between two changes.

    Returns:
        The first heartbeat of each new level, ascending; empty without a change.

    Raises:
        ValueError: negative counts, or a value out of range.
    """
    import ruptures

    if shortest < 1:
        raise ValueError(f"shortest = {shortest}: must be at least 1")
    if not over >= 1:
        raise ValueError(f"over = {over}: must be at least 1")
    signal = _stable(counts) / math.sqrt(over)
    if len(signal) < 2 * shortest:
        return []
    found = ruptures.KernelCPD(kernel="linear", min_size=shortest).fit(signal.reshape(-1, 1))
    return [int(k) for k in found.predict(pen=penalty(len(signal), false_alarm))[:-1]]


def _stable(counts: ArrayLike) -> NDArray[np.float64]:
    """Anscombe (1948): 2 sqrt(x + 3/8) of a Poisson count has a variance of about 1 (from a mean of 4 on)."""
    values = np.asarray(counts, np.float64).reshape(-1)
    if not (values >= 0).all():
        raise ValueError("counts must be at least 0")
    return 2.0 * np.sqrt(values + 0.375)


@dataclass(frozen=True)
class Demand:
    """What is believed of arrivals after a heartbeat.

    Attributes:
        rate: requests/s since the last change.
        changed: this heartbeat shows a change.
        heartbeats: that the rate is from.
    """

    rate: float
    changed: bool
    heartbeats: int


@dataclass
class DemandMonitor:
    """Arrivals heartbeat by heartbeat: the rate since the last change.

    Attributes:
        heartbeat_s: length of one.
        false_alarm: chance of a false change at one look. Looks overlap, so alarms over a long time
            are far fewer than their number times this.
        window: heartbeats that are remembered at most.
        shortest: a change needs so many heartbeats to be seen.
        poisson: arrivals are taken to be Poisson; False: their dispersion is estimated.

    Raises:
        ValueError: a value out of range.
    """

    heartbeat_s: float
    false_alarm: float = 1e-3
    window: int = 120
    shortest: int = 2
    poisson: bool = False
    _counts: deque[int] = field(init=False)

    def __post_init__(self) -> None:
        if not self.heartbeat_s > 0:
            raise ValueError(f"heartbeat_s = {self.heartbeat_s}: must be positive")
        if not 1 <= self.shortest <= self.window // 2:
            raise ValueError(
                f"shortest = {self.shortest}: must be at least 1 and at most half of window = {self.window}"
            )
        penalty(1, self.false_alarm)
        self._counts = deque(maxlen=self.window)

    def observe(self, arrivals: int) -> Demand:
        """One heartbeat.

        Args:
            arrivals: requests that came in it.

        Raises:
            ValueError: a negative number.
        """
        if arrivals < 0:
            raise ValueError(f"arrivals = {arrivals}: must be at least 0")
        self._counts.append(int(arrivals))
        counts: Sequence[int] = list(self._counts)
        over = 1.0 if self.poisson else dispersion(counts)
        found = change_points(
            counts, false_alarm=self.false_alarm, over=over, shortest=self.shortest
        )
        if found:
            counts = counts[found[-1] :]
            self._counts = deque(counts, maxlen=self.window)
        rate = sum(counts) / (len(counts) * self.heartbeat_s)
        return Demand(rate, bool(found), len(counts))
