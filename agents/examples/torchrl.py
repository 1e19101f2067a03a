"""PPO with TorchRL: its collector, advantages and loss on the vectorised environment.

    python -m agents.examples.torchrl [KEY=VALUE ...]

    env=mixed-slo-hours    an environment with MultiDiscrete actions
    total_timesteps=60000  environment steps, over all parallel episodes
    seed=0                 of everything
    episodes=10            test episodes, with the seeds 10000 and up
    workload=NAME          of the test episodes (default: test days, where the environment has them)
    scenario.FIELD=VALUE   changes the scenario (scenario.fleet.max_gpus=12)

Prints the mean reward of the test episodes before and after. Needs the extra `train` and the package
`torchrl`; docs/examples.md has what it reaches. Actions are drawn without the masks; what is impossible the
environment clips and counts.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

from agents.examples import settings as command
from agents.runs.files import said
from llmscale_env._cli import needs, run_command

N_ENVS = 16
N_STEPS = 120  # half an episode
MINIBATCH = 480
EPOCHS = 6
LEARNING_RATE = 1e-3  # falls linearly to 0
GAMMA, GAE_LAMBDA = 0.99, 0.95
# A reward is some tens of dollars a day, a step of half a minute costs a hundredth of one.
REWARD_SCALE = 10.0
# The first policy takes the choice that leaves the cluster as it is exp(1) times as often as any other. With
# exp(3) the policy that draws learns, but its most probable choice, which the test takes, stays that one.
AS_IS_BIAS = 1.0


def make_env(settings: command.Settings, n: int) -> tuple[Any, Any]:
    """`n` episodes side by side: as TorchRL wants them, and as they are."""
    import gymnasium
    from torchrl.envs import GymWrapper, RewardScaling, TransformedEnv

    from llmscale_env.wrappers import VectorFlatInfo

    envs = gymnasium.make_vec(settings.id, num_envs=n, overrides=dict(settings.overrides))
    wrapped = GymWrapper(VectorFlatInfo(envs), categorical_action_encoding=True)
    return TransformedEnv(wrapped, RewardScaling(loc=0.0, scale=REWARD_SCALE)), envs


def parts_of(logits: Any, nvec: Sequence[int]) -> Any:
    """The distribution of whole actions: its parts are independent, given the observation."""
    import torch
    from torch.distributions import Categorical, Distribution

    class Parts(Distribution):
        arg_constraints: dict[str, Any] = {}

        def __init__(self, logits: Any) -> None:
            self.parts = [Categorical(logits=x) for x in logits.split(list(nvec), dim=-1)]
            super().__init__(logits.shape[:-1], torch.Size([len(nvec)]), validate_args=False)

        def sample(self, sample_shape: Any = ()) -> Any:
            return torch.stack([part.sample(sample_shape) for part in self.parts], -1)

        def log_prob(self, value: Any) -> Any:
            both = zip(self.parts, value.unbind(-1), strict=True)
            return torch.stack([part.log_prob(x) for part, x in both]).sum(0)

        @property
        def mode(self) -> Any:
            return torch.stack([part.probs.argmax(-1) for part in self.parts], -1)

        deterministic_sample = mode

    return Parts(logits)


def make_networks(env: Any, envs: Any) -> tuple[Any, Any]:
    """Actor and critic; untrained, the actor leans towards leaving the cluster as it is."""
    import numpy as np
    import torch
    from tensordict.nn import TensorDictModule
    from torchrl.modules import MLP, ProbabilisticActor, ValueOperator

    from agents.exploration.prior import as_is_choices

    nvec = envs.single_action_space.nvec
    inputs = envs.single_observation_space.shape[0]
    hidden: dict[str, Any] = {"num_cells": [64, 64], "activation_class": torch.nn.Tanh}
    logits = MLP(in_features=inputs, out_features=int(nvec.sum()), **hidden)
    values = MLP(in_features=inputs, out_features=1, **hidden)
    inner = envs.unwrapped
    as_is = as_is_choices(inner.action_names, list(inner.action_choices.values()), inner.scenario)
    starts = np.cumsum(nvec) - nvec
    with torch.no_grad():
        logits[-1].weight.mul_(0.01)
        logits[-1].bias.zero_()
        for start, choice in zip(starts, as_is, strict=True):
            if choice is not None:
                logits[-1].bias[int(start) + choice] = AS_IS_BIAS
    actor = ProbabilisticActor(
        TensorDictModule(logits, in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        spec=env.action_spec_unbatched,
        distribution_class=partial(parts_of, nvec=nvec.tolist()),
        return_log_prob=True,
    )
    return actor, ValueOperator(values, in_keys=["observation"])


def test(actor: Any, settings: command.Settings) -> Any:
    """(episodes,) rewards of the test episodes, with the most probable actions."""
    import gymnasium
    import numpy as np
    import torch
    from tensordict import TensorDict
    from torchrl.envs.utils import ExplorationType, set_exploration_type

    n = settings.episodes
    envs: Any = gymnasium.make_vec(settings.id, num_envs=n, overrides=dict(settings.overrides))
    total, over = np.zeros(n), np.zeros(n, bool)
    observations, _ = envs.reset(seed=settings.test_seeds, options=settings.test_options)
    while not over.all():
        seen = TensorDict({"observation": torch.as_tensor(observations)}, [n])
        with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
            actions = actor(seen)["action"].numpy()
        observations, rewards, _, truncated, _ = envs.step(actions)
        total += np.where(over, 0.0, rewards)
        over |= truncated
    envs.close()
    return total


def learn(env: Any, actor: Any, critic: Any, settings: command.Settings) -> None:
    """PPO for `settings.total_timesteps`."""
    import torch
    from torchrl.collectors import Collector
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    batch = N_STEPS * N_ENVS
    batches = max(1, settings.total_timesteps // batch)
    collector = Collector(env, actor, frames_per_batch=batch, total_frames=batches * batch)
    advantages = GAE(gamma=GAMMA, lmbda=GAE_LAMBDA, value_network=critic)
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=0.2,
        entropy_bonus=False,
        critic_coeff=0.25,
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    optimiser = torch.optim.Adam(loss.parameters(), lr=LEARNING_RATE, eps=1e-5)
    for number, data in enumerate(collector):
        optimiser.param_groups[0]["lr"] = LEARNING_RATE * (1 - number / batches)
        with torch.no_grad():
            advantages(data)
        rows = data.reshape(-1)
        for _ in range(EPOCHS):
            for mine in torch.randperm(batch).split(MINIBATCH):
                parts = loss(rows[mine])
                optimiser.zero_grad()
                (parts["loss_objective"] + parts["loss_critic"]).backward()
                torch.nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimiser.step()
        a_step = data["next", "reward"].mean().item() / REWARD_SCALE
        said(f"steps {(number + 1) * batch:>9,}  reward of a step {a_step:8.4f}")
    collector.shutdown(close_env=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 2 after a slip (named in one line), 130 when interrupted."""
    return run_command("torchrl", __doc__, argv, _run, wordless=True)


def _run(words: Sequence[str]) -> int:
    settings = command.read(words)
    needs("torch", "torchrl")
    import torch

    # It warns of its own future defaults, and of spaces that it copies.
    warnings.filterwarnings("ignore", module="torchrl|tensordict|torch")
    os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    env, envs = make_env(settings, N_ENVS)
    actor, critic = make_networks(env, envs)
    settings.tell("before", test(actor, settings))
    env.set_seed(settings.seed)
    learn(env, actor, critic, settings)
    settings.tell("after", test(actor, settings))
    env.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
