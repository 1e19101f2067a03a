"""What a head is, and the orders that heads write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.endpoints import EndpointLayout
from llmscale_env.control.snapshot import Snapshot
from llmscale_env.sim.orders import EndpointOrders, Orders, PlaceOrders, PoolOrders, QueueOrders


@dataclass
class ActionOrders(Orders):
    """Orders that heads write, one after the other.

    Attributes:
        shape: episodes, pools and classes.
        impossible: (E,) choices that were not possible and count for nothing.
        percents: (E, P) of what a reference policy wants, if any head follows one.
    """

    shape: tuple[int, int, int] = (0, 0, 0)
    percents: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        self.impossible = np.zeros(self.shape[0], np.int64)

    def percents_of(self, e: int) -> NDArray[np.int64]:
        """(P,) `percents` of episode `e`; 100 where nothing is said."""
        return np.full(self.shape[1], 100) if self.percents is None else self.percents[e]

    def for_pools(self) -> PoolOrders:
        """`pools`, to be written to."""
        if self.pools is None:
            self.pools = PoolOrders.none(*self.shape)
        return self.pools

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
            managers = len(places.managers)
            self.endpoints = EndpointOrders.none(self.shape[0], pools, regions, managers)
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
