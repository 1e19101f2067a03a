"""Chiron's Figure 16: who counts as served within a latency target, and what a sweep claims."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from experiments.chiron import fig16_itl_slo as figure
from experiments.harness.claims import Verdict
from tests.small_studies import made_up
from tests.test_figures import small_run


def requests(**columns):
    n = len(columns["itl_mean_s"])
    start = {"e2e_s": [5.0] * n, "output_tokens": [100] * n, "evictions": [0] * n}
    return pd.DataFrame({**start, "preemptions": [0] * n, **columns})


def test_satisfaction_is_of_those_that_finished():
    found = figure.satisfaction(
        requests(
            itl_mean_s=[0.1, 0.3, 0.5, math.nan, math.nan],
            e2e_s=[5.0, 5.0, 5.0, 1.0, math.nan],  # one token only; still running
            output_tokens=[100, 10, 20, 1, 400],
            evictions=[0, 1, 0, 0, 0],
        ),
        0.2,
    )
    assert found["itl_satisfied"] == 0.5
    assert found["unfinished"] == pytest.approx(0.2)
    assert found["itl_s"] == pytest.approx(0.3)
    assert (found["tokens"], found["late_tokens"], found["late_moved"]) == (15, 15, 0.5)


def test_nobody_finished_nobody_missed():
    found = figure.satisfaction(requests(itl_mean_s=[math.nan], e2e_s=[math.nan]), 0.2)
    assert (found["itl_satisfied"], found["unfinished"]) == (1.0, 1.0)


PARAMETERS = figure.ItlSlo(seeds=1, rates_per_s=(10.0,), itl_slos_s=(0.05, 0.5, 2.0))


@pytest.fixture
def frame():
    def row(case):
        slo_s = case["itl_slo_s"]
        satisfied = {0.05: 0.9, 0.5: 0.999, 2.0: 1.0}[slo_s]
        return {
            "itl_satisfied": satisfied,
            "slo_attainment": satisfied,
            "throughput_per_instance": 2 * slo_s,
            "gpus": 40 / slo_s,
            "itl_s": 0.03,
            "tokens": 400.0,
            "late_tokens": 8.0,
            "late_moved": 0.0,
            "unfinished": 0.0 if slo_s > 0.1 else 0.4,
        }

    return made_up(figure, PARAMETERS, row)


def test_claims(frame):
    large, small = figure.claims(frame, PARAMETERS)
    assert (large.ours.mean, large.verdict, large.reason) == (100, Verdict.REPRODUCED, "")
    # A tenth of those that finished were late, and 40 % never finished.
    assert small.ours.mean == pytest.approx(100 * (1 - 0.9 * 0.6))
    # A level is met or not; it has no direction.
    assert small.verdict == Verdict.NOT
    assert (
        "worst at 0.05 s, where those who miss it have 8 output tokens (median 400)" in small.reason
    )
    assert small.note == "of the requests that finished; 40 % at 0.05 s did not"
    assert len(figure.plot(frame, PARAMETERS).axes) == 1


def test_one_target_has_one_claim(frame):
    parameters = figure.ItlSlo(seeds=1, rates_per_s=(10.0,), itl_slos_s=(0.5,))
    (only,) = figure.claims(frame[frame["itl_slo_s"] == 0.5], parameters)
    assert "less than 0.5 %" in only.sentence


def test_a_run_under_a_loose_target():
    row = small_run("chiron-fig16").iloc[0]
    assert row["itl_slo_s"] == 2.0
    assert row["itl_satisfied"] == 1.0
    assert 0 < row["itl_s"] < 2.0
    assert 8 <= row["gpus"] <= 48  # an interactive and a mixed instance at least
