"""Our own controller: its load, its peaks, its deadlines and its limits by hand, and an episode."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from baselines import PolicyError, make_policy, policies_for
from baselines.paced import PacedPolicy
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios.load import load_scenario
from tests.small_world import SMALL_WORLD

SCENARIO = load_scenario(SMALL_WORLD)


def ready(**values: Any) -> PacedPolicy:
    policy = PacedPolicy(**values)
    policy.reset(SCENARIO, 0)
    return policy


def seen(
    step: int = 1,
    arrived: int = 0,
    inputs: int = 0,
    outputs: int = 0,
    late: int = 0,
    finished: int = 0,
) -> Any:
    """A view of what has come by then; classes are interactive and batch, intervals ten seconds."""
    totals = {
        "arrived": np.array([arrived, 7]),
        "input_tokens": np.array([inputs, 70_000]),
        "predicted_tokens": np.array([outputs, 7_000]),
    }
    window = SimpleNamespace(
        length_s=10.0, itl_late=np.array([late, 0]), finished=np.array([finished, 0])
    )
    return SimpleNamespace(scenario=SCENARIO, step=step, totals=totals, window=window)


class Queue(SimpleNamespace):
    """What a queue shows of its requests, all of the same lengths."""

    def __init__(self, deadlines_s: list[float], inputs: int, outputs: int) -> None:
        n = len(deadlines_s)
        super().__init__(
            deadline_s=np.array(deadlines_s),
            input_tokens=np.full(n, inputs),
            predicted_output_tokens=np.full(n, outputs),
            emitted_tokens=np.zeros(n, int),
        )

    def __len__(self) -> int:
        return len(self.deadline_s)


def test_load_is_a_mean_and_peaks_fade_towards_it():
    policy = ready(fast_s=20.0, peak_s=100.0)
    policy._observe(seen(1, 10, 10_000, 2_000))
    np.testing.assert_allclose(policy._mean, [1000.0, 200.0])  # the first interval is all there is
    np.testing.assert_allclose(policy._peak, [1000.0, 200.0])
    np.testing.assert_allclose(policy._each, [1000.0, 200.0])
    policy._observe(seen(2, 10, 10_000, 2_000))  # nobody came
    np.testing.assert_allclose(policy._mean, math.exp(-0.5) * np.array([1000.0, 200.0]))
    mean = math.exp(-0.5) * 1000.0
    assert policy._peak[0] == pytest.approx(mean + math.exp(-0.1) * (1000.0 - mean))
    np.testing.assert_allclose(policy._each, [1000.0, 200.0])


def test_instances_are_seconds_of_work_per_second():
    policy = ready()
    policy._observe(seen(1, 10, 10_000, 2_000))
    times = policy._times
    prefill = 1000.0 * times.prefill_s(1000.0) / 1000.0
    decode = 200.0 * times.decode_s(50, 50 * 1100.0) / 50
    assert policy._instances(policy._mean, 50) == pytest.approx(prefill + decode)


def test_batch_work_is_what_the_tightest_deadline_asks_for():
    policy = ready(pace=0.5, end_s=0.0)
    requests = Queue([400.0, 200.0, 1000.0, 200.0], 2000, 100)
    view = SimpleNamespace(scenario=SCENARIO, time_s=100.0, queued=lambda q: requests)
    times, limit = policy._times, 40
    each = times.prefill_s(2000.0) + 100 * times.decode_s(limit, limit * 2050.0) / limit
    # Two are due in 100 s, three in 300 s, four in 900 s: the first deadline asks for most.
    assert policy._batch_work(view, limit) == pytest.approx(2 * each / 100 / 0.5)
    requests.deadline_s[:] = [400.0, 400.0, 400.0, 350.0]
    assert policy._batch_work(view, limit) == pytest.approx(4 * each / 300 / 0.5)


def test_work_is_due_before_the_episode_ends():
    policy = ready(pace=1.0, end_s=100.0)
    requests = Queue([5000.0], 2000, 100)
    view = SimpleNamespace(scenario=SCENARIO, time_s=1500.0, queued=lambda q: requests)
    early = policy._batch_work(view, 40)
    view.time_s = 1600.0
    assert policy._batch_work(view, 40) == pytest.approx(2 * early)  # 100 s are left, not 200
    view.time_s = 1790.0
    assert policy._batch_work(view, 40) == pytest.approx(20 * early)  # a control interval at least


def test_limits_fall_where_tokens_come_late_and_recover():
    policy = ready(tolerated=0.01, recovery=0.1)
    policy._observe(seen(1, 10, 10_000, 2_000, late=2, finished=100))
    before = policy._limit(SimpleNamespace(scenario=SCENARIO), 0.5)
    assert policy._scale == pytest.approx(0.8)
    policy._observe(seen(2, 20, 20_000, 4_000, late=1, finished=100))
    assert policy._scale == pytest.approx(0.88)
    for step in range(3, 9):
        policy._observe(seen(step, 20, 20_000, 4_000, finished=100))
    assert policy._scale == 1.0
    assert policy._limit(SimpleNamespace(scenario=SCENARIO), 0.5) == round(before / 0.8)


def test_an_episode_is_served_with_fewer_instances_where_less_comes():
    hours = []
    for scale in (0.5, 1.0):
        scenario = load_scenario(SMALL_WORLD, horizon_s=600, **{"workload.rate_scale": scale})
        policy = make_policy("paced:margin=1.5,peak_margin=1.5,itl_share=0.12,mixed_itl_share=0.12")
        results = [run_episode(policy, scenario, 3).summary for _ in range(2)]
        assert results[0]["gpu_hours"] == results[1]["gpu_hours"]
        assert results[0]["interactive/slo_attainment"] > 0.9
        hours.append(results[0]["gpu_hours"])
    assert hours[0] < 0.8 * hours[1]


def test_it_is_for_one_llm_with_interactive_instances():
    assert "paced" in policies_for(SCENARIO)
    for name in ("chiron-both", "qlm-multi", "placement"):
        assert "paced" not in policies_for(load_scenario(name))
    with pytest.raises(PolicyError, match="is for one LLM"):
        make_policy("paced").reset(load_scenario("chiron-both"), 0)
