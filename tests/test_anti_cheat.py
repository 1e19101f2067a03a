"""Nobody gains by not doing the work: cheats score below a tuned heuristic, or the exception is named.

This is the reward without prices, in the small world; test_anti_cheat_day has days and prices. The tuned
heuristic is a fixed fleet, the best of ten by mean reward over the episodes of seeds 0 to 7, and Llumnix with
settings that a search found. The episodes here are others.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from baselines import make_policy
from llmscale_env.control.command import Command
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios import load_scenario
from tests.small_world import SMALL_WORLD

SEEDS = (100, 101)
LLUMNIX = "llumnix:high=0.1,low=0.05,batch_limit=64,rebalance=false"
TUNED = {
    "small": "static:interactive=2,mixed=5,batch=0",
    "spike": "static:interactive=4,mixed=6,batch=0",
    "code-burst": "static:interactive=4,mixed=6,batch=0",
}
"""Workload, the small world's own or a mix, to heuristic."""
CHEATS = {
    "reject all": "static:interactive=0,mixed=0,batch=0",
    "never scale": "static:interactive=0,mixed=1,batch=0,mixed.batch_limit=256",
    "always maximum": "static:interactive=0,mixed=16,batch=0",
}


class StopsBefore:
    """Another policy's orders, and at the end none serves any more."""

    def __init__(self, policy: str, left_s: float) -> None:
        self.name = f"{policy}, stops {left_s:g} s before the end"
        self._inner, self._left_s = make_policy(policy), left_s

    def reset(self, scenario, seed):
        self._inner.reset(scenario, seed)
        self._pools = [pool.name for pool in scenario.fleet.pools]
        self._stop_s = scenario.horizon_s - self._left_s

    def act(self, view):
        if view.time_s < self._stop_s:
            return self._inner.act(view)
        return Command(targets=dict.fromkeys(self._pools, 0))


@cache
def returns(
    policy: str,
    workload: str,
    stops_s: float = 0.0,
    scale: float = 1.0,
    seeds: tuple[int, ...] = SEEDS,
) -> np.ndarray:
    """(seeds,) sums of rewards."""
    load = {} if workload == "small" else {"workload": workload}
    scenario = load_scenario(SMALL_WORLD, **load, **{"workload.rate_scale": scale})
    made = StopsBefore(policy, stops_s) if stops_s else make_policy(policy)
    found = [run_episode(made, scenario, seed).series["reward"].sum() for seed in seeds]
    return np.array(found)


@pytest.mark.parametrize("workload", ["small", "spike"])
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_scores_below_the_tuned_heuristic(cheat: str, workload: str):
    # On every single episode, by more than a hundredth.
    best = returns(TUNED[workload], workload)
    assert (returns(CHEATS[cheat], workload) < best - 0.01 * np.abs(best)).all()


@pytest.mark.parametrize("cheat", ["reject all", "never scale"])
def test_serving_too_little_does_not_pay_in_bursts_beyond_the_fleet(cheat: str):
    for heuristic in (TUNED["code-burst"], LLUMNIX):
        best = returns(heuristic, "code-burst")
        assert (returns(CHEATS[cheat], "code-burst") < best - 0.01 * np.abs(best)).all()


@pytest.mark.parametrize("workload", ["small", "spike"])
@pytest.mark.parametrize("left_s", [10.0, 30.0, 60.0])
def test_to_stop_serving_at_the_end_does_not_pay(workload: str, left_s: float):
    for heuristic in (TUNED[workload], LLUMNIX):
        assert (returns(heuristic, workload, left_s) < returns(heuristic, workload)).all()


def test_the_maximum_does_not_pay_where_the_fleet_can_carry_the_bursts():
    """`code-burst` with three tenths of its requests."""
    ten = returns("static:interactive=0,mixed=10,batch=0", "code-burst", scale=0.3)
    assert returns(CHEATS["always maximum"], "code-burst", scale=0.3).mean() < ten.mean()
