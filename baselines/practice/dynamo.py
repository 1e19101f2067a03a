"""Dynamo's planner by throughput: forecast requests over what a profiled instance can take.

Rule and constants are those of NVIDIA Dynamo's SLA planner (`planner/core/throughput_scaling.py` and its
performance models): every 180 s requests, prompts and answers of the next interval are forecast; prefill
takes `ceil(rate * t_prefill(ISL))` instances, decode `ceil(rate / rps)` with `rps = b* / (OSL *
t_iter(b*))` and b* the largest batch whose iteration, at a context of ISL + OSL / 2, keeps the ITL target
and whose KV cache fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, field_validator

from baselines.fleet import GpuBudget, Period, UniformPolicy, pools_of
from baselines.parameters import PolicyError, Positive
from baselines.practice.seen import (
    ArrivalCounts,
    PracticeParameters,
    kv_capacity,
    tightest,
)
from baselines.space import BATCH_LIMIT, Choice, Real, Space
from llmscale_env.cluster.iteration_model import IterationTables, IterationTimeModel
from llmscale_env.control.command import Command
from llmscale_env.control.forecast import FORECASTERS, Forecaster, make_forecaster
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import pool_times

Times = IterationTimeModel | IterationTables


class DynamoParameters(PracticeParameters):
    """Dynamo's defaults.

    Attributes:
        period_s: `throughput_adjustment_interval_seconds`, also the interval that is forecast.
        forecaster: one of `llmscale_env.control.forecast`, by name or with its arguments, or a forecaster of
            one's own. Dynamo has constant, ARIMA, Kalman and Prophet; constant is "last-value".
        itl_s: target; None: the tightest of the scenario's classes.
        margin: instances are sized for so many times the forecast (ours; Dynamo has none, 1).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    period_s: Positive = 180.0
    forecaster: str | dict[str, Any] | Forecaster = "last-value"
    itl_s: Positive | None = None
    margin: Positive = 1.0

    @field_validator("forecaster", mode="before")
    @classmethod
    def _known(cls, value: str | dict[str, Any] | Forecaster) -> str | dict[str, Any] | Forecaster:
        if make_forecaster(value).is_clairvoyant:
            known = sorted(name for name, kind in FORECASTERS.items() if not kind.is_clairvoyant)
            raise ValueError(f"must not be told the future; one of {known}")
        return value


def best_batch(
    times: Times,
    input_tokens: float,
    output_tokens: float,
    itl_s: float,
    kv_tokens: float,
    most: int,
) -> int:
    """The largest batch of requests half done that keeps the ITL target and fits; 1 if none does.

    Args:
        times: iteration times.
        input_tokens, output_tokens: means, ISL and OSL.
        itl_s: target.
        kv_tokens: KV memory.
        most: batch limit.
    """
    context = input_tokens + output_tokens / 2
    low, high = 1, max(1, min(most, int(kv_tokens / max(context, 1.0))))
    while low < high:  # iterations of larger batches take longer
        middle = (low + high + 1) // 2
        if times.decode_s(middle, middle * context) <= itl_s:
            low = middle
        else:
            high = middle - 1
    return low


def decode_requests_per_s(
    times: Times,
    input_tokens: float,
    output_tokens: float,
    itl_s: float,
    kv_tokens: float,
    most: int,
) -> float:
    """`b* / (OSL * t_iter(b*))`; arguments as in `best_batch`."""
    batch = best_batch(times, input_tokens, output_tokens, itl_s, kv_tokens, most)
    context = input_tokens + output_tokens / 2
    return batch / (max(output_tokens, 1.0) * times.decode_s(batch, batch * context))


def planned(prefill_load: float, decode_load: float, split: bool) -> tuple[int, int]:
    """Instances for prefill and for decode, or, of instances that do both, (0, for both).

    Args:
        prefill_load, decode_load: in instances, not rounded.
        split: the two phases have instances of their own; each is rounded up. Otherwise the sum is (ours:
            Dynamo fits a model of chunked iterations for such engines).
    """
    loads = (prefill_load, decode_load) if split else (0.0, prefill_load + decode_load)
    prefill, decode = (math.ceil(round(load, 9)) for load in loads)
    return prefill, decode


@dataclass(frozen=True)
class _Pools:
    """Where an LLM is served; the same pool twice where instances do both phases."""

    prefill: int
    decode: int

    @property
    def split(self) -> bool:
        return self.prefill != self.decode


class DynamoPolicy(UniformPolicy):
    """Dynamo's throughput planner for all classes alike.

    The rate is that of arrivals, and answers are as long as the predictor says; Dynamo's own counts of
    finished requests read a saturated cluster as idle. What it wants does not hang on what there is, so
    loading instances are not ordered twice. Before the first period is over the fleet stays as it is; an
    interval without arrivals leaves the forecast lengths alone. Where an LLM has one pool for prefill and
    one for decode (without weights that flow), routes and limits stay the scenario's and only counts are
    ordered.
    """

    parameters_type = DynamoParameters
    usual_name = "dynamo"
    parameters: DynamoParameters

    GRID: ClassVar[dict[str, tuple[object, ...]]] = {
        "margin": (1.0, 1.25, 1.5, 2.0),
        "period_s": (30.0, 60.0, 180.0),
        "forecaster": ("last-value", "ewma", "holt-winters"),
        "batch_limit": (64, 128, 256),
    }
    SPACE: ClassVar[Space] = {
        "margin": Real(0.5, 4, log=True),
        "period_s": Real(10, 300, log=True),
        "forecaster": Choice(("last-value", "ewma", "holt-winters")),
        "batch_limit": BATCH_LIMIT,
    }

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Find the pools, and forget the load.

        Raises:
            PolicyError: as `UniformPolicy`; phases split over more than two pools, or with weights that flow.
        """
        found = [_split_pools(scenario, llm, self.name) for llm in scenario.fleet.llms]
        self._split = [pools for pools in found if pools is not None]
        if self._split and len(self._split) < len(found):
            raise PolicyError(f"{self.name}: needs the phases of all LLMs split, or of none")
        if not self._split:
            super().reset(scenario, seed)
        self._arrivals = ArrivalCounts(scenario)
        n = len(scenario.fleet.llms)
        self._since = np.zeros((n, 3))
        self._lengths = np.zeros((n, 2))
        self._forecaster = make_forecaster(self.parameters.forecaster)
        self._forecaster.reset(3 * n)
        self._planning = Period(self.parameters.period_s)
        self._planned_s = 0.0

    def observe(self, view: ClusterView) -> None:
        """Count what has arrived, and forecast when an interval is over."""
        self._since += self._arrivals.take(view)
        if not self._planning.due(view.time_s) or view.time_s <= self._planned_s:
            return
        rate = self._since[:, :1] / (view.time_s - self._planned_s)
        some = self._since[:, 0] > 0
        self._lengths[some] = self._since[some, 1:] / self._since[some, :1]
        self._forecaster.update(np.concatenate([rate, self._lengths], axis=1).ravel())
        self._since[:] = 0.0
        self._planned_s = view.time_s

    def act(self, view: ClusterView) -> Command:
        """Counts, whenever the period is over."""
        if not self._split:
            return super().act(view)
        seen = int(self._forecaster.age[0])
        self.observe(view)
        if int(self._forecaster.age[0]) == seen:
            return Command()
        budget = GpuBudget(view)
        targets: dict[str, int] = {}
        reasons = []
        for m, pools in enumerate(self._split):
            counts, why = self._plan(view.scenario, m, pools)
            for p, count in zip((pools.prefill, pools.decode), counts, strict=True):
                granted = budget.grant(p, max(count, self.parameters.min_instances))
                targets[view.scenario.fleet.pools[p].name] = granted
            reasons.append(why)
        source = self.parameters.load_source
        return Command(targets=targets, load_source=source, reason="; ".join(reasons))

    def desired(self, view: ClusterView, p: int, have: int) -> tuple[int, str]:
        """What the forecast load takes."""
        if self._forecaster.age[0] == 0:
            return have, "nothing forecast yet"
        counts, why = self._plan(view.scenario, self._pools.index(p), _Pools(p, p))
        return counts[1], why

    def _plan(self, scenario: Scenario, m: int, pools: _Pools) -> tuple[tuple[int, int], str]:
        rate, inputs, outputs = self._expected(m)
        rate *= self.parameters.margin
        if rate <= 0 or inputs <= 0:
            return (0, 0), "nothing expected"
        prefill, decode = (scenario.fleet.pools[p] for p in (pools.prefill, pools.decode))
        per_s = decode_requests_per_s(
            pool_times(scenario, decode),
            inputs,
            outputs,
            self.parameters.itl_s or tightest(scenario)[1],
            kv_capacity(scenario, pools.decode),
            # Of split pools the scenario's own limit holds: this policy leaves it alone.
            (None if pools.split else self.parameters.batch_limit) or decode.batch_limit,
        )
        loads = rate * pool_times(scenario, prefill).prefill_s(inputs), rate / per_s
        why = f"{rate:.3g} requests/s: prefill {loads[0]:.2f}, decode {loads[1]:.2f} instances"
        return planned(*loads, pools.split), why

    def _expected(self, m: int) -> tuple[float, float, float]:
        """Requests per second, input and output tokens of an LLM in the next interval."""
        ahead: NDArray[np.float64] = self._forecaster.predict(1)[3 * m : 3 * m + 3]
        return float(ahead[0]), float(ahead[1]), float(ahead[2])


def _split_pools(scenario: Scenario, llm: str, policy: str) -> _Pools | None:
    """The prefill and the decode pool of an LLM; None if its instances do both.

    Raises:
        PolicyError: several of a phase, or weights that flow.
    """
    pools: Sequence[int] = pools_of(scenario, llm)
    phases = [scenario.fleet.pools[p].phase for p in pools]
    if set(phases) == {"both"}:
        return None
    if sorted(phases) != ["decode", "prefill"]:
        raise PolicyError(
            f"{policy}: needs one prefill and one decode pool of {llm} where phases are split; scenario "
            f"{scenario.name!r} has {phases}"
        )
    if any(scenario.fleet.pools[p].flows for p in pools):
        raise PolicyError(
            f"{policy}: does not say from where weights come; pools of {llm} in scenario "
            f"{scenario.name!r} have weights = 'flow'"
        )
    return _Pools(pools[phases.index("prefill")], pools[phases.index("decode")])
