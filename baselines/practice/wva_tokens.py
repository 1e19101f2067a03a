"""llm-d's Workload Variant Autoscaler, token capacity: demand and capacity in KV tokens.

Rule and constants are those of llm-d's second saturation analyser (`saturation_v2`): a replica's capacity is
`min(0.8 KV tokens, k2)`, with k2 what its computation keeps up; demand D is KV memory in use and what queued
requests will use. `D / 0.85 - (N + L) cap` tokens are missing, `N cap - D / 0.70` are too many.
"""

from __future__ import annotations

import math
from collections import deque
from typing import ClassVar

import numpy as np
from pydantic import model_validator

from baselines.fleet import UniformPolicy
from baselines.parameters import Positive, PositiveCount, Share
from baselines.practice.seen import (
    ArrivalCounts,
    PracticeParameters,
    kv_capacity,
    median,
    on_the_way,
    replicas_of,
    waiting_requests,
)
from baselines.space import BATCH_LIMIT, Real, Space
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario


class WvaTokensParameters(PracticeParameters):
    """llm-d's defaults.

    Attributes:
        kv_threshold: `kvCacheThreshold`, share of KV memory that counts as capacity.
        queue_threshold: `queueLengthThreshold`; with so many waiting, the tokens in use are what the
            computation keeps up (k2).
        up_threshold: `scaleUpThreshold`.
        down_boundary: `scaleDownBoundary`.
        history: observations of k2 that are averaged (ours: ten).
        count_output: queued requests count with their expected output. False charges the prompt alone, which
            users found up to 81 times too low.
        period_s: between two looks.
    """

    kv_threshold: Share = 0.80
    queue_threshold: Positive = 5.0
    up_threshold: Share = 0.85
    down_boundary: Share = 0.70
    history: PositiveCount = 10
    count_output: bool = True
    period_s: Positive = 60.0

    @model_validator(mode="after")
    def _ordered(self) -> WvaTokensParameters:
        self._ascending("down_boundary", "up_threshold")
        return self


def derived_capacity(
    batch_tokens: float, batch_limit: float, input_tokens: float, output_tokens: float
) -> float:
    """k2 from what an engine was started with: tokens of `min(B O / (I + O), S)` requests half done.

    Args:
        batch_tokens: B, tokens of an iteration at most.
        batch_limit: S, running requests at most.
        input_tokens, output_tokens: I and O, means of the requests.
    """
    running = min(
        batch_tokens * output_tokens / max(input_tokens + output_tokens, 1e-9), batch_limit
    )
    return running * (input_tokens + output_tokens / 2)


def capacity_step(
    demand: float,
    capacity: float,
    ready: int,
    pending: int,
    up_threshold: float = 0.85,
    down_boundary: float = 0.70,
) -> int:
    """Replicas more (or, negative, fewer); at least one stays.

    Args:
        demand: D, tokens in use and queued.
        capacity: of a replica, tokens.
        ready, pending: N and L.
        up_threshold, down_boundary: utilisation that is aimed at from above and from below.
    """
    missing = demand / up_threshold - (ready + pending) * capacity
    if missing > 0:
        return math.ceil(round(missing / capacity, 9))
    spare = ready * capacity - demand / down_boundary
    fewer = math.floor(round(max(spare, 0.0) / capacity, 9))
    return -min(fewer, max(ready - 1, 0))


class WvaTokensPolicy(UniformPolicy):
    """llm-d's token capacity rule for all classes alike, one variant per LLM.

    k2 as there: the tokens in use on a replica whose queue is at its threshold; else the mean of the last
    such observations; else from the batch limits (`derived_capacity`); else none. Capacity of a replica is
    the median over those that serve. Ours: one history per LLM (there by length of output); B is the pool's
    token budget of an iteration.
    """

    parameters_type = WvaTokensParameters
    usual_name = "wva-tokens"
    parameters: WvaTokensParameters

    GRID: ClassVar[dict[str, tuple[object, ...]]] = {
        "up_threshold": (0.3, 0.5, 0.7, 0.85),
        "down_boundary": (0.2, 0.28),
        "queue_threshold": (2.0, 5.0, 20.0),
        "period_s": (15.0, 60.0),
        "batch_limit": (64, 128, 256),
    }
    SPACE: ClassVar[Space] = {
        "kv_threshold": Real(0.05, 0.95),
        "queue_threshold": Real(1, 50, log=True),
        "up_threshold": Real(0.1, 0.98),
        "down_share": Real(0.2, 0.95),
        "period_s": Real(10, 120, log=True),
        "batch_limit": BATCH_LIMIT,
    }
    """`down_boundary = down_share * up_threshold`."""

    @staticmethod
    def of_grid(point: dict[str, float]) -> dict[str, float]:
        """Parameters of a point of `GRID` or `SPACE`."""
        values = dict(point)
        share = values.pop("down_share", None)
        if share is not None:
            values["down_boundary"] = float(f"{share * values['up_threshold']:.4g}")
        return values

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Forget what was seen."""
        super().reset(scenario, seed)
        self._arrivals = ArrivalCounts(scenario)
        self._seen = np.zeros((len(scenario.fleet.llms), 3))
        self._history: dict[int, deque[float]] = {
            p: deque(maxlen=self.parameters.history) for p in self._pools
        }

    def observe(self, view: ClusterView) -> None:
        """Count what has arrived, for mean lengths."""
        self._seen += self._arrivals.take(view)

    def desired(self, view: ClusterView, p: int, have: int) -> tuple[int, str]:
        """As many more or fewer as tokens are missing or spare."""
        settings = self.parameters
        replicas = replicas_of(view, p)
        if len(replicas) == 0:
            return have, "nothing serves yet"
        waiting = waiting_requests(view)
        at = np.isin(waiting.instance, replicas.slot)
        queued = float(waiting.input_tokens[at].sum())
        if settings.count_output:
            queued += float(waiting.output_tokens[at].sum())
        demand = float(replicas.kv_tokens.sum()) + queued
        capacity = self._capacity(view, p, replicas.kv_tokens, replicas.waiting)
        step = capacity_step(
            demand,
            capacity,
            len(replicas),
            on_the_way(view, p),
            settings.up_threshold,
            settings.down_boundary,
        )
        return have + step, f"demand {demand:.3g} of {len(replicas)} x {capacity:.3g} tokens"

    def _capacity(self, view: ClusterView, p: int, kv: np.ndarray, queue: np.ndarray) -> float:
        """Tokens of a replica."""
        settings, history = self.parameters, self._history[p]
        memory = settings.kv_threshold * kv_capacity(view.scenario, p)
        saturated = (queue >= settings.queue_threshold) & (kv > 0)
        history.extend(float(tokens) for tokens in kv[saturated])
        usual = self._usual(view, p)
        keeps_up = np.where(saturated, kv, sum(history) / len(history) if history else usual)
        return median(np.minimum(memory, keeps_up))

    def _usual(self, view: ClusterView, p: int) -> float:
        """k2 before anything was observed; infinite before anything arrived."""
        pool = view.scenario.fleet.pools[p]
        requests, inputs, outputs = self._seen[self._pools.index(p)]
        if requests <= 0 or outputs <= 0:
            return math.inf
        budget = pool.chunk_tokens or pool.prefill_tokens
        limit = self.parameters.batch_limit or pool.batch_limit
        return derived_capacity(budget, limit, inputs / requests, outputs / requests)
