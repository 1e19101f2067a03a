"""Generated cases with split phases, links, placement by command and best fit (docs/engine.md, 11 to 14).

Three in four are clusters with prefill and decode instances; the others are those of `engine_cases`,
virtual queues and swaps included, with the new rules and commands. `python -m tests.split_cases FIRST
COUNT` prints which mechanisms a range of seeds reaches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from llmscale_env.sim.spec import (
    DECODE_KINDS,
    NEVER,
    ClusterSpec,
    Fallback,
    NetworkSpec,
    PlacementSpec,
    PoolPhase,
    PoolSpec,
    ProfileSpec,
    RequestState,
    RouterKind,
    RouteSpec,
)
from tests.engine_cases import (
    DRAWN,
    ROUTERS,
    Case,
    Command,
    _Generator,
    custom_router,
    print_reached,
)

SPLIT_MECHANISMS = frozenset(
    {
        # handover
        "handed_over",
        "landed",
        "landed_waits",
        "reserved",
        "reserved_under_way",
        "reservation_waits",
        "reservation_waits_for_preempted",
        "wakes_itself_after_preemption",
        "wakes_itself_for_landed",
        "flow_broken_off",
        "flows_shared",
        "from_landed",
        "preempt_recompute",
        "preempt_swap",
        "decode_gateway",
        "decode_gateway_left",
        "drained_reroute_decode",
        "drained_off",
        "reactivated",
        "fail_held",
        "fail_landed",
        "fail_before_landing",
        *(f"decode_router_{kind.name.lower()}" for kind in DECODE_KINDS),
        # routing
        "router_hold",
        "router_best_fit",
        "best_fit_taken",
        "best_fit_b",
        "best_fit_c",
        "best_fit_d",
        "best_fit_e",
        "best_fit_wait",
        "best_fit_least",
        "best_fit_under_way",
        "decode_router_changed",
        # commands
        "assigned",
        "assigned_decode",
        "gateway_by_command",
        "prediction_changed",
        "profile_changed",
        "placement_changed",
        "model_changed",
        # elsewhere in the same cases
        "swap_warm",
        "restored",
        "evict_for_own",
        "evict_for_pull",
        "mixed_iteration",
        "command_refused",
    }
)
"""What a good set of these cases must have made happen."""

_DECODE_KINDS = tuple(sorted(DECODE_KINDS))


class _SplitGenerator(_Generator):
    """Draws the parts of one case."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        # Of its own generator: one draw more would move all that follow, and with them what a seed reaches.
        self.printed_rng = np.random.default_rng([seed, 1])
        self.split = self.chance(0.75)
        if self.split:
            self.virtual = False
            self.common_batch = 0
        self.bytes = self.pick(1, 3, 100) if self.tiny else self.pick(1, 10**4, 10**6)

    # -- the cluster --

    def times(self) -> tuple[ProfileSpec, ProfileSpec]:
        """A machine, and the same at another speed."""
        profile = replace(self.profile(), kv_bytes_per_token=self.bytes)
        other = self.profile()
        n = len(profile.decode_base_ps)
        slow = replace(
            profile,
            decode_base_ps=profile.decode_base_ps + self.ps(1, 5),
            decode_per_token_ps=np.resize(other.decode_per_token_ps, n),
            prefill_knot_ps=profile.prefill_knot_ps + self.ps(0, 5),
            swap_in_ps_per_token=other.swap_in_ps_per_token,
        )
        return profile, slow

    def phase(self, pool: PoolSpec, phase: int) -> PoolSpec:
        return replace(
            pool,
            phase=phase,
            evicts=False,
            evicts_in_order=False,
            static_batch=False,
            async_kv=False,
            chunk_tokens=0 if phase == PoolPhase.DECODE else pool.chunk_tokens,
            pull=() if phase == PoolPhase.DECODE else pool.pull,
            host_kv_bytes=self.pick(0, 30 * self.bytes, 2**40, 2**40),
        )

    def placement(self) -> PlacementSpec:
        unit = float(self.unit_ps)
        c1, k1, c3, c2, k2 = (
            unit * float(self.rng.random()) * scale for scale in (10, 2, 10, 2, 0.5)
        )
        return PlacementSpec(
            prefill_const_ps=c1,
            prefill_per_token_ps=k1,
            decode_const_ps=c3,
            decode_per_request_ps=c2,
            decode_per_token_ps=k2 + unit * 0.01,
            ttft_ps=max(1, self.ps(5, self.pick(50, 300))),
            itl_ps=max(1, self.ps(5, self.pick(30, 100, 1000))),
            gamma=self.pick(0.0, 0.5, 1.0, 0.3),
            theta=self.pick(0.9, 0.9, 0.5, 1.0),
            fallback=self.pick(*Fallback),
            scaled_norm=self.chance(0.5),
            saved_over_tokens=bool(self.printed_rng.random() < 0.5),
        )

    def network(self, pools: list[PoolSpec], gpus_per_host: int) -> NetworkSpec | None:
        if self.chance(0.15):
            return None
        hosts, before = [], 0
        for pool in pools:
            for _ in range(pool.n_slots):
                hosts.append(before // gpus_per_host)
                before += pool.gpus
        speed = 10**6 if self.tiny else max(2, 10**3 * self.bytes * 10 // self.unit_ps * 100)
        capacity: list[int] = []

        def link() -> int:
            capacity.append(max(1, speed // self.pick(1, 1, 2, 3, 10, 37)))
            return len(capacity) - 1

        out_of, into = [[link() for _ in range(max(hosts) + 1)] for _ in range(2)]
        core = (link(),) if self.chance(0.3) else ()
        local = self.chance(0.5)
        ports = self.chance(0.3)
        return NetworkSpec(
            out_links=tuple((out_of[h], *((link(),) if ports else ())) for h in hosts),
            in_links=tuple((*core, into[h]) for h in hosts),
            local_out_links=tuple((link(),) if local else () for _ in hosts),
            local_in_links=tuple((link(),) if local and ports else () for _ in hosts),
            capacity=np.array(capacity),
        )

    def spec(self) -> ClusterSpec:
        return self.split_spec() if self.split else self.whole_spec()

    def whole_spec(self) -> ClusterSpec:
        """A cluster of `engine_cases` in which some routes hold or go by best fit."""
        spec = super().spec()
        rows = []
        for row in spec.routes:
            new = []
            for route in row:
                kind = route.kind
                if route.pools and self.chance(0.5):
                    kind = self.pick(RouterKind.HOLD, RouterKind.BEST_FIT, RouterKind.BEST_FIT)
                placed = kind == RouterKind.BEST_FIT or self.chance(0.3)
                new.append(
                    replace(route, kind=kind, placement=self.placement() if placed else None)
                )
            rows.append(tuple(new))
        return replace(spec, routes=tuple(rows))

    def split_route(
        self, pools: list[int], decode: list[int], queues: list[int], evicts: bool
    ) -> RouteSpec:
        kinds = [*ROUTERS, RouterKind.HOLD, RouterKind.BEST_FIT, RouterKind.BEST_FIT]
        if not queues:
            kinds.remove(RouterKind.SHARED_QUEUE)
        kind = self.pick(*kinds)
        queue = -1
        if queues and (evicts or kind == RouterKind.SHARED_QUEUE or self.chance(0.3)):
            queue = int(self.pick(*queues))
        own = self.some(pools, at_least=1)
        affine = kind == RouterKind.CLASS_AFFINE
        decode_kind = self.pick(*_DECODE_KINDS, RouterKind.BEST_FIT)
        placed = RouterKind.BEST_FIT in (kind, decode_kind) or self.chance(0.3)
        return RouteSpec(
            kind=kind,
            pools=own,
            overflow=self.some([p for p in pools if p not in own]) if affine else (),
            queue=queue,
            overflow_share=self.pick(0.0, 0.3, 1.0) if affine else 0.0,
            decode_pools=self.some(decode, at_least=1),
            decode_kind=decode_kind,
            placement=self.placement() if placed else None,
        )

    def split_spec(self) -> ClusterSpec:
        """Prefill and decode instances, beside them sometimes some that do both."""
        profiles = tuple(p for _ in range(self.int(1, 2)) for p in self.times())
        classes = self.classes()
        pools: list[PoolSpec] = []
        routes, queue_llm = [], []
        for llm in range(self.pick(1, 1, 1, 2)):
            n_queues = self.pick(0, 0, 1, 2)
            queues = list(range(len(queue_llm), len(queue_llm) + n_queues))
            queue_llm += [llm] * n_queues
            phases = [PoolPhase.PREFILL] * self.pick(1, 1, 2) + [PoolPhase.DECODE] * self.pick(1, 2)
            if self.chance(0.25):
                phases.append(PoolPhase.BOTH)
            first = len(pools)
            for phase in phases:
                pool = self.pool(llm, profiles, queues)
                if self.chance(0.3):
                    pool = replace(pool, batch_limit=self.int(1, 2))
                if phase != PoolPhase.BOTH:
                    pool = self.phase(pool, phase)
                elif not queues:
                    pool = replace(pool, evicts=False)
                pools.append(pool)
            mine = list(range(first, len(pools)))
            takers = [p for p in mine if pools[p].phase != PoolPhase.DECODE]
            decode = [p for p in mine if pools[p].phase == PoolPhase.DECODE]
            evicts = any(pools[p].evicts for p in mine)
            row = tuple(
                self.split_route(takers, decode, queues, evicts and c.priority == 1)
                for c in classes
            )
            for route in row:
                if route.queue >= 0 and not any(route.queue in pools[p].pull for p in takers):
                    p = self.pick(*takers)
                    pools[p] = replace(pools[p], pull=(*pools[p].pull, route.queue))
            routes.append(row)
        held = sum(pool.initial_active * pool.gpus for pool in pools)
        gpus_per_host = self.pick(1, 2, 4, 8)
        every = [kind for row in routes for r in row for kind in (r.kind, r.decode_kind)]
        return ClusterSpec(
            profiles=profiles,
            pools=tuple(pools),
            routes=tuple(routes),
            classes=classes,
            queue_llm=tuple(queue_llm),
            max_gpus=self.pick(2**31 - 1, held + self.int(0, 4)),
            gpus_per_host=gpus_per_host,
            host_keep_alive_ps=self.pick(0, self.ps(1, 300), int(NEVER)),
            half_block_tokens=self.half_block,
            custom_router=custom_router(False) if RouterKind.CUSTOM in every else None,
            network=self.network(pools, gpus_per_host),
        )

    # -- what happens to it --

    def command(self, spec: ClusterSpec, at_ps: int) -> Command:
        if self.chance(0.45):
            return super().command(spec, at_ps)
        kind = self.rng.choice(
            [
                "assign",
                "gateway",
                "predict",
                "profile",
                "decode",
                "place",
                "model",
                "fail",
                "router",
            ],
            p=[0.25, 0.12, 0.12, 0.1, 0.05, 0.05, 0.05, 0.2, 0.06],
        )
        llm, slo_class = self.int(0, spec.n_llms - 1), self.int(0, len(spec.classes) - 1)
        instance = self.int(0, spec.n_instances - 1)
        seed = int(self.rng.integers(2**31))
        if kind == "assign":
            return Command(at_ps, "assign", (seed,))
        if kind == "gateway":
            return Command(at_ps, "route_gateway", (llm,))
        if kind == "predict":
            return Command(at_ps, "set_predictions", (seed,))
        if kind == "profile":
            own = spec.pools[spec.pool_of_slot[instance]].profile
            profile = self.pick(own, own ^ 1, own ^ 1, 0)
            return Command(at_ps, "set_profile", (instance, profile))
        if kind == "decode":
            rule = int(self.pick(*_DECODE_KINDS, RouterKind.SHARED_QUEUE))
            return Command(at_ps, "set_decode_router", (llm, slo_class, rule))
        if kind == "place":
            return Command(at_ps, "set_placement", (llm, slo_class, self.placement()))
        if kind == "model":
            model = None if self.chance(0.3) else self.placement().model
            return Command(at_ps, "set_placement_model", (instance, model))
        if kind == "router":
            rule = int(self.pick(RouterKind.HOLD, RouterKind.BEST_FIT, RouterKind.JSQ_REQUESTS))
            return Command(at_ps, "set_router", (llm, slo_class, rule))
        return Command(at_ps, "fail", (instance,))


def make_split_case(seed: int) -> Case:
    """The case of a seed."""
    return _SplitGenerator(seed).case()


# --- commands whose arguments are drawn when they are given ---


def _some_to_assign(engine: Any, case: Case, seed: int) -> tuple[list[int], list[int]]:
    rng = np.random.default_rng(seed)
    spec, fleet = case.spec, engine.instances()
    phases = np.array([spec.pools[p].phase for p in spec.pool_of_slot])
    llms = np.array([spec.pools[p].llm for p in spec.pool_of_slot])
    whole = np.array([len(spec.pools[p].llms) == 1 for p in spec.pool_of_slot])
    waiting = [
        *((r, False) for llm in range(spec.n_llms) for r in engine.gateway(llm)),
        *((r, True) for llm in range(spec.n_llms) for r in engine.decode_gateway(llm)),
        *(
            (r, bool(phases[i] == PoolPhase.DECODE))
            for i in range(spec.n_instances)
            for r in engine.own_queue(i)
        ),
    ]
    requests, instances = [], []
    for k in rng.permutation(len(waiting))[: int(rng.integers(0, 16))]:
        request, prefilled = waiting[int(k)]
        good = (fleet["state"] == 3) & whole & (llms == case.requests.llm[request])
        good &= (phases == PoolPhase.DECODE) == prefilled
        if rng.random() < 0.01:  # refused, unless the one drawn happens to do
            good[:] = True
        choices = np.flatnonzero(good)
        if len(choices):
            requests.append(request)
            instances.append(int(rng.choice(choices)))
    return requests, instances


def _some_predictions(engine: Any, case: Case, seed: int) -> tuple[list[int], list[int]]:
    rng = np.random.default_rng(seed)
    states = engine.results()["state"]
    ended = (RequestState.FUTURE, RequestState.FINISHED, RequestState.REJECTED)
    under_way = np.flatnonzero(~np.isin(states, [int(state) for state in ended]))
    chosen = rng.permutation(under_way)[: int(rng.integers(0, 12))]
    tokens = rng.integers(1, 2 * case.requests.output_tokens[chosen] + 2)
    return [int(r) for r in chosen], [int(n) for n in tokens]


DRAWN["assign"] = _some_to_assign
DRAWN["set_predictions"] = _some_predictions


if __name__ == "__main__":
    print_reached(make_split_case, SPLIT_MECHANISMS)
