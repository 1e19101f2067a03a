"""Other lengths for requests that are under way (docs/engine.md, section 20).

Output lengths are in two places besides the requests' records: in the heap of finishes, which is built anew
from its own entries, and in how long decode segments are, which are cut at their next boundary.
"""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.fast.serving.timing import iterations_done
from llmscale_env.sim.fast.serving.wake import look_up
from llmscale_env.sim.fast.state.lists import ending_row
from llmscale_env.sim.fast.state.memory import (
    const_of,
    glob_of,
    heap_of,
    inst_at,
    lists_of,
    pool_at,
    req_at,
)
from llmscale_env.sim.fast.state.records import IDLE
from llmscale_env.sim.fast.state.structures import heap_add
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec import RequestState

SETTLED = np.int64(0)
"""In place of the least length of a request whose last token has its step."""

_RUNNING = int(RequestState.RUNNING)
_PLACE = 0xFFFFFFFF


@njit
def _least(S, r, t):
    """Tokens that request `r` is sure to have at `t`: those that are out or have their step; or `SETTLED`."""
    req = req_at(S, r)
    if req.state != _RUNNING:
        return np.int64(req.emitted) + 1
    i = np.int64(req.instance)
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    if req.decoding == 2:
        return SETTLED
    if req.decoding == 1:
        out = inst.iter_no + iterations_done(S, i, t) - req.join_iter
        return out + 1 + pool.asynchronous
    composed_on = (
        pool.block_tokens > 0 and pool.asynchronous == 1 and req.pre_done == req.pre_target
    )
    if composed_on and req.output - req.emitted == 1:
        return SETTLED
    return np.int64(req.emitted) + 1 + composed_on


@njit
def imagine(S, places, output):
    """Give the requests at these places these lengths, or as many tokens as they are sure to have."""
    t = glob_of(S).now_ps
    for k in range(len(places)):
        least = _least(S, places[k], t)
        if least != SETTLED:
            req_at(S, places[k]).output = max(least, output[k])
    for i in range(const_of(S).n_inst):
        inst = inst_at(S, i)
        lead = pool_at(S, inst.pool).asynchronous
        for k in range(inst.n_dec - lists_of(S)[ending_row(S, i), 2]):
            r = heap_of(S)[i, k] & _PLACE
            req = req_at(S, r)
            heap_add(S, i, k, req.join_iter + req.output - lead, r)
        if inst.n_dec > 0 and inst.mode != IDLE:
            look_up(S, i, t)
