"""Weights of several LLMs in an instance's share of host memory (docs/engine.md, section 9)."""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.fast.serving.next_request import head_at
from llmscale_env.sim.fast.state.memory import (
    const_of,
    host_ready_of,
    host_used_of,
    inst_at,
    pool_at,
    req_at,
    served_of,
)
from llmscale_env.sim.fast.state.records import SERVED_BYTES, SERVED_FETCH
from llmscale_env.sim.jit import njit

_AWAY, _THERE, _STAYS, _COMES = 0, 1, 2, 3


@njit
def _choose(S, i, m, fate, order, n, left):
    """Give LLM `m` its place in host memory if there is room; returns (chosen so far, bytes left)."""
    size = served_of(S)[inst_at(S, i).pool, m, SERVED_BYTES]
    if fate[m] == _STAYS or fate[m] == _COMES or size > left:
        return n, left
    fate[m] = _STAYS if fate[m] == _THERE else _COMES
    order[n] = m
    return n + 1, left - size


@njit
def plan(S, i, t, demanded):
    """Fetch what instance `i`'s list asks for and give up what that leaves no room for.

    `demanded`: the LLM that a swap waits for (a fetch of another one gives way), or -1.
    """
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    if pool.n_llms < 2:
        return
    n_llms = const_of(S).n_llms
    ready, served = host_ready_of(S), served_of(S)
    fate = np.zeros(n_llms, np.int64)
    order = np.zeros(n_llms, np.int64)
    for m in range(n_llms):
        if 0 <= ready[i, m] <= t:
            fate[m] = _THERE
    swap_waits = demanded >= 0 and fate[demanded] != _THERE
    n, left = _choose(S, i, inst.llm, fate, order, 0, pool.host_weight_bytes)
    for k in range(inst.n_pull):
        r = head_at(S, i, k)
        if r >= 0:
            n, left = _choose(S, i, np.int64(req_at(S, r).llm), fate, order, n, left)
    passed_over = np.zeros(n_llms, np.bool_)
    while True:  # of the others who is there, the one used last first
        best = -1
        for m in range(n_llms):
            if fate[m] == _THERE and not passed_over[m]:
                if best < 0 or host_used_of(S)[i, m] > host_used_of(S)[i, best]:
                    best = m
        if best < 0:
            break
        passed_over[best] = True
        n, left = _choose(S, i, best, fate, order, n, left)
    free = t
    for m in range(n_llms):
        under_way = ready[i, m] > t and ready[i, m] - served[inst.pool, m, SERVED_FETCH] <= t
        if under_way and fate[m] == _COMES and not (swap_waits and m != demanded):
            fate[m] = _STAYS
            free = ready[i, m]
    for m in range(n_llms):
        if fate[m] != _STAYS:
            ready[i, m] = -1
    for k in range(n):
        if fate[order[k]] == _COMES:
            free += served[inst.pool, order[k], SERVED_FETCH]
            ready[i, order[k]] = free
