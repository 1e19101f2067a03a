"""Independent PPO in one file of PyTorch: one agent per region of MultiRegion, as PettingZoo has it.

    python -m agents.examples.pettingzoo_marl [KEY=VALUE ...]

    env=multi-region       the environment (there is one with agents)
    total_timesteps=10000  environment steps; in each, all regions decide
    seed=0                 of everything
    episodes=10            test episodes, with the seeds 10000 and up
    workload=NAME          of the test episodes (default: the environment's own)
    scenario.FIELD=VALUE   changes the scenario (scenario.horizon_s=7200)

Each agent has networks of its own, sees its own region, and learns from the reward, which is the whole
cluster's. Prints the mean reward of the test episodes before and after. Needs the extras `train` and
`multiagent`; docs/examples.md has what it reaches.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from agents.examples import settings as command
from agents.runs.files import said
from llmscale_env._cli import Slip, needs, run_command

EPISODES_PER_UPDATE = 8
MINIBATCH = 256
EPOCHS = 8
LEARNING_RATE = 1e-3  # falls linearly to 0
GAMMA, GAE_LAMBDA = 0.95, 0.95
CLIP = 0.2
MAX_GRAD_NORM = 0.5
# A day costs tens of dollars in 96 steps, so that a step's reward needs no scale.
REWARD_SCALE = 1.0
# The first policy prefers the choice that leaves things as they are, by so much in its logit: for instances,
# whose changes add up, and for other parts.
AS_IS_BIAS, AS_IS_BIAS_SETTINGS = 3.0, 1.0

MASKED = -1e8


def make_learner(env: Any, agent: str) -> Any:
    """An agent's networks of logits and of values; untrained, it mostly leaves its instances as they are."""
    import numpy as np
    import torch
    from torch import nn

    from agents.exploration.prior import as_is_choices

    inputs = env.observation_space(agent).shape[0]
    nvec = env.action_space(agent).nvec

    def network(outputs: int, gain: float) -> nn.Sequential:
        sizes = [inputs, 64, 64, outputs]
        layers: list[nn.Module] = []
        for k in range(3):
            layer = nn.Linear(sizes[k], sizes[k + 1])
            nn.init.orthogonal_(layer.weight, 2**0.5 if k < 2 else gain)
            nn.init.zeros_(layer.bias)
            layers += [layer, nn.Tanh()]
        return nn.Sequential(*layers[:-1])

    learner: Any = nn.ModuleDict(
        {"actor": network(int(nvec.sum()), 0.01), "critic": network(1, 1.0)}
    )
    names, choices = zip(*env.action_choices[agent].items(), strict=True)
    starts = np.cumsum(nvec) - nvec
    with torch.no_grad():
        as_is = as_is_choices(names, choices, env.scenario)
        for name, start, choice in zip(names, starts, as_is, strict=True):
            if choice is not None:
                bias = AS_IS_BIAS if name.endswith("/instances") else AS_IS_BIAS_SETTINGS
                learner["actor"][-1].bias[int(start) + choice] += bias
    return learner


def distributions(learner: Any, observations: Any, masks: Any, nvec: Any) -> list[Any]:
    """Of each part of an agent's action, over its possible choices."""
    from torch.distributions import Categorical

    logits = learner["actor"](observations).masked_fill(~masks, MASKED)
    return [Categorical(logits=part) for part in logits.split(nvec.tolist(), dim=-1)]


def play(
    env: Any, learners: Mapping[str, Any], seed: int | None, options: Any, greedy: bool
) -> tuple[float, dict[str, dict[str, Any]]]:
    """An episode: its reward, and by agent what it saw and did, a row per step."""
    import numpy as np
    import torch

    observations, infos = env.reset(seed=seed, options=options)
    total = 0.0
    rows: dict[str, dict[str, list[Any]]] = {
        agent: {name: [] for name in ("obs", "mask", "action", "old", "value", "reward")}
        for agent in env.possible_agents
    }
    while env.agents:
        actions = {}
        for agent in env.agents:
            learner, mine = learners[agent], rows[agent]
            obs = torch.as_tensor(observations[agent])
            mask = torch.as_tensor(infos[agent]["action_mask"], dtype=torch.bool)
            with torch.no_grad():
                parts = distributions(learner, obs, mask, env.action_space(agent).nvec)
                chosen = torch.stack([p.probs.argmax() if greedy else p.sample() for p in parts])
                logp = torch.stack([p.log_prob(c) for p, c in zip(parts, chosen, strict=True)])
                mine["value"].append(learner["critic"](obs).squeeze(-1))
            mine["obs"].append(obs)
            mine["mask"].append(mask)
            mine["action"].append(chosen)
            mine["old"].append(logp.sum())
            actions[agent] = chosen.numpy().astype(np.int64)
        observations, rewards, _, _, infos = env.step(actions)
        for agent, reward in rewards.items():
            rows[agent]["reward"].append(torch.tensor(reward * REWARD_SCALE, dtype=torch.float32))
        total += next(iter(rewards.values()))  # the whole cluster's, the same for all
    return total, {
        agent: {name: torch.stack(found) for name, found in mine.items()}
        for agent, mine in rows.items()
    }


def advantages_of(rewards: Any, values: Any) -> Any:
    """Generalised advantages of an episode, after whose end nothing counts."""
    import torch

    found, trace, following = torch.zeros_like(rewards), 0.0, 0.0
    for t in reversed(range(len(rewards))):
        error = rewards[t] + GAMMA * following - values[t]
        trace = error + GAMMA * GAE_LAMBDA * trace
        found[t], following = trace, values[t]
    return found


def update(learner: Any, optimiser: Any, episodes: Sequence[Any], nvec: Any, rng: Any) -> None:
    """PPO with clipping on an agent's own rows."""
    import numpy as np
    import torch

    gained = [advantages_of(e["reward"], e["value"]) for e in episodes]
    advantage = torch.cat(gained)
    rows = {k: torch.cat([e[k] for e in episodes]) for k in ("obs", "mask", "action", "old")}
    target = torch.cat([g + e["value"] for g, e in zip(gained, episodes, strict=True)])
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    n = len(target)
    for _ in range(EPOCHS):
        for mine in np.array_split(rng.permutation(n), max(1, n // MINIBATCH)):
            parts = distributions(learner, rows["obs"][mine], rows["mask"][mine], nvec)
            actions = rows["action"][mine].unbind(-1)
            now = torch.stack([p.log_prob(a) for p, a in zip(parts, actions, strict=True)]).sum(0)
            ratio = (now - rows["old"][mine]).exp()
            clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
            policy_loss = -torch.min(ratio * advantage[mine], clipped * advantage[mine]).mean()
            values = learner["critic"](rows["obs"][mine]).squeeze(-1)
            optimiser.zero_grad()
            (policy_loss + 0.25 * (values - target[mine]).pow(2).mean()).backward()
            torch.nn.utils.clip_grad_norm_(learner.parameters(), MAX_GRAD_NORM)
            optimiser.step()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 2 after a slip (named in one line), 130 when interrupted."""
    return run_command("pettingzoo_marl", __doc__, argv, _run, wordless=True)


def _run(words: Sequence[str]) -> int:
    settings = command.read(words, "multi-region", 10_000)
    if settings.env != "multi-region":
        raise Slip(f"env = {settings.env!r}: only multi-region has several agents")
    needs("torch", "pettingzoo")
    import numpy as np
    import torch

    from llmscale_env.envs.multi_region_parallel import MultiRegionParallelEnv

    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    rng = np.random.default_rng(settings.seed)
    env = MultiRegionParallelEnv(overrides=settings.overrides)
    learners = {agent: make_learner(env, agent) for agent in env.possible_agents}
    optimisers = {a: torch.optim.Adam(m.parameters(), LEARNING_RATE) for a, m in learners.items()}

    def test(when: str) -> None:
        options = settings.test_options
        rewards = [play(env, learners, s, options, greedy=True)[0] for s in settings.test_seeds]
        settings.tell(when, rewards)

    test("before")
    steps, seed = 0, settings.seed
    while steps < settings.total_timesteps:
        episodes, rewards = [], []
        for _ in range(EPISODES_PER_UPDATE):
            reward, rows = play(env, learners, seed, None, greedy=False)
            seed = None  # type: ignore[assignment]  # the next episodes follow from the first one's
            episodes.append(rows)
            rewards.append(reward)
            steps += len(rows[env.possible_agents[0]]["reward"])
        for agent, learner in learners.items():
            left = max(0.0, 1 - steps / settings.total_timesteps)
            optimisers[agent].param_groups[0]["lr"] = LEARNING_RATE * left
            mine = [rows[agent] for rows in episodes]
            update(learner, optimisers[agent], mine, env.action_space(agent).nvec, rng)
        said(f"steps {steps:>9,}  reward of training episodes {np.mean(rewards):10.2f}")
    test("after")
    env.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
