"""Learning that stays near a copied policy at first: a KL term in PPO's loss that decays to nothing.

The term is KL(copy || policy), summed over the parts of the action and averaged over a minibatch, as in
kickstarting (Schmitt et al. 2018) and VPT (Baker et al. 2022). It is not added to the loss inside
stable-baselines3's `train`, of which we want no copy, but to its gradient: `evaluate_actions` hands on the
log-probabilities with the term attached, whose gradient then comes along when the loss is differentiated.
Everything that is logged of the loss is thus PPO's own.
"""

from __future__ import annotations

from typing import Any

import torch
from stable_baselines3.common.callbacks import BaseCallback
from torch.distributions import Categorical, kl_divergence

from agents.exploration.held_noise import parts_of
from agents.models.algorithms import is_recurrent, takes_masks


class _Attached(torch.autograd.Function):
    """The first argument as it is; differentiating it also differentiates the second, a scalar."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (grad,) = grads
        return grad, grad.new_ones(())


def attach(values: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
    """`values`, in a graph in which any loss made of them gets the gradient of `extra` added."""
    return _Attached.apply(values, extra)


def kl_of_parts(copy: list[Categorical], policy: list[Categorical]) -> torch.Tensor:
    """(n,) KL(copy || policy) in nats, summed over the parts of the action."""
    total = kl_divergence(copy[0], policy[0])
    for mine, other in zip(copy[1:], policy[1:], strict=True):
        total = total + kl_divergence(mine, other)
    return total


class Anchor(BaseCallback):
    """Adds the KL term to a learner's loss; its coefficient falls linearly to 0.

    Args:
        copy: the policy network to stay near; it is not changed.
        start: coefficient at step 0.
        steps: at which it is 0; from there on updates are those of the plain learner, bit for bit.
    """

    def __init__(self, copy: Any, start: float, steps: int) -> None:
        super().__init__()
        self._copy, self._start, self._steps = copy, start, steps
        self.coefficient = 0.0
        self._plain: Any = None

    def _on_training_start(self) -> None:
        self._plain = self.model.policy.evaluate_actions
        # On the instance and not the class: it is no part of what is saved.
        vars(self.model.policy)["evaluate_actions"] = self._evaluate

    def _on_training_end(self) -> None:
        del vars(self.model.policy)["evaluate_actions"]

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        left = 1.0 - self.model.num_timesteps / self._steps if self._steps else 0.0
        self.coefficient = self._start * max(left, 0.0)
        self.logger.record("llmscale/copy/kl_coefficient", self.coefficient)

    def _evaluate(self, observations: torch.Tensor, actions: Any, *rest: Any, **more: Any) -> Any:
        values, log_prob, entropy = self._plain(observations, actions, *rest, **more)
        if self.coefficient == 0.0:
            return values, log_prob, entropy
        with torch.no_grad():
            copy = self._parts(self._copy, observations, rest, more)
        kl = kl_of_parts(copy, self._parts(self.model.policy, observations, rest, more))
        if is_recurrent(self.model):
            # sb3-contrib pads sequences with zeros, which no real observation is made of.
            real = observations.abs().sum(dim=1) > 0
            kl = kl[real]
        mean = kl.mean()
        # At once, so that a run that stops after the update has it still to log.
        self.logger.record_mean("llmscale/copy/kl", float(mean.detach()))
        return values, attach(log_prob, self.coefficient * mean), entropy

    def _parts(
        self, policy: Any, observations: torch.Tensor, rest: tuple[Any, ...], more: dict[str, Any]
    ) -> list[Categorical]:
        """The distributions of the parts of the action."""
        if takes_masks(self.model):
            masks = more.get("action_masks", rest[0] if rest else None)
            return parts_of(policy.get_distribution(observations, masks))
        if is_recurrent(self.model):
            states, starts = rest
            # The copy's memory is its own: what it would remember is not stored, so it starts each
            # sequence with the learner's, of the same size.
            return parts_of(policy.get_distribution(observations, states.pi, starts)[0])
        return parts_of(policy.get_distribution(observations))
