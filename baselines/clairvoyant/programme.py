"""The linear programme over time slots (docs/clairvoyant.md).

Variables, with slots `t`: GPUs that serve `n[t]` (the mean over the slot), those that begin to serve `y[t]`;
and for each *flow* (a kind of work of some requests) how much of it has been done by the end of a slot,
`P[f, t]`:

    least   sum of length[t] * n[t] + load * y[t]
    n[t] <= most[t],   y[t] >= n[t] - n[t - 1]          n[-1]: what serves at the start
    due[f, t] - missed[f, t] <= P[f, t] <= come[f, t],   P[f, t] >= P[f, t - 1]
    for every price: sum over flows of charge * (P[f, t] - P[f, t - 1]) <= length[t] * n[t]
    missed[f, t]: at most what the late requests take away of what is due until then
    late requests of a class <= those that may be

Why means may be used for what begins to serve: take a random place, the same in every slot. What serves rises
from place to place by no more than begins to serve in between, and its expectation is the slot's mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baselines.solver import SolverSettings, import_pulp, run, variable

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Flow:
    """Work of one kind, in any unit.

    Attributes:
        charge: (k,) GPU-seconds per unit, by price.
        come: (T,) units that can have been done by the end of each slot.
        due: (T,) units that must have been done by then, if nobody is late.
    """

    charge: Floats
    come: Floats
    due: Floats


@dataclass(frozen=True)
class Group:
    """Requests of a class that are alike.

    Attributes:
        slo_class: index.
        requests: how many.
        takes: (flow, slot, units): one of them that is late takes at most so much away from what is due in
            that flow from that slot on.
    """

    slo_class: int
    requests: int
    takes: tuple[tuple[int, int, float], ...]


@dataclass(frozen=True)
class Problem:
    """What the programme is made of.

    Attributes:
        length_s: (T,) of the slots.
        most: (T,) GPUs that can serve.
        initial: GPUs that serve at the start.
        load_s: GPU-seconds that a GPU costs before it begins to serve.
        flows, groups: the work, and who may be late.
        may_miss: (C,) how many.
    """

    length_s: Floats
    most: Floats
    initial: float
    load_s: float
    flows: Sequence[Flow]
    groups: Sequence[Group]
    may_miss: Sequence[int]


@dataclass(frozen=True)
class Answer:
    """How the programme ended.

    Attributes:
        status: "optimal", "infeasible" or "unsolved".
        gpu_s: the least, if optimal.
        gpus: (T,) that serve.
        starts: GPUs that begin to serve.
        size: variables and rows.
    """

    status: str
    gpu_s: float
    gpus: Floats
    starts: float
    size: tuple[int, int]


def solve(problem: Problem, settings: SolverSettings) -> Answer:
    """The least GPU-seconds.

    Raises:
        SolverMissing: no PuLP, or no solver for it.
    """
    pulp = import_pulp()
    programme = pulp.LpProblem("clairvoyant", pulp.LpMinimize)
    slots = len(problem.length_s)
    gpus = [variable(programme, f"n_{t}", high=float(problem.most[t])) for t in range(slots)]
    starts = [variable(programme, f"y_{t}") for t in range(slots)]
    rows: list[Any] = []
    for t in range(slots):
        before = gpus[t - 1] if t else problem.initial
        rows.append(starts[t] - gpus[t] + before >= 0)

    late = [
        variable(programme, f"late_{g}", high=group.requests)
        for g, group in enumerate(problem.groups)
    ]
    for c, count in enumerate(problem.may_miss):
        mine = [late[g] for g, group in enumerate(problem.groups) if group.slo_class == c]
        if mine:
            rows.append(pulp.LpAffineExpression([(v, 1) for v in mine]) <= count)
    taken: dict[int, dict[int, list[tuple[Any, float]]]] = {}
    for g, group in enumerate(problem.groups):
        for f, t, units in group.takes:
            taken.setdefault(f, {}).setdefault(t, []).append((late[g], units))

    prices = len(problem.flows[0].charge) if problem.flows else 0
    spent: list[list[list[tuple[Any, float]]]] = [[[] for _ in range(prices)] for _ in range(slots)]
    for f, flow in enumerate(problem.flows):
        done: Any = None
        missed: Any = None
        for t in range(slots):
            last, done = done, variable(programme, f"P_{f}_{t}", high=float(flow.come[t]))
            if last is not None:
                rows.append(done - last >= 0)
            here = taken.get(f, {}).get(t, [])
            if here:
                old, missed = missed, variable(programme, f"missed_{f}_{t}")
                terms = [(missed, 1.0), *((v, -units) for v, units in here)]
                if old is not None:
                    terms.append((old, -1.0))
                rows.append(pulp.LpAffineExpression(terms) == 0)
            terms = [(done, 1.0)] if missed is None else [(done, 1.0), (missed, 1.0)]
            if flow.due[t] > 0:
                rows.append(pulp.LpAffineExpression(terms) >= float(flow.due[t]))
            for k in range(prices):
                charge = float(flow.charge[k])
                if charge:
                    spent[t][k].append((done, charge))
                    if last is not None:
                        spent[t][k].append((last, -charge))
    for t in range(slots):
        for k in range(prices):
            terms = [*spent[t][k], (gpus[t], -float(problem.length_s[t]))]
            rows.append(pulp.LpAffineExpression(terms) <= 0)
    programme += pulp.LpAffineExpression(
        [(gpus[t], float(problem.length_s[t])) for t in range(slots)]
        + [(start, problem.load_s) for start in starts]
    )
    for row in rows:
        programme += row
    outcome = run(programme, settings)
    size = (programme.numVariables(), len(rows))
    if not outcome.optimal:
        status = "infeasible" if outcome.infeasible else "unsolved"
        return Answer(status, float("nan"), np.full(slots, np.nan), float("nan"), size)
    served = np.array([each.varValue for each in gpus])
    begun = float(sum(each.varValue for each in starts))
    return Answer("optimal", float(pulp.value(programme.objective)), served, begun, size)
