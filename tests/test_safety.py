"""No call of the public API ends the process, hangs it, or is answered wrongly in silence."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from llmscale_env.envs.base import ServingEnv
from llmscale_env.envs.vector import ServingVectorEnv
from llmscale_env.scenarios import Scenario, load_scenario
from llmscale_env.sim.compile import compile_cluster
from llmscale_env.sim.custom_router import router
from llmscale_env.sim.fast.engine import BusyError, EngineBatch, FastEngine
from llmscale_env.sim.lock import Lock
from llmscale_env.sim.reference.engine import ReferenceEngine
from llmscale_env.sim.spec import ClassSpec, PoolSpec, RequestState, RouterKind, RouteSpec
from llmscale_env.workload.requests import RequestTable
from tests.small_world import SMALL_WORLD, SmallEnv, SmallVectorEnv
from tests.test_reference_engine import cluster, profile, table

MINUTE = load_scenario(SMALL_WORLD, horizon_s=60.0)
ZERO = np.zeros(1, np.int64)
ONE = np.ones(1, np.int64)


def many(n: int = 2, **arguments: Any) -> ServingVectorEnv:
    return SmallVectorEnv(n, MINUTE, **arguments)


def single(scenario: Scenario = MINUTE, **arguments: Any) -> ServingEnv:
    return SmallEnv(scenario, **arguments)


def batch(n: int = 1) -> EngineBatch:
    return EngineBatch(compile_cluster(MINUTE), n)


def test_a_step_before_the_first_reset_is_refused():
    env = many()
    with pytest.raises(gym.error.ResetNeeded, match=r"of episodes \[0, 1\]"):
        env.step(env.action_space.sample())


@pytest.mark.parametrize(
    "mask, said",
    [
        (np.array([True, False]), r"must be true for \[1\]"),
        (np.array([1, 1]), "must be 2 booleans"),
        (np.array([True]), "must be 2 booleans"),
        (np.array([False, False]), "one of them true"),
        ("all", "must be 2 booleans"),
    ],
)
def test_odd_masks_are_refused_and_change_nothing(mask: Any, said: str):
    env = many()
    with pytest.raises(ValueError, match=said):
        env.reset(seed=3, options={"reset_mask": mask})
    plain = many()
    assert np.array_equal(env.reset(seed=1)[0], plain.reset(seed=1)[0])


def test_a_partial_reset_begins_only_its_episodes_anew():
    env = many()
    first, _ = env.reset(seed=1)
    action = env.action_space.sample()
    went_on = env.step(action)[0]
    found, _ = env.reset(seed=[1, None], options={"reset_mask": np.array([True, False])})
    assert np.array_equal(found[0], first[0])
    assert np.array_equal(found[1], went_on[1])


def test_threads_wait_for_each_other():
    env = many(4)
    env.reset(seed=0)
    action = env.action_space.sample()
    failed: list[BaseException] = []

    def steps() -> None:
        try:
            for _ in range(8):
                env.step(action)
                env.action_masks()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=steps) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    alone = many(4)
    alone.reset(seed=0)
    for _ in range(32):
        last = alone.step(action)[0]
    assert np.array_equal(env.core.observe(), last)


def test_a_batch_that_a_thread_advances_is_busy():
    engine = batch(2)
    with engine._advances(0, 1):
        with pytest.raises(BusyError):
            engine.advance(0, 10**12)
        with pytest.raises(BusyError):
            engine.instances(1)
        before = engine.states.route.copy(), engine.states.pool.copy()
        for order in (
            lambda: engine.set_router(1, 0, 0, 0),
            lambda: engine.set_overflow_share(1, 0, 0, 0.5),
            lambda: engine.set_operations(1, 0, pull_rule=1),
        ):
            with pytest.raises(BusyError):
                order()
        after = engine.states.route, engine.states.pool
        assert all(np.array_equal(*pair) for pair in zip(before, after, strict=True))
        engine.advance_range(1, 2, np.full(2, 10**12))
    engine.advance(0, 10**12)
    assert engine.now_ps(0) == engine.now_ps(1) == 10**12


def test_a_child_process_has_threads_of_its_own():
    env = many(4, threads=2)
    env.reset(seed=0)
    action = env.action_space.sample()
    env.step(action)
    child = os.fork()
    if child == 0:
        env.step(action)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_lock_is_free_in_a_copy_and_in_a_child():
    lock = Lock()
    with lock, deepcopy(lock):
        child = os.fork()
        if child == 0:
            with lock:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    "other",
    [
        lambda: single(load_scenario(SMALL_WORLD, horizon_s=120.0)),
        lambda: single(load_scenario(SMALL_WORLD, horizon_s=60.0, **{"reward.load_weight": 5.0})),
        lambda: single(forecaster=None),
    ],
    ids=["horizon", "reward", "forecaster"],
)
def test_a_state_of_another_scenario_is_refused_and_changes_nothing(
    other: Callable[[], ServingEnv],
):
    env = single()
    env.reset(seed=1)
    saved, mine = env.save_state(), other()
    seen = mine.reset(seed=2)[0]
    with pytest.raises(ValueError, match="of another scenario"):
        mine.restore_state(saved)
    assert np.array_equal(mine.core.observe()[0], seen)


@pytest.mark.parametrize("name", ["inst", "req", "glob", "cluster"])
def test_a_damaged_state_is_refused_whole(name: str):
    env = single()
    env.reset(seed=1)
    env.step(env.action_space.sample())
    before = env.save_state()
    damaged = deepcopy(before)
    engine = damaged["core"]["sim"]["engine"]
    engine[name] = engine[name][:-1]
    env.step(env.action_space.sample())
    then = env.save_state()["core"]["sim"]["engine"]
    with pytest.raises(ValueError, match=r"of shape|another cluster|requests"):
        env.restore_state(damaged)
    now = env.save_state()["core"]["sim"]["engine"]
    assert all(np.array_equal(then[key], now[key]) for key in then)


def test_an_engine_that_was_never_reset_is_empty():
    engine = batch(2)
    engine.advance_range(0, 2, np.full(2, 10**12))
    assert len(engine.results(0)) == 0
    assert engine.gpu_ps(1)[0] > 0
    assert engine.finish_log(1) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda b: b.advance_range(0, 3, np.full(2, 10**12)),
        lambda b: b.advance_range(-1, 2, np.full(2, 10**12)),
        lambda b: b.advance_range(0, 2, np.full(1, 10**12)),
        lambda b: b.advance_range(0, 2, np.array([10**12, 2**62])),
        lambda b: b.advance_range(0, 2, np.array([10**12, -1])),
        lambda b: b.close_windows(0, 3),
        lambda b: b.host_has(0, 99, 0),
        lambda b: b.host_has(0, 0, -1),
        lambda b: b.fail_host(0, True),
        lambda b: b.reset(0, table((0, 4, 3, 7, 0))),
        lambda b: b.reset(0, table((0, 4, 3, 0, 7))),
    ],
)
def test_a_batch_refuses_what_it_does_not_have(call: Callable[[EngineBatch], object]):
    with pytest.raises(ValueError, match="must be"):
        call(batch(2))


@pytest.mark.parametrize(
    "column, value, said",
    [
        ("arrival_ps", 2**62, r"arrival_ps\[0\] = 4611686018427387904: must be below 2\*\*62"),
        ("input_tokens", 2**32 + 7, r"input_tokens\[0\] = 4294967303"),
        ("output_tokens", 1.9, r"output_tokens\[0\] = 1.9"),
        ("predicted_output_tokens", np.nan, r"predicted_output_tokens\[0\] = nan"),
        ("llm", 2**16, r"llm\[0\] = 65536"),
        ("arrival_ps", 2**70, "arrival_ps: of type object"),
        ("input_tokens", True, "input_tokens: of type bool"),
        ("input_tokens", "7", "input_tokens: of type"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(column: str, value: Any, said: str):
    columns: dict[str, Any] = {
        **dict.fromkeys(("arrival_ps", "llm", "region", "slo_class"), ZERO),
        **dict.fromkeys(("input_tokens", "output_tokens", "predicted_output_tokens"), ONE),
    }
    RequestTable(**columns)
    with pytest.raises(ValueError, match=said):
        RequestTable(**{**columns, column: [value]})


@pytest.mark.parametrize("kind", ["raises", "beyond"])
def test_a_router_that_raises_ends_the_run_with_its_own_message(kind: str):
    def raises(features, n, request_id, input_tokens, predicted, slo_class):  # type: ignore[no-untyped-def]
        return abs(1 // (request_id - 2)) - 1 if request_id != 0 else 0

    def beyond(features, n, request_id, input_tokens, predicted, slo_class):  # type: ignore[no-untyped-def]
        return int(features[request_id * 1000, 0]) if request_id == 2 else 0

    function = {"raises": raises, "beyond": beyond}[kind]
    requests = table((0, 4, 3), (18, 6, 2), (20, 1, 1), (21, 1, 1))
    pool = PoolSpec(0, 0, 2, initial_active=2, batch_limit=7)
    route = RouteSpec(RouterKind.CUSTOM, (0,))
    error = {"raises": "ZeroDivisionError", "beyond": "IndexError"}[kind]
    for run in (
        lambda: FastEngine(
            cluster(pool, routes=(route,), custom_router=router(function)), requests
        ),
        lambda: ReferenceEngine(cluster(pool, routes=(route,), custom_router=function), requests),
    ):
        engine = run()
        with pytest.raises(ValueError, match=f"custom_router raised at request 2: {error}"):
            engine.advance(10**9)


@pytest.mark.parametrize("missing", ["scenario", "sim", "returns", "forecaster"])
def test_a_state_that_is_not_whole_is_refused_and_changes_nothing(missing: str):
    env = single()
    env.reset(seed=1)
    saved = env.save_state()
    seen = env.step(env.action_space.sample())[0]
    del saved["core"][missing]
    with pytest.raises(ValueError, match=rf"\['{missing}'\] missing"):
        env.restore_state(saved)
    assert np.array_equal(env.core.observe()[0], seen)


GOOD_POOL = PoolSpec(0, 0, 2, initial_active=1)


@pytest.mark.parametrize(
    "field, value",
    [
        ("gpus", -1),
        ("gpus", 1.5),
        ("n_slots", -1),
        ("acquire_ps", -1),
        ("acquire_ps", float("nan")),
        ("load_ps", (0, -1, 0)),
        ("load_ps", (0, 0)),
        ("repair_ps", 2**63),
        ("weight_bytes", -1),
        ("layers", 0),
        ("prefill_tokens", 0),
        ("chunk_tokens", -1),
        ("preemption", 9),
        ("controller", 9),
        ("controller_alpha", float("nan")),
        ("controller_window_iterations", 0),
        ("controller_min_batch", 5000),
        ("watermark_tokens", -1),
        ("host_kv_bytes", -1),
        ("pull_rule", True),
    ],
)
def test_a_pool_of_nonsense_is_refused(field: str, value: Any):
    with pytest.raises(ValueError, match=rf"pools\[0\]\.{field}.* = .*: must be"):
        cluster(replace(GOOD_POOL, **{field: value}))


@pytest.mark.parametrize(
    "field, value",
    [
        ("max_gpus", -1),
        ("gpus_per_host", 0),
        ("half_block_tokens", -1),
        ("host_keep_alive_ps", -1),
        ("host_keep_alive_ps", 0.5),
        ("manager_period_ps", 2**63),
    ],
)
def test_a_cluster_of_nonsense_is_refused(field: str, value: Any):
    with pytest.raises(ValueError, match=f"{field} = .*: must be an integer in"):
        cluster(GOOD_POOL, **{field: value})


@pytest.mark.parametrize(
    "field, value",
    [
        ("kind", 99),
        ("pools", (1,)),
        ("pools", (-1,)),
        ("overflow", (0.0,)),
        ("decode_pools", (7,)),
        ("queue", -2),
        ("queue", 0),
    ],
)
def test_a_route_of_nonsense_is_refused(field: str, value: Any):
    route = replace(RouteSpec(RouterKind.JSQ_REQUESTS, (0,)), **{field: value})
    with pytest.raises(ValueError, match=rf"routes\[0\]\[0\]\.{field}.* = .*: must be"):
        cluster(GOOD_POOL, routes=(route,))


@pytest.mark.parametrize(
    "field, value",
    [("priority", 2), ("priority", -1), ("ttft_slo_ps", -1), ("promote_ps", float("nan"))],
)
def test_a_class_of_nonsense_is_refused(field: str, value: Any):
    with pytest.raises(ValueError, match=rf"classes\[0\]\.{field} = .*: must be an integer in"):
        cluster(GOOD_POOL, classes=(ClassSpec(**{field: value}),))


@pytest.mark.parametrize(
    "field, value",
    [
        ("kv_capacity_tokens", 0),
        ("prefill_pair_ps", -1),
        ("prefill_pair_ps", 2**50),
        ("mixed_chunk_ps", 2**63),
        ("decode_per_token_ps", np.full(9, 2**58)),
        ("decode_base_ps", np.full(9, 1.5)),
        ("decode_base_ps", [2**63] * 9),
        ("prefill_knot_tokens", [5]),
        ("prefill_slope_ps", [1, 2]),
        ("swap_in_ps_per_token", 2**52),
    ],
)
def test_iteration_times_that_are_none_or_too_long_are_refused(field: str, value: Any):
    good = profile(max_batch=8)
    with pytest.raises(ValueError, match=f"{field}.*(must|too)"):
        replace(good, **{field: value})


def test_a_request_that_outlasts_all_time_is_the_same_in_both_engines():
    # 40 iterations of a week each: 2.4e19 ps, more than 64 bits hold; the first of them are real.
    week_ps = 7 * 86_400 * 10**12
    spec = cluster(profiles=(profile(decode_const_ps=week_ps),))
    found = []
    for engine_class in (ReferenceEngine, FastEngine):
        engine = engine_class(spec, table((0, 5, 40)))
        engine.advance(3 * week_ps)
        found.append((engine.results()["state"].tolist(), engine.instances()["running"].tolist()))
        engine.advance(2**62 - 1)
        found[-1] += (engine.results()["state"].tolist(), engine.instances()["running"].tolist())
    assert found[0] == found[1]
    assert found[0][2] == [RequestState.RUNNING]


@pytest.mark.parametrize("loaded_ps", [1, 10**6])
def test_the_last_picosecond_is_the_same_in_both_engines(loaded_ps: int):
    # What begins just before the end of time (2^62 ps, 53 days) ends beyond it, and nothing wraps.
    end_ps = 2**62 - 1
    spec = cluster(replace(GOOD_POOL, acquire_ps=0, load_ps=(loaded_ps,) * 3))
    requests = table((0, 5, 3), (end_ps - 2000, 5, 500), (end_ps - 1, 7, 2))
    found = []
    for engine_class in (ReferenceEngine, FastEngine):
        engine = engine_class(spec, requests)
        for until_ps in (end_ps - 1500, end_ps - 1, end_ps):
            engine.advance(until_ps)
            if until_ps == end_ps - 1500:
                engine.set_target(0, 2)
        with pytest.raises(ValueError, match=f"until_ps = {end_ps + 1}: must be"):
            engine.advance(end_ps + 1)
        found.append((engine.results(), engine.instances()))
    (results, instances), (others, other_instances) = found
    for name in results.dtype.names:
        assert np.array_equal(results[name], others[name]), name
    for name in instances.dtype.names:
        assert np.array_equal(instances[name], other_instances[name]), name
    wanted = [RequestState.FINISHED, RequestState.RUNNING, RequestState.OWN_QUEUE]
    assert results["state"].tolist() == wanted
