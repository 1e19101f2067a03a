"""Commands about who is served, where and how, as Python sees them (docs/engine.md, section 8)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.fast import advance as kernels
from llmscale_env.sim.fast.state.layout import State
from llmscale_env.sim.spec import (
    ClusterSpec,
    Operations,
    changed_operations,
)
from llmscale_env.sim.spec.checks import (
    check_arrival_queues,
    check_batch_limit,
    check_controller,
    check_evict,
    check_instance_limit,
    check_move_waiting,
    check_operations,
    check_pull,
    check_range,
    check_regroup,
    check_router,
    check_share,
    check_whole,
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
    def find(
        self, episodes: int | NDArray[np.int64], requests: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """(n,) places of requests by id, -1 where it is not known; their FOUND_DTYPE."""

    def set_batch_limit(self, e: int, pool: int, limit: int) -> None:
        kernels.set_batch_limit(int(self.handles[e]), *check_batch_limit(self.spec, pool, limit))

    def set_instance_limit(self, e: int, instance: int, limit: int) -> None:
        order = check_instance_limit(self.spec, instance, limit)
        kernels.set_instance_limit(int(self.handles[e]), *order)

    def set_controller(self, e: int, pool: int, kind: int) -> None:
        kernels.set_controller(int(self.handles[e]), *check_controller(self.spec, pool, kind))

    def set_overflow_share(self, e: int, llm: int, slo_class: int, share: float) -> None:
        key, share = check_share(self.spec, llm, slo_class, share)
        _ = self.handles[e]
        self.states.route["share"][e][key] = share

    def set_router(self, e: int, llm: int, slo_class: int, kind: int) -> None:
        key, kind = check_router(self.spec, llm, slo_class, kind)
        _ = self.handles[e]
        self.states.route["kind"][e][key] = kind

    def evict(self, e: int, instance: int, count: int) -> None:
        order = check_evict(self.spec, instance, count, self.states.inst["state"][e])
        kernels.order_evictions(int(self.handles[e]), *order)

    def move_waiting(self, e: int, instance: int, to: int, count: int) -> None:
        order = check_move_waiting(self.spec, instance, to, count, self.states.inst["state"][e])
        kernels.move_waiting(int(self.handles[e]), *order)

    def set_pull(self, e: int, instance: int, queues: Sequence[int]) -> None:
        instance = check_range("instance", instance, 0, self.spec.n_instances - 1)
        pool = self.spec.pools[self.spec.pool_of_slot[instance]]
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
        pool = check_range("pool", pool, 0, len(self.spec.pools) - 1)
        row = self.states.pool[e, pool]
        now = Operations(
            int(row["pull_rule"]),
            bool(row["evicts_in_order"]),
            bool(row["swap_flushes"]),
            bool(row["static_batch"]),
        )
        chunk = int(row["chunk_tokens"])
        new = changed_operations(now, chunk, pull_rule, evicts_in_order, swap_flushes, static_batch)
        check_operations(self.spec.pools[pool], new)
        handle = int(self.handles[e])
        row["pull_rule"] = new.pull_rule
        row["evicts_in_order"] = new.evicts_in_order
        row["swap_flushes"] = new.swap_flushes
        row["static_batch"] = new.static_batch
        kernels.operations_changed(handle, pool)

    def set_arrival_queues(
        self, e: int, llm: int, slo_class: int, uppers: Sequence[int], queues: Sequence[int]
    ) -> None:
        check_arrival_queues(self.spec, llm, slo_class, uppers, queues)
        _ = self.handles[e]
        route = self.states.route[e, llm, slo_class]
        route["n_uppers"] = len(uppers)
        route["uppers"][: len(uppers)] = uppers
        route["queues"][: len(queues)] = queues

    def regroup(self, e: int, requests: Sequence[int], queues: Sequence[int]) -> None:
        ids = check_whole("requests", requests)
        places, found = self.find(e, ids)
        to = check_regroup(self.spec, ids, queues, found)
        kernels.regroup(int(self.handles[e]), places, to)
