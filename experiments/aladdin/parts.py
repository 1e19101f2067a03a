"""Parts of a claim in order, so that the worst or the best is shown, and the one nearest to it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from experiments.harness.claims import Claim


def in_order(parts: Iterable[Claim], *, most_first: bool = True) -> list[Claim]:
    """By our numbers; those that were not measured come last."""
    sign = -1 if most_first else 1
    return sorted(parts, key=lambda p: (math.isnan(p.ours.mean), sign * p.ours.mean))


def nearest(parts: Iterable[Claim], *, most: bool = False) -> str:
    """The part with the least number (the most, where that is nearer to the claim), in words."""
    first = in_order(parts, most_first=most)[0]
    return f"nearest: {first.sentence}, with {first.ours.mean:.3g} {first.unit}".rstrip()
