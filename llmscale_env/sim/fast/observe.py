"""Reading the state at the present time, without disturbing it."""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.fast.serving.itl import largest_gap
from llmscale_env.sim.fast.serving.timing import iterations_done, kv_after
from llmscale_env.sim.fast.state.lists import (
    decode_gateway_row,
    flight_row,
    gateway_row,
    landed_row,
    preempted_row,
    running_row,
)
from llmscale_env.sim.fast.state.memory import (
    blocks_at,
    const_of,
    flow_at,
    glob_of,
    ids_of,
    inst_at,
    lists_of,
    pool_at,
    prof_at,
    report_at,
    req_at,
    stack_of,
    v1_at,
)
from llmscale_env.sim.fast.state.records import (
    DECODE,
)
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec import InstanceState, RequestState

_LOADING = int(InstanceState.LOADING)
_FUTURE = int(RequestState.FUTURE)
_GATEWAY = int(RequestState.GATEWAY)
_OWN_QUEUE = int(RequestState.OWN_QUEUE)
_HANDOVER = int(RequestState.HANDOVER)
_RUNNING = int(RequestState.RUNNING)


@njit
def read_results(S, out):
    """Fill `out` (n, RESULT_DTYPE) for the episode's requests as they stand."""
    t = glob_of(S).now_ps
    for r in range(glob_of(S).n_requests):
        req = req_at(S, r)
        out[r].state = req.state
        out[r].instance = req.instance
        out[r].admitted_ps = req.admitted
        out[r].first_token_ps = req.first
        out[r].finished_ps = req.finished
        out[r].max_itl_ps = req.max_itl
        out[r].emitted_tokens = req.emitted
        out[r].preemptions = req.preemptions
        out[r].evictions = req.evictions
        out[r].restarts = req.restarts
        out[r].cached_tokens = blocks_at(S, r).cached if const_of(S).caches else 0
        if req.state == _RUNNING and req.decoding:
            _read_decoding(S, r, t, out)


@njit
def _read_decoding(S, r, t, out):
    req = req_at(S, r)
    i = req.instance
    inst = inst_at(S, i)
    n = iterations_done(S, i, t)
    out[r].emitted_tokens = inst.iter_no - req.join_iter + n
    gap = largest_gap(S, i, r)
    if inst.mode == DECODE and n > 0:
        last = inst.seg_first_ps + (n - 1) * inst.seg_step_ps
        begin = inst.seg_begin
        for k in range(inst.stack_n - inst.pend_n, inst.stack_n):
            if stack_of(S)[i, k, 0] > req.item_start:
                begin = stack_of(S)[i, k, 1]
                break
        if req.gap_open:
            begin = req.last_token
        first = inst.seg_start + inst.seg_first_ps - begin
        gap = max(gap, max(first, last))
    out[r].max_itl_ps = gap


@njit
def read_instances(S, out):
    """Fill `out` (I, INSTANCE_DTYPE) as an observer at the present time sees the instances."""
    t = glob_of(S).now_ps
    for i in range(const_of(S).n_inst):
        inst = inst_at(S, i)
        n = iterations_done(S, i, t)
        out[i].state = inst.state
        out[i].source = inst.loaded_from
        out[i].llm = inst.llm
        out[i].batch_limit = inst.limit
        out[i].running = inst.n_run
        out[i].waiting = lists_of(S)[i, 2]
        out[i].preempted = lists_of(S)[preempted_row(S, i), 2]
        out[i].kv_tokens = kv_after(S, i, n)
        out[i].host_kv_bytes = inst.host_kv
        out[i].loaded_ps = inst.loaded_ps if inst.state == _LOADING else -1
        out[i].iterations = inst.iterations + n
        out[i].tokens = inst.tokens + n * inst.n_dec
        out[i].swaps = inst.swaps
        out[i].failures = inst.failures
        out[i].in_flight = lists_of(S)[flight_row(S, i), 2]
        out[i].landed = lists_of(S)[landed_row(S, i), 2]
        out[i].kv_held = inst.kv_held
        pool, step = pool_at(S, inst.pool), v1_at(S, i)
        if (
            pool.prefix_cache
        ):  # some of the names there may be lost to blocks that this segment has taken
            free = (prof_at(S, inst.profile).cap - out[i].kv_tokens) // pool.block_tokens
            out[i].kv_cached = min(step.cached, free) * pool.block_tokens
        out[i].asked_tokens = step.asked
        out[i].hit_tokens = step.hit


@njit
def read_reports(S, out):
    """Fill `out` (I, REPORT_DTYPE): the last iterations that ended before the present time."""
    t = glob_of(S).now_ps
    for i in range(const_of(S).n_inst):
        inst, report = inst_at(S, i), report_at(S, i)
        out[i].prefill_tokens = report.prefill_tokens
        out[i].prefill_squares = report.prefill_squares
        out[i].prefill_requests = report.prefill_requests
        out[i].prefill_ps = report.prefill_ps
        out[i].decode_requests = report.decode_requests
        out[i].decode_context = report.decode_context
        out[i].decode_ps = report.decode_ps
        n = iterations_done(S, i, t)
        if n > 0:
            out[i].decode_requests = inst.n_dec
            out[i].decode_context = inst.ctx + (n - 1) * inst.n_dec
            out[i].decode_ps = inst.seg_first_ps + (n - 1) * inst.seg_step_ps


@njit
def _read_list_under_way(S, row, i, t, out, k):
    r = np.int64(lists_of(S)[row, 0])
    while r >= 0:
        req = req_at(S, r)
        out[k].request = r
        out[k].arrival_ps = req.arrival
        out[k].llm = req.llm
        out[k].slo_class = req.cls
        out[k].instance = i
        out[k].state = req.state
        # Who has landed is held by nobody.
        out[k].movable = req.state == _GATEWAY or req.state == _OWN_QUEUE
        if req.state == _HANDOVER:
            out[k].movable = flow_at(S, r).source >= 0 and flow_at(S, r).pending == 0
        out[k].input_tokens = req.input
        out[k].predicted_tokens = req.predicted
        out[k].emitted_tokens = req.emitted
        if req.state == _RUNNING and req.decoding:
            inst = inst_at(S, i)
            out[k].emitted_tokens = inst.iter_no - req.join_iter + iterations_done(S, i, t)
        out[k].first_token_ps = req.first
        k += 1
        r = np.int64(req.next)
    return k


@njit
def read_under_way(S, out):
    """Fill `out` (UNDER_WAY_DTYPE) with who is in a gateway or at an instance; returns how many."""
    t = glob_of(S).now_ps
    k = 0
    for m in range(const_of(S).n_llms):
        k = _read_list_under_way(S, gateway_row(S, m), -1, t, out, k)
        k = _read_list_under_way(S, decode_gateway_row(S, m), -1, t, out, k)
    for i in range(const_of(S).n_inst):
        for row in (
            i,
            preempted_row(S, i),
            flight_row(S, i),
            landed_row(S, i),
            running_row(S, i, 0),
            running_row(S, i, 1),
        ):
            k = _read_list_under_way(S, row, i, t, out, k)
    return k


@njit
def read_running_from(S, out):
    """Count in `out` (I, Q) every instance's running and preempted requests by their shared queue.

    A preempted request counts: it may still be evicted, or started again by a failure, and then it
    goes back to its queue, which must not have been given to others meanwhile.
    """
    for i in range(const_of(S).n_inst):
        for row in (preempted_row(S, i), running_row(S, i, 0), running_row(S, i, 1)):
            r = lists_of(S)[row, 0]
            while r >= 0:
                if req_at(S, r).queue >= 0:
                    out[i, req_at(S, r).queue] += 1
                r = req_at(S, r).next


@njit
def read_billed(S, out):
    """Fill `out` (I,) with the time for which each instance's GPUs have been billed."""
    t = glob_of(S).now_ps
    for i in range(const_of(S).n_inst):
        inst = inst_at(S, i)
        billed = inst.gpu_ps
        if inst.billed_ps >= 0:
            billed += t - inst.billed_ps
        out[i] = billed


@njit
def count_states(S, out):
    """Count requests by `RequestState` (states,)."""
    out[:] = 0
    for r in range(glob_of(S).n_requests):
        out[req_at(S, r).state] += 1


@njit
def read_list(S, row, out):
    """Copy the requests of a list to `out` (its count,)."""
    r = lists_of(S)[row, 0]
    n = 0
    while r >= 0:
        out[n] = r
        n += 1
        r = req_at(S, r).next


@njit
def look_up(addresses, requests, rows, found):
    """Fill `rows` and `found` (n, FOUND_DTYPE) of requests by id, each of the episode at its address.

    Args:
        addresses: (n,) of the episodes' tables.
        requests: (n,) ids.
        rows: (n,) where each stands in the episode's arrays, -1: it is not known (any more).
        found: (n,) FOUND_DTYPE.
    """
    for k in range(len(requests)):
        S = addresses[k]
        low, high = np.int64(0), np.int64(glob_of(S).n_requests)
        end = high
        while low < high:
            middle = (low + high) // 2
            if ids_of(S)[middle] < requests[k]:
                low = middle + 1
            else:
                high = middle
        there = low < end and ids_of(S)[low] == requests[k]
        rows[k] = low if there else -1
        found[k].state, found[k].llm, found[k].placeable = _FUTURE, -1, False
        if there:
            req = req_at(S, low)
            waits = req.state == _GATEWAY or req.state == _OWN_QUEUE
            if req.state == _HANDOVER:  # one that has landed is held by nobody
                waits = flow_at(S, low).source >= 0 and flow_at(S, low).pending == 0
            found[k].state, found[k].llm, found[k].placeable = req.state, req.llm, waits
