"""The sweep command: what it tries, what it writes, how it answers slips."""

from __future__ import annotations

import pytest
import yaml

from baselines import tune
from baselines.llumnix import LlumnixPolicy
from baselines.tune import FIRST_SEED, MAX_SEEDS, Trial, grid_points, main, table_text

SMALL = ["scenario.horizon_s=60", "scenario.workload.batch_queues.overnight.n_requests=100"]
SMALL += ["scenario.workload.batch_queues.overnight.at_s=10"]


def test_grid_points_are_settings():
    points = grid_points(LlumnixPolicy, {"high": [0.4], "batch_limit": [64, 128]})
    assert len(points) == 2 * len(LlumnixPolicy.GRID["low_share"]) * 2
    assert points[0] == {"high": 0.4, "batch_limit": 64, "rebalance": True, "low": 0.1}


def test_tuning_seeds_stay_below_the_evaluations():
    assert FIRST_SEED + MAX_SEEDS <= 10_000


def test_the_best_is_written_with_its_command(tmp_path, capsys):
    out = tmp_path / "best.yaml"
    words = ["policy=llumnix", "seeds=2", "high=0.05,0.9", "low_share=0.5", "batch_limit=64"]
    words += ["rebalance=true", f"out={out}", *SMALL]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "2 settings, 2 seeds each" in printed
    found = yaml.safe_load(out.read_text())
    assert found["seeds"] == [1000, 1001]
    assert found["command"] == " ".join(["python -m baselines.tune", *words])
    assert found["parameters"]["high"] in (0.05, 0.9)
    assert list(tmp_path.iterdir()) == [out]
    LlumnixPolicy(**found["parameters"])


def test_nothing_is_written_if_not_asked(tmp_path, capsys):
    out = tmp_path / "best.yaml"
    words = ["policy=llumnix", "seeds=1", "high=0.5", "low_share=0.5", "batch_limit=64"]
    assert main([*words, f"out={out}", "write=false", *SMALL]) == 0
    assert not out.exists()


def test_order_and_table():
    a = Trial({"x": 1}, reward=-5.0, attainment=0.99, gpu_hours=4.0, reward_error=1.0)
    b = Trial({"x": 2}, reward=-6.0, attainment=0.99001, gpu_hours=3.0, reward_error=1.0)
    assert sorted([b, a], key=lambda t: t.key("reward")) == [a, b]
    assert sorted([a, b], key=lambda t: t.key("attainment")) == [b, a]  # a tie, fewer GPU-hours
    assert table_text([a, b], shown=1).splitlines()[-1] == "... and 1 more"


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "policy = '': must be one of"),
        (["policy=static"], "policy = 'static': must be one of"),
        (["policy=llumnix", "env=mixd-slo"], "did you mean 'mixed-slo'"),
        (["policy=llumnix", "seeds=0"], "seeds = '0': must be an integer in 1..1000"),
        (["policy=llumnix", "hihg=1"], "unknown argument 'hihg=1'"),
        (["policy=llumnix", "score=best"], "score = 'best': must be one of"),
        (["policy=llumnix", "high=-1"], "llumnix: low = -0.25"),
        (["policy=llumnix", "workloads=chatt"], "workloads = 'chatt'"),
        (["policy=llumnix", "scenario.horizon=3"], "horizon: there is no such field"),
    ],
)
def test_slips_end_with_code_2_and_one_line(words, message, capsys):
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("tune: ")
    assert error.count("\n") == 1


def test_help(capsys):
    assert main(["--help"]) == 0
    assert "python -m baselines.tune" in capsys.readouterr().out
    assert set(tune.KINDS) == {"llumnix", "hpa", "chiron"}
