"""`llmscale/MultiRegion-v0`: LLMs in several regions on spot VMs, as in SageServe."""

from __future__ import annotations

from llmscale_env.envs.base import ServingEnv, ServingVectorEnv


class MultiRegionEnv(ServingEnv):
    """TODO."""

    scenario_name = "multi-region"
    observation = (
        "week_clock",
        "clock",
        "regional_load",
        "latency",
        "tails",
        "queues",
        "endpoints",
        "last_action",
    )
    action = ("endpoints", "regional_routing", "background_release")


class MultiRegionVectorEnv(ServingVectorEnv):
    """Many episodes of `llmscale/MultiRegion-v0` advanced in one call: see `MultiRegionEnv`."""

    scenario_name = MultiRegionEnv.scenario_name
    observation = MultiRegionEnv.observation
    action = MultiRegionEnv.action
