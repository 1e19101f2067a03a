"""What is changed in an ablation, and the changes that come of it."""

from __future__ import annotations

import numpy as np
import pytest
from pandas import DataFrame

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
