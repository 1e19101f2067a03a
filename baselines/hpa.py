"""Kubernetes' Horizontal Pod Autoscaler on the metrics that serving engines export.

Rule and constants are those of Kubernetes (documentation, "Horizontal Pod Autoscaling"; the defaults of
`behavior` in its API `autoscaling/v2`; and kube-controller-manager's): every 15 s, with
`rho = metric / (target * N)`, nothing happens within a tolerance of 0.1 around 1; otherwise
`N' = ceil(N * rho)`; of several metrics the largest N' counts; a fall waits until no recommendation of the
last 300 s was higher, a rise does not wait. Within 15 s a fleet may double or gain 4 instances, whichever
is more, and may fall to the least. The targets are those commonly set on vLLM's metrics with KEDA: 30
waiting requests and 60 % of KV memory per replica.

Accounts of the rule that hold N' within `[floor(N / 2), ceil(2 N)]` are to be had with `up_count=0` and
`down_factor=0.5`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from pydantic import model_validator

from baselines.fleet import UniformParameters, UniformPolicy
from baselines.parameters import BatchLimit, Count, NonNegative, Positive
from baselines.space import BATCH_LIMIT, Choice, Real, Space
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario


class HpaParameters(UniformParameters):
    """Kubernetes' constants and KEDA's usual targets.

    Attributes:
        queue_target: waiting requests per instance; None: not looked at.
        kv_target: share of KV memory in use; None: not looked at.
        concurrency_target: requests in the system (running and waiting) per instance, likewise.
        tolerance: share around the target within which nothing happens.
        up_factor, up_count: a step at most multiplies the number of instances by the one, or adds the other,
            whichever is more.
        down_factor: a step at most multiplies their number by this.
        up_window_s, down_window_s: stabilisation windows.
        period_s: sync period.
        batch_limit: vLLM's default `max_num_seqs` was 256.
    """

    queue_target: Positive | None = 30.0
    kv_target: Positive | None = 0.6
    concurrency_target: Positive | None = None
    tolerance: NonNegative = 0.1
    up_factor: Positive = 2.0
    up_count: Count = 4
    down_factor: NonNegative = 0.0
    up_window_s: NonNegative = 0.0
    down_window_s: NonNegative = 300.0
    period_s: Positive = 15.0
    batch_limit: BatchLimit | None = 256
    router: str = "jsq-requests"

    @model_validator(mode="after")
    def _sound(self) -> HpaParameters:
        if self.queue_target is self.kv_target is self.concurrency_target is None:
            raise ValueError(
                "one of queue_target, kv_target, concurrency_target must be given; all are None"
            )
        if self.up_factor <= 1:
            raise ValueError(f"up_factor = {self.up_factor}: must be more than 1")
        if self.down_factor >= 1:
            raise ValueError(f"down_factor = {self.down_factor}: must be less than 1")
        return self


def recommendation(
    instances: int,
    demand: Mapping[str, float],
    targets: Mapping[str, float],
    tolerance: float,
) -> int:
    """Kubernetes' recommendation for metrics that are totals with an average target.

    Args:
        instances: N, those on their way included.
        demand: the total of each metric over all instances.
        targets: what each instance should have of it.
        tolerance: share around the target within which N is kept.
    """
    best = 0
    for name, target in targets.items():
        rho = demand[name] / (target * instances)
        if abs(rho - 1.0) <= tolerance + 1e-9:
            best = max(best, instances)
        else:
            best = max(best, math.ceil(round(demand[name] / target, 9)))
    return best


def within_a_step(
    wanted: int, instances: int, up_factor: float, up_count: int, down_factor: float
) -> int:
    """What `wanted` becomes if one step goes no further than Kubernetes' scaling policies allow.

    Args:
        wanted: instances, N'.
        instances: N.
        up_factor, up_count, down_factor: see `HpaParameters`.
    """
    low = math.floor(instances * down_factor)
    high = max(math.ceil(instances * up_factor), instances + up_count)
    return min(max(wanted, low), high)


class HpaPolicy(UniformPolicy):
    """Kubernetes' HPA for all classes alike.

    Which instances are N: Kubernetes divides a metric that is a total (an "Object" or "External" metric
    with an average target, which is what KEDA makes) by the replicas that the deployment *has*, ready or
    not, and for a "Pods" metric takes pods that are not ready as using nothing before it scales up. Both
    come to the same: instances that are acquired or loading count, so it does not order them twice.
    All metrics are of requests that have arrived, so a saturated fleet never looks idle.
    """

    parameters_type = HpaParameters
    usual_name = "hpa"
    parameters: HpaParameters

    GRID: ClassVar[dict[str, tuple[object, ...]]] = {
        "queue_target": (2.0, 10.0, 30.0),
        "concurrency_target": (None, 16.0, 32.0, 64.0),
        "batch_limit": (32, 64, 128, 256),
    }
    SPACE: ClassVar[Space] = {
        "queue_target": Real(0.5, 100, log=True),
        "kv_target": Real(0.01, 0.95, log=True),
        "concurrency_target": Choice((None, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)),
        "down_window_s": Real(15, 600, log=True),
        "batch_limit": BATCH_LIMIT,
    }

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Forget the recommendations of the last episode."""
        super().reset(scenario, seed)
        self._recommended: dict[int, list[tuple[float, int]]] = {p: [] for p in self._pools}

    def desired(self, view: ClusterView, p: int, have: int) -> tuple[int, str]:
        """The stabilised recommendation, no further than one step from what there is."""
        if have == 0:
            return self.parameters.min_instances, "nothing serves"
        demand = self._demand(view, p)
        settings = self.parameters
        targets = {
            name: target
            for name in demand
            if (target := getattr(settings, f"{name}_target")) is not None
        }
        wanted = recommendation(have, demand, targets, settings.tolerance)
        wanted = max(wanted, settings.min_instances)
        past = self._recommended[p]
        if not past:  # Kubernetes starts with the number of replicas that it finds
            past.append((view.time_s - self.parameters.period_s, have))
        past.append((view.time_s, wanted))
        longest = max(settings.up_window_s, settings.down_window_s)
        past[:] = [entry for entry in past if entry[0] >= view.time_s - longest]
        if wanted < have:
            wanted = min(have, max(self._within(past, view.time_s, settings.down_window_s)))
        elif wanted > have:
            wanted = max(have, min(self._within(past, view.time_s, settings.up_window_s)))
        why = ", ".join(f"{name} {demand[name]:.3g}" for name in targets)
        step = within_a_step(
            wanted, have, settings.up_factor, settings.up_count, settings.down_factor
        )
        return step, why

    @staticmethod
    def _within(past: list[tuple[float, int]], now_s: float, window_s: float) -> list[int]:
        return [count for time_s, count in past if time_s >= now_s - window_s]

    @staticmethod
    def _demand(view: ClusterView, p: int) -> dict[str, float]:
        seen = view.pools[p]
        waiting = float(seen["waiting"] + seen["preempted"])
        each = float(seen["kv_capacity"]) / max(int(seen["active"]), 1)
        return {
            "queue": waiting,
            "kv": float(seen["kv_tokens"]) / each if each else 0.0,
            "concurrency": waiting + float(seen["running"]),
        }
