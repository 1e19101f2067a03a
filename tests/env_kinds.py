"""Every environment with a short episode of it, for tests of what all of them keep."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from llmscale_env.envs.burst_multicast import BurstMulticastEnv, BurstMulticastVectorEnv
from llmscale_env.envs.mixed_slo import MixedSLOEnv, MixedSLOVectorEnv
from llmscale_env.envs.mixed_slo_v0 import MixedSLOV0Env, MixedSLOV0VectorEnv
from llmscale_env.envs.multi_model_queue import MultiModelQueueEnv, MultiModelQueueVectorEnv
from llmscale_env.envs.multi_region import MultiRegionEnv, MultiRegionVectorEnv
from llmscale_env.envs.placement import PlacementEnv, PlacementVectorEnv
from llmscale_env.envs.placement_per_request import (
    PlacementPerRequestEnv,
    PlacementPerRequestVectorEnv,
)
from tests.small_fleets import FEW_VMS

SHORT = {"horizon_s": 120, "workload.rate_scale": 0.5}


class Kind(NamedTuple):
    """An environment as the tests here need it: its episodes are 12 decisions long, or some 40."""

    id: str
    single: Any
    vector: Any
    short: dict[str, Any]
    action: list[int]


DAY = Kind(
    "llmscale/MixedSLO-v1",
    MixedSLOEnv,
    MixedSLOVectorEnv,
    {"horizon_s": 360, "workload": "mixed-slo-hours", "workload.rate_scale": 0.3},
    [4, 4, 0, 3, 3, 5, 0, 0],
)
MIXED = Kind(
    "llmscale/MixedSLO-v0", MixedSLOV0Env, MixedSLOV0VectorEnv, SHORT, [4, 4, 0, 3, 3, 5, 0, 0]
)
QUEUE = Kind(
    "llmscale/MultiModelQueue-v0",
    MultiModelQueueEnv,
    MultiModelQueueVectorEnv,
    {"horizon_s": 60, "workload.batch_queues.archive-tuned.at_s": 20},
    [0, 1, 0, 13, 1, 0, 1, 0],
)
PLACEMENT = Kind(
    "llmscale/Placement-v1",
    PlacementEnv,
    PlacementVectorEnv,
    {"horizon_s": 60, "workload.rate_scale": 0.5},
    [6, 1, 0, 4, 2, 4],
)
REQUEST = Kind(
    "llmscale/PlacementPerRequest-v0",
    PlacementPerRequestEnv,
    PlacementPerRequestVectorEnv,
    {"horizon_s": 3, "control_interval_s": 0.5, "workload.rate_scale": 1.5},
    [2],
)
MULTICAST = Kind(
    "llmscale/BurstMulticast-v0",
    BurstMulticastEnv,
    BurstMulticastVectorEnv,
    {"horizon_s": 12, "workload.rate_scale": 1.5},
    [3, 2, 0, 3, 0, 0],
)
REGION = Kind(
    "llmscale/MultiRegion-v1",
    MultiRegionEnv,
    MultiRegionVectorEnv,
    {"horizon_s": 10_800, "workload.rate_scale": 0.1, **FEW_VMS},
    [*[3, 2] * 3, *[4, 0, 2, 1, 3, 2], *[3, 0, 2, 2, 5, 2], *[2] * 17, 0],
)
KINDS = (DAY, MIXED, QUEUE, PLACEMENT, REQUEST, MULTICAST, REGION)
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.id.partition("/")[2])


def make(kind=MIXED, **changes):
    return kind.single(overrides={**kind.short, **changes})
