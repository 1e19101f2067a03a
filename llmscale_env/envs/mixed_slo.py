"""`llmscale/MixedSLO-v0`: interactive and batch requests on one cluster, as in Chiron."""

from __future__ import annotations

from llmscale_env.envs.base import ServingEnv, ServingVectorEnv


class MixedSLOEnv(ServingEnv):
    """ """

    scenario_name = "mixed-slo"
    observation = (
        "clock",
        "arrivals",
        "forecast",
        "latency",
        "queues",
        "fleet",
        "backpressure",
        "last_action",
    )
    action = ("instances", "batch_limits", "routing_share", "loading")


class MixedSLOVectorEnv(ServingVectorEnv):
    """Many episodes of `llmscale/MixedSLO-v0` advanced in one call: see `MixedSLOEnv`."""

    scenario_name = MixedSLOEnv.scenario_name
    observation = MixedSLOEnv.observation
    action = MixedSLOEnv.action
