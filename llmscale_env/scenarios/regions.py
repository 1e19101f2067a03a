"""What a scenario says of regions: latency between them, spot VMs, scaling at the endpoint, background work.

The defaults are SageServe's (arXiv 2502.14617) where it gives a number; docs/engine.md, section 17, says
what the engines do with them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from llmscale_env.scenarios.fields import Frozen, Name, NonNegative, Positive

Share = Annotated[float, Field(ge=0, le=1)]
Utilisation = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]

QUANTILE_STEPS = 100
"""Distributions are given to the engines as so many steps of equal probability."""


class LatencyConfig(Frozen):
    """How long a request takes from its client's region to the one that serves it (Figure 9).

    The median hangs on the two regions, the tail does not: "for around 90 %" the latency is within 500 ms,
    and "less than 2 %" have 2.5 s. Between these points it is log-linear in the probability (ours), and
    the shortest is half of the median (ours).

    Attributes:
        median_s: by two regions, in either order.
        between_s: of those that `median_s` does not name (section 3.1: about 50 ms).
        within_s: median within a region (ours).
        tail: (probability, seconds), both rising, the last at probability 1: the same everywhere.
        quantiles_s: in place of all that, by region of the client and region that serves: quantiles at equal
            steps from 0 to 1.
    """

    median_s: dict[Name, dict[Name, Positive]] = {}
    between_s: Positive = 0.05
    within_s: Positive = 0.002
    tail: tuple[tuple[Share, Positive], ...] = ((0.9, 0.5), (0.985, 2.5), (1.0, 2.5))
    quantiles_s: dict[Name, dict[Name, tuple[NonNegative, ...]]] = {}

    @model_validator(mode="after")
    def _consistent(self) -> LatencyConfig:
        shares = [share for share, _ in self.tail]
        if not shares or shares[-1] != 1 or any(b <= a for a, b in pairwise([0.5, *shares])):
            raise ValueError(
                f"tail = {self.tail}: probabilities must rise from above 0.5, the last one must be 1"
            )
        longest = max((m for row in self.median_s.values() for m in row.values()), default=0.0)
        times = [max(longest, self.between_s, self.within_s), *(s for _, s in self.tail)]
        if any(b < a for a, b in pairwise(times)):
            raise ValueError(
                f"tail = {self.tail}: times must not fall, nor be below the largest median, {times[0]}"
            )
        for client, row in self.quantiles_s.items():
            for region, given in row.items():
                if len(given) < 2 or any(b < a for a, b in pairwise(given)):
                    raise ValueError(
                        f"quantiles_s.{client}.{region} = {list(given)}: must be at least two that do not "
                        "fall"
                    )
        return self

    @property
    def regions(self) -> tuple[str, ...]:
        """Names of the regions that are mentioned."""
        tables = (self.median_s, self.quantiles_s)
        names = [n for table in tables for a, row in table.items() for n in (a, *row)]
        return tuple(dict.fromkeys(names))

    def median(self, client: str, region: str) -> float:
        """Seconds that half of the requests are within."""
        given = self.quantiles_s.get(client, {}).get(region)
        if given is not None:
            return float(np.interp(0.5, np.linspace(0, 1, len(given)), given))
        if client == region:
            return self.within_s
        one = self.median_s.get(client, {}).get(region)
        other = self.median_s.get(region, {}).get(client)
        return one or other or self.between_s

    def quantiles(self, client: str, region: str) -> NDArray[np.float64]:
        """Seconds at equal steps of probability from 0 to 1."""
        given = self.quantiles_s.get(client, {}).get(region)
        if given is not None:
            return np.array(given, np.float64)
        median = self.median(client, region)
        points = [(0.0, median / 2), (0.5, median), *self.tail]
        at = np.linspace(0.0, 1.0, QUANTILE_STEPS + 1)
        found: NDArray[np.float64] = np.exp(
            np.interp(at, [p for p, _ in points], np.log([s for _, s in points]))
        )
        return found


class SpotConfig(Frozen):
    """A pool whose instances come from spot VMs and go back to them (sections 3.4, 4 and 7.1).

    Attributes:
        group: pools of one region, GPU, tensor-parallel degree and group share their VMs.
        initial: VMs that are leased out at time 0 with this pool's LLM.
        reclaim_median_s, reclaim_most_s: time to reclaim one, drawn log-uniformly (ours) between
            `reclaim_median_s**2 / reclaim_most_s` and `reclaim_most_s`.
        donate_s: from the end of service to spot.
        redeploy_s: to put the pool's LLM onto a VM that had another one.
        redeploy_remote_s: the same where its weights are not in the region.
        weights_in_region: whether they are there at the start; later they are once an instance has served.
    """

    group: Name = "all"
    initial: Annotated[int, Field(ge=0, le=10_000)] = 0
    reclaim_median_s: NonNegative = 60.0
    reclaim_most_s: NonNegative = 300.0
    donate_s: NonNegative = 60.0
    redeploy_s: NonNegative = 600.0
    redeploy_remote_s: NonNegative = 7200.0
    weights_in_region: bool = True

    @model_validator(mode="after")
    def _consistent(self) -> SpotConfig:
        if self.reclaim_median_s > self.reclaim_most_s:
            raise ValueError(
                f"reclaim_median_s = {self.reclaim_median_s}: must be at most reclaim_most_s = "
                f"{self.reclaim_most_s}"
            )
        return self

    def reclaim_quantiles_s(self) -> NDArray[np.float64]:
        """Seconds at equal steps of probability from 0 to 1."""
        if self.reclaim_median_s == 0:
            return np.zeros(2)
        at = np.linspace(0.0, 1.0, QUANTILE_STEPS + 1)
        ratio = self.reclaim_most_s / self.reclaim_median_s
        found: NDArray[np.float64] = self.reclaim_median_s * ratio ** (2 * at - 1)
        return found


class ScalingConfig(Frozen):
    """The rule by which a pool scales when a request reaches its region (sections 6.5.1 and 7.2).

    Attributes:
        kind: at the start: "none"; "reactive" (section 7.2); "target" (LT-U), "target-ahead" (LT-UA), which
            want a target (`Command.scaling`).
        high, low: effective memory utilisations above which an instance more, below which one less is wished
            for (released code: 0.5 and 0.25).
        cooldown_s: between two changes.
        least, most: instances; `most` None: the pool's `max_instances`.
        period_s, last_s: length of the hour of a target, and of its end, in which "target-ahead" looks at
            the load.
        above, below: observed over forecast load at which it goes out, and in.
        either_way: whether it may do so against the direction of the target (ours: a burst needs it).
        bin_s, bins: the observed load is that of the last `bins` complete bins (ours: 5 minutes).
    """

    kind: Literal["none", "reactive", "target", "target-ahead"] = "reactive"
    high: Annotated[float, Field(gt=0, le=10)] = 0.7
    low: Utilisation = 0.3
    cooldown_s: Annotated[float, Field(ge=1e-6, le=86_400)] = 15.0
    least: Annotated[int, Field(ge=0, le=10_000)] = 2
    most: Annotated[int, Field(ge=0, le=10_000)] | None = None
    period_s: Annotated[float, Field(gt=0, le=86_400)] = 3600.0
    last_s: NonNegative = 1200.0
    above: Annotated[float, Field(gt=0, le=1000)] = 5.0
    below: Annotated[float, Field(ge=0, le=1000)] = 0.5
    either_way: bool = True
    bin_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    bins: Annotated[int, Field(ge=1, le=64)] = 5

    @model_validator(mode="after")
    def _consistent(self) -> ScalingConfig:
        for low, high in (("low", "high"), ("below", "above")):
            if getattr(self, low) >= getattr(self, high):
                raise ValueError(
                    f"{low} = {getattr(self, low)}: must be below {high} = {getattr(self, high)}"
                )
        if self.last_s > self.period_s:
            raise ValueError(f"last_s = {self.last_s}: must be at most period_s = {self.period_s}")
        return self


class QueueManagerConfig(Frozen):
    """How endpoints take requests that can wait (section 6.3).

    For each region in which a route of kind "shared-queue" has pools there is a manager: these pools take
    from the route's queue.

    Attributes:
        period_s: between two signals of an endpoint ("periodically"; the number is ours).
        one, two: effective memory utilisations below which a signal takes one request, and two.
        promote_after_s: age from which a request has priority 0 where pools have `priorities`; or by class: a
            class that is not named is never promoted.
    """

    period_s: Annotated[float, Field(ge=1e-3, le=86_400)] = 1.0
    one: Utilisation = 0.6
    two: Utilisation = 0.5
    promote_after_s: NonNegative | dict[Name, NonNegative] = 36_000.0

    def promote_class_after_s(self, slo_class: str) -> float | None:
        """`promote_after_s` of a class; None: never."""
        ages = self.promote_after_s
        return ages.get(slo_class) if isinstance(ages, dict) else ages
