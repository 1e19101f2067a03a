"""Refusing arrays of orders that an engine cannot carry out, before any of them is (`sim.orders`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.orders import (
    AS_IS,
    METHODS,
    EndpointOrders,
    Orders,
    PlaceOrders,
    PoolOrders,
    QueueOrders,
)
from llmscale_env.sim.spec import (
    ClusterSpec,
    InstanceState,
    LoadSource,
    PoolPhase,
    RequestState,
    RouterKind,
    ScalingKind,
)
from llmscale_env.sim.spec.checks import (
    check_arrival_queues,
    check_assign,
    check_model,
    check_operations,
    check_pull,
    check_range,
    check_regroup,
    check_router,
    check_whole,
)
from llmscale_env.sim.spec.kinds import MODEL_NAMES
from llmscale_env.sim.spec.region_checks import check_not_managed
from llmscale_env.sim.spec.regions import HIGHEST_PPM, PPM
from llmscale_env.sim.spec.routes import HIGHEST
from llmscale_env.workload.requests import PS_PER_S

if TYPE_CHECKING:
    from llmscale_env.sim.engine import Engine


class OrderChecks:
    """What orders an engine refuses, as tables over the cluster's parts.

    The tables ask the checks of single orders (`sim.spec.checks`), which also say what is wrong with the
    first order that a table rules out. So arrays are looked at whole, and both ways refuse the same.

    Args:
        spec: the cluster.
        n_episodes: how many episodes the orders are for.
    """

    def __init__(self, spec: ClusterSpec, n_episodes: int) -> None:
        self._spec = spec
        self._n = n_episodes
        self._slots = np.array([pool.n_slots for pool in spec.pools])
        self._limits = np.array([spec.profiles[pool.profile].max_batch for pool in spec.pools])
        self._pool_of = np.array(spec.pool_of_slot, np.int64)

    def check(self, engine: Engine, orders: Orders) -> None:
        """Refuse arrays of which any entry is no order; nothing is changed.

        A single order may become impossible by those before it, so it is checked when its turn comes.

        Args:
            engine: whose episodes they are for, as they stand.
            orders: for all of them.

        Raises:
            ValueError: an array of another shape or type; a value out of range; a request, instance or queue
                that does not exist; an order that its pool, route or instance cannot follow; a single order
                of no known kind or episode.
        """
        for e, order in (*orders.first, *orders.last):
            check_range("episode", e, 0, self._n - 1)
            if type(order) not in METHODS:
                raise ValueError(f"{order!r}: is no order of `sim.orders`")
        if orders.pools is not None:
            self._check_pools(orders.pools)
        if orders.queues is not None:
            self._check_queues(engine, orders.queues)
        if orders.places is not None:
            self._check_places(engine, orders.places)
        if orders.endpoints is not None:
            self._check_endpoints(orders.endpoints)

    def _check_pools(self, orders: PoolOrders) -> None:
        pools = (self._n, len(self._spec.pools))
        _integers("targets", orders.targets, pools, AS_IS, self._slots)
        _integers("sources", orders.sources, pools, AS_IS, len(LoadSource) - 1)
        _integers("limits", orders.limits, pools, AS_IS, self._limits)
        _refuse(orders.limits == 0, "limits", orders.limits, "must be at least 1, or -1")
        _numbers("shares", orders.shares, (self._n, len(self._spec.classes)), 0.0, 1.0)

    def _check_queues(self, engine: Engine, orders: QueueOrders) -> None:
        spec, n_queues = self._spec, len(self._spec.queue_llm)
        by_pool, by_slot = (self._n, len(spec.pools)), (self._n, spec.n_instances)
        by_route = (self._n, spec.n_llms, len(spec.classes))
        _integers("evicts", orders.evicts, by_pool, AS_IS, 1)
        _integers("arrivals", orders.arrivals, by_route, AS_IS, n_queues - 1)
        _integers("counts", orders.counts, by_slot, AS_IS, n_queues)
        _shaped("pulls", orders.pulls, (*by_slot, n_queues), "i")
        _say((orders.evicts == 1) & ~self._evicts, lambda e, p: self._check_evicts(p))
        e, m, c = np.nonzero(orders.arrivals != AS_IS)
        q = orders.arrivals[e, m, c]
        bad = ~self._joins[m, c, q]
        _say(bad, lambda k: check_arrival_queues(spec, int(m[k]), int(c[k]), (), (int(q[k]),)))
        e, i = np.nonzero(orders.counts > 0)
        count = orders.counts[e, i]
        row, k = np.nonzero(np.arange(count.max(initial=0)) < count[:, None])
        queue = orders.pulls[e[row], i[row], k]
        bad = (queue < 0) | (queue >= n_queues)
        known = np.where(bad, 0, queue)
        bad |= ~self._pulls[self._pool_of[i[row]], known]
        entry = row * n_queues + known
        bad |= np.bincount(entry)[entry] > 1
        _say(bad, lambda at: self._check_pull(int(i[row[at]]), queue[row == row[at]].tolist()))
        for number, requests, queues in orders.moves:
            check_range("moves: episode", number, 0, self._n - 1)
            ids = check_whole("requests", requests)
            check_regroup(spec, ids, queues, engine.look_up(np.full(len(ids), number), ids))

    def _check_places(self, engine: Engine, orders: PlaceOrders) -> None:
        spec, n = self._spec, (self._n,)
        _integers("rules", orders.rules, n, AS_IS, len(RouterKind) - 1)
        bad = (orders.rules != AS_IS) & ~self._rules[orders.rules]
        _say(bad, lambda e: self._check_rule(int(orders.rules[e])))
        _numbers("gamma", orders.gamma, n, 0.0, HIGHEST["gamma"])
        _numbers("theta", orders.theta, n, 0.0, HIGHEST["theta"])
        _shaped("models", orders.models, n, "b")
        _shaped("again", orders.again, (self._n, spec.n_llms), "b")
        if orders.models.any():
            _shaped("model_s", orders.model_s, (spec.n_instances, len(MODEL_NAMES)), "f")
            for times in orders.model_s * PS_PER_S:  # once in an episode
                check_model(times)
        _shaped("requests", orders.requests, n, "i")
        given = orders.requests != AS_IS
        _integers("instances", orders.instances, n, 0, spec.n_instances - 1, given)
        if given.any():
            ids, to = orders.requests[given], orders.instances[given]
            found = engine.look_up(np.flatnonzero(given), ids)
            handed = found["state"] == RequestState.HANDOVER
            bad = ~found["placeable"] | (self._takes[to] != found["llm"])
            bad |= self._decodes[to] != handed
            active = [InstanceState.ACTIVE] * spec.n_instances  # who is not takes nothing
            _say(bad, lambda k: check_assign(spec, ids[[k]], to[[k]], found[[k]], active))

    def _check_endpoints(self, orders: EndpointOrders) -> None:
        spec, n = self._spec, self._n
        pools, regions = (n, len(spec.pools)), (n, spec.n_regions)
        _integers("rules", orders.rules, pools, AS_IS, len(ScalingKind) - 1)
        _integers("goals", orders.goals, pools, -1, self._slots)
        none = np.array([pool.scaling is None for pool in spec.pools])
        _refuse((orders.rules != AS_IS) & none, "rules", orders.rules, "the pool has no scaling")
        _numbers("thresholds", orders.thresholds, regions, 0.0, HIGHEST_PPM / PPM)
        _integers("first", orders.first, regions, AS_IS, spec.n_regions - 1)
        _numbers("release", orders.release, (n, len(spec.managers), 2), 0.0, HIGHEST_PPM / PPM)

    # ---- tables, made when they are first needed ----

    @cached_property
    def _evicts(self) -> NDArray[np.bool_]:
        """(P,) whether a pool's instances can evict in order."""
        return _table((len(self._spec.pools),), self._check_evicts)

    def _check_evicts(self, p: int) -> None:
        pool = self._spec.pools[p]
        check_operations(pool, replace(pool.operations, evicts_in_order=True))

    @cached_property
    def _joins(self) -> NDArray[np.bool_]:
        """(M, C, Q) whether arrivals can join a shared queue."""
        spec = self._spec
        shape = (spec.n_llms, len(spec.classes), len(spec.queue_llm))
        return _table(shape, lambda m, c, q: check_arrival_queues(spec, m, c, (), (q,)))

    @cached_property
    def _pulls(self) -> NDArray[np.bool_]:
        """(P, Q) whether a pool's instances can pull from a shared queue."""
        spec, first = self._spec, self._spec.first_slot
        shape = (len(spec.pools), len(spec.queue_llm))
        return _table(shape, lambda p, q: self._check_pull(first[p], [q]))

    def _check_pull(self, i: int, queues: list[int]) -> None:
        name = f"pulls of instance {i}"
        pool = self._spec.pools[self._spec.pool_of_slot[i]]
        check_pull(name, queues, pool, self._spec.queue_llm)
        check_not_managed(name, queues, self._spec)

    @cached_property
    def _rules(self) -> NDArray[np.bool_]:
        """(kinds,) whether all routes can go by a `RouterKind`."""
        return _table((len(RouterKind),), self._check_rule)

    def _check_rule(self, kind: int) -> None:
        for m in range(self._spec.n_llms):
            for c in range(len(self._spec.classes)):
                check_router(self._spec, m, c, kind)

    @cached_property
    def _takes(self) -> NDArray[np.int64]:
        """(I,) the LLM of requests that may be placed at a slot, -1: it serves several."""
        llms = [pool.llms for pool in self._spec.pools]
        return np.array([m[0] if len(m) == 1 else -1 for m in llms], np.int64)[self._pool_of]

    @cached_property
    def _decodes(self) -> NDArray[np.bool_]:
        """(I,) whether a slot only decodes."""
        phases = np.array([pool.phase for pool in self._spec.pools])
        decodes: NDArray[np.bool_] = phases[self._pool_of] == PoolPhase.DECODE
        return decodes


def _table(shape: tuple[int, ...], check: Callable[..., object]) -> NDArray[np.bool_]:
    """Where a check of single numbers raises nothing."""

    def passes(*at: int) -> bool:
        try:
            check(*at)
        except ValueError:
            return False
        return True

    return np.array([passes(*at) for at in np.ndindex(shape)], bool).reshape(shape)


def _say(bad: NDArray[np.bool_], check: Callable[..., object]) -> None:
    """Let a check of single orders say what is wrong with the first of those that are bad."""
    if bad.any():
        at = tuple(int(k) for k in np.argwhere(bad)[0])
        check(*at)
        raise AssertionError(f"order {at} is bad, and nothing says why")


def _shaped(name: str, values: NDArray[Any], shape: tuple[int, ...], kind: str) -> None:
    if not isinstance(values, np.ndarray) or values.shape != shape:
        raise ValueError(f"{name}: of shape {np.shape(values)}, must be an array of shape {shape}")
    if values.dtype.kind != kind:
        word = {"i": "integers", "f": "floating-point numbers", "b": "truth values"}[kind]
        raise ValueError(f"{name}: of type {values.dtype}, must be {word}")


def _refuse(bad: NDArray[np.bool_], name: str, values: NDArray[Any], rule: str) -> None:
    if bad.any():
        at = tuple(int(k) for k in np.argwhere(bad)[0])
        raise ValueError(f"{name}{list(at)} = {values[at]}: {rule}")


def _integers(
    name: str,
    values: NDArray[Any],
    shape: tuple[int, ...],
    low: int,
    high: int | NDArray[np.int64],
    where: NDArray[np.bool_] | None = None,
) -> None:
    _shaped(name, values, shape, "i")
    bad = (values < low) | (values > high)
    if where is not None:
        bad &= where
    if bad.any():
        top = np.broadcast_to(high, shape)[tuple(np.argwhere(bad)[0])]
        _refuse(bad, name, values, f"must be in {low}..{top}")


def _numbers(
    name: str, values: NDArray[Any], shape: tuple[int, ...], low: float, high: float
) -> None:
    _shaped(name, values, shape, "f")
    _refuse((values < low) | (values > high), name, values, f"must be in {low}..{high}")
