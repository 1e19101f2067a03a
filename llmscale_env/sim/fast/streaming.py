"""Requests that come in pieces, and are forgotten when they are done (docs/engine.md, section 18).

A request's place in the arrays is not its id any more once one before it has been forgotten, but places
stay in order of ids: whatever compares places (ties, heaps, who came first) goes on as it was. What hangs on
the id itself (hashes) and what is read out goes by `ids`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.fast import imagined, observe, windows
from llmscale_env.sim.fast.state.cache_records import Loose, with_spans
from llmscale_env.sim.fast.state.layout import State
from llmscale_env.sim.fast.state.reset import put_requests
from llmscale_env.sim.observed import FOUND_DTYPE, RESULT_DTYPE
from llmscale_env.sim.spec import ClusterSpec, RequestState
from llmscale_env.sim.streaming import (
    Retired,
    check_imagined,
    check_later,
    check_lengths,
    check_streams,
    names_of,
)
from llmscale_env.workload.requests import RequestTable

_DONE = (int(RequestState.FINISHED), int(RequestState.REJECTED))
_LINKS = ("next", "prev", "aux_next", "aux_prev", "run_last")
"""Fields of a request that are places of others."""

_REPORTED = {
    "state": "state",
    "instance": "instance",
    "admitted_ps": "admitted",
    "first_token_ps": "first",
    "finished_ps": "finished",
    "max_itl_ps": "max_itl",
    "emitted_tokens": "emitted",
    "preemptions": "preemptions",
    "evictions": "evictions",
    "restarts": "restarts",
}
_PLACE_BITS = 0xFFFFFFFF  # of an entry of the heap of finishes


class Streaming(ABC):
    """The part of `EngineBatch` that takes requests piece by piece."""

    spec: ClusterSpec
    states: State
    loose: list[Loose]

    @property
    @abstractmethod
    def handles(self) -> NDArray[np.int64]:
        """(E,) where the kernels find the episodes."""

    @property
    @abstractmethod
    def capacity(self) -> int:
        """Requests per episode that the arrays have room for."""

    @abstractmethod
    def _grow(self, capacity: int) -> None:
        """Make room for more."""

    @abstractmethod
    def _put_loose(self, e: int, loose: Loose) -> None:
        """Replace the arrays of episode `e` that are of lengths of their own."""

    def ids(self, e: int) -> NDArray[np.int64]:
        n = int(self.states.glob[e, 0]["n_requests"])
        return self.states.ids[e, :n].copy()

    def extend(self, e: int, requests: RequestTable) -> None:
        check_streams(self.spec)
        _ = self.handles[e]
        glob = self.states.glob[e, 0]
        n, more = int(glob["n_requests"]), len(requests)
        check_later(self.spec, requests, int(glob["now_ps"]), int(glob["last_arrival_ps"]))
        if n + more > self.capacity:
            self._grow(max(n + more, self.capacity * 5 // 4))
            glob = self.states.glob[e, 0]
        n_spans = int(glob["n_spans"])
        put_requests(self.states, e, self.spec, requests, n)
        if self.states.const["caches"][0]:
            self._put_loose(e, with_spans(self.loose[e], n_spans, requests.prefixes))
        states = self.states
        begin = _begins(states.tally["end"][e])
        passed = states.tally["cursor"][e] - begin
        aged = states.aging["cursor"][e] - begin[:, None]
        glob["n_requests"] = n + more
        _sort_by_class(states, e, passed, aged)

    def retire(self, e: int) -> Retired:
        check_streams(self.spec)
        windows.settle(int(self.handles[e]))
        states = self.states
        glob = states.glob[e, 0]
        n = int(glob["n_requests"])
        req = states.req[e, :n]
        done = np.isin(req["state"], _DONE)
        if not done.any():
            return Retired(np.zeros(0, np.int64), np.zeros(0, RESULT_DTYPE))
        gone, keep = np.flatnonzero(done), np.flatnonzero(~done)
        results = np.zeros(len(gone), RESULT_DTYPE)
        for name, field in _REPORTED.items():
            results[name] = req[field][gone]
        if states.const["caches"][0]:
            results["cached_tokens"] = states.blocks["cached"][e, gone]
            self._forget_spans(e, keep)
        retired = Retired(states.ids[e, gone], results)
        _forget(states, e, self.spec, keep)
        return retired

    def imagine(
        self,
        e: int,
        ids: NDArray[np.int64],
        output_tokens: NDArray[np.int64],
        later: RequestTable,
    ) -> None:
        check_streams(self.spec)
        handle = int(self.handles[e])
        ids, output_tokens = check_lengths(ids, output_tokens)
        states = self.states
        glob = states.glob[e, 0]
        n = int(glob["next_arrival"])
        places, found = self.find(e, ids)
        mine = states.req[e, np.maximum(places, 0)]
        longest = np.array(self.spec.longest_tokens)[mine["llm"]] - mine["input"]
        check_imagined(ids, found["state"], output_tokens, longest - self.spec.half_block_tokens)
        check_later(self.spec, later, int(glob["now_ps"]), -1)
        never = n < int(glob["n_requests"])
        next_name = int(glob["next_name"]) if states.const["caches"][0] else 0
        if never and states.const["caches"][0]:
            next_name = int(states.blocks["name"][e, n])
        names_of(later, next_name)
        imagined.imagine(handle, places, output_tokens)
        glob["next_name"] = next_name
        if never:
            glob["next_id"] = states.ids[e, n]
        if never and states.const["caches"][0]:
            kept = states.blocks[e, :n]
            glob["n_spans"] = (kept["span"] + kept["n_spans"]).max(initial=0)
        begin = _begins(states.tally["end"][e])
        passed = states.tally["cursor"][e] - begin
        aged = states.aging["cursor"][e] - begin[:, None]
        glob["n_requests"], glob["last_arrival_ps"] = n, -1
        _sort_by_class(states, e, passed, aged)
        self.extend(e, later)

    def look_up(self, episodes: NDArray[np.int64], requests: NDArray[np.int64]) -> NDArray[Any]:
        return self.find(episodes, requests)[1]

    def find(
        self, episodes: int | NDArray[np.int64], requests: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """(n,) places of requests by id, -1 where it is not known (any more); their FOUND_DTYPE."""
        n = len(requests)
        rows, found = np.empty(n, np.int64), np.empty(n, FOUND_DTYPE)
        handles = self.handles[np.zeros(n, np.int64) + episodes]
        observe.look_up(handles, np.ascontiguousarray(requests, np.int64), rows, found)
        return rows, found

    def _forget_spans(self, e: int, keep: NDArray[np.int64]) -> None:
        """Move what the requests at places `keep` have of a prefix cache together."""
        rows, glob = self.states.blocks[e, keep], self.states.glob[e, 0]
        counts = rows["n_spans"].astype(np.int64)
        first = np.concatenate([[0], np.cumsum(counts)])
        kept = np.repeat(rows["span"] - first[:-1], counts) + np.arange(first[-1])
        span = np.append(self.loose[e].span[kept], self.loose[e].span[:1])  # never empty
        rows["span"] = first[:-1]
        self.states.blocks[e, : len(keep)] = rows
        glob["n_spans"] = first[-1]
        self._put_loose(e, self.loose[e]._replace(span=span))

    def _named(self, e: int, rows: NDArray[Any] | Sequence[int]) -> NDArray[np.int64]:
        """Ids of the requests at these places."""
        named: NDArray[np.int64] = self.states.ids[e][np.asarray(rows, np.int64)]
        return named


def _begins(ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """(C,) where each class begins in `by_class`."""
    return np.concatenate([[0], ends[:-1]])


def _sort_by_class(
    states: State, e: int, passed: NDArray[np.int64], aged: NDArray[np.int64]
) -> None:
    """Make `by_class` anew, with the cursors so many requests after the beginnings of classes."""
    n = int(states.glob[e, 0]["n_requests"])
    classes = states.req["cls"][e, :n]
    order = np.argsort(classes, kind="stable")
    states.by_class[e, :n] = order
    ends = np.cumsum(np.bincount(classes, minlength=len(passed)))
    begin = _begins(ends)
    states.tally["end"][e] = states.aging["end"][e] = ends
    states.tally["cursor"][e] = begin + passed
    cursor = begin[:, None] + aged
    states.aging["cursor"][e] = cursor
    first = np.append(order, n)[np.minimum(cursor, n)]
    states.aging["first_id"][e] = np.where(cursor < ends[:, None], first, n)


def _forget(states: State, e: int, spec: ClusterSpec, keep: NDArray[np.int64]) -> None:
    """Move the requests at places `keep` together, and everything that names a place along."""
    glob = states.glob[e, 0]
    n, k = int(glob["n_requests"]), len(keep)
    moved = np.full(n + 1, -1, np.int64)  # its end answers to "nobody", -1
    moved[keep] = np.arange(k)

    kept_before = np.zeros(n + 1, np.int64)
    kept_before[1:] = np.cumsum((moved[:n] >= 0)[states.by_class[e, :n]])
    begin = _begins(states.tally["end"][e])
    passed = kept_before[states.tally["cursor"][e]] - kept_before[begin]
    aged = kept_before[states.aging["cursor"][e]] - kept_before[begin][:, None]

    rows = states.req[e, keep]
    for name in _LINKS:
        rows[name] = moved[rows[name]]
    states.req[e, :k] = rows
    states.ids[e, :k] = states.ids[e, keep]
    if spec.regional:
        states.roam[e, :k] = states.roam[e, keep]
        under_way = int(glob["n_transit"])
        states.transit[e, 1, :under_way] = moved[states.transit[e, 1, :under_way]]
    states.lists[e, :, :2] = moved[states.lists[e, :, :2]]
    ending = states.lists[e, states.const["row_ending"][0] :, 2][: spec.n_instances]
    in_heap = states.inst["n_dec"][e] - ending
    decoding = np.arange(states.heap.shape[2]) < in_heap[:, None]
    ends = states.heap[e][decoding]
    states.heap[e][decoding] = (ends & ~_PLACE_BITS) | moved[ends & _PLACE_BITS]
    states.lease["last_first"][e] = moved[states.lease["last_first"][e]]
    states.queue["last_run"][e] = moved[states.queue["last_run"][e]]

    glob["n_requests"] = k
    glob["next_arrival"] = glob["arrival_cursor"] = np.searchsorted(keep, glob["next_arrival"])
    for name in ("n_finished", "finish_cursor", "n_first_tokens", "first_cursor"):
        glob[name] = 0  # who has finished is gone, and first tokens have been counted
    _sort_by_class(states, e, passed, aged)
