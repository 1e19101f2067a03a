"""Orders about endpoints: instances and their rule, routing between regions, release of what can wait."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.endpoints import EndpointLayout
from llmscale_env.control.snapshot import Snapshot
from llmscale_env.envs.action_heads.orders import ActionOrders
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.spec import ScalingKind

STEPS = np.array([-4, -2, -1, 0, 1, 2, 4])
"""Changes of the number of instances."""

RULES = (ScalingKind.NONE, ScalingKind.TARGET, ScalingKind.REACTIVE)
"""Who gives VMs to spot and takes them back until the next decision."""

THRESHOLDS = np.array([0.0, 0.3, 0.5, 0.7, 0.9, 1.1])
"""Utilisations below which a region takes requests: never in order of preference, ..., always."""

RELEASE = (("hold", 0.0, 0.0), ("careful", 0.4, 0.3), ("usual", 0.6, 0.5), ("eager", 0.8, 0.7))
"""Names of thresholds of queue managers: SageServe's (section 6.3) are "usual"."""


class Endpoints:
    """Change of each pool's instance count, and the rule by which it is carried out and goes on.

    Raises:
        ValueError: a pool without spot VMs or without `scaling`.
    """

    name = "endpoints"

    def __init__(self, scenario: Scenario) -> None:
        pools = scenario.fleet.pools
        for pool in pools:
            for what in ("spot", "scaling"):
                if getattr(pool, what) is None:
                    raise ValueError(
                        f"action = {self.name!r}: pool {pool.name!r} has no {what}; all pools need it"
                    )
        self._layout = EndpointLayout(scenario)
        self._gpus = np.array([pool.tp for pool in pools])
        self._max_gpus = scenario.fleet.max_gpus
        changes = [f"{step:+d}" if step else "0" for step in STEPS]
        rules = [kind.name.lower() for kind in RULES]
        self.parts = [f"{p.name}/{what}" for p in pools for what in ("instances", "rule")]
        self.choices = [changes, rules] * len(pools)

    def write(self, action: NDArray[np.int64], now: Snapshot, orders: ActionOrders) -> None:
        mine = orders.for_endpoints(self._layout)
        change = STEPS[action[:, 0::2]]
        kinds = np.array([int(kind) for kind in RULES])[action[:, 1::2]]
        present = now.pools["acquiring"] + now.pools["loading"] + now.pools["active"]
        # Only instances that serve can go; on their way they are paid for already.
        lowest = np.maximum(self._layout.least, present - now.pools["active"])
        wanted = np.where(change < 0, np.maximum(present + change, lowest), present + change)
        wanted = np.where(change > 0, np.minimum(wanted, self._layout.most), wanted)
        # One that has fewer than it may, or more, stays so unless it is changed.
        wanted = np.where(np.sign(wanted - present) == np.sign(change), wanted, present)
        orders.impossible += np.abs(present + change - wanted).sum(axis=1)
        at_once = (kinds != ScalingKind.TARGET) & (wanted != present)
        pools = orders.for_pools()
        pools.targets[:] = np.where(at_once, wanted, pools.targets)
        mine.rules[:] = kinds
        mine.goals[:] = np.where(kinds == ScalingKind.TARGET, wanted, -1)

    def mask(self, now: Snapshot) -> list[NDArray[np.bool_]]:
        layout, pools, seen = self._layout, now.pools, now.endpoints
        active, draining = pools["active"], pools["draining"]
        present = pools["acquiring"] + pools["loading"] + active
        held = (present + draining + seen.donating) @ self._gpus
        free = (self._max_gpus - held)[:, None] // self._gpus
        vms = np.minimum(layout.group_spot(seen.spot), np.minimum(seen.off, free))
        room = np.minimum(layout.most - present, draining + vms)
        fewer = np.minimum(active, present - layout.least)
        every = np.ones((len(now.time_s), len(RULES)), bool)
        masks = []
        for p in range(len(layout.n_slots)):
            up, down = room[:, p, None], fewer[:, p, None]
            masks.append(
                (STEPS == 0) | ((STEPS > 0) & (up >= STEPS)) | ((STEPS < 0) & (down >= -STEPS))
            )
            masks.append(every)
        return masks


class RegionalRouting:
    """Up to which utilisation each region takes requests, and which one its clients try first."""

    name = "regional_routing"

    def __init__(self, scenario: Scenario) -> None:
        self._layout = EndpointLayout(scenario)
        regions = scenario.region_names
        several = len(regions) > 1
        self.parts = [f"{j}/{what}" for j in regions for what in ("threshold", "first") if several]
        self.choices = [[f"{x:g}" for x in THRESHOLDS], list(regions)] * (len(self.parts) // 2)

    def write(self, action: NDArray[np.int64], now: Snapshot, orders: ActionOrders) -> None:
        mine = orders.for_endpoints(self._layout)
        mine.thresholds[:] = THRESHOLDS[action[:, 0::2]]
        mine.first[:] = action[:, 1::2]

    def mask(self, now: Snapshot) -> list[NDArray[np.bool_]]:
        return [np.ones((len(now.time_s), len(c)), bool) for c in self.choices]


class BackgroundRelease:
    """How full endpoints may be when they take requests that can wait, by queue and region."""

    name = "background_release"

    def __init__(self, scenario: Scenario) -> None:
        self._layout = EndpointLayout(scenario)
        managers = self._layout.places.managers
        self.parts = [f"{queue}/{region}/release" for queue, region, _ in managers]
        self.choices = [[name for name, _, _ in RELEASE]] * len(managers)
        self._levels = np.array([[one, two] for _, one, two in RELEASE])

    def write(self, action: NDArray[np.int64], now: Snapshot, orders: ActionOrders) -> None:
        orders.for_endpoints(self._layout).release[:] = self._levels[action]

    def mask(self, now: Snapshot) -> list[NDArray[np.bool_]]:
        return [np.ones((len(now.time_s), len(c)), bool) for c in self.choices]
