"""What a controller is shown: counts kept since the start, and the cluster as it stands.

`close_windows` is called once per control interval. It looks at each request a fixed number of
times in all: at its first token, at its deadline, at its end. What is shown of the shared queues is
kept by `queues`.
"""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.fast.serving.queues import (
    age,
)
from llmscale_env.sim.fast.serving.timing import iterations_done, kv_after
from llmscale_env.sim.fast.state.lists import (
    oldest_row,
    preempted_row,
    queue_row,
)
from llmscale_env.sim.fast.state.memory import (
    by_class_of,
    cls_at,
    const_of,
    glob_of,
    inst_at,
    lists_of,
    log_of,
    pool_at,
    pool_seen_at,
    prof_at,
    queue_at,
    queue_seen_at,
    req_at,
    running_cls_of,
    tally_at,
)
from llmscale_env.sim.fast.weights.loading import time_left
from llmscale_env.sim.jit import njit
from llmscale_env.sim.observed import (
    LOAD_BOUNDS_PS,
    N_LOAD_BINS,
    N_SLACK_BINS,
    N_TTFT_BINS,
    TTFT_BOUNDS,
)
from llmscale_env.sim.spec import InstanceState, RequestState
from llmscale_env.workload.requests import PS_PER_S

_ACQUIRING = int(InstanceState.ACQUIRING)
_LOADING = int(InstanceState.LOADING)
_ACTIVE = int(InstanceState.ACTIVE)
_DRAINING = int(InstanceState.DRAINING)
_REJECTED = int(RequestState.REJECTED)


@njit
def _count_first_tokens(S):
    glob = glob_of(S)
    log = log_of(S)
    for k in range(glob.first_cursor, glob.n_first_tokens):
        req = req_at(S, log[1, k])
        tally = tally_at(S, req.cls)
        ttft = req.first - req.arrival
        tally.started += 1
        rest = tally.ttft_sum_ps + ttft
        tally.ttft_sum_s += rest // PS_PER_S
        tally.ttft_sum_ps = rest % PS_PER_S
        tally.ttft_max_ps = max(tally.ttft_max_ps, ttft)
        share = ttft / cls_at(S, req.cls).ttft_slo_ps
        b = 0
        while b < N_TTFT_BINS - 1 and share > TTFT_BOUNDS[b]:
            b += 1
        tally.ttft_bins[b] += 1
    glob.first_cursor = glob.n_first_tokens


@njit
def _count_finishes(S):
    glob = glob_of(S)
    log = log_of(S)
    for k in range(glob.finish_cursor, glob.n_finished):
        req = req_at(S, log[0, k])
        tally = tally_at(S, req.cls)
        cls = cls_at(S, req.cls)
        tally.finished += 1
        tally.output_tokens += req.output
        tally.output_squares += np.float64(req.output) * np.float64(req.output)
        itl_ok = True
        if req.output > 1:
            gaps = req.output - 1
            spent = req.finished - req.first
            rest = tally.itl_sum_ps + spent // gaps
            tally.itl_sum_s += rest // PS_PER_S
            tally.itl_sum_ps = rest % PS_PER_S
            tally.itl_count += 1
            tally.itl_max_ps = max(tally.itl_max_ps, spent // gaps)
            share = spent // gaps / cls.itl_slo_ps
            b = 0
            while b < N_TTFT_BINS - 1 and share > TTFT_BOUNDS[b]:
                b += 1
            tally.itl_bins[b] += 1
            if cls.itl_max:
                itl_ok = req.max_itl <= cls.itl_slo_ps
            else:
                itl_ok = (spent + gaps - 1) // gaps <= cls.itl_slo_ps  # the product could overflow
        if req.first - req.arrival <= cls.ttft_slo_ps:
            if itl_ok:
                tally.on_time += 1
            else:
                tally.itl_late += 1
    glob.finish_cursor = glob.n_finished


@njit
def _count_deadlines(S, t):
    """Whose TTFT deadline has passed: late unless the first token came before."""
    by_class = by_class_of(S)
    for c in range(const_of(S).n_classes):
        tally = tally_at(S, c)
        slo = cls_at(S, c).ttft_slo_ps
        while tally.cursor < tally.end:
            req = req_at(S, by_class[tally.cursor])
            if req.arrival + slo >= t:
                break
            tally.cursor += 1
            if req.state != _REJECTED and (req.first < 0 or req.first - req.arrival > slo):
                tally.ttft_late += 1


@njit
def _count_arrivals(S):
    glob = glob_of(S)
    for r in range(glob.arrival_cursor, glob.next_arrival):
        req = req_at(S, r)
        tally = tally_at(S, req.cls)
        tally.arrived += 1
        tally.input_tokens += req.input
        tally.predicted_tokens += req.predicted
        if req.state == _REJECTED:
            tally.rejected += 1
    glob.arrival_cursor = glob.next_arrival


@njit
def _see_pools(S, t):
    const = const_of(S)
    for p in range(const.n_pools):
        seen = pool_seen_at(S, p)
        pool = pool_at(S, p)
        seen.acquiring = seen.loading = seen.active = seen.draining = 0
        seen.running = seen.evictable = seen.waiting = seen.preempted = 0
        seen.waiting_tokens = seen.kv_tokens = seen.kv_capacity = seen.limit_sum = 0
        seen.interactive = seen.busy = 0
        seen.iterations = seen.tokens = seen.preemptions = seen.evictions = 0
        seen.busy_s = seen.busy_ps = seen.gpu_s = seen.gpu_ps = 0
        seen.kv_max = 0.0
        seen.next_ready_ps = seen.oldest_ps = -1
        seen.started = pool.started
        seen.stopped = pool.stopped
        for b in range(N_LOAD_BINS):
            seen.load_bins[b] = 0
        for b in range(3):
            seen.source_used[b] = pool.source_used[b]
    for i in range(const.n_inst):
        _see_instance(S, i, t)


@njit
def _see_instance(S, i, t):
    inst = inst_at(S, i)
    seen = pool_seen_at(S, inst.pool)
    gpus = pool_at(S, inst.pool).gpus
    billed = inst.gpu_ps
    if inst.billed_ps >= 0:
        billed += t - inst.billed_ps
    rest = seen.gpu_ps + billed % PS_PER_S * gpus
    seen.gpu_s += billed // PS_PER_S * gpus + rest // PS_PER_S
    seen.gpu_ps = rest % PS_PER_S
    n = iterations_done(S, i, t)
    seen.iterations += inst.iterations + n
    seen.tokens += inst.tokens + n * inst.n_dec
    seen.preemptions += inst.preemptions
    seen.evictions += inst.evictions
    rest = seen.busy_ps + inst.busy_ps
    if inst.state == _ACTIVE or inst.state == _DRAINING:
        rest += _busy_so_far(S, i, t)
    seen.busy_s += rest // PS_PER_S
    seen.busy_ps = rest % PS_PER_S
    if inst.state in (_ACQUIRING, _LOADING):
        if inst.state == _ACQUIRING:
            seen.acquiring += 1
        else:
            seen.loading += 1
        left = max(0, inst.loaded_ps - t)
        if pool_at(S, inst.pool).weight_bytes > 0:
            left = time_left(S, i, t)
        if left >= 0 and (seen.next_ready_ps < 0 or left < seen.next_ready_ps):
            seen.next_ready_ps = left
        b = 0
        while b < N_LOAD_BINS - 1 and (left < 0 or left > LOAD_BOUNDS_PS[b]):
            b += 1
        seen.load_bins[b] += 1
        return
    if inst.state not in (_ACTIVE, _DRAINING):
        return
    waiting = lists_of(S)[i, 2]
    seen.running += inst.n_run
    seen.evictable += inst.ev_n
    seen.waiting += waiting
    seen.preempted += lists_of(S)[preempted_row(S, i), 2]
    seen.waiting_tokens += inst.waiting
    if inst.state == _DRAINING:
        seen.draining += 1
        return
    seen.active += 1
    kv = kv_after(S, i, n)
    cap = prof_at(S, inst.profile).cap
    seen.kv_tokens += kv
    seen.kv_capacity += cap
    seen.kv_max = max(seen.kv_max, kv / cap)
    seen.limit_sum += inst.limit
    high = 0
    for c in range(const_of(S).n_classes):
        if cls_at(S, c).priority == 0:
            high += running_cls_of(S)[i, c]
    if high > 0 or (waiting > 0 and cls_at(S, req_at(S, lists_of(S)[i, 0]).cls).priority == 0):
        seen.interactive += 1
    if inst.n_run > 0 or waiting > 0:
        seen.busy += 1
    if waiting > 0:
        arrival = req_at(S, lists_of(S)[i, 0]).arrival
        if seen.oldest_ps < 0 or arrival < seen.oldest_ps:
            seen.oldest_ps = arrival


@njit
def _busy_so_far(S, i, t):
    inst = inst_at(S, i)
    return t - inst.seg_begin if inst.mode != 0 else 0


@njit
def _see_queues(S, t):
    age(S, t)
    for q in range(const_of(S).n_queues):
        seen = queue_seen_at(S, q)
        queue = queue_at(S, q)
        seen.requests = lists_of(S)[queue_row(S, q), 2]
        seen.tokens = queue.tokens
        seen.predicted_tokens = queue.predicted_tokens
        oldest = lists_of(S)[oldest_row(S, q), 0]
        seen.oldest_ps = req_at(S, oldest).arrival if oldest >= 0 else -1
        for b in range(N_SLACK_BINS):
            seen.slack_bins[b] = queue.slack_bins[b]
        seen.fresh = queue.fresh
        seen.fresh_input = queue.fresh_input
        seen.fresh_predicted = queue.fresh_predicted
        seen.fresh_squares = queue.fresh_squares


@njit
def settle(S):
    """Count what has happened since the last time, so that who is done need not be looked at again."""
    _count_arrivals(S)
    _count_first_tokens(S)
    _count_finishes(S)
    _count_deadlines(S, glob_of(S).now_ps)


@njit
def close_window(S):
    """Bring the counts of one episode up to its present time."""
    t = glob_of(S).now_ps
    for c in range(const_of(S).n_classes):
        tally = tally_at(S, c)
        tally.ttft_max_ps = 0
        tally.itl_max_ps = 0
        for b in range(N_TTFT_BINS):
            tally.ttft_bins[b] = 0
            tally.itl_bins[b] = 0
    settle(S)
    _see_pools(S, t)
    _see_queues(S, t)


@njit
def close_windows(addresses, first, last):
    """`close_window` of episodes `first..last - 1`."""
    for e in range(first, last):
        close_window(addresses[e])
