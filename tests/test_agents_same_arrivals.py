"""Episodes on the same requests, and advantages compared among them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agents.configuration.environments import make_scenario, make_vector_env
from agents.learning.same_arrivals import GroupBaseline, minus_others
from llmscale_env._cli import Slip
from tests import small_runs

SMALL = ["scenario.horizon_s=60", "scenario.workload=chat", "n_envs=4", "ppo.n_steps=6"]


def config_of(*words: str) -> Any:
    return small_runs.config_of(*SMALL, "ppo.batch_size=12", *words)


def test_neighbours_get_the_same_requests_in_every_episode():
    config = config_of("same_arrivals=2")
    seeds = config.training_seeds()
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]
    assert config.training_seeds() == seeds
    env = make_vector_env(config, make_scenario(config), 4)
    env.reset(seed=seeds)
    still = np.array([[4, 4, 0, 3, 3, 3, 0, 0]] * 4)
    moving = still.copy()
    moving[1, 0] = 2  # what is done does not change what comes
    came = []
    for step in range(18):
        _, _, _, dones, infos = env.step(moving if step % 2 else still)
        came.append(infos.get("final_info", infos)["metrics"]["interactive/arrived"])
        assert dones.all() == (step % 6 == 5)
    env.close()
    came = np.array(came)
    np.testing.assert_array_equal(came[:, 0], came[:, 1])
    np.testing.assert_array_equal(came[:, 2], came[:, 3])
    assert (came[[5, 11, 17], 0] != came[[5, 11, 17], 2]).any()
    assert len(set(came[[5, 11, 17], 0])) > 1  # and other requests in the next episode


def test_baseline_by_hand():
    advantages = np.array([[1.0, 2.0, 6.0, 0.0, 0.0, 3.0]], np.float32)
    # Of (1, 2, 6): 1 - 4, 2 - 3.5, 6 - 1.5; of (0, 0, 3): -1.5, -1.5, 3.
    assert minus_others(advantages, 3).tolist() == [[-3.0, -1.5, 4.5, -1.5, -1.5, 3.0]]
    with pytest.raises(ValueError, match="divide 6"):
        minus_others(advantages, 4)


def test_what_the_requests_do_to_all_falls_out(rng: np.random.Generator):
    own = rng.normal(size=(50, 8))
    arrivals = 10.0 * rng.normal(size=(50, 4)).repeat(2, axis=1)
    with_both, alone = minus_others(own + arrivals, 2), minus_others(own, 2)
    np.testing.assert_allclose(with_both, alone, atol=1e-9)
    assert with_both.var() < 0.1 * (own + arrivals).var()


def test_the_callback_changes_advantages_and_not_returns():
    advantages = np.array([[1.0, 2.0], [5.0, 5.0]], np.float32)
    returns = np.ones((2, 2), np.float32)
    buffer = SimpleNamespace(advantages=advantages.copy(), returns=returns.copy())
    recorded: dict[str, float] = {}
    logger = SimpleNamespace(record=lambda key, value: recorded.update({key: value}))
    callback = GroupBaseline(2)
    callback.model = SimpleNamespace(rollout_buffer=buffer, logger=logger)  # type: ignore[assignment]
    callback._on_rollout_end()
    assert buffer.advantages.tolist() == [[-1.0, 1.0], [0.0, 0.0]]
    np.testing.assert_array_equal(buffer.returns, returns)
    ratio = recorded["llmscale/same_arrivals/variance_ratio"]
    assert ratio == pytest.approx(0.5 / advantages.var())


@pytest.mark.parametrize("agent", ["ppo", "maskable-ppo", "recurrent-ppo"])
def test_every_learner_gets_them(agent: str):
    from agents.models.algorithms import make_model
    from agents.vec_adapter import NativeVecEnv

    words = [f"agent={agent}", f"{agent}.n_steps=6", f"{agent}.batch_size=12", f"{agent}.net=[8]"]
    config = small_runs.config_of(*SMALL[:3], *words, "same_arrivals=2", "group_baseline=true")
    env = NativeVecEnv(make_vector_env(config, make_scenario(config), 4))
    model = make_model(config, env)
    seen = []
    train = model.train

    def watched() -> None:
        seen.append(model.rollout_buffer.advantages.copy())
        train()

    model.train = watched
    env.seed_each(config.training_seeds())
    model.learn(24, callback=GroupBaseline(2))
    (advantages,) = seen
    assert advantages.shape == (6, 4)
    # Of two episodes, one's advantage is the other's with its sign changed.
    np.testing.assert_allclose(advantages[:, ::2], -advantages[:, 1::2], rtol=1e-5)
    assert np.abs(advantages).max() > 0
    env.close()


@pytest.mark.parametrize(
    "words,said",
    [
        (["same_arrivals=3"], "same_arrivals = 3: must divide the 4 episodes side by side"),
        (["group_baseline=true"], "needs same_arrivals of at least 2"),
    ],
)
def test_slips(words: list[str], said: str):
    with pytest.raises(Slip) as slip:
        config_of(*words)
    assert said in str(slip.value)
