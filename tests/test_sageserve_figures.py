"""SageServe's figures that need no cluster: the pieces by hand, and each once in small."""

from __future__ import annotations

import numpy as np
import pytest

from baselines.sageserve.throughput import throughput
from experiments.sageserve import fig01_reactive as fig01
from experiments.sageserve import fig02_throughput as fig02
from experiments.sageserve import fig04_week as fig04
from experiments.sageserve import fig10_tokens as fig10
from experiments.sageserve import tableF_forecast_error as table
from experiments.sageserve.setting import Binned, binned
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.workload import generate_requests
from llmscale_env.workload.week import WEEK_LLMS, WEEK_REGIONS, sageserve_week, week_classes
from tests.small_studies import frame_of

DAY_S = 86_400.0


# ---- the setting ----


def test_binned_is_what_the_table_holds():
    week = sageserve_week(rate_scale=0.02, start_s=DAY_S)
    found = binned(week, 5, horizon_s=7200.0, bin_s=600.0)
    whole = generate_requests(
        week,
        classes=week_classes(week),
        llms=WEEK_LLMS,
        regions=WEEK_REGIONS,
        horizon_s=7200.0,
        rng=np.random.default_rng(5),
    )
    assert found.requests.shape == (2, 12, 4, 3)
    assert found.requests.sum() == len(whole)
    assert found.input_tokens.sum() == whole.input_tokens.sum()
    some = (
        (whole.slo_class == 1)
        & (whole.llm == 0)
        & (whole.region == 2)
        & (whole.arrival_s >= 1200)
        & (whole.arrival_s < 1800)
    )
    assert found.requests[1, 2, 0, 2] == some.sum()
    assert found.output_tokens[1, 2, 0, 2] == whole.output_tokens[some].sum()


def test_coarser_by_hand():
    numbers = np.arange(10.0).reshape(2, 5, 1, 1)
    wide = Binned(60.0, numbers, numbers, numbers).coarser(2)
    assert wide.bin_s == 120.0
    assert wide.requests[:, :, 0, 0].tolist() == [[1.0, 5.0], [11.0, 15.0]]


# ---- Figure 1 ----


def test_reactive_by_hand():
    load = np.array([10.0, 39.0, 40.0, 41.0, 85.0, 30.0])
    assert fig01.reactive(load, 40.0).tolist() == [1, 1, 2, 2, 3, 3]
    # Two minutes ahead the ideal sees 40 at minute 0 and 85 at minute 2.
    assert fig01.ideal(load, 40.0, 2).tolist() == [2, 2, 3, 3, 3, 3]


def test_figure_1():
    parameters = fig01.PARAMETERS["quick"]
    frame = frame_of(fig01, parameters)
    found = fig01.claims(frame, parameters)
    assert [[part.ours.mean for part in claim.parts] for claim in found] == [
        *([10, 15], [15, 5], [25, 11])
    ]
    assert all(claim.verdict == "reproduced" for claim in found)
    calm = parameters.model_copy(update={"burst_tps": 0.0})
    claims = fig01.claims(frame_of(fig01, calm), calm)
    assert claims[2].parts[0].verdict == "not measured"
    at_once = parameters.model_copy(update={"delay_min": 0})
    assert fig01.claims(frame_of(fig01, at_once), at_once)[1].parts[1].ours.mean == 0


# ---- Figure 2 ----


def test_throughput_by_hand():
    """Requests alike: a Bloom instance on 8 A100 holds 62,942 tokens, so seven of 8,300."""
    model = iteration_time_model("bloom-176b", "a100-80gb", 8)
    found = throughput("bloom-176b", "a100-80gb", 8, [8200] * 5, [200] * 5)
    assert found.batch == 7
    busy = model.prefill_s(8200) + 200 * model.decode_s(7, 7 * 8300) / 7
    assert found.busy_s.tolist() == pytest.approx([busy] * 5)
    assert found.requests_per_s == pytest.approx(1 / busy)
    assert found.prompt_tokens_per_s == pytest.approx(8200 / busy)
    assert found.tokens_per_s == pytest.approx(8400 / busy)
    assert found.kind == "end-to-end"
    # A target that only so many together meet.
    tight = model.decode_s(3, 3 * 8300)
    keys = {"input_tokens": [8200], "output_tokens": [200]}
    assert throughput("bloom-176b", "a100-80gb", 8, itl_s=tight, **keys).batch == 3
    assert throughput("bloom-176b", "a100-80gb", 8, itl_s=1e-6, **keys).batch == 1
    assert throughput("bloom-176b", "a100-80gb", 8, max_batch=5, **keys).batch == 5
    with pytest.raises(ValueError, match="output_tokens"):
        throughput("bloom-176b", "a100-80gb", 8, [1, 2], [1])


def test_figure_2_in_small():
    parameters = fig02.ByGpu(seeds=1, requests=300)
    frame = frame_of(fig02, parameters)
    assert len(frame) == 8
    assert (frame["p5"] < frame["p50"]).all()
    assert [claim.verdict for claim in fig02.claims(frame, parameters)] == ["reproduced"] * 2
    alike = frame.assign(tokens_per_s=1000.0)
    assert all(c.verdict == "not reproduced" for c in fig02.claims(alike, parameters))


# ---- Figure 4 ----


def test_texture_by_hand():
    minutes = np.full(120, 10.0)
    minutes[30] = 30.0
    found = fig04.texture(minutes)
    assert found["ratio_p90"] == 1.0
    assert found["level_sd"] == pytest.approx(np.std([1.0] * 119 + [3.0]))
    assert fig04.texture(np.tile([10.0, 20.0], 60))["ratio_p99"] == 2.0


def test_daily_wave_by_hand():
    hours = np.arange(96)
    assert fig04.daily_wave(5 + 2 * np.sin(2 * np.pi * hours / 24)) == pytest.approx(0.4)
    assert fig04.daily_wave(np.full(96, 3.0)) == pytest.approx(0.0, abs=1e-12)


def test_week_in_small():
    parameters = fig04.WholeWeek(seeds=1, rate_scale=0.05)
    frame = frame_of(fig04, parameters)
    assert (frame["row"] == "hour").sum() == 2 * 168
    found = {claim.sentence: claim for claim in fig04.claims(frame, parameters)}
    total = found["Has the week over 10 million requests, as the introduction says?"]
    assert total.question
    assert total.ours.mean == pytest.approx(0.5, rel=0.05)
    assert total.verdict == "not reproduced"  # a 20th of them
    fewer = found["Are non-interactive requests fewer than interactive ones?"]
    assert fewer.verdict == "reproduced"
    hours = found["Does the draw have the hours of the released notebooks?"]
    assert hours.parts[0].verdict == "reproduced"  # the weekend
    flat = frame.assign(requests_per_s=1.0, tokens_per_s=1.0)
    claims = fig04.claims(flat, parameters)
    for claim in (*claims[:2], claims[5]):
        assert claim.verdict == "not reproduced"


# ---- Figure 10 ----


def test_tokens_in_small():
    parameters = fig10.Tokens(seeds=1, rate_scale=0.005)
    frame = frame_of(fig10, parameters)
    assert len(frame) == 5 * 3 * 3
    by = frame.set_index(["llm", "kind", "quantity"])
    for llm in WEEK_LLMS:
        parts = [by.loc[(llm, "all", quantity), "mean"] for quantity in fig10.QUANTITIES]
        assert parts[0] + parts[1] == pytest.approx(parts[2])
        kinds = [by.loc[(llm, kind, "prompt"), "n"] for kind in ("all", "interactive", "niw")]
        assert kinds[0] == kinds[1] + kinds[2]
    claims = fig10.claims(frame, parameters)
    assert [claim.verdict for claim in claims[:3]] == ["reproduced"] * 3
    assert claims[1].ours.mean == pytest.approx(
        100 * (1 - by.loc[("all", "all", "output"), "above_1000"])
    )


# ---- the forecasts' errors ----


def test_cases_and_settings():
    parameters = table.PARAMETERS["paper"]
    cases = table.cases(parameters)
    assert sum(case["forecaster"] == table.MLE for case in cases) == 1
    by = {case["forecaster"]: table.settings_of(case) for case in cases}
    assert by[table.RELEASED].bin_s == 60.0
    arima = by[table.ARIMA_NAME].forecaster
    assert arima["order"] == [3, 1, 2]
    assert arima["refit_every"] == 4
    assert arima["train_window"] == 192
    assert by[table.MLE].forecaster["method"] == "mle"
    # A week has 672 bins of 15 minutes, 12 hours have 48; two weeks of training.
    week = {"kind": "seasonal-naive", "season_length": 672}
    assert by[table.LAST_WEEK].forecaster == week
    assert by[table.LAST_WEEK_LEVEL].forecaster == week | {"level_length": 48}
    assert by[table.WEEKLY_SMOOTHING].forecaster["season_length"] == 672
    weekly = by[table.WEEKLY_ARIMA].forecaster
    assert (weekly["season_length"], weekly["harmonics"], weekly["train_window"]) == (672, 56, 1344)


def test_load_of_the_hours_end_over_the_peak_by_hand():
    # Two hours of 5-minute bins; the last 25 minutes of the second are bins 19 to 23.
    load = np.arange(24.0).reshape(24, 1, 1)
    said = np.array([[[[3.5, 7.0]]], [[[4.2, 1.0]]]])
    found = table.late_over_peak(said, np.array([0.0, 3600.0]), load)
    assert found.ravel() == pytest.approx([9.0 / 7.0, 21.0 / 4.2])


def test_errors_in_small(monkeypatch):
    monkeypatch.setattr(
        table,
        "binned",
        lambda week, seed, horizon_s, bin_s: binned(week, seed, horizon_s=2 * DAY_S, bin_s=bin_s),
    )
    names = ("last value", table.ARIMA_NAME, table.IN_SAMPLE_MINUTES, table.ORACLE)
    parameters = table.Forecasts(
        seeds=1, names=names, rate_scale=0.1, bin_s=1800.0, skip_days=0.5, earlier_weeks=0
    )
    frame = frame_of(table, parameters)
    week = frame[(frame["part"] == "week") & (frame["llm"] == "all")].set_index("forecaster")
    assert week.loc[table.ORACLE, "peak"] == 0
    assert 0.05 < week.loc[table.ARIMA_NAME, "peak"] < 0.5
    assert week.loc["last value", "n"] == 36  # hours 12 to 47: after the 48th nothing comes
    minutes = frame[(frame["part"] == "week") & (frame["forecaster"] == table.IN_SAMPLE_MINUTES)]
    assert set(minutes["n"]) == {2160}
    claims = table.claims(frame, parameters)
    error, beats = claims[0].parts
    arima, last = (week.loc[name, "windows"] for name in (table.ARIMA_NAME, "last value"))
    assert error.ours.mean == pytest.approx(100 * arima)
    assert beats.ours.mean == pytest.approx(100 * (arima / last - 1))
    table.plot(frame, parameters)
