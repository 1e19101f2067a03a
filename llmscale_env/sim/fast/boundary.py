"""The iteration boundary of an instance (docs/engine.md, section 4)."""

from __future__ import annotations

from llmscale_env.sim.fast.batch import (
    all_later,
    commit_decode,
    demand,
    emit_after_prefill,
    enter,
    evict,
    finish_due,
    flush,
    go_on,
    landed_row,
    later_victims,
    preempt,
    preempted_row,
    prefill_row,
    restore,
    running_row,
    start_prefill,
    youngest,
)
from llmscale_env.sim.fast.controller import clear_window, new_window, update_limit
from llmscale_env.sim.fast.handover import hand_over, reserve
from llmscale_env.sim.fast.itl import clear_items, close_gaps, push_item, push_pending
from llmscale_env.sim.fast.memory import (
    cls_at,
    heap_of,
    inst_at,
    lists_of,
    pool_at,
    prof_at,
    pull_of,
    report_at,
    req_at,
)
from llmscale_env.sim.fast.queues import leave, queue_row
from llmscale_env.sim.fast.records import (
    DECODE,
    IDLE,
    MIXED,
    NO_EVENT,
    NOT_KNOWN,
    PREFILL,
)
from llmscale_env.sim.fast.sources import (
    LANDED,
    NOBODY,
    OWN,
    PREEMPTED,
    next_place,
    shared_place,
)
from llmscale_env.sim.fast.structures import schedule, unlink
from llmscale_env.sim.fast.timing import (
    decode_first_ps,
    decode_step_ps,
    iterations_within,
    mixed_ps,
    prefill_ps,
    span_ps,
)
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec import InstanceState, PoolPhase

_ACTIVE = int(InstanceState.ACTIVE)
_PREFILLS = int(PoolPhase.PREFILL)
_DECODES = int(PoolPhase.DECODE)

STAY, TURN_OFF, SWAP = 0, 1, 2
"""What a boundary leads to: nothing, `OFF` (drained and empty), another LLM."""


# ---- 1. what the iteration just ended has brought ------------------------------------------------


@njit
def _end_prefill(S, i, t):
    inst = inst_at(S, i)
    inst.iterations += 1
    report = report_at(S, i)
    report.prefill_tokens = report.next_tokens
    report.prefill_squares = report.next_squares
    report.prefill_requests = report.next_requests
    report.prefill_ps = report.next_ps
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
def _row_of(S, i, place):
    """List that instance `i` takes from at a place."""
    if place == LANDED:
        return landed_row(S, i)
    if place == PREEMPTED:
        return preempted_row(S, i)
    if place == OWN:
        return i
    return queue_row(S, pull_of(S)[i, place])


@njit
def _fits(inst, extra_kv, need, limit, cap, watermark):
    """Rules a and b of admission for `inst`'s batch as it is."""
    if inst.n_run >= limit:
        return False
    reserve = watermark if inst.n_run > 0 else 0
    return inst.kv + extra_kv + need + reserve <= cap


@njit
def _would_fit(inst, extra_kv, need, cap, watermark):
    """The same once what is being copied out has gone."""
    return _fits(inst, extra_kv - inst.leaving, need, inst.limit, cap, watermark)


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
    kv = inst.kv - inst.leaving - (inst.ev_kv - fresh_evictable_kv)
    kv += inst.n_run - victims if chunked else fresh
    reserve = inst.watermark if inst.n_run > victims else 0
    if kv + need + reserve > cap:
        return False
    # Oldest admission first in the list; the last `fresh_evictable` came in this boundary.
    row = running_row(S, i, 1)
    r = lists_of(S)[row, 1]
    for _ in range(fresh_evictable):
        r = req_at(S, r).prev
    while not _would_fit(inst, inst.n_run if chunked else fresh, need, cap, inst.watermark):
        before = req_at(S, r).prev
        evict(S, i, r, t)
        r = before
    return True


@njit
def _make_room_in_order(S, i, need, fresh, since, place, t):
    """Evict those of later queues until the candidate fits; False, and nobody evicted, if that fails."""
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    chunked = pool.chunk > 0
    cap = prof_at(S, inst.profile).cap
    n, kv, r = later_victims(S, i, place, since)
    others = inst.n_run - n
    if n == 0 or others >= inst.limit:
        return False
    kv = inst.kv - inst.leaving - kv + (others if chunked else fresh)
    reserve = inst.watermark if others > 0 else 0
    if kv + need + reserve > cap:
        return False
    while not _would_fit(inst, inst.n_run if chunked else fresh, need, cap, inst.watermark):
        evict(S, i, r, t)
        _, _, r = later_victims(S, i, place, since)
    return True


@njit
def _admit(S, i, t, left):
    """Admit what fits.

    `left` is the chunked iteration's budget still free (-1: prefill first).

    Returns:
        (tokens, squared tokens to prefill before chunking, whether the next boundary may evict those
        admitted in this one for the candidate that ended it)
    """
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    cap = prof_at(S, inst.profile).cap
    chunked = pool.chunk > 0
    since = inst.admissions
    fresh, tokens, pairs = 0, 0, 0
    fresh_evictable, fresh_evictable_kv = 0, 0
    spared = False
    while True:
        place = next_place(S, i)
        if place == NOBODY or inst.closed:
            inst.filling = 0
            break
        row = _row_of(S, i, place)
        r = lists_of(S)[row, 0]
        req = req_at(S, r)
        if req.llm != inst.llm:
            inst.filling = 0
            inst.foreign = place
            break
        context = req.input + req.emitted
        need = demand(S, r)
        landed = place == LANDED
        saved = req.kv_host >= 0 and inst_at(S, req.kv_host).host == inst.host
        saved = saved and pool.phase != _PREFILLS
        extra = inst.n_run if chunked else fresh
        if landed:  # its memory is taken
            fits = inst.n_run < inst.limit
        else:
            fits = _fits(inst, extra, need, inst.limit, cap, inst.watermark)
        if chunked:
            in_budget = left >= 1
        else:
            in_budget = saved or landed or fresh == 0 or tokens + context <= pool.prefill
        under_limit = inst.n_run < inst.limit
        if in_budget and not fits:
            made = False
            evictions = inst.evictions
            if place == OWN and pool.evicts and cls_at(S, req.cls).priority == 0:
                made = _make_room(S, i, need, fresh, fresh_evictable, fresh_evictable_kv, t)
            elif place >= 0 and pool.evicts_in_order and pool.deadline == 0:
                made = _make_room_in_order(S, i, need, fresh, since, place, t)
            if inst.evictions > evictions:
                inst.pull_until = min(inst.pull_until, max(place, -1) + 1)
            if made:
                under_limit = True
                extra = inst.n_run if chunked else fresh
                fits = _fits(inst, extra, need, inst.limit, cap, inst.watermark)
        if not (fits and in_budget):
            spared = place >= 0 and pool.evicts_in_order and inst.admissions > since
            if not under_limit:
                inst.bound = 1
                inst.held = 1
            elif in_budget:
                inst.held = 1
            if in_budget or not fits:
                inst.filling = 0
            break
        if landed:
            unlink(S, row, r)
            inst.kv -= need - 1
            inst.n_coming -= 1
        elif place < 0:
            unlink(S, row, r)
            inst.waiting -= need
        else:
            leave(S, r, row - queue_row(S, 0))
            inst.left += req.predicted - req.emitted
        enter(S, i, r, t)
        if req.evictable:
            fresh_evictable += 1
            fresh_evictable_kv += need - 1
        if landed:
            go_on(S, i, r)
        elif saved:
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
    return tokens, pairs, spared


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
    reopens = inst.closed and not pool.static
    if once or reopens or inst.pull_until < inst.n_pull:
        n = 1  # what could not be looked at in this boundary may be taken at the next
    inst.filling = 0
    inst.closed = pool.static
    inst.settled = NOT_KNOWN
    inst.mode = DECODE
    inst.seg_begin = t
    inst.seg_start = t + inst.swap_ps
    inst.swap_ps = 0
    inst.seg_first_ps = decode_first_ps(S, inst.profile, inst.n_dec, inst.ctx)
    inst.seg_step_ps = decode_step_ps(S, inst.profile, inst.n_dec)
    if inst.leaving > 0:  # memory comes free at the first boundary after the copy
        before = max(0, inst.copied_ps - inst.seg_start - 1)
        n = min(n, iterations_within(before, inst.seg_first_ps, inst.seg_step_ps) + 1)
    inst.seg_n = n
    schedule(S, i, 2 * (inst.seg_start + span_ps(n, inst.seg_first_ps, inst.seg_step_ps)))


@njit
def _rest(S, i, t):
    inst = inst_at(S, i)
    inst.mode = IDLE
    inst.seg_n = 0
    clear_items(S, i)
    if inst.n_coming > 0 and lists_of(S)[landed_row(S, i), 2] > 0:
        schedule(S, i, 2 * t + 1)
        return
    if inst.state == _ACTIVE and inst.pull_until < inst.n_pull:
        if shared_place(S, i, inst.n_pull) != NOBODY:
            schedule(S, i, 2 * t + 1)
            return
    schedule(S, i, 2 * inst.copied_ps + 1 if inst.leaving > 0 else NO_EVENT)


@njit
def _make_way(S, i, t):
    """A batch that comes later on the list does not hold up a swap, where swaps flush."""
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    if inst.foreign >= 0 and pool.flushes and pool.deadline == 0:
        if all_later(S, i, inst.foreign):
            flush(S, i, t)


@njit
def _continue_prefill_first(S, i, t):
    inst = inst_at(S, i)
    preempted = preempted_row(S, i)
    # Nothing could be reserved for the own queue; at the next boundary it may be.
    barred = pool_at(S, inst.pool).phase == _DECODES and lists_of(S)[i, 2] > 0
    barred = barred and lists_of(S)[preempted, 2] > 0
    tokens, pairs, once = _admit(S, i, t, -1)
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
    while inst.n_run > 0 and inst.kv + inst.n_dec > cap:
        preempt(S, i, youngest(S, i), t)
        once = True
    if inst.n_run > 0:
        _launch_decode(S, i, t, once)
    else:
        _rest(S, i, t)


@njit
def _continue_chunked(S, i, t):
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    cap = prof_at(S, inst.profile).cap
    once = False
    while inst.n_run > 0 and inst.kv + inst.n_run > cap:
        preempt(S, i, youngest(S, i), t)
        once = True
    left = max(0, pool.chunk - inst.n_dec)
    r = lists_of(S)[prefill_row(S, i), 0]
    while r >= 0:
        req = req_at(S, r)
        req.chunk = min(req.pre_target - req.pre_done, left)
        left -= req.chunk
        r = req.aux_next
    if not once:
        _, _, once = _admit(S, i, t, left)
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
        _rest(S, i, t)


@njit
def nothing_waits(S, i):
    """Whether instance `i` could turn off, as far as requests and KV outside its batch go."""
    inst = inst_at(S, i)
    return lists_of(S)[preempted_row(S, i), 2] == 0 and inst.kv_held == 0 and inst.n_coming == 0


@njit
def boundary(S, i, t):
    """Instance `i` comes to a boundary at `t`; returns what it must do now, see `STAY` and so on."""
    inst = inst_at(S, i)
    ran = inst.n_run
    if inst.mode != IDLE and inst.n_dec == 0:
        inst.w_alone_ps += t - inst.seg_begin
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
        _rest(S, i, t)
        return TURN_OFF
    if inst.n_run == 0:
        inst.closed = 0
    if inst.n_run == 0 or inst.restart:
        clear_window(S, i, t)
    elif pool_at(S, inst.pool).controller != 0:
        update_limit(S, i, t, ran)
    if pool_at(S, inst.pool).chunk > 0:
        _continue_chunked(S, i, t)
    else:
        _continue_prefill_first(S, i, t)
    if inst.foreign >= 0 and inst.n_run == 0 and lists_of(S)[preempted_row(S, i), 2] == 0:
        return SWAP
    return STAY
