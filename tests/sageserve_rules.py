"""SageServe's rules as the paper has them, on numbers alone: what tests hold the engines against.

| rule | here |
|---|---|
| which region, deployment and instance gets a request (section 6.2) | `choose_region`, `np.argmin` |
| when a signal takes requests from a queue, and with which priority (section 6.3) | `PullRule` |
| where new instances come from (section 6.5) | `scale_out` |
| when an instance comes or goes (sections 6.5.1 and 7.2) | `Reactive`, `Utilised`, `UtilisedAhead` |

The engines' own form of them is docs/engine.md, section 17. Numbers may be `Fraction`s, so that
nothing is rounded. The load is the effective memory utilisation: tokens of KV cache over KV capacity.

A rule of scaling is asked at each arrival at its endpoint (`arrival`) and at each hour (`hour`), and
answers with a change of the number of instances. Instances are counted with those on their way:
otherwise a rule would order again for as long as capacity takes to come.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

HOUR_S = 3600.0


def choose_region(
    utilisation: Sequence[float], order: Sequence[int], threshold: Sequence[float]
) -> int | None:
    """The first region of `order` whose utilisation is below its threshold; else the least utilised.

    Args:
        utilisation: (regions,) of the LLM asked for; infinite where it has no instance.
        order: regions that may serve, the preferred first.
        threshold: (regions,) of each.

    Returns:
        The region; of equally utilised ones the preferred. None if none has an instance.
    """
    for region in order:
        if utilisation[region] < threshold[region]:
            return region
    least = min(order, key=lambda region: utilisation[region])
    return least if utilisation[least] < math.inf else None


@dataclass(frozen=True)
class PullRule:
    """How many requests a signal of the queue manager pulls.

    The released code feeds the other way round: two between the utilisations, one below both.

    Attributes:
        high, low: utilisations below which one is pulled, and below which two are.
        urgent_age_s: age from which on a request has priority 0, as interactive ones have.
    """

    high: float = 0.6
    low: float = 0.5
    urgent_age_s: float = 36_000.0

    def pulls(self, utilisation: float) -> int:
        """Requests that a signal of this utilisation pulls."""
        return (utilisation < self.high) + (utilisation < self.low)

    def priority(self, age_s: float) -> int:
        """0 for requests that are `urgent_age_s` old, else 1."""
        return 0 if age_s >= self.urgent_age_s else 1


@dataclass(frozen=True)
class ScaleOut:
    """Where new instances come from.

    Attributes:
        own: spot instances of the same LLM.
        others: (LLM, how many) of spot instances of others, to be redeployed.
        missing: for which there is no spot instance.
    """

    own: int
    others: tuple[tuple[int, int], ...]
    missing: int


def scale_out(wanted: int, llm: int, spot: Sequence[int]) -> ScaleOut:
    """Which spot instances of a region make `wanted` more instances of an LLM.

    Args:
        wanted: at least 0.
        llm: index of the LLM.
        spot: spot instances of each LLM; each is taken from the LLM with the most of them at that time,
            the first of equals (ours).
    """
    own = min(wanted, spot[llm])
    there = [0 if k == llm else count for k, count in enumerate(spot)]
    taken = [0] * len(there)
    for _ in range(min(wanted - own, sum(there))):
        most = max(range(len(there)), key=lambda k: there[k])
        there[most] -= 1
        taken[most] += 1
    others = tuple((k, count) for k, count in enumerate(taken) if count)
    return ScaleOut(own, others, wanted - own - sum(taken))


@dataclass(frozen=True)
class Thresholds:
    """Effective memory utilisations at which to act.

    Attributes:
        high: above it, out.
        low: below it, in.
    """

    high: float = 0.7
    low: float = 0.3

    def wish(self, utilisation: float) -> int:
        """1 above `high`, -1 below `low`, else 0."""
        return (utilisation > self.high) - (utilisation < self.low)


@dataclass(frozen=True)
class Bounds:
    """Smallest and largest instance set.

    Attributes:
        least, most: instances.
    """

    least: int = 2
    most: int = 20

    def clip(self, instances: int) -> int:
        """The nearest allowed number."""
        return min(max(instances, self.least), self.most)


class Reactive:
    """One more above the high utilisation, one less below the low one, within bounds (section 7.2)."""

    def __init__(
        self,
        thresholds: Thresholds | None = None,
        bounds: Bounds | None = None,
        cooldown_s: float = 15.0,
    ) -> None:
        self.thresholds = thresholds or Thresholds()
        self.bounds = bounds or Bounds()
        self.cooldown_s = cooldown_s
        self._changed_s = -math.inf

    def hour(
        self, now_s: float, instances: int, target: int, forecast_tokens_per_s: float = 0.0
    ) -> int:
        """A plan for the next hour arrives; what to change at once (nothing).

        Args:
            now_s: time.
            instances: there or on their way.
            target: what the integer programme asks for.
            forecast_tokens_per_s: the load that it is to hold what comes against, without the buffer.
        """
        return 0

    def arrival(
        self,
        now_s: float,
        instances: int,
        utilisation: float,
        tokens_per_s: float = 0.0,
        active: int | None = None,
    ) -> int:
        """A request arrives; what to change.

        Args:
            now_s: time.
            instances: there or on their way.
            utilisation: effective memory utilisation of the endpoint.
            tokens_per_s: load that it has seen of late.
            active: how many of them serve; None: all. At least `bounds.least` go on serving (ours: those
                on their way are no help yet).
        """
        if now_s - self._changed_s < self.cooldown_s:
            return 0
        change = self._change(now_s, instances, utilisation, tokens_per_s)
        if not change:
            return 0
        spare = max(0, (instances if active is None else active) - self.bounds.least)
        change = max(self.bounds.clip(instances + change) - instances, -spare)
        if change:
            self._changed_s = now_s
        return change

    def _change(self, now_s: float, instances: int, utilisation: float, tokens_per_s: float) -> int:
        return self.thresholds.wish(utilisation)


class Utilised(Reactive):
    """LT-U: towards the target, and no further, when the same thresholds are passed."""

    def __init__(
        self,
        thresholds: Thresholds | None = None,
        bounds: Bounds | None = None,
        cooldown_s: float = 15.0,
    ) -> None:
        super().__init__(thresholds, bounds, cooldown_s)
        self.target: int | None = None
        self._began_s = -math.inf
        self._forecast = 0.0
        self._way = 0

    def hour(
        self, now_s: float, instances: int, target: int, forecast_tokens_per_s: float = 0.0
    ) -> int:
        self.target = self.bounds.clip(target)
        self._began_s = now_s
        self._forecast = forecast_tokens_per_s
        self._way = (self.target > instances) - (self.target < instances)
        return 0

    def _change(self, now_s: float, instances: int, utilisation: float, tokens_per_s: float) -> int:
        if self.target is None:
            return 0
        wish = self.thresholds.wish(utilisation)
        towards = (self.target > instances) - (self.target < instances)
        return wish if wish == towards else 0


class UtilisedAhead(Utilised):
    """LT-UA: as LT-U, but late in the hour, when the target has been reached, by load over forecast.

    Args:
        thresholds, bounds, cooldown_s: as in `Utilised`.
        last_s: length of the time at the end of the hour.
        above, below: load over forecast at which to go on out, and in.
        either_way: a target that was reached by scaling in may be left upwards and the other way round,
            as a burst needs that comes when less was planned (ours); False: out only after out, in only
            after in, the literal reading of "continue".
    """

    def __init__(
        self,
        thresholds: Thresholds | None = None,
        bounds: Bounds | None = None,
        cooldown_s: float = 15.0,
        *,
        last_s: float = 1200.0,
        above: float = 5.0,
        below: float = 0.5,
        either_way: bool = True,
    ) -> None:
        super().__init__(thresholds, bounds, cooldown_s)
        self.last_s, self.above, self.below = last_s, above, below
        self.either_way = either_way
        self._there = False

    def hour(
        self, now_s: float, instances: int, target: int, forecast_tokens_per_s: float = 0.0
    ) -> int:
        self._there = False
        return super().hour(now_s, instances, target, forecast_tokens_per_s)

    def _change(self, now_s: float, instances: int, utilisation: float, tokens_per_s: float) -> int:
        if self.target is None or not self._is_there(instances) or not self._is_late(now_s):
            return super()._change(now_s, instances, utilisation, tokens_per_s)
        if tokens_per_s >= self.above * self._forecast and tokens_per_s > 0:
            return 1 if self.either_way or self._way >= 0 else 0
        if tokens_per_s <= self.below * self._forecast:
            return -1 if self.either_way or self._way <= 0 else 0
        return 0

    def _is_late(self, now_s: float) -> bool:
        return now_s - self._began_s >= HOUR_S - self.last_s

    def _is_there(self, instances: int) -> bool:
        """Whether the target has been reached in this hour: once is enough."""
        assert self.target is not None
        self._there = self._there or (self.target - instances) * self._way <= 0
        return self._there
