"""Which region, deployment and instance gets an interactive request (section 6.2), on numbers.

The load is the effective memory utilisation: memory in use without the weights over memory without the
weights, here tokens of KV cache over KV capacity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

THRESHOLD = 0.7
"""Below it a region is taken in order of preference (section 6.2)."""


def choose_region(
    utilisation: Sequence[float],
    order: Sequence[int],
    threshold: float | Sequence[float] = THRESHOLD,
) -> int | None:
    """The first region of `order` whose utilisation is below the threshold; else the least utilised.

    Args:
        utilisation: (regions,) of the LLM asked for; infinite where it has no instance.
        order: regions that may serve, the preferred first.
        threshold: see the module; one for all regions, or (regions,) of each (ours).

    Returns:
        The region; of equally utilised ones the preferred. None if none has an instance.

    Raises:
        ValueError: no region in `order`, or a threshold that is negative.
    """
    if not order:
        raise ValueError("order: needs at least one region")
    each = threshold if isinstance(threshold, Sequence) else [threshold] * len(utilisation)
    if not min(each) >= 0:
        raise ValueError(f"threshold = {threshold}: must be at least 0")
    for region in order:
        if utilisation[region] < each[region]:
            return region
    least = min(order, key=lambda region: utilisation[region])
    return least if utilisation[least] < math.inf else None


def least_loaded(utilisation: ArrayLike) -> int:
    """The deployment endpoint of a region with the least effective memory in use; the first of equals."""
    return _argmin("utilisation", utilisation)


def fewest_remaining(tokens: ArrayLike) -> int:
    """The instance with the fewest tokens left to process, as predicted (join the shortest queue)."""
    return _argmin("tokens", tokens)


def _argmin(name: str, values: ArrayLike) -> int:
    array: NDArray[np.float64] = np.asarray(values, np.float64)
    if array.ndim != 1 or len(array) == 0:
        raise ValueError(f"{name}: expected one value for each of at least one, got {array.shape}")
    return int(np.argmin(array))
