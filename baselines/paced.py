"""A controller of our own: load, its recent peaks, and deadlines, over calibrated iteration times.

A reference that knows all that the
autoscalers in use do not: classes, deadlines, how long an iteration takes. From the calibrated times and the
lengths of what arrives it reckons instance-seconds per second:

- the interactive load, as a mean over `fast_s`, and the peak that this mean has reached, which fades with
  the time constant `peak_s`;
- the batch work that must be done: over all deadlines d in the queue, the largest (work due by d) / (pace *
  (d - now)), the demand-bound of earliest-deadline-first scheduling.

The fleet is what the larger of peak * peak_margin and mean * margin + batch work takes: batch work may use
what is kept for peaks, since the mixed instances evict it. Batch limits are the largest at which an iteration
over mean contexts takes `itl_share` of the interactive ITL target.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from baselines.fleet import GpuBudget, class_pool
from baselines.parameters import (
    LoadSource,
    NamedPolicy,
    NonNegative,
    Parameters,
    PolicyError,
    Positive,
)
from baselines.practice.dynamo import best_batch
from baselines.practice.seen import kv_capacity
from baselines.space import Real, Space
from llmscale_env.control.command import Command
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import pool_times

Share = Annotated[float, Field(ge=0, le=1)]


class PacedParameters(Parameters):
    """All ours.

    Attributes:
        margin: instances for so many times the mean interactive load, beside the batch work.
        peak_margin: instances for so many times its fading peak.
        fast_s: time constant of the mean.
        peak_s: time constant with which a peak fades towards the mean.
        pace: share of the time to its deadline in which batch work is to be done.
        end_s: batch work is due so long before the episode ends, if its deadline is later.
        spare: instances beside all that, not rounded.
        own_share: share of the interactive load for which there are interactive instances; the rest of the
            fleet is mixed.
        itl_share, mixed_itl_share: of the interactive ITL target, for limits of interactive and of mixed
            instances.
        tolerated: where a larger share of an interval's interactive requests missed its ITL target, limits
            fall by a fifth (prefills of others between a request's tokens, which the model of an iteration
            leaves out), else they recover by `recovery` of what they are.
        recovery: see `tolerated`.
        hold_s: fewer instances must have been wanted for so long before any goes.
        load_source: from where instances load their weights; None: as the scenario says.
    """

    margin: Positive = 1.2
    peak_margin: Positive = 1.2
    fast_s: Positive = 20.0
    peak_s: Positive = 120.0
    pace: Positive = 0.8
    end_s: NonNegative = 60.0
    spare: NonNegative = 0.5
    own_share: Share = 0.0
    itl_share: Positive = 0.15
    mixed_itl_share: Positive = 0.15
    tolerated: Share = 0.005
    recovery: NonNegative = 0.03
    hold_s: NonNegative = 30.0
    load_source: LoadSource | None = None


def can_pace(scenario: Scenario) -> bool:
    """Whether the policy can run a scenario: one LLM, a pool of all classes, one of role interactive."""
    if len(scenario.fleet.llms) != 1 or "interactive" not in {p.role for p in scenario.fleet.pools}:
        return False
    try:
        class_pool(scenario, scenario.fleet.llms[0], "")
    except PolicyError:
        return False
    return True


class PacedPolicy(NamedPolicy):
    """See the module; for scenarios of one LLM with a pool that serves all classes and evicts batch work."""

    parameters_type = PacedParameters
    usual_name = "paced"
    parameters: PacedParameters
    SPACE: ClassVar[Space] = {
        "margin": Real(0.5, 4.0, log=True),
        "peak_margin": Real(0.3, 4.0, log=True),
        "fast_s": Real(5, 900, log=True),
        "peak_s": Real(20, 2000, log=True),
        "pace": Real(0.2, 1.2),
        "end_s": Real(0, 300),
        "spare": Real(0.0, 3.0),
        "own_share": Real(0.0, 1.0),
        "itl_share": Real(0.05, 1.0, log=True),
        "mixed_itl_share": Real(0.05, 1.0, log=True),
        "tolerated": Real(0.001, 0.05, log=True),
        "recovery": Real(0.005, 0.2, log=True),
        "hold_s": Real(0, 400),
    }
    GRID: ClassVar[dict[str, tuple[object, ...]]] = {
        "margin": (1.0, 1.5, 2.0),
        "peak_margin": (0.8, 1.2),
        "peak_s": (60.0, 600.0),
        "itl_share": (0.3, 0.6),
    }

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Find the pools, and forget the load.

        Raises:
            PolicyError: several LLMs; no pool of all classes, or none for interactive requests alone.
        """
        if len(scenario.fleet.llms) != 1:
            raise PolicyError(f"{self.name}: is for one LLM; {scenario.name!r} has several")
        (llm,) = scenario.fleet.llms
        pools = scenario.fleet.pools
        self._mixed = class_pool(scenario, llm, self.name)
        own = [p for p, pool in enumerate(pools) if pool.role == "interactive"]
        if not own:
            raise PolicyError(f"{self.name}: {scenario.name!r} has no pool of role interactive")
        self._own = own[0]
        first = min(c.priority for c in scenario.classes)
        self._urgent = np.array([c.priority == first for c in scenario.classes])
        self._itl_s = min(c.itl_s for c in scenario.classes)
        self._times = pool_times(scenario, pools[self._mixed])
        self._kv = kv_capacity(scenario, self._mixed)
        n = len(scenario.classes)
        self._before = np.zeros((3, n))
        self._mean = np.zeros(2)  # prompt and answer tokens per second of the urgent
        self._each = np.zeros(2)  # mean lengths of an urgent request
        self._peak = np.zeros(2)
        self._fewer_since: float | None = -math.inf  # what there is at the start may go at once
        self._own_count = 0
        self._scale = 1.0  # of batch limits

    def act(self, view: ClusterView) -> Command:
        """Counts and limits, at every decision."""
        self._observe(view)
        p = self.parameters
        own_limit, mixed_limit = (
            self._limit(view, p.itl_share),
            self._limit(view, p.mixed_itl_share),
        )
        mean, peak = (self._instances(x, own_limit) for x in (self._mean, self._peak))
        batch = self._batch_work(view, mixed_limit)
        wanted = max(p.peak_margin * peak, p.margin * mean + batch) + p.spare
        total = max(1, math.ceil(wanted - 1e-9))
        if view.step == 0:
            total = max(total, sum(q.initial_instances for q in view.scenario.fleet.pools))
        have = sum(view.instances_of(k) for k in range(len(view.scenario.fleet.pools)))
        if total < have:
            if self._fewer_since is None:
                self._fewer_since = view.time_s
            if view.time_s - self._fewer_since < p.hold_s - 1e-9:
                total = have
        elif view.step > 0:
            self._fewer_since = None
        # Half an instance more or less would move one from pool to pool and back.
        desired = p.own_share * p.margin * mean
        if abs(desired - self._own_count) > 0.75:
            self._own_count = round(desired)
        own = min(total - 1, self._own_count)
        names = [pool.name for pool in view.scenario.fleet.pools]
        counts = dict.fromkeys(names, 0)
        budget = GpuBudget(view)
        counts[names[self._own]] = budget.grant(self._own, own)
        counts[names[self._mixed]] = budget.grant(self._mixed, total - own)
        limits = {names[self._own]: own_limit, names[self._mixed]: mixed_limit}
        return Command(
            targets=counts,
            batch_limits=limits,
            load_source=p.load_source,
            reason=f"load {mean:.2f}, peak {peak:.2f}, batch {batch:.2f} instances",
        )

    def _observe(self, view: ClusterView) -> None:
        totals = view.totals
        now = np.array([totals[k] for k in ("arrived", "input_tokens", "predicted_tokens")], float)
        came = (now - self._before)[:, self._urgent].sum(axis=1)
        self._before = now
        seconds = view.window.length_s
        if seconds <= 0:
            return
        keep = math.exp(-seconds / self.parameters.fast_s)
        if view.step == 1:
            keep = 0.0
        self._mean = keep * self._mean + (1 - keep) * came[1:] / seconds
        fade = math.exp(-seconds / self.parameters.peak_s)
        self._peak = np.maximum(self._mean, self._mean + fade * (self._peak - self._mean))
        window = view.window
        late = float(window.itl_late[self._urgent].sum())
        if late > self.parameters.tolerated * max(1.0, float(window.finished[self._urgent].sum())):
            self._scale = max(0.05, 0.8 * self._scale)
        else:
            self._scale = min(1.0, (1.0 + self.parameters.recovery) * self._scale)
        all_came = now[:, self._urgent].sum(axis=1)
        if all_came[0] > 0:
            self._each = all_came[1:] / all_came[0]

    def _limit(self, view: ClusterView, share: float) -> int:
        pool = view.scenario.fleet.pools[self._mixed]
        inputs, outputs = self._each if self._each[0] > 0 else (1024.0, 256.0)
        found = best_batch(
            self._times, inputs, outputs, share * self._itl_s, self._kv, pool.max_batch
        )
        return max(4, round(found * self._scale))

    def _instances(self, tokens_per_s: np.ndarray, limit: int) -> float:
        """Instances that these prompt and answer tokens per second keep busy."""
        inputs, outputs = self._each if self._each[0] > 0 else (1024.0, 256.0)
        prefill_s = self._times.prefill_s(inputs) / max(inputs, 1.0)
        decode_s = self._times.decode_s(limit, limit * (inputs + outputs / 2)) / limit
        return float(tokens_per_s[0] * prefill_s + tokens_per_s[1] * decode_s)

    def _batch_work(self, view: ClusterView, limit: int) -> float:
        """Instances that the queues' deadlines ask for."""
        found = 0.0
        for q in range(len(view.scenario.fleet.queues)):
            seen = view.queued(q)
            if len(seen) == 0:
                continue
            inputs = (seen.input_tokens + seen.emitted_tokens).astype(float)
            outputs = np.maximum(seen.predicted_output_tokens - seen.emitted_tokens, 0).astype(
                float
            )
            context = float(inputs.mean() + outputs.mean() / 2)
            batch = max(1, min(limit, int(self._kv / context)))
            decode_s = self._times.decode_s(batch, batch * context) / batch
            mean_input = float(inputs.mean())
            prefill_s = self._times.prefill_s(mean_input) / mean_input
            work = inputs * prefill_s + outputs * decode_s
            last = view.scenario.horizon_s - self.parameters.end_s
            due = np.minimum(seen.deadline_s, last)
            order = np.argsort(due, kind="stable")
            left = np.maximum(due[order] - view.time_s, view.scenario.control_interval_s)
            found = max(found, float((np.cumsum(work[order]) / left).max()))
        return found / self.parameters.pace
