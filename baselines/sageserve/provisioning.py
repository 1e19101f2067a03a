"""Where an instance comes from, and after how long it serves (sections 3.4, 6.5 and 7.1).

To scale out, spot instances of the same LLM are reclaimed first, then those of other LLMs, which are
redeployed. To scale in, instances are donated to spot with what they have loaded. The time until an
instance serves is wasted: its GPUs are paid for and do nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Delays:
    """Seconds until an instance serves.

    Attributes:
        reclaim_median_s, reclaim_most_s: spot of the same LLM: median and maximum (section 7.1).
        redeploy_local_s: another LLM whose weights are in the region (about 10 min for every size).
        redeploy_remote_s: another LLM whose weights are not (about 2 h).
        donate_s: from serving to spot (section 4: 1 min for either direction).

    Raises:
        ValueError: a negative delay, or a median above the maximum.
    """

    reclaim_median_s: float = 60.0
    reclaim_most_s: float = 300.0
    redeploy_local_s: float = 600.0
    redeploy_remote_s: float = 7200.0
    donate_s: float = 60.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value >= 0:
                raise ValueError(f"{name} = {value}: must be at least 0")
        if self.reclaim_median_s > self.reclaim_most_s:
            raise ValueError(
                f"reclaim_median_s = {self.reclaim_median_s}: must be at most "
                f"reclaim_most_s = {self.reclaim_most_s}"
            )

    def reclaim_s(self, u: float) -> float:
        """Time to reclaim a spot instance of the same LLM, for a uniform number u in [0, 1].

        Log-uniform with the given median and maximum (ours: the paper has these two only), so from
        12 s to 5 min.
        """
        if self.reclaim_median_s == 0:
            return 0.0
        ratio = self.reclaim_most_s / self.reclaim_median_s
        return float(self.reclaim_median_s * ratio ** (2 * u - 1))

    def redeploy_s(self, *, local: bool) -> float:
        """Time to put another LLM onto a spot instance."""
        return self.redeploy_local_s if local else self.redeploy_remote_s


@dataclass(frozen=True)
class ScaleOut:
    """Where new instances come from.

    Attributes:
        own: spot instances of the same LLM.
        others: (LLM, how many) of spot instances of others, to be redeployed.
        missing: for which there is no spot instance.
    """

    own: int
    others: tuple[tuple[int, int], ...]
    missing: int


def scale_out(wanted: int, llm: int, spot: Sequence[int]) -> ScaleOut:
    """Which spot instances of a region make `wanted` more instances of an LLM.

    Args:
        wanted: at least 0.
        llm: index of the LLM.
        spot: spot instances of each LLM; each is taken from the LLM with the most of them at that time,
            the first of equals (ours).

    Raises:
        ValueError: a negative number.
    """
    if wanted < 0 or min(spot, default=0) < 0:
        raise ValueError(f"wanted = {wanted}, spot = {list(spot)}: must be at least 0")
    own = min(wanted, spot[llm])
    there = [0 if k == llm else count for k, count in enumerate(spot)]
    taken = [0] * len(there)
    for _ in range(min(wanted - own, sum(there))):
        most = max(range(len(there)), key=lambda k: there[k])
        there[most] -= 1
        taken[most] += 1
    others = tuple((k, count) for k, count in enumerate(taken) if count)
    return ScaleOut(own, others, wanted - own - sum(taken))
