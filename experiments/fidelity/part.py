"""One table of the fidelity report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Part:
    """A table, and the column that is held to a tolerance.

    Attributes:
        title: what is compared.
        head, rows: the table.
        judged: name of the judged column, in percent; "" if none is.
        tolerance_percent: most that a value of it may be away from 0.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    judged: str = ""
    tolerance_percent: float = 0.0

    @property
    def worst_percent(self) -> float:
        """Largest absolute value of the judged column; 0 if there is none."""
        if not self.judged:
            return 0.0
        column = list(self.head).index(self.judged)
        return max(abs(float(row[column])) for row in self.rows)

    @property
    def within(self) -> bool:
        """Whether the judged column keeps the tolerance."""
        return self.worst_percent <= self.tolerance_percent
