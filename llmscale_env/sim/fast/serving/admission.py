"""Admission at an iteration boundary: who is taken, and who is evicted for it (docs/engine.md, section 4)."""

from __future__ import annotations

from llmscale_env.sim.fast.serving.batch import (
    demand,
    enter,
    evict,
    go_on,
    later_victims,
    restore,
    start_prefill,
)
from llmscale_env.sim.fast.serving.next_request import LANDED, NOBODY, OWN, PREEMPTED, next_place
from llmscale_env.sim.fast.serving.queues import (
    leave,
)
from llmscale_env.sim.fast.state.lists import (
    landed_row,
    preempted_row,
    queue_row,
    running_row,
)
from llmscale_env.sim.fast.state.memory import (
    cls_at,
    co_at,
    const_of,
    inst_at,
    lists_of,
    pool_at,
    prof_at,
    pull_of,
    req_at,
)
from llmscale_env.sim.fast.state.structures import leave_own, unlink
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec.kinds import PoolPhase

_PREFILLS = int(PoolPhase.PREFILL)


@njit(forceinline=True)
def row_of(S, i, place):
    """List that instance `i` takes from at a place."""
    if place == LANDED:
        return landed_row(S, i)
    if place == PREEMPTED:
        return preempted_row(S, i)
    if place == OWN:
        return i
    return queue_row(S, pull_of(S)[i, place])


@njit(forceinline=True)
def leave_queue(S, i, place, row, r, need):
    """Request `r`, of so much `demand`, waits no longer on list `row`, from which `i` takes it at `place`."""
    inst = inst_at(S, i)
    req = req_at(S, r)
    if place >= 0:
        leave(S, r, row - queue_row(S, 0))
        inst.left += req.predicted - req.emitted
        return
    inst.waiting -= need
    if place == OWN:
        leave_own(S, i, r)
    else:
        unlink(S, row, r)


@njit(forceinline=True)
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
    chunked = pool.chunk_tokens > 0
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
    chunked = pool.chunk_tokens > 0
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


@njit(forceinline=True)
def admit(S, i, t, left):
    """Admit what fits.

    `left` is the chunked iteration's budget still free (-1: prefill first).

    Returns:
        (tokens, squared tokens to prefill before chunking, whether the next boundary may evict those
        admitted in this one for the candidate that ended it)
    """
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    cap = prof_at(S, inst.profile).cap
    chunked = pool.chunk_tokens > 0
    # All that runs has still to emit: with chunks, and where only prompts run, some of them in a live pair.
    all_emit = chunked or pool.phase == _PREFILLS
    since = inst.admissions
    fresh, tokens, pairs = 0, 0, 0
    fresh_evictable, fresh_evictable_kv = 0, 0
    spared = False
    while True:
        place = next_place(S, i)
        if place == NOBODY or inst.closed:
            break
        row = row_of(S, i, place)
        r = lists_of(S)[row, 0]
        req = req_at(S, r)
        if req.llm != inst.llm:
            inst.foreign = place
            break
        context = req.input + req.emitted
        need = demand(S, r)
        landed = place == LANDED
        saved = req.kv_host >= 0 and inst_at(S, req.kv_host).host == inst.host
        saved = saved and pool.phase != _PREFILLS
        extra = inst.n_run if all_emit else fresh
        if landed:  # its memory is taken
            fits = inst.n_run < inst.limit
        else:
            fits = _fits(inst, extra, need, inst.limit, cap, inst.watermark)
        if chunked:
            in_budget = left >= 1
        else:
            in_budget = saved or landed or fresh == 0 or tokens + context <= pool.prefill_tokens
        if in_budget and not fits:
            made = False
            evictions = inst.evictions
            if place == OWN and pool.evicts and cls_at(S, req.cls).priority == 0:
                made = _make_room(S, i, need, fresh, fresh_evictable, fresh_evictable_kv, t)
            elif place >= 0 and pool.evicts_in_order and pool.pull_rule == 0:
                made = _make_room_in_order(S, i, need, fresh, since, place, t)
            if inst.evictions > evictions:
                inst.pull_until = min(inst.pull_until, max(place, -1) + 1)
            if made:
                extra = inst.n_run if all_emit else fresh
                fits = _fits(inst, extra, need, inst.limit, cap, inst.watermark)
        if not (fits and in_budget):
            may_evict = pool.evicts_in_order if place >= 0 else place == OWN and pool.evicts
            spared = may_evict and inst.admissions > since
            break
        if landed:
            unlink(S, row, r)
            inst.kv -= need - 1
            inst.n_coming -= 1
        else:
            leave_queue(S, i, place, row, r, need)
        if const_of(S).live:
            co_at(S, r).origin = row - queue_row(S, 0) if place >= 0 else -1
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
