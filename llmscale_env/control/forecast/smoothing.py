"""Forecasters that need no fit: the last value, its moving average, Holt and Winters."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from llmscale_env.control.forecast.base import (
    Floats,
    Forecaster,
    State,
    check_integer,
    check_share,
)


class LastValue(Forecaster):
    """The next intervals are as the last one."""

    name = "last-value"

    def _allocate(self, n_series: int) -> State:
        return {"last": np.zeros(n_series)}

    def _observe(self, values: Floats) -> None:
        self._state["last"][:] = values

    def _path(self, steps: int) -> Floats:
        return np.broadcast_to(self._state["last"], (steps, self.n_series))


LARGEST_LEVEL = 10.0
"""Factor by which a level raises or lowers last season at most."""


class SeasonalNaive(Forecaster):
    """The next intervals are as those one season before; until there is one, as the last one.

    With a level the profile of last season is multiplied by recent over past load. That is the sum of the
    last `level_length` values over the sum of those one season before them. It is held between 1/10 and 10
    (ours), since a silent hour last season says nothing about this one.

    Args:
        season_length: intervals of a season (a day, a week).
        level_length: intervals over which the level is taken; 0: last season as it was.
        options: of `Forecaster`.
    """

    name = "seasonal-naive"

    def __init__(self, season_length: int = 24, level_length: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.season_length = check_integer("season_length", season_length, 1)
        self.level_length = check_integer("level_length", level_length, 0)

    def _allocate(self, n_series: int) -> State:
        return {
            "history": np.zeros((self.season_length + self.level_length, n_series)),
            "last": np.zeros(n_series),
        }

    def _observe(self, values: Floats) -> None:
        history = self._state["history"]
        history[self.age % len(history), self._columns] = values
        self._state["last"][:] = values

    def _path(self, steps: int) -> Floats:
        history, season = self._state["history"], self.season_length
        ahead = np.arange(steps)[:, None] % season
        path = self._level() * history[(self.age - season + ahead) % len(history), self._columns]
        return np.where(self.age >= season, path, self._state["last"])

    def _level(self) -> Floats:
        """(n_series,) recent load over that one season before; 1 where that is not known or was 0."""
        history, season = self._state["history"], self.season_length
        back = np.arange(self.level_length)[:, None]
        known = back < self.age - season
        rows = self.age - 1 - back
        recent = np.where(known, history[rows % len(history), self._columns], 0.0).sum(axis=0)
        before = np.where(known, history[(rows - season) % len(history), self._columns], 0.0)
        total = before.sum(axis=0)
        level = np.divide(recent, total, out=np.ones(self.n_series), where=total > 0)
        return np.clip(level, 1 / LARGEST_LEVEL, LARGEST_LEVEL)


class EWMA(Forecaster):
    """Exponentially weighted moving average: `level += alpha * (value - level)`.

    It starts at the first value.

    Args:
        alpha: weight of the newest value, above 0 and at most 1 (1: the last value).
        options: of `Forecaster`.
    """

    name = "ewma"

    def __init__(self, alpha: float = 0.3, **options: Any) -> None:
        super().__init__(**options)
        self.alpha = check_share("alpha", alpha, zero=False)

    def _allocate(self, n_series: int) -> State:
        return {"level": np.zeros(n_series)}

    def _observe(self, values: Floats) -> None:
        level = self._state["level"]
        weight = np.where(self.age == 0, 1.0, self.alpha)
        level += weight * (values - level)

    def _path(self, steps: int) -> Floats:
        return np.broadcast_to(self._state["level"], (steps, self.n_series))


class HoltWinters(Forecaster):
    """Additive Holt-Winters: a level, a damped trend, and a season if one is asked for.

    With `s` the season's entry of this part of the cycle and `p` the damping::

        level' = alpha * (x - s) + (1 - alpha) * (level + p * trend)
        trend' = beta * (level' - level) + (1 - beta) * p * trend
        s'     = gamma * (x - level - p * trend) + (1 - gamma) * s

    and `h` steps ahead: `level + (p + p**2 + ... + p**h) * trend + s of that part of the cycle`.
    (Hyndman and Athanasopoulos, Forecasting: Principles and Practice, chapter 8.) It starts with
    the first value as level and no trend. Through the first cycle there is no season yet; at its
    end the level is the cycle's mean, the trend 0, and the season what each value differs by.

    Args:
        alpha, beta, gamma: weights of the newest value in level, trend and season.
        damping: of the trend, above 0 and at most 1 (1: the trend goes on for ever).
        season_length: intervals in a cycle; 0 for no season.
        fit_every: fit the weights to each series with statsmodels every so many intervals, once
            there are `fit_window` values; 0: never.
        fit_window: values that a fit takes in; at least two cycles and ten, and raised to that.
        options: of `Forecaster`.
    """

    name = "holt-winters"

    def __init__(
        self,
        alpha: float = 0.3,
        beta: float = 0.1,
        gamma: float = 0.1,
        damping: float = 0.9,
        season_length: int = 0,
        fit_every: int = 0,
        fit_window: int = 120,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.alpha = check_share("alpha", alpha, zero=False)
        self.beta = check_share("beta", beta)
        self.gamma = check_share("gamma", gamma)
        self.damping = check_share("damping", damping, zero=False)
        self.season_length = check_integer("season_length", season_length, 0)
        if self.season_length == 1:
            raise ValueError("season_length = 1: must be 0 (no season) or at least 2")
        self.fit_every = check_integer("fit_every", fit_every, 0)
        shortest = 10 + 2 * self.season_length  # statsmodels starts from two cycles and ten values
        self.fit_window = max(check_integer("fit_window", fit_window, 1), shortest)

    def _allocate(self, n_series: int) -> State:
        state: State = {
            "level": np.zeros(n_series),
            "trend": np.zeros(n_series),
            "alpha": np.full(n_series, self.alpha),
            "beta": np.full(n_series, self.beta),
            "gamma": np.full(n_series, self.gamma),
        }
        if self.season_length:
            state["season"] = np.zeros((self.season_length, n_series))
        if self.fit_every:
            state["history"] = np.zeros((self.fit_window, n_series))
        return state

    def _observe(self, values: Floats) -> None:
        state, age, m = self._state, self.age, self.season_length
        if self.fit_every:
            self._fit_due(values)
        level, trend = state["level"], state["trend"]
        alpha, beta = state["alpha"], state["beta"]
        expected = level + self.damping * trend
        season: Floats | float = 0.0
        if m:
            season = np.where(age >= m, state["season"][age % m, self._columns], 0.0)
        first = age == 0
        new_level = np.where(first, values, alpha * (values - season) + (1 - alpha) * expected)
        new_trend = beta * (new_level - level) + (1 - beta) * self.damping * trend
        if m:
            gamma = state["gamma"]
            moved = gamma * (values - expected) + (1 - gamma) * season
            state["season"][age % m, self._columns] = np.where(age >= m, moved, values)
        level[:] = new_level
        trend[:] = np.where(first, 0.0, new_trend)
        if m and (ends := age == m - 1).any():
            mean = state["season"][:, ends].mean(axis=0)
            state["season"][:, ends] -= mean
            level[ends] = mean
            trend[ends] = 0.0

    def _path(self, steps: int) -> Floats:
        state, m = self._state, self.season_length
        ahead = np.arange(steps)[:, None]
        damped = np.cumsum(self.damping ** (ahead + 1.0), axis=0)
        path: Floats = state["level"] + damped * state["trend"]
        if m:
            season = state["season"][(self.age + ahead) % m, self._columns]
            path = path + np.where(self.age >= m, season, 0.0)
        return path

    def _fit_due(self, values: Floats) -> None:
        history, age = self._state["history"], self.age
        history[age % self.fit_window, self._columns] = values
        seen = age + 1
        due = (seen >= self.fit_window) & ((seen - self.fit_window) % self.fit_every == 0)
        for i in np.flatnonzero(due):
            series = np.roll(history[:, i], -(int(seen[i]) % self.fit_window))
            if series.min() < series.max():
                self._fit(int(i), series)

    def _fit(self, i: int, series: Floats) -> None:
        from statsmodels.tsa.holtwinters import ExponentialSmoothing

        damped = self.damping < 1
        model = ExponentialSmoothing(
            series,
            trend="add",
            damped_trend=damped,
            seasonal="add" if self.season_length else None,
            seasonal_periods=self.season_length or None,
            initialization_method="heuristic",
        )
        with warnings.catch_warnings():
            # A fit that has not quite converged is still a better guess than fixed weights.
            warnings.simplefilter("ignore")
            fixed = {"damping_trend": self.damping} if damped else {}
            params = model.fit(optimized=True, **fixed).params
        names = {"alpha": "smoothing_level", "beta": "smoothing_trend"}
        if self.season_length:
            names["gamma"] = "smoothing_seasonal"
        found = {name: float(params[source]) for name, source in names.items()}
        if all(np.isfinite(value) for value in found.values()):
            for name, value in found.items():
                self._state[name][i] = min(max(value, 0.0), 1.0)
