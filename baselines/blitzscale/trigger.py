"""When BlitzScale scales, and how far (section 5.3): the paper's rule and the released code's.

Both compare a load with what one instance can do, profiled beforehand: for prefill tokens per second,
for decode tokens of KV cache in use.

- *paper*: if the average load per instance is above an upper bound, there shall be as many instances as
  meet the demand; if it has been below a lower bound for two seconds, some stop.
- *code*: the load asks for at least `ceil(load / (tight * capacity))` instances and at most
  `ceil(load / (loose * capacity))`. With fewer it goes to the middle of the two at once; with more it
  stops one at a time, each after `ttl_s`.

Ours, where neither says more: the bounds of the paper's rule are those shares of the profile that the
code has (0.7 and 0.5 of prefill speed, 0.95 and 0.75 of KV memory); a fall goes to what meets the largest
load of the window; instances that load count as instances, or every look would order them again; `divided`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from llmscale_env.cluster.iteration_model import IterationTables, IterationTimeModel

RELEASED_PREFILL_TOKENS_PER_S = {
    "llama-2-7b": 13_000.0,
    "llama-3.1-8b": 15_000.0,
    "qwen-2-72b": 5_300.0,
}
"""Prefill speeds that the released code scales by; the last one's with 4 GPUs."""

_SLACK_S = 1e-9
"""Looks at 2.1 and 4.1 are two seconds apart."""


@dataclass(frozen=True)
class Bounds:
    """Shares of an instance's capacity.

    Attributes:
        tight: above this share there are too few instances.
        loose: below this one there are too many.
    """

    tight: float
    loose: float

    def __post_init__(self) -> None:
        if not 0 < self.loose < self.tight:
            raise ValueError(
                f"tight = {self.tight}, loose = {self.loose}: must be positive, loose the smaller one"
            )


PREFILL = Bounds(0.7, 0.5)
"""The released code's, of prefill tokens per second."""

DECODE = Bounds(0.95, 0.75)
"""The released code's, of KV blocks."""


def prefill_tokens_per_s(
    model: IterationTimeModel | IterationTables, batch_tokens: int = 2000
) -> float:
    """Tokens per second of an instance that does nothing but prefill batches of so many tokens.

    Args:
        model: iteration times.
        batch_tokens: section 5.2 calls 2000 a moderate batch.
    """
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens = {batch_tokens}: must be at least 1")
    return batch_tokens / model.prefill_s(batch_tokens)


def instances_for(load: float, capacity: float, share: float) -> int:
    """The fewest instances of which each has at most `share` of its capacity to do."""
    return max(0, math.ceil(load / (share * capacity) - 1e-9))


def divided(
    wanted: tuple[int, int], gpus: tuple[int, int], total: int, least: tuple[int, int]
) -> tuple[int, int]:
    """Instances of two kinds: what is wanted, or where that is more than there is, a share by want (ours).

    Shares are whole instances by largest remainder, the first kind before the second. Nobody counts as
    wanting more than all GPUs, or a queue of minutes would take them all.

    Args:
        wanted: instances of each kind.
        gpus: of an instance of each kind.
        total: GPUs that there are.
        least: instances of each kind that stay in any case.

    Raises:
        ValueError: there are no GPUs for those that stay.
    """
    if least[0] * gpus[0] + least[1] * gpus[1] > total:
        raise ValueError(f"least = {least}: must take at most {total} GPUs, of {gpus} each")
    if wanted[0] * gpus[0] + wanted[1] * gpus[1] <= total:
        return wanted
    asked = [min(want * size, total) for want, size in zip(wanted, gpus, strict=True)]
    shares = [total * part / sum(asked) / size for part, size in zip(asked, gpus, strict=True)]
    found = [0, 0]
    for k in (0, 1):
        most = (total - least[1 - k] * gpus[1 - k]) // gpus[k]
        found[k] = min(max(math.floor(shares[k] + 1e-9), least[k]), most)
    order = sorted((0, 1), key=lambda k: found[k] - shares[k])
    for most in (1, total):  # what a large instance leaves over may be several small ones
        for k in order:
            left = total - found[0] * gpus[0] - found[1] * gpus[1]
            found[k] += max(0, min(most, left // gpus[k], wanted[k] - found[k]))
    return found[0], found[1]


def _check_minimum(minimum: int) -> None:
    if minimum < 0:
        raise ValueError(f"minimum = {minimum}: must not be negative")


def _check(capacity: float, wait_s: float, name: str) -> None:
    if not capacity > 0:
        raise ValueError(f"capacity = {capacity}: must be positive")
    if wait_s < 0:
        raise ValueError(f"{name} = {wait_s}: must not be negative")


@dataclass
class PaperTrigger:
    """Section 5.3.

    Attributes:
        capacity: of an instance, profiled.
        bounds: shares of it.
        timeout_s: below the lower bound for so long before any stops.
    """

    capacity: float
    bounds: Bounds
    timeout_s: float = 2.0
    _low_since_s: float | None = field(default=None, repr=False)
    _largest: float = field(default=0.0, repr=False)

    def __post_init__(self) -> None:
        _check(self.capacity, self.timeout_s, "timeout_s")

    def target(self, now_s: float, load: float, instances: int, minimum: int = 1) -> int:
        """How many instances there shall be.

        Args:
            now_s: time of the look; looks come in order.
            load: of all instances together, in the unit of the capacity.
            instances: that serve or load.
            minimum: instances that stay whatever the load.
        """
        _check_minimum(minimum)
        average = load / max(instances, 1)
        if (
            instances < minimum
            or average > self.bounds.tight * self.capacity
            or (load > 0 and instances == 0)
        ):
            self._low_since_s = None
            return max(minimum, instances_for(load, self.capacity, self.bounds.tight))
        if average >= self.bounds.loose * self.capacity:
            self._low_since_s = None
            return instances
        if self._low_since_s is None:
            self._low_since_s, self._largest = now_s, load
        self._largest = max(self._largest, load)
        if now_s - self._low_since_s < self.timeout_s - _SLACK_S:
            return instances
        enough = instances_for(self._largest, self.capacity, self.bounds.tight)
        self._low_since_s = None
        return min(instances, max(minimum, enough))


@dataclass
class CodeTrigger:
    """The released code's rule.

    Attributes:
        capacity: of an instance: V_p tokens per second, or KV blocks.
        bounds: shares of it.
        ttl_s: above the most for so long before one stops (0.33 to 1.5 s in the code's configurations).
    """

    capacity: float
    bounds: Bounds
    ttl_s: float = 1.5
    _high_since_s: float | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check(self.capacity, self.ttl_s, "ttl_s")

    def range(self, load: float, minimum: int = 1) -> tuple[int, int]:
        """The fewest and the most instances that the load asks for, `minimum` at least."""
        _check_minimum(minimum)
        fewest, most = (
            max(minimum, instances_for(load, self.capacity, share))
            for share in (self.bounds.tight, self.bounds.loose)
        )
        return fewest, most

    def target(self, now_s: float, load: float, instances: int, minimum: int = 1) -> int:
        """As `PaperTrigger.target`; for prefill the load is the tokens that wait."""
        fewest, most = self.range(load, minimum)
        if instances <= most:
            self._high_since_s = None
            return instances if instances >= fewest else (fewest + most + 1) // 2
        if self._high_since_s is None:
            self._high_since_s = now_s
        if now_s - self._high_since_s < self.ttl_s - _SLACK_S:
            return instances
        self._high_since_s = now_s
        return instances - 1
