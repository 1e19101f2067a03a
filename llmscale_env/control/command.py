"""What a controller may order, and the orders of the engine that it becomes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from llmscale_env.control.regions import RegionTranslator, ScalingOrder, in_words
from llmscale_env.scenarios.fleet import PlacementConfig
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim import orders as order
from llmscale_env.sim.compile import CONTROLLERS, SOURCES
from llmscale_env.sim.engine import Engine
from llmscale_env.sim.orders import Loads, Orders, PoolOrders, SingleOrder
from llmscale_env.sim.spec import (
    DECODE_KINDS,
    Fallback,
    PlacementSpec,
    PullRule,
    RouterKind,
)
from llmscale_env.sim.spec.checks import check_router
from llmscale_env.workload.requests import PS_PER_S

Pairs = tuple[Sequence[int] | NDArray[Any], Sequence[int] | NDArray[Any]]
"""Requests, and for each where it goes or how it is to be, as two arrays."""
_OPERATIONS = ("pull_rule", "evicts_in_order", "swap_flushes", "static_batch")

RULES = {kind.name.lower().replace("_", "-"): kind for kind in RouterKind}
"""Routing rules by the names that scenarios and commands use."""


class CommandError(ValueError):
    """An order that cannot be carried out; the message says which and why."""


@dataclass(frozen=True)
class Command:
    """Orders for one control interval; what is left out stays as it is.

    Attributes:
        targets: instances that a pool should have (acquiring, loading and active ones count).
        load_source: where started instances load weights from, by pool or for all: "ssd", "host",
            "multicast". Where the source is not there, the next slower one is used.
        batch_limits: running requests per instance, by pool.
        instance_batch_limits: the same for single instances (by number); `batch_limits` of this command
            come first.
        controllers: who moves the batch limits, by pool: "fixed", "chiron", "chiron-literal".
        overflow_share: share of a class's requests that try the overflow pools first, by class.
        routers: routing rule by class (as in a scenario's routes).
        drain: instances (by number) to drain.
        evict: how many running low-priority requests an instance (by number) should send back.
        move_waiting: (from, to, count): so many of the requests that wait at an instance (by
            number), the last ones, go to the end of another's queue.
        pull: shared queues (by number: those with a name in the scenario's order, then the group
            queues) that an instance (by number) pulls from, in order: its virtual queue.
        regroup: (request, queue) pairs as two arrays: these waiting requests go to the ends of those
            queues, in this order.
        arrival_queues: where requests of an (LLM, class) join from now on: (upper bounds of input
            tokens, rising; queues, one more).
        operations: what a pool's instances do by themselves, by pool: any of `pull_rule` ("in-order",
            "earliest-deadline"), `evicts_in_order`, `swap_flushes`, `static_batch`.
        decode_routers: rule by class by which requests go from prefill to decode instances.
        placement: what best fit goes by, by class: any fields of a scenario's `placement`.
        placement_models: times of single instances (by number) for best fit, in seconds: constant and per
            token of prefill; constant, per request and per token of context of decode. None: as the others.
        predictions: (request, tokens) pairs as two arrays: new predicted output lengths, in all.
        drift: instances (by number) whose iterations from now on take so many times as long as built: 1, or
            one of their pool's `drifts`; until they load anew.
        assign: (request, instance) pairs as two arrays: these requests, which wait in gateways or at
            instances, go to the ends of those instances' own queues, in this order.
        route_gateway: LLMs whose requests in gateways are routed again, after all the above.
        mutate: active instances (by number) that drain, and whose twins serve in their place; before all the
            above.
        scale: loads to start, all of them or none, after all the other orders but those of failures.
        scaling: an hour of a pool's rule of scaling begins, by pool (pools that have `scaling`).
        regional_threshold: effective memory utilisation below which a region is taken, by class (routes of
            kind "regional", of all LLMs), or by (class, region).
        regional_preference: by class, and by region of the client, its regions in order.
        background: (one, two) utilisations below which a signal takes one request that can wait, and two; by
            (queue, region of the endpoint), or by queue for all regions. Zeros hold everything back.
        fail: instances (by number) that break down.
        fail_host: machines (by number) that break down with all that they have in memory.
        reason: for the decision log; the engine does not read it.
    """

    targets: Mapping[str, int] = field(default_factory=dict)
    load_source: Mapping[str, str] | str | None = None
    batch_limits: Mapping[str, int] = field(default_factory=dict)
    instance_batch_limits: Mapping[int, int] = field(default_factory=dict)
    controllers: Mapping[str, str] = field(default_factory=dict)
    overflow_share: Mapping[str, float] = field(default_factory=dict)
    routers: Mapping[str, str] = field(default_factory=dict)
    drain: tuple[int, ...] = ()
    evict: Mapping[int, int] = field(default_factory=dict)
    move_waiting: tuple[tuple[int, int, int], ...] = ()
    pull: Mapping[int, Sequence[int]] = field(default_factory=dict)
    regroup: Pairs | None = None
    arrival_queues: Mapping[tuple[str, str], tuple[Sequence[int], Sequence[int]]] = field(
        default_factory=dict
    )
    operations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    decode_routers: Mapping[str, str] = field(default_factory=dict)
    placement: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    placement_models: Mapping[int, Sequence[float] | None] = field(default_factory=dict)
    predictions: Pairs | None = None
    drift: Mapping[int, float] = field(default_factory=dict)
    assign: Pairs | None = None
    route_gateway: tuple[str, ...] = ()
    mutate: tuple[int, ...] = ()
    scale: Loads | None = None
    scaling: Mapping[str, ScalingOrder] = field(default_factory=dict)
    regional_threshold: Mapping[tuple[str, str] | str, float] = field(default_factory=dict)
    regional_preference: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    background: Mapping[tuple[str, str] | str, tuple[float, float]] = field(default_factory=dict)
    fail: tuple[int, ...] = ()
    fail_host: tuple[int, ...] = ()
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The orders given, without the empty fields; of pairs only how many requests they are about."""
        given = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name in ("regroup", "predictions", "assign"):
            if given[name] is not None:
                given[name] = len(given[name][0])
        if self.scale is not None:
            given["scale"] = asdict(self.scale) if len(self.scale) else None
        given["scaling"] = {name: asdict(order) for name, order in self.scaling.items()}
        given["background"] = {
            in_words(key): tuple(values) for key, values in self.background.items()
        }
        given["regional_threshold"] = {
            in_words(key): value for key, value in self.regional_threshold.items()
        }
        given["arrival_queues"] = {
            "/".join(key): value for key, value in self.arrival_queues.items()
        }
        return {name: value for name, value in given.items() if value}


class Dispatcher:
    """Turns commands into orders (`sim.orders`), and counts those that could not be carried out.

    Names become numbers. What is out of range is clipped; what the engine refuses counts for nothing.

    Args:
        scenario: names and limits; `impossible_commands` says what happens to an impossible order.
        engine: whose episodes are commanded.
    """

    def __init__(self, scenario: Scenario, engine: Engine) -> None:
        self.scenario = scenario
        self.engine = engine
        self._pools = {pool.name: p for p, pool in enumerate(scenario.fleet.pools)}
        self._classes = {c.name: k for k, c in enumerate(scenario.classes)}
        self._llms = {name: m for m, name in enumerate(scenario.fleet.llms)}
        self._regions = RegionTranslator(scenario, engine)

    def apply(self, commands: Mapping[int, Command]) -> NDArray[np.int64]:
        """Carry out `commands`, by episode, at the present time.

        Returns:
            (E,) how many orders were clipped (an instance that could not be started counts as one).

        Raises:
            CommandError: an unknown name or a value that is no number; with
                `impossible_commands: error` also a value out of range.
        """
        self._orders = Orders()
        # Of each single order the episode, what it is called, and a number; equal ones count as one.
        self._about: list[tuple[int, str, int]] = []
        self._clipped = np.zeros(self.engine.n_episodes, np.int64)
        for e, command in commands.items():
            self._translate(e, command)
        missing, refused = self.engine.apply(self._orders)
        for e, p in np.argwhere(missing).tolist():
            pool = self.scenario.fleet.pools[p]
            gpus = f"max_gpus = {self.scenario.fleet.max_gpus} allows"
            why = "spot VMs there are" if pool.spot else gpus
            of = f"targets.{pool.name} = {commands[e].targets[pool.name]}"
            self._impossible(e, f"{of}: {missing[e, p]} more than {why}", int(missing[e, p]))
        for (e, what, _), error in {self._about[k]: error for k, error in refused.items()}.items():
            self._refuse(e, what, error)
        return self._clipped

    def _translate(self, e: int, command: Command) -> None:
        """Orders in the sequence in which they take effect."""
        for instance in command.mutate:  # first: a target does not count who becomes another
            self._about.insert(len(self._orders.first), (e, "mutate", len(self._about)))
            self._orders.first.append((e, order.Mutate(instance)))
        self._of_pools(e, command)
        for instance, limit in command.instance_batch_limits.items():
            what = f"instance_batch_limits.{instance}"
            self._single(e, what, order.SetInstanceLimit(instance, limit))
        for name, kind in command.controllers.items():
            p = self._pool(name, "controllers")
            controller = _choice(kind, CONTROLLERS, f"controllers.{name}")
            self._single(e, f"controllers.{name}", order.SetController(p, controller))
        self._of_serving(e, command)
        self._of_queues(e, command)
        self._of_placement(e, command)
        for what, single in self._regions.orders(e, command, partial(self._refuse, e)):
            self._single(e, what, single, 0)  # one for every LLM
        if command.scale is not None:
            self._single(e, "scale", command.scale)
        for instance in command.fail:
            self._single(e, "fail", order.Fail(instance))
        for host in command.fail_host:
            self._single(e, "fail_host", order.FailHost(host))

    def _single(self, e: int, what: str, single: SingleOrder, number: int | None = None) -> None:
        self._about.append((e, what, len(self._about) if number is None else number))
        self._orders.last.append((e, single))

    # ---- by mechanism ----

    def _of_pools(self, e: int, command: Command) -> None:
        pools, source = self.scenario.fleet.pools, command.load_source
        self._check_sources(source)
        if not (command.targets or command.batch_limits or command.overflow_share):
            return
        orders = self._orders.pools
        if orders is None:
            n, n_classes = self.engine.n_episodes, len(self.scenario.classes)
            orders = self._orders.pools = PoolOrders.none(n, len(pools), n_classes)
        for name, count in command.targets.items():
            p = self._pool(name, "targets")
            top = pools[p].max_instances
            orders.targets[e, p] = self._whole(e, count, 0, top, f"targets.{name}")
            given = source.get(name) if isinstance(source, Mapping) else source
            if given is not None:
                orders.sources[e, p] = _choice(given, SOURCES, "load_source")
        for name, limit in command.batch_limits.items():
            p = self._pool(name, "batch_limits")
            top = pools[p].max_batch
            orders.limits[e, p] = self._whole(e, limit, 1, top, f"batch_limits.{name}")
        for name, share in command.overflow_share.items():
            fraction = self._fraction(e, share, f"overflow_share.{name}")
            orders.shares[e, self._class(name, "overflow_share")] = fraction

    def _check_sources(self, source: Mapping[str, str] | str | None) -> None:
        """Refuse unknown pools and sources, whether or not anything is started now."""
        if isinstance(source, Mapping):
            for name, value in source.items():
                self._pool(name, "load_source")
                _choice(value, SOURCES, f"load_source.{name}")
        elif source is not None:
            _choice(source, SOURCES, "load_source")

    def _of_serving(self, e: int, command: Command) -> None:
        for name, rule in command.routers.items():
            c = self._class(name, "routers")
            chosen = _choice(rule, RULES, f"routers.{name}")
            for m in self._llms.values():
                try:
                    check_router(self.engine.spec, m, c, chosen)
                except ValueError as error:
                    raise CommandError(f"routers.{name} = {rule!r}: {error}") from None
                self._single(e, f"routers.{name}", order.SetRouter(m, c, chosen))
        top = self.engine.spec.n_instances - 1
        for instance in command.drain:
            if (number := self._exactly(e, instance, 0, top, "drain")) is not None:
                self._single(e, "drain", order.Drain(number))
        for instance, count in command.evict.items():
            if (number := self._exactly(e, instance, 0, top, "evict")) is not None:
                value = self._whole(e, count, 0, 2**31 - 1, f"evict.{number}")
                self._single(e, f"evict.{number}", order.Evict(number, value))
        for move in command.move_waiting:
            try:
                source, target, count = move
            except (TypeError, ValueError):
                raise CommandError(f"move_waiting: {move!r}: must be (from, to, count)") from None
            before = self._clipped[e]
            start = self._exactly(e, source, 0, top, "move_waiting: instance")
            end = self._exactly(e, target, 0, top, "move_waiting: instance")
            value = self._whole(e, count, 0, 2**31 - 1, "move_waiting: count")
            self._clipped[e] = min(self._clipped[e], before + 1)
            if start is not None and end is not None:
                self._single(e, "move_waiting", order.MoveWaiting(start, end, value))
        for name, changes in command.operations.items():
            self._operate(e, name, changes)

    def _operate(self, e: int, name: str, changes: Mapping[str, Any]) -> None:
        where = f"operations.{name}"
        given = dict(changes)
        for key in given:
            _choice(key, dict.fromkeys(_OPERATIONS, 0), where)
        if "pull_rule" in given:
            rules = {rule.name.lower().replace("_", "-"): rule for rule in PullRule}
            given["pull_rule"] = _choice(given["pull_rule"], rules, f"{where}.pull_rule")
        for key, value in given.items():
            if key != "pull_rule" and not isinstance(value, (bool, np.bool_)):
                raise CommandError(f"{where}.{key} = {value!r}: must be True or False")
        self._single(e, where, order.SetOperations(self._pool(name, "operations"), **given))

    def _of_queues(self, e: int, command: Command) -> None:
        """Groups first, then who pulls from them."""
        if command.regroup is not None:
            self._single(e, "regroup", order.Regroup(*_pairs("regroup", command.regroup)))
        for (llm, slo_class), (uppers, queues) in command.arrival_queues.items():
            m = _choice(llm, self._llms, "arrival_queues")
            c = self._class(slo_class, "arrival_queues")
            what = f"arrival_queues.{llm}/{slo_class}"
            tokens = tuple(self._whole(e, upper, 0, 2**62, what) for upper in uppers)
            self._single(e, what, order.SetArrivalQueues(m, c, tokens, tuple(queues)))
        for instance, queues in command.pull.items():
            self._single(e, f"pull.{instance}", order.SetPull(instance, tuple(queues)))

    def _of_placement(self, e: int, command: Command) -> None:
        """Rules first, then predictions, then who goes where."""
        kinds = {name: kind for name, kind in RULES.items() if kind in DECODE_KINDS}
        for name, rule in command.decode_routers.items():
            c, kind = self._class(name, "decode_routers"), _choice(rule, kinds, "decode_routers")
            for m in self._llms.values():
                self._single(e, f"decode_routers.{name}", order.SetDecodeRouter(m, c, kind))
        for name, changes in command.placement.items():
            c = self._class(name, "placement")
            for m in self._llms.values():
                now = self.engine.placement(e, m, c)
                if now is not None:  # a route of this LLM is by best fit
                    what = f"placement.{name}"
                    new = _changed_placement(what, now, changes)
                    self._single(e, what, order.SetPlacement(m, c, new))
        for i, model in command.placement_models.items():
            what = f"placement_models.{i}"
            ps = None if model is None else [_number(x, what, "numbers") * PS_PER_S for x in model]
            self._single(e, what, order.SetPlacementModel(i, ps))
        if command.predictions is not None:
            pairs = _pairs("predictions", command.predictions)
            self._single(e, "predictions", order.SetPredictions(*pairs))
        for i, factor in command.drift.items():
            try:
                self._single(e, f"drift.{i}", self._drift(i, factor))
            except ValueError as error:
                self._refuse(e, f"drift.{i}", error)
        if command.assign is not None:
            self._single(e, "assign", order.Assign(*_pairs("assign", command.assign)))
        for llm in command.route_gateway:
            m = _choice(llm, self._llms, "route_gateway")
            self._single(e, "route_gateway", order.RouteGateway(m))

    def _drift(self, instance: int, factor: float) -> order.SetProfile:
        pools = self.engine.spec.pool_of_slot
        if not (isinstance(instance, (int, np.integer)) and 0 <= instance < len(pools)):
            raise ValueError(f"must be in 0..{len(pools) - 1}")
        p = pools[instance]
        factors = self.scenario.fleet.pools[p].drifts
        known = {1.0: self.engine.spec.pools[p].profile}
        known |= dict(zip(factors, self.engine.spec.pools[p].drifts, strict=True))
        if factor not in known:
            raise ValueError(f"{factor}: must be one of {sorted(known)}")
        return order.SetProfile(instance, known[factor])

    # ---- parts ----

    def _pool(self, name: str, where: str) -> int:
        return _choice(name, self._pools, where)

    def _class(self, name: str, where: str) -> int:
        return _choice(name, self._classes, where)

    def _whole(self, e: int, value: Any, low: int, high: int, where: str) -> int:
        number = _number(value, where, "a whole number")
        clipped = min(max(number, low), high)
        if clipped != number:
            self._impossible(e, f"{where} = {value!r}: must be in {low}..{high}")
        elif clipped != int(clipped):
            raise CommandError(f"{where} = {value!r}: must be a whole number")
        return int(clipped)

    def _exactly(self, e: int, value: Any, low: int, high: int, where: str) -> int | None:
        """The same, but what is out of range names nothing: None."""
        before = self._clipped[e]
        number = self._whole(e, value, low, high, where)
        return number if self._clipped[e] == before else None

    def _fraction(self, e: int, value: Any, where: str) -> float:
        number = _number(value, where, "a number in 0..1")
        clipped = min(max(number, 0.0), 1.0)
        if clipped != number:
            self._impossible(e, f"{where} = {value!r}: must be in 0..1")
        return clipped

    def _refuse(self, e: int, what: str, error: Exception) -> None:
        """An order that is not possible counts; one that no cluster could carry out is an error."""
        if isinstance(error, KeyError):
            raise CommandError(f"{what}: {error.args[0]}") from None
        if isinstance(error, TypeError):
            raise CommandError(f"{what}: {error}") from error
        self._impossible(e, f"{what}: {error}")

    def _impossible(self, e: int, message: str, count: int = 1) -> None:
        if self.scenario.impossible_commands == "error":
            raise CommandError(message)
        self._clipped[e] += count


def _pairs(what: str, given: Pairs) -> Pairs:
    try:
        one, other = given
    except (TypeError, ValueError):
        raise CommandError(f"{what}: must be two arrays of the same length") from None
    return one, other


def _changed_placement(what: str, now: PlacementSpec, changes: Mapping[str, Any]) -> PlacementSpec:
    """`now` with some fields as a scenario's `placement` has them."""
    try:
        config = PlacementConfig(**changes)
    except ValidationError as error:  # no cluster could carry this out
        found = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in found["loc"])
        raise CommandError(f"{what}: {where} = {found['input']!r}: {found['msg']}") from None
    given = {name: getattr(config, name) for name in changes}
    if "fallback" in given:
        given["fallback"] = Fallback[given["fallback"].upper()]
    new = {}
    for name, value in given.items():
        if not name.endswith("_s"):
            new[name] = value
        elif value is not None:
            times = value * PS_PER_S
            new[f"{name[:-2]}_ps"] = round(times) if name in ("ttft_s", "itl_s") else times
    return replace(now, **new)


def _number(value: Any, where: str, kind: str) -> float:
    """As a float; infinite if there is none so large."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise CommandError(f"{where} = {value!r}: must be {kind}")
    return number


def _choice(name: Any, known: Mapping[str, int], where: str) -> int:
    if not isinstance(name, str) or name not in known:
        raise CommandError(f"{where}: {name!r} is unknown; there are {list(known)}")
    return int(known[name])
