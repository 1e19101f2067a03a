"""BlitzScale's base fleet: "the average number of instances required over the long term" (section 1).

The trigger adds instances to the base when a burst comes, and never stops below it. The paper says neither
how long the long term is nor how the average is known. Here it is learnt online: every look says how many
instances the load asked for (`trigger.instances_for` with the upper bound, what section 5.3 allocates), and
the base is the average over the looks so far, rounded up. It is causal: nothing after the look counts, and
what would follow from other decisions does not either.

Ours: before anything was seen the base is the fleet that the scenario starts with, which is what its operator
expects. That fleet counts like `start_s` seconds of looks, so that it is forgotten as the average settles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class BaseFleet:
    """The long-term average of instances required, of one phase.

    Attributes:
        start: instances when the episode begins.
        most: instances that there can be; a look that asks for more counts as so many.
        start_s: seconds of looks that `start` counts like.
        busy: only looks at which the load asked for an instance count.
    """

    start: int
    most: int
    start_s: float
    busy: bool = False
    _seconds: float = field(default=0.0, repr=False)
    _instance_s: float = field(default=0.0, repr=False)

    def __post_init__(self) -> None:
        self._seconds, self._instance_s = self.start_s, self.start_s * min(self.start, self.most)

    def look(self, length_s: float, required: int) -> int:
        """The base from now on; to be called once per decision.

        Args:
            length_s: since the last look, for which `required` counts.
            required: instances that the load asks for.
        """
        if required > 0 or not self.busy:
            self._seconds += length_s
            self._instance_s += length_s * min(required, self.most)
        if self._seconds <= 0:
            return max(1, min(self.start, self.most))
        return max(1, math.ceil(self._instance_s / self._seconds - 1e-6))
