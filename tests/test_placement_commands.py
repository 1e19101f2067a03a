"""Placement by command, predictions, drift and reports, docs/engine.md section 13, on both engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llmscale_env.sim.spec import ClusterSpec, RequestState, RouterKind, RouteSpec
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
from tests.test_split_phases import cluster as split_cluster


def held(n_slots: int = 2, active: int | None = None, **changes: Any) -> ClusterSpec:
    """Arrivals wait until they are placed."""
    pools = (pool(pull=(), n_slots=n_slots, initial_active=n_slots if active is None else active),)
    fields: dict[str, Any] = {
        "profiles": (profile(), profile(decode_const_ps=20, prefill_const_ps=9)),
        "pools": pools,
        "routes": ((RouteSpec(RouterKind.HOLD, (0,)),),),
        "half_block_tokens": 0,
    }
    return ClusterSpec(**(fields | changes))


def test_held_until_assigned(engine_class: Engine) -> None:
    engine = run(engine_class, held(), table((0, 10, 2), (0, 5, 2), (0, 6, 1)), 100)
    assert engine.gateway(0) == [0, 1, 2]
    engine.assign([2, 0], [1, 1])
    assert engine.gateway(0) == [1]
    assert engine.own_queue(1) == [2, 0]
    engine.advance(1000)
    # Admitted together at 100: 5 + 48, then 10 + 1 + 22.
    assert times(engine, 0) == (100, 153, 186, 33)
    assert times(engine, 2) == (100, 153, 153, -1)
    assert column(engine, "state")[1] == RequestState.GATEWAY


def test_activation_does_not_place_what_is_held(engine_class: Engine) -> None:
    engine = run(engine_class, held(active=1), table((0, 10, 2), (0, 5, 2)), 10)
    engine.set_target(0, 2)
    engine.advance(20)
    assert engine.gateway(0) == [0, 1]
    engine.route_gateway(0)
    assert engine.gateway(0) == [0, 1]
    engine.set_router(0, 0, RouterKind.ROUND_ROBIN)
    assert engine.gateway(0) == [0, 1]
    engine.route_gateway(0)
    assert [engine.own_queue(i) for i in range(2)] == [[0], [1]]


def test_from_one_own_queue_to_another(engine_class: Engine) -> None:
    """The head is taken away as well: who stood behind it is looked at."""
    spec = held(profiles=(profile(kv_capacity_tokens=30),) * 2)
    engine = run(engine_class, spec, table((0, 10, 8), (0, 19, 2), (0, 2, 2)), 1)
    engine.assign([0, 1, 2], [0, 0, 0])
    engine.advance(40)
    # 10 + 1 tokens run from 36 on; 19 + 1 do not fit beside them, 2 + 1 would.
    assert engine.own_queue(0) == [1, 2]
    engine.advance(80)
    assert engine.own_queue(0) == [1, 2]
    engine.assign([1], [1])
    assert [engine.own_queue(i) for i in range(2)] == [[2], [1]]
    engine.advance(1000)
    assert column(engine, "instance") == [0, 1, 0]
    # 0 decodes from 36 in 33, 35, ...: the boundary after 80 is 104. 1 starts at once.
    assert times(engine, 2)[0] == 104
    assert times(engine, 1)[:2] == (80, 80 + 5 + 57)


def test_prefilled_requests_are_assigned_to_decode_instances(engine_class: Engine) -> None:
    spec = split_cluster(
        decode={"n_slots": 2, "initial_active": 2},
        decode_kind=RouterKind.HOLD,
        times_of=profile(kv_capacity_tokens=25),
    )
    engine = run(engine_class, spec, table((0, 10, 3), (0, 9, 3)), 100)
    assert engine.decode_gateway(0) == [0, 1]
    for requests, instances, message in (
        ([0], [0], "has been handed over"),
        ([0, 0], [1, 1], "comes twice"),
        ([0], [3], "no instance 3"),
        ([0], [1, 2], "2 of them for 1"),
        ([7], [1], "7 is in no gateway"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.assign(requests, instances)
    assert engine.decode_gateway(0) == [0, 1]
    engine.assign([1, 0], [2, 2])
    # 10 tokens of 1 are reserved; 11 + 1 of 0 do so as well: 22 <= 25.
    assert seen(engine, 2, "in_flight", "waiting") == (2, 0)
    with pytest.raises(ValueError, match="KV memory reserved"):
        engine.assign([0], [1])
    engine.advance(1000)
    assert column(engine, "instance") == [2, 2]
    assert column(engine, "state") == [RequestState.FINISHED] * 2


def test_who_may_not_be_assigned(engine_class: Engine) -> None:
    engine = run(engine_class, held(active=1), table((0, 10, 9), (0, 5, 2), (500, 1, 1)), 1)
    engine.assign([0], [0])
    engine.advance(10)
    for requests, instances, message in (
        ([0], [0], "0 is in no gateway"),  # it runs
        ([1], [1], "instance 1 is OFF"),
        ([2], [0], "2 is in no gateway"),  # it has not arrived
    ):
        with pytest.raises(ValueError, match=message):
            engine.assign(requests, instances)
    swaps = queued(pool(), pool(), n_llms=1)
    engine = run(engine_class, swaps, table((0, 10, 9)), 1)
    with pytest.raises(ValueError, match="is in no gateway"):
        engine.assign([0], [0])  # it was pulled from a shared queue


def test_what_waits_moves_only_where_it_can_be_served(engine_class: Engine) -> None:
    """An instance that swaps takes from shared queues only: what waits in its own would wait for ever."""
    pools = (pool(pull=(), batch_limit=1), swapping(pull=(0,)), pool(llm=1, pull=()))
    routes = tuple((RouteSpec(RouterKind.ROUND_ROBIN, (p,), queue=0),) for p in (0, 2))
    spec = held(pools=pools, routes=routes, queue_llm=(-1,))
    engine = run(engine_class, spec, table((0, 10, 9), (0, 10, 9), (0, 10, 9)), 10)
    for to in (0, 1, 2):  # itself, one that swaps, one of another LLM
        with pytest.raises(ValueError, match=f"to = {to}: serves .* instance 0, which serves"):
            engine.move_waiting(0, to, 1)
    with pytest.raises(ValueError, match="to = 0"):
        engine.move_waiting(1, 0, 1)
    assert engine.own_queue(0) == [1, 2]


def test_predictions(engine_class: Engine) -> None:
    """The shortest queue in tokens follows them."""
    spec = held(routes=((RouteSpec(RouterKind.JSQ_TOKENS, (0,)),),))
    requests = replace(
        table((0, 10, 9), (0, 10, 9), (50, 1, 1), (60, 1, 1)), predicted_output_tokens=[9, 5, 1, 1]
    )
    engine = run(engine_class, spec, requests, 50)
    engine.set_predictions([0, 1], [3, 100])
    engine.advance(61)
    assert engine.own_queue(0) == [2, 3]
    for ids, tokens, message in (
        ([0], [0], "must be in 1"),
        ([0, 0], [1, 1], "comes twice"),
        ([9], [1], "9 has not arrived"),
        ([0], [1, 2], "2 of them for 1"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.set_predictions(ids, tokens)
    engine.advance(10**4)
    with pytest.raises(ValueError, match="has ended"):
        engine.set_predictions([0], [5])


def test_a_worker_drifts(engine_class: Engine) -> None:
    spec = held(routes=((RouteSpec(RouterKind.JSQ_REQUESTS, (0,)),),))
    engine = run(engine_class, spec, table((0, 10, 5)), 70)
    # Tokens at 35 and 68; the iteration under way, 35, keeps its time.
    engine.set_profile(0, 1)
    engine.advance(1000)
    assert times(engine, 0)[2] == 103 + (20 + 1 + 26) + (20 + 1 + 28)
    assert engine.reports()[0].tolist() == (10, 100, 1, 35, 1, 14, 49)
    assert engine.reports()[1].tolist() == (-1,) * 7


def test_a_repaired_worker_has_its_pools_times_again(engine_class: Engine) -> None:
    spec = held(routes=((RouteSpec(RouterKind.JSQ_REQUESTS, (0,)),),))
    engine = engine_class(spec, table((100, 10, 1)))
    engine.set_profile(0, 1)
    engine.fail(0)
    engine.advance(1000)
    assert times(engine, 0)[1] == 135
    with pytest.raises(ValueError, match="profile = 5"):
        engine.set_profile(0, 5)
    off = engine_class(held(active=1), table((0, 1, 1)))
    with pytest.raises(ValueError, match="is OFF"):
        off.set_profile(1, 0)
    other = held(profiles=(profile(), profile(kv_capacity_tokens=999)))
    with pytest.raises(ValueError, match="kv_capacity_tokens = 999, must be 1000"):
        engine_class(other, table((0, 1, 1))).set_profile(0, 1)


def test_reports_show_what_has_ended(engine_class: Engine) -> None:
    """At `now` an iteration that would end just then has not; the segment under way is looked into."""
    spec = held(n_slots=1, routes=((RouteSpec(RouterKind.JSQ_REQUESTS, (0,)),),))
    engine = engine_class(spec, table((0, 10, 9), (0, 5, 9)))
    expected = {
        # Prefill of 15 tokens in 50; decode of two from 17 tokens on: 10 + 2 + 34, then 4 more each time.
        50: (-1, -1, -1, -1, -1, -1, -1),
        51: (15, 125, 2, 50, -1, -1, -1),
        96: (15, 125, 2, 50, -1, -1, -1),
        97: (15, 125, 2, 50, 2, 17, 46),
        147: (15, 125, 2, 50, 2, 19, 50),
        201: (15, 125, 2, 50, 2, 21, 54),
    }
    for at_ps, report in expected.items():
        engine.advance(at_ps)
        assert engine.reports()[0].tolist() == report, at_ps
