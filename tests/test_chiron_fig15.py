"""Chiron's Figure 15: latency over the steps of the local autoscaler."""

from __future__ import annotations

from itertools import pairwise

import pandas as pd

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


def test_a_target_that_is_exceeded_for_a_few_steps():
    frame = made_up([0.02, 0.1, 0.1, 0.1, 0.1, 0.25, 0.25, 0.125, 0.25, 0.25])
    (few,) = figure.claims(with_fixed(frame), PARAMETERS)
    assert (few.ours.mean, few.verdict) == (2, Verdict.REPRODUCED)
    assert few.note == "median latency 0.25 s, with the first limit 0.02 s"


def test_a_target_that_is_exceeded_for_good():
    (few,) = figure.claims(with_fixed(made_up([0.02] * 5 + [0.9] * 5)), PARAMETERS)
    # A level is met or not; it has no direction.
    assert (few.ours.mean, few.verdict) == (5, Verdict.NOT)
    assert "100% of the steps and 100% of the time" in few.reason
    assert few.reason.endswith("at most 350%")


def test_every_target_is_a_part_and_without_chiron_nothing_is_claimed():
    frame = with_fixed(made_up([0.1] * 10))
    both = pd.concat([frame, frame.assign(itl_slo_s=2.0)], ignore_index=True)
    parameters = PARAMETERS.model_copy(update={"slos_s": (0.2, 2.0)})
    (few,) = figure.claims(both, parameters)
    assert [part.sentence for part in few.parts] == ["8B, 0.2 s", "8B, 2 s"]
    assert figure.claims(frame[frame["controller"] == "fixed"], PARAMETERS) == []


def test_cases_and_a_run():
    assert len(figure.cases(figure.ItlSteps(seeds=1))) == 2 * 3
    frame = small_run("chiron-fig15")
    rows = frame[frame["controller"] == "chiron"].to_dict("records")
    assert [row["step"] for row in rows] == list(range(len(rows)))
    assert rows[0]["limit"] == 16
    assert not rows[0]["raised"]
    assert rows[1]["raised"] == (rows[1]["limit"] > 16)
    assert all(one["end_s"] == two["start_s"] for one, two in pairwise(rows))
