"""Grouped distributed scheduling (appendix A, Eq. 8), and what small groups cost.

Arrivals are dealt to groups by round robin, and each group's scheduler places them on the group's
own workers. Small groups are scheduled sooner; large ones need fewer additional workers: with half
of the groups needing one more than centralised scheduling would, an error of e asks for at least 1
/ (2 e) workers in each.

Eq. 8 as printed, 1 / (2 e) <= r_i <= r(T_s), compares workers with a rate. Here the text counts:
N_i >= 1 / (2 e), with group i's rate r_i = N_i / N_w r_a below the rate r(T_s) at which scheduling
takes T_s. `literal=True` compares the rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from baselines.aladdin.constraints import Request, Rules
from baselines.aladdin.performance import fit_line
from baselines.aladdin.placement import Order, best_fit


@dataclass(frozen=True)
class SchedulingTime:
    """Time of a scheduling round of n requests: a n log2 n + b ("the time complexity is O(n log n)").

    Attributes:
        per_step_s: a.
        const_s: b.
        heartbeat_s: between two rounds: n is rate times this.

    Raises:
        ValueError: a value out of range.
    """

    per_step_s: float
    const_s: float
    heartbeat_s: float

    def __post_init__(self) -> None:
        for name, low in (("per_step_s", False), ("const_s", True), ("heartbeat_s", False)):
            value = getattr(self, name)
            if not (math.isfinite(value) and (value > 0 or (low and value == 0))):
                raise ValueError(
                    f"{name} = {value}: must be {'at least 0' if low else 'positive'} and finite"
                )

    @classmethod
    def fit(cls, rates: ArrayLike, seconds: ArrayLike, heartbeat_s: float) -> SchedulingTime:
        """Of measured rounds.

        Args:
            rates: (n,) requests/s.
            seconds: (n,) of a round.
            heartbeat_s: between two rounds.

        Raises:
            ValueError: too few rounds, or rates that are all alike.
        """
        steps = [_steps(float(rate) * heartbeat_s) for rate in np.asarray(rates, np.float64)]
        fit = fit_line({"per_step_s": steps, "const_s": np.ones(len(steps))}, seconds)
        return cls(float(fit.coefficients[0]), float(fit.coefficients[1]), heartbeat_s)

    def seconds(self, rate: float) -> float:
        """Of a round at a rate in requests/s."""
        return self.per_step_s * _steps(rate * self.heartbeat_s) + self.const_s

    def most_rate(self, limit_s: float) -> float:
        """r(T_s): requests/s at which a round takes `limit_s`; 0 if even an empty one takes longer."""
        from scipy.optimize import brentq

        if limit_s < self.const_s:
            return 0.0
        high = 1.0 / self.heartbeat_s
        while self.seconds(high) <= limit_s:
            high *= 2
        return float(brentq(lambda rate: self.seconds(rate) - limit_s, 0.0, high, xtol=1e-9))


def _steps(requests: float) -> float:
    """N log2(n + 1): as n log2 n, but not negative below one request."""
    return requests * math.log2(requests + 1.0)


@dataclass(frozen=True)
class GroupPlan:
    """How many groups, and what they cost.

    Attributes:
        groups: N_group.
        workers: of each group (N_i), centralised scheduling's N_w in all, as even as can be.
        rates: requests/s of each group (r_i).
        additional: workers that half of the groups need besides, on average.
        scheduling_s: of the slowest group's round.
    """

    groups: int
    workers: tuple[int, ...]
    rates: tuple[float, ...]
    additional: float
    scheduling_s: float

    @property
    def error(self) -> float:
        """Additional workers as a share of the centralised ones."""
        return self.additional / sum(self.workers)


def split(
    rate: float, workers: int, groups: int, scheduling: SchedulingTime | None = None
) -> GroupPlan:
    """A given number of groups.

    Args:
        rate: r_a, requests/s in all.
        workers: N_w that centralised scheduling needs.
        groups: N_group; one group has no additional workers.
        scheduling: time of a round; None: not told (0).

    Raises:
        ValueError: a value out of range, or more groups than workers.
    """
    if not rate > 0:
        raise ValueError(f"rate = {rate}: must be positive")
    if not 1 <= groups <= workers:
        raise ValueError(f"groups = {groups}: must be at least 1 and at most workers = {workers}")
    sizes = tuple(workers // groups + (k < workers % groups) for k in range(groups))
    rates = tuple(rate * size / workers for size in sizes)
    return GroupPlan(
        groups,
        sizes,
        rates,
        additional=0.0 if groups == 1 else groups / 2,
        scheduling_s=scheduling.seconds(max(rates)) if scheduling else 0.0,
    )


def smallest_group(error: float) -> int:
    """Workers that each group needs for at most this share of additional ones: 1 / (2 e), rounded up.

    Raises:
        ValueError: an error that is not positive.
    """
    if not error > 0:
        raise ValueError(f"error = {error}: must be positive")
    return math.ceil(1 / (2 * error) - 1e-9)


def choose_groups(
    rate: float,
    workers: int,
    scheduling: SchedulingTime,
    limit_s: float,
    error: float = 0.1,
    *,
    literal: bool = False,
) -> GroupPlan | None:
    """The fewest groups that keep Eq. 8; None if none do.

    Args:
        rate: r_a, requests/s.
        workers: N_w (Eq. 7).
        scheduling: time of a round.
        limit_s: T_s.
        error: e, additional workers as a share.
        literal: Eq. 8 as printed: 1 / (2 e) is a lower limit of each group's rate instead of its
            workers.

    Raises:
        ValueError: a value out of range.
    """
    least, most = (
        1 / (2 * error) if literal else smallest_group(error),
        scheduling.most_rate(limit_s),
    )
    for groups in range(1, workers + 1):
        plan = split(rate, workers, groups, scheduling)
        # One group is centralised scheduling: nothing is lost by it, however small.
        smallest = min(plan.rates) if literal else min(plan.workers)
        if groups > 1 and smallest < least:
            return None
        if max(plan.rates) <= most:
            return plan
    return None


def grouped_workers(
    requests: Sequence[Request], groups: int, rules: Rules, order: Order = "literal"
) -> tuple[int, ...]:
    """Workers that each group needs when requests are dealt by round robin and packed by Algorithm 1.

    Args:
        requests: of one heartbeat, in order of arrival.
        groups: N_group.
        rules: limits of a worker.
        order: of best fit.

    Returns:
        (groups,) workers; their sum against that of one group is what grouping costs.

    Raises:
        ValueError: no group.
    """
    if groups < 1:
        raise ValueError(f"groups = {groups}: must be at least 1")
    return tuple(best_fit(requests[k::groups], (), rules, order=order).used for k in range(groups))
