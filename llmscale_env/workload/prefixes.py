"""Which requests of a table begin with the same tokens: what a prefix cache lives on.

A *sequence* is the tokens of one request, its prompt and then its output, or a prompt that several requests
share and none owns. Every sequence has a name, a number: that of a request is 0 or above, that of a shared
prompt -2 or below. `spans_of` turns what is known of each request (it begins like that sequence, for so many
tokens) into *spans*: whose tokens its first ones are. Chains are followed there, once. Afterwards names are
only compared, so a table can be cut into pieces, and requests can be forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
        name: (n,) int64, of the requests' own sequences, rising, at least 0.
        first: (n + 1,) int64.
        owner: (spans,) int64.
        end: (spans,) int32, rising within a request.

    Raises:
        ValueError: arrays that do not fit each other, or names that do not rise.
    """

    name: NDArray[np.int64]
    first: NDArray[np.int64]
    owner: NDArray[np.int64]
    end: NDArray[np.int32]

    def __post_init__(self) -> None:
        for column, dtype in _COLUMNS:
            array = np.ascontiguousarray(getattr(self, column), dtype)
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
        if n and (self.name[0] < 0 or (np.diff(self.name) <= 0).any()):
            raise ValueError("name: must be at least 0, and rise")

    def __len__(self) -> int:
        return len(self.name)

    def take(self, rows: NDArray[np.intp]) -> Prefixes:
        """Those of the requests in these rows (ascending)."""
        counts = np.diff(self.first)[rows]
        first = np.concatenate([[0], np.cumsum(counts)])
        spans = np.repeat(self.first[rows] - first[:-1], counts) + np.arange(first[-1])
        return Prefixes(self.name[rows], first, self.owner[spans], self.end[spans])

    def followed_by(self, later: Prefixes) -> Prefixes:
        """These and, behind them, those of later requests, whose names go on from these."""
        return Prefixes(
            np.concatenate([self.name, later.name]),
            np.concatenate([self.first, self.first[-1] + later.first[1:]]),
            np.concatenate([self.owner, later.owner]),
            np.concatenate([self.end, later.end]),
        )

    def spans(self, row: int) -> list[tuple[int, int]]:
        """(owner, end) of each span of a request."""
        mine = slice(int(self.first[row]), int(self.first[row + 1]))
        return list(zip(self.owner[mine].tolist(), self.end[mine].tolist(), strict=True))


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
