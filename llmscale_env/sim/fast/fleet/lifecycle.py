"""The life of instances: acquiring, loading, serving, draining (docs/engine.md, sections 3, 8 and 15)."""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.fast.fleet import spot
from llmscale_env.sim.fast.serving import handover
from llmscale_env.sim.fast.serving.batch import (
    commit_decode,
    demand,
    drop_copy,
    restart,
    youngest,
)
from llmscale_env.sim.fast.serving.boundary import nothing_waits
from llmscale_env.sim.fast.serving.controller import forget
from llmscale_env.sim.fast.serving.itl import clear_items
from llmscale_env.sim.fast.serving.live_pairs import let_go, wake_serving
from llmscale_env.sim.fast.serving.next_request import head_at
from llmscale_env.sim.fast.serving.queues import (
    enter_front,
)
from llmscale_env.sim.fast.serving.region_routing import stays_in_region
from llmscale_env.sim.fast.serving.routing import route, route_gateway, to_instance
from llmscale_env.sim.fast.serving.timing import iterations_done, span_ps
from llmscale_env.sim.fast.serving.vllm_v1 import forget_blocks, lose_blocks
from llmscale_env.sim.fast.serving.wake import hand_over, wake
from llmscale_env.sim.fast.state.lists import (
    held_row,
    landed_row,
    preempted_row,
)
from llmscale_env.sim.fast.state.memory import (
    active_of,
    const_of,
    endpoint_at,
    flow_at,
    glob_of,
    host_count_of,
    host_gone_of,
    host_ready_of,
    host_used_of,
    inst_at,
    lists_of,
    live_at,
    load_at,
    pool_at,
    req_at,
    served_of,
)
from llmscale_env.sim.fast.state.records import (
    DECODE,
    IDLE,
    NO_EVENT,
    SERVED_FETCH,
    SERVED_PROFILE,
    SERVED_SWAP,
    SERVED_WATERMARK,
)
from llmscale_env.sim.fast.state.structures import key_at, leave_own, schedule
from llmscale_env.sim.fast.weights import host_memory, live, loading, parameter_pool
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec import InstanceState, LoadSource, PoolPhase

_OFF = int(InstanceState.OFF)
_ACQUIRING = int(InstanceState.ACQUIRING)
_LOADING = int(InstanceState.LOADING)
_ACTIVE = int(InstanceState.ACTIVE)
_DRAINING = int(InstanceState.DRAINING)
_PREFILLS = int(PoolPhase.PREFILL)
_DECODES = int(PoolPhase.DECODE)
_SSD = int(LoadSource.SSD)
_HOST = int(LoadSource.HOST)


@njit
def _list_active(S, i):
    """Enter instance `i` in its pool's ascending list of active instances."""
    p = inst_at(S, i).pool
    n = pool_at(S, p).n_active
    while n > 0 and active_of(S)[p, n - 1] > i:
        active_of(S)[p, n] = active_of(S)[p, n - 1]
        n -= 1
    active_of(S)[p, n] = i
    pool_at(S, p).n_active += 1


@njit
def _unlist_active(S, i):
    p = inst_at(S, i).pool
    n = pool_at(S, p).n_active
    k = 0
    while active_of(S)[p, k] != i:
        k += 1
    for j in range(k, n - 1):
        active_of(S)[p, j] = active_of(S)[p, j + 1]
    pool_at(S, p).n_active = n - 1


@njit
def start_loading(S, i, t):
    """Acquiring has ended: load from the ordered source, or the next slower one that is there."""
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    source = inst.source
    if pool.weight_bytes > 0:
        source = loading.begin(S, i, source, t)
    else:
        while not parameter_pool.weights_at(S, source, inst.llm, inst.host, t):
            source -= 1
    inst.loaded_from = source
    pool.source_used[source] += 1
    inst.state = _LOADING
    inst.billed_ps = t
    if pool.weight_bytes > 0:
        inst.loaded_ps = -1
        schedule(S, i, NO_EVENT)
        loading.look(S, i, t)
    else:
        inst.loaded_ps = t + (
            pool.wake_ps if source == _HOST and _sleeps(S, i, t) else pool.load_ps[source]
        )
        load_at(S, i).asleep_ps = -1
        schedule(S, i, key_at(inst.loaded_ps))


@njit
def _sleeps(S, i, t):
    """Whether the process of slot `i` sleeps and can be woken."""
    asleep = load_at(S, i).asleep_ps
    if pool_at(S, inst_at(S, i).pool).wake_ps < 0 or asleep < 0:
        return False
    return t - asleep <= const_of(S).keep_alive


@njit
def activate(S, i, t, router, features):
    """Instance `i`, which has its weights or was draining, serves."""
    inst = inst_at(S, i)
    was = inst.state
    inst.loaded_ps = -1
    inst.state = _ACTIVE
    load_at(S, i).mutating = 0
    _list_active(S, i)
    if endpoint_at(S, inst.pool).spot:
        spot.serves(S, i, t)
    if was != _DRAINING:
        inst.mode = IDLE
        inst.seg_n = 0
        host_count_of(S)[inst.host, inst.llm] += 1
        schedule(S, i, NO_EVENT)
        forget(S, i, t)
        live.finish(S, i, t)
        loading.look_all(S, inst.llm, t)
    if pool_at(S, inst.pool).phase == _DECODES:
        handover.route_decode_gateway(S, inst.llm, t, router, features)
    else:
        route_gateway(S, inst.llm, t, router, features)
    wake(S, i, t)


@njit
def _weights_gone(S, i, t):
    """Instance `i` no longer holds its LLM's weights."""
    inst = inst_at(S, i)
    host_count_of(S)[inst.host, inst.llm] -= 1
    if host_count_of(S)[inst.host, inst.llm] == 0:
        host_gone_of(S)[inst.host, inst.llm] = t


@njit
def set_llm(S, i, m):
    """Instance `i` serves (or will serve) LLM `m` of its pool's."""
    inst = inst_at(S, i)
    inst.llm = m
    inst.profile = served_of(S)[inst.pool, m, SERVED_PROFILE]
    inst.watermark = served_of(S)[inst.pool, m, SERVED_WATERMARK]


@njit
def swap(S, i, t):
    """Active instance `i`, which runs nothing, loads the LLM of the request that it came upon."""
    inst = inst_at(S, i)
    m = np.int64(req_at(S, head_at(S, i, inst.foreign)).llm)
    inst.state = _LOADING
    _weights_gone(S, i, t)
    _unlist_active(S, i)
    loading.source_gone(S, i, t)
    set_llm(S, i, m)
    inst.swaps += 1
    host_used_of(S)[i, m] = inst.swaps
    host_memory.plan(S, i, t, m)
    start = t
    if inst.leaving > 0:
        start = max(start, inst.copied_ps)
        inst.kv -= inst.leaving
        inst.leaving = 0
    start += inst.moving_ps
    inst.moving_ps = 0
    fetch = served_of(S)[inst.pool, m, SERVED_FETCH]
    move = served_of(S)[inst.pool, m, SERVED_SWAP]
    ready = host_ready_of(S)[i, m]
    if ready < 0:
        inst.loaded_ps = start + fetch + move
    else:
        inst.loaded_ps = max(start, ready) + move
    inst.loaded_from = _HOST if 0 <= ready <= t else _SSD
    schedule(S, i, key_at(inst.loaded_ps))


@njit
def _last_to_restart(S, i):
    """Of those that a failure of instance `i` makes start again, in reverse order, the next; -1: none.

    In order: preempted, running by admission, landed, those whose KV it holds, or a part of it.
    """
    if live_at(S, i).n_held > 0:
        return live_at(S, i).held_last
    for row in (held_row(S, i), landed_row(S, i)):
        if lists_of(S)[row, 2] > 0:
            return lists_of(S)[row, 1]
    if inst_at(S, i).n_run > 0:
        return youngest(S, i)
    return lists_of(S)[preempted_row(S, i), 1]


@njit
def fail(S, i, t, router, features):
    """Instance `i` loses what it has on its GPUs and its requests' KV, and is to be loaded anew."""
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    was = inst.state
    boundary = inst.seg_begin
    if was == _ACTIVE or was == _DRAINING:
        if inst.mode == DECODE:
            n = iterations_done(S, i, t)
            if n > 0:
                boundary = inst.seg_start + span_ps(n, inst.seg_first_ps, inst.seg_step_ps)
                commit_decode(S, i, n)
        if inst.mode != IDLE:
            inst.busy_ps += t - inst.seg_begin
        _weights_gone(S, i, t)
        if was == _ACTIVE:
            _unlist_active(S, i)
    leased = endpoint_at(S, inst.pool).spot == 1
    if inst.billed_ps >= 0 and not leased:
        inst.gpu_ps += t - inst.billed_ps
        inst.billed_ps = -1
    inst.failures += 1
    inst.loaded_ps = inst.loaded_from = -1
    inst.moving_ps = inst.order_evict = inst.closed = 0
    inst.kv -= inst.leaving
    inst.leaving = 0
    inst.mode = IDLE
    inst.seg_n = 0
    inst.state = _OFF
    load_at(S, i).mutating = 0
    load_at(S, i).asleep_ps = -1
    loading.stop(S, i, t)
    loading.source_gone(S, i, t)
    schedule(S, i, NO_EVENT)
    hand_over(S, i)
    if const_of(S).live:
        live.stop_leading(S, i, t)
        live.lose_helper(S, i, t, router, features)
    if pool.prefix_cache:
        lose_blocks(S, i)
    # Who has no queue to go back to is routed again, after the instance's state is settled.
    homeless = np.int64(-1)
    while True:
        r = _last_to_restart(S, i)
        if r < 0:
            break
        if live_at(S, i).n_held > 0:
            _lose_part(S, r, t)
        elif inst.kv_held > 0:
            handover.lose_held(S, i, r, t)
            req_at(S, r).emitted = 0
            req_at(S, r).restarts += 1
        else:
            restart(S, i, r, boundary)
        homeless = _queue_again(S, r, homeless, t)
    if pool.phase == _PREFILLS:
        handover.look_at_touched(S, t)
    elif pool.phase == _DECODES:
        handover.call_back(S, i, t)
    clear_items(S, i)
    inst.gaps_open = 0
    if pool.block_tokens > 0:
        forget_blocks(S, i)
    for r in range(glob_of(S).next_arrival):
        if req_at(S, r).kv_host == i:
            drop_copy(S, r)
    set_llm(S, i, pool.llm)
    if leased:
        spot.fail(S, i, was, t)
    elif was == _DRAINING:
        glob_of(S).gpus_held -= pool.gpus
    else:
        acquire(S, i, pool.load_source, pool.repair_ps, t)
    _route_all(S, homeless, t, router, features)
    _reroute_own(S, i, t, router, features)


@njit
def _lose_part(S, r, t):
    """Request `r`, whose KV a helper has a part of, is to start again."""
    holder = flow_at(S, r).source
    handover.lose_held(S, holder, r, t)
    wake_serving(S, holder, t)
    req_at(S, r).emitted = 0
    req_at(S, r).restarts += 1


@njit
def _queue_again(S, r, homeless, t):
    """Request `r` goes to the front of its queue, or of the chain of those without one, which is returned."""
    if const_of(S).live:
        let_go(S, r, t)
    if req_at(S, r).queue >= 0:
        enter_front(S, r, req_at(S, r).queue)
        return homeless
    req_at(S, r).aux_next = homeless
    return r


@njit
def _route_all(S, r, t, router, features):
    """Route a chain of requests, in order."""
    while r >= 0:
        after = np.int64(req_at(S, r).aux_next)
        req_at(S, r).aux_next = -1
        route(S, r, t, router, features)
        r = after


@njit
def cancel(S, i, t, router, features):
    """Instance `i`, which acquires or loads, is given up."""
    turn_off(S, i, t, router, features)
    if not const_of(S).live:
        return
    live.lose_helper(S, i, t, router, features)
    homeless = np.int64(-1)
    while live_at(S, i).n_held > 0:
        r = live_at(S, i).held_last
        _lose_part(S, r, t)
        homeless = _queue_again(S, r, homeless, t)
    handover.look_at_touched(S, t)
    _route_all(S, homeless, t, router, features)


@njit
def turn_off(S, i, t, router, features):
    """Instance `i` gives its GPUs back, to its twin if it was to become that."""
    inst = inst_at(S, i)
    if inst.state == _ACTIVE or inst.state == _DRAINING:
        _weights_gone(S, i, t)
        load_at(S, i).asleep_ps = t
    leased = endpoint_at(S, inst.pool).spot == 1
    if inst.billed_ps >= 0 and not leased:
        inst.gpu_ps += t - inst.billed_ps
        inst.billed_ps = -1
    source = inst.loaded_from
    inst.loaded_ps = -1
    inst.loaded_from = -1
    inst.moving_ps = 0
    inst.kv -= inst.leaving
    inst.leaving = 0
    if pool_at(S, inst.pool).prefix_cache:
        lose_blocks(S, i)
    if leased:
        spot.donate(S, i, t)
    else:
        inst.state = _OFF
        glob_of(S).gpus_held -= pool_at(S, inst.pool).gpus
        schedule(S, i, NO_EVENT)
    code = load_at(S, i).code
    loading.stop(S, i, t)
    live.stop_leading(S, i, t)
    if load_at(S, i).mutating:
        load_at(S, i).mutating = 0
        _take_over(S, load_at(S, i).twin, i, source, code, t, router, features)
    else:
        loading.source_gone(S, i, t)


@njit
def _take_over(S, i, other, source, code, t, router, features):
    """Slot `i` serves with the weights of its twin `other`, which has turned off."""
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    glob_of(S).gpus_held += pool.gpus
    pool.started += 1
    set_llm(S, i, pool.llm)
    inst.loaded_from = source
    inst.billed_ps = t
    load_at(S, i).code = code
    loading.source_moved(S, other, i)
    activate(S, i, t, router, features)


@njit
def drain(S, i, t, router, features):
    """Active instance `i` takes nothing new; what it has not started goes elsewhere."""
    inst = inst_at(S, i)
    inst.state = _DRAINING
    _unlist_active(S, i)
    _reroute_own(S, i, t, router, features)
    if inst.mode == IDLE and inst.n_run == 0 and nothing_waits(S, i):
        turn_off(S, i, t, router, features)
        hand_over(S, i)
    else:
        wake(S, i, t)


@njit
def _reroute_own(S, i, t, router, features):
    """What waits in instance `i`'s own queue goes elsewhere, in order."""
    inst = inst_at(S, i)
    inst.fit_valid = 0
    decodes = pool_at(S, inst.pool).phase == _DECODES
    for _ in range(lists_of(S)[i, 2]):
        r = lists_of(S)[i, 0]
        leave_own(S, i, r)
        req = req_at(S, r)
        inst.waiting -= demand(S, r)
        inst.left -= req.predicted - req.emitted
        if decodes:
            handover.route_decode(S, r, t, router, features)
            continue
        there = stays_in_region(S, r, i, t) if const_of(S).regional else np.int64(-1)
        if there >= 0:
            to_instance(S, r, there, t)
        else:
            route(S, r, t, router, features)


@njit
def acquire(S, i, source, duration, t):
    """Slot `i` is ordered: `ACQUIRING`, and on to `LOADING` if that takes no time."""
    inst = inst_at(S, i)
    inst.source = source
    inst.state = _ACQUIRING
    inst.loaded_ps = t + duration + pool_at(S, inst.pool).load_ps[source]
    if duration == 0:
        start_loading(S, i, t)
    else:
        schedule(S, i, key_at(t + duration))
