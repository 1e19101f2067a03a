"""What is changed in an ablation, and the changes that come of it."""

from __future__ import annotations

import numpy as np
import pytest
from pandas import DataFrame

from experiments.harness.claims import Verdict
from experiments.learned import study_ablations
from experiments.learned.ablations import ABLATIONS
from experiments.learned.family import scenario_of


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_ablation_is_a_scenario(name: str):
    case = ABLATIONS[name].of({"overrides": {}})
    scenario = scenario_of("mixed-slo/test-spikes", case["overrides"])
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
