"""Aladdin's workers against fixed fleets, in small and on made-up numbers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from experiments.aladdin import study_demand as study


def small(**values):
    sizes = {"seeds": 1, "arrivals_s": 15.0, "patience_s": 40.0, "period_s": 2.0}
    return study.Demand(**{**sizes, **values})


def test_a_step_is_low_high_low():
    (case,) = study.cases(small(loads=("step",), arrivals_s=300.0))
    scenario, requests = study.requests_of(case)
    counts, _ = np.histogram(requests.arrival_s, [0, 100, 200, 300])
    assert counts == pytest.approx([600, 1800, 600], rel=0.15)
    assert (np.diff(requests.arrival_s) >= 0).all()
    assert scenario.horizon_s == 340


def test_a_day_begins_and_ends_at_night():
    (case,) = study.cases(small(loads=("day",), arrivals_s=300.0))
    _, requests = study.requests_of(case)
    counts, _ = np.histogram(requests.arrival_s, [0, 50, 125, 175, 250, 300])
    assert counts.argmax() in (1, 2, 3)
    assert max(counts[0], counts[4]) < 0.4 * counts[2]


def test_a_run():
    parameters = small(loads=("step",))
    (case,) = study.cases(parameters)
    frame = pd.DataFrame([{**case, **row} for row in study.run(case)])
    total = study.totals(frame, "step").set_index("policy")
    assert set(total.index) == set(study.NAMES)
    # A fixed fleet of n workers runs n GPUs all the time, and does as well as what it is measured by.
    fixed = total.loc[study.FIXED]
    assert fixed["gpu_hours"] == pytest.approx(fixed["workers"] * 15 / 3600)
    assert fixed["attainment"] >= total.loc[study.LEARNT]["attainment"] - 0.001
    assert frame[frame["policy"] == "arrivals"]["workers"].sum() > 0
    assert len(study.claims(frame, parameters)) == 4
    study.plot(frame, parameters)


def made_up(parameters, **hours):
    rows = []
    for case in study.cases(parameters):
        for policy in study.NAMES:
            rows.append(
                {
                    **case, "policy": policy, "time_s": None, "workers": 5.0, "changes": 2, "pairs": 9,
                    "opened": 3, "gpu_hours": hours.get(policy, 1.0) + 1e-3 * (case["seed"] % 3),
                    "attainment": 0.97 if policy == study.WINDOW else 0.99,
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def test_claims_on_made_up_fleets():
    parameters = small(seeds=3, loads=("day",))
    frame = made_up(parameters, **{study.LEARNT: 0.5, study.PRIOR: 0.5, study.QUEUE: 0.4})
    fixed, queue, prior, changes = study.claims(frame, parameters)
    assert fixed.ours.mean == pytest.approx(0.5, abs=0.01)
    assert fixed.verdict == "reproduced"
    assert "least fixed fleet, best fit: 1.0" in fixed.note
    assert queue.verdict == "not reproduced"
    assert (prior.ours.mean, prior.verdict) == (1, "not reproduced")
    assert "9 periods to learn from" in prior.reason
    assert changes.ours.mean == pytest.approx(2)
    assert changes.verdict == "reproduced"
    assert {claim.paper for claim in (fixed, queue, prior, changes)} == {"not in the paper"}


def test_a_search_without_an_answer():
    parameters = small(seeds=2, loads=("day",))
    frame = made_up(parameters)
    frame.loc[frame["policy"] == study.FIXED, "gpu_hours"] = None
    fixed, queue, *_ = study.claims(frame, parameters)
    assert fixed.verdict == "not measured"
    assert queue.verdict == "not reproduced"
