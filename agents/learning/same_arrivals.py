"""Advantages among episodes on the same arrivals: what the requests do to everybody falls out.

Mao et al., "Variance reduction for reinforcement learning in input-driven environments" (ICLR 2019): the
return depends on the arrivals to come, which no value function of the state knows; a baseline that does know
them leaves less noise and no bias. Here it is the mean advantage, at the same time step, of the other
episodes on the same arrivals (their actions are drawn independently).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback


def minus_others(advantages: NDArray[np.float32], group: int) -> NDArray[np.float32]:
    """(steps, n) advantages minus the mean of the other `group - 1` episodes of their group.

    Groups are neighbours: episodes 0 to `group - 1`, and so on.

    Raises:
        ValueError: `group` is below 2, or does not divide n.
    """
    steps, n = advantages.shape
    if group < 2 or n % group:
        raise ValueError(f"group = {group}: must be at least 2 and divide {n} episodes")
    grouped = advantages.reshape(steps, n // group, group)
    others = (grouped.sum(axis=2, keepdims=True) - grouped) / (group - 1)
    return (grouped - others).reshape(steps, n).astype(advantages.dtype)


class GroupBaseline(BaseCallback):
    """Replaces the advantages of every rollout by `minus_others`; the returns that values learn stay.

    Args:
        group: episodes side by side with the same arrivals.
    """

    def __init__(self, group: int) -> None:
        super().__init__()
        self._group = group

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        buffer = self.model.rollout_buffer  # type: ignore[attr-defined]
        before = float(buffer.advantages.var())
        buffer.advantages = minus_others(buffer.advantages, self._group)
        if before > 0:
            # Noise alone would give group / (group - 1); below that, the arrivals were part of it.
            ratio = float(buffer.advantages.var()) / before
            self.logger.record("llmscale/same_arrivals/variance_ratio", ratio)
