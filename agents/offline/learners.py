"""Behaviour cloning and implicit Q-learning (Kostrikov et al., ICLR 2022) from transitions.

Both learn a network of logits for each part of the action. Implicit Q-learning never asks for the value of an
action that is not in the data: the value function is an expectile of the values of those that are, and the
policy copies actions by how much better than that they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from agents.offline.data import Transitions
from llmscale_env.control.command import Command
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios import Scenario

METHODS = ("bc", "iql")
BATCH = 256
LEARNING_RATE = 1e-3  # falls to 0 as a cosine
GAMMA = 0.99
# A reward is some tens of dollars a day, a step of half a minute costs a hundredth of one.
REWARD_SCALE = 10.0
EXPECTILE = 0.8
TEMPERATURE = 3.0
MOST_WEIGHT = 100.0
TARGET_RATE = 0.005  # of the target network, each step
UNSEEN = 1e-3


def learn(
    data: Transitions,
    method: str,
    steps: int,
    seed: int,
    tell: Callable[[str], object] = lambda text: None,
) -> Any:
    """A network of logits that has learnt from the data.

    Args:
        data: decisions.
        method: "bc" or "iql".
        steps: minibatches.
        seed: of the networks and of the order of the rows.
        tell: called with a line from time to time.
    """
    import torch

    torch.manual_seed(seed)
    actor = _network(data.observations.shape[1], int(data.nvec.sum()))
    _start_from_frequencies(actor, data)
    nets: dict[str, Any] = {"actor": actor}
    if method == "iql":
        joint = data.observations.shape[1] + int(data.nvec.sum())
        nets |= {name: _network(joint, 1) for name in ("q1", "q2", "target1", "target2")}
        nets["value"] = _network(data.observations.shape[1], 1)
        nets["target1"].load_state_dict(nets["q1"].state_dict())
        nets["target2"].load_state_dict(nets["q2"].state_dict())
    learnt = [net.parameters() for name, net in nets.items() if not name.startswith("target")]
    optimiser = torch.optim.Adam([p for each in learnt for p in each], LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    rng = np.random.default_rng(seed)
    names = ("observations", "following", "actions", "masks")
    rows = {name: torch.as_tensor(getattr(data, name)) for name in names}
    rows["rewards"] = torch.as_tensor(data.rewards * REWARD_SCALE, dtype=torch.float32)
    nvec = data.nvec.tolist()
    for step in range(1, steps + 1):
        mine = torch.as_tensor(rng.integers(len(data.rewards), size=BATCH))
        batch = {name: values[mine] for name, values in rows.items()}
        logp = _log_probability(actor, batch, nvec)
        loss = -logp.mean()
        if method == "iql":
            weights, critics = _critics(nets, batch, nvec)
            loss = -(weights * logp).mean() + critics
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if method == "iql":
            with torch.no_grad():
                for name in ("1", "2"):
                    both = zip(
                        nets[f"target{name}"].parameters(),
                        nets[f"q{name}"].parameters(),
                        strict=True,
                    )
                    for target, now in both:
                        target.lerp_(now, TARGET_RATE)
        if step % max(1, steps // 5) == 0:
            tell(f"step {step:>7,}  loss {loss.item():9.3f}")
    return actor


def _critics(nets: Any, batch: Any, nvec: Sequence[int]) -> tuple[Any, Any]:
    """How much each action counts for the policy, and the loss of the value networks."""
    import torch

    observations, actions = batch["observations"], batch["actions"].unbind(-1)
    one_hot = [
        torch.nn.functional.one_hot(a, n).float() for a, n in zip(actions, nvec, strict=True)
    ]
    joint = torch.cat([observations, *one_hot], dim=-1)
    with torch.no_grad():
        best = torch.min(nets["target1"](joint), nets["target2"](joint)).squeeze(-1)
        # Episodes end at a horizon that cuts them off, so that there is always a next state.
        target = batch["rewards"] + GAMMA * nets["value"](batch["following"]).squeeze(-1)
    better = best - nets["value"](observations).squeeze(-1)
    share = torch.where(better > 0, EXPECTILE, 1 - EXPECTILE)
    loss = (share * better.pow(2)).mean()
    for name in ("q1", "q2"):
        loss = loss + (nets[name](joint).squeeze(-1) - target).pow(2).mean()
    # Over the spread of the batch: the temperature then means the same at any scale of rewards.
    advantage = better.detach() / (better.detach().std() + 1e-6)
    weights = (advantage * TEMPERATURE).exp().clamp(max=MOST_WEIGHT)
    return weights / weights.mean(), loss


def _network(inputs: int, outputs: int) -> Any:
    from torch import nn

    hidden = [nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(128, outputs))


def _start_from_frequencies(actor: Any, data: Transitions) -> None:
    """The untrained policy takes each choice as often as the data do, whatever it sees."""
    import torch

    shares = [
        np.bincount(data.actions[:, part], minlength=n) / len(data.actions)
        for part, n in enumerate(data.nvec)
    ]
    with torch.no_grad():
        actor[-1].weight.mul_(0.01)
        actor[-1].bias.copy_(torch.as_tensor(np.log(np.concatenate(shares) + UNSEEN)))


def _log_probability(actor: Any, batch: Any, nvec: Sequence[int]) -> Any:
    """(n,) of the actions, among the choices that were possible."""
    from torch.distributions import Categorical

    possible = batch["masks"].clone()
    logits = actor(batch["observations"]).masked_fill(~possible, -1e8).split(list(nvec), dim=-1)
    return sum(
        Categorical(logits=part).log_prob(batch["actions"][:, k]) for k, part in enumerate(logits)
    )


class OfflinePolicy:
    """A learned network as a policy like any other: of each part the most probable possible choice.

    Args:
        actor: logits from observations.
        codec: of the environment that the data are of.
        name: what tables call it.
    """

    def __init__(self, actor: Any, codec: Any, name: str) -> None:
        self.name = name
        self._actor, self._codec = actor, codec

    def reset(self, scenario: Scenario, seed: int) -> None:
        self._codec.reset(seed)

    def act(self, view: ClusterView) -> Command:
        import torch

        observation, mask = self._codec.encode(view), self._codec.mask(view)
        return self._codec.decode(self.choose(torch.as_tensor(observation), mask), view)

    def choose(self, observation: Any, mask: Any) -> Any:
        """(parts,) the action at an observation."""
        import torch

        with torch.no_grad():
            logits = self._actor(observation).masked_fill(~torch.as_tensor(mask), -1e8)
        parts = logits.split(self._codec.decoder.nvec.tolist())
        return np.array([int(part.argmax()) for part in parts])
