"""What a scenario says of regions, as the engines take it (docs/engine.md, section 17)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.scenarios.fleet import RouteConfig
from llmscale_env.scenarios.pools import PoolConfig
from llmscale_env.scenarios.regions import ScalingConfig, SpotConfig
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.picoseconds import ps
from llmscale_env.sim.spec import LatencySpec, ManagerSpec, ScalingKind, ScalingSpec, SpotSpec
from llmscale_env.sim.spec.kinds import NEVER

PPM = 1_000_000
SCALING_KINDS = {kind.name.lower().replace("_", "-"): kind for kind in ScalingKind}


def ppm(share: float) -> int:
    """A share in parts per million."""
    return round(share * PPM)


def _knots(seconds: NDArray[np.float64]) -> tuple[int, ...]:
    return tuple(ps(s) for s in seconds.tolist())


def spot_groups(scenario: Scenario) -> tuple[int, ...]:
    """Of every pool the number of the group of VMs that it shares, -1: its instances are no spot VMs."""
    numbers: dict[tuple[str, str, int, str], int] = {}
    found = []
    for pool in scenario.fleet.pools:
        if pool.spot is None:
            found.append(-1)
            continue
        key = (scenario.region_of(pool.region), pool.gpu, pool.tp, pool.spot.group)
        found.append(numbers.setdefault(key, len(numbers)))
    return tuple(found)


def pool_regions(scenario: Scenario, pool: PoolConfig) -> dict[str, Any]:
    """Fields of a `PoolSpec` that are about regions."""
    place = scenario.fleet.pools.index(pool)
    return {
        "region": scenario.region_names.index(scenario.region_of(pool.region)),
        "deployment_slots": pool.deployment_instances,
        "priorities": pool.priorities,
        "spot": None if pool.spot is None else _spot(pool.spot, spot_groups(scenario)[place]),
        "scaling": None if pool.scaling is None else _scaling(pool.scaling, pool.max_instances),
    }


def _spot(config: SpotConfig, group: int) -> SpotSpec:
    return SpotSpec(
        group=group,
        initial=config.initial,
        reclaim_knots_ps=_knots(config.reclaim_quantiles_s()),
        donate_ps=ps(config.donate_s),
        redeploy_ps=ps(config.redeploy_s),
        redeploy_remote_ps=ps(config.redeploy_remote_s),
        local=config.weights_in_region,
    )


def _scaling(config: ScalingConfig, slots: int) -> ScalingSpec:
    return ScalingSpec(
        kind=SCALING_KINDS[config.kind],
        high_ppm=ppm(config.high),
        low_ppm=ppm(config.low),
        cooldown_ps=ps(config.cooldown_s),
        least=config.least,
        most=slots if config.most is None else config.most,
        period_ps=ps(config.period_s),
        last_ps=ps(config.last_s),
        above_ppm=ppm(config.above),
        below_ppm=ppm(config.below),
        either_way=config.either_way,
        bin_ps=ps(config.bin_s),
        bins=config.bins,
    )


def route_regions(
    scenario: Scenario, route: RouteConfig, own: tuple[int, ...], queues: set[str]
) -> dict[str, Any]:
    """Fields of a `RouteSpec` that are about regions, and its queue.

    Args:
        scenario, route: what is compiled.
        own: the route's pools of this LLM.
        queues: shared queues that may hold this LLM's requests.
    """
    number = {queue.name: q for q, queue in enumerate(scenario.fleet.queues)}
    names = scenario.region_names
    fields: dict[str, Any] = {"queue": number[route.queue] if route.queue in queues else -1}
    if route.region_queues and set(route.region_queues.values()) <= queues:
        fields["region_queues"] = tuple(number[route.region_queues[name]] for name in names)
        fields["queue"] = fields["region_queues"][0]
    if route.kind == "regional" and own:
        pools = [scenario.fleet.pools[p] for p in own]
        there = {names.index(scenario.region_of(pool.region)) for pool in pools}
        orders = [[names.index(n) for n in scenario.preference_of(route, name)] for name in names]
        # A route for any LLM may have pools of another one in further regions.
        fields["preference"] = tuple(tuple(j for j in order if j in there) for order in orders)
        fields["threshold_ppm"] = ppm(route.threshold)
    return fields


def managed(scenario: Scenario) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Every queue manager: (queue, region of the pools, pools that take from it).

    Route by route (by LLM, then class), region by region; routes to the same pools share one.
    """
    if scenario.fleet.queue_manager is None:
        return ()
    homes = {pool.name: scenario.region_of(pool.region) for pool in scenario.fleet.pools}
    llms = {pool.name: pool.llm for pool in scenario.fleet.pools}
    found: list[tuple[str, str, tuple[str, ...]]] = []
    for llm in scenario.fleet.llms:
        for slo_class in scenario.classes:
            route = scenario.route_of(llm, slo_class.name)
            if route.kind != "shared-queue" or not route.queues:
                continue
            for region in scenario.region_names:
                there = [name for name in route.pools if homes[name] == region]
                mine = tuple(name for name in there if llms[name] == llm)
                queue = route.region_queues.get(region, route.queue)
                if mine and queue and (queue, region, mine) not in found:
                    found.append((queue, region, mine))
    return tuple(found)


def promote_ps(scenario: Scenario, slo_class: str) -> int:
    """Age from which requests of a class have priority 0 in an own queue."""
    manager = scenario.fleet.queue_manager
    after_s = None if manager is None else manager.promote_class_after_s(slo_class)
    return int(NEVER) if after_s is None else ps(after_s)


def cluster_regions(scenario: Scenario) -> dict[str, Any]:
    """Fields of a `ClusterSpec` that are about regions."""
    names, latency, manager = (
        scenario.region_names,
        scenario.latency,
        scenario.fleet.queue_manager,
    )
    fields: dict[str, Any] = {
        "n_regions": len(names),
        "waiting_counts": scenario.fleet.utilisation == "demanded",
    }
    if latency is not None:
        fields["latency"] = LatencySpec(
            tuple(tuple(_knots(latency.quantiles(a, b)) for b in names) for a in names)
        )
    if manager is None:
        return fields
    pools = [pool.name for pool in scenario.fleet.pools]
    queues = [queue.name for queue in scenario.fleet.queues]
    fields["manager_period_ps"] = ps(manager.period_s)
    fields["managers"] = tuple(
        ManagerSpec(
            queue=queues.index(queue),
            pools=tuple(pools.index(name) for name in mine),
            one_ppm=ppm(manager.one),
            two_ppm=ppm(manager.two),
        )
        for queue, _, mine in managed(scenario)
    )
    return fields
