"""How a number of episodes is shared out among settings: successive halving.

Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization" (AISTATS
2016): all settings get a few episodes, the better half twice as many, and so on. Every setting meets the same
seeds, so those of a round before are part of the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """Rounds of a search.

    Attributes:
        rounds: (settings, seeds of each, those of earlier rounds included).
        units: what they spend: a unit is one seed of one setting.
    """

    rounds: tuple[tuple[int, int], ...]
    units: int

    @property
    def settings(self) -> int:
        """How many are tried."""
        return self.rounds[0][0]


def seeds_by_round(seeds: int, first: int) -> list[int]:
    """Doubling from `first` to `seeds`: 2, 4, 8."""
    found = [min(first, seeds)]
    while found[-1] < seeds:
        found.append(min(2 * found[-1], seeds))
    return found


def plan(units: int, seeds: int, first: int, most: int | None = None) -> Plan:
    """The plan that spends so many units, or up to `first - 1` fewer.

    Half of the settings (rounded up) go on from round to round. What is left when no more settings can go
    through all rounds is spent on further settings for the first round. What is left then stays unspent: more
    seeds for the best setting alone would judge it by other episodes than those that it won against.

    Args:
        units: to be spent; at least `seeds`.
        seeds: of the settings of the last round.
        first: seeds of each setting in the first round.
        most: settings that there are; None: no limit. With few of them less than `units` is spent.

    Raises:
        ValueError: fewer units than seeds.
    """
    if units < seeds:
        raise ValueError(
            f"units = {units}: must be at least {seeds}, the seeds of the last round's settings"
        )
    steps = seeds_by_round(seeds, first)

    def rounds(n: int) -> list[tuple[int, int]]:
        return [(math.ceil(n / 2**k), s) for k, s in enumerate(steps)]

    def cost(n: int) -> int:
        return sum(
            n_k * (s - before) for (n_k, s), before in zip(rounds(n), [0, *steps[:-1]], strict=True)
        )

    n = 1
    while (most is None or n < most) and cost(n + 1) <= units:
        n += 1
    chosen, left = rounds(n), units - cost(n)
    extra = left // steps[0]
    if most is not None:
        extra = min(extra, most - n)
    chosen[0] = (n + extra, steps[0])
    return Plan(tuple(chosen), units - left + extra * steps[0])
