"""Who must look up: idle instances are woken, long decode segments are cut at their next boundary.

A cut that turns out to be useless changes nothing (a boundary at which nothing happens has no
effect), so the
rules here only have to be generous enough.
"""

from __future__ import annotations

from llmscale_env.sim.fast.batch import demand, preempted_row
from llmscale_env.sim.fast.memory import (
    active_of,
    cls_at,
    const_of,
    inst_at,
    key_of,
    lists_of,
    pool_at,
    prof_at,
    pull_of,
    pulled_by_of,
    req_at,
)
from llmscale_env.sim.fast.queues import queue_row
from llmscale_env.sim.fast.records import (
    DECODE,
    IDLE,
    NO_EVENT,
)
from llmscale_env.sim.fast.structures import schedule
from llmscale_env.sim.fast.timing import boundary_is_done, iterations_within, span_ps
from llmscale_env.sim.jit import njit


@njit
def next_boundary(S, i, t):
    """Iterations of instance `i`'s decode segment that will have ended at its next boundary."""
    inst = inst_at(S, i)
    elapsed = t - inst.seg_start
    if not boundary_is_done(S, i):
        elapsed -= 1
    if elapsed < inst.seg_first_ps:
        return 1
    return iterations_within(elapsed, inst.seg_first_ps, inst.seg_step_ps) + 1


@njit
def cut_at(S, i, n):
    """End instance `i`'s decode segment after `n` iterations, if it is longer."""
    inst = inst_at(S, i)
    if n < inst.seg_n:
        inst.seg_n = n
        schedule(S, i, 2 * (inst.seg_start + span_ps(n, inst.seg_first_ps, inst.seg_step_ps)))


@njit
def look_up(S, i, t):
    """Instance `i` (active or draining) comes to a boundary as soon as it can."""
    inst = inst_at(S, i)
    if inst.mode == IDLE:
        if key_of(S)[i] == NO_EVENT:
            schedule(S, i, 2 * t + 1)
    elif inst.mode == DECODE and inst.seg_n > 1:
        cut_at(S, i, next_boundary(S, i, t))


@njit
def could_admit(S, i, n, need):
    """Whether instance `i`, after `n` more iterations of its segment, has room for `need` tokens."""
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    if inst.n_run >= inst.limit:
        return False
    kv = inst.kv + n * inst.n_dec
    if pool.chunk > 0:
        if pool.chunk - inst.n_dec < 1:
            return False
        kv += inst.n_run
    return kv + need + pool.watermark <= prof_at(S, inst.profile).cap


@njit
def _must_learn(inst, controller):
    """Whether a request that instance `inst` cannot admit is news to its controller."""
    if controller == 0:
        return False
    return inst.held == 0 or (inst.bound == 0 and inst.n_run >= inst.limit)


@njit
def notice_own(S, i, r, t):
    """Request `r` has just joined the end of instance `i`'s own queue."""
    inst = inst_at(S, i)
    if inst.mode == IDLE:
        look_up(S, i, t)
    elif inst.mode == DECODE and inst.seg_n > 1:
        if lists_of(S)[i, 2] > 1 or lists_of(S)[preempted_row(S, i), 2] > 0:
            return  # it waits behind a request that does not fit either
        pool = pool_at(S, inst.pool)
        n = next_boundary(S, i, t)
        may_evict = pool.evicts and inst.ev_n > 0 and cls_at(S, req_at(S, r).cls).priority == 0
        if may_evict or _must_learn(inst, pool.controller) or could_admit(S, i, n, demand(S, r)):
            cut_at(S, i, n)


@njit
def _blocked_before(S, i, p, q):
    """Whether another source of instance `i` comes before shared queue `q` and is not empty."""
    if lists_of(S)[i, 2] > 0 or lists_of(S)[preempted_row(S, i), 2] > 0:
        return True
    for k in range(pool_at(S, p).n_pull):
        other = pull_of(S)[p, k]
        if other == q:
            return False
        if lists_of(S)[queue_row(S, other), 2] > 0:
            return True
    return True


@njit
def _call_for(S, q, t):
    """See to it that the head of shared queue `q` is taken at the first boundary that has room for it."""
    r = lists_of(S)[queue_row(S, q), 0]
    need = demand(S, r)
    best = -1
    best_n = 0
    best_key = NO_EVENT
    for k in range(1, pulled_by_of(S)[q, 0] + 1):
        p = pulled_by_of(S)[q, k]
        controller = pool_at(S, p).controller
        for a in range(pool_at(S, p).n_active):
            i = active_of(S)[p, a]
            inst = inst_at(S, i)
            if inst.mode == IDLE:
                if best_key > 2 * t + 1:
                    best, best_n, best_key = i, 0, 2 * t + 1
                continue
            if inst.mode != DECODE or inst.seg_n <= 1:
                continue
            if inst.n_run >= inst.limit:
                if _must_learn(inst, controller):
                    cut_at(S, i, next_boundary(S, i, t))
                continue
            if _blocked_before(S, i, p, q):
                continue
            n = next_boundary(S, i, t) if could_admit(S, i, 1, need) else 0
            if n == 0 or not could_admit(S, i, n, need):
                if _must_learn(inst, controller):
                    cut_at(S, i, next_boundary(S, i, t))
                continue
            key = 2 * (inst.seg_start + span_ps(n, inst.seg_first_ps, inst.seg_step_ps))
            if key < best_key:
                best, best_n, best_key = i, n, key
    if best >= 0:
        if best_n == 0:
            look_up(S, best, t)
        else:
            cut_at(S, best, best_n)


@njit
def call_for_queues(S, t):
    """`_call_for` every shared queue that holds a request."""
    for q in range(const_of(S).n_queues):
        if lists_of(S)[queue_row(S, q), 2] > 0:
            _call_for(S, q, t)
