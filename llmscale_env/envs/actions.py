"""What a policy network decides: heads of discrete choices, each turned into orders.

A head owns some parts of a MultiDiscrete action. It writes its orders into `ActionOrders`, arrays over
`E` episodes; a mask says which choices are
impossible now.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.snapshot import Snapshot
from llmscale_env.envs.action_heads.endpoints import BackgroundRelease, Endpoints, RegionalRouting
from llmscale_env.envs.action_heads.multicast import Multicast, PlannedLoads
from llmscale_env.envs.action_heads.orders import ActionOrders, Head
from llmscale_env.envs.action_heads.placing import Placement, PlaceRequest
from llmscale_env.envs.action_heads.pools import (
    BatchLimits,
    FineBatchLimits,
    FineInstanceCounts,
    InstanceCounts,
    Instances,
    Loading,
    RoutingShare,
)
from llmscale_env.envs.action_heads.size_free import InstanceShares, Residual, ScaledChanges
from llmscale_env.envs.action_heads.virtual_queues import GroupOrder, MakeWay
from llmscale_env.envs.observation_blocks.base import check_names
from llmscale_env.scenarios.schema import Scenario

HEADS = {
    "instance_counts": InstanceCounts,
    "instance_counts_fine": FineInstanceCounts,
    "instance_shares": InstanceShares,
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
    *("instance_counts", "instance_counts_fine", "instance_shares", "instances"),
    *("instance_changes_scaled", "residual", "multicast"),
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
        orders = ActionOrders(shape=(len(action), *self._shape))
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
