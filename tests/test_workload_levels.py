"""Rate levels: equilibrium, repetition, fits; BurstGPT's published statistics; rescaling to a peak."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from llmscale_env import traces
from llmscale_env.scenarios.load import ScenarioError, load_scenario
from llmscale_env.workload import DEFAULT_CLASSES, StreamConfig, WorkloadConfig
from llmscale_env.workload.arrivals import generate_arrivals, level_rate, level_shares
from llmscale_env.workload.config import LevelArrivals
from llmscale_env.workload.fitting import fit_lengths, fit_levels, rises
from llmscale_env.workload.generate import draw_lengths
from llmscale_env.workload.mixes import load_mix, replayed
from llmscale_env.workload.rescale import scale_to_peak
from llmscale_env.workload.tables import load_counts
from tests.refusals import refuses
from tests.small_tables import arrivals_s, drawn

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "traces"


# ---------------------------------------------------------------- the process


def test_two_levels_by_hand():
    config = LevelArrivals(rates_per_s=(0, 8), mean_stays_s=(30, 10))
    assert level_shares(config).tolist() == [0.75, 0.25]
    assert level_rate(config) == 2.0
    times = arrivals_s(config, None, 40_000.0)
    assert len(times) == pytest.approx(80_000, rel=0.06)
    per_second = np.bincount(times.astype(int), minlength=40_000)
    assert (per_second == 0).mean() == pytest.approx(0.75, abs=0.05)


def test_equilibrium_of_three_levels_by_hand():
    # Visits: the first level is left for the second only, from which half go on to the third: 2 to 2 to 1.
    config = LevelArrivals(
        rates_per_s=(1, 2, 3),
        mean_stays_s=(10, 20, 40),
        next=((0, 1, 0), (0.5, 0, 0.5), (1, 0, 0)),
    )
    assert level_shares(config) == pytest.approx(np.array([20, 40, 40]) / 100)
    assert level_rate(config) == pytest.approx(0.2 + 0.8 + 1.2)


def test_starts_in_equilibrium():
    config = LevelArrivals(rates_per_s=(0, 20), mean_stays_s=(300, 100))
    early = [len(arrivals_s(config, None, 1.0, seed)) for seed in range(3000)]
    assert np.mean(early) == pytest.approx(5.0, rel=0.1)


def test_a_higher_rate_repeats_requests_where_they_are():
    config = LevelArrivals(rates_per_s=(0, 2), mean_stays_s=(200, 50), jitter_s=0.5)
    own = arrivals_s(config, None, 20_000.0)
    tripled = arrivals_s(config, 3 * level_rate(config), 20_000.0)
    assert len(tripled) == pytest.approx(3 * len(own), abs=1)  # one copy more for none of them
    # No new request is further than the jitter from an old one, so every gap stays one.
    nearest = own[np.searchsorted(own, tripled, side="right") - 1]
    assert (tripled - nearest).max() <= 0.5
    thinned = arrivals_s(config, level_rate(config) / 2, 20_000.0)
    assert set(thinned) <= set(own)
    assert len(thinned) == pytest.approx(len(own) / 2, rel=0.05)


@pytest.mark.parametrize(
    "values, word",
    [
        ({"rates_per_s": (0, 0), "mean_stays_s": (1, 1)}, "rates_per_s"),
        ({"rates_per_s": (1, 2, 3), "mean_stays_s": (1, 1)}, "mean_stays_s"),
        ({"rates_per_s": (1, 2), "mean_stays_s": (1, 1), "next": ((0, 1),)}, "next"),
        ({"rates_per_s": (1, 2), "mean_stays_s": (1, 1), "next": ((0.5, 0.5), (1, 0))}, "next.0"),
    ],
)
def test_wrong_levels_are_named(values, word):
    refuses(word, LevelArrivals, **values, error=ValidationError)


def test_a_stream_of_levels_needs_no_rate():
    levels = {"kind": "levels", "rates_per_s": (1, 3), "mean_stays_s": (5, 5)}
    stream = StreamConfig(name="a", llm="llama-2-7b", arrivals=levels)
    assert stream.rate_per_s is None


# ---------------------------------------------------------------- fits


def test_rises_by_hand():
    found = rises(np.array([1, 3, 10, 0, 4]), base=1)
    assert found[:3].tolist() == [10.0, pytest.approx(10 / 3), 0.4]
    assert np.isnan(found[3])
    assert found[4] == 0


@pytest.mark.slow
def test_levels_come_back_from_their_own_draws():
    true = LevelArrivals(
        rates_per_s=(0.5, 6, 25),
        mean_stays_s=(40, 15, 8),
        next=((0, 0.9, 0.1), (0.5, 0, 0.5), (0.2, 0.8, 0)),
    )
    counts = np.bincount(arrivals_s(true, None, 12_000.0).astype(int), minlength=12_000)
    found = fit_levels(counts, 3)
    assert found.rates_per_s == pytest.approx(true.rates_per_s, rel=0.1)
    assert found.mean_stays_s == pytest.approx(true.mean_stays_s, rel=0.25)
    assert np.array(found.next) == pytest.approx(np.array(true.next), abs=0.15)


@pytest.mark.slow
@pytest.mark.parametrize(
    "table, dispersion, empty, rise",
    # README of the traces: variance over mean in 15 s windows 99 and 5.2, empty ones 48 % and none; rises of
    # 9 and 5 times within 2 s are those of the tables.
    [("azure-code-2023", 99.3, 0.48, 9.0), ("azure-conv-2023", 5.2, 0.0, 5.0)],
)
def test_fitted_generators_look_like_the_traces(table, dispersion, empty, rise):
    counts = load_counts(table).counts
    mean = counts.mean()
    assert np.nanmax(rises(counts, mean / 2)) == pytest.approx(rise, rel=0.05)
    fitted = fit_levels(counts, 5)
    assert level_rate(fitted) == pytest.approx(mean, rel=0.1)
    again = np.bincount(arrivals_s(fitted, None, 50_000.0).astype(int), minlength=50_000)
    wide = again[: 50_000 // 15 * 15].reshape(-1, 15).sum(axis=1)
    assert wide.var() / wide.mean() == pytest.approx(dispersion, rel=0.3)
    assert (wide == 0).mean() == pytest.approx(empty, abs=0.08)
    assert np.nanmax(rises(again, mean / 2)) >= 5


def test_lengths_are_fitted_by_hand():
    rng = np.random.default_rng(1)
    z = rng.standard_normal((2, 50_000))
    x = np.rint(np.exp(6 + 0.7 * z[0])).astype(int)
    y = np.rint(np.exp(5 + 0.5 * (0.6 * z[0] + 0.8 * z[1]))).astype(int)
    found = fit_lengths(x, y)
    assert found.input_sigma == pytest.approx(0.7, abs=0.01)
    assert found.output_sigma == pytest.approx(0.5, abs=0.01)
    assert found.log_correlation == pytest.approx(0.6, abs=0.01)
    assert found.input_mean_tokens == pytest.approx(x.mean(), abs=0.1)
    refuses("at least two", fit_lengths, x[:1], y[:1])


def test_what_cannot_be_fitted():
    for counts, levels in ((np.zeros(100, int), 2), (np.ones(30, int), 2), (np.ones(100, int), 1)):
        refuses("levels", fit_levels, counts, levels)


def test_the_fit_command_prints_a_stream(tmp_path, capsys):
    import yaml

    path = tmp_path / "mine.csv"
    times = arrivals_s(LevelArrivals(rates_per_s=(1, 9), mean_stays_s=(20, 10)), None, 600.0)
    rows = "".join(f"{t},{100 + k % 7},{5 + k % 3}\n" for k, t in enumerate(times))
    path.write_text("arrival_time_s,input_tokens,output_tokens\n" + rows)
    assert traces.main(["fit", str(path), "levels=2"]) == 0
    printed, _, table = capsys.readouterr().out.partition("   ")
    stream = StreamConfig(name="mine", llm="llama-2-7b", **yaml.safe_load(printed))
    assert level_rate(stream.arrivals) == pytest.approx(len(times) / 600, rel=0.2)
    assert stream.lengths.input_mean_tokens == pytest.approx(103, abs=0.2)
    assert "largest rise within 2 s" in table
    assert traces.main(["fit", "sharegpt"]) == 2
    assert traces.main(["fit", str(path), "levels=many"]) == 2
    assert traces.main(["fit", str(path), "from_s=5000"]) == 2


# ---------------------------------------------------------------- BurstGPT


def test_burstgpt_has_the_published_statistics():
    # BurstGPT_1: 1,429,737 requests in 5,269,973 s; timestamps in whole seconds.
    stream = load_mix("burstgpt").streams[0]
    found = []
    for seed in range(4):
        times = arrivals_s(stream.arrivals, None, 5_269_973.0, seed)
        gaps = np.diff(np.floor(times))
        minutes = np.bincount((times / 60).astype(int))
        found.append(
            (
                len(times),
                gaps.mean(),
                np.median(gaps),
                np.percentile(gaps, 95),
                np.percentile(gaps, 99),
                gaps.std(),
                minutes.max() / 60,
                minutes.std() / minutes.mean(),
            )
        )
    mean = np.mean(found, axis=0)
    assert mean[:5] == pytest.approx([1_429_737, 3.686, 1.0, 12, 52], rel=0.08)
    assert mean[5:] == pytest.approx(
        [48.96, 20.8, 2.91], rel=0.4
    )  # the tails: as good as five levels are
    rng = np.random.default_rng(0)
    arrivals = generate_arrivals(stream.arrivals, None, 500_000.0, rng)
    inputs, outputs = draw_lengths(stream.lengths, arrivals, rng)
    assert inputs.mean() == pytest.approx(621, rel=0.08)  # clipped to the LLM's context
    assert outputs.mean() == pytest.approx(126, rel=0.03)


# ---------------------------------------------------------------- the real trace in its place


def test_the_real_trace_takes_its_place(tmp_path):
    rows = "".join(f"{k},ChatGPT,{10 + k % 5},7,17,Conversation log\n" for k in range(200))
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    (tmp_path / "BurstGPT_without_fails_1.csv").write_text(header + rows)
    workload = replayed(load_mix("blitzscale-burstgpt"), tmp_path)
    (stream,) = workload.streams
    assert stream.arrivals.kind == "trace"
    assert stream.arrivals.rescale == "sample"
    requests = drawn(workload, 100.0)
    assert set(requests.output_tokens) == {7}
    assert set(requests.input_tokens) <= set(range(10, 15))


def test_one_override_replays_a_scenario(tmp_path):
    with pytest.raises(ScenarioError, match=r"workload\.replay.*fetch azure-conv-2023"):
        load_scenario("chiron-8b", **{"workload": "chat", "workload.replay": str(tmp_path)})
    rows = "".join(f"{k / 2},{50 + k % 3},9\n" for k in range(7100))
    text = "arrival_time_s,input_tokens,output_tokens\n" + rows
    (tmp_path / "AzureLLMInferenceTrace_conv.csv").write_text(text)
    scenario = load_scenario("chiron-8b", **{"workload": "chat", "workload.replay": str(tmp_path)})
    (stream,) = scenario.workload.streams
    assert stream.arrivals.trace_path is not None
    assert stream.lengths.kind == "trace"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the raw traces are not here")
@pytest.mark.parametrize("name", ["code", "conv"])
def test_mixes_have_the_requests_of_the_real_traces(name):
    mix = load_mix(f"blitzscale-azure-{name}")
    ours, real = (drawn(each, 3400.0, seed=3) for each in (mix, replayed(mix, SHARED)))
    # The windows are the same: counts per second agree up to where copies fall (within a second).
    a, b = (np.bincount((t.arrival_s / 15).astype(int), minlength=227)[:226] for t in (ours, real))
    assert np.corrcoef(a, b)[0, 1] > 0.97
    for column in ("input_tokens", "output_tokens"):
        mine, theirs = getattr(ours, column).mean(), getattr(real, column).mean()
        assert mine == pytest.approx(theirs, rel=0.05)


# ---------------------------------------------------------------- rescaling


def test_scale_to_peak_by_hand():
    # Requests of 2 tokens: with every count 4 times as large, the peak is 8 times the largest count.
    counts = load_counts("azure-code-2023").counts
    lengths = {"kind": "fixed", "input_tokens": 2, "output_tokens": 1}
    arrivals = {"kind": "counts", "table": "azure-code-2023", "start_s": 0}
    workload = WorkloadConfig(
        streams=(StreamConfig(name="a", llm="llama-2-7b", arrivals=arrivals, lengths=lengths),)
    )

    def load_of(requests):
        return np.bincount(requests.arrival_s.astype(int), weights=requests.input_tokens)

    keys = {
        "classes": DEFAULT_CLASSES,
        "llms": ("llama-2-7b",),
        "horizon_s": float(len(counts)),
        "seeds": (0, 1),
    }
    most = 2.0 * counts.max()
    assert scale_to_peak(workload, 4 * most, load_of, **keys) == pytest.approx(4.0, rel=0.02)
    refuses("capacity", scale_to_peak, workload, 0.0, load_of, **keys)
    refuses("no load", lambda: scale_to_peak(workload, 1.0, lambda requests: np.zeros(3), **keys))


def test_rescaling_keeps_the_pattern():
    counts = load_counts("azure-code-2023").counts
    mix = load_mix("blitzscale-azure-code")
    stream = mix.streams[0]
    fixed = stream.model_copy(
        update={"arrivals": stream.arrivals.model_copy(update={"start_s": 0.0})}
    )
    requests = drawn(mix.model_copy(update={"streams": (fixed,)}), float(len(counts)))
    scaled = np.bincount(requests.arrival_s.astype(int), minlength=len(counts))
    assert ((scaled == 0) == (counts == 0)).mean() > 0.999  # what is silent stays silent
    assert np.corrcoef(scaled, counts)[0, 1] > 0.99
    assert np.nanmax(rises(scaled, scaled.mean() / 2)) >= 5
