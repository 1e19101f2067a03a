"""`llmscale/Placement-v0`: how many workers of which degree, and how requests find one, as in Aladdin."""

from __future__ import annotations

from llmscale_env.envs.base import ServingEnv, ServingVectorEnv


class PlacementEnv(ServingEnv):
    """TODO"""

    scenario_name = "placement"
    observation = (
        "clock",
        "arrivals",
        "forecast",
        "lengths",
        "latency",
        "gateway",
        "fleet",
        "last_action",
    )
    action = ("instance_counts", "placement")


class PlacementVectorEnv(ServingVectorEnv):
    """Many episodes of `llmscale/Placement-v0` advanced in one call: see `PlacementEnv`."""

    scenario_name = PlacementEnv.scenario_name
    observation = PlacementEnv.observation
    action = PlacementEnv.action
