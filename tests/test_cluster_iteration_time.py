"""Iteration-time models: the form, the integer tables, the shipped file, the fits."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmscale_env.cluster import fitting
from llmscale_env.cluster.cards import GpuCard
from llmscale_env.cluster.fitting import FitDataError, fit, predict, start_behind_cache
from llmscale_env.cluster.iteration_data import (
    DataFileError,
    load_models,
    model_from_json,
    model_to_json,
)
from llmscale_env.cluster.iteration_model import ExtrapolationWarning, IterationTimeModel
from llmscale_env.cluster.iteration_time import (
    NoSuchModelError,
    all_reduce_s_per_token,
    iteration_time_model,
)
from llmscale_env.cluster.measurements import Measurements
from llmscale_env.cluster.readers import Row, measurements
from llmscale_env.sim.spec import ProfileSpec
from tests.refusals import refuses

SHIPPED = load_models()
IDS = [f"{m.llm}-{m.gpu}-tp{m.tp}-{m.kind}" for m in SHIPPED]

TOY = IterationTimeModel(
    llm="llama-2-7b",
    gpu="a100-80gb",
    tp=1,
    kind="user",
    source="by hand",
    decode_batch=(1, 2, 4),
    decode_base_s=(0.010, 0.012, 0.020),
    decode_per_token_s=(1e-6, 2e-6, 2e-6),
    prefill_knot_tokens=(0, 100, 200),
    prefill_knot_s=(0.01, 0.01, 0.03),
    prefill_slope_s=0.0003,
    prefill_pair_s=1e-8,
    mixed_knot_tokens=(0, 100),
    mixed_knot_s=(0.01, 0.02),
    mixed_slope_s=0.0002,
    mixed_batch=(0, 4),
    mixed_base_s=(0.0, 0.004),
    mixed_per_token_s=(1e-6, 1e-6),
    mixed_pair_s=2e-8,
    mixed_chunk_s=0.001,
)


def test_the_form_by_hand():
    assert TOY.decode_s(3, 1000) == pytest.approx(0.016 + 2e-6 * 1000)
    assert TOY.prefill_s(150) == pytest.approx(0.02 + 1e-8 * 150**2)
    assert TOY.prefill_s(300, pair_sum=0) == pytest.approx(0.03 + 0.03)
    # two decodes with 500 tokens, chunks of 30 after 70 cached and of 68: 100 tokens in all
    pairs = 30 * (2 * 70 + 30) + 68 * 68
    expected = 0.02 + 0.002 + 500e-6 + 2e-8 * pairs + 2 * 0.001
    assert TOY.mixed_s(2, 500, 98, pairs, chunks=2) == pytest.approx(expected)
    refuses("batch = 0", TOY.decode_s, 0, 0)


def test_extrapolation_keeps_throughput_rising():
    base, per_token = TOY.decode_tables(8)
    # chord over 2..4 is 4 ms a request; the line from the origin to 4 has 5 ms, so it stands
    assert base[8] == pytest.approx(0.020 + 4 * 0.004)
    assert per_token[8] == 2e-6
    steep = replace(TOY, decode_base_s=(0.010, 0.012, 0.040))
    assert steep.decode_tables(8)[0][8] == pytest.approx(0.040 + 4 * 0.0098)


def test_integer_tables_of_the_toy():
    tables = TOY.profile(max_batch=8, kv_capacity_tokens=1000, swap_bytes_per_s=524_288 * 1e6)
    assert tables.decode_base_ps[1:5].tolist() == [10**10, 12 * 10**9, 16 * 10**9, 2 * 10**10]
    assert tables.decode_per_token_ps[1] == 10**6
    assert tables.prefill_knot_tokens.tolist() == [0, 100, 200]
    assert tables.prefill_slope_ps.tolist() == [0, 2 * 10**8, 3 * 10**8]
    assert tables.prefill_pair_ps == 10**4
    assert tables.mixed_chunk_ps == 10**9
    assert tables.swap_out_ps_per_token == tables.swap_in_ps_per_token == 10**6
    assert ProfileSpec(**vars(tables)).max_batch == 8


@pytest.mark.parametrize("model", SHIPPED, ids=IDS)
def test_shipped_tables_are_sound(model: IterationTimeModel):
    tables = model.profile()
    spec = ProfileSpec(**vars(tables))
    assert spec.max_batch == 4096
    for name, value in vars(tables).items():
        if isinstance(value, np.ndarray):
            assert value.dtype == np.int64
            assert (value >= 0).all(), name
    assert (tables.decode_base_ps >= 1).all()
    for part in ("prefill", "mixed"):
        knots = getattr(tables, f"{part}_knot_tokens")
        value = getattr(tables, f"{part}_knot_ps")
        slope = getattr(tables, f"{part}_slope_ps")
        assert knots[0] == 0
        gap = value[1:] - (value[:-1] + slope[:-1] * np.diff(knots))
        assert (gap >= 0).all()
        assert (gap < np.diff(knots)).all()  # less than 1 ps a token
        assert slope[-1] > 0
    b = np.arange(1, 4097)
    for context in (0, 500):  # tokens per request
        time = tables.decode_base_ps[1:] + tables.decode_per_token_ps[1:] * b * context
        per_request = time / b
        assert (np.diff(per_request) <= 1e-5 * per_request[:-1]).all()


@pytest.mark.parametrize("model", SHIPPED, ids=IDS)
def test_published_errors_are_at_most_five_percent(model: IterationTimeModel):
    parts = ("decode", "prefill", "mixed") if model.mixed_measured else ("decode", "prefill")
    for part in parts:
        error = model.errors[part]
        assert error.n_held_out >= 5
        assert 0 < error.mean <= 0.05
        assert error.worst >= error.mean


@given(
    st.sampled_from(SHIPPED),
    st.integers(1, 256),
    st.integers(0, 100_000),
    st.integers(1, 4096),
    st.integers(0, 4096),
)
def test_integers_agree_with_seconds(
    model: IterationTimeModel, batch: int, context: int, chunk: int, cached: int
):
    p = model.profile(max_batch=256, kv_capacity_tokens=10**6)
    decode = int(p.decode_base_ps[batch]) + int(p.decode_per_token_ps[batch]) * context
    assert decode / 1e12 == pytest.approx(model.decode_s(batch, context), rel=1e-4)

    def line(part: str, tokens: int) -> int:
        knots = getattr(p, f"{part}_knot_tokens")
        k = int(np.searchsorted(knots, tokens, side="right")) - 1
        slope = int(getattr(p, f"{part}_slope_ps")[k])
        return int(getattr(p, f"{part}_knot_ps")[k]) + slope * (tokens - int(knots[k]))

    pairs = chunk * (2 * cached + chunk)
    prefill = line("prefill", chunk) + p.prefill_pair_ps * pairs
    assert prefill / 1e12 == pytest.approx(model.prefill_s(chunk, pairs), rel=1e-3)
    mixed = (
        line("mixed", batch + chunk)
        + int(p.mixed_base_ps[batch])
        + int(p.mixed_per_token_ps[batch]) * context
        + p.mixed_pair_ps * pairs
        + p.mixed_chunk_ps
    )
    assert mixed / 1e12 == pytest.approx(model.mixed_s(batch, context, chunk, pairs), rel=1e-3)


def test_default_kind_is_end_to_end_then_composed_then_roofline():
    assert iteration_time_model("llama-2-70b", "a100", 4).kind == "end-to-end"
    composed = iteration_time_model("llama-2-70b", "a100", 4, kind="composed")
    assert composed.kind == "composed"
    assert "a floor" in composed.notes
    assert iteration_time_model("llama-3.1-8b", "a100", 1).kind == "composed"
    v100 = iteration_time_model("llama-2-7b", "v100", 1)
    assert v100.kind == "roofline"
    assert "roofline" in v100.describe()
    assert iteration_time_model("bloom-176b", "h100", 8).kind == "end-to-end"


def test_every_llm_and_degree_of_the_issue_is_served():
    from llmscale_env.cluster.cards import known_gpus, known_llms
    from llmscale_env.cluster.kv import fitting_tp

    for llm in known_llms():
        for gpu in known_gpus():
            for tp in fitting_tp(llm, gpu):
                assert iteration_time_model(llm, gpu, tp).profile().kv_capacity_tokens > 0


def test_composed_times_as_read_from_the_data():
    # Rows of the composed file: decode of 16 requests at 1024 tokens, prefill of one 1024 prompt.
    model = iteration_time_model("llama-2-70b", "a100", 4, kind="composed")
    assert model.decode_s(16, 16 * 1024) == pytest.approx(41.3394e-3, rel=0.01)
    assert model.prefill_s(1024) == pytest.approx(222.2168e-3, rel=0.02)


def test_end_to_end_is_above_the_composed_floor():
    for tp in (4, 8):
        measured = iteration_time_model("llama-2-70b", "a100", tp)
        floor = iteration_time_model("llama-2-70b", "a100", tp, kind="composed")
        for b in (1, 8, 32, 64):
            assert measured.decode_s(b, 576 * b) > floor.decode_s(b, 576 * b)


def test_roofline_scales_with_the_card():
    slow = iteration_time_model("llama-2-7b", "a100", 1, kind="roofline")
    card = GpuCard("twice-a100", 2**36, 624e12, 2 * 2.039e12, 64e9, 600e9)
    fast = iteration_time_model("llama-2-7b", card, 1)
    assert fast.kind == "roofline"
    overhead = 32 * 57.87e-6  # per layer, the same on any card
    for b in (1, 512):
        kernels = slow.decode_s(b, 100 * b) - overhead
        assert fast.decode_s(b, 100 * b) - overhead == pytest.approx(kernels / 2, rel=0.001)


def test_roofline_stays_near_composed_times():
    for llm, tp in (("llama-2-7b", 1), ("llama-2-13b", 2), ("llama-2-70b", 8)):
        composed = iteration_time_model(llm, "a100", tp, kind="composed")
        roofline = iteration_time_model(llm, "a100", tp, kind="roofline")
        assert roofline.decode_s(32, 32 * 500) == pytest.approx(
            composed.decode_s(32, 32 * 500), rel=0.25
        )
        assert roofline.prefill_s(2048) == pytest.approx(composed.prefill_s(2048), rel=0.35)


def test_wrong_questions_say_what_there_is():
    with pytest.raises(NoSuchModelError, match=r"measured: tp 2 composed.*roofline.*always"):
        iteration_time_model("llama-3.1-70b", "a100", 4, kind="end-to-end")
    with pytest.raises(NoSuchModelError, match="must be one of end-to-end, composed"):
        iteration_time_model("llama-3.1-70b", "a100", 4, kind="mesured")
    with pytest.raises(ValueError, match="tp = 5: must be a positive divisor of the 32 heads"):
        iteration_time_model("llama-2-7b", "a100", 5)
    refuses("swap_bytes_per_s = 0", TOY.profile, swap_bytes_per_s=0)
    refuses("max_batch = 0", TOY.profile, max_batch=0)
    refuses("decode_batch must rise strictly from 1", replace, TOY, decode_batch=(1, 1, 4))
    refuses("mixed_knot_s must not fall", replace, TOY, mixed_knot_s=(0.02, 0.01))


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "cannot be read"),
        ("{", "line 1: not JSON"),
        ("[]", "list 'models'"),
        ('{"models": [], "schema_version": 99}', "schema_version = 99"),
        ('{"models": [{"llm": "x"}], "schema_version": 1}', r"models\[0\]"),
    ],
)
def test_bad_data_files_are_one_clear_error(tmp_path: Path, content: str | None, message: str):
    path = tmp_path / "own.json"
    if content is not None:
        path.write_text(content)
    refuses(message, iteration_time_model, "llama-2-7b", "a100", 1, data=path, error=DataFileError)


def test_own_file_comes_before_the_shipped_one(tmp_path: Path):
    path = tmp_path / "own.json"
    TOY.decode_s(3, 100)  # What a model keeps of its own answers is no part of its file.
    path.write_text(json.dumps({"schema_version": 1, "models": [model_to_json(TOY)]}))
    assert iteration_time_model("llama-2-7b", "a100", 1, data=path) == TOY
    assert iteration_time_model("llama-2-13b", "a100", 1, data=path).kind == "composed"
    assert model_from_json(json.loads(json.dumps(model_to_json(TOY)))) == TOY


def _rows(model: IterationTimeModel, rng: np.random.Generator, noise: float) -> list[Row]:
    """Iterations that a model would take, at round configurations."""
    rows = []
    for b in (1, 2, 4, 8, 16, 32, 64):
        for context in (128, 512, 1024, 2048):
            rows.append(("decode", b, context, 0, 0, 0, model.decode_s(b, b * context)))
    for n in (1, 2, 4):
        for chunk in (64, 128, 256, 512, 1024, 2048):
            seconds = model.prefill_s(n * chunk, n * chunk * chunk)
            rows.append(("prefill", 0, 0, n, chunk, 0, seconds))
    for b in (4, 16, 64):
        for context in (256, 1024):
            for n, chunk, cached in ((1, 128, 0), (1, 512, 1024), (2, 256, 512), (4, 128, 0)):
                pairs = n * chunk * (2 * cached + chunk)
                seconds = model.mixed_s(b, b * context, n * chunk, pairs, n)
                rows.append(("mixed", b, context, n, chunk, cached, seconds))
    return [Row(*row[:6], 1e3 * row[6] * rng.uniform(1 - noise, 1 + noise)) for row in rows]


def _made(rows: list[Row]) -> Measurements:
    return measurements(rows, llm="llama-2-7b", gpu="a100-80gb", tp=1, kind="user", source="made")


def _linear(**changes: object) -> IterationTimeModel:
    """A model with linear times, as a fit should find again."""
    b = (1, 2, 4, 8, 16, 32, 64)
    model = replace(
        TOY,
        decode_batch=b,
        decode_base_s=tuple(0.02 + 1e-4 * x for x in b),
        decode_per_token_s=(4e-7,) * len(b),
        prefill_knot_tokens=(0, 128, 8192),
        prefill_knot_s=(0.03, 0.03, 0.03 + 1e-4 * 8064),
        prefill_slope_s=1e-4,
        prefill_pair_s=3e-9,
        mixed_knot_tokens=(0, 128, 8192),
        mixed_knot_s=(0.03, 0.03, 0.03 + 1e-4 * 8064),
        mixed_slope_s=1e-4,
        mixed_batch=(0, 64),
        mixed_base_s=(0.0, 0.0032),
        mixed_per_token_s=(4e-7, 4e-7),
        mixed_pair_s=3e-9,
        mixed_chunk_s=0.0005,
    )
    return replace(model, **changes)


def test_the_fit_finds_a_known_model_again():
    truth = _linear()
    found = fit(_made(_rows(truth, np.random.default_rng(0), 0.0)))
    assert found.decode_s(16, 16 * 3000) == pytest.approx(truth.decode_s(16, 16 * 3000), rel=1e-6)
    assert found.decode_s(24, 24 * 777) == pytest.approx(truth.decode_s(24, 24 * 777), rel=0.01)
    assert found.prefill_pair_s == pytest.approx(3e-9, rel=1e-6)
    assert found.prefill_s(1536) == pytest.approx(truth.prefill_s(1536), rel=0.02)
    mixed = (32, 32 * 512, 512, 512 * (2 * 512 + 512))
    assert found.mixed_s(*mixed) == pytest.approx(truth.mixed_s(*mixed), rel=0.03)
    assert found.errors["decode"].mean < 0.01
    assert found.mixed_measured


def test_noise_shows_in_the_published_error():
    errors = fit(_made(_rows(_linear(), np.random.default_rng(0), 0.10))).errors
    assert 0.02 < errors["decode"].mean < 0.10
    assert errors["decode"].worst > errors["decode"].mean
    assert errors["decode"].n_held_out < errors["decode"].n_fitted == 28


def test_held_out_rows_are_really_held_out():
    """One absurd configuration: the fit goes through it, the error on it must not."""
    rows = _rows(_linear(), np.random.default_rng(0), 0.0)
    rows = [r for r in rows if r.part != "mixed"]
    bad = [replace(r, ms=3 * r.ms) if r.chunk_tokens == 512 and r.chunks == 1 else r for r in rows]
    assert fit(_made(bad)).errors["prefill"].worst > 0.5
    assert fit(_made(rows)).errors["prefill"].worst < 0.2


def test_decode_or_prefill_missing_is_an_error():
    row = Row("decode", 1, 100, 0, 0, 0, 10.0)
    data = _made([row])
    refuses("no rows of kind 'prefill'", fit, data, error=FitDataError)


def test_slower_links_between_gpus_cost_what_all_reduces_take_longer():
    fast = iteration_time_model("llama-2-13b", "a100-80gb", 4)
    slow = iteration_time_model("llama-2-13b", "a100-80gb-pcie", 4)
    extra = all_reduce_s_per_token("llama-2-13b", "a100-80gb", 4, 32e9)
    extra -= all_reduce_s_per_token("llama-2-13b", "a100-80gb", 4, 300e9)
    assert extra > 1e-5
    assert (slow.kind, slow.gpu) == (fast.kind, "a100-80gb-pcie")
    for batch in (1, 7, 200):
        assert slow.decode_s(batch, 1000) == pytest.approx(
            fast.decode_s(batch, 1000) + batch * extra
        )
    for tokens in (10, 3000, 9000):
        assert slow.prefill_s(tokens) == pytest.approx(fast.prefill_s(tokens) + tokens * extra)
    assert slow.mixed_s(3, 900, 500, 250_000) == pytest.approx(
        fast.mixed_s(3, 900, 500, 250_000) + 503 * extra
    )
    one = iteration_time_model("llama-2-13b", "a100-80gb-pcie", 1)
    assert one.decode_s(9, 900) == iteration_time_model("llama-2-13b", "a100-80gb").decode_s(9, 900)
    assert iteration_time_model("llama-3.1-8b", "a100-80gb-pcie", 8).gpu == "a100-80gb-pcie"


def _with_a_start(share: float) -> Measurements:
    """Chunked iterations of a known model, each `share` longer once anything is cached."""
    truth, rows = _linear(), []
    for b in (1, 4, 16, 64):
        for context in (128, 512, 2048):
            rows.append(Row("decode", b, context, 0, 0, 0, 1e3 * truth.decode_s(b, b * context)))
            for chunk in (64, 128, 256, 512, 1024):
                for cached in (0, 512, 1024, 4096):
                    pairs = chunk * (2 * cached + chunk)
                    seconds = truth.mixed_s(b, b * context, chunk, pairs, 1)
                    longer = 1 + share * (cached > 0)
                    rows.append(Row("mixed", b, context, 1, chunk, cached, 1e3 * seconds * longer))
    for chunk in (64, 128, 256, 512, 1024, 2048):
        seconds = truth.prefill_s(chunk, chunk * chunk)
        rows.append(Row("prefill", 0, 0, 1, chunk, 0, 1e3 * seconds))
    return _made(rows)


def test_what_a_chunk_behind_a_cache_costs_from_its_first_cached_token_on():
    pair_s = _linear().prefill_pair_s
    assert start_behind_cache(_with_a_start(0.0), pair_s) == pytest.approx(0.0, abs=1e-9)
    assert start_behind_cache(_with_a_start(0.1), pair_s) == pytest.approx(0.1, rel=0.2)
    # Rows that differ in nothing but the cache are needed.
    assert start_behind_cache(_made(_rows(_linear(), np.random.default_rng(0), 0.0)), 3e-9) == 0.0


def test_usual_chunks_count_more_where_the_start_is_large(monkeypatch: pytest.MonkeyPatch):
    data = _with_a_start(0.1)
    usual = data.only((data.cached_tokens > 0) & (data.cached_tokens <= 1024))

    def worst() -> float:
        return float(np.abs(predict(fit(data), usual) / usual.seconds - 1).mean())

    weighted = worst()
    monkeypatch.setattr(fitting, "START_SHARE", 1.0)
    assert weighted < 0.7 * worst()


def test_per_token_time_does_not_rise_with_the_batch_where_kernels_were_profiled():
    rows = [
        Row("decode", b, c, 0, 0, 0, 20 + 1e-4 * b * c * (1.3 if b == 40 else 1.0))
        for b in (8, 24, 40, 56)
        for c in (64, 256, 1024)
    ]
    rows += [Row("prefill", 0, 0, 1, t, 0, 20 + t / 10) for t in (8, 64, 512)]
    made = _made(rows)
    _, _, own = fitting.fit_decode(made.of("decode"), 1e-9, 1.0)
    _, _, tiles = fitting.fit_decode(replace(made, tile_tokens=8).of("decode"), 1e-9, 1.0)
    assert max(np.diff(own)) > 2e-8  # as measured
    assert max(np.diff(tiles)) <= 0.0
    assert tiles[-1] == pytest.approx(1e-7)


def test_what_is_beyond_the_measurements_is_said_once():
    model = replace(TOY, max_batch=64, max_context_tokens=4096, max_prefill_tokens=8192, gpu="a10")
    assert model.beyond(batch=64, mean_context=4096, prefill_tokens=8192) == ()
    words = "decode of 65 requests, measured to 64; prefill of 126,000 tokens, measured to 8,192"
    assert "; ".join(model.beyond(batch=65, prefill_tokens=126_000)) == words
    with pytest.warns(
        ExtrapolationWarning, match="llama-2-7b on 1 x a10 .user., extrapolated: dec"
    ):
        assert model.warn_beyond(batch=65, prefill_tokens=126_000) == words
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.warn_beyond(batch=65, prefill_tokens=126_000) == words
        assert model.warn_beyond(batch=64) == ""
    assert iteration_time_model("llama-2-7b", "v100", 1).beyond(batch=10_000) == ()
