"""Nobody gains by not serving in the other five worlds: to do less scores below a policy that serves.

`test_anti_cheat_day` has the days of mixed-slo.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from baselines import make_policy
from llmscale_env.control.command import Command
from llmscale_env.control.regions import ScalingOrder
from llmscale_env.control.run import run_episode
from llmscale_env.control.scaling import FleetSeen
from llmscale_env.scenarios import load_scenario
from llmscale_env.sim.spec import InstanceState

pytestmark = pytest.mark.slow

SEEDS = {"burst-multicast": range(300, 312)}
"""Of the episodes; elsewhere two. Where the trace is silent at the end, to stop is right in that episode."""

SERVING = {
    "placement": "jsq:tp=1,workers=20",
    "placement-per-request": "jsq",
    "burst-multicast": "blitzscale:min_prefill=4",
    "multi-model-queue": "edf-groups",
    "multi-region": "reactive",
}
MOST = {
    "placement": "jsq:tp=1,workers=24",
    "burst-multicast": "distserve",
    "multi-region": "static:each=20",
}
"""The most that there is, all the time."""


class Serving:
    """A reference policy; cheats change what it orders."""

    name = "serving"

    def __init__(self, env: str) -> None:
        self.inner = make_policy(SERVING[env])

    def reset(self, scenario, seed) -> None:
        self.inner.reset(scenario, seed)
        self.scenario = scenario
        self.pools = [pool.name for pool in scenario.fleet.pools]

    def act(self, view) -> Command:
        return self.change(self.inner.act(view), view)

    def change(self, command: Command, view) -> Command:
        return command

    def nobody(self, view) -> Command:
        """Every instance is given up; those that serve finish what they have begun."""
        if any(pool.flows for pool in self.scenario.fleet.pools):
            seen = FleetSeen.of(view.weights)
            return Command(drain=tuple(np.flatnonzero(seen.state == InstanceState.ACTIVE).tolist()))
        return Command(targets=dict.fromkeys(self.pools, 0), scaling=self.by_hand())

    def by_hand(self) -> dict[str, ScalingOrder]:
        """Endpoints that scale by themselves do so no more."""
        pools = self.scenario.fleet.pools
        return {pool.name: ScalingOrder("none") for pool in pools if pool.scaling is not None}


class RejectAll(Serving):
    def act(self, view) -> Command:
        return self.nobody(view)


class NeverScale(Serving):
    def act(self, view) -> Command:
        return Command(scaling=self.by_hand())


class GivesUp(Serving):
    """The policy at even decisions, with what there was at the start; at odd ones all is given up."""

    def change(self, command: Command, view) -> Command:
        if view.step % 2:
            return self.nobody(view)
        there = {pool.name: pool.initial_instances for pool in self.scenario.fleet.pools}
        return replace(command, targets={**there, **command.targets})


class OneAtATime(Serving):
    def change(self, command: Command, view) -> Command:
        return replace(command, batch_limits=dict.fromkeys(self.pools, 1))


class HoldsTheDeferrable(Serving):
    """Endpoints take nothing that can wait."""

    def change(self, command: Command, view) -> Command:
        held = {queue.name: (0.0, 0.0) for queue in self.scenario.fleet.queues}
        return replace(command, background=held)


class Stops(Serving):
    """Serves nobody who comes in the last `share` of the episode."""

    def __init__(self, env: str, share: float) -> None:
        super().__init__(env)
        self.share = share

    def change(self, command: Command, view) -> Command:
        if view.time_s < (1 - self.share) * self.scenario.horizon_s - 1e-6:
            return command
        return self.nobody(view)


CHEATS = {
    "reject all": RejectAll,
    "never scale": NeverScale,
    "batch limits of 1": OneAtATime,
    **{f"stop at {100 * (1 - s):g} %": partial(Stops, share=s) for s in (0.02, 0.1, 0.3)},
}


@cache
def returns(policy, env: str) -> np.ndarray:
    made = make_policy(policy) if isinstance(policy, str) else policy(env)
    scenario = load_scenario(env)
    return np.array(
        [run_episode(made, scenario, seed).summary["reward"] for seed in SEEDS.get(env, (300, 301))]
    )


@pytest.mark.parametrize("env", SERVING)
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_scores_below_a_policy_that_serves(cheat: str, env: str):
    assert returns(CHEATS[cheat], env).mean() < returns(Serving, env).mean()


def test_to_hold_back_what_can_wait_does_not_pay():
    env = "multi-region"
    assert (returns(HoldsTheDeferrable, env) < returns(Serving, env)).all()


def test_to_give_all_up_every_other_time_does_not_pay():
    """`test_anti_cheat_orders` has it for environments whose agents order counts every few seconds."""
    env = "multi-region"
    assert (returns(GivesUp, env) < returns(Serving, env)).all()


@pytest.mark.parametrize("env", MOST)
def test_the_maximum_scores_below_a_policy_that_scales(env: str):
    assert returns(MOST[env], env).mean() < returns(Serving, env).mean()
