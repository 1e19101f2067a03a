"""Dynamo's planner by load: a regression of iteration times says whether the targets will be met.

Rule and constants are those of NVIDIA Dynamo's SLA planner (`planner/core/load_scaling.py` and its
performance models): every 5 s the times of the last 64 iterations are regressed on their tokens, and each
engine's next TTFT and ITL estimated. One instance more if one of the two is above its target on all
engines; one fewer only if, with everything that waits and runs times N / (N - 1), on every engine the part
of TTFT that the queue causes stays below 0.8 of what the request's own prefill leaves of the target, ITL
below 0.8 of its target, and the KV cache within memory. Nothing while instances come or go.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from pydantic import Field

from baselines.fleet import UniformPolicy
from baselines.parameters import PolicyError, Positive, PositiveCount, Share
from baselines.practice.seen import (
    ArrivalCounts,
    PracticeParameters,
    kv_capacity,
    on_the_way,
    replicas_of,
    tightest,
    waiting_requests,
)
from baselines.space import BATCH_LIMIT, Real, Space
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import pool_times

_REPORTED = ("prefill_tokens", "decode_requests", "decode_context")
_PROFILED = 16


class DynamoLoadParameters(PracticeParameters):
    """Dynamo's defaults.

    Attributes:
        samples: `max_num_fpm_samples`, iterations of each kind that are kept.
        min_samples: `load_min_observations`, before which nothing is ordered.
        profile: the regressions begin with 16 points of the calibrated iteration times, as Dynamo's begin
            with those of its benchmarks before deployment; samples replace them.
        sensitivity: `load_scaling_down_sensitivity` over 100.
        period_s: `load_adjustment_interval_seconds`.
        ttft_s, itl_s: targets; None: the tightest of the scenario's classes.
    """

    samples: PositiveCount = 64
    min_samples: int = Field(default=5, ge=2, le=10_000)
    profile: bool = True
    sensitivity: Share = 0.8
    period_s: Positive = 5.0
    ttft_s: Positive | None = None
    itl_s: Positive | None = None


@dataclass
class Line:
    """Least squares of a time on a number of tokens, over the last samples.

    Attributes:
        size: samples kept.
    """

    size: int
    _samples: deque[tuple[float, float]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._samples = deque(maxlen=self.size)

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, tokens: float, seconds: float) -> None:
        """A sample."""
        self._samples.append((tokens, seconds))

    @property
    def mean_tokens(self) -> float:
        """Of the samples."""
        return sum(x for x, _ in self._samples) / len(self._samples)

    def fitted(self) -> Callable[[float], float]:
        """Seconds for a number of tokens; the mean time where all samples have the same tokens.

        Raises:
            ValueError: there is no sample.
        """
        if not self._samples:
            raise ValueError("samples: must be at least one")
        x, y = np.array(self._samples).T
        spread = float(((x - x.mean()) ** 2).sum())
        slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread if spread > 0 else 0.0
        start = float(y.mean()) - slope * float(x.mean())
        return lambda tokens: max(1e-6, start + slope * tokens)


@dataclass(frozen=True)
class Engine:
    """What one instance has to do.

    Attributes:
        queued_tokens: prompt tokens that wait.
        kv_tokens: KV cache in use.
        preempted_tokens: KV cache of requests that were preempted.
    """

    queued_tokens: float
    kv_tokens: float
    preempted_tokens: float = 0.0


def estimated_ttft_s(
    prefill: Callable[[float], float], queued: float, own: float, budget: float
) -> float:
    """TTFT of the next request: what waits and its own prompt, in iterations of `budget` tokens.

    Args:
        prefill: seconds of an iteration by its tokens.
        queued: prompt tokens that wait.
        own: of the request, the mean prompt.
        budget: tokens of an iteration at most.
    """
    left, total = queued + own, 0.0
    if left <= 0:
        return 0.0
    full = math.ceil(left / budget) - 1
    if full:
        total = full * prefill(budget)
    return total + prefill(left - full * budget)


def load_step(
    engines: Sequence[Engine],
    prefill: Callable[[float], float],
    decode: Callable[[float], float],
    *,
    prompt: float,
    context: float,
    budget: float,
    memory: float,
    ttft_s: float,
    itl_s: float,
    sensitivity: float = 0.8,
) -> int:
    """1, 0 or -1 instances more.

    Args:
        engines: those that serve.
        prefill, decode: seconds of an iteration by its prompt tokens, by its context.
        prompt, context: of the next request: mean prompt, mean context of one that decodes.
        budget: prompt tokens of an iteration at most.
        memory: KV tokens of an instance.
        ttft_s, itl_s: targets.
        sensitivity: share of the targets that has to suffice after taking one away.
    """
    n = len(engines)
    if n == 0:
        return 0
    ttft = [estimated_ttft_s(prefill, e.queued_tokens, prompt, budget) for e in engines]
    itl = [decode(e.kv_tokens + e.preempted_tokens + context) for e in engines]
    if all(t > ttft_s for t in ttft) or all(t > itl_s for t in itl):
        return 1
    if n == 1:
        return 0
    more = n / (n - 1)
    own = estimated_ttft_s(prefill, 0.0, prompt, budget)
    for e in engines:
        queue = estimated_ttft_s(prefill, more * e.queued_tokens, prompt, budget) - own
        if ttft_s <= own or queue >= sensitivity * (ttft_s - own):
            return 0
        kv = more * (e.kv_tokens + e.preempted_tokens + e.queued_tokens)
        if kv >= memory or decode(kv + context) >= sensitivity * itl_s:
            return 0
    return -1


class DynamoLoadPolicy(UniformPolicy):
    """Dynamo's load planner for all classes alike.

    Instances here run prefill and decode in iterations of their own, so there is a regression for each, as of
    Dynamo's split engines; the decision is that of its engines that do both. Ours: a sample per instance and
    decision (its last iteration of each kind), no buckets by size, and what is profiled (`_profile`);
    nothing is removed while requests of the pool are still drained. A loading instance stops the rule, so
    it is never ordered twice.
    """

    parameters_type = DynamoLoadParameters
    usual_name = "dynamo-load"
    parameters: DynamoLoadParameters

    GRID: ClassVar[dict[str, tuple[object, ...]]] = {
        "sensitivity": (0.2, 0.4, 0.6, 0.8),
        "ttft_s": (None, 5.0, 2.0, 1.0),
        "period_s": (5.0, 30.0),
        "batch_limit": (64, 128, 256),
    }
    SPACE: ClassVar[Space] = {
        "sensitivity": Real(0.05, 0.95),
        "ttft_s": Real(0.2, 20, log=True),
        "itl_s": Real(0.02, 0.4, log=True),
        "period_s": Real(5, 60, log=True),
        "batch_limit": BATCH_LIMIT,
    }

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Forget the samples.

        Raises:
            PolicyError: as `UniformPolicy`; instances that chunk prompts, whose iterations are not reported.
        """
        super().reset(scenario, seed)
        for p in self._pools:
            pool = scenario.fleet.pools[p]
            if pool.chunk_tokens:
                raise PolicyError(
                    f"{self.name}: needs instances that prefill first; pool {pool.name!r} has "
                    f"chunk_tokens = {pool.chunk_tokens}"
                )
        size = self.parameters.samples
        self._prefill = {p: Line(size) for p in self._pools}
        self._decode = {p: Line(size) for p in self._pools}
        self._context = {p: Line(size) for p in self._pools}
        self._reported: dict[tuple[int, int], tuple[int, float]] = {}
        self._arrivals = ArrivalCounts(scenario)
        self._seen = np.zeros((len(scenario.fleet.llms), 3))
        if self.parameters.profile:
            for p in self._pools:
                self._profile(scenario, p)

    def _profile(self, scenario: Scenario, p: int) -> None:
        """Iterations from nearly empty to full, prompts up to the budget, batches up to limit and memory."""
        pool, memory = scenario.fleet.pools[p], kv_capacity(scenario, p)
        times = pool_times(scenario, pool)
        limit = self.parameters.batch_limit or pool.batch_limit
        for k in range(1, _PROFILED + 1):
            part = k / _PROFILED
            tokens = pool.prefill_tokens * part
            self._prefill[p].add(tokens, times.prefill_s(tokens))
            batch, context = max(1, round(limit * part)), memory * part
            self._decode[p].add(context, times.decode_s(batch, context))

    def observe(self, view: ClusterView) -> None:
        """Take every instance's last iterations."""
        self._seen += self._arrivals.take(view)
        reports = view.reports
        for p in self._pools:
            for i in replicas_of(view, p).slot.tolist():
                tokens, batch, context = (int(reports[name][i]) for name in _REPORTED)
                seconds = float(reports["prefill_s"][i])
                if not math.isnan(seconds) and self._is_new(i, 0, tokens, seconds):
                    self._prefill[p].add(tokens, seconds)
                seconds = float(reports["decode_s"][i])
                if batch > 0 and self._is_new(i, 1, context, seconds):
                    self._decode[p].add(context, seconds)
                    self._context[p].add(context / batch, seconds)

    def _is_new(self, instance: int, kind: int, tokens: int, seconds: float) -> bool:
        """Whether an instance's last iteration of a kind is not the one that was seen before."""
        seen = tokens, seconds
        new = self._reported.get((instance, kind)) != seen
        self._reported[instance, kind] = seen
        return new

    def desired(self, view: ClusterView, p: int, have: int) -> tuple[int, str]:
        """`have`, or one more or fewer."""
        settings = self.parameters
        if on_the_way(view, p) or view.pools["draining"][p]:
            return have, "scaling"
        least = min(len(self._prefill[p]), len(self._decode[p]))
        if least < settings.min_samples:
            return have, f"{least} samples"
        replicas = replicas_of(view, p)
        waiting = waiting_requests(view)
        queued = np.bincount(
            waiting.instance, waiting.input_tokens, minlength=len(view.instance_pool)
        )
        engines = [
            Engine(float(queued[i]), float(kv))
            for i, kv in zip(replicas.slot, replicas.kv_tokens, strict=True)
        ]
        requests, inputs, _ = self._seen[self._pools.index(p)]
        pool = view.scenario.fleet.pools[p]
        targets = tightest(view.scenario)
        ttft_s, itl_s = settings.ttft_s or targets[0], settings.itl_s or targets[1]
        prefill, decode = self._prefill[p].fitted(), self._decode[p].fitted()
        prompt = inputs / max(requests, 1.0)
        step = load_step(
            engines,
            prefill,
            decode,
            prompt=prompt,
            context=self._context[p].mean_tokens if len(self._context[p]) else 0.0,
            budget=pool.prefill_tokens,
            memory=kv_capacity(view.scenario, p),
            ttft_s=ttft_s,
            itl_s=itl_s,
            sensitivity=settings.sensitivity,
        )
        worst = max(
            estimated_ttft_s(prefill, e.queued_tokens, prompt, pool.prefill_tokens) for e in engines
        )
        return have + step, f"TTFT up to {worst:.3g} s"
