"""Which request group lies in which shared queue: QLM's groups as the simulator keeps them.

A group is one of the scenario's group queues. Between decisions the engine classifies arrivals into the
youngest group of their kind (`Command.arrival_queues`); at a decision groups that have become too large
are split in half, and prompts of other sizes come apart once there are enough to tell (Algorithm 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from baselines.qlm.groups import TokenClustering, token_bounds
from llmscale_env.control.view import ClusterView, WaitingRequests


@dataclass(frozen=True)
class Cell:
    """What requests must share to be in one group: LLM, class, and cluster by input tokens."""

    llm: int
    slo_class: int
    cluster: int = 0


@dataclass(frozen=True, eq=False)
class LiveGroup:
    """A group at a decision.

    Attributes:
        queue: number of its shared queue.
        cell: what its requests share.
        arrival_s: (n,) arrivals of those that wait for their first token, ascending.
        input_tokens: (n,) of the same.
        waiting: requests in the queue, evicted ones included.
        running: requests from it that run, over all instances.
    """

    queue: int
    cell: Cell
    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    waiting: int
    running: int


@dataclass
class Changes:
    """What `GroupBook.update` wants ordered.

    Attributes:
        requests, queues: waiting requests to move, and where to (`Command.regroup`).
        arrivals: cells whose arrivals go elsewhere now.
        parents: for each new group the one that its requests were in.
        freed: queues that hold no group any more.
    """

    requests: list[NDArray[np.int64]] = field(default_factory=list)
    queues: list[NDArray[np.int64]] = field(default_factory=list)
    arrivals: set[tuple[int, int]] = field(default_factory=set)
    parents: dict[int, int] = field(default_factory=dict)
    freed: list[int] = field(default_factory=list)

    def move(self, requests: NDArray[np.int64], queue: int) -> None:
        """These go there."""
        if len(requests):
            self.requests.append(requests)
            self.queues.append(np.full(len(requests), queue, np.int64))


class GroupBook:
    """The groups of an episode.

    Args:
        queues: numbers of the shared queues that groups may use.
        cells: (LLM, class) pairs of which requests may come.
        limit: largest number of requests in a group, by LLM.
        clustering: by tokens.
        least_to_cluster: so many requests of a pair must wait before their tokens are looked at.
        expected_output: tokens by LLM and class, which count in whether two clusters differ; None: none.
    """

    def __init__(
        self,
        queues: Iterable[int],
        cells: Iterable[tuple[int, int]],
        limit: Callable[[int], int],
        clustering: TokenClustering,
        least_to_cluster: int = 400,
        expected_output: Callable[[int, int], float] | None = None,
    ) -> None:
        self._free = list(queues)[::-1]
        self._limit = limit
        self._clustering = clustering
        self._least = least_to_cluster
        self._expected_output = expected_output or (lambda llm, slo_class: 0.0)
        self.cell_of: dict[int, Cell] = {}
        self.open: dict[Cell, int] = {}
        self.uppers: dict[tuple[int, int], tuple[int, ...]] = {}
        for llm, slo_class in cells:
            self.uppers[llm, slo_class] = ()
            self._begin(Cell(llm, slo_class))

    def _begin(self, cell: Cell) -> int | None:
        """A new group takes the cell's arrivals; None if all queues are in use."""
        if not self._free:
            return None
        queue = self._free.pop()
        self.cell_of[queue] = cell
        self.open[cell] = queue
        return queue

    def arrival_queues(self, llm: int, slo_class: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Where arrivals of a pair go, as `Command.arrival_queues` has it."""
        uppers = self.uppers[llm, slo_class]
        return uppers, tuple(self.open[Cell(llm, slo_class, k)] for k in range(len(uppers) + 1))

    def update(self, view: ClusterView) -> tuple[list[LiveGroup], Changes]:
        """The groups as they will be after the changes, and these."""
        waiting = view.waiting
        running = view.running_from.sum(axis=0)
        changes = Changes()
        self._release(waiting, running, changes)
        target = waiting.queue.copy()
        self._cluster(waiting, target, changes)
        self._split(waiting, target, changes)
        for queue in np.unique(target[target != waiting.queue]).tolist():
            moved = np.flatnonzero((target == queue) & (waiting.queue != queue))
            # They may come from several groups: first come first served all the same, evicted ones first.
            moved = moved[np.lexsort((waiting.arrival_s[moved], ~waiting.started[moved]))]
            changes.move(waiting.request_id[moved], queue)
        return self._live(waiting, target, running), changes

    def _release(
        self, waiting: WaitingRequests, running: NDArray[np.int64], changes: Changes
    ) -> None:
        used = np.bincount(waiting.queue, minlength=len(running)) + running
        for queue in sorted(self.cell_of):
            if used[queue] == 0 and queue != self.open.get(self.cell_of[queue]):
                del self.cell_of[queue]
                self._free.append(queue)
                changes.freed.append(queue)

    def _cluster(
        self, waiting: WaitingRequests, target: NDArray[np.int64], changes: Changes
    ) -> None:
        """Line 1 of Algorithm 1 for every pair of which enough requests wait."""
        if self._clustering.max_clusters == 1:
            return
        for (llm, slo_class), old in list(self.uppers.items()):
            mine = (waiting.llm == llm) & (waiting.slo_class == slo_class)
            if int(mine.sum()) < self._least:
                continue
            output = self._expected_output(llm, slo_class)
            bounds = token_bounds(waiting.input_tokens[mine], output, self._clustering)[:-1]
            uppers = tuple(int(bound) for bound in bounds)
            if len(uppers) < len(old):
                continue  # the cluster that is gone drains and takes what little of it comes
            for k in range(len(old) + 1, len(uppers) + 1):
                if self._begin(Cell(llm, slo_class, k)) is None:
                    return
            if uppers != old:
                self.uppers[llm, slo_class] = uppers
                changes.arrivals.add((llm, slo_class))
            for k in range(len(old) + 1, len(uppers) + 1):
                queue = self.open[Cell(llm, slo_class, k)]
                above = mine & ~waiting.started & (waiting.input_tokens > uppers[k - 1])
                if above.any():
                    changes.parents[queue] = int(waiting.queue[above][0])
                target[above] = queue

    def _split(self, waiting: WaitingRequests, target: NDArray[np.int64], changes: Changes) -> None:
        """Lines 2 to 7: groups above their limit are halved; the later half is the younger group."""
        todo = sorted(self.cell_of)
        while todo:
            queue = todo.pop(0)
            cell = self.cell_of[queue]
            members = np.flatnonzero(target == queue)
            if len(members) <= self._limit(cell.llm) or not self._free:
                continue
            # Evicted requests are at the head already; the others are in order of arrival.
            late = members[np.argsort(waiting.arrival_s[members], kind="stable")]
            late = late[(len(late) + 1) // 2 :]
            new = self._free.pop()
            self.cell_of[new] = cell
            if self.open.get(cell) == queue:
                self.open[cell] = new
                changes.arrivals.add((cell.llm, cell.slo_class))
            changes.parents[new] = queue
            target[late] = new
            todo += [queue, new]

    def _live(
        self,
        waiting: WaitingRequests,
        target: NDArray[np.int64],
        running: NDArray[np.int64],
    ) -> list[LiveGroup]:
        groups = []
        order = np.lexsort((waiting.arrival_s, target))
        starts = np.searchsorted(target[order], sorted(self.cell_of))
        ends = np.searchsorted(target[order], sorted(self.cell_of), side="right")
        for queue, a, b in zip(sorted(self.cell_of), starts, ends, strict=True):
            members = order[a:b]
            fresh = members[~waiting.started[members]]
            groups.append(
                LiveGroup(
                    queue,
                    self.cell_of[queue],
                    waiting.arrival_s[fresh],
                    waiting.input_tokens[fresh],
                    len(members),
                    int(running[queue]),
                )
            )
        return groups
