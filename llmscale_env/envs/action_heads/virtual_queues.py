"""Heads for virtual queues: which group an instance serves next, and who makes way."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.snapshot import Snapshot
from llmscale_env.envs.action_heads.orders import ActionOrders
from llmscale_env.envs.groups import GroupLayout
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.orders import AS_IS


class GroupOrder:
    """Which request group every instance serves next (`envs.groups`); it also keeps the groups in order."""

    name = "group_order"

    def __init__(self, scenario: Scenario) -> None:
        self._layout = GroupLayout(scenario)
        self.parts = [f"{name}/serves" for name in self._layout.names]
        self.choices = [["keep", *self._layout.slot_names]] * len(self.parts)

    def write(self, action: NDArray[np.int64], now: Snapshot, orders: ActionOrders) -> None:
        queues = orders.for_queues(now)
        orders.impossible += self._layout.order(action, now.virtual, queues)

    def mask(self, now: Snapshot) -> list[NDArray[np.bool_]]:
        return list(self._layout.possible(now.virtual).transpose(1, 0, 2))


class MakeWay:
    """Whether a pool's running requests make way for a group that comes earlier (or for another LLM)."""

    name = "make_way"

    def __init__(self, scenario: Scenario) -> None:
        # Without swaps or group queues there is nobody to make way for.
        fleet = scenario.fleet
        self.parts = [f"{p.name}/make_way" for p in fleet.pools] if fleet.group_queues else []
        self.choices = [["finish", "evict"]] * len(self.parts)

    def write(self, action: NDArray[np.int64], now: Snapshot, orders: ActionOrders) -> None:
        queues = orders.for_queues(now)
        possible = now.pools["active"] > 0
        orders.impossible += ((action > 0) & ~possible).sum(axis=1)
        wanted = np.where(possible, action, 0)
        queues.evicts[:] = np.where(wanted == now.virtual.evicts, AS_IS, wanted)

    def mask(self, now: Snapshot) -> list[NDArray[np.bool_]]:
        evict = now.pools["active"] > 0
        finish = np.ones_like(evict)
        return list(np.stack([finish, evict], axis=2).transpose(1, 0, 2))
