"""One LLM for each instance, for good: what a fleet without model swapping is given (ours).

The paper says of Clockwork that it allocates "independent instances for each model" (section 1), and not how
many each gets. Here an LLM gets instances by the work that the scenario's workload brings: the seconds that
a full batch takes for its output tokens (Theta of Eq. 15).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from baselines.parameters import PolicyError
from baselines.qlm.problem import Profiler
from llmscale_env.control.reward import ScenarioKey, draw_requests
from llmscale_env.scenarios.schema import Scenario

EPISODES = 8
"""By which the work is measured."""
_OWN = 1
"""Spawn key of their seeds: a whole number as a seed, as every window has one, never gives these episodes."""


def deal(
    work_s: NDArray[np.float64], able: NDArray[np.bool_], loaded: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The next instance to the LLM with the most work per instance, until all are given away.

    An LLM without an instance comes first, the one with the least choice before all. It takes an instance
    that has it loaded, else the last one.

    Args:
        work_s: (M,) work of each LLM.
        able: (I, M) what instances may serve.
        loaded: (I,) what they have at the start.

    Returns:
        (I,) LLM of each instance, -1 of those that may serve none.

    Raises:
        ValueError: an LLM that no instance is left for.
    """
    llm = np.full(len(loaded), -1, np.int64)
    have = np.zeros(len(work_s), np.int64)
    for _ in range(int(np.count_nonzero(able.any(axis=1)))):
        free = llm < 0
        choice = np.count_nonzero(able & free[:, None], axis=0)
        missing = have == 0
        if (missing & (choice == 0)).any():
            raise ValueError(f"LLM {int(np.argmax(missing & (choice == 0)))} has no instance")
        share = np.where(missing, np.inf, work_s / np.maximum(have, 1))
        order = np.lexsort((-work_s, np.where(missing, choice, 0), -share))
        m = int(next(m for m in order if choice[m] > 0))
        mine = np.flatnonzero(free & able[:, m])
        kept = mine[loaded[mine] == m]
        llm[int(kept[0]) if len(kept) else int(mine[-1])] = m
        have[m] += 1
    if (have == 0).any():
        raise ValueError(f"LLM {int(np.argmin(have))} has no instance")
    return llm


@lru_cache(maxsize=64)
def _work_s(key: ScenarioKey) -> tuple[float, ...]:
    """The work of each LLM. Kept, since a policy asks at every reset."""
    scenario = key.scenario
    fleet = scenario.fleet
    seeds = (np.random.SeedSequence(k, spawn_key=(_OWN,)) for k in range(EPISODES))
    drawn = [draw_requests(scenario, np.random.default_rng(seed)) for seed in seeds]
    profiler = Profiler(scenario)
    work = np.zeros(len(fleet.llms))
    for m, name in enumerate(fleet.llms):
        p, pool = next((p, pool) for p, pool in enumerate(fleet.pools) if name in pool.llms)
        inputs = np.concatenate([each.input_tokens[each.llm == m] for each in drawn])
        outputs = np.concatenate([each.output_tokens[each.llm == m] for each in drawn])
        if len(outputs):
            means = float(inputs.mean()), float(outputs.mean())
            profile = profiler.profile(p, name, pool.batch_limit, *means)
            work[m] = float(outputs.sum()) / profile.tokens_per_s
    return tuple(work.tolist())


def fixed_llms(scenario: Scenario, policy: str) -> NDArray[np.int64]:
    """(instances,) number of the LLM that each instance of a scenario keeps; -1: it does not serve.

    Those that a scenario starts with are dealt out: the policies that ask start none.

    Raises:
        PolicyError: not every LLM can have an instance of its own.
    """
    fleet = scenario.fleet
    work = np.array(_work_s(ScenarioKey(scenario, scenario.model_dump_json())))
    slots = [(pool, k) for pool in fleet.pools for k in range(pool.max_instances)]
    able = np.array(
        [
            [k < pool.initial_instances and name in pool.llms for name in fleet.llms]
            for pool, k in slots
        ]
    )
    loaded = np.array([fleet.llms.index(pool.llm) for pool, _ in slots])
    try:
        return deal(work, able, loaded)
    except ValueError:
        raise PolicyError(
            f"{policy}: swapping = false: needs an instance for each of {len(fleet.llms)} LLMs; scenario "
            f"{scenario.name!r} starts {sum(pool.initial_instances for pool in fleet.pools)}, and not "
            "every LLM can have one"
        ) from None
