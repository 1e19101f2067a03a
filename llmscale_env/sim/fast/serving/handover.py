"""Requests between their two phases (docs/engine.md, section 12).

A request that has been prefilled is in two lists: by its first links where it waits (decode gateway, own
queue of a decode instance, in flight, landed), by its second ones among those whose KV a prefill
instance holds.
"""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.fast.serving import network
from llmscale_env.sim.fast.serving.batch import (
    LOSE,
    demand,
    leave_unfinished,
)
from llmscale_env.sim.fast.serving.live_pairs import let_go
from llmscale_env.sim.fast.serving.routing import pick, pick_custom
from llmscale_env.sim.fast.serving.timing import kv_now
from llmscale_env.sim.fast.serving.wake import call_helper, cut_at, look_up
from llmscale_env.sim.fast.state.lists import (
    decode_gateway_row,
    flight_row,
    held_row,
    landed_row,
    preempted_row,
)
from llmscale_env.sim.fast.state.memory import (
    co_at,
    const_of,
    fit_at,
    flow_at,
    glob_of,
    heap_of,
    inst_at,
    lists_of,
    pool_at,
    prof_at,
    req_at,
    route_at,
)
from llmscale_env.sim.fast.state.records import DECODE, IDLE, PREFILL
from llmscale_env.sim.fast.state.structures import (
    insert_aux,
    pop_front,
    push_back,
    push_front,
    unlink,
    unlink_aux,
)
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec import RequestState, RouterKind

_HANDOVER = int(RequestState.HANDOVER)
_CUSTOM = int(RouterKind.CUSTOM)


@njit
def _kv(S, r):
    """KV tokens of a request between its phases, rounding included."""
    return demand(S, r) - 1


# ---- the prefill instance ------------------------------------------------------------------------


@njit
def hand_over(S, i, t):
    """Who has been prefilled at instance `i` leaves its batch; `route_handed` sends them on."""
    inst = inst_at(S, i)
    row = held_row(S, i)
    n = 0
    while inst.n_dec > 0:
        r = heap_of(S)[i, 0] & 0xFFFFFFFF
        leave_unfinished(S, i, r, t, LOSE)
        req = req_at(S, r)
        req.state = _HANDOVER
        req.at = -1
        flow_at(S, r).source = i
        inst.left -= req.predicted - req.emitted
        inst.kv += _kv(S, r)
        inst.kv_held += _kv(S, r)
        before = lists_of(S)[row, 1]
        for _ in range(n):  # those of this boundary stand in order of id
            if before < r:
                break
            before = np.int64(req_at(S, before).aux_prev)
        insert_aux(S, row, r, before)
        n += 1
    glob_of(S).n_handed = n


@njit
def route_handed(S, i, t, router, features):
    """Those who have just been handed over by instance `i` go to decode instances."""
    n = glob_of(S).n_handed
    glob_of(S).n_handed = 0
    r = lists_of(S)[held_row(S, i), 1]
    for _ in range(n - 1):
        r = np.int64(req_at(S, r).aux_prev)
    for _ in range(n):
        after = np.int64(req_at(S, r).aux_next)
        route_decode(S, r, t, router, features)
        r = after


@njit
def lose_held(S, i, r, t):
    """The KV of request `r`, which instance `i` holds, is lost: it leaves wherever it is."""
    inst = inst_at(S, i)
    req = req_at(S, r)
    unlink_aux(S, held_row(S, i), r)
    inst.kv -= _kv(S, r)
    inst.kv_held -= _kv(S, r)
    flow_at(S, r).source = -1
    if req.at < 0:
        unlink(S, decode_gateway_row(S, req.llm), r)
        return
    fit_at(S, req.at).touched = 1
    give_up(S, np.int64(req.at), r, t)


@njit
def look_at_touched(S, t):
    """Decode instances that have lost requests look at their own queues."""
    for j in range(const_of(S).n_inst):
        if fit_at(S, j).touched:
            fit_at(S, j).touched = 0
            reserve(S, j, t, False)
            look_up(S, j, t)


# ---- the decode instance -------------------------------------------------------------------------


@njit
def route_decode(S, r, t, router, features):
    """Send prefilled request `r` to a decode instance; without a candidate it waits in the gateway."""
    m, c = np.int64(req_at(S, r).llm), np.int64(req_at(S, r).cls)
    kind = route_at(S, m, c).decode_kind
    if kind == _CUSTOM:
        j = pick_custom(S, r, m, c, 2, t, router, features)
    else:
        j = pick(S, r, m, c, 2, kind, t)
    if j < 0:
        req_at(S, r).state = _HANDOVER
        req_at(S, r).at = -1
        push_back(S, decode_gateway_row(S, m), r)
    else:
        join(S, r, j, t)


@njit
def route_decode_gateway(S, m, t, router, features):
    """Route those that wait in LLM `m`'s decode gateway again, in order."""
    row = decode_gateway_row(S, m)
    for _ in range(lists_of(S)[row, 2]):
        route_decode(S, pop_front(S, row), t, router, features)


@njit
def join(S, r, j, t):
    """Prefilled request `r` joins the end of decode instance `j`'s own queue."""
    inst = inst_at(S, j)
    req = req_at(S, r)
    req.state = _HANDOVER
    req.at = j
    push_back(S, j, r)
    inst.waiting += demand(S, r)
    inst.left += req.predicted - req.emitted
    inst.fit_valid = 0
    if lists_of(S)[j, 2] == 1:
        reserve(S, j, t, False)


@njit
def reserve(S, j, t, at_boundary):
    """Memory for the head of decode instance `j`'s own queue while it fits; copying starts."""
    if lists_of(S)[preempted_row(S, j), 2] > 0:
        return
    inst = inst_at(S, j)
    cap = prof_at(S, inst.profile).cap
    due = 0
    if not at_boundary and inst.mode == DECODE:
        due = inst.n_dec
    elif not at_boundary and inst.mode == PREFILL:
        due = inst.n_pre
    reserved = False
    while lists_of(S)[j, 2] > 0:
        r = lists_of(S)[j, 0]
        kv = inst.kv if at_boundary else kv_now(S, j, t)
        if inst.n_run > 0 or inst.n_coming > 0:
            kv += inst.watermark
        if kv + due + demand(S, r) > cap:
            break
        unlink(S, j, r)
        inst.waiting -= demand(S, r)
        inst.kv += _kv(S, r)
        inst.n_coming += 1
        push_back(S, flight_row(S, j), r)
        _send(S, r, j, t)
        reserved = True
    if reserved and not at_boundary and inst.mode == DECODE:
        cut_at(S, j, (cap - inst.kv) // inst.n_dec)


@njit
def _co_number(S, r):
    """Of the flow of what a helper has of request `r`'s KV."""
    glob, const = glob_of(S), const_of(S)
    return glob.n_requests + const.n_inst + const.n_llms + r


@njit
def _send(S, r, j, t):
    """The flow of request `r`'s KV to instance `j` begins, or two if another one has its first layers."""
    flow = flow_at(S, r)
    source = inst_at(S, flow.source)
    tokens = req_at(S, r).input + req_at(S, r).emitted
    size = tokens * prof_at(S, source.profile).kv_bytes
    flow.pending = 1
    if const_of(S).live and co_at(S, r).helper >= 0:
        helper = np.int64(co_at(S, r).helper)
        theirs = size * co_at(S, r).layers // pool_at(S, source.pool).layers
        network.start(S, _co_number(S, r), network.path_between(S, helper, j), theirs, t)
        flow.pending = 2
        size -= theirs
    network.start(S, r, network.path_between(S, flow.source, j), size, t)


@njit
def end_flow(S, number, r, t):
    """A flow of the KV of request `r` has ended: with the last one it has landed."""
    req = req_at(S, r)
    i, j = flow_at(S, r).source, np.int64(req.at)
    network.stop(S, number, t)
    flow_at(S, r).pending -= 1
    if flow_at(S, r).pending > 0:
        return
    if const_of(S).live:
        let_go(S, r, t)
    source, inst = inst_at(S, i), inst_at(S, j)
    unlink_aux(S, held_row(S, i), r)
    source.kv -= _kv(S, r)
    source.kv_held -= _kv(S, r)
    flow_at(S, r).source = -1
    call_helper(S, i, t)
    if source.mode == IDLE:
        look_up(S, i, t)
    unlink(S, flight_row(S, j), r)
    push_back(S, landed_row(S, j), r)
    if inst.n_run < inst.limit or pool_at(S, inst.pool).controller != 0:
        look_up(S, j, t)


@njit
def _leave_flight(S, j, r, t):
    inst = inst_at(S, j)
    flow_at(S, r).pending = 0
    if flow_at(S, r).active:
        network.stop(S, r, t)
    if const_of(S).live and flow_at(S, _co_number(S, r)).active:
        network.stop(S, _co_number(S, r), t)
    unlink(S, flight_row(S, j), r)
    inst.kv -= _kv(S, r)
    inst.n_coming -= 1
    inst.fit_valid = 0


@njit
def give_up(S, j, r, t):
    """Request `r`, which has not landed, leaves decode instance `j`."""
    inst = inst_at(S, j)
    req = req_at(S, r)
    if flow_at(S, r).pending > 0:
        _leave_flight(S, j, r, t)
    else:
        unlink(S, j, r)
        inst.waiting -= demand(S, r)
    inst.left -= req.predicted - req.emitted
    inst.fit_valid = 0
    req.at = -1


@njit
def call_back(S, j, t):
    """Decode instance `j` fails: who is in flight goes to the front of its own queue."""
    row = flight_row(S, j)
    while lists_of(S)[row, 2] > 0:
        r = lists_of(S)[row, 1]
        _leave_flight(S, j, r, t)
        push_front(S, j, r)
        inst_at(S, j).waiting += demand(S, r)
