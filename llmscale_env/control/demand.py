"""What clients asked for, by LLM, region and class: the load that forecasts are made from.

Where requests come from says nothing of where they are served, so this does not hang on the policy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.picoseconds import ps
from llmscale_env.workload.days import PastRequests
from llmscale_env.workload.requests import PS_PER_S, RequestTable

WHOLE = 1e-9
"""A time that is so little (relatively) off a whole number of bins is one."""

_Piece = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]


@dataclass(frozen=True)
class Demand:
    """Bins that have ended.

    Attributes:
        tokens: (k, M, R, C) input and predicted output tokens of the requests that came, by bin, LLM,
            region of the client and class.
        bin_s: width of a bin.
        start_s: start of the first one; negative: before the episode.
    """

    tokens: NDArray[np.int64]
    bin_s: float
    start_s: float

    @property
    def tokens_per_s(self) -> NDArray[np.float64]:
        """The same per second."""
        return self.tokens / self.bin_s


class DemandRecord:
    """All that came and will come in an episode; `until` tells what may be known at a time.

    Args:
        requests: of the episode, with its history; more may be `add`ed as they are drawn.
        history_s: length of the history.

    Attributes:
        known: what has been computed from it already, by whoever did.
    """

    def __init__(self, requests: RequestTable, history_s: float = 0.0) -> None:
        self.history_s = history_s
        names = (requests.llm_names, requests.region_names, requests.class_names)
        self._sizes = tuple(len(each) for each in names)
        # Of each piece: times from the start of the history, cells of (LLM, region, class), tokens.
        self._pieces: list[_Piece] = []
        self._binned: dict[float, NDArray[np.int64]] = {}
        self.known: dict[Any, Any] = {}
        self._end_ps = ps(history_s)
        if requests.history is not None:
            self._keep(0, requests.history)
        self._past = requests.past
        self.add(requests)

    def add(self, requests: RequestTable) -> None:
        """A later piece of the episode; its times are those of the episode."""
        piece = self._keep(ps(self.history_s), requests)
        if len(requests):
            self._end_ps = max(self._end_ps, int(piece[0][-1]))
        for bin_s, total in self._binned.items():
            more = np.zeros((self._n_bins(bin_s) - len(total), *self._sizes), np.int64)
            self._binned[bin_s] = np.concatenate([total, more]) + self._counted(piece, bin_s)
        self.known.clear()

    def _keep(self, shift_ps: int, table: RequestTable) -> _Piece:
        _, n_regions, n_classes = self._sizes
        cell = table.llm.astype(np.int32) * n_regions + table.region
        cell = cell * n_classes + table.slo_class
        tokens = table.input_tokens.astype(np.int32) + table.predicted_output_tokens
        piece = (table.arrival_ps + shift_ps, cell, tokens)
        self._pieces.append(piece)
        return piece

    def all(self, bin_s: float) -> Demand:
        """Everything, also what is still to come: for what is marked as clairvoyant.

        Raises:
            ValueError: the history is no whole number of such bins.
        """
        return Demand(self._bins(bin_s).copy(), bin_s, -self.history_s)

    def until(self, now_s: float, bin_s: float) -> Demand:
        """Every bin that has ended by `now_s`, those without requests included.

        Raises:
            ValueError: the history is no whole number of such bins.
        """
        bins = self._bins(bin_s)
        ended = int((now_s + self.history_s) / bin_s * (1 + WHOLE) + WHOLE)
        seen = np.zeros((ended, *self._sizes), np.int64)
        seen[: len(bins)] = bins[:ended]
        return Demand(seen, bin_s, -self.history_s)

    def _bins(self, bin_s: float) -> NDArray[np.int64]:
        if bin_s not in self._binned:
            if not bin_s > 0:
                raise ValueError(f"bin_s = {bin_s}: must be positive")
            before = self.history_s / bin_s
            if abs(before - round(before)) > WHOLE * max(before, 1):
                raise ValueError(
                    f"bin_s = {bin_s}: the history of {self.history_s:g} s must be a whole number "
                    "of bins"
                )
            total = np.zeros((self._n_bins(bin_s), *self._sizes), np.int64)
            for piece in self._pieces:
                total += self._counted(piece, bin_s)
            if self._past is not None:
                total[: round(before)] += self._counted_past(self._past, bin_s)
            self._binned[bin_s] = total
        return self._binned[bin_s]

    def _counted_past(self, past: PastRequests, bin_s: float) -> NDArray[np.int64]:
        """(k, M, R, C) tokens of what came before, bin after bin."""
        each = bin_s / past.bin_s
        if abs(each - round(each)) > WHOLE * each:
            raise ValueError(
                f"bin_s = {bin_s}: what came before is counted by {past.bin_s} s; must be a whole number "
                "of these"
            )
        tokens = past.input_tokens + past.predicted_tokens
        return tokens.reshape(-1, round(each), *self._sizes).sum(axis=1)

    def _n_bins(self, bin_s: float) -> int:
        """Bins until the last arrival."""
        return self._end_ps // round(bin_s * PS_PER_S) + 1

    def _counted(self, piece: _Piece, bin_s: float) -> NDArray[np.int64]:
        """(k, M, R, C) tokens of a piece, bin after bin."""
        arrival_ps, cell, tokens = piece
        n_cells = math.prod(self._sizes)
        place = arrival_ps // round(bin_s * PS_PER_S) * n_cells + cell
        # Sums of whole numbers below 2**53: exact in the floats that `bincount` adds.
        counted = np.bincount(place, tokens, self._n_bins(bin_s) * n_cells)
        return counted.astype(np.int64).reshape(-1, *self._sizes)
