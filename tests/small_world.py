"""The small world of many tests, and an environment on it: half an hour, three pools, one LLM."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym

from llmscale_env.envs.base import ServingEnv
from llmscale_env.envs.vector import ServingVectorEnv

SMALL_WORLD = str(Path(__file__).parent / "scenarios" / "small.yaml")
"""Path of its scenario."""

SMALL_ID = "tests/Small-v0"


class SmallEnv(ServingEnv):
    """Chiron's setting on a small scale, without a past day.

    ## Rewards

    - `gpu`: GPU-seconds held over those of all 16 GPUs;
    - `violations`: 10 x the misses over the requests expected per interval;
    - `loads`: 0.02 per instance started.
    """

    scenario_name = SMALL_WORLD
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
    action = ("instance_counts", "batch_limits", "routing_share", "loading")


class SmallVectorEnv(ServingVectorEnv):
    """Many episodes of `SmallEnv` advanced in one call."""

    scenario_name = SMALL_WORLD
    observation = SmallEnv.observation
    action = SmallEnv.action


if SMALL_ID not in gym.registry:
    gym.register(
        id=SMALL_ID,
        entry_point="tests.small_world:SmallEnv",
        vector_entry_point="tests.small_world:SmallVectorEnv",
    )
