"""Chiron's Algorithm 1: the batch limit follows local backpressure (docs/engine.md, section 7)."""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.fast.state.memory import cls_at, const_of, inst_at, pool_at, running_cls_of
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec import ControllerKind

_LITERAL = int(ControllerKind.CHIRON_LITERAL)


@njit
def new_window(S, i, t):
    inst = inst_at(S, i)
    inst.w_start = t
    inst.w_iter = 0
    inst.w_tokens = 0
    inst.changed = 0


@njit
def forget(S, i, t):
    """Measure anew; a throughput that follows is not the effect of the last raise."""
    new_window(S, i, t)
    inst = inst_at(S, i)
    inst.raised = 0
    inst.restart = 0
    inst.settling = 0


@njit
def set_limit(S, i, x):
    """Put instance `i`'s real-valued limit at `x`, held in its pool's range."""
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    inst.x = min(
        max(x, np.float64(pool.controller_min_batch)), np.float64(pool.controller_max_batch)
    )
    inst.limit = np.int64(np.floor(inst.x))


@njit
def tightest_itl_slo(S, i):
    """Smallest ITL target (ps) among the classes of instance `i`'s running requests."""
    slo = np.int64(2**62)
    for c in range(const_of(S).n_classes):
        if running_cls_of(S)[i, c] > 0 and cls_at(S, c).itl_slo_ps < slo:
            slo = cls_at(S, c).itl_slo_ps
    return slo


@njit
def update_limit(S, i, t):
    """Step 4 of a boundary with something running: lines 4 to 15 of Algorithm 1."""
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    if inst.settling:
        room = inst.limit - inst.n_run
        inst.settling = room < 0 or (room > 0 and inst.joined)
        inst.joined = 0
        new_window(S, i, t)
        return
    if not inst.changed or inst.w_iter < pool.controller_window_iterations:
        return
    before, x = inst.limit, inst.x
    elapsed = np.float64(t - inst.w_start)
    latency = elapsed / np.float64(inst.w_iter) / np.float64(tightest_itl_slo(S, i))
    throughput = np.float64(inst.w_tokens) / elapsed
    pressure = latency
    if inst.thr_prev > 0.0 and (inst.raised or pool.controller == _LITERAL):
        pressure = max(pressure, inst.thr_prev / throughput)
    if pressure < 1.0:
        a = pool.controller_alpha
        set_limit(S, i, a * (1.0 / pressure) * inst.x + (1.0 - a) * inst.x)
    elif pool.controller_reverts and inst.raised and latency < 1.0:
        set_limit(S, i, inst.x_before)
    else:
        set_limit(S, i, inst.x / 2.0)
    inst.thr_prev = throughput
    inst.raised = inst.limit > before
    if inst.raised:
        inst.x_before = x
    inst.settling = pool.controller_settles and inst.limit != before
    inst.joined = 0
    new_window(S, i, t)
