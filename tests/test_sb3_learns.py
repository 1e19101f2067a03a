"""Stable-baselines3's PPO with default settings learns on the environment as `gym.make` gives it."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import llmscale_env  # noqa: F401

ID = "llmscale/MixedSLO-Hours-v1"
STEPS = 20_000
"""A fifth of what a user would give it: enough to be better than doing nothing."""
WINDOWS, SEED = 8, 7000
DO_NOTHING = [3, 3, 0, 5, 5, 5, 0, 0]
"""The fleet and the limits that an episode begins with."""


def mean_return(act) -> float:
    env = gym.make_vec(ID, num_envs=WINDOWS, vectorization_mode="vector_entry_point")
    observation, _ = env.reset(seed=SEED)
    total, ended = np.zeros(WINDOWS), np.zeros(WINDOWS, bool)
    while not ended.all():
        observation, reward, _, ended, _ = env.step(act(observation))
        total += reward
    env.close()
    return float(total.mean())


@pytest.mark.slow
def test_default_ppo_is_better_than_doing_nothing():
    import torch
    from stable_baselines3 import PPO

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = PPO("MlpPolicy", gym.make(ID), seed=0, device="cpu")
        model.learn(STEPS)
        learned = mean_return(lambda seen: model.predict(seen, deterministic=True)[0])
    finally:
        torch.set_num_threads(threads)
    nothing = mean_return(lambda seen: np.tile(DO_NOTHING, (WINDOWS, 1)))
    assert learned > 0.85 * nothing  # both are negative
