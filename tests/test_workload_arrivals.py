"""Arrival processes: mean, burstiness, shape, places, stitching."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from llmscale_env.workload.arrivals import diurnal_factor, generate_arrivals
from llmscale_env.workload.config import (
    ArrivalConfig,
    CountArrivals,
    DiurnalArrivals,
    GammaArrivals,
    MMPPArrivals,
    PoissonArrivals,
    SpikeArrivals,
    TraceArrivals,
)
from llmscale_env.workload.requests import PS_PER_S
from llmscale_env.workload.tables import load_counts, load_hour_factors
from tests.small_tables import arrivals_s


def cv(times_s):
    gaps = np.diff(times_s)
    return gaps.std() / gaps.mean()


def write_trace(path: Path, times_s, inputs=None, outputs=None) -> str:
    inputs = range(1, len(times_s) + 1) if inputs is None else inputs
    outputs = [7] * len(times_s) if outputs is None else outputs
    rows = [f"{t},{i},{o}" for t, i, o in zip(times_s, inputs, outputs, strict=True)]
    path.write_text("arrival_time_s,input_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    return str(path)


def test_poisson_has_the_rate_and_exponential_gaps():
    times = arrivals_s(PoissonArrivals(), 20.0, 5000.0)
    assert len(times) == pytest.approx(100_000, rel=0.02)
    assert cv(times) == pytest.approx(1.0, abs=0.02)
    per_second = np.bincount(times.astype(int), minlength=5000)
    assert per_second.var() / per_second.mean() == pytest.approx(1.0, abs=0.08)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0, 8.0])
def test_gamma_has_the_rate_and_the_cv(burstiness):
    runs = [arrivals_s(GammaArrivals(cv=burstiness), 10.0, 4000.0, seed) for seed in range(8)]
    mean = np.mean([len(run) for run in runs])
    # One run's count has a standard deviation of about cv * sqrt(n): four of them over eight runs.
    assert mean == pytest.approx(40_000, abs=4 * burstiness * (40_000 / 8) ** 0.5)
    assert np.mean([cv(run) for run in runs]) == pytest.approx(burstiness, rel=0.06)


def test_gamma_is_stationary_from_the_first_second():
    # An ordinary renewal process with CV 8 would hold many more arrivals right after its start.
    early = [len(arrivals_s(GammaArrivals(cv=8), 5.0, 4.0, seed)) for seed in range(4000)]
    assert np.mean(early) == pytest.approx(20.0, rel=0.12)


def test_mmpp_has_the_rate_is_silent_while_off_and_bursty():
    config = MMPPArrivals(mean_on_s=10, mean_off_s=30)
    runs = [arrivals_s(config, 5.0, 20_000.0, seed) for seed in range(4)]
    assert np.mean([len(run) for run in runs]) == pytest.approx(100_000, rel=0.06)
    per_second = np.bincount(runs[0].astype(int), minlength=20_000)
    assert (per_second == 0).mean() == pytest.approx(0.75, abs=0.06)
    # Dispersion of an on/off process in windows much shorter than its stays: 1 + rate variance.
    assert per_second.var() / per_second.mean() > 10


def test_mmpp_off_rate():
    config = MMPPArrivals(mean_on_s=50, mean_off_s=50, off_rate_fraction=0.5)
    per_second = np.bincount(arrivals_s(config, 30.0, 20_000.0).astype(int))
    assert per_second.mean() == pytest.approx(30.0, rel=0.05)
    assert np.percentile(per_second, 75) > 38  # on: 40 a second
    assert np.percentile(per_second, 25) < 22  # off: 20 a second


def test_diurnal_follows_its_profile():
    config = DiurnalArrivals(profile="deepseek-r1", period_s=2400.0, start_s=0.0)
    times = arrivals_s(config, 50.0, 24_000.0)  # ten days of 100 s hours
    by_hour = np.bincount(((times % 2400) // 100).astype(int), minlength=24) / (10 * 100 * 50)
    hours = np.array(load_hour_factors()["deepseek-r1"])
    assert by_hour.mean() == pytest.approx(1.0, rel=0.01)
    # Hours are joined by straight lines, so an hour is blended with its neighbours.
    blended = 0.75 * hours + 0.125 * (np.roll(hours, 1) + np.roll(hours, -1))
    assert np.abs(by_hour - blended).max() < 0.06


def test_diurnal_sinusoid_peaks_where_told_and_noise_adds_variance():
    config = DiurnalArrivals(amplitude=0.8, peak_s=54_000, start_s=0.0)
    factors = diurnal_factor(config, np.array([54_000.0, 54_000.0 - 43_200.0]))
    assert factors.tolist() == [1.8, 0.2]
    flat = DiurnalArrivals(amplitude=0.0)
    noisy = DiurnalArrivals(amplitude=0.0, noise_cv=0.5)
    minutes = [
        np.bincount((arrivals_s(c, 20.0, 60_000.0) // 60).astype(int)) / 1200 for c in (flat, noisy)
    ]
    assert minutes[0].std() == pytest.approx(1200**-0.5, rel=0.1)
    assert minutes[1].std() == pytest.approx(0.5, rel=0.1)
    assert minutes[1].mean() == pytest.approx(1.0, abs=0.05)


def test_spikes_at_given_times_multiply_the_rate_once_where_they_overlap():
    config = SpikeArrivals(factor=10.0, duration_s=20.0, at_s=(100.0, 110.0, 500.0))
    per_second = np.bincount(arrivals_s(config, 50.0, 1000.0).astype(int), minlength=1000)
    assert per_second[100:130].mean() == pytest.approx(500, rel=0.05)
    assert per_second[500:520].mean() == pytest.approx(500, rel=0.05)
    quiet = np.delete(per_second, np.r_[100:130, 500:520])
    assert quiet.mean() == pytest.approx(50, rel=0.03)


def test_random_spikes_take_their_share_of_time():
    config = SpikeArrivals(factor=0.0, duration_s=10.0, every_s=30.0)
    times = arrivals_s(config, 50.0, 40_000.0)
    assert len(times) == pytest.approx(0.75 * 50 * 40_000, rel=0.03)


@pytest.mark.parametrize("table", ["azure-conv-2023", "azure-code-2023"])
def test_counts_at_their_own_rate_are_the_counts(table):
    counts = load_counts(table).counts
    horizon = len(counts)
    times = arrivals_s(CountArrivals(table=table, start_s=1000.0), None, float(horizon))
    found = np.bincount(times.astype(int), minlength=horizon)
    assert np.array_equal(found, np.roll(counts, -1000))


def test_counts_rescaled_keep_mean_and_bursts():
    config = CountArrivals(table="azure-code-2023")
    for rate in (0.5, 9.0):
        runs = [arrivals_s(config, rate, 3436.0, seed) for seed in range(3)]
        assert np.mean([len(run) for run in runs]) == pytest.approx(rate * 3436, rel=0.04)
        windows = np.bincount((runs[0] // 15).astype(int), minlength=229)
        assert (windows == 0).mean() == pytest.approx(0.48, abs=0.09)
        assert windows.max() / windows.mean() == pytest.approx(11.7, rel=0.25)


def test_counts_part_is_all_that_is_used():
    counts = load_counts("azure-conv-2023").counts[600:700]
    config = CountArrivals(table="azure-conv-2023", from_s=600, to_s=700, start_s=0.0)
    found = np.bincount(arrivals_s(config, None, 250.0).astype(int), minlength=250)
    assert np.array_equal(found, np.concatenate([counts, counts, counts[:50]]))


def test_counts_random_windows_differ_by_seed():
    config = CountArrivals(table="azure-code-2023")
    sizes = {len(arrivals_s(config, None, 60.0, seed)) for seed in range(10)}
    assert len(sizes) > 5


def test_trace_is_replayed_cut_and_stitched(tmp_path):
    # Three arrivals over 20 s: the period is one mean gap longer, 30 s.
    path = write_trace(tmp_path / "t.csv", [0.0, 5.0, 20.0])
    times = arrivals_s(TraceArrivals(path=path), None, 70.0)
    assert times.tolist() == [0, 5, 20, 30, 35, 50, 60, 65]
    later = arrivals_s(TraceArrivals(path=path, start_s=5.0), None, 40.0)
    assert later.tolist() == [0, 15, 25, 30]
    part = arrivals_s(TraceArrivals(path=path, from_s=4.0, to_s=10.0), None, 14.0)
    assert part.tolist() == [1, 7, 13]


def test_trace_rescaled_in_time_and_by_sampling(tmp_path):
    path = write_trace(tmp_path / "t.csv", np.arange(0, 100, 0.5))  # 2 a second
    squeezed = generate_arrivals(TraceArrivals(path=path), 8.0, 50.0, np.random.default_rng(0))
    assert np.allclose(squeezed.arrival_ps / PS_PER_S, np.arange(0, 50, 0.125))
    assert squeezed.rows[:5].tolist() == [0, 1, 2, 3, 4]
    twice = TraceArrivals(path=path, rescale="sample", jitter_s=0.0)
    assert arrivals_s(twice, 4.0, 2.0).tolist() == [0, 0, 0.5, 0.5, 1, 1, 1.5, 1.5]
    thin = arrivals_s(TraceArrivals(path=path, rescale="sample"), 0.5, 100.0)
    assert len(thin) == pytest.approx(50, abs=20)
    assert set(thin) <= set(np.arange(0, 100, 0.5))
    many = arrivals_s(TraceArrivals(path=path, rescale="sample"), 7.0, 100.0)
    assert len(many) == pytest.approx(700, abs=50)
    assert (np.diff(many) >= 0).all()


def test_rate_scale_multiplies_given_and_own_rates(tmp_path):
    path = write_trace(tmp_path / "t.csv", np.arange(0, 100, 0.5))
    for config, rate in ((TraceArrivals(path=path), None), (TraceArrivals(path=path), 2.0)):
        assert len(arrivals_s(config, rate, 50.0, rate_scale=3.0)) == 300
    assert len(arrivals_s(PoissonArrivals(), 10.0, 1000.0, rate_scale=3.0)) == pytest.approx(
        30_000, rel=0.03
    )


def test_an_empty_part_is_an_error(tmp_path):
    path = write_trace(tmp_path / "t.csv", [0.0, 5.0, 20.0])
    with pytest.raises(ValueError, match=r"from_s = 6.0, to_s = 9.0: no arrivals.*30 s long"):
        arrivals_s(TraceArrivals(path=path, from_s=6, to_s=9), None, 10.0)
    with pytest.raises(FileNotFoundError, match="relative path begins at the current folder"):
        arrivals_s(TraceArrivals(path="nowhere.csv"), None, 10.0)
    with pytest.raises(ValueError, match=r"from_s = 9000.*azure-conv-2023.*3502 s long"):
        arrivals_s(CountArrivals(table="azure-conv-2023", from_s=9000), None, 10.0)
    with pytest.raises(ValueError, match=r"azure-conv-2024.*there are \['azure-code-2023'"):
        arrivals_s(CountArrivals(table="azure-conv-2024"), None, 10.0)
    with pytest.raises(ValueError, match=r"profile = 'x'.*deepseek-r1"):
        arrivals_s(DiurnalArrivals(profile="x"), 1.0, 10.0)


CONFIGS = st.one_of(
    st.just({"kind": "poisson"}),
    st.fixed_dictionaries({"kind": st.just("gamma"), "cv": st.floats(0.1, 20)}),
    st.fixed_dictionaries(
        {
            "kind": st.just("mmpp"),
            "mean_on_s": st.floats(0.01, 100),
            "mean_off_s": st.floats(0.01, 100),
            "off_rate_fraction": st.floats(0, 0.99),
        }
    ),
    st.fixed_dictionaries(
        {
            "kind": st.just("diurnal"),
            "hour_factors": st.lists(st.floats(0.1, 5), min_size=2, max_size=30),
            "period_s": st.floats(60, 1e5),
            "noise_cv": st.just(0.0) | st.floats(0.01, 5),
        }
    ),
    st.fixed_dictionaries(
        {
            "kind": st.just("spikes"),
            "at_s": st.lists(st.floats(0, 300), max_size=5),
            "duration_s": st.floats(0.01, 50),
            "factor": st.floats(0, 20),
        }
    ),
    st.fixed_dictionaries(
        {
            "kind": st.just("counts"),
            "table": st.sampled_from(["azure-conv-2023", "azure-code-2023"]),
            "from_s": st.floats(0, 1500),
            "to_s": st.floats(2500, 3400),
        }
    ),
)


@settings(max_examples=150, deadline=None)
@given(CONFIGS, st.floats(0.01, 50), st.floats(0.001, 300), st.integers(0, 2**32))
def test_arrivals_are_sorted_inside_the_horizon_and_reproducible(data, rate, horizon_s, seed):
    config = TypeAdapter(ArrivalConfig).validate_python(data)
    runs = [
        generate_arrivals(config, rate, horizon_s, np.random.default_rng(seed)).arrival_ps
        for _ in range(2)
    ]
    assert np.array_equal(*runs)
    assert runs[0].dtype == np.int64
    assert (np.diff(runs[0]) >= 0).all()
    if len(runs[0]):
        assert runs[0][0] >= 0
        assert runs[0][-1] < round(horizon_s * PS_PER_S)


@pytest.mark.parametrize(
    "data, field",
    [
        ({"kind": "gamma", "cv": 0}, "cv"),
        ({"kind": "gamma", "cv": float("nan")}, "cv"),
        ({"kind": "mmpp", "off_rate_fraction": 1.0}, "off_rate_fraction"),
        ({"kind": "mmpp", "mean_on_s": -1}, "mean_on_s"),
        ({"kind": "diurnal", "hour_factors": [0, 0]}, "hour_factors"),
        ({"kind": "diurnal", "hour_factors": [1, 2], "profile": "m-small"}, "exclude each other"),
        ({"kind": "diurnal", "noise_cv": 1e-9}, "noise_cv"),
        ({"kind": "spikes", "duration_s": 0}, "duration_s"),
        ({"kind": "counts", "table": "azure-conv-2023", "from_s": 5, "to_s": 5}, "above from_s"),
        ({"kind": "poisson", "rate": 3}, "rate"),
        ({"kind": "weibull"}, "weibull"),
    ],
)
def test_bad_arrivals_name_the_field(data, field):
    with pytest.raises(ValidationError, match=field):
        TypeAdapter(ArrivalConfig).validate_python(data)
