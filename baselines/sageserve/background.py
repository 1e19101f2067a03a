"""The queue manager: when non-interactive requests leave their queue (section 6.3).

An endpoint signals its effective memory utilisation; below 60 % one request goes there, below 50 %
two. Requests that are 10 h old go with priority 0, as interactive ones have; the others with 1.

The queue itself is the engine's (docs/engine.md, section 17), which a test holds against this rule.

The released code feeds the other way round, two between 50 and 60 % and one below 50 %: `RELEASED`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PullRule:
    """How many requests a signal pulls.

    Attributes:
        high, low: utilisations below which something, and below which more, is pulled.
        between, below: requests at utilisations in [low, high), and below `low`.
        urgent_age_s: age from which on a request has priority 0.

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
        """0 for requests that are `urgent_age_s` old, else 1."""
        return 0 if age_s >= self.urgent_age_s else 1


RELEASED = PullRule(between=2, below=1)
"""As in the released code."""
