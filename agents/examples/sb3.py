"""PPO of stable-baselines3, or MaskablePPO of sb3-contrib, on the vectorised environment.

    python -m agents.examples.sb3 [KEY=VALUE ...]

    masks=true             MaskablePPO: impossible choices are ruled out; false: PPO
    env=mixed-slo-hours    an environment with MultiDiscrete actions
    total_timesteps=60000  environment steps, over all parallel episodes
    seed=0                 of everything
    episodes=10            test episodes, with the seeds 10000 and up
    workload=NAME          of the test episodes (default: test days, where the environment has them)
    scenario.FIELD=VALUE   changes the scenario (scenario.fleet.max_gpus=12)

Prints the mean reward of the test episodes before and after. Needs the extra `train`; docs/examples.md has
what it reaches. `agents.train` does the same with validation, checkpoints and reference policies.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from agents.examples import settings as command
from llmscale_env._cli import flag, needs, run_command

N_ENVS = 16
# A reward is some tens of dollars a day, a step of half a minute costs a hundredth of one.
REWARD_SCALE = 10.0
# The first policy takes the choice that leaves the cluster as it is exp(1) times as often as any other. With
# exp(3) the policy that draws learns, but its most probable choice, which the test takes, stays that one.
AS_IS_BIAS = 1.0


def make_env(settings: command.Settings, n: int) -> Any:
    """`n` episodes side by side, as stable-baselines3 wants them."""
    import gymnasium

    from agents.vec_adapter import NativeVecEnv

    envs = gymnasium.make_vec(settings.id, num_envs=n, overrides=dict(settings.overrides))
    return NativeVecEnv(envs, reward_scale=REWARD_SCALE)


def make_model(env: Any, settings: command.Settings, masks: bool) -> Any:
    """An untrained model that leans towards leaving the cluster as it is."""
    from sb3_contrib import MaskablePPO
    from stable_baselines3 import PPO

    from agents.exploration.prior import as_is_choices, lean_towards

    model = (MaskablePPO if masks else PPO)(
        "MlpPolicy",
        env,
        n_steps=120,  # half an episode
        batch_size=480,
        n_epochs=6,
        learning_rate=lambda left: 1e-3 * left,
        gamma=0.99,
        policy_kwargs={"net_arch": [64, 64]},
        seed=settings.seed,
        device="cpu",
        verbose=0,
    )
    names, choices = zip(*env.env.unwrapped.action_choices.items(), strict=True)
    as_is = as_is_choices(names, choices, env.env.unwrapped.scenario)
    lean_towards(model, as_is, [AS_IS_BIAS] * len(as_is))
    return model


def test(model: Any, settings: command.Settings, masks: bool) -> Any:
    """(episodes,) rewards of the test episodes, with the most probable actions."""
    import numpy as np

    env = make_env(settings, settings.episodes)
    env.seed_each(settings.test_seeds)
    env.set_options(settings.test_options)
    total, over = np.zeros(settings.episodes), np.zeros(settings.episodes, bool)
    observations = env.reset()
    while not over.all():
        possible = {"action_masks": env.native_infos["action_mask"]} if masks else {}
        actions, _ = model.predict(observations, deterministic=True, **possible)
        observations, _, done, _ = env.step(actions)
        total += np.where(over, 0.0, env.native_rewards)
        over |= done
    env.close()
    return total


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 2 after a slip (named in one line), 130 when interrupted."""
    return run_command("sb3", __doc__, argv, _run, wordless=True)


def _run(words: Sequence[str]) -> int:
    settings = command.read(words, more=("masks",))
    masks = flag(settings.others, "masks", True)
    needs("torch", "stable_baselines3", "sb3_contrib")
    import torch

    torch.set_num_threads(1)
    env = make_env(settings, N_ENVS)
    model = make_model(env, settings, masks)
    settings.tell("before", test(model, settings, masks))
    model.learn(settings.total_timesteps)
    settings.tell("after", test(model, settings, masks))
    env.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
