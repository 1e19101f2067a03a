"""Failures of instances, line by line of docs/engine.md section 10, on both engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llmscale_env.sim.spec import (
    InstanceState,
    LoadSource,
    PreemptionMode,
    RequestState,
    RouterKind,
    RouteSpec,
)
from tests.refusals import refuses
from tests.small_clusters import (
    Engine,
    column,
    pool,
    profile,
    queued,
    run,
    seen,
    swapping,
    table,
    times,
)

REPAIRED = pool(batch_limit=2, repair_ps=50, load_ps=(30, 20, 10))
PAIR = table((0, 4, 10), (0, 2, 10), (30, 2, 1))
"""Two that run from 0 (prefill 23, then 28: 51) and one that waits behind them."""


def test_what_ran_starts_again_at_the_front_of_its_queue(engine_class: Engine) -> None:
    engine = run(engine_class, queued(REPAIRED), PAIR, 40)
    engine.fail(0)
    assert engine.queues() == [[0, 1, 2], []]
    assert column(engine, "emitted_tokens") == [0, 0, 0]
    assert column(engine, "restarts") == [1, 1, 0]
    assert seen(engine, 0, "state", "running", "kv_tokens", "failures", "source") == (
        InstanceState.ACQUIRING,
        0,
        0,
        1,
        -1,
    )
    engine.advance(91)
    # Repaired at 90; loads in 30.
    assert seen(engine, 0, "state", "loaded_ps") == (InstanceState.LOADING, 120)
    engine.advance(144)
    # Prefilled again until 143: first admission and first token stay, the gap since then is one.
    assert column(engine, "emitted_tokens") == [1, 1, 0]
    for request in (0, 1):
        assert times(engine, request)[:2] == (0, 23)
        assert times(engine, request)[3] == 120
    engine.advance(10**4)
    assert column(engine, "state") == [RequestState.FINISHED] * 3
    assert column(engine, "emitted_tokens") == [10, 10, 1]
    assert (column(engine, "preemptions"), column(engine, "evictions")) == ([0] * 3, [0] * 3)


@pytest.mark.parametrize("at_ps, last_token_ps", [(51, 23), (52, 51)])
def test_a_failure_comes_before_an_iteration_that_would_end_then(
    engine_class: Engine, at_ps: int, last_token_ps: int
) -> None:
    engine = run(engine_class, queued(REPAIRED), PAIR, at_ps)
    engine.fail(0)
    engine.advance(at_ps + 80 + 23 + 1)
    assert times(engine, 0)[3] == at_ps + 80 + 23 - last_token_ps


def test_a_gap_before_the_failure_stays(engine_class: Engine) -> None:
    spec = queued(replace(REPAIRED, repair_ps=0, load_ps=(0, 0, 0)))
    engine = run(engine_class, spec, table((0, 400, 3), (1, 300, 3)), 10**4)
    gap = times(engine, 0)[3]
    assert gap > 905  # the other's prefill came in between
    again = run(engine_class, spec, table((0, 400, 9), (1, 300, 3)), 1205 + 905 + 1412 + 1 + 100)
    again.fail(0)
    again.advance(10**5)
    assert times(again, 0)[3] >= gap
    assert column(again, "emitted_tokens") == [9, 3]


def test_the_repair_is_not_billed(engine_class: Engine) -> None:
    engine = run(engine_class, queued(replace(REPAIRED, gpus=2)), PAIR, 40)
    engine.fail(0)
    for now, billed in ((40, 40), (90, 40), (100, 50), (200, 150)):
        engine.advance(now)
        assert engine.gpu_ps() == [2 * billed]


def test_preempted_requests_come_before_running_ones(engine_class: Engine) -> None:
    spec = queued(REPAIRED, profiles=(profile(kv_capacity_tokens=12),))
    engine = run(engine_class, spec, table((0, 4, 4), (0, 4, 4)), 70)
    assert seen(engine, 0, "preempted", "running") == (1, 1)  # 29, 61: the second gives way
    engine.fail(0)
    assert engine.queues() == [[1, 0], []]
    assert column(engine, "restarts") == [1, 1]
    assert column(engine, "emitted_tokens") == [0, 0]


def routed(*pools: Any, **changes: Any) -> Any:
    """Class 0 is routed to the pools round robin, class 1 waits in queue 0."""
    routes = (
        RouteSpec(RouterKind.ROUND_ROBIN, tuple(range(len(pools)))),
        RouteSpec(RouterKind.SHARED_QUEUE, (), queue=0),
    )
    return replace(queued(*pools, **changes), routes=(routes,))


def test_who_has_no_queue_is_routed_again(engine_class: Engine) -> None:
    one = replace(REPAIRED, batch_limit=1)
    engine = run(engine_class, routed(one, one), table(*((0, 4, 9) for _ in range(6))), 30)
    # 0, 2, 4 went to the first, 1, 3, 5 to the second; one each runs.
    engine.fail(0)
    assert seen(engine, 1, "running", "waiting") == (1, 5)
    engine.advance(10**4)
    # The one that ran first, then its own queue; behind those that waited there.
    assert engine.finish_log() == [1, 3, 5, 0, 2, 4]
    assert column(engine, "restarts") == [1, 0, 0, 0, 0, 0]


def test_with_nobody_left_they_wait_in_the_gateway(engine_class: Engine) -> None:
    one = replace(REPAIRED, batch_limit=1)
    engine = run(engine_class, routed(one, one), table(*((0, 4, 9) for _ in range(6))), 30)
    engine.fail(0)
    engine.fail(1)
    # 1 ran at the second, then what waited there.
    assert engine.gateway(0) == [1, 3, 5, 0, 2, 4]
    assert engine.conservation()[RequestState.GATEWAY] == 6
    engine.advance(10**4)
    assert column(engine, "state") == [RequestState.FINISHED] * 6
    # Both are there again at 110: the first one gets all of the gateway, as it is active first.
    assert column(engine, "instance") == [0] * 6


def test_all_instances_fail_and_no_request_is_lost(engine_class: Engine) -> None:
    spec = queued(replace(REPAIRED, n_slots=3, initial_active=3))
    engine = engine_class(spec, table(*((5 * k, 4, 9) for k in range(20))))
    for now in range(20, 400, 20):
        engine.advance(now)
        for i in range(3):
            engine.fail(i)
        arrived = min(20, (now - 1) // 5 + 1)
        done = engine.conservation()[RequestState.FINISHED]
        assert len(engine.queues()[0]) == arrived - done
    engine.advance(10**5)
    assert column(engine, "state") == [RequestState.FINISHED] * 20
    assert column(engine, "emitted_tokens") == [9] * 20
    assert engine.instances()["host_kv_bytes"].tolist() == [0] * 3


def neighbours(engine_class: Engine) -> Any:
    """At 100: number 0 is in queue 1, its KV saved on instance 0, which runs 1; instance 1 is `OFF`."""
    one = pool(n_slots=2, batch_limit=1, pull=(0, 1), evicts_in_order=True, repair_ps=1000)
    moving = profile(swap_out_ps_per_token=1, swap_in_ps_per_token=2)
    engine = engine_class(queued(one, profiles=(moving,)), table((0, 4, 10, 1), (20, 4, 30, 0)))
    engine.advance(100)
    assert (engine.queues(), seen(engine, 0, "host_kv_bytes")) == ([[], [0]], (6,))
    engine.set_pull(1, (1,))
    return engine


def test_kv_saved_on_a_neighbour_that_works_is_restored(engine_class: Engine) -> None:
    engine = neighbours(engine_class)
    engine.set_target(0, 2)
    engine.advance(200)
    assert times(engine, 0)[3] == 100 + 12 + 23 - 38
    assert seen(engine, 0, "host_kv_bytes") == (0,)


def test_kv_saved_on_an_instance_that_fails_is_lost(engine_class: Engine) -> None:
    engine = neighbours(engine_class)
    engine.fail(0)
    assert seen(engine, 0, "host_kv_bytes") == (0,)
    # Its tokens are not: only what ran or was preempted starts again.
    assert column(engine, "emitted_tokens")[0] == 2
    assert column(engine, "restarts") == [0, 1]
    engine.set_target(0, 2)
    engine.advance(200)
    assert times(engine, 0)[3] == 100 + 23 - 38  # 6 tokens prefilled


def test_a_neighbour_that_fails_takes_no_copy_along(engine_class: Engine) -> None:
    engine = neighbours(engine_class)
    engine.set_target(0, 2)
    engine.advance(101)
    engine.fail(1)
    # It ran number 0, restored from instance 0 at 100: gone, and started again.
    assert engine.queues() == [[], [0]]
    assert column(engine, "emitted_tokens")[0] == 0
    assert engine.instances()["host_kv_bytes"].tolist() == [0, 0]


def test_limit_and_list_stay(engine_class: Engine) -> None:
    spec = queued(replace(REPAIRED, batch_limit=4))
    engine = run(engine_class, spec, table((0, 4, 9, 0), (0, 4, 9, 1), (0, 4, 9, 1)), 10)
    engine.set_batch_limit(0, 1)
    engine.set_pull(0, (1,))
    engine.fail(0)
    assert engine.queues() == [[0], [1, 2]]
    engine.advance(10**4)
    assert engine.queues() == [[0], []]
    assert column(engine, "admitted_ps")[1] == 90
    assert column(engine, "admitted_ps")[2] == column(engine, "finished_ps")[1]


def test_orders_and_transfers_not_yet_paid_are_forgotten(engine_class: Engine) -> None:
    one = pool(batch_limit=1, pull=(0, 1), evicts_in_order=True)
    moving = profile(swap_out_ps_per_token=1000)
    spec = queued(one, profiles=(moving,), priorities=(1, 1))
    engine = run(engine_class, spec, table((0, 4, 9, 1), (20, 4, 9, 0)), 39)
    assert seen(engine, 0, "host_kv_bytes") == (6,)
    engine.evict(0, 1)
    engine.fail(0)  # repaired and loaded at once
    engine.advance(39 + 18)
    assert times(engine, 1)[1] == 39 + 17
    assert column(engine, "evictions") == [1, 0]


def test_copies_under_way_are_forgotten(engine_class: Engine) -> None:
    one = pool(pull=(0, 1), evicts_in_order=True, async_kv=True)
    slow = profile(swap_out_ps_per_token=10, kv_capacity_tokens=20)
    engine = engine_class(queued(one, profiles=(slow,)), table((0, 8, 12, 1), (30, 11, 2, 0)))
    engine.advance(100)
    assert seen(engine, 0, "kv_tokens") == (10,)
    engine.fail(0)
    assert seen(engine, 0, "kv_tokens", "host_kv_bytes") == (0, 0)
    engine.advance(10**4)
    assert times(engine, 1)[0] == 100
    assert column(engine, "state") == [RequestState.FINISHED] * 2


def test_a_draining_instance_turns_off(engine_class: Engine) -> None:
    one = replace(REPAIRED, gpus=2)
    spec = queued(one, replace(one, initial_active=0), max_gpus=2)
    engine = run(engine_class, spec, PAIR, 40)
    engine.drain(0)
    assert engine.set_target(1, 1) == 1  # no GPU is free
    engine.fail(0)
    assert seen(engine, 0, "state", "failures") == (InstanceState.OFF, 1)
    assert engine.queues() == [[0, 1, 2], []]
    assert engine.set_target(1, 1) == 0
    engine.advance(10**4)
    assert column(engine, "instance") == [1, 1, 1]
    assert engine.gpu_ps()[0] == 80


def test_while_acquiring_and_while_loading(engine_class: Engine) -> None:
    spec = queued(replace(REPAIRED, initial_active=0, acquire_ps=40))
    engine = engine_class(spec, PAIR)
    engine.set_target(0, 1)
    engine.advance(20)
    engine.fail(0)
    assert seen(engine, 0, "state") == (InstanceState.ACQUIRING,)
    engine.advance(80)
    # Repaired at 70, loading until 100.
    assert seen(engine, 0, "state", "loaded_ps") == (InstanceState.LOADING, 100)
    engine.fail(0)
    assert seen(engine, 0, "state", "loaded_ps", "failures") == (InstanceState.ACQUIRING, -1, 2)
    assert engine.gpu_ps() == [10]
    engine.advance(1000)
    assert times(engine, 0)[0] == 80 + 50 + 30
    # Wanted by a target all the while.
    assert engine.set_target(0, 1) == 0
    assert seen(engine, 0, "state") == (InstanceState.ACTIVE,)


def test_off_cannot_fail(engine_class: Engine) -> None:
    engine = engine_class(queued(replace(REPAIRED, n_slots=2)), PAIR)
    refuses("instance = 1: is OFF", engine.fail, 1)
    refuses("instance = 2", engine.fail, 2)
    assert engine.instances()["failures"].tolist() == [0, 0]


def test_while_swapping(engine_class: Engine) -> None:
    one = swapping(repair_ps=20, load_ps=(30, 30, 30))
    engine = run(engine_class, queued(one, n_llms=2), table((0, 4, 2, 0, 0), (0, 4, 2, 0, 1)), 50)
    assert seen(engine, 0, "state", "llm") == (InstanceState.LOADING, 1)
    engine.fail(0)
    # It starts over with the pool's LLM.
    assert seen(engine, 0, "state", "llm") == (InstanceState.ACQUIRING, 0)
    assert engine.gpu_ps() == [50]
    engine.advance(1000)
    # There at 100; the weights of LLM 1, fetched since 38, are in host memory at 138.
    assert times(engine, 1)[0] == 178
    assert seen(engine, 0, "swaps", "failures") == (2, 1)


def test_weights_in_host_memory_stay(engine_class: Engine) -> None:
    spec = queued(replace(REPAIRED, load_source=LoadSource.HOST), host_keep_alive_ps=50)
    engine = run(engine_class, spec, PAIR, 40)
    engine.fail(0)
    engine.advance(91)
    assert seen(engine, 0, "source", "loaded_ps") == (LoadSource.HOST, 110)
    other = run(engine_class, replace(spec, host_keep_alive_ps=49), PAIR, 40)
    other.fail(0)
    other.advance(91)
    assert seen(other, 0, "source", "loaded_ps") == (LoadSource.SSD, 120)


def test_a_static_batch_that_failed_is_over(engine_class: Engine) -> None:
    spec = queued(replace(REPAIRED, batch_limit=4, static_batch=True))
    engine = run(engine_class, spec, table((0, 4, 9), (30, 4, 9)), 40)
    engine.fail(0)
    engine.advance(10**4)
    assert column(engine, "admitted_ps") == [0, 120]


@pytest.mark.parametrize("mode", PreemptionMode)
def test_during_a_chunked_prefill(engine_class: Engine, mode: PreemptionMode) -> None:
    spec = queued(replace(REPAIRED, chunk_tokens=4, preemption=mode))
    engine = run(engine_class, spec, table((0, 10, 3), (0, 3, 2)), 30)
    engine.fail(0)
    assert column(engine, "emitted_tokens") == [0, 0]
    assert engine.queues() == [[0, 1], []]
    fresh = engine_class(spec, table((110, 10, 3), (110, 3, 2)))
    engine.advance(10**4)
    fresh.advance(10**4)
    assert column(engine, "finished_ps") == column(fresh, "finished_ps")
    assert column(engine, "max_itl_ps") == column(fresh, "max_itl_ps")
