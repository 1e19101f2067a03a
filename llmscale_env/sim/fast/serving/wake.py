"""Who must look up: idle instances are woken, long decode segments are cut at their next boundary.

A cut that turns out to be useless changes nothing (a boundary at which nothing happens has no
effect), so the
rules here only have to be generous enough.
"""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.fast.serving.batch import (
    all_later,
    demand,
    later_victims,
)
from llmscale_env.sim.fast.serving.next_request import NOBODY, head_at, shared_place
from llmscale_env.sim.fast.serving.prefix_cache import find_hits, owner_runs
from llmscale_env.sim.fast.serving.queues import (
    mark_dirty,
)
from llmscale_env.sim.fast.serving.timing import (
    boundary_is_done,
    iterations_within,
    kv_after,
    span_ps,
)
from llmscale_env.sim.fast.state.lists import (
    preempted_row,
    queue_row,
)
from llmscale_env.sim.fast.state.memory import (
    cls_at,
    const_of,
    dirty_of,
    glob_of,
    inst_at,
    key_of,
    lists_of,
    live_at,
    load_at,
    pool_at,
    prof_at,
    pull_of,
    pulled_by_of,
    queue_at,
    req_at,
)
from llmscale_env.sim.fast.state.records import (
    DECODE,
    IDLE,
    NO_EVENT,
)
from llmscale_env.sim.fast.state.structures import key_at, schedule
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec import InstanceState

_ACTIVE = int(InstanceState.ACTIVE)
_LOADING = int(InstanceState.LOADING)


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
        schedule(S, i, key_at(inst.seg_start + span_ps(n, inst.seg_first_ps, inst.seg_step_ps)))


@njit
def is_live(S, i):
    """Whether slot `i` helps another one and has a layer to do so with."""
    if live_at(S, i).leader < 0 or inst_at(S, i).state != _LOADING:
        return False
    return load_at(S, i).layers >= 1


@njit
def wake_helper(S, i, t):
    """Slot `i` looks for work once this time's iterations and arrivals are through, if it can and is free."""
    if is_live(S, i) and live_at(S, i).work < 0 and key_of(S)[i] > 2 * t + 1:
        schedule(S, i, 2 * t + 1)


@njit
def call_helper(S, i, t):
    """Whoever helps instance `i` looks for work."""
    if glob_of(S).n_pairs > 0 and live_at(S, i).helper >= 0:
        wake_helper(S, live_at(S, i).helper, t)


@njit
def look_up(S, i, t):
    """Instance `i` (active or draining) comes to a boundary as soon as it can."""
    inst = inst_at(S, i)
    if inst.mode == IDLE:
        if key_of(S)[i] > 2 * t + 1:
            schedule(S, i, 2 * t + 1)
    elif inst.mode == DECODE and inst.seg_n > 1:
        cut_at(S, i, next_boundary(S, i, t))


@njit
def wake(S, i, t):
    """The same, and whoever helps it looks for work."""
    call_helper(S, i, t)
    look_up(S, i, t)


@njit
def could_admit(S, i, n, r, need):
    """Whether instance `i`, after `n` more iterations of its segment, has room for `need` tokens of `r`."""
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    if inst.n_run >= inst.limit:
        return False
    if pool.block_tokens > 0:
        if inst.n_dec >= pool.chunk_tokens:
            return False
        tokens = need - 1 - const_of(S).half_block if pool.reserve_full else np.int64(1)
        free = (prof_at(S, inst.profile).cap - kv_after(S, i, n)) // pool.block_tokens
        lack = (
            (tokens + pool.block_tokens - 1) // pool.block_tokens
            + inst.watermark // pool.block_tokens
            - free
        )
        if lack > 0 and pool.prefix_cache and pool.reserve_full:
            if owner_runs(S, i, r):
                return True
            hits, idle = find_hits(S, i, r)
            lack += idle - hits
        return lack <= 0
    kv = inst.kv + n * inst.n_dec
    if pool.chunk_tokens > 0:
        if pool.chunk_tokens - inst.n_dec < 1:
            return False
        kv += inst.n_run
    return kv + need + inst.watermark <= prof_at(S, inst.profile).cap


@njit(forceinline=True)
def notice_own(S, i, r, t):
    """Request `r` has just joined instance `i`'s own queue."""
    inst = inst_at(S, i)
    call_helper(S, i, t)
    if inst.mode == IDLE:
        look_up(S, i, t)
    elif inst.mode == DECODE and inst.seg_n > 1:
        if lists_of(S)[i, 0] != r or lists_of(S)[preempted_row(S, i), 2] > 0:
            return  # it waits behind a request that does not fit either
        pool = pool_at(S, inst.pool)
        n = next_boundary(S, i, t)
        may_evict = pool.evicts and inst.ev_n > 0 and cls_at(S, req_at(S, r).cls).priority == 0
        if may_evict or could_admit(S, i, n, r, demand(S, r)):
            cut_at(S, i, n)


@njit
def _may_evict_for(S, i, place):
    """Whether a request at `place` of instance `i`'s list could evict somebody."""
    pool = pool_at(S, inst_at(S, i).pool)
    if not pool.evicts_in_order or pool.pull_rule == 1:
        return False
    inst = inst_at(S, i)
    if place >= inst.settled:  # asked before in this segment; the batch has not changed since
        return False
    n, _, _ = later_victims(S, i, place, inst.admissions)
    if n == 0:
        inst.settled = place
    return n > 0


@njit
def _idle_could(S, i):
    """Whether idle instance `i` could do something about its queues."""
    inst = inst_at(S, i)
    if glob_of(S).n_pairs > 0 and live_at(S, i).helper >= 0 and is_live(S, live_at(S, i).helper):
        return False  # its helper does it
    if lists_of(S)[preempted_row(S, i), 2] > 0:
        return False  # memory is being freed for it
    place = shared_place(S, i, inst.n_pull)
    if place == NOBODY:
        return False
    r = head_at(S, i, place)
    if inst.leaving + inst.kv_held == 0 or req_at(S, r).llm != inst.llm:
        return True
    if lists_of(S)[i, 2] > 0:
        return False  # its own queue comes first, and waits for memory
    return inst.kv + demand(S, r) <= prof_at(S, inst.profile).cap


@njit
def _call_for(S, q, t, but):
    """See to it that the head of shared queue `q` is taken at the first boundary that has room for it.

    `but`: an instance that has just looked. Who takes from several queues may be led to another one's
    head: it looks up at once, since that is not this queue's call to answer.
    """
    best = -1
    best_n = 0
    best_key = NO_EVENT
    lists, pullers = lists_of(S), pulled_by_of(S)[q]
    first_preempted = preempted_row(S, 0)
    head = lists[queue_row(S, q), 0]
    head_llm = req_at(S, head).llm
    head_need = demand(S, head)
    for k in range(1, pullers[0] + 1):
        i = pullers[k]
        inst = inst_at(S, i)
        if i == but or inst.state != _ACTIVE:
            continue
        if inst.mode == IDLE:
            if best_key > 2 * t + 1 and _idle_could(S, i):
                best, best_n, best_key = i, 0, 2 * t + 1
            continue
        if inst.mode != DECODE or inst.seg_n <= 1 or inst.closed:
            continue
        pool = pool_at(S, inst.pool)
        if inst.n_run >= inst.limit:
            if not (pool.evicts_in_order or pool.swap_flushes):
                continue
        if lists[i, 2] > 0 or lists[first_preempted + i, 2] > 0:
            continue
        place, need, r = 0, head_need, head
        if inst.n_pull > 1 or head_llm != inst.llm:
            place = shared_place(S, i, inst.n_pull)
            if place == NOBODY:
                continue
            r = head_at(S, i, place)
            if req_at(S, r).llm != inst.llm:
                if pool.swap_flushes and all_later(S, i, place):
                    cut_at(S, i, next_boundary(S, i, t))
                continue
            need = demand(S, r)
        n = next_boundary(S, i, t) if could_admit(S, i, 1, r, need) else 0
        if n == 0 or not could_admit(S, i, n, r, need):
            n = next_boundary(S, i, t)
            if n < inst.seg_n and _may_evict_for(S, i, place):
                cut_at(S, i, n)
            continue
        if inst.n_pull > 1 and pull_of(S)[i, place] != q:
            cut_at(S, i, n)
            continue
        key = key_at(inst.seg_start + span_ps(n, inst.seg_first_ps, inst.seg_step_ps))
        if key < best_key:
            best, best_n, best_key = i, n, key
    if best >= 0:
        if best_n == 0:
            look_up(S, best, t)
        else:
            cut_at(S, best, best_n)


@njit
def _call_others(S, q, t, but):
    """Queue `q` has become empty: whoever pulled from it may turn to another one."""
    if glob_of(S).n_choosers == 0:
        return
    for k in range(1, pulled_by_of(S)[q, 0] + 1):
        i = pulled_by_of(S)[q, k]
        inst = inst_at(S, i)
        if i != but and inst.state == _ACTIVE and inst.n_pull > 1:
            if inst.mode == IDLE and not _idle_could(S, i):
                continue
            if shared_place(S, i, inst.n_pull) != NOBODY:
                look_up(S, i, t)


@njit
def call_for_changed(S, t, but):
    """Whoever pulls from a queue that has changed is called, instance `but` excepted."""
    glob = glob_of(S)
    for k in range(glob.n_dirty):
        q = dirty_of(S)[k]
        queue_at(S, q).dirty = 0
        if glob.n_pairs > 0:
            for n in range(1, pulled_by_of(S)[q, 0] + 1):
                call_helper(S, pulled_by_of(S)[q, n], t)
        if lists_of(S)[queue_row(S, q), 2] > 0:
            _call_for(S, q, t, but)
        else:
            _call_others(S, q, t, but)
    glob.n_dirty = 0


@njit
def hand_over(S, i):
    """Instance `i` no longer serves, or not these queues: what it was to take, others are called for."""
    for k in range(inst_at(S, i).n_pull):
        q = pull_of(S)[i, k]
        if lists_of(S)[queue_row(S, q), 2] > 0:
            mark_dirty(S, q)


@njit(forceinline=True)
def call_after(S, i, t):
    """After an event of instance `i`: what it did not take, others may."""
    for k in range(inst_at(S, i).n_pull):
        q = pull_of(S)[i, k]
        if pulled_by_of(S)[q, 0] > 1 and lists_of(S)[queue_row(S, q), 2] > 0:
            _call_for(S, q, t, i)
    call_for_changed(S, t, i)


@njit
def call_all(S, q, t):
    """Whoever pulls from queue `q` looks up."""
    for k in range(1, pulled_by_of(S)[q, 0] + 1):
        i = pulled_by_of(S)[q, k]
        if inst_at(S, i).state == _ACTIVE:
            look_up(S, i, t)
