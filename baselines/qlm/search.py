"""Virtual queues without a solver: earliest deadline first, and a search that scales (ours).

`edf` is the fallback that QLM names (section 9): list scheduling that knows LLMs, swaps and unequal speeds.

`search` takes over from the programme where that is too large. It starts from EDF or, if better, from
inserting the groups one by one, earliest deadline first, where each costs least, which by itself puts
groups of one LLM side by side. It then removes some related groups and inserts them again, over and
over ("ruin and recreate", Schrimpf et al. 2000; good at vehicle routing, whose structure this is: queues are
tours, swaps the ways between districts, SLOs due times), and keeps what is no worse. So it
is never worse than EDF. What an insertion costs at every position of every instance is one array
operation. Rounds are counted, not timed, and drawn from a seed: the same problem has the same answer
however fast the machine is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from baselines.qlm.schedule import Plan, QueueProblem, Queues, evaluate, queue_waits_s

REMOVED = 12  # most groups that one round takes out
NOWHERE = -2  # LLM of the place behind the last group of a queue
NO_PLACE = -3  # and of those further behind, which pad the arrays


def deadline_order(problem: QueueProblem) -> list[int]:
    """Servable groups, earliest deadline first; ties by LLM, then as given."""
    some = problem.servable
    return some[np.lexsort((some, problem.llm[some], problem.slo_s[some]))].tolist()


def edf(problem: QueueProblem) -> Plan:
    """Earliest deadline first: each group to the end of the queue in which it is done first."""
    return evaluate(problem, _edf_queues(problem), "edf")


def search(problem: QueueProblem, *, rounds: int = 600, patience: int = 200, seed: int = 0) -> Plan:
    """Virtual queues by insertion and by ruin and recreate; never worse than `edf`.

    Args:
        problem: groups and instances.
        rounds: at most so many removals and insertions.
        patience: stop after so many rounds without a gain.
        seed: of the draws.

    Raises:
        ValueError: a negative number of rounds.
    """
    for name, value in (("rounds", rounds), ("patience", patience)):
        if value < 0:
            raise ValueError(f"{name} = {value}: must be at least 0")
    start = edf(problem)
    if len(problem.servable) == 0:
        return evaluate(problem, start.queues, "search")
    tours = _Tours(problem, [[] for _ in range(problem.instances)])
    for group in deadline_order(problem):
        tours.insert(group)
    if start.objective < tours.cost.sum():
        tours = _Tours(problem, [list(queue) for queue in start.queues])
    _improve(tours, rounds, patience, np.random.default_rng(seed))
    found = evaluate(problem, in_deadline_order(problem, tours.queues), "search")
    if found.objective > start.objective:  # by rounding only
        found = evaluate(problem, start.queues, "search")
    return found


def alike_groups(problem: QueueProblem) -> list[list[int]]:
    """Sets of groups that differ in nothing but their deadline, earliest first."""
    kinds: dict[bytes, list[int]] = {}
    for i in problem.servable[np.argsort(problem.slo_s[problem.servable], kind="stable")].tolist():
        tables = (problem.work_s, problem.completion_s, problem.own_wait, problem.ready_tail)
        own = np.array([problem.llm[i], problem.requests[i]])
        columns = [table[:, i] for table in tables]
        kinds.setdefault(np.concatenate([*columns, own]).tobytes(), []).append(i)
    return [some for some in kinds.values() if len(some) > 1]


def in_deadline_order(problem: QueueProblem, queues: Queues) -> list[list[int]]:
    """The same queues with alike groups exchanged so that earlier deadlines begin first.

    Nothing else changes, and lateness does not grow.
    """
    begins = {
        group: begin
        for g, queue in enumerate(queues)
        for group, begin in zip(queue, queue_waits_s(problem, g, queue), strict=True)
    }
    renamed: dict[int, int] = {}
    for some in alike_groups(problem):
        by_begin = sorted(some, key=lambda group: begins[group])
        renamed |= dict(zip(by_begin, some, strict=True))
    return [[renamed.get(group, group) for group in queue] for queue in queues]


# ---- parts ----


def _edf_queues(problem: QueueProblem) -> list[list[int]]:
    queues: list[list[int]] = [[] for _ in range(problem.instances)]
    end = problem.ready.copy()
    tail = np.zeros(problem.instances)
    empty = np.ones(problem.instances, np.bool_)
    llm = problem.loaded.copy()
    for group in deadline_order(problem):
        wanted = problem.llm[group]
        drain = np.where(empty, problem.ready_tail[:, group], tail)
        begin = end + np.where(llm != wanted, drain + problem.swap_s[:, wanted], 0.0)
        done = np.where(problem.allowed[:, group], begin + problem.work_s[:, group], np.inf)
        g = int(done.argmin())
        queues[g].append(group)
        end[g], llm[g], empty[g] = done[g], wanted, False
        tail[g] = problem.completion_s[g, group] - problem.work_s[g, group]
    return queues


def _improve(tours: _Tours, rounds: int, patience: int, rng: np.random.Generator) -> None:
    problem = tours.problem
    some = problem.servable
    total = float(tours.cost.sum())
    idle = 0
    for _ in range(rounds):
        if idle >= patience:
            return
        removed = _related(tours, some, rng)
        touched = {tours.where[group] for group in removed}
        before = {g: list(tours.queues[g]) for g in touched}
        for g in touched:
            out = set(removed)
            tours.put(g, [group for group in tours.queues[g] if group not in out])
        if rng.random() < 0.5:
            removed.sort(key=lambda group: problem.slo_s[group])
        for group in removed:
            g = tours.best(group)[0]
            before.setdefault(g, list(tours.queues[g]))
            tours.insert(group)
        now = float(tours.cost.sum())
        if now > total + 1e-9 * abs(total):
            for g, queue in before.items():
                tours.put(g, queue)
            idle += 1
            continue
        idle = 0 if now < total * (1 - 1e-6) else idle + 1
        total = now


def _related(tours: _Tours, some: NDArray[np.int64], rng: np.random.Generator) -> list[int]:
    """Groups to take out: what is late draws attention, then neighbours in one of three senses."""
    problem = tours.problem
    late = np.array([tours.lateness(group) for group in some.tolist()])
    chance = late + late.sum() / len(late) + 1e-12
    first = int(rng.choice(some, p=chance / chance.sum()))
    size = int(rng.integers(1, min(REMOVED, len(some)) + 1))
    kind = rng.integers(0, 3)
    if kind == 0:  # the same LLM or a near deadline
        distance = np.abs(problem.slo_s[some] - problem.slo_s[first])
        distance = distance / (float(distance.max()) or 1.0)
        distance = distance + (problem.llm[some] != problem.llm[first]) + rng.random(len(some))
        near = some[np.argsort(distance, kind="stable")][:size].tolist()
    elif kind == 1:  # stretches of this queue and of another
        near = []
        others = rng.integers(0, problem.instances, 1).tolist()
        for g in dict.fromkeys([tours.where[first], *others]):
            queue = tours.queues[g]
            if queue:
                begin = int(rng.integers(0, len(queue)))
                near += queue[begin : begin + max(1, size // 2)]
    else:
        near = rng.choice(some, size, replace=False).tolist()
    near = [group for group in near if group != first]
    rng.shuffle(near)
    return [first, *near]


class _Tours:
    """Virtual queues as padded arrays, one row per instance, that answer what an insertion costs."""

    def __init__(self, problem: QueueProblem, queues: list[list[int]]) -> None:
        self.problem = problem
        self.queues = queues
        self.where: dict[int, int] = {}
        self.cost = np.zeros(problem.instances)
        self._tail = problem.tail_s
        # Where an instance cannot serve, finite numbers keep the arithmetic quiet; `allowed` rules it out.
        self._swap = np.where(np.isfinite(problem.swap_s), problem.swap_s, 0.0)
        self._work = np.where(problem.allowed, problem.work_s, 0.0)
        self._allocate(max([len(queue) for queue in queues], default=0) + 4)

    def lateness(self, group: int) -> float:
        """Request-seconds by which a group is late."""
        g = self.where[group]
        at = self.queues[g].index(group)
        return float(self._weight[g, at] * max(0.0, self._late[g, at]))

    def insert(self, group: int) -> None:
        """Puts a group where it costs least."""
        g, at = self.best(group)
        queue = self.queues[g]
        self.put(g, [*queue[:at], group, *queue[at:]])

    def best(self, group: int) -> tuple[int, int]:
        """The instance and the position at which a group costs least."""
        p = self.problem
        wanted = p.llm[group]
        places = int(max(len(queue) for queue in self.queues)) + 1
        here = slice(0, places)
        tail_before = self._tail_before[:, here].copy()
        tail_before[:, 0] = p.ready_tail[:, group]
        swap_in = (tail_before + self._swap[:, wanted, None]) * (
            self._llm_before[:, here] != wanted
        )
        begin = self._end_before[:, here] + swap_in
        late = begin + (p.own_wait[:, group] - p.slo_s[group])[:, None]
        cost = p.requests[group] * (np.maximum(late, 0.0) + p.waiting_weight * begin)
        after = self._llm_after[:, here]
        swap_out = np.where(
            (after != wanted) & (after != NOWHERE),
            self._tail[:, group, None] + self._swap_after[:, here],
            0.0,
        )
        shift = begin + self._work[:, group, None] + swap_out - self._begin[:, here]
        shift = np.where(after < 0, 0.0, shift)  # nobody to delay
        inside = slice(0, max(places - 1, 1))
        delayed = np.maximum(self._late[:, None, inside] + shift[:, :, None], 0.0)
        weight = self._suffix[:, here, inside]
        cost = cost + np.einsum("gpj,gpj->gp", delayed, weight)
        cost += p.waiting_weight * shift * self._suffix_weight[:, here]
        cost -= self._suffix_cost[:, here]
        cost[~p.allowed[:, group]] = np.inf
        cost[self._llm_after[:, here] == NO_PLACE] = np.inf
        g, at = divmod(int(cost.argmin()), places)
        return g, at

    def put(self, g: int, queue: list[int]) -> None:
        """Makes this the queue of an instance."""
        if len(queue) + 1 >= self._late.shape[1]:
            self.queues[g] = queue
            self._allocate(2 * len(queue) + 4)
            return
        self.queues[g] = queue
        self._fill(g)

    def _allocate(self, width: int) -> None:
        instances = self.problem.instances
        row = (instances, width)
        self._late, self._weight = np.zeros(row), np.zeros(row)
        self._begin, self._end_before, self._tail_before = (np.zeros(row) for _ in range(3))
        self._llm_before = np.zeros(row, np.int64)
        self._llm_after = np.zeros(row, np.int64)
        self._swap_after = np.zeros(row)
        self._suffix_weight, self._suffix_cost = np.zeros(row), np.zeros(row)
        self._suffix = np.zeros((instances, width, width))
        for g in range(instances):
            self._fill(g)

    def _fill(self, g: int) -> None:
        p, queue = self.problem, np.array(self.queues[g], np.int64)
        n = len(queue)
        for group in self.queues[g]:
            self.where[group] = g
        llm = p.llm[queue]
        before = np.concatenate([p.loaded[g : g + 1], llm])
        tail = np.concatenate([p.ready_tail[g, queue[:1]], self._tail[g, queue]])
        swap = self._swap[g, llm]
        work = self._work[g, queue]
        gap = np.where(before[:-1] != llm, tail[:-1] + swap, 0.0)
        begin = p.ready[g] + np.cumsum(gap) + np.concatenate([[0.0], np.cumsum(work)[:-1]])[:n]
        weight = p.requests[queue]
        late = begin + p.own_wait[g, queue] - p.slo_s[queue]
        self._late[g], self._weight[g] = 0.0, 0.0
        self._late[g, :n], self._weight[g, :n] = late, weight
        self._begin[g, :n] = begin
        self._end_before[g, 0] = p.ready[g]
        self._end_before[g, 1 : n + 1] = begin + work
        self._tail_before[g, : len(tail)] = tail
        self._llm_before[g, : n + 1] = before
        self._llm_after[g, :n], self._llm_after[g, n], self._llm_after[g, n + 1 :] = (
            llm,
            NOWHERE,
            -3,
        )
        self._swap_after[g, :n] = swap
        cost = weight * np.maximum(late, 0.0)
        self._suffix_weight[g], self._suffix_cost[g] = 0.0, 0.0
        self._suffix_weight[g, :n] = weight[::-1].cumsum()[::-1]
        self._suffix_cost[g, :n] = cost[::-1].cumsum()[::-1]
        self._suffix[g] = np.triu(np.broadcast_to(self._weight[g], self._suffix[g].shape))
        self.cost[g] = cost.sum() + p.waiting_weight * (weight @ begin)
