"""Twins of the cluster that a policy runs, from decision to decision: how late it sees, how slow it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.command import Command
from llmscale_env.control.twins import Future, Given, Played, Trial, Twins
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import compile_cluster, ps
from llmscale_env.sim.spec import InstanceState
from llmscale_env.workload.requests import PS_PER_S


class Player:
    """Plays what a policy might order now.

    Twins run by the calibrated times. Where decode iterations are reported that take longer or shorter, all
    iterations do so in twins; not on pools with `v1`, whose steps have the host's time too, nor where
    instances swap LLMs or can drift. What runs or loads ends when it really does.

    Where metrics are late, twins begin where the cluster was then, and meet what has been ordered since.

    Args:
        scenario: of the cluster.
        threads: threads that play the twins.
    """

    def __init__(self, scenario: Scenario, threads: int) -> None:
        self._scenario, self._threads = scenario, threads
        self._twins: Twins | None = None
        self._said: list[Command] = []
        self._slowness = self._slowness_of_twins = 1.0
        cluster = compile_cluster(scenario, as_calibrated=True)
        plain = [not (p.v1 or p.drifts or p.swaps) for p in cluster.pools]
        self._slots = [
            (np.array(cluster.pool_of_slot) == p, cluster.profiles[pool.profile])
            for p, pool in enumerate(cluster.pools)
            if plain[p]
        ]

    def __getstate__(self) -> dict[str, Any]:
        """Without the twins, which are large and are made again."""
        return {**vars(self), "_twins": None}

    @property
    def slowness(self) -> float:
        """Iterations take so many times as long as calibrated, as far as seen."""
        return self._slowness

    def see(self, view: ClusterView) -> None:
        """Compare reported decode iterations with the calibrated times."""
        active, ratios = view.instances["state"] == InstanceState.ACTIVE, []
        reports = view.reports
        for slots, profile in self._slots:
            seen = reports[slots & active & (reports["decode_requests"] > 0)]
            batch = seen["decode_requests"]
            usual_ps = profile.decode_per_token_ps[batch] * seen["decode_context"]
            usual_ps = usual_ps + profile.decode_base_ps[batch]
            ratios.append(seen["decode_s"] * PS_PER_S / usual_ps)
        every: NDArray[Any] = np.concatenate([*ratios, np.zeros(0)])
        if len(every):
            self._slowness = float(np.median(every))

    def said(self, command: Command) -> None:
        """The policy has ordered this."""
        if self._scenario.delay_steps:
            self._said.append(command)

    def carried_out(self, command: Command) -> None:
        """This was ordered in place of what the policy said last."""
        if self._said:
            self._said[-1] = command

    def now_s(self, view: ClusterView) -> float:
        """The present time, which is later than the view's where metrics are late."""
        return self._time_s(len(self._said)) if self._said else view.time_s

    def _time_s(self, interval: int) -> float:
        return interval * ps(self._scenario.control_interval_s) / PS_PER_S

    def play(
        self,
        view: ClusterView,
        futures: Sequence[Future],
        commands: Sequence[Command],
        until_s: float,
    ) -> Played:
        """Every command in every future, from now until a time; rows of the first command come first."""
        if abs(self._slowness / self._slowness_of_twins - 1) > 0.01:
            self._slowness_of_twins, self._twins = round(self._slowness, 3), None
        if self._twins is None:
            self._twins = Twins(
                self._scenario, self._threads, view.engine_name, self._slowness_of_twins
            )
        now = len(self._said)
        first = max(0, now - self._scenario.delay_steps)
        given = [Given(self._time_s(k), self._said[k]) for k in range(first, now)]
        trials = [Trial(command, k) for command in commands for k in range(len(futures))]
        return self._twins.play(view, futures, trials, until_s, at_s=self.now_s(view), given=given)
