"""Virtual queues of many episodes side by side: what is seen of them, and what is ordered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.fast import EngineBatch
from llmscale_env.sim.fast import virtual as kernels
from llmscale_env.sim.spec import INSTANCE_DTYPE

AS_IS = -1
"""An order that is not given."""


@dataclass(frozen=True)
class VirtualQueues:
    """Who waits and runs where in `E` episodes; the same as in `ClusterView`, as arrays.

    Attributes:
        time_ps: (E,) present time.
        queues: (E, Q) structured (`QUEUE_SEEN`), all shared queues, those with a name first.
        oldest_fresh_ps: (E, Q) arrival of the first in a queue that has had no token, -1: none.
        running: (E, I, Q) running and preempted requests by the queue that they came from.
        running_by_class: (E, I, C) running requests.
        instances: (E, I) INSTANCE_DTYPE.
        kv_share: (E, I) KV memory in use over capacity.
        pull: (E, I, Q) queues on each instance's list, in order, -1 behind the last.
        arrival: (E, M, C) queue that arrivals join (the shortest ones, if several).
        weights_ready_ps: (E, I, M) when weights are in host memory, -1: not on their way.
        evicts: (E, P) 1 where a pool's instances evict in order and flush at swaps, 0 where they do
            neither, -1: one of the two.
        known: what has been computed from it already, by name.
    """

    time_ps: NDArray[np.int64]
    queues: NDArray[Any]
    oldest_fresh_ps: NDArray[np.int64]
    running: NDArray[np.int64]
    running_by_class: NDArray[np.int64]
    instances: NDArray[Any]
    kv_share: NDArray[np.float64]
    pull: NDArray[np.int64]
    arrival: NDArray[np.int64]
    weights_ready_ps: NDArray[np.int64]
    evicts: NDArray[np.int64]
    engine: EngineBatch
    first: int
    known: dict[str, Any] = field(default_factory=dict)

    def waiting(self, e: int, queue: int) -> NDArray[Any]:
        """(n,) QUEUED_DTYPE, the requests in a queue of episode `e`, head first."""
        return self.engine.queued(self.first + e, queue)


def see_virtual_queues(engine: EngineBatch, first: int, last: int) -> VirtualQueues:
    """Episodes `first..last - 1` as they stand (some arrays are live: read them at once)."""
    n, spec, states = last - first, engine.spec, engine.states
    n_queues = len(spec.queue_llm)
    instances = np.zeros((n, spec.n_instances), INSTANCE_DTYPE)
    kv_share = np.zeros((n, spec.n_instances))
    running = np.zeros((n, spec.n_instances, n_queues), np.int64)
    oldest = np.zeros((n, n_queues), np.int64)
    pull = np.zeros((n, spec.n_instances, n_queues), np.int64)
    kernels.see_many(engine.handles, first, last, instances, kv_share, running, oldest, pull)
    mine = slice(first, last)
    evicts = states.pool["evicts_in_order"][mine]
    return VirtualQueues(
        time_ps=states.glob["now_ps"][mine, 0],
        queues=states.queue_seen[mine, :n_queues],
        oldest_fresh_ps=oldest,
        running=running,
        running_by_class=states.running_cls[mine],
        instances=instances,
        kv_share=kv_share,
        pull=pull,
        arrival=states.route["queues"][mine, :, :, 0],
        weights_ready_ps=states.host_ready[mine],
        evicts=np.where(states.pool["flushes"][mine] == evicts, evicts, AS_IS),
        engine=engine,
        first=first,
    )


@dataclass
class QueueOrders:
    """Orders for the virtual queues of `E` episodes; `AS_IS` where nothing is ordered.

    Attributes:
        evicts: (E, P) 1: a pool's running requests make way for groups that come earlier, and for swaps;
            0: they are finished first.
        arrivals: (E, M, C) queue that arrivals join.
        pulls: (E, I, Q) lists of queues, of which the first `counts` (E, I) count.
        moves: (episode, requests, queues) to regroup.
        impossible: (E,) choices that were not possible and count for nothing.
    """

    evicts: NDArray[np.int64]
    arrivals: NDArray[np.int64]
    pulls: NDArray[np.int64]
    counts: NDArray[np.int64]
    moves: list[tuple[int, NDArray[np.int64], NDArray[np.int64]]]
    impossible: NDArray[np.int64]

    @classmethod
    def none(cls, seen: VirtualQueues) -> QueueOrders:
        """Nothing ordered."""
        return cls(
            evicts=np.full(seen.evicts.shape, AS_IS, np.int64),
            arrivals=np.full(seen.arrival.shape, AS_IS, np.int64),
            pulls=np.full(seen.pull.shape, AS_IS, np.int64),
            counts=np.full(seen.pull.shape[:2], AS_IS, np.int64),
            moves=[],
            impossible=np.zeros(len(seen.pull), np.int64),
        )

    def carry_out(self, engine: EngineBatch) -> None:
        """Order it in all episodes of an engine."""
        for e, requests, queues in self.moves:
            # They have just been read from their queues: `EngineBatch.regroup` would look again.
            kernels.regroup(int(engine.handles[e]), requests, queues)
        kernels.order_many(engine.handles, self.evicts, self.arrivals, self.pulls, self.counts)

    def fields(self, e: int, scenario: Scenario) -> dict[str, Any]:
        """The orders of episode `e` as fields of a `Command`."""
        pools, llms = scenario.fleet.pools, scenario.fleet.llms
        moved = [(r, q) for number, r, q in self.moves if number == e]
        return {
            "pull": {
                i: tuple(self.pulls[e, i, :n].tolist())
                for i, n in enumerate(self.counts[e].tolist())
                if n != AS_IS
            },
            "arrival_queues": {
                (llms[m], scenario.classes[c].name): ((), (int(self.arrivals[e, m, c]),))
                for m, c in np.argwhere(self.arrivals[e] != AS_IS)
            },
            "operations": {
                pools[p].name: {"evicts_in_order": bool(flag), "swap_flushes": bool(flag)}
                for p, flag in enumerate(self.evicts[e].tolist())
                if flag != AS_IS
            },
            "regroup": (
                np.concatenate([r for r, _ in moved]),
                np.concatenate([q for _, q in moved]),
            )
            if moved
            else None,
        }
