"""Mean outputs by input from a log of requests, without what is to be predicted.

A mean over the bin that a request lies in knows something of the request itself: with 64 rows in 64
bins it is the request. Leaving the request out is no better with few bins: the mean of the others falls
where its own output rises, so it tells it backwards. Here the log is cut into halves, and a request is
predicted from the half that does not hold it. The halves are drawn by the inputs alone (of each two
neighbours in their order one by a coin with a fixed seed), so they are alike, and the same each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_BINS = 64
"""Bins of the input in a long log, as many as the shipped length tables have."""

ROWS_PER_BIN = 100
"""A bin holds at least so many rows, half of them in each half: the error of its mean is then a seventh
of the outputs' standard deviation."""


@dataclass(frozen=True)
class LogMeans:
    """Rows of a log by bin of the input and by half.

    Attributes:
        starts: (bins,) least input of each bin, ascending.
        half: (n,) 0 or 1, the half that a row lies in.
        inputs: (n,) input tokens.
    """

    starts: NDArray[np.int64]
    half: NDArray[np.int8]
    inputs: NDArray[np.int64]

    @classmethod
    def of(cls, input_tokens: NDArray[Any]) -> LogMeans:
        """Bins of about equally many rows; rows with the same input share one.

        Args:
            input_tokens: (n,) of each row, at least one row.
        """
        inputs = np.asarray(input_tokens, dtype=np.int64)
        n = len(inputs)
        order = np.argsort(inputs, kind="stable")
        coins = np.random.Generator(np.random.PCG64(0)).integers(0, 2, (n + 1) // 2)
        half = np.empty(n, dtype=np.int8)
        half[order] = (np.arange(n) + np.repeat(coins, 2)[:n]) % 2
        rows = inputs[order]
        first = np.flatnonzero(np.diff(rows, prepend=rows[0] - 1))
        # Two more, for neighbours of which a bin holds only one.
        size = max(ROWS_PER_BIN + 2, -(-n // MOST_BINS))
        at = [0]
        while n - at[-1] >= 2 * size:
            k = np.searchsorted(first, at[-1] + size)
            if k == len(first) or n - first[k] < size:
                break
            at.append(int(first[k]))
        return cls(rows[at], half, inputs)

    def predict(
        self,
        rows: NDArray[np.int64],
        output_tokens: NDArray[Any],
        max_input_tokens: int,
        max_output_tokens: int,
    ) -> NDArray[np.float64]:
        """(m,) mean output of the other half's rows whose input lies in the same bin.

        A log of one row has no other half: there it is the row's own output, which is all there is.

        Args:
            rows: (m,) which rows of the log are asked for.
            output_tokens: (n,) of all rows of the log.
            max_input_tokens, max_output_tokens: what longer ones are cut to.
        """
        bins = len(self.starts)
        seen = np.minimum(self.inputs, max_input_tokens)
        group = 2 * self._bin(seen) + self.half
        # Sums of whole numbers are exact in whatever order they are added.
        total = np.bincount(group, np.minimum(output_tokens, max_output_tokens), 2 * bins)
        count = np.bincount(group, minlength=2 * bins)
        other = group[rows] ^ 1 if len(self.inputs) > 1 else group[rows]
        return total[other] / count[other]

    def _bin(self, inputs: NDArray[np.int64]) -> NDArray[np.intp]:
        return np.maximum(np.searchsorted(self.starts, inputs, side="right") - 1, 0)
