"""llm-d's Workload Variant Autoscaler, saturation: one replica more or fewer by what is left on each.

Rule and constants are those of llm-d's autoscaler (`wva-saturation-scaling-config`): every 60 s, of the
replicas that are not saturated (KV memory below 80 % and fewer than 5 requests waiting) the mean of what is
left, `0.80 - kv` and `5 - q`. One more if either mean is below 0.10 or 3, unless one is on its way; one fewer
if both would still hold with the load of the unsaturated replicas on one of them less.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from baselines.fleet import UniformPolicy
from baselines.parameters import NonNegative, Positive
from baselines.practice.seen import (
    PracticeParameters,
    kv_capacity,
    on_the_way,
    replicas_of,
)
from baselines.space import BATCH_LIMIT, Real, Space
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario


class WvaParameters(PracticeParameters):
    """llm-d's defaults.

    Attributes:
        kv_threshold, queue_threshold: `kvCacheThreshold`, `queueLengthThreshold`: saturated from here on.
        kv_spare, queue_spare: `kvSpareTrigger`, `queueSpareTrigger`: what should be left on average.
        metric_window_s: KV use and queue of a replica are the largest of the last minute, as its queries of
            Prometheus ask for (`max_over_time(...[1m])`).
        period_s: between two looks.
    """

    kv_threshold: Positive = 0.80
    queue_threshold: Positive = 5.0
    kv_spare: Positive = 0.10
    queue_spare: Positive = 3.0
    metric_window_s: NonNegative = 60.0
    period_s: Positive = 60.0

    @model_validator(mode="after")
    def _sound(self) -> WvaParameters:
        self._ascending("kv_spare", "kv_threshold")
        self._ascending("queue_spare", "queue_threshold")
        return self


def saturation_step(
    kv: Sequence[float] | NDArray[Any],
    queue: Sequence[float] | NDArray[Any],
    pending: int,
    *,
    kv_threshold: float = 0.80,
    queue_threshold: float = 5.0,
    kv_spare: float = 0.10,
    queue_spare: float = 3.0,
) -> int:
    """1, 0 or -1 replicas more.

    Args:
        kv, queue: share of KV memory in use and waiting requests, by replica that serves.
        pending: replicas on their way.
        kv_threshold, queue_threshold, kv_spare, queue_spare: see `WvaParameters`.
    """
    used, waits = np.asarray(kv, float), np.asarray(queue, float)
    if len(used) == 0:
        return 0
    open_ = (used < kv_threshold) & (waits < queue_threshold)
    n = int(open_.sum())
    if n == 0:  # nothing is left anywhere
        return 0 if pending else 1
    kv_sum, queue_sum = float(used[open_].sum()), float(waits[open_].sum())

    def holds(replicas: int) -> bool:
        left_kv, left_queue = (
            kv_threshold - kv_sum / replicas,
            queue_threshold - queue_sum / replicas,
        )
        # Rounded: 0.8 - 0.7 is to count as 0.1.
        return round(left_kv - kv_spare, 9) >= 0 and round(left_queue - queue_spare, 9) >= 0

    if not holds(n):
        return 0 if pending else 1
    return -1 if n >= 2 and holds(n - 1) else 0


class WvaPolicy(UniformPolicy):
    """llm-d's saturation rule for all classes alike, one variant per LLM."""

    parameters_type = WvaParameters
    usual_name = "wva"
    parameters: WvaParameters

    GRID: ClassVar[dict[str, tuple[object, ...]]] = {
        "kv_threshold": (0.2, 0.4, 0.8),
        "queue_threshold": (5.0, 10.0, 20.0),
        "queue_spare": (1.0, 3.0),
        "period_s": (15.0, 60.0),
        "batch_limit": (64, 128, 256),
    }
    SPACE: ClassVar[Space] = {
        "kv_threshold": Real(0.05, 0.95),
        "kv_spare_share": Real(0.05, 0.9),
        "queue_threshold": Real(1, 50, log=True),
        "queue_spare_share": Real(0.05, 0.95),
        "metric_window_s": Real(1, 120, log=True),
        "period_s": Real(10, 120, log=True),
        "batch_limit": BATCH_LIMIT,
    }
    """Spares as shares of their thresholds, so that every point is a setting."""

    @staticmethod
    def of_grid(point: dict[str, Any]) -> dict[str, Any]:
        """Parameters of a point of `GRID` or `SPACE`."""
        values = dict(point)
        for what in ("kv", "queue"):
            share = values.pop(f"{what}_spare_share", None)
            if share is not None:
                values[f"{what}_spare"] = float(f"{share * values[f'{what}_threshold']:.4g}")
        if "kv_spare" not in values and "kv_threshold" in values:
            # Of the grid: the published eighth of the threshold.
            values["kv_spare"] = float(f"{values['kv_threshold'] / 8:.4g}")
        return values

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Forget what was seen."""
        super().reset(scenario, seed)
        self._samples: dict[int, deque[tuple[float, NDArray[np.float64]]]] = {
            p: deque() for p in self._pools
        }

    def observe(self, view: ClusterView) -> None:
        """Keep KV use and queue of every replica for a minute."""
        for p, samples in self._samples.items():
            seen = replicas_of(view, p)
            row = np.zeros((2, len(view.instance_pool)))
            row[0, seen.slot] = seen.kv_tokens / kv_capacity(view.scenario, p)
            row[1, seen.slot] = seen.waiting
            samples.append((view.time_s, row))
            oldest = view.time_s - self.parameters.metric_window_s
            while len(samples) > 1 and samples[0][0] <= oldest + 1e-9:
                samples.popleft()

    def desired(self, view: ClusterView, p: int, have: int) -> tuple[int, str]:
        """`have`, or one more or fewer."""
        settings = self.parameters
        slots = replicas_of(view, p).slot
        if len(slots) == 0:
            return have, "nothing serves yet"
        kv, queue = np.max([row for _, row in self._samples[p]], axis=0)[:, slots]
        step = saturation_step(
            kv,
            queue,
            on_the_way(view, p),
            kv_threshold=settings.kv_threshold,
            queue_threshold=settings.queue_threshold,
            kv_spare=settings.kv_spare,
            queue_spare=settings.queue_spare,
        )
        return have + step, f"kv {kv.mean():.3g}, queue {queue.mean():.3g}"
