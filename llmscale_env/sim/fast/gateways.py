"""Requests in gateways, for many episodes in one call: when a decision is due, whose turn, which workers.

What environments need that place by rule or request by request (docs/engine.md, section 13).
"""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.fast.serving.best_fit import see_sums
from llmscale_env.sim.fast.serving.placement import assign
from llmscale_env.sim.fast.serving.timing import kv_now
from llmscale_env.sim.fast.state.lists import (
    gateway_row,
)
from llmscale_env.sim.fast.state.memory import (
    const_of,
    fit_at,
    glob_of,
    inst_at,
    lists_of,
    pool_at,
    prof_at,
    req_at,
)
from llmscale_env.sim.jit import njit
from llmscale_env.sim.observed import NO_SLACK

__all__ = [
    "assign_many",
    "count_waiting",
    "next_decisions",
    "see_gateways",
]


@njit
def _turn(S):
    """Row of the head of a gateway that arrived first, -1: nobody waits."""
    turn = np.int64(-1)
    for m in range(const_of(S).n_llms):
        head = lists_of(S)[gateway_row(S, m), 0]
        if head >= 0 and (turn < 0 or head < turn):
            turn = head
    return turn


@njit
def _waiting(S):
    n = np.int64(0)
    for m in range(const_of(S).n_llms):
        n += lists_of(S)[gateway_row(S, m), 2]
    return n


@njit
def count_waiting(addresses, out):
    """Requests in gateways of each episode (`out`, (E,))."""
    for e in range(len(addresses)):
        out[e] = _waiting(addresses[e])


@njit
def next_decisions(addresses, before, soon_ps, retry_ps, out):
    """When each episode is to be decided upon again.

    Args:
        addresses: of the episodes' tables.
        before: (E,) requests that were in gateways before the orders of now.
        soon_ps, retry_ps: time until those in gateways are looked at again: if one has left, if not.
        out: (E,) when the next arrival has come, or that time, whichever is sooner.
    """
    for e in range(len(addresses)):
        S = addresses[e]
        glob = glob_of(S)
        out[e] = NO_SLACK
        if glob.next_arrival < glob.n_requests:
            out[e] = req_at(S, glob.next_arrival).arrival + 1
        waiting = _waiting(S)
        if waiting > 0:
            after = soon_ps if waiting < before[e] else retry_ps
            out[e] = min(out[e], glob.now_ps + after)


@njit
def see_gateways(addresses, first, last, itl_ps, waiting, head_ps, turn, workers):
    """Fill the rows of episodes `first..last - 1` (row 0 is `first`).

    Args:
        addresses: of the episodes' tables.
        first, last: which.
        itl_ps: (C,) ITL targets.
        waiting: (n, M) requests in the gateway of each LLM.
        head_ps: (n, M) arrival of its head, -1: nobody waits.
        turn: (n,) row of the head that arrived first, -1: none.
        workers: (n, I) WORKER_DTYPE; `ahead_ps` by the target of the class of `turn`. (n, 0): not asked for.
    """
    for e in range(first, last):
        S = addresses[e]
        t = glob_of(S).now_ps
        row = e - first
        for m in range(const_of(S).n_llms):
            waiting[row, m] = lists_of(S)[gateway_row(S, m), 2]
            head = lists_of(S)[gateway_row(S, m), 0]
            head_ps[row, m] = req_at(S, head).arrival if head >= 0 else -1
        turn[row] = _turn(S)
        itl = itl_ps[0]
        if turn[row] >= 0:
            itl = itl_ps[req_at(S, turn[row]).cls]
        for i in range(workers.shape[1]):
            _see_worker(S, i, t, itl, workers[row, i : i + 1])


@njit
def _see_worker(S, i, t, itl_ps, out):
    inst, fit = inst_at(S, i), fit_at(S, i)
    since = see_sums(S, i, t, itl_ps)
    seen = out[0]
    seen.state = inst.state
    seen.llm = inst.llm
    seen.phase = pool_at(S, inst.pool).phase
    seen.batch_limit = inst.limit
    seen.requests = fit.n
    seen.input_tokens = fit.inputs
    seen.predicted_tokens = fit.outputs + since * fit.n_over
    seen.context = fit.context + since * fit.n_dec
    seen.queued_tokens = fit.own_tokens
    ahead = fit.ahead_still
    if fit.n_dec > 0:
        ahead = min(ahead, fit.ahead + itl_ps * since)
    seen.ahead_ps = NO_SLACK if ahead == NO_SLACK else ahead - t
    seen.kv_tokens = kv_now(S, i, t)
    seen.waiting_tokens = inst.waiting
    seen.kv_capacity = prof_at(S, inst.profile).cap


@njit
def assign_many(addresses, rows, instances):
    """One request, by its row, of each episode goes to the end of an instance's own queue (all (n,))."""
    for k in range(len(addresses)):
        assign(addresses[k], rows[k : k + 1], instances[k : k + 1])
