"""The choices that leave a cluster as it is, and a network that leans towards them."""

from __future__ import annotations

import numpy as np
import pytest

from agents.configuration.environments import make_codec
from agents.exploration.prior import as_is_choices, lean_towards
from llmscale_env.scenarios import load_scenario
from tests.small_world import SMALL_WORLD, SmallEnv


def test_as_is_choices_are_the_scenarios_own():
    scenario = load_scenario(
        SMALL_WORLD,
        **{"fleet.pools.mixed.batch_limit": 100, "fleet.routes.0.overflow_share": 0.7},
    )
    decoder = make_codec("burst-multicast", scenario, action=SmallEnv.action).decoder
    chosen = as_is_choices(decoder.parts, decoder.choices, scenario)
    named = {
        part: options[choice]
        for part, options, choice in zip(decoder.parts, decoder.choices, chosen, strict=True)
    }
    assert named == {
        "interactive/instances": "4",
        "mixed/instances": "4",
        "batch/instances": "0",
        "interactive/batch_limit": "64",
        "mixed/batch_limit": "128",  # 100 is no level; the nearest is
        "batch/batch_limit": "256",
        "interactive/overflow_share": "0.75",
        "load_source": "ssd",
    }


def test_as_is_choices_of_placement():
    placement = {"fallback": "least", "gamma": 0.7}
    scenario = load_scenario("placement", **{"fleet.routes.0.placement": placement})
    decoder = make_codec("placement", scenario).decoder
    chosen = as_is_choices(decoder.parts, decoder.choices, scenario)
    named = [options[choice] for options, choice in zip(decoder.choices, chosen, strict=True)]
    assert named == ["12", "0", "0", "jsq-requests", "0.75", "0.9"]
    scenario = load_scenario("placement-per-request")
    decoder = make_codec("placement-per-request", scenario).decoder
    assert as_is_choices(decoder.parts, decoder.choices, scenario) == [None]


def test_unknown_parts_are_left_alone():
    scenario = load_scenario(SMALL_WORLD)
    assert as_is_choices(["colour"], [["red", "blue"]], scenario) == [None]


def test_bias_makes_a_choice_likelier_by_its_exponential():
    import gymnasium as gym
    import torch
    from stable_baselines3 import PPO

    class Two(gym.Env):
        observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        action_space = gym.spaces.MultiDiscrete([3, 2])

        def reset(self, *, seed=None, options=None):
            return np.zeros(2, np.float32), {}

        def step(self, action):
            return np.zeros(2, np.float32), 0.0, False, True, {}

    model = PPO("MlpPolicy", Two(), n_steps=4, batch_size=4, seed=0, device="cpu")
    obs = torch.zeros(1, 2)
    before = [d.probs[0].detach() for d in model.policy.get_distribution(obs).distribution]
    lean_towards(model, [2, None], [np.log(6.0), 9.0])
    after = [d.probs[0].detach() for d in model.policy.get_distribution(obs).distribution]
    odds = (after[0][2] / after[0][0]) / (before[0][2] / before[0][0])
    assert float(odds) == pytest.approx(6.0, rel=1e-5)
    assert torch.equal(after[1], before[1])
    with pytest.raises(ValueError, match="one for each of 2 parts"):
        lean_towards(model, [1], [1.0])
