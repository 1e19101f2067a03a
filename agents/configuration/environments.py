"""The environments by short name: vectorised for training, their codec for running a policy."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import gymnasium as gym

import llmscale_env
from agents.configuration.config import TrainConfig, environment_id
from llmscale_env._cli import Slip
from llmscale_env.envs.shaping import Shaping
from llmscale_env.scenarios import Scenario, load_scenario

if TYPE_CHECKING:
    from llmscale_env.control.simulation import ClusterSimulation

COUNTS = "/instances"
"""Parts of an action whose names end so are instance counts, or changes of them, in ascending order."""


def are_counts(parts: Sequence[str]) -> list[bool]:
    """Which parts of an action are instance counts."""
    return [part.endswith(COUNTS) for part in parts]


def check_quantile(quantile: float, codec: Any) -> None:
    """Whether there is anything in an action to take a quantile of.

    Raises:
        ValueError: no part of it is an instance count.
    """
    if not any(are_counts(codec.decoder.parts)):
        heads = ", ".join(head.name for head in codec.decoder.heads)
        raise ValueError(
            f"quantile = {quantile:g}: is of instance counts, and action = {heads} has none"
        )


def make_scenario(config: TrainConfig) -> Scenario:
    """The scenario that a configuration means.

    Raises:
        ScenarioError: there is no such scenario or field, or a value is not allowed.
    """
    return load_scenario(config.scenario, **config.overrides)


def evaluation_scenario(config: TrainConfig, scenario: Scenario) -> Scenario:
    """What the table at the end of a run is about, in place of the run's own scenario or equal to it.

    Raises:
        ScenarioError: there is no such scenario or workload, or it cannot have the changed fields.
    """
    if config.evaluation_scenario is None and config.evaluation_workload is None:
        return scenario
    changes = dict(config.overrides)
    if config.evaluation_workload is not None:
        changes["workload"] = config.evaluation_workload
    return load_scenario(config.evaluation_scenario or config.scenario, **changes)


def validation_scenarios(config: TrainConfig, scenario: Scenario) -> dict[str, Scenario]:
    """What a run is validated on, by workload and load, as "chat x1.2" or "x1.2".

    Where no others are named that is the scenario itself, as "".

    Raises:
        ScenarioError: there is no such workload, or the scenario cannot have it, or not at this load.
    """
    found = {"": scenario}
    if config.validation_workloads:
        names = config.validation_workloads
        rate = "workload.rate_scale"
        changes = {rate: config.overrides[rate]} if rate in config.overrides else {}
        found = {name: load_scenario(scenario, workload=name, **changes) for name in names}
    if not config.validation_rate_scales:
        return found
    return {
        f"{name} x{scale:g}".strip(): load_scenario(each, **{"workload.rate_scale": scale})
        for name, each in found.items()
        for scale in config.validation_rate_scales
    }


def simulation_of(config: TrainConfig, scenario: Scenario) -> ClusterSimulation:
    """What episodes of a run are played on, one at a time."""
    from llmscale_env.control.simulation import ClusterSimulation

    return ClusterSimulation(scenario, engine=config.engine)


def simulations_of(
    config: TrainConfig, scenarios: Mapping[str, Scenario], own: ClusterSimulation
) -> dict[str, ClusterSimulation]:
    """A simulation of each of `validation_scenarios`; `own` is that of the run's scenario."""
    return {
        name: simulation_of(config, other) if name else own for name, other in scenarios.items()
    }


def make_vector_env(config: TrainConfig, scenario: Scenario, n_envs: int) -> Any:
    """A vectorised environment (`gymnasium.vector.VectorEnv`), seen and steered as configured.

    Raises:
        ValueError: an unknown observation block, action head or forecaster.
        Slip: a `reference` that is unknown, or an environment that takes none.
    """
    cls = _class_of(config.env)
    return gym.make_vec(
        environment_id(config.env),
        num_envs=n_envs,
        vectorization_mode="vector_entry_point",
        scenario=scenario,
        threads=config.env_threads,
        engine=config.engine,
        observation=config.observation or None,
        action=config.action or None,
        forecaster=config.forecaster,
        shaping=shaping_of(config, scenario),
        **_reference(config.reference, cls),
    )


def shaping_of(config: TrainConfig, scenario: Scenario) -> Shaping | None:
    """The term of the reward for requests that will be late; None where a run has none.

    The learner's discount, and the price that a miss has at the start of the run.
    """
    if config.shaping == 0:
        return None
    prices = config.lagrangian
    multiplier = 1.0 if prices.attainment is None else prices.start
    reward = scenario.reward
    own = 1.0 if reward.prices is not None else reward.violation_weight
    weight = config.shaping * multiplier * own
    return Shaping(weight, config.hyper.gamma)


def make_codec(
    env: str,
    scenario: Scenario,
    observation: Sequence[str] | None = None,
    action: Sequence[str] | None = None,
    reference: str | None = None,
) -> Any:
    """What turns a view into the environment's observation and an action into a command.

    Args:
        env: short name.
        scenario: what is observed and commanded.
        observation, action: names of blocks and heads; None: the environment's own.
        reference: name of the policy that residual heads start from.

    Raises:
        ValueError: an unknown block or head.
        Slip: a `reference` that is unknown, or an environment that takes none.
    """
    from llmscale_env.envs.codec import Codec

    cls = _class_of(env)
    blocks, heads = observation or cls.observation, action or cls.action
    return Codec(scenario, blocks, heads, **_reference(reference, Codec))


def codec_of(config: TrainConfig, scenario: Scenario) -> Any:
    """The codec of a training run: the same spaces as in its environment."""
    return make_codec(config.env, scenario, config.observation, config.action, config.reference)


def _class_of(env: str) -> Any:
    (entry,) = (entry for entry in llmscale_env.ENVIRONMENTS if entry.short_name == env)
    module, _, name = entry.entry_point.partition(":")
    return getattr(import_module(module), name)


def _reference(name: str | None, cls: Any) -> dict[str, Any]:
    """The argument that gives residual heads their policy."""
    if name is None:
        return {}
    if "reference" not in inspect.signature(cls.__init__).parameters:
        raise Slip(f"reference = {name!r}: {cls.__name__} takes no reference policy")
    from baselines import PolicyError, make_policy

    try:
        return {"reference": make_policy(name)}
    except PolicyError as error:
        raise Slip(f"reference: {error}") from None
