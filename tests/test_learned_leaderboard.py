"""Places, wins and losses of the leaderboard on made-up episodes, and its page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pandas import DataFrame

from agents.config import environment_names, make_config
from agents.statistics import Interval
from experiments.harness.claims import Verdict
from experiments.learned import study_leaderboard


def board_rows() -> DataFrame:
    rows = []
    for policy, learned, rewards in (
        ("static", False, (-10.0, -20.0, -31.0)),
        ("chiron", False, (-5.0, -15.0, -25.0)),
        ("ppo, as configured", True, (-4.0, -15.5, -25.0)),
    ):
        for seed in range(5) if learned else (0,):
            for window, reward in enumerate(rewards):
                rows.append(
                    {
                        "kind": "policy",
                        "environment": "mixed-slo-v0",
                        "policy": policy,
                        "learned": learned,
                        "training_seed": seed,
                        "window": window,
                        "reward": reward,
                        "gpu_hours": 4.0,
                        "joint_attainment": 0.9,
                        "worst_attainment": 0.8,
                        "rejected": 0,
                        "ttft_s_p99": 1.0,
                        "scaling_actions": 2,
                    }
                )
    rows += [
        {"kind": "bound", "environment": "mixed-slo-v0", "window": w, "bound_gpu_hours": 2.0}
        for w in range(3)
    ]
    return DataFrame(rows)


def test_the_board_counts_wins_and_losses():
    made = {row["policy"]: row for row in study_leaderboard.board(board_rows(), "mixed-slo-v0")}
    assert [row["place"] for row in made.values()] == [1, 2, 3]
    assert next(iter(made)) == "ppo, as configured"
    # 5, 5 and 6 better than static; against each other 1, -0.5 and 0: nobody's.
    assert (made["chiron"]["wins"], made["chiron"]["losses"]) == (1, 0)
    assert (made["static"]["wins"], made["static"]["losses"]) == (0, 2)
    assert made["chiron"]["GPU-h / bound"].mean == 2.0
    assert made["ppo, as configured"]["seeds"] == 5


def test_no_interval_of_a_share_leaves_0_to_100():
    rows = board_rows()
    mine = rows["policy"] == "ppo, as configured"
    rows.loc[mine, "joint_attainment"] = 1.0 - 0.02 * rows.loc[mine, "training_seed"]
    made = {row["policy"]: row for row in study_leaderboard.board(rows, "mixed-slo-v0")}
    found = made["ppo, as configured"]["on time %"]
    assert found.mean == pytest.approx(96.0)
    # Seeds of 100, 98, ... 92 %, three windows: 4.303 * sqrt(3/2) * 2.83 / sqrt(5) = 6.67.
    assert found.low == pytest.approx(96 - 6.67, abs=0.4)
    assert found.high == 100.0


def test_the_board_judges_the_best_of_each_kind():
    settings = study_leaderboard.Settings(environments=("mixed-slo-v0",))
    (claim,) = study_leaderboard.claims(board_rows(), settings)
    assert claim.verdict is Verdict.NOT
    assert claim.ours.mean == pytest.approx(1 / 6)
    assert claim.reason == "the interval holds 0"
    assert study_leaderboard.plot(board_rows(), settings) is not None


def test_the_board_is_not_won_by_a_lucky_seed():
    rows = board_rows()
    rows.loc[(rows["policy"] == "ppo, as configured") & (rows["training_seed"] == 4), "reward"] = 20
    settings = study_leaderboard.Settings(environments=("mixed-slo-v0",))
    (claim,) = study_leaderboard.claims(rows, settings)
    assert claim.ours.mean > 1
    assert claim.ours.low < 0
    assert claim.verdict is Verdict.NOT
    # Of one seed nothing is known.
    one = rows[(rows["policy"] != "ppo, as configured") | (rows["training_seed"] == 4)]
    (claim,) = study_leaderboard.claims(one, settings)
    assert claim.verdict is Verdict.NOT
    assert "one training seed" in claim.reason
    assert "(1 training seed) against" in claim.note
    made = {row["policy"]: row for row in study_leaderboard.board(one, "mixed-slo-v0")}
    assert (made["ppo, as configured"]["wins"], made["static"]["losses"]) == (0, 1)
    twice = DataFrame([*rows.to_dict("records"), rows.iloc[0].to_dict()])
    with pytest.raises(ValueError, match="two runs are static"):
        study_leaderboard.board(twice, "mixed-slo-v0")


def test_learned_policies_of_other_workloads_have_names_of_their_own():
    from types import SimpleNamespace

    run = SimpleNamespace(policy="ppo", setting="at 0.99", trained_on=("mixed-slo-v0",))
    assert study_leaderboard.name_of(run, "mixed-slo-v0") == "ppo, at 0.99"
    run.trained_on = ("chat", "mixed-slo-v0")
    assert study_leaderboard.name_of(run, "mixed-slo-v0") == "ppo, at 0.99, trained on chat"


def test_every_environment_is_on_the_board():
    made = study_leaderboard.cases(study_leaderboard.Settings(learned=(), seeds=3))
    assert {case["environment"] for case in made} == set(study_leaderboard.ENVIRONMENTS)
    assert {c["environment"] for c in made if c["kind"] == "bound"} >= {"mixed-slo-v0"}
    assert {len(c["windows"]) for c in made if c["kind"] == "policy"} == {3}


@pytest.mark.parametrize("env", environment_names())
def test_simple_rules_that_learners_are_compared_with_are_on_the_board(env: str):
    settings = study_leaderboard.Settings(environments=(env,), bound_windows=0, learned=())
    names = [case["policy"] for case in study_leaderboard.cases(settings)]
    assert len(names) == len(set(names))
    assert set(make_config(env, {}).references) <= set(names)


def test_the_page_of_the_board(tmp_path: Path):
    from experiments.harness.results import Result, write_result
    from experiments.leaderboard import page

    claim_rows = study_leaderboard.tables(
        board_rows(), study_leaderboard.Settings(environments=("mixed-slo-v0",))
    )
    result = Result(
        *("leaderboard", "quick", "Leaderboard", (), {}, "python -m x", 3, 1.0, "code", {}, ()),
        tmp_path / "leaderboard" / "quick",
        ("leaderboard-mixed-slo-v0.csv",),
    )
    write_result(
        result, board_rows(), {}, {"leaderboard-mixed-slo-v0.csv": claim_rows["mixed-slo-v0"]}
    )
    text = page(result, "images/x.png", "What is shown.")
    assert "## mixed-slo-v0" in text
    assert "| 3 | static | handwritten | 1 | -20.33 [" in text


def test_cells_of_tables():
    from experiments.harness.results import cell

    assert cell(Interval(np.nan, np.nan, np.nan)) == cell(float("nan")) == "-"
    assert (cell(12345.6), cell(0.123456), cell("x")) == ("12,346", "0.1235", "x")
