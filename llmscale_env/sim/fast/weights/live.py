"""Live scaling (docs/engine.md, section 16): a loading instance executes layers for one that serves."""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.fast.serving.admission import admit
from llmscale_env.sim.fast.serving.batch import (
    LOSE,
    demand,
    leave_unfinished,
)
from llmscale_env.sim.fast.serving.live_pairs import (
    append,
    hold,
    layers_ps,
    let_go,
    part,
    wake_serving,
)
from llmscale_env.sim.fast.serving.queues import (
    enter_front,
)
from llmscale_env.sim.fast.serving.routing import move_waiting, route
from llmscale_env.sim.fast.serving.timing import prefill_ps
from llmscale_env.sim.fast.serving.wake import is_live, look_up, wake, wake_helper
from llmscale_env.sim.fast.state.lists import (
    prefill_row,
)
from llmscale_env.sim.fast.state.memory import (
    co_at,
    const_of,
    inst_at,
    lists_of,
    live_at,
    load_at,
    pool_at,
    req_at,
)
from llmscale_env.sim.fast.state.records import IDLE, NO_EVENT
from llmscale_env.sim.fast.state.structures import key_at, push_front, schedule
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec.kinds import InstanceState, LiveMode, RequestState

_LOADING = int(InstanceState.LOADING)
_ACTIVE = int(InstanceState.ACTIVE)
_OWN_QUEUE = int(RequestState.OWN_QUEUE)
_ZIGZAG = int(LiveMode.ZIGZAG)
_BEST_EFFORT = int(LiveMode.BEST_EFFORT)


# ---- what the helper does ------------------------------------------------------------------------


@njit
def wake_up(S, i, t):
    """Helper `i` has been woken."""
    schedule(S, i, NO_EVENT)
    _look(S, i, t)


@njit
def end_operation(S, i, t):
    """Helper `i`'s operation has ended; True if it has all its layers and is to serve."""
    live = live_at(S, i)
    co_at(S, live.work).done += live.work_layers
    live.work = -1
    live.helped_ps += live.work_ps
    schedule(S, i, NO_EVENT)
    wake(S, live.leader, t)
    if load_at(S, i).layers == pool_at(S, inst_at(S, i).pool).layers:
        return True
    _look(S, i, t)
    return False


@njit
def _look(S, i, t):
    """Free helper `i` begins an operation, if there is one to do."""
    live = live_at(S, i)
    pool = pool_at(S, inst_at(S, i).pool)
    loaded, n_layers = load_at(S, i).layers, pool.layers
    if not is_live(S, i) or live.work >= 0 or loaded == n_layers:
        return
    layers = 1
    b = _unfinished(S, i, loaded) if pool.live_mode == _ZIGZAG else -1
    if b < 0:
        b = _form(S, live.leader, i, t)
        if pool.live_mode == _BEST_EFFORT:
            layers = max(1, min(loaded, n_layers // 2))
    if b < 0:
        return
    batch = co_at(S, b)
    live.work = b
    live.work_layers = layers
    live.work_ps = max(1, layers_ps(batch.ps, n_layers, batch.done, batch.done + layers))
    schedule(S, i, key_at(t + live.work_ps))


@njit
def _unfinished(S, i, loaded):
    """The first of helper `i`'s batches that it has a further layer for and that is left to it; -1: none."""
    leader = live_at(S, i).leader
    b = live_at(S, leader).first
    if b >= 0 and inst_at(S, leader).mode == IDLE:  # the first of all is for the idle leader
        b = np.int64(co_at(S, b).later)
    while b >= 0:
        batch = co_at(S, b)
        if batch.helper == i and batch.done < loaded:
            return b
        b = np.int64(batch.later)
    return b


@njit
def _form(S, i, helper, t):
    """Admit a batch to instance `i` whose first layers its helper executes; -1: no request fits."""
    inst = inst_at(S, i)
    row = prefill_row(S, i)
    before, last = inst.n_pre, lists_of(S)[row, 1]
    inst.pull_until = inst.n_pull
    tokens, squares, _ = admit(S, i, t, -1)
    n = inst.n_pre - before
    if n == 0:
        return np.int64(-1)
    first = np.int64(req_at(S, last).aux_next) if last >= 0 else lists_of(S)[row, 0]
    batch = co_at(S, first)
    batch.n = n
    batch.done = 0
    batch.tokens = tokens
    batch.squares = squares
    batch.ps = prefill_ps(S, inst.profile, tokens, squares)
    append(S, i, first)
    r = first
    for _ in range(n):
        hold(S, helper, r)
        r = np.int64(req_at(S, r).aux_next)
    return first


# ---- how a pair ends -----------------------------------------------------------------------------


@njit
def finish(S, i, t):
    """Helper `i` serves now: half of what waits at its leader is its own."""
    leader = live_at(S, i).leader
    if leader < 0:
        return
    part(S, i)
    move_waiting(S, leader, i, lists_of(S)[leader, 2] // 2, t)
    look_up(S, leader, t)


@njit
def _drop(S, b, t):
    """Batch `b` is gone: so is its helper's operation on it that is under way."""
    i = np.int64(co_at(S, b).helper)
    if live_at(S, i).work != b:
        return
    live_at(S, i).work = -1
    schedule(S, i, NO_EVENT)
    if inst_at(S, i).state == _LOADING:
        if load_at(S, i).layers == pool_at(S, inst_at(S, i).pool).layers:
            schedule(S, i, 2 * t)
        else:
            wake_helper(S, i, t)


@njit
def stop_leading(S, i, t):
    """Instance `i` turns off, or fails and its requests with it: its pair is over."""
    live = live_at(S, i)
    b = live.first
    live.executing = live.first = live.last = -1
    live.batches = 0
    if live.helper >= 0:
        part(S, live.helper)
    while b >= 0:
        _drop(S, b, t)
        b = np.int64(co_at(S, b).later)


@njit
def lose_helper(S, i, t, router, features):
    """Slot `i` is lost, and with it all that only it has of batches that are not finished."""
    leader = live_at(S, i).leader
    if leader >= 0:
        part(S, i)
    for j in range(const_of(S).n_inst):
        _give_back(S, j, i, t, router, features)
    if leader >= 0:
        look_up(S, leader, t)


@njit
def _cut(S, i, helper, t):
    """Take the first batch that `helper` has formed for instance `i`, and all later ones, away from it.

    Returns:
        How many requests they have; they are the last of those being prefilled.
    """
    inst, live = inst_at(S, i), live_at(S, i)
    n = 0
    b, kept = live.first, np.int64(-1)
    if live.executing >= 0 and co_at(S, live.executing).helper == helper:
        n = np.int64(co_at(S, live.executing).n)
        live.executing = -1
        inst.busy_ps += t - inst.seg_begin
        inst.mode = IDLE
        inst.seg_n = 0
        schedule(S, i, NO_EVENT)
    else:
        while b >= 0 and co_at(S, b).helper != helper:
            kept = b
            b = np.int64(co_at(S, b).later)
    live.last = kept
    if kept >= 0:
        co_at(S, kept).later = -1
    else:
        live.first = -1
    while b >= 0:
        _drop(S, b, t)
        n += np.int64(co_at(S, b).n)
        live.batches -= 1
        b = np.int64(co_at(S, b).later)
    return n


@njit
def _give_back(S, i, helper, t, router, features):
    """What `helper` had a part in, and all after it, is not admitted to instance `i` after all."""
    inst, live = inst_at(S, i), live_at(S, i)
    if live.executing < 0 and live.first < 0:
        return
    n = _cut(S, i, helper, t)
    if n == 0:
        return
    homeless = np.int64(-1)
    for _ in range(n):
        r = lists_of(S)[prefill_row(S, i), 1]
        req = req_at(S, r)
        leave_unfinished(S, i, r, t, LOSE)
        let_go(S, r, t)
        origin = np.int64(co_at(S, r).origin)
        if origin < 0 and inst.state == _ACTIVE:
            req.state = _OWN_QUEUE
            req.at = i
            push_front(S, i, r)
            inst.waiting += demand(S, r)
            continue
        inst.left -= req.predicted - req.emitted
        if origin >= 0:
            enter_front(S, r, origin)
        else:
            req.aux_next = homeless
            homeless = r
    while homeless >= 0:
        after = np.int64(req_at(S, homeless).aux_next)
        req_at(S, homeless).aux_next = -1
        route(S, homeless, t, router, features)
        homeless = after
    wake_serving(S, i, t)


# ---- reading -------------------------------------------------------------------------------------


@njit
def read_pairs(S, out):
    """Fill in `out` (I, LOADING_DTYPE) what it says of live pairs."""
    for i in range(const_of(S).n_inst):
        live = live_at(S, i)
        out[i].partner = live.helper if live.helper >= 0 else live.leader
        out[i].batches = live.batches
        out[i].helped_ps = live.helped_ps
