"""Gymnasium environments in which a policy runs a simulated LLM serving cluster.

Importing the package registers the environments (see `ENVIRONMENTS`), so both of these work:

    import llmscale_env
    gymnasium.make("llmscale/MixedSLO-v0")

    gymnasium.make("llmscale_env:llmscale/MixedSLO-v0")  # also in a worker process

Nothing else is imported before it is used: the names in `__all__` load on first access.
"""

from __future__ import annotations

from llmscale_env import _interrupt  # noqa: F401

# isort: split
from importlib import import_module
from typing import NamedTuple

import gymnasium

__version__ = "0.1.0"


class EnvironmentEntry(NamedTuple):
    """What Gymnasium needs to know of an environment.

    Attributes:
        id: the id that `gymnasium.make` and `gymnasium.make_vec` take.
        short_name: the name on the command line (`env=mixed-slo-v0`).
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
        id="llmscale/MixedSLO-v0",
        short_name="mixed-slo-v0",
        entry_point="llmscale_env.envs.mixed_slo_v0:MixedSLOV0Env",
        vector_entry_point="llmscale_env.envs.mixed_slo_v0:MixedSLOV0VectorEnv",
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

# Public names and the modules that hold them, imported on first access (PEP 562): a script that
# only makes an environment does not pay for pandas, and one that only reads a trace not for Numba.
_LAZY: dict[str, str] = {
    "ClusterView": "llmscale_env.control.view",
    "Command": "llmscale_env.control.command",
    "EpisodeResult": "llmscale_env.control.result",
    "Policy": "llmscale_env.control.policy",
    "RequestTable": "llmscale_env.workload.requests",
    "Scenario": "llmscale_env.scenarios.schema",
    "load_scenario": "llmscale_env.scenarios.load",
    "router": "llmscale_env.sim.router",
    "run_episode": "llmscale_env.control.run",
    "run_streamed": "llmscale_env.control.run",
}

__all__ = ["ENVIRONMENTS", "EnvironmentEntry", "__version__", "register_environments", *_LAZY]


def register_environments() -> None:
    """Register every environment with Gymnasium, except those that are registered already.

    An id that is taken stays taken, silently: Gymnasium would warn, and a worker process or a
    reload of this module registers the same entries again.
    """
    for entry in ENVIRONMENTS:
        if entry.id not in gymnasium.registry:
            gymnasium.register(
                id=entry.id,
                entry_point=entry.entry_point,
                vector_entry_point=entry.vector_entry_point,
            )


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register_environments()
