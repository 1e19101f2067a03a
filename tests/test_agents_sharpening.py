"""Logits that grow while a policy learns: preferences stay, draws stray less, a resumed run goes on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agents import train
from agents.configuration.config import make_config
from agents.exploration.sharpening import Sharpening
from agents.models.store import LAST, read
from llmscale_env._cli import Slip
from tests.small_runs import SEEN, WORLD


def a_model(steps: int = 0) -> Any:
    torch.manual_seed(0)
    return SimpleNamespace(
        policy=SimpleNamespace(action_net=torch.nn.Linear(4, 5)), num_timesteps=steps
    )


def test_logits_are_multiplied_as_far_as_learning_is():
    model, latent = a_model(), torch.randn(3, 4)
    plain = model.policy.action_net(latent).detach()
    sharpening = Sharpening(5, total_timesteps=1000)
    sharpening.model = model
    for steps, times in ((0, 1), (250, 2), (250, 2), (1000, 5), (1200, 5)):
        model.num_timesteps = steps
        sharpening._on_rollout_start()
        torch.testing.assert_close(model.policy.action_net(latent), plain * times)


def test_below_one_draws_stray_more():
    model, latent = a_model(1000), torch.randn(3, 4)
    plain = model.policy.action_net(latent).detach()
    sharpening = Sharpening(0.5, total_timesteps=1000)
    sharpening.model = model
    sharpening._on_rollout_start()
    torch.testing.assert_close(model.policy.action_net(latent), plain / 2)


@pytest.mark.slow
def test_a_run_that_is_taken_up_goes_on_with_it(tmp_path: Path):
    words = [*WORLD, *SEEN, "agent=maskable-ppo", "scenario.horizon_s=60", "n_envs=2"]
    words += ["maskable-ppo.n_steps=6", "maskable-ppo.batch_size=12", "maskable-ppo.net=[8]"]
    words += ["validation_every=12", "validation_episodes=1", "evaluation_episodes=0"]
    words += ["references=none", "sharpen=3", f"out={tmp_path / 'run'}"]
    assert train.main([*words, "total_timesteps=24"]) == 0
    run = read(tmp_path / "run" / LAST)["run"]
    assert run["logits_times"] == pytest.approx(
        2
    )  # at the start of the rollout from 12 of 24 steps
    assert train.main([*words, "total_timesteps=48", "resume=true"]) == 0
    run = read(tmp_path / "run" / LAST)["run"]
    assert run["logits_times"] == pytest.approx(2.5)  # 36 of 48


def test_a_factor_that_is_none():
    for wrong in (0, -1, "inf"):
        with pytest.raises(Slip, match="sharpen"):
            make_config("burst-multicast", {"sharpen": wrong})
