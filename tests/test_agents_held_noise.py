"""Exploration noise that is held: each draw is the policy's own, successive ones deviate alike."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sb3_contrib.common.maskable.distributions import MaskableMultiCategoricalDistribution
from stable_baselines3.common.distributions import MultiCategoricalDistribution

from agents import train
from agents.exploration.held_noise import HeldNoise
from agents.models.store import LAST, read
from tests.small_runs import SEEN, WORLD

LOGITS = torch.log(torch.tensor([[0.7, 0.2, 0.1, 0.5, 0.5]]))
KINDS = [MultiCategoricalDistribution, MaskableMultiCategoricalDistribution]


def started(kind: Any, steps: int, n: int) -> tuple[Any, HeldNoise]:
    """A distribution of two parts (three and two choices) for `n` episodes, with held noise."""
    distribution = kind([3, 2]).proba_distribution(LOGITS.repeat(n, 1))
    held = HeldNoise(steps)
    held.model = SimpleNamespace(policy=SimpleNamespace(action_dist=distribution))
    held._on_training_start()
    torch.manual_seed(0)
    return distribution, held


@pytest.mark.parametrize("kind", KINDS)
def test_each_draw_is_the_policys_own(kind: Any):
    distribution, _ = started(kind, 6, 4000)
    for _ in range(3):  # also in steps in which most noise is what it was
        drawn = distribution.sample().numpy()
        shares = np.bincount(drawn[:, 0], minlength=3) / len(drawn)
        np.testing.assert_allclose(shares, [0.7, 0.2, 0.1], atol=0.03)
        assert drawn[:, 1].mean() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_lasts_as_long_as_it_is_told(kind: Any):
    distribution, held = started(kind, 5, 2000)
    distribution.sample()
    before, kept = held.noise, []
    assert before is not None
    for _ in range(20):
        distribution.sample()
        kept.append((held.noise == before).all(dim=1).numpy())
        before = held.noise
    assert np.mean(kept) == pytest.approx(0.8, abs=0.01)


def test_masks_hold():
    distribution, _ = started(MaskableMultiCategoricalDistribution, 10, 50)
    for forbidden in ([True, False, True, True, True], [False, True, True, True, False]):
        masks = np.tile(forbidden, (50, 1))
        distribution.apply_masking(masks)
        drawn = distribution.sample().numpy()
        assert masks[np.arange(50), drawn[:, 0]].all()
        assert masks[np.arange(50), 3 + drawn[:, 1]].all()


def test_it_ends_with_training():
    distribution, held = started(MultiCategoricalDistribution, 5, 8)
    held._on_training_end()
    assert "sample" not in vars(distribution)
    assert distribution.sample().shape == (8, 2)


@pytest.mark.slow
def test_a_run_explores_so_and_learns_the_same_twice(tmp_path: Any):
    seen = [word for word in SEEN if not word.startswith("as_is_bias_settings")]
    words = [*WORLD, *seen, "agent=maskable-ppo", "scenario.horizon_s=60", "n_envs=2"]
    words += ["maskable-ppo.n_steps=6", "maskable-ppo.batch_size=12", "maskable-ppo.net=[8]"]
    words += ["total_timesteps=24", "validation_every=24", "validation_episodes=1"]
    words += ["evaluation_episodes=0", "references=none", "as_is_bias=0", "as_is_bias_settings=0"]
    found = []
    for name, hold in (("a", 4), ("b", 4), ("c", 1)):
        out = tmp_path / name
        assert train.main([*words, f"noise_hold_steps={hold}", f"out={out}"]) == 0
        found.append(np.concatenate([p.ravel() for p in read(out / LAST)["policy"].values()]))
    np.testing.assert_array_equal(found[0], found[1])
    assert (found[0] != found[2]).any()
