"""Heads for pools: how many instances, how large batches, where weights come from, who overflows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.snapshot import Snapshot
from llmscale_env.envs.action_heads.orders import ActionOrders
from llmscale_env.envs.observation_blocks.base import present
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import SOURCES
from llmscale_env.sim.orders import AS_IS


class Instances:
    """Change of each pool's instance count."""

    name = "instances"
    steps = np.array([-4, -2, -1, 0, 1, 2, 4])

    def __init__(self, scenario: Scenario) -> None:
        pools = scenario.fleet.pools
        self.parts = [f"{p.name}/instances" for p in pools]
        self.choices = [[f"{s:+d}" if s else "0" for s in self.steps]] * len(pools)
        self._most = np.array([p.max_instances for p in pools])
        self._gpus = np.array([p.tp for p in pools])
        self._max_gpus = scenario.fleet.max_gpus

    def write(self, action: NDArray[np.int64], now: Snapshot, orders: ActionOrders) -> None:
        change = self.steps[action]
        wanted = np.clip(present(now) + change, 0, self._most)
        orders.for_pools().targets[:] = np.where(change == 0, AS_IS, wanted)

    def mask(self, now: Snapshot) -> list[NDArray[np.bool_]]:
        there = present(now)
        held = (there + now.pools["draining"]) @ self._gpus
        # A draining instance can be taken back without another GPU.
        free = (self._max_gpus - held)[:, None] // self._gpus + now.pools["draining"]
        masks = []
        for p in range(len(self.parts)):
            have, most = there[:, p, None], self._most[p]
            room = np.minimum(most - have, free[:, p, None])
            masks.append(
                (self.steps == 0)
                | ((self.steps < 0) & (have + self.steps >= 0))
                | ((self.steps > 0) & (self.steps <= room))
            )
        return masks


class InstanceCounts:
    """Each pool's instance count, one of a few levels.

    What an absolute count does does not depend on the counts before it, which makes it easier to learn than
    a change (`Instances`).
    """

    name = "instance_counts"
    levels = np.array([0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128])

    def __init__(self, scenario: Scenario) -> None:
        pools = scenario.fleet.pools
        self.parts = [f"{p.name}/instances" for p in pools]
        self._levels = [self.up_to(p.max_instances) for p in pools]
        self.choices = [[str(v) for v in levels] for levels in self._levels]
        self._most = np.array([p.max_instances for p in pools])
        self._gpus = np.array([p.tp for p in pools])
        self._max_gpus = scenario.fleet.max_gpus

    def up_to(self, most: int) -> NDArray[np.int64]:
        """Counts that a pool of at most so many instances can be given."""
        return self.levels[self.levels <= most]

    def write(self, action: NDArray[np.int64], now: Snapshot, orders: ActionOrders) -> None:
        there = present(now)
        for p, levels in enumerate(self._levels):
            wanted = levels[action[:, p]]
            orders.for_pools().targets[:, p] = np.where(wanted == there[:, p], AS_IS, wanted)

    def mask(self, now: Snapshot) -> list[NDArray[np.bool_]]:
        there = present(now)
        held = (there + now.pools["draining"]) @ self._gpus
        free = (self._max_gpus - held)[:, None] // self._gpus + now.pools["draining"]
        most = there + np.maximum(np.minimum(self._most - there, free), 0)
        return [levels <= most[:, p, None] for p, levels in enumerate(self._levels)]


class FineInstanceCounts(InstanceCounts):
    """Each pool's instance count, any up to 16 and then one of a few levels.

    Between 6 and 8 instances lies a quarter of a small fleet's cost.
    """

    name = "instance_counts_fine"
    levels = np.array(
        [*range(17), 18, 20, 22, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128], np.int64
    )


class BatchLimits:
    """Batch limit of each pool, one of a few levels."""

    name = "batch_limits"
    levels = np.array([8, 16, 32, 64, 128, 256, 512, 1024])

    def __init__(self, scenario: Scenario) -> None:
        pools = scenario.fleet.pools
        self.parts = [f"{p.name}/batch_limit" for p in pools]
        self._levels = [self.levels[self.levels <= p.max_batch] for p in pools]
        self._levels = [
            levels if len(levels) else np.array([p.max_batch])
            for levels, p in zip(self._levels, pools, strict=True)
        ]
        self.choices = [[str(v) for v in levels] for levels in self._levels]

    def write(self, action: NDArray[np.int64], now: Snapshot, orders: ActionOrders) -> None:
        for p, levels in enumerate(self._levels):
            orders.for_pools().limits[:, p] = levels[action[:, p]]

    def mask(self, now: Snapshot) -> list[NDArray[np.bool_]]:
        return [np.ones((len(now.time_s), len(c)), bool) for c in self.choices]


class FineBatchLimits(BatchLimits):
    """Batch limit of each pool, one of twice as many levels.

    A step of `batch_limits` is a factor of two, within which the best limit of a fixed fleet may lie between
    too many late tokens and too few requests.
    """

    name = "batch_limits_fine"
    levels = np.array([8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024])


class RoutingShare:
    """Share of each class with overflow pools that tries them first."""

    name = "routing_share"
    shares = np.array([0.0, 0.25, 0.5, 0.75, 1.0])

    def __init__(self, scenario: Scenario) -> None:
        self._classes = [
            c
            for c, slo_class in enumerate(scenario.classes)
            if any(
                scenario.route_of(llm, slo_class.name).kind == "class-affine"
                and scenario.route_of(llm, slo_class.name).overflow
                for llm in scenario.fleet.llms
            )
        ]
        names = [scenario.classes[c].name for c in self._classes]
        self.parts = [f"{name}/overflow_share" for name in names]
        self.choices = [[f"{s:g}" for s in self.shares]] * len(names)

    def write(self, action: NDArray[np.int64], now: Snapshot, orders: ActionOrders) -> None:
        for k, c in enumerate(self._classes):
            orders.for_pools().shares[:, c] = self.shares[action[:, k]]

    def mask(self, now: Snapshot) -> list[NDArray[np.bool_]]:
        return [np.ones((len(now.time_s), len(c)), bool) for c in self.choices]


class Loading:
    """Where instances started now load their weights from."""

    name = "loading"

    def __init__(self, scenario: Scenario) -> None:
        self.parts = ["load_source"]
        self.choices = [[name for name, _ in sorted(SOURCES.items(), key=lambda item: item[1])]]

    def write(self, action: NDArray[np.int64], now: Snapshot, orders: ActionOrders) -> None:
        orders.for_pools().sources[:] = action

    def mask(self, now: Snapshot) -> list[NDArray[np.bool_]]:
        possible = np.ones((len(now.time_s), len(self.choices[0])), bool)
        # Multicast needs a serving instance to send.
        serving = (now.pools["active"] + now.pools["draining"]).sum(axis=1) > 0
        possible[:, int(SOURCES["multicast"])] = serving
        return [possible]
