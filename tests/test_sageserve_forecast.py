"""SageServe's demand of the next hour: by hand, out of sample, and what sees the future marked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.sageserve.forecast import (
    RELEASED,
    DemandForecast,
    ForecastSettings,
    arima,
    forecast_error,
    holt_winters,
    in_sample,
    oracle,
    rolling,
    seasonal,
    windows_of,
)


def load(bins=400, seed=0, n_llms=2, n_regions=2, noise=0.1):
    """A day of 96 bins, its phase by series, with noise (coefficient of variation)."""
    rng = np.random.default_rng(seed)
    t = np.arange(bins)[:, None, None]
    phase = np.arange(n_llms * n_regions).reshape(n_llms, n_regions)
    mean = 1000 * (1 + 0.6 * np.sin(2 * np.pi * (t - 7 * phase) / 96))
    return mean * rng.gamma(noise**-2, noise**2, (bins, n_llms, n_regions))


def test_windows_and_buffer_by_hand():
    forecast = DemandForecast(1, 2, ForecastSettings("last-value"))
    assert not forecast.sees_future
    for k, background in enumerate((100.0, 40.0, 0.0, 20.0, 60.0)):
        forecast.observe([[10.0 * k, 7.0]], [[background, 0.0]])
    ahead = forecast.ahead()
    assert ahead.tokens_per_s.tolist() == [[[40.0] * 4, [7.0] * 4]]
    # The past hour has four bins of 15 minutes: (40 + 0 + 20 + 60) / 4 = 30, a tenth of which is 3.
    assert ahead.buffer == pytest.approx(np.array([[3.0, 0.0]]))
    assert ahead.windows[0, 0].tolist() == [43.0] * 4
    assert ahead.peak.tolist() == [[40.0, 7.0]]
    # One bin ahead it was wrong by 10 each time: 40 of 10 + 20 + 30 + 40.
    assert ahead.error.tolist() == [[0.4, 0.0]]


def test_seasons_and_leads():
    rising = np.arange(12.0).reshape(12, 1, 1)
    day = ForecastSettings(seasonal(7200.0, bin_s=900.0), lead_s=1800.0)
    at, found = rolling(rising, day)
    assert at.tolist() == [4, 8]
    assert found[1, 0, 0].tolist() == [2.0, 3.0]  # windows 10 and 11, eight bins before
    assert windows_of(rising, at, day)[1, 0, 0].tolist() == [10.0, 11.0]
    assert RELEASED.steps - RELEASED.skipped == 40


def test_rolling_is_what_would_have_been_said():
    series = load(120)
    chosen = ForecastSettings(arima(first_s=6 * 3600.0))
    at, found = rolling(series, chosen)
    forecast = DemandForecast(2, 2, chosen)
    for values in series[: at[20]]:
        forecast.observe(values)
    assert np.array_equal(forecast.ahead().tokens_per_s, found[20])


def test_refitted_every_hour_on_its_window():
    forecast = DemandForecast(2, 2, ForecastSettings(arima(first_s=6 * 3600.0)))
    model = forecast._forecaster
    fits = []
    for k, values in enumerate(load(60)):
        forecast.observe(values)
        fits.append((k + 1, model.n_fits + model.n_failed_fits))
    grown = [k for (k, n), (_, before) in zip(fits[1:], fits, strict=False) if n > before]
    assert grown == list(range(24, 61, 4))
    assert fits[-1][1] == 4 * len(grown)


@pytest.mark.slow
@pytest.mark.parametrize(
    "forecaster",
    [
        arima(train_s=86_400.0),
        arima((1, 1, 1), train_s=43_200.0, refit_s=4 * 3600.0, method="mle"),
        arima((2, 0, 1), train_s=43_200.0, season_s=21_600.0),
        seasonal(),
        seasonal(21_600.0, level_s=7200.0),
        holt_winters(21_600.0),
        "last-value",
        "ewma",
    ],
)
@given(cut=st.integers(30, 90), seed=st.integers(0, 1000))
@settings(max_examples=3, deadline=None)
def test_the_future_changes_no_forecast_before_it(forecaster, cut, seed):
    series = load(110, seed)
    other = series.copy()
    other[cut:] = np.random.default_rng(seed + 1).uniform(0, 5000, other[cut:].shape)
    chosen = ForecastSettings(forecaster)
    at, found = rolling(series, chosen)
    _, changed = rolling(other, chosen)
    before = at <= cut
    assert before.sum() >= 7
    assert np.array_equal(found[before], changed[before])
    assert not np.array_equal(found[~before], changed[~before])


def test_ablations_see_the_future_and_say_so():
    series = load(200)
    chosen = ForecastSettings("last-value")
    at, found = rolling(series, chosen, future=oracle(series))
    assert np.array_equal(found, windows_of(series, at, chosen))
    assert forecast_error(found, windows_of(series, at, chosen)).windows == 0
    assert DemandForecast(2, 2, chosen, future=series).sees_future
    other = series.copy()
    other[150:] *= 3
    fits = [in_sample(each) for each in (series, other)]
    assert not np.allclose(fits[0][:100], fits[1][:100], rtol=1e-6)


def test_in_sample_predicts_each_bin_from_the_true_ones_before():
    from statsmodels.tsa.arima.model import ARIMA

    series = load(300, n_llms=1, n_regions=1)
    y = series[:, 0, 0]
    free = {"enforce_stationarity": False, "enforce_invertibility": False}
    model = ARIMA(y / y.mean(), order=(3, 1, 2), **free)
    with pytest.warns(UserWarning, match="differenced"):
        fit = model.fit(method="hannan_rissanen", cov_type="none")
    theirs = np.maximum(fit.predict() * y.mean(), 0)
    assert in_sample(series)[:, 0, 0] == pytest.approx(theirs)
    nothing = np.zeros((50, 1, 1))
    assert in_sample(nothing).tolist() == nothing.tolist()


def test_errors_by_hand():
    came = np.array([[[[10.0, 20.0]]], [[[30.0, 40.0]]]])
    said = np.array([[[[12.0, 16.0]]], [[[30.0, 50.0]]]])
    error = forecast_error(said, came)
    assert error.windows == pytest.approx((2 + 4 + 0 + 10) / 100)
    assert error.peak == pytest.approx((4 + 10) / 60)
    assert error.short == pytest.approx(4 / 60)
    assert error.n == 2
    assert np.isnan(forecast_error(came * 0, came * 0).windows)


def test_arima_beats_the_last_value_on_a_day_like_others():
    series = load(96 * 4, noise=0.02)
    errors = []
    for forecaster in (arima(), "last-value"):
        chosen = ForecastSettings(forecaster)
        at, found = rolling(series, chosen)
        errors.append(forecast_error(found, windows_of(series, at, chosen)).windows)
    assert errors[0] < 0.8 * errors[1]


@pytest.mark.parametrize(
    "keys, word",
    [
        ({"bin_s": 0.0}, "bin_s"),
        ({"bin_s": 700.0}, "horizon_s"),
        ({"lead_s": 3600.0}, "lead_s"),
        ({"lead_s": 100.0}, "lead_s"),
        ({"beta": -0.1}, "beta"),
    ],
)
def test_bad_settings_are_named(keys, word):
    with pytest.raises(ValueError, match=word):
        ForecastSettings("last-value", **keys)


def test_bad_values_are_named():
    forecast = DemandForecast(1, 2, ForecastSettings("last-value"))
    with pytest.raises(ValueError, match="interactive"):
        forecast.observe([1.0, 2.0])
    with pytest.raises(ValueError, match="background"):
        forecast.observe([[1.0, 2.0]], [[-1.0, 0.0]])
    with pytest.raises(ValueError, match="n_llms"):
        DemandForecast(0, 2)
