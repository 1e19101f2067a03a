"""Chiron's Algorithm 1: the batch limit follows local backpressure (docs/engine.md, section 7)."""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.fast.memory import cls_at, const_of, inst_at, pool_at, running_cls_of
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec import ControllerKind

_CHIRON = int(ControllerKind.CHIRON)


@njit
def new_window(S, i, t):
    inst = inst_at(S, i)
    inst.w_start = t
    inst.w_iter = 0
    inst.w_tokens = 0
    inst.w_alone_ps = 0


@njit
def clear_window(S, i, t):
    """Nothing runs: there is nothing to measure."""
    new_window(S, i, t)
    inst = inst_at(S, i)
    inst.changed = 0
    inst.bound = 0
    inst.held = 0
    inst.filling = 0
    inst.restart = 0


@njit
def set_limit(S, i, x):
    """Put instance `i`'s real-valued limit at `x`, held in its pool's range."""
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    inst.x = min(max(x, np.float64(pool.min_batch)), np.float64(pool.max_batch))
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
def _move_literally(S, i, latency, throughput):
    """Algorithm 1 as printed."""
    inst = inst_at(S, i)
    backpressure = latency
    if inst.thr_prev > 0.0:
        backpressure = max(latency, inst.thr_prev / throughput)
    if backpressure < 1.0:
        a = pool_at(S, inst.pool).alpha
        set_limit(S, i, a * (1.0 / backpressure) * inst.x + (1.0 - a) * inst.x)
    else:
        set_limit(S, i, inst.x / 2.0)
    inst.thr_prev = throughput


@njit
def _move(S, i, latency, throughput, ran):
    """Algorithm 1, made steady; the last iteration was one of `ran` requests."""
    inst = inst_at(S, i)
    before = inst.limit
    doubled = inst.thr_ref > 0.0 and before >= 2 * inst.limit_ref
    loss = 0.0
    if doubled and inst.held:
        loss = inst.thr_ref / throughput
    if latency >= 1.0:
        set_limit(S, i, inst.x / 2.0)
    elif loss >= 1.0:
        set_limit(S, i, min(inst.x, np.float64(ran)) / 2.0)
    elif inst.bound:
        if doubled or inst.thr_ref == 0.0 or before == inst.limit_ref:
            inst.thr_ref = throughput
            inst.limit_ref = before
        a = pool_at(S, inst.pool).alpha
        set_limit(S, i, min(a * (1.0 / latency) * inst.x + (1.0 - a) * inst.x, 2.0 * inst.x))
        inst.filling = inst.limit > before
    if inst.limit < inst.limit_ref:
        inst.thr_ref = 0.0


@njit
def update_limit(S, i, t, ran):
    """Step 4 of a boundary; `ran` requests were in the iteration that has just ended."""
    inst = inst_at(S, i)
    pool = pool_at(S, inst.pool)
    steady = pool.controller == _CHIRON
    # Neither the larger batch of before nor one that is still filling says anything about the limit.
    if steady and (ran > inst.limit or inst.filling):
        new_window(S, i, t)
        return
    if not inst.changed or inst.w_iter < (pool.window if steady else 1):
        return
    elapsed = np.float64(t - inst.w_start)
    if steady:
        itl = np.float64(t - inst.w_start - inst.w_alone_ps) / np.float64(inst.w_iter)
    else:
        itl = elapsed / np.float64(inst.w_iter)
    latency = itl / np.float64(tightest_itl_slo(S, i))
    throughput = np.float64(inst.w_tokens) / elapsed
    if steady:
        _move(S, i, latency, throughput, ran)
    else:
        _move_literally(S, i, latency, throughput)
    inst.changed = 0
    inst.bound = 0
    inst.held = 0
    new_window(S, i, t)
