"""Exploration that lasts: the noise by which choices are drawn stays the same for some decisions.

A policy that orders instance counts learns little from noise that is drawn anew at every decision: an
instance too few for ten seconds, then one more that has to load, says nothing of a fleet that is smaller by
one. Here every episode keeps the noise of its draws (Gumbel's, whose argmax with the logits is a draw from
the softmax) for a geometrically distributed number of decisions. Each single decision is still a draw from
the policy, so PPO's ratios are right; decisions that follow each other deviate alike. For Gaussian policies
that is coloured noise (Hollenstein et al., AAAI 2024).
"""

from __future__ import annotations

from typing import Any

import torch
from stable_baselines3.common.callbacks import BaseCallback


class HeldNoise(BaseCallback):
    """Draws of `MultiDiscrete` actions in rollouts, with noise that is held.

    Args:
        steps: decisions for which it is held, in the mean.

    Attributes:
        noise: (n, sum of choices) that is held now; None before the first draw.
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._renewed = 1.0 / steps
        self.noise: torch.Tensor | None = None

    def _on_training_start(self) -> None:
        # On the instance and not the class: it is no part of what is saved.
        vars(self.model.policy.action_dist)["sample"] = self.sample

    def _on_training_end(self) -> None:
        del vars(self.model.policy.action_dist)["sample"]

    def _on_step(self) -> bool:
        return True

    def sample(self) -> torch.Tensor:
        """(n, parts) a choice of each part; n is the number of episodes side by side, in their order."""
        parts = parts_of(self.model.policy.action_dist)
        logits = torch.cat([part.logits for part in parts], dim=1)
        fresh = -torch.log(-torch.log(torch.rand(logits.shape).clamp_(1e-10, 1.0 - 1e-7)))
        if self.noise is None or self.noise.shape != fresh.shape:
            self.noise = fresh
        else:
            renewed = torch.rand(len(fresh), 1) < self._renewed
            self.noise = torch.where(renewed, fresh, self.noise)
        noisy = (logits + self.noise).split([part.logits.shape[1] for part in parts], dim=1)
        return torch.stack([part.argmax(dim=1) for part in noisy], dim=1)


def parts_of(distribution: Any) -> list[Any]:
    """The categorical distributions of a `MultiDiscrete` action, with or without masks."""
    found = getattr(distribution, "distributions", None)
    return list(found if found is not None else distribution.distribution)
