"""A vector environment through the adapter is what single environments are to stable-baselines3."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from agents.vec_adapter import NativeVecEnv, info_of

N = 3


class Walk(gym.Env):
    """Position after random steps; the seed says how long an episode is. Odd lengths terminate."""

    observation_space = gym.spaces.Box(-100.0, 100.0, (2,), np.float32)
    action_space = gym.spaces.MultiDiscrete([3, 2])

    def __init__(self) -> None:
        self.render_mode = None

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.left = self.length = int(self.np_random.integers(2, 6))
        self.x = float(self.np_random.normal())
        return np.array([self.x, self.left], np.float32), {}

    def step(self, action: Any):
        self.x += float(action[0]) - 1.0 + 0.1 * float(action[1])
        self.left -= 1
        ends = self.left == 0
        odd = bool(self.length % 2)
        info = {"metrics": {"x": self.x}, "cost": abs(self.x)}
        obs = np.array([self.x, self.left], np.float32)
        return obs, self.x, ends and odd, ends and not odd, info

    def action_masks(self):
        return np.array([True, True, self.left > 1, True, True])


def make(**kwargs: Any) -> NativeVecEnv:
    env = SyncVectorEnv([Walk] * N, autoreset_mode=AutoresetMode.SAME_STEP)
    return NativeVecEnv(env, **kwargs)


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_adapter_equals_single_environments(scale: float, rng: np.random.Generator):
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    ours = make(reward_scale=scale, all_infos=True)
    theirs = DummyVecEnv([lambda: Monitor(Walk()) for _ in range(N)])
    ours.seed(7)
    theirs.seed(7)
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    ended = 0
    for _ in range(40):
        actions = np.stack([rng.integers(0, 3, N), rng.integers(0, 2, N)], axis=1)
        obs, rewards, dones, infos = ours.step(actions)
        obs2, rewards2, dones2, infos2 = theirs.step(actions)
        np.testing.assert_array_equal(obs, obs2)
        np.testing.assert_allclose(rewards, rewards2 * scale, rtol=1e-6)
        np.testing.assert_array_equal(dones, dones2)
        for i in range(N):
            assert infos[i]["metrics"] == pytest.approx(infos2[i]["metrics"])
            assert infos[i]["cost"] == pytest.approx(infos2[i]["cost"])
            if not dones[i]:
                assert "terminal_observation" not in infos[i]
                continue
            ended += 1
            for key in ("terminal_observation", "TimeLimit.truncated"):
                np.testing.assert_array_equal(infos[i][key], infos2[i][key])
            # The return is what was earned, whatever the learner sees.
            assert infos[i]["episode"]["r"] == pytest.approx(infos2[i]["episode"]["r"], abs=1e-5)
            assert infos[i]["episode"]["l"] == infos2[i]["episode"]["l"]
    assert ended > 10
    ours.close()


def test_infos_of_running_episodes_are_left_out_unless_asked_for():
    env = make()
    env.seed(1)
    env.reset()
    seen = set()
    for _ in range(10):
        _, _, dones, infos = env.step(np.zeros((N, 2), int))
        for done, info in zip(dones, infos, strict=True):
            assert bool(info) == bool(done)
            seen.add(bool(done))
    assert seen == {True, False}
    assert "metrics" in env.native_infos


def test_seeds_are_used_once():
    env = make()
    env.seed_each([5, 5, 6])
    first = env.reset()
    np.testing.assert_array_equal(first[0], first[1])
    assert not np.array_equal(first[0], first[2])
    assert not np.array_equal(env.reset()[0], first[0])
    with pytest.raises(ValueError, match="must be one for each of 3"):
        env.seed_each([1])


def test_attributes_and_methods():
    env = make()
    assert env.get_attr("num_envs") == [N] * N
    assert env.get_attr("render_mode", indices=[0]) == [None]
    assert env.env_is_wrapped(gym.Wrapper) == [False] * N
    with pytest.raises(AttributeError):
        env.get_attr("nonsense")
    with pytest.raises(ValueError, match="belongs to all"):
        env.set_attr("x", 1, indices=[0])
    env.env.masks = lambda: np.arange(N * 5).reshape(N, 5)  # type: ignore[attr-defined]
    rows = env.env_method("masks", indices=[2])
    assert [row.tolist() for row in rows] == [[10, 11, 12, 13, 14]]


def test_another_autoreset_mode_is_refused():
    with pytest.raises(ValueError, match="must be SAME_STEP"):
        NativeVecEnv(SyncVectorEnv([Walk] * N))


def test_info_of_reads_masks():
    infos = {
        "a": np.array([1.5, 2.5]),
        "_a": np.array([True, False]),
        "b": {"c": np.array([3, 4]), "_c": np.array([True, True])},
        "m": np.eye(2, dtype=bool),
    }
    assert info_of(infos, 1)["b"] == {"c": 4}
    assert "a" not in info_of(infos, 1)
    assert info_of(infos, 0)["a"] == 1.5
    assert info_of(infos, 0)["m"].tolist() == [True, False]
