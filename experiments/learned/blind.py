"""A learned policy to which a block of its observation says nothing: what the block is worth to it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agents.learned import LearnedPolicy
from llmscale_env.control.run import run_episode
from llmscale_env.control.simulation import ClusterSimulation


def blind(policy: LearnedPolicy, block: str, simulation: ClusterSimulation, seed: int) -> None:
    """From now on the entries of a block stand at their means, whatever happens.

    The means are those of an episode that the policy plays with all it sees: an entry at 0 would be one more
    thing that it has never met.

    Args:
        policy: to be changed.
        block: name of an observation block.
        simulation: of the scenario that is to be played.
        seed: of the episode; none by which anything is judged.

    Raises:
        ValueError: the policy has no such block.
    """
    scenario = simulation.scenario
    policy.alter = None
    policy.fit(scenario)
    if block not in policy.spans:
        raise ValueError(f"block = {block!r}: {policy.name} sees {list(policy.spans)}")
    seen: list[NDArray[np.float32]] = []

    def note(observation: NDArray[np.float32]) -> NDArray[np.float32]:
        seen.append(observation.copy())
        return observation

    policy.alter = note
    run_episode(policy, scenario, seed, simulation=simulation, forecaster=policy.forecaster)
    span = policy.spans[block]
    means = np.mean(seen, axis=0)[span]

    def without(observation: NDArray[np.float32]) -> NDArray[np.float32]:
        changed = observation.copy()
        changed[span] = means
        return changed

    policy.alter = without
