"""Weights on their way to slots, layer by layer, and to the homes of copies (docs/engine.md, section 15)."""

from __future__ import annotations

from llmscale_env.sim.fast.serving import network
from llmscale_env.sim.fast.serving.wake import wake_helper
from llmscale_env.sim.fast.state.memory import (
    const_of,
    flow_at,
    glob_of,
    home_at,
    host_gone_of,
    inst_at,
    live_at,
    load_at,
    pool_at,
)
from llmscale_env.sim.fast.state.structures import schedule
from llmscale_env.sim.fast.weights.parameter_pool import found, kind_of, nearest, offers, serves
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec.kinds import NO_SOURCE, InstanceState

_ACQUIRING = int(InstanceState.ACQUIRING)
_LOADING = int(InstanceState.LOADING)
_ACTIVE = int(InstanceState.ACTIVE)
_DRAINING = int(InstanceState.DRAINING)


# ---- a slot's layers -----------------------------------------------------------------------------


@njit
def _number(S, i):
    return glob_of(S).n_requests + i


@njit
def begin(S, i, ordered, t):
    """Loading starts, from what `scale` named if that serves still; returns the `LoadSource` seen."""
    inst, load = inst_at(S, i), load_at(S, i)
    if load.code == NO_SOURCE or not serves(S, load.code, inst.llm, t):
        load.code = found(S, ordered, inst.llm, inst.host, t)
    return kind_of(S, load.code)


@njit
def look(S, i, t):
    """Instance `i` starts its next layer if that is there and none is on its way."""
    inst, load = inst_at(S, i), load_at(S, i)
    pool = pool_at(S, inst.pool)
    if inst.state != _LOADING or pool.weight_bytes == 0 or load.flows:
        return
    k = load.layers
    if k == pool.layers or not offers(S, load.code, inst.llm, k, t):
        return
    load.flows = 1
    total, n = pool.weight_bytes, pool.layers
    size = total * (k + 1) // n - total * k // n
    network.start(S, _number(S, i), network.path_to_slot(S, load.code, i), size, t)


@njit
def look_all(S, m, t):
    """There is news of LLM `m`: those who wait for a layer look for it."""
    if const_of(S).weights:
        for i in range(const_of(S).n_inst):
            if inst_at(S, i).llm == m:
                look(S, i, t)


@njit
def come(S, i, t):
    """A layer has come to instance `i`: the next one, and those who waited for this one."""
    inst, load = inst_at(S, i), load_at(S, i)
    network.stop(S, _number(S, i), t)
    load.flows = 0
    load.layers += 1
    if load.layers < pool_at(S, inst.pool).layers:
        wake_helper(S, i, t)
    elif live_at(S, i).work < 0:  # otherwise it serves at the end of what it executes
        schedule(S, i, 2 * t)
    look_all(S, inst.llm, t)


@njit
def _break_off(S, i, t):
    if load_at(S, i).flows:
        load_at(S, i).flows = 0
        network.stop(S, _number(S, i), t)


@njit
def stop(S, i, t):
    """Instance `i` no longer loads: what has come is lost as well."""
    load = load_at(S, i)
    _break_off(S, i, t)
    load.code = NO_SOURCE
    load.layers = 0


@njit
def layers_of(S, i):
    """Layers that instance `i` has."""
    state = inst_at(S, i).state
    if state == _ACTIVE or state == _DRAINING:
        return pool_at(S, inst_at(S, i).pool).layers
    return load_at(S, i).layers


@njit
def time_left(S, i, t):
    """Time until instance `i` has all its layers if the present one's rate stays; -1: nobody knows."""
    load, flow = load_at(S, i), flow_at(S, _number(S, i))
    pool = pool_at(S, inst_at(S, i).pool)
    if load.layers == pool.layers:
        return 0
    if not load.flows or flow.rate == 0:
        return -1
    later = pool.weight_bytes - pool.weight_bytes * (load.layers + 1) // pool.layers
    return max(0, flow.end - t) + later * network.MILLIONTHS // flow.rate


# ---- sources that go -----------------------------------------------------------------------------


@njit
def _loads_from(S, i, code):
    state = inst_at(S, i).state
    return load_at(S, i).code == code and (state == _LOADING or state == _ACQUIRING)


@njit
def _source_of_gone(S, i, t):
    """What instance `i` loads from serves no longer: the rest comes from elsewhere."""
    inst, load = inst_at(S, i), load_at(S, i)
    if inst.state == _ACQUIRING:
        load.code = NO_SOURCE
        return
    _break_off(S, i, t)
    if load.layers < pool_at(S, inst.pool).layers:
        load.code = nearest(S, inst.llm, inst.host, t)
        inst.loaded_from = kind_of(S, load.code)
        look(S, i, t)


@njit
def source_gone(S, code, t):
    """This source serves no longer: those who load from it, and copies on their way, look elsewhere."""
    if not const_of(S).weights:
        return
    for i in range(const_of(S).n_inst):
        if _loads_from(S, i, code):
            _source_of_gone(S, i, t)
    for m in range(const_of(S).n_llms):
        if home_at(S, m).restored_from == code:
            network.stop(S, _copy_number(S, m), t)
            _restore(S, m, t)


@njit
def source_moved(S, i, twin):
    """Slot `i`'s weights are its twin's now: flows go on."""
    for j in range(const_of(S).n_inst):
        if _loads_from(S, j, i):
            load_at(S, j).code = twin
    for m in range(const_of(S).n_llms):
        if home_at(S, m).restored_from == i:
            home_at(S, m).restored_from = twin


# ---- copies in host memory -----------------------------------------------------------------------


@njit
def _copy_number(S, m):
    return glob_of(S).n_requests + const_of(S).n_inst + m


@njit
def _restore(S, m, t):
    """Fetch LLM `m`'s copy to its home."""
    home = home_at(S, m)
    home.restored_from = nearest(S, m, home.host, t)
    path = network.path_to_host(S, home.restored_from, home.host)
    network.start(S, _copy_number(S, m), path, home.bytes, t)


@njit
def restored(S, m, t):
    """The copy is there: those who wait for it look."""
    network.stop(S, _copy_number(S, m), t)
    home_at(S, m).restored_from = NO_SOURCE
    home_at(S, m).there = 1
    look_all(S, m, t)


@njit
def lose_memory(S, host, t):
    """All weights that a host has in memory are lost, and it has none until `rehome`."""
    glob_of(S).failing_host = host
    for m in range(const_of(S).n_llms):
        home = home_at(S, m)
        if home.host == host:
            home.there = 0
            if home.restored_from != NO_SOURCE:
                home.restored_from = NO_SOURCE
                network.stop(S, _copy_number(S, m), t)
    source_gone(S, const_of(S).n_inst + host, t)


@njit
def _next_home(S, failed):
    """The host, other than this one if there is another, that is home of the fewest LLMs."""
    best, fewest = failed, -1
    for host in range(const_of(S).n_hosts):
        if host == failed:
            continue
        homes = 0
        for m in range(const_of(S).n_llms):
            homes += home_at(S, m).host == host
        if fewest < 0 or homes < fewest:
            best, fewest = host, homes
    return best


@njit
def rehome(S, host, t):
    """Instances on a failed host have failed: the copies that it kept get new homes."""
    glob_of(S).failing_host = -1
    for m in range(const_of(S).n_llms):
        host_gone_of(S)[host, m] = -1
    for m in range(const_of(S).n_llms):
        if home_at(S, m).host == host:
            home_at(S, m).host = _next_home(S, host)
            _restore(S, m, t)


# ---- reading -------------------------------------------------------------------------------------


@njit
def read_loading(S, out):
    """Fill `out` (I, LOADING_DTYPE), but for what it says of live pairs."""
    for i in range(const_of(S).n_inst):
        out[i].layers_loaded = layers_of(S, i)
        out[i].load_from = load_at(S, i).code


@njit
def read_homes(S, out):
    """Fill `out` (M, HOME_DTYPE)."""
    for m in range(const_of(S).n_llms):
        out[m].host = home_at(S, m).host
        out[m].there = home_at(S, m).there != 0
