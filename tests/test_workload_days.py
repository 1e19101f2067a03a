"""Arrivals by real days, batch jobs, and the day before as counts: by hand, and in expectation."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from pydantic import ValidationError

from llmscale_env.control.demand import DemandRecord
from llmscale_env.control.reward import draw_chunks, draw_requests, expected_arrivals
from llmscale_env.scenarios import ScenarioError, load_scenario
from llmscale_env.workload import days
from llmscale_env.workload.config import (
    DayArrivals,
    FixedLengths,
    JobsConfig,
    SLOClass,
    StreamConfig,
    WorkloadConfig,
)
from llmscale_env.workload.generate import generate_requests, request_chunks
from llmscale_env.workload.requests import PS_PER_S, RequestTable
from llmscale_env.workload.tables import load_counts, load_days
from tests.refusals import refuses

HOUR_S, DAY_S = 3600.0, 86_400.0
CLASSES = (
    SLOClass(name="interactive", ttft_s=10, itl_s=0.2),
    SLOClass(name="batch-1h", ttft_s=3600, itl_s=2, priority=1),
    SLOClass(name="batch-4h", ttft_s=14_400, itl_s=2, priority=1),
)
M_LARGE = "servegen-m-large"


def chat(**arrivals) -> StreamConfig:
    return StreamConfig(
        name="chat",
        llm="llama-3.1-8b",
        slo_class="interactive",
        arrivals=DayArrivals(table=M_LARGE, **arrivals),
        lengths=FixedLengths(input_tokens=100, output_tokens=10),
        rate_per_s=2.0,
    )


def jobs(**values) -> JobsConfig:
    given = {"classes": ("batch-1h", "batch-4h"), "per_day": 40.0, "n_requests": (3, 9)}
    return JobsConfig(
        name="jobs",
        llm="llama-3.1-8b",
        lengths=FixedLengths(input_tokens=50, output_tokens=20),
        **{**given, **values},
    )


def draw(
    workload: WorkloadConfig, seed: int = 0, horizon_s: float = HOUR_S, **more
) -> RequestTable:
    return generate_requests(
        workload,
        classes=CLASSES,
        llms=("llama-3.1-8b",),
        horizon_s=horizon_s,
        rng=np.random.default_rng(seed),
        **more,
    )


def same(a: RequestTable, b: RequestTable) -> bool:
    columns = [f.name for f in fields(RequestTable) if f.name.endswith(("_ps", "_tokens", "llm"))]
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in columns)


# ---- rates ----


def test_each_window_has_the_rate_of_its_day_whatever_the_seconds():
    rates = load_days(M_LARGE)
    for seconds in (None, "azure-conv-2023", "azure-code-2023"):
        workload = WorkloadConfig(streams=(chat(days=(3,), start_s=0.0, seconds=seconds),))
        counts = sum(
            np.bincount(draw(workload, seed, DAY_S).arrival_ps // days.WINDOW_PS, minlength=144)
            for seed in range(4)
        )
        expected = 4 * 2.0 * 600 * rates[2]
        # Poisson given the rates: all 144 windows within five standard deviations.
        assert (np.abs(counts - expected) <= 5 * np.sqrt(expected)).all(), seconds


def test_days_differ_in_level_and_shape_as_the_data_do():
    rates = load_days(M_LARGE)
    assert rates.shape == (14, 144)
    level = rates.mean(axis=1)
    assert (level.min(), level.max()) == (
        pytest.approx(0.54, abs=0.01),
        pytest.approx(1.43, abs=0.01),
    )
    shape = rates.max(axis=1) / level
    assert (shape.min(), shape.max()) == (
        pytest.approx(1.2, abs=0.02),
        pytest.approx(2.72, abs=0.02),
    )


def test_a_window_without_load_in_the_data_brings_nothing():
    rates = load_days("servegen-m-small")
    day, window = (int(x[0]) for x in np.nonzero(rates == 0))
    arrivals = DayArrivals(table="servegen-m-small", days=(day + 1,), start_s=600.0 * window)
    stream = chat().model_copy(update={"arrivals": arrivals, "rate_per_s": 100.0})
    assert len(draw(WorkloadConfig(streams=(stream,)), horizon_s=600.0)) == 0


def test_bursts_within_minutes_are_those_of_the_trace():
    def spread(counts: np.ndarray) -> float:
        by_15_s = counts[: len(counts) // 15 * 15].reshape(-1, 15).sum(axis=1)
        return float(by_15_s.std() / by_15_s.mean())

    for trace in ("azure-conv-2023", "azure-code-2023"):
        workload = WorkloadConfig(streams=(chat(days=(2,), start_s=0.0, seconds=trace),))
        found = draw(workload, 1, 12 * HOUR_S).arrival_ps // PS_PER_S
        rates = np.repeat(load_days(M_LARGE)[1][:72], 600)
        counts = np.bincount(found, minlength=len(rates)) / rates
        assert spread(counts) == pytest.approx(spread(load_counts(trace).counts), rel=0.25), trace


# ---- which day ----


def test_all_streams_are_at_the_same_time_of_the_same_day():
    code = chat().model_copy(update={"name": "code"})
    workload = WorkloadConfig(streams=(chat(), code))
    for seed in range(5):
        table = draw(workload, seed, 6 * HOUR_S)
        alone = draw(WorkloadConfig(streams=(chat(),)), seed, 6 * HOUR_S)
        assert table.clock_s == alone.clock_s
        each = np.bincount(table.arrival_ps // days.WINDOW_PS, minlength=36)
        mine = np.bincount(alone.arrival_ps // days.WINDOW_PS, minlength=36)
        # Twice the stream's own counts, within noise: another time of day would be far off.
        assert np.abs(each - 2 * mine).mean() < 0.15 * each.mean()


@pytest.mark.parametrize("named", [(1, 2, 3, 4, 5, 6, 7, 8), (9, 10), (11, 12, 13, 14), (2, 5)])
@pytest.mark.parametrize("horizon_s", [600.0, 2 * HOUR_S, DAY_S])
def test_an_episode_never_leaves_the_days_that_are_named(named, horizon_s):
    starts = days.possible_starts(DayArrivals(table=M_LARGE, days=named), horizon_s)
    first = starts * 600.0
    touched = {int(t // DAY_S) + 1 for t in (*first, *(first + horizon_s - 1e-6))}
    assert touched <= set(named)
    assert set(named) == {int(t // DAY_S) + 1 for t in first} or horizon_s == DAY_S


def test_starts_by_hand():
    def starts(horizon_s: float, **config) -> list[int]:
        return days.possible_starts(DayArrivals(table=M_LARGE, **config), horizon_s).tolist()

    assert starts(DAY_S, days=(2, 3)) == list(range(144, 289))
    assert starts(DAY_S, days=(2, 3), start_s=0.0) == [144, 288]
    assert starts(DAY_S, days=(2, 5), start_s=0.0) == [144, 576]
    assert starts(HOUR_S, days=(5, 2), start_s=82_800.0) == [282, 714]
    with pytest.raises(ValueError, match=r"days = \[2\], start_s = 3600.0: an episode of 86400 s"):
        starts(DAY_S, days=(2,), start_s=3600.0)


def test_the_clock_is_the_time_of_day():
    table = draw(WorkloadConfig(streams=(chat(days=(4,), start_s=7200.0),)))
    assert table.clock_s == 7200.0
    assert draw(WorkloadConfig(jobs=(jobs(),))).clock_s == 0.0


def test_a_seed_is_an_episode_and_pieces_are_the_whole():
    workload = WorkloadConfig(streams=(chat(seconds="azure-code-2023"),), jobs=(jobs(),))
    whole = draw(workload, 7, 5000.0, history_s=3600.0)
    assert same(whole, draw(workload, 7, 5000.0, history_s=3600.0))
    assert not same(whole, draw(workload, 8, 5000.0, history_s=3600.0))
    pieces = [
        chunk.requests
        for chunk in request_chunks(
            workload,
            classes=CLASSES,
            llms=("llama-3.1-8b",),
            horizon_s=5000.0,
            rng=np.random.default_rng(7),
            chunk_s=700.0,
            history_s=3600.0,
        )
    ]
    joined = pieces[0]
    for piece in pieces[1:]:
        joined = joined.followed_by(piece)
    assert same(whole, joined)
    assert np.array_equal(pieces[0].past.requests, whole.past.requests)


# ---- jobs ----


def test_jobs_come_at_once_at_any_hour_with_a_class_each():
    table = draw(WorkloadConfig(jobs=(jobs(per_day=200.0, backlog=False),)), horizon_s=DAY_S)
    times, first, size = np.unique(table.arrival_ps, return_index=True, return_counts=True)
    assert 150 < len(times) < 250
    assert set(size) == set(range(3, 10))
    ends = np.append(first[1:], len(table))
    assert all(
        len(set(table.slo_class[a:b].tolist())) == 1 for a, b in zip(first, ends, strict=True)
    )
    assert set(table.slo_class.tolist()) == {1, 2}
    assert (np.histogram(times / PS_PER_S, 4, (0, DAY_S))[0] > 25).all()


def test_what_is_left_of_earlier_jobs_by_hand():
    drawn = days.Jobs(
        np.array([-10_800.0, -7200.0, -3000.0, -5000.0, -2700.0, 5.0]),
        np.array([100, 100, 100, 100, 80, 7]),
        np.array([1, 1, 1, 0, 0, 0]),
    )
    requests, of_class = days.left_over(jobs(), [3600.0, 14_400.0], drawn)
    # 1 h of 4 left: a quarter, due in an hour; 2 of 4: half; 11,400 s of 14,400: 79 %, due in an hour (4 h is
    # longer than what is left); 1 h, come 5,000 s ago: over; 900 s of 3,600 left: none so short: done.
    assert requests.tolist() == [25, 50, 79, 0, 0]
    assert of_class.tolist()[:3] == [0, 0, 0]
    none, _ = days.left_over(jobs(backlog=False), [3600.0, 14_400.0], drawn)
    assert len(none) == 0


def test_expected_jobs_are_the_mean_of_drawn_ones():
    config = jobs(per_day=300.0)
    horizon_s, targets = 7200.0, [3600.0, 14_400.0]
    expected = days.expected_jobs(config, targets, 1.0, horizon_s)
    tables = [draw(WorkloadConfig(jobs=(config,)), seed, horizon_s) for seed in range(200)]
    counts = np.array([np.bincount(t.slo_class, minlength=3)[1:] for t in tables])
    error = counts.std(axis=0) / np.sqrt(len(tables))
    assert (np.abs(counts.mean(axis=0) - expected) < 4 * error + 1).all()
    # By hand, of the 4-hour class: its own jobs; backlog due in 4 h there is none of.
    assert expected[1] == pytest.approx(300 / 24 * 2 * 6 / 2)
    # Of the 1-hour class: its own; what is left of 4-hour ones with 1 to 4 hours to go.
    assert expected[0] == pytest.approx(75 + 300 / 24 * 6 / 2 * (16 - 1) / (2 * 4))


def test_rate_scale_scales_rates_and_jobs():
    base = WorkloadConfig(streams=(chat(days=(3,), start_s=0.0),), jobs=(jobs(),))
    one, three = (draw(base.scaled(x), 3) for x in (1.0, 3.0))
    assert (three.slo_class == 0).sum() == pytest.approx(3 * (one.slo_class == 0).sum(), rel=0.05)
    assert (three.slo_class > 0).sum() == 3 * (one.slo_class > 0).sum()


# ---- the day before ----


def test_the_past_is_counted_from_the_windows_before():
    workload = WorkloadConfig(streams=(chat(days=(3,), start_s=7200.0, seconds="azure-conv-2023"),))
    past = draw(workload, history_s=DAY_S).past
    assert past.length_s == 86_400
    assert past.requests.shape == (8640, 1, 1, 3)
    rates = load_days(M_LARGE).reshape(-1)[144 + 12 : 288 + 12]
    counts = past.requests[:, 0, 0, 0].reshape(144, 60).sum(axis=1)
    assert (np.abs(counts - 1200 * rates) <= 5 * np.sqrt(1200 * rates)).all()
    assert np.array_equal(past.input_tokens, 100 * past.requests)
    inputs, outputs = past.tokens_by_class(-1200.0, -600.0)
    assert inputs.tolist() == [100 * counts[-2], 0, 0]
    assert outputs.tolist() == [10 * counts[-2], 0, 0]
    assert past.tokens_by_class(-90_000.0, -86_400.0)[0].sum() == 0
    assert past.tokens_by_class(-600.0, 600.0)[0][0] == 100 * counts[-1]


def test_before_the_first_day_is_the_seventh():
    workload = WorkloadConfig(streams=(chat(days=(1,), start_s=0.0),))
    counts = draw(workload, history_s=DAY_S).past.requests[:, 0, 0, 0].reshape(144, 60).sum(axis=1)
    expected = 1200 * load_days(M_LARGE)[6]
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected)).all()


def test_jobs_of_before_are_in_the_past_whole():
    workload = WorkloadConfig(jobs=(jobs(n_requests=(5, 5)),))
    past = draw(workload, history_s=DAY_S).past
    counts = past.requests[:, 0, 0].sum(axis=1)
    assert set(counts.tolist()) <= {0, 5, 10}
    assert 20 < counts.sum() / 5 < 70


def test_what_is_served_does_not_depend_on_how_much_is_known_of_before():
    workload = WorkloadConfig(streams=(chat(),))
    assert same(draw(workload, 5), draw(workload, 5, history_s=DAY_S))


def test_demand_knows_the_past_by_whole_bins():
    requests = draw(WorkloadConfig(streams=(chat(),)), history_s=3600.0)
    record = DemandRecord(requests, 3600.0)
    seen = record.until(0.0, 600.0)
    assert seen.start_s == -3600.0
    past = requests.past
    tokens = (past.input_tokens + past.predicted_tokens).reshape(6, 60, 1, 1, 3).sum(axis=1)
    assert np.array_equal(seen.tokens, tokens)
    assert record.until(1200.0, 600.0).tokens.sum() > tokens.sum()
    with pytest.raises(ValueError, match=r"bin_s = 12.5: what came before is counted by 10 s"):
        DemandRecord(requests, 3600.0).until(0.0, 12.5)


# ---- scenarios ----


def test_expected_arrivals_are_the_mean_of_drawn_ones():
    scenario = load_scenario(
        "mixed-slo-hours", **{"workload.rate_scale": 0.02, "horizon_s": 1800, "history_s": 0}
    )
    drawn = np.array(
        [
            np.bincount(draw_requests(scenario, np.random.default_rng(s)).slo_class, minlength=5)
            for s in range(300)
        ]
    )
    error = drawn.std(axis=0) / np.sqrt(len(drawn))
    assert (np.abs(drawn.mean(axis=0) - expected_arrivals(scenario)) < 4 * error + 1).all()


def test_streamed_pieces_of_a_scenario_have_its_past():
    scenario = load_scenario("mixed-slo-hours", **{"workload.rate_scale": 0.02, "horizon_s": 1800})
    whole = draw_requests(scenario, np.random.default_rng(3))
    end_ps, first = next(draw_chunks(scenario, np.random.default_rng(3), 600.0))
    assert end_ps == 600 * PS_PER_S
    assert np.array_equal(first.past.requests, whole.past.requests)
    assert first.clock_s == whole.clock_s


# ---- bad input ----


@pytest.mark.parametrize(
    "values, message",
    [
        ({"days": ()}, "at least 1 item"),
        ({"days": (0,)}, "greater than or equal to 1"),
        ({"days": (15,)}, "less than or equal to 14"),
        ({"start_s": 700.0}, "start_s = 700: must be a whole number of 600 s"),
        ({"start_s": 86_400.0}, "less than 86400"),
    ],
)
def test_wrong_days_are_refused(values, message):
    refuses(message, DayArrivals, table=M_LARGE, **values, error=ValidationError)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"n_requests": (9, 3)}, r"n_requests = \[9, 3\]: the first is the smallest"),
        ({"classes": ("batch-1h", "batch-1h")}, "names must be unique"),
        ({"per_day": -1.0}, "greater than or equal to 0"),
    ],
)
def test_wrong_jobs_are_refused(values, message):
    refuses(message, jobs, **values, error=ValidationError)


def test_what_does_not_fit_together_is_refused():
    other = chat(days=(1, 2)).model_copy(update={"name": "code"})
    with pytest.raises(ValidationError, match="all streams of kind days must have the same"):
        WorkloadConfig(streams=(chat(), other))
    with pytest.raises(ValueError, match="history_s = 100: must be a whole number of 600 s"):
        draw(WorkloadConfig(streams=(chat(),)), history_s=100.0)
    with pytest.raises(ValueError, match="table = 'nowhere': no such days table"):
        draw(
            WorkloadConfig(
                streams=(chat().model_copy(update={"arrivals": DayArrivals(table="nowhere")}),)
            )
        )
    with pytest.raises(ValueError, match=r"jobs\[0\]\.classes = 'gold': unknown"):
        draw(WorkloadConfig(jobs=(jobs(classes=("gold",)),)))
    with pytest.raises(ScenarioError, match=r"workload\.jobs\.classes = 'gold'"):
        load_scenario("mixed-slo", **{"workload.jobs.jobs.classes": ["gold"]})
    with pytest.raises(ScenarioError, match="two streams, batch queues or jobs are called so"):
        load_scenario("mixed-slo", **{"workload.jobs.jobs.name": "chat"})
