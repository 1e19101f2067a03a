"""Regions, priorities and queue managers: docs/engine.md section 17, by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from llmscale_env.sim.spec import (
    ClassSpec,
    ClusterSpec,
    LatencySpec,
    ManagerSpec,
    PoolPhase,
    RequestState,
    RouterKind,
    ScalingKind,
    ScalingSpec,
    SpotSpec,
)
from tests.refusals import refuses
from tests.small_clusters import Engine, pool, run
from tests.small_regions import LATER, NOBODY, cluster, market, requests

# --- A. regions ---


def test_a_request_takes_its_latency_and_counts_nowhere_meanwhile(engine_class: Engine) -> None:
    spec = cluster(pool(initial_active=0, region=0), pool(region=1), latency_ps=70)
    engine = run(engine_class, spec, requests((100, 4, 1)), 170)
    assert engine.results()["state"][0] == RequestState.TRANSIT
    assert engine.conservation()[RequestState.TRANSIT] == 1
    assert engine.instances()["waiting"].sum() + engine.instances()["running"].sum() == 0
    engine.advance(171)
    assert engine.results()["admitted_ps"][0] == 170
    engine.advance(LATER)
    assert engine.results()["first_token_ps"][0] == 170 + 5 + 3 * 4


def splitmix64(x: int) -> int:
    mask = 2**64 - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


@pytest.mark.parametrize("salt", [0, 5, -1, 2**62])
def test_latency_is_a_quantile_by_hash_of_salt_request_and_region(
    engine_class: Engine, salt: int
) -> None:
    knots = (1000, 1000, 5000, 10**16)
    both = ((0, 0), knots)
    spec = replace(
        cluster(pool(initial_active=0), pool(region=1)), latency=LatencySpec((both,) * 2)
    )
    engine = engine_class(spec, requests(*((0, 1, 1),) * 40), salt=salt)
    engine.advance(2 * 10**16)
    waited = engine.results()["admitted_ps"] >= 0
    assert waited.all()
    reached = []
    for r in range(40):
        h = splitmix64(splitmix64((salt ^ r) % 2**64) ^ 0x9FB21C651E98DF25 ^ 1)
        share = Fraction(h >> 44, 2**20) * 3
        k = int(share)
        reached.append(knots[k] + int((share - k) * (knots[k + 1] - knots[k])))
    # An idle instance starts at once; who comes while it runs waits less than the longest batch.
    late = engine.results()["admitted_ps"] - np.array(reached)
    assert (late >= 0).all()
    assert (late < 200 * 40).all()
    assert (late == 0).sum() > 5


def test_seeds_differ_in_latency_only_by_the_salt(engine_class: Engine) -> None:
    spec = replace(
        cluster(pool(initial_active=0), pool(region=1)),
        latency=LatencySpec((((0, 0), (10, 10**9)),) * 2),
    )
    first = []
    for salt in (1, 2, 1):
        engine = engine_class(spec, requests((0, 4, 1)), salt=salt)
        engine.advance(2 * 10**9)
        first.append(int(engine.results()["first_token_ps"][0]))
    assert first[0] == first[2] != first[1]


def test_the_first_region_below_the_threshold_then_the_least_used(engine_class: Engine) -> None:
    """Regions 0, 1, 2 in this order, of 1,000 KV tokens each; threshold 10 %."""
    spec = cluster(
        *(pool(region=j) for j in range(3)),
        n_regions=3,
        preference=((0, 1, 2),) * 3,
        threshold_ppm=100_000,
    )
    rows = [(0, 99, 500), (1000, 200, 500), (2000, 150, 500), (3000, 300, 500), (4000, 1, 500)]
    engine = run(engine_class, spec, requests(*rows), 5000)
    # 0: all empty. 1000: 99 tokens and what it has emitted are at least 10 % in region 0. 2000: so are
    # 200 in region 1. 3000: all are above, region 0 least. 4000: 99 + 300 there, so region 2 is least.
    assert engine.results()["instance"].tolist() == [0, 1, 2, 0, 2]
    engine.set_regional(0, 0, preference=((1, 0, 2),) * 3, threshold_ppm=900_000)
    more = engine_class(spec, requests(*rows))
    more.set_regional(0, 0, threshold_ppm=900_000, preference=((1, 0, 2),) * 3)
    more.advance(5000)
    assert more.results()["instance"].tolist() == [1] * 5


def test_the_least_used_deployment_then_the_least_to_do(engine_class: Engine) -> None:
    """Slots 0 and 1, 2 and 3 are deployments. One big request in the first: the others go to the second."""
    spec = cluster(pool(n_slots=4, initial_active=4, deployment_slots=2), n_regions=1)
    rows = [(0, 300, 400), (2000, 10, 400), (2010, 10, 400), (2020, 10, 400)]
    engine = run(engine_class, spec, requests(*rows), 2100)
    # As one pool, the third would go to instance 1, which is empty.
    assert engine.results()["instance"].tolist() == [0, 2, 3, 2]
    flat = spec.with_pool(0, deployment_slots=0)
    engine = run(engine_class, flat, requests(*rows), 2100)
    assert engine.results()["instance"].tolist() == [0, 1, 2, 3]


def test_who_reaches_nobody_is_sent_on(engine_class: Engine) -> None:
    spec = cluster(pool(region=0), pool(region=1), latency_ps=70, preference=((1, 0),) * 2)
    engine = run(engine_class, spec, requests((0, 4, 1), (1000, 4, 1)), 10)
    engine.drain(1)
    engine.advance(LATER)
    # At 70 region 1 has nobody: to region 0, where a client of region 0 takes no time.
    assert engine.results()["admitted_ps"].tolist() == [70, 1000]
    assert engine.results()["instance"].tolist() == [0, 0]


def test_without_any_instance_the_gateway_holds_and_sends(engine_class: Engine) -> None:
    spec = cluster(pool(initial_active=0), pool(initial_active=0, region=1), latency_ps=70)
    engine = run(engine_class, spec, requests((0, 4, 1)), 10)
    assert engine.gateway(0) == [0]
    engine.set_target(1, 1)
    engine.advance(100)
    assert engine.results()["admitted_ps"][0] == 10 + 70


def test_what_waits_at_a_draining_instance_stays_in_its_region(engine_class: Engine) -> None:
    """Region 1 would be preferred by now, and takes 70 ps; the request goes next door at once."""
    spec = cluster(pool(n_slots=2, initial_active=2, batch_limit=1), pool(region=1), latency_ps=70)
    rows = [(0, 10, 100), (1, 10, 100), (2, 10, 100)]
    engine = run(engine_class, spec, requests(*rows), 10)
    assert engine.own_queue(0) == [2]
    engine.set_regional(0, 0, preference=((1, 0), (1, 0)))
    engine.drain(0)
    assert engine.own_queue(1) == [2]
    engine.drain(1)  # nobody is left there
    assert engine.results()["state"][2] == RequestState.TRANSIT
    engine.advance(100)
    assert engine.results()["instance"][2] == 2
    assert engine.results()["admitted_ps"][2] == 10 + 70


def test_what_waits_counts_in_utilisations_if_it_is_to(engine_class: Engine) -> None:
    """One of 40 tokens runs and one of 35 waits, on 100: full to 40 %, or to 75 % with what waits."""
    for counts, region in ((False, 0), (True, 1)):
        spec = cluster(
            pool(batch_limit=1), pool(batch_limit=1, region=1), capacity=100, waiting_counts=counts
        )
        engine = run(engine_class, spec, requests((0, 40, 9, 0), (1, 35, 9, 0), (3, 5, 9, 0)), 5)
        assert engine.own_queue(0)[:1] == [1]
        assert engine.results()["instance"][2] in (-1, region)
        engine.advance(LATER)
        assert engine.results()["instance"].tolist() == [0, 0, region]


# --- B. priorities ---


def one_at_a_time(promote_ps: int = 10**15) -> ClusterSpec:
    """Both classes go by regions, to one instance that serves one request at a time."""
    spec = cluster(pool(batch_limit=1, priorities=True), n_regions=1)
    route = replace(spec.routes[0][0], queue=0)
    classes = tuple(replace(c, promote_ps=promote_ps) for c in spec.classes)
    return replace(spec, routes=((route, route),), classes=classes)


def test_priority_0_comes_first_and_each_in_order(engine_class: Engine) -> None:
    rows = [(0, 5, 9, 1), (1, 5, 9, 1), (2, 5, 9, 0), (3, 5, 9, 1), (4, 5, 9, 0)]
    engine = run(engine_class, one_at_a_time(), requests(*rows), 10)
    assert engine.own_queue(0) == [2, 4, 1, 3]
    engine.advance(LATER)
    assert engine.finish_log() == [0, 2, 4, 1, 3]


def test_orders_take_the_last_as_they_stand(engine_class: Engine) -> None:
    spec = one_at_a_time()
    spec = spec.with_pool(0, n_slots=2, initial_active=2)
    rows = [(0, 5, 90, 1), (0, 5, 90, 1), (1, 5, 9, 1), (1, 5, 9, 1), (3, 5, 9, 0), (3, 5, 9, 0)]
    engine = run(engine_class, spec, requests(*rows), 10)
    assert [engine.own_queue(0), engine.own_queue(1)] == [[4, 2], [5, 3]]
    engine.move_waiting(0, 1, 2)
    assert [engine.own_queue(0), engine.own_queue(1)] == [[], [5, 4, 3, 2]]
    engine.assign([5, 3], [0, 0])  # the last of priority 0 leaves, then one joins
    engine.move_waiting(1, 0, 1)
    assert [engine.own_queue(0), engine.own_queue(1)] == [[5, 3, 2], [4]]


def test_an_old_request_is_of_priority_0(engine_class: Engine) -> None:
    """On its way for 70 ps: old if that is what it takes, one picosecond short otherwise."""
    for promote_ps, order in ((70, [1, 2]), (71, [2, 1])):
        spec = replace(one_at_a_time(promote_ps=promote_ps), latency=LatencySpec((((70, 70),),)))
        engine = run(engine_class, spec, requests((0, 5, 9, 0), (1, 5, 9, 1), (2, 5, 9, 0)), 75)
        assert engine.own_queue(0) == order


def test_each_class_has_its_own_age_of_promotion(engine_class: Engine) -> None:
    """Both requests of priority 1 are on their way for 70 ps: that is old in the class that waits 60."""
    spec = replace(one_at_a_time(), latency=LatencySpec((((70, 70),),)))
    calm, hasty = (ClassSpec(priority=1, promote_ps=age) for age in (80, 60))
    spec = replace(spec, classes=(calm, hasty))
    engine = run(engine_class, spec, requests((0, 5, 9, 0), (1, 5, 9, 0), (2, 5, 9, 1)), 75)
    assert engine.own_queue(0) == [2, 1]


# --- C. queue managers ---


def managed(**changes: Any) -> ClusterSpec:
    return cluster(
        pool(),
        n_regions=1,
        capacity=100,
        managers=(ManagerSpec(0, (0,)),),
        manager_period_ps=50,
        **changes,
    )


def test_a_manager_takes_two_below_half_and_one_below_three_fifths(engine_class: Engine) -> None:
    """At 50 the memory is empty; until 175 it holds 2 x 20 tokens of 100, then it fills up."""
    rows = [(0, 20, 30, 1)] * 6
    engine = engine_class(managed(), requests(*rows))
    left = []
    for at_ps in (50, 51, 100, 101, 151):
        engine.advance(at_ps)
        left.append(len(engine.queues()[0]))
    assert left == [6, 4, 4, 2, 0]
    assert engine.own_queue(0) == [2, 3, 4, 5]

    engine = engine_class(managed(), requests(*([(0, 25, 30, 1)] * 6)))
    left = []
    for at_ps in (51, 101, 151):  # 2 x 25 of 100 are not below half
        engine.advance(at_ps)
        left.append(len(engine.queues()[0]))
    assert left == [4, 3, 2]

    engine = run(engine_class, managed(), requests(*([(0, 30, 30, 1)] * 6)), 151)
    assert len(engine.queues()[0]) == 4  # 2 x 30 of 100 are not below three fifths

    engine = engine_class(managed(), requests(*rows))
    engine.set_managers([0], [0])
    engine.advance(1001)
    assert len(engine.queues()[0]) == 6


def test_signals_come_at_multiples_after_everything_else(engine_class: Engine) -> None:
    """A request that arrives at 100 is taken at 100, one at 101 waits for 150."""
    engine = run(engine_class, managed(), requests((100, 5, 1, 1), (301, 5, 1, 1)), LATER)
    assert engine.results()["admitted_ps"].tolist() == [100, 350]


def test_managers_of_regions_share_a_queue_or_have_their_own(engine_class: Engine) -> None:
    pools = (pool(), pool(region=1))
    both = (ManagerSpec(0, (0,)), ManagerSpec(0, (1,)))
    spec = cluster(*pools, managers=both, manager_period_ps=50)
    rows = [(0, 5, 50, 1)] * 4
    engine = run(engine_class, spec, requests(*rows, regions=(1, 1, 0, 1)), 60)
    assert engine.results()["instance"].tolist() == [0, 0, 1, 1]
    route = replace(spec.routes[0][1], region_queues=(0, 1))
    own = replace(
        spec,
        routes=((spec.routes[0][0], route),),
        queue_llm=(0, 0),
        managers=(both[0], replace(both[1], queue=1)),
    )
    engine = run(engine_class, own, requests(*rows, regions=(1, 1, 0, 1)), 60)
    assert engine.results()["instance"].tolist() == [1, 1, 0, -1]
    assert engine.queues() == [[], [3]]


def test_a_managed_request_stays_at_its_endpoint_when_its_instance_drains(
    engine_class: Engine,
) -> None:
    spec = cluster(
        pool(n_slots=2, initial_active=2, batch_limit=1),
        n_regions=1,
        managers=(ManagerSpec(0, (0,), 10**6, 10**6),),
        manager_period_ps=50,
    )
    engine = run(engine_class, spec, requests(*([(0, 5, 90, 1)] * 4)), 101)
    assert [engine.own_queue(0), engine.own_queue(1)] == [[2], [3]]
    engine.drain(0)
    assert engine.own_queue(1) == [3, 2]
    engine.drain(1)
    assert engine.queues() == [[3, 2]]


# --- what cannot be ---


def test_clusters_that_cannot_be_are_refused() -> None:
    spec = cluster(pool(), pool(region=1))
    regional = spec.routes[0][0]

    def with_route(**changes: Any) -> ClusterSpec:
        row = (replace(regional, **changes), spec.routes[0][1])
        return replace(spec, routes=(row,))

    refuses("region = 2", lambda: spec.with_pool(0, region=2))
    refuses("preference: a REGIONAL route", lambda: with_route(preference=()))
    refuses(r"preference\[1\]", lambda: with_route(preference=((0, 1), (1, 1))))
    refuses("must have 2 rows", lambda: with_route(preference=((0, 1),)))
    refuses("threshold_ppm", lambda: with_route(threshold_ppm=-1))
    refuses("region_queues", lambda: with_route(region_queues=(0,)))
    refuses("latency", lambda: replace(spec, latency=LatencySpec((((0, 0),),))))
    refuses("do not fall", lambda: LatencySpec((((5, 4),),)))
    refuses("at least two", lambda: LatencySpec((((5,),),)))
    refuses("priorities", lambda: spec.with_pool(0, priorities=True, phase=PoolPhase.PREFILL))
    refuses("most = 3", lambda: spec.with_pool(0, scaling=ScalingSpec(least=0, most=3)))
    refuses("low_ppm", lambda: ScalingSpec(low_ppm=700_000))
    refuses("cooldown_ps", lambda: ScalingSpec(cooldown_ps=0))
    refuses("reclaim_knots_ps", lambda: SpotSpec(reclaim_knots_ps=(3, 2)))
    group = market()
    refuses("gpus = 3", lambda: group.with_pool(1, gpus=3))
    manager = ManagerSpec(0, (0,))
    refuses("manager_period_ps", lambda: replace(spec, managers=(manager,)))
    timed = replace(spec, managers=(manager,), manager_period_ps=5)
    refuses("is a manager's", lambda: timed.with_pool(0, pull=(0,)))
    refuses("in region 0", lambda: replace(timed, managers=(ManagerSpec(0, (0, 1)),)))
    refuses("queue of LLM 0", lambda: replace(timed, queue_llm=(-1,)))
    refuses("each once", lambda: ManagerSpec(0, ()))


def test_commands_that_cannot_be_are_refused(engine_class: Engine) -> None:
    spec = replace(market(), managers=(ManagerSpec(0, (0,)),), manager_period_ps=50)
    plain = replace(spec.routes[0][1], pools=(0,))
    spec = replace(spec, routes=((spec.routes[0][0], plain), spec.routes[1]))
    engine = engine_class(spec, NOBODY)
    refuses("has no preference", lambda: engine.set_regional(0, 1, 5))
    refuses("must have each", lambda: engine.set_regional(0, 0, 5, ((1,),)))
    refuses("one_ppm: 2 values", lambda: engine.set_managers([1, 2], [1]))
    refuses("two_ppm", lambda: engine.set_managers([1], [-2]))
    refuses("has no scaling", lambda: engine.set_scaling(0, ScalingKind.REACTIVE))
    refuses("is a manager's", lambda: engine.set_pull(0, [0]))
    refuses("no preference", lambda: engine.set_router(0, 1, RouterKind.REGIONAL))
    outside = requests((0, 1, 1), regions=(1,))
    engine_class(spec, outside)  # with one region it does not matter
    two = cluster(pool(), pool(region=1))
    refuses(r"region\[0\] = 2", lambda: engine_class(two, requests((0, 1, 1), regions=(2,))))
