"""What is kept of the requests of a long episode, which come and go piece by piece."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.metrics import RequestColumns

_ROOM = 1 << 16


class StreamedColumns:
    """Columns that grow; memory is that of what has been put in (48 bytes a request)."""

    def __init__(self) -> None:
        self._columns: list[NDArray[Any]] = []
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def add(self, more: RequestColumns) -> None:
        """Put these behind the others."""
        end = self._n + len(more.outcome)
        if not self._columns:
            self._columns = [np.empty(_ROOM, column.dtype) for column in more]
        for k, column in enumerate(more):
            had = self._columns[k]
            if end > len(had):
                # Room that is not written to takes no memory, and there are few copies.
                grown = np.empty(2 * end, had.dtype)
                grown[: self._n] = had[: self._n]
                self._columns[k] = had = grown
            had[self._n : end] = column
        self._n = end

    def all(self) -> RequestColumns:
        """All of them so far, not copied."""
        columns: list[Any] = [column[: self._n] for column in self._columns]
        return RequestColumns(*columns)
