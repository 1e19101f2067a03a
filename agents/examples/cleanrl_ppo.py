"""PPO in one file of PyTorch, as in CleanRL, on many episodes at once; impossible choices are ruled out.

    python -m agents.examples.cleanrl_ppo [KEY=VALUE ...]

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
from agents.runs.files import said
from llmscale_env._cli import needs, run_command

N_ENVS = 16
N_STEPS = 120  # half an episode
MINIBATCH = 480
EPOCHS = 6
LEARNING_RATE = 1e-3  # falls linearly to 0
GAMMA, GAE_LAMBDA = 0.99, 0.95
CLIP = 0.2
MAX_GRAD_NORM = 0.5
# A reward is some tens of dollars a day, a step of half a minute costs a hundredth of one.
REWARD_SCALE = 10.0
# The first policy takes the choice that leaves the cluster as it is exp(1) times as often as any other. With
# exp(3) the policy that draws learns, but its most probable choice, which the test takes, stays that one.
AS_IS_BIAS = 1.0


def make_networks(envs: Any) -> Any:
    """A network of logits and one of values; untrained, it leans towards leaving the cluster as it is."""
    import numpy as np
    import torch
    from torch import nn

    from agents.exploration.prior import as_is_choices

    nvec = envs.single_action_space.nvec

    def network(outputs: int, gain: float) -> nn.Sequential:
        sizes = [int(np.prod(envs.single_observation_space.shape)), 64, 64, outputs]
        layers: list[nn.Module] = []
        for k in range(3):
            layer = nn.Linear(sizes[k], sizes[k + 1])
            nn.init.orthogonal_(layer.weight, 2**0.5 if k < 2 else gain)
            nn.init.zeros_(layer.bias)
            layers += [layer, nn.Tanh()]
        return nn.Sequential(*layers[:-1])

    networks: Any = nn.ModuleDict(
        {"actor": network(int(nvec.sum()), 0.01), "critic": network(1, 1.0)}
    )
    names, choices = zip(*envs.unwrapped.action_choices.items(), strict=True)
    as_is = as_is_choices(names, choices, envs.unwrapped.scenario)
    starts = np.cumsum(nvec) - nvec
    with torch.no_grad():
        for start, choice in zip(starts, as_is, strict=True):
            if choice is not None:
                networks["actor"][-1].bias[start + choice] += AS_IS_BIAS
    return networks


def distributions(networks: Any, observations: Any, masks: Any, nvec: Sequence[int]) -> list[Any]:
    """Of each part of the action, over its possible choices."""
    from torch.distributions import Categorical

    logits = networks["actor"](observations).masked_fill(~masks, -1e8)
    return [Categorical(logits=part) for part in logits.split(list(nvec), dim=-1)]


def log_probabilities(parts: Sequence[Any], actions: Any) -> Any:
    """(n,) of whole actions."""
    return sum(part.log_prob(actions[:, k]) for k, part in enumerate(parts))


def test(networks: Any, settings: command.Settings) -> Any:
    """(episodes,) rewards of the test episodes, with the most probable actions."""
    import gymnasium
    import numpy as np
    import torch

    n = settings.episodes
    envs: Any = gymnasium.make_vec(settings.id, num_envs=n, overrides=dict(settings.overrides))
    nvec = envs.single_action_space.nvec
    total, over = np.zeros(n), np.zeros(n, bool)
    observations, infos = envs.reset(seed=settings.test_seeds, options=settings.test_options)
    while not over.all():
        with torch.no_grad():
            masks = torch.as_tensor(infos["action_mask"])
            parts = distributions(networks, torch.as_tensor(observations), masks, nvec)
        actions = np.stack([part.probs.argmax(-1).numpy() for part in parts], axis=1)
        observations, rewards, _, truncated, infos = envs.step(actions)
        total += np.where(over, 0.0, rewards)
        over |= truncated
    envs.close()
    return total


def learn(networks: Any, envs: Any, settings: command.Settings) -> None:
    """PPO with clipping and generalised advantages, for `settings.total_timesteps`."""
    import numpy as np
    import torch

    optimiser = torch.optim.Adam(networks.parameters(), lr=LEARNING_RATE, eps=1e-5)
    rng = np.random.default_rng(settings.seed)
    nvec = envs.single_action_space.nvec
    seen = torch.zeros((N_STEPS, N_ENVS, *envs.single_observation_space.shape))
    possible = torch.zeros((N_STEPS, N_ENVS, int(nvec.sum())), dtype=torch.bool)
    taken = torch.zeros((N_STEPS, N_ENVS, len(nvec)), dtype=torch.long)
    old, rewards, values, ended = (torch.zeros((N_STEPS, N_ENVS)) for _ in range(4))

    observations, infos = envs.reset(seed=settings.seed)
    updates = max(1, settings.total_timesteps // (N_STEPS * N_ENVS))
    for update in range(updates):
        optimiser.param_groups[0]["lr"] = LEARNING_RATE * (1 - update / updates)

        # Play.
        for t in range(N_STEPS):
            seen[t] = torch.as_tensor(observations)
            possible[t] = torch.as_tensor(infos["action_mask"])
            with torch.no_grad():
                parts = distributions(networks, seen[t], possible[t], nvec)
                taken[t] = torch.stack([part.sample() for part in parts], dim=1)
                old[t] = log_probabilities(parts, taken[t])
                values[t] = networks["critic"](seen[t]).squeeze(-1)
            observations, got, _, truncated, infos = envs.step(taken[t].numpy())
            rewards[t] = torch.as_tensor(got) * REWARD_SCALE
            ended[t] = torch.as_tensor(truncated)
            if truncated.any():  # the horizon cuts episodes off: what would follow still counts
                last = torch.as_tensor(np.stack(infos["final_obs"][truncated]))
                with torch.no_grad():
                    rewards[t, truncated] += GAMMA * networks["critic"](last).squeeze(-1)

        # Advantages.
        advantages = torch.zeros_like(rewards)
        with torch.no_grad():
            following = networks["critic"](torch.as_tensor(observations)).squeeze(-1)
        trace = torch.zeros(N_ENVS)
        for t in reversed(range(N_STEPS)):
            goes_on = 1 - ended[t]
            error = rewards[t] + GAMMA * goes_on * following - values[t]
            trace = error + GAMMA * GAE_LAMBDA * goes_on * trace
            advantages[t], following = trace, values[t]
        targets = advantages + values

        # Learn.
        rows = [x.flatten(0, 1) for x in (seen, possible, taken, old, advantages, targets)]
        for _ in range(EPOCHS):
            for mine in np.split(rng.permutation(len(rows[0])), len(rows[0]) // MINIBATCH):
                obs, mask, action, before, advantage, target = (x[mine] for x in rows)
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                now = log_probabilities(distributions(networks, obs, mask, nvec), action)
                ratio = (now - before).exp()
                clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
                policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
                value_loss = 0.5 * (networks["critic"](obs).squeeze(-1) - target).pow(2).mean()
                optimiser.zero_grad()
                (policy_loss + 0.5 * value_loss).backward()
                torch.nn.utils.clip_grad_norm_(networks.parameters(), MAX_GRAD_NORM)
                optimiser.step()
        steps = (update + 1) * N_STEPS * N_ENVS
        a_step = rewards.mean().item() / REWARD_SCALE
        said(f"steps {steps:>9,}  reward of a step {a_step:8.4f}  value loss {value_loss:8.3f}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 2 after a slip (named in one line), 130 when interrupted."""
    return run_command("cleanrl_ppo", __doc__, argv, _run, wordless=True)


def _run(words: Sequence[str]) -> int:
    settings = command.read(words)
    needs("torch")
    import gymnasium
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    envs = gymnasium.make_vec(settings.id, num_envs=N_ENVS, overrides=dict(settings.overrides))
    networks = make_networks(envs)
    settings.tell("before", test(networks, settings))
    learn(networks, envs, settings)
    settings.tell("after", test(networks, settings))
    envs.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
