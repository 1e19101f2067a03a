"""Live scaling, docs/engine.md section 16, by hand and as laws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from llmscale_env.sim.fast import FastEngine
from llmscale_env.sim.reference import ReferenceEngine
from llmscale_env.sim.spec import (
    ClusterSpec,
    InstanceState,
    LiveMode,
    PoolPhase,
    PoolSpec,
    RequestState,
    RouterKind,
    RouteSpec,
)
from tests.refusals import refuses
from tests.small_clusters import Engine, column, pool, profile, seen, table, times
from tests.test_reference_weights import cluster, layers, states

OFF, ACQUIRING, LOADING, ACTIVE, DRAINING, DONATING = InstanceState

UNIT = 10
"""Picoseconds that one layer of a batch takes: 10 tokens are prefilled in 10 + 6 * 10 = 7 units."""


def prefilling(**changes: Any) -> PoolSpec:
    """Two slots, the first of them active; a request of 10 tokens fills a batch; 7 layers of 6 units each."""
    fields: dict[str, Any] = {
        "n_slots": 2,
        "phase": PoolPhase.PREFILL,
        "prefill_tokens": 10,
        "weight_bytes": 7 * 6 * UNIT,
        "layers": 7,
        "pull": (),
    }
    return pool(**(fields | changes))


def live(**changes: Any) -> ClusterSpec:
    """Prefill slots 0 and 1, of which 0 is active, and a decode slot 2, each on a host of its own."""
    routes = ((RouteSpec(RouterKind.JSQ_REQUESTS, (0,), decode_pools=(1,)),),)
    decode = pool(pull=(), phase=PoolPhase.DECODE)
    times_of = profile(prefill_const_ps=10, prefill_per_token_ps=6)
    fields = {"routes": routes, "profiles": (times_of,)}
    return cluster(prefilling(**changes), decode, **fields)


# --- Figure 12 of the paper ---


@pytest.mark.parametrize("source", [0, 1])
@pytest.mark.parametrize(
    "mode, ends, latency",
    [
        (LiveMode.ZIGZAG, [7, 12, 17, 21, 24, 27], 22),
        (LiveMode.BEST_EFFORT, [7, 13, 19, 25, 31, 37], 32),
    ],
)
def test_figure_12(
    engine_class: Engine, mode: LiveMode, ends: list[int], latency: int, source: int
) -> None:
    """7 layers, a layer loads in the time of 6 executions; 6 requests come with the first layer.

    The paper counts request 6 from when the loading instance takes it, 5 units after the first layer has
    come: 22 units in zigzag, 32 by best effort.
    """
    loaded_ps = 6 * UNIT
    engine = engine_class(live(live_mode=mode), table(*((loaded_ps, 10, 1) for _ in range(6))))
    if source == 1:  # the other way round: events of the loading instance come first
        loaded_ps += 10**4
        engine = engine_class(live(live_mode=mode), table(*((loaded_ps, 10, 1) for _ in range(6))))
        engine.scale([1], [0])
        engine.advance(5000)
        engine.drain(0)
        engine.advance(10**4)
    engine.scale([1 - source], [source], [source])
    engine.advance(loaded_ps + 50 * UNIT)
    first = [(t - loaded_ps) / UNIT for t in column(engine, "first_token_ps")]
    assert first == ends
    assert first[-1] - 5 == latency
    assert column(engine, "instance") == [source] * 6


# --- batches and operations ---


def helped(engine_class: Engine, *rows: tuple[int, ...], until_ps: int = 0, **changes: Any) -> Any:
    """Slot 1 loads from slot 0 and helps it: a layer every 60 ps, all seven at 420."""
    engine = engine_class(live(**changes), table(*rows))
    engine.scale([1], [0], [0])
    engine.advance(until_ps)
    return engine


def test_before_the_first_layer_it_serves_as_ever(engine_class: Engine) -> None:
    engine = helped(engine_class, (0, 10, 1), (0, 10, 1), until_ps=1000)
    # The first alone until 70. From 60 on there is a layer: of the second, until 70 there, until 130 here.
    assert column(engine, "first_token_ps") == [70, 130]
    assert engine.loading()["helped_ps"].tolist() == [0, 10, 0]


def test_best_effort_gives_at_most_half_of_the_layers(engine_class: Engine) -> None:
    engine = helped(engine_class, (300, 10, 1), (301, 10, 1), live_mode=LiveMode.BEST_EFFORT)
    engine.advance(310)
    assert layers(engine)[1] == 5
    assert engine.loading()[["partner", "batches"]].tolist()[:2] == [(1, 1), (0, 0)]
    engine.advance(1000)
    # Three of five layers until 330, four here until 370; the second until 360 there, then until 410.
    assert column(engine, "first_token_ps") == [370, 410]


def test_who_serves_does_not_wait_for_more_than_one_operation(engine_class: Engine) -> None:
    engine = helped(engine_class, (300, 10, 1), until_ps=1000)
    # There are five layers, but one suffices as nothing else is to be done here.
    assert column(engine, "first_token_ps") == [300 + 70]


def test_an_idle_leader_gets_the_first_batch_and_its_helper_the_others(
    engine_class: Engine,
) -> None:
    engine = helped(engine_class, (300, 10, 1), (300, 10, 1), until_ps=1000)
    # A layer of the first until 310 there, six here until 370. Meanwhile all of the second but the last
    # layer, as the sixth comes at 360.
    assert column(engine, "first_token_ps") == [370, 380]


def test_an_operation_takes_a_picosecond_at_least(engine_class: Engine) -> None:
    spec = replace(live(), profiles=(profile(prefill_const_ps=2, prefill_per_token_ps=0),))
    engine = engine_class(spec, table((60, 10, 1)))
    engine.scale([1], [0], [0])
    engine.advance(1000)
    # 2 * 1 // 7 = 0: one there, all 2 here.
    assert column(engine, "first_token_ps") == [63]


def test_a_leader_that_waits_for_its_helper_goes_on_when_the_pair_ends(
    engine_class: Engine,
) -> None:
    engine = helped(engine_class, (350, 10, 1), (400, 10, 1), batch_limit=1, until_ps=1000)
    # The first ends at 420, just before the last layer makes its helper active: of one that waits none
    # moves.
    assert column(engine, "first_token_ps") == [420, 490]
    assert column(engine, "instance") == [0, 0]


def test_an_arrival_is_looked_at_while_the_leader_is_busy(engine_class: Engine) -> None:
    engine = helped(engine_class, (60, 10, 1), (85, 10, 1), until_ps=1000)
    # Of the second a layer from 85 on, another from 120 to 130, when the first ends; 5 are left.
    assert column(engine, "first_token_ps") == [130, 180]


@pytest.mark.parametrize("command", ["set_batch_limit", "set_instance_limit"])
def test_a_limit_that_is_raised_is_looked_at_while_the_leader_is_busy(
    engine_class: Engine, command: str
) -> None:
    engine = helped(engine_class, (60, 10, 1), (60, 10, 1), batch_limit=1, until_ps=80)
    getattr(engine, command)(0, 2)
    engine.advance(1000)
    # Its first layer until 90, its second, which has come at 120, until 130: five are left to the leader.
    assert column(engine, "first_token_ps") == [130, 180]


def test_tokens_that_batches_are_to_emit_take_memory(engine_class: Engine) -> None:
    for capacity, second in ((22, 70), (21, 130)):
        spec = live()
        spec = replace(
            spec, profiles=tuple(replace(p, kv_capacity_tokens=capacity) for p in spec.profiles)
        )
        engine = engine_class(spec, table((60, 10, 1), (60, 10, 1)))
        engine.scale([1], [0], [0])
        engine.advance(1000)
        # 10 tokens and the one to come of the first, as many of the second.
        assert column(engine, "admitted_ps") == [60, second]


def test_both_instances_go_on_with_half_of_what_waits(engine_class: Engine) -> None:
    engine = helped(engine_class, *((60, 10, 1) for _ in range(13)), batch_limit=1, until_ps=420)
    # With a limit of one request each takes 70 in all: at 130, 200, 270, 340, 410. The layer of the sixth
    # ends at 420 with the loading.
    assert (states(engine)[1], column(engine, "state").count(RequestState.FINISHED)) == (LOADING, 5)
    engine.advance(421)
    # Seven wait, the last three move; the sixth is the serving instance's.
    assert states(engine)[1] == ACTIVE
    assert engine.own_queue(0) == [6, 7, 8, 9]
    assert engine.own_queue(1) == [11, 12]
    assert engine.loading()["partner"].tolist() == [-1, -1, -1]
    engine.advance(10**4)
    assert column(engine, "first_token_ps")[5:] == [480, 550, 620, 690, 760, 490, 560, 630]


def test_activation_waits_for_the_operation_under_way(engine_class: Engine) -> None:
    engine = helped(engine_class, (415, 10, 1), until_ps=425)
    assert (layers(engine)[1], states(engine)[1]) == (7, LOADING)
    engine.advance(426)
    assert states(engine)[1] == ACTIVE
    engine.advance(1000)
    assert column(engine, "first_token_ps") == [415 + 70]


def test_requests_come_from_shared_queues_too(engine_class: Engine) -> None:
    route = RouteSpec(RouterKind.SHARED_QUEUE, (), queue=0, decode_pools=(1,))
    base = live()
    spec = replace(
        base,
        queue_llm=(0,),
        routes=((route,),),
        pools=(replace(base.pools[0], pull=(0,)), base.pools[1]),
    )
    engine = engine_class(spec, table(*((60, 10, 1) for _ in range(3))))
    engine.scale([1], [0], [0])
    engine.advance(85)
    # The first is executed by slot 0, two others wait with a layer done.
    assert seen(engine, 0, "running") == (3,)
    engine.set_target(0, 1)
    assert (engine.queues(), column(engine, "restarts")) == ([[0, 1, 2]], [0, 0, 0])
    engine.advance(1000)
    assert column(engine, "first_token_ps") == [85 + 70, 85 + 140, 85 + 210]
    assert column(engine, "admitted_ps") == [60, 70, 80]


# --- handover ---


def test_both_send_their_layers_kv(engine_class: Engine) -> None:
    engine = helped(engine_class, (60, 10, 2), until_ps=1000)
    # Prefilled at 130. Of 11 bytes of KV the loading instance sends 11 * 1 // 7 = 1, until 132: all flows
    # run at half a byte per ps, as slot 0 sends weights as well and slot 2 gets both. The other 9 of
    # 10 bytes take until 150. A token takes 10 + 1 + 22.
    assert times(engine, 0) == (60, 130, 183, 53)
    assert column(engine, "instance") == [2]


def test_a_decode_instance_that_fails_breaks_off_both_flows(engine_class: Engine) -> None:
    engine = helped(engine_class, (60, 10, 2), until_ps=131)
    assert seen(engine, 2, "in_flight") == (1,)
    engine.fail(2)
    # It is back at once, and gets all of the KV again: 1 byte at half a byte per ps until 133, 9 until 151.
    engine.advance(1000)
    assert times(engine, 0)[:3] == (60, 130, 151 + 33)
    assert column(engine, "restarts") == [0]


def waiting_for_decode(engine_class: Engine) -> Any:
    """At 200: request 0 has been prefilled by both, and waits for a decode instance."""
    spec = live().with_pool(1, initial_active=0)
    engine = engine_class(spec, table((60, 10, 2)))
    engine.scale([1], [0], [0])
    engine.advance(200)
    assert engine.decode_gateway(0) == [0]
    assert seen(engine, 0, "kv_held") == (11,)
    return engine


def test_who_has_helped_keeps_its_layers_until_they_are_copied(engine_class: Engine) -> None:
    engine = waiting_for_decode(engine_class)
    engine.advance(430)
    engine.drain(1)
    engine.advance(500)
    assert states(engine)[1] == DRAINING
    engine.set_target(1, 1)
    engine.advance(507)
    # From 500 on 1 byte from slot 1, then 9 from slot 0: until 502 and 511 (no weights flow by now).
    assert states(engine)[1] == DRAINING
    engine.advance(512)
    assert states(engine)[1] == OFF
    assert seen(engine, 0, "kv_held") == (0,)
    assert seen(engine, 2, "running") == (1,)


@pytest.mark.parametrize("how", ["fail", "cancel"])
def test_its_layers_are_lost_with_it(engine_class: Engine, how: str) -> None:
    engine = waiting_for_decode(engine_class)
    if how == "fail":
        engine.fail(1)
    else:
        engine.set_target(0, 1)
    assert seen(engine, 0, "kv_held") == (0,)
    assert (column(engine, "restarts"), engine.decode_gateway(0)) == ([1], [])
    engine.advance(300)
    # Prefilled again by slot 0 alone until 270.
    assert engine.decode_gateway(0) == [0]
    assert times(engine, 0) == (60, 130, -1, 140)


def test_nothing_is_kept_for_who_has_started_again(engine_class: Engine) -> None:
    engine = waiting_for_decode(engine_class)
    engine.advance(430)
    engine.drain(1)
    assert states(engine)[1] == DRAINING
    engine.fail(0)
    engine.advance(431)
    assert states(engine)[1] == OFF


# --- what may happen to a pair ---


@pytest.mark.parametrize("how", ["fail", "cancel"])
@pytest.mark.parametrize("at_ps", [65, 100])
def test_the_loading_instance_is_lost(engine_class: Engine, how: str, at_ps: int) -> None:
    engine = helped(engine_class, (60, 10, 1), (60, 10, 1), until_ps=at_ps)
    if how == "fail":
        engine.fail(1)
    else:
        engine.set_target(0, 1)
    # In the first operation there, or while the others are executed here: all back, in order.
    assert seen(engine, 0, "running", "kv_tokens") == (0, 0)
    assert engine.own_queue(0) == [0, 1]
    assert engine.loading()["partner"].tolist() == [-1, -1, -1]
    engine.advance(at_ps + 150)
    assert column(engine, "first_token_ps") == [at_ps + 70, at_ps + 140]
    assert (column(engine, "restarts"), column(engine, "evictions")) == ([0, 0], [0, 0])


def test_a_batch_that_is_executed_breaks_off_with_the_loss_of_who_helped(
    engine_class: Engine,
) -> None:
    engine = helped(engine_class, (415, 10, 1), until_ps=430)
    # A layer until 425 there, where the pair ends; the others are executed here.
    assert (states(engine)[1], engine.loading()["partner"].tolist()) == (ACTIVE, [-1, -1, -1])
    engine.fail(1)
    assert (engine.own_queue(0), seen(engine, 0, "running")) == ([0], (0,))
    engine.advance(1000)
    # All of it again, at once; the 5 ps were work as well.
    assert (column(engine, "first_token_ps"), column(engine, "restarts")) == ([430 + 70], [0])
    if engine_class is FastEngine:
        engine.batch.close_windows(0, 1)
        assert engine.batch.states.pool_seen[0, 0]["busy_ps"] == 5 + 70


def two_helpers(engine_class: Engine, arrival_ps: int, **changes: Any) -> Any:
    """Slot 0 prefills 500 tokens until 3010 and is helped by 1, from 427 on by 2; two requests come."""
    rows = ((0, 500, 1), (arrival_ps, 10, 1), (arrival_ps, 10, 1))
    engine = engine_class(live(n_slots=3, **changes), table(*rows))
    engine.scale([1], [0], [0])
    engine.advance(427)
    assert states(engine)[:3] == [ACTIVE, ACTIVE, OFF]
    engine.scale([2], [0], [0])
    return engine


def test_who_helps_leaves_the_batches_of_another_one_alone(engine_class: Engine) -> None:
    engine = two_helpers(engine_class, 396, batch_limit=2)
    engine.advance(840)
    # Slot 1 had executed three layers of the second request when it became active at 426; its leader has no
    # place for the third, so slot 2, which has six layers by now, has nothing to do.
    assert (layers(engine)[2], engine.loading()["batches"][0]) == (6, 1)
    assert engine.loading()["helped_ps"].tolist() == [0, 30, 0, 0]
    engine.advance(4000)
    assert column(engine, "first_token_ps")[1] == 3010 + 40


def test_who_helps_looks_when_another_one_is_lost(engine_class: Engine) -> None:
    engine = two_helpers(engine_class, 60, batch_limit=3)
    engine.advance(500)
    assert (layers(engine)[2], engine.loading()["batches"][0]) == (1, 2)
    engine.fail(1)  # with six layers of both requests: they come back while their leader is busy
    assert engine.own_queue(0) == [1, 2]
    engine.advance(530)
    # Slot 2 has one layer, and has executed that of both by now.
    assert engine.own_queue(0) == []
    assert engine.loading()["helped_ps"].tolist() == [0, 120, 20, 0]


def test_the_serving_instance_fails(engine_class: Engine) -> None:
    engine = helped(engine_class, *((60, 10, 1) for _ in range(3)), repair_ps=10**4, until_ps=100)
    engine.fail(0)
    # All three were running; the second layer is on its way. The others come from SSD, from 100 on.
    assert (column(engine, "restarts"), engine.gateway(0)) == ([1, 1, 1], [0, 1, 2])
    assert layers(engine)[:2] == [0, 1]
    engine.advance(461)
    assert states(engine)[1] == ACTIVE
    engine.advance(1000)
    assert column(engine, "first_token_ps") == [460 + 70, 460 + 140, 460 + 210]


def test_the_serving_instance_fails_when_all_layers_are_there(engine_class: Engine) -> None:
    engine = helped(engine_class, (415, 10, 1), repair_ps=10**4, until_ps=422)
    assert (layers(engine)[1], states(engine)[1]) == (7, LOADING)
    engine.fail(0)
    engine.advance(423)
    assert states(engine)[1] == ACTIVE
    engine.advance(1000)
    assert column(engine, "first_token_ps") == [422 + 70]


def test_an_idle_serving_instance_drains(engine_class: Engine) -> None:
    engine = helped(engine_class, (60, 10, 1), until_ps=65)
    engine.drain(0)
    assert states(engine)[0] == DRAINING
    engine.advance(131)
    assert column(engine, "first_token_ps") == [130]
    assert states(engine)[0] == OFF


def test_the_serving_instance_drains(engine_class: Engine) -> None:
    engine = helped(engine_class, *((60, 10, 1) for _ in range(3)), n_slots=3)
    engine.set_target(0, 3)
    engine.advance(75)
    # The first is executed here, the second there; the third waits, and has nowhere to go.
    engine.drain(0)
    assert engine.gateway(0) == [2]
    engine.advance(500)
    # The second layer comes at 120 and is executed until 130, the other 5 here. No batch is formed.
    assert column(engine, "first_token_ps")[:2] == [130, 130 + 50]
    assert states(engine)[0] == OFF
    assert engine.loading()["partner"].tolist() == [-1] * 4


def test_what_comes_back_to_a_draining_instance_is_routed_again(engine_class: Engine) -> None:
    engine = helped(engine_class, *((60, 10, 1) for _ in range(3)), until_ps=75)
    engine.drain(0)
    engine.advance(100)
    engine.fail(1)
    assert engine.gateway(0) == [2, 0, 1]
    engine.advance(101)
    assert states(engine)[0] == OFF
    assert column(engine, "restarts") == [0, 0, 0]


def test_a_source_of_weights_that_is_lost_does_not_end_the_pair(engine_class: Engine) -> None:
    spec = live(n_slots=3, initial_active=2)
    engine = engine_class(spec, table((200, 10, 1), (200, 10, 1)))
    engine.scale([2], [1], [0])
    engine.advance(100)
    engine.fail(1)
    assert engine.loading()["partner"].tolist() == [2, -1, 0, -1]
    assert layers(engine)[2] == 1


# --- what is refused ---


@pytest.mark.parametrize(
    "partners, error",
    [
        ([0, 0], "partners: 2 of them for 1 slots"),
        ([2], r"partners\[0\] = 2: is in another pool than slot 1"),
        ([5], r"partners\[0\] = 5: must be an integer in -1\.\.2"),
        ([1], r"partners\[0\] = 1: is OFF, must be ACTIVE"),
    ],
)
def test_scale_refuses_partners(engine_class: Engine, partners: list[int], error: str) -> None:
    engine = engine_class(live(), table((0, 1, 1)))
    refuses(error, engine.scale, [1], [0], partners)
    assert states(engine)[1] == OFF


def test_an_instance_is_in_one_pair_at_most(engine_class: Engine) -> None:
    engine = engine_class(live(n_slots=4), table((0, 1, 1)))
    refuses(r"partners\[1\] = 0: is in a live pair already", engine.scale, [1, 2], [0, 0], [0, 0])
    engine.scale([1], [0], [0])
    refuses(r"partners\[0\] = 0: is in a live pair already", engine.scale, [2], [0], [0])
    chunked = engine_class(live(chunk_tokens=8), table((0, 1, 1)))
    refuses(r"must be of phase PREFILL, with chunk_tokens = 0", chunked.scale, [1], [0], [0])
    refuses(r"live_mode = 7: must be one of 0 \(ZIGZAG\), 1", live, live_mode=7)


@pytest.mark.parametrize("seed", range(40))
def test_a_pair_changes_times_and_no_tokens(seed: int) -> None:
    """The same tokens with and without, first ones in order of arrival while all come from one instance."""
    rng = np.random.default_rng(seed)
    arrivals = np.sort(rng.integers(0, 400, 30)).tolist()
    rows = [(t, int(rng.integers(1, 15)), int(rng.integers(1, 4))) for t in arrivals]
    size = int(rng.integers(4, 12)) * 60 * 7
    spec = live(prefill_tokens=int(rng.integers(1, 60)), weight_bytes=size)
    for partner in (-1, 0):
        engine = ReferenceEngine(spec, table(*rows))
        engine.scale([1], [0], [partner])
        active_ps = 7 * -(-size // 7)
        engine.advance(active_ps)
        first = [t for t in column(engine, "first_token_ps") if t >= 0]
        assert first == sorted(first)
        engine.advance(10**6)
        assert column(engine, "state") == [RequestState.FINISHED] * 30
        assert column(engine, "emitted_tokens") == [out for _, _, out in rows]
        assert (partner < 0) == (engine.events["live_formed"] == 0)
