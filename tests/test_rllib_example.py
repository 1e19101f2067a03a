"""The RLlib example learns for a moment, on one agent and on several; slips are one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agents import rllib_example


def example(*words: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: RLlib changes more than the tests' one should see."""
    return subprocess.run(
        [sys.executable, "-m", "agents.rllib_example", *words],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("env", ["mixed-slo-hours", "multi-region-parallel"])
def test_it_learns_and_leaves_a_checkpoint(env: str, tmp_path: Path):
    pytest.importorskip("ray.rllib", reason="RLlib is not installed (extra `rllib`)")
    done = example(f"env={env}", "quick=true", "seed=1", f"out={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    assert "iteration    2" in done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("seed 10000  reward ")
    assert 0 <= float(lines[0].split("on time ")[1].split(" %")[0]) <= 100
    assert (tmp_path / "out" / "rllib_checkpoint.json").is_file()


@pytest.mark.parametrize(
    "words, message",
    [
        (["env=mixd-slo"], "env = 'mixd-slo'"),
        (["scenario.horizon_s=-1"], "horizon_s = -1"),
        (["lr=2"], "lr = '2': must be a number above 0 and at most 1"),
        (["net=a"], "net = 'a'"),
        (["iteratons=2"], "iteratons"),
    ],
)
def test_slips_are_one_line(words: list[str], message: str, refused):
    assert message in refused(rllib_example.main, words)


def test_without_rllib_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("ray", reason="Ray is not installed (extra `ray`)")
    monkeypatch.setitem(sys.modules, "ray.rllib", None)
    assert rllib_example.main(["env=mixed-slo-hours"]) == 2
    assert "pip install 'llmscale[rllib]'" in capsys.readouterr().err
