"""The forecaster that is told the future, to bound what a forecast can be worth."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from llmscale_env.control.forecast.base import Floats, Forecaster, State


class Clairvoyant(Forecaster):
    """Says what will be; marked by `is_clairvoyant`, and never used unless it is asked for.

    After `k` updates its forecast `h` steps ahead is row `k + h - 1` of the future that it was
    given, and the last row beyond the end of that. What it is told to `update` changes nothing but
    `recent_error`, which is 0 as long as the future given is the one that comes.

    Args:
        future: (T, n_series) values of every interval of the episode, from the first; may be given
            later by `set_future`.
        options: of `Forecaster`.
    """

    name = "clairvoyant"
    is_clairvoyant = True

    def __init__(self, future: ArrayLike | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._given = None if future is None else _checked(future)

    def reset(self, n_series: int) -> None:
        """As in `Forecaster`; a future given for as many series stays, another is forgotten."""
        super().reset(n_series)
        if self._given is not None and self._given.shape[1] != n_series:
            self._given = None

    def set_future(self, future: ArrayLike, which: ArrayLike | None = None) -> None:
        """Give the whole series (T, n) of the series `which` (None: of all).

        Raises:
            ValueError: if the shape does not fit, or a value is negative or not finite.
        """
        self._need_reset()
        given = _checked(future)
        index = self._columns if which is None else self._index(which)
        if given.shape[1] != len(index):
            raise ValueError(f"future: expected {len(index)} series, got {given.shape[1]}")
        if self._given is None or len(index) == self.n_series:
            kept = np.full((len(given), self.n_series), np.nan)
        elif len(given) != len(self._given):
            raise ValueError(
                f"future: expected {len(self._given)} intervals as before, got {len(given)}"
            )
        else:
            kept = self._given.copy()
        kept[:, index] = given
        self._given = kept

    def save_series(self, which: ArrayLike) -> State:
        """As in `Forecaster`; the future is part of it."""
        saved = super().save_series(which)
        if self._given is not None:
            saved["future"] = self._given[:, self._index(which)].copy()
        return saved

    def restore_series(self, which: ArrayLike, saved: State) -> None:
        super().restore_series(which, saved)
        if "future" in saved:
            self.set_future(saved["future"], which)

    def _allocate(self, n_series: int) -> State:
        return {}

    def _observe(self, values: Floats) -> None:
        pass

    def _path(self, steps: int) -> Floats:
        if self._given is None:
            raise RuntimeError("clairvoyant: it was not given the future; call set_future first")
        rows = np.minimum(self.age + np.arange(steps)[:, None], len(self._given) - 1)
        path = self._given[rows, self._columns]
        if np.isnan(path).any():
            blind = int(np.argmax(np.isnan(path).any(axis=0)))
            raise RuntimeError(f"clairvoyant: it was not given the future of series {blind}")
        return path


def _checked(future: ArrayLike) -> Floats:
    given = np.array(future, dtype=np.float64)
    if given.ndim != 2 or 0 in given.shape:
        raise ValueError(f"future: expected shape (T, n_series), got {given.shape}")
    good = (given >= 0) & (given < np.inf)
    if not good.all():
        t, i = np.argwhere(~good)[0]
        raise ValueError(f"future[{t}, {i}] = {given[t, i]}: must be finite and at least 0")
    return given
