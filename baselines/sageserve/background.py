"""The queue manager: when non-interactive requests leave their queue (section 6.3).

An endpoint signals its effective memory utilisation; below 60 % one request goes there, below 50 %
two. Requests older than 10 h go with priority 0, as interactive ones have; the others with 1.

The released code feeds the other way round, two between 50 and 60 % and one below 50 %: `RELEASED`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class PullRule:
    """How many requests a signal pulls.

    Attributes:
        high, low: utilisations below which something, and below which more, is pulled.
        between, below: requests at utilisations in [low, high), and below `low`.
        urgent_age_s: requests that are older have priority 0.

    Raises:
        ValueError: a value out of range.
    """

    high: float = 0.6
    low: float = 0.5
    between: int = 1
    below: int = 2
    urgent_age_s: float = 36_000.0

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high:
            raise ValueError(f"low = {self.low}, high = {self.high}: must be 0 <= low <= high")
        if self.between < 0 or self.below < 0:
            raise ValueError(f"between = {self.between}, below = {self.below}: must be at least 0")
        if not self.urgent_age_s >= 0:
            raise ValueError(f"urgent_age_s = {self.urgent_age_s}: must be at least 0")

    def pulls(self, utilisation: float) -> int:
        """Requests that a signal of this utilisation pulls."""
        if utilisation < self.low:
            return self.below
        return self.between if utilisation < self.high else 0

    def priority(self, age_s: float) -> int:
        """0 for requests older than `urgent_age_s`, else 1."""
        return 0 if age_s > self.urgent_age_s else 1


RELEASED = PullRule(between=2, below=1)
"""As in the released code."""


class Pulled(NamedTuple):
    """A request that leaves the queue: its id, and the priority it has from now on."""

    request: int
    priority: int


class QueueManager:
    """Non-interactive requests that wait, the oldest first.

    Args:
        rule: see `PullRule`.
        own_region_only: an endpoint pulls requests of its own region's clients only, as section 6.2 has
            it ("the queue for that region and model"); False (section 6.3): of its LLM from any.
    """

    def __init__(self, rule: PullRule | None = None, *, own_region_only: bool = False) -> None:
        self.rule = rule or PullRule()
        self.own_region_only = own_region_only
        self._queues: dict[tuple[int, int], deque[tuple[float, int]]] = {}

    def _key(self, llm: int, region: int) -> tuple[int, int]:
        return (llm, region if self.own_region_only else -1)

    def submit(self, request: int, llm: int, region: int, now_s: float) -> None:
        """A request arrives (arrivals come in order of time).

        Raises:
            ValueError: it is older than the last one of its queue.
        """
        queue = self._queues.setdefault(self._key(llm, region), deque())
        if queue and now_s < queue[-1][0]:
            raise ValueError(f"now_s = {now_s}: before the last arrival at {queue[-1][0]}")
        queue.append((now_s, request))

    def waiting(self, llm: int, region: int) -> int:
        """Requests that a signal of this endpoint could pull."""
        return len(self._queues.get(self._key(llm, region), ()))

    def signal(self, llm: int, region: int, utilisation: float, now_s: float) -> list[Pulled]:
        """An endpoint says how full it is; what is sent to it."""
        queue = self._queues.get(self._key(llm, region))
        sent: list[Pulled] = []
        for _ in range(self.rule.pulls(utilisation)):
            if not queue:
                break
            arrived_s, request = queue.popleft()
            sent.append(Pulled(request, self.rule.priority(now_s - arrived_s)))
        return sent
