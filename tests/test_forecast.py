"""Forecasters: values computed by hand, no look into the future, the score that they keep."""

from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmscale_env.control.forecast import (
    ARIMA,
    ERROR_BEFORE_DATA,
    EWMA,
    FORECASTERS,
    Clairvoyant,
    HoltWinters,
    LastValue,
    SeasonalNaive,
    make_forecaster,
)
from tests.refusals import refuses
from tests.waiting import printed

ROOT = Path(__file__).resolve().parents[1]
SPECS = [
    "last-value",
    "ewma",
    "holt-winters",
    {"kind": "holt-winters", "season_length": 4},
    {"kind": "holt-winters", "season_length": 4, "fit_every": 15, "fit_window": 18},
    {"kind": "arima", "order": [1, 0, 1], "min_train": 10, "train_window": 16, "refit_every": 9},
    {"kind": "arima", "order": [2, 1, 0], "min_train": 12, "train_window": 16, "refit_every": 9},
    {
        "kind": "arima",
        "order": [1, 0, 1],
        "min_train": 16,
        "train_window": 24,
        "refit_every": 9,
        "method": "hannan-rissanen",
    },
    {"kind": "seasonal-naive", "season_length": 5},
    {"kind": "seasonal-naive", "season_length": 5, "level_length": 2},
    {
        "kind": "arima",
        "order": [1, 0, 0],
        "min_train": 10,
        "train_window": 16,
        "refit_every": 9,
        "season_length": 6,
        "harmonics": 2,
    },
]


def fed(forecaster, series):
    """The forecaster after it has seen `series` (T,) or (T, n)."""
    series = np.asarray(series, dtype=float)
    series = series[:, None] if series.ndim == 1 else series
    forecaster.reset(series.shape[1])
    for values in series:
        forecaster.update(values)
    return forecaster


def path(forecaster, steps=3):
    return forecaster.predict_path(steps)[:, 0]


# ---- by hand ----


def test_last_value():
    assert path(fed(LastValue(), [3, 7, 5])).tolist() == [5, 5, 5]


def test_seasonal_naive_by_hand():
    naive = SeasonalNaive(season_length=3)
    assert path(fed(naive, [3, 7])).tolist() == [7, 7, 7]
    assert path(fed(naive, [3, 7, 5, 4]), 4).tolist() == [7, 5, 4, 7]


def test_seasonal_naive_with_level_by_hand():
    # Last season 10, 20, 30; this one 5, 40. Level of one value: 40 / 20 = 2; next are 30, 5, 40.
    series = [10, 20, 30, 5, 40]
    one = SeasonalNaive(season_length=3, level_length=1)
    assert path(fed(one, series), 4).tolist() == [60, 10, 80, 60]
    # Of two: (5 + 40) / (10 + 20) = 1.5. Of three only two have a value a season before: the same.
    for length in (2, 3):
        level = SeasonalNaive(season_length=3, level_length=length)
        assert path(fed(level, series), 3).tolist() == [45, 7.5, 60]
    # Nothing to compare with yet, or nothing came then: last season as it was.
    assert path(fed(one, [10, 20, 30])).tolist() == [10, 20, 30]
    assert path(fed(one, [0, 20, 30, 7])).tolist() == [20, 30, 7]
    # After a whole season more the ring has gone round.
    assert path(fed(one, [*series, 30, 10, 20])).tolist() == [0.5 * 30, 0.5 * 10, 0.5 * 20]


def test_arima_with_fourier_terms_repeats_a_season():
    """A sine of eight values and its harmonic, on a level: the terms say it exactly, no error is left."""
    t = np.arange(40)
    wave = 50 + 20 * np.sin(2 * np.pi * t / 8) + 5 * np.cos(4 * np.pi * t / 8)
    options = {"train_window": 24, "min_train": 16, "refit_every": 4}
    for order in ((0, 0, 0), (1, 0, 0), (0, 1, 0)):
        seasonal = ARIMA(order, season_length=8, harmonics=2, **options)
        np.testing.assert_allclose(path(fed(seasonal, wave[:34]), 6), wave[34:], rtol=1e-6)
    # Without the terms it is not known, and before it has seen a season it is not either.
    assert abs(path(fed(ARIMA((1, 0, 0), **options), wave[:34]), 6) - wave[34:]).max() > 5
    young = ARIMA((0, 0, 0), season_length=8, harmonics=2, train_window=24, min_train=6)
    np.testing.assert_allclose(path(fed(young, wave[:6])), wave[:6].mean())


def test_arima_without_a_season_is_as_before_whatever_its_harmonics(rng):
    series = 50 + rng.normal(0, 5, 60)
    plain, with_none = (
        path(fed(ARIMA((1, 1, 0), train_window=30, min_train=20, **more), series))
        for more in ({}, {"harmonics": 3})
    )
    assert (plain == with_none).all()


class Twice(LastValue):
    """A user's own forecaster."""

    def _path(self, steps):
        return 2 * super()._path(steps)


def test_a_forecaster_of_ones_own_is_taken_and_copied():
    mine = Twice()
    made = make_forecaster(mine)
    assert path(fed(made, [3])).tolist() == [6, 6, 6]
    assert mine.n_series == 0


@pytest.mark.parametrize(
    "answer, message",
    [
        (np.zeros((2, 1)), r": must be of shape \(3, 1\), got \(2, 1\)"),
        (np.zeros(3), r": must be of shape \(3, 1\), got \(3,\)"),
        (np.full((3, 1), np.nan), r"\[0, 0\] = nan: must be finite and at most 1e\+11"),
        ([[0], [np.inf], [0]], r"\[1, 0\] = inf: must be finite and at most 1e\+11"),
        ([[0], [0], [-np.inf]], r"\[2, 0\] = -inf: must be finite"),
        ([[1e300]] * 3, r"\[0, 0\] = 1e\+300: must be finite and at most 1e\+11"),
        (None, r" = None: must be numbers of shape \(3, 1\)"),
        ("many", r" = 'many': must be numbers of shape \(3, 1\)"),
        ({}, r" = {}: must be numbers"),
        ([[1], [2, 3], [4]], r" = \[\[1\], \[2, 3\], \[4\]\]: must be numbers"),
        (np.full((3, 1), 1j), r" = array\(.*: must be numbers"),
    ],
)
def test_what_a_forecaster_of_ones_own_says_is_checked(answer, message):
    class Wrong(LastValue):
        def _path(self, steps):
            return answer if steps == 3 else super()._path(steps)

    refuses(rf"^Wrong\._path\(3\){message}", lambda: path(fed(Wrong(), [1.0])))


@pytest.mark.parametrize("answer", [[[2], [-3], [4]], np.array([[True], [False], [True]])])
def test_lists_and_whole_numbers_of_ones_own_are_taken_and_negative_ones_cut_off(answer):
    class Mine(LastValue):
        def _path(self, steps):
            return answer if steps == 3 else super()._path(steps)

    found = path(fed(Mine(), [1.0]))
    assert found.tolist() == [max(float(each[0]), 0.0) for each in answer]
    assert found.dtype == np.float64


@pytest.mark.parametrize(
    "state, message",
    [
        (None, r" = None: must be arrays by name whose last axis is the 2 series"),
        ({"last": [0, 0]}, r"\['last'\] = \[0, 0\]: must be arrays by name"),
        ({"last": np.zeros((2, 3))}, r"\['last'\] = array.*: must be arrays by name"),
        ({"last": np.float64(3)}, r"\['last'\] = .*: must be arrays by name"),
        ({"age": np.zeros(2)}, r"\['age'\]: must have a name other than .*'residuals'"),
    ],
)
def test_the_state_of_a_forecaster_of_ones_own_is_checked(state, message):
    class Wrong(LastValue):
        def _allocate(self, n_series):
            return state

    refuses(rf"^Wrong\._allocate\(2\){message}", lambda: Wrong().reset(2))


@pytest.mark.parametrize("method", ["_allocate", "_observe", "_path"])
def test_where_a_forecaster_of_ones_own_fails_is_told(method):
    def failing(self, argument):
        raise KeyError("model")

    broken = type("Broken", (LastValue,), {method: failing})()
    with pytest.raises(RuntimeError, match=rf"^Broken\.{method} failed: KeyError: 'model'") as told:
        fed(broken, [1.0])
    assert isinstance(told.value.__cause__, KeyError)


def test_ewma_starts_at_the_first_value():
    # 8; 8 + (4 - 8) / 2 = 6; 6 + (10 - 6) / 2 = 8
    assert path(fed(EWMA(alpha=0.5), [8])).tolist() == [8, 8, 8]
    assert path(fed(EWMA(alpha=0.5), [8, 4])).tolist() == [6, 6, 6]
    assert path(fed(EWMA(alpha=0.5), [8, 4, 10])).tolist() == [8, 8, 8]


def test_holt_without_damping():
    # level 10, trend 0; then x = 20: level 15, trend 0.5 * 5 = 2.5;
    # then x = 20: level 0.5 * 20 + 0.5 * 17.5 = 18.75, trend 0.5 * 3.75 + 0.5 * 2.5 = 3.125
    holt = fed(HoltWinters(alpha=0.5, beta=0.5, damping=1.0), [10, 20, 20])
    np.testing.assert_allclose(path(holt), [18.75 + 3.125, 18.75 + 6.25, 18.75 + 9.375])


def test_holt_damped():
    # level 10; x = 20: level 15, trend 2.5. Ahead: 15 + (0.5, 0.75, 0.875) * 2.5
    holt = fed(HoltWinters(alpha=0.5, beta=0.5, damping=0.5), [10, 20])
    np.testing.assert_allclose(path(holt), [16.25, 16.875, 17.1875])


def test_holt_winters_season():
    hw = HoltWinters(alpha=0.5, beta=0.5, gamma=0.5, damping=1.0, season_length=2)
    # First cycle 10, 20: level 15, trend 0, season (-5, 5).
    np.testing.assert_allclose(path(fed(hw, [10, 20])), [10, 20, 10])
    # x = 14, s = -5: level 0.5 * 19 + 0.5 * 15 = 17, trend 0.5 * 2 = 1,
    # season of this part 0.5 * (14 - 15) + 0.5 * -5 = -3; next the other part of the cycle, 5.
    np.testing.assert_allclose(path(fed(hw, [10, 20, 14])), [17 + 1 + 5, 17 + 2 - 3, 17 + 3 + 5])


def test_holt_winters_agrees_with_statsmodels(rng):
    """As its ETS model, whose trend weight is alpha * beta.

    (ExponentialSmoothing differs in one entry: it forecasts with the season as it was before the
    last value.)
    """
    from statsmodels.tsa.exponential_smoothing.ets import ETSModel

    m = 6
    season = 10 * np.sin(2 * np.pi * np.arange(60) / m)
    series = 50 + 0.3 * np.arange(60) + season + rng.normal(0, 2, 60)
    ours = fed(HoltWinters(0.4, 0.2, 0.3, damping=0.9, season_length=m), series)
    level = series[:m].mean()
    model = ETSModel(
        series[m:],
        error="add",
        trend="add",
        damped_trend=True,
        seasonal="add",
        seasonal_periods=m,
        initialization_method="known",
        initial_level=level,
        initial_trend=0.0,
        initial_seasonal=series[:m] - level,
    )
    weights = [0.4, 0.4 * 0.2, 0.3, 0.9]
    start = [level, 0.0, *(series[:m] - level)[::-1]]
    theirs = model.smooth([*weights, *start][: len(model.param_names)])
    np.testing.assert_allclose(path(ours, 9), theirs.forecast(9), rtol=1e-10)


def test_fitted_weights_follow_a_season_better(rng):
    m, n = 12, 240
    clean = 100 + 60 * np.sin(2 * np.pi * np.arange(n) / m)
    series = clean + rng.normal(0, 3, n)
    fixed = fed(HoltWinters(alpha=0.9, beta=0.5, gamma=0.0, season_length=m), series)
    fitted = HoltWinters(
        alpha=0.9, beta=0.5, gamma=0.0, season_length=m, fit_every=60, fit_window=72
    )
    assert fed(fitted, series).recent_error()[0] < 0.8 * fixed.recent_error()[0]


def ar_series(rng, n=400):
    series = np.zeros(n)
    for t in range(2, n):
        series[t] = 0.6 * series[t - 1] + 0.25 * series[t - 2] + rng.normal()
    return 30 + series


def test_arima_recovers_an_ar_process(rng):
    series = ar_series(rng)
    arima = fed(ARIMA(order=(2, 0, 0), train_window=400, min_train=400), series)
    assert arima.n_fits == 1
    np.testing.assert_allclose(arima.save_series(0)["ar"][:, 0], [0.6, 0.25], atol=0.12)
    smooth = fed(EWMA(), series)
    assert arima.predict(1)[0] != smooth.predict(1)[0]
    # Its forecast is the recursion of its weights around its mean.
    state = arima.save_series(0)
    mean, ar = state["mean"][0], state["ar"][:, 0]
    z = [series[-1] - mean, series[-2] - mean]
    first = ar @ z
    second = ar @ [first, z[0]]
    np.testing.assert_allclose(path(arima, 2), [mean + first, mean + second])


@pytest.mark.parametrize("order", [(2, 0, 0), (2, 0, 1), (0, 0, 2), (1, 1, 1), (2, 2, 1)])
def test_arima_forecasts_as_statsmodels_does(rng, order):
    """Between fits too: the same weights applied to longer series, forecast several steps ahead."""
    from statsmodels.tsa.arima.model import ARIMA as Model

    d, q = order[1:]
    series = ar_series(rng, 160)
    if d:
        series = 200 + np.cumsum(series - 30)
    arima = fed(ARIMA(order=order, train_window=120, min_train=120, refit_every=100), series)
    assert arima.n_fits == 1
    state = arima.save_series(0)
    params = [*state["mean"][: d == 0], *state["ar"][:, 0], *state["ma"][:, 0], 1.0]
    model = Model(series, order=order, trend="c" if d == 0 else "n")
    theirs = model.filter(params).forecast(4)
    np.testing.assert_allclose(path(arima, 4), theirs, rtol=2e-3 if q else 1e-6)


def test_the_regression_recovers_weights_and_innovations(rng):
    """ARMA(1, 1) with weights 0.7 and 0.4, known innovations."""
    e = rng.normal(size=3000)
    z = np.zeros(3000)
    for t in range(1, 3000):
        z[t] = 0.7 * z[t - 1] + e[t] + 0.4 * e[t - 1]
    keys = {"train_window": 3000, "min_train": 3000, "method": "hannan-rissanen"}
    arima = fed(ARIMA(order=(1, 0, 1), **keys), 40 + z)
    state = arima.save_series(0)
    assert state["ar"][0, 0] == pytest.approx(0.7, abs=0.06)
    assert state["ma"][0, 0] == pytest.approx(0.4, abs=0.06)
    assert state["e"][0, 0] == pytest.approx(e[-1], abs=0.2)
    ahead = (
        state["mean"][0] + state["ar"][0, 0] * z_of(state) + state["ma"][0, 0] * state["e"][0, 0]
    )
    assert path(arima, 1)[0] == pytest.approx(ahead)
    refuses("method", ARIMA, method="guess")


def z_of(state):
    return state["z"][0, 0]


def test_arima_continues_a_line():
    line = 5 + 2 * np.arange(30)
    arima = fed(ARIMA(order=(1, 1, 0), min_train=12), line)
    np.testing.assert_allclose(path(arima, 3), [65, 67, 69])
    noisy = line + np.tile([0.5, -0.5], 15)
    drifting = fed(ARIMA(order=(0, 1, 1), drift=True, min_train=30), noisy)
    np.testing.assert_allclose(path(drifting, 5), 65 + 2 * np.arange(5), atol=0.6)


def test_arima_before_its_first_fit_and_on_a_constant():
    assert path(fed(ARIMA(min_train=20), [4, 9])).tolist() == [9, 9, 9]
    constant = fed(ARIMA(min_train=20), np.full(50, 7.0))
    assert path(constant).tolist() == [7, 7, 7]
    assert constant.n_failed_fits == 0


def test_arima_that_cannot_be_fitted_says_so(monkeypatch):
    arima = ARIMA(order=(1, 0, 0), min_train=20)
    monkeypatch.setattr(ARIMA, "_weights", lambda self, w: None)
    fed(arima, np.tile([3.0, 5.0, 8.0], 10))
    assert (arima.n_fits, arima.n_failed_fits) == (0, 1)
    assert path(arima).tolist() == [8, 8, 8]


def test_clairvoyant_says_what_will_be():
    future = np.array([[1.0], [2.0], [4.0], [8.0]])
    seer = Clairvoyant(future)
    seer.reset(1)
    assert path(seer).tolist() == [1, 2, 4]
    seer.update([1.0])
    assert path(seer).tolist() == [2, 4, 8]
    seer.update([2.0])
    assert path(seer).tolist() == [4, 8, 8]
    assert seer.recent_error().tolist() == [0.0]
    seer.update([5.0])  # not what it was told would come: 1 off in 5 + 2 + ... seen from then on
    assert seer.recent_error()[0] == pytest.approx(1 / 7)


def test_only_the_clairvoyant_is_marked():
    assert [name for name, kind in FORECASTERS.items() if kind.is_clairvoyant] == ["clairvoyant"]


# ---- error and quantiles ----


def test_error_by_hand():
    # Last value, one ahead: forecasts 10, 20, 10 meet 20, 10, 40: wrong by 10, 10, 30 of 70.
    forecaster = fed(LastValue(), [10, 20, 10, 40])
    assert forecaster.recent_error()[0] == pytest.approx(50 / 70)
    # Two ahead: 10 meets 10, 20 meets 40: wrong by 20 of 50.
    assert fed(LastValue(error_steps=2), [10, 20, 10, 40]).recent_error()[0] == pytest.approx(0.4)
    # Over the last two intervals: wrong by 10 and 30 of 50.
    assert fed(LastValue(window=2), [10, 20, 10, 40]).recent_error()[0] == pytest.approx(0.8)


def test_error_before_data_and_of_zeros():
    forecaster = LastValue()
    forecaster.reset(2)
    assert forecaster.recent_error().tolist() == [ERROR_BEFORE_DATA] * 2
    forecaster.update([0.0, 5.0])
    assert forecaster.recent_error().tolist() == [ERROR_BEFORE_DATA] * 2
    forecaster.update([0.0, 0.0])
    assert forecaster.recent_error().tolist() == [0.0, 1.0]


def test_quantile_by_hand():
    # Residuals one ahead: 10, -10, 30, 0. Sorted: -10, 0, 10, 30; last value 40.
    forecaster = fed(LastValue(), [10, 20, 10, 40, 40])
    for q, residual in ((0, -10), (1 / 3, 0), (0.5, 5), (1, 30)):
        assert forecaster.predict_quantile(1, q)[0] == pytest.approx(40 + residual)
    # Two ahead: 0, 20, 30. Further than max_steps: as max_steps.
    assert forecaster.predict_quantile(2, 1.0)[0] == 70
    short = fed(LastValue(max_steps=2), [10, 20, 10, 40, 40])
    assert short.predict_quantile(9, 1.0)[0] == 70
    assert fed(LastValue(), [10]).predict_quantile(1, 0.9)[0] == 10


def test_quantiles_cover(rng):
    series = rng.poisson(50, 400)
    forecaster = EWMA(window=200)
    forecaster.reset(1)
    covered = []
    for t, value in enumerate(series):
        if t > 100:
            covered.append(value <= forecaster.predict_quantile(1, 0.9)[0])
        forecaster.update([value])
    assert np.mean(covered) == pytest.approx(0.9, abs=0.06)


# ---- what holds for all ----


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_the_future_moves_nothing(spec, rng):
    """Two series that part at t = 30: every answer given before is the same to the bit."""
    seen = rng.poisson(20, (30, 2)).astype(float)
    answers = []
    for future in (np.zeros((20, 2)), rng.poisson(500, (20, 2)).astype(float)):
        forecaster = make_forecaster(spec)
        forecaster.reset(2)
        told = []
        for t, values in enumerate(np.concatenate([seen, future])):
            told.append(
                [
                    forecaster.predict_path(5),
                    forecaster.predict_quantile(3, 0.9)[None],
                    forecaster.recent_error()[None],
                ]
            )
            forecaster.update(values)
            assert t < 49 or (told[-1][0] != told[30][0]).any()
        answers.append(np.stack([np.concatenate(row) for row in told]))
    assert (answers[0][:31] == answers[1][:31]).all()
    assert (answers[0][31:] != answers[1][31:]).any()


def test_the_clairvoyant_moves_with_the_future():
    one, other = (fed(Clairvoyant([[1], [2], [last]]), [1.0]) for last in (3, 9))
    assert one.predict(2)[0] != other.predict(2)[0]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_series_do_not_touch_each_other(spec, rng):
    series = rng.poisson([5, 50, 500], (45, 3)).astype(float)
    together = fed(make_forecaster(spec), series)
    for i in range(3):
        alone = fed(make_forecaster(spec), series[:, i])
        np.testing.assert_allclose(together.predict_path(4)[:, i], path(alone, 4), rtol=1e-9)
        np.testing.assert_allclose(together.recent_error()[i], alone.recent_error()[0])


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_one_series_starts_anew(spec, rng):
    series = rng.poisson(50, (60, 2)).astype(float)
    forecaster = fed(make_forecaster(spec), series[:25])
    forecaster.reset_series(1)
    for values in series[25:]:
        forecaster.update(values)
    for i, begin in ((0, 0), (1, 25)):
        alone = fed(make_forecaster(spec), series[begin:, i])
        np.testing.assert_allclose(forecaster.predict_path(4)[:, i], path(alone, 4), rtol=1e-9)
        assert forecaster.predict_quantile(2, 0.8)[i] == pytest.approx(
            alone.predict_quantile(2, 0.8)[0]
        )
        assert forecaster.age[i] == alone.age[0]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_copies_pickles_and_saved_series_go_on_alike(spec, rng):
    series = rng.poisson(50, (50, 2)).astype(float)
    forecaster = fed(make_forecaster(spec), series[:30])
    others = [copy.deepcopy(forecaster), pickle.loads(pickle.dumps(forecaster))]
    put_back = fed(make_forecaster(spec), rng.poisson(9, (7, 2)))
    put_back.restore_series([1, 0], forecaster.save_series([1, 0]))
    again = fed(make_forecaster(spec), series[:30])  # determinism
    others += [put_back, again]
    before = forecaster.predict_path(4)
    for values in series[30:]:
        for each in (forecaster, *others):
            each.update(values)
    for other in others:
        assert (other.predict_path(4) == forecaster.predict_path(4)).all()
        assert (other.recent_error() == forecaster.recent_error()).all()
    assert (forecaster.predict_path(4) != before).any()


def test_clairvoyant_of_many_episodes():
    seer = Clairvoyant()
    seer.reset(2)
    seer.set_future([[1, 5], [2, 6], [3, 7]])
    seer.update([1, 5])
    saved = seer.save_series(0)
    seer.reset_series(1)
    seer.set_future([[50], [60], [70]], 1)
    assert seer.predict(1).tolist() == [2, 50]
    seer.restore_series(1, saved)
    assert seer.predict(1).tolist() == [2, 2]


@settings(max_examples=60)
@given(
    st.sampled_from(["last-value", "ewma", "holt-winters", SPECS[3]]),
    st.lists(st.floats(0, 1e6), min_size=1, max_size=40),
    st.integers(1, 15),
)
def test_forecasts_are_finite_and_not_negative(spec, series, steps):
    forecaster = fed(make_forecaster(spec), series)
    low, high = (forecaster.predict_quantile(steps, q)[0] for q in (0.1, 0.9))
    assert 0 <= low <= high < np.inf
    assert (forecaster.predict_path(steps) >= 0).all()
    assert 0 <= forecaster.recent_error()[0] < np.inf


@settings(max_examples=30)
@given(st.sampled_from(SPECS[:4]), st.floats(0.0, 1e4), st.integers(1, 30))
def test_a_constant_is_forecast_as_it_is(spec, value, n):
    forecaster = fed(make_forecaster(spec), np.full(n, value))
    np.testing.assert_allclose(path(forecaster, 5), value, rtol=1e-9, atol=1e-9)


# ---- slips ----


@pytest.mark.parametrize(
    "spec,message",
    [
        ("prophet", "'prophet': unknown; there are .*'arima'"),
        ({"order": [1, 0, 0]}, "with `kind`"),
        (None, "must be a name, a mapping with `kind` or a Forecaster"),
        ({"kind": "ewma", "beta": 1}, "forecaster.beta: ewma takes no such argument.*'alpha'"),
        ({"kind": "ewma", "alpha": 0}, "forecaster.alpha = 0: must be above 0"),
        ({"kind": "ewma", "alpha": "x"}, "forecaster.alpha = 'x'"),
        ({"kind": "ewma", "error_steps": 13}, "error_steps = 13: must be at most max_steps = 12"),
        ({"kind": "arima", "order": [1, 0]}, "order = .*three integers"),
        ({"kind": "arima", "order": 3}, "order = 3: must be three integers"),
        ({"kind": "arima", "order": [1, 3, 0]}, r"order\[1\] = 3: differences"),
        ({"kind": "arima", "order": [1, -1, 0]}, r"order\[1\] = -1"),
        ({"kind": "arima", "train_window": 5}, "train_window = 5: must be an integer of at least"),
        ({"kind": "arima", "min_train": 200}, "min_train = 200: must be at most"),
        ({"kind": "arima", "order": [1, 2, 0], "drift": True}, "drift = True"),
        ({"kind": "holt-winters", "season_length": 1}, "season_length = 1"),
        ({"kind": "clairvoyant", "future": [1.0, 2.0]}, r"future: expected shape \(T, n_series\)"),
        ({"kind": "clairvoyant", "future": [[1.0, -2.0]]}, r"future\[0, 1\] = -2.0"),
    ],
)
def test_a_bad_spec_is_refused(spec, message):
    refuses(message, make_forecaster, spec)


@pytest.mark.parametrize(
    "values", [[1.0], [[1.0, 2.0]], [1.0, np.nan], [1.0, -1.0], [1, np.inf], [1, 1e12]]
)
def test_bad_values_are_refused(values):
    forecaster = make_forecaster("last_value")
    forecaster.reset(2)
    refuses("values", forecaster.update, values)
    assert forecaster.age.tolist() == [0, 0]


def test_other_slips():
    forecaster = make_forecaster({"kind": "EWMA"})
    refuses("reset", forecaster.update, [1.0], error=RuntimeError)
    refuses("n_series = 0", forecaster.reset, 0)
    forecaster.reset(2)
    assert forecaster.predict(3).tolist() == [0, 0]
    for call, name in (
        (lambda: forecaster.predict(0), "steps_ahead"),
        (lambda: forecaster.predict_quantile(1, 1.5), "q = 1.5"),
        (lambda: forecaster.reset_series(2), "which"),
        (lambda: forecaster.restore_series(0, forecaster.save_series([0, 1])), "saved"),
    ):
        refuses(name, call)
    seer = make_forecaster("clairvoyant")
    seer.reset(2)
    refuses("set_future", seer.predict, error=RuntimeError)
    seer.set_future([[1.0]], 0)
    refuses("of series 1", seer.predict, error=RuntimeError)
    refuses("expected 1 intervals as before, got 2", seer.set_future, [[1.0], [2.0]], 1)
    refuses("expected 2 series", seer.set_future, [[1.0]])


def test_statsmodels_is_imported_only_for_a_fit():
    code = (
        "import sys; from llmscale_env.control.forecast import make_forecaster as make\n"
        "for kind in ('arima', 'holt-winters', 'ewma'):\n"
        "    f = make(kind); f.reset(1); f.update([1.0]); f.predict(2)\n"
        "print('statsmodels' in sys.modules or 'pandas' in sys.modules)"
    )
    assert printed(code).strip() == "False"


def test_a_forecaster_of_ones_own_is_refused_in_a_line():
    class Unfinished(LastValue):
        def __init__(self):
            pass

    class Held(LastValue):
        def __init__(self):
            super().__init__()
            self.lock = threading.Lock()

    class Told(LastValue):
        is_clairvoyant = True

    for made, why in (
        (Unfinished(), r"super\(\).__init__"),
        (Held(), "cannot be copied"),
        (Told(), "only 'clairvoyant'"),
    ):
        refuses(why, make_forecaster, made)


def test_a_silent_bin_last_season_does_not_raise_the_level_without_bound():
    forecaster = SeasonalNaive(season_length=4, level_length=1)
    forecaster.reset(1)
    for value in (0.001, 100.0, 100.0, 100.0, 10.0):
        forecaster.update(np.array([value]))
    # 10 over 0.001 would make it a million.
    assert forecaster.predict_path(1)[0, 0] == pytest.approx(1000.0)
