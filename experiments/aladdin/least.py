"""The least number of workers that keeps the SLOs, by a search with common random numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from experiments.least import least


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
        return least(lambda workers: self.at(workers) >= target, self.most, start)
