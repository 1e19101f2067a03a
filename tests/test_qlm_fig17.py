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


def test_claims_on_made_up_rows():
    found = found_of(qlm=(99, 98, 97), edf=(99, 80, 60), vllm=(90, 50, 50))
    assert found["With no queue QLM meets no more SLOs than EDF"].ours.mean == pytest.approx(0)
    assert found["With no queue QLM meets no more SLOs than EDF"].verdict == "reproduced"
    vllm = found["With no queue QLM meets no more SLOs than vLLM"]
    assert (vllm.ours.mean, vllm.verdict) == (pytest.approx(9), "not reproduced")
    assert "swaps LLMs 900 times, QLM 7 times" in vllm.reason
    falls = found["The longer the queue, the fewer SLOs EDF meets"]
    assert (falls.ours.mean, falls.verdict) == (pytest.approx(-1), "reproduced")
    # Ranks 3, 1.5, 1.5 against 1, 2, 3.
    flat = found["The longer the queue, the fewer SLOs vLLM meets"]
    assert flat.ours.mean == pytest.approx(-np.sqrt(3) / 2)
    assert "50 % at 1000" in flat.reason
    more = found["With the longest queue QLM meets more SLOs than vLLM"]
    assert (more.ours.mean, more.verdict) == (pytest.approx(47), "reproduced")
    high = found["QLM maintains a high SLO satisfaction as the queue grows"]
    assert (high.ours.mean, high.verdict) == (pytest.approx(97), "reproduced")


def test_the_form_that_swaps_has_claims_of_its_own():
    found = found_of(qlm=(99, 98, 97), **{"edf": (99, 99, 90), "edf:swapping=true": (80, 60, 50)})
    for name, at_first, at_last in (("EDF", 0, 7), ("EDF with swapping", 19, 47)):
        first = found[f"With no queue QLM meets no more SLOs than {name}"]
        last = found[f"With the longest queue QLM meets more SLOs than {name}"]
        assert (first.ours.mean, last.ours.mean) == pytest.approx((at_first, at_last))
        assert ("all idle instances swap" in first.reason) == (name != "EDF")


def test_a_qlm_that_falls_and_a_baseline_that_does_not():
    found = found_of(qlm=(99, 80, 70), edf=(99, 99, 99))
    assert found["The longer the queue, the fewer SLOs EDF meets"].ours.mean == 0
    assert {c.verdict for c in list(found.values())[1:]} == {"not reproduced"}


def test_a_run():
    parameters = small("qlm-fig17").model_copy(update={"policies": ("edf",)})
    assert fig17.claims(pd.DataFrame(), parameters) == []
    row = small_run("qlm-fig17").iloc[-1]
    assert 0 < row["mean_queue"] < row["largest_queue"] <= 60
