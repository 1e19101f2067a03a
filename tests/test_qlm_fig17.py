"""QLM's Figure 17: the size of a queue, and what is claimed of made-up rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from experiments.qlm import fig17_queue_size as fig17
from experiments.qlm.loads import queue_sizes
from tests.small_studies import judged, made_up
from tests.test_figures import small, small_run


def test_the_size_of_a_queue():
    # Waiting: two from 0 to 1, one to 2, none until 4, then one that never begins, to 10.
    sizes = queue_sizes(np.array([0.0, 0.0, 4.0]), np.array([1.0, 2.0, np.nan]), 10.0)
    assert sizes == {"largest_queue": 2, "mean_queue": pytest.approx((1 + 2 + 6) / 10)}
    # One leaves as the next comes: never two.
    assert queue_sizes(np.array([0.0, 1.0]), np.ones(2), 4.0)["largest_queue"] == 1


def test_cases_share_the_rate_among_classes_and_leave_time_to_end():
    parameters = fig17.QueueSize(seeds=2, requests_per_s=(0.5, 100), policies=("qlm", "edf"))
    cases = fig17.cases(parameters)
    assert len(cases) == 8
    assert cases[0]["rates"] == {"batch-1": 0.25, "batch-2": 0.25}
    assert cases[0]["patience_s"] == 3600 + 1.5 * 7000


def found_of(**met):
    """Claims where so many per cent are met by rate (1, 10, 100); QLM's queue is ten times the rate."""
    parameters = fig17.QueueSize(seeds=2, requests_per_s=(1, 10, 100), policies=tuple(met))

    def row(case):
        rate, qlm = case["per_s"], case["policy"] == "qlm"
        share = met[case["policy"]][parameters.requests_per_s.index(rate)]
        return {
            "attainment": (share - 0.1 * (case["seed"] - 30_000.5)) / 100,
            "swaps": 7 if qlm else 900,
            "largest_queue": (10 if qlm else 20) * rate,
        }

    return judged(fig17, made_up(fig17, parameters, row), parameters)


NONE = "With no queue QLM offers no benefit over the baselines"
FEWER = "As the queue grows, the baselines meet fewer and fewer SLOs"
LARGE = "The benefit of QLM is largely present when the queue is large"
HIGH = "QLM maintains a high SLO satisfaction as the queue grows"


def test_claims_on_made_up_rows():
    found = found_of(qlm=(99, 98, 97), edf=(99, 80, 60), vllm=(90, 50, 50))
    # The worst of the baselines, which is vLLM: 9 points more.
    none = found[NONE]
    assert (none.ours.mean, none.verdict) == (pytest.approx(9), "not reproduced")
    assert none.unit == "points more (vLLM)"
    assert "(up to 900 swaps, 7 with QLM)" in none.reason
    # Ranks 3, 1.5, 1.5 against 1, 2, 3.
    assert found[FEWER].ours.mean == pytest.approx(-np.sqrt(3) / 2)
    assert found[FEWER].verdict == "same direction, another size"
    assert (found[LARGE].ours.mean, found[LARGE].verdict) == (pytest.approx(47), "reproduced")
    assert (found[HIGH].ours.mean, found[HIGH].verdict) == (pytest.approx(97), "reproduced")


def test_the_form_that_swaps_leads():
    found = found_of(qlm=(99, 98, 97), **{"edf": (99, 99, 90), "edf:swapping=true": (80, 60, 50)})
    for sentence, swapping, own in ((NONE, 19, 0), (LARGE, 47, 7)):
        assert found[sentence].ours.mean == pytest.approx(swapping)
        assert [part.ours.mean for part in found[sentence].parts] == pytest.approx([swapping, own])


def test_a_qlm_that_falls_and_a_baseline_that_does_not():
    found = found_of(qlm=(99, 80, 70), edf=(99, 99, 99))
    assert found[FEWER].ours.mean == 0
    assert {found[s].verdict for s in (FEWER, LARGE, HIGH)} == {"not reproduced"}


def test_a_run():
    parameters = small("qlm-fig17").model_copy(update={"policies": ("edf",)})
    assert fig17.claims(pd.DataFrame(), parameters) == []
    row = small_run("qlm-fig17").iloc[-1]
    assert 0 < row["mean_queue"] < row["largest_queue"] <= 60
