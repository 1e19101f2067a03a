"""QLM's global scheduler: the programme of Eq. 6 to 13 (section 7), and when it is used.

Three things differ from what is printed, each available as printed through `printed`:

- Soft penalties max(0, p), weighted by requests, instead of p <= 0, so that overload has an answer; whether
  all SLOs can be met is reported apart. A small weight on waiting orders what is equally late.
- In Eq. 10 a swap costs the completion of the group *before* it (as the text says) and not that of the group
  whose waiting is computed; and a group waits for its own swap too.
- Positions may stay empty, at the end of a queue only, so no empty groups are needed. LLMs are told apart by
  one indicator each instead of by a number: t becomes max(0, y[j] - y[j - 1]), which needs no big M
  and is the same at every integral point.

The programme grows with instances x groups x positions and its bound is weak, as it is in scheduling with
big-M waiting times. `plan` therefore solves it up to `exact_size` binaries only, from a warm start, and
only if the search left somebody late; beyond that the search's answer stands.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from baselines.qlm.schedule import Plan, QueueProblem, evaluate, queue_waits_s
from baselines.qlm.search import alike_groups, in_deadline_order, search
from baselines.solver import SolverSettings, import_pulp, run, variable


def plan(
    problem: QueueProblem,
    *,
    exact_size: int = 108,
    settings: SolverSettings | None = None,
    rounds: int = 600,
    seed: int = 0,
) -> Plan:
    """Virtual queues that violate SLOs as little as can be found.

    Args:
        problem: groups and instances.
        exact_size: largest number of binaries x[g, i, j] for which the programme is solved (7 groups on 2
            instances, 6 on 3, say); 0: never, and no solver is needed.
        settings: of the solver.
        rounds, seed: of `baselines.qlm.search.search`.

    Raises:
        SolverMissing: the programme is to be solved and there is no solver.
    """
    found = search(problem, rounds=rounds, seed=seed)
    if found.feasible or int((problem.allowed.sum(axis=1) ** 2).sum()) > exact_size:
        return found
    return exact(problem, settings, start=found)


def exact(
    problem: QueueProblem, settings: SolverSettings | None = None, start: Plan | None = None
) -> Plan:
    """The programme with soft penalties.

    Args:
        problem: groups and instances.
        settings: of the solver.
        start: where it begins, and what it falls back to; None: the search's answer.

    Raises:
        SolverMissing: no PuLP, or no solver for it.
    """
    settings = settings or SolverSettings()
    begin = search(problem) if start is None else start
    if len(problem.servable) == 0:
        return evaluate(problem, begin.queues, "exact", optimal=True)
    found = _solve(problem, settings, begin, hard=False)
    # Some lateness may have been traded for much waiting: whether none is needed is another question. A plan
    # without any has waits within the SLOs, hence at most this objective.
    some = problem.servable
    own = np.where(problem.allowed, problem.own_wait, np.inf).min(axis=0)
    room = problem.slo_s[some] - own[some]
    most = problem.waiting_weight * float(problem.requests[some] @ room)
    if not found.feasible and (room >= 0).all() and found.objective <= most * (1 + settings.gap):
        on_time = _solve(problem, settings, begin, hard=True)
        if on_time.feasible:
            return on_time
    return found


def _canonical(problem: QueueProblem, queues: Sequence[Sequence[int]]) -> list[list[int]]:
    """Of equally good queues the ones that the symmetry constraints allow."""
    result = [list(queue) for queue in queues]
    for some in _alike_instances(problem):
        longest = sorted((result[g] for g in some), key=len, reverse=True)
        for g, queue in zip(some, longest, strict=True):
            result[g] = queue
    return in_deadline_order(problem, result)


def _alike_instances(problem: QueueProblem) -> list[list[int]]:
    kinds: dict[bytes, list[int]] = {}
    for g in range(problem.instances):
        tables = (problem.work_s, problem.completion_s, problem.own_wait, problem.ready_tail)
        rows = [table[g] for table in (*tables, problem.swap_s)]
        own = np.array([problem.loaded[g], problem.ready[g]])
        kinds.setdefault(np.concatenate([*rows, own]).tobytes(), []).append(g)
    return [some for some in kinds.values() if len(some) > 1]


def _solve(problem: QueueProblem, settings: SolverSettings, start: Plan, hard: bool) -> Plan:
    pulp = import_pulp()
    groups = problem.servable.tolist()
    allowed = [[int(i) for i in groups if problem.allowed[g, i]] for g in range(problem.instances)]
    length = [len(some) for some in allowed]
    programme = pulp.LpProblem("qlm", pulp.LpMinimize)
    tail = problem.tail_s
    values: dict[Any, float] = {}
    queues = _canonical(problem, start.queues)
    at_start = {i: (g, j) for g, queue in enumerate(queues) for j, i in enumerate(queue)}
    spots: dict[int, list[Any]] = {i: [] for i in groups}
    wait = {i: variable(programme, f"wait_{i}") for i in groups}
    late = {i: variable(programme, f"late_{i}", high=0.0 if hard else None) for i in groups}
    own: dict[int, Any] = {i: [] for i in groups}
    loads: list[Any] = []
    placed: list[dict[tuple[int, int], Any]] = []
    for g, some in enumerate(allowed):
        llms = sorted({int(problem.llm[i]) for i in some})
        x = {
            (i, j): variable(programme, f"x_{g}_{i}_{j}", binary=True)
            for i in some
            for j in range(length[g])
        }
        placed.append(x)
        for (i, j), here in x.items():
            spots[i].append(here)
            own[i].append(float(problem.own_wait[g, i]) * here)
            values[here] = float(at_start[i] == (g, j))
        loads.append(pulp.lpSum(x.values()))
        begins = queue_waits_s(problem, g, queues[g])
        now: Any = float(problem.ready[g])  # when the position before is served
        before = {m: float(problem.loaded[g] == m) for m in llms}
        before_tail: Any = pulp.lpSum(float(problem.ready_tail[g, i]) * x[i, 0] for i in some)
        largest_tail = max((max(tail[g, i], problem.ready_tail[g, i]) for i in some), default=0.0)
        steps = np.sort(problem.work_s[g, some])[::-1].cumsum() if some else np.zeros(0)
        swap = max((float(problem.swap_s[g, m]) for m in llms), default=0.0) + float(largest_tail)
        at_end = float(problem.ready[g])
        for j in range(length[g]):
            used = pulp.lpSum(x[i, j] for i in some)
            programme += used <= 1
            if j:
                programme += used <= pulp.lpSum(x[i, j - 1] for i in some)  # no gaps
            y = {m: pulp.lpSum(x[i, j] for i in some if problem.llm[i] == m) for m in llms}
            t = {m: variable(programme, f"t_{g}_{j}_{m}", high=1.0) for m in llms}  # Eq. 9
            for m in llms:
                programme += t[m] >= y[m] - before[m]
            drain = variable(programme, f"drain_{g}_{j}")  # C t x of Eq. 10, linear
            programme += drain >= before_tail - largest_tail * (1 - pulp.lpSum(t.values()))
            begin = variable(programme, f"begin_{g}_{j}")
            swapping = pulp.lpSum(float(problem.swap_s[g, m]) * t[m] for m in llms)
            programme += begin == now + swapping + drain  # Eq. 10
            horizon = float(problem.ready[g]) + (float(steps[j - 1]) if j else 0.0) + (j + 1) * swap
            for i in some:
                programme += wait[i] >= begin - horizon * (1 - x[i, j])
            if j < len(queues[g]):
                at = queues[g][j]
                m = int(problem.llm[at])
                last = int(problem.llm[queues[g][j - 1]]) if j else int(problem.loaded[g])
                last_tail = tail[g, queues[g][j - 1]] if j else problem.ready_tail[g, at]
                values[t[m]] = float(m != last)
                values[drain] = float(last_tail) * (m != last)
                values[begin] = begins[j]
                at_end = begins[j] + float(problem.work_s[g, at])
            else:
                values[begin] = at_end
            now = begin + pulp.lpSum(float(problem.work_s[g, i]) * x[i, j] for i in some)
            before = y
            before_tail = pulp.lpSum(float(tail[g, i]) * x[i, j] for i in some)
    begun = evaluate(problem, queues, "search")
    for i in groups:
        programme += pulp.lpSum(spots[i]) == 1  # Eq. 6
        programme += late[i] >= wait[i] + pulp.lpSum(own[i]) - float(problem.slo_s[i])  # Eq. 11
        values[wait[i]], values[late[i]] = float(begun.wait_s[i]), float(begun.late_s[i])
    for alike in alike_groups(problem):
        for a, b in itertools.pairwise(alike):
            programme += wait[a] <= wait[b]
    for alike in _alike_instances(problem):
        for a, b in itertools.pairwise(alike):
            programme += loads[a] >= loads[b]
    scale = float(problem.requests[groups].mean())
    programme.setObjective(
        pulp.lpSum(
            float(problem.requests[i]) / scale * (late[i] + problem.waiting_weight * wait[i])
            for i in groups
        )
    )  # Eq. 13
    usable = begun.feasible or not hard
    outcome = run(programme, settings, values if usable else None)
    if not outcome.found:
        return start
    answer = []
    for x in placed:
        where = {j: i for (i, j), here in x.items() if (here.varValue or 0) > 0.5}
        answer.append([where[j] for j in sorted(where)])
    try:
        found = evaluate(problem, answer, "exact", outcome.optimal)
    except ValueError:  # stopped before it had an answer
        return start
    if start.objective < found.objective and not hard:
        return evaluate(problem, start.queues, "exact", outcome.optimal)
    return found


# ---- as printed ----


@dataclass(frozen=True)
class Printed:
    """The answer of the programme as it is printed.

    Attributes:
        queues: for each instance its groups in order, empty groups left out; None: none was found.
        infeasible: it is proved that no answer meets all constraints.
        objective: Eq. 13: the sum of p over all positions that hold a group.
    """

    queues: tuple[tuple[int, ...], ...] | None
    infeasible: bool
    objective: float | None


def printed(
    problem: QueueProblem,
    positions: int | None = None,
    *,
    padding: bool = True,
    settings: SolverSettings | None = None,
) -> Printed:
    """Eq. 6 to 13 to the letter: every position filled, p <= 0 hard, Eq. 10 as it stands.

    What the paper leaves open is chosen so: position -1 holds the LLM loaded now; an empty group takes no
    time, has no SLO and an LLM number of its own, 0; S is the longest swap of the instance;
    `own_wait_s`, `ready_s` and `requests` do not occur.

    Args:
        problem: groups and instances.
        positions: L, of each queue; None: as many as there are groups.
        padding: with empty groups. The published code has none: with more positions than groups it is
            infeasible.
        settings: of the solver.

    Raises:
        SolverMissing: no PuLP, or no solver for it.
        ValueError: too few positions.
    """
    pulp = import_pulp()
    groups = problem.servable.tolist()
    count = max(len(groups), 1) if positions is None else positions
    instances = range(problem.instances)
    if count * problem.instances < len(groups):
        raise ValueError(
            f"positions = {positions}: {problem.instances} queues must hold {len(groups)} groups"
        )
    empty = count * problem.instances - len(groups) if padding else 0
    everything = [*groups, *range(-empty, 0)]
    programme = pulp.LpProblem("qlm_printed", pulp.LpMinimize)
    x = {
        (g, i, j): variable(programme, f"x_{g}_{i if i >= 0 else f'e{-i}'}_{j}", binary=True)
        for g in instances
        for i in everything
        for j in range(count)
    }
    for i in everything:
        programme += pulp.lpSum(x[g, i, j] for g in instances for j in range(count)) == 1
    penalties = []
    largest = problem.swap_s.shape[1]
    for g in instances:
        some = [i for i in groups if problem.allowed[g, i]]
        for i in groups:
            if i not in some:
                programme += pulp.lpSum(x[g, i, j] for j in range(count)) == 0
        work = {i: float(problem.work_s[g, i]) for i in some}
        done = {i: float(problem.completion_s[g, i]) for i in some}
        most = max(done.values(), default=0.0)
        finite = problem.swap_s[g][np.isfinite(problem.swap_s[g])]
        swap = float(finite.max()) if len(finite) else 0.0
        horizon = sum(done.values()) * (count + 1) + swap * count + 1.0
        t = [variable(programme, f"t_{g}_{j}", binary=True) for j in range(count)]
        number_before: Any = int(problem.loaded[g]) + 1
        wait: Any = 0.0
        for j in range(count):
            programme += pulp.lpSum(x[g, i, j] for i in everything) == 1
            number = pulp.lpSum((int(problem.llm[i]) + 1) * x[g, i, j] for i in groups)  # Eq. 7
            programme += number - number_before <= largest * t[j]  # Eq. 9
            programme += number_before - number <= largest * t[j]
            number_before = number
            completion = pulp.lpSum(done[i] * x[g, i, j] for i in some)
            drains = []
            for k in range(j):
                drain = variable(programme, f"drain_{g}_{j}_{k}")
                programme += drain >= completion - most * (1 - t[k])
                drains.append(drain)
            slo = pulp.lpSum(float(problem.slo_s[i]) * x[g, i, j] for i in groups)  # Eq. 8
            spare = pulp.lpSum(x[g, i, j] for i in everything if i < 0)
            penalty = wait + pulp.lpSum(drains) - slo - horizon * spare  # Eq. 11
            programme += penalty <= 0  # Eq. 12
            penalties.append(penalty + horizon * spare)
            wait = wait + pulp.lpSum(work[i] * x[g, i, j] for i in some) + swap * t[j]  # Eq. 10
    programme.setObjective(pulp.lpSum(penalties))  # Eq. 13
    outcome = run(programme, settings or SolverSettings())
    if outcome.infeasible or not outcome.found:
        return Printed(None, outcome.infeasible, None)
    queues = tuple(
        tuple(
            i
            for j in range(count)
            for i in groups
            if problem.allowed[g, i] and (x[g, i, j].varValue or 0) > 0.5
        )
        for g in instances
    )
    if sorted(itertools.chain(*queues)) != groups:  # stopped before it had an answer
        return Printed(None, False, None)
    return Printed(queues, False, float(pulp.value(programme.objective)))
