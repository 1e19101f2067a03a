"""Regions as a controller sees and commands them: endpoints, spot VMs, requests that can wait.

An endpoint is all that serves an LLM in a region (SageServe, section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile_regions import SCALING_KINDS, managed, ppm, spot_groups
from llmscale_env.sim.orders import SetManagers, SetRegional, SetScaling, SingleOrder
from llmscale_env.sim.picoseconds import ps
from llmscale_env.sim.spec import InstanceState, ScalingThresholds
from llmscale_env.sim.spec.region_checks import check_regional
from llmscale_env.workload.requests import PS_PER_S

if TYPE_CHECKING:
    from llmscale_env.control.command import Command
    from llmscale_env.sim.engine import Engine

T = TypeVar("T")

THRESHOLDS = {
    "high": "high_ppm",
    "low": "low_ppm",
    "above": "above_ppm",
    "below": "below_ppm",
    "last_s": "last_ps",
}
"""Of `ScalingOrder.thresholds`, and the engine's names for them."""

HIGHEST = 1e12
"""Of utilisations, targets and tokens per second: in millionths they fit into 64 bits. The engine's own
bounds are lower."""


@dataclass(frozen=True)
class ScalingOrder:
    """The beginning of an hour of a pool's rule (docs/engine.md, section 17).

    Attributes:
        kind: "none", "reactive", "target" (LT-U) or "target-ahead" (LT-UA).
        target: instances that are planned for; None: no plan.
        forecast_tokens_per_s: load that is expected of the clients of its region.
        thresholds: in place of the pool's own numbers until its next order: any of "high", "low", "above",
            "below" and "last_s" (`scenarios.regions.ScalingConfig`).
    """

    kind: str
    target: int | None = None
    forecast_tokens_per_s: float = 0.0
    thresholds: Mapping[str, float] = field(default_factory=dict)


class RegionPlaces:
    """Which pool, queue and manager is where.

    Attributes:
        regions, llms: names, in order.
        region, llm: (P,) of each pool.
        group: (P,) of its spot VMs, -1: none.
        gpus: (P,) GPUs of an instance.
        managers: (queue, region of the pools, pools) of each queue manager.
    """

    def __init__(self, scenario: Scenario) -> None:
        pools = scenario.fleet.pools
        self.regions, self.llms = scenario.region_names, scenario.fleet.llms
        self.region = np.array([self.regions.index(scenario.region_of(p.region)) for p in pools])
        self.llm = np.array([self.llms.index(pool.llm) for pool in pools])
        self.group = np.array(spot_groups(scenario))
        self.gpus = np.array([pool.tp for pool in pools])
        self.managers = managed(scenario)


@dataclass(frozen=True)
class RegionsSeen:
    """Pools and endpoints at an instant; see `RegionPlaces` for who is where.

    Attributes:
        places: names and numbers.
        kv_tokens, kv_capacity: (P,) of active instances: their quotient is the effective memory utilisation.
            With `fleet.utilisation: demanded` the memory that waiting requests will ask for counts.
        active, on_their_way, draining, donating: (P,) instances; on their way: acquiring and loading.
        spot: (P,) VMs that are leased out with the pool's LLM.
        waiting: (Q,) requests in each shared queue with a name.
        oldest_s: (Q,) age of the oldest of them, 0 without any.
        thresholds: (K, 2) utilisations of each queue manager below which a signal takes one request, and two.
    """

    places: RegionPlaces
    kv_tokens: NDArray[np.int64]
    kv_capacity: NDArray[np.int64]
    active: NDArray[np.int64]
    on_their_way: NDArray[np.int64]
    draining: NDArray[np.int64]
    donating: NDArray[np.int64]
    spot: NDArray[np.int64]
    waiting: NDArray[np.int64]
    oldest_s: NDArray[np.float64]
    thresholds: NDArray[np.float64]

    @property
    def instances(self) -> NDArray[np.int64]:
        """(P,) instances that a target counts."""
        return self.active + self.on_their_way

    @property
    def vms(self) -> NDArray[np.int64]:
        """(P,) VMs that have, or are getting, the pool's LLM: in service, on their way, or leased out."""
        return self.instances + self.draining + self.donating + self.spot

    @property
    def utilisation(self) -> NDArray[np.float64]:
        """(P,) effective memory utilisation; infinite where no instance is active."""
        return _share(self.kv_tokens, self.kv_capacity)

    @property
    def endpoint_utilisation(self) -> NDArray[np.float64]:
        """(M, R) of all pools of an LLM in a region; infinite where no instance is active."""
        return _share(self.by_endpoint(self.kv_tokens), self.by_endpoint(self.kv_capacity))

    def by_endpoint(self, of_pools: NDArray[Any]) -> NDArray[Any]:
        """(M, R) sums of something that is known of pools."""
        places = self.places
        found = np.zeros((len(places.llms), len(places.regions)), of_pools.dtype)
        np.add.at(found, (places.llm, places.region), of_pools)
        return found


def _share(used: NDArray[np.int64], room: NDArray[np.int64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(room > 0, used / np.maximum(room, 1), np.inf)


def used_tokens(scenario: Scenario, pools: NDArray[Any]) -> NDArray[np.int64]:
    """KV tokens of pools (rows of `POOL_SEEN`) that utilisations count."""
    used: NDArray[np.int64] = pools["kv_tokens"].copy()
    if scenario.fleet.utilisation == "demanded":
        used += pools["waiting_tokens"]
    return used


def see_regions(scenario: Scenario, engine: Engine, e: int) -> RegionsSeen:
    """What stands in episode `e` now; counts in windows must have been closed."""
    places = RegionPlaces(scenario)
    pools = engine.pool_seen[e]
    queues = engine.queue_seen[e, : len(scenario.fleet.queues)]
    donate = engine.instances(e)["state"] == InstanceState.DONATING
    donating = np.bincount(np.array(engine.spec.pool_of_slot)[donate], minlength=len(pools))
    oldest, now_ps = queues["oldest_ps"], engine.now_ps(e)
    return RegionsSeen(
        places=places,
        kv_tokens=used_tokens(scenario, pools),
        kv_capacity=pools["kv_capacity"].copy(),
        active=pools["active"].copy(),
        on_their_way=pools["acquiring"] + pools["loading"],
        draining=pools["draining"].copy(),
        donating=donating.astype(np.int64),
        spot=engine.spot(e)["spot"].astype(np.int64),
        waiting=queues["requests"].copy(),
        oldest_s=np.where(oldest < 0, 0.0, (now_ps - oldest) / PS_PER_S),
        thresholds=engine.manager_ppm(e) / 1e6,
    )


class RegionTranslator:
    """Turns what a command orders about regions into orders.

    What is wrong is a `KeyError` (an unknown name), a `TypeError` (no number where one must be, NaN included,
    or no order at all) or a `ValueError` (a value that is not possible).
    """

    def __init__(self, scenario: Scenario, engine: Engine) -> None:
        self.engine = engine
        self._places = RegionPlaces(scenario)
        self._pools = {pool.name: p for p, pool in enumerate(scenario.fleet.pools)}
        self._classes = {c.name: k for k, c in enumerate(scenario.classes)}
        self._regions = {name: j for j, name in enumerate(scenario.region_names)}

    def orders(
        self, e: int, command: Command, refuse: Callable[[str, Exception], None]
    ) -> Iterator[tuple[str, SingleOrder]]:
        """(what it is called, order) in sequence; what is wrong goes to `refuse` by its name."""
        self._takes: dict[tuple[int, int], list[int]] = {}  # thresholds as they will be
        parts: list[tuple[str, Callable[[], list[SingleOrder]]]] = []
        for where, threshold in command.regional_threshold.items():
            what = f"regional_threshold.{in_words(where)} = {threshold!r}"
            parts.append((what, partial(self._threshold, e, where, threshold)))
        for slo_class, preference in command.regional_preference.items():
            what = f"regional_preference.{slo_class}"
            parts.append((what, partial(self._preference, e, slo_class, preference)))
        if command.background:
            parts.append(("background", partial(self._background, e, command.background)))
        for pool, order in command.scaling.items():
            parts.append((f"scaling.{pool}", partial(self._scaling, pool, order)))
        for what, part in parts:
            try:
                found = part()
            except (KeyError, TypeError, ValueError) as error:
                refuse(what, error)
            else:
                yield from ((what, single) for single in found)

    def _threshold(
        self, e: int, where: tuple[str, str] | str, threshold: float
    ) -> list[SingleOrder]:
        """Utilisation below which a region is taken, for all LLMs of a class; of one region or of all."""
        slo_class, region = (where, None) if isinstance(where, str) else where
        value = ppm(_number("threshold", threshold))
        each = slice(None) if region is None else _known(region, self._regions, "region")
        found: list[SingleOrder] = []
        for m, c in self._routes(slo_class):
            takes = np.array(self._takes.get((m, c)) or self.engine.regional(e, m, c)[0])
            takes[each] = value
            check_regional(self.engine.spec, m, c, takes.tolist(), None)
            self._takes[m, c] = takes.tolist()
            found.append(SetRegional(m, c, threshold_ppm=takes.tolist()))
        return found

    def _preference(
        self, e: int, slo_class: str, orders: Mapping[str, Sequence[str]]
    ) -> list[SingleOrder]:
        """Orders of regions, for all LLMs of a class; clients' regions left out stay as they are."""
        given = {
            _known(client, self._regions, "region"): [
                _known(name, self._regions, "region") for name in order
            ]
            for client, order in orders.items()
        }
        found: list[SingleOrder] = []
        for m, c in self._routes(slo_class):
            rows = list(self.engine.regional(e, m, c)[1])
            for client, order in given.items():
                # A route of an LLM that is not everywhere has fewer regions.
                rows[client] = tuple(j for j in order if j in rows[client]) or rows[client]
            found.append(SetRegional(m, c, preference=tuple(rows)))
        return found

    def _background(
        self, e: int, thresholds: Mapping[tuple[str, str] | str, tuple[float, float]]
    ) -> list[SingleOrder]:
        """Thresholds of queue managers, by queue and region, or by queue for all regions."""
        one, two = self.engine.manager_ppm(e).T.copy()
        for key, values in thresholds.items():
            queue, region = (key, None) if isinstance(key, str) else key
            mine = [
                k
                for k, (name, where, _) in enumerate(self._places.managers)
                if name == queue and region in (None, where)
            ]
            if not mine:
                known = [f"{name}/{where}" for name, where, _ in self._places.managers]
                raise KeyError(f"{key!r}: there is no such queue manager; there are {known}")
            if not (isinstance(values, Sequence) and len(values) == 2):
                raise TypeError(f"{key!r}: {values!r}: must be two utilisations")
            first, second = (ppm(_number("threshold", value)) for value in values)
            one[mine], two[mine] = first, second
        return [SetManagers(one, two)]

    def _scaling(self, pool: str, order: ScalingOrder) -> list[SingleOrder]:
        """The beginning of an hour of a pool's rule."""
        p = _known(pool, self._pools, "pool")
        if not isinstance(order, ScalingOrder):
            raise TypeError(f"{order!r}: must be a ScalingOrder")
        kind = int(_known(order.kind, SCALING_KINDS, "kind"))
        target = -1 if order.target is None else _whole("target", order.target)
        forecast = _number("forecast_tokens_per_s", order.forecast_tokens_per_s)
        thresholds = self._thresholds(p, order.thresholds) if order.thresholds else None
        return [SetScaling(p, kind, target, round(forecast * 1e6), thresholds)]

    def _thresholds(self, p: int, given: Mapping[str, float]) -> ScalingThresholds:
        """Those of pool `p`, the given ones replaced."""
        own = self.engine.spec.pools[p].scaling
        if own is None:
            raise ValueError("pool: has no scaling")
        if not isinstance(given, Mapping):
            raise TypeError(
                f"thresholds = {given!r}: must be a mapping of any of {list(THRESHOLDS)}"
            )
        found = {name: getattr(own, name) for name in THRESHOLDS.values()}
        for name, value in given.items():
            field_name = _known(name, THRESHOLDS, "threshold")
            number = _number(name, value)
            found[field_name] = ps(number) if name == "last_s" else ppm(number)
        return ScalingThresholds(**found)

    def _routes(self, slo_class: str) -> list[tuple[int, int]]:
        c = _known(slo_class, self._classes, "class")
        routes = self.engine.spec.routes
        found = [(m, c) for m, row in enumerate(routes) if row[c].preference]
        if not found:
            raise ValueError(f"class {slo_class!r}: no route of kind regional")
        return found


def in_words(key: tuple[str, str] | str) -> str:
    """A name, or two with a slash between them."""
    return key if isinstance(key, str) else "/".join(key)


def _known(name: str, known: Mapping[str, T], what: str) -> T:
    if name not in known:
        raise KeyError(f"{what} {name!r} is unknown; there are {list(known)}")
    return known[name]


def _number(name: str, value: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise TypeError(f"{name} = {value!r}: must be a number")
    if number < 0:
        raise ValueError(f"{name} = {value!r}: must be at least 0")
    if number > HIGHEST:
        raise ValueError(f"{name} = {value!r}: must be at most {HIGHEST:g}")
    return number


def _whole(name: str, value: float) -> int:
    number = _number(name, value)
    if number != int(number):
        raise TypeError(f"{name} = {value!r}: must be a whole number")
    return int(number)
