"""Llumnix's own autoscaler: free KV memory per request.

Rule and constants are those of the released code (Sun et al., 2024, arXiv 2406.03243;
`llumnix/global_scheduler/scaling_scheduler.py`): every 10 s the load is `-(free blocks - blocks that waiting
requests need) / requests`, over all instances together. Above -10 empty instances are added until it is
below; if it would be below -60 with one instance less, one goes.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np
from pydantic import model_validator

from baselines.llumnix import RebalancingPolicy, freeness_load
from baselines.parameters import Finite, Positive
from baselines.practice.seen import PracticeParameters, kv_capacity, replicas_of
from baselines.space import BATCH_LIMIT, Choice, Real, Space
from llmscale_env.control.view import ClusterView


class FreenessParameters(PracticeParameters):
    """Llumnix's defaults.

    Attributes:
        low, high: `scale_down_threshold`, `scale_up_threshold`, in blocks per request.
        empty: an instance that is added counts with its memory ("real"), or, as in the released code, as
            endlessly free ("infinite"), so that each look adds one at most.
        rebalance: as the policy `llumnix` (Llumnix reschedules requests across instances).
        router: Llumnix dispatches to the freest instance.
        period_s: `scaling_interval`.
    """

    low: Finite = -60.0
    high: Finite = -10.0
    empty: Literal["real", "infinite"] = "real"
    rebalance: bool = True
    router: str = "least-kv"
    period_s: Positive = 10.0

    @model_validator(mode="after")
    def _ordered(self) -> FreenessParameters:
        self._ascending("low", "high")
        return self


def instances_to_add(load: float, requests: int, blocks: float, high: float) -> int:
    """Empty instances until the load is at most `high`; 0 if it is.

    Args:
        load: -(free - waited for) / requests, of the instances that there are.
        requests: running and waiting (0 counts as 1).
        blocks: of an empty instance; infinite: one is enough.
        high: threshold.
    """
    if load <= high:
        return 0
    return max(1, math.ceil(round((load - high) * max(requests, 1) / blocks, 9)))


class FreenessPolicy(RebalancingPolicy):
    """Llumnix's rule for all classes alike; loading instances count as empty ones, as those that it adds."""

    parameters_type = FreenessParameters
    usual_name = "llumnix-freeness"
    parameters: FreenessParameters

    GRID: ClassVar[dict[str, tuple[object, ...]]] = {
        "high": (-10.0, -100.0, -300.0, -1000.0),
        "low_factor": (1.5, 3.0, 6.0),
        "batch_limit": (32, 64, 128, 256),
        "rebalance": (True, False),
    }
    SPACE: ClassVar[Space] = {
        "free": Real(2, 5000, log=True),
        "low_factor": Real(1.1, 10, log=True),
        "batch_limit": BATCH_LIMIT,
        "rebalance": Choice((True, False)),
    }
    """`high = -free` (in the grid it stands itself), `low = low_factor * high`."""

    @staticmethod
    def of_grid(point: dict[str, float]) -> dict[str, float]:
        """Parameters of a point of `GRID` or `SPACE`."""
        values = dict(point)
        if "free" in values:
            values["high"] = -values.pop("free")
        factor = values.pop("low_factor")
        return {**values, "low": float(f"{factor * values['high']:.4g}")}

    def desired(self, view: ClusterView, p: int, have: int) -> tuple[int, str]:
        """Enough for `high`, or one fewer."""
        settings = self.parameters
        seen = replicas_of(view, p)
        if len(seen) == 0:
            return have, "nothing serves yet"
        block = view.scenario.fleet.block_tokens
        each = kv_capacity(view.scenario, p)
        kv = float(seen.kv_tokens.sum())
        waiting = float(view.pools["waiting_tokens"][p])
        rows = view.instances[seen.slot]
        requests = int(np.sum(rows["running"] + rows["waiting"] + rows["preempted"]))

        def load(instances: int) -> float:
            return freeness_load(kv, waiting, each * instances, requests, block)

        now = load(have)
        why = f"freeness {now:.3g}"
        blocks = each / block if settings.empty == "real" else math.inf
        more = instances_to_add(now, requests, blocks, settings.high)
        if more == 0 and have > 1 and load(have - 1) < settings.low:
            more = -1
        return have + more, why
