"""`llmscale/MultiModelQueue-v0`: requests of several LLMs wait for a few GPUs, as in QLM."""

from __future__ import annotations

from llmscale_env.envs.base import ServingEnv, ServingVectorEnv


class MultiModelQueueEnv(ServingEnv):
    """Requests of several LLMs wait for a few GPUs: which group does each serve next?"""

    scenario_name = "multi-model-queue"
    observation = ("clock", "arrivals", "latency", "groups", "instances", "last_action")
    action = ("group_order", "make_way")


class MultiModelQueueVectorEnv(ServingVectorEnv):
    """Many episodes of `llmscale/MultiModelQueue-v0` advanced in one call: see `MultiModelQueueEnv`."""

    scenario_name = MultiModelQueueEnv.scenario_name
    observation = MultiModelQueueEnv.observation
    action = MultiModelQueueEnv.action
