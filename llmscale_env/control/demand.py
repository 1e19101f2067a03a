"""What clients asked for, by LLM, region and class: the load that forecasts are made from.

Where requests come from says nothing of where they are served, so this does not hang on the policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.picoseconds import ps
from llmscale_env.workload.requests import PS_PER_S, RequestTable

WHOLE = 1e-9
"""A time that is so little (relatively) off a whole number of bins is one."""


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
        self._tables: list[tuple[int, RequestTable]] = []
        self._binned: dict[float, NDArray[np.int64]] = {}
        self.known: dict[Any, Any] = {}
        self._end_ps = ps(history_s)
        if requests.history is not None:
            self._tables.append((0, requests.history))
        self.add(requests)

    def add(self, requests: RequestTable) -> None:
        """A later piece of the episode; its times are those of the episode."""
        self._tables.append((ps(self.history_s), requests))
        if len(requests):
            self._end_ps = max(self._end_ps, ps(self.history_s) + int(requests.arrival_ps[-1]))
        self._binned.clear()
        self.known.clear()

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
        if bin_s in self._binned:
            return self._binned[bin_s]
        if not bin_s > 0:
            raise ValueError(f"bin_s = {bin_s}: must be positive")
        before = self.history_s / bin_s
        if abs(before - round(before)) > WHOLE * max(before, 1):
            raise ValueError(
                f"bin_s = {bin_s}: the history of {self.history_s:g} s must be a whole number of bins"
            )
        width = round(bin_s * PS_PER_S)
        m, r, c = self._sizes
        n_bins = self._end_ps // width + 1
        total = np.zeros(n_bins * m * r * c)
        for shift_ps, table in self._tables:
            place = (table.arrival_ps + shift_ps) // width
            for column, size in ((table.llm, m), (table.region, r), (table.slo_class, c)):
                place = place * size + column
            tokens = table.input_tokens.astype(np.float64) + table.predicted_output_tokens
            total += np.bincount(place, tokens, len(total))
        found = total.astype(np.int64).reshape(n_bins, m, r, c)
        self._binned[bin_s] = found
        return found
