"""Whose costs are whose: an episode's costs by region."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.reward import PARTS, RewardParts
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.control.unfinished_work import leftover_gpu_s, lost_at_horizon
from llmscale_env.sim.metrics import Outcome, doomed, judge
from llmscale_env.sim.picoseconds import seconds
from llmscale_env.workload.requests import COLUMNS


class RegionCosts:
    """The costs of one episode's intervals, shared out among regions; they add up to the whole.

    GPU time and starts are those of a region's own pools, wherever the requests come from; violations and
    work left over those of its own clients, wherever they were served.

    Args:
        sim: whose costs.
        e: number of the episode, which has just started.
    """

    def __init__(self, sim: ClusterSimulation, e: int = 0) -> None:
        self.sim, self.e = sim, e
        scenario = sim.scenario
        self._names = scenario.region_names
        homes = [scenario.region_of(pool.region) for pool in scenario.fleet.pools]
        self._is_home = np.array([[home == name for home in homes] for name in self._names])
        self.violations = np.zeros((len(self._names), len(scenario.classes)), np.int64)
        self._arrived = 0
        self._open = np.zeros(0, np.int64)  # who has arrived, and may still be on time or late

    def interval(self, done: bool) -> RewardParts:
        """Costs of the interval that has just ended, each (R,).

        Afterwards `violations` (R, C) has what became certain in it.

        Args:
            done: whether the horizon has been reached.
        """
        results = self.sim.engine.results(self.e)
        self.violations = self._settle(results, done)
        by_pool = self.sim.by_pool
        return self.sim.rewards.parts(
            gpu_s=self._is_home @ seconds(by_pool, "gpu")[self.e],
            violations=self.violations,
            loads=self._is_home @ by_pool["started"][self.e],
            leftover_gpu_s=self._left(results) if done else np.zeros(len(self._names)),
        )

    def _region(self) -> NDArray[np.int64]:
        requests = self.sim.requests[self.e]
        assert requests is not None, "an episode is started before it is judged"
        one = len(self._names) == 1
        return np.zeros(len(requests), np.int64) if one else requests.region.astype(np.int64)

    def _settle(self, results: NDArray[Any], done: bool) -> NDArray[np.int64]:
        """(R, C) violations that have become certain among the requests that were open."""
        requests, scenario = self.sim.requests[self.e], self.sim.scenario
        assert requests is not None, "an episode is started before it is judged"
        now_ps = self.sim.engine.now_ps(self.e)
        arrived = int(np.searchsorted(requests.arrival_ps, now_ps))
        which = np.concatenate([self._open, np.arange(self._arrived, arrived)])
        columns = {name: getattr(requests, name)[which] for name in COLUMNS}
        few = replace(requests, **columns, history=None, failures=np.zeros((0, 2), np.int64))
        how = (scenario.classes, now_ps, scenario.itl_statistic)
        verdicts = judge(few, results[which], *how)
        missed = np.isin(verdicts.outcome, (Outcome.LATE, Outcome.REJECTED))
        if done:
            missed |= lost_at_horizon(scenario, requests, results, now_ps)[which]
        if not done:  # a hopeless ITL is charged when the request finishes, or at the horizon
            missed &= ~(verdicts.ttft_met & doomed(few, results[which], *how))
        self._open = which[~missed & (verdicts.outcome != Outcome.ON_TIME)]
        self._arrived = arrived
        found = np.zeros_like(self.violations)
        np.add.at(found, (self._region()[which][missed], few.slo_class[missed]), 1)
        return found

    def _left(self, results: NDArray[Any]) -> NDArray[np.float64]:
        """(R,) GPU-seconds that serving what is unfinished would take."""
        requests = self.sim.requests[self.e]
        assert requests is not None, "an episode is started before it is judged"
        each = leftover_gpu_s(self.sim.scenario, requests, results)
        region, n_llms = self._region(), len(self.sim.scenario.fleet.llms)
        mine = [np.where(region == j, each, 0.0) for j in range(len(self._names))]
        return np.array([np.bincount(requests.llm, x, n_llms).sum() for x in mine])


def by_region(costs: RewardParts, j: int) -> dict[str, float]:
    """The parts of region `j` with the sign of rewards."""
    return {name: -float(getattr(costs, name)[j]) for name in PARTS}
