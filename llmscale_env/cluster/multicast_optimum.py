"""All plans there are, for few targets: what the greedy planner is measured against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from llmscale_env.cluster.multicast import Plan


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
