"""Orders of many episodes as the `Command` of one: what an environment's action means to the run loop."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.command import RULES, Command
from llmscale_env.control.regions import RegionPlaces, ScalingOrder
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import SOURCES
from llmscale_env.sim.compile_regions import SCALING_KINDS
from llmscale_env.sim.orders import (
    AS_IS,
    EndpointOrders,
    Loads,
    Mutate,
    Orders,
    PlaceOrders,
    PoolOrders,
    QueueOrders,
)


def as_command(orders: Orders, e: int, scenario: Scenario) -> Command:
    """The orders of episode `e` as a `Command`."""
    singles = [order for of, order in (*orders.first, *orders.last) if of == e]
    return Command(
        mutate=tuple(order.instance for order in singles if isinstance(order, Mutate)),
        scale=next((order for order in singles if isinstance(order, Loads)), None),
        **({} if orders.pools is None else _of_pools(orders.pools, e, scenario)),
        **({} if orders.queues is None else _of_queues(orders.queues, e, scenario)),
        **({} if orders.places is None else _of_places(orders.places, e, scenario)),
        **({} if orders.endpoints is None else _of_endpoints(orders.endpoints, e, scenario)),
    )


def _of_pools(orders: PoolOrders, e: int, scenario: Scenario) -> dict[str, Any]:
    pools = [pool.name for pool in scenario.fleet.pools]
    classes = [c.name for c in scenario.classes]
    names = {int(v): k for k, v in SOURCES.items()}

    def given(values: NDArray[np.int64]) -> dict[str, int]:
        return {n: v for n, v in zip(pools, values[e].tolist(), strict=True) if v != AS_IS}

    return {
        "targets": given(orders.targets),
        "load_source": {n: names[v] for n, v in given(orders.sources).items()} or None,
        "batch_limits": given(orders.limits),
        "overflow_share": {
            c: v for c, v in zip(classes, orders.shares[e].tolist(), strict=True) if not np.isnan(v)
        },
    }


def _of_queues(orders: QueueOrders, e: int, scenario: Scenario) -> dict[str, Any]:
    pools, llms = scenario.fleet.pools, scenario.fleet.llms
    moved = [(r, q) for number, r, q in orders.moves if number == e]
    return {
        "pull": {
            i: tuple(orders.pulls[e, i, :n].tolist())
            for i, n in enumerate(orders.counts[e].tolist())
            if n != AS_IS
        },
        "arrival_queues": {
            (llms[m], scenario.classes[c].name): ((), (int(orders.arrivals[e, m, c]),))
            for m, c in np.argwhere(orders.arrivals[e] != AS_IS)
        },
        "operations": {
            pools[p].name: {"evicts_in_order": bool(flag), "swap_flushes": bool(flag)}
            for p, flag in enumerate(orders.evicts[e].tolist())
            if flag != AS_IS
        },
        "regroup": (
            np.concatenate([r for r, _ in moved]),
            np.concatenate([q for _, q in moved]),
        )
        if moved
        else None,
    }


def _of_places(orders: PlaceOrders, e: int, scenario: Scenario) -> dict[str, Any]:
    names = {int(kind): name for name, kind in RULES.items()}
    classes = [c.name for c in scenario.classes]
    strict = {
        name: float(values[e])
        for name, values in (("gamma", orders.gamma), ("theta", orders.theta))
        if not np.isnan(values[e])
    }
    rule, request = int(orders.rules[e]), int(orders.requests[e])
    models = orders.model_s if orders.models[e] else orders.model_s[:0]
    return {
        "routers": {} if rule == AS_IS else dict.fromkeys(classes, names[rule]),
        "placement": dict.fromkeys(classes, strict) if strict else {},
        "placement_models": {i: tuple(times.tolist()) for i, times in enumerate(models)},
        "assign": None if request == AS_IS else ([request], [int(orders.instances[e])]),
        "route_gateway": tuple(
            llm for llm, again in zip(scenario.fleet.llms, orders.again[e], strict=True) if again
        ),
    }


def _of_endpoints(orders: EndpointOrders, e: int, scenario: Scenario) -> dict[str, Any]:
    places = RegionPlaces(scenario)
    names = {int(kind): name for name, kind in SCALING_KINDS.items()}
    classes = [
        c.name
        for c in scenario.classes
        if any(scenario.route_of(llm, c.name).kind == "regional" for llm in places.llms)
    ]
    taken = {
        places.regions[j]: float(x) for j, x in enumerate(orders.thresholds[e]) if not np.isnan(x)
    }
    headed = {c: _preference(orders.first[e], scenario, c) for c in classes}
    return {
        "scaling": {
            scenario.fleet.pools[p].name: ScalingOrder(
                names[kind], None if orders.goals[e, p] < 0 else int(orders.goals[e, p])
            )
            for p, kind in enumerate(orders.rules[e].tolist())
            if kind != AS_IS
        },
        "regional_threshold": {(c, j): x for c in classes for j, x in taken.items()},
        "regional_preference": {c: order for c, order in headed.items() if order},
        "background": {
            (queue, region): (float(one), float(two))
            for (queue, region, _), (one, two) in zip(
                places.managers, orders.release[e], strict=True
            )
            if not np.isnan(one)
        },
    }


def _preference(
    first: NDArray[np.int64], scenario: Scenario, slo_class: str
) -> dict[str, tuple[str, ...]]:
    """By region of the client all regions in order; routes leave out those where they have no pool."""
    regions = list(scenario.region_names)
    route = next(
        r
        for r in (scenario.route_of(llm, slo_class) for llm in scenario.fleet.llms)
        if r.kind == "regional"
    )
    found = {}
    for client, head in zip(regions, first.tolist(), strict=True):
        if head != AS_IS:
            order = [regions.index(name) for name in scenario.preference_of(route, client)]
            order = [head, *(j for j in order if j != head)]
            found[client] = tuple(regions[j] for j in order)
    return found
