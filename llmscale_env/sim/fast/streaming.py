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
from llmscale_env.sim.fast.state.cache_records import Loose, packed, with_spans
from llmscale_env.sim.fast.state.layout import (
    EPISODE_FIELDS,
    PER_REQUEST,
    State,
    length,
    used_widths,
)
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
_Episode = dict[str, NDArray[Any]]
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
        passed = _passed(self._episode(e))
        glob["n_requests"] = n + more
        _sort_by_class(self._episode(e), *passed)

    def retire(self, e: int) -> Retired:
        check_streams(self.spec)
        windows.settle(int(self.handles[e]))
        states = self.states
        n = int(states.glob[e, 0]["n_requests"])
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
        retired = Retired(states.ids[e, gone], results)
        left, loose = self._only(e, keep)
        for name, array in left.items():
            getattr(states, name)[e][..., : array.shape[-1]] = array
        self._put_loose(e, loose)
        return retired

    def save_under_way(self, e: int) -> dict[str, NDArray[Any]]:
        check_streams(self.spec)
        windows.settle(int(self.handles[e]))
        states = self.states
        glob = states.glob[e, 0]
        n, never = int(glob["next_arrival"]), int(glob["next_arrival"]) < int(glob["n_requests"])
        left, loose = self._only(e, np.flatnonzero(~np.isin(states.req["state"][e, :n], _DONE)))
        mine = left["glob"][0]
        mine["last_arrival_ps"] = -1
        if never:
            mine["next_id"] = states.ids[e, n]
        caches = bool(states.const["caches"][0])
        if never or not caches:
            mine["next_name"] = states.blocks["name"][e, n] if caches else 0
        k = int(mine["n_requests"])
        for name in EPISODE_FIELDS:
            if name in PER_REQUEST:
                shape = (*getattr(states, name)[e].shape[:-1], length(self.spec, name, k))
                left.setdefault(name, np.zeros(shape, getattr(states, name).dtype))
            else:
                left.setdefault(name, getattr(states, name)[e].copy())
        for name, width in used_widths(left["inst"]).items():
            left[name] = left[name][:, :width]
        kept = packed(loose, int(mine["extent_top"]))
        return {"cluster": self.spec.digest, **left, **kept._asdict()}

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
        passed = _passed(self._episode(e))
        glob["n_requests"], glob["last_arrival_ps"] = n, -1
        _sort_by_class(self._episode(e), *passed)
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

    def _episode(self, e: int) -> _Episode:
        """The arrays of one episode."""
        return {name: getattr(self.states, name)[e] for name in EPISODE_FIELDS}

    def _only(self, e: int, keep: NDArray[np.int64]) -> tuple[_Episode, Loose]:
        """Episode `e` with the requests at places `keep` alone: arrays that change, as copies.

        Those by request are as long as there are requests, what else names a place is moved along.
        """
        one, k = self._episode(e), len(keep)
        n = int(one["glob"][0]["n_requests"])
        passed = _passed(one, keep)

        def moved(places: NDArray[Any]) -> NDArray[np.int64]:
            """Where requests at these places are then; -1 for nobody."""
            found = np.searchsorted(keep, places)
            there = np.append(keep, n)[found] == places
            return np.where(there, found, -1)

        left = {name: one[name][keep] for name in ("req", "ids")}
        changed = ("glob", "lists", "heap", "lease", "queue", "tally", "aging")
        left |= {name: one[name].copy() for name in changed}
        for name in _LINKS:
            left["req"][name] = moved(left["req"][name])
        if self.spec.regional:
            under_way = int(one["glob"][0]["n_transit"])
            left["roam"], left["transit"] = one["roam"][keep], one["transit"][:, :k].copy()
            left["transit"][1, :under_way] = moved(left["transit"][1, :under_way])
        left["lists"][:, :2] = moved(left["lists"][:, :2])
        ending = one["lists"][self.states.const["row_ending"][0] :, 2][: self.spec.n_instances]
        in_heap = one["inst"]["n_dec"] - ending
        decoding = np.arange(one["heap"].shape[1]) < in_heap[:, None]
        ends = one["heap"][decoding]
        left["heap"][decoding] = (ends & ~_PLACE_BITS) | moved(ends & _PLACE_BITS)
        left["lease"]["last_first"] = moved(left["lease"]["last_first"])
        left["queue"]["last_run"] = moved(left["queue"]["last_run"])

        glob = left["glob"][0]
        glob["n_requests"] = k
        glob["next_arrival"] = glob["arrival_cursor"] = np.searchsorted(keep, glob["next_arrival"])
        for name in ("n_finished", "finish_cursor", "n_first_tokens", "first_cursor"):
            glob[name] = 0  # who has finished is gone, and first tokens have been counted
        loose = self.loose[e]
        if self.states.const["caches"][0]:
            rows = one["blocks"][keep]
            counts = rows["n_spans"].astype(np.int64)
            first = np.concatenate([[0], np.cumsum(counts)])
            kept = np.repeat(rows["span"] - first[:-1], counts) + np.arange(first[-1])
            span = np.append(loose.span[kept], loose.span[:1])  # never empty
            rows["span"], left["blocks"] = first[:-1], rows
            glob["n_spans"], loose = first[-1], loose._replace(span=span)
        left["by_class"] = np.zeros(k, np.int64)
        _sort_by_class(left, *passed)
        return left, loose

    def _named(self, e: int, rows: NDArray[Any] | Sequence[int]) -> NDArray[np.int64]:
        """Ids of the requests at these places."""
        named: NDArray[np.int64] = self.states.ids[e][np.asarray(rows, np.int64)]
        return named


def _passed(
    one: _Episode, keep: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Requests (those at places `keep`) of each class before the cursors of `tally` (C,) and `aging`."""
    ends = one["tally"]["end"]
    begin = np.concatenate([[0], ends[:-1]])
    cursors = (one["tally"]["cursor"], one["aging"]["cursor"])
    if keep is None:
        return cursors[0] - begin, cursors[1] - begin[:, None]
    n = int(one["glob"][0]["n_requests"])
    by_class = np.append(one["by_class"][:n], n)
    classes = one["req"]["cls"][keep]
    found = []
    for cursor, end in zip(cursors, (ends, ends[:, None]), strict=True):
        # Places rise within a class: those before the cursor are those below its place.
        place = np.where(cursor < end, by_class[np.minimum(cursor, n)], n)
        mine = [np.searchsorted(keep[classes == c], place[c]) for c in range(len(ends))]
        found.append(np.array(mine, np.int64).reshape(cursor.shape))
    return found[0], found[1]


def _sort_by_class(one: _Episode, passed: NDArray[np.int64], aged: NDArray[np.int64]) -> None:
    """Make `by_class` anew, with the cursors so many requests after the beginnings of classes."""
    n = int(one["glob"][0]["n_requests"])
    classes = one["req"]["cls"][:n]
    order = np.argsort(classes, kind="stable")
    one["by_class"][:n] = order
    ends = np.cumsum(np.bincount(classes, minlength=len(passed)))
    begin = np.concatenate([[0], ends[:-1]])
    one["tally"]["end"] = one["aging"]["end"] = ends
    one["tally"]["cursor"] = begin + passed
    cursor = begin[:, None] + aged
    one["aging"]["cursor"] = cursor
    first = np.append(order, n)[np.minimum(cursor, n)]
    one["aging"]["first_id"] = np.where(cursor < ends[:, None], first, n)
