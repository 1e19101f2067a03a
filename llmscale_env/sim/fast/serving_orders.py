"""Commands about who is served, where and how, as Python sees them (docs/engine.md, section 8)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.fast import advance as kernels
from llmscale_env.sim.fast.state.layout import State
from llmscale_env.sim.spec import (
    ClusterSpec,
    ControllerKind,
    Operations,
    RequestState,
    RouterKind,
    changed_operations,
)
from llmscale_env.sim.spec.checks import (
    check_arrival_queues,
    check_class,
    check_evict,
    check_move_waiting,
    check_operations,
    check_pull,
    check_range,
    check_regroup,
    check_router,
)
from llmscale_env.sim.spec.region_checks import check_not_managed


class ServingOrders(ABC):
    """The part of `EngineBatch` that orders limits, routes, queues and evictions."""

    spec: ClusterSpec
    states: State

    @property
    @abstractmethod
    def handles(self) -> NDArray[np.int64]:
        """(E,) where the kernels find the episodes."""

    @abstractmethod
    def _rows(self, e: int, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Places of requests by id, -1 where it is not known."""

    def set_batch_limit(self, e: int, pool: int, limit: int) -> None:
        check_range("pool", pool, 0, len(self.spec.pools) - 1)
        top = self.spec.profiles[self.spec.pools[pool].profile].max_batch
        kernels.set_batch_limit(int(self.handles[e]), pool, check_range("limit", limit, 1, top))

    def set_instance_limit(self, e: int, instance: int, limit: int) -> None:
        check_range("instance", instance, 0, self.spec.n_instances - 1)
        pool = self.spec.pools[int(self.states.inst[e, instance]["pool"])]
        top = self.spec.profiles[pool.profile].max_batch
        limit = check_range("limit", limit, 1, top)
        kernels.set_instance_limit(int(self.handles[e]), instance, limit)

    def set_controller(self, e: int, pool: int, kind: int) -> None:
        check_range("pool", pool, 0, len(self.spec.pools) - 1)
        kind = check_range("kind", kind, 0, len(ControllerKind) - 1)
        kernels.set_controller(int(self.handles[e]), pool, kind)

    def set_overflow_share(self, e: int, llm: int, slo_class: int, share: float) -> None:
        check_class(self.spec, llm, slo_class)
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"share = {share!r}: must be in 0..1")
        self.states.route[e, llm, slo_class]["share"] = share

    def set_router(self, e: int, llm: int, slo_class: int, kind: int) -> None:
        check_class(self.spec, llm, slo_class)
        kind = check_range("kind", kind, 0, len(RouterKind) - 1)
        check_router(self.spec, llm, slo_class, kind)
        self.states.route[e, llm, slo_class]["kind"] = kind

    def evict(self, e: int, instance: int, count: int) -> None:
        check_range("instance", instance, 0, self.spec.n_instances - 1)
        check_range("count", count, 0, 2**31 - 1)
        check_evict(self.spec, instance, self.states.inst[e]["state"])
        kernels.order_evictions(int(self.handles[e]), instance, count)

    def move_waiting(self, e: int, instance: int, to: int, count: int) -> None:
        check_range("instance", instance, 0, self.spec.n_instances - 1)
        check_range("to", to, 0, self.spec.n_instances - 1)
        check_range("count", count, 0, 2**31 - 1)
        check_move_waiting(self.spec, instance, to, self.states.inst[e]["state"])
        kernels.move_waiting(int(self.handles[e]), instance, to, count)

    def set_pull(self, e: int, instance: int, queues: Sequence[int]) -> None:
        check_range("instance", instance, 0, self.spec.n_instances - 1)
        pool = self.spec.pools[int(self.states.inst[e, instance]["pool"])]
        places = check_pull("queues", queues, pool, self.spec.queue_llm)
        check_not_managed("queues", places, self.spec)
        kernels.set_pull(int(self.handles[e]), instance, np.array(places, np.int64))

    def set_operations(
        self,
        e: int,
        pool: int,
        pull_rule: int | None = None,
        evicts_in_order: bool | None = None,
        swap_flushes: bool | None = None,
        static_batch: bool | None = None,
    ) -> None:
        check_range("pool", pool, 0, len(self.spec.pools) - 1)
        row = self.states.pool[e, pool]
        now = Operations(
            int(row["deadline"]),
            bool(row["evicts_in_order"]),
            bool(row["flushes"]),
            bool(row["static"]),
        )
        chunk = int(row["chunk"])
        new = changed_operations(now, chunk, pull_rule, evicts_in_order, swap_flushes, static_batch)
        check_operations(self.spec.pools[pool], new)
        row["deadline"] = new.pull_rule
        row["evicts_in_order"] = new.evicts_in_order
        row["flushes"] = new.swap_flushes
        row["static"] = new.static_batch
        kernels.operations_changed(int(self.handles[e]), pool)

    def set_arrival_queues(
        self, e: int, llm: int, slo_class: int, uppers: Sequence[int], queues: Sequence[int]
    ) -> None:
        check_class(self.spec, llm, slo_class)
        check_arrival_queues(self.spec, llm, slo_class, uppers, queues)
        route = self.states.route[e, llm, slo_class]
        route["n_uppers"] = len(uppers)
        route["uppers"][: len(uppers)] = uppers
        route["queues"][: len(queues)] = queues

    def regroup(self, e: int, requests: Sequence[int], queues: Sequence[int]) -> None:
        ids, to = np.asarray(requests, np.int64), np.asarray(queues, np.int64)
        places = self._rows(e, ids)
        known = places >= 0
        rows = self.states.req[e, places[known]]
        waits = rows["state"] == RequestState.SHARED_QUEUE
        llms = dict(zip(ids[known][waits].tolist(), rows["llm"][waits].tolist(), strict=True))
        check_regroup(ids.tolist(), to.tolist(), llms, self.spec.queue_llm)
        kernels.regroup(int(self.handles[e]), places, to)
