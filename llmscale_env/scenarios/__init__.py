"""Named, validated configurations (YAML) that put a cluster and a workload together."""

from llmscale_env.scenarios.fleet import FleetConfig, QueueConfig, RouteConfig
from llmscale_env.scenarios.load import (
    ScenarioError,
    held_out,
    load_scenario,
    scenario_names,
    validate_scenario,
    with_overrides,
)
from llmscale_env.scenarios.pools import PoolConfig
from llmscale_env.scenarios.schema import RewardConfig, Scenario

__all__ = [
    "FleetConfig",
    "PoolConfig",
    "QueueConfig",
    "RewardConfig",
    "RouteConfig",
    "Scenario",
    "ScenarioError",
    "held_out",
    "load_scenario",
    "scenario_names",
    "validate_scenario",
    "with_overrides",
]
