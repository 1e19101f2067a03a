"""SageServe's figures that run days: sums of made-up rows by hand, and each figure once in small."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from experiments.harness.claims import Verdict
from experiments.sageserve import days
from experiments.sageserve import fig11_instance_hours as fig11
from experiments.sageserve import fig16_bursts as fig16
from experiments.sageserve import fig17_week as fig17

LLM = "llama-2-70b"
SMALL = {
    "policy": "reactive",
    "from_h": 72.0,
    "hours": 0.5,
    "history_h": 0.0,
    "interval_s": 900.0,
    "rate_scale": 0.02,
    "bursts": [],
    "bin_h": 0.25,
    "seed": 7,
}


def series(policy, hour, **values):
    row = {"kind": "series", "policy": policy, "seed": 1, "llm": LLM, "region": "us-east"}
    return {**row, "hour": hour, "instances": 3, "active": 2, "kv_use": 0.5, **values}


def total(policy, region, hours, seed=1, **values):
    row = {"kind": "total", "policy": policy, "seed": seed, "llm": LLM, "region": region}
    return {**row, "instance_hours": hours, "waste_own_h": 1.0, "waste_others_h": 0.0, **values}


# ---- what a case is ----


def test_a_case_says_which_part_of_the_week_with_which_history():
    scenario = days.scenario_of({**SMALL, "history_h": 24.0, "bursts": [[0.25, 6.0, 8.0]]})
    assert (scenario.horizon_s, scenario.history_s) == (1800.0, 86_400.0)
    arrivals = scenario.workload.streams[0].arrivals
    assert arrivals.start_s == 48 * 3600.0  # history begins a day before Thursday
    (burst,) = arrivals.bursts
    assert (burst.at_s, burst.duration_s, burst.factor) == (86_400.0 + 900.0, 360.0, 8.0)
    assert scenario.workload.rate_scale == 0.02


def test_siloed_has_its_own_scenario():
    assert {p.role for p in days.scenario_of({**SMALL, "policy": "siloed"}).fleet.pools} >= {
        "interactive",
        "batch",
    }


def test_lower_thresholds_are_llama_2s_only():
    pools = days.scenario_of({**SMALL, "thresholds_over": 8.0}).fleet.pools
    for pool in pools:
        over = 8.0 if pool.llm == LLM else 1.0
        assert pool.scaling.high == pytest.approx(0.7 / over)
        assert pool.scaling.low == pytest.approx(0.3 / over)


def test_room_for_others_vms_is_everywhere_and_leaves_vms_as_they_were():
    plain = days.scenario_of(SMALL).fleet.pools
    roomy = days.scenario_of({**SMALL, "most": 40}).fleet.pools
    assert {(p.max_instances, p.scaling.most) for p in plain} == {(20, 20)}
    assert {(p.max_instances, p.scaling.most) for p in roomy} == {(40, 40)}
    assert [p.spot for p in roomy] == [p.spot for p in plain]


# ---- rows of a run ----


@pytest.fixture(scope="module")
def small():
    return pd.DataFrame([{**SMALL, **row} for row in days.run_days(SMALL)])


def test_rows_of_a_run_add_up(small):
    totals = days.chosen(small, "total")
    assert len(totals) == 12
    # At the end of the half hour minimum counts serve; hours by interval are those in all.
    by_interval = days.chosen(small, "series")["instance_hours"].sum()
    assert by_interval == pytest.approx(totals["instance_hours"].sum())
    assert 12 * 2 * 0.5 <= by_interval <= 12 * 20 * 0.5
    assert sorted(days.chosen(small, "series")["hour"].unique()) == [0.25, 0.5]
    latency = days.chosen(small, "latency")
    everywhere = latency[latency["region"] == "all"]["requests"].sum()
    assert everywhere == latency[latency["region"] != "all"]["requests"].sum() > 100


def test_percentiles_are_of_those_who_have_one():
    requests = pd.DataFrame(
        {
            "arrival_s": [0.0, 10.0, 20.0, 3700.0],
            "llm": LLM,
            "slo_class": "interactive",
            "region": ["us-east", "us-east", "us-west", "us-west"],
            "outcome": ["on_time", "unfinished", "late", "on_time"],
            "ttft_s": [1.0, math.nan, 3.0, 5.0],
            "e2e_s": [2.0, math.nan, 4.0, 6.0],
        }
    )
    rows = pd.DataFrame(days.latency_rows(requests, 1.0, ("us-east", "us-west")))
    first = rows[(rows["region"] == "all") & (rows["hour"] == 0)].iloc[0]
    assert (first["requests"], first["unfinished"], first["on_time"]) == (3, 1, 1)
    assert first["ttft_s_p50"] == 2.0
    assert first["e2e_s_p95"] == pytest.approx(3.9)
    assert list(rows[rows["region"] == "us-west"]["ttft_s_p95"]) == [3.0, 5.0]


# ---- sums ----


def test_saved_percent_is_by_seed():
    rows = [
        *(total("reactive", r, h) for r, h in (("us-east", 60.0), ("us-west", 40.0))),
        *(total("lt-u", r, h) for r, h in (("us-east", 40.0), ("us-west", 40.0))),
        total("reactive", "us-east", 100.0, seed=2),
        total("lt-u", "us-east", 70.0, seed=2),
    ]
    frame = pd.DataFrame(rows)
    assert list(days.by_seed(frame, "reactive")) == [100.0, 100.0]
    assert days.saved_percent(frame, "lt-u").mean == pytest.approx(25.0)
    assert days.saved_percent(frame, "lt-u", region="us-east").mean == pytest.approx(
        (100 / 3 + 30) / 2
    )


def test_pools_of_an_endpoint_count_by_instances_that_serve():
    frame = pd.DataFrame(
        [
            series("siloed", 1.0, active=3, kv_use=0.2),
            series("siloed", 1.0, active=1, kv_use=1.0),
            series("siloed", 2.0, active=0, kv_use=0.0),
        ]
    )
    used = days.utilisation(frame, "siloed", LLM, "us-east")[1]
    assert used[1.0] == pytest.approx(0.4)
    assert math.isnan(used[2.0])
    assert list(days.instances(frame, "siloed", LLM)[1]) == [6.0, 3.0]


def test_dollars_of_a_part_of_the_week_are_those_of_the_week():
    frame = pd.DataFrame([total("reactive", "us-east", 50.0), total("lt-ua", "us-east", 40.0)])
    half = fig17.Week(hours=84.0, price=100.0)
    assert list(fig17.week_dollars(frame, "lt-ua", half, llm=LLM)) == [2000.0]
    assert list(fig17.week_dollars(frame, "lt-ua", half)) == [2000.0]


@pytest.mark.parametrize(
    "over, minutes",
    [
        ([], 0.0),
        (range(10, 40), 40.0),
        # Less than ten minutes below the limit is not recovered.
        ([*range(10, 40), 45], 46.0),
        (range(10, 241), 120.0),
    ],
)
def test_recovered_is_who_stays_below_for_ten_minutes(over, minutes):
    hour = np.arange(0, 241) / 60
    used = np.full(len(hour), 0.5)
    used[list(over)] = 0.9
    assert fig16.recovery_min(hour, used, 0.0) == pytest.approx(minutes)


# ---- figures ----


def test_the_papers_own_dollars_are_a_tenth_of_what_it_says():
    frame = pd.DataFrame([total(policy, "us-east", h) for policy, h in fig11.HOURS.items()])
    claim = fig11._dollars(frame, fig11.Day())
    assert claim.ours.mean == pytest.approx(7 * 75 * 98.32 / 1e6)
    assert claim.verdict is Verdict.DIRECTION
    assert "$51,618" in claim.reason


def test_figure_11_varies_one_thing_at_a_time():
    cases = fig11.cases(fig11.Day(seeds=2))
    assert {(c["thresholds_over"], c["most"]) for c in cases} == {(1.0, 20), (8.0, 20), (1.0, 40)}
    assert len(cases) == 3 * 2 * 4
    frame = pd.DataFrame(cases)
    assert len(fig11.varied(frame)) == len(fig11.varied(frame, most=40)) == 8


def test_vms_of_others_are_judged_where_there_is_room():
    rows = [total("reactive", "us-east", 50.0) | {"llm": "bloom-176b", "waste_others_h": 1.5}]
    rows += [total(policy, "us-east", 40.0) for policy in days.POLICIES]
    claim = fig11._with_room(pd.DataFrame(rows), fig11.Day())
    assert (claim.ours.mean, claim.verdict) == (1.5, Verdict.REPRODUCED)
    assert claim.question
    assert "40 instances" in claim.setting


def test_what_the_released_code_counts_is_a_question_about_hours_and_latency():
    hours = {"reactive": 100.0, "lt-i": 75.0, "lt-u": 82.0, "lt-ua": 50.0}
    rows = [total(policy, "us-east", h) for policy, h in hours.items()]
    latency = {"kind": "latency", "seed": 1, "llm": LLM, "region": "all"}
    latency |= {"slo_class": "interactive"}
    ttft = {"reactive": 20.0, "lt-i": 30.0, "lt-u": 20.0, "lt-ua": 19.0}
    rows += [latency | {"policy": policy, "ttft_s_p95": s} for policy, s in ttft.items()]
    saved, kept = fig11._as_released(pd.DataFrame(rows))
    assert saved.question
    assert kept.question
    # More than the paper's is no failure.
    assert saved.verdict is Verdict.REPRODUCED
    assert [part.ours.mean for part in saved.parts] == pytest.approx([25.0, 18.0, 50.0])
    assert [part.verdict for part in kept.parts] == [
        *(Verdict.NOT, Verdict.REPRODUCED, Verdict.REPRODUCED)
    ]
    assert (kept.verdict, kept.ours.mean) == (Verdict.NOT, pytest.approx(50.0))
