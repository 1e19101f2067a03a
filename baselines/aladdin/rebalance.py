"""Re-balancing when predictions fail (section 4.3, Algorithm 2).

Every worker has an error of length l_e and of batch b_e. An ongoing request that outlived its
prediction is more than was planned for: l_e += l'_pred (predicted again), b_e += 1. A request that
ended early is less: l_e += l_real - l_pred, b_e -= 1. New requests that have not started are moved
between workers so that the sum of |c_i| / sqrt(alpha^2 + beta^2) is least.

What the printed algorithm leaves open, and how it is read here:

- The "equivalent error function" alpha l_e + beta b_e + c = 0 comes from Eq. 4, so alpha = k2 and
  beta = c2, and c is what puts (l_e, b_e) on the line: |c| = |k2 l_e + c2 b_e|, the error of the
  iteration time. Its distance from the origin is that over sqrt(k2^2 + c2^2). (The printed c_1 and
  c_i are the same.)
- A moved request takes l_pred and one request from one worker to the other, as printed (lines 17 to
  20). Its prompt is context as well: pass l_in + gamma l_pred as its tokens to count it.
- The sum of absolute values is the same for every distribution of errors of one sign: it moves
  requests from over- to under-utilised workers only. `objective="squares"` evens out further.
- Of equally good answers the one that moves the fewest (`exact`), and no move without a gain
  (`greedy`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from baselines.aladdin.performance import DecodeTime
from baselines.solver import SolverSettings, import_pulp, run, variable

Objective = Literal["sum", "squares"]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PredictionErrors:
    """What a worker's predictions were wrong by.

    Attributes:
        tokens: l_e.
        requests: b_e.
    """

    tokens: float = 0.0
    requests: float = 0.0

    @classmethod
    def of(
        cls,
        outlived: Sequence[float] = (),
        early: Sequence[tuple[float, float]] = (),
        planned: Sequence[float] | None = None,
    ) -> PredictionErrors:
        """Lines 4 to 13 of Algorithm 2 for one worker.

        Args:
            outlived: l'_pred of each ongoing request with l_out > l_pred.
            early: l_real and l_pred of each request that ended with l_real < l_pred.
            planned: l_pred of each in `outlived`: then only the increase l'_pred - l_pred counts,
                as it does for `early`. None: all of l'_pred, as printed.

        Raises:
            ValueError: one in `early` that did not end early, or `planned` of another length.
        """
        for real, predicted in early:
            if not real < predicted:
                raise ValueError(f"early: {real} is not below the predicted {predicted}")
        if planned is not None and len(planned) != len(outlived):
            raise ValueError(f"planned has {len(planned)} entries, outlived {len(outlived)}")
        tokens = sum(outlived) - sum(planned or ())
        tokens += sum(real - predicted for real, predicted in early)
        return cls(float(tokens), float(len(outlived) - len(early)))


@dataclass(frozen=True)
class NewRequest:
    """A request that waits at a worker and may be moved.

    Attributes:
        worker: index of where it is.
        tokens: l_pred, which moves with it.
    """

    worker: int
    tokens: float


@dataclass(frozen=True)
class Rebalanced:
    """The answer.

    Attributes:
        assigned: for each new request, its worker.
        moved: how many changed theirs.
        before, after: the objective.
        proved: no other answer is better (`exact` within the limits of its solver).
    """

    assigned: tuple[int, ...]
    moved: int
    before: float
    after: float
    proved: bool = False


def offset(errors: PredictionErrors, decode: DecodeTime) -> float:
    """Signed distance of a worker's error function from the origin; above 0: more than was planned."""
    size = math.hypot(decode.per_token_s, decode.per_request_s)
    return (decode.per_token_s * errors.tokens + decode.per_request_s * errors.requests) / size


def greedy(
    errors: Sequence[PredictionErrors],
    decode: Sequence[DecodeTime],
    requests: Sequence[NewRequest],
    *,
    objective: Objective = "sum",
    takes: Callable[[int, int, tuple[int, ...]], bool] | None = None,
) -> Rebalanced:
    """Moves one request at a time, always the move that gains most, until none gains.

    Args:
        errors: of each worker.
        decode: Eq. 3 of each worker.
        requests: new ones.
        objective: "sum" of distances (printed), or of their "squares".
        takes: `takes(j, i, assigned)`: whether worker i can take request j as things stand; None:
            any can (the paper does not ask).

    Raises:
        ValueError: unequal lengths, an unknown worker, or another objective.
    """
    start, adds = _parts(errors, decode, requests)
    score = _score(objective)
    assigned = [r.worker for r in requests]
    now = start.copy()
    before = float(score(now).sum())
    smallest = 1e-9 * max(float(adds.max(initial=0.0)), float(np.abs(start).max(initial=0.0)))
    if objective == "squares":
        smallest *= smallest
    while True:
        best: tuple[float, int, int] | None = None
        value = score(now)
        for j, x in enumerate(assigned):
            left = float(score(now[x] - adds[j, x]) - value[x])
            gains = left + score(now + adds[j]) - value
            gains[x] = 0.0
            for y in np.argsort(gains, kind="stable"):
                gain = float(gains[y])
                if gain >= (best[0] if best else -smallest):
                    break
                if takes is None or takes(j, int(y), tuple(assigned)):
                    best = gain, j, int(y)
                    break
        if best is None:
            break
        _, j, y = best
        now[assigned[j]] -= adds[j, assigned[j]]
        now[y] += adds[j, y]
        assigned[j] = y
    return _result(assigned, requests, before, float(score(now).sum()))


def exact(
    errors: Sequence[PredictionErrors],
    decode: Sequence[DecodeTime],
    requests: Sequence[NewRequest],
    settings: SolverSettings | None = None,
) -> Rebalanced:
    """The least sum of distances (line 22), as an integer programme; few moves among equals.

    Args:
        errors: of each worker.
        decode: Eq. 3 of each worker.
        requests: new ones.
        settings: of the solver.

    Raises:
        SolverMissing: no PuLP, or no solver for it.
        ValueError: as `greedy`.
        RuntimeError: the solver stopped before it had an answer.
    """
    start, adds = _parts(errors, decode, requests)
    before = float(np.abs(start).sum())
    unit = max(float(adds.max(initial=0.0)), float(np.abs(start).max(initial=0.0)))
    if unit == 0 or not requests:
        return _result([r.worker for r in requests], requests, before, before, proved=True)
    pulp = import_pulp()
    programme = pulp.LpProblem("rebalance", pulp.LpMinimize)
    workers = range(len(start))
    here = [
        [variable(programme, f"x_{j}_{i}", binary=True) for i in workers]
        for j in range(len(requests))
    ]
    distance = [variable(programme, f"d_{i}") for i in workers]
    for one in here:
        programme += pulp.lpSum(one) == 1
    for i in workers:
        # What is planned there already is no error; it leaves one behind when it goes.
        known = sum(adds[j, i] for j, r in enumerate(requests) if r.worker == i)
        error = (start[i] - known) / unit + pulp.lpSum(
            adds[j, i] / unit * here[j][i] for j in range(len(requests))
        )
        programme += distance[i] >= error
        programme += distance[i] >= -error
    moved = pulp.lpSum(1 - here[j][r.worker] for j, r in enumerate(requests))
    programme.setObjective(pulp.lpSum(distance) + 1e-5 / len(requests) * moved)
    outcome = run(programme, settings or SolverSettings(gap=0.0, time_limit_s=60.0))
    if not outcome.found:
        raise RuntimeError("the solver found no answer within its limits")
    assigned = [next(i for i in workers if (one[i].varValue or 0) > 0.5) for one in here]
    now = start.copy()
    for j, r in enumerate(requests):
        now[r.worker] -= adds[j, r.worker]
        now[assigned[j]] += adds[j, assigned[j]]
    return _result(assigned, requests, before, float(np.abs(now).sum()), outcome.optimal)


def _parts(
    errors: Sequence[PredictionErrors], decode: Sequence[DecodeTime], requests: Sequence[NewRequest]
) -> tuple[Floats, Floats]:
    """(workers,) signed distances, (requests, workers) what each request adds where it goes."""
    if len(errors) != len(decode):
        raise ValueError(f"errors of {len(errors)} workers, decode of {len(decode)}")
    for j, r in enumerate(requests):
        if not 0 <= r.worker < len(errors):
            raise ValueError(f"requests[{j}].worker = {r.worker}: there are {len(errors)} workers")
    start = np.array([offset(e, d) for e, d in zip(errors, decode, strict=True)], np.float64)
    adds = np.array(
        [[offset(PredictionErrors(r.tokens, 1.0), d) for d in decode] for r in requests], np.float64
    )
    return start, adds.reshape(len(requests), len(decode))


def _score(objective: Objective) -> Callable[[Floats], Floats]:
    if objective == "sum":
        return np.abs
    if objective == "squares":
        return np.square
    raise ValueError(f"objective = {objective!r}: must be 'sum' or 'squares'")


def _result(
    assigned: Sequence[int],
    requests: Sequence[NewRequest],
    before: float,
    after: float,
    proved: bool = False,
) -> Rebalanced:
    moved = sum(i != r.worker for i, r in zip(assigned, requests, strict=True))
    return Rebalanced(tuple(assigned), moved, before, after, proved)
