"""Chiron's Figure 6: immediate autoscaling and request groups on the same requests."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from experiments.chiron import fig06_request_groups as fig06
from experiments.chiron.immediate import instances_for
from experiments.harness.claims import Verdict
from llmscale_env.workload.requests import RequestTable
from tests.test_figures import small, small_run


def test_instances_for_requests():
    assert [instances_for(n, 32) for n in (0, 1, 32, 33, 320)] == [0, 1, 1, 2, 10]


def test_requests_are_cut_at_a_time():
    table = RequestTable.build(np.array([0.0, 1.0, 2.0, 5.0]), 10, [1, 2, 3, 4])
    kept = fig06.until(table, 2.0)
    assert kept.arrival_s.tolist() == [0.0, 1.0]
    assert kept.output_tokens.tolist() == [1, 2]
    assert len(fig06.until(table, 9.0)) == 4


def test_what_is_counted_of_an_episode():
    series = pd.DataFrame(
        {
            "time_s": [10.0, 20.0, 30.0, 40.0],
            "mixed/loads": [0, 0, 0, 0],
            "mixed/stops": [0, 0, 0, 0],
            "mixed/gpu_s": [10.0, 10.0, 10.0, 10.0],
            "batch/loads": [2, 1, 0, 0],
            "batch/stops": [0, 0, 2, 0],
            "batch/gpu_s": [20.0, 30.0, 20.0, 10.0],
        }
    )
    requests = pd.DataFrame(
        {
            "arrival_s": [0.0, 5.0, 6.0],
            "e2e_s": [12.0, 20.0, np.nan],
            "outcome": ["on_time", "late", "unfinished"],
        }
    )
    found = fig06.counted(SimpleNamespace(requests=requests, series=series))
    assert (found["scale_ups"], found["scale_downs"], found["unserved"]) == (3, 2, 1)
    assert found["hysteresis"] == pytest.approx(5 / 3)
    assert found["actions_per_hour"] == pytest.approx(5 * 3600 / 25)  # the last one ends at 25 s
    assert found["actions_per_1000"] == pytest.approx(2500)
    assert found["throughput"] == pytest.approx(2 / (30 + 40 + 30))
    assert found["slo_attainment"] == pytest.approx(1 / 3)


SMALL = small("chiron-fig06")


@pytest.fixture
def frame():
    return small_run("chiron-fig06")


def test_immediate_autoscaling_takes_more_actions_and_serves_less_per_instance(frame):
    immediate = frame[frame["policy"] == "immediate"].iloc[0]
    grouped = frame[(frame["policy"] == "chiron") & (frame["max_groups"] == 8)].iloc[0]
    assert frame["unserved"].eq(0).all()
    assert immediate["actions_per_1000"] > 3 * grouped["actions_per_1000"]
    assert immediate["throughput"] < grouped["throughput"]
    assert immediate["slo_attainment"] == 1.0


def test_what_comes_up_comes_down_so_the_papers_ratio_is_two(frame):
    up = frame[frame["scale_ups"] > 0]
    assert up["hysteresis"].between(1, 2).all()
    immediate = up[up["policy"] == "immediate"]
    assert immediate["hysteresis"].tolist() == [2.0]


def test_claims_and_picture(frame):
    hysteresis, throughput, actions = fig06.claims(frame, SMALL)
    assert "between 1 and 2 for any fleet" in hysteresis.reason
    assert hysteresis.verdict is Verdict.NOT
    assert throughput.ours.mean > 1
    assert actions.verdict is Verdict.REPRODUCED
    assert len(fig06.plot(frame, SMALL).axes) == 6
    # Only one policy: nothing to hold against.
    assert fig06.claims(frame[frame["policy"] == "immediate"], SMALL) == []
    assert fig06.claims(frame, SMALL.model_copy(update={"default_groups": 3})) == []


def made_up(*on_time):
    """Groups of so much attainment at CV 1, 4, ...: 3/s against 1/s each, a fifth of the actions."""
    return pd.DataFrame(
        {
            "seed": seed,
            "load_time_s": 15.0,
            "cv": 4.0**k,
            "policy": policy,
            "judge": "group" if policy == "chiron" else None,
            "max_groups": 8 if policy == "chiron" else None,
            "scale_ups": 10,
            "hysteresis": 1.5 if policy == "chiron" else 2.0,
            "actions_per_1000": 2.0 if policy == "chiron" else 10.0,
            "throughput": 3.0 - k if policy == "chiron" else 1.0,
            "slo_attainment": share if policy == "chiron" else 1.0,
        }
        for seed in (0, 1)
        for k, share in enumerate(on_time)
        for policy in ("chiron", "immediate")
    )


def test_throughput_counts_where_no_more_are_late():
    def gain(*on_time):
        return fig06.claims(made_up(*on_time), SMALL)[1]

    assert gain(1.0, 1.0).ours.mean == 3
    late_at_first = gain(0.95, 0.995)
    assert late_at_first.ours.mean == 2
    assert late_at_first.setting.startswith("largest gain of the 1 of 2 loads")
    assert [part.sentence for part in late_at_first.parts] == ["15 s to load, CV 4"]
    never = gain(0.95, 0.95)
    assert (never.ours.mean, never.verdict) == (1, Verdict.NOT)
    assert (
        never.reason
        == "no more are late at 0 of 2 loads; over all loads the gain is 2.00 to 3.00 x"
    )


def test_claims_say_how_many_are_on_time_and_how_far_actions_fall():
    hysteresis, throughput, actions = fig06.claims(made_up(0.95, 0.99), SMALL)
    assert hysteresis.ours.mean == pytest.approx(4 / 3)
    assert hysteresis.reason.endswith("fall, 5 to 5 times")
    assert throughput.unit.startswith("x per billed instance, 99.0 % on time")
    assert [part.ours.mean for part in actions.parts] == pytest.approx([0.2, 0.2])


def test_classes_are_the_deadlines_and_nothing_else_arrives():
    scenario = fig06.scenario_of(fig06.cases(SMALL)[0])
    assert [c.ttft_s for c in scenario.classes] == [10.0, 300.0, 600.0]
    assert [s.slo_class for s in scenario.workload.streams] == ["batch-300", "batch-600"]
    assert sum(s.rate_per_s for s in scenario.workload.streams) == pytest.approx(6.0)
    assert scenario.horizon_s == pytest.approx(900 + 1.5 * 600)
