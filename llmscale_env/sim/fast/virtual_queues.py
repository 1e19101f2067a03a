"""Virtual queues of many episodes in one call: who waits and runs where, and orders for all of them.

What the environments do at every decision; the same one episode at a time is in `observe` and `advance`.
"""

from __future__ import annotations

from llmscale_env.sim.fast.advance import operations_changed, regroup, set_pull
from llmscale_env.sim.fast.observe import read_instances, read_running_from
from llmscale_env.sim.fast.state.lists import (
    queue_row,
)
from llmscale_env.sim.fast.state.memory import (
    const_of,
    inst_at,
    lists_of,
    pool_at,
    prof_at,
    pull_of,
    req_at,
    route_at,
)
from llmscale_env.sim.jit import njit

__all__ = ["order_many", "regroup", "see_many"]


@njit
def see_many(addresses, first, last, instances, kv_share, running, oldest_fresh_ps, pull):
    """Fill the rows of episodes `first..last - 1` (row 0 is `first`).

    Args:
        addresses: of the episodes' tables.
        first, last: which.
        instances: (n, I) INSTANCE_DTYPE.
        kv_share: (n, I) KV memory in use over capacity.
        running: (n, I, Q) zeros; running and preempted requests by their shared queue.
        oldest_fresh_ps: (n, Q) arrival of the first in the queue that has had no token; -1: none.
        pull: (n, I, Q) queues on each instance's list, in order, -1 behind the last.
    """
    for e in range(first, last):
        S = addresses[e]
        row = e - first
        read_instances(S, instances[row])
        read_running_from(S, running[row])
        for i in range(const_of(S).n_inst):
            inst = inst_at(S, i)
            kv_share[row, i] = instances[row][i].kv_tokens / prof_at(S, inst.profile).cap
            for k in range(const_of(S).n_queues):
                pull[row, i, k] = pull_of(S)[i, k] if k < inst.n_pull else -1
        for q in range(const_of(S).n_queues):
            # Evicted requests, which have had one, stand at the head.
            r = lists_of(S)[queue_row(S, q), 0]
            while r >= 0 and req_at(S, r).first >= 0:
                r = req_at(S, r).next
            oldest_fresh_ps[row, q] = req_at(S, r).arrival if r >= 0 else -1


@njit
def order_many(addresses, evicts, arrivals, pulls, counts):
    """Orders for every episode; -1: as it is.

    Args:
        addresses: of the episodes' tables.
        evicts: (E, P) whether a pool's instances evict in order and flush at swaps.
        arrivals: (E, M, C) shared queue that arrivals of an LLM and a class join.
        pulls: (E, I, Q) an instance's new list, of which the first `counts` (E, I) count.
    """
    for e in range(len(addresses)):
        S = addresses[e]
        for p in range(evicts.shape[1]):
            if evicts[e, p] >= 0:
                pool_at(S, p).evicts_in_order = evicts[e, p]
                pool_at(S, p).swap_flushes = evicts[e, p]
                operations_changed(S, p)
        for m in range(arrivals.shape[1]):
            for c in range(arrivals.shape[2]):
                if arrivals[e, m, c] >= 0:
                    route_at(S, m, c).n_uppers = 0
                    route_at(S, m, c).queues[0] = arrivals[e, m, c]
        for i in range(counts.shape[1]):
            if counts[e, i] >= 0:
                set_pull(S, i, pulls[e, i, : counts[e, i]])
