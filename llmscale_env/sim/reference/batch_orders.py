"""How the reference engine carries out orders for many episodes: one by one (`sim.orders`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.orders import AS_IS, EndpointOrders, Orders, PlaceOrders, QueueOrders
from llmscale_env.sim.spec import InstanceState
from llmscale_env.sim.spec.regions import PPM
from llmscale_env.workload.requests import PS_PER_S

if TYPE_CHECKING:
    from llmscale_env.sim.reference.batch import ReferenceBatch

_COUNTED = (InstanceState.ACQUIRING, InstanceState.LOADING, InstanceState.ACTIVE)


def apply(batch: ReferenceBatch, orders: Orders) -> NDArray[np.int64]:
    """See `ReferenceBatch.apply`."""
    batch.checks.check(batch, orders)
    scaling = orders.scaling
    for e, instances in scaling.mutate if scaling is not None else ():
        for instance in instances:  # first: who becomes another is no longer counted by a target
            batch.mutate(e, instance)
    missing = np.array(
        [_order_interval(batch, e, orders) for e in range(batch.n_episodes)], np.int64
    )
    for e, loads in scaling.loads if scaling is not None else ():
        try:
            batch.scale(e, loads.slots, loads.sources, loads.partners or None)
        except ValueError:  # a lower target may have stopped a source
            missing[e] += len(loads)
    if orders.queues is not None:
        _order_queues(batch, orders.queues)
    if orders.places is not None:
        _order_places(batch, orders.places)
    if orders.endpoints is not None:
        _order_endpoints(batch, orders.endpoints)
    return missing


def _order_interval(batch: ReferenceBatch, e: int, orders: Orders) -> int:
    """Targets, batch limits and shares; how many instances could not be started.

    Falling targets come first, so that they free GPUs for the rising ones.
    """
    pools = range(len(batch.spec.pools))
    states = np.split(batch.states_of_instances()[e], batch.spec.first_slot[1:])
    have = [int(np.isin(of_pool, _COUNTED).sum()) for of_pool in states]
    targets = orders.targets[e].tolist()
    missing = 0
    for p in sorted((p for p in pools if targets[p] >= 0), key=lambda p: targets[p] - have[p]):
        source = int(orders.sources[e, p])
        missing += batch.set_target(e, p, targets[p], None if source < 0 else source)
    for p in pools:
        if orders.limits[e, p] >= 0:
            batch.set_batch_limit(e, p, int(orders.limits[e, p]))
    for m in range(batch.spec.n_llms):
        for c, share in enumerate(orders.shares[e].tolist()):
            if not np.isnan(share):
                batch.set_overflow_share(e, m, c, share)
    return missing


def _order_queues(batch: ReferenceBatch, orders: QueueOrders) -> None:
    for e, requests, queues in orders.moves:
        batch.regroup(e, requests.tolist(), queues.tolist())
    for e in range(batch.n_episodes):
        for p, evicts in enumerate(orders.evicts[e].tolist()):
            if evicts >= 0:
                batch.set_operations(e, p, evicts_in_order=bool(evicts), swap_flushes=bool(evicts))
        for m, c in np.argwhere(orders.arrivals[e] >= 0).tolist():
            batch.set_arrival_queues(e, m, c, (), (int(orders.arrivals[e, m, c]),))
        for i, count in enumerate(orders.counts[e].tolist()):
            if count >= 0:
                batch.set_pull(e, i, orders.pulls[e, i, :count].tolist())


def _order_places(batch: ReferenceBatch, orders: PlaceOrders) -> None:
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
                batch.set_router(e, m, c, int(orders.rules[e]))
            now = batch.placement(e, m, c)
            if strictness and now is not None:
                batch.set_placement(e, m, c, replace(now, **strictness))
        for i in range(spec.n_instances if orders.models[e] else 0):
            batch.set_placement_model(e, i, (orders.model_s[i] * PS_PER_S).tolist())
    states = batch.states_of_instances()
    at = np.flatnonzero(orders.requests != AS_IS)
    found = batch.look_up(at, orders.requests[at])
    for e, placeable in zip(at.tolist(), found["placeable"].tolist(), strict=True):
        request, i = int(orders.requests[e]), int(orders.instances[e])
        # Orders given at the same time may have made an instance drain, or routed a request.
        if placeable and states[e, i] == InstanceState.ACTIVE:
            batch.assign(e, [request], [i])
    for e, m in np.argwhere(orders.again).tolist():
        batch.route_gateway(e, m)


def _order_endpoints(batch: ReferenceBatch, orders: EndpointOrders) -> None:
    spec = batch.spec
    for e in range(batch.n_episodes):
        for m, row in enumerate(spec.routes):
            for c, route in enumerate(row):
                if not route.preference:
                    continue
                takes, rows = batch.regional(e, m, c)
                heads = orders.first[e].tolist()
                batch.set_regional(
                    e,
                    m,
                    c,
                    _in_ppm(orders.thresholds[e], takes),
                    [
                        now if head == AS_IS else _headed(default, head)
                        for now, default, head in zip(rows, route.preference, heads, strict=True)
                    ],
                )
    for e, p in np.argwhere(orders.rules != AS_IS).tolist():
        batch.set_scaling(e, p, int(orders.rules[e, p]), int(orders.goals[e, p]))
    for e in range(batch.n_episodes if spec.managers else 0):
        now = batch.manager_ppm(e)
        one, two = (
            _in_ppm(orders.release[e, :, k], now[:, k].tolist()) for k in range(now.shape[1])
        )
        batch.set_managers(e, one, two)


def _in_ppm(shares: NDArray[np.float64], now: Sequence[int]) -> list[int]:
    """Shares in millionths; where none is ordered as it is now."""
    return [
        ppm if np.isnan(share) else round(share * PPM)
        for share, ppm in zip(shares.tolist(), now, strict=True)
    ]


def _headed(order: Sequence[int], head: int) -> tuple[int, ...]:
    """`order` with one of them first, if it is there."""
    return tuple(sorted(order, key=lambda j: j != head))
