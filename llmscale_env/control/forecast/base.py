"""What every forecaster is: a set of series, seen one interval at a time, and how it keeps score.

A forecaster sees what has been observed and nothing else. All its state is arrays with one column
per series, so many episodes share one forecaster, and a column can be started anew, saved or put
back without touching the others.
"""

from __future__ import annotations

import textwrap
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
State = dict[str, NDArray[Any]]

LARGEST = 1e11
"""Largest value of an interval, observed or forecast: a thousand times what a million GPUs serve in a second.
Beyond it sums and integer programmes that are made of forecasts are no longer exact."""

ERROR_BEFORE_DATA = 1.0
"""Recent error of a forecaster that has not been checked yet: that of one who always says 0."""


_OURS = ("age", "paths", "residuals", "actuals")


def _short(value: object) -> str:
    """A value in a message."""
    return textwrap.shorten(repr(value), 80, placeholder="...")


def check_integer(name: str, value: object, low: int) -> int:
    """`value` as an int of at least `low`, or a ValueError that names it."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < low:
        raise ValueError(f"{name} = {value!r}: must be an integer of at least {low}")
    return int(value)


def check_share(name: str, value: object, *, zero: bool = True) -> float:
    """`value` as a float in 0..1 (0 left out unless `zero`), or a ValueError that names it."""
    fits = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not fits or not (0 <= float(value) <= 1) or (value == 0 and not zero):  # type: ignore[arg-type]
        allowed = "in 0..1" if zero else "above 0 and at most 1"
        raise ValueError(f"{name} = {value!r}: must be {allowed}")
    return float(value)  # type: ignore[arg-type]


class Forecaster(ABC):
    """Forecasts of `n_series` series that are never negative (arrivals or tokens per interval).

    The calls: `reset(n_series)`, then `update(values)` once per control interval, and any number of
    `predict...` and `recent_error` in between. A subclass writes `_allocate`, `_observe` and `_path`.
    An object of a user's own subclass is accepted wherever a forecaster's name is; it is copied there.

    Args:
        max_steps: residuals are kept for forecasts 1 to `max_steps` intervals ahead; the quantiles
            of a forecast further ahead use those of `max_steps`.
        error_steps: the horizon, in intervals, that `recent_error` is stated for; at most
            `max_steps`.
        window: intervals over which residuals are remembered.

    Attributes:
        name: what `make_forecaster` calls it.
        is_clairvoyant: whether it is told the future.
    """

    name: ClassVar[str]
    is_clairvoyant: ClassVar[bool] = False

    def __init__(self, *, max_steps: int = 12, error_steps: int = 1, window: int = 60) -> None:
        self.max_steps = check_integer("max_steps", max_steps, 1)
        self.error_steps = check_integer("error_steps", error_steps, 1)
        self.window = check_integer("window", window, 1)
        if self.error_steps > self.max_steps:
            raise ValueError(
                f"error_steps = {error_steps}: must be at most max_steps = {self.max_steps}"
            )
        self._steps = np.arange(1, self.max_steps + 1)[:, None]
        self._state: State = {}
        self._columns: NDArray[np.int64] = np.arange(0)

    # ---- what a subclass writes ----

    @abstractmethod
    def _allocate(self, n_series: int) -> State:
        """State of `n_series` series that nothing is known of; the last axis is the series."""

    @abstractmethod
    def _observe(self, values: Floats) -> None:
        """Take in the values (n_series,) of an interval; `age` does not yet count them."""

    @abstractmethod
    def _path(self, steps: int) -> Floats:
        """(steps, n_series) forecasts, at most `LARGEST`, of what comes next; below 0 they are cut off."""

    # ---- series ----

    @property
    def n_series(self) -> int:
        """Number of series; 0 before `reset`."""
        return len(self._columns)

    @property
    def age(self) -> NDArray[np.int64]:
        """(n_series,) intervals seen since each series began."""
        return self._state["age"]

    def reset(self, n_series: int) -> None:
        """Forget everything; from now on there are `n_series` series."""
        n = check_integer("n_series", n_series, 1)
        self._columns = np.arange(n)
        self._state = self._fresh(n)

    def _fresh(self, n: int) -> State:
        return {
            "age": np.zeros(n, np.int64),
            # Row `age % max_steps` holds the path that was forecast once `age` values were seen.
            "paths": np.full((self.max_steps, self.max_steps, n), np.nan),
            "residuals": np.full((self.window, self.max_steps, n), np.nan),
            "actuals": np.zeros((self.window, n)),
            **self._allocated(n),
        }

    def _allocated(self, n: int) -> State:
        """`_allocate`, checked: its arrays are kept beside our own and are cut by series."""
        found = self._own("_allocate", n)
        asked = f"must be arrays by name whose last axis is the {n} series"
        if not isinstance(found, Mapping):
            raise ValueError(f"{type(self).__name__}._allocate({n}) = {_short(found)}: {asked}")
        for name, array in found.items():
            where = f"{type(self).__name__}._allocate({n})[{name!r}]"
            if name in _OURS:
                raise ValueError(f"{where}: must have a name other than {list(_OURS)}")
            if not isinstance(array, np.ndarray) or array.shape[-1:] != (n,):
                raise ValueError(f"{where} = {_short(array)}: {asked}")
        return dict(found)

    def _own(self, method: str, argument: Any) -> Any:
        """What a subclass answers; where it raises, the message says whose method it was."""
        try:
            return getattr(self, method)(argument)
        except ModuleNotFoundError:
            raise
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            raise RuntimeError(f"{type(self).__name__}.{method} failed: {told}") from error

    def reset_series(self, which: ArrayLike) -> None:
        """Start the series `which` (indices) anew, as when one episode of many begins again."""
        self._need_reset()
        index = self._index(which)
        for name, fresh in self._fresh(len(index)).items():
            self._state[name][..., index] = fresh

    def save_series(self, which: ArrayLike) -> State:
        """A copy of the state of the series `which`, for `restore_series`."""
        self._need_reset()
        index = self._index(which)
        return {name: array[..., index].copy() for name, array in self._state.items()}

    def restore_series(self, which: ArrayLike, saved: State) -> None:
        """Put the series `which` where `save_series` was called (on a forecaster alike)."""
        self._need_reset()
        index = self._index(which)
        for name, array in self._state.items():
            kept = saved.get(name)
            expected = (*array.shape[:-1], len(index))
            if kept is None or kept.shape != expected:
                found = "missing" if kept is None else f"of shape {kept.shape}"
                raise ValueError(f"saved[{name!r}] is {found}: must be of shape {expected}")
        for name, array in self._state.items():
            array[..., index] = saved[name]

    def _index(self, which: ArrayLike) -> NDArray[np.int64]:
        index = np.atleast_1d(np.asarray(which))
        if index.dtype.kind not in "iu" or (index < 0).any() or (index >= self.n_series).any():
            raise ValueError(f"which = {which!r}: must be indices in 0..{self.n_series - 1}")
        return index.astype(np.int64)

    def _need_reset(self) -> None:
        if not self._state:
            raise RuntimeError(f"{type(self).__name__}: call reset(n_series) first")

    # ---- time ----

    def update(self, values: ArrayLike) -> None:
        """Take in what was observed in the interval that has just ended.

        Args:
            values: (n_series,) from 0 to `LARGEST`.

        Raises:
            ValueError: if the shape or a value is not as stated.
        """
        self._need_reset()
        x = np.asarray(values, dtype=np.float64)
        if x.shape != (self.n_series,):
            raise ValueError(f"values: expected shape ({self.n_series},), got {x.shape}")
        good = (x >= 0) & (x <= LARGEST)
        if not good.all():
            first = int(np.argmin(good))
            raise ValueError(f"values[{first}] = {x[first]}: must be in 0..{LARGEST:g}")
        state, age = self._state, self._state["age"]
        made = (age + 1 - self._steps) % self.max_steps
        forecasts = state["paths"][made, self._steps - 1, self._columns]
        row = age % self.window
        state["residuals"][row, :, self._columns] = (x - forecasts).T
        state["actuals"][row, self._columns] = x
        self._own("_observe", x)
        age += 1
        state["paths"][age % self.max_steps, :, self._columns] = self.predict_path(self.max_steps).T

    # ---- forecasts ----

    def predict_path(self, steps: int) -> Floats:
        """(steps, n_series) forecasts of the next `steps` intervals; 0 before any is seen."""
        self._need_reset()
        shape = (check_integer("steps", steps, 1), self.n_series)
        found = self._own("_path", steps)
        where = f"{type(self).__name__}._path({steps})"
        try:
            path = np.asarray(found)
        except ValueError:  # lists of different lengths
            path = np.empty(0, np.object_)
        if path.dtype.kind not in "biuf":
            raise ValueError(f"{where} = {_short(found)}: must be numbers of shape {shape}")
        if path.shape != shape:
            raise ValueError(f"{where}: must be of shape {shape}, got {path.shape}")
        good = (path > -np.inf) & (path <= LARGEST)
        if not good.all():
            h, i = np.argwhere(~good)[0].tolist()
            raise ValueError(
                f"{where}[{h}, {i}] = {path[h, i]}: must be finite and at most {LARGEST:g}"
            )
        return np.maximum(path, 0.0, dtype=np.float64)

    def predict(self, steps_ahead: int = 1) -> Floats:
        """(n_series,) forecast of the mean of the interval `steps_ahead` after the last one seen."""
        return self.predict_path(check_integer("steps_ahead", steps_ahead, 1))[-1]

    def predict_quantile(self, steps_ahead: int, q: float) -> Floats:
        """(n_series,) the mean forecast plus the `q` quantile of the recent residuals of its like.

        Residuals are those of forecasts equally far ahead (at most `max_steps`), interpolated
        linearly between order statistics. Without residuals it is the mean; it is never below 0.
        """
        return self.predict_quantiles(steps_ahead, (q,))[0]

    def predict_quantiles(self, steps_ahead: int, qs: Sequence[float]) -> Floats:
        """(len(qs), n_series) `predict_quantile` of each of `qs`."""
        shares = np.array([check_share("q", q) for q in qs])[:, None]
        mean = self.predict(steps_ahead)
        residuals = self._state["residuals"][:, min(steps_ahead, self.max_steps) - 1]
        ordered = np.sort(residuals, axis=0)  # those not there yet (NaN) come last
        n = np.count_nonzero(np.isfinite(ordered), axis=0)
        place = shares * np.maximum(n - 1, 0)
        below = place.astype(np.int64)
        above = np.minimum(below + 1, np.maximum(n - 1, 0))
        low, high = ordered[below, self._columns], ordered[above, self._columns]
        shift = np.where(n > 0, low + (place - below) * (high - low), 0.0)
        return np.maximum(mean + shift, 0.0)

    def recent_error(self, steps_ahead: int | None = None) -> Floats:
        """(n_series,) weighted absolute percentage error over the last `window` intervals.

        Sum of |observed - forecast| over the sum of what was observed, for its own forecasts
        `steps_ahead` (at most `max_steps`; None: `error_steps`) ahead; a share, so 0.2 is 20 %.
        `ERROR_BEFORE_DATA` as long as no forecast has met its interval; where only zeros were
        observed, 0 if it said so and 1 if not.
        """
        self._need_reset()
        steps = self.error_steps if steps_ahead is None else steps_ahead
        if not 1 <= steps <= self.max_steps:
            raise ValueError(f"steps_ahead = {steps}: must be in 1..{self.max_steps}")
        residuals = self._state["residuals"][:, steps - 1]
        scored = np.isfinite(residuals)
        wrong = np.where(scored, np.abs(residuals), 0.0).sum(axis=0)
        total = np.where(scored, self._state["actuals"], 0.0).sum(axis=0)
        # Counts are whole: less than this is nothing, and a division by it would overflow.
        some = total > 1e-9
        error = np.divide(wrong, total, out=(wrong > 0).astype(np.float64), where=some)
        return np.where(scored.any(axis=0), error, ERROR_BEFORE_DATA)
