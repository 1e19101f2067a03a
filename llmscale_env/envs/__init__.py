"""The Gymnasium environments: each is a scenario with observation blocks, action heads and a reward.

A class per environment and form, such as `MixedSLOEnv` and `MixedSLOVectorEnv`, for those who want another
than `gymnasium.make` gives: a subclass (of `ServingEnv` or `ServingVectorEnv`, if it is of none of them), or
one with a wrapper's own arguments. `MultiRegionParallelEnv` needs PettingZoo. `base` has what all share,
`core` the episodes, `codec` what turns a cluster into numbers and numbers into orders.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple


class EnvironmentEntry(NamedTuple):
    """What Gymnasium needs to know of an environment.

    Attributes:
        id: the id that `gymnasium.make` and `gymnasium.make_vec` take.
        short_name: the name on the command line (`env=mixed-slo`).
        entry_point, vector_entry_point: `module:class`, imported when an environment is made.
    """

    id: str
    short_name: str
    entry_point: str
    vector_entry_point: str


ENVIRONMENTS: tuple[EnvironmentEntry, ...] = (
    EnvironmentEntry(
        id="llmscale/MixedSLO-v1",
        short_name="mixed-slo",
        entry_point="llmscale_env.envs.mixed_slo:MixedSLOEnv",
        vector_entry_point="llmscale_env.envs.mixed_slo:MixedSLOVectorEnv",
    ),
    EnvironmentEntry(
        id="llmscale/MixedSLO-Hours-v1",
        short_name="mixed-slo-hours",
        entry_point="llmscale_env.envs.mixed_slo:MixedSLOHoursEnv",
        vector_entry_point="llmscale_env.envs.mixed_slo:MixedSLOHoursVectorEnv",
    ),
    EnvironmentEntry(
        id="llmscale/MixedSLO-Bursty-v1",
        short_name="mixed-slo-bursty",
        entry_point="llmscale_env.envs.mixed_slo:MixedSLOBurstyEnv",
        vector_entry_point="llmscale_env.envs.mixed_slo:MixedSLOBurstyVectorEnv",
    ),
    EnvironmentEntry(
        id="llmscale/MixedSLO-Constrained-v1",
        short_name="mixed-slo-constrained",
        entry_point="llmscale_env.envs.mixed_slo:MixedSLOConstrainedEnv",
        vector_entry_point="llmscale_env.envs.mixed_slo:MixedSLOConstrainedVectorEnv",
    ),
    EnvironmentEntry(
        id="llmscale/MixedSLO-Large-v1",
        short_name="mixed-slo-large",
        entry_point="llmscale_env.envs.mixed_slo:MixedSLOLargeEnv",
        vector_entry_point="llmscale_env.envs.mixed_slo:MixedSLOLargeVectorEnv",
    ),
    EnvironmentEntry(
        id="llmscale/MultiModelQueue-v0",
        short_name="multi-model-queue",
        entry_point="llmscale_env.envs.multi_model_queue:MultiModelQueueEnv",
        vector_entry_point="llmscale_env.envs.multi_model_queue:MultiModelQueueVectorEnv",
    ),
    EnvironmentEntry(
        id="llmscale/Placement-v1",
        short_name="placement",
        entry_point="llmscale_env.envs.placement:PlacementEnv",
        vector_entry_point="llmscale_env.envs.placement:PlacementVectorEnv",
    ),
    EnvironmentEntry(
        id="llmscale/PlacementPerRequest-v0",
        short_name="placement-per-request",
        entry_point="llmscale_env.envs.placement_per_request:PlacementPerRequestEnv",
        vector_entry_point="llmscale_env.envs.placement_per_request:PlacementPerRequestVectorEnv",
    ),
    EnvironmentEntry(
        id="llmscale/BurstMulticast-v0",
        short_name="burst-multicast",
        entry_point="llmscale_env.envs.burst_multicast:BurstMulticastEnv",
        vector_entry_point="llmscale_env.envs.burst_multicast:BurstMulticastVectorEnv",
    ),
    EnvironmentEntry(
        id="llmscale/MultiRegion-v1",
        short_name="multi-region",
        entry_point="llmscale_env.envs.multi_region:MultiRegionEnv",
        vector_entry_point="llmscale_env.envs.multi_region:MultiRegionVectorEnv",
    ),
)
"""Every environment of the package."""

_CLASSES: dict[str, str] = {
    name: module
    for entry in ENVIRONMENTS
    for module, _, name in (e.partition(":") for e in (entry.entry_point, entry.vector_entry_point))
} | {
    "ServingEnv": "llmscale_env.envs.base",
    "ServingVectorEnv": "llmscale_env.envs.vector",
}

__all__ = ["ENVIRONMENTS", "EnvironmentEntry", *_CLASSES]

# Not in `__all__`: what imports all names must not need PettingZoo.
_CLASSES["MultiRegionParallelEnv"] = "llmscale_env.envs.multi_region_parallel"


def __getattr__(name: str) -> Any:
    """Imported when it is used: an environment brings Numba and the simulator along."""
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_CLASSES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_CLASSES})
