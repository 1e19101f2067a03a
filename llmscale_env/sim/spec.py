"""What both engines run from: a scenario's cluster in plain integers and arrays.

`ClusterSpec` is the compiled form of a scenario: no names, no units but picoseconds and tokens, no
randomness. Whoever wants to drive an engine by hand (tests, generated cases) fills one directly;
everybody else gets one from `llmscale_env.sim.compile.compile_cluster`.

docs/engine.md says exactly what every field does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from llmscale_env.sim.checks import (
    check_model,
    check_phase,
    check_phases_of_route,
    check_pull,
    check_swaps,
)
from llmscale_env.sim.kinds import (
    DECODE_KINDS,
    FROM_SSD,
    MAX_ARRIVAL_QUEUES,
    NEVER,
    NO_SOURCE,
    ControllerKind,
    Fallback,
    InstanceState,
    LiveMode,
    LoadSource,
    PoolPhase,
    PreemptionMode,
    PullRule,
    RequestState,
    RouterKind,
)
from llmscale_env.sim.links import LINK_TABLES, NetworkSpec
from llmscale_env.sim.operations import Operations, changed_operations
from llmscale_env.sim.profile import ProfileSpec
from llmscale_env.sim.region_checks import check_managers, check_region_pool, check_region_route
from llmscale_env.sim.region_specs import (
    LatencySpec,
    ManagerSpec,
    ScalingKind,
    ScalingSpec,
    SpotSpec,
)
from llmscale_env.sim.reported import (
    HOME_DTYPE,
    INSTANCE_DTYPE,
    LOADING_DTYPE,
    REPORT_DTYPE,
    RESULT_DTYPE,
    SPOT_DTYPE,
)
from llmscale_env.sim.weight_checks import check_homes, check_twin, check_weights

__all__ = [
    "DECODE_KINDS",
    "FROM_SSD",
    "HOME_DTYPE",
    "INSTANCE_DTYPE",
    "LINK_TABLES",
    "LOADING_DTYPE",
    "MAX_ARRIVAL_QUEUES",
    "NEVER",
    "NO_SOURCE",
    "REPORT_DTYPE",
    "RESULT_DTYPE",
    "SPOT_DTYPE",
    "ClassSpec",
    "ClusterSpec",
    "ControllerKind",
    "Fallback",
    "InstanceState",
    "LatencySpec",
    "LiveMode",
    "LoadSource",
    "ManagerSpec",
    "NetworkSpec",
    "Operations",
    "PlacementSpec",
    "PoolPhase",
    "PoolSpec",
    "PreemptionMode",
    "ProfileSpec",
    "PullRule",
    "RequestState",
    "RouteSpec",
    "RouterKind",
    "ScalingKind",
    "ScalingSpec",
    "SpotSpec",
    "SwapSpec",
    "changed_operations",
    "first_warm",
    "fitting",
]


@dataclass(frozen=True)
class SwapSpec:
    """An LLM that instances of a pool can swap to.

    Attributes:
        llm, profile: indices into the cluster's LLMs and profiles.
        weight_bytes: what its weights take in host memory.
        fetch_ps: from storage to host memory.
        swap_ps: from host memory to the GPUs.
        watermark_tokens: KV tokens kept free at admission while it is served.
    """

    llm: int
    profile: int
    weight_bytes: int = 0
    fetch_ps: int = 0
    swap_ps: int = 0
    watermark_tokens: int = 0


@dataclass(frozen=True)
class PoolSpec:
    """Instances of one kind: `n_slots` of them at most, each serving one LLM at a time.

    Attributes:
        llm, profile: indices into the cluster's LLMs and profiles; of the LLM that is loaded first.
        n_slots: most instances this pool can ever hold.
        gpus: GPUs per instance.
        initial_active: instances that are active at time 0 (the lowest slots; of a pool with `twin_of`
            the highest).
        batch_limit: running requests allowed per instance at the start.
        controller: how the limit moves; `controller_*` its parameters (Chiron's Algorithm 1).
        pull: shared queues that the pool's instances pull from at the start, in order.
        pull_rule: a `PullRule`.
        evicts_in_order: the head of a queue that comes earlier on an instance's list evicts running
            requests that came from later ones, or from none of them.
        static_batch: nobody joins a batch that has begun to decode.
        async_kv: the KV cache of evicted requests is copied to host memory beside the iterations.
        swaps: the LLMs that an instance can serve one after the other, `llm` the first of them;
            empty: `llm` only.
        swap_flushes: a swap does not wait for a batch that comes later on the instance's list.
        host_weight_bytes: host memory of one instance for weights of `swaps`.
        warm: LLMs of `swaps` whose weights are there at the start.
        repair_ps: from a failure to the start of loading.
        phase: a `PoolPhase`.
        drifts: profiles of the same machine at other speeds, for those who order `set_profile`.
        chunk_tokens: token budget of a chunked-prefill iteration; 0 means prefill first.
        prefill_tokens: token budget of a prefill-first iteration.
        preemption: what happens to KV on overflow.
        evicts: requests of a priority-0 class in an instance's own queue evict running requests of
            priority-1 classes that have a shared queue.
        acquire_ps: from the order to the start of loading.
        load_ps: (3,) loading time by `LoadSource`, where `weight_bytes` is 0.
        weight_bytes: weights that flow over the network's links, layer by layer; 0: loading takes `load_ps`.
        layers: how many layers they are.
        live_mode: a `LiveMode`, of the pairs of this pool.
        twin_of: pool on the same GPUs, slot by slot; -1: none. Named by one of the two.
        region: where its instances are.
        deployment_slots: so many slots each form a deployment; 0: the pool is one.
        priorities: requests of priority 0 come first in an instance's own queue.
        spot: its instances come from spot VMs and go back to them, not by `acquire_ps` and `load_ps`.
        scaling: how it scales when a request reaches its region.
        host_kv_bytes: KV cache that one instance may keep in host memory.
        watermark_tokens: KV tokens kept free at admission; where LLMs take turns each has its own.
    """

    llm: int
    profile: int
    n_slots: int
    gpus: int = 1
    initial_active: int = 0
    batch_limit: int = 256
    controller: int = ControllerKind.FIXED
    controller_alpha: float = 0.5
    controller_min_batch: int = 1
    controller_max_batch: int = 4096
    controller_window_iterations: int = 1
    pull: tuple[int, ...] = ()
    chunk_tokens: int = 0
    prefill_tokens: int = 4096
    preemption: int = PreemptionMode.RECOMPUTE
    evicts: bool = False
    acquire_ps: int = 0
    load_ps: tuple[int, int, int] = (0, 0, 0)
    load_source: int = LoadSource.SSD
    host_kv_bytes: int = 2**40
    watermark_tokens: int = 0
    pull_rule: int = PullRule.IN_ORDER
    evicts_in_order: bool = False
    static_batch: bool = False
    async_kv: bool = False
    swaps: tuple[SwapSpec, ...] = ()
    swap_flushes: bool = False
    host_weight_bytes: int = 2**62
    warm: tuple[int, ...] = ()
    repair_ps: int = 0
    phase: int = PoolPhase.BOTH
    drifts: tuple[int, ...] = ()
    weight_bytes: int = 0
    layers: int = 1
    live_mode: int = LiveMode.ZIGZAG
    twin_of: int = -1
    region: int = 0
    deployment_slots: int = 0
    priorities: bool = False
    spot: SpotSpec | None = None
    scaling: ScalingSpec | None = None

    def layer_bytes(self, layer: int) -> int:
        """Bytes of one layer, the first being 0; all of them together are `weight_bytes`."""
        size, n = self.weight_bytes, self.layers
        return size * (layer + 1) // n - size * layer // n

    @property
    def operations(self) -> Operations:
        """Those at the start."""
        return Operations(
            int(self.pull_rule), self.evicts_in_order, self.swap_flushes, self.static_batch
        )

    @property
    def served(self) -> tuple[SwapSpec, ...]:
        """Every LLM that an instance can serve, the first one first."""
        alone = SwapSpec(self.llm, self.profile, watermark_tokens=self.watermark_tokens)
        return self.swaps or (alone,)

    @property
    def llms(self) -> tuple[int, ...]:
        """Indices of those LLMs."""
        return tuple(swap.llm for swap in self.served)


def first_warm(pool: PoolSpec) -> tuple[int, ...]:
    """LLMs whose weights are in an instance's host memory at the start."""
    return fitting([pool.llm, *pool.warm], {s.llm: s.weight_bytes for s in pool.served}, pool)


def fitting(
    order: Sequence[int], weight_bytes: Mapping[int, int], pool: PoolSpec
) -> tuple[int, ...]:
    """Of LLMs in order of preference those that an instance's host memory has room for."""
    left, chosen = pool.host_weight_bytes, []
    for llm in dict.fromkeys(order):
        if weight_bytes[llm] <= left:
            left -= weight_bytes[llm]
            chosen.append(llm)
    return tuple(chosen)


@dataclass(frozen=True)
class PlacementSpec:
    """What best fit goes by (Aladdin, Algorithm 1; docs/engine.md, section 14).

    Attributes:
        prefill_const_ps, prefill_per_token_ps: a prefill iteration of `n` tokens takes `c1 + k1 * n`.
        decode_const_ps, decode_per_request_ps, decode_per_token_ps: a decode iteration of `b` requests
            with `l` tokens of context takes `c3 + c2 * b + k2 * l`.
        ttft_ps, itl_ps: targets of the first token and of the mean time between two tokens.
        gamma: share of the predicted output that counts as context (Aladdin's strictness).
        theta: share of what the ITL target leaves that may be used.
        fallback: a `Fallback`.
        scaled_norm: requests and context are measured in batch limits and KV capacities before the
            norm is taken; otherwise as Aladdin prints it.
    """

    prefill_const_ps: float
    prefill_per_token_ps: float
    decode_const_ps: float
    decode_per_request_ps: float
    decode_per_token_ps: float
    ttft_ps: int
    itl_ps: int
    gamma: float = 0.5
    theta: float = 0.9
    fallback: int = Fallback.WAIT
    scaled_norm: bool = False

    def __post_init__(self) -> None:
        check_model(self.model)
        for name in ("ttft_ps", "itl_ps"):
            if not 1 <= getattr(self, name) <= 10**15:
                raise ValueError(f"{name} = {getattr(self, name)!r}: must be in 1..10**15")
        for name, high in (("gamma", 1.0), ("theta", 10.0)):
            if not 0.0 <= getattr(self, name) <= high:
                raise ValueError(f"{name} = {getattr(self, name)!r}: must be in 0..{high}")
        if self.fallback not in tuple(Fallback):
            raise ValueError(
                f"fallback = {self.fallback!r}: must be one of {[int(f) for f in Fallback]}"
            )

    @property
    def model(self) -> tuple[float, float, float, float, float]:
        """The coefficients (c1, k1, c3, c2, k2)."""
        return (
            float(self.prefill_const_ps),
            float(self.prefill_per_token_ps),
            float(self.decode_const_ps),
            float(self.decode_per_request_ps),
            float(self.decode_per_token_ps),
        )


@dataclass(frozen=True)
class RouteSpec:
    """How requests of one (LLM, SLO class) find an instance.

    Attributes:
        kind: a `RouterKind`.
        pools: the candidate pools (for `CLASS_AFFINE`: the class's own pools).
        overflow: pools used when the own ones have no room (`CLASS_AFFINE` only).
        queue: shared queue of this class, or -1. Requests go there with `SHARED_QUEUE`, when a
            `CLASS_AFFINE` route finds no room, and when they are evicted.
        overflow_share: share of requests (by hash of their id) that try the overflow pools first.
        decode_pools: candidates of requests that a `PREFILL` instance hands over.
        decode_kind: a `RouterKind` out of `DECODE_KINDS`.
        placement: what `BEST_FIT` goes by, in either place.
        preference: of clients of each region the regions that have some of `pools`, all of them, the
            preferred one first (`REGIONAL`).
        threshold_ppm: utilisation below which a region is taken in that order.
        region_queues: the shared queue by region of the client; empty: `queue`, otherwise the first.
    """

    kind: int
    pools: tuple[int, ...]
    overflow: tuple[int, ...] = ()
    queue: int = -1
    overflow_share: float = 0.0
    decode_pools: tuple[int, ...] = ()
    decode_kind: int = RouterKind.JSQ_REQUESTS
    placement: PlacementSpec | None = None
    preference: tuple[tuple[int, ...], ...] = ()
    threshold_ppm: int = 700_000
    region_queues: tuple[int, ...] = ()


@dataclass(frozen=True)
class ClassSpec:
    """What the engine must know of an SLO class: its priority (0 before 1) and its targets.

    The TTFT target and `itl_max` (whether the ITL target holds for a request's largest ITL rather than its
    mean) move nothing: they are there for counting who was on time.
    """

    priority: int = 0
    itl_slo_ps: int = 200_000_000_000
    ttft_slo_ps: int = 10_000_000_000_000
    itl_max: bool = False


@dataclass(frozen=True)
class ClusterSpec:
    """A cluster, compiled: see the classes above and docs/engine.md.

    Attributes:
        profiles, pools, classes: as their classes say.
        routes: (n_llms, n_classes) nested tuples of `RouteSpec`.
        queue_llm: the LLM of each shared queue, -1: requests of any LLM.
        max_gpus: GPUs that all instances together may hold.
        gpus_per_host: instances are packed on hosts slot by slot; hosts keep weights in memory.
        host_keep_alive_ps: how long a host keeps an LLM's weights after its last instance has gone.
        half_block_tokens: KV tokens charged to every running request for the rounding of paging.
        network: links between instances; None: flows take no time.
        homes: per LLM the host that keeps a copy of its weights in memory, -1: none; empty: none anywhere.
        host_cache_at_start: at time 0 every host has all weights in memory, as if the last instance of
            each LLM had gone `OFF` there just then.
        n_regions: of clients and of pools. With one, the regions of requests say nothing.
        latency: of the network between regions; None: requests take no time.
        promote_ps: a request that joins an own queue so long after its arrival has priority 0 there.
        managers: endpoints that take requests from shared queues while they are little used.
        manager_period_ps: between two looks at that.
    """

    profiles: tuple[ProfileSpec, ...]
    pools: tuple[PoolSpec, ...]
    routes: tuple[tuple[RouteSpec, ...], ...]
    classes: tuple[ClassSpec, ...] = (ClassSpec(),)
    queue_llm: tuple[int, ...] = ()
    max_gpus: int = 2**31 - 1
    gpus_per_host: int = 8
    host_keep_alive_ps: int = int(NEVER)
    half_block_tokens: int = 8
    custom_router: object | None = field(default=None, compare=False)
    network: NetworkSpec | None = None
    homes: tuple[int, ...] = ()
    host_cache_at_start: bool = False
    n_regions: int = 1
    latency: LatencySpec | None = None
    promote_ps: int = int(NEVER)
    managers: tuple[ManagerSpec, ...] = ()
    manager_period_ps: int = 0

    def __post_init__(self) -> None:
        for p, pool in enumerate(self.pools):
            where = f"pools[{p}]"
            if not 0 <= pool.profile < len(self.profiles):
                raise ValueError(f"{where}.profile = {pool.profile}: no such profile")
            if not 0 <= pool.llm < len(self.routes):
                raise ValueError(f"{where}.llm = {pool.llm}: no such LLM in routes")
            if not 0 <= pool.initial_active <= pool.n_slots:
                raise ValueError(
                    f"{where}.initial_active = {pool.initial_active}: must be in 0..{pool.n_slots}"
                )
            if not 1 <= pool.batch_limit <= self.profiles[pool.profile].max_batch:
                raise ValueError(
                    f"{where}.batch_limit = {pool.batch_limit}: must be in "
                    f"1..{self.profiles[pool.profile].max_batch}"
                )
            check_swaps(where, pool, self)
            check_phase(where, pool, self)
            check_weights(where, pool, self)
            check_twin(where, p, self)
            check_region_pool(where, p, self)
            check_pull(f"{where}.pull", pool.pull, pool, self.queue_llm)
        for m, row in enumerate(self.routes):
            if len(row) != len(self.classes):
                raise ValueError(f"routes[{m}]: expected {len(self.classes)} classes")
            for c, route in enumerate(row):
                where = f"routes[{m}][{c}]"
                if route.queue >= len(self.queue_llm):
                    raise ValueError(f"{where}.queue = {route.queue}: no such shared queue")
                if route.kind == RouterKind.SHARED_QUEUE and route.queue < 0:
                    raise ValueError(f"{where}: a SHARED_QUEUE route needs a queue")
                if route.queue >= 0 and self.queue_llm[route.queue] not in (-1, m):
                    raise ValueError(f"{where}.queue = {route.queue}: is for another LLM")
                check_phases_of_route(where, m, route, self)
                check_region_route(where, m, route, self)
                for p in (*route.pools, *route.overflow):
                    if self.pools[p].llms != (m,):
                        raise ValueError(
                            f"{where}: pool {p} serves {self.pools[p].llms}; requests are routed to "
                            "instances of one LLM only, others pull from shared queues"
                        )
                if self.classes[c].priority == 1 and route.queue < 0:
                    for p, pool in enumerate(self.pools):
                        if m in pool.llms and pool.evicts:
                            raise ValueError(
                                f"{where}.queue = {route.queue}: must be a shared queue, as "
                                f"pools[{p}] evicts requests of this priority-1 class"
                            )
        if self.network is not None:
            self.network.refuse_other_sizes(self.n_instances, self.n_hosts)
        check_homes(self)
        check_managers(self)
        held = sum(pool.initial_active * pool.gpus for pool in self.pools)
        if held > self.max_gpus:
            raise ValueError(f"max_gpus = {self.max_gpus}: {held} are active at the start")

    @property
    def n_llms(self) -> int:
        return len(self.routes)

    @property
    def n_instances(self) -> int:
        return sum(pool.n_slots for pool in self.pools)

    @property
    def splits(self) -> bool:
        """Whether any pool serves one phase only."""
        return any(pool.phase != PoolPhase.BOTH for pool in self.pools)

    @property
    def places(self) -> bool:
        """Whether any route may be best fit."""
        return any(route.placement is not None for row in self.routes for route in row)

    @property
    def regional(self) -> bool:
        """Whether any of docs/engine.md, section 17, is at work."""
        routes = [route for row in self.routes for route in row]
        return (
            bool(self.managers)
            or self.n_regions > 1
            or any(route.preference or route.region_queues for route in routes)
            or any(pool.priorities or pool.spot or pool.scaling for pool in self.pools)
        )

    @property
    def max_batch(self) -> int:
        """Most requests that can ever run on one instance: sizes the engines' arrays."""
        return max(profile.max_batch for profile in self.profiles)

    @property
    def first_slot(self) -> tuple[int, ...]:
        """First instance index of each pool."""
        starts = np.concatenate([[0], np.cumsum([pool.n_slots for pool in self.pools])])
        return tuple(int(s) for s in starts[:-1])

    @property
    def pool_of_slot(self) -> tuple[int, ...]:
        """Pool of each instance slot."""
        return tuple(p for p, pool in enumerate(self.pools) for _ in range(pool.n_slots))

    @property
    def host_of_slot(self) -> tuple[int, ...]:
        """Host of each instance slot; twins share one, and a twin takes no GPUs of its own."""
        hosts: dict[int, list[int]] = {}
        before = 0
        for p, pool in enumerate(self.pools):
            if pool.twin_of < 0:
                first = [before + k * pool.gpus for k in range(pool.n_slots)]
                hosts[p] = [g // self.gpus_per_host for g in first]
                before += pool.n_slots * pool.gpus
        return tuple(
            host
            for p, pool in enumerate(self.pools)
            for host in hosts[pool.twin_of if pool.twin_of >= 0 else p]
        )

    @property
    def n_hosts(self) -> int:
        """Hosts that slots sit on."""
        return 1 + max(self.host_of_slot, default=-1)

    @property
    def twin_of_slot(self) -> tuple[int, ...]:
        """The slot on the same GPUs as each slot, -1: none; both ways."""
        twins, first = [-1] * self.n_instances, self.first_slot
        for p, pool in enumerate(self.pools):
            for k in range(pool.n_slots if pool.twin_of >= 0 else 0):
                one, other = first[p] + k, first[pool.twin_of] + k
                twins[one], twins[other] = other, one
        return tuple(twins)

    @property
    def active_at_start(self) -> tuple[bool, ...]:
        """Whether each slot is active at time 0."""
        return tuple(
            k >= pool.n_slots - pool.initial_active
            if pool.twin_of >= 0
            else k < pool.initial_active
            for pool in self.pools
            for k in range(pool.n_slots)
        )

    def with_pool(self, index: int, **changes: object) -> ClusterSpec:
        """A copy in which one pool differs."""
        pools = list(self.pools)
        pools[index] = replace(pools[index], **changes)  # type: ignore[arg-type]
        return replace(self, pools=tuple(pools))
