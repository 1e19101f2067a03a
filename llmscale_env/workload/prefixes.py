"""Which requests of a table begin with the same tokens: what a prefix cache lives on.

A *sequence* is the tokens of one request, its prompt and then its output, or a prompt that several requests
share and none owns. Every sequence has a name, a number: that of a request is 0 or above, that of a shared
prompt -2 or below. `spans_of` turns what is known of each request (it begins like that sequence, for so many
tokens) into *spans*: whose tokens its first ones are. Chains are followed there, once. Afterwards names are
only compared, so a table can be cut into pieces, and requests can be forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmscale_env.workload.whole import whole_numbers

NO_PREFIX = -1
"""In `prefix_of`: the request begins like no other sequence."""

_COLUMNS = (("name", np.int64), ("first", np.int64), ("owner", np.int64), ("end", np.int32))


@dataclass(frozen=True)
class Prefixes:
    """Of n requests the names, and whose tokens their first ones are.

    Spans `first[r]` to `first[r + 1] - 1` are those of request `r`, from its first token on: tokens below
    `end` that no earlier span has are the same as at the same places of sequence `owner`. All behind the
    last span are its own. So two requests have the same tokens up to a place exactly if the same sequences
    own them there.

    Attributes:
        name: (n,) int64, of the requests' own sequences, rising, at least 0, below 2**62.
        first: (n + 1,) int64.
        owner: (spans,) int64, a name below the request's own one; of a shared prompt -2 or below.
        end: (spans,) int32, at least 1, rising within a request.

    Raises:
        ValueError: arrays that do not fit each other, names or ends that do not rise, an owner that is none.
    """

    name: NDArray[np.int64]
    first: NDArray[np.int64]
    owner: NDArray[np.int64]
    end: NDArray[np.int32]

    def __post_init__(self) -> None:
        for column, dtype in _COLUMNS:
            array = whole_numbers(column, getattr(self, column), dtype)
            array.setflags(write=False)
            object.__setattr__(self, column, array)
        n, spans = len(self.name), len(self.owner)
        if self.first.shape != (n + 1,) or self.end.shape != (spans,):
            raise ValueError(
                f"first, end: of shapes {self.first.shape} and {self.end.shape}, must be ({n + 1},) and "
                f"({spans},)"
            )
        if self.first[0] != 0 or self.first[-1] != spans or (np.diff(self.first) < 0).any():
            raise ValueError(f"first: must rise from 0 to {spans}")
        if n and (self.name[0] < 0 or self.name[-1] >= 2**62 or (np.diff(self.name) <= 0).any()):
            raise ValueError("name: must be at least 0, below 2**62, and rise")
        of = np.repeat(np.arange(n), np.diff(self.first))
        self._refuse("owner", self.owner == NO_PREFIX, "must be a name, or -2 or below")
        self._refuse("owner", self.owner >= self.name[of], "must be below the request's own name")
        before = np.where(np.append(-1, of)[:-1] == of, np.append(0, self.end)[:-1], 0)
        self._refuse("end", self.end <= before, "must be at least 1, and rise within a request")

    def _refuse(self, column: str, bad: NDArray[np.bool_], rule: str) -> None:
        if bad.any():
            at = int(np.argmax(bad))
            raise ValueError(f"prefixes.{column}[{at}] = {getattr(self, column)[at]}: {rule}")

    def check_inputs(self, input_tokens: NDArray[Any]) -> None:
        """Refuse spans that go on behind the prompts of the requests.

        Raises:
            ValueError: names the span.
        """
        most = np.repeat(input_tokens, np.diff(self.first))
        self._refuse("end", self.end > most, "must not be behind the prompt")

    def __len__(self) -> int:
        return len(self.name)

    def take(self, rows: NDArray[np.intp]) -> Prefixes:
        """Those of the requests in these rows (ascending)."""
        first, spans = _spans_at(self.first, rows)
        return Prefixes(self.name[rows], first, self.owner[spans], self.end[spans])

    def followed_by(self, later: Prefixes) -> Prefixes:
        """These and, behind them, those of later requests, whose names go on from these."""
        return Prefixes(
            np.concatenate([self.name, later.name]),
            np.concatenate([self.first, self.first[-1] + later.first[1:]]),
            np.concatenate([self.owner, later.owner]),
            np.concatenate([self.end, later.end]),
        )

    @property
    def shared_tokens(self) -> NDArray[np.int64]:
        """(n,) tokens that each request begins with and that are those of an earlier one of these.

        A cache without limits that every prompt and answer is in once its request has come would find them.
        """
        found = np.zeros(len(self), np.int64)
        requests: set[int] = set()
        longest: dict[int, int] = {}
        for row, name in enumerate(self.name.tolist()):
            goes_on = True
            for owner, end in self.spans(row):
                known = end if owner in requests else min(end, longest.get(owner, 0))
                if goes_on:
                    found[row] = max(known, found[row])
                goes_on &= known == end
                longest[owner] = max(end, longest.get(owner, 0))
            requests.add(name)
        return found

    def spans(self, row: int) -> list[tuple[int, int]]:
        """(owner, end) of each span of a request."""
        mine = slice(int(self.first[row]), int(self.first[row + 1]))
        return list(zip(self.owner[mine].tolist(), self.end[mine].tolist(), strict=True))


def _spans_at(
    first: NDArray[np.int64], rows: NDArray[np.intp]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`first` of these rows in any order, and the places of their spans."""
    counts = np.diff(first)[rows]
    taken = np.concatenate([[0], np.cumsum(counts)])
    return taken, np.repeat(first[rows] - taken[:-1], counts) + np.arange(taken[-1])


def spans_of(
    prefix_of: ArrayLike,
    prefix_tokens: ArrayLike,
    input_tokens: NDArray[Any],
    output_tokens: NDArray[Any],
) -> Prefixes:
    """The prefixes of requests that are named by their rows.

    Args:
        prefix_of: (n,) the sequence that each request begins like: the row of an earlier request, a number
            from -2 down for a shared prompt that no request owns, or `NO_PREFIX`.
        prefix_tokens: (n,) for how many tokens it does; 0 without a prefix.
        input_tokens, output_tokens: (n,) of the requests.

    Raises:
        ValueError: names the column, the row, the value and what is allowed.
    """
    n = len(input_tokens)
    columns = {"prefix_of": np.asarray(prefix_of), "prefix_tokens": np.asarray(prefix_tokens)}
    for name, column in columns.items():
        if column.shape != (n,) or (n and column.dtype.kind not in "iu"):
            raise ValueError(
                f"{name}: must be {n} whole numbers, got {column.dtype} {column.shape}"
            )
    spans: list[list[tuple[int, int]]] = []
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    for row, (owner, tokens) in enumerate(rows):
        if owner >= row:
            raise ValueError(
                f"prefix_of[{row}] = {owner}: must be an earlier row, -1 (none) or a shared prompt's "
                "number, -2 or below"
            )
        most = 0 if owner == NO_PREFIX else int(input_tokens[row])
        if owner >= 0:
            most = min(most, int(input_tokens[owner]) + int(output_tokens[owner]))
        if not 0 <= tokens <= most:
            raise ValueError(f"prefix_tokens[{row}] = {tokens}: must be in 0..{most}")
        mine: list[tuple[int, int]] = []
        if tokens > 0:
            for of, end in spans[owner] if owner >= 0 else []:
                mine.append((of, min(end, tokens)))
                if end >= tokens:
                    break
            else:
                mine.append((owner, tokens))
        spans.append(mine)
    every = [span for mine in spans for span in mine]
    owners, ends = zip(*every, strict=True) if every else ((), ())
    return Prefixes(
        np.arange(n),
        np.cumsum([0, *map(len, spans)]),
        np.array(owners, np.int64),
        np.array(ends, np.int32),
    )


def shared_blocks(
    ids: NDArray[np.uint64], first: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which earlier prompt has most leading blocks of each prompt, by the hashes of their blocks.

    The lists are put into a trie, all of them one level deeper at a time: two prompts are at the same node
    if all their ids up to there are the same. A node belongs to the first prompt that comes to it.

    Args:
        ids: the prompts' lists of hashes, one behind the other.
        first: (n + 1,) `ids[first[r]:first[r + 1]]` are those of prompt `r`.

    Returns:
        (n,) the prompt that made the deepest node which was there already, or `NO_PREFIX`; (n,) its depth.
    """
    n = len(first) - 1
    length = np.diff(first)
    owner, depth = np.full(n, NO_PREFIX, np.int64), np.zeros(n, np.int64)
    rows, node = np.arange(n), np.zeros(n, np.int64)
    for level in range(int(length.max(initial=0))):
        longer = length[rows] > level
        rows, node = rows[longer], node[longer]
        known, which = np.unique(ids[first[rows] + level], return_inverse=True)
        _, made_by, node, visits = np.unique(
            node * len(known) + which, return_index=True, return_inverse=True, return_counts=True
        )
        maker = rows[made_by][node]
        there = maker < rows
        owner[rows[there]], depth[rows[there]] = maker[there], level + 1
        shared = visits[node] > 1
        rows, node = rows[shared], node[shared]
        if not len(rows):
            break
    return owner, depth


def previous_of(conversation: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) the row before of the same conversation, `NO_PREFIX` for the first; a negative number is none."""
    order = np.argsort(conversation, kind="stable")
    follows = conversation[order[1:]] == conversation[order[:-1]]
    follows &= conversation[order[1:]] >= 0
    before = np.full(len(conversation), NO_PREFIX, np.int64)
    before[order[1:][follows]] = order[:-1][follows]
    return before


def replayed(
    prefixes: Prefixes,
    rows: NDArray[np.int64],
    copy: NDArray[np.int64],
    input_tokens: NDArray[np.int32],
) -> Prefixes:
    """The prefixes of requests that are rows of a trace, some left out, some more than once.

    Copy `c` of a row begins like copy `c` of another row, and like no other copy: a trace whose rows are
    repeated is served to more users with as much in common, and not to the same ones again. What is shared
    with a row that is left out is still shared with the others that begin like it.

    Args:
        prefixes: of all rows, whose owners are rows.
        rows: (n,) rows in order of arrival.
        copy: (n,) which copy of its row each is, at least 0; a row and a copy are there once.
        input_tokens: (n,) prompts, which may be cut.

    Returns:
        Names are places in `rows`; owners that are not there, or that come later, have names from -2 down.
    """
    n = len(rows)
    first, spans = _spans_at(prefixes.first, rows)
    of = np.repeat(np.arange(n), np.diff(first))
    # A number for each copy of each row, or of a row that had been left out of the trace before.
    size = 1 + max(int(prefixes.name.max(initial=-1)), int(prefixes.owner.max(initial=-1)))
    mine = copy * size + prefixes.name[rows]
    owned = copy[of] * size + prefixes.owner[spans]
    order = np.argsort(mine)
    at = order[np.minimum(np.searchsorted(mine, owned, sorter=order), n - 1)] if n else of
    earlier = (mine[at] == owned) & (at < of)
    # If one request comes before its owner, all call the sequence by a name of its own, the owner included.
    without = np.unique(owned[~earlier])
    place = np.searchsorted(without, owned)
    outside = np.append(without, -1)[place] == owned
    owner = np.where(outside, -2 - place, at)
    end = np.minimum(prefixes.end[spans], input_tokens[of])
    again = np.searchsorted(without, mine)
    late = np.flatnonzero(np.append(without, -1)[again] == mine)
    of = np.concatenate([of, late])
    owner = np.concatenate([owner, -2 - again[late]])
    end = np.concatenate([end, input_tokens[late]])
    by_row = np.argsort(of, kind="stable")
    of, owner, end = of[by_row], owner[by_row], end[by_row]
    begin = np.where(np.append(False, of[1:] == of[:-1]), np.append(0, end[:-1]), 0)
    used = end > begin  # a span behind the end of a prompt that was cut has nothing left
    counts = np.bincount(of[used], minlength=n)
    return Prefixes(np.arange(n), np.append(0, np.cumsum(counts)), owner[used], end[used])


class NamesOfAll:
    """Names for the requests of several sources, as they come into one table piece by piece.

    Args:
        sizes: requests of each source, whose own names are 0 and up in order of arrival; 0 for a source whose
            requests begin like shared prompts only.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._given = [np.full(size, NO_PREFIX, np.int64) for size in sizes]
        self._next = 0

    def together(
        self, parts: Sequence[tuple[int, int, Prefixes | None]], order: NDArray[np.intp]
    ) -> Prefixes:
        """The prefixes of the next piece of the table.

        Args:
            parts: number of the source, number of requests and their prefixes, of each part.
            order: (n,) places of the piece's requests among those of all parts, one part behind the other.
        """
        n = len(order)
        names = np.empty(n, np.int64)
        names[order] = self._next + np.arange(n)
        counts, owners, ends = [], [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
        begin = 0
        for source, size, prefixes in parts:
            mine = names[begin : begin + size]
            begin += size
            if prefixes is None:
                counts.append(np.zeros(size, np.int64))
                continue
            given = self._given[source]
            if len(given):
                given[prefixes.name] = mine
            owner = prefixes.owner.copy()
            requests = owner >= 0
            owner[requests] = given[owner[requests]]
            prompts = ~requests  # numbers from -2 down, of which each source gets its own
            owner[prompts] = -2 - ((-2 - owner[prompts]) * len(self._given) + source)
            counts.append(np.diff(prefixes.first))
            owners.append(owner)
            ends.append(prefixes.end)
        of_all = np.append(0, np.cumsum(np.concatenate([np.zeros(0, np.int64), *counts])))
        first, spans = _spans_at(of_all, order)
        self._next += n
        return Prefixes(
            self._next - n + np.arange(n),
            first,
            np.concatenate(owners)[spans],
            np.concatenate(ends)[spans],
        )
