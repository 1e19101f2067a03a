"""SageServe's figures that run days: sums of made-up rows by hand, and each figure once in small."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from experiments.harness.claims import Verdict, every
from experiments.harness.figure import where
from experiments.sageserve import days, readings
from experiments.sageserve import fig05_siloed as fig05
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


def latency(policy, ttft_s, e2e_s=100.0, seed=1, **values):
    row = {"kind": "latency", "policy": policy, "seed": seed, "llm": LLM, "region": "all"}
    row |= {"slo_class": "interactive", "ttft_s_p95": ttft_s, "e2e_s_p95": e2e_s}
    return row | values


def day(hours, ttft_s, **values):
    """Rows of one setting: hours and 95 % TTFT of each policy."""
    rows = [total(policy, "us-east", h, **values) for policy, h in hours.items()]
    return [*rows, *(latency(policy, s, **values) for policy, s in ttft_s.items())]


HOURS = {"reactive": 100.0, "lt-i": 75.0, "lt-u": 82.0, "lt-ua": 77.0}
ALIKE = dict.fromkeys(HOURS, 20.0)


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
    frame = pd.DataFrame(day(fig11.HOURS, dict.fromkeys(fig11.HOURS, 20.0)))
    claim = fig11._dollars({readings.TEXT: frame}, fig11.Day())
    assert claim.ours.mean == pytest.approx(7 * 75 * 98.32 / 1e6)
    assert claim.verdict is Verdict.DIRECTION
    assert "$51,618" in claim.reason


def test_figure_11_varies_one_thing_at_a_time():
    cases = fig11.cases(fig11.Day(seeds=2))
    columns = ["thresholds", "rate_scale", "epsilon", "thresholds_over", "most"]
    frame = pd.DataFrame(cases)
    found = frame.groupby("setting")[columns].first().round(3)
    assert (frame.groupby("setting")[columns].nunique() == 1).all(axis=None)
    assert len(cases) == 2 * (7 * 4 + 3)  # reactive is as in the released code at epsilon 0.9
    less = 0.729  # 7.4 of 10.2 million
    assert {name: list(row) for name, row in found.iterrows()} == {
        "text": ["scenario", 1.0, 1.0, 1.0, 20],
        "released thresholds alone": ["released", 1.0, 1.0, 1.0, 20],
        "released load alone": ["scenario", less, 1.0, 1.0, 20],
        "released code": ["released", less, 1.0, 1.0, 20],
        "released code, epsilon 0.8": ["released", less, 0.8, 1.0, 20],
        "released code, epsilon 0.9": ["released", less, 0.9, 1.0, 20],
        "text, KV of all heads": ["scenario", 1.0, 1.0, 8.0, 20],
        "text, more room": ["scenario", 1.0, 1.0, 1.0, 40],
    }


def test_the_week_has_the_codes_thresholds_with_the_texts_requests_too():
    cases = fig17.cases(fig17.PARAMETERS["quick"])
    of = {
        name: [c for c in cases if c["setting"] == name] for name in {c["setting"] for c in cases}
    }
    assert {name: len(mine) for name, mine in of.items()} == {
        "text": 5,
        "released code": 4,
        readings.THRESHOLDS: 3,
        readings.ROOMY: 2,
        **dict.fromkeys(readings.IN_SAMPLE, 1),
    }
    for name in (readings.THRESHOLDS, readings.ROOMY):
        assert {(c["thresholds"], c["rate_scale"]) for c in of[name]} == {("released", 1.0)}
    assert {c["most"] for c in of[readings.ROOMY]} == {40}


@pytest.mark.parametrize("module, runs", [(fig05, 2 * 2), (fig16, 2 * 3)])
def test_other_figures_have_the_text_and_the_released_code(module, runs):
    cases = module.cases(module.PARAMETERS["quick"])
    assert len(cases) == runs
    assert {(c["setting"], c["thresholds"], round(c["rate_scale"], 3)) for c in cases} == {
        ("text", "scenario", 1.0),
        ("released code", "released", 0.729),
    }


@pytest.mark.parametrize(
    "policy, thresholds, epsilon, changes",
    [
        ("reactive", "released", 1.0, {"high": 0.5, "low": 0.25}),
        ("lt-u", "scenario", 0.8, {}),
    ],
)
def test_policies_are_told_the_settings(monkeypatch, policy, thresholds, epsilon, changes):
    class Made(Exception):
        pass

    def stop(policy, scenario, seed):
        raise Made(policy)

    monkeypatch.setattr(days, "run_episode", stop)
    case = {**SMALL, "policy": policy, "thresholds": thresholds, "epsilon": epsilon}
    with pytest.raises(Made) as made:
        days.run_days(case)
    (told,) = made.value.args
    assert told.parameters.changes() == changes
    if policy != "reactive":
        assert (told.parameters.epsilon, told.parameters.theta_itl) == (0.8, False)


def test_vms_of_others_are_judged_where_there_is_room():
    rows = [total("reactive", "us-east", 50.0) | {"llm": "bloom-176b", "waste_others_h": 1.5}]
    rows += [total(policy, "us-east", 40.0) for policy in days.POLICIES]
    claim = fig11._with_room(pd.DataFrame(rows), fig11.Day())
    assert (claim.ours.mean, claim.verdict) == (1.5, Verdict.REPRODUCED)
    assert claim.question
    assert "40 instances" in claim.setting


# ---- readings ----


def test_hours_count_only_at_equal_service():
    slow = {**ALIKE, "lt-i": 24.0, "lt-ua": 20.8}
    frame = pd.DataFrame(day(HOURS, slow))
    assert readings.worse_percent(frame, "lt-i") == pytest.approx(20.0)
    assert readings.worse_percent(frame, "lt-u") == pytest.approx(0.0)
    upto = fig11._saved(frame, 25.0)
    assert [part.ours.mean for part in upto] == pytest.approx([25.0, 18.0, 23.0])
    assert [part.verdict for part in upto] == [
        *(Verdict.NOT, Verdict.DIRECTION, Verdict.REPRODUCED)  # 18 is below 18.75, 4 % is allowed
    ]
    assert upto[0].sentence == "LT-I, at a latency 20 % worse"
    slightly = fig11._saved(frame, {"LT-I": 24.8, "LT-U": 18.2, "LT-UA": 22.8}, {"lt-i": 25.0})
    assert all(part.verdict is Verdict.REPRODUCED for part in slightly)


def test_hours_count_only_while_every_llm_is_served_within_a_minute():
    rows = day(HOURS, ALIKE)
    for llm, ttft_s in (("bloom-176b", 61.0), ("llama-3.1-8b", 1.0), ("llama-3.2-3b", 1.0)):
        rows += [latency("lt-i", ttft_s, llm=llm), latency("lt-u", min(ttft_s, 59.0), llm=llm)]
    frame = pd.DataFrame(rows)
    told = readings.within_slo(fig11._saved(frame, 25.0)[:2], frame, ("lt-i", "lt-u"))
    assert [part.verdict for part in told] == [Verdict.NOT, Verdict.DIRECTION]
    assert "over a minute" in told[0].reason


def test_memory_of_all_vms_that_are_paid_for():
    rows = [total(policy, "us-east", 2.0 if policy == "reactive" else 1.0) for policy in HOURS]
    rows += [series(policy, 1.0) for policy in HOURS]
    found = fig11._of_acquired(pd.DataFrame(rows))
    assert found["LT-I"].mean == pytest.approx(100.0)  # as much in use, of half the hours


def test_reactive_is_that_of_the_released_code_where_only_the_plan_differs():
    frame = pd.DataFrame(
        [
            *day(HOURS, ALIKE, setting="released code"),
            *day({"lt-i": 70.0}, {"lt-i": 20.0}, setting=readings.SLIGHTLY_REROUTED),
        ]
    )
    mine = readings.by_setting(frame, (readings.SLIGHTLY_REROUTED,))[readings.SLIGHTLY_REROUTED]
    assert days.saved_percent(mine, "lt-i").mean == pytest.approx(30.0)


def test_the_worse_of_two_latencies_counts():
    rows = day(HOURS, ALIKE)
    for row in rows:
        if row["kind"] == "latency" and row["policy"] == "lt-u":
            row |= {"ttft_s_p95": 10.0, "e2e_s_p95": 110.0}
    assert readings.worse_percent(pd.DataFrame(rows), "lt-u") == pytest.approx(10.0)


def test_who_saves_nothing_is_not_told_of_latencies():
    frame = pd.DataFrame(day({**HOURS, "lt-i": 110.0}, {**ALIKE, "lt-i": 90.0}))
    part = fig11._saved(frame, 25.0)[0]
    assert (part.sentence, part.verdict) == ("LT-I", Verdict.NOT)


def test_what_cannot_be_compared_is_not_measured():
    frame = pd.DataFrame(day(HOURS, {**ALIKE, "lt-u": math.nan}))
    part = fig11._saved(frame, 25.0)[1]
    assert (part.sentence, part.verdict) == ("LT-U", Verdict.UNMEASURED)
    assert math.isnan(part.ours.mean)
    few = pd.DataFrame([*day({"reactive": 100.0, "lt-u": 82.0}, {}), latency("lt-i", 20.0)])
    told = readings.nearest({"text": few}, ("lt-i", "lt-u"), llm=LLM)
    assert told == "Most hours are saved by LT-U (text): 18.0 %."
    assert readings.nearest({}, ("lt-i",)) == ""
    with pytest.raises(ValueError, match="no setting was run"):
        readings.read({}, "hours", every, lambda mine: [])


def test_the_released_code_judges_whatever_saves_more():
    few = {**HOURS, "lt-i": 97.0, "lt-u": 96.0, "lt-ua": 98.0}
    frame = pd.DataFrame(
        [
            *day(few, ALIKE, setting="text"),
            *day(HOURS, ALIKE, setting="released code"),
            *day(HOURS | {"lt-i": 50.0}, {**ALIKE, "lt-i": 40.0}, setting=readings.REROUTED),
        ]
    )
    frames = readings.judged_first(frame)
    assert list(frames) == ["released code", "text"]
    others = readings.by_setting(frame, (readings.REROUTED,))
    told = readings.nearest({**frames, **others}, fig11.SAVED, llm=LLM)
    assert "LT-I (released code, epsilon 0.8): 50.0 %" in told
    assert "+100 %" in told
    shown = next(fig11._hours(frames, others))
    assert (shown.verdict, shown.ours.mean) == (Verdict.REPRODUCED, pytest.approx(25.0))
    assert shown.unit == "% fewer (released code)"
    assert "50 and 25 %" in shown.setting
    order = ["released code", "text", readings.REROUTED]
    assert [part.sentence for part in shown.parts] == order
    slow = shown.parts[2].parts[0]
    assert "more than 5 % worse does not count" in slow.reason
    (table,) = fig11.tables(frame, fig11.Day()).values()
    assert [row["setting"] for row in table] == [row for row in fig11.MAP if row in order]
    assert table[0]["LT-U: saved %"] == pytest.approx(4.0)
    assert table[1]["LT-I: latency %"] == pytest.approx(0.0)
    with pytest.raises(ValueError, match="released code"):
        readings.judged_first(where(frame, setting="text"))
