"""Where a request goes: docs/engine.md section 6."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from llmscale_env.sim.reference.serving.best_fit import BestFit
from llmscale_env.sim.reference.serving.hashing import splitmix64
from llmscale_env.sim.reference.state.request import Request
from llmscale_env.sim.spec import InstanceState, RouterKind, RouteSpec

if TYPE_CHECKING:
    from llmscale_env.sim.reference.engine import ReferenceEngine
    from llmscale_env.sim.reference.instance import Instance

OVERFLOW_SALT = 0xD1B54A32D192ED03
"""Makes the overflow draw independent of the power-of-two draw of the same request."""


@dataclass(frozen=True)
class SharedQueue:
    """A destination: the end of this shared queue."""

    queue: int


class Router:
    """The routes of a cluster, with what they remember and what commands have changed.

    Attributes:
        counters: next candidate number of each round-robin route, by (llm, class, whether for decode).
        kinds, decode_kinds, placements, overflow_share: of each route, by (llm, class).
        arrival_queues: (upper bounds of input tokens, shared queues, one more) of each route.
    """

    def __init__(self, engine: ReferenceEngine) -> None:
        self.engine = engine
        self.routes = engine.spec.routes
        self.counters: Counter[tuple[int, int, bool]] = Counter()
        routes = {(m, c): r for m, row in enumerate(self.routes) for c, r in enumerate(row)}
        self.kinds = {key: RouterKind(route.kind) for key, route in routes.items()}
        self.decode_kinds = {key: RouterKind(route.decode_kind) for key, route in routes.items()}
        self.placements = {key: route.placement for key, route in routes.items()}
        self.overflow_share = {key: route.overflow_share for key, route in routes.items()}
        self.arrival_queues: dict[tuple[int, int], tuple[tuple[int, ...], tuple[int, ...]]] = {
            key: ((), (route.queue,)) for key, route in routes.items()
        }
        custom: Any = engine.spec.custom_router
        # A compiled function is called in its Python form.
        self.custom: Callable[..., int] | None = getattr(custom, "__wrapped__", custom)

    def queue_for(self, request: Request) -> int:
        """The shared queue of a request's route, told apart by region or input tokens; -1: none."""
        of_regions = self.routes[request.llm][request.slo_class].region_queues
        if of_regions:
            return of_regions[request.region]
        uppers, queues = self.arrival_queues[request.llm, request.slo_class]
        return queues[bisect_left(uppers, request.input_tokens)]

    def destination(self, request: Request) -> Instance | SharedQueue | None:
        """An instance, a shared queue, or None: no candidate."""
        route = self.routes[request.llm][request.slo_class]
        kind = self.kinds[request.llm, request.slo_class]
        self.engine.events[f"router_{kind.name.lower()}"] += 1
        if kind == RouterKind.SHARED_QUEUE:
            return SharedQueue(self.queue_for(request))
        if kind == RouterKind.CLASS_AFFINE:
            return self._class_affine(route, request)
        return self._pick(kind, route.pools, request, decode=False)

    def decode_destination(self, request: Request) -> Instance | None:
        """The instance that goes on with a request which has been prefilled, or None: no candidate."""
        route = self.routes[request.llm][request.slo_class]
        kind = self.decode_kinds[request.llm, request.slo_class]
        self.engine.events[f"decode_router_{kind.name.lower()}"] += 1
        chosen = self._pick(kind, route.decode_pools, request, decode=True)
        assert not isinstance(chosen, SharedQueue)
        return chosen

    def _pick(
        self, kind: RouterKind, pools: tuple[int, ...], request: Request, *, decode: bool
    ) -> Instance | SharedQueue | None:
        """By the rules that know candidates only."""
        route = self.routes[request.llm][request.slo_class]
        candidates = self._candidates(pools)
        if not candidates or kind == RouterKind.HOLD:
            return None
        n = len(candidates)
        if kind == RouterKind.ROUND_ROBIN:
            key = (request.llm, request.slo_class, decode)
            self.counters[key] += 1
            return candidates[(self.counters[key] - 1) % n]
        if kind == RouterKind.JSQ_REQUESTS:
            return min(candidates, key=lambda i: i.requests)
        if kind == RouterKind.JSQ_TOKENS:
            return min(candidates, key=lambda i: i.waiting_demand + max(0, i.left_tokens))
        if kind == RouterKind.POWER_OF_TWO:
            return self._power_of_two(candidates, request)
        if kind == RouterKind.LEAST_KV:
            return self._least_kv(candidates)
        if kind == RouterKind.PREFIX_AWARE:
            return self._prefix_aware(candidates, route, request)
        if kind == RouterKind.LEAST_PENDING_PREFILL:
            return min(candidates, key=lambda i: i.pending_prefill)
        if kind == RouterKind.BEST_FIT:
            placement = self.placements[request.llm, request.slo_class]
            assert placement is not None
            return BestFit(placement, request, decode).choose(candidates)
        return self._custom(candidates, route, request, queue_allowed=not decode)

    def _candidates(self, pools: tuple[int, ...]) -> list[Instance]:
        return [
            instance
            for pool in pools
            for instance in self.engine.instances_of[pool]
            if instance.state == InstanceState.ACTIVE
        ]

    def _power_of_two(self, candidates: list[Instance], request: Request) -> Instance:
        n, h = len(candidates), splitmix64(request.id)
        a = h % n
        if n == 1:
            return candidates[a]
        b = (h >> 32) % (n - 1)
        b += b >= a
        return min(candidates[min(a, b)], candidates[max(a, b)], key=lambda i: i.requests)

    def _least_kv(self, candidates: list[Instance]) -> Instance:
        best = candidates[0]
        for other in candidates[1:]:
            used_best = best.kv_tokens + best.waiting_demand
            used_other = other.kv_tokens + other.waiting_demand
            if used_other * best.capacity < used_best * other.capacity:
                best = other
        return best

    def _prefix_aware(
        self, candidates: list[Instance], route: RouteSpec, request: Request
    ) -> Instance:
        """The KV router of NVIDIA Dynamo (1.2 and later): prompt tokens to compute against those in memory.

        Source: https://docs.nvidia.com/dynamo/dev/components/router/routing-concepts, "Cost Calculation".
        """
        found = [i.scheduler.found_tokens(request) for i in candidates]
        costs = []
        for i, hits in zip(candidates, found, strict=True):
            promised = sum(r.promised_tokens for r in i.own_queue)
            prefill = i.pending_prefill - promised + request.ctx - route.overlap_score_credit * hits
            costs.append(route.prefill_load_scale * prefill + (i.kv_tokens + i.waiting_demand))
        best = costs.index(min(costs))
        request.promised_tokens = found[best]
        self.engine.events["prefix_aware_hit"] += found[best] > 0
        self.engine.events["prefix_aware_elsewhere"] += found[best] < max(found)
        return candidates[best]

    def _class_affine(self, route: RouteSpec, request: Request) -> Instance | SharedQueue | None:
        """Chiron, section 3: own pools while they have room, then the overflow pools."""
        events = self.engine.events
        queue = self.queue_for(request)
        if queue >= 0 and self.engine.queues_of[queue]:
            return SharedQueue(queue)
        own = self._candidates(route.pools)
        overflow = self._candidates(route.overflow)
        draw = (splitmix64(request.id ^ OVERFLOW_SALT) >> 11) * 2.0**-53
        order = {"own": own, "overflow": overflow}
        if draw < self.overflow_share[request.llm, request.slo_class]:
            order = {"overflow_first": overflow, "own": own}
        for name, pools in order.items():
            with_room = [i for i in pools if self._has_room(i, request)]
            if with_room:
                events[f"class_affine_{name}"] += 1
                return min(with_room, key=lambda i: self._load(i, request))
        if queue >= 0:
            events["class_affine_queue"] += 1
            return SharedQueue(queue)
        if not own and not overflow:
            return None
        events["class_affine_no_room"] += 1
        return min([*own, *overflow], key=lambda i: self._load(i, request))

    @staticmethod
    def _evictable(instance: Instance, request: Request) -> list[Request]:
        if request.priority == 0 and instance.pool.evicts:
            return instance.evictable()
        return []

    def _load(self, instance: Instance, request: Request) -> int:
        return instance.requests - len(self._evictable(instance, request))

    def _has_room(self, instance: Instance, request: Request) -> bool:
        """Zero queueing (Chiron, footnote 3): no request waits there, and batch and memory have space."""
        if instance.requests > len(instance.running):
            self.engine.events["class_affine_waits"] += 1
            return False
        evictable = self._evictable(instance, request)
        running = len(instance.running) - len(evictable)
        kept = instance.kv_tokens - instance.kv_of(evictable)
        needed = kept + self.engine.demand(request) + instance.watermark_tokens
        return running < instance.batch_limit and needed <= instance.capacity

    def _custom(
        self,
        candidates: list[Instance],
        route: RouteSpec,
        request: Request,
        *,
        queue_allowed: bool,
    ) -> Instance | SharedQueue:
        """The spec's own function over one row of features per candidate."""
        if self.custom is None:
            raise ValueError("custom_router = None: a CUSTOM route needs a function")
        features = np.array(
            [
                (
                    i.requests,
                    i.waiting_demand,
                    i.kv_tokens,
                    i.capacity,
                    i.left_tokens,
                    i.batch_limit,
                    len(i.evictable()),
                    i.index,
                    i.scheduler.found_tokens(request),
                )
                for i in candidates
            ],
            dtype=np.float64,
        )
        n = len(candidates)
        try:
            answer = self.custom(
                features,
                n,
                request.id,
                request.input_tokens,
                request.predicted_output_tokens,
                request.slo_class,
            )
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise ValueError(f"custom_router raised at request {request.id}: {said}") from error
        choice = int(answer)
        queue_allowed = queue_allowed and route.queue >= 0
        if choice == -1 and queue_allowed:
            self.engine.events["custom_queue"] += 1
            return SharedQueue(self.queue_for(request))
        if not 0 <= choice < n:
            queue = "-1 (the shared queue) or " if queue_allowed else ""
            raise ValueError(
                f"custom_router returned {choice} for request {request.id}: "
                f"must be {queue}in 0..{n - 1}"
            )
        return candidates[choice]
