"""Sums over many instances and days are more picoseconds than 64 bits hold (docs/engine.md, section 1)."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmscale_env.sim.fast import EngineBatch
from llmscale_env.sim.picoseconds import seconds
from llmscale_env.sim.spec import ClassSpec, ClusterSpec, RouterKind, RouteSpec, SpotSpec
from llmscale_env.workload.requests import RequestTable
from tests.small_clusters import pool, profile, run

WEEK_S = 7 * 86400
WEEK_PS = WEEK_S * 10**12
MANY = 20
assert MANY * WEEK_PS > 2**63


def slow(active: int = MANY, **changes: Any) -> ClusterSpec:
    """20 instances of 8 GPUs on which an iteration takes a week."""
    times = profile(
        decode_const_ps=WEEK_PS,
        decode_per_request_ps=0,
        decode_per_token_ps=0,
        prefill_const_ps=WEEK_PS,
        prefill_per_token_ps=0,
    )
    many = pool(n_slots=MANY, initial_active=active, gpus=8, pull=(), **changes)
    return ClusterSpec(
        profiles=(times,),
        pools=(many,),
        routes=((RouteSpec(RouterKind.JSQ_REQUESTS, (0,)),),),
        classes=(ClassSpec(),),
        queue_llm=(),
    )


def one_each() -> RequestTable:
    return RequestTable.build(np.zeros(MANY), 1, 3)


def test_gpu_time_of_a_large_pool(engine_class: Any) -> None:
    engine = run(engine_class, slow(), one_each(), 3 * WEEK_PS + 1)
    assert engine.gpu_ps() == [MANY * 8 * (3 * WEEK_PS + 1)]


def test_what_a_controller_is_shown_of_long_times() -> None:
    batch = EngineBatch(slow(), 1)
    batch.reset(0, one_each())
    for week in range(1, 4):
        batch.advance(0, week * WEEK_PS + 7)
        batch.close_windows(0, 1)
    pools, tally = batch.states.pool_seen[0], batch.states.tally[0]
    assert (pools["gpu_s"][0], pools["gpu_ps"][0]) == (MANY * 8 * 3 * WEEK_S, MANY * 8 * 7)
    assert (pools["busy_s"][0], pools["busy_ps"][0]) == (MANY * 3 * WEEK_S, 0)
    assert seconds(pools, "busy")[0] == MANY * 3 * WEEK_S
    # A week to the first token, then one for each of the two others.
    assert (tally["ttft_sum_s"][0], tally["ttft_sum_ps"][0]) == (MANY * WEEK_S, 0)
    assert (tally["itl_sum_s"][0], tally["itl_sum_ps"][0]) == (MANY * WEEK_S, 0)
    assert tally["finished"][0] == MANY


def test_waiting_for_spot_vms(engine_class: Any) -> None:
    """20 VMs come and go 50 times; each takes 10,000 s to come."""
    wait_ps, times = 10**16, 50
    vms = SpotSpec(initial=MANY, reclaim_knots_ps=(wait_ps, wait_ps), donate_ps=1)
    engine = engine_class(slow(spot=vms, active=0), RequestTable.build([1e6], 1, 1))
    for _ in range(times):
        engine.set_target(0, MANY)
        engine.advance(engine.now_ps + wait_ps + 1)
        engine.set_target(0, 0)
        engine.advance(engine.now_ps + 2)
    engine.set_target(0, MANY)
    engine.advance(engine.now_ps + wait_ps // 2)
    row = engine.spot()[0]
    total_ps = MANY * (wait_ps * times + wait_ps // 2)
    assert total_ps > 2**63
    assert int(row["own_s"]) * 10**12 + int(row["own_ps"]) == total_ps
    assert (row["others_s"], row["others_ps"]) == (0, 0)
