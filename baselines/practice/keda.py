"""KEDA on vLLM's metrics: waiting requests and KV memory, each over its target, without HPA's steps.

As operators set it up on `vllm:num_requests_waiting` and `vllm:kv_cache_usage_perc` (30 waiting requests and
60 % of KV memory per replica, polled every 15 s): `N' = max(ceil(sum kv / 0.60), ceil(sum waiting / 30))`.
The policy `hpa` has the same targets with what the autoscaler behind KEDA adds: tolerance, factors, windows.
"""

from __future__ import annotations

import math
from typing import ClassVar

from baselines.fleet import UniformPolicy
from baselines.parameters import Positive
from baselines.practice.seen import PracticeParameters, kv_capacity, replicas_of
from baselines.space import BATCH_LIMIT, Real, Space
from llmscale_env.control.view import ClusterView


class KedaParameters(PracticeParameters):
    """The usual targets.

    Attributes:
        queue_target: waiting requests per replica.
        kv_target: share of KV memory in use per replica.
        period_s: `pollingInterval`.
    """

    queue_target: Positive = 30.0
    kv_target: Positive = 0.6
    period_s: Positive = 15.0


def wanted_replicas(kv_sum: float, waiting: float, kv_target: float, queue_target: float) -> int:
    """The larger of the two metrics' demands.

    Args:
        kv_sum: share of KV memory in use, summed over the replicas.
        waiting: requests that wait, over all replicas.
        kv_target, queue_target: what each replica should have.
    """
    kv = math.ceil(round(kv_sum / kv_target, 9))
    return max(kv, math.ceil(round(waiting / queue_target, 9)))


class KedaPolicy(UniformPolicy):
    """KEDA's rule for all classes alike.

    It says what is needed and not how many to add, so loading replicas are not ordered twice; nothing holds
    it back from going down and up again. No replica serving reads as a missing metric, and leaves all as it
    is.
    """

    parameters_type = KedaParameters
    usual_name = "keda"
    parameters: KedaParameters

    GRID: ClassVar[dict[str, tuple[object, ...]]] = {
        "queue_target": (2.0, 5.0, 10.0, 30.0),
        "kv_target": (0.05, 0.1, 0.3, 0.6),
        "batch_limit": (32, 64, 128, 256),
    }
    SPACE: ClassVar[Space] = {
        "queue_target": Real(0.5, 100, log=True),
        "kv_target": Real(0.01, 0.95, log=True),
        "batch_limit": BATCH_LIMIT,
    }

    def desired(self, view: ClusterView, p: int, have: int) -> tuple[int, str]:
        """The larger of the two demands."""
        seen = replicas_of(view, p)
        if len(seen) == 0:
            return have, "nothing serves yet"
        kv = float(seen.kv_tokens.sum()) / kv_capacity(view.scenario, p)
        waiting = float(seen.waiting.sum())
        settings = self.parameters
        wanted = wanted_replicas(kv, waiting, settings.kv_target, settings.queue_target)
        return wanted, f"kv {kv:.3g}, queue {waiting:.3g}"
