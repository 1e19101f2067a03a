"""Commands that place requests, correct predictions and let workers drift (docs/engine.md, section 13)."""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.fast.serving import handover
from llmscale_env.sim.fast.serving.batch import (
    demand,
)
from llmscale_env.sim.fast.serving.queues import (
    change_prediction,
)
from llmscale_env.sim.fast.serving.routing import route_gateway, to_instance
from llmscale_env.sim.fast.serving.wake import call_for_changed, look_up, wake
from llmscale_env.sim.fast.state.lists import (
    decode_gateway_row,
    gateway_row,
)
from llmscale_env.sim.fast.state.memory import const_of, fit_at, glob_of, inst_at, pool_at, req_at
from llmscale_env.sim.fast.state.records import IDLE
from llmscale_env.sim.fast.state.structures import leave_own, unlink
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec import InstanceState, PoolPhase, RequestState

_ACTIVE = int(InstanceState.ACTIVE)
_DRAINING = int(InstanceState.DRAINING)
_DECODES = int(PoolPhase.DECODE)
_GATEWAY = int(RequestState.GATEWAY)
_SHARED_QUEUE = int(RequestState.SHARED_QUEUE)
_OWN_QUEUE = int(RequestState.OWN_QUEUE)
_RUNNING = int(RequestState.RUNNING)
_PREEMPTED = int(RequestState.PREEMPTED)
_HANDOVER = int(RequestState.HANDOVER)


@njit
def route_again(S, m, router, features):
    """Route what waits in LLM `m`'s gateway, then what waits in its decode gateway."""
    t = glob_of(S).now_ps
    route_gateway(S, m, t, router, features)
    handover.route_decode_gateway(S, m, t, router, features)
    call_for_changed(S, t, -1)


@njit
def _take_away(S, r, t):
    """Request `r`, which may be assigned, leaves where it waits."""
    req = req_at(S, r)
    if req.state == _GATEWAY:
        unlink(S, gateway_row(S, req.llm), r)
    elif req.at < 0:
        unlink(S, decode_gateway_row(S, req.llm), r)
    else:
        i = np.int64(req.at)
        fit_at(S, i).touched = 1
        if req.state == _HANDOVER:
            handover.give_up(S, i, r, t)
        else:
            leave_own(S, i, r)
            inst_at(S, i).waiting -= demand(S, r)
            inst_at(S, i).left -= req.predicted - req.emitted
            inst_at(S, i).fit_valid = 0


@njit
def assign(S, requests, instances):
    """Waiting requests go to the ends of own queues, in the order given."""
    t = glob_of(S).now_ps
    for k in range(len(requests)):
        _take_away(S, requests[k], t)
    for k in range(len(requests)):
        i = instances[k]
        if pool_at(S, inst_at(S, i).pool).phase == _DECODES:
            handover.join(S, requests[k], i, t)
        else:
            to_instance(S, requests[k], i, t)
    for i in range(const_of(S).n_inst):
        if fit_at(S, i).touched:
            fit_at(S, i).touched = 0
            if pool_at(S, inst_at(S, i).pool).phase == _DECODES:
                handover.reserve(S, i, t, False)
            wake(S, i, t)
    call_for_changed(S, t, -1)


@njit
def _instance_of(S, r):
    """The instance that counts request `r` as there, or -1."""
    req = req_at(S, r)
    if req.state == _RUNNING or req.state == _PREEMPTED:
        return np.int64(req.instance)
    if req.state == _OWN_QUEUE or req.state == _HANDOVER:
        return np.int64(req.at)
    return np.int64(-1)


@njit
def set_predictions(S, requests, tokens):
    """New predicted output lengths."""
    for k in range(len(requests)):
        req = req_at(S, requests[k])
        i = _instance_of(S, requests[k])
        if i >= 0:
            inst_at(S, i).left += tokens[k] - req.predicted
            inst_at(S, i).fit_valid = 0
        if req.state == _SHARED_QUEUE:
            change_prediction(S, requests[k], tokens[k])
        else:
            req.predicted = tokens[k]


@njit
def set_profile(S, i, profile):
    """Instance `i`'s iterations take the times of `profile` from the next one on."""
    inst = inst_at(S, i)
    inst.profile = profile
    if (inst.state == _ACTIVE or inst.state == _DRAINING) and inst.mode != IDLE:
        look_up(S, i, glob_of(S).now_ps)
