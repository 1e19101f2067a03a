"""What the last interval brought: counts since the decision before, and how a controller is shown them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.engine import Engine
from llmscale_env.sim.picoseconds import seconds
from llmscale_env.workload.requests import PS_PER_S

Counts = dict[str, NDArray[np.int64]]

_CLASS_COUNTS = (
    "arrived",
    "rejected",
    "started",
    "finished",
    "on_time",
    "ttft_late",
    "itl_late",
    "input_tokens",
    "predicted_tokens",
    "output_tokens",
    "ttft_sum_s",  # whole seconds, and the rest
    "ttft_sum_ps",
    "itl_sum_s",
    "itl_sum_ps",
    "itl_count",
)
_POOL_COUNTS = (
    "iterations",
    "tokens",
    "preemptions",
    "evictions",
    "busy_s",
    "busy_ps",
    "gpu_s",
    "gpu_ps",
    "started",
    "stopped",
)


@dataclass(frozen=True)
class Window:
    """What happened in the interval that has just ended; arrays by class (C,).

    Attributes:
        length_s: its length (0 at the start of an episode).
        arrived, rejected, started, finished, on_time: requests.
        ttft_late, itl_late: violations that became certain.
        input_tokens, predicted_tokens: of arrivals.
        output_tokens: of finished requests.
        ttft_mean_s, itl_mean_s: of requests that started, that finished (NaN without any).
        ttft_max_s, itl_max_s: likewise, 0 without any.
        gpu_s, loads: by pool (P,): GPU-seconds, instances started.
        iterations, tokens, preemptions, evictions, busy_s: by pool (P,).
    """

    length_s: float
    arrived: NDArray[np.int64]
    rejected: NDArray[np.int64]
    started: NDArray[np.int64]
    finished: NDArray[np.int64]
    on_time: NDArray[np.int64]
    ttft_late: NDArray[np.int64]
    itl_late: NDArray[np.int64]
    input_tokens: NDArray[np.int64]
    predicted_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    ttft_mean_s: NDArray[np.float64]
    itl_mean_s: NDArray[np.float64]
    ttft_max_s: NDArray[np.float64]
    itl_max_s: NDArray[np.float64]
    gpu_s: NDArray[np.float64]
    loads: NDArray[np.int64]
    iterations: NDArray[np.int64]
    tokens: NDArray[np.int64]
    preemptions: NDArray[np.int64]
    evictions: NDArray[np.int64]
    busy_s: NDArray[np.float64]

    @property
    def arrival_rate_per_s(self) -> NDArray[np.float64]:
        """Arrivals per second by class (0 before the first interval has passed)."""
        return self.arrived / self.length_s if self.length_s else np.zeros(len(self.arrived))

    @property
    def violations(self) -> NDArray[np.int64]:
        """Requests that were rejected or missed a target, by class."""
        return self.rejected + self.ttft_late + self.itl_late


class IntervalCounts:
    """The engine counts from the start of an episode; this tells what came between two decisions.

    Args:
        engine: whose counts.

    Attributes:
        by_class, by_pool: (E, C) and (E, P) counts of the last interval, by name.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._class_before = _zeros(_CLASS_COUNTS, engine.class_seen.shape)
        self._pool_before = _zeros(_POOL_COUNTS, engine.pool_seen.shape)
        self.by_class = _zeros(_CLASS_COUNTS, engine.class_seen.shape)
        self.by_pool = _zeros(_POOL_COUNTS, engine.pool_seen.shape)

    def _all(self) -> list[tuple[Counts, Counts, Sequence[str], NDArray[Any]]]:
        """(before, of the interval, names, since the start) of classes and of pools."""
        return [
            (self._class_before, self.by_class, _CLASS_COUNTS, self._engine.class_seen),
            (self._pool_before, self.by_pool, _POOL_COUNTS, self._engine.pool_seen),
        ]

    def start(self, e: int) -> None:
        """Episode `e` begins anew: nothing has come."""
        for before, now, names, rows in self._all():
            for name in names:
                before[name][e] = rows[name][e]
                now[name][e] = 0

    def close(self) -> None:
        """An interval of every episode is over."""
        for before, now, names, rows in self._all():
            present = rows.copy()  # once, not field by field
            for name in names:
                now[name] = present[name] - before[name]
                before[name] = present[name]

    def window(self, e: int, length_s: float) -> Window:
        """The last interval of episode `e`."""
        c = {name: values[e] for name, values in self.by_class.items()}
        p = {name: values[e] for name, values in self.by_pool.items()}
        tally = self._engine.class_seen[e]
        return Window(
            length_s=length_s,
            arrived=c["arrived"],
            rejected=c["rejected"],
            started=c["started"],
            finished=c["finished"],
            on_time=c["on_time"],
            ttft_late=c["ttft_late"],
            itl_late=c["itl_late"],
            input_tokens=c["input_tokens"],
            predicted_tokens=c["predicted_tokens"],
            output_tokens=c["output_tokens"],
            ttft_mean_s=_mean(seconds(c, "ttft_sum"), c["started"]),
            itl_mean_s=_mean(seconds(c, "itl_sum"), c["itl_count"]),
            ttft_max_s=tally["ttft_max_ps"] / PS_PER_S,
            itl_max_s=tally["itl_max_ps"] / PS_PER_S,
            gpu_s=seconds(p, "gpu"),
            loads=p["started"],
            iterations=p["iterations"],
            tokens=p["tokens"],
            preemptions=p["preemptions"],
            evictions=p["evictions"],
            busy_s=seconds(p, "busy"),
        )

    def save(self, e: int) -> list[dict[str, Any]]:
        """Everything about episode `e`, for `restore`; can be pickled."""
        return [
            {n: (before[n][e].copy(), now[n][e].copy()) for n in names}
            for before, now, names, _ in self._all()
        ]

    def restore(self, e: int, saved: Sequence[dict[str, Any]]) -> None:
        """Put episode `e` where it, or another of the same scenario, was at `save`."""
        for (before, now, names, _), kept in zip(self._all(), saved, strict=True):
            for name in names:
                before[name][e], now[name][e] = kept[name]


def _zeros(names: Sequence[str], shape: tuple[int, ...]) -> Counts:
    return {name: np.zeros(shape, np.int64) for name in names}


def _mean(sum_s: NDArray[np.float64], count: NDArray[np.int64]) -> NDArray[np.float64]:
    """Seconds per item, NaN without any."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(count > 0, sum_s / np.maximum(count, 1), np.nan)
