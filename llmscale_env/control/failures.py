"""When instances fail: drawn with an episode's requests, so that one seed is one episode."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmscale_env.scenarios.schema import Scenario
from llmscale_env.workload.requests import PS_PER_S


def draw_failures(scenario: Scenario, rng: np.random.Generator) -> NDArray[np.int64]:
    """Failures of every slot of pools with an `mtbf_s`, exponential and independent of each other.

    A failure of a slot in which there is no instance at its time is none.

    Args:
        scenario: its fleet and horizon.
        rng: each slot draws from a child of its own.

    Returns:
        (n, 2) time in picoseconds and instance, in order of time and then of instances.
    """
    slots = [(pool, slot) for pool in scenario.fleet.pools for slot in range(pool.max_instances)]
    found: list[tuple[int, int]] = []
    for instance, ((pool, _), child) in enumerate(zip(slots, rng.spawn(len(slots)), strict=True)):
        if pool.mtbf_s is None:
            continue
        at_s = child.exponential(pool.mtbf_s)
        while at_s < scenario.horizon_s:
            found.append((round(at_s * PS_PER_S), instance))
            at_s += child.exponential(pool.mtbf_s)
    return np.array(sorted(found), np.int64).reshape(-1, 2)
