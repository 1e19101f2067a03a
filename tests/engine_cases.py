"""Generated cases on which both engines must agree: small clusters, nasty by design.

KV memory is small, so that it overflows; half of the cases live on a grid of few picoseconds, so that
ties abound; commands come at times of arrivals. `python -m tests.engine_cases FIRST COUNT [qlm]`
prints which mechanisms a range of seeds reaches.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from llmscale_env.sim.spec import (
    NEVER,
    ClassSpec,
    ClusterSpec,
    ControllerKind,
    LoadSource,
    PoolSpec,
    PreemptionMode,
    ProfileSpec,
    PullRule,
    RequestState,
    RouterKind,
    RouteSpec,
    SwapSpec,
)
from llmscale_env.workload.requests import RequestTable

ROUTERS = tuple(kind for kind in RouterKind if kind <= RouterKind.CUSTOM)
"""Rules that these cases route by; those of placement come in `split_cases`."""

MECHANISMS = frozenset(
    {
        # iterations
        "prefill_iteration",
        "decode_iteration",
        "mixed_iteration",
        "prompt_split",
        "prefill_budget",
        # KV memory
        "preempt_recompute",
        "preempt_swap",
        "preempt_to_shared_queue",
        "prefill_lost",
        "host_full",
        "restored",
        "restored_by_neighbour",
        "saved_copy_dropped",
        "evict_for_own",
        "evict_for_pull",
        "evicted_still_there",
        "waits_for_copy",
        "evict_by_command",
        "wakes_itself",
        "waiting_moved",
        "kv_move_forgotten",
        # where admitted requests come from
        "from_preempted",
        "from_own",
        "from_pull_0",
        "from_pull_1",
        "from_pull_2",
        "from_pull_3",
        # virtual queues
        "pull_changed",
        "arrival_queues_changed",
        "regrouped",
        "operations_changed",
        # several LLMs on an instance
        "swap_warm",
        "swap_cold",
        "swap_streamed",
        "flushed",
        # failures
        "fail_acquiring",
        "fail_loading",
        "fail_active",
        "fail_draining",
        "fail_to_queue",
        "fail_rerouted",
        "fail_saved",
        # routing
        *(f"router_{kind.name.lower()}" for kind in ROUTERS),
        "router_changed",
        "class_affine_own",
        "class_affine_overflow",
        "class_affine_overflow_first",
        "class_affine_queue",
        "class_affine_no_room",
        "class_affine_waits",
        "custom_queue",
        "gateway",
        "gateway_left",
        "rejected_too_long",
        "rejected_no_pool",
        # batch limits
        *(
            f"limit_{move}_{kind}"
            for move in ("raised", "lowered", "kept")
            for kind in ("chiron", "literal")
        ),
        "limit_below_batch",
        "halved_for_throughput",
        "raise_taken_back",
        "settling",
        "settled",
        "loss_without_raise",
        # life of instances
        "load_ssd",
        "load_host",
        "load_multicast",
        "wake_up",
        "multicast_from_draining",
        "fallback_from_host",
        "fallback_from_multicast",
        "cancel_acquiring",
        "cancel_loading",
        "drained_reroute",
        "drained_off",
        "reactivated",
        "target_missed",
        # order of events
        "arrival_at_a_boundary",
        "arrivals_tied",
        "command_at_an_arrival",
        "command_refused",
    }
)
"""Everything that a good set of cases must have made happen."""


@dataclass(frozen=True)
class Command:
    """`engine.name(*args)` at `at_ps`."""

    at_ps: int
    name: str
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """One cluster, what arrives, and what is ordered when.

    Attributes:
        script: commands in order of time.
        stops_ps: control times, those of the commands included, ascending; the last is the end.
        observes: what is looked at besides, by the names of an engine's methods.
    """

    spec: ClusterSpec
    requests: RequestTable
    script: tuple[Command, ...]
    stops_ps: tuple[int, ...]
    observes: tuple[str, ...] = ()


@dataclass
class Trace:
    """What an engine showed.

    Attributes:
        snapshots: (label, field, value) in order of observation.
        answers: what each command returned, or "refused".
        results: `RESULT_DTYPE` at the end.
        at_rest: nothing has moved since the last look but one.
    """

    snapshots: list[tuple[str, str, Any]] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    results: np.ndarray = field(default_factory=lambda: np.zeros(0))
    finish_log: list[int] = field(default_factory=list)
    at_rest: bool = False

    def looks(self) -> dict[str, dict[str, Any]]:
        """What was seen, by label and field."""
        there: dict[str, dict[str, Any]] = {}
        for label, name, value in self.snapshots:
            there.setdefault(label, {})[name] = value
        return there


# --- custom routers (nopython code, as the fast engine compiles them) ---


def _fewest_left(features, n, request_id, input_tokens, predicted, slo_class):  # type: ignore[no-untyped-def]
    best = 0
    for k in range(1, n):
        if features[k, 4] + 3.0 * features[k, 1] < features[best, 4] + 3.0 * features[best, 1]:
            best = k
    return best


def _queue_when_busy(features, n, request_id, input_tokens, predicted, slo_class):  # type: ignore[no-untyped-def]
    best = 0
    for k in range(1, n):
        room = features[k, 3] - features[k, 2] + features[k, 6]
        if room > features[best, 3] - features[best, 2] + features[best, 6]:
            best = k
    if features[best, 0] >= features[best, 5] or (request_id + input_tokens) % 7 == 0:
        return -1
    return (best + predicted + slo_class + int(features[best, 7])) % n


@cache
def custom_router(queue_allowed: bool) -> Any:
    """A compiled router; `queue_allowed`: one that also answers -1."""
    from llmscale_env.sim.custom_router import router

    return router(_queue_when_busy if queue_allowed else _fewest_left)


# --- the generator ---


class _Generator:
    """Draws the parts of one case."""

    def __init__(self, seed: int, qlm: bool = False) -> None:
        self.rng = np.random.default_rng(seed)
        # Of its own generator: one draw more would move all that follow, and with them what a seed reaches.
        self.controller_rng = np.random.default_rng([seed, 2])
        self.sleep_rng = np.random.default_rng([seed, 3])
        self.qlm = qlm
        self.tiny = self.chance(0.5)
        # Realistic times are milliseconds with all their picoseconds.
        self.unit_ps = 1 if self.tiny else int(self.rng.integers(10**8, 10**9))
        self.symmetric = self.chance(0.4)
        self.capacity = self.pick(30, 60, 100, 200, 5000)
        self.longest_input = self.pick(3, 12, 25)
        self.longest_output = self.pick(2, 8, 20, 60, 60)
        if self.capacity == 5000 and self.chance(0.3):
            self.longest_output = 600  # segments worth jumping over
        if qlm:  # several requests at once, but not all of them
            self.capacity = self.pick(60, 100, 200)
            self.longest_input, self.longest_output = self.pick(3, 12), self.pick(8, 20, 40)
        self.half_block = self.pick(0, 0, 1, 3)
        self.virtual = self.chance(0.5) or qlm
        self.common_batch = self.pick(4, 8, 16, 64) if self.virtual else 0

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def pick(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def int(self, low: int, high: int) -> int:
        """In low..high."""
        return int(self.rng.integers(low, high + 1))

    def ps(self, low: int, high: int) -> int:
        """A time of low..high units."""
        ps = self.int(low, high) * self.unit_ps
        return ps if self.tiny or ps == 0 else ps + self.int(0, 10**6)

    def some(self, items: list[int], at_least: int = 0) -> tuple[int, ...]:
        """A few of the items, in any order."""
        n = self.int(min(at_least, len(items)), len(items))
        return tuple(int(x) for x in self.rng.permutation(items)[:n])

    # -- the cluster --

    def knots(self) -> tuple[list[int], list[int], list[int]]:
        n = self.int(1, 3)
        tokens = [0, *sorted(self.int(1, 40) for _ in range(n - 1))]
        return tokens, [self.ps(1, 12) for _ in tokens], [self.ps(0, 3) for _ in tokens]

    def profile(self) -> ProfileSpec:
        max_batch = self.common_batch or self.pick(4, 8, 16, 64)
        steps = [self.ps(0, 3) for _ in range(max_batch + 1)]
        base = np.cumsum([self.ps(1, 12), *steps[1:]])
        if self.symmetric:
            base[:] = self.ps(1, 8)
        per_token = [self.ps(0, 1) if self.chance(0.5) else 0 for _ in range(max_batch + 1)]
        if self.chance(0.5):
            per_token = [self.pick(0, 1) * self.unit_ps] * (max_batch + 1)
        prefill, mixed = self.knots(), self.knots()
        return ProfileSpec(
            decode_base_ps=base,
            decode_per_token_ps=np.array(per_token),
            prefill_knot_tokens=np.array(prefill[0]),
            prefill_knot_ps=np.array(prefill[1]),
            prefill_slope_ps=np.array(prefill[2]),
            prefill_pair_ps=self.pick(0, 0, 1),
            mixed_knot_tokens=np.array(mixed[0]),
            mixed_knot_ps=np.array(mixed[1]),
            mixed_slope_ps=np.array(mixed[2]),
            mixed_base_ps=np.array([self.ps(0, 4) for _ in range(max_batch + 1)]),
            mixed_per_token_ps=np.array(per_token),
            mixed_pair_ps=self.pick(0, 0, 1),
            mixed_chunk_ps=self.ps(0, 3),
            kv_capacity_tokens=self.capacity + self.pick(0, 0, 0, 7, 40),
            swap_out_ps_per_token=self.pick(self.ps(0, 1), self.ps(0, 1), self.ps(0, 20)),
            swap_in_ps_per_token=self.ps(0, 1),
            kv_bytes_per_token=self.pick(1, 1, 3),
        )

    def pool(self, llm: int, profiles: tuple[ProfileSpec, ...], queues: list[int]) -> PoolSpec:
        profile = self.int(0, len(profiles) - 1)
        largest = profiles[profile].max_batch
        n_slots = self.int(1, 5)
        lowest = self.pick(1, 1, 2)
        chunk_tokens = self.pick(0, 0, 0, 1, 4, 16, 64)
        return PoolSpec(
            llm=llm,
            profile=profile,
            n_slots=n_slots,
            gpus=self.pick(1, 1, 2, 4),
            initial_active=0 if self.chance(0.15) else self.int(1, n_slots),
            batch_limit=self.int(1, largest),
            controller=self.pick(*ControllerKind, ControllerKind.FIXED),
            controller_alpha=self.pick(0.5, 0.5, 0.3, 1.0),
            controller_min_batch=lowest,
            controller_max_batch=self.pick(4096, self.int(lowest, largest)),
            controller_window_iterations=self.pick(1, 1, 2, 5),
            controller_settles=bool(self.controller_rng.random() < 0.4),
            controller_reverts=bool(self.controller_rng.random() < 0.4),
            pull=self.some(queues) if self.chance(0.8) else (),
            chunk_tokens=chunk_tokens,
            prefill_tokens=self.pick(1, 16, 40, 4096),
            preemption=self.pick(*PreemptionMode),
            evicts=self.chance(0.5),
            acquire_ps=self.pick(0, self.ps(1, 30)),
            load_ps=(self.ps(0, 200), self.ps(0, 60), self.ps(0, 20)),
            load_source=self.pick(*LoadSource),
            host_kv_bytes=self.pick(0, 30, 100, 2**40, 2**40, 2**40),
            watermark_tokens=self.pick(0, 0, 3, 10),
            pull_rule=self.pick(0, 0, 1),
            evicts_in_order=self.chance(0.5),
            static_batch=chunk_tokens == 0 and self.chance(0.15),
            async_kv=self.chance(0.4),
            repair_ps=self.pick(0, self.ps(1, 100)),
            wake_ps=int(self.sleep_rng.integers(0, 30)) if self.sleep_rng.random() < 0.4 else -1,
        )

    def swaps(self, pool: PoolSpec, n_llms: int, n_profiles: int) -> PoolSpec:
        """The pool as one whose instances swap between LLMs."""
        others = self.some([m for m in range(n_llms) if m != pool.llm])
        llms = [pool.llm, *others]
        profiles = [pool.profile, *(self.int(0, n_profiles - 1) for _ in others)]
        return replace(
            pool,
            wake_ps=-1,
            swaps=tuple(
                SwapSpec(
                    m,
                    f,
                    weight_bytes=self.int(1, 10),
                    fetch_ps=self.ps(0, 100),
                    swap_ps=self.ps(1, 40),
                    # Not drawn: the cases stay what they were.
                    watermark_tokens=(pool.watermark_tokens, 0, 5)[m % 3],
                )
                for m, f in zip(llms, profiles, strict=True)
            ),
            swap_flushes=self.chance(0.5),
            host_weight_bytes=self.pick(0, 8, 12, 20, 100),
            warm=self.some(llms) if self.chance(0.5) else (),
        )

    def route(self, pools: list[int], queues: list[int], needs_queue: bool) -> RouteSpec:
        kinds = list(ROUTERS)
        if not queues:
            kinds.remove(RouterKind.SHARED_QUEUE)
        # Chiron's router has the most branches.
        kind = self.pick(*kinds, RouterKind.CLASS_AFFINE, RouterKind.CLASS_AFFINE)
        needs_queue |= kind == RouterKind.SHARED_QUEUE
        queue = -1
        if queues and (needs_queue or self.chance(0.5)):
            queue = int(self.pick(*queues))
        affine = kind == RouterKind.CLASS_AFFINE
        own = self.some(pools, at_least=1)
        if affine and self.chance(0.7):
            own = own[:1]  # leaves some to overflow to
        others = [p for p in pools if p not in own]
        return RouteSpec(
            kind=kind,
            pools=own,
            overflow=self.some(others, at_least=self.int(0, 1)) if affine else (),
            queue=queue,
            overflow_share=self.pick(0.0, 0.3, 1.0) if affine else 0.0,
        )

    def classes(self) -> tuple[ClassSpec, ...]:
        n = self.int(1, 3)
        return tuple(
            ClassSpec(
                priority=(0, 1, self.int(0, 1))[c] if n > 1 else self.pick(0, 0, 1),
                itl_slo_ps=max(1, self.ps(3, 60)),
                ttft_slo_ps=max(1, self.ps(1, 300)),
            )
            for c in range(n)
        )

    def virtual_spec(self) -> ClusterSpec:
        """All requests wait in shared queues, from which instances of several LLMs pull."""
        profiles = tuple(self.profile() for _ in range(self.int(1, 3)))
        classes = self.classes()
        n_llms = self.pick(1, 2, 2, 3, 5)
        n_queues = self.pick(self.int(1, 6), self.int(1, 6), 15)
        labels = [-1] * n_queues
        if self.chance(0.3):
            labels = [self.int(-1, n_llms - 1) for _ in range(n_queues)]
        pools = []
        for number in range(self.int(1, 3)):
            llm = number % n_llms if self.chance(0.8) else self.int(0, n_llms - 1)
            pool = replace(self.pool(llm, profiles, []), evicts=False)
            pool = self.swaps(pool, n_llms, len(profiles)) if self.chance(0.8) else pool
            good = [q for q in range(n_queues) if labels[q] in (-1, *pool.llms)]
            pools.append(replace(pool, pull=self.some(good, at_least=1)))
        routes = []
        for llm in range(n_llms):
            good = [q for q in range(n_queues) if labels[q] in (-1, llm)]
            kind = RouterKind.SHARED_QUEUE if good else RouterKind.JSQ_REQUESTS
            row = [
                RouteSpec(kind, (), queue=int(self.pick(*good)) if good else -1) for _ in classes
            ]
            fixed = [p for p, pool in enumerate(pools) if pool.llms == (llm,)]
            if fixed and good:  # some go to instances, as they may where one LLM stays
                row = [self.route(fixed, good, True) if self.chance(0.3) else old for old in row]
                row = [
                    old if new.kind == RouterKind.CUSTOM else new
                    for old, new in zip(
                        [RouteSpec(kind, (), queue=r.queue) for r in row], row, strict=True
                    )
                ]
            routes.append(tuple(row))
        for p, pool in enumerate(pools):
            if all(r.queue >= 0 for llm in pool.llms for r in routes[llm]):
                pools[p] = replace(pool, evicts=self.chance(0.4))
        if self.qlm:
            pools = [
                replace(
                    pool,
                    pull_rule=PullRule.IN_ORDER,
                    evicts_in_order=True,
                    async_kv=pool.async_kv or self.chance(0.6),
                    host_kv_bytes=self.pick(30, 300, 2**40, 2**40),
                    evicts=False,
                    initial_active=max(1, pool.initial_active),
                    batch_limit=min(pool.batch_limit, self.pick(3, 5, 16)),
                )
                for pool in pools
            ]
        return self.cluster(profiles, pools, routes, classes, labels)

    def cluster(
        self,
        profiles: tuple[ProfileSpec, ...],
        pools: list[PoolSpec],
        routes: list[tuple[RouteSpec, ...]],
        classes: tuple[ClassSpec, ...],
        queue_llm: list[int],
        **more: Any,
    ) -> ClusterSpec:
        """The cluster of these parts, with its limits and hosts."""
        held = sum(pool.initial_active * pool.gpus for pool in pools)
        return ClusterSpec(
            profiles=profiles,
            pools=tuple(pools),
            routes=tuple(routes),
            classes=classes,
            queue_llm=tuple(queue_llm),
            max_gpus=self.pick(2**31 - 1, held + self.int(0, 4)),
            gpus_per_host=self.pick(1, 2, 4, 8),
            host_keep_alive_ps=self.pick(0, self.ps(1, 300), int(NEVER)),
            half_block_tokens=self.half_block,
            **more,
        )

    def spec(self) -> ClusterSpec:
        if self.virtual:
            return self.virtual_spec()
        profiles = tuple(self.profile() for _ in range(self.int(1, 2)))
        classes = self.classes()
        n_llms = self.pick(1, 1, 1, 2, 2, 3)
        pools: list[PoolSpec] = []
        routes: list[tuple[RouteSpec, ...]] = []
        queue_llm: list[int] = []
        for llm in range(n_llms):
            n_queues = self.int(0, 3)
            queues = list(range(len(queue_llm), len(queue_llm) + n_queues))
            queue_llm += [llm] * n_queues
            n_pools = self.int(1, {1: 4, 2: 2, 3: 1}[n_llms])
            if llm > 0 and self.chance(0.15):
                n_pools = 0
            mine = list(range(len(pools), len(pools) + n_pools))
            pools += [self.pool(llm, profiles, queues) for _ in mine]
            if not queues and any(c.priority == 1 for c in classes):
                for p in mine:
                    pools[p] = replace(pools[p], evicts=False)
            evicts = any(pools[p].evicts for p in mine)
            row = tuple(self.route(mine, queues, evicts and c.priority == 1) for c in classes)
            routes.append(row)
            for route in row:
                pulled = any(route.queue in pools[p].pull for p in mine)
                if route.queue >= 0 and mine and not pulled:
                    p = self.pick(*mine)
                    pools[p] = replace(pools[p], pull=(*pools[p].pull, route.queue))
        router = self.custom(routes)
        return self.cluster(profiles, pools, routes, classes, queue_llm, custom_router=router)

    @staticmethod
    def custom(routes: list[tuple[RouteSpec, ...]]) -> Any:
        every = [route for row in routes for route in row]
        if not any(route.kind == RouterKind.CUSTOM for route in every):
            return None
        # A command may make any of them custom.
        return custom_router(queue_allowed=all(route.queue >= 0 for route in every))

    # -- what happens to it --

    def requests(self, spec: ClusterSpec) -> RequestTable:
        n = self.pick(5, 20, 20, 60, 60, 120, 200)
        gap_ps = max(1, self.ps(1, self.pick(2, 5, 15, 60)))
        gaps = self.rng.integers(0, gap_ps + 1, n)
        if self.tiny:
            gaps -= gaps % self.pick(1, 1, 4)
        gaps[self.rng.random(n) < self.pick(0.0, 0.3, 0.8)] = 0
        inputs = self.rng.integers(1, self.longest_input + 1, n)
        outputs = self.rng.integers(1, self.longest_output + 1, n)
        if self.symmetric:
            inputs[:], outputs[:] = self.longest_input, self.longest_output
        outputs[self.rng.random(n) < 0.05] = 1
        inputs[self.rng.random(n) < 0.02] = 2 * self.capacity
        predicted = outputs if self.chance(0.5) else self.rng.integers(1, 2 * outputs + 1)
        return RequestTable(
            arrival_ps=np.cumsum(gaps),
            llm=self.rng.integers(0, spec.n_llms, n),
            region=np.zeros(n),
            slo_class=self.rng.integers(0, len(spec.classes), n),
            input_tokens=inputs,
            output_tokens=outputs,
            predicted_output_tokens=predicted,
            llm_names=tuple(f"llm{m}" for m in range(spec.n_llms)),
            class_names=tuple(f"class{c}" for c in range(len(spec.classes))),
        )

    def command(self, spec: ClusterSpec, at_ps: int) -> Command:
        p = self.int(0, len(spec.pools) - 1)
        pool = spec.pools[p]
        kind = self.rng.choice(
            ["target", "limit", "controller", "share", "router", "drain", "evict", "move"],
            p=[0.35, 0.12, 0.08, 0.06, 0.06, 0.1, 0.13, 0.1],
        )
        if self.chance(0.65 if self.virtual else 0.15):
            return self.queue_command(spec, at_ps)
        if kind == "target":
            source = self.pick(None, *(int(s) for s in LoadSource))
            return Command(at_ps, "set_target", (p, self.int(0, pool.n_slots), source))
        if kind == "limit":
            limit = self.int(1, spec.profiles[pool.profile].max_batch)
            if self.chance(0.3):
                slot = spec.first_slot[p] + self.int(0, pool.n_slots - 1)
                return Command(at_ps, "set_instance_limit", (slot, limit))
            return Command(at_ps, "set_batch_limit", (p, limit))
        if kind == "controller":
            return Command(at_ps, "set_controller", (p, int(self.pick(*ControllerKind))))
        if kind == "share":
            llm, slo_class = self.int(0, spec.n_llms - 1), self.int(0, len(spec.classes) - 1)
            return Command(at_ps, "set_overflow_share", (llm, slo_class, self.pick(0.0, 0.5, 1.0)))
        if kind == "router":
            llm, slo_class = self.int(0, spec.n_llms - 1), self.int(0, len(spec.classes) - 1)
            return Command(at_ps, "set_router", (llm, slo_class, int(self.pick(*ROUTERS))))
        instance = self.int(0, spec.n_instances - 1)
        if kind == "drain":
            return Command(at_ps, "drain", (instance,))
        if kind == "move":
            to = self.int(0, spec.n_instances - 1)
            return Command(at_ps, "move_waiting", (instance, to, self.pick(1, 2, 5, 1000)))
        return Command(at_ps, "evict", (instance, self.pick(1, 1, 2, 4)))

    def queue_command(self, spec: ClusterSpec, at_ps: int) -> Command:
        """Virtual queues, or a failure."""
        instance = self.int(0, spec.n_instances - 1)
        queues = list(range(len(spec.queue_llm)))
        kind = self.rng.choice(
            ["pull", "arrivals", "regroup", "fail", "operations"], p=[0.4, 0.15, 0.2, 0.15, 0.1]
        )
        if kind == "operations":
            p = self.int(0, len(spec.pools) - 1)
            changes = [self.pick(None, 0, 1) for _ in range(4)]
            return Command(at_ps, "set_operations", (p, *changes))
        if kind == "pull":
            return Command(at_ps, "set_pull", (instance, self.some(queues)))
        if kind == "arrivals" and queues:
            llm, slo_class = self.int(0, spec.n_llms - 1), self.int(0, len(spec.classes) - 1)
            uppers = sorted({self.int(1, self.longest_input) for _ in range(self.int(0, 2))})
            to = [int(self.pick(*queues)) for _ in range(len(uppers) + 1)]
            return Command(at_ps, "set_arrival_queues", (llm, slo_class, uppers, to))
        if kind == "regroup":
            return Command(at_ps, "regroup", (int(self.rng.integers(2**31)),))
        return Command(at_ps, "fail", (instance,))

    def everybody(self, spec: ClusterSpec, at_ps: int) -> list[Command]:
        """New lists for all instances, as a scheduler of virtual queues sets them, or all of them fail."""
        queues = list(range(len(spec.queue_llm)))
        if self.chance(0.2):
            return [Command(at_ps, "fail", (i,)) for i in range(spec.n_instances)]
        regroup = Command(at_ps, "regroup", (int(self.rng.integers(2**31)),))
        lists = [
            Command(at_ps, "set_pull", (i, self.some(queues))) for i in range(spec.n_instances)
        ]
        return [regroup, *lists] if self.chance(0.5) else lists

    def replacement(self, spec: ClusterSpec, at_ps: int) -> list[Command]:
        """A pool takes over from all other instances of its LLM: nobody but draining ones is left."""
        p = self.int(0, len(spec.pools) - 1)
        old = [
            first + slot
            for first, pool in zip(spec.first_slot, spec.pools, strict=True)
            if pool.llm == spec.pools[p].llm
            for slot in range(pool.n_slots)
        ]
        count = self.int(1, spec.pools[p].n_slots)
        source = self.pick(*(int(s) for s in LoadSource))
        return [
            *(Command(at_ps, "drain", (i,)) for i in old),
            *(Command(at_ps, "evict", (i, 9)) for i in old if self.chance(0.7)),
            Command(at_ps, "set_target", (p, count, source)),
        ]

    def case(self) -> Case:
        spec = self.spec()
        requests = self.requests(spec)
        last_ps = int(requests.arrival_ps[-1])
        stops = []
        for _ in range(self.pick(0, 2, 5, 12)):
            at_arrival = int(self.pick(*requests.arrival_ps))
            anywhere = self.int(0, last_ps + self.pick(100, 1000) * self.unit_ps)
            stops.append(self.pick(at_arrival, anywhere))
        script: list[Command] = []
        for at_ps in sorted(stops):
            if self.chance(0.1):
                script += self.replacement(spec, at_ps)
            script += [self.command(spec, at_ps) for _ in range(self.pick(0, 1, 1, 2, 4))]
            if self.chance(0.1):
                script += self.everybody(spec, at_ps)
        stops.append(last_ps + self.ps(0, 1000))
        # Somebody should be there in the end, or most of a case's requests never run.
        if self.chance(0.8):
            script += [Command(max(stops), "set_target", (p, 1)) for p in range(len(spec.pools))]
        tokens = int(requests.input_tokens.sum() + requests.output_tokens.sum())
        end_ps = max(stops) + (1000 + tokens) * 100 * self.unit_ps
        return Case(spec, requests, tuple(script), (*sorted(set(stops)), end_ps))


def make_case(seed: int, qlm: bool = False) -> Case:
    """The case of a seed; `qlm`: with everything on that QLM's agents do."""
    return _Generator(seed, qlm).case()


# --- running one ---


def _observe(engine: Any, case: Case, label: str, trace: Trace) -> None:
    seen = {
        "now_ps": engine.now_ps,
        "instances": engine.instances(),
        "results": engine.results(),
        "queues": engine.queues(),
        "gateways": [engine.gateway(llm) for llm in range(case.spec.n_llms)],
        "decode_gateways": [engine.decode_gateway(llm) for llm in range(case.spec.n_llms)],
        "own_queues": [engine.own_queue(i) for i in range(case.spec.n_instances)],
        "reports": engine.reports(),
        "gpu_ps": engine.gpu_ps(),
        "conservation": engine.conservation(),
    }
    seen |= {name: getattr(engine, name)() for name in case.observes}
    trace.snapshots += [(label, name, value) for name, value in seen.items()]


def _some_waiting(engine: Any, case: Case, seed: int) -> tuple[list[int], list[int]]:
    """Requests that wait in shared queues, and queues to move them to."""
    rng = np.random.default_rng(seed)
    waiting = [r for queue in engine.queues() for r in queue]
    some = [int(r) for r in rng.permutation(waiting)[: int(rng.integers(0, 12))]]
    if rng.random() < 0.5:
        some.sort()
    queues = []
    for r in some:
        labels = case.spec.queue_llm
        good = [q for q, m in enumerate(labels) if m in (-1, int(case.requests.llm[r]))]
        queues.append(int(good[int(rng.integers(len(good)))]))
    return some, queues


DRAWN: dict[str, Callable[..., tuple[Any, ...]]] = {"regroup": _some_waiting}
"""Commands whose arguments are drawn, with the seed in `args`, among what is there at the time.

By name, or by name and last argument, if that is a word.
"""


def arguments(engine: Any, case: Case, command: Command) -> tuple[Any, ...]:
    """What a command is called with."""
    if command.args and f"{command.name} {command.args[-1]}" in DRAWN:
        return DRAWN[f"{command.name} {command.args[-1]}"](engine, case, *command.args)
    if command.name in DRAWN:
        return DRAWN[command.name](engine, case, *command.args)
    return command.args


def run_case(engine_class: Any, case: Case, doublings: int = 0) -> tuple[Any, Trace]:
    """Run a case; what is seen before and after the commands of every control time.

    Args:
        engine_class: the engine that runs it.
        case: what is run.
        doublings: how often time doubles after the last stop, until every request is done or nothing moves.
    """
    engine = engine_class(case.spec, case.requests)
    trace = Trace()
    for stop_ps in case.stops_ps:
        engine.advance(stop_ps)
        _observe(engine, case, f"before commands at {stop_ps}", trace)
        due = [c for c in case.script if c.at_ps == stop_ps]
        for command in due:
            args = arguments(engine, case, command)
            try:
                answer = getattr(engine, command.name)(*args)
            except ValueError:
                answer = "refused"
            trace.answers.append((stop_ps, command.name, command.args, answer))
        if due:
            _observe(engine, case, f"after commands at {stop_ps}", trace)
    for _ in range(doublings):
        fleet, results = engine.instances(), engine.results()
        engine.advance(min(2 * engine.now_ps, int(NEVER) - 1))
        _observe(engine, case, f"before the end at {engine.now_ps}", trace)
        trace.at_rest = np.array_equal(fleet, engine.instances())
        trace.at_rest &= np.array_equal(results, engine.results())
        if trace.at_rest or all_done(engine.results()):
            break
    trace.results = engine.results()
    trace.finish_log = engine.finish_log()
    return engine, trace


def all_done(results: np.ndarray) -> bool:
    """Whether every request is finished or rejected."""
    over = (int(RequestState.FINISHED), int(RequestState.REJECTED))
    return bool(np.isin(results["state"], over).all())


def mechanisms(
    engine: Any, case: Case, trace: Trace, among: frozenset[str] = MECHANISMS
) -> set[str]:
    """What was at work in a case run by the reference engine."""
    reached = {name for name, count in engine.events.items() if count}
    arrivals = case.requests.arrival_ps
    if (np.diff(arrivals) == 0).any():
        reached.add("arrivals_tied")
    if np.isin([c.at_ps for c in case.script], arrivals).any():
        reached.add("command_at_an_arrival")
    if any(answer[3] == "refused" for answer in trace.answers):
        reached.add("command_refused")
    return reached & among


def first_difference(one: Trace, other: Trace) -> str | None:
    """Where two traces part, in words; None if nowhere."""
    for (label, name, a), (_, _, b) in zip(one.snapshots, other.snapshots, strict=False):
        if isinstance(a, np.ndarray):
            for column in a.dtype.names or ():
                different = np.flatnonzero(a[column] != b[column])
                if len(different):
                    row = int(different[0])
                    return f"{label}: {name}[{row}].{column}: {a[column][row]} / {b[column][row]}"
        elif a != b:
            return f"{label}: {name}: {a} / {b}"
    if len(one.snapshots) != len(other.snapshots):
        return f"snapshots: {len(one.snapshots)} / {len(other.snapshots)}"
    for a, b in zip(one.answers, other.answers, strict=True):
        if a != b:
            return f"answer: {a} / {b}"
    if one.finish_log != other.finish_log:
        return f"finish_log: {one.finish_log} / {other.finish_log}"
    return None


def print_reached(
    make: Callable[[int], Case],
    among: frozenset[str] = MECHANISMS,
    broken: Callable[[Case, Trace], str | None] = lambda case, trace: None,
) -> None:
    """Print how many of a range of seeds reach each mechanism; the range is that of the command line."""
    from llmscale_env.sim.reference import ReferenceEngine

    first, count = (int(word) for word in sys.argv[1:3])
    reached: Counter[str] = Counter()
    for seed in range(first, first + count):
        case = make(seed)
        engine, trace = run_case(ReferenceEngine, case)
        assert broken(case, trace) is None, seed
        reached.update(mechanisms(engine, case, trace, among))
    for name in sorted(among):
        print(f"{reached[name]:6d}  {name}")


if __name__ == "__main__":
    print_reached(lambda seed: make_case(seed, qlm="qlm" in sys.argv))
