"""The learners by name: PPO of stable-baselines3, MaskablePPO and RecurrentPPO of sb3-contrib."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agents.configuration.config import TrainConfig
from agents.configuration.settings import RecurrentPPOConfig

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv


def algorithm_of(agent: str) -> Any:
    """The class of a learner."""
    if agent == "maskable-ppo":
        from sb3_contrib import MaskablePPO

        return MaskablePPO
    if agent == "recurrent-ppo":
        from sb3_contrib import RecurrentPPO

        return RecurrentPPO
    from stable_baselines3 import PPO

    return PPO


def make_model(
    config: TrainConfig, env: VecEnv | None, spaces: tuple[Any, Any] | None = None
) -> Any:
    """An untrained model as configured, on the CPU.

    Args:
        config: of the run.
        env: that it learns on. Without one it is for use alone, has the `spaces` (of observations and of
            actions), and leaves the process's generators of random numbers as they are.
        spaces: where there is no `env`.
    """
    import torch
    from torch import nn

    from agents.models.activations import NormTanh

    hyper = config.hyper
    layers = list(hyper.net)
    policy_kwargs: dict[str, Any] = {
        "net_arch": {"pi": layers, "vf": layers},
        "activation_fn": {
            "tanh": nn.Tanh,
            "norm-tanh": NormTanh,
            "relu": nn.ReLU,
            "silu": nn.SiLU,
        }[hyper.activation],
    }
    policy = "MlpPolicy"
    if isinstance(hyper, RecurrentPPOConfig):
        policy = "MlpLstmPolicy"
        policy_kwargs |= {"lstm_hidden_size": hyper.lstm_size, "n_lstm_layers": hyper.lstm_layers}
    model = algorithm_of(config.agent)(
        policy,
        env,
        n_steps=hyper.n_steps,
        batch_size=hyper.batch_size,
        n_epochs=hyper.n_epochs,
        learning_rate=falling_rate(hyper.learning_rate, hyper.learning_rate_end),
        gamma=hyper.gamma,
        gae_lambda=hyper.gae_lambda,
        clip_range=hyper.clip_range,
        ent_coef=hyper.ent_coef,
        vf_coef=hyper.vf_coef,
        max_grad_norm=hyper.max_grad_norm,
        target_kl=hyper.target_kl,
        policy_kwargs=policy_kwargs,
        seed=None if env is None else config.seed,
        device="cpu",
        _init_setup_model=env is not None,
    )
    if env is None:
        assert spaces is not None, "a model needs an environment or spaces"
        model.observation_space, model.action_space = spaces
        model.n_envs = 1
        with torch.random.fork_rng(devices=[]):
            model._setup_model()
    return model


def takes_masks(model: Any) -> bool:
    """Whether the model is to be told which choices are possible."""
    return "action_masks" in inspect.signature(model.policy.predict).parameters


def is_recurrent(model: Any) -> bool:
    """Whether the model remembers what it has seen of an episode."""
    return hasattr(model.policy, "lstm_actor")


def falling_rate(start: float, end: float) -> Callable[[float], float]:
    """A learning rate that falls linearly; its argument is the share of steps that remain."""

    def rate(remaining: float) -> float:
        return end + (start - end) * min(max(remaining, 0.0), 1.0)

    return rate
