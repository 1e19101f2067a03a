"""The iteration boundary of an instance (docs/engine.md, section 4)."""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.fast.serving.admission import admit
from llmscale_env.sim.fast.serving.batch import (
    all_later,
    commit_decode,
    emit_after_prefill,
    evict,
    finish_due,
    flush,
    preempt,
    youngest,
)
from llmscale_env.sim.fast.serving.controller import forget, update_limit
from llmscale_env.sim.fast.serving.handover import hand_over, reserve
from llmscale_env.sim.fast.serving.itl import clear_items, close_gaps, push_item, push_pending
from llmscale_env.sim.fast.serving.live_pairs import (
    HELPER_HAS_IT,
    layers_ps,
    let_go,
    next_batch,
    take,
)
from llmscale_env.sim.fast.serving.next_request import NOBODY, next_place, shared_place
from llmscale_env.sim.fast.serving.timing import (
    decode_first_ps,
    decode_step_ps,
    iterations_within,
    mixed_ps,
    prefill_ps,
    span_ps,
)
from llmscale_env.sim.fast.serving.vllm_v1 import continue_v1, end_v1
from llmscale_env.sim.fast.state.lists import (
    landed_row,
    preempted_row,
    prefill_row,
    running_row,
)
from llmscale_env.sim.fast.state.memory import (
    co_at,
    const_of,
    heap_of,
    inst_at,
    lists_of,
    live_at,
    pool_at,
    prefetch_request,
    prof_at,
    report_at,
    req_at,
)
from llmscale_env.sim.fast.state.records import (
    DECODE,
    IDLE,
    MIXED,
    NO_EVENT,
    NOT_KNOWN,
    PREFILL,
)
from llmscale_env.sim.fast.state.structures import key_at, schedule
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec import InstanceState, PoolPhase

_ACTIVE = int(InstanceState.ACTIVE)
_PREFILLS = int(PoolPhase.PREFILL)
_DECODES = int(PoolPhase.DECODE)

STAY, TURN_OFF, SWAP = 0, 1, 2
"""What a boundary leads to: nothing, `OFF` (drained and empty), another LLM."""


# ---- 1. what the iteration just ended has brought ------------------------------------------------


@njit(forceinline=True)
def _end_prefill(S, i, t):
    inst = inst_at(S, i)
    inst.iterations += 1
    report = report_at(S, i)
    report.prefill_tokens = report.next_tokens
    report.prefill_squares = report.next_squares
    report.prefill_requests = report.next_requests
    report.prefill_ps = report.next_ps
    r = lists_of(S)[prefill_row(S, i), 0]
    for _ in range(report.next_requests):  # in a live pair others may stand behind them
        after = req_at(S, r).aux_next
        emit_after_prefill(S, i, r, t)
        if const_of(S).live and req_at(S, r).emitted == req_at(S, r).output:
            let_go(S, np.int64(r), t)
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


@njit(forceinline=True)
def _end_iteration(S, i, t):
    inst = inst_at(S, i)
    if inst.mode == DECODE:
        commit_decode(S, i, inst.seg_n)
    elif inst.mode == PREFILL:
        _end_prefill(S, i, t)
    elif inst.mode == MIXED:
        _end_mixed(S, i, t)
    else:
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


# ---- launch --------------------------------------------------------------------------------------


@njit(forceinline=True)
def _launch_single(S, i, t, mode, duration):
    """One iteration that is not part of a decode segment."""
    inst = inst_at(S, i)
    duration += inst.moving_ps
    inst.moving_ps = 0
    inst.mode = mode
    inst.seg_begin = t
    inst.seg_start = t
    inst.seg_n = 0
    schedule(S, i, key_at(t + duration))


@njit(forceinline=True)
def _launch_decode(S, i, t, once):
    """Decode iterations up to the next thing that can change the batch."""
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    first = heap_of(S)[i, 0]
    # It leaves first. Its record lies somewhere in memory, and was last looked at when it joined.
    prefetch_request(S, first & 0xFFFFFFFF)
    n = (first >> 32) - inst.iter_no
    n = min(n, (prof_at(S, inst.profile).cap - inst.kv - inst.n_pre) // inst.n_dec)
    if pool.controller != 0 and inst.changed:
        n = min(n, max(1, pool.controller_window_iterations - inst.w_iter))
    if inst.settling and inst.n_run <= inst.limit:
        n = 1  # the next boundary sees whether anybody joined
    reopens = inst.closed and not pool.static_batch
    if once or reopens or inst.pull_until < inst.n_pull:
        n = 1  # what could not be looked at in this boundary may be taken at the next
    inst.closed = pool.static_batch
    inst.settled = NOT_KNOWN
    inst.mode = DECODE
    inst.seg_begin = t
    inst.seg_start = t + inst.moving_ps
    inst.moving_ps = 0
    inst.seg_first_ps = decode_first_ps(S, inst.profile, inst.n_dec, inst.ctx)
    inst.seg_step_ps = decode_step_ps(S, inst.profile, inst.n_dec)
    if inst.leaving > 0:  # memory comes free at the first boundary after the copy
        before = max(0, inst.copied_ps - inst.seg_start - 1)
        n = min(n, iterations_within(before, inst.seg_first_ps, inst.seg_step_ps) + 1)
        if (pool.evicts or pool.evicts_in_order) and next_place(S, i) != NOBODY:
            n = 1  # who would fit once the copy has gone may need evictions after all, as KV grows
    inst.seg_n = n
    schedule(S, i, key_at(inst.seg_start + span_ps(n, inst.seg_first_ps, inst.seg_step_ps)))


@njit
def _rest(S, i, t, again):
    """Nothing runs; `again`: what comes next may be smaller than what has just been preempted."""
    inst = inst_at(S, i)
    inst.mode = IDLE
    inst.seg_n = 0
    clear_items(S, i)
    if again or (inst.n_coming > 0 and lists_of(S)[landed_row(S, i), 2] > 0):
        schedule(S, i, 2 * t + 1)
        return
    if inst.state == _ACTIVE and inst.pull_until < inst.n_pull:
        if shared_place(S, i, inst.n_pull) != NOBODY:
            schedule(S, i, 2 * t + 1)
            return
    schedule(S, i, key_at(inst.copied_ps) + 1 if inst.leaving > 0 else NO_EVENT)


@njit(forceinline=True)
def _make_way(S, i, t):
    """A batch that comes later on the list does not hold up a swap, where swaps flush."""
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    if inst.foreign >= 0 and pool.swap_flushes and pool.pull_rule == 0:
        if all_later(S, i, inst.foreign):
            flush(S, i, t)


@njit
def _continue_pair(S, i, t):
    """What instance `i` runs next if batches stand before it, or its helper forms them; False: neither."""
    b = next_batch(S, i, t)
    if b == HELPER_HAS_IT:
        _rest(S, i, t, False)
    elif b >= 0:
        take(S, i, b)
        batch, report = co_at(S, b), report_at(S, i)
        report.next_tokens = batch.tokens
        report.next_squares = batch.squares
        report.next_requests = batch.n
        report.next_ps = batch.ps
        n_layers = pool_at(S, inst_at(S, i).pool).layers
        _launch_single(S, i, t, PREFILL, layers_ps(batch.ps, n_layers, batch.done, n_layers))
    return b >= 0 or b == HELPER_HAS_IT


@njit(forceinline=True)
def _continue_prefill_first(S, i, t):
    inst = inst_at(S, i)
    if const_of(S).live and _continue_pair(S, i, t):
        return
    preempted = preempted_row(S, i)
    # Nothing could be reserved for the own queue; at the next boundary it may be.
    barred = pool_at(S, inst.pool).phase == _DECODES and lists_of(S)[i, 2] > 0
    barred = barred and lists_of(S)[preempted, 2] > 0
    tokens, pairs, once = admit(S, i, t, -1)
    _make_way(S, i, t)
    if inst.n_pre > 0:
        if inst.n_dec > 0:
            push_pending(S, i, t)
        duration = prefill_ps(S, inst.profile, tokens, pairs)
        report = report_at(S, i)
        report.next_tokens = tokens
        report.next_squares = pairs
        report.next_requests = inst.n_pre
        report.next_ps = duration
        _launch_single(S, i, t, PREFILL, duration)
        return
    once = once or (barred and lists_of(S)[preempted, 2] == 0)
    cap = prof_at(S, inst.profile).cap
    gave_way = False
    while inst.n_run > 0 and inst.kv + inst.n_dec > cap:
        preempt(S, i, youngest(S, i), t)
        gave_way = True
    if inst.n_run > 0:
        _launch_decode(S, i, t, once or gave_way)
    else:
        _rest(S, i, t, gave_way)


@njit
def _continue_chunked(S, i, t):
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    cap = prof_at(S, inst.profile).cap
    gave_way = once = False
    while inst.n_run > 0 and inst.kv + inst.n_run > cap:
        preempt(S, i, youngest(S, i), t)
        gave_way = once = True
    left = max(0, pool.chunk_tokens - inst.n_dec)
    r = lists_of(S)[prefill_row(S, i), 0]
    while r >= 0:
        req = req_at(S, r)
        req.chunk = min(req.pre_target - req.pre_done, left)
        left -= req.chunk
        r = req.aux_next
    if not once:
        _, _, once = admit(S, i, t, left)
        _make_way(S, i, t)
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
        _launch_decode(S, i, t, once)
    else:
        _rest(S, i, t, gave_way)


@njit
def nothing_waits(S, i):
    """Whether instance `i` could turn off, as far as requests and KV outside its batch go."""
    inst = inst_at(S, i)
    if live_at(S, i).n_held > 0:
        return False
    return lists_of(S)[preempted_row(S, i), 2] == 0 and inst.kv_held == 0 and inst.n_coming == 0


@njit(forceinline=True)
def boundary(S, i, t):
    """Instance `i` comes to a boundary at `t`; returns what it must do now, see `STAY` and so on."""
    inst = inst_at(S, i)
    in_blocks = pool_at(S, inst.pool).block_tokens > 0
    if in_blocks:
        end_v1(S, i, t)
    else:
        _end_iteration(S, i, t)
    phase = pool_at(S, inst.pool).phase
    if phase == _PREFILLS:
        hand_over(S, i, t)
    elif phase == _DECODES:
        reserve(S, i, t, True)
    if inst.leaving > 0 and t >= inst.copied_ps:
        inst.kv -= inst.leaving
        inst.leaving = 0
    inst.foreign = -1
    inst.pull_until = inst.n_pull
    if inst.order_evict > 0 and _ordered_evictions(S, i, t):
        inst.pull_until = 0
    if inst.state != _ACTIVE and inst.n_run == 0 and nothing_waits(S, i):
        _rest(S, i, t, False)
        return TURN_OFF
    if inst.n_run == 0:
        inst.closed = 0
    if inst.n_run == 0 or inst.restart:
        forget(S, i, t)
    elif pool_at(S, inst.pool).controller != 0:
        update_limit(S, i, t)
    if in_blocks:
        if not continue_v1(S, i, t):
            _rest(S, i, t, False)
    elif pool_at(S, inst.pool).chunk_tokens > 0:
        _continue_chunked(S, i, t)
    else:
        _continue_prefill_first(S, i, t)
    if inst.foreign >= 0 and inst.n_run == 0 and lists_of(S)[preempted_row(S, i), 2] == 0:
        return SWAP
    return STAY
