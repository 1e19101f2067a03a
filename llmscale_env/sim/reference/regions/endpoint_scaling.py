"""Rules by which a pool scales when a request reaches its region (docs/engine.md, section 17)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmscale_env.sim.reference.state.request import Request
from llmscale_env.sim.spec import NEVER, InstanceState
from llmscale_env.sim.spec.regions import PPM, ScalingKind, ScalingSpec

if TYPE_CHECKING:
    from llmscale_env.sim.reference.engine import ReferenceEngine

_COUNTED = (InstanceState.ACQUIRING, InstanceState.LOADING, InstanceState.ACTIVE)


class EndpointRule:
    """The rule of one pool, and what it remembers.

    Attributes:
        kind: `ScalingKind` now.
        target: instances that the hour's plan asks for, None: there is no plan.
        looks_out, looks_in: changes ordered so far.
    """

    def __init__(self, engine: ReferenceEngine, pool: int, scaling: ScalingSpec) -> None:
        self.engine = engine
        self.pool = pool
        self.scaling = scaling
        self.kind = ScalingKind(scaling.kind)
        self.target: int | None = None
        self.looks_out = self.looks_in = 0
        self._changed_ps = -int(NEVER)
        self._began_ps = 0
        self._way = 0
        self._there = False
        self._marks = (0, 0)
        self._arrivals: list[tuple[int, int]] = []

    @property
    def instances(self) -> int:
        """Those that serve or are on their way."""
        return sum(i.state in _COUNTED for i in self.engine.instances_of[self.pool])

    @property
    def _spare(self) -> int:
        """How many may go so that `least` are `ACTIVE` still."""
        states = [i.state for i in self.engine.instances_of[self.pool]]
        return max(0, states.count(InstanceState.ACTIVE) - self.scaling.least)

    def hour(self, kind: int, target: int, forecast_utps: int) -> None:
        """A plan for the next hour; `target` -1: none."""
        self.kind = ScalingKind(kind)
        self.target = None if target < 0 else self._clip(target)
        self._began_ps = self.engine.now_ps
        self._way = self._towards() if self.target is not None else 0
        self._there = False
        self._marks = self.scaling.marks(forecast_utps)

    def arrived(self, request: Request) -> None:
        """A request of priority 0 has arrived from a client of its region."""
        tokens = request.input_tokens + request.predicted_output_tokens
        self._arrivals.append((request.arrival_ps, tokens))

    def look(self) -> None:
        """A request has reached the region: order an instance more or less if that is due."""
        now_ps = self.engine.now_ps
        events = self.engine.events
        if self.kind == ScalingKind.NONE:
            return
        if now_ps - self._changed_ps < self.scaling.cooldown_ps:
            events["look_in_cooldown"] += 1
            return
        wish = self._wish()
        before = self.instances
        count = self._clip(before + wish) if wish else before
        if count < before - self._spare:
            events["look_in_held_back"] += 1
            count = before - self._spare
        if count == before:
            return
        self._changed_ps = now_ps
        events[f"look_{'out' if count > before else 'in'}_{self.kind.name.lower()}"] += 1
        self.looks_out += count > before
        self.looks_in += count < before
        missing = self.engine.set_target(self.pool, count)
        events["look_missed"] += missing > 0

    # --- what to wish for: 1, 0 or -1 ---

    def _wish(self) -> int:
        if self.kind == ScalingKind.REACTIVE:
            return self._by_memory()
        if self.target is None:
            return 0
        if self.kind == ScalingKind.TARGET_AHEAD and self._is_there() and self._is_late():
            return self._by_load()
        wish = self._by_memory()
        return wish if wish == self._towards() else 0

    def _by_memory(self) -> int:
        used, room = self.engine.regions.memory([self.pool])
        if room == 0:
            return 1
        above = used * PPM > self.scaling.high_ppm * room
        below = used * PPM < self.scaling.low_ppm * room
        return above - below

    def _by_load(self) -> int:
        tokens = self._observed()
        above, below = self._marks
        either = self.scaling.either_way
        wish = 0
        if tokens >= above:
            wish = 1 if either or self._way >= 0 else 0
        elif tokens <= below:
            wish = -1 if either or self._way <= 0 else 0
        self.engine.events["look_out_by_load"] += wish > 0
        self.engine.events["look_in_by_load"] += wish < 0
        return wish

    def _observed(self) -> int:
        """Tokens that have arrived within the last complete bins."""
        until = self.engine.now_ps // self.scaling.bin_ps * self.scaling.bin_ps
        since = until - self.scaling.bins * self.scaling.bin_ps
        return sum(tokens for at_ps, tokens in self._arrivals if since <= at_ps < until)

    def _is_there(self) -> bool:
        """Whether the target has been reached in this hour: once is enough."""
        assert self.target is not None
        self._there = self._there or (self.target - self.instances) * self._way <= 0
        return self._there

    def _is_late(self) -> bool:
        passed_ps = self.engine.now_ps - self._began_ps
        return passed_ps >= self.scaling.period_ps - self.scaling.last_ps

    def _towards(self) -> int:
        assert self.target is not None
        return (self.target > self.instances) - (self.target < self.instances)

    def _clip(self, count: int) -> int:
        return min(max(count, self.scaling.least), self.scaling.most)
