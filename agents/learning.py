"""The learner: stable-baselines3's PPO on the vectorised environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.logger import configure
from torch import nn

from agents.callbacks import Progress, RolloutTags, Stop, Validation, log_references
from agents.comparison import Row
from agents.config import TrainConfig
from agents.environments import make_codec, make_training_env
from agents.learned import LAST, find_model, load_model
from agents.prior import as_is_choices, lean_towards
from agents.vec_adapter import NativeVecEnv
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.scenarios import Scenario

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU}


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
    env = NativeVecEnv(make_training_env(config, scenario), reward_scale=config.reward_scale)
    try:
        model = _take_up(config, folder, env) if resumes else make_ppo(config, env, scenario)
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


def make_ppo(config: TrainConfig, env: NativeVecEnv, scenario: Scenario) -> PPO:
    """An untrained PPO as configured."""
    ppo = config.ppo
    layers = list(ppo.net)
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=ppo.n_steps,
        batch_size=ppo.batch_size,
        n_epochs=ppo.n_epochs,
        learning_rate=falling_rate(ppo.learning_rate, ppo.learning_rate_end),
        gamma=ppo.gamma,
        gae_lambda=ppo.gae_lambda,
        clip_range=ppo.clip_range,
        ent_coef=ppo.ent_coef,
        vf_coef=ppo.vf_coef,
        max_grad_norm=ppo.max_grad_norm,
        target_kl=ppo.target_kl,
        policy_kwargs={
            "net_arch": {"pi": layers, "vf": layers},
            "activation_fn": ACTIVATIONS[ppo.activation],
        },
        seed=config.seed,
        device="cpu",
    )
    decoder = make_codec(config.env, scenario).decoder
    choices = as_is_choices(decoder.parts, decoder.choices, scenario)
    biases = [
        config.as_is_bias
        if part.endswith(("/instances", "/serves"))
        else config.as_is_bias_settings
        for part in decoder.parts
    ]
    lean_towards(model, choices, biases)
    return model


def falling_rate(start: float, end: float) -> Callable[[float], float]:
    """A learning rate that falls linearly; its argument is the share of steps that remain."""

    def rate(remaining: float) -> float:
        return end + (start - end) * min(max(remaining, 0.0), 1.0)

    return rate


def _take_up(config: TrainConfig, folder: Path, env: NativeVecEnv) -> Any:
    """The last model of a run folder, on `env`, with the steps that it has learnt from."""
    model = load_model(find_model(folder / LAST), env=env)
    model.set_random_seed((config.seed + model.num_timesteps) % 2**31)
    return model
