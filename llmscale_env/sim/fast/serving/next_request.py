"""Which request an instance would take next (docs/engine.md, sections 4 and 9)."""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.fast.state.lists import (
    landed_row,
    preempted_row,
    queue_row,
)
from llmscale_env.sim.fast.state.memory import (
    cls_at,
    inst_at,
    lists_of,
    pool_at,
    pull_of,
    req_at,
    served_of,
)
from llmscale_env.sim.fast.state.records import SERVED_PROFILE
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec import InstanceState, PoolPhase

_ACTIVE = int(InstanceState.ACTIVE)
_DECODES = int(PoolPhase.DECODE)

PREEMPTED, OWN, NOBODY, LANDED = -1, -2, -3, -4
"""Places that are not on the list of shared queues."""


@njit
def head_at(S, i, k):
    """Head of the queue at place `k` of instance `i`'s list if the instance can serve it, or -1."""
    r = lists_of(S)[queue_row(S, pull_of(S)[i, k]), 0]
    if r >= 0 and served_of(S)[inst_at(S, i).pool, req_at(S, r).llm, SERVED_PROFILE] < 0:
        return np.int64(-1)
    return r


@njit
def shared_place(S, i, until):
    """Place of the queue, among the first `until` of the list, that instance `i` takes from next."""
    inst = inst_at(S, i)
    in_order = pool_at(S, inst.pool).pull_rule == 0
    best, earliest = NOBODY, np.int64(0)
    for k in range(min(inst.n_pull, until)):
        r = head_at(S, i, k)
        if r < 0:
            continue
        if in_order:
            return k
        req = req_at(S, r)
        deadline = req.arrival + cls_at(S, req.cls).ttft_slo_ps
        if best == NOBODY or deadline < earliest:
            best, earliest = k, deadline
    return best


@njit(forceinline=True)
def next_place(S, i):
    """Where instance `i`'s next request comes from in this boundary."""
    inst = inst_at(S, i)
    if inst.n_coming > 0 and lists_of(S)[landed_row(S, i), 2] > 0:
        return LANDED
    if lists_of(S)[preempted_row(S, i), 2] > 0:
        return PREEMPTED
    if inst.state != _ACTIVE or pool_at(S, inst.pool).phase == _DECODES:
        return NOBODY
    if lists_of(S)[i, 2] > 0:
        return OWN
    return shared_place(S, i, inst.pull_until)
