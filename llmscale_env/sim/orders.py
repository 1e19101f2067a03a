"""What can be ordered of a cluster: the same for policies and environments (`Engine.apply`).

Orders have two forms. *Arrays*, by mechanism, have a row for each of many episodes: they say what the heads
of an action choose. *Single orders* are for one episode, and say the rest of what a policy may order. What
each does stands in docs/engine.md, section 8; times are picoseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.custom_router import RouterError
from llmscale_env.sim.observed import Gateways, VirtualQueues
from llmscale_env.sim.spec import PlacementSpec
from llmscale_env.sim.spec.regions import ScalingThresholds

AS_IS = -1
"""An order that is not given."""


# ---- single orders: fleet ----


class Mutate(NamedTuple):
    """Let an active instance drain and its twin serve in its place, with the weights that are there."""

    instance: int


class Drain(NamedTuple):
    """Drain an active instance."""

    instance: int


@dataclass(frozen=True)
class Loads:
    """Start instances, each with the source of its weights (docs/engine.md, section 15): all, or none.

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

    def __iter__(self) -> Iterator[tuple[int, ...] | None]:
        return iter((self.slots, self.sources, self.partners or None))


class Fail(NamedTuple):
    """Let an instance break down; it is repaired and loads anew, unless it was draining."""

    instance: int


class FailHost(NamedTuple):
    """Let all of a host break down: its instances fail, what it had in memory is lost."""

    host: int


# ---- single orders: serving ----


class SetInstanceLimit(NamedTuple):
    """Set the batch limit of one instance."""

    instance: int
    limit: int


class SetController(NamedTuple):
    """Set who moves the batch limit of a pool's instances: a `ControllerKind`."""

    pool: int
    kind: int


class SetRouter(NamedTuple):
    """Set the routing rule (`RouterKind`) of a class's arrivals from now on."""

    llm: int
    slo_class: int
    kind: int


class Evict(NamedTuple):
    """Order the eviction of running requests of lower priority at the next boundary."""

    instance: int
    count: int  # type: ignore[assignment]  # the tuple's own method is not used


class MoveWaiting(NamedTuple):
    """Move the last `count` requests that wait at an active instance to the end of another's queue."""

    instance: int
    to: int
    count: int  # type: ignore[assignment]  # the tuple's own method is not used


# ---- single orders: virtual queues ----


class SetPull(NamedTuple):
    """Set the shared queues that an instance pulls from, in order: its virtual queue."""

    instance: int
    queues: Sequence[int]


class SetOperations(NamedTuple):
    """Change what a pool's instances do by themselves; None: as it is."""

    pool: int
    pull_rule: int | None = None
    evicts_in_order: bool | None = None
    swap_flushes: bool | None = None
    static_batch: bool | None = None


class SetArrivalQueues(NamedTuple):
    """Set where a class's requests join shared queues from now on, by their input tokens.

    `queues[k]` takes requests of at most `uppers[k]` (rising), the last one those above all.
    """

    llm: int
    slo_class: int
    uppers: Sequence[int]
    queues: Sequence[int]


class Regroup(NamedTuple):
    """Move waiting requests, by id, to the ends of shared queues, in the order in which they are named."""

    requests: Sequence[int] | NDArray[Any]
    queues: Sequence[int] | NDArray[Any]


# ---- single orders: placement ----


class RouteGateway(NamedTuple):
    """Route again what waits in an LLM's gateway, then what waits in its decode gateway."""

    llm: int


class Assign(NamedTuple):
    """Put waiting requests at the ends of instances' own queues, in the order given; or none of them.

    Attributes:
        requests: ids, all different, from gateways and own queues (without KV memory reserved).
        instances: for each where it goes.
    """

    requests: Sequence[int] | NDArray[Any]
    instances: Sequence[int] | NDArray[Any]


class SetPredictions(NamedTuple):
    """New predicted output lengths, in all, of requests (by id) that are under way."""

    requests: Sequence[int] | NDArray[Any]
    tokens: Sequence[int] | NDArray[Any]


class SetProfile(NamedTuple):
    """Iterations of an instance take the times of another profile from now on."""

    instance: int
    profile: int


class SetDecodeRouter(NamedTuple):
    """Set the rule by which a class's handed-over requests are routed from now on."""

    llm: int
    slo_class: int
    kind: int


class SetPlacement(NamedTuple):
    """Set what best fit goes by from now on, for a class that has a placement."""

    llm: int
    slo_class: int
    placement: PlacementSpec


class SetPlacementModel(NamedTuple):
    """Coefficients (c1, k1, c3, c2, k2) of one instance for best fit; None: those of the route."""

    instance: int
    model: Sequence[float] | None


# ---- single orders: regions ----


class SetRegional(NamedTuple):
    """Change thresholds and order of regions of a route that has a preference; None: as it is.

    Attributes:
        llm, slo_class: whose route.
        threshold_ppm: utilisation below which a region is taken in that order: one for all, or one by
            region.
        preference: by region of the client its regions in order.
    """

    llm: int
    slo_class: int
    threshold_ppm: int | Sequence[int] | None = None
    preference: Sequence[Sequence[int]] | None = None


class SetManagers(NamedTuple):
    """Set the utilisations, in millionths, below which each manager takes one request, and two."""

    one_ppm: Sequence[int]
    two_ppm: Sequence[int]


class SetScaling(NamedTuple):
    """Begin an hour of a pool's rule.

    Attributes:
        pool: one that has `scaling`.
        kind: `ScalingKind` from now on.
        target: instances that are planned for; -1: none.
        forecast_utps: load that is expected, in millionths of tokens per second.
        thresholds: when the rule acts from now on; None: by the pool's own numbers.
    """

    pool: int
    kind: int
    target: int = -1
    forecast_utps: int = 0
    thresholds: ScalingThresholds | None = None


SingleOrder = (
    Mutate | Drain | Loads | Fail | FailHost
    | SetInstanceLimit | SetController | SetRouter | Evict | MoveWaiting
    | SetPull | SetOperations | SetArrivalQueues | Regroup
    | RouteGateway | Assign | SetPredictions | SetProfile
    | SetDecodeRouter | SetPlacement | SetPlacementModel
    | SetRegional | SetManagers | SetScaling
)  # fmt: skip
"""Any order for one episode."""

METHODS: dict[type, str] = {
    order: re.sub("(?<!^)(?=[A-Z])", "_", order.__name__).lower() for order in get_args(SingleOrder)
} | {Loads: "scale"}
"""Of each single order the method of both engines that checks it and carries it out."""


# ---- arrays: a row per episode ----


@dataclass
class PoolOrders:
    """Orders about pools and shares in `E` episodes; `AS_IS` (shares: NaN) where nothing is ordered.

    Attributes:
        targets, sources, limits: (E, P) instances, `LoadSource`, batch limit by pool.
        shares: (E, C) overflow share by class, of all LLMs.
    """

    targets: NDArray[np.int64]
    sources: NDArray[np.int64]
    limits: NDArray[np.int64]
    shares: NDArray[np.float64]

    @classmethod
    def none(cls, n_episodes: int, pools: int, classes: int) -> PoolOrders:
        """Nothing ordered."""
        return cls(
            targets=np.full((n_episodes, pools), AS_IS, np.int64),
            sources=np.full((n_episodes, pools), AS_IS, np.int64),
            limits=np.full((n_episodes, pools), AS_IS, np.int64),
            shares=np.full((n_episodes, classes), np.nan),
        )


@dataclass
class QueueOrders:
    """Orders for the virtual queues of `E` episodes; `AS_IS` where nothing is ordered.

    Attributes:
        evicts: (E, P) 1: a pool's running requests make way for groups that come earlier, and for swaps;
            0: they are finished first.
        arrivals: (E, M, C) queue that arrivals join.
        pulls: (E, I, Q) lists of queues, of which the first `counts` (E, I) count.
        moves: (episode, requests, queues) to regroup, requests by id.
    """

    evicts: NDArray[np.int64]
    arrivals: NDArray[np.int64]
    pulls: NDArray[np.int64]
    counts: NDArray[np.int64]
    moves: list[tuple[int, NDArray[np.int64], NDArray[np.int64]]]

    @classmethod
    def none(cls, seen: VirtualQueues) -> QueueOrders:
        """Nothing ordered."""
        return cls(
            evicts=np.full(seen.evicts.shape, AS_IS, np.int64),
            arrivals=np.full(seen.arrival.shape, AS_IS, np.int64),
            pulls=np.full(seen.pull.shape, AS_IS, np.int64),
            counts=np.full(seen.pull.shape[:2], AS_IS, np.int64),
            moves=[],
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
    """

    rules: NDArray[np.int64]
    gamma: NDArray[np.float64]
    theta: NDArray[np.float64]
    models: NDArray[np.bool_]
    requests: NDArray[np.int64]
    instances: NDArray[np.int64]
    again: NDArray[np.bool_]
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
    """

    rules: NDArray[np.int64]
    goals: NDArray[np.int64]
    thresholds: NDArray[np.float64]
    first: NDArray[np.int64]
    release: NDArray[np.float64]

    @classmethod
    def none(cls, n_episodes: int, pools: int, regions: int, managers: int) -> EndpointOrders:
        """Nothing ordered."""
        return cls(
            rules=np.full((n_episodes, pools), AS_IS, np.int64),
            goals=np.full((n_episodes, pools), -1, np.int64),
            thresholds=np.full((n_episodes, regions), np.nan),
            first=np.full((n_episodes, regions), AS_IS, np.int64),
            release=np.full((n_episodes, managers, 2), np.nan),
        )


@dataclass
class Orders:
    """Orders for `E` episodes, which take effect in the order of these attributes.

    Attributes:
        first: (episode, single order), before all arrays: one that changes what targets count.
        pools: instances, sources, batch limits and shares. Falling targets come first, so that they free GPUs
            for the rising ones, and then pools in their order.
        queues: orders for virtual queues.
        places: orders about placement.
        endpoints: orders about regions.
        last: (episode, single order), after all arrays.
    """

    first: list[tuple[int, SingleOrder]] = field(default_factory=list)
    pools: PoolOrders | None = None
    queues: QueueOrders | None = None
    places: PlaceOrders | None = None
    endpoints: EndpointOrders | None = None
    last: list[tuple[int, SingleOrder]] = field(default_factory=list)


class Outcome(NamedTuple):
    """What came of orders.

    Attributes:
        missing: (E, P) instances of a target that could not be started: there were no GPUs or VMs.
        refused: single orders that were not possible when their turn came, and changed nothing: place among
            `first` and then `last`, and what the engine said.
    """

    missing: NDArray[np.int64]
    refused: dict[int, Exception]


E = TypeVar("E", contravariant=True)


class CarriesOut(Protocol[E]):
    """How an engine carries out what has been checked: its module `batch_orders`."""

    def single(self, engine: E, e: int, order: SingleOrder, /) -> None:
        """One order; raises `ValueError` if it is not possible, and changes nothing then."""

    def pools(self, engine: E, orders: PoolOrders, /) -> NDArray[np.int64]:
        """(E, P) instances that could not be started."""

    def queues(self, engine: E, orders: QueueOrders, /) -> None: ...

    def places(self, engine: E, orders: PlaceOrders, /) -> None: ...

    def endpoints(self, engine: E, orders: EndpointOrders, /) -> None: ...


def carry_out(engine: E, orders: Orders, shape: tuple[int, int], how: CarriesOut[E]) -> Outcome:
    """What `apply` means in both engines: in which order things take effect, and what is reported.

    Args:
        engine: whose episodes.
        orders: for all of them, which have been checked (`sim.order_checks`).
        shape: (E, P).
        how: what the engine does.
    """
    refused: dict[int, Exception] = {}

    def one_by_one(singles: list[tuple[int, SingleOrder]], begin: int) -> None:
        for k, (e, order) in enumerate(singles, begin):
            try:
                how.single(engine, e, order)
            except RouterError:  # it was possible; the user's function has failed
                raise
            except (OverflowError, TypeError, ValueError) as error:  # numbers have 64 bits
                refused[k] = error

    one_by_one(orders.first, 0)
    missing = np.zeros(shape, np.int64)
    if orders.pools is not None:
        missing = how.pools(engine, orders.pools)
    if orders.queues is not None:
        how.queues(engine, orders.queues)
    if orders.places is not None:
        how.places(engine, orders.places)
    if orders.endpoints is not None:
        how.endpoints(engine, orders.endpoints)
    one_by_one(orders.last, len(orders.first))
    return Outcome(missing, refused)


def headed(order: Sequence[int], head: int) -> tuple[int, ...]:
    """Regions in `order`, but with one of them first, if it is there."""
    return tuple(sorted(order, key=lambda j: j != head))
