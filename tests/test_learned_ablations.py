"""What is changed in an ablation, and the changes that come of it."""

from __future__ import annotations

import numpy as np
import pytest
from pandas import DataFrame, concat

from experiments.harness.claims import Verdict
from experiments.learned import study_ablations
from experiments.learned.ablations import ABLATIONS
from experiments.learned.family import scenario_of


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_ablation_is_a_scenario(name: str):
    case = ABLATIONS[name].of({"overrides": {}})
    scenario = scenario_of("mixed-slo-v0/test-spikes", case["overrides"])
    if name.startswith("load-"):
        for pool in scenario.fleet.pools:
            assert set(pool.load_s.values()) == {float(name.removeprefix("load-"))}
    if name.startswith("times-"):
        assert {p.time_factor for p in scenario.fleet.pools} == {float(name.removeprefix("times-"))}
    assert ("forecaster" in case) == name.startswith("forecast-")


def test_heuristics_are_spared_ablations_that_they_do_not_notice():
    made = study_ablations.cases(study_ablations.Settings(learned=(), seeds=1))
    assert not any(case["ablation"].startswith("forecast") for case in made)
    assert {case["ablation"] for case in made} == {
        n for n, a in ABLATIONS.items() if not a.learned_only
    }


def test_changes_are_paired_window_by_window():
    rows = []
    for ablation, gains in (("none", (0.0, 0.0)), ("load-60", (-1.0, -3.0))):
        for window, gain in enumerate(gains):
            rows.append(
                {
                    "policy": "p",
                    "setting": "x1",
                    "base": "defaults",
                    "learned": False,
                    "workload": "w",
                    "training_seed": 0,
                    "window": window,
                    "ablation": ablation,
                    "reward": 100.0 * window + gain,
                }
            )
    (found,) = study_ablations.changes(DataFrame(rows)).values()
    # Of -1 and -3, whose mean is drawn with a standard deviation of 0.707: Student's t of two is 12.7.
    assert found.mean == -2.0
    assert found.high - found.mean == pytest.approx(12.706 * np.sqrt(2) * 0.7071, rel=0.05)


def one_ablation(policy: str, base: str, learned: bool, seeds: int, ablation: str) -> DataFrame:
    """Each of 20 windows has a reward of about 1 less than in the world as it is."""
    return DataFrame(
        {
            "policy": policy,
            "setting": "x1",
            "base": base,
            "learned": learned,
            "workload": "w",
            "training_seed": seed,
            "window": window,
            "ablation": name,
            "reward": -(name != "none") * (1.0 + 0.01 * window),
        }
        for name in ("none", ablation)
        for seed in range(seeds)
        for window in range(20)
    )


def test_without_an_interval_nothing_is_claimed():
    settings = study_ablations.Settings(policies=("chiron",))
    fair, cliff = "forecast-none", "load-300"
    (claim,) = study_ablations.claims(one_ablation("ppo", "x", True, 3, fair), settings)
    assert claim.verdict is Verdict.REPRODUCED
    (claim,) = study_ablations.claims(one_ablation("ppo", "x", True, 1, fair), settings)
    assert claim.verdict is Verdict.NOT
    assert "no interval" in claim.reason
    made = study_ablations.claims(one_ablation("chiron", "x", False, 1, cliff), settings)
    assert made[0].verdict is Verdict.REPRODUCED


def test_who_has_seen_the_test_claims_nothing():
    frame = one_ablation("ppo, leaks w", "leaks w", True, 3, "forecast-none")
    (claim,) = study_ablations.claims(frame, study_ablations.Settings())
    assert claim.verdict is Verdict.UNMEASURED


def test_the_table_has_levels_beside_changes_and_says_on_which_workloads():
    def rows(policy: str, workload: str, rewards: tuple[float, float]) -> DataFrame:
        return DataFrame(
            {
                "policy": policy,
                "setting": "misses at 5" if policy == "ppo" else "x1",
                "base": "x",
                "learned": policy == "ppo",
                "workload": workload,
                "training_seed": seed,
                "window": window,
                "ablation": ablation,
                "reward": reward,
                "gpu_hours": 2.0,
                "interactive_attainment": 0.99 if ablation == "none" else 0.9,
                "batch_attainment": 1.0,
            }
            for ablation, reward in zip(("none", "load-60"), rewards, strict=True)
            for seed in range(2 if policy == "ppo" else 1)
            for window in range(3)
        )

    frame = concat(
        [
            rows("static", "test-spikes", (-60.0, -60.0)),
            rows("static", "test-code", (-100.0, -110.0)),
            rows("ppo", "test-spikes", (-50.0, -90.0)),
        ]
    )
    settings = study_ablations.Settings()
    table = study_ablations.tables(frame, settings)["changes"]
    assert [(row["policy"], row["on"], row["reward"]) for row in table] == [
        ("static", "code, spikes", -80.0),
        ("static", "code, spikes", -85.0),
        ("ppo, misses at 5", "spikes", -50.0),
        ("ppo, misses at 5", "spikes", -90.0),
    ]
    assert [
        row["change of reward"] if k % 2 == 0 else row["change of reward"].mean
        for k, row in enumerate(table)
    ] == ["-", -5.0, "-", -40.0]
    assert table[3]["interactive %"] == pytest.approx(90.0)
    assert table[3]["of interactive %"].mean == pytest.approx(-9.0)
