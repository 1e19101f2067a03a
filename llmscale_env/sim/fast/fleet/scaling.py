"""Orders that start, stop and break instances (docs/engine.md, sections 8, 10 and 15)."""

from __future__ import annotations

from llmscale_env.sim.fast.fleet import spot
from llmscale_env.sim.fast.fleet.lifecycle import acquire, activate, cancel, drain, fail, set_llm
from llmscale_env.sim.fast.serving.batch import drop_copy
from llmscale_env.sim.fast.serving.live_pairs import pair_up
from llmscale_env.sim.fast.serving.routing import requests_at
from llmscale_env.sim.fast.serving.wake import call_for_changed, call_helper, look_up
from llmscale_env.sim.fast.state.memory import (
    active_of,
    const_of,
    endpoint_at,
    glob_of,
    host_ready_of,
    inst_at,
    load_at,
    pool_at,
    req_at,
)
from llmscale_env.sim.fast.state.records import IDLE
from llmscale_env.sim.fast.weights import loading
from llmscale_env.sim.fast.weights.parameter_pool import host_will_have
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec.kinds import InstanceState, LoadSource

_OFF = int(InstanceState.OFF)
_ACQUIRING = int(InstanceState.ACQUIRING)
_LOADING = int(InstanceState.LOADING)
_ACTIVE = int(InstanceState.ACTIVE)
_DRAINING = int(InstanceState.DRAINING)
_MULTICAST = int(LoadSource.MULTICAST)


@njit
def _is_free(S, i):
    """Whether slot `i` can be started: `OFF`, and its GPUs are not its twin's."""
    twin = load_at(S, i).twin
    return inst_at(S, i).state == _OFF and (twin < 0 or inst_at(S, twin).state == _OFF)


@njit
def _start(S, i, source, t):
    pool = pool_at(S, inst_at(S, i).pool)
    glob_of(S).gpus_held += pool.gpus
    pool.started += 1
    set_llm(S, i, pool.llm)
    if endpoint_at(S, inst_at(S, i).pool).spot:
        spot.reclaim(S, i, t)
    else:
        acquire(S, i, source, pool.acquire_ps, t)


@njit
def _raise_target(S, p, missing, source, t, router, features):
    pool = pool_at(S, p)
    for i in range(pool.first_slot, pool.first_slot + pool.n_slots):
        if missing > 0 and inst_at(S, i).state == _DRAINING:
            activate(S, i, t, router, features)
            pool.started += 1
            missing -= 1
    for i in range(pool.first_slot, pool.first_slot + pool.n_slots):
        if missing > 0 and _is_free(S, i):
            if glob_of(S).gpus_held + pool.gpus > const_of(S).max_gpus:
                break
            if endpoint_at(S, p).spot and spot.giver(S, p) < 0:
                break
            _start(S, i, source, t)
            missing -= 1
    return missing


@njit
def _is_farther(S, i, j):
    """Whether of two loading instances `i` has fewer layers, or the same and no less time left."""
    if load_at(S, i).layers != load_at(S, j).layers:
        return load_at(S, i).layers < load_at(S, j).layers
    return inst_at(S, i).loaded_ps >= inst_at(S, j).loaded_ps


@njit
def _cancel_one(S, p, state, t, router, features):
    """Turn off the pool's instance in `state` that is farthest from serving (the last on a tie)."""
    pool = pool_at(S, p)
    best = -1
    for i in range(pool.first_slot, pool.first_slot + pool.n_slots):
        if inst_at(S, i).state == state:
            if best < 0 or state == _ACQUIRING or _is_farther(S, i, best):
                best = i
    if best < 0:
        return False
    cancel(S, best, t, router, features)
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
    leased = endpoint_at(S, p).spot == 1  # what has been taken from spot has to serve first
    for _ in range(have - count):
        if not leased and _cancel_one(S, p, _ACQUIRING, t, router, features):
            continue
        if not leased and _cancel_one(S, p, _LOADING, t, router, features):
            continue
        _drain_one(S, p, t, router, features)
    return 0


@njit
def limit_changed(S, p, t):
    """A pool's batch limits were set: everybody looks up at the next boundary."""
    pool = pool_at(S, p)
    for i in range(pool.first_slot, pool.first_slot + pool.n_slots):
        call_helper(S, i, t)
        if inst_at(S, i).state == _ACTIVE or inst_at(S, i).state == _DRAINING:
            if inst_at(S, i).mode != IDLE:
                look_up(S, i, t)


# ---- commands of section 15 ----------------------------------------------------------------------


@njit
def will_have(S, host, m):
    """Whether a host has LLM `m`'s weights in memory now, or is to have them."""
    return host_will_have(S, host, m, glob_of(S).now_ps)


@njit
def scale(S, slots, codes, partners):
    """Start slots, each loading from a source code and helping a partner (-1: nobody), in the order given."""
    t = glob_of(S).now_ps
    for k in range(len(slots)):
        if partners[k] >= 0:
            pair_up(S, slots[k], partners[k])
        load_at(S, slots[k]).code = codes[k]
        _start(S, slots[k], _MULTICAST, t)
    call_for_changed(S, t, -1)


@njit
def mutate(S, i, router, features):
    """Active instance `i` drains; then its twin serves."""
    load_at(S, i).mutating = 1
    pool_at(S, inst_at(S, i).pool).stopped += 1
    t = glob_of(S).now_ps
    drain(S, i, t, router, features)
    call_for_changed(S, t, -1)


@njit
def fail_host(S, host, router, features):
    """Instances on a host break down, and what it had in memory is lost."""
    t = glob_of(S).now_ps
    loading.lose_memory(S, host, t)
    for r in range(glob_of(S).next_arrival):
        saved_on = req_at(S, r).kv_host
        if saved_on >= 0 and inst_at(S, saved_on).host == host:
            drop_copy(S, r)
    for i in range(const_of(S).n_inst):
        if inst_at(S, i).host == host:
            host_ready_of(S)[i, :] = -1
            load_at(S, i).asleep_ps = -1
    for i in range(const_of(S).n_inst):
        if inst_at(S, i).host == host and inst_at(S, i).state != _OFF:
            fail(S, i, t, router, features)
    loading.rehome(S, host, t)
    call_for_changed(S, t, -1)
