"""The iteration boundary of an instance (docs/engine.md, section 4)."""

from __future__ import annotations

from llmscale_env.sim.fast.batch import (
    commit_decode,
    demand,
    emit_after_prefill,
    enter,
    evict,
    finish_due,
    preempt,
    preempted_row,
    prefill_row,
    restore,
    running_row,
    start_prefill,
    youngest,
)
from llmscale_env.sim.fast.controller import clear_window, new_window, update_limit
from llmscale_env.sim.fast.itl import clear_items, close_gaps, push_item, push_pending
from llmscale_env.sim.fast.memory import (
    cls_at,
    heap_of,
    inst_at,
    lists_of,
    pool_at,
    prof_at,
    pull_of,
    req_at,
)
from llmscale_env.sim.fast.queues import leave, queue_row
from llmscale_env.sim.fast.records import (
    DECODE,
    IDLE,
    MIXED,
    NO_EVENT,
    PREFILL,
)
from llmscale_env.sim.fast.structures import schedule, unlink
from llmscale_env.sim.fast.timing import (
    decode_first_ps,
    decode_step_ps,
    mixed_ps,
    prefill_ps,
    span_ps,
)
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec import InstanceState

_ACTIVE = int(InstanceState.ACTIVE)


# ---- 1. what the iteration just ended has brought ------------------------------------------------


@njit
def _end_prefill(S, i, t):
    inst = inst_at(S, i)
    inst.iterations += 1
    row = prefill_row(S, i)
    r = lists_of(S)[row, 0]
    while r >= 0:
        after = req_at(S, r).aux_next
        emit_after_prefill(S, i, r, t)
        r = after


@njit
def _end_mixed(S, i, t):
    inst = inst_at(S, i)
    inst.iterations += 1
    inst.iter_no += 1
    if inst.n_dec > 0:
        inst.kv += inst.n_dec
        inst.ctx += inst.n_dec
        inst.left -= inst.n_dec
        inst.ev_kv += inst.ev_dec
        inst.tokens += inst.n_dec
        inst.w_tokens += inst.n_dec
        inst.w_iter += 1
        close_gaps(S, i, t)
        push_item(S, i, t - inst.seg_begin)
    r = lists_of(S)[prefill_row(S, i), 0]
    while r >= 0:
        req = req_at(S, r)
        after = req.aux_next
        req.pre_done += req.chunk
        if req.pre_done == req.pre_target:
            emit_after_prefill(S, i, r, t)
        r = after


@njit
def _end_iteration(S, i, t):
    inst = inst_at(S, i)
    if inst.mode == DECODE:
        commit_decode(S, i, inst.seg_n)
    elif inst.mode == PREFILL:
        _end_prefill(S, i, t)
    elif inst.mode == MIXED:
        _end_mixed(S, i, t)
    else:
        new_window(S, i, t)
        return
    inst.busy_ps += t - inst.seg_begin
    finish_due(S, i, t)


# ---- 2. ordered evictions ------------------------------------------------------------------------


@njit
def _ordered_evictions(S, i, t):
    """Evict as ordered; True if anybody was."""
    inst = inst_at(S, i)
    n = min(inst.order_evict, inst.ev_n)
    inst.order_evict = 0
    for _ in range(n):
        evict(S, i, lists_of(S)[running_row(S, i, 1), 1], t)
    return n > 0


# ---- 5. admission --------------------------------------------------------------------------------


@njit
def _candidate(S, i, own_only, shared):
    """(list row, request) at the head of the first source that is not empty, or (-1, -1)."""
    row = preempted_row(S, i)
    if lists_of(S)[row, 2] > 0:
        return row, lists_of(S)[row, 0]
    if own_only:
        return -1, -1
    if lists_of(S)[i, 2] > 0:
        return i, lists_of(S)[i, 0]
    if shared:
        p = inst_at(S, i).pool
        for k in range(pool_at(S, p).n_pull):
            row = queue_row(S, pull_of(S)[p, k])
            if lists_of(S)[row, 2] > 0:
                return row, lists_of(S)[row, 0]
    return -1, -1


@njit
def _fits(inst, extra_kv, need, limit, cap, watermark):
    """Rules a and b of admission for `inst`'s batch as it is."""
    if inst.n_run >= limit:
        return False
    reserve = watermark if inst.n_run > 0 else 0
    return inst.kv + extra_kv + need + reserve <= cap


@njit
def _make_room(S, i, need, fresh, fresh_evictable, fresh_evictable_kv, t):
    """Evict lower priorities until the candidate fits; False, and nobody evicted, if that fails."""
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    chunked = pool.chunk > 0
    cap = prof_at(S, inst.profile).cap
    victims = inst.ev_n - fresh_evictable
    if victims <= 0 or inst.n_run - victims >= inst.limit:
        return False
    kv = inst.kv - (inst.ev_kv - fresh_evictable_kv)
    kv += inst.n_run - victims if chunked else fresh
    reserve = pool.watermark if inst.n_run > victims else 0
    if kv + need + reserve > cap:
        return False
    # Oldest admission first in the list; the last `fresh_evictable` came in this boundary.
    row = running_row(S, i, 1)
    r = lists_of(S)[row, 1]
    for _ in range(fresh_evictable):
        r = req_at(S, r).prev
    while True:
        before = req_at(S, r).prev
        evict(S, i, r, t)
        r = before
        if _fits(inst, inst.n_run if chunked else fresh, need, inst.limit, cap, pool.watermark):
            return True


@njit
def _admit(S, i, t, left, evicted):
    """Admit what fits; returns (requests, tokens, squared tokens) to prefill before chunking.

    `left` is the chunked iteration's budget still free (-1: prefill first); `evicted`, whether somebody
    was evicted in this boundary already.
    """
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    cap = prof_at(S, inst.profile).cap
    chunked = pool.chunk > 0
    own_only = inst.state != _ACTIVE
    fresh, tokens, pairs = 0, 0, 0
    fresh_evictable, fresh_evictable_kv = 0, 0
    while True:
        row, r = _candidate(S, i, own_only, not evicted)
        if r < 0:
            inst.filling = 0
            break
        req = req_at(S, r)
        context = req.input + req.emitted
        need = demand(S, r)
        saved = req.kv_host >= 0 and inst_at(S, req.kv_host).host == inst.host
        extra = inst.n_run if chunked else fresh
        fits = _fits(inst, extra, need, inst.limit, cap, pool.watermark)
        if chunked:
            in_budget = left >= 1
        else:
            in_budget = saved or fresh == 0 or tokens + context <= pool.prefill
        if in_budget and not fits and row == i and pool.evicts and cls_at(S, req.cls).priority == 0:
            fits = _make_room(S, i, need, fresh, fresh_evictable, fresh_evictable_kv, t)
            evicted = evicted or fits
        if not (fits and in_budget):
            if inst.n_run >= inst.limit:
                inst.bound = 1
                inst.held = 1
            elif in_budget:
                inst.held = 1
            if in_budget or not fits:
                inst.filling = 0
            break
        if row == i or row == preempted_row(S, i):
            unlink(S, row, r)
            inst.waiting -= need
        else:
            leave(S, r, row - queue_row(S, 0))
            inst.left += req.predicted - req.emitted
        enter(S, i, r, t)
        if req.evictable:
            fresh_evictable += 1
            fresh_evictable_kv += need - 1
        if saved:
            restore(S, i, r)
            left -= 1
        else:
            start_prefill(S, i, r)
            fresh += 1
            tokens += context
            pairs += context * context
            if chunked:
                req.chunk = min(context, left)
                left -= req.chunk
    return fresh, tokens, pairs


# ---- launch --------------------------------------------------------------------------------------


@njit
def _launch_single(S, i, t, mode, duration):
    """One iteration that is not part of a decode segment."""
    inst = inst_at(S, i)
    duration += inst.swap_ps
    inst.swap_ps = 0
    inst.mode = mode
    inst.seg_begin = t
    inst.seg_start = t
    inst.seg_n = 0
    schedule(S, i, 2 * (t + duration))


@njit
def _launch_decode(S, i, t, once):
    """Decode iterations up to the next thing that can change the batch."""
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    n = (heap_of(S)[i, 0] >> 32) - inst.iter_no
    n = min(n, (prof_at(S, inst.profile).cap - inst.kv - inst.n_pre) // inst.n_dec)
    if pool.controller != 0 and inst.changed:
        window = pool.window if pool.controller == 1 else 1
        n = min(n, max(1, window - inst.w_iter))
    if once:
        n = 1
    inst.filling = 0
    inst.mode = DECODE
    inst.seg_begin = t
    inst.seg_start = t + inst.swap_ps
    inst.swap_ps = 0
    inst.seg_n = n
    inst.seg_first_ps = decode_first_ps(S, inst.profile, inst.n_dec, inst.ctx)
    inst.seg_step_ps = decode_step_ps(S, inst.profile, inst.n_dec)
    schedule(S, i, 2 * (inst.seg_start + span_ps(n, inst.seg_first_ps, inst.seg_step_ps)))


@njit
def _rest(S, i):
    inst = inst_at(S, i)
    inst.mode = IDLE
    inst.seg_n = 0
    clear_items(S, i)
    schedule(S, i, NO_EVENT)


@njit
def _continue_prefill_first(S, i, t, evicted):
    inst = inst_at(S, i)
    fresh, tokens, pairs = _admit(S, i, t, -1, evicted)
    if fresh > 0:
        if inst.n_dec > 0:
            push_pending(S, i, t)
        _launch_single(S, i, t, PREFILL, prefill_ps(S, inst.profile, tokens, pairs))
    elif inst.n_run > 0:
        cap = prof_at(S, inst.profile).cap
        once = False
        while inst.kv + inst.n_dec > cap:
            preempt(S, i, youngest(S, i), t)
            once = True
        _launch_decode(S, i, t, once)
    else:
        _rest(S, i)


@njit
def _continue_chunked(S, i, t, evicted):
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    cap = prof_at(S, inst.profile).cap
    preempted = False
    while inst.kv + inst.n_run > cap:
        preempt(S, i, youngest(S, i), t)
        preempted = True
    left = max(0, pool.chunk - inst.n_dec)
    r = lists_of(S)[prefill_row(S, i), 0]
    while r >= 0:
        req = req_at(S, r)
        req.chunk = min(req.pre_target - req.pre_done, left)
        left -= req.chunk
        r = req.aux_next
    if not preempted:
        _admit(S, i, t, left, evicted)
    tokens, pairs, chunks = 0, 0, 0
    r = lists_of(S)[prefill_row(S, i), 0]
    while r >= 0:
        req = req_at(S, r)
        if req.chunk > 0:
            chunk = int(req.chunk)
            chunks += 1
            tokens += chunk
            pairs += chunk * (2 * req.pre_done + chunk)
        r = req.aux_next
    if chunks > 0:
        duration = mixed_ps(S, inst.profile, inst.n_dec, inst.ctx, tokens, pairs, chunks)
        _launch_single(S, i, t, MIXED, duration)
    elif inst.n_dec > 0:
        _launch_decode(S, i, t, preempted)
    else:
        _rest(S, i)


@njit
def boundary(S, i, t):
    """Instance `i` comes to a boundary at `t`; True if it is drained and empty (it must go off)."""
    inst = inst_at(S, i)
    ran = inst.n_run
    if inst.mode != IDLE and inst.n_dec == 0:
        inst.w_alone_ps += t - inst.seg_begin
    _end_iteration(S, i, t)
    evicted = False
    if inst.order_evict > 0:
        evicted = _ordered_evictions(S, i, t)
    if inst.state != _ACTIVE and inst.n_run == 0 and lists_of(S)[preempted_row(S, i), 2] == 0:
        _rest(S, i)
        return True
    if inst.n_run == 0 or inst.restart:
        clear_window(S, i, t)
    elif pool_at(S, inst.pool).controller != 0:
        update_limit(S, i, t, ran)
    if pool_at(S, inst.pool).chunk > 0:
        _continue_chunked(S, i, t, evicted)
    else:
        _continue_prefill_first(S, i, t, evicted)
    return False
