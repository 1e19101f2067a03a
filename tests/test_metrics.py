"""Metrics: outcomes and summaries computed by hand, and what must hold for any results."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmscale_env.sim.machine_metrics import hysteresis, summarise_cluster, time_integral
from llmscale_env.sim.metrics import (
    OUTCOMES,
    Outcome,
    judge,
    latencies,
    leftover_gpu_seconds,
    request_columns,
    summarise_columns,
)
from llmscale_env.sim.observed import RESULT_DTYPE
from llmscale_env.sim.reference import ReferenceEngine
from llmscale_env.sim.spec import (
    ClusterSpec,
    PoolSpec,
    ProfileSpec,
    RequestState,
    RouterKind,
    RouteSpec,
)
from llmscale_env.workload.config import SLOClass
from llmscale_env.workload.requests import PS_PER_S, RequestTable
from tests.refusals import refuses

S = PS_PER_S
FAST = SLOClass(name="fast", ttft_s=2.0, itl_s=0.5, weight=3.0)
SLOW = SLOClass(name="slow", ttft_s=100.0, itl_s=5.0, priority=1, weight=1.0)
HORIZON_S = 20


def result(state, first=-1.0, finished=-1.0, max_itl=-1.0, emitted=0, **more):
    row = np.zeros((), RESULT_DTYPE)
    row["state"] = state
    row["instance"] = more.get("instance", -1)
    for name, seconds in (
        ("admitted_ps", more.get("admitted", first)),
        ("first_token_ps", first),
        ("finished_ps", finished),
        ("max_itl_ps", max_itl),
    ):
        row[name] = round(seconds * S) if seconds >= 0 else -1
    row["emitted_tokens"] = emitted
    row["preemptions"] = more.get("preemptions", 0)
    row["evictions"] = more.get("evictions", 0)
    return row


FINISHED, REJECTED = RequestState.FINISHED, RequestState.REJECTED
RUNNING, QUEUED = RequestState.RUNNING, RequestState.OWN_QUEUE

# arrival, class, output tokens, result, outcome with the mean and the max ITL
EXPECTED = [
    # TTFT 2.0 is the target; mean ITL (5.5 - 3) / 5 = 0.5 is the target, the largest is above it
    (1, 0, 6, result(FINISHED, 3.0, 5.5, 0.6, 6), "on_time", "late"),
    (1, 0, 6, result(FINISHED, 3.000_000_000_001, 5.5, 0.5, 6), "late", "late"),
    (1, 0, 6, result(FINISHED, 3.0, 5.500_000_000_001, 0.5, 6), "late", "on_time"),
    (2, 0, 1, result(FINISHED, 3.0, 3.0, -1, 1), "on_time", "on_time"),
    (3, 0, 9, result(REJECTED), "rejected", "rejected"),
    # at the horizon of 20 s: its deadline is then, so the first token may still be in time
    (18, 0, 9, result(QUEUED), "unfinished", "unfinished"),
    (17, 0, 9, result(QUEUED), "late", "late"),
    # running: first token in time, first token late
    (10, 0, 90, result(RUNNING, 11.0, max_itl=0.9, emitted=10), "unfinished", "late"),
    (10, 0, 90, result(RUNNING, 12.5, max_itl=0.1, emitted=10), "late", "late"),
    (10, 1, 90, result(RUNNING, 12.5, max_itl=0.1, emitted=10), "unfinished", "unfinished"),
    (
        4,
        1,
        11,
        result(FINISHED, 9.0, 14.0, 4.0, 11, preemptions=2, evictions=1),
        "on_time",
        "on_time",
    ),
    # at the horizon itself: not an arrival of this episode
    (20, 0, 5, result(RequestState.FUTURE), "not_arrived", "not_arrived"),
]


def build(rows=EXPECTED, llm=0, llm_names=("a",), classes=(FAST, SLOW)):
    rows = sorted(rows, key=lambda row: row[0])
    requests = RequestTable.build(
        [row[0] for row in rows],
        100,
        [row[2] for row in rows],
        slo_class=[row[1] for row in rows],
        llm=llm,
        llm_names=llm_names,
        class_names=tuple(c.name for c in classes),
    )
    results = np.array([row[3] for row in rows], RESULT_DTYPE)
    return requests, results, rows


def summarise(requests, results, classes, horizon_ps, itl_statistic="mean", instance_s=None):
    columns = request_columns(requests, results, classes, horizon_ps, itl_statistic)
    seconds = horizon_ps / S
    return summarise_columns(columns, classes, requests.llm_names, seconds, instance_s=instance_s)


def test_outcomes_by_hand():
    requests, results, rows = build()
    for statistic, column in (("mean", 4), ("max", 5)):
        verdicts = judge(requests, results, (FAST, SLOW), HORIZON_S * S, statistic)
        names = [Outcome(o).name.lower() for o in verdicts.outcome]
        assert names == [row[column] for row in rows]


def test_a_request_that_can_no_longer_meet_its_itl_is_late_unfinished_or_not():
    """9 s since the first token at 11 s: ten tokens (nine gaps) may take 4.5 s, 20 tokens 9.5 s."""
    for tokens, expected in ((10, Outcome.LATE), (20, Outcome.UNFINISHED)):
        rows = [(10, 0, tokens, result(RUNNING, 11.0, max_itl=0.1, emitted=2))]
        requests, results, _ = build(rows)
        assert judge(requests, results, (FAST, SLOW), 20 * S).outcome.tolist() == [expected]


def test_the_same_requests_later_are_late():
    """Time passes and nothing is served: what was unfinished becomes late, never the reverse."""
    requests, results, _ = build(EXPECTED[4:6])
    for horizon, expected in ((19, 3), (20, 3), (20.000_000_000_001, 1), (500, 1)):
        outcome = judge(requests, results, (FAST, SLOW), round(horizon * S)).outcome
        assert outcome.tolist() == [Outcome.REJECTED, expected]


def test_a_target_that_never_comes_is_met():
    endless = SLOClass(name="fast", ttft_s=1e15, itl_s=1e15)
    rows = [(0, 0, 1_000_000, result(FINISHED, 1e5, 1e6, 9e5, 1_000_000))]
    requests, results, _ = build(rows, classes=(endless,))
    assert judge(requests, results, (endless,), 2_000_000 * S).outcome.tolist() == [Outcome.ON_TIME]


def test_latencies_by_hand():
    rows = [
        (1, 0, 6, result(FINISHED, 3.0, 5.5, 0.6, 6, admitted=1.5)),
        (2, 0, 1, result(FINISHED, 3.0, 3.0, -1, 1)),
        (3, 0, 9, result(REJECTED)),
        (10, 0, 90, result(RUNNING, 11.0, max_itl=0.9, emitted=10)),
    ]
    requests, results, _ = build(rows)
    found = latencies(requests, results)
    nan = math.nan
    for name, expected in {
        "queued_s": [0.5, 1, nan, 1],
        "ttft_s": [2, 1, nan, 1],
        "itl_mean_s": [0.5, 0, nan, nan],
        "itl_max_s": [0.6, 0, nan, 0.9],
        "e2e_s": [4.5, 1, nan, nan],
    }.items():
        np.testing.assert_allclose(found[name], expected, err_msg=name)


def test_summary_by_hand():
    requests, results, _ = build()
    found = summarise(requests, results, (FAST, SLOW), HORIZON_S * S, instance_s=[40.0])
    fast = {k.removeprefix("fast/"): v for k, v in found.items() if k.startswith("fast/")}
    assert [fast[k] for k in ("arrivals", *OUTCOMES)] == [9, 2, 4, 1, 2]
    assert fast["slo_attainment"] == pytest.approx(2 / 9)
    # First tokens in time: three that finished and one that runs. ITL met: three that finished.
    assert fast["ttft_attainment"] == pytest.approx(4 / 9)
    assert fast["itl_attainment"] == pytest.approx(3 / 9)
    ttft = [2, 2 + 1e-12, 2, 1, 1, 2.5]
    assert fast["ttft_s_mean"] == pytest.approx(np.mean(ttft))
    assert fast["ttft_s_p50"] == pytest.approx(2.0)
    assert fast["ttft_s_p90"] == pytest.approx(2 + 0.5 * 0.5)  # halfway from the fifth to the last
    assert fast["ttft_s_max"] == pytest.approx(2.5)
    # Of two or more tokens; the request of one token has no ITL.
    assert fast["itl_s_mean"] == pytest.approx(0.5, rel=1e-6)
    assert fast["itl_s_max"] == pytest.approx(0.5, rel=1e-6)
    assert fast["e2e_s_max"] == pytest.approx(4.5)
    assert fast["goodput_requests_per_s"] == pytest.approx(2 / 20)
    assert fast["goodput_tokens_per_s"] == pytest.approx(7 / 20)
    assert fast["throughput_requests_per_s"] == pytest.approx(4 / 20)
    assert fast["throughput_tokens_per_s"] == pytest.approx((6 + 6 + 6 + 1 + 10 + 10) / 20)
    assert fast["throughput_requests_per_instance_s"] == pytest.approx(4 / 40)
    assert fast["preemptions"] == 0
    joint = {k.removeprefix("joint/"): v for k, v in found.items() if k.startswith("joint/")}
    assert [joint[k] for k in ("arrivals", *OUTCOMES)] == [11, 3, 4, 1, 3]
    assert joint["slo_attainment"] == pytest.approx(3 / 11)
    assert joint["weighted_slo_attainment"] == pytest.approx((2 * 3 + 1) / (9 * 3 + 2))
    assert (joint["preemptions"], joint["evictions"]) == (2, 1)
    # One LLM: no groups of its own.
    assert {k.rsplit("/", 1)[0] for k in found} == {"fast", "slow", "joint"}


def test_max_itl_is_summarised_where_the_target_holds_for_it():
    requests, results, _ = build(EXPECTED[:1])
    found = summarise(requests, results, (FAST, SLOW), HORIZON_S * S, itl_statistic="max")
    assert found["fast/itl_s_p50"] == pytest.approx(0.6)
    assert "fast/throughput_requests_per_instance_s" not in found


def test_groups_of_several_llms():
    requests, results, _ = build(llm=[0, 1] * 6, llm_names=("a", "b"))
    found = summarise(requests, results, (FAST, SLOW), HORIZON_S * S, instance_s=[10.0, 0.0])
    for metric in ("arrivals", *OUTCOMES, "preemptions", "goodput_tokens_per_s"):
        for group in ("fast", "slow", "joint"):
            parts = found[f"a/{group}/{metric}"] + found[f"b/{group}/{metric}"]
            assert parts == pytest.approx(found[f"{group}/{metric}"])
    assert found["b/joint/throughput_requests_per_instance_s"] == 0
    assert found["joint/throughput_requests_per_instance_s"] == pytest.approx(5 / 10)


def test_empty_classes_have_no_nan_but_in_latencies():
    requests, results, _ = build(EXPECTED[:4])
    found = summarise(requests, results, (FAST, SLOW), HORIZON_S * S, instance_s=[0.0])
    assert found["slow/arrivals"] == 0
    assert found["slow/slo_attainment"] == 1.0
    undefined = {k for k, v in found.items() if math.isnan(v)}
    assert undefined == {
        k for k in found if k.startswith("slow/") and "_s_" in k and "per" not in k
    }
    assert len(undefined) == 15
    nothing = RequestTable.build([], [], [], class_names=("fast", "slow"))
    empty = summarise(nothing, np.zeros(0, RESULT_DTYPE), (FAST, SLOW), HORIZON_S * S)
    assert empty["joint/arrivals"] == 0
    assert empty["joint/slo_attainment"] == 1.0


# ---- what holds for any results ----


@st.composite
def any_results(draw):
    n = draw(st.integers(0, 25))
    arrival = sorted(draw(st.lists(st.integers(0, 40 * S), min_size=n, max_size=n)))
    horizon = draw(st.integers(1, 40 * S))
    rows, classes, llms = [], [], []
    for t in arrival:
        output = draw(st.integers(1, 30))
        states = [s for s in RequestState if s != RequestState.FUTURE]
        state = draw(st.sampled_from(states)) if t < horizon else RequestState.FUTURE
        row = np.zeros((), RESULT_DTYPE)
        row["state"] = state
        for name in ("admitted_ps", "first_token_ps", "finished_ps", "max_itl_ps"):
            row[name] = -1
        started = state == FINISHED or (
            state not in (REJECTED, RequestState.FUTURE) and draw(st.booleans())
        )
        if started:
            first = draw(st.integers(t, t + 10 * S))
            row["admitted_ps"], row["first_token_ps"] = t, first
            row["emitted_tokens"] = output if state == FINISHED else draw(st.integers(1, output))
            gaps = int(row["emitted_tokens"]) - 1
            gap = draw(st.integers(1, S))
            if gaps:
                row["max_itl_ps"] = gap
            if state == FINISHED:
                row["finished_ps"] = first + gaps * gap
        rows.append((output, row))
        classes.append(draw(st.integers(0, 1)))
        llms.append(draw(st.integers(0, 1)))
    requests = RequestTable.build(
        np.array(arrival, dtype=np.int64) / S,
        100,
        np.array([output for output, _ in rows], dtype=np.int64),
        slo_class=np.array(classes, dtype=np.int64),
        llm=np.array(llms, dtype=np.int64),
        llm_names=("a", "b"),
        class_names=("fast", "slow"),
    )
    return requests, np.array([row for _, row in rows], RESULT_DTYPE), horizon


@given(any_results(), st.sampled_from(["mean", "max"]))
def test_outcomes_partition_arrivals(case, statistic):
    requests, results, horizon = case
    verdicts = judge(requests, results, (FAST, SLOW), horizon, statistic)
    outcome = verdicts.outcome
    assert ((outcome == Outcome.NOT_ARRIVED) == (requests.arrival_ps >= horizon)).all()
    assert ((outcome == Outcome.REJECTED) == (results["state"] == REJECTED)).all()
    finished = results["state"] == FINISHED
    on_time = outcome == Outcome.ON_TIME
    assert (on_time == (finished & verdicts.ttft_met & verdicts.itl_met)).all()
    assert not (finished & (outcome == Outcome.UNFINISHED)).any()
    found = summarise(requests, results, (FAST, SLOW), horizon, itl_statistic=statistic)
    arrivals = np.count_nonzero(requests.arrival_ps < horizon)
    assert found["joint/arrivals"] == arrivals
    for group in ("fast/", "slow/", "joint/", "a/joint/", "b/fast/"):
        assert sum(found[group + name] for name in OUTCOMES) == found[group + "arrivals"]
        shares = [found[f"{group}{kind}_attainment"] for kind in ("slo", "ttft", "itl")]
        assert all(0 <= share <= 1 for share in shares)
        assert shares[0] <= min(shares)
        assert 0 <= found[group + "weighted_slo_attainment"] <= 1
        assert found[group + "goodput_tokens_per_s"] <= found[group + "throughput_tokens_per_s"]
        for name in ("ttft_s", "itl_s", "e2e_s"):
            quantiles = [found[f"{group}{name}_{q}"] for q in ("p50", "p90", "p99", "max")]
            assert all(math.isnan(q) for q in quantiles) or quantiles == sorted(quantiles)


@given(any_results(), st.randoms(use_true_random=False))
def test_the_order_of_requests_does_not_matter(case, random):
    """Arrivals at one time in any order: the same metrics."""
    requests, results, horizon = case
    together = replace(requests, arrival_ps=np.zeros(len(requests), np.int64))
    results = results.copy()
    results["state"][results["state"] == RequestState.FUTURE] = QUEUED
    order = list(range(len(requests)))
    random.shuffle(order)
    shuffled = together.take(np.array(order, np.intp))
    one = summarise(together, results, (FAST, SLOW), horizon, instance_s=[3, 4])
    other = summarise(shuffled, results[order], (FAST, SLOW), horizon, instance_s=[3, 4])
    assert one.keys() == other.keys()
    for key, value in one.items():
        np.testing.assert_allclose(other[key], value, rtol=1e-12, err_msg=key)
    costs = ([1e-4, 3e-4], [1e-2, 5e-2])
    np.testing.assert_allclose(
        leftover_gpu_seconds(together, results, *costs),
        leftover_gpu_seconds(shuffled, results[order], *costs),
    )


def test_what_an_engine_reports(rng):
    """A one-slot instance under load, cut at several times: counts agree with the engine's own."""
    profile = ProfileSpec.linear(
        max_batch=2,
        decode_const_ps=S // 10,
        decode_per_request_ps=0,
        decode_per_token_ps=0,
        prefill_const_ps=S,
        prefill_per_token_ps=0,
        kv_capacity_tokens=400,
    )
    spec = ClusterSpec(
        profiles=(profile,),
        pools=(PoolSpec(0, 0, 1, initial_active=1, batch_limit=1),),
        routes=((RouteSpec(RouterKind.JSQ_REQUESTS, (0,)),),),
    )
    requests = RequestTable.build(
        np.sort(rng.uniform(0, 60, 40)),
        np.where(np.arange(40) % 9 == 4, 500, 50),
        rng.integers(1, 20, 40),
        class_names=("fast",),
    )
    engine = ReferenceEngine(spec, requests)
    rejected_before = late_before = on_time_before = 0
    for horizon in (5 * S, 30 * S, 75 * S, 500 * S):
        engine.advance(horizon)
        found = summarise(requests, engine.results(), (FAST,), horizon, instance_s=[horizon / S])
        states = engine.conservation()
        assert found["joint/arrivals"] == len(requests) - states[RequestState.FUTURE]
        assert found["joint/rejected"] == states[REJECTED]
        finished = found["joint/throughput_requests_per_s"] * horizon / S
        assert finished == pytest.approx(states[FINISHED])
        # Each verdict but "unfinished" is final.
        assert found["joint/rejected"] >= rejected_before
        assert found["joint/late"] >= late_before
        assert found["joint/on_time"] >= on_time_before
        rejected_before, late_before = found["joint/rejected"], found["joint/late"]
        on_time_before = found["joint/on_time"]
        left = leftover_gpu_seconds(requests, engine.results(), [0.02], [0.1])
        still_there = found["joint/arrivals"] - states[FINISHED] - states[REJECTED]
        assert (left[0] > 0) == (still_there > 0)
    assert (rejected_before, found["joint/unfinished"]) == (4, 0)
    assert left[0] == 0
    assert late_before > 0
    assert on_time_before > 0


# ---- leftovers ----


def test_leftover_by_hand():
    rows = [
        (0, 0, 10, result(QUEUED)),  # 100 prompt tokens, then 9 tokens
        (0, 0, 10, result(RUNNING, 3.0, emitted=4)),  # 6 tokens
        (0, 0, 10, result(RequestState.PREEMPTED, 3.0, emitted=4)),  # 104 again, then 5 tokens
        (0, 0, 10, result(RUNNING)),  # being prefilled: as if it had not begun
        (0, 0, 10, result(FINISHED, 3.0, 4.0, 0.1, 10)),
        (0, 0, 10, result(REJECTED)),
        (30, 0, 10, result(RequestState.FUTURE)),
    ]
    requests, results, _ = build(rows, llm=[0, 0, 1, 1, 0, 0, 0], llm_names=("a", "b"))
    found = leftover_gpu_seconds(requests, results, [0.001, 0.01], [1.0, 10.0])
    np.testing.assert_allclose(found, [0.1 + 9 + 6, 1.04 + 50 + 1.0 + 90])


@pytest.mark.parametrize("cost", [[1.0], [1.0, -1.0], [1.0, math.nan], [math.inf, 1.0]])
def test_bad_costs_are_refused(cost):
    requests, results, _ = build(llm_names=("a", "b"))
    refuses("decode_gpu_s_per_token", leftover_gpu_seconds, requests, results, [1.0, 1.0], cost)


# ---- machines ----


def test_hysteresis():
    assert hysteresis(10, 10) == 2.0
    assert hysteresis(4, 1) == 1.25
    assert hysteresis(0, 0) == 0.0
    assert hysteresis(0, 3) == 3.0


def test_time_integral():
    # 2 at the start, 4 after 10 s, 0 after 15 s: (2 + 4) / 2 * 10 + (4 + 0) / 2 * 5
    assert time_integral([4, 0], [10, 15], 2) == pytest.approx(40)
    np.testing.assert_allclose(time_integral([[4, 1], [0, 1]], [10, 15], [2, 1]), [40, 15])
    assert time_integral([], []) == 0


def test_cluster_by_hand():
    found = summarise_cluster(
        pool_names=("x", "y"),
        gpus=[1, 4],
        gpu_s=[3600, 7200],
        busy_s=[1800, 900],
        serving_s=[3000, 1000],
        kv_use=[0.5, 0.1],
        scale_ups=[3, 1],
        scale_downs=[2, 0],
        loads_by_source=[[1, 2, 0], [0, 0, 1]],
        horizon_s=3600,
    )
    assert found["gpu_seconds"] == 10_800
    assert found["gpu_hours"] == 3
    assert found["gpus_mean"] == 3
    assert found["instances_mean"] == pytest.approx(4000 / 3600)
    assert found["scaling_actions"] == 6
    assert found["hysteresis"] == 1.5
    assert [found[f"loads_{s}"] for s in ("ssd", "host", "multicast")] == [1, 2, 1]
    assert found["utilisation"] == pytest.approx(2700 / 4000)
    assert found["billed_utilisation"] == pytest.approx((1800 + 3600) / 10_800)
    assert found["kv_use_mean"] == pytest.approx((1500 + 100) / 4000)
    assert found["pool/y/gpu_hours"] == 2
    assert found["pool/y/utilisation"] == 0.9
    assert found["pool/x/hysteresis"] == pytest.approx(5 / 3)


def test_a_cluster_that_never_ran_has_no_nan():
    names = ("gpus", "gpu_s", "busy_s", "serving_s", "kv_use", "scale_ups", "scale_downs")
    given = {name: np.zeros(1) for name in names}
    found = summarise_cluster(
        pool_names=("x",), loads_by_source=np.zeros((1, 3)), horizon_s=10, **given
    )
    assert set(found.values()) == {0.0}
    with pytest.raises(ValueError, match="busy_s"):
        summarise_cluster(
            pool_names=("x",),
            loads_by_source=np.zeros((1, 3)),
            horizon_s=10,
            **{**given, "busy_s": np.array([math.nan])},
        )


# ---- slips ----


def test_results_of_another_time_or_table_are_refused():
    requests, results, _ = build()
    for horizon, message in ((18, "request 10 arrives at .* is OWN_QUEUE"), (21, "is FUTURE")):
        refuses(f"horizon_ps = .*{message}", judge, requests, results, (FAST, SLOW), horizon * S)
    with pytest.raises(ValueError, match=r"results: expected shape \(12,\), got \(11,\)"):
        judge(requests, results[1:], (FAST, SLOW), HORIZON_S * S)
    refuses("classes", judge, requests, results, (SLOW, FAST), HORIZON_S * S)
    refuses("itl_statistic = 'p99'", judge, requests, results, (FAST, SLOW), HORIZON_S * S, "p99")
    with pytest.raises(ValueError, match="instance_s"):
        summarise(requests, results, (FAST, SLOW), HORIZON_S * S, instance_s=[1.0, 2.0])


@pytest.mark.parametrize("name", ["joint", "a/b"])
def test_names_that_keys_need_are_refused(name):
    taken = SLOClass(name=name, ttft_s=1.0, itl_s=1.0)
    requests, results, _ = build(EXPECTED[:1], classes=(taken,))
    refuses(name, summarise, requests, results, (taken,), HORIZON_S * S)
