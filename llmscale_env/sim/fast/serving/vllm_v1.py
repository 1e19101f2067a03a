"""Instances that schedule as vLLM's V1 engine does (docs/engine.md, section 19).

At a boundary a step ends, the next one starts, and one more is composed: with `asynchronous` (a lead of 1)
the one after it, otherwise the one that starts. Requests that decode get a token in every step, and need a
block at every `block`-th. `growing_of` counts them by the step, modulo `block`, at which they do. So the
blocks of a run of steps are a sum (`block_needs`), and decode segments go on over block boundaries.

A running request is in one of four states:

- being prefilled (list `prefill_row`): `pre_done` tokens are computed at the end of the step that runs,
  `chunk` more in the step composed after it;
- the same with `pre_done == pre_target`: its context is complete at the end of the step that runs;
- decoding (`decoding == 1`): in the heap, and counted in `growing_of`;
- ending (`decoding == 2`, list `ending_row`): its last token comes at the end of the step that runs.
"""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.fast.serving.admission import leave_queue, row_of
from llmscale_env.sim.fast.serving.batch import (
    commit_decode,
    demand,
    emit,
    emit_after_prefill,
    enter,
    finish,
    log_finished,
    preempt,
    start_prefill,
    youngest,
)
from llmscale_env.sim.fast.serving.itl import close_gaps, push_item
from llmscale_env.sim.fast.serving.next_request import NOBODY, next_place
from llmscale_env.sim.fast.serving.prefix_cache import (
    find_hits,
    forget_cache,
    give_names,
    hold_hits,
    look_for_room,
    may_be_named,
    release,
    trim,
)
from llmscale_env.sim.fast.serving.timing import (
    block_needs,
    decode_first_ps,
    decode_step_ps,
    mixed_ps,
    span_ps,
)
from llmscale_env.sim.fast.state.lists import (
    ending_row,
    preempted_row,
    prefill_row,
    running_row,
)
from llmscale_env.sim.fast.state.memory import (
    blocks_at,
    glob_of,
    growing_of,
    heap_of,
    inst_at,
    lists_of,
    pool_at,
    prof_at,
    report_at,
    req_at,
    v1_at,
)
from llmscale_env.sim.fast.state.records import DECODE, NOT_KNOWN, STEP
from llmscale_env.sim.fast.state.structures import (
    heap_remove,
    insert_aux,
    key_at,
    schedule,
    unlink,
)
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec import RequestState

_RUNNING = int(RequestState.RUNNING)


@njit
def _blocks(S, i, tokens):
    """Blocks that hold so many tokens at instance `i`."""
    size = pool_at(S, inst_at(S, i).pool).block_tokens
    return (tokens + size - 1) // size


@njit
def _given(S, i, r):
    """Tokens of running request `r` that have been given to steps before the composition at hand."""
    inst, req = inst_at(S, i), req_at(S, r)
    if req.decoding == 0:
        return np.int64(req.pre_done)
    return req.input + inst.iter_no - req.join_iter - 1 + pool_at(S, inst.pool).asynchronous


@njit
def _grow(S, i, tokens, more):
    """A request with `tokens` given takes one more in every step from this composition on, or no longer."""
    inst = inst_at(S, i)
    growing_of(S)[i, (tokens - inst.iter_no) % pool_at(S, inst.pool).block_tokens] += more


@njit
def _take_blocks(S, i, n):
    """Instance `i`'s running requests hold `n` blocks more."""
    v1_at(S, i).used += n
    if pool_at(S, inst_at(S, i).pool).prefix_cache:
        trim(S, i, 0)


@njit
def _free_blocks(S, i, r, tokens, held):
    """Running request `r`, which knows `tokens` of the tokens given to it, no longer holds `held` blocks."""
    if pool_at(S, inst_at(S, i).pool).prefix_cache:
        release(S, i, r, tokens, held)
    else:
        v1_at(S, i).used -= held


@njit
def lose_blocks(S, i):
    """What the prefix cache of instance `i` holds, and what its running requests do, is lost."""
    for evictable in range(2):
        r = np.int64(lists_of(S)[running_row(S, i, evictable), 0])
        while r >= 0:
            release(S, i, r, 0, 0)
            r = np.int64(req_at(S, r).next)
    forget_cache(S, i)


@njit
def forget_blocks(S, i):
    """Instance `i` has lost its memory."""
    v1_at(S, i).used = v1_at(S, i).flying = 0
    inst_at(S, i).kv = 0
    for k in range(pool_at(S, inst_at(S, i).pool).block_tokens):
        growing_of(S)[i, k] = 0


# ---- 1. what the step just ended has brought -------------------------------------------------------


@njit
def _emit_preempted(S, i, t):
    """Those who gave way while the step ran had their share in it."""
    inst = inst_at(S, i)
    row = preempted_row(S, i)
    r = np.int64(lists_of(S)[row, 0])
    for _ in range(v1_at(S, i).flying):
        req = req_at(S, r)
        after = np.int64(req.next)
        if req.chunk == 1:
            emit(S, i, r, t)
            req.last_token = t
            inst.waiting += 1
            if req.emitted == req.output:
                unlink(S, row, r)
                inst.waiting -= demand(S, r)
                log_finished(S, i, r, t)
        r = after
    v1_at(S, i).flying = 0


@njit
def _end_step(S, i, t):
    inst, step = inst_at(S, i), v1_at(S, i)
    inst.iter_no += 1
    if step.decoding > 0 or step.chunks > 0:
        inst.iterations += 1
    if step.decoding > 0:
        inst.w_iter += 1
        if step.chunks == 0:
            report = report_at(S, i)
            report.decode_requests = step.decoding
            report.decode_context = step.context
            report.decode_ps = t - inst.seg_begin
    n = inst.n_dec
    if n > 0:
        inst.ctx += n
        inst.left -= n
        inst.ev_kv += inst.ev_dec
        inst.tokens += n
        inst.w_tokens += n
        close_gaps(S, i, t)
        push_item(S, i, t - inst.seg_begin)
    lead = pool_at(S, inst.pool).asynchronous
    r = lists_of(S)[prefill_row(S, i), 0]
    while r >= 0:
        req = req_at(S, r)
        after = req.aux_next
        if req.pre_done == req.pre_target:
            emit_after_prefill(S, i, r, t)
            # With a lead of 1 it has been growing since the composition at which the step began.
            if lead == 0:
                _grow(S, i, _given(S, i, r), 1)
        r = after


@njit
def _mark_ending(S, i, until, grows):
    """Requests whose key is at most `until` are ending, in order of admission; `grows`: they grew so far."""
    inst = inst_at(S, i)
    row = ending_row(S, i)
    while inst.n_dec > lists_of(S)[row, 2] and (heap_of(S)[i, 0] >> 32) <= until:
        r = heap_of(S)[i, 0] & 0xFFFFFFFF
        req = req_at(S, r)
        heap_remove(S, i, inst.n_dec - lists_of(S)[row, 2], r)
        if grows:
            _grow(S, i, _given(S, i, r), -1)
        req.decoding = 2
        before = lists_of(S)[row, 1]
        while before >= 0 and req_at(S, before).admission > req.admission:
            before = req_at(S, before).aux_prev
        insert_aux(S, row, r, before)


@njit
def end_v1(S, i, t):
    """What instance `i` runs, a step or a segment, ends at `t`; requests leave in order of admission."""
    inst = inst_at(S, i)
    if inst.mode == DECODE:
        # The composition at its end is still to come.
        _take_blocks(S, i, block_needs(S, i, inst.seg_n - 1))
        commit_decode(S, i, inst.seg_n)
    elif inst.mode == STEP:
        _end_step(S, i, t)
    else:
        return
    inst.busy_ps += t - inst.seg_begin
    lead = pool_at(S, inst.pool).asynchronous
    _mark_ending(S, i, inst.iter_no - lead, lead == 0)
    row = ending_row(S, i)
    while lists_of(S)[row, 2] > 0:
        r = np.int64(lists_of(S)[row, 0])
        tokens = np.int64(req_at(S, r).input) + req_at(S, r).output - 1
        _free_blocks(S, i, r, tokens, _blocks(S, i, tokens))
        finish(S, i, r, t)
    _emit_preempted(S, i, t)


# ---- 2. composing a step ---------------------------------------------------------------------------


@njit
def _give_way(S, i, r, t):
    """Running request `r` frees its blocks; with a step under way, what it makes of it still comes."""
    inst, req = inst_at(S, i), req_at(S, r)
    lead = pool_at(S, inst.pool).asynchronous
    given = _given(S, i, r)
    complete = req.decoding > 0 or req.pre_done == req.pre_target
    grows = req.decoding == 1 or (complete and req.decoding == 0 and req.output - req.emitted > 1)
    if grows:
        _grow(S, i, given, -1)
    # Not in the step at hand, so it has names for the tokens that it knew when the one before was composed.
    known = np.int64(req.pre_done)
    if req.decoding > 0:
        known = np.int64(req.input) + inst.iter_no - req.join_iter - 1
    _free_blocks(S, i, r, known, _blocks(S, i, given))
    preempt(S, i, r, t)
    if lead == 1:
        req.chunk = complete
        v1_at(S, i).flying += 1


@njit
def _give_chunk(S, i, r, tokens):
    """Request `r` gets `tokens` of its context in the step at hand, and has the blocks for them."""
    req = req_at(S, r)
    req.chunk = tokens
    if pool_at(S, inst_at(S, i).pool).prefix_cache:
        give_names(S, i, r, req.pre_done + tokens)


@njit
def _next_admitted(S, i, r, other):
    """The running request admitted next after `r`, and the next one of the list that `r` is not in."""
    mine = np.int64(req_at(S, r).next)
    if other >= 0 and req_at(S, other).state != _RUNNING:
        other = np.int64(-1)  # it has given way, and so have those behind it
    if mine < 0 or (other >= 0 and req_at(S, other).admission < req_at(S, mine).admission):
        return other, mine
    return mine, other


@njit
def _compose_scarce(S, i, t, left, blocks):
    """Blocks are short: requests get their tokens one after the other. Returns how many got any."""
    step = v1_at(S, i)
    r = np.int64(lists_of(S)[running_row(S, i, 0), 0])
    other = np.int64(lists_of(S)[running_row(S, i, 1), 0])
    if r < 0 or (other >= 0 and req_at(S, other).admission < req_at(S, r).admission):
        r, other = other, r
    shares = 0
    while r >= 0 and left > 0:
        req = req_at(S, r)
        tokens = np.int64(1)
        if req.decoding == 0 and req.pre_done < req.pre_target:
            tokens = min(np.int64(req.pre_target - req.pre_done), left)
        elif req.decoding == 2 or (req.decoding == 0 and req.output - req.emitted == 1):
            tokens = np.int64(0)  # its last token is on its way
        if tokens > 0:
            given = _given(S, i, r)
            more = _blocks(S, i, given + tokens) - _blocks(S, i, given)
            while more > blocks - step.used:
                latest = youngest(S, i)
                _give_way(S, i, latest, t)
                if latest == r:
                    return shares
            _take_blocks(S, i, more)
            if req.decoding == 0 and req.pre_done < req.pre_target:
                _give_chunk(S, i, r, tokens)
            left -= tokens
            shares += 1
        r, other = _next_admitted(S, i, r, other)
    return shares


@njit
def _admit(S, i, t, left, blocks):
    """Waiting requests join while there is a place, budget and memory; returns how many."""
    inst, step = inst_at(S, i), v1_at(S, i)
    pool = pool_at(S, inst.pool)
    n = 0
    while left > 0 and inst.n_run < inst.limit:
        place = next_place(S, i)
        if place == NOBODY:
            break
        row = row_of(S, i, place)
        r = np.int64(lists_of(S)[row, 0])
        req = req_at(S, r)
        context = np.int64(req.input + req.emitted)
        hits, idle = np.int64(0), np.int64(0)
        if pool.prefix_cache:
            hits, idle = find_hits(S, i, r)
        done = hits * pool.block_tokens
        chunk = min(context - done, left)
        kept = inst.watermark // pool.block_tokens if inst.n_run > 0 else 0
        asked = context if pool.reserve_full else done + chunk
        if _blocks(S, i, asked) - hits + idle + kept > blocks - step.used:
            break
        if pool.prefix_cache:
            if req.admitted < 0:
                blocks_at(S, r).cached = done
            if req.preemptions == 0:
                step.asked += context
                step.hit += done
            hold_hits(S, i, r, hits)
        leave_queue(S, i, place, row, r, demand(S, r))
        enter(S, i, r, t)
        start_prefill(S, i, r)
        req.pre_done = done
        req.join_iter = 0  # nothing of it runs yet
        _take_blocks(S, i, _blocks(S, i, done + chunk) - hits)
        _give_chunk(S, i, r, chunk)
        left -= chunk
        n += 1
    return n


@njit
def _compose(S, i, t):
    """Compose a step; returns how many requests have a share in it, and whether any gave way."""
    inst, step = inst_at(S, i), v1_at(S, i)
    pool = pool_at(S, inst.pool)
    blocks = prof_at(S, inst.profile).cap // pool.block_tokens
    shares = inst.n_dec - lists_of(S)[ending_row(S, i), 2]
    partial = np.int64(-1)
    r = np.int64(lists_of(S)[prefill_row(S, i), 0])
    while r >= 0:
        req = req_at(S, r)
        if req.pre_done < req.pre_target:
            partial = r  # the last one in the list, and the only one: it had all that was left
        elif req.output - req.emitted > 1:
            _grow(S, i, np.int64(req.pre_done), 1)
            shares += 1
        r = np.int64(req.aux_next)
    left = pool.chunk_tokens - shares
    needed = growing_of(S)[i, (-inst.iter_no) % pool.block_tokens]
    chunk = np.int64(0)
    if partial >= 0:
        req = req_at(S, partial)
        chunk = min(np.int64(req.pre_target - req.pre_done), left)
        needed += _blocks(S, i, req.pre_done + chunk) - _blocks(S, i, np.int64(req.pre_done))
    if needed > blocks - step.used:
        return _compose_scarce(S, i, t, pool.chunk_tokens, blocks), True
    _take_blocks(S, i, needed)
    if chunk > 0:
        _give_chunk(S, i, partial, chunk)
        shares += 1
    return shares + _admit(S, i, t, left - chunk, blocks), False


# ---- 3. launch ---------------------------------------------------------------------------------------


@njit
def _start(S, i):
    """The step composed last starts; returns its time on the GPU."""
    inst, step = inst_at(S, i), v1_at(S, i)
    tokens, pairs, chunks = np.int64(0), np.int64(0), np.int64(0)
    r = lists_of(S)[prefill_row(S, i), 0]
    while r >= 0:
        req = req_at(S, r)
        req.join_iter = req.chunk
        if req.chunk > 0:
            chunk = np.int64(req.chunk)
            chunks += 1
            tokens += chunk
            pairs += chunk * (2 * req.pre_done + chunk)
            req.pre_done += chunk
            req.chunk = 0
        r = req.aux_next
    step.decoding, step.context, step.chunks = inst.n_dec, inst.ctx, chunks
    if chunks > 0:
        return mixed_ps(S, inst.profile, inst.n_dec, inst.ctx, tokens, pairs, chunks)
    if inst.n_dec > 0:
        return decode_first_ps(S, inst.profile, inst.n_dec, inst.ctx)
    return np.int64(0)


@njit
def _steps_with_blocks(S, i):
    """How many steps of decoding come before a composition for which blocks are short."""
    inst = inst_at(S, i)
    size = pool_at(S, inst.pool).block_tokens
    free = prof_at(S, inst.profile).cap // size - v1_at(S, i).used
    rounds = free // inst.n_dec
    free -= rounds * inst.n_dec
    k = 0
    while k < size - 1:
        free -= growing_of(S)[i, (-(inst.iter_no + k + 1)) % size]
        if free < 0:
            break
        k += 1
    return rounds * size + k + 1


@njit
def _launch_segment(S, i, t, host_ps):
    """Steps in which all decode and to which no request comes, up to the next thing that can change that."""
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    n = min((heap_of(S)[i, 0] >> 32) - inst.iter_no, _steps_with_blocks(S, i))
    if pool.controller != 0 and inst.changed:
        n = min(n, max(1, pool.controller_window_iterations - inst.w_iter))
    if inst.settling and inst.n_run <= inst.limit:
        n = 1
    if pool.prefix_cache and glob_of(S).shares and inst.n_run < inst.limit:
        place = next_place(S, i)  # who waits may yet find blocks that running requests fill
        if place != NOBODY and may_be_named(S, i, np.int64(lists_of(S)[row_of(S, i, place), 0])):
            n = 1
    first = decode_first_ps(S, inst.profile, inst.n_dec, inst.ctx)
    step_ps = decode_step_ps(S, inst.profile, inst.n_dec)
    if pool.asynchronous == 0:
        first += host_ps
    elif host_ps > first:  # the host sets the pace until the context has grown
        if step_ps > 0:
            n = min(n, (host_ps - first + step_ps - 1) // step_ps)
        first, step_ps = host_ps, np.int64(0)
    inst.settled = NOT_KNOWN
    inst.mode = DECODE
    inst.seg_begin = inst.seg_start = t
    inst.seg_first_ps = first
    inst.seg_step_ps = step_ps
    inst.seg_n = n
    schedule(S, i, key_at(t + span_ps(n, first, step_ps)))


@njit
def continue_v1(S, i, t):
    """Compose, and launch what is to run now; False: nothing is."""
    inst, step = inst_at(S, i), v1_at(S, i)
    pool = pool_at(S, inst.pool)
    gpu_ps = np.int64(0)
    if pool.asynchronous == 1:
        gpu_ps = _start(S, i)
        _mark_ending(S, i, inst.iter_no, True)
    shares, scarce = _compose(S, i, t)
    host_ps = pool.host_base_ps + pool.host_per_request_ps * shares if shares > 0 else np.int64(0)
    if pool.asynchronous == 0:
        gpu_ps = _start(S, i)
    if pool.prefix_cache:
        look_for_room(S)
    inst.kv = step.used * pool.block_tokens
    if inst.n_run == 0:
        return False
    steady = inst.n_pre == 0 and lists_of(S)[ending_row(S, i), 2] == 0 and not scarce
    if steady and step.chunks == 0 and step.decoding > 0:
        _launch_segment(S, i, t, host_ps)
        return True
    inst.mode = STEP
    inst.seg_begin = inst.seg_start = t
    inst.seg_n = 0
    duration = max(gpu_ps, host_ps) if pool.asynchronous == 1 else gpu_ps + host_ps
    schedule(S, i, key_at(t + duration))
    return True
