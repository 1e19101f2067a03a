"""The running batch of one instance: requests join it, leave it, and their KV cache moves."""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.fast.serving.itl import (
    close_gaps,
    largest_gap,
    last_token_ps,
    push_item,
    settle_pending,
)
from llmscale_env.sim.fast.serving.queues import (
    enter_front,
)
from llmscale_env.sim.fast.state.lists import (
    ending_row,
    landed_row,
    preempted_row,
    prefill_row,
    running_row,
)
from llmscale_env.sim.fast.state.memory import (
    cls_at,
    const_of,
    glob_of,
    heap_of,
    inst_at,
    lists_of,
    log_of,
    place_of,
    pool_at,
    prof_at,
    report_at,
    req_at,
    running_cls_of,
    running_of,
    served_of,
)
from llmscale_env.sim.fast.state.records import SERVED_PROFILE
from llmscale_env.sim.fast.state.structures import (
    heap_add,
    heap_remove,
    push_back,
    push_back_aux,
    push_front,
    unlink,
    unlink_aux,
)
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec import RequestState

LOSE, SAVE, SAVE_BESIDE = 0, 1, 2
"""What becomes of the KV cache of a request that leaves before its end."""

_FINISHED = int(RequestState.FINISHED)
_HANDOVER = int(RequestState.HANDOVER)
_PREEMPTED = int(RequestState.PREEMPTED)
_RUNNING = int(RequestState.RUNNING)


@njit
def demand(S, r):
    """KV tokens that request `r` needs to be admitted."""
    req = req_at(S, r)
    return req.input + req.emitted + 1 + const_of(S).half_block


@njit(forceinline=True)
def enter(S, i, r, t):
    """Request `r` is admitted to instance `i`'s running batch (links, counts and KV memory)."""
    inst = inst_at(S, i)
    req = req_at(S, r)
    kv = req.input + req.emitted + const_of(S).half_block
    req.state = _RUNNING
    req.instance = i
    if req.admitted < 0:
        req.admitted = t
    inst.n_run += 1
    running_of(S)[i] += 1
    inst.kv += kv
    inst.changed = 1
    inst.joined = 1
    inst.fit_valid = 0
    inst.admissions += 1
    req.admission = inst.admissions
    running_cls_of(S)[i, req.cls] += 1
    push_back(S, running_row(S, i, req.evictable), r)
    if req.evictable:
        inst.ev_n += 1
        inst.ev_kv += kv


@njit(forceinline=True)
def start_decoding(S, i, r):
    """`r` (already in the batch, `emitted` tokens) decodes from the next iteration on."""
    inst = inst_at(S, i)
    req = req_at(S, r)
    inst.fit_valid = 0
    req.decoding = 1
    req.item_start = inst.items
    req.join_iter = inst.iter_no - req.emitted
    in_heap = inst.n_dec - lists_of(S)[ending_row(S, i), 2]
    heap_add(S, i, in_heap, req.join_iter + req.output - pool_at(S, inst.pool).asynchronous, r)
    inst.n_dec += 1
    inst.ctx += req.input + req.emitted
    if req.evictable:
        inst.ev_dec += 1


@njit
def drop_copy(S, r):
    """`r`'s KV cache is no longer kept in host memory."""
    req = req_at(S, r)
    if req.kv_host >= 0:
        keeper = inst_at(S, req.kv_host)
        size = prof_at(S, served_of(S)[keeper.pool, req.llm, SERVED_PROFILE]).kv_bytes
        keeper.host_kv -= (req.input + req.emitted) * size
        req.kv_host = -1


@njit
def restore(S, i, r):
    """`r`'s KV cache comes back from host memory: no prefill, it decodes on."""
    inst = inst_at(S, i)
    req = req_at(S, r)
    tokens = req.input + req.emitted
    inst.moving_ps += tokens * prof_at(S, inst.profile).swap_in
    drop_copy(S, r)
    go_on(S, i, r)


@njit
def go_on(S, i, r):
    """`r`, whose KV has landed, decodes on."""
    inst = inst_at(S, i)
    req_at(S, r).gap_open = 1
    inst.gaps_open += 1
    start_decoding(S, i, r)


@njit(forceinline=True)
def start_prefill(S, i, r):
    """`r` needs its context prefilled; a copy saved on another host is of no use."""
    req = req_at(S, r)
    tokens = req.input + req.emitted
    drop_copy(S, r)
    req.pre_done = 0
    req.pre_target = tokens
    req.chunk = 0
    inst_at(S, i).n_pre += 1
    push_back_aux(S, prefill_row(S, i), r)


@njit(forceinline=True)
def emit(S, i, r, t):
    """`r`, at instance `i`, emits its first token at `t`, or the first one after a pause."""
    inst = inst_at(S, i)
    req = req_at(S, r)
    if req.first < 0:
        req.first = t
        glob = glob_of(S)
        log_of(S)[1, glob.n_first_tokens] = r
        glob.n_first_tokens += 1
    else:
        req.max_itl = max(req.max_itl, t - req.last_token)
    req.emitted += 1
    inst.left -= 1
    inst.tokens += 1
    inst.w_tokens += 1


@njit(forceinline=True)
def emit_after_prefill(S, i, r, t):
    """`r`'s prefill ended at `t` with a token; it joins the decoding requests."""
    inst = inst_at(S, i)
    req = req_at(S, r)
    unlink_aux(S, prefill_row(S, i), r)
    inst.n_pre -= 1
    emit(S, i, r, t)
    inst.kv += 1
    if req.evictable:
        inst.ev_kv += 1
    start_decoding(S, i, r)


@njit(forceinline=True)
def commit_decode(S, i, n):
    """Count `n` finished decode iterations of the segment under way."""
    inst = inst_at(S, i)
    emitted = n * inst.n_dec
    inst.kv += emitted
    inst.ctx += emitted
    inst.left -= emitted
    inst.ev_kv += n * inst.ev_dec
    inst.iter_no += n
    inst.iterations += n
    inst.tokens += emitted
    inst.w_iter += n
    inst.w_tokens += emitted
    end_first = inst.seg_start + inst.seg_first_ps
    settle_pending(S, i, end_first)
    close_gaps(S, i, end_first)
    longest = end_first - inst.seg_begin
    last = inst.seg_first_ps + (n - 1) * inst.seg_step_ps
    report = report_at(S, i)
    report.decode_requests = inst.n_dec
    report.decode_context = inst.ctx - inst.n_dec
    report.decode_ps = last
    push_item(S, i, last if last > longest else longest)


@njit(forceinline=True)
def _remove(S, i, r):
    """Take `r` out of every list and count of the batch; returns its KV tokens without rounding."""
    inst = inst_at(S, i)
    req = req_at(S, r)
    if req.decoding:
        req.emitted = inst.iter_no - req.join_iter
        tokens = req.input + req.emitted
        ending = ending_row(S, i)
        if req.decoding == 2:
            unlink_aux(S, ending, r)
        else:
            heap_remove(S, i, inst.n_dec - lists_of(S)[ending, 2], r)
        inst.n_dec -= 1
        inst.ctx -= tokens
        if req.evictable:
            inst.ev_dec -= 1
        if req.gap_open:
            inst.gaps_open -= 1
    else:
        tokens = req.pre_target
        unlink_aux(S, prefill_row(S, i), r)
        inst.n_pre -= 1
        req.chunk = 0
    kv = tokens + const_of(S).half_block
    inst.n_run -= 1
    running_of(S)[i] -= 1
    inst.kv -= kv
    inst.changed = 1
    inst.fit_valid = 0
    running_cls_of(S)[i, req.cls] -= 1
    unlink(S, running_row(S, i, req.evictable), r)
    if req.evictable:
        inst.ev_n -= 1
        inst.ev_kv -= kv
    return tokens


@njit(forceinline=True)
def finish(S, i, r, t):
    """`r` emitted its last token at `t`."""
    req = req_at(S, r)
    req.max_itl = largest_gap(S, i, r)
    _remove(S, i, r)
    req.decoding = 0
    req.gap_open = 0
    log_finished(S, i, r, t)


@njit(forceinline=True)
def log_finished(S, i, r, t):
    """`r`, no longer on any list of instance `i`, is finished."""
    req = req_at(S, r)
    req.finished = t
    req.state = _FINISHED
    inst_at(S, i).left -= req.predicted - req.emitted
    glob = glob_of(S)
    log_of(S)[0, glob.n_finished] = r
    glob.n_finished += 1


@njit(forceinline=True)
def finish_due(S, i, t):
    """Requests whose last token came out leave, in order of id."""
    inst = inst_at(S, i)
    while inst.n_dec > 0 and (heap_of(S)[i, 0] >> 32) <= inst.iter_no:
        finish(S, i, heap_of(S)[i, 0] & 0xFFFFFFFF, t)


@njit
def leave_unfinished(S, i, r, t, save):
    """`r` leaves before its end at `t`, the last boundary.

    `save`: its KV cache is lost (`LOSE`), or goes to host memory, if it fits there, ahead of the next
    iteration (`SAVE`) or beside the iterations, until when it stays in memory (`SAVE_BESIDE`).
    """
    inst = inst_at(S, i)
    req = req_at(S, r)
    decoding = req.decoding
    if decoding:
        last = last_token_ps(S, i, r, t)
        req.max_itl = largest_gap(S, i, r)
        req.last_token = last
    tokens = _remove(S, i, r)
    req.decoding = 0
    req.gap_open = 0
    if save == LOSE or not decoding:
        return
    prof = prof_at(S, inst.profile)
    if inst.host_kv + tokens * prof.kv_bytes > pool_at(S, inst.pool).host_kv_bytes:
        return
    inst.host_kv += tokens * prof.kv_bytes
    req.kv_host = i
    copy_ps = tokens * prof.swap_out
    if save == SAVE:
        inst.moving_ps += copy_ps
    elif copy_ps > 0:
        inst.copied_ps = (inst.copied_ps if inst.leaving > 0 else t) + copy_ps
        kept = tokens + const_of(S).half_block
        inst.leaving += kept
        inst.kv += kept


@njit
def _to_queue_front(S, i, r):
    inst_at(S, i).left -= req_at(S, r).predicted - req_at(S, r).emitted
    enter_front(S, r, req_at(S, r).queue)


@njit
def evict(S, i, r, t):
    """`r` makes room: back to the front of its shared queue, KV saved."""
    req_at(S, r).evictions += 1
    inst_at(S, i).evictions += 1
    beside = pool_at(S, inst_at(S, i).pool).async_kv
    leave_unfinished(S, i, r, t, SAVE_BESIDE if beside else SAVE)
    _to_queue_front(S, i, r)


@njit
def flush(S, i, t):
    """Everybody goes back to the front of their queues; KV is lost."""
    inst = inst_at(S, i)
    while inst.n_run > 0:
        r = youngest(S, i)
        req_at(S, r).evictions += 1
        inst.evictions += 1
        leave_unfinished(S, i, r, t, LOSE)
        _to_queue_front(S, i, r)


@njit
def restart(S, i, r, t):
    """`r`, who runs, was preempted or has landed at instance `i`, which fails, begins anew.

    `t`: last boundary.
    """
    inst = inst_at(S, i)
    req = req_at(S, r)
    if req.state == _PREEMPTED:
        unlink(S, preempted_row(S, i), r)
        inst.waiting -= demand(S, r)
        inst.fit_valid = 0
    elif req.state == _HANDOVER:
        unlink(S, landed_row(S, i), r)
        inst.kv -= demand(S, r) - 1
        inst.n_coming -= 1
        inst.fit_valid = 0
        req.at = -1
    else:
        leave_unfinished(S, i, r, t, LOSE)
    inst.left -= req.predicted - req.emitted
    drop_copy(S, r)
    req.emitted = 0
    req.restarts += 1


@njit
def all_later(S, i, place):
    """Whether everybody running at instance `i` came from queues behind `place`."""
    for evictable in range(2):
        r = lists_of(S)[running_row(S, i, evictable), 0]
        while r >= 0:
            q = req_at(S, r).queue
            if q < 0 or place_of(S)[i, q] <= place:
                return False
            r = req_at(S, r).next
    return True


@njit
def kv_of_running(S, i, r):
    """KV tokens of running request `r`, rounding included."""
    req = req_at(S, r)
    tokens = req.pre_target
    if req.decoding:
        tokens = req.input + inst_at(S, i).iter_no - req.join_iter
    return tokens + const_of(S).half_block


@njit
def later_victims(S, i, place, since):
    """Running requests that came from queues behind `place`, those admitted after number `since` left out.

    Returns:
        (number, KV tokens, the most recently admitted one or -1)
    """
    n, kv = 0, 0
    latest = np.int64(-1)
    for evictable in range(2):
        r = lists_of(S)[running_row(S, i, evictable), 0]
        while r >= 0:
            req = req_at(S, r)
            if req.queue >= 0 and place_of(S)[i, req.queue] > place and req.admission <= since:
                n += 1
                kv += kv_of_running(S, i, r)
                if latest < 0 or req.admission > req_at(S, latest).admission:
                    latest = r
            r = req.next
    return n, kv, latest


@njit
def preempt(S, i, r, t):
    """KV memory ran out and `r` was admitted last."""
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    req_at(S, r).preemptions += 1
    inst.preemptions += 1
    leave_unfinished(S, i, r, t, SAVE if pool.preemption == 1 else LOSE)
    if pool.evicts and cls_at(S, req_at(S, r).cls).priority == 1:
        _to_queue_front(S, i, r)
    else:
        req_at(S, r).state = _PREEMPTED
        push_front(S, preempted_row(S, i), r)
        inst.waiting += demand(S, r)


@njit
def youngest(S, i):
    """The running request admitted last; with two lists the admission counter decides."""
    a = lists_of(S)[running_row(S, i, 0), 1]
    b = lists_of(S)[running_row(S, i, 1), 1]
    if a < 0:
        return b
    if b < 0:
        return a
    return a if req_at(S, a).admission > req_at(S, b).admission else b
