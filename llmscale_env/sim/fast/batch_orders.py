"""How the fast engine carries out orders: arrays for many episodes at once (`sim.orders.carry_out`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.fast import advance as kernels
from llmscale_env.sim.fast import gateways, virtual_queues
from llmscale_env.sim.orders import (
    AS_IS,
    METHODS,
    EndpointOrders,
    PlaceOrders,
    PoolOrders,
    QueueOrders,
    SingleOrder,
    headed,
)
from llmscale_env.sim.spec import InstanceState
from llmscale_env.workload.requests import PS_PER_S

if TYPE_CHECKING:
    from llmscale_env.sim.fast.engine import EngineBatch


def single(engine: EngineBatch, e: int, order: SingleOrder) -> None:
    """One order for one episode."""
    getattr(engine, METHODS[type(order)])(e, *order)


def pools(engine: EngineBatch, orders: PoolOrders) -> NDArray[np.int64]:
    """Instances, batch limits and shares; (E, P) instances that could not be started."""
    missing = np.zeros(orders.targets.shape, np.int64)
    sources = np.where(orders.sources == AS_IS, engine.load_sources, orders.sources)
    engine.call(kernels.order_many, orders.targets, sources, orders.limits, orders.shares, missing)
    return missing


def queues(engine: EngineBatch, orders: QueueOrders) -> None:
    """Who moves, who pulls what, where arrivals join."""
    for e, requests, queues in orders.moves:
        rows, _ = engine.find(e, np.asarray(requests, np.int64))
        virtual_queues.regroup(int(engine.handles[e]), rows, np.asarray(queues, np.int64))
    virtual_queues.order_many(
        engine.handles, orders.evicts, orders.arrivals, orders.pulls, orders.counts
    )


def places(engine: EngineBatch, orders: PlaceOrders) -> None:
    """Rules of routing, then who goes where."""
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


def endpoints(engine: EngineBatch, orders: EndpointOrders) -> None:
    """Thresholds and orders of regions, rules of scaling, managers."""
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
                    order = headed(default, head)
                    states.prefer[these, m, c, client, : len(order)] = order
    for e, p in np.argwhere(orders.rules != AS_IS).tolist():
        engine.set_scaling(e, p, int(orders.rules[e, p]), int(orders.goals[e, p]))
    n = orders.release.shape[1]
    for k, name in enumerate(("one_ppm", "two_ppm")):
        now = states.manager[name][:, :n]
        wanted = np.round(np.nan_to_num(orders.release[:, :, k]) * 1e6).astype(np.int64)
        states.manager[name][:, :n] = np.where(np.isnan(orders.release[:, :, k]), now, wanted)
