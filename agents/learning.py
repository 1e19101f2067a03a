"""Learning: a model of stable-baselines3 on the vectorised environment, validated on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.logger import configure

from agents.algorithms import make_model
from agents.callbacks import Progress, RolloutTags, Stop, Validation, log_references
from agents.comparison import Row
from agents.config import TrainConfig
from agents.environments import codec_of, make_vector_env
from agents.learned import LAST, find_model, load_model
from agents.prior import as_is_choices, lean_towards
from agents.vec_adapter import NativeVecEnv
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.scenarios import Scenario


def learn(
    config: TrainConfig,
    scenario: Scenario,
    folder: Path,
    simulation: ClusterSimulation,
    references: list[Row],
    resumes: bool,
) -> None:
    """Train to `config.total_timesteps`; best and last model end up in `folder`.

    Args:
        config: of the run.
        scenario: what is simulated.
        folder: the run folder.
        simulation: of the scenario, for validation.
        references: validation rows of the reference policies.
        resumes: go on from the folder's last model, if it got as far as having one.

    Raises:
        KeyboardInterrupt: interrupted; the last model has been saved.
        ModelError: the last model of the folder cannot be read.
    """
    resumes = resumes and (folder / LAST).is_file()
    env = NativeVecEnv(
        make_vector_env(config, scenario, config.n_envs), reward_scale=config.reward_scale
    )
    try:
        model = _take_up(config, folder, env) if resumes else make_learner(config, env, scenario)
        done = model.num_timesteps
        env.seed_each(config.training_seeds(done))
        model.set_logger(configure(str(folder / "tb" / config.agent), ["tensorboard"]))
        log_references(folder / "tb", references, scenario, config.total_timesteps)
        with Stop() as stop:
            validation = Validation(config, scenario, folder, simulation, stop, references)
            if resumes:
                validation.take_up(done)
            callbacks = CallbackList(
                [validation, RolloutTags(env), Progress(config.total_timesteps)]
            )
            try:
                if done < config.total_timesteps:
                    model.learn(
                        config.total_timesteps - done,
                        callback=callbacks,
                        reset_num_timesteps=not resumes,
                    )
                else:
                    validation.init_callback(model)
                stop.check()
                if validation.last_validation < model.num_timesteps:
                    validation.validate()
            except KeyboardInterrupt:
                validation.save(LAST)
                raise
            finally:
                model.logger.close()
    finally:
        env.close()


def make_learner(config: TrainConfig, env: NativeVecEnv, scenario: Scenario) -> Any:
    """An untrained model that mostly leaves the cluster as it is (`agents.prior`)."""
    model = make_model(config, env)
    decoder = codec_of(config, scenario).decoder
    choices = as_is_choices(decoder.parts, decoder.choices, scenario)
    biases = [
        config.as_is_bias
        if part.endswith(("/instances", "/serves"))
        else config.as_is_bias_settings
        for part in decoder.parts
    ]
    lean_towards(model, choices, biases)
    return model


def _take_up(config: TrainConfig, folder: Path, env: NativeVecEnv) -> Any:
    """The last model of a run folder, on `env`, with the steps that it has learnt from."""
    model = load_model(find_model(folder / LAST), config.agent, env=env)
    model.set_random_seed((config.seed + model.num_timesteps) % 2**31)
    return model
