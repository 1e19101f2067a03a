"""Chiron's Figure 15: latency over the steps of the local autoscaler."""

from __future__ import annotations

from itertools import pairwise

import pandas as pd
import pytest

from experiments.chiron import fig15_itl_steps as figure
from experiments.harness.claims import Verdict
from tests.test_figures import small_run

PARAMETERS = figure.ItlSteps(
    seeds=1, duration_s=10, controllers=("chiron",), llms=("llama-3.1-8b",)
)


def made_up(latencies):
    """A step a second, the limit raised at every step but the first, ten requests running."""
    n = len(latencies)
    return pd.DataFrame(
        {
            "seed": 1,
            "llm": "llama-3.1-8b",
            "controller": "chiron",
            "itl_slo_s": 0.2,
            "step": range(n),
            "start_s": [float(k) for k in range(n)],
            "end_s": [k + 1.0 for k in range(n)],
            "limit": range(10, 10 + n),
            "running": 10.0,
            "kv_use": 0.5,
            "itl_s": latencies,
            "raised": [k > 0 for k in range(n)],
        }
    )


def with_fixed(frame):
    fixed = made_up([0.02] * 10).assign(controller="fixed")
    return pd.concat([frame, fixed], ignore_index=True)


def test_latency_that_goes_to_the_target_and_stays():
    frame = made_up([0.02, 0.1, 0.1, 0.1, 0.1, 0.25, 0.25, 0.125, 0.25, 0.25])
    few, near = figure.claims(with_fixed(frame), PARAMETERS)
    # Five seconds of ten requests: 4 x 40 + 80 tokens.
    assert near.ours.mean == pytest.approx((50 / 240) / 0.2)
    assert near.verdict == Verdict.REPRODUCED
    assert (few.ours.mean, few.verdict) == (2, Verdict.REPRODUCED)
    assert (few.question, near.question) == (False, True)


def test_latency_that_stays_away():
    few, near = figure.claims(with_fixed(made_up([0.02] * 5 + [0.9] * 5)), PARAMETERS)
    assert near.ours.mean == pytest.approx(4.5)
    assert near.verdict != Verdict.REPRODUCED
    # A level is met or not; it has no direction.
    assert (few.ours.mean, few.verdict) == (5, Verdict.NOT)
    assert "100% of the steps and 100% of the time" in few.reason
    assert few.reason.endswith("at most 350%")


def test_reasons_say_what_the_steps_show():
    frame = made_up([0.02] * 10)
    _, near = figure.claims(with_fixed(frame), PARAMETERS)
    assert near.reason == (
        "the limit holds the batch: 10 requests run at a mean limit of 17; at the first limit of 64 it is "
        "0.10"
    )
    held = frame.assign(limit=100, kv_use=0.99)
    _, near = figure.claims(with_fixed(held), PARAMETERS)
    assert near.reason.startswith(
        "KV memory holds the batch: 10 requests run at a mean limit of 100"
    )


def test_every_target_is_claimed():
    frame = with_fixed(made_up([0.1] * 10))
    both = pd.concat([frame, frame.assign(itl_slo_s=2.0)], ignore_index=True)
    parameters = PARAMETERS.model_copy(update={"slos_s": (0.2, 2.0)})
    found = figure.claims(both, parameters)
    assert [part.sentence for part in found[0].parts] == ["8B, 0.2 s", "8B, 2 s"]


def test_cases_and_a_run():
    assert len(figure.cases(figure.ItlSteps(seeds=1))) == 2 * 3
    frame = small_run("chiron-fig15")
    rows = frame[frame["controller"] == "chiron"].to_dict("records")
    assert [row["step"] for row in rows] == list(range(len(rows)))
    assert rows[0]["limit"] == 16
    assert not rows[0]["raised"]
    assert rows[1]["raised"] == (rows[1]["limit"] > 16)
    assert all(one["end_s"] == two["start_s"] for one, two in pairwise(rows))
