"""The environments by short name: vectorised for training, their codec for running a policy."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import gymnasium as gym

import llmscale_env
from agents.config import TrainConfig, environment_id
from llmscale_env.scenarios import Scenario, load_scenario


def make_scenario(config: TrainConfig) -> Scenario:
    """The scenario that a configuration means.

    Raises:
        ScenarioError: there is no such scenario or field, or a value is not allowed.
    """
    return load_scenario(config.scenario, **config.overrides)


def make_training_env(config: TrainConfig, scenario: Scenario) -> Any:
    """The vectorised environment (`gymnasium.vector.VectorEnv`) of a training run."""
    return gym.make_vec(
        environment_id(config.env),
        num_envs=config.n_envs,
        vectorization_mode="vector_entry_point",
        scenario=scenario,
        threads=config.env_threads,
    )


def make_codec(env: str, scenario: Scenario) -> Any:
    """What turns a view into the environment's observation and an action into a command."""
    from llmscale_env.envs.core import Codec

    (entry,) = (entry for entry in llmscale_env.ENVIRONMENTS if entry.short_name == env)
    module, _, name = entry.entry_point.partition(":")
    cls = getattr(import_module(module), name)
    return Codec(scenario, cls.observation, cls.action)
