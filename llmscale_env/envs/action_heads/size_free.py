"""Action heads that mean the same on clusters of any size: relative to what there is, or to a heuristic."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.snapshot import Snapshot
from llmscale_env.envs.action_heads.orders import ActionOrders
from llmscale_env.envs.action_heads.pools import InstanceCounts
from llmscale_env.envs.observation_blocks.base import present
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.orders import AS_IS


def room(scenario: Scenario, now: Snapshot) -> NDArray[np.int64]:
    """(E, P) the most instances that a pool could have now if the others kept what they have."""
    gpus = np.array([p.tp for p in scenario.fleet.pools])
    most = np.array([p.max_instances for p in scenario.fleet.pools])
    there, draining = present(now), now.pools["draining"]
    held = (there + draining) @ gpus
    # A draining instance can be taken back without another GPU.
    free = (scenario.fleet.max_gpus - held)[:, None] // gpus + draining
    return there + np.maximum(np.minimum(most - there, free), 0)


def times(counts: NDArray[np.int64], percent: NDArray[np.int64]) -> NDArray[np.int64]:
    """`counts` times so many percent, rounded away from `counts`, but never from some to none.

    So every factor changes at least one instance but where a single one is to become fewer; none stays none.
    """
    product = counts * percent
    fewer = np.maximum(product // 100, np.minimum(counts, 1))
    return np.where(percent > 100, -(-product // 100), np.where(percent < 100, fewer, counts))


class InstanceShares(InstanceCounts):
    """Each pool's instance count, in sixteenths of the most it may have, rounded up.

    With 16 slots these are all counts, with 64 every fourth one, and with 8 two choices mean the same.
    """

    name = "instance_shares"
    parts_of_all = 16

    def up_to(self, most: int) -> NDArray[np.int64]:
        """Counts that a pool of at most so many instances can be given."""
        return -(-np.arange(self.parts_of_all + 1) * most // self.parts_of_all)


class ScaledChanges:
    """Change of each pool's instance count, by a factor or by one.

    A factor applies to the instances present (acquiring, loading, active). Rounding is away from
    their number (`times`), so at least one changes; with none, factors above 1 start one. Only -1
    can leave none.
    """

    name = "instance_changes_scaled"
    percents = np.array([50, 75, 100, 100, 100, 125, 150, 200])
    steps = np.array([0, 0, -1, 0, 1, 0, 0, 0])
    same = 3

    def __init__(self, scenario: Scenario) -> None:
        pools = scenario.fleet.pools
        self._scenario = scenario
        self._most = np.array([p.max_instances for p in pools])
        self.parts = [f"{p.name}/instances" for p in pools]
        self.choices = [["x0.5", "x0.75", "-1", "0", "+1", "x1.25", "x1.5", "x2"]] * len(pools)

    def _wanted(self, now: Snapshot) -> NDArray[np.int64]:
        """(E, P, choices) instances that each choice would have."""
        there = present(now)[..., None]
        scaled = times(there, self.percents) + self.steps
        return np.where((self.percents > 100) & (there == 0), 1, scaled)

    def write(self, action: NDArray[np.int64], now: Snapshot, orders: ActionOrders) -> None:
        wanted = np.take_along_axis(self._wanted(now), action[..., None], axis=2)[..., 0]
        wanted = np.clip(wanted, 0, self._most)
        orders.for_pools().targets[:] = np.where(wanted == present(now), AS_IS, wanted)

    def mask(self, now: Snapshot) -> list[NDArray[np.bool_]]:
        wanted = self._wanted(now)
        possible = (wanted >= 0) & (wanted <= room(self._scenario, now)[..., None])
        # What one does with fewer instances, one can do in one way only.
        there = present(now)[..., None]
        possible &= (wanted != there) | (self.percents == 100)
        possible[..., self.same] = True
        return list(possible.transpose(1, 0, 2))


class Residual:
    """Each pool's instance count as that of a reference policy times a factor.

    The policy (argument `reference`) is asked once per decision, and its orders are carried out,
    except targets. A pool gets its last target (at first its initial count) times the factor, rounded
    away from the target (`times`), at most `max_instances`. The choice x1 leaves the command as it
    is, or, without a target in it, takes back what another choice changed. A policy that counts from
    the instances present sees those that the factors left.
    """

    name = "residual"
    percents = np.array([70, 85, 100, 115, 130, 160])
    same = 2

    def __init__(self, scenario: Scenario) -> None:
        pools = scenario.fleet.pools
        self._scenario = scenario
        self._most = np.array([p.max_instances for p in pools])
        self.parts = [f"{p.name}/residual" for p in pools]
        self.choices = [[f"x{percent / 100:g}" for percent in self.percents]] * len(pools)

    def write(self, action: NDArray[np.int64], now: Snapshot, orders: ActionOrders) -> None:
        orders.percents = self.percents[action]

    def mask(self, now: Snapshot) -> list[NDArray[np.bool_]]:
        if now.wanted is None:
            raise ValueError("action = 'residual': needs a reference policy (argument `reference`)")
        counts = np.minimum(times(now.wanted[..., None], self.percents), self._most[:, None])
        # Fewer than there are is possible always.
        possible = counts <= np.maximum(room(self._scenario, now), present(now))[..., None]
        possible[..., self.same] = True
        return list(possible.transpose(1, 0, 2))
