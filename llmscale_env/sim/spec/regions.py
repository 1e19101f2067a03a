"""Parts of a cluster in several regions: latency, queue managers, spot instances, scaling at the endpoint.

docs/engine.md, section 17, says what each does (SageServe, sections 3.4, 4 and 6). Rates and shares are parts
per million (ppm), so that both engines compare integers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise

from llmscale_env.sim.spec.kinds import NEVER

PPM = 1_000_000
"""Parts per million in one."""

MOST_TOKENS = 2**31
"""KV tokens of all instances of an LLM, and in a utilisation: these are compared by cross multiplication."""

LONGEST_PS = 10**16
"""Longest of the times below (10**16 ps are 2.8 hours)."""

HIGHEST_PPM = 10**9
"""Largest rate: a thousand times."""

MAX_BINS = 64
"""Most bins over which a load is observed."""


class ScalingKind(IntEnum):
    """Rule by which a pool's number of instances changes when a request reaches its region."""

    NONE = 0
    REACTIVE = 1
    TARGET = 2
    TARGET_AHEAD = 3


def _refuse(owner: object, name: str, low: int, high: int) -> None:
    value = getattr(owner, name)
    if not (isinstance(value, int) and low <= value <= high):
        raise ValueError(f"{name} = {value!r}: must be an integer in {low}..{high}")


def _quantiles(name: str, knots: tuple[int, ...]) -> None:
    good = len(knots) >= 2 and all(0 <= k <= LONGEST_PS for k in knots)
    if not good or any(a > b for a, b in pairwise(knots)):
        raise ValueError(
            f"{name} = {tuple(knots)}: must be at least two times in 0..{LONGEST_PS} that do not fall"
        )


@dataclass(frozen=True)
class LatencySpec:
    """Network latency from the regions of clients to those that serve.

    Attributes:
        knots_ps: (n_regions, n_regions) tuples of times: quantiles of the latency from a client's region to
            a serving one, at equal steps from 0 to 1, at least two.

    Raises:
        ValueError: quantiles that fall, are too few or out of range.
    """

    knots_ps: tuple[tuple[tuple[int, ...], ...], ...]

    def __post_init__(self) -> None:
        for client, row in enumerate(self.knots_ps):
            for region, knots in enumerate(row):
                _quantiles(f"knots_ps[{client}][{region}]", knots)


@dataclass(frozen=True)
class ManagerSpec:
    """An endpoint that takes requests from a shared queue while it is little used (section 6.3).

    Attributes:
        queue: the shared queue, of the pools' LLM.
        pools: of one LLM in one region.
        one_ppm, two_ppm: utilisations below which a signal takes one and two requests.

    Raises:
        ValueError: no pools, or thresholds out of range.
    """

    queue: int
    pools: tuple[int, ...]
    one_ppm: int = 600_000
    two_ppm: int = 500_000

    def __post_init__(self) -> None:
        if not self.pools or len(set(self.pools)) < len(self.pools):
            raise ValueError(f"pools = {self.pools}: must be at least one, each once")
        for name in ("one_ppm", "two_ppm"):
            _refuse(self, name, 0, HIGHEST_PPM)


@dataclass(frozen=True)
class SpotSpec:
    """A pool whose instances come from spot VMs and go back to them (sections 3.4, 4 and 7.1).

    Attributes:
        group: VMs of one region and kind; pools of a group have equal `gpus` and one region.
        initial: VMs that are leased out at time 0 with this pool's LLM.
        reclaim_knots_ps: quantiles of the time that reclaiming takes, at equal steps from 0 to 1.
        donate_ps: from the end of service to spot.
        redeploy_ps: putting this LLM onto a VM that had another one, its weights being in the region.
        redeploy_remote_ps: the same if they are not.
        local: whether they are there at the start.

    Raises:
        ValueError: which field, and what is allowed.
    """

    group: int = 0
    initial: int = 0
    reclaim_knots_ps: tuple[int, ...] = (60 * 10**12, 60 * 10**12)
    donate_ps: int = 60 * 10**12
    redeploy_ps: int = 600 * 10**12
    redeploy_remote_ps: int = 7200 * 10**12
    local: bool = True

    def __post_init__(self) -> None:
        _refuse(self, "group", 0, 2**31 - 1)
        _refuse(self, "initial", 0, 2**31 - 1)
        _quantiles("reclaim_knots_ps", self.reclaim_knots_ps)
        for name in ("donate_ps", "redeploy_ps", "redeploy_remote_ps"):
            _refuse(self, name, 0, LONGEST_PS)

    @property
    def local_at_start(self) -> bool:
        """Whether the weights are in the region at time 0."""
        return self.local or self.initial > 0


@dataclass(frozen=True)
class ScalingThresholds:
    """When a pool's rule acts, where an hour of it does not go by the pool's own numbers.

    Attributes:
        high_ppm, low_ppm, above_ppm, below_ppm, last_ps: as in `ScalingSpec`, which says what is allowed.
    """

    high_ppm: int
    low_ppm: int
    above_ppm: int
    below_ppm: int
    last_ps: int


@dataclass(frozen=True)
class ScalingSpec:
    """The rule by which a pool scales when a request reaches its region (sections 6.5.1 and 7.2).

    `tests/sageserve_rules.py` states the rules as the paper has them.

    Attributes:
        kind: a `ScalingKind` at the start.
        high_ppm, low_ppm: utilisations above which one instance more, below which one less is wished for.
        cooldown_ps: between two changes.
        least, most: instances.
        period_ps: length of the "hour" that `set_scaling` starts.
        last_ps: length of the time at its end in which `TARGET_AHEAD` looks at the load.
        above_ppm, below_ppm: observed over forecast load at which it goes out, and in.
        either_way: whether it may do so in the direction opposite to the target's.
        bin_ps, bins: the observed load is that of the last `bins` complete bins, which lie at multiples of
            `bin_ps`.

    Raises:
        ValueError: which field, and what is allowed.
    """

    kind: int = ScalingKind.REACTIVE
    high_ppm: int = 700_000
    low_ppm: int = 300_000
    cooldown_ps: int = 15 * 10**12
    least: int = 2
    most: int = 20
    period_ps: int = 3600 * 10**12
    last_ps: int = 1200 * 10**12
    above_ppm: int = 5_000_000
    below_ppm: int = 500_000
    either_way: bool = True
    bin_ps: int = 60 * 10**12
    bins: int = 5

    def __post_init__(self) -> None:
        _refuse(self, "kind", 0, len(ScalingKind) - 1)
        _refuse(self, "high_ppm", 1, HIGHEST_PPM)
        _refuse(self, "low_ppm", 0, self.high_ppm - 1)
        _refuse(self, "cooldown_ps", 1, int(NEVER))
        _refuse(self, "least", 0, 2**31 - 1)
        _refuse(self, "most", self.least, 2**31 - 1)
        _refuse(self, "period_ps", 0, int(NEVER))
        _refuse(self, "last_ps", 0, self.period_ps)
        _refuse(self, "above_ppm", 1, HIGHEST_PPM)
        _refuse(self, "below_ppm", 0, self.above_ppm - 1)
        _refuse(self, "bin_ps", 1, int(NEVER) // MAX_BINS)
        _refuse(self, "bins", 1, MAX_BINS)

    def with_thresholds(self, thresholds: ScalingThresholds) -> ScalingSpec:
        """The rule with other thresholds.

        Raises:
            ValueError: which one, and what is allowed.
        """
        return replace(self, **vars(thresholds))

    def marks(self, forecast_utps: int) -> tuple[int, int]:
        """Tokens within the observed bins from which on, and up to which, `TARGET_AHEAD` acts.

        Args:
            forecast_utps: millionths of tokens per second.

        Returns:
            (at least so many and not none: out, at most so many: in).
        """
        window = self.bins * self.bin_ps * forecast_utps
        above = -(-self.above_ppm * window // 10**24)
        below = self.below_ppm * window // 10**24
        top = int(NEVER)
        return min(max(above, 1), top), min(below, top)
