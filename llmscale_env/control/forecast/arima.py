"""ARIMA: weights fitted by statsmodels, forecasts by the recursion of their innovations."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.forecast.base import Floats, Forecaster, State, check_integer

MAX_FIT_ITERATIONS = 50
"""Of the likelihood's optimiser; rarely more than 30 are of use on a hundred values."""


class ARIMA(Forecaster):
    """ARIMA(p, d, q) on a moving training window, out of sample: a fit sees the past only.

    The `d`-th difference `w` of a series follows, with `z = w - mean` and innovations `e`::

        z[t] = e[t] + sum_i ar[i] * z[t - i] + sum_j ma[j] * e[t - j]

    Each series is fitted alone (statsmodels; exact maximum likelihood takes 20 to 300 ms, the regression of
    Hannan and Rissanen some 3 ms on 300 values), first when it
    has `min_train` values and then every `refit_every` intervals, on its last `window` values.
    Between fits new values only move the recursion on (with `q = 0` that is exactly statsmodels'
    own forecast). Until a fit succeeds the forecast is the last value; after one that fails the
    weights stay as they were. A series whose difference has been constant goes on so (a line, with
    `d = 1`).

    With a season it is dynamic harmonic regression (Hyndman and Athanasopoulos, Forecasting: Principles and
    Practice, chapter 10): each fit first regresses the window on Fourier terms, and the ARIMA model is that
    of what they leave. A seasonal ARIMA of a day of 96 values has 96 more states and takes minutes.

    Args:
        order: (p, d, q), with d at most 2.
        train_window: values that a fit takes in.
        refit_every: intervals between fits.
        min_train: values before the first fit; at most `train_window`. None: 40, or fewer where the
            window is shorter, but enough for the order.
        drift: give `w` a mean; None: only with d = 0, as is usual.
        method: "mle", or "hannan-rissanen" (a long autoregression gives the innovations, a linear
            regression on them the weights); weights that are not stationary and invertible count as
            a fit that failed.
        season_length: intervals of a season; 0: none. A fit has the Fourier terms once it sees a season.
        harmonics: pairs of Fourier terms, fewer than half of `season_length`.
        options: of `Forecaster`.

    Attributes:
        n_fits, n_failed_fits: fits since `reset` that gave weights, and that did not.
    """

    name = "arima"

    def __init__(
        self,
        order: Sequence[int] = (3, 0, 1),
        train_window: int = 120,
        refit_every: int = 30,
        min_train: int | None = None,
        drift: bool | None = None,
        method: str = "mle",
        season_length: int = 0,
        harmonics: int = 6,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if not isinstance(order, Sequence) or len(order) != 3:
            raise ValueError(f"order = {order!r}: must be three integers (p, d, q)")
        p, d, q = (check_integer(f"order[{k}]", value, 0) for k, value in enumerate(order))
        if d > 2:
            raise ValueError(f"order[1] = {d}: differences of order 0 to 2 only")
        self.order = (p, d, q)
        shortest = d + 2 * (p + q) + 4
        self.train_window = check_integer("train_window", train_window, shortest)
        self.refit_every = check_integer("refit_every", refit_every, 1)
        if min_train is None:
            min_train = max(min(40, self.train_window), shortest)
        self.min_train = check_integer("min_train", min_train, shortest)
        if self.min_train > self.train_window:
            raise ValueError(
                f"min_train = {min_train}: must be at most train_window = {self.train_window}"
            )
        self.drift = d == 0 if drift is None else bool(drift)
        if self.drift and d == 2:
            raise ValueError("drift = True: not with d = 2, it would be a parabola")
        if method not in ("mle", "hannan-rissanen"):
            raise ValueError(f"method = {method!r}: must be 'mle' or 'hannan-rissanen'")
        self.method = method
        self.season_length = check_integer("season_length", season_length, 0)
        self.harmonics = 0
        if self.season_length:
            self.harmonics = check_integer("harmonics", harmonics, 1)
            if 2 * self.harmonics >= self.season_length:
                raise ValueError(
                    f"harmonics = {harmonics}: must be less than half of season_length = {season_length}"
                )
            if self.train_window < self.season_length:
                raise ValueError(
                    f"train_window = {train_window}: must be at least season_length = {season_length}"
                )
        self.n_fits = 0
        self.n_failed_fits = 0

    def reset(self, n_series: int) -> None:
        super().reset(n_series)
        self.n_fits = self.n_failed_fits = 0

    def _allocate(self, n_series: int) -> State:
        p, d, q = self.order
        return {
            "history": np.zeros((self.train_window, n_series)),
            "fitted": np.zeros(n_series, np.bool_),
            "mean": np.zeros(n_series),
            "ar": np.zeros((p, n_series)),
            "ma": np.zeros((q, n_series)),
            # Newest first: z and e of the last intervals, and the last value of the series and of
            # each of its differences below the d-th.
            "z": np.zeros((p, n_series)),
            "e": np.zeros((q, n_series)),
            "tail": np.zeros((max(d, 1), n_series)),
            # Weights of the Fourier terms; z, e and tail are of the series without them.
            "fourier": np.zeros((2 * self.harmonics, n_series)),
        }

    def _observe(self, values: Floats) -> None:
        state, age = self._state, self.age
        state["history"][age % self.train_window, self._columns] = values
        self._move_on(values - self._seasonal(age))
        seen = age + 1
        due = (seen >= self.min_train) & ((seen - self.min_train) % self.refit_every == 0)
        for i in np.flatnonzero(due):
            n = min(int(seen[i]), self.train_window)
            rows = np.arange(seen[i] - n, seen[i]) % self.train_window
            self._fit(int(i), state["history"][rows, i], int(seen[i]))

    def _terms(self, at: Any) -> Floats:
        """(2 * harmonics, ...) Fourier terms of the intervals `at`, counted from the series' first."""
        turns = np.arange(1, self.harmonics + 1).reshape(-1, *[1] * np.ndim(at))
        angles = 2 * np.pi * turns * (np.asarray(at) % self.season_length) / self.season_length
        return np.concatenate([np.cos(angles), np.sin(angles)])

    def _seasonal(self, at: NDArray[np.int64]) -> Floats | float:
        """(..., n_series) what the Fourier terms say of the intervals `at` (..., n_series)."""
        if not self.harmonics:
            return 0.0
        weights = self._state["fourier"].reshape(-1, *[1] * (at.ndim - 1), self.n_series)
        found: Floats = (weights * self._terms(at)).sum(axis=0)
        return found

    def _move_on(self, values: Floats) -> None:
        """The recursion by one interval, for all series (unfitted ones have nothing that counts)."""
        state = self._state
        d = self.order[1]
        moved = values
        for k in range(max(d, 1)):
            difference = moved - state["tail"][k]
            state["tail"][k] = moved
            moved = difference if d else moved
        z = moved - state["mean"]
        e = z - (state["ar"] * state["z"]).sum(axis=0) - (state["ma"] * state["e"]).sum(axis=0)
        for name, newest in (("z", z), ("e", e)):
            lags = state[name]
            if len(lags):
                lags[1:] = lags[:-1].copy()
                lags[0] = newest

    def _path(self, steps: int) -> Floats:
        state = self._state
        d, q = self.order[1:]
        z, path = state["z"].copy(), np.empty((steps, self.n_series))
        tail = state["tail"].copy()
        for h in range(steps):
            ahead = (state["ar"] * z).sum(axis=0)
            if h < q:  # innovations to come are 0, those known are h intervals further back
                ahead = ahead + (state["ma"][h:] * state["e"][: q - h]).sum(axis=0)
            if len(z):
                z[1:] = z[:-1].copy()
                z[0] = ahead
            value = ahead + state["mean"]
            for k in reversed(range(d)):
                tail[k] = value = tail[k] + value
            path[h] = value
        path = path + self._seasonal(self.age + np.arange(steps)[:, None])
        return np.where(state["fitted"], path, state["tail"][0])

    def _fit(self, i: int, series: Floats, seen: int) -> None:
        p, d, q = self.order
        fourier: Floats = np.zeros(2 * self.harmonics)
        if self.harmonics and len(series) >= self.season_length:
            terms = self._terms(np.arange(seen - len(series), seen)).T
            weights = np.linalg.lstsq(np.c_[np.ones(len(series)), terms], series)[0]
            fourier = np.asarray(weights[1:], np.float64)
            series = series - terms @ fourier
        w = np.diff(series, d)
        mean, ar, ma = float(w[0]), np.zeros(p), np.zeros(q)
        z, e = np.zeros(len(w)), np.zeros(len(w))
        if w.min() < w.max():
            found = self._weights(w)
            if found is None:
                self.n_failed_fits += 1
                return
            mean, ar, ma, e = found
            z = w - mean
        self.n_fits += 1
        state = self._state
        state["fitted"][i] = True
        state["fourier"][:, i] = fourier
        for k in range(max(d, 1)):
            state["tail"][k, i] = np.diff(series, k)[-1]
        state["mean"][i] = mean
        state["ar"][:, i], state["ma"][:, i] = ar, ma
        state["z"][:, i], state["e"][:, i] = z[::-1][:p], e[::-1][:q]

    def _weights(self, w: Floats) -> tuple[float, Floats, Floats, Floats] | None:
        """Mean, weights and innovations of a fit to `w`; None if it gives nothing usable."""
        if self.method == "hannan-rissanen":
            return self._regression(w)
        from statsmodels.tsa.arima.model import ARIMA as Model

        p, _, q = self.order
        with warnings.catch_warnings():
            # Poor starting values and an optimiser that stops early are met with on every trace.
            warnings.simplefilter("ignore")
            try:
                model = Model(w, order=(p, 0, q), trend="c" if self.drift else "n")
                result = model.fit(method_kwargs={"maxiter": MAX_FIT_ITERATIONS, "disp": 0})
            except (np.linalg.LinAlgError, ValueError, FloatingPointError):
                return None
        params = dict(zip(model.param_names, result.params, strict=True))
        mean = float(params.get("const", 0.0))
        ar = np.array([params[f"ar.L{k + 1}"] for k in range(p)])
        ma = np.array([params[f"ma.L{k + 1}"] for k in range(q)])
        e = np.asarray(result.resid, dtype=np.float64)
        if not (np.isfinite([mean, *ar, *ma]).all() and np.isfinite(e).all()):
            return None
        return mean, ar, ma, e

    def _regression(self, w: Floats) -> tuple[float, Floats, Floats, Floats] | None:
        """As `_weights`, by Hannan and Rissanen's regression."""
        from statsmodels.tsa.arima.estimators.hannan_rissanen import hannan_rissanen  # isort: skip
        from scipy.signal import lfilter

        p, _, q = self.order
        mean = float(w.mean()) if self.drift else 0.0
        z = w - mean
        try:
            params, _ = hannan_rissanen(z, ar_order=p, ma_order=q, demean=False)
        except (np.linalg.LinAlgError, ValueError, FloatingPointError):
            return None
        ar = np.asarray(params.ar_params, dtype=np.float64)
        ma = np.asarray(params.ma_params, dtype=np.float64)
        if not np.isfinite([*ar, *ma]).all():
            return None
        if not (params.is_stationary and params.is_invertible):
            return None
        e = lfilter(np.append(1.0, -ar), np.append(1.0, ma), z)
        return mean, ar, ma, np.asarray(e, dtype=np.float64)
