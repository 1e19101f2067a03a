"""The least number of workers that keeps the SLOs, by a search with common random numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Search:
    """Attainment by number of workers, each number tried once.

    Attributes:
        attains: share of requests that keep their SLOs with so many workers; the same requests for
            every number.
        most: workers that may be tried.
    """

    attains: Callable[[int], float]
    most: int

    def __post_init__(self) -> None:
        self.tried: dict[int, float] = {}

    def at(self, workers: int) -> float:
        """Attainment with so many workers."""
        if workers not in self.tried:
            self.tried[workers] = self.attains(workers)
        return self.tried[workers]

    def least(self, target: float, start: int) -> int | None:
        """The least number that reaches a target; None: not even the most does.

        Attainment is taken to rise with the number of workers. A number that is found reaches the
        target, and the one below it does not.

        Args:
            target: share of requests.
            start: a guess.
        """
        high = min(max(1, start), self.most)
        step = max(1, high // 4)
        low = 0
        while self.at(high) < target:
            if high == self.most:
                return None
            low, high = high, min(high + step, self.most)
            step *= 2
        if low == 0:
            low, step = high - 1, 1
            while low > 0 and self.at(low) >= target:
                high, low = low, max(0, low - step)
                step *= 2
        while high - low > 1:
            middle = (low + high) // 2
            if self.at(middle) >= target:
                high = middle
            else:
                low = middle
        return high
