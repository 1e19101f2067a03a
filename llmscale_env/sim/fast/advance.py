"""The event loop, and the entry points that Python calls."""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.fast.fleet import lifecycle, scaling, spot
from llmscale_env.sim.fast.regions import endpoint_scaling
from llmscale_env.sim.fast.serving import handover, network, routing
from llmscale_env.sim.fast.serving import queues as queues_module
from llmscale_env.sim.fast.serving import region_routing as regions
from llmscale_env.sim.fast.serving.boundary import SWAP, TURN_OFF, boundary
from llmscale_env.sim.fast.serving.controller import set_limit
from llmscale_env.sim.fast.serving.routing import route
from llmscale_env.sim.fast.serving.wake import (
    call_after,
    call_all,
    call_for_changed,
    call_helper,
    hand_over,
    look_up,
    wake,
)
from llmscale_env.sim.fast.state.memory import (
    arrived_of,
    const_of,
    dirty_of,
    endpoint_at,
    glob_of,
    inst_at,
    key_of,
    lease_at,
    live_at,
    llm_cap_of,
    place_of,
    pool_at,
    pull_of,
    pulled_by_of,
    req_at,
    route_at,
    transit_of,
    tree_of,
)
from llmscale_env.sim.fast.state.records import (
    IDLE,
    NEEDS_ROOM,
    NO_EVENT,
    NOT_KNOWN,
    STALE,
)
from llmscale_env.sim.fast.state.region_records import OWN_VM
from llmscale_env.sim.fast.weights import host_memory, live, loading
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec import InstanceState, RequestState

_ACQUIRING = int(InstanceState.ACQUIRING)
_ACTIVE = int(InstanceState.ACTIVE)
_DRAINING = int(InstanceState.DRAINING)
_DONATING = int(InstanceState.DONATING)
_LOADING = int(InstanceState.LOADING)
_REJECTED = int(RequestState.REJECTED)
_COMMAND, _INSTANCE, _ARRIVAL, _WAKE = 0, 1, 2, 3


@njit(forceinline=True)
def _arrive(S, r, router, features):
    req = req_at(S, r)
    glob = glob_of(S)
    glob.phase = _ARRIVAL
    glob.event_ps = req.arrival
    arrived_of(S)[req.llm, req.cls] += 1
    if req.input + req.output + const_of(S).half_block > llm_cap_of(S)[req.llm]:
        req.state = _REJECTED
        glob.n_rejected += 1
        return
    if const_of(S).regional:
        regions.count(S, r)
    route(S, r, req.arrival, router, features)
    call_for_changed(S, req.arrival, -1)


@njit(forceinline=True)
def _instance_event(S, i, key, router, features):
    glob = glob_of(S)
    t = key >> 1
    # What is done at a time stays done, also if its phase has gone by.
    if key & 1:
        glob.phase = _WAKE
    elif glob.event_ps != t or glob.phase < _INSTANCE:
        glob.phase = _INSTANCE
        glob.index = i
    elif glob.phase == _INSTANCE:
        glob.index = max(glob.index, i)
    glob.event_ps = t
    state = inst_at(S, i).state
    if state == _ACQUIRING and endpoint_at(S, inst_at(S, i).pool).spot:
        if lease_at(S, i).kind != OWN_VM:
            spot.redeploy(S, i, t)
            return
        lifecycle.activate(S, i, t, router, features)
    elif state == _ACQUIRING:
        lifecycle.start_loading(S, i, t)
        return
    elif state == _DONATING:
        spot.donated(S, i, t)
        return
    elif state == _LOADING:
        if key & 1:
            live.wake_up(S, i, t)
        elif live_at(S, i).work < 0 or live.end_operation(S, i, t):
            lifecycle.activate(S, i, t, router, features)
        if inst_at(S, i).state == _LOADING:
            call_for_changed(S, t, -1)
            return
    else:
        then = boundary(S, i, t)
        if glob.n_handed > 0:
            handover.route_handed(S, i, t, router, features)
        if then == TURN_OFF:
            lifecycle.turn_off(S, i, t, router, features)
        elif then == SWAP:
            lifecycle.swap(S, i, t)
    call_after(S, i, t)


@njit
def _flow_event(S):
    """A flow ends. What is done at its time is done: only the first event of a time begins it anew."""
    glob = glob_of(S)
    if glob.flow_key == STALE:
        network.share(S)
        return
    t = glob.flow_key >> 1
    if glob.event_ps != t:
        glob.phase = _COMMAND
        glob.event_ps = t
    number = glob.flow_next
    slot = number - glob.n_requests
    if slot < 0:
        handover.end_flow(S, number, number, t)
        return
    if slot < const_of(S).n_inst:
        loading.come(S, slot, t)
        return
    llm = slot - const_of(S).n_inst
    if llm < const_of(S).n_llms:
        loading.restored(S, llm, t)
    else:
        handover.end_flow(S, number, llm - const_of(S).n_llms, t)


@njit(nogil=True)
def advance(S, until, router, features):
    """Process every event before `until`, then stand there.

    With the error `NEEDS_ROOM` it has stopped between two events, and goes on when it is called again.
    """
    glob = glob_of(S)
    regional = const_of(S).regional == 1
    while glob.error == 0:
        i = tree_of(S)[1]
        key = key_of(S)[i]
        if regional:
            what = endpoint_scaling.next_region_event(S, key)
            if what == 1:
                t = transit_of(S)[0, 0]
                if t >= until:
                    break
                endpoint_scaling.reach(S, t, router, features)
                continue
            if what == 2:
                if glob.signal_ps >= until:
                    break
                endpoint_scaling.signal(
                    S, endpoint_scaling.next_other_ps(S, key, until), router, features
                )
                continue
        flow_key = glob.flow_key
        if flow_key <= key and flow_key != NO_EVENT:
            late = glob.next_arrival >= glob.n_requests
            if late or flow_key <= 2 * req_at(S, glob.next_arrival).arrival:
                if flow_key >= 2 * until:
                    break
                _flow_event(S)
                continue
        if glob.next_arrival < glob.n_requests:
            arrival = req_at(S, glob.next_arrival).arrival
            if 2 * arrival < key:
                if arrival >= until:
                    break
                r = glob.next_arrival
                glob.next_arrival += 1
                _arrive(S, r, router, features)
                continue
        elif key == NO_EVENT:
            break
        if key >= 2 * until:
            break
        _instance_event(S, i, key, router, features)
    if glob.error == NEEDS_ROOM:
        return
    glob.now_ps = until
    glob.phase = _COMMAND


@njit(nogil=True)
def advance_many(addresses, first, last, until, router, features):
    """`advance` episodes `first..last - 1`, each to its own time; the first with an error, or `last`."""
    for e in range(first, last):
        advance(addresses[e], until[e], router, features)
        if glob_of(addresses[e]).error != 0:
            return e
    return last


# ---- commands: they take effect at the present time, before anything else due then ---------------


@njit
def set_target(S, p, count, source, router, features):
    t = glob_of(S).now_ps
    missing = scaling.set_target(S, p, count, source, t, router, features)
    _after_command(S)
    return missing


@njit
def set_batch_limit(S, p, limit):
    pool = pool_at(S, p)
    if pool.controller == 0:
        changed = False
        for i in range(pool.first_slot, pool.first_slot + pool.n_slots):
            changed = changed or inst_at(S, i).limit != limit
        if not changed:
            return
    for i in range(pool.first_slot, pool.first_slot + pool.n_slots):
        if pool.controller != 0:
            set_limit(S, i, float(limit))
        else:
            inst_at(S, i).limit = limit
            inst_at(S, i).x = float(limit)
        inst_at(S, i).restart = 1
    scaling.limit_changed(S, p, glob_of(S).now_ps)
    _after_command(S)


@njit
def set_instance_limit(S, i, limit):
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    if pool.controller == 0 and inst.limit == limit:
        return
    if pool.controller != 0:
        set_limit(S, i, float(limit))
    else:
        inst.limit = limit
        inst.x = float(limit)
    inst.restart = 1
    call_helper(S, i, glob_of(S).now_ps)
    if inst.state == _ACTIVE or inst.state == _DRAINING:
        if inst.mode != IDLE:
            look_up(S, i, glob_of(S).now_ps)
    _after_command(S)


@njit
def set_controller(S, p, kind):
    pool = pool_at(S, p)
    pool.controller = kind
    for i in range(pool.first_slot, pool.first_slot + pool.n_slots):
        inst_at(S, i).restart = 1
    scaling.limit_changed(S, p, glob_of(S).now_ps)
    _after_command(S)


@njit
def drain(S, i, router, features):
    lifecycle.drain(S, i, glob_of(S).now_ps, router, features)
    pool_at(S, inst_at(S, i).pool).stopped += 1
    _after_command(S)


@njit
def order_evictions(S, i, count):
    inst_at(S, i).order_evict += count
    look_up(S, i, glob_of(S).now_ps)
    _after_command(S)


@njit
def move_waiting(S, i, j, count):
    routing.move_waiting(S, i, j, count, glob_of(S).now_ps)
    _after_command(S)


@njit
def set_pull(S, i, queues):
    """Instance `i` pulls from these queues, in order."""
    inst = inst_at(S, i)
    t = glob_of(S).now_ps
    absent = const_of(S).n_queues
    hand_over(S, i)
    for k in range(inst.n_pull):
        q = pull_of(S)[i, k]
        place_of(S)[i, q] = absent
        pullers = pulled_by_of(S)[q]
        at = 1
        while pullers[at] != i:
            at += 1
        for j in range(at, pullers[0]):
            pullers[j] = pullers[j + 1]
        pullers[0] -= 1
    glob_of(S).n_choosers += (1 if len(queues) > 1 else 0) - (1 if inst.n_pull > 1 else 0)
    inst.n_pull = len(queues)
    inst.settled = NOT_KNOWN
    for k in range(len(queues)):
        q = queues[k]
        pull_of(S)[i, k] = q
        place_of(S)[i, q] = k
        pullers = pulled_by_of(S)[q]
        at = pullers[0]
        while at > 0 and pullers[at] > i:
            pullers[at + 1] = pullers[at]
            at -= 1
        pullers[at + 1] = i
        pullers[0] += 1
    host_memory.plan(S, i, t, -1)
    if inst.state == _ACTIVE or inst.state == _DRAINING:
        wake(S, i, t)
    _after_command(S)


@njit
def operations_changed(S, p):
    """What pool `p`'s instances do by themselves has changed: they look up."""
    pool = pool_at(S, p)
    for i in range(pool.first_slot, pool.first_slot + pool.n_slots):
        if inst_at(S, i).state == _ACTIVE or inst_at(S, i).state == _DRAINING:
            wake(S, i, glob_of(S).now_ps)
    _after_command(S)


@njit
def regroup(S, requests, queues):
    queues_module.regroup(S, requests, queues)
    t = glob_of(S).now_ps
    for k in range(glob_of(S).n_dirty):
        call_all(S, dirty_of(S)[k], t)
    _after_command(S)


@njit
def fail(S, i, router, features):
    lifecycle.fail(S, i, glob_of(S).now_ps, router, features)
    _after_command(S)


@njit
def order(S, targets, sources, limits, shares, missing, router, features):
    """Orders about pools (-1, or NaN: as it is); instances not started of each go into `missing`.

    Falling targets come first, so that they free GPUs for the rising ones.
    """
    n_pools = const_of(S).n_pools
    never = np.int64(2**62)
    changes = np.full(n_pools, never)
    for p in range(n_pools):
        if targets[p] >= 0:
            changes[p] = targets[p] - scaling.present(S, p)
    for _ in range(n_pools):
        p = np.argmin(changes)
        if changes[p] == never:
            break
        changes[p] = never
        missing[p] = set_target(S, p, targets[p], sources[p], router, features)
    for p in range(n_pools):
        if limits[p] >= 0:
            set_batch_limit(S, p, limits[p])
    const = const_of(S)
    for m in range(const.n_llms):
        for c in range(const.n_classes):
            if not np.isnan(shares[c]):
                route_at(S, m, c).share = shares[c]


@njit
def order_many(addresses, targets, sources, limits, shares, missing, router, features):
    """`order` for every episode, with its row of each array."""
    for e in range(len(addresses)):
        order(
            addresses[e],
            targets[e],
            sources[e],
            limits[e],
            shares[e],
            missing[e],
            router,
            features,
        )
        if glob_of(addresses[e]).error != 0:
            break


@njit
def _after_command(S):
    call_for_changed(S, glob_of(S).now_ps, -1)
