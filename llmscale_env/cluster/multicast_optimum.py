"""The best plan by trying all, for few targets: what the greedy planner is measured against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product
from typing import Literal

from llmscale_env.cluster.multicast import Plan
from llmscale_env.cluster.multicast_time import done_s, layer_times_ps
from llmscale_env.cluster.topology import Topology

Aim = Literal["last", "mean"]
"""What is to be small: the time until the last target has loaded, or the mean over all of them."""


def all_forests(sources: Sequence[int], slots: Sequence[int]) -> Iterator[Plan]:
    """Every way in which each slot has one sender: s * (s + n) ** (n - 1) for n slots and s sources."""
    for senders in product([*sources, *slots], repeat=len(slots)):
        of = dict(zip(slots, senders, strict=True))
        order: list[int] = []
        reached = set(sources)
        waiting = list(slots)
        while True:
            ready = [slot for slot in waiting if of[slot] in reached]
            if not ready:
                break
            order += ready
            reached.update(ready)
            waiting = [slot for slot in waiting if slot not in reached]
        if not waiting:
            yield Plan(tuple((of[slot], slot) for slot in order))


def all_chains(source: int, slots: Sequence[int]) -> Iterator[Plan]:
    """Every order of one chain."""
    for order in permutations(slots):
        yield Plan(tuple(zip((source, *order), order, strict=False)))


def plan_s(topology: Topology, plan: Plan, weight_bytes: int, layers: int, aim: Aim) -> float:
    """Seconds that a plan takes, see `Aim`."""
    seconds = done_s(layer_times_ps(topology, plan, weight_bytes, layers))
    return float(seconds.max() if aim == "last" else seconds.mean())


def best_plan(
    topology: Topology,
    sources: Sequence[int],
    slots: Sequence[int],
    weight_bytes: int,
    layers: int,
    aim: Aim = "last",
) -> tuple[Plan, float]:
    """The plan that takes least, of all, and its seconds (of equals the first of `all_forests`).

    Args:
        topology: of the cluster.
        sources: codes that have the weights and may send.
        slots: targets; five take seconds, more take for ever.
        weight_bytes, layers: as `layer_times_ps`.
        aim: what is to be small.

    Raises:
        ValueError: there are no slots or no sources.
    """
    if not slots or not sources:
        raise ValueError(f"slots = {list(slots)}, sources = {list(sources)}: must not be empty")
    timed = (
        (plan_s(topology, plan, weight_bytes, layers, aim), k, plan)
        for k, plan in enumerate(all_forests(sources, slots))
    )
    seconds, _, plan = min(timed, key=lambda each: each[:2])
    return plan, seconds
