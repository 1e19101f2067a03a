"""When an instance comes or goes (sections 6.5.1 and 7.2), one endpoint at a time, on numbers.

Every rule is asked at each arrival at the endpoint (`arrival`) and at each hour (`hour`), and answers
with a change of the number of instances. Instances are counted with those on their way: otherwise a
rule would order again for as long as capacity takes to come.

- `Reactive` (section 7.2): one more above 70 % of effective memory utilisation, one less below 30 %,
  15 s between two changes.
- `Immediate` (LT-I): at each hour to the target at once.
- `Utilised` (LT-U): towards the target, and no further, when the same thresholds are passed.
- `UtilisedAhead` (LT-UA): as that; in the last 20 minutes of the hour, when the target has been
  reached, one more at each look at which the load is at least 5 times the forecast one, one less at
  which it is at most half of it.

The paper's 70 and 30 % are 50 and 25 % in the released code (`RELEASED`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

HOUR_S = 3600.0


@dataclass(frozen=True)
class Thresholds:
    """Effective memory utilisations at which to act.

    Attributes:
        high: above it, out.
        low: below it, in.

    Raises:
        ValueError: unless 0 <= low < high.
    """

    high: float = 0.7
    low: float = 0.3

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise ValueError(f"low = {self.low}, high = {self.high}: must be 0 <= low < high")

    def wish(self, utilisation: float) -> int:
        """1 above `high`, -1 below `low`, else 0."""
        return (utilisation > self.high) - (utilisation < self.low)


RELEASED = Thresholds(0.5, 0.25)
"""As in the released code."""


@dataclass(frozen=True)
class Bounds:
    """Smallest and largest instance set.

    Attributes:
        least, most: instances.

    Raises:
        ValueError: unless 0 <= least <= most.
    """

    least: int = 2
    most: int = 20

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most:
            raise ValueError(
                f"least = {self.least}, most = {self.most}: must be 0 <= least <= most"
            )

    def clip(self, instances: int) -> int:
        """The nearest allowed number."""
        return min(max(instances, self.least), self.most)


class _Rule:
    """Bounds and cooldown, which all rules share."""

    def __init__(self, bounds: Bounds | None = None, cooldown_s: float = 15.0) -> None:
        if not cooldown_s >= 0:
            raise ValueError(f"cooldown_s = {cooldown_s}: must be at least 0")
        self.bounds = bounds or Bounds()
        self.cooldown_s = cooldown_s
        self._changed_s = -math.inf

    def hour(
        self, now_s: float, instances: int, target: int, forecast_tokens_per_s: float = 0.0
    ) -> int:
        """A plan for the next hour arrives; what to change at once.

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
        return self._made(now_s, max(self.bounds.clip(instances + change) - instances, -spare))

    def _made(self, now_s: float, change: int) -> int:
        if change:
            self._changed_s = now_s
        return change

    def _change(self, now_s: float, instances: int, utilisation: float, tokens_per_s: float) -> int:
        return 0


class Reactive(_Rule):
    """The status quo, for an endpoint that serves everything or for one pool of a siloed one."""

    def __init__(
        self,
        thresholds: Thresholds | None = None,
        bounds: Bounds | None = None,
        cooldown_s: float = 15.0,
    ) -> None:
        super().__init__(bounds, cooldown_s)
        self.thresholds = thresholds or Thresholds()

    def _change(self, now_s: float, instances: int, utilisation: float, tokens_per_s: float) -> int:
        return self.thresholds.wish(utilisation)


class Immediate(_Rule):
    """LT-I."""

    def hour(
        self, now_s: float, instances: int, target: int, forecast_tokens_per_s: float = 0.0
    ) -> int:
        return self._made(now_s, self.bounds.clip(target) - instances)


class Utilised(_Rule):
    """LT-U."""

    def __init__(
        self,
        thresholds: Thresholds | None = None,
        bounds: Bounds | None = None,
        cooldown_s: float = 15.0,
    ) -> None:
        super().__init__(bounds, cooldown_s)
        self.thresholds = thresholds or Thresholds()
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
    """LT-UA.

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
        if not 0 <= last_s <= HOUR_S:
            raise ValueError(f"last_s = {last_s}: must be in 0..{HOUR_S:g}")
        if not 0 <= below < above:
            raise ValueError(f"below = {below}, above = {above}: must be 0 <= below < above")
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
