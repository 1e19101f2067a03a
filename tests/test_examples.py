"""The examples in other libraries learn for a moment, are tested on fixed episodes, and repeat themselves."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from agents.examples import settings
from baselines import make_policy
from llmscale_env._cli import Slip
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios import load_scenario

NEEDS = {
    "cleanrl_ppo": "torch",
    "pettingzoo_marl": "pettingzoo",
    "rllib": "ray.rllib",
    "sac": "stable_baselines3",
    "sb3": "sb3_contrib",
    "torchrl": "torchrl",
}
LINE = re.compile(
    r"(before|after) +mean reward +(-?\d+\.\d+)  of 2 test episodes, seeds 10000 to 10001"
)


def learn(name: str, *words: str) -> tuple[float, float, str]:
    """Rewards before and after, and all that the example told: in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", f"agents.examples.{name}", "episodes=2", *words],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = LINE.findall(done.stdout)
    assert [when for when, _ in found] == ["before", "after"], done.stdout
    progress = [line for line in done.stderr.splitlines() if line.startswith("steps ")]
    assert not any("nan" in line for line in progress)
    return float(found[0][1]), float(found[1][1]), "\n".join([done.stdout, *progress])


@lru_cache
def as_it_is(horizon_s: int) -> float:
    """Mean reward of the test episodes if nothing is changed."""
    scenario = load_scenario(
        "mixed-slo-hours", horizon_s=horizon_s, workload="mixed-slo/test-hours"
    )
    policy = make_policy("static")
    rewards = [run_episode(policy, scenario, s).summary["reward"] for s in (10_000, 10_001)]
    return float(np.mean(rewards))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(NEEDS) - {"pettingzoo_marl"}))
def test_an_example_begins_as_it_is_learns_and_repeats_itself(name: str):
    pytest.importorskip(NEEDS[name])
    budget = (
        ["total_timesteps=300", "train_batch=150"] if name == "rllib" else ["total_timesteps=1920"]
    )
    words = ["scenario.horizon_s=900", *budget]
    before, after, told = learn(name, *words)
    assert before == pytest.approx(as_it_is(900), abs=0.0051)
    assert np.isfinite(after)
    assert learn(name, *words)[2] == told


@pytest.mark.slow
def test_regions_learn_each_for_itself():
    pytest.importorskip(NEEDS["pettingzoo_marl"])
    words = ["scenario.horizon_s=7200", "total_timesteps=128"]
    before, after, told = learn("pettingzoo_marl", *words)
    assert np.isfinite([before, after]).all()
    assert learn("pettingzoo_marl", *words)[2] == told
    assert learn("pettingzoo_marl", *words, "seed=1")[2] != told


@pytest.mark.slow
def test_rllib_learns_one_policy_for_all_regions_and_leaves_a_checkpoint(tmp_path: Path):
    pytest.importorskip(NEEDS["rllib"])
    pytest.importorskip("pettingzoo")
    words = ["env=multi-region-parallel", "scenario.horizon_s=7200", "train_batch=32"]
    before, after, _ = learn("rllib", *words, "total_timesteps=64", f"out={tmp_path / 'out'}")
    assert np.isfinite([before, after]).all()
    assert (tmp_path / "out" / "rllib_checkpoint.json").is_file()


def test_the_same_episodes_test_whatever_the_seed_of_learning_is():
    one, other = settings.read(["seed=0"]), settings.read(["seed=7", "total_timesteps=10"])
    assert one.test_seeds == other.test_seeds == list(range(10_000, 10_010))
    assert one.test_options == other.test_options == {"workload": "mixed-slo/test-hours"}
    assert settings.read(["env=multi-region"]).test_options == {}
    assert settings.read(["workload=chat"]).test_options == {"workload": "chat"}


@pytest.mark.parametrize(
    "words, message",
    [
        (["env=mixd-slo"], "env = 'mixd-slo'"),
        (["env=placement-per-request"], "decides at arrivals"),
        (["scenario.horizon_s=-1"], "horizon_s = -1"),
        (["workload=nothing"], "nothing"),
        (["total_timesteps=0"], "total_timesteps = '0'"),
        (["episods=2"], "episods"),
    ],
)
def test_slips_are_one_line(words: list[str], message: str):
    with pytest.raises(Slip, match=re.escape(message)):
        settings.read(words)


def test_agents_are_of_one_environment_only(refused):
    from agents.examples import pettingzoo_marl

    assert "only multi-region" in refused(pettingzoo_marl.main, ["env=mixed-slo-hours"])


def test_without_rllib_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("ray", reason="Ray is not installed (extra `ray`)")
    from agents.examples import rllib

    monkeypatch.setitem(sys.modules, "ray.rllib", None)
    assert rllib.main(["env=mixed-slo-hours"]) == 2
    assert "pip install 'llmscale[rllib]'" in capsys.readouterr().err
