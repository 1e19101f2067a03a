"""How the fast engine carries out orders for many episodes at once (`sim.orders`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.fast import advance as kernels
from llmscale_env.sim.fast import gateways, virtual_queues
from llmscale_env.sim.orders import AS_IS, EndpointOrders, Orders, PlaceOrders, QueueOrders
from llmscale_env.sim.spec import InstanceState
from llmscale_env.workload.requests import PS_PER_S

if TYPE_CHECKING:
    from llmscale_env.sim.fast.engine import EngineBatch


def apply(engine: EngineBatch, orders: Orders) -> NDArray[np.int64]:
    """See `EngineBatch.apply`."""
    engine.checks.check(engine, orders)
    scaling = orders.scaling
    for e, instances in scaling.mutate if scaling is not None else ():
        for instance in instances:  # first: who becomes another is no longer counted by a target
            engine.mutate(e, instance)
    missing = np.zeros(engine.n_episodes, np.int64)
    sources = np.where(orders.sources == AS_IS, engine.load_sources, orders.sources)
    engine.call(kernels.order_many, orders.targets, sources, orders.limits, orders.shares, missing)
    for e, loads in scaling.loads if scaling is not None else ():
        try:
            engine.scale(e, loads.slots, loads.sources, loads.partners or None)
        except ValueError:  # a lower target may have stopped a source
            missing[e] += len(loads)
    if orders.queues is not None:
        _order_queues(engine, orders.queues)
    if orders.places is not None:
        _order_places(engine, orders.places)
    if orders.endpoints is not None:
        _order_endpoints(engine, orders.endpoints)
    return missing


def _order_queues(engine: EngineBatch, orders: QueueOrders) -> None:
    for e, requests, queues in orders.moves:
        rows, _ = engine.find(e, np.asarray(requests, np.int64))
        virtual_queues.regroup(int(engine.handles[e]), rows, np.asarray(queues, np.int64))
    virtual_queues.order_many(
        engine.handles, orders.evicts, orders.arrivals, orders.pulls, orders.counts
    )


def _order_places(engine: EngineBatch, orders: PlaceOrders) -> None:
    route = engine.states.route
    for name, values, given in (
        ("kind", orders.rules, orders.rules != AS_IS),
        ("gamma", orders.gamma, ~np.isnan(orders.gamma)),
        ("theta", orders.theta, ~np.isnan(orders.theta)),
    ):
        if given.any():
            route[name][given] = values[given, None, None]
    if orders.models.any():
        fit = engine.states.fit
        fit["has_model"][orders.models] = 1
        for k, name in enumerate(("c1", "k1", "c3", "c2", "k2")):
            fit[name][orders.models] = orders.model_s[:, k] * PS_PER_S
    at = np.flatnonzero(orders.requests != AS_IS)
    if len(at) > 0:
        rows, found = engine.find(at, orders.requests[at])
        to = orders.instances[at]
        # Orders given at the same time may have made an instance drain, or routed a request.
        goes = found["placeable"] & (engine.states.inst["state"][at, to] == InstanceState.ACTIVE)
        gateways.assign_many(engine.handles[at][goes], rows[goes], to[goes])
    for e, m in np.argwhere(orders.again).tolist():
        engine.route_gateway(e, m)


def _order_endpoints(engine: EngineBatch, orders: EndpointOrders) -> None:
    states, spec = engine.states, engine.spec
    for m, row in enumerate(spec.routes):
        for c, route in enumerate(row):
            if not route.preference:
                continue
            now = states.takes[:, m, c]
            # As the engine's own command rounds it.
            wanted = np.round(np.nan_to_num(orders.thresholds) * 1e6).astype(np.int64)
            states.takes[:, m, c] = np.where(np.isnan(orders.thresholds), now, wanted)
            for client, default in enumerate(route.preference):
                for head in range(spec.n_regions):
                    these = orders.first[:, client] == head
                    order = _headed(default, head)
                    states.prefer[these, m, c, client, : len(order)] = order
    for e, p in np.argwhere(orders.rules != AS_IS).tolist():
        engine.set_scaling(e, p, int(orders.rules[e, p]), int(orders.goals[e, p]))
    n = orders.release.shape[1]
    for k, name in enumerate(("one_ppm", "two_ppm")):
        now = states.manager[name][:, :n]
        wanted = np.round(np.nan_to_num(orders.release[:, :, k]) * 1e6).astype(np.int64)
        states.manager[name][:, :n] = np.where(np.isnan(orders.release[:, :, k]), now, wanted)


def _headed(order: Sequence[int], head: int) -> tuple[int, ...]:
    """`order` with one of them first, if it is there."""
    if head not in order:
        return tuple(order)
    return (head, *(j for j in order if j != head))
