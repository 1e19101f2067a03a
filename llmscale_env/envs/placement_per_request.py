"""`llmscale/PlacementPerRequest-v0`: which worker gets this request, as in Aladdin."""

from __future__ import annotations

from llmscale_env.envs.base import ServingEnv, ServingVectorEnv


class PlacementPerRequestEnv(ServingEnv):
    """TODO"""

    scenario_name = "placement-per-request"
    observation = ("request", "workers")
    action = ("place_request",)


class PlacementPerRequestVectorEnv(ServingVectorEnv):
    """Many episodes of `llmscale/PlacementPerRequest-v0` advanced in one call: see `PlacementPerRequestEnv`."""

    scenario_name = PlacementPerRequestEnv.scenario_name
    observation = PlacementPerRequestEnv.observation
    action = PlacementPerRequestEnv.action
