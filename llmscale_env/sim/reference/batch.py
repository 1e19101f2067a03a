"""Episodes of the reference engine behind the border `sim.engine`, one `ReferenceEngine` each."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.observed import (
    CLASS_SEEN,
    FOUND_DTYPE,
    NO_SLACK,
    POOL_SEEN,
    QUEUE_SEEN,
    Gateways,
    VirtualQueues,
    Weights,
)
from llmscale_env.sim.order_checks import OrderChecks
from llmscale_env.sim.orders import Orders, Outcome, carry_out
from llmscale_env.sim.reference import batch_observe as shown
from llmscale_env.sim.reference import batch_orders as ordered
from llmscale_env.sim.reference.engine import ReferenceEngine
from llmscale_env.sim.reference.windows import Watch
from llmscale_env.sim.spec import ClusterSpec, RequestState
from llmscale_env.sim.spec.checks import check_range
from llmscale_env.sim.streaming import Retired, check_same_cluster, check_streams
from llmscale_env.workload.requests import NO_REQUESTS, RequestTable

P = ParamSpec("P")
R = TypeVar("R")


def _read(
    method: Callable[Concatenate[ReferenceEngine, P], R],
) -> Callable[Concatenate[ReferenceBatch, int, P], R]:
    """What one episode shows."""

    @wraps(method)
    def reads(self: ReferenceBatch, e: int, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(self.engines[e], *args, **kwargs)

    return reads


class ReferenceBatch:
    """`n_episodes` episodes of one cluster, each a `ReferenceEngine` of its own, one after the other.

    What may be done, and what it means, is said at `sim.engine.Engine` and at the methods of
    `ReferenceEngine` that most of these are. Counts are computed by `watch`.

    A simulation in SimPy is a set of running generators, which cannot be copied. So a saved episode is what
    has been done to it since its `reset`, and `restore` does all that again: it takes as long as the episode
    has taken so far. The same holds for a pickled batch.

    Args:
        spec: the cluster (the same for all).
        n_episodes: how many episodes.

    Attributes:
        engines: the episodes.
        checks: what orders are refused.
    """

    name = "reference"

    def __init__(self, spec: ClusterSpec, n_episodes: int = 1) -> None:
        self.spec = spec
        self.n_episodes = n_episodes
        self.checks = OrderChecks(spec, n_episodes)
        self._class_seen = np.zeros((n_episodes, len(spec.classes)), CLASS_SEEN)
        self._pool_seen = np.zeros((n_episodes, len(spec.pools)), POOL_SEEN)
        self._queue_seen = np.zeros((n_episodes, max(1, len(spec.queue_llm))), QUEUE_SEEN)
        self.engines: list[ReferenceEngine] = [ReferenceEngine(spec, NO_REQUESTS)] * n_episodes
        self._watches = [self._watch(e) for e in range(n_episodes)]
        self._done: list[list[tuple[str, tuple[Any, ...], dict[str, Any]]]]
        self._done = [[] for _ in range(n_episodes)]
        for e in range(n_episodes):
            self._blank(e)

    def _watch(self, e: int) -> Watch:
        rows = (self._class_seen[e], self._pool_seen[e], self._queue_seen[e])
        return Watch(self.engines[e], *rows)

    def _blank(self, e: int) -> None:
        """An episode without requests."""
        self.engines[e] = ReferenceEngine(self.spec, NO_REQUESTS)
        self._watches[e] = self._watch(e)
        self._done[e] = []

    # ---- time ----

    def reset(self, e: int, requests: RequestTable, salt: int | None = None) -> None:
        self.engines[e] = ReferenceEngine(self.spec, requests, salt)
        self._watches[e] = self._watch(e)
        self._done[e] = [("reset", (requests, salt), {})]

    def extend(self, e: int, requests: RequestTable) -> None:
        """Later requests of episode `e`, whose ids go on from those before; its salt is not looked at."""
        known = len(self.engines[e].requests)
        self.engines[e].extend(requests)
        self._watches[e].extend(self.engines[e].requests[known:])
        self._done[e].append(("extend", (requests,), {}))

    def retire(self, e: int) -> Retired:
        """Forget the requests of episode `e` that are done, after they have been counted."""
        self._watches[e].settle()
        retired = self.engines[e].retire()
        self.note(e, "retire")
        return retired

    def imagine(
        self,
        e: int,
        ids: NDArray[np.int64],
        output_tokens: NDArray[np.int64],
        later: RequestTable,
    ) -> None:
        """Requests of episode `e` have other lengths from now on, and others arrive."""
        self.engines[e].imagine(ids, output_tokens, later)
        self._watches[e].expect_others()
        known = (np.array(ids), np.array(output_tokens), later)
        self._done[e].append(("imagine", known, {}))

    ids = _read(ReferenceEngine.ids)

    def advance(self, e: int, until_ps: int) -> None:
        self.order(e, "advance", until_ps)

    def advance_range(self, first: int, last: int, until_ps: NDArray[np.int64]) -> None:
        """`advance` episodes `first..last - 1`, each to its own `until_ps[e]` (E,)."""
        self._check_episodes(first, last)
        until_ps = np.asarray(until_ps, np.int64)
        if until_ps.shape != (self.n_episodes,):
            raise ValueError(f"until_ps: of shape {until_ps.shape}, must be ({self.n_episodes},)")
        for e in range(first, last):
            self.advance(e, int(until_ps[e]))

    def _check_episodes(self, first: int, last: int) -> None:
        check_range("first", first, 0, self.n_episodes)
        check_range("last", last, first, self.n_episodes)

    @property
    def times_ps(self) -> NDArray[np.int64]:
        return shown.times_ps(self.engines)

    def now_ps(self, e: int) -> int:
        return self.engines[e].now_ps

    def next_decisions_ps(
        self, waiting: NDArray[np.int64], soon_ps: int, retry_ps: int
    ) -> NDArray[np.int64]:
        found = []
        for engine, now, before in zip(
            self.engines, self.n_in_gateways.tolist(), waiting.tolist(), strict=True
        ):
            coming = (r.arrival_ps for r in engine.requests if r.state == RequestState.FUTURE)
            times = [int(NO_SLACK), *(at_ps + 1 for at_ps in list(coming)[:1])]
            if now > 0:
                times.append(engine.now_ps + (soon_ps if now < before else retry_ps))
            found.append(min(times))
        return np.array(found, np.int64)

    # ---- forks ----

    def note(self, e: int, name: str, *args: Any, **kwargs: Any) -> None:
        """This has been done to episode `e`."""
        self._done[e].append((name, deepcopy(args), deepcopy(kwargs)))

    def _do_again(self, e: int, done: list[tuple[str, tuple[Any, ...], dict[str, Any]]]) -> None:
        self._blank(e)
        for name, args, kwargs in done:
            getattr(self, name)(e, *args, **kwargs)

    def save(self, e: int) -> dict[str, NDArray[Any]]:
        """What has been done to episode `e`, for `restore`; can be pickled. `cluster` says of which it is."""
        calls = np.empty(len(self._done[e]), object)
        calls[:] = self._done[e]
        return {"cluster": self.spec.digest, "calls": calls}

    def save_under_way(self, e: int) -> dict[str, NDArray[Any]]:
        """`save` of a copy whose future has been forgotten, and whose requests that are done."""
        check_streams(self.spec)
        saved, none = self.save(e), np.zeros(0, np.int64)
        calls = np.empty(len(saved["calls"]) + 2, object)
        calls[:-2] = saved["calls"]
        calls[-2], calls[-1] = ("imagine", (none, none, NO_REQUESTS), {}), ("retire", (), {})
        return {**saved, "calls": calls}

    def restore(
        self, e: int, saved: dict[str, NDArray[Any]], cluster: ClusterSpec | None = None
    ) -> None:
        """All that had been done is done again, in the cluster in which it was done."""
        if set(saved) != {"cluster", "calls"}:
            odd = sorted(set(saved) ^ {"cluster", "calls"})
            raise ValueError(f"no saved episode: {odd} missing or too much")
        check_same_cluster(saved["cluster"], self.spec, cluster)
        if cluster is None:
            self._do_again(e, saved["calls"].tolist())
            return
        other = ReferenceBatch(cluster)
        other.restore(0, saved)
        self.engines[e], self._watches[e] = other.engines[0], other._watches[0]
        self.engines[e].take_times(self.spec)
        rows = (self._class_seen[e], self._pool_seen[e], self._queue_seen[e])
        self._watches[e].fill(*rows)
        self._done[e] = [("restore", (saved, cluster), {})]

    def __getstate__(self) -> dict[str, Any]:
        return {"spec": self.spec, "n_episodes": self.n_episodes, "done": self._done}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__init__(kept["spec"], kept["n_episodes"])  # type: ignore[misc]
        for e, done in enumerate(kept["done"]):
            self._do_again(e, done)

    # ---- counts, as of `close_windows`; live arrays ----

    def close_windows(self, first: int, last: int) -> None:
        """Count what happened since the last call, for episodes `first..last - 1`."""
        self._check_episodes(first, last)
        for e in range(first, last):
            self.close_window(e)

    def close_window(self, e: int) -> None:
        """The same for one episode."""
        self._watches[e].close_window()
        self.note(e, "close_window")

    @property
    def class_seen(self) -> NDArray[Any]:
        return self._class_seen

    @property
    def pool_seen(self) -> NDArray[Any]:
        return self._pool_seen

    @property
    def queue_seen(self) -> NDArray[Any]:
        return self._queue_seen

    def count_late(self, e: int, name: str, count: NDArray[np.int64]) -> None:
        self._watches[e].count_late(name, count)
        self.note(e, "count_late", name, count)

    # ---- what many episodes show ----

    @property
    def n_finished(self) -> NDArray[np.int64]:
        return np.array([len(engine.finished) for engine in self.engines], np.int64)

    @property
    def n_in_gateways(self) -> NDArray[np.int64]:
        return np.array(
            [sum(len(gateway) for gateway in engine.gateways) for engine in self.engines], np.int64
        )

    @property
    def n_swaps(self) -> NDArray[np.int64]:
        return np.array([sum(i.swaps for i in e.all_instances) for e in self.engines], np.int64)

    def states_of_instances(self) -> NDArray[np.int64]:
        return np.array([[int(i.state) for i in e.all_instances] for e in self.engines], np.int64)

    def ready_ps(self, first: int, last: int) -> NDArray[np.int64]:
        return np.stack([engine.ready_ps() for engine in self.engines[first:last]])

    def virtual_queues(self, first: int, last: int) -> VirtualQueues:
        queues = self._queue_seen[first:last, : len(self.spec.queue_llm)]
        return shown.virtual_queues(
            self.engines[first:last], queues, lambda e, queue: self.queued(first + e, queue)
        )

    def gateways(self, first: int, last: int, with_workers: bool) -> Gateways:
        return shown.gateways(self.engines[first:last], with_workers)

    def weights(self, first: int, last: int) -> Weights:
        return shown.weights(self.engines[first:last])

    def look_up(self, episodes: NDArray[np.int64], requests: NDArray[np.int64]) -> NDArray[Any]:
        found = np.zeros(len(requests), FOUND_DTYPE)
        for e in np.unique(episodes).tolist():
            found[episodes == e] = self.engines[e].look_up(requests[episodes == e])
        return found

    # ---- what one episode shows ----

    results = _read(ReferenceEngine.results)
    finished_since = _read(ReferenceEngine.finished_since)
    instances = _read(ReferenceEngine.instances)
    running_by_class = _read(ReferenceEngine.running_by_class)
    running_from = _read(ReferenceEngine.running_from)
    loading = _read(ReferenceEngine.loading)
    homes = _read(ReferenceEngine.homes)
    weights_ready_ps = _read(ReferenceEngine.weights_ready_ps)
    host_has = _read(ReferenceEngine.host_has)
    reports = _read(ReferenceEngine.reports)
    spot = _read(ReferenceEngine.spot)
    queued = _read(ReferenceEngine.queued)
    waiting = _read(ReferenceEngine.waiting)
    runs = _read(ReferenceEngine.runs)
    pulls = _read(ReferenceEngine.pulls)
    own_queue = _read(ReferenceEngine.own_queue)
    gateway = _read(ReferenceEngine.gateway)
    decode_gateway = _read(ReferenceEngine.decode_gateway)
    under_way = _read(ReferenceEngine.under_way)
    placement = _read(ReferenceEngine.placement)
    regional = _read(ReferenceEngine.regional)
    manager_ppm = _read(ReferenceEngine.manager_ppm)

    # ---- orders ----

    def apply(self, orders: Orders) -> Outcome:
        self.checks.check(self, orders)
        return carry_out(self, orders, (self.n_episodes, len(self.spec.pools)), ordered)

    def order(self, e: int, method: str, *args: Any) -> Any:
        """Let episode `e` do something; it is noted once it has been done."""
        answer = getattr(self.engines[e], method)(*args)
        self.note(e, "order", method, *args)
        return answer
