"""The life of instances: acquiring, loading, serving, draining (docs/engine.md, sections 3 and 8)."""

from __future__ import annotations

from llmscale_env.sim.fast.batch import demand, preempted_row
from llmscale_env.sim.fast.controller import clear_window
from llmscale_env.sim.fast.memory import (
    active_of,
    const_of,
    glob_of,
    host_count_of,
    host_gone_of,
    inst_at,
    lists_of,
    pool_at,
    req_at,
)
from llmscale_env.sim.fast.records import (
    IDLE,
    NO_EVENT,
)
from llmscale_env.sim.fast.routing import requests_at, route, route_gateway
from llmscale_env.sim.fast.structures import schedule
from llmscale_env.sim.fast.wake import look_up
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec import InstanceState, LoadSource

_OFF = int(InstanceState.OFF)
_ACQUIRING = int(InstanceState.ACQUIRING)
_LOADING = int(InstanceState.LOADING)
_ACTIVE = int(InstanceState.ACTIVE)
_DRAINING = int(InstanceState.DRAINING)
_SSD = int(LoadSource.SSD)
_HOST = int(LoadSource.HOST)
_MULTICAST = int(LoadSource.MULTICAST)


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
def source_available(S, i, source, t):
    """Whether instance `i` could load from `source` at `t`."""
    m = inst_at(S, i).llm
    if source == _SSD:
        return True
    if source == _HOST:
        host = inst_at(S, i).host
        if host_count_of(S)[host, m] > 0:
            return True
        gone = host_gone_of(S)[host, m]
        return gone >= 0 and t - gone <= const_of(S).keep_alive
    for host in range(const_of(S).n_hosts):
        if host_count_of(S)[host, m] > 0:
            return True
    return False


@njit
def start_loading(S, i, t):
    """Acquiring has ended: load from the ordered source, or the next slower one that is there."""
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    source = inst.source
    while not source_available(S, i, source, t):
        source -= 1
    inst.loaded_from = source
    pool.source_used[source] += 1
    inst.state = _LOADING
    inst.billed_ps = t
    inst.loaded_ps = t + pool.load_ps[source]
    schedule(S, i, 2 * inst.loaded_ps)


@njit
def activate(S, i, t, router, features):
    """Loading has ended (or draining is taken back): instance `i` serves."""
    inst = inst_at(S, i)
    if inst.state == _LOADING:
        inst.mode = IDLE
        inst.seg_n = 0
        host_count_of(S)[inst.host, inst.llm] += 1
        schedule(S, i, NO_EVENT)
        clear_window(S, i, t)
    inst.loaded_ps = -1
    inst.state = _ACTIVE
    _list_active(S, i)
    route_gateway(S, inst.llm, t, router, features)
    look_up(S, i, t)


@njit
def turn_off(S, i, t):
    """Instance `i` gives its GPUs back."""
    inst = inst_at(S, i)
    if inst.state == _ACTIVE or inst.state == _DRAINING:
        host_count_of(S)[inst.host, inst.llm] -= 1
        if host_count_of(S)[inst.host, inst.llm] == 0:
            host_gone_of(S)[inst.host, inst.llm] = t
    if inst.billed_ps >= 0:
        inst.gpu_ps += t - inst.billed_ps
        inst.billed_ps = -1
    inst.loaded_ps = -1
    inst.loaded_from = -1
    inst.swap_ps = 0
    inst.state = _OFF
    glob_of(S).gpus_held -= pool_at(S, inst.pool).gpus
    schedule(S, i, NO_EVENT)


@njit
def drain(S, i, t, router, features):
    """Active instance `i` takes nothing new; what it has not started goes elsewhere."""
    inst = inst_at(S, i)
    inst.state = _DRAINING
    _unlist_active(S, i)
    for _ in range(lists_of(S)[i, 2]):
        r = lists_of(S)[i, 0]
        after = req_at(S, r).next
        lists_of(S)[i, 0] = after
        if after >= 0:
            req_at(S, after).prev = -1
        else:
            lists_of(S)[i, 1] = -1
        lists_of(S)[i, 2] -= 1
        req = req_at(S, r)
        inst.waiting -= demand(S, r)
        inst.left -= req.predicted - req.emitted
        route(S, r, t, router, features)
    if inst.mode == IDLE and inst.n_run == 0 and lists_of(S)[preempted_row(S, i), 2] == 0:
        turn_off(S, i, t)
    else:
        look_up(S, i, t)


@njit
def _start(S, i, source, t):
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    inst.source = source
    glob_of(S).gpus_held += pool.gpus
    pool.started += 1
    inst.state = _ACQUIRING
    inst.loaded_ps = t + pool.acquire_ps + pool.load_ps[source]
    if pool.acquire_ps == 0:
        start_loading(S, i, t)
    else:
        schedule(S, i, 2 * (t + pool.acquire_ps))


@njit
def _raise_target(S, p, missing, source, t, router, features):
    pool = pool_at(S, p)
    for i in range(pool.first_slot, pool.first_slot + pool.n_slots):
        if missing > 0 and inst_at(S, i).state == _DRAINING:
            activate(S, i, t, router, features)
            pool.started += 1
            missing -= 1
    for i in range(pool.first_slot, pool.first_slot + pool.n_slots):
        if missing > 0 and inst_at(S, i).state == _OFF:
            if glob_of(S).gpus_held + pool.gpus > const_of(S).max_gpus:
                break
            _start(S, i, source, t)
            missing -= 1
    return missing


@njit
def _cancel_one(S, p, state, t):
    """Turn off the pool's instance in `state` with most time left (the last on a tie)."""
    pool = pool_at(S, p)
    best = -1
    for i in range(pool.first_slot, pool.first_slot + pool.n_slots):
        if inst_at(S, i).state == state:
            if (
                best < 0
                or state == _ACQUIRING
                or inst_at(S, i).loaded_ps >= inst_at(S, best).loaded_ps
            ):
                best = i
    if best < 0:
        return False
    turn_off(S, best, t)
    pool.stopped += 1
    return True


@njit
def _drain_one(S, p, t, router, features):
    pool = pool_at(S, p)
    best = -1
    for a in range(pool.n_active):
        i = active_of(S)[p, a]
        if best < 0 or requests_at(S, i) <= requests_at(S, best):
            best = i
    if best < 0:
        return False
    drain(S, best, t, router, features)
    pool.stopped += 1
    return True


@njit
def present(S, p):
    """Instances of pool `p` that a target counts."""
    pool = pool_at(S, p)
    have = 0
    for i in range(pool.first_slot, pool.first_slot + pool.n_slots):
        state = inst_at(S, i).state
        if state == _ACQUIRING or state == _LOADING or state == _ACTIVE:
            have += 1
    return have


@njit
def set_target(S, p, count, source, t, router, features):
    """Bring pool `p` to `count` instances; returns how many could not be started."""
    have = present(S, p)
    if count >= have:
        return _raise_target(S, p, count - have, source, t, router, features)
    for _ in range(have - count):
        if _cancel_one(S, p, _ACQUIRING, t):
            continue
        if _cancel_one(S, p, _LOADING, t):
            continue
        _drain_one(S, p, t, router, features)
    return 0


@njit
def limit_changed(S, p, t):
    """A pool's batch limits were set: everybody looks up at the next boundary."""
    pool = pool_at(S, p)
    for i in range(pool.first_slot, pool.first_slot + pool.n_slots):
        if inst_at(S, i).state == _ACTIVE or inst_at(S, i).state == _DRAINING:
            if inst_at(S, i).mode != IDLE:
                look_up(S, i, t)
