"""Re-balancing at a heartbeat (Algorithm 2): the workers' errors, and which waiting requests move.

"l_e is the accumulated error of output length for outstanding requests" (section 4.3), and Algorithm
2 goes through all ongoing ones: `ErrorLedger` keeps an error as long as what it is about is
outstanding. `errors_of` has only what has come to light since the last heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

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


@dataclass(frozen=True)
class Outlived:
    """Requests that have emitted what was predicted and go on: (n,) each.

    Attributes:
        request: ids.
        instance: where they are.
        planned: the prediction that has failed.
        predicted: the new one.
    """

    request: Ints
    instance: Ints
    planned: Ints
    predicted: Ints

    def rows(self) -> Iterator[tuple[int, int, int, int]]:
        """One by one."""
        columns = (self.request, self.instance, self.planned, self.predicted)
        return zip(*(column.tolist() for column in columns), strict=True)


def early(before: Seen | None, finished: FinishedRequests) -> list[tuple[int, int, int]]:
    """Instance, real and predicted output of requests that have ended early since the last heartbeat.

    Those that came and went between two heartbeats are not known.
    """
    if before is None or len(finished.request_id) == 0:
        return []
    there, at = before.find(finished.request_id)
    outputs = finished.output_tokens
    return [
        (int(before.instance[k]), int(outputs[n]), int(before.predicted[k]))
        for n, k in enumerate(at.tolist())
        if there[n] and outputs[n] < before.predicted[k]
    ]


def errors_of(
    workers: list[int],
    before: Seen | None,
    finished: FinishedRequests,
    outlived: Outlived,
    printed: bool = False,
) -> list[PredictionErrors]:
    """l_e and b_e of each worker for one heartbeat (lines 4 to 13 of Algorithm 2).

    Args:
        workers: instances.
        before: the last heartbeat.
        finished: requests that ended since.
        outlived: requests that have been predicted again.
        printed: all of a new prediction counts, as printed; otherwise only what it is more.
    """
    ledger = ErrorLedger(token_s=0.0, printed=printed)
    ledger.fail(outlived)
    ledger.end(early(before, finished), 0.0)
    return ledger.errors(workers)


@dataclass
class ErrorLedger:
    """l_e and b_e of each worker, accumulated for outstanding requests.

    A request that has outlived its prediction counts while it is where it did so, against the first
    prediction that failed. One that has ended early leaves an error until the iteration at which it
    was predicted to end. One that was moved (lines 17 to 20) counts at both workers while it is
    outstanding, or the same errors would move others again at every heartbeat.

    Attributes:
        token_s: time that an iteration is taken to last until a predicted end (T_dec: ours).
        printed: as of `errors_of`.
    """

    token_s: float
    printed: bool = False
    _outlived: dict[int, tuple[int, int, int]] = field(default_factory=dict, init=False)
    _early: list[tuple[int, int, int, float]] = field(default_factory=list, init=False)
    _moved: dict[int, tuple[int, int, int]] = field(default_factory=dict, init=False)

    def forget(self, under_way: RequestsUnderWay, now_s: float) -> None:
        """Drop what is about requests that are no longer there, and ends that would have come by now."""
        some = {*self._outlived, *self._moved}
        known = np.isin(under_way.request_id, np.fromiter(some, np.int64, len(some)))
        where = dict(
            zip(
                under_way.request_id[known].tolist(),
                under_way.instance[known].tolist(),
                strict=True,
            )
        )
        self._outlived = {j: e for j, e in self._outlived.items() if where.get(j) == e[0]}
        self._moved = {j: e for j, e in self._moved.items() if where.get(j) == e[1]}
        self._early = [e for e in self._early if e[3] > now_s]

    def fail(self, outlived: Outlived) -> None:
        """Requests that have outlived their predictions (lines 6 to 8)."""
        for request, instance, planned, predicted in outlived.rows():
            if request in self._outlived:
                planned = self._outlived[request][1]
            self._outlived[request] = instance, planned, predicted

    def end(self, ended: list[tuple[int, int, int]], now_s: float) -> None:
        """Instance, real and predicted output of requests that have ended early (lines 10 to 12)."""
        for instance, real, predicted in ended:
            until_s = now_s + (predicted - real) * self.token_s
            self._early.append((instance, real, predicted, until_s))

    def move(self, request: int, source: int, to: int, tokens: int) -> None:
        """A request has been moved with its predicted tokens; a second one counts from where it was first."""
        if request in self._moved:
            source = self._moved.pop(request)[0]
        if source != to:
            self._moved[request] = source, to, tokens

    def errors(self, workers: list[int]) -> list[PredictionErrors]:
        """Of each instance."""
        long: dict[int, list[tuple[int, int]]] = {i: [] for i in workers}
        gone: dict[int, list[tuple[float, float]]] = {i: [] for i in workers}
        moved = {i: [0, 0] for i in workers}
        for instance, planned, predicted in self._outlived.values():
            if instance in long:
                long[instance].append((predicted, planned))
        for instance, real, predicted, _ in self._early:
            if instance in gone:
                gone[instance].append((real, predicted))
        for source, to, tokens in self._moved.values():
            for instance, sign in ((source, -1), (to, 1)):
                if instance in moved:
                    moved[instance][0] += sign * tokens
                    moved[instance][1] += sign
        found = []
        for i in workers:
            new = [predicted for predicted, _ in long[i]]
            old = None if self.printed else [planned for _, planned in long[i]]
            wrong = PredictionErrors.of(new, gone[i], old)
            tokens, requests = moved[i]
            found.append(PredictionErrors(wrong.tokens + tokens, wrong.requests + requests))
        return found


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
        decodes = emitted > 0 and not np.isnan(first)
        return Request(
            int(under_way.input_tokens[k]),
            float(predicted[k]),
            emitted,
            max(0.0, now_s - first) if decodes else 0.0,
            started=not waits[k],
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
