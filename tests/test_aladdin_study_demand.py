"""Aladdin's workers against fixed fleets, in small and on made-up numbers."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.aladdin import study_demand as study
from tests import small_studies
from tests.test_figures import small, small_run

NAME = "aladdin-demand"


def test_a_step_is_low_high_low():
    (case,) = study.cases(study.Demand(seeds=1, loads=("step",), arrivals_s=300.0, patience_s=40.0))
    scenario, requests = study.requests_of(case)
    counts, _ = np.histogram(requests.arrival_s, [0, 100, 200, 300])
    assert counts == pytest.approx([600, 1800, 600], rel=0.15)
    assert (np.diff(requests.arrival_s) >= 0).all()
    assert scenario.horizon_s == 340


def test_a_day_begins_and_ends_at_night():
    (case,) = study.cases(study.Demand(seeds=1, loads=("day",), arrivals_s=300.0, patience_s=40.0))
    _, requests = study.requests_of(case)
    counts, _ = np.histogram(requests.arrival_s, [0, 50, 125, 175, 250, 300])
    assert counts.argmax() in (1, 2, 3)
    assert max(counts[0], counts[4]) < 0.4 * counts[2]


def test_a_run():
    frame = small_run(NAME)
    total = study.totals(frame, "step").set_index("policy")
    assert set(total.index) == set(study.NAMES)
    # A fixed fleet of n workers runs n GPUs all the time, and does as well as what it is measured by.
    fixed = total.loc[study.FIXED]
    assert fixed["gpu_hours"] == pytest.approx(fixed["workers"] * 15 / 3600)
    assert fixed["attainment"] >= total.loc[study.LEARNT]["attainment"] - 0.001
    assert frame[frame["policy"] == "arrivals"]["workers"].sum() > 0
    assert len(study.claims(frame, small(NAME))) == 2


PARAMETERS = small(NAME).model_copy(update={"seeds": 3, "loads": ("day",)})


def made_up(**hours):
    def rows(case):
        return [
            {
                "policy": policy, "time_s": None, "workers": 5.0, "changes": 2, "pairs": 9,
                "opened": 3, "gpu_hours": hours.get(policy, 1.0) + 1e-3 * (case["seed"] % 3),
                "attainment": 0.97 if policy == study.WINDOW else 0.99,
            }
            for policy in study.NAMES
        ]  # fmt: skip

    return small_studies.made_up(study, PARAMETERS, rows)


def test_claims_on_made_up_fleets():
    frame = made_up(**{study.LEARNT: 0.5, study.PRIOR: 0.5, study.QUEUE: 0.4})
    saving, changes = study.claims(frame, PARAMETERS)
    queue, fixed = saving.parts
    assert fixed.ours.mean == pytest.approx(0.5, abs=0.01)
    assert fixed.verdict == "reproduced"
    assert queue.verdict == saving.verdict == "not reproduced"
    assert saving.reason == "0.501 GPU-hours at 99.0 % against 0.401 GPU-hours at 99.0 %"
    assert changes.ours.mean == pytest.approx(2)
    assert changes.verdict == "reproduced"
    assert saving.question
    assert changes.question


def test_a_search_without_an_answer():
    frame = made_up()
    frame.loc[frame["policy"] == study.FIXED, "gpu_hours"] = None
    saving, _ = study.claims(frame, PARAMETERS)
    queue, fixed = saving.parts
    assert fixed.verdict == "not measured"
    assert queue.verdict == "not reproduced"
