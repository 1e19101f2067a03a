"""What both engines run from: a scenario's cluster in plain integers and arrays.

`ClusterSpec` is the compiled form of a scenario: no names, no units but picoseconds and tokens, no
randomness. Whoever wants to drive an engine by hand (tests, generated cases) fills one directly;
everybody else gets one from `llmscale_env.sim.compile.compile_cluster`.

docs/engine.md says exactly what every field does. Parts, kinds and reports have modules of their own
beside this one; whoever is no part of the simulator takes them from here.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.spec.checks import (
    check_fields,
    check_phase,
    check_phases_of_route,
    check_pull,
    check_range,
    check_swaps,
    check_v1,
)
from llmscale_env.sim.spec.kinds import (
    NEVER,
    PoolPhase,
    RouterKind,
)
from llmscale_env.sim.spec.links import NetworkSpec
from llmscale_env.sim.spec.pools import PoolSpec
from llmscale_env.sim.spec.profile import ProfileSpec
from llmscale_env.sim.spec.region_checks import (
    check_managers,
    check_region_pool,
    check_region_route,
)
from llmscale_env.sim.spec.regions import (
    LatencySpec,
    ManagerSpec,
)
from llmscale_env.sim.spec.routes import ClassSpec, RouteSpec
from llmscale_env.sim.spec.weight_checks import check_homes, check_twin, check_weights

_TIME = (0, int(NEVER))
_CLUSTER_RANGES = {
    "max_gpus": (0, 2**31 - 1),
    "gpus_per_host": (1, 2**31 - 1),
    "half_block_tokens": (0, 2**20),
    **dict.fromkeys(("host_keep_alive_ps", "manager_period_ps"), _TIME),
    "n_regions": (1, 2**15),
}
_CLASS_RANGES = {
    "priority": (0, 1),
    **dict.fromkeys(("itl_slo_ps", "ttft_slo_ps", "promote_ps"), _TIME),
}


@dataclass(frozen=True)
class ClusterSpec:
    """A cluster, compiled: see the classes of its parts and docs/engine.md.

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
        context_limits: per LLM the most tokens of prompt and output together that a request may have, longer
            ones are rejected; 0: no limit; empty: none has one.
        waiting_counts: utilisations count the KV tokens that requests which wait at an instance will ask for.
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
    context_limits: tuple[int, ...] = ()
    waiting_counts: bool = False
    managers: tuple[ManagerSpec, ...] = ()
    manager_period_ps: int = 0

    def __post_init__(self) -> None:
        check_fields(self, {**_CLUSTER_RANGES, "queue_llm": (-1, len(self.routes) - 1)})
        check_fields(self, {"context_limits": (0, 2**31 - 1)})
        if len(self.context_limits) not in (0, self.n_llms):
            raise ValueError(
                f"context_limits = {self.context_limits}: must be {self.n_llms} numbers"
            )
        for c, slo_class in enumerate(self.classes):
            check_fields(slo_class, _CLASS_RANGES, f"classes[{c}].")
        for p, pool in enumerate(self.pools):
            where = f"pools[{p}]"
            pool.refuse_nonsense(f"{where}.")
            if not 0 <= pool.profile < len(self.profiles):
                raise ValueError(f"{where}.profile = {pool.profile}: no such profile")
            if not 0 <= pool.llm < len(self.routes):
                raise ValueError(f"{where}.llm = {pool.llm}: no such LLM in routes")
            if not 0 <= pool.initial_active <= pool.n_slots:
                raise ValueError(
                    f"{where}.initial_active = {pool.initial_active}: must be in 0..{pool.n_slots}"
                )
            for name in ("batch_limit", "controller_min_batch"):
                most = self.profiles[pool.profile].max_batch
                check_range(f"{where}.{name}", getattr(pool, name), 1, most)
            check_swaps(where, pool, self)
            check_phase(where, pool, self)
            check_v1(where, pool, self)
            check_weights(where, pool, self)
            check_twin(where, p, self)
            check_region_pool(where, p, self)
            check_pull(f"{where}.pull", pool.pull, pool, self.queue_llm)
        for m, row in enumerate(self.routes):
            if len(row) != len(self.classes):
                raise ValueError(f"routes[{m}]: expected {len(self.classes)} classes")
            for c, route in enumerate(row):
                where = f"routes[{m}][{c}]"
                check_fields(route, self._route_ranges(), f"{where}.")
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

    def _route_ranges(self) -> dict[str, tuple[int, int] | type[IntEnum]]:
        pools = (0, len(self.pools) - 1)
        return {
            **dict.fromkeys(("pools", "overflow", "decode_pools"), pools),
            **dict.fromkeys(("kind", "decode_kind"), RouterKind),
            "queue": (-1, len(self.queue_llm) - 1),
        }

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
    def longest_tokens(self) -> tuple[int, ...]:
        """Per LLM the most KV tokens, rounding included, that a request may take; -1: no pool serves it."""
        limits = self.context_limits or (0,) * self.n_llms
        longest = []
        for llm, limit in enumerate(limits):
            capacities = [
                int(self.profiles[swap.profile].kv_capacity_tokens)
                for pool in self.pools
                for swap in pool.served
                if swap.llm == llm
            ]
            if limit > 0 and capacities:
                capacities.append(limit + self.half_block_tokens)
            longest.append(min(capacities, default=-1))
        return tuple(longest)

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

    @cached_property
    def digest(self) -> NDArray[np.uint8]:
        """(32,) of all that describes the cluster; a custom router has none."""
        said = json.dumps(
            asdict(replace(self, custom_router=None)), default=lambda array: array.tolist()
        )
        return np.frombuffer(sha256(said.encode()).digest(), np.uint8)

    @cached_property
    def untimed_digest(self) -> NDArray[np.uint8]:
        """(32,) likewise, whatever time iterations, starts and loads of weights take."""
        pools = tuple(
            replace(
                pool,
                acquire_ps=0,
                load_ps=(0, 0, 0),
                wake_ps=min(pool.wake_ps, 0),
                swaps=tuple(replace(swap, fetch_ps=0, swap_ps=0) for swap in pool.swaps),
            )
            for pool in self.pools
        )
        untimed = replace(self, pools=pools, profiles=tuple(p.slower(0.0) for p in self.profiles))
        return untimed.digest

    def with_pool(self, index: int, **changes: object) -> ClusterSpec:
        """A copy in which one pool differs."""
        pools = list(self.pools)
        pools[index] = replace(pools[index], **changes)  # type: ignore[arg-type]
        return replace(self, pools=tuple(pools))
