"""Orders for many episodes side by side, by mechanism: what every engine carries out (`Engine.apply`)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.observed import Gateways, VirtualQueues

AS_IS = -1
"""An order that is not given."""


@dataclass(frozen=True)
class Loads:
    """Instances to start, each with the source of its weights (docs/engine.md, section 15).

    Attributes:
        slots: instances that are off, of pools whose weights flow, in the order in which they start.
        sources: of each a source code: an instance that has the weights, is getting them, or comes earlier in
            `slots`; the number of instances plus that of a machine that has them in memory; -1: its SSD.
        partners: of each an active prefill instance of its pool that it helps while it loads, -1: nobody;
            empty: nobody helps.
    """

    slots: tuple[int, ...]
    sources: tuple[int, ...]
    partners: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.slots)


@dataclass
class ScaleOrders:
    """Orders about weights in `E` episodes.

    Attributes:
        mutate: (episode, instances) that become others, before targets are set.
        loads: (episode, loads), afterwards; those that are not possible by then start nothing.
        impossible: (E,) orders that were not possible and count for nothing.
    """

    impossible: NDArray[np.int64]
    mutate: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    loads: list[tuple[int, Loads]] = field(default_factory=list)

    @classmethod
    def none(cls, n_episodes: int) -> ScaleOrders:
        """Nothing ordered."""
        return cls(np.zeros(n_episodes, np.int64))


@dataclass
class QueueOrders:
    """Orders for the virtual queues of `E` episodes; `AS_IS` where nothing is ordered.

    Attributes:
        evicts: (E, P) 1: a pool's running requests make way for groups that come earlier, and for swaps;
            0: they are finished first.
        arrivals: (E, M, C) queue that arrivals join.
        pulls: (E, I, Q) lists of queues, of which the first `counts` (E, I) count.
        moves: (episode, requests, queues) to regroup, requests by id.
        impossible: (E,) choices that were not possible and count for nothing.
    """

    evicts: NDArray[np.int64]
    arrivals: NDArray[np.int64]
    pulls: NDArray[np.int64]
    counts: NDArray[np.int64]
    moves: list[tuple[int, NDArray[np.int64], NDArray[np.int64]]]
    impossible: NDArray[np.int64]

    @classmethod
    def none(cls, seen: VirtualQueues) -> QueueOrders:
        """Nothing ordered."""
        return cls(
            evicts=np.full(seen.evicts.shape, AS_IS, np.int64),
            arrivals=np.full(seen.arrival.shape, AS_IS, np.int64),
            pulls=np.full(seen.pull.shape, AS_IS, np.int64),
            counts=np.full(seen.pull.shape[:2], AS_IS, np.int64),
            moves=[],
            impossible=np.zeros(len(seen.pull), np.int64),
        )


@dataclass
class PlaceOrders:
    """Orders about placement in `E` episodes; `AS_IS` (NaN) where nothing is ordered.

    Attributes:
        rules: (E,) `RouterKind` for all arrivals.
        gamma, theta: (E,) strictness of best fit, of all routes that have a placement.
        models: (E,) whether workers get the coefficients `model_s` (I, 5) for best fit.
        requests, instances: (E,) id of a request that waits in a gateway or an own queue, and where it goes;
            it stays if an order given at the same time has made that instance drain or has routed it.
        again: (E, M) whether the gateway is routed again.
        impossible: (E,) choices that were not possible and count for nothing.
    """

    rules: NDArray[np.int64]
    gamma: NDArray[np.float64]
    theta: NDArray[np.float64]
    models: NDArray[np.bool_]
    requests: NDArray[np.int64]
    instances: NDArray[np.int64]
    again: NDArray[np.bool_]
    impossible: NDArray[np.int64]
    model_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 5)))

    @classmethod
    def none(cls, seen: Gateways) -> PlaceOrders:
        """Nothing ordered."""
        n = len(seen.turn)
        return cls(
            rules=np.full(n, AS_IS, np.int64),
            gamma=np.full(n, np.nan),
            theta=np.full(n, np.nan),
            models=np.zeros(n, bool),
            requests=np.full(n, AS_IS, np.int64),
            instances=np.full(n, AS_IS, np.int64),
            again=np.zeros(seen.waiting.shape, bool),
            impossible=np.zeros(n, np.int64),
        )


@dataclass
class EndpointOrders:
    """Orders about endpoints in `E` episodes; `AS_IS` (utilisations: NaN) where nothing is ordered.

    Attributes:
        rules: (E, P) `ScalingKind` that a pool goes by from now on.
        goals: (E, P) target of that rule, -1: none.
        thresholds: (E, R) utilisation below which a region is taken.
        first: (E, R) region that clients of each region try first; the others follow in the scenario's order.
        release: (E, K, 2) thresholds of each queue manager.
        impossible: (E,) choices that were not possible: instances too many or too few.
    """

    rules: NDArray[np.int64]
    goals: NDArray[np.int64]
    thresholds: NDArray[np.float64]
    first: NDArray[np.int64]
    release: NDArray[np.float64]
    impossible: NDArray[np.int64]

    @classmethod
    def none(cls, n_episodes: int, pools: int, regions: int, managers: int) -> EndpointOrders:
        """Nothing ordered."""
        return cls(
            rules=np.full((n_episodes, pools), AS_IS, np.int64),
            goals=np.full((n_episodes, pools), -1, np.int64),
            thresholds=np.full((n_episodes, regions), np.nan),
            first=np.full((n_episodes, regions), AS_IS, np.int64),
            release=np.full((n_episodes, managers, 2), np.nan),
            impossible=np.zeros(n_episodes, np.int64),
        )


@dataclass
class Orders:
    """Orders for `E` episodes; `AS_IS` (shares: NaN) where nothing is ordered.

    Attributes:
        targets, sources, limits: (E, P) instances, `LoadSource`, batch limit by pool.
        shares: (E, C) overflow share by class.
        queues: orders for virtual queues, if there are any.
        places: orders about placement, likewise.
        scaling: loads with their sources, likewise.
        endpoints: orders about regions, likewise.
    """

    targets: NDArray[np.int64]
    sources: NDArray[np.int64]
    limits: NDArray[np.int64]
    shares: NDArray[np.float64]
    queues: QueueOrders | None = None
    places: PlaceOrders | None = None
    scaling: ScaleOrders | None = None
    endpoints: EndpointOrders | None = None

    @property
    def impossible(self) -> NDArray[np.int64]:
        """(E,) choices that were not possible and count for nothing."""
        more = (self.queues, self.places, self.scaling, self.endpoints)
        found = [orders.impossible for orders in more if orders is not None]
        return np.sum([np.zeros(len(self.targets), np.int64), *found], axis=0)
