"""QLM's Figure 19 in small. Seconds are the machine's: nothing here depends on them."""

from __future__ import annotations

import pandas as pd
import pytest

from experiments.qlm import fig19_group_size as fig19
from tests.small_studies import judged, made_up
from tests.test_figures import small_run


def test_a_run_measures_every_call():
    frame = small_run("qlm-fig19")
    assert frame["delta"].tolist() == [1, 16]
    row = frame.iloc[0]
    assert row["calls"] > 0
    assert row["seconds"] == pytest.approx(row["calls"] * row["seconds_per_call"])
    assert 0 < row["seconds_per_call"] <= row["longest_s"] <= row["seconds"]
    assert row["groups"] >= 5, "one for each LLM"


def test_the_policy_that_is_timed_is_qlm():
    case = fig19.cases(
        fig19.GroupSize(seeds=1, requests=(200,), deltas=(1, 4), average_batch=("shared",))
    )[1]
    timed = fig19.run(case)[0]
    plain = fig19.run_trace({**case, "policy": "qlm"})
    assert {name: timed[name] for name in plain} == plain


def found_of(met, seconds, rules=("profiled", "shared")):
    """Claims of so many per cent met and seconds per call by delta 1, 4, 16; the longer trace meets half."""
    parameters = fig19.GroupSize(seeds=2, deltas=(1, 4, 16), average_batch=rules)

    def row(case):
        k = parameters.deltas.index(case["delta"])
        share = met[k] if case["average_batch"] == "profiled" else met[0]
        return {
            "attainment": share / (100 if case["requests"] == 3500 else 200),
            "requests_per_s": 10.0,
            "groups": (16, 5, 4)[k],
            "calls": 7,
            "swaps": (20, 4, 3)[k],
            "seconds_per_call": seconds[k] * (1 + 0.01 * (case["seed"] % 2)),
            "longest_s": 0.9,
        }

    return judged(fig19, made_up(fig19, parameters, row), parameters)


NEAR = "Delta = 4 has nearly zero performance degradation compared to delta = 1"
COARSE = "At delta = 16 decisions are coarse and sub-optimal"
SLOWER = "The overhead of our scheduler, a search, is much higher at delta = 1"


def test_claims_on_made_up_rows():
    found = found_of((100, 96, 60), (0.4, 0.1, 0.05))
    assert (found[NEAR].ours.mean, found[NEAR].verdict) == (pytest.approx(4), "reproduced")
    assert [part.ours.mean for part in found[NEAR].parts] == pytest.approx([4, 0, 4, 0])
    assert (found[COARSE].ours.mean, found[COARSE].verdict) == (pytest.approx(40), "reproduced")
    slower = found[SLOWER]
    assert slower.question, "the paper speaks of its programme"
    assert [part.ours.mean for part in slower.parts] == pytest.approx([4, 4, 8, 8])


def test_what_does_not_reproduce_says_why():
    found = found_of((80, 60, 79), (0.1, 0.1, 0.2))
    assert (found[NEAR].ours.mean, found[NEAR].verdict) == (pytest.approx(25), "not reproduced")
    assert "most groups in a trace: 16 at 1, 5 at 4, 4 at 16" in found[NEAR].reason
    assert found[COARSE].verdict != "reproduced"
    assert found[SLOWER].verdict == "not reproduced"


def test_without_delta_1_there_is_nothing_to_compare_with():
    parameters = fig19.GroupSize(deltas=(4, 16))
    assert fig19.claims(pd.DataFrame(), parameters) == []
