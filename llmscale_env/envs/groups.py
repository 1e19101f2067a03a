"""Request groups as the environments form them: which there are, which are shown, and who serves what.

A group is a shared queue without a name (`FleetConfig.group_queues`). Every LLM and class has as
many of them as every other, and one of its groups is open: it takes the arrivals. QLM (section 4)
clusters requests by LLM, SLO and token statistics and splits large clusters; here too LLM and class
are told apart, and size and deadlines are bounded:

- *Closing.* An open group that holds `SIZE_LIMIT` requests or more, or whose oldest request is a
  share `SPAN` of its TTFT target old, is closed at the next decision, and a free queue (nobody waits
  in it or runs from it) is opened. Requests beyond `SIZE_LIMIT` go to free queues, `SIZE_LIMIT` to
  each; the last one of these is open then. With no queue free, the youngest group grows on.
- *Deadline* of a group: that of its first request that has had no token yet; of its oldest one if
  all have had one (they were evicted).
- *Shown* are two groups of each LLM and class: the `first` by deadline, and of the others the `next`
  whose deadline has not passed. So those who can no longer be on time hide nobody who can.

What an instance serves is a list of groups of one LLM: the group put ahead, if there is one; then
those from which requests run here and in which nobody waits (they are on the list only so that
nobody but the group put ahead evicts those requests); then all others by deadline, open ones
included. So nothing of the LLM starves, and an instance swaps only when a group of another LLM is
put ahead. A group stays ahead for one interval; the list's LLM stays as long as anybody waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import ps
from llmscale_env.sim.observed import VirtualQueues
from llmscale_env.sim.orders import AS_IS, QueueOrders
from llmscale_env.sim.spec import InstanceState

SIZE_LIMIT = 256
"""Requests of a group: the batch limit of the scenario, so 1 to 4 average batches (QLM's delta: 1 to 16)."""

SPAN = 0.25
"""Deadlines of a group lie within this share of the TTFT target (and one control interval)."""

SLOTS = ("first", "next")
"""Groups of each LLM and class that are shown."""

_NEVER = np.int64(2**62)
_AHEAD, _RUNS_OUT = -_NEVER, -_NEVER + 1
"""Places in a list before every deadline."""


@dataclass(frozen=True)
class Shown:
    """Groups that are shown, of `E` episodes; `B` pairs of an LLM and a class, LLM by LLM.

    Attributes:
        waiting: (E, B, G) requests in every group.
        deadline_ps: (E, B, G) of every group in which anybody waits; far away where nobody does.
        group: (E, B, 2) number within its pair of each group shown, -1: there is none.
    """

    waiting: NDArray[np.int64]
    deadline_ps: NDArray[np.int64]
    group: NDArray[np.int64]


class GroupLayout:
    """Which queues are whose groups, and the rules above.

    Args:
        scenario: with at least two group queues for every LLM and class.

    Raises:
        ValueError: it has fewer.
    """

    def __init__(self, scenario: Scenario) -> None:
        fleet = scenario.fleet
        self.llms = fleet.llms
        self.classes = tuple(c.name for c in scenario.classes)
        self.n_pairs = len(self.llms) * len(self.classes)
        self.per_pair = fleet.group_queues // self.n_pairs
        if self.per_pair < 2:
            raise ValueError(
                f"fleet.group_queues = {fleet.group_queues}: request groups need at least two for every "
                f"LLM and class, {2 * self.n_pairs}"
            )
        self.first_queue = len(fleet.queues)
        self.ttft_ps = np.tile([ps(c.ttft_s) for c in scenario.classes], len(self.llms))
        self.span_ps = (self.ttft_ps * SPAN).astype(np.int64)
        self._end = self.first_queue + self.n_pairs * self.per_pair
        pools = [pool for pool in fleet.pools for _ in range(pool.max_instances)]
        self.pool_of = np.repeat(
            np.arange(len(fleet.pools)), [pool.max_instances for pool in fleet.pools]
        )
        self.names = [
            pool.name if pool.max_instances == 1 else f"{pool.name}/{k}"
            for pool in fleet.pools
            for k in range(pool.max_instances)
        ]
        self.serves = np.array([[llm in pool.llms for llm in self.llms] for pool in pools])
        # (I, B * slots)
        each = len(self.classes) * len(SLOTS)
        self._serves_slot = np.repeat(self.serves, each, axis=1)
        self.slot_names = [
            f"{llm}/{c}/{slot}" for llm in self.llms for c in self.classes for slot in SLOTS
        ]

    def by_pair(self, of_queues: NDArray) -> NDArray:
        """(..., Q) as (..., B, G)."""
        mine = of_queues[..., self.first_queue : self._end]
        return mine.reshape(*mine.shape[:-1], self.n_pairs, self.per_pair)

    # ---- seeing ----

    def shown(self, seen: VirtualQueues) -> Shown:
        """The groups that are shown now (computed once)."""
        if "shown" not in seen.known:
            seen.known["shown"] = self._choose(seen)
        found: Shown = seen.known["shown"]
        return found

    def _choose(self, seen: VirtualQueues) -> Shown:
        waiting = self.by_pair(seen.queues["requests"])
        fresh = self.by_pair(seen.oldest_fresh_ps)
        oldest = np.where(fresh >= 0, fresh, self.by_pair(seen.queues["oldest_ps"]))
        deadline = np.where(waiting > 0, oldest + self.ttft_ps[:, None], _NEVER)
        first = deadline.argmin(axis=2)[:, :, None]
        others = deadline.copy()
        others[others < seen.time_ps[:, None, None]] = _NEVER
        np.put_along_axis(others, first, _NEVER, axis=2)
        following = others.argmin(axis=2)[:, :, None]
        group = np.concatenate([first, following], axis=2)
        group[:, :, 0][deadline.min(axis=2) == _NEVER] = -1
        group[:, :, 1][others.min(axis=2) == _NEVER] = -1
        return Shown(waiting, deadline, group)

    def queue_of_slot(self, shown: Shown) -> NDArray[np.int64]:
        """(E, B * slots) number of the queue behind every group shown, -1: none."""
        base = self.first_queue + np.arange(self.n_pairs)[:, None] * self.per_pair
        return np.where(shown.group < 0, -1, base + shown.group).reshape(len(shown.group), -1)

    def pair_of(self, queue: NDArray[np.int64]) -> NDArray[np.int64]:
        """Pair that a queue belongs to, -1: none (a queue with a name, or no queue)."""
        inside = (queue >= self.first_queue) & (queue < self._end)
        return np.where(inside, (queue - self.first_queue) // self.per_pair, -1)

    def possible(self, seen: VirtualQueues) -> NDArray[np.bool_]:
        """(E, I, 1 + B * slots) whether an instance can keep its LLM, or put a group shown ahead."""
        if "possible" in seen.known:
            before: NDArray[np.bool_] = seen.known["possible"]
            return before
        there = self.shown(seen).group.reshape(len(seen.pull), 1, -1) >= 0
        active = (seen.instances["state"] == InstanceState.ACTIVE)[:, :, None]
        groups = there & active & self._serves_slot
        keep = np.ones((*groups.shape[:2], 1), bool)
        found = seen.known["possible"] = np.concatenate([keep, groups], axis=2)
        return found

    # ---- ordering ----

    def order(
        self, ahead: NDArray[np.int64], seen: VirtualQueues, orders: QueueOrders
    ) -> NDArray[np.int64]:
        """Tend the groups, and write every instance's list.

        Args:
            ahead: (E, I) 0: stay with the LLM and put nothing ahead, k: put the k-th group shown ahead.
            seen: as the cluster stands.
            orders: written to.

        Returns:
            (E,) choices that were not possible and count for nothing.
        """
        shown = self.shown(seen)
        n_episodes, n_inst = ahead.shape
        episodes = np.arange(n_episodes)[:, None]
        allowed = np.take_along_axis(self.possible(seen), ahead[:, :, None], axis=2)[:, :, 0]
        choice = np.where(allowed, ahead, 0)
        slots = self.queue_of_slot(shown)
        head = np.where(choice > 0, slots[episodes, np.maximum(choice - 1, 0)], -1)
        llm = self._llm_wanted(seen, shown)
        llm = np.where(head >= 0, self.pair_of(head) // len(self.classes), llm)
        # Places in lists, by queue.
        deadline = shown.deadline_ps.copy()
        self._tend(seen, shown, deadline, orders)
        # From here on only the groups of the list's LLM, of which there are `width`.
        width = len(self.classes) * self.per_pair
        by_llm = (n_episodes, len(self.llms), width)
        due = deadline.reshape(by_llm)[episodes, llm]
        running = seen.running[:, :, self.first_queue : self._end]
        running = running.reshape(n_episodes, n_inst, *by_llm[1:])
        runs = running[episodes, np.arange(n_inst), llm] > 0
        places = np.where(runs & (due == _NEVER), _RUNS_OUT, due)
        start = self.first_queue + llm * width
        e, i = np.nonzero(head >= 0)
        places[e, i, (head - start)[e, i]] = _AHEAD
        order = places.argsort(axis=2, kind="stable")
        counts = (places != _NEVER).sum(axis=2)
        behind = np.arange(width) >= counts[:, :, None]
        lists = np.where(behind, AS_IS, order + start[:, :, None])
        same = (lists == seen.pull[:, :, :width]).all(axis=2)
        if seen.pull.shape[2] > width:
            same &= seen.pull[:, :, width] < 0
        orders.pulls[:, :, :width] = lists
        orders.counts[:] = np.where(same, AS_IS, counts)
        impossible: NDArray[np.int64] = (~allowed).sum(axis=1)
        return impossible

    def _llm_wanted(self, seen: VirtualQueues, shown: Shown) -> NDArray[np.int64]:
        """(E, I) LLM of an instance's list, as long as anybody waits for it, else the LLM that it has."""
        pair = self.pair_of(seen.pull[:, :, 0])
        listed = np.maximum(pair // len(self.classes), 0)
        waits = shown.waiting.reshape(len(pair), len(self.llms), -1).sum(axis=2) > 0
        stays = (pair >= 0) & np.take_along_axis(waits, listed, axis=1)
        return np.where(stays, listed, seen.instances["llm"])

    def _tend(
        self,
        seen: VirtualQueues,
        shown: Shown,
        deadline: NDArray[np.int64],
        orders: QueueOrders,
    ) -> None:
        """Close groups and open others; `deadline` afterwards has those of new and open groups too."""
        shape = (len(deadline), self.n_pairs)
        arrival = seen.arrival.reshape(shape)
        unknown = self.pair_of(arrival) != np.arange(self.n_pairs)
        start = self.first_queue + np.arange(self.n_pairs) * self.per_pair
        opened = np.where(unknown, 0, arrival - start)
        size = np.take_along_axis(shown.waiting, opened[:, :, None], axis=2)[:, :, 0]
        oldest = np.take_along_axis(
            self.by_pair(seen.queues["oldest_ps"]), opened[:, :, None], axis=2
        )[:, :, 0]
        old = (size > 0) & (seen.time_ps[:, None] - oldest >= self.span_ps)
        to_close = unknown | (size >= SIZE_LIMIT) | old
        free = (shown.waiting == 0) & (self.by_pair(seen.running.sum(axis=1)) == 0)
        free &= unknown[:, :, None] | (np.arange(self.per_pair) != opened[:, :, None])
        to_close &= free.any(axis=2)
        before = np.where(unknown, -1, opened)
        opened = np.where(to_close, free.argmax(axis=2), opened)
        for e, b in np.argwhere(to_close & ~unknown & (size > SIZE_LIMIT)).tolist():
            places = np.flatnonzero(free[e, b])
            opened[e, b] = self._split(seen, e, b, int(before[e, b]), places, deadline, orders)
        new = opened != before
        orders.arrivals.reshape(shape)[new] = (start + opened)[new]
        # Whoever arrives next cannot be due before this.
        due = np.take_along_axis(deadline, opened[:, :, None], axis=2)[:, :, 0]
        due = np.minimum(due, seen.time_ps[:, None] + self.ttft_ps)
        np.put_along_axis(deadline, opened[:, :, None], due[:, :, None], axis=2)

    def _split(
        self,
        seen: VirtualQueues,
        e: int,
        b: int,
        last: int,
        free: NDArray[np.int64],
        deadline: NDArray[np.int64],
        orders: QueueOrders,
    ) -> int:
        """Move what is too much in group `last` of pair `b` to free ones; returns the one to open."""
        start = self.first_queue + b * self.per_pair
        rows = seen.waiting(e, start + last)[SIZE_LIMIT:]
        to = free[np.minimum(np.arange(len(rows)) // SIZE_LIMIT, len(free) - 1)]
        orders.moves.append((e, rows["request"].copy(), start + to))
        for g in np.unique(to):
            deadline[e, b, g] = rows["arrival_ps"][to == g].min() + self.ttft_ps[b]
        return int(to[-1])
