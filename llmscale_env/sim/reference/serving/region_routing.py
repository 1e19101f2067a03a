"""Regions: global routing, requests on their way, endpoints, queue managers (docs/engine.md, section 17)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from llmscale_env.sim.reference.serving.hashing import latency_ps
from llmscale_env.sim.reference.state.clock import Due, Phase
from llmscale_env.sim.reference.state.request import Request
from llmscale_env.sim.spec import InstanceState, RequestState, RouterKind
from llmscale_env.sim.spec.regions import MOST_TOKENS, PPM

if TYPE_CHECKING:
    from llmscale_env.sim.reference.engine import ReferenceEngine
    from llmscale_env.sim.reference.fleet.lifecycle import SlotLife
    from llmscale_env.sim.reference.instance import Instance


class Regions:
    """Where a request goes among regions, and how it gets there.

    Attributes:
        preference, takes: of each route, by (llm, class): order of regions by region of the client, and by
            region the utilisation below which it is taken in that order.
        one_ppm, two_ppm: of each manager.
    """

    def __init__(self, engine: ReferenceEngine, salt: int) -> None:
        spec = engine.spec
        self.engine = engine
        self.salt = salt
        routes = {(m, c): r for m, row in enumerate(spec.routes) for c, r in enumerate(row)}
        self.preference = {key: route.preference for key, route in routes.items()}
        self.takes = {key: (route.threshold_ppm,) * spec.n_regions for key, route in routes.items()}
        self.one_ppm = [manager.one_ppm for manager in spec.managers]
        self.two_ppm = [manager.two_ppm for manager in spec.managers]
        for k in range(len(spec.managers)):
            self._signal_later(k)

    # --- between regions ---

    def is_regional(self, request: Request) -> bool:
        """Whether its route goes by regions now."""
        return self.engine.router.kinds[request.llm, request.slo_class] == RouterKind.REGIONAL

    def send(self, request: Request) -> bool:
        """Global routing; False if it now waits in the gateway."""
        region = self._region_for(request)
        if region is None:
            return False
        request.state = RequestState.TRANSIT
        request.at = None
        request.to_region = region
        latency = latency_ps(self.engine.spec, self.salt, request, region)
        self.engine.events["transit" if latency else "transit_at_once"] += 1
        due = Due(self.engine.clock, Phase.ARRIVAL, request.id)
        due.at(self.engine.now_ps + latency).then(partial(self._reach, request))
        return True

    def _region_for(self, request: Request) -> int | None:
        events = self.engine.events
        key = request.llm, request.slo_class
        best, best_used, best_room = None, 0, 1
        for place, region in enumerate(self.preference[key][request.region]):
            used, room = self.memory(self._pools(request, region))
            if room == 0:
                continue
            if used * PPM < self.takes[key][region] * room:
                events["region_preferred" if place == 0 else "region_next"] += 1
                return region
            if best is None or used * best_room < best_used * room:
                best, best_used, best_room = region, used, room
        events["region_none" if best is None else "region_least"] += 1
        return best

    def _pools(self, request: Request, region: int) -> list[int]:
        """Pools of its route in a region."""
        spec = self.engine.spec
        pools = spec.routes[request.llm][request.slo_class].pools
        return [p for p in pools if spec.pools[p].region == region]

    def memory(self, pools: Iterable[int]) -> tuple[int, int]:
        """KV tokens used and there to be used on the `ACTIVE` instances of pools."""
        return self._memory(i for p in pools for i in self.active(p))

    def _memory(self, instances: Iterable[Instance]) -> tuple[int, int]:
        used = room = 0
        for instance in instances:
            used += instance.kv_tokens
            if self.engine.spec.waiting_counts:
                used += instance.waiting_demand
            room += instance.capacity
        return min(used, MOST_TOKENS), room

    def active(self, pool: int) -> list[Instance]:
        """Its `ACTIVE` instances."""
        there = self.engine.instances_of[pool]
        return [i for i in there if i.state == InstanceState.ACTIVE]

    # --- in a region ---

    def _reach(self, request: Request) -> None:
        pools = self._pools(request, request.to_region)
        request.to_region = -1
        self.look(pools)
        instance = self.endpoint(pools)
        if instance is None:
            self.engine.events["reached_nobody"] += 1
            self.engine.place(request)
        else:
            instance.take_in(request)

    def look(self, pools: Iterable[int]) -> None:
        """Pools that scale by a rule look whether they should."""
        for p in pools:
            rule = self.engine.rules[p]
            if rule is not None:
                rule.look()

    def endpoint(self, pools: Iterable[int]) -> Instance | None:
        """Endpoint routing: the instance with the least to do in the least utilised deployment."""
        best: list[Instance] = []
        best_used, best_room = 0, 1
        for p in pools:
            pool = self.engine.spec.pools[p]
            width = pool.deployment_slots or pool.n_slots
            slots = self.engine.instances_of[p]
            for first in range(0, len(slots), width):
                group = slots[first : first + width]
                there = [i for i in group if i.state == InstanceState.ACTIVE]
                used, room = self._memory(there)
                if there and (not best or used * best_room < best_used * room):
                    best, best_used, best_room = there, used, room
        if not best:
            return None
        return min(best, key=lambda i: i.waiting_demand + max(0, i.left_tokens))

    def leave(self, request: Request, instance: SlotLife) -> None:
        """A request that waited at an instance which drains or fails: within its region, if it can."""
        chosen = None
        if self.is_regional(request):
            chosen = self.endpoint(self._pools(request, instance.pool.region))
        else:
            manager = next(
                (
                    m
                    for m in self.engine.spec.managers
                    if m.queue == request.queue and instance.pool_index in m.pools
                ),
                None,
            )
            if manager is not None:
                self.engine.events["managed_moved"] += 1
                chosen = self.endpoint(manager.pools)
        if chosen is None:
            self.engine.place(request)
        else:
            self.engine.events["moved_within_region"] += 1
            chosen.take_in(request)

    # --- queue managers ---

    def _signal_later(self, k: int) -> None:
        due = Due(self.engine.clock, Phase.SIGNAL, k)
        at_ps = self.engine.now_ps + self.engine.spec.manager_period_ps
        due.at(at_ps).then(partial(self._signal, k))

    def _signal(self, k: int) -> None:
        """An endpoint that has room takes a request or two from its queue."""
        engine = self.engine
        self._signal_later(k)
        manager = engine.spec.managers[k]
        queue = engine.queues_of[manager.queue]
        used, room = self.memory(manager.pools)
        if not queue or room == 0:
            return
        wanted = 1 if used * PPM < self.one_ppm[k] * room else 0
        if used * PPM < self.two_ppm[k] * room:
            wanted = 2
        engine.events[f"signal_{wanted}"] += 1
        for _ in range(wanted):
            self.look(manager.pools)
            instance = self.endpoint(manager.pools)
            if instance is None or not queue:
                return
            engine.events["managed"] += 1
            instance.take_in(queue.popleft())

    def set_thresholds(self, one_ppm: Sequence[int], two_ppm: Sequence[int]) -> None:
        """Of all managers."""
        self.one_ppm = [int(x) for x in one_ppm]
        self.two_ppm = [int(x) for x in two_ppm]
