"""Live pairs (docs/engine.md, section 16): who helps whom, batches that stand before the one that serves,
and requests of whose KV the helper keeps its layers. What the helper does is in `live`.
"""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.fast.serving.wake import is_live, wake, wake_helper
from llmscale_env.sim.fast.state.memory import co_at, glob_of, inst_at, live_at, req_at
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec.kinds import InstanceState

_ACTIVE = int(InstanceState.ACTIVE)
_DRAINING = int(InstanceState.DRAINING)

NO_BATCH, HELPER_HAS_IT = -1, -2
"""Instead of a batch: none stands there, or it is for the helper to act."""


@njit
def layers_ps(whole, n_layers, first, end):
    """Time of layers `first` to `end - 1` of an iteration that takes `whole`."""
    return whole * end // n_layers - whole * first // n_layers


@njit
def pair_up(S, helper, leader):
    """Slot `helper`, which is about to load, is to help instance `leader`."""
    live_at(S, helper).leader = leader
    live_at(S, leader).helper = helper
    glob_of(S).n_pairs += 1


@njit
def part(S, helper):
    """The pair of which slot `helper` is the one that loads is over."""
    live_at(S, live_at(S, helper).leader).helper = -1
    live_at(S, helper).leader = -1
    glob_of(S).n_pairs -= 1


@njit
def wake_serving(S, i, t):
    """Wake instance `i` if it serves and is idle."""
    if inst_at(S, i).state == _ACTIVE or inst_at(S, i).state == _DRAINING:
        wake(S, i, t)


# ---- batches of the leader -----------------------------------------------------------------------


@njit
def append(S, i, b):
    """Batch `b` stands last before instance `i`."""
    live = live_at(S, i)
    co_at(S, b).later = -1
    if live.last >= 0:
        co_at(S, live.last).later = b
    else:
        live.first = b
    live.last = b
    live.batches += 1


@njit
def next_batch(S, i, t):
    """The batch that instance `i`, at a boundary, takes: `HELPER_HAS_IT` or `NO_BATCH` without one."""
    live = live_at(S, i)
    live.executing = -1
    if live.helper >= 0:
        wake_helper(S, live.helper, t)
    b = live.first
    if b >= 0:
        return HELPER_HAS_IT if live_at(S, co_at(S, b).helper).work == b else b
    if live.helper >= 0 and is_live(S, live.helper):
        return HELPER_HAS_IT
    return NO_BATCH


@njit
def take(S, i, b):
    """Instance `i` takes the first batch to execute its other layers."""
    live, batch = live_at(S, i), co_at(S, b)
    live.executing = b
    live.first = np.int64(batch.later)
    if live.first < 0:
        live.last = -1
    live.batches -= 1
    r = b
    for _ in range(batch.n):
        co_at(S, r).layers = batch.done
        r = np.int64(req_at(S, r).aux_next)


# ---- requests that a helper co-holds -------------------------------------------------------------


@njit
def hold(S, i, r):
    """Instance `i` keeps what it will have of request `r`'s KV."""
    live, co = live_at(S, i), co_at(S, r)
    co.helper = i
    co.layers = 0
    co.prev = live.held_last
    co.after = -1
    if live.held_last >= 0:
        co_at(S, live.held_last).after = r
    else:
        live.held_first = r
    live.held_last = r
    live.n_held += 1


@njit
def let_go(S, r, t):
    """Nobody need keep a helper's part of request `r`'s KV any longer."""
    co = co_at(S, r)
    i = np.int64(co.helper)
    if i < 0:
        return
    live = live_at(S, i)
    if co.prev >= 0:
        co_at(S, co.prev).after = co.after
    else:
        live.held_first = np.int64(co.after)
    if co.after >= 0:
        co_at(S, co.after).prev = co.prev
    else:
        live.held_last = np.int64(co.prev)
    live.n_held -= 1
    co.helper = -1
    co.layers = 0
    wake_serving(S, i, t)
