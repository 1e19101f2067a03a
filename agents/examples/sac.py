"""SAC of stable-baselines3 on continuous actions: a number in -1..1 for each part.

    python -m agents.examples.sac [KEY=VALUE ...]

    env=mixed-slo-hours    an environment with MultiDiscrete actions
    total_timesteps=60000  environment steps, over all parallel episodes
    seed=0                 of everything
    episodes=10            test episodes, with the seeds 10000 and up
    workload=NAME          of the test episodes (default: test days, where the environment has them)
    scenario.FIELD=VALUE   changes the scenario (scenario.fleet.max_gpus=12)

Prints the mean reward of the test episodes before and after. Needs the extra `train`; docs/examples.md has
what it reaches.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from agents.examples import settings as command
from llmscale_env._cli import needs, run_command

N_ENVS = 8
# A reward is some tens of dollars a day, a step of half a minute costs a hundredth of one.
REWARD_SCALE = 10.0
# Of the first policy's noise, before it is squashed to -1..1: about half of one choice.
FIRST_STD = 0.15


def make_env(settings: command.Settings, n: int) -> Any:
    """`n` episodes side by side, with continuous actions, as stable-baselines3 wants them."""
    import gymnasium

    from agents.vec_adapter import NativeVecEnv
    from llmscale_env.wrappers import VectorContinuousAction

    envs = gymnasium.make_vec(settings.id, num_envs=n, overrides=dict(settings.overrides))
    return NativeVecEnv(VectorContinuousAction(envs), reward_scale=REWARD_SCALE)


def make_model(env: Any, settings: command.Settings) -> Any:
    """An untrained model that begins with small noise around what leaves the cluster as it is."""
    import numpy as np
    import torch
    from stable_baselines3 import SAC

    from agents.exploration.prior import as_is_choices

    model = SAC(
        "MlpPolicy",
        env,
        buffer_size=settings.total_timesteps,
        batch_size=256,
        learning_rate=3e-4,
        gamma=0.99,
        train_freq=4,  # steps of all episodes
        gradient_steps=8,
        learning_starts=0,  # no uniform noise: it would scale the fleet to and fro
        # The usual target assumes noise as wide as the whole range; half a choice is enough.
        target_entropy=float(-2 * env.action_space.shape[0]),
        ent_coef="auto_0.01",
        policy_kwargs={"net_arch": [64, 64]},
        seed=settings.seed,
        device="cpu",
        verbose=0,
    )
    inner = env.env.unwrapped
    as_is = as_is_choices(inner.action_names, list(inner.action_choices.values()), inner.scenario)
    actor: Any = model.actor
    with torch.no_grad():
        for part, (choice, n) in enumerate(zip(as_is, inner.single_action_space.nvec, strict=True)):
            if choice is not None:
                # The middle of the choice's piece of -1..1, before the squashing.
                actor.mu.bias[part] = float(np.arctanh((2 * choice + 1) / n - 1))
        actor.mu.weight.mul_(0.01)
        actor.log_std.bias.fill_(np.log(FIRST_STD))
        actor.log_std.weight.mul_(0.01)
    return model


def test(model: Any, settings: command.Settings) -> Any:
    """(episodes,) rewards of the test episodes, without noise."""
    import numpy as np

    env = make_env(settings, settings.episodes)
    env.seed_each(settings.test_seeds)
    env.set_options(settings.test_options)
    total, over = np.zeros(settings.episodes), np.zeros(settings.episodes, bool)
    observations = env.reset()
    while not over.all():
        actions, _ = model.predict(observations, deterministic=True)
        observations, _, done, _ = env.step(actions)
        total += np.where(over, 0.0, env.native_rewards)
        over |= done
    env.close()
    return total


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 2 after a slip (named in one line), 130 when interrupted."""
    return run_command("sac", __doc__, argv, _run, wordless=True)


def _run(words: Sequence[str]) -> int:
    settings = command.read(words)
    needs("torch", "stable_baselines3")
    import torch

    torch.set_num_threads(1)
    env = make_env(settings, N_ENVS)
    model = make_model(env, settings)
    settings.tell("before", test(model, settings))
    model.learn(settings.total_timesteps)
    settings.tell("after", test(model, settings))
    env.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
