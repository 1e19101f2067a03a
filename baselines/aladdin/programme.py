"""The placement as a mixed-integer programme (section 4.2, constraints a to h): the optimum of small cases.

Requests that are on a worker already stay there (x is kept); new ones go to one of these workers or
to empty ones, of which there are enough. Where the printed form needs more:

- Eq. 4 holds for more than one request, so (b) has a switch per worker that may be on with at most
  one.
- (c) and (d) bind a worker that gets a prefill; (d) would otherwise be broken by ongoing requests
  alone.
- A worker that breaks a constraint without any new request takes none (otherwise there would be no
  answer at all after one wrong prediction).
- (e) is asked at the iterations after which some request ends: in between memory only grows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from baselines.aladdin.constraints import Request, Rules, Worker
from baselines.solver import SolverSettings, import_pulp, run, variable


@dataclass(frozen=True)
class Optimum:
    """The fewest workers.

    Attributes:
        used: workers with requests; -1 if there is no answer.
        assigned: for each new request, the index of its worker; those of new workers follow the
            given ones.
        optimal: proved.
        infeasible: proved that there is no placement: a request that even an empty worker cannot
            take, or too few workers.
    """

    used: int
    assigned: tuple[int, ...]
    optimal: bool
    infeasible: bool


def fewest_workers(
    requests: Sequence[Request],
    workers: Sequence[Worker],
    rules: Rules,
    *,
    most_workers: int | None = None,
    settings: SolverSettings | None = None,
) -> Optimum:
    """The programme (a) to (h).

    Args:
        requests: new ones (any order).
        workers: with what they have, which stays.
        rules: limits, gamma and theta.
        most_workers: I; None: the given ones and one for each new request.
        settings: of the solver.

    Raises:
        SolverMissing: no PuLP, or no solver for it.
        ValueError: `most_workers` below the number of workers that are there.
    """
    settings = settings or SolverSettings(gap=0.0, time_limit_s=60.0)
    total = len(workers) + len(requests) if most_workers is None else most_workers
    if total < len(workers):
        raise ValueError(f"most_workers = {most_workers}: {len(workers)} are there already")
    held = [*workers, *[() for _ in range(total - len(workers))]]
    pulp = import_pulp()
    programme = pulp.LpProblem("aladdin", pulp.LpMinimize)
    used = [variable(programme, f"y_{i}", binary=True) for i in range(total)]  # (h)
    placed = [
        [variable(programme, f"x_{i}_{j}", binary=True) for j in range(len(requests))]
        for i in range(total)
    ]  # (g)
    programme.setObjective(pulp.lpSum(used))
    for j in range(len(requests)):
        programme += pulp.lpSum(placed[i][j] for i in range(total)) == 1  # (a)
    for i, worker in enumerate(held):
        if worker:
            programme += used[i] == 1  # (f) for what is there
        _worker(programme, i, worker, requests, placed[i], used[i], rules)
    for i in range(len(workers), total - 1):
        programme += used[i] >= used[i + 1]  # empty workers are alike: open them in order
    outcome = run(programme, settings)
    if not outcome.found:
        return Optimum(-1, (), False, outcome.infeasible)
    assigned = tuple(
        next(i for i in range(total) if (placed[i][j].varValue or 0) > 0.5)
        for j in range(len(requests))
    )
    taken = {i for i, worker in enumerate(held) if worker} | set(assigned)
    return Optimum(len(taken), assigned, outcome.optimal, False)


def _worker(
    programme: Any,
    i: int,
    worker: Worker,
    requests: Sequence[Request],
    x: Sequence[Any],
    used: Any,
    rules: Rules,
) -> None:
    """(b) to (f) of one worker."""
    if not requests:
        return
    pulp = import_pulp()
    if rules.broken(worker):
        for here in x:
            programme += here == 0
        return
    for here in x:
        programme += here <= used  # (f)
    batch = len(worker) + pulp.lpSum(x)
    everything = [*worker, *requests]

    # (b), linear in x because Eq. 4 is linear in the batch.
    context = rules.weighted_context(worker) + pulp.lpSum(
        rules.weight(r) * here for r, here in zip(requests, x, strict=True)
    )
    decode = rules.decode
    per_request = rules.theta * decode.per_request_s / decode.per_token_s
    most = rules.theta * (rules.itl_slo_s - decode.const_s) / decode.per_token_s
    excess = context - most + per_request * batch
    alone = variable(programme, f"alone_{i}", binary=True)
    programme += batch <= 1 + len(everything) * (1 - alone)
    largest = max(rules.weight(r) for r in everything) + per_request - most
    programme += excess <= max(largest, 0.0) * alone

    # (c) and (d)
    if not rules.decode_only:
        limit = min(rules.ttft_slo_s, rules.patience_s(worker))
        before = sum(r.input_tokens for r in worker if r.new)
        room = rules.prefill.most_tokens(limit) - before
        for r, here in zip(requests, x, strict=True):
            if r.new and r.input_tokens > room * (1 + 1e-9):
                programme += here == 0
        if math.isfinite(room):
            tokens = [r.input_tokens * here for r, here in zip(requests, x, strict=True) if r.new]
            # Without one that fits alone the lines above have set all of them to 0.
            programme += pulp.lpSum(tokens) <= max(room, 0.0)

    # (e)
    for iteration in sorted({rules.iterations(r) - 1 for r in everything}):
        taken = sum(rules.kv_at(r, iteration) for r in worker)
        wanted = pulp.lpSum(
            rules.kv_at(r, iteration) * here for r, here in zip(requests, x, strict=True)
        )
        programme += taken + wanted <= rules.kv_capacity
