"""What a controller may order, and how an order reaches an engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from llmscale_env.control.regions import RegionDispatcher, ScalingOrder
from llmscale_env.scenarios.fleet import PlacementConfig
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import CONTROLLERS, SOURCES
from llmscale_env.sim.engine import Engine
from llmscale_env.sim.orders import Loads
from llmscale_env.sim.spec import (
    DECODE_KINDS,
    Fallback,
    InstanceState,
    PullRule,
    RouterKind,
)
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
        given["background"] = {_text(key): tuple(values) for key, values in self.background.items()}
        given["regional_threshold"] = {
            _text(key): value for key, value in self.regional_threshold.items()
        }
        given["arrival_queues"] = {
            "/".join(key): value for key, value in self.arrival_queues.items()
        }
        return {name: value for name, value in given.items() if value}


class Dispatcher:
    """Carries out commands on an engine: names become numbers, impossible orders are clipped or refused.

    Args:
        scenario: names and limits; `impossible_commands` says what happens to an impossible order.
        engine: whose episodes are commanded.
    """

    def __init__(self, scenario: Scenario, engine: Engine) -> None:
        self.scenario = scenario
        self.engine = engine
        self._pools = {pool.name: p for p, pool in enumerate(scenario.fleet.pools)}
        self._classes = {c.name: k for k, c in enumerate(scenario.classes)}
        self._regions = RegionDispatcher(scenario, engine)

    def apply(self, e: int, command: Command) -> int:
        """Carry out `command` in episode `e` at its present time.

        Returns:
            How many orders were clipped (an instance that could not be started counts as one).

        Raises:
            CommandError: an unknown name or a value that is no number; with
                `impossible_commands: error` also a value out of range.
        """
        clipped = 0
        for instance in command.mutate:  # first: a target does not count who becomes another
            clipped += self._refused("mutate", self.engine.mutate, e, instance)
        plan = self._targets(command)
        # Falling targets first: they free GPUs for the rising ones.
        have = self.engine.instances(e)["state"]
        order = sorted(plan, key=lambda t: t[1] - self._present(have, t[0]))
        for p, count, source, was_clipped in order:
            missing = self.engine.set_target(e, p, count, source)
            clipped += was_clipped + missing
            if missing:
                pool = self.scenario.fleet.pools[p]
                gpus = f"max_gpus = {self.scenario.fleet.max_gpus} allows"
                why = "spot VMs there are" if pool.spot else gpus
                self._impossible(f"targets.{pool.name} = {count}: {missing} more than {why}")
        for name, limit in command.batch_limits.items():
            p = self._pool(name, "batch_limits")
            top = self.scenario.fleet.pools[p].max_batch
            value, was_clipped = self._whole(limit, 1, top, f"batch_limits.{name}")
            clipped += was_clipped
            self.engine.set_batch_limit(e, p, value)
        for instance, limit in command.instance_batch_limits.items():
            what = f"instance_batch_limits.{instance}"
            clipped += self._refused(what, self.engine.set_instance_limit, e, instance, limit)
        for name, kind in command.controllers.items():
            p = self._pool(name, "controllers")
            self.engine.set_controller(e, p, _choice(kind, CONTROLLERS, f"controllers.{name}"))
        for name, share in command.overflow_share.items():
            fraction, was_clipped = self._fraction(share, f"overflow_share.{name}")
            clipped += was_clipped
            for m in range(len(self.scenario.fleet.llms)):
                c = self._class(name, "overflow_share")
                self.engine.set_overflow_share(e, m, c, fraction)
        for name, rule in command.routers.items():
            c = self._class(name, "routers")
            chosen = _choice(rule, RULES, f"routers.{name}")
            for m in range(len(self.scenario.fleet.llms)):
                try:
                    self.engine.set_router(e, m, c, chosen)
                except ValueError as error:
                    raise CommandError(f"routers.{name} = {rule!r}: {error}") from None
        for instance in command.drain:
            clipped += self._instance(e, instance, "drain", (InstanceState.ACTIVE,))
        for instance, count in command.evict.items():
            allowed = (InstanceState.ACTIVE, InstanceState.DRAINING)
            clipped += self._instance(e, instance, "evict", allowed, count)
        for move in command.move_waiting:
            clipped += self._move(e, move)
        for name, changes in command.operations.items():
            clipped += self._operate(e, name, changes)
        clipped += self._queues(e, command)
        clipped += self._placement(e, command)
        clipped += self._of_regions(e, command)
        if command.scale is not None:
            clipped += self._refused("scale", self._scale, e, command.scale)
        for instance in command.fail:
            clipped += self._refused("fail", self.engine.fail, e, instance)
        for host in command.fail_host:
            clipped += self._refused("fail_host", self.engine.fail_host, e, host)
        return clipped

    def _of_regions(self, e: int, command: Command) -> int:
        orders, refused = self._regions, 0
        for where, threshold in command.regional_threshold.items():
            what = f"regional_threshold.{_text(where)} = {threshold!r}"
            refused += self._refused(what, orders.threshold, e, where, threshold)
        for slo_class, preference in command.regional_preference.items():
            what = f"regional_preference.{slo_class}"
            refused += self._refused(what, orders.preference, e, slo_class, preference)
        if command.background:
            refused += self._refused("background", orders.background, e, command.background)
        for pool, order in command.scaling.items():
            refused += self._refused(f"scaling.{pool}", orders.scaling, e, pool, order)
        return refused

    def _scale(self, e: int, loads: Loads) -> None:
        self.engine.scale(e, loads.slots, loads.sources, loads.partners or None)

    def _operate(self, e: int, name: str, changes: Mapping[str, Any]) -> int:
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
        p = self._pool(name, "operations")
        return self._refused(where, partial(self.engine.set_operations, **given), e, p)

    def _queues(self, e: int, command: Command) -> int:
        """Groups first, then who pulls from them."""
        refused = 0
        if command.regroup is not None:
            refused += self._refused("regroup", self.engine.regroup, e, *command.regroup)
        for (llm, slo_class), (uppers, queues) in command.arrival_queues.items():
            llms = {name: m for m, name in enumerate(self.scenario.fleet.llms)}
            m, c = _choice(llm, llms, "arrival_queues"), self._class(slo_class, "arrival_queues")
            what = f"arrival_queues.{llm}/{slo_class}"
            bounds = [self._whole(upper, 0, 2**62, what) for upper in uppers]
            refused += sum(clipped for _, clipped in bounds)
            tokens = tuple(upper for upper, _ in bounds)
            refused += self._refused(
                what, self.engine.set_arrival_queues, e, m, c, tokens, tuple(queues)
            )
        for instance, order in command.pull.items():
            refused += self._refused(
                f"pull.{instance}", self.engine.set_pull, e, instance, tuple(order)
            )
        return refused

    def _placement(self, e: int, command: Command) -> int:
        """Rules first, then predictions, then who goes where."""
        kinds = {name: kind for name, kind in RULES.items() if kind in DECODE_KINDS}
        llms = {name: m for m, name in enumerate(self.scenario.fleet.llms)}
        refused = 0
        for name, rule in command.decode_routers.items():
            c, kind = self._class(name, "decode_routers"), _choice(rule, kinds, "decode_routers")
            for m in llms.values():
                what = f"decode_routers.{name}"
                refused += self._refused(what, self.engine.set_decode_router, e, m, c, kind)
        for name, changes in command.placement.items():
            c = self._class(name, "placement")
            for m in llms.values():
                refused += self._refused(f"placement.{name}", self._place, e, m, c, changes)
        for i, model in command.placement_models.items():
            what = f"placement_models.{i}"
            ps = None if model is None else [_number(x, what, "numbers") * PS_PER_S for x in model]
            refused += self._refused(what, self.engine.set_placement_model, e, i, ps)
        if command.predictions is not None:
            set_predictions = self.engine.set_predictions
            refused += self._refused("predictions", set_predictions, e, *command.predictions)
        for i, factor in command.drift.items():
            refused += self._refused(f"drift.{i}", self._drift, e, i, factor)
        if command.assign is not None:
            refused += self._refused("assign", self.engine.assign, e, *command.assign)
        for llm in command.route_gateway:
            self.engine.route_gateway(e, _choice(llm, llms, "route_gateway"))
        return refused

    def _place(self, e: int, llm: int, slo_class: int, changes: Mapping[str, Any]) -> None:
        now = self.engine.placement(e, llm, slo_class)
        if now is None:
            return  # no route of this LLM is by best fit
        try:
            config = PlacementConfig(**changes)
        except ValidationError as error:  # no cluster could carry this out
            what = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in what["loc"])
            raise TypeError(f"{where} = {what['input']!r}: {what['msg']}") from None
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
        self.engine.set_placement(e, llm, slo_class, replace(now, **new))

    def _drift(self, e: int, instance: int, factor: float) -> None:
        pools = self.engine.spec.pool_of_slot
        if not (isinstance(instance, (int, np.integer)) and 0 <= instance < len(pools)):
            raise ValueError(f"must be in 0..{len(pools) - 1}")
        p = pools[instance]
        factors = self.scenario.fleet.pools[p].drifts
        known = {1.0: self.engine.spec.pools[p].profile}
        known |= dict(zip(factors, self.engine.spec.pools[p].drifts, strict=True))
        if factor not in known:
            raise ValueError(f"{factor}: must be one of {sorted(known)}")
        self.engine.set_profile(e, instance, known[factor])

    def _refused(self, what: str, order: Callable[..., None], *arguments: Any) -> int:
        """1 if the engine finds an order impossible, and the scenario lets it pass."""
        try:
            order(*arguments)
        except KeyError as error:
            raise CommandError(f"{what}: {error.args[0]}") from None
        except TypeError as error:
            raise CommandError(f"{what}: {error}") from error
        except (OverflowError, ValueError) as error:  # an engine's numbers have 64 bits
            self._impossible(f"{what}: {error}")
            return 1
        return 0

    # ---- parts ----

    def _targets(self, command: Command) -> list[tuple[int, int, int, int]]:
        plan = []
        self._check_sources(command.load_source)
        for name, count in command.targets.items():
            p = self._pool(name, "targets")
            pool = self.scenario.fleet.pools[p]
            value, was_clipped = self._whole(count, 0, pool.max_instances, f"targets.{name}")
            source = command.load_source
            if isinstance(source, Mapping):
                source = source.get(name)
            if source is None:
                source = pool.engine_source
            plan.append((p, value, _choice(source, SOURCES, "load_source"), was_clipped))
        return plan

    def _check_sources(self, source: Mapping[str, str] | str | None) -> None:
        """Refuse unknown pools and sources, whether or not anything is started now."""
        if isinstance(source, Mapping):
            for name, value in source.items():
                self._pool(name, "load_source")
                _choice(value, SOURCES, f"load_source.{name}")
        elif source is not None:
            _choice(source, SOURCES, "load_source")

    def _present(self, states: Any, p: int) -> int:
        first = self.engine.spec.first_slot[p]
        mine = states[first : first + self.engine.spec.pools[p].n_slots]
        up = (InstanceState.ACQUIRING, InstanceState.LOADING, InstanceState.ACTIVE)
        return int(sum((mine == s).sum() for s in up))

    def _instance(
        self, e: int, instance: int, what: str, allowed: tuple[InstanceState, ...], count: int = 0
    ) -> int:
        number, clipped = self._whole(instance, 0, self.engine.spec.n_instances - 1, what)
        state = InstanceState(int(self.engine.instances(e)["state"][number]))
        if clipped or state not in allowed:
            self._impossible(f"{what}: instance {instance} is {state.name}")
            return 1
        if what == "drain":
            self.engine.drain(e, number)
            return 0
        value, clipped = self._whole(count, 0, 2**31 - 1, f"evict.{number}")
        self.engine.evict(e, number, value)
        return clipped

    def _move(self, e: int, move: tuple[int, int, int]) -> int:
        try:
            source, target, count = move
        except (TypeError, ValueError):
            raise CommandError(f"move_waiting: {move!r}: must be (from, to, count)") from None
        top = self.engine.spec.n_instances - 1
        ends = [self._whole(i, 0, top, "move_waiting: instance") for i in (source, target)]
        value, clipped = self._whole(count, 0, 2**31 - 1, "move_waiting: count")
        if any(unknown for _, unknown in ends):
            return 1
        order, where = self.engine.move_waiting, (number for number, _ in ends)
        return self._refused("move_waiting", order, e, *where, value) or clipped

    def _pool(self, name: str, where: str) -> int:
        return _choice(name, self._pools, where)

    def _class(self, name: str, where: str) -> int:
        return _choice(name, self._classes, where)

    def _whole(self, value: Any, low: int, high: int, where: str) -> tuple[int, int]:
        number = _number(value, where, "a whole number")
        clipped = min(max(number, low), high)
        if clipped != number:
            self._impossible(f"{where} = {value!r}: must be in {low}..{high}")
        elif clipped != int(clipped):
            raise CommandError(f"{where} = {value!r}: must be a whole number")
        return int(clipped), int(clipped != number)

    def _fraction(self, value: Any, where: str) -> tuple[float, int]:
        number = _number(value, where, "a number in 0..1")
        clipped = min(max(number, 0.0), 1.0)
        if clipped != number:
            self._impossible(f"{where} = {value!r}: must be in 0..1")
        return clipped, int(clipped != number)

    def _impossible(self, message: str) -> None:
        if self.scenario.impossible_commands == "error":
            raise CommandError(message)


def _text(key: tuple[str, str] | str) -> str:
    return key if isinstance(key, str) else "/".join(key)


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
