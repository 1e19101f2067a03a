"""From a scenario to what the engines run: names become indices, seconds picoseconds."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from llmscale_env.cluster.cards import llm_card
from llmscale_env.cluster.iteration_model import IterationTables, IterationTimeModel
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.cluster.loading import load_times_s, read_times_s, start_phases_s
from llmscale_env.cluster.multicast_time import planned_load_s
from llmscale_env.cluster.optimisations import (
    AverageHits,
    SpeculativeConfig,
    optimised_tables,
)
from llmscale_env.cluster.topology import (
    PoolLayout,
    Topology,
    first_gpus,
    link_tables,
    topology,
)
from llmscale_env.scenarios.fleet import FleetConfig, PlacementConfig, RouteConfig
from llmscale_env.scenarios.pools import PoolConfig
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile_regions import (
    cluster_regions,
    pool_regions,
    promote_ps,
    route_regions,
)
from llmscale_env.sim.linear import linear_times
from llmscale_env.sim.picoseconds import ps as ps
from llmscale_env.sim.spec import (
    NEVER,
    ClassSpec,
    ClusterSpec,
    ControllerKind,
    Fallback,
    LiveMode,
    LoadSource,
    NetworkSpec,
    PlacementSpec,
    PoolPhase,
    PoolSpec,
    PreemptionMode,
    ProfileSpec,
    PullRule,
    RouterKind,
    RouteSpec,
    SwapSpec,
    V1Spec,
)
from llmscale_env.sim.spec.kinds import MODEL_NAMES
from llmscale_env.workload.config import SLOClass
from llmscale_env.workload.requests import PS_PER_S

CONTROLLERS = {
    "fixed": ControllerKind.FIXED,
    "chiron": ControllerKind.CHIRON,
    "chiron-literal": ControllerKind.CHIRON_LITERAL,
}
SOURCES = {source.name.lower(): source for source in LoadSource}


def pool_load_times_s(scenario: Scenario, pool: PoolConfig) -> dict[str, float]:
    """Seconds to load one instance of a pool, by source; a draft is loaded after its target.

    "ssd" is what the engines have for all that is always there: of a pool that downloads, the store.
    "download" and "sleep" are there with `start`, or if `load_s` has them. Multicast: from an instance on
    another machine, by the scale planner, with nobody else on the links.
    """
    if pool.start is None:
        times = _load_times_s(scenario, pool, pool.llm)
        if pool.speculative is not None:
            drafts = _load_times_s(scenario, pool, pool.speculative.draft_llm)
            for source, seconds in drafts.items():
                times[source] += seconds - scenario.network.startup_s
    else:
        phases = pool_start_phases_s(scenario, pool)
        times = {source: sum(seconds.values()) for source, seconds in phases.items()}
    for named, own in (pool.load_s or {}).items():
        times[named] = own
    if pool.load_source == "download":
        times["ssd"] = times["download"]
    return times


def pool_start_phases_s(scenario: Scenario, pool: PoolConfig) -> dict[str, dict[str, float]]:
    """Seconds by source and phase (`cluster.loading`), of a pool with `start`; a draft is read as well."""
    network, start = scenario.network, pool.start
    phases = start_phases_s(pool.llm, pool.gpu, pool.tp, start, network)
    phases["multicast"]["read"] = _planned_s(scenario, pool, pool.llm)
    if pool.speculative is not None:
        draft = pool.speculative.draft_llm
        for source, seconds in read_times_s(draft, pool.gpu, pool.tp, start, network).items():
            planned = source == "multicast"
            phases[source]["read"] += _planned_s(scenario, pool, draft) if planned else seconds
    return phases


def _load_times_s(scenario: Scenario, pool: PoolConfig, llm: str) -> dict[str, float]:
    network = scenario.network
    times = load_times_s(llm, pool.gpu, pool.tp, network)
    return {**times, "multicast": network.startup_s + _planned_s(scenario, pool, llm)}


def _planned_s(scenario: Scenario, pool: PoolConfig, llm: str) -> float:
    card = llm_card(llm)
    return planned_load_s(
        scenario.network, scenario.fleet.gpus_per_host, pool.tp, card.weight_bytes, card.layers
    )


def compile_cluster(
    scenario: Scenario, custom_router: object | None = None, *, as_calibrated: bool = False
) -> ClusterSpec:
    """The cluster of a scenario as the engines take it.

    Args:
        scenario: validated.
        custom_router: from `llmscale_env.sim.custom_router.router`, for routes of kind "custom".
        as_calibrated: as everybody takes it to be, with the same numbers of profiles; it differs in times.

    Raises:
        ValueError: an LLM and GPU for which there are no iteration times, or a custom route without a router.
    """
    fleet = scenario.fleet
    llms = fleet.llms
    always = fleet.host_cache == "always"
    profiles: list[ProfileSpec] = []
    known: dict[object, int] = {}
    pools = []
    queue_names = [queue.name for queue in fleet.queues]
    pool_names = [pool.name for pool in fleet.pools]

    def profile_of(pool: PoolConfig) -> int:
        optimised = pool.average_hits is not None or pool.speculative is not None
        key = (
            (pool.llm, pool.gpu, pool.tp, pool.max_batch, pool.average_hits, pool.speculative),
            pool.chunk_tokens if optimised else 0,
            pool.v1 is not None,
        )
        if key not in known:
            known[key] = len(profiles)
            profiles.append(_profile(scenario, pool))
        return known[key]

    def drifted(number: int, factor: float, is_error: bool = False) -> int:
        key = ("drift", number, factor, is_error)
        if key not in known:
            known[key] = len(profiles)
            profiles.append(profiles[number].slower(1.0 if is_error and as_calibrated else factor))
        return known[key]

    def as_run(pool: PoolConfig) -> int:
        """The profile that instances run by: the calibrated one, or what it is really like."""
        number, factor = profile_of(pool), pool.time_factor
        return number if factor == 1.0 else drifted(number, factor, is_error=True)

    for pool in fleet.pools:
        number = as_run(pool)
        profile = profiles[number]
        slowness = 1.0 if as_calibrated else pool.load_time_factor
        acquire_s = pool.acquire_s * (1.0 if as_calibrated else pool.acquire_time_factor)
        load = {
            source: seconds * slowness
            for source, seconds in pool_load_times_s(scenario, pool).items()
        }
        pools.append(
            PoolSpec(
                llm=llms.index(pool.llm),
                profile=number,
                n_slots=pool.max_instances,
                gpus=pool.tp,
                initial_active=pool.initial_instances,
                batch_limit=pool.batch_limit,
                controller=CONTROLLERS[pool.controller],
                controller_alpha=pool.controller_alpha,
                controller_min_batch=pool.controller_min_batch,
                controller_max_batch=pool.max_batch,
                controller_window_iterations=pool.controller_window_iterations,
                controller_settles=pool.controller_settles,
                controller_reverts=pool.controller_reverts,
                pull=tuple(queue_names.index(name) for name in pool.pull),
                chunk_tokens=pool.chunk_tokens,
                prefill_tokens=pool.prefill_tokens,
                preemption=PreemptionMode[pool.preemption.upper()],
                evicts=pool.evicts,
                acquire_ps=ps(acquire_s + before_flow_s(scenario, pool)),
                load_ps=(ps(load["ssd"]), ps(load["host"]), ps(load["multicast"])),
                wake_ps=ps(load["sleep"]) if pool.load_source == "sleep" else -1,
                load_source=SOURCES[pool.engine_source],
                host_kv_bytes=int(pool.host_kv_bytes),
                watermark_tokens=int(pool.watermark * profile.kv_capacity_tokens),
                pull_rule=PullRule[pool.pull_rule.replace("-", "_").upper()],
                evicts_in_order=pool.evicts_in_order,
                static_batch=pool.static_batch,
                async_kv=pool.async_kv,
                swaps=tuple(
                    _swap(scenario, serving(pool, llm), llms, as_run(serving(pool, llm)), slowness)
                    for llm in pool.llms
                    if pool.swaps_to
                ),
                swap_flushes=pool.swap_flushes,
                host_weight_bytes=int(pool.host_weight_bytes),
                warm=tuple(llms.index(llm) for llm in pool.warm),
                repair_ps=ps(pool.repair_s),
                phase=PoolPhase[pool.phase.upper()],
                drifts=tuple(drifted(number, factor) for factor in pool.drifts),
                weight_bytes=llm_card(pool.llm).weight_bytes if pool.flows else 0,
                layers=llm_card(pool.llm).layers if pool.flows else 1,
                live_mode=LiveMode[pool.live.replace("-", "_").upper()],
                twin_of=-1 if pool.twin_of is None else pool_names.index(pool.twin_of),
                v1=_v1(scenario, pool),
                **pool_regions(scenario, pool),
            )
        )
    # Best fit reckons with the calibrated times.
    believed = [profile_of(pool) for pool in fleet.pools]
    routes = tuple(
        tuple(
            _route(scenario.route_of(llm, c.name), c, llm, scenario, believed, profiles)
            for c in scenario.classes
        )
        for llm in llms
    )
    used = {RouterKind(k) for row in routes for r in row for k in (r.kind, r.decode_kind)}
    if RouterKind.CUSTOM in used and custom_router is None:
        raise ValueError(
            "fleet.routes: kind custom needs a router; make one with llmscale_env.sim.custom_router.router "
            "and pass it as custom_router"
        )
    return ClusterSpec(
        profiles=tuple(profiles),
        pools=tuple(pools),
        routes=routes,
        classes=tuple(
            ClassSpec(
                c.priority,
                ps(c.itl_s),
                ps(c.ttft_s),
                scenario.itl_statistic == "max",
                promote_ps(scenario, c.name),
            )
            for c in scenario.classes
        ),
        queue_llm=(
            *(-1 if queue.llm is None else llms.index(queue.llm) for queue in fleet.queues),
            *(-1 for _ in range(fleet.group_queues)),
        ),
        max_gpus=fleet.max_gpus,
        gpus_per_host=fleet.gpus_per_host,
        host_keep_alive_ps=int(NEVER) if always else ps(fleet.host_keep_alive_s),
        half_block_tokens=fleet.block_tokens // 2,
        custom_router=custom_router,
        network=_links(scenario)
        if any(pool.flows or pool.phase != "both" for pool in fleet.pools)
        else None,
        homes=homes(fleet),
        context_limits=tuple(llm_card(llm).context_limit for llm in llms)
        if fleet.context_limits == "reject"
        else (),
        host_cache_at_start=always,
        **cluster_regions(scenario),
    )


def before_flow_s(scenario: Scenario, pool: PoolConfig) -> float:
    """From the end of `acquire_s` to the first byte of weights that flow; 0 where loading takes a time.

    With `start` all of it that is not bytes: what comes after them in a real start comes before them here.
    """
    if not pool.flows:
        return 0.0
    before = scenario.network.startup_s
    if pool.start is not None:
        before = sum(
            pool.start.fixed_s(llm_card(pool.llm).layers, pool.start.compile_cache).values()
        )
    return before + scenario.network.communicator_s


def homes(fleet: FleetConfig) -> tuple[int, ...]:
    """Per LLM the host that keeps a copy of its weights: LLM by LLM on the next one; empty: none does."""
    if fleet.host_copies == "none":
        return ()
    places = first_gpus(pool_layout(fleet))
    n_hosts = 1 + max(gpu for row in places for gpu in row) // fleet.gpus_per_host
    kept = [llm for llm in fleet.llms if any(p.flows and p.llm == llm for p in fleet.pools)]
    return tuple(kept.index(llm) % n_hosts if llm in kept else -1 for llm in fleet.llms)


def serving(pool: PoolConfig, llm: str) -> PoolConfig:
    """The pool as one whose instances serve one of its LLMs and no other."""
    return pool.model_copy(update={"llm": llm, "swaps_to": ()})


def swap_times_s(scenario: Scenario, pool: PoolConfig, llm: str) -> tuple[float, float]:
    """Seconds from storage to host memory, and from there until an instance of the pool serves `llm`.

    Both from weight size and link speeds (`NetworkConfig`); the second with the start-up of the engine.
    """
    if pool.start is not None:
        storage = "download" if pool.load_source == "download" else "ssd"
        phases = start_phases_s(llm, pool.gpu, pool.tp, pool.start, scenario.network)
        return phases[storage]["read"], sum(phases["host"].values())
    times = load_times_s(llm, pool.gpu, pool.tp, scenario.network)
    return times["ssd"] - scenario.network.startup_s, times["host"]


def _swap(
    scenario: Scenario, pool: PoolConfig, llms: tuple[str, ...], profile: int, slowness: float
) -> SwapSpec:
    fetch_s, swap_s = swap_times_s(scenario, pool, pool.llm)
    capacity = pool_tables(scenario, pool).kv_capacity_tokens
    return SwapSpec(
        llm=llms.index(pool.llm),
        profile=profile,
        weight_bytes=llm_card(pool.llm).weight_bytes,
        fetch_ps=ps(fetch_s * slowness),
        swap_ps=ps(swap_s * slowness),
        watermark_tokens=int(pool.watermark * capacity),
    )


def pool_tables(scenario: Scenario, pool: PoolConfig) -> IterationTables:
    """The tables that a pool's instances run from, its optimisations included (not to be changed)."""
    tables = _tables(
        (pool.llm, pool.gpu, pool.tp, pool.max_batch, pool.chunk_tokens),
        pool.average_hits,
        pool.speculative,
        scenario.memory_fraction,
        scenario.iteration_times,
    )
    if pool.v1 is None:
        return tables
    size = scenario.fleet.block_tokens
    return replace(tables, kv_capacity_tokens=tables.kv_capacity_tokens // size * size)


def _v1(scenario: Scenario, pool: PoolConfig) -> V1Spec | None:
    if pool.v1 is None:
        return None
    return V1Spec(
        block_tokens=scenario.fleet.block_tokens,
        reserve_full=pool.v1.reserve_full,
        asynchronous=pool.v1.asynchronous,
        prefix_cache=pool.v1.prefix_cache,
        host_base_ps=ps(pool.v1.host_s),
        host_per_request_ps=ps(pool.v1.host_per_request_s),
    )


@lru_cache(maxsize=16)
def _tables(
    pool: tuple[str, str, int, int, int],
    average_hits: AverageHits | None,
    speculative: SpeculativeConfig | None,
    memory_fraction: float,
    data: str | None,
) -> IterationTables:
    """Kept, since policies ask at every decision; a scenario itself need not be hashable."""
    llm, gpu, tp, max_batch, chunk_tokens = pool
    return optimised_tables(
        iteration_time_model(llm, gpu, tp, data=data),
        max_batch=max_batch,
        memory_fraction=memory_fraction,
        average_hits=average_hits,
        speculative=speculative,
        chunk_tokens=chunk_tokens,
        data=data,
    )


def pool_times(scenario: Scenario, pool: PoolConfig) -> IterationTimeModel | IterationTables:
    """Where to ask a pool for its `decode_s` and `prefill_s`: its tables, if it is optimised."""
    if pool.average_hits is not None or pool.speculative is not None:
        return pool_tables(scenario, pool)
    return iteration_time_model(pool.llm, pool.gpu, pool.tp, data=scenario.iteration_times)


def _profile(scenario: Scenario, pool: PoolConfig) -> ProfileSpec:
    kv_bytes = llm_card(pool.llm).kv_bytes_per_token
    if pool.speculative is not None:
        kv_bytes += llm_card(pool.speculative.draft_llm).kv_bytes_per_token
    return ProfileSpec(**vars(pool_tables(scenario, pool)), kv_bytes_per_token=kv_bytes)


def _route(
    route: RouteConfig,
    slo_class: SLOClass,
    llm: str,
    scenario: Scenario,
    believed: list[int],
    profiles: list[ProfileSpec],
) -> RouteSpec:
    limits = [pool.batch_limit for pool in scenario.fleet.pools]
    mine = {pool.name: p for p, pool in enumerate(scenario.fleet.pools) if pool.llm == llm}
    queues = {queue.name for queue in scenario.fleet.queues if queue.llm in (None, llm)}
    own = tuple(mine[name] for name in route.pools if name in mine)
    decode = tuple(mine[name] for name in route.decode_pools if name in mine)
    placement = None
    if own and (route.placement is not None or "best-fit" in (route.kind, route.decode_kind)):
        config = route.placement or PlacementConfig()
        times = [
            linear_times(profiles[believed[p]], limits[p]) for p in (own[0], (decode or own)[0])
        ]
        placement = placement_spec(config, slo_class, (*times[0][:2], *times[1][2:]))
    kind, decode_kind = (
        RouterKind[name.replace("-", "_").upper()] for name in (route.kind, route.decode_kind)
    )
    return RouteSpec(
        # Without pools of this LLM there is nobody to place on: they wait, as with any other rule.
        kind=RouterKind.HOLD if kind == RouterKind.BEST_FIT and placement is None else kind,
        pools=own,
        overflow=tuple(mine[name] for name in route.overflow if name in mine),
        overflow_share=route.overflow_share,
        decode_pools=decode,
        decode_kind=RouterKind.JSQ_REQUESTS
        if decode_kind == RouterKind.BEST_FIT and placement is None
        else decode_kind,
        placement=placement,
        prefill_load_scale=route.prefill_load_scale,
        overlap_score_credit=route.overlap_score_credit,
        **route_regions(scenario, route, own, queues),
    )


def placement_spec(
    config: PlacementConfig, slo_class: SLOClass, times_ps: tuple[float, ...]
) -> PlacementSpec:
    """A placement in picoseconds.

    Args:
        config: what is given.
        slo_class: whose targets count where none are.
        times_ps: coefficients (c1, k1, c3, c2, k2) where none are given.
    """
    given = (getattr(config, name.removesuffix("ps") + "s") for name in MODEL_NAMES)
    c1, k1, c3, c2, k2 = (
        default if seconds is None else seconds * PS_PER_S
        for seconds, default in zip(given, times_ps, strict=True)
    )
    return PlacementSpec(
        prefill_const_ps=c1,
        prefill_per_token_ps=k1,
        decode_const_ps=c3,
        decode_per_request_ps=c2,
        decode_per_token_ps=k2,
        ttft_ps=ps(config.ttft_s or min(slo_class.ttft_s, 1000.0)),
        itl_ps=ps(config.itl_s or min(slo_class.itl_s, 1000.0)),
        gamma=config.gamma,
        theta=config.theta,
        fallback=Fallback[config.fallback.upper()],
        scaled_norm=config.scaled_norm,
        saved_over_tokens=config.saved_over_tokens,
    )


def pool_layout(fleet: FleetConfig) -> tuple[PoolLayout, ...]:
    """How the instances of a fleet lie on hosts."""
    names = [pool.name for pool in fleet.pools]
    return tuple(
        PoolLayout(
            pool.tp,
            pool.max_instances,
            -1 if pool.twin_of is None else names.index(pool.twin_of),
        )
        for pool in fleet.pools
    )


def cluster_topology(scenario: Scenario) -> Topology:
    """Links and paths of a scenario's cluster, for plans of who loads from whom."""
    fleet = scenario.fleet
    return topology(scenario.network, fleet.gpus_per_host, pool_layout(fleet))


def _links(scenario: Scenario) -> NetworkSpec:
    """Links that KV caches cross, from `NetworkConfig`; where weights flow, theirs too."""
    fleet = scenario.fleet
    flows = any(pool.flows for pool in fleet.pools)
    tables = link_tables(scenario.network, fleet.gpus_per_host, pool_layout(fleet), loading=flows)
    named = tables._asdict()
    capacity, _ = np.array(named.pop("capacity")), named.pop("hosts")
    return NetworkSpec(capacity, **named)
