"""Re-balancing at a heartbeat (Algorithm 2): the workers' errors, and which waiting requests move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from baselines.aladdin.constraints import Request, Rules
from baselines.aladdin.performance import DecodeTime
from baselines.aladdin.rebalance import NewRequest, Objective, PredictionErrors, greedy
from llmscale_env.control.view import FinishedRequests, RequestsUnderWay

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Seen:
    """What is remembered of a heartbeat until the next one: (n,) by rising id."""

    request: Ints
    predicted: Ints
    instance: Ints

    @classmethod
    def of(cls, under_way: RequestsUnderWay, predicted: Ints) -> Seen:
        """All requests under way, with the predictions that hold from now on."""
        order = np.argsort(under_way.request_id, kind="stable")
        return cls(under_way.request_id[order], predicted[order], under_way.instance[order])

    def find(self, requests: Ints) -> tuple[NDArray[np.bool_], Ints]:
        """Which of them are there, and where."""
        if len(self.request) == 0:
            return np.zeros(len(requests), bool), np.zeros(len(requests), np.int64)
        at = np.minimum(np.searchsorted(self.request, requests), len(self.request) - 1)
        return self.request[at] == requests, at


def errors_of(
    workers: list[int],
    before: Seen | None,
    finished: FinishedRequests,
    outlived: tuple[Ints, Ints, Ints],
    printed: bool = False,
) -> list[PredictionErrors]:
    """l_e and b_e of each worker for one heartbeat (lines 4 to 13 of Algorithm 2).

    Args:
        workers: instances.
        before: the last heartbeat.
        finished: requests that ended since.
        outlived: instance, old and new prediction of requests that have been predicted again.
        printed: all of a new prediction counts, as printed; otherwise only what it is more.
    """
    place = {i: k for k, i in enumerate(workers)}
    long: list[list[tuple[int, int]]] = [[] for _ in workers]
    early: list[list[tuple[float, float]]] = [[] for _ in workers]
    for i, old, new in zip(*(column.tolist() for column in outlived), strict=True):
        if i in place:
            long[place[i]].append((new, old))
    if before is not None and len(finished.request_id):
        there, at = before.find(finished.request_id)
        for known, k, real in zip(
            there.tolist(), at.tolist(), finished.output_tokens.tolist(), strict=True
        ):
            if not known:
                continue  # came and went between two heartbeats
            i, predicted = int(before.instance[k]), int(before.predicted[k])
            if i in place and real < predicted:
                early[place[i]].append((float(real), float(predicted)))
    return [
        PredictionErrors.of(
            [new for new, _ in mine], gone, None if printed else [old for _, old in mine]
        )
        for mine, gone in zip(long, early, strict=True)
    ]


def moves(
    workers: list[int],
    errors: list[PredictionErrors],
    decode: list[DecodeTime],
    under_way: RequestsUnderWay,
    predicted: Ints,
    now_s: float,
    rules_of: Callable[[int], Rules] | None,
    objective: Objective = "sum",
) -> tuple[Ints, Ints]:
    """Requests that wait at a worker and had better wait at another.

    Args:
        workers: instances that serve.
        errors, decode: of each.
        under_way: requests as they are.
        predicted: (n,) their predictions.
        now_s: time.
        rules_of: limits of an instance, which a move has to keep; None: nobody asks.
        objective: see `rebalance.greedy`.

    Returns:
        (m,) request ids, (m,) instances.
    """
    nothing = np.zeros(0, np.int64), np.zeros(0, np.int64)
    place = {i: k for k, i in enumerate(workers)}
    waits = under_way.movable & (under_way.instance >= 0)
    some = [k for k in np.flatnonzero(waits).tolist() if int(under_way.instance[k]) in place]
    if not some or not any(e.tokens or e.requests for e in errors):
        return nothing
    new = [NewRequest(place[int(under_way.instance[k])], float(predicted[k])) for k in some]
    known: dict[int, list[Request]] = {}

    def request(k: int) -> Request:
        emitted, first = int(under_way.emitted_tokens[k]), float(under_way.first_token_s[k])
        started = emitted > 0 and not np.isnan(first)
        return Request(
            int(under_way.input_tokens[k]),
            float(predicted[k]),
            emitted,
            max(0.0, now_s - first) if started else 0.0,
        )

    def takes(j: int, i: int, assigned: tuple[int, ...]) -> bool:
        assert rules_of is not None
        if i not in known:
            there = np.flatnonzero((under_way.instance == workers[i]) & ~waits)
            known[i] = [request(int(k)) for k in there]
        joined = [request(some[n]) for n, where in enumerate(assigned) if where == i and n != j]
        return rules_of(workers[i]).takes((*known[i], *joined), request(some[j]))

    found = greedy(
        errors, decode, new, objective=objective, takes=None if rules_of is None else takes
    )
    if not found.moved:
        return nothing
    changed = [j for j, i in enumerate(found.assigned) if i != new[j].worker]
    return (
        under_way.request_id[[some[j] for j in changed]].astype(np.int64),
        np.array([workers[found.assigned[j]] for j in changed], np.int64),
    )
