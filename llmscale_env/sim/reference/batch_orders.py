"""How the reference engine carries out orders: arrays as single ones (`sim.orders.carry_out`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

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
from llmscale_env.sim.spec.regions import PPM
from llmscale_env.workload.requests import PS_PER_S

if TYPE_CHECKING:
    from llmscale_env.sim.reference.batch import ReferenceBatch

_COUNTED = (InstanceState.ACQUIRING, InstanceState.LOADING, InstanceState.ACTIVE)


def single(batch: ReferenceBatch, e: int, order: SingleOrder) -> None:
    """One order for one episode."""
    batch.order(e, METHODS[type(order)], *order)


def pools(batch: ReferenceBatch, orders: PoolOrders) -> NDArray[np.int64]:
    """Targets, batch limits and shares; (E, P) how many instances could not be started.

    Falling targets come first, so that they free GPUs for the rising ones.
    """
    spec = batch.spec
    missing = np.zeros(orders.targets.shape, np.int64)
    for e in range(batch.n_episodes):
        states = np.split(batch.states_of_instances()[e], spec.first_slot[1:])
        have = [int(np.isin(of_pool, _COUNTED).sum()) for of_pool in states]
        targets = orders.targets[e].tolist()
        given = [p for p, target in enumerate(targets) if target >= 0]
        for p in sorted(given, key=lambda p: targets[p] - have[p]):
            source = int(orders.sources[e, p])
            source = spec.pools[p].load_source if source == AS_IS else source
            missing[e, p] = batch.order(e, "set_target", p, targets[p], source)
        for p, limit in enumerate(orders.limits[e].tolist()):
            if limit >= 0:
                batch.order(e, "set_batch_limit", p, limit)
        for m in range(spec.n_llms):
            for c, share in enumerate(orders.shares[e].tolist()):
                if not np.isnan(share):
                    batch.order(e, "set_overflow_share", m, c, share)
    return missing


def queues(batch: ReferenceBatch, orders: QueueOrders) -> None:
    """Who moves, what pools do by themselves, where arrivals join, who pulls what."""
    for e, requests, queues in orders.moves:
        batch.order(e, "regroup", requests.tolist(), queues.tolist())
    for e in range(batch.n_episodes):
        for p, evicts in enumerate(orders.evicts[e].tolist()):
            if evicts >= 0:
                batch.order(e, "set_operations", p, None, bool(evicts), bool(evicts))
        for m, c in np.argwhere(orders.arrivals[e] >= 0).tolist():
            batch.order(e, "set_arrival_queues", m, c, (), (int(orders.arrivals[e, m, c]),))
        for i, count in enumerate(orders.counts[e].tolist()):
            if count >= 0:
                batch.order(e, "set_pull", i, orders.pulls[e, i, :count].tolist())


def places(batch: ReferenceBatch, orders: PlaceOrders) -> None:
    """Rules of routing, then who goes where."""
    spec = batch.spec
    routes = [(m, c) for m in range(spec.n_llms) for c in range(len(spec.classes))]
    for e in range(batch.n_episodes):
        strictness: dict[str, Any] = {
            name: float(values[e])
            for name, values in (("gamma", orders.gamma), ("theta", orders.theta))
            if not np.isnan(values[e])
        }
        for m, c in routes:
            if orders.rules[e] != AS_IS:
                batch.order(e, "set_router", m, c, int(orders.rules[e]))
            now = batch.placement(e, m, c)
            if strictness and now is not None:
                batch.order(e, "set_placement", m, c, replace(now, **strictness))
        for i in range(spec.n_instances if orders.models[e] else 0):
            batch.order(e, "set_placement_model", i, (orders.model_s[i] * PS_PER_S).tolist())
    states = batch.states_of_instances()
    at = np.flatnonzero(orders.requests != AS_IS)
    found = batch.look_up(at, orders.requests[at])
    for e, placeable in zip(at.tolist(), found["placeable"].tolist(), strict=True):
        request, i = int(orders.requests[e]), int(orders.instances[e])
        # Orders given at the same time may have made an instance drain, or routed a request.
        if placeable and states[e, i] == InstanceState.ACTIVE:
            batch.order(e, "assign", [request], [i])
    for e, m in np.argwhere(orders.again).tolist():
        batch.order(e, "route_gateway", m)


def endpoints(batch: ReferenceBatch, orders: EndpointOrders) -> None:
    """Thresholds and orders of regions, rules of scaling, managers."""
    spec = batch.spec
    for e in range(batch.n_episodes):
        for m, row in enumerate(spec.routes):
            for c, route in enumerate(row):
                if not route.preference:
                    continue
                takes, rows = batch.regional(e, m, c)
                heads = orders.first[e].tolist()
                preference = [
                    now if head == AS_IS else headed(default, head)
                    for now, default, head in zip(rows, route.preference, heads, strict=True)
                ]
                threshold = _in_ppm(orders.thresholds[e], takes)
                batch.order(e, "set_regional", m, c, threshold, preference)
    for e, p in np.argwhere(orders.rules != AS_IS).tolist():
        batch.order(e, "set_scaling", p, int(orders.rules[e, p]), int(orders.goals[e, p]))
    for e in range(batch.n_episodes if spec.managers else 0):
        now = batch.manager_ppm(e)
        one, two = (
            _in_ppm(orders.release[e, :, k], now[:, k].tolist()) for k in range(now.shape[1])
        )
        batch.order(e, "set_managers", one, two)


def _in_ppm(shares: NDArray[np.float64], now: Sequence[int]) -> list[int]:
    """Shares in millionths; where none is ordered as it is now."""
    return [
        ppm if np.isnan(share) else round(share * PPM)
        for share, ppm in zip(shares.tolist(), now, strict=True)
    ]
