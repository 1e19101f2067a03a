"""What a policy network decides: heads of discrete choices, each turned into orders.

A head owns some parts of a MultiDiscrete action. It writes its orders into `ActionOrders`, arrays over
`E` episodes; a mask says which choices are
impossible now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.endpoints import EndpointLayout
from llmscale_env.control.snapshot import Snapshot
from llmscale_env.envs.endpoints import BackgroundRelease, Endpoints, RegionalRouting
from llmscale_env.envs.entries import check_names, present
from llmscale_env.envs.groups import GroupLayout
from llmscale_env.envs.multicast import Multicast, PlannedLoads
from llmscale_env.envs.placing import Placement, PlaceRequest
from llmscale_env.envs.size_free_heads import Residual, ScaledChanges
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import SOURCES
from llmscale_env.sim.orders import AS_IS, EndpointOrders, Orders, PlaceOrders, QueueOrders


@dataclass
class ActionOrders(Orders):
    """Orders that heads write, one after the other.

    Attributes:
        percents: (E, P) of what a reference policy wants, if any head follows one.
    """

    percents: NDArray[np.int64] | None = None

    @classmethod
    def none(cls, n_episodes: int, n_pools: int, n_classes: int) -> ActionOrders:
        """Nothing ordered."""
        return cls(
            targets=np.full((n_episodes, n_pools), AS_IS, np.int64),
            sources=np.full((n_episodes, n_pools), AS_IS, np.int64),
            limits=np.full((n_episodes, n_pools), AS_IS, np.int64),
            shares=np.full((n_episodes, n_classes), np.nan),
        )

    def percents_of(self, e: int) -> NDArray[np.int64]:
        """(P,) `percents` of episode `e`; 100 where nothing is said."""
        n_pools = self.targets.shape[1]
        return np.full(n_pools, 100) if self.percents is None else self.percents[e]

    def for_queues(self, now: Snapshot) -> QueueOrders:
        """`queues`, to be written to."""
        if self.queues is None:
            self.queues = QueueOrders.none(now.virtual)
        return self.queues

    def for_places(self, now: Snapshot) -> PlaceOrders:
        """`places`, to be written to."""
        if self.places is None:
            self.places = PlaceOrders.none(now.gateways)
        return self.places

    def for_endpoints(self, layout: EndpointLayout) -> EndpointOrders:
        """`endpoints`, to be written to."""
        if self.endpoints is None:
            places = layout.places
            pools, regions = len(places.llm), len(places.regions)
            n = len(self.targets)
            self.endpoints = EndpointOrders.none(n, pools, regions, len(places.managers))
        return self.endpoints


class Head(Protocol):
    """Some parts of an action."""

    name: str
    parts: list[str]
    """Name of each part."""
    choices: list[list[str]]
    """What each choice of each part means."""

    def write(self, action: NDArray[np.int64], now: Snapshot, orders: ActionOrders) -> None:
        """Turn the head's columns of an action (E, parts) into orders."""

    def mask(self, now: Snapshot) -> list[NDArray[np.bool_]]:
        """(E, choices) per part: True where a choice is possible."""


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
        orders.targets[:] = np.where(change == 0, AS_IS, wanted)

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
        self._levels = [self.levels[self.levels <= p.max_instances] for p in pools]
        self.choices = [[str(v) for v in levels] for levels in self._levels]
        self._most = np.array([p.max_instances for p in pools])
        self._gpus = np.array([p.tp for p in pools])
        self._max_gpus = scenario.fleet.max_gpus

    def write(self, action: NDArray[np.int64], now: Snapshot, orders: ActionOrders) -> None:
        there = present(now)
        for p, levels in enumerate(self._levels):
            wanted = levels[action[:, p]]
            orders.targets[:, p] = np.where(wanted == there[:, p], AS_IS, wanted)

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
            orders.limits[:, p] = levels[action[:, p]]

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
            orders.shares[:, c] = self.shares[action[:, k]]

    def mask(self, now: Snapshot) -> list[NDArray[np.bool_]]:
        return [np.ones((len(now.time_s), len(c)), bool) for c in self.choices]


class Loading:
    """Where instances started now load their weights from."""

    name = "loading"

    def __init__(self, scenario: Scenario) -> None:
        self.parts = ["load_source"]
        self.choices = [[name for name, _ in sorted(SOURCES.items(), key=lambda item: item[1])]]

    def write(self, action: NDArray[np.int64], now: Snapshot, orders: ActionOrders) -> None:
        orders.sources[:] = action

    def mask(self, now: Snapshot) -> list[NDArray[np.bool_]]:
        possible = np.ones((len(now.time_s), len(self.choices[0])), bool)
        # Multicast needs a serving instance to send.
        serving = (now.pools["active"] + now.pools["draining"]).sum(axis=1) > 0
        possible[:, int(SOURCES["multicast"])] = serving
        return [possible]


class GroupOrder:
    """Which request group every instance serves next (`envs.groups`); it also keeps the groups in order."""

    name = "group_order"

    def __init__(self, scenario: Scenario) -> None:
        self._layout = GroupLayout(scenario)
        self.parts = [f"{name}/serves" for name in self._layout.names]
        self.choices = [["keep", *self._layout.slot_names]] * len(self.parts)

    def write(self, action: NDArray[np.int64], now: Snapshot, orders: ActionOrders) -> None:
        self._layout.order(action, now.virtual, orders.for_queues(now))

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
        queues.impossible += ((action > 0) & ~possible).sum(axis=1)
        wanted = np.where(possible, action, 0)
        queues.evicts[:] = np.where(wanted == now.virtual.evicts, AS_IS, wanted)

    def mask(self, now: Snapshot) -> list[NDArray[np.bool_]]:
        evict = now.pools["active"] > 0
        finish = np.ones_like(evict)
        return list(np.stack([finish, evict], axis=2).transpose(1, 0, 2))


HEADS = {
    "instance_counts": InstanceCounts,
    "instance_counts_fine": FineInstanceCounts,
    "instances": Instances,
    "instance_changes_scaled": ScaledChanges,
    "residual": Residual,
    "batch_limits": BatchLimits,
    "batch_limits_fine": FineBatchLimits,
    "routing_share": RoutingShare,
    "loading": Loading,
    "group_order": GroupOrder,
    "make_way": MakeWay,
    "placement": Placement,
    "place_request": PlaceRequest,
    "multicast": Multicast,
    "endpoints": Endpoints,
    "regional_routing": RegionalRouting,
    "background_release": BackgroundRelease,
}
"""Known heads; an environment is given their names, in order."""

COUNTING = (
    *("instance_counts", "instance_counts_fine", "instances", "instance_changes_scaled"),
    *("residual", "multicast"),
)
"""Heads that say how many instances every pool has: one of them at most."""

LIMITING = ("batch_limits", "batch_limits_fine")
"""Heads that say how large batches may be: one of them at most."""


class ActionDecoder:
    """Heads put together: a MultiDiscrete action.

    Args:
        scenario: what is commanded.
        heads: names of `HEADS`, in order.

    Raises:
        ValueError: no names, an unknown one, heads that do not go together, or nothing to choose.
    """

    def __init__(self, scenario: Scenario, heads: Sequence[str]) -> None:
        self.scenario = scenario
        self.heads: list[Head] = []
        for name in check_names("action", heads, HEADS, "head"):
            self.heads.append(HEADS[name](scenario))  # type: ignore[arg-type]
        for some, what in ((COUNTING, "instances"), (LIMITING, "batch limits")):
            found = [name for name in heads if name in some]
            if len(found) > 1:
                raise ValueError(f"action: {found} each order {what}; name one of them")
        self.heads = [head for head in self.heads if head.parts]
        if not self.heads:
            raise ValueError(f"action = {list(heads)}: there is nothing to choose in this scenario")
        self.parts = [part for head in self.heads for part in head.parts]
        self.choices = [choices for head in self.heads for choices in head.choices]
        self.nvec = np.array([len(choices) for choices in self.choices], np.int64)
        self._shape = (len(scenario.fleet.pools), len(scenario.classes))
        flows = any(pool.flows for pool in scenario.fleet.pools)
        own = any(isinstance(head, Multicast) for head in self.heads)
        self._planned = PlannedLoads(scenario) if flows and not own else None

    def check(self, action: object, n_episodes: int) -> NDArray[np.int64]:
        """`action` as (E, parts) integers.

        Raises:
            ValueError: a wrong shape, a value that is no whole number or out of its range.
        """
        try:
            array = np.asarray(action)
        except ValueError:
            raise ValueError(f"action = {action!r}: must be an array of whole numbers") from None
        expected = (n_episodes, len(self.nvec))
        # One episode, or one part, needs no axis of its own.
        if array.ndim < 2 and 1 in expected and array.size == expected[0] * expected[1]:
            array = array.reshape(expected)
        if array.shape != expected:
            wanted = expected if n_episodes > 1 else expected[1:]
            raise ValueError(f"action has shape {array.shape}: must be {wanted}")
        if array.dtype.kind not in "iu":
            whole = array.dtype.kind in "fb" and (np.abs(array) < 2**31).all()
            if not whole or not (array == np.floor(array)).all():
                raise ValueError(f"action = {array.tolist()}: must be whole numbers")
            array = array.astype(np.int64)
        bad = (array < 0) | (array >= self.nvec)
        if bad.any():
            e, k = np.argwhere(bad)[0]
            raise ValueError(
                f"action[{k}] ({self.parts[k]}) = {array[e, k]}: must be in 0..{self.nvec[k] - 1}"
            )
        return array.astype(np.int64)

    def orders(self, action: NDArray[np.int64], now: Snapshot) -> ActionOrders:
        """Orders for all episodes from their actions (E, parts)."""
        orders = ActionOrders.none(len(action), *self._shape)
        at = 0
        for head in self.heads:
            head.write(action[:, at : at + len(head.parts)], now, orders)
            at += len(head.parts)
        if self._planned is not None:
            self._planned.write(now, orders)
        return orders

    def masks(self, now: Snapshot) -> NDArray[np.bool_]:
        """(E, sum of choices) possible choices, parts one after the other."""
        return np.concatenate([mask for head in self.heads for mask in head.mask(now)], axis=1)

    def fraction(self, action: NDArray[np.int64]) -> NDArray[np.float64]:
        """(E, parts) choices as fractions of their ranges, for the `last_action` block."""
        return action / np.maximum(self.nvec - 1, 1)
