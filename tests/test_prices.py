"""Prices in dollars, what the horizon leaves behind under them, and groups of classes: by hand."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import llmscale_env  # noqa: F401
from llmscale_env import RequestTable, load_scenario, run_episode
from llmscale_env.control.command import Command
from llmscale_env.control.reward import RewardModel, serving_cost_gpu_s, violation_prices
from llmscale_env.control.unfinished_work import (
    full_batch_cost_gpu_s,
    leftover_gpu_s,
    lost_at_horizon,
)
from llmscale_env.scenarios import Scenario, ScenarioError
from llmscale_env.sim.compile import ps
from llmscale_env.sim.observed import RESULT_DTYPE
from llmscale_env.sim.spec import RequestState
from tests.small_world import SMALL_WORLD

HORIZON_S = 600.0


class Hold:
    """Keeps what there is; from `stop_s` on nobody is served any more."""

    name = "hold"

    def __init__(self, stop_s: float = 1e9) -> None:
        self.stop_s = stop_s

    def reset(self, scenario, seed) -> None:
        self.pools = [pool.name for pool in scenario.fleet.pools]

    def act(self, view) -> Command:
        if view.time_s < self.stop_s - 1e-6:
            return Command()
        return Command(targets=dict.fromkeys(self.pools, 0))


def day(**changes) -> Scenario:
    """Ten minutes of mixed-slo with a thirtieth of its load."""
    given = {
        "horizon_s": HORIZON_S,
        "history_s": 0,
        "workload": "mixed-slo-hours",
        "workload.rate_scale": 0.1,
        "fleet.pools.interactive.initial_instances": 1,
        "fleet.pools.mixed.initial_instances": 1,
    }
    return load_scenario("mixed-slo", **{**given, **changes})


def table(scenario: Scenario, rows: list[tuple[float, str, int, int]]) -> RequestTable:
    """Requests of (arrival_s, class, input, output)."""
    names = tuple(c.name for c in scenario.classes)
    return RequestTable.build(
        [row[0] for row in rows],
        [row[2] for row in rows],
        [row[3] for row in rows],
        slo_class=[names.index(row[1]) for row in rows],
        llm_names=scenario.fleet.llms,
        class_names=names,
    )


def unfinished(requests: RequestTable, emitted: list[int], started: list[bool]) -> np.ndarray:
    """Results of requests that wait, or run with so many tokens emitted."""
    results = np.zeros(len(requests), RESULT_DTYPE)
    results["state"] = [
        RequestState.RUNNING if is_started else RequestState.SHARED_QUEUE for is_started in started
    ]
    results["emitted_tokens"] = emitted
    results["first_token_ps"] = [ps(1.0) if is_started else -1 for is_started in started]
    results["finished_ps"] = -1
    return results


# ---- prices ----


def test_a_step_costs_its_dollars():
    scenario = day()
    model = RewardModel(scenario)
    late = np.array([[3, 0, 1, 0, 0]])
    parts = model.parts(np.array([7200.0]), late, np.array([4]), np.array([1800.0]))
    assert parts.gpu[0] == pytest.approx(2 * 2.5 / 20)
    assert parts.violations[0] == pytest.approx(4 * 0.002 / 20)
    assert parts.loads[0] == 0
    assert parts.leftover[0] == pytest.approx(0.5 * 2.5 / 20)


def test_prices_by_class_and_of_starts():
    by_class = {"interactive": 0.01, "batch-4h": 0.5}
    scenario = day(
        **{
            "reward.prices.late_request_usd": by_class,
            "reward.prices.start_usd": 3.0,
            "reward.prices.unit_usd": 1.0,
            "classes.interactive.weight": 2.0,
        }
    )
    assert violation_prices(scenario).tolist() == [0.02, 0, 0, 0.5, 0]
    parts = RewardModel(scenario).parts(np.zeros(1), np.ones((1, 5)), np.array([2]))
    assert parts.violations[0] == pytest.approx(0.52)
    assert parts.loads[0] == pytest.approx(6.0)


def test_weights_are_multiples_of_prices():
    model = RewardModel(day())
    assert model.weights == {
        "gpu": 1.0,
        "violations": dict.fromkeys(
            ["interactive", "batch-1h", "batch-2h", "batch-4h", "batch-8h"], 1.0
        ),
        "loads": 1.0,
    }
    model.set_weights(violations=0.0, gpu=2.0)
    parts = model.parts(np.array([3600.0]), np.ones((1, 5)), np.zeros(1))
    assert parts.violations[0] == 0
    assert parts.gpu[0] == pytest.approx(2 * 2.5 / 20)
    model.set_weights(violations={"batch-1h": 3.0})
    assert model.parts(np.zeros(1), np.ones((1, 5)), np.zeros(1)).violations[0] == pytest.approx(
        3 * 0.002 / 20
    )


def test_without_prices_a_violation_costs_what_it_did():
    scenario = load_scenario(SMALL_WORLD)
    model = RewardModel(scenario)
    one = model.parts(np.zeros(1), np.array([[1, 0]]), np.zeros(1)).violations[0]
    assert one == pytest.approx(violation_prices(scenario)[0], rel=1e-12)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"reward.violation_weight": 3.0}, "violation_weight = 3.0: not together with prices"),
        ({"reward.prices.unit_usd": 0.0}, "greater than 0"),
        ({"reward.prices.gpu_hour_usd": -1.0}, "greater than or equal to 0"),
        ({"reward.prices.late_request_usd": {"gold": 1.0}}, "late_request_usd = 'gold'"),
    ],
)
def test_wrong_prices_are_refused(changes, message):
    with pytest.raises(ScenarioError, match=message):
        day(**changes)


# ---- what the horizon leaves ----


def test_left_over_work_costs_its_share_of_a_full_batch():
    scenario = day()
    requests = table(scenario, [(0, "interactive", 1000, 101), (0, "batch-1h", 500, 50)])
    results = unfinished(requests, [41, 0], [True, False])
    costs = full_batch_cost_gpu_s(scenario)[:, 0]
    found = leftover_gpu_s(scenario, requests, results)
    # 60 tokens are missing of the first; the second has its prompt, whose prefill yields one token, to go.
    assert found[0] == pytest.approx(60 * costs[1, 0])
    assert found[1] == pytest.approx(500 * costs[0, 1] + 49 * costs[1, 1])
    alone = np.array(serving_cost_gpu_s(scenario))[0]
    assert costs[1, 0] < alone[1] / 10  # a batch shares an iteration
    # A looser target allows a larger batch.
    assert costs[1, 1] <= costs[1, 0]


def test_without_a_token_an_interactive_request_is_late():
    scenario = day()
    requests = table(
        scenario,
        [(500, "batch-1h", 10, 5), (590, "interactive", 10, 5), (595, "interactive", 10, 5)],
    )
    results = unfinished(requests, [0, 0, 1], [False, False, True])
    lost = lost_at_horizon(scenario, requests, results, ps(HORIZON_S))
    assert lost.tolist() == [False, True, False]


def test_deferrable_work_that_all_gpus_cannot_do_in_time_is_late():
    scenario = day()
    costs = full_batch_cost_gpu_s(scenario)[:, 0]
    each_s = 1000 * costs[0, 1] + 199 * costs[1, 1]
    # All come 3,500 s before the horizon: 100 s are left of the hour, for 16 GPUs.
    fit = int(100 * 16 / each_s)
    n = fit + 50
    late = day(horizon_s=3500)
    requests = table(late, [(0, "batch-1h", 1000, 200)] * n + [(0, "batch-8h", 1000, 200)])
    results = unfinished(requests, [0] * (n + 1), [False] * (n + 1))
    lost = lost_at_horizon(late, requests, results, ps(3500))
    assert lost.sum() == 50
    assert not lost[: fit - 1].any()
    assert lost[fit + 1 : n].all()
    assert not lost[n]  # due in hours


def test_whose_deadline_has_passed_is_charged_once_and_takes_its_time():
    scenario = day(horizon_s=3610)
    costs = full_batch_cost_gpu_s(scenario)[:, 0]
    each_s = 1000 * costs[0, 1] + 199 * costs[1, 1]
    old = int(16 * 20 / each_s) + 1  # more than 20 s of all GPUs
    requests = table(
        scenario, [(0, "batch-1h", 1000, 200)] * old + [(25, "batch-1h", 1000, 200)] * 3
    )
    results = unfinished(requests, [0] * (old + 3), [False] * (old + 3))
    lost = lost_at_horizon(scenario, requests, results, ps(3610))
    assert not lost[:old].any()  # certain since their deadlines
    assert lost[old:].all()  # 15 s are left


def test_without_prices_nothing_changes_at_the_horizon():
    scenario = load_scenario(SMALL_WORLD)
    requests = table(scenario, [(1795, "interactive", 10, 5)])
    results = unfinished(requests, [0], [False])
    assert not lost_at_horizon(scenario, requests, results, ps(1800)).any()
    each = leftover_gpu_s(scenario, requests, results)
    per_input, per_output = serving_cost_gpu_s(scenario)[0]
    assert each[0] == pytest.approx(10 * per_input + 4 * per_output)


def test_a_result_and_an_environment_say_the_same():
    scenario = day()
    result = run_episode(Hold(HORIZON_S - 30), scenario, seed=2)
    env = gym.make("llmscale/MixedSLO-v1", scenario=scenario)
    env.reset(seed=2)
    low, info, total = False, {}, 0.0
    keep = np.array([1, 1, 0, 5, 5, 5, 0, 0])
    while not low:
        stop = keep * np.array([0, 0, 0, 1, 1, 1, 1, 1])
        now = env.unwrapped.view().time_s
        _, reward, _, low, info = env.step(stop if now >= HORIZON_S - 30 else keep)
        total += reward
    summary = info["episode_summary"]
    for name in ("interactive", "batch", "batch-1h", "joint"):
        key = f"{name}/slo_attainment"
        assert summary[key] == pytest.approx(result.summary[key], abs=1e-12), name
    outcomes = result.requests["outcome"].value_counts()
    assert outcomes["unfinished"] > 0
    late = (result.requests["outcome"] == "late") & (result.requests["slo_class"] == "interactive")
    assert late.sum() == summary["interactive/violations"]
    counted = outcomes["on_time"] + outcomes["late"]
    assert result.summary["joint/slo_attainment"] == pytest.approx(outcomes["on_time"] / counted)


@pytest.mark.parametrize("before_s", [30.0, 90.0, 300.0])
def test_nobody_gains_by_stopping_early(before_s):
    scenario = day()
    for seed in range(3):
        serving, stopping = (
            run_episode(Hold(stop_s), scenario, seed=seed).summary["reward"]
            for stop_s in (1e9, HORIZON_S - before_s)
        )
        assert stopping < serving


def test_to_hold_back_what_idle_instances_could_serve_costs_all_that_it_takes():
    class NoBatch(Hold):
        def act(self, view) -> Command:
            return Command(pull=dict.fromkeys(range(len(view.instance_pool)), ()))

    serving, holding = (
        run_episode(policy, day(), seed=0).summary for policy in (Hold(), NoBatch())
    )
    assert serving["joint/late"] == holding["joint/late"] == 0
    assert holding["joint/unfinished"] > 2 * serving["joint/unfinished"]
    assert holding["cost/gpu"] == pytest.approx(serving["cost/gpu"])
    assert holding["reward"] < serving["reward"]
    lost = serving["reward"] - holding["reward"]
    assert lost == pytest.approx(holding["cost/leftover"] - serving["cost/leftover"])


# ---- groups of classes ----


def test_a_group_is_the_sum_of_its_classes():
    scenario = day()
    assert scenario.class_groups == {"interactive": (0,), "batch": (1, 2, 3, 4)}
    assert scenario.named_groups == {"batch": (1, 2, 3, 4)}
    summary = run_episode(Hold(), scenario, seed=1).summary
    members = [f"batch-{h}h" for h in (1, 2, 4, 8)]
    for key in ("arrivals", "on_time", "late", "unfinished"):
        assert summary[f"batch/{key}"] == sum(summary[f"{name}/{key}"] for name in members)


@pytest.mark.parametrize("group", ["joint", "interactive", "a/b"])
def test_a_group_has_a_name_of_its_own(group):
    with pytest.raises(ScenarioError, match=r"classes\.batch-1h\.group"):
        day(**{"classes.batch-1h.group": group})
