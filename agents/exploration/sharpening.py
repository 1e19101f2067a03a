"""Exploration that ends: the logits of a policy grow while it learns, and its draws stray less and less.

What learns is the policy that draws; what is used is the one that decides (`agents.learned`). Where draws
stray far, the two are far apart: PPO makes the noise of the first one harmless, and the second, which nobody
has tried, fails. A larger logit of everything leaves every preference as it is and makes draws stray less,
like a temperature that falls; the policy's own gradient has done it by the end of far longer trainings.
"""

from __future__ import annotations

from typing import Any

import torch
from stable_baselines3.common.callbacks import BaseCallback


class Sharpening(BaseCallback):
    """Multiplies the logits of a `MultiDiscrete` policy between rollouts, from 1 time to `final` times.

    By how much it has done so already is kept with the model, so a run that is taken up goes on.

    Args:
        final: by what the logits are multiplied at the end, above 0.
        total_timesteps: when that is; the factor grows linearly until then.
    """

    def __init__(self, final: float, total_timesteps: int) -> None:
        super().__init__()
        self._final, self._total = final, total_timesteps

    def _on_rollout_start(self) -> None:
        model: Any = self.model
        share = min(model.num_timesteps / self._total, 1.0)
        wanted = 1.0 + (self._final - 1.0) * share
        done = getattr(model, "logits_times", 1.0)
        with torch.no_grad():
            for weights in model.policy.action_net.parameters():
                weights.mul_(wanted / done)
        model.logits_times = wanted

    def _on_step(self) -> bool:
        return True
