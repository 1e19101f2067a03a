"""Regions, priorities, queue managers, spot VMs, endpoint scaling: docs/engine.md section 17, by hand.

A decode iteration takes 10 + b + 2c ps, a prefill 5 + 3T; paging rounds nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from baselines.sageserve import scaling as rules
from llmscale_env.sim.fast import FastEngine
from llmscale_env.sim.reference import ReferenceEngine
from llmscale_env.sim.reference.endpoint_scaling import EndpointRule
from llmscale_env.sim.spec import (
    ClassSpec,
    ClusterSpec,
    InstanceState,
    LatencySpec,
    ManagerSpec,
    PoolPhase,
    PoolSpec,
    RequestState,
    RouterKind,
    RouteSpec,
    ScalingKind,
    ScalingSpec,
    SpotSpec,
)
from llmscale_env.workload.requests import RequestTable
from tests.engine_cases import run_case
from tests.region_cases import make_region_case
from tests.small_clusters import pool, profile, table

ENGINES = (ReferenceEngine, FastEngine)
Engine = Callable[..., Any]
every = pytest.mark.parametrize("engine_class", ENGINES)

OFF, ACQUIRING, LOADING, ACTIVE, DRAINING, DONATING = InstanceState
LATER = 10**6


def requests(*rows: tuple[int, ...], regions: tuple[int, ...] | None = None) -> RequestTable:
    """Rows of (arrival ps, input tokens, output tokens[, class]) from clients of regions."""
    made = table(*rows)
    regions = regions or (0,) * len(rows)
    names = tuple(f"region{j}" for j in range(max(regions) + 1))
    return replace(made, region=np.array(regions), region_names=names)


def cluster(
    *pools: PoolSpec,
    n_regions: int = 2,
    latency_ps: int | None = None,
    preference: tuple[tuple[int, ...], ...] | None = None,
    threshold_ppm: int = 700_000,
    capacity: int = 1000,
    **changes: Any,
) -> ClusterSpec:
    """Class 0 goes by regions among all pools of LLM 0; class 1, of priority 1, waits in queue 0."""
    pools = tuple(replace(p, pull=()) for p in pools)
    n_llms = 1 + max(p.llm for p in pools)
    there = sorted({p.region for p in pools if p.llm == 0})
    mine = tuple(k for k, p in enumerate(pools) if p.llm == 0)
    orders = preference or tuple(
        (c, *(j for j in there if j != c)) if c in there else tuple(there) for c in range(n_regions)
    )
    row = (
        RouteSpec(RouterKind.REGIONAL, mine, preference=orders, threshold_ppm=threshold_ppm),
        RouteSpec(RouterKind.SHARED_QUEUE, (), queue=0),
    )
    nothing = (RouteSpec(RouterKind.JSQ_REQUESTS, ()), RouteSpec(RouterKind.JSQ_REQUESTS, ()))
    latency = None
    if latency_ps is not None:
        rows = [
            [(0, 0) if c == j else (latency_ps,) * 2 for j in range(n_regions)]
            for c in range(n_regions)
        ]
        latency = LatencySpec(tuple(tuple(r) for r in rows))
    return ClusterSpec(
        **{
            "profiles": (profile(kv_capacity_tokens=capacity),),
            "pools": pools,
            "routes": (row, *([nothing] * (n_llms - 1))),
            "classes": (ClassSpec(priority=0), ClassSpec(priority=1)),
            "queue_llm": (0,),
            "half_block_tokens": 0,
            "n_regions": n_regions,
            "latency": latency,
            **changes,
        }
    )


def states(engine: Any) -> list[int]:
    return [int(s) for s in engine.instances()["state"]]


# --- A. regions ---


@every
def test_a_request_takes_its_latency_and_counts_nowhere_meanwhile(engine_class: Engine) -> None:
    spec = cluster(pool(initial_active=0, region=0), pool(region=1), latency_ps=70)
    engine = engine_class(spec, requests((100, 4, 1)))
    engine.advance(170)  # reaches at 170, which is not over at 170
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


@every
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


@every
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


@every
def test_the_first_region_below_the_threshold_then_the_least_used(engine_class: Engine) -> None:
    """Regions 0, 1, 2 in this order, of 1,000 KV tokens each; threshold 10 %."""
    spec = cluster(
        *(pool(region=j) for j in range(3)),
        n_regions=3,
        preference=((0, 1, 2),) * 3,
        threshold_ppm=100_000,
    )
    rows = [(0, 99, 500), (1000, 200, 500), (2000, 150, 500), (3000, 300, 500), (4000, 1, 500)]
    engine = engine_class(spec, requests(*rows))
    engine.advance(5000)
    # 0: all empty. 1000: 99 tokens and what it has emitted are at least 10 % in region 0. 2000: so are
    # 200 in region 1. 3000: all are above, region 0 least. 4000: 99 + 300 there, so region 2 is least.
    assert engine.results()["instance"].tolist() == [0, 1, 2, 0, 2]
    engine.set_regional(0, 0, preference=((1, 0, 2),) * 3, threshold_ppm=900_000)
    more = engine_class(spec, requests(*rows))
    more.set_regional(0, 0, threshold_ppm=900_000, preference=((1, 0, 2),) * 3)
    more.advance(5000)
    assert more.results()["instance"].tolist() == [1] * 5


@every
def test_the_least_used_deployment_then_the_least_to_do(engine_class: Engine) -> None:
    """Slots 0 and 1, 2 and 3 are deployments. One big request in the first: the others go to the second."""
    spec = cluster(pool(n_slots=4, initial_active=4, deployment_slots=2), n_regions=1)
    rows = [(0, 300, 400), (2000, 10, 400), (2010, 10, 400), (2020, 10, 400)]
    engine = engine_class(spec, requests(*rows))
    engine.advance(2100)
    # As one pool, the third would go to instance 1, which is empty.
    assert engine.results()["instance"].tolist() == [0, 2, 3, 2]
    flat = spec.with_pool(0, deployment_slots=0)
    engine = engine_class(flat, requests(*rows))
    engine.advance(2100)
    assert engine.results()["instance"].tolist() == [0, 1, 2, 3]


@every
def test_who_reaches_nobody_is_sent_on(engine_class: Engine) -> None:
    spec = cluster(pool(region=0), pool(region=1), latency_ps=70, preference=((1, 0),) * 2)
    engine = engine_class(spec, requests((0, 4, 1), (1000, 4, 1)))
    engine.advance(10)
    engine.drain(1)
    engine.advance(LATER)
    # At 70 region 1 has nobody: to region 0, where a client of region 0 takes no time.
    assert engine.results()["admitted_ps"].tolist() == [70, 1000]
    assert engine.results()["instance"].tolist() == [0, 0]


@every
def test_without_any_instance_the_gateway_holds_and_sends(engine_class: Engine) -> None:
    spec = cluster(pool(initial_active=0), pool(initial_active=0, region=1), latency_ps=70)
    engine = engine_class(spec, requests((0, 4, 1)))
    engine.advance(10)
    assert engine.gateway(0) == [0]
    engine.set_target(1, 1)
    engine.advance(100)
    assert engine.results()["admitted_ps"][0] == 10 + 70


@every
def test_what_waits_at_a_draining_instance_stays_in_its_region(engine_class: Engine) -> None:
    """Region 1 would be preferred by now, and takes 70 ps; the request goes next door at once."""
    spec = cluster(pool(n_slots=2, initial_active=2, batch_limit=1), pool(region=1), latency_ps=70)
    rows = [(0, 10, 100), (1, 10, 100), (2, 10, 100)]
    engine = engine_class(spec, requests(*rows))
    engine.advance(10)
    assert engine.own_queue(0) == [2]
    engine.set_regional(0, 0, preference=((1, 0), (1, 0)))
    engine.drain(0)
    assert engine.own_queue(1) == [2]
    engine.drain(1)  # nobody is left there
    assert engine.results()["state"][2] == RequestState.TRANSIT
    engine.advance(100)
    assert engine.results()["instance"][2] == 2
    assert engine.results()["admitted_ps"][2] == 10 + 70


# --- B. priorities ---


def one_at_a_time(**changes: Any) -> ClusterSpec:
    """Both classes go by regions, to one instance that serves one request at a time."""
    spec = cluster(
        pool(batch_limit=1, priorities=True),
        n_regions=1,
        promote_ps=changes.pop("promote_ps", 10**15),
    )
    route = replace(spec.routes[0][0], queue=0)
    return replace(spec, routes=((route, route),), **changes)


@every
def test_priority_0_comes_first_and_each_in_order(engine_class: Engine) -> None:
    rows = [(0, 5, 9, 1), (1, 5, 9, 1), (2, 5, 9, 0), (3, 5, 9, 1), (4, 5, 9, 0)]
    engine = engine_class(one_at_a_time(), requests(*rows))
    engine.advance(10)
    assert engine.own_queue(0) == [2, 4, 1, 3]
    engine.advance(LATER)
    assert engine.finish_log() == [0, 2, 4, 1, 3]


@every
def test_orders_take_the_last_as_they_stand(engine_class: Engine) -> None:
    spec = one_at_a_time()
    spec = spec.with_pool(0, n_slots=2, initial_active=2)
    rows = [(0, 5, 90, 1), (0, 5, 90, 1), (1, 5, 9, 1), (1, 5, 9, 1), (3, 5, 9, 0), (3, 5, 9, 0)]
    engine = engine_class(spec, requests(*rows))
    engine.advance(10)
    assert [engine.own_queue(0), engine.own_queue(1)] == [[4, 2], [5, 3]]
    engine.move_waiting(0, 1, 2)
    assert [engine.own_queue(0), engine.own_queue(1)] == [[], [5, 4, 3, 2]]
    engine.assign([5, 3], [0, 0])  # the last of priority 0 leaves, then one joins
    engine.move_waiting(1, 0, 1)
    assert [engine.own_queue(0), engine.own_queue(1)] == [[5, 3, 2], [4]]


@every
def test_an_old_request_is_of_priority_0(engine_class: Engine) -> None:
    """On its way for 70 ps: old if that is what it takes, one picosecond short otherwise."""
    for promote_ps, order in ((70, [1, 2]), (71, [2, 1])):
        spec = replace(one_at_a_time(promote_ps=promote_ps), latency=LatencySpec((((70, 70),),)))
        engine = engine_class(spec, requests((0, 5, 9, 0), (1, 5, 9, 1), (2, 5, 9, 0)))
        engine.advance(75)
        assert engine.own_queue(0) == order


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


@every
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

    engine = engine_class(managed(), requests(*([(0, 30, 30, 1)] * 6)))
    engine.advance(151)
    assert len(engine.queues()[0]) == 4  # 2 x 30 of 100 are not below three fifths

    engine = engine_class(managed(), requests(*rows))
    engine.set_managers([0], [0])
    engine.advance(1001)
    assert len(engine.queues()[0]) == 6


@every
def test_signals_come_at_multiples_after_everything_else(engine_class: Engine) -> None:
    """A request that arrives at 100 is taken at 100, one at 101 waits for 150."""
    engine = engine_class(managed(), requests((100, 5, 1, 1), (301, 5, 1, 1)))
    engine.advance(LATER)
    assert engine.results()["admitted_ps"].tolist() == [100, 350]


@every
def test_managers_of_regions_share_a_queue_or_have_their_own(engine_class: Engine) -> None:
    pools = (pool(), pool(region=1))
    both = (ManagerSpec(0, (0,)), ManagerSpec(0, (1,)))
    spec = cluster(*pools, managers=both, manager_period_ps=50)
    rows = [(0, 5, 50, 1)] * 4
    engine = engine_class(spec, requests(*rows, regions=(1, 1, 0, 1)))
    engine.advance(60)
    assert engine.results()["instance"].tolist() == [0, 0, 1, 1]
    route = replace(spec.routes[0][1], region_queues=(0, 1))
    own = replace(
        spec,
        routes=((spec.routes[0][0], route),),
        queue_llm=(0, 0),
        managers=(both[0], replace(both[1], queue=1)),
    )
    engine = engine_class(own, requests(*rows, regions=(1, 1, 0, 1)))
    engine.advance(60)
    assert engine.results()["instance"].tolist() == [1, 1, 0, -1]
    assert engine.queues() == [[], [3]]


@every
def test_a_managed_request_stays_at_its_endpoint_when_its_instance_drains(
    engine_class: Engine,
) -> None:
    spec = cluster(
        pool(n_slots=2, initial_active=2, batch_limit=1),
        n_regions=1,
        managers=(ManagerSpec(0, (0,), 10**6, 10**6),),
        manager_period_ps=50,
    )
    engine = engine_class(spec, requests(*([(0, 5, 90, 1)] * 4)))
    engine.advance(101)
    assert [engine.own_queue(0), engine.own_queue(1)] == [[2], [3]]
    engine.drain(0)
    assert engine.own_queue(1) == [3, 2]
    engine.drain(1)
    assert engine.queues() == [[3, 2]]


# --- D. spot ---


def leased(**changes: Any) -> SpotSpec:
    numbers: dict[str, Any] = {
        "initial": 0,
        "reclaim_knots_ps": (30, 30),
        "donate_ps": 20,
        "redeploy_ps": 100,
        "redeploy_remote_ps": 1000,
    }
    return SpotSpec(**(numbers | changes))


def market(**changes: Any) -> ClusterSpec:
    """LLM 0 has an instance of 2 GPUs and a VM of spot, LLM 1 two VMs."""
    return cluster(
        pool(n_slots=4, gpus=2, spot=leased(initial=1)),
        pool(llm=1, n_slots=4, gpus=2, initial_active=0, spot=leased(initial=2, local=False)),
        n_regions=1,
        **changes,
    )


NOBODY = requests((10**15, 1, 1))


@every
def test_own_vms_come_back_loaded_then_others_are_redeployed(engine_class: Engine) -> None:
    engine = engine_class(market(), NOBODY)
    assert engine.set_target(0, 3) == 0
    assert states(engine)[:4] == [ACTIVE, ACQUIRING, ACQUIRING, OFF]
    assert engine.spot()["spot"].tolist() == [0, 1]
    engine.advance(31)
    assert states(engine)[:4] == [ACTIVE, ACTIVE, LOADING, OFF]
    engine.advance(130)
    assert states(engine)[2] == LOADING
    assert engine.spot()["others_ps"][0] == 130
    engine.advance(131)
    assert states(engine)[2] == ACTIVE
    seen = engine.spot()[0]
    assert [seen["reclaims_own"], seen["reclaims_others"]] == [1, 1]
    assert [seen["own_ps"], seen["others_ps"]] == [30, 130]
    # Billed from the start of acquiring: 131 ps of three instances of two GPUs.
    assert engine.gpu_ps() == [3 * 131 * 2, 0]
    assert engine.set_target(0, 4) == 0
    assert engine.set_target(1, 1) == 1  # no VM is left
    assert engine.spot()["spot"].tolist() == [0, 0]


@every
def test_weights_that_are_not_in_the_region_take_long_the_first_time(engine_class: Engine) -> None:
    spec = market().with_pool(1, spot=leased(local=False))
    engine = engine_class(spec, NOBODY)
    engine.set_target(0, 0)
    engine.advance(21)  # donated at 20
    assert engine.spot()["spot"].tolist() == [2, 0]
    engine.set_target(1, 1)
    engine.advance(21 + 30 + 1000)
    assert states(engine)[4] == LOADING
    engine.advance(21 + 30 + 1000 + 1)
    assert states(engine)[4] == ACTIVE
    engine.set_target(1, 2)  # they are there now
    engine.advance(1052 + 30 + 100 + 1)
    assert states(engine)[5] == ACTIVE


@every
def test_an_instance_is_donated_once_it_is_empty(engine_class: Engine) -> None:
    spec = market()
    engine = engine_class(spec, requests((0, 10, 3)))
    engine.advance(10)
    engine.set_target(0, 0)
    # Prefill 35, decode 10 + 1 + 2 * 11 and 10 + 1 + 2 * 12: done at 35 + 33 + 35 = 103.
    for at_ps, state in ((103, DRAINING), (104, DONATING), (123, DONATING), (124, OFF)):
        engine.advance(at_ps)
        assert states(engine)[0] == state
    assert engine.spot()["spot"].tolist() == [2, 2]
    assert engine.spot()["donations"].tolist() == [1, 0]
    engine.advance(500)
    assert engine.gpu_ps() == [2 * 123, 0]


@every
def test_draining_ones_are_taken_back_donated_ones_are_not(engine_class: Engine) -> None:
    engine = engine_class(market(), requests((0, 10, 3)))
    engine.advance(10)
    engine.set_target(0, 0)
    assert engine.set_target(0, 1) == 0
    assert states(engine)[:2] == [ACTIVE, OFF]
    engine.set_target(0, 0)
    engine.advance(104)
    engine.set_target(0, 1)
    assert states(engine)[:2] == [DONATING, ACQUIRING]


@every
def test_what_is_on_its_way_is_not_given_up(engine_class: Engine) -> None:
    engine = engine_class(market(), NOBODY)
    engine.set_target(0, 3)
    engine.set_target(0, 0)
    assert states(engine)[:4] == [DONATING, ACQUIRING, ACQUIRING, OFF]


@every
def test_a_vm_survives_its_failure(engine_class: Engine) -> None:
    spec = market().with_pool(0, repair_ps=40)
    engine = engine_class(spec, NOBODY)
    engine.advance(10)
    engine.fail(0)
    engine.advance(51)
    assert states(engine)[0] == LOADING
    engine.advance(151)
    assert states(engine)[0] == ACTIVE
    assert engine.gpu_ps()[0] == 2 * 151
    assert engine.spot()[0].tolist() == (1,) + (0,) * 9
    engine.set_target(0, 0)
    engine.advance(161)
    engine.fail(0)  # while it is donated: that begins anew
    engine.advance(181)
    assert states(engine)[0] == DONATING
    engine.advance(182)
    assert states(engine)[0] == OFF
    assert engine.spot()["spot"].tolist() == [2, 2]


# --- scaling at the endpoint ---


def scaled(kind: int = ScalingKind.REACTIVE, **changes: Any) -> ClusterSpec:
    numbers: dict[str, Any] = {"kind": kind, "cooldown_ps": 200, "least": 1, "most": 3}
    return cluster(
        pool(n_slots=4, load_ps=(50, 50, 50), scaling=ScalingSpec(**(numbers | changes))),
        n_regions=1,
        capacity=100,
    )


@every
def test_reactive_one_more_above_one_less_below_and_a_pause_between(engine_class: Engine) -> None:
    rows = [(0, 75, 20), (100, 1, 1), (299, 1, 1), (300, 1, 1)]
    engine = engine_class(scaled(), requests(*rows))
    seen = []
    for at_ps in (1, 101, 299, 300, 301):
        engine.advance(at_ps)
        seen.append(sum(s in (ACQUIRING, LOADING, ACTIVE) for s in states(engine)))
    # At 0 it is empty: one less, which is below the least: no change. At 100 it holds 75 %: out. At 299
    # the pause is on. At 300 it is over, and two instances hold less than 70 % of their memory.
    assert seen == [1, 2, 2, 2, 2]
    assert engine.spot()["looks_out"][0] == 1
    engine.advance(10**5)
    more = engine_class(scaled(), requests(*rows, (10**5, 1, 1)))
    more.advance(10**5 + 1)
    assert more.spot()["looks_in"][0] == 1  # by then they are empty


@every
def test_nobody_goes_while_those_on_their_way_do_not_serve(engine_class: Engine) -> None:
    """One serves, almost empty, one is on its way: at 10 the rule wants one less. At 400 both serve."""
    spec = market().with_pool(
        0, scaling=ScalingSpec(kind=ScalingKind.REACTIVE, cooldown_ps=1, least=1, most=4)
    )
    engine = engine_class(spec, requests((10, 1, 1), (400, 1, 1)))
    engine.set_target(0, 2)
    engine.advance(11)
    assert states(engine)[:2] == [ACTIVE, ACQUIRING]
    assert engine.spot()["looks_in"][0] == 0
    engine.advance(401)
    assert engine.spot()["looks_in"][0] == 1
    assert sum(s == ACTIVE for s in states(engine)) == 1


@every
def test_towards_the_target_and_no_further(engine_class: Engine) -> None:
    full = [(0, 90, 9), (100, 1, 1), (500, 1, 1), (900, 1, 1)]
    for target, out in ((1, 0), (2, 1), (-1, 0)):
        engine = engine_class(scaled(ScalingKind.TARGET), requests(*full))
        engine.set_scaling(0, ScalingKind.TARGET, target)
        engine.advance(101)
        assert engine.spot()["looks_out"][0] == out


@every
def test_ahead_of_the_target_when_the_load_is_above_the_forecast(engine_class: Engine) -> None:
    """Bins of 100 ps, the last two count; a forecast of 10 tokens in 200 ps; the last half of 1,000 ps."""
    spec = scaled(
        ScalingKind.TARGET_AHEAD,
        period_ps=1000,
        last_ps=500,
        bin_ps=100,
        bins=2,
        above_ppm=5_000_000,
        below_ppm=500_000,
    )
    forecast = 10 * 10**18 // 200
    for tokens, at_ps, out in ((50, 600, 1), (49, 600, 0), (50, 499, 0), (50, 800, 0)):
        # Input and predicted output of two requests in 400..599, and one that looks.
        rows = [(400, tokens - 3, 1), (499, 1, 1), (at_ps, 1, 1)]
        rows = sorted(rows)
        engine = engine_class(spec, requests(*rows))
        engine.set_scaling(0, ScalingKind.TARGET_AHEAD, 1, forecast)
        engine.advance(at_ps + 1)
        assert engine.spot()["looks_out"][0] == out, (tokens, at_ps)


class Recorded:
    """Every look of every rule, and what `baselines.sageserve.scaling` says to the same numbers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.changes = dict.fromkeys(ScalingKind, 0)
        self.looks = 0
        self.rules: dict[EndpointRule, Any] = {}
        look, hour = EndpointRule.look, EndpointRule.hour
        monkeypatch.setattr(EndpointRule, "look", lambda rule: self.look(rule, look))
        monkeypatch.setattr(EndpointRule, "hour", lambda rule, *args: self.hour(rule, hour, *args))

    def units(self, rule: EndpointRule, ps: int) -> Fraction:
        """An hour of the rule has 3,600 of them."""
        return Fraction(ps * 3600, rule.scaling.period_ps)

    def made(self, rule: EndpointRule, kind: int) -> Any:
        scaling = rule.scaling
        thresholds = rules.Thresholds(
            Fraction(scaling.high_ppm, 10**6), Fraction(scaling.low_ppm, 10**6)
        )
        bounds = rules.Bounds(scaling.least, scaling.most)
        cooldown = self.units(rule, scaling.cooldown_ps)
        if kind == ScalingKind.REACTIVE:
            return rules.Reactive(thresholds, bounds, cooldown)
        if kind == ScalingKind.TARGET:
            return rules.Utilised(thresholds, bounds, cooldown)
        return rules.UtilisedAhead(
            thresholds,
            bounds,
            cooldown,
            last_s=self.units(rule, scaling.last_ps),
            above=Fraction(scaling.above_ppm, 10**6),
            below=Fraction(scaling.below_ppm, 10**6),
            either_way=scaling.either_way,
        )

    def of(self, rule: EndpointRule) -> Any:
        if rule not in self.rules:
            self.rules[rule] = self.made(rule, rule.kind)
        return self.rules[rule]

    def hour(self, rule: EndpointRule, real: Any, kind: int, target: int, forecast: int) -> None:
        had = self.of(rule)
        model = self.rules[rule] = self.made(rule, kind)
        model._changed_s = had._changed_s
        if target >= 0:
            now = self.units(rule, rule.engine.now_ps)
            model.hour(now, rule.instances, target, Fraction(forecast, 10**6))
        real(rule, kind, target, forecast)

    def look(self, rule: EndpointRule, real: Any) -> None:
        used, room = rule.engine.regions.memory([rule.pool])
        window_s = Fraction(rule.scaling.bins * rule.scaling.bin_ps, 10**12)
        before, out, into = rule.instances, rule.looks_out, rule.looks_in
        expected = 0
        if rule.kind != ScalingKind.NONE:
            expected = self.of(rule).arrival(
                self.units(rule, rule.engine.now_ps),
                before,
                Fraction(used, room) if room else float("inf"),
                rule._observed() / window_s,
                sum(i.state == InstanceState.ACTIVE for i in rule.engine.instances_of[rule.pool]),
            )
        ordered: list[int] = []
        set_target = rule.engine.set_target

        def order(pool: int, count: int) -> int:
            ordered.append(count - before)
            return set_target(pool, count)

        rule.engine.set_target = order  # type: ignore[assignment]
        real(rule)
        rule.engine.set_target = set_target  # type: ignore[method-assign]
        assert ordered == ([expected] if expected else [])
        assert (rule.looks_out - out, rule.looks_in - into) == (expected > 0, expected < 0)
        self.looks += 1
        self.changes[rule.kind] += expected != 0


def test_looks_are_what_the_rules_of_the_baseline_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """On generated cases; both engines agree on them (test_regions_engines_agree)."""
    recorded = Recorded(monkeypatch)
    for seed in range(120):
        run_case(ReferenceEngine, make_region_case(seed))
    assert recorded.looks > 1000
    assert all(recorded.changes[k] > 10 for k in ScalingKind if k != ScalingKind.NONE)
    assert recorded.changes[ScalingKind.NONE] == 0


# --- what cannot be ---


def refused(words: str, make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_clusters_that_cannot_be_are_refused() -> None:
    spec = cluster(pool(), pool(region=1))
    regional = spec.routes[0][0]

    def with_route(**changes: Any) -> ClusterSpec:
        row = (replace(regional, **changes), spec.routes[0][1])
        return replace(spec, routes=(row,))

    refused("region = 2", lambda: spec.with_pool(0, region=2))
    refused("preference: a REGIONAL route", lambda: with_route(preference=()))
    refused(r"preference\[1\]", lambda: with_route(preference=((0, 1), (1, 1))))
    refused("must have 2 rows", lambda: with_route(preference=((0, 1),)))
    refused("threshold_ppm", lambda: with_route(threshold_ppm=-1))
    refused("region_queues", lambda: with_route(region_queues=(0,)))
    refused("latency", lambda: replace(spec, latency=LatencySpec((((0, 0),),))))
    refused("do not fall", lambda: LatencySpec((((5, 4),),)))
    refused("at least two", lambda: LatencySpec((((5,),),)))
    refused("priorities", lambda: spec.with_pool(0, priorities=True, phase=PoolPhase.PREFILL))
    refused("most = 3", lambda: spec.with_pool(0, scaling=ScalingSpec(least=0, most=3)))
    refused("low_ppm", lambda: ScalingSpec(low_ppm=700_000))
    refused("cooldown_ps", lambda: ScalingSpec(cooldown_ps=0))
    refused("reclaim_knots_ps", lambda: SpotSpec(reclaim_knots_ps=(3, 2)))
    group = market()
    refused("gpus = 3", lambda: group.with_pool(1, gpus=3))
    manager = ManagerSpec(0, (0,))
    refused("manager_period_ps", lambda: replace(spec, managers=(manager,)))
    timed = replace(spec, managers=(manager,), manager_period_ps=5)
    refused("is a manager's", lambda: timed.with_pool(0, pull=(0,)))
    refused("in region 0", lambda: replace(timed, managers=(ManagerSpec(0, (0, 1)),)))
    refused("queue of LLM 0", lambda: replace(timed, queue_llm=(-1,)))
    refused("each once", lambda: ManagerSpec(0, ()))


@every
def test_commands_that_cannot_be_are_refused(engine_class: Engine) -> None:
    spec = replace(market(), managers=(ManagerSpec(0, (0,)),), manager_period_ps=50)
    plain = replace(spec.routes[0][1], pools=(0,))
    spec = replace(spec, routes=((spec.routes[0][0], plain), spec.routes[1]))
    engine = engine_class(spec, NOBODY)
    refused("has no preference", lambda: engine.set_regional(0, 1, 5))
    refused("must have each", lambda: engine.set_regional(0, 0, 5, ((1,),)))
    refused("one_ppm: 2 values", lambda: engine.set_managers([1, 2], [1]))
    refused("two_ppm", lambda: engine.set_managers([1], [-2]))
    refused("has no scaling", lambda: engine.set_scaling(0, ScalingKind.REACTIVE))
    refused("is a manager's", lambda: engine.set_pull(0, [0]))
    refused("no preference", lambda: engine.set_router(0, 1, RouterKind.REGIONAL))
    outside = requests((0, 1, 1), regions=(1,))
    engine_class(spec, outside)  # with one region it does not matter
    two = cluster(pool(), pool(region=1))
    refused(r"region\[0\] = 2", lambda: engine_class(two, requests((0, 1, 1), regions=(2,))))
