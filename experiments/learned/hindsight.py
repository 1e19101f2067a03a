"""Schedules of mixed instances found for a window that is known: what foresight is worth, from above.

The clairvoyant bound is below what anybody can do, perhaps far below. A schedule that was played and attained
is above what the best policy needs. So the truth lies between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmscale_env.control.command import Command
from llmscale_env.control.run import run_episode
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios import Scenario

MIXED = "mixed"
"""The pool that serves all classes; the others of the family stay empty."""


class Planned:
    """Follows a schedule, whatever happens.

    Args:
        counts: mixed instances in each slot.
        slot_s: length of a slot.
        batch_limit: of the mixed instances.
    """

    name = "planned"

    def __init__(self, counts: Sequence[int], slot_s: float, batch_limit: int) -> None:
        self.counts = tuple(counts)
        self.slot_s = slot_s
        self.batch_limit = batch_limit

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Find the pools."""
        self._empty = {p.name: 0 for p in scenario.fleet.pools if p.name != MIXED}

    def act(self, view: ClusterView) -> Command:
        """The slot's count; weights come from instances that have them."""
        slot = min(int(view.time_s / self.slot_s + 1e-9), len(self.counts) - 1)
        return Command(
            targets={**self._empty, MIXED: self.counts[slot]},
            batch_limits={MIXED: self.batch_limit},
            load_source="multicast",
        )


@dataclass(frozen=True)
class Played:
    """A schedule and what came of it.

    Attributes:
        counts: mixed instances by slot.
        batch_limit: of them.
        gpu_hours: billed.
        attainment: of the class that has the lowest.
    """

    counts: tuple[int, ...]
    batch_limit: int
    gpu_hours: float
    attainment: float


def player(scenario: Scenario, seed: int, slot_s: float) -> Callable[[Sequence[int], int], Played]:
    """What plays schedules in one window, each once."""
    simulation = ClusterSimulation(scenario)
    known: dict[tuple[tuple[int, ...], int], Played] = {}

    def play(counts: Sequence[int], batch_limit: int) -> Played:
        key = tuple(counts), batch_limit
        if key not in known:
            made: dict[str, Any] = run_episode(
                Planned(*key[:1], slot_s, batch_limit),
                scenario,
                seed,
                simulation=simulation,
                forecaster=None,
            ).summary
            share = min(made[f"{c.name}/slo_attainment"] for c in scenario.classes)
            known[key] = Played(*key, made["gpu_hours"], share)
        return known[key]

    return play


def best_fixed(
    play: Callable[[Sequence[int], int], Played],
    slots: int,
    most: int,
    limits: Sequence[int],
    target: float,
) -> Played | None:
    """The cheapest fleet that stays as it is and attains; of equals the one that attains more.

    Args:
        play: see `player`.
        slots: of a schedule.
        most: instances.
        limits: batch limits to try.
        target: attainment of every class.

    Returns:
        None if nobody attains.
    """
    for count in range(1, most + 1):
        tried = [play((count,) * slots, limit) for limit in limits]
        good = [p for p in tried if p.attainment >= target]
        if good:
            return max(good, key=lambda p: p.attainment)
    return None


def trimmed(
    play: Callable[[Sequence[int], int], Played],
    start: Played,
    target: float,
    episodes: int,
    rng: np.random.Generator,
) -> Played:
    """A cheaper schedule from one that attains: stretches of slots lose an instance as long as it attains.

    Long stretches first, then ever shorter ones, each length until none of it can lose any more; then an
    instance is moved: one slot gains it and two others lose one.

    Args:
        play: see `player`.
        start: attains.
        target: attainment of every class, which every accepted schedule keeps.
        episodes: most schedules that are tried.
        rng: in which order.

    Returns:
        A schedule that was played, attains, and is billed no more than `start`.
    """
    best = start
    slots = len(start.counts)
    left = episodes

    def better(counts: Sequence[int]) -> bool:
        nonlocal best, left
        if left <= 0 or min(counts) < 0:
            return False
        left -= 1
        found = play(counts, best.batch_limit)
        if found.attainment < target or found.gpu_hours >= best.gpu_hours - 1e-12:
            return False
        best = found
        return True

    length = slots // 2
    while length >= 1 and left > 0:
        changed = True
        while changed and left > 0:
            changed = False
            for first in rng.permutation(np.arange(0, slots - length + 1, max(1, length // 2))):
                counts = np.array(best.counts)
                counts[first : first + length] -= 1
                changed |= better(counts.tolist())
        length //= 2
    while left > 0:
        counts = np.array(best.counts)
        gains, *losers = rng.choice(slots, size=3, replace=False)
        counts[gains] += 1
        counts[losers] -= 1
        if min(counts) < 0:
            left -= 1  # so that it ends
            continue
        better(counts.tolist())
    return best
