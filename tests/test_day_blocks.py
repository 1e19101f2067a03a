"""What the network of a day is shown: by hand, and in no way how far the horizon is."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import llmscale_env  # noqa: F401
from llmscale_env import load_scenario
from llmscale_env.control.reward import expected_arrivals
from llmscale_env.control.unfinished_work import seconds_per_token

QUIET = {
    "workload.streams.documents.rate_per_s": 1e-9,
    "workload.jobs.jobs.per_day": 0,
    "workload.streams.chat.arrivals.days": [3],
    "workload.streams.code.arrivals.days": [3],
    "workload.streams.chat.arrivals.start_s": 36_000.0,
    "workload.streams.code.arrivals.start_s": 36_000.0,
    "workload.rate_scale": 0.2,
}
KEEP = [1, 2, 0, 5, 5, 5, 0, 0]


def make(**changes):
    return gym.make("llmscale/MixedSLO-Hours-v1", overrides=changes).unwrapped


def entry(env, observation, name: str) -> float:
    names = [e.name for e in env.codec.encoder.entries]
    return float(observation[names.index(name)])


def test_observations_do_not_tell_how_far_the_horizon_is():
    one, two = make(**QUIET, horizon_s=900), make(**QUIET, horizon_s=1800)
    a, b = one.reset(seed=1)[0], two.reset(seed=1)[0]
    for _ in range(30):
        np.testing.assert_array_equal(a, b)
        a, *_, ended, _ = one.step(KEEP)
        b, *_ = two.step(KEEP)
    assert ended


def test_no_entry_stays_as_it_is():
    env = make()
    seen = []
    rng = np.random.default_rng(2)
    for seed in range(2):
        observation, _ = env.reset(seed=seed)
        for k in range(239):
            seen.append(observation)
            if k % 10 == 0:
                action = rng.integers(env.action_space.nvec)
                if (
                    seed == 0 and k < 180
                ):  # one instance with the largest batches, and nobody for the queues
                    action[:6] = (1, 0, 0, 7, 7, 7)
            observation, *_ = env.step(action)
    names = [e.name for e in env.codec.encoder.entries]
    assert [n for n, s in zip(names, np.ptp(seen, axis=0), strict=True) if s == 0] == []


def test_the_clock_is_the_time_of_day():
    env = make(**QUIET)
    observation, _ = env.reset(seed=0)
    for k in range(3):
        angle = 2 * np.pi * (36_000 + 30 * k) / 86_400
        assert entry(env, observation, "clock/sine") == pytest.approx(np.sin(angle), abs=1e-6)
        assert entry(env, observation, "clock/cosine") == pytest.approx(np.cos(angle), abs=1e-6)
        observation, *_ = env.step(KEEP)


def test_load_and_yesterday_are_in_instances_that_they_keep_busy():
    env = make(**QUIET)
    env.reset(seed=0)
    observation, *_ = env.step(KEEP)
    scenario, view = env.scenario, env.view()
    per_input, per_output = np.max(
        [seconds_per_token(scenario, pool, 0.2) for pool in scenario.fleet.pools], axis=0
    )
    window = view.window
    came = window.input_tokens[0] * per_input + window.predicted_tokens[0] * per_output
    assert entry(env, observation, "interactive/load") == pytest.approx(came / 30 / 16, rel=1e-5)
    inputs, outputs = view.past.tokens_by_class(30 - 86_400, 630 - 86_400)
    then = inputs[0] * per_input + outputs[0] * per_output
    assert entry(env, observation, "interactive/yesterday") == pytest.approx(
        then / 600 / 16, rel=1e-5
    )
    inputs, outputs = view.past.tokens_by_class(90 - 86_400, 690 - 86_400)
    then = inputs[0] * per_input + outputs[0] * per_output
    assert entry(env, observation, "interactive/yesterday_soon") == pytest.approx(
        then / 600 / 16, rel=1e-5
    )


def test_work_by_deadline_of_a_queue_that_just_came():
    changes = QUIET | {
        "workload.batch_queues": [
            {
                "name": "one",
                "llm": "llama-3.1-8b",
                "slo_class": "batch-1h",
                "n_requests": 4000,
                "at_s": 0,
                "lengths": {"kind": "fixed", "input_tokens": 1000, "output_tokens": 100},
            }
        ],
        "history_s": 0,
    }
    env = make(**changes)
    env.reset(seed=0)
    # Neither mixed nor batch instances: nobody pulls. 30 s later all is due in 3,570 of 3,600 s.
    observation, *_ = env.step([1, 0, 0, 5, 5, 5, 0, 0])
    scenario = env.scenario
    per_input, per_output = np.max(
        [seconds_per_token(scenario, pool, 2.0) for pool in scenario.fleet.pools], axis=0
    )
    queued = int(env.view().queues["requests"].sum())
    assert 0 < queued <= 4000
    predicted = float(env.view().queues["predicted_tokens"].sum()) / queued
    work = queued * (1000 * per_input + predicted * per_output)
    # Within the bin of 50 to 100 % of the hour requests are taken to lie evenly: none is due in 15 minutes,
    # all in an hour.
    assert entry(env, observation, "queues/due_15m") == 0
    assert entry(env, observation, "queues/due_60m") == pytest.approx(work / 16 / 3600, rel=0.05)
    assert entry(env, observation, "queues/due_240m") == pytest.approx(work / 16 / 14_400, rel=0.05)
    assert entry(env, observation, "queues/work") == pytest.approx(
        np.log1p(work / 16) / np.log1p(7200), rel=0.05
    )


def test_the_constrained_form_has_gpu_cost_alone_and_a_budget():
    env = gym.make("llmscale/MixedSLO-Constrained-v1", overrides=QUIET | {"horizon_s": 900})
    _, info = env.reset(seed=0)
    expected = sum(expected_arrivals(env.unwrapped.scenario))
    assert info["cost_budget"] == pytest.approx(0.01 * expected)
    low, late = False, 0.0
    while not low:
        *_, low, info = env.step([0, 0, 0, 5, 5, 5, 0, 0])
        late += info["cost"]
        assert info["reward_parts"]["violations"] == 0
    assert late > 0


def test_the_default_days_are_those_of_training():
    for name in ("mixed-slo", "mixed-slo-hours", "mixed-slo-bursty", "mixed-slo-large"):
        for arrivals in load_scenario(name).workload.day_arrivals:
            assert arrivals.days == tuple(range(1, 9))
