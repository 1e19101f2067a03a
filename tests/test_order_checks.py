"""Orders for many episodes that cannot be carried out: refused whole, in the same words by both engines."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import cache
from inspect import signature
from typing import Any

import numpy as np
import pytest

from llmscale_env.control.reward import draw_requests
from llmscale_env.scenarios import load_scenario
from llmscale_env.sim.compile import compile_cluster
from llmscale_env.sim.engine import ENGINES, Engine, make_engine
from llmscale_env.sim.fast import EngineBatch
from llmscale_env.sim.orders import (
    METHODS,
    Assign,
    Drain,
    FailHost,
    Loads,
    Mutate,
    Orders,
    Regroup,
    SetInstanceLimit,
    SetPredictions,
    SetPull,
    SingleOrder,
)
from llmscale_env.sim.reference import ReferenceEngine
from llmscale_env.sim.spec import ClusterSpec, InstanceState, PoolSpec, RouterKind, RouteSpec
from llmscale_env.workload.requests import RequestTable
from tests.border_cases import differences, no_orders, shown
from tests.env_kinds import REGION
from tests.refusals import refuses
from tests.small_clusters import profile, table
from tests.small_world import SMALL_WORLD
from tests.test_reference_engine import cluster
from tests.weight_cases import make_weight_case

QUEUES, PLACES, REGIONS = "multi-model-queue", "placement", "multi-region"
Write = Callable[[Any, Engine], object]
"""Writes something into orders, with a view of the engine."""


SHORT = {REGIONS: {**REGION.short, "horizon_s": 3600, "workload.rate_scale": 0.01}}


@cache
def world(name: str) -> tuple[ClusterSpec, RequestTable]:
    """A small one in which the orders of this kind mean something."""
    if name == "weights":
        case = make_weight_case(0)
        return case.spec, case.requests
    if name == "two":
        pools = tuple(PoolSpec(m, 0, 2, initial_active=1, batch_limit=2, pull=(m,)) for m in (0, 1))
        routes = tuple((RouteSpec(RouterKind.SHARED_QUEUE, (), queue=m),) for m in (0, 1))
        spec = ClusterSpec((profile(),), pools, routes, queue_llm=(0, 1))
        return spec, table(*((at, 4, 30, 0, at % 2) for at in range(12)))
    scenario = load_scenario(name, **SHORT.get(name, {"horizon_s": 120}))
    return compile_cluster(scenario), draw_requests(scenario, np.random.default_rng(0))


def started(name: str, engine: str, n_episodes: int = 2) -> Engine:
    """An engine whose last episode has come a while."""
    spec, requests = world(name)
    made = make_engine(spec, n_episodes, engine)
    made.reset(n_episodes - 1, requests)
    middle = int(requests.arrival_ps[min(300, len(requests) // 2)])
    made.advance(n_episodes - 1, middle + 1)
    made.close_windows(0, n_episodes)
    return made


def put(path: str, value: Any, *at: Any) -> Write:
    """Write a value into an array of the orders, by default for the last episode's first one."""

    def write(orders: Any, engine: Engine) -> None:
        array = orders
        for name in path.split("."):
            array = getattr(array, name)
        array[at or (-1,) + (0,) * (array.ndim - 1)] = value

    return write


def pull(*queues: int) -> Write:
    def write(orders: Any, engine: Engine) -> None:
        orders.queues.pulls[1, 0, : len(queues)] = queues
        orders.queues.counts[1, 0] = len(queues)

    return write


def move(request: int, queue: int, e: int = 1) -> Write:
    return lambda orders, engine: orders.queues.moves.append(
        (e, np.array([request]), np.array([queue]))
    )


def move_head(queue: int) -> Write:
    """The first request that waits, to a queue."""
    return lambda orders, engine: move(int(engine.waiting(1)["request"][0]), queue)(orders, engine)


def place(request: int, instance: int) -> Write:
    return lambda orders, engine: (
        put("places.requests", request)(orders, engine),
        put("places.instances", instance)(orders, engine),
    )


def models(per_token_s: float) -> Write:
    def write(orders: Any, engine: Engine) -> None:
        orders.places.models[1] = True
        orders.places.model_s = np.full((engine.spec.n_instances, 5), 1e-6)
        orders.places.model_s[1, 4] = per_token_s

    return write


BAD: list[tuple[str, Write, str]] = [
    (QUEUES, put("pools.targets", 10**6), r"targets\[1, 0\] = 1000000: must be in -1..\d+"),
    (QUEUES, put("pools.sources", 9), r"sources\[1, 0\] = 9: must be in -1..2"),
    (QUEUES, put("pools.limits", 10**6), r"limits\[1, 0\] = 1000000: must be in -1"),
    (QUEUES, put("pools.limits", 0), r"limits\[1, 0\] = 0: must be at least 1, or -1"),
    (QUEUES, put("pools.shares", 1.5), r"shares\[1, 0\] = 1.5: must be in 0.0..1.0"),
    (QUEUES, pull(1000), r"pulls of instance 0: no shared queue 1000, must be in 0..\d+"),
    (QUEUES, pull(-5), "pulls of instance 0: no shared queue -5, must be in 0"),
    (QUEUES, pull(0, 0), r"pulls of instance 0 = \(0, 0\): a queue comes twice"),
    (QUEUES, put("queues.counts", 10**6), r"counts\[1, 0\] = 1000000: must be in -1"),
    ("two", pull(1), "pulls of instance 0: queue 1 holds requests of another LLM"),
    (QUEUES, put("queues.arrivals", 500), r"arrivals\[1, 0, 0\] = 500: must be in -1..\d+"),
    ("two", put("queues.arrivals", 1), "queues: queue 1 is for another LLM than 0"),
    ("two", move_head(1), "queues: request [0-9]+ is for another LLM than queue 1"),
    (REGIONS, pull(0), "pulls of instance 0: queue 0 is a manager's"),
    (QUEUES, put("queues.evicts", 2), r"evicts\[1, 0\] = 2: must be in -1..1"),
    (QUEUES, move(10**6, 0), "requests: 1000000 is in no shared queue"),
    (QUEUES, move_head(10**6), "queues: no shared queue 1000000, must be in 0"),
    (QUEUES, move(0, 0, e=2), "moves: episode = 2: must be an integer in 0..1"),
    (PLACES, put("places.rules", 99), rf"rules\[1\] = 99: must be in -1..{max(RouterKind)}"),
    (PLACES, put("places.rules", int(RouterKind.CUSTOM)), "there is no custom router"),
    (PLACES, put("places.rules", int(RouterKind.SHARED_QUEUE)), "has no shared queue"),
    (PLACES, put("places.gamma", -3.0), r"gamma\[1\] = -3.0: must be in 0.0..1.0"),
    (PLACES, put("places.theta", 11.0), r"theta\[1\] = 11.0: must be in 0.0..10.0"),
    (PLACES, models(0.0), "decode_per_token_ps = 0.0: must be positive"),
    (PLACES, models(np.inf), "must be five finite numbers"),
    (PLACES, place(10**6, 0), "requests: 1000000 is in no gateway"),
    (PLACES, place(-7, 0), "requests: -7 is in no gateway"),
    (PLACES, place(0, 10**6), r"instances\[1\] = 1000000: must be in 0"),
    (REGIONS, put("endpoints.rules", 99), r"rules\[1, 0\] = 99: must be in -1..3"),
    (REGIONS, put("endpoints.goals", 10**6), r"goals\[1, 0\] = 1000000: must be in -1"),
    (
        REGIONS,
        put("endpoints.thresholds", -1.0),
        r"thresholds\[1, 0\] = -1.0: must be in 0.0..1000",
    ),
    (REGIONS, put("endpoints.thresholds", 1e9), r"thresholds\[1, 0\] = 1000000000.0: must be in"),
    (REGIONS, put("endpoints.first", 55), r"first\[1, 0\] = 55: must be in -1..2"),
    (REGIONS, put("endpoints.release", -7.0), r"release\[1, 0, 0\] = -7.0: must be in 0.0"),
    (PLACES, put("endpoints.rules", 1), r"rules\[1, 0\] = 1: the pool has no scaling"),
    (PLACES, lambda orders, engine: orders.last.append((2, Drain(0))), "episode = 2: must be an"),
    (PLACES, lambda orders, engine: orders.last.append((1, "drain")), "'drain': is no order"),
]


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("where, write, words", BAD, ids=[words[:24] for *_, words in BAD])
def test_an_impossible_order_is_refused_and_changes_nothing(
    where: str, write: Write, words: str, name: str
) -> None:
    """Nothing is done of orders of which one is impossible, whatever else is ordered."""
    engine = started(where, name)
    orders = no_orders(engine)
    orders.pools.targets[:] = 0
    orders.pools.limits[:] = 2
    write(orders, engine)
    before = [("", *item) for item in deepcopy(list(shown(engine, 1)))]
    refuses(words, engine.apply, orders)
    after = [("", *item) for item in shown(engine, 1)]
    assert next(differences(before, after), None) is None


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    "field, dtype", [("targets", float), ("limits", bool), ("shares", int), ("sources", object)]
)
def test_arrays_of_another_type_are_refused(field: str, dtype: type, name: str) -> None:
    engine = started(QUEUES, name)
    orders: Any = no_orders(engine)
    setattr(orders.pools, field, np.zeros(getattr(orders.pools, field).shape, dtype))
    refuses(f"{field}: of type .*, must be", engine.apply, orders)


@pytest.mark.parametrize("name", ENGINES)
def test_a_single_order_is_refused_by_itself_when_its_turn_comes(name: str) -> None:
    """The others are carried out, and the orders are not written to."""
    engine = started("weights", name)
    spec, states = engine.spec, engine.states_of_instances()[1]
    active = states == InstanceState.ACTIVE
    i = int(np.flatnonzero((np.array(spec.twin_of_slot) >= 0) & active)[0])
    flowing = np.array([spec.pools[p].weight_bytes > 0 for p in spec.pool_of_slot])
    busy = int(np.flatnonzero((states > 0) & flowing)[0])
    orders = no_orders(engine)
    orders.first += [(1, Mutate(i)), (1, Mutate(i))]
    orders.last += [(1, Loads((busy,), (-1,))), (1, Loads((0,), (-1, -1)))]
    orders.last += [(1, Loads((0.5,), (-1,))), (1, SetInstanceLimit(i, 1))]  # type: ignore[arg-type]
    before = deepcopy(orders)
    missing, refused = engine.apply(orders)
    assert not missing.any()
    assert engine.states_of_instances()[1, i] != InstanceState.ACTIVE
    assert engine.instances(1)["batch_limit"][i] == 1
    assert list(refused) == [1, 2, 3, 4]
    for words, error in zip(
        (f"instance = {i}: is ", "must be OFF", "sources: 2 of them", r"slots[0] = 0.5: must be"),
        refused.values(),
        strict=True,
    ):
        assert words in str(error)
    assert same(orders, before)


def test_both_engines_have_a_method_of_every_single_order() -> None:
    """With the order's fields as its arguments, in their sequence."""
    for order, method in METHODS.items():
        fields_of = getattr(order, "_fields", None) or tuple(f.name for f in fields(order))
        for engine in (ReferenceEngine, EngineBatch):
            found = list(signature(getattr(engine, method)).parameters)
            assert tuple(name for name in found if name not in ("self", "e")) == fields_of, order


def same(one: Any, other: Any) -> bool:
    """Whether two dataclasses hold the same."""
    if is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    return bool(one == other)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    "order",
    [
        Assign([0.5], [0]),
        Assign([0], [0.0]),
        Regroup([1.5], [0]),
        SetPredictions([0], [3.7]),
        SetPull(0, [0.0]),
        Loads((1.5,), (-1,)),
        Drain(0.0),
        SetInstanceLimit(0, True),
        FailHost(True),
    ],
)
def test_orders_with_numbers_that_are_none_are_refused(order: SingleOrder, name: str) -> None:
    engine = make_engine(cluster(PoolSpec(0, 0, 2, initial_active=1)), 1, name)
    engine.reset(0, table((0, 4, 3)))
    [error] = engine.apply(Orders(last=[(0, order)])).refused.values()
    assert re.search("must be|no shared queue", str(error))


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    "call",
    [
        lambda e: e.host_has(0, 99, 0),
        lambda e: e.host_has(0, 0, 1),
        lambda e: e.reset(0, table((0, 4, 3, 0, 5))),
        lambda e: e.reset(0, table((0, 4, 3, 7, 0))),
    ],
)
def test_numbers_that_are_none_are_refused(call: Callable[[Engine], object], name: str) -> None:
    engine = make_engine(cluster(PoolSpec(0, 0, 2, initial_active=1)), 1, name)
    engine.reset(0, table((0, 4, 3)))
    refuses("must be|no shared queue", call, engine)


def test_a_lowest_batch_limit_above_the_tables_is_refused() -> None:
    pool = PoolSpec(0, 0, 1, initial_active=1, batch_limit=2, controller_min_batch=4000)
    refuses(r"pools\[0\].controller_min_batch = 4000: must be an integer in 1..", cluster, pool)
    refuses(
        "controller_min_batch = 8: must be at most max_batch = 4",
        load_scenario,
        SMALL_WORLD,
        **{
            "fleet.pools.0.max_batch": 4,
            "fleet.pools.0.batch_limit": 4,
            "fleet.pools.0.controller_min_batch": 8,
        },
    )


def test_moves_go_by_ids_once_requests_are_forgotten() -> None:
    """After `retire` a request's place in the fast engine's arrays is not its id any more."""
    spec, requests = world(QUEUES)
    seen = []
    for name in ENGINES:
        engine = make_engine(spec, 1, name)
        engine.reset(0, requests)
        engine.advance(0, 60 * 10**12)
        engine.close_windows(0, 1)
        gone = len(engine.retire(0).ids)
        waiting = engine.waiting(0)
        request = int(waiting["request"][-1])
        assert gone > 0
        assert engine.ids(0).tolist().index(request) != request
        to = next(
            q
            for q, llm in enumerate(spec.queue_llm)
            if llm in (-1, waiting["llm"][-1]) and q != waiting["queue"][-1]
        )
        orders = no_orders(engine)
        orders.queues.moves.append((0, np.array([request]), np.array([to])))
        assert not engine.apply(orders).missing.any()
        assert engine.queued(0, to)["request"][-1] == request
        engine.advance(0, 80 * 10**12)
        seen.append([("", *item) for item in shown(engine, 0)])
    assert next(differences(*seen), None) is None


@pytest.mark.parametrize("name", ENGINES)
def test_a_request_that_is_routed_by_the_same_orders_stays_there(name: str) -> None:
    """Its instance is to drain, so the placing of that time counts for nothing."""
    spec = cluster(PoolSpec(0, 0, 2, initial_active=2))
    spec = spec.with_pool(0, batch_limit=1)
    engine = make_engine(spec, 1, name)
    engine.reset(0, table((0, 4, 30), (0, 4, 30), (1, 4, 3)))
    engine.advance(0, 10)
    waiting = next(i for i in (0, 1) if engine.own_queue(0, i) == [2])
    orders = no_orders(engine)
    orders.pools.targets[0, 0] = 0
    orders.places.requests[0], orders.places.instances[0] = 2, 1 - waiting
    assert not engine.apply(orders).missing.any()
    assert engine.gateway(0, 0) == [2]
