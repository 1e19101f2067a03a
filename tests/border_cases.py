"""Generated cases through the border `sim.engine`: all that an engine shows at every stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np

from llmscale_env.sim.engine import Engine
from llmscale_env.sim.orders import (
    AS_IS,
    METHODS,
    EndpointOrders,
    Loads,
    Orders,
    PlaceOrders,
    PoolOrders,
    QueueOrders,
    SingleOrder,
)
from llmscale_env.sim.spec import NEVER, ClusterSpec
from llmscale_env.sim.streaming import check_streams
from llmscale_env.workload.requests import RequestTable
from tests.engine_cases import Case, arguments

Shown = list[tuple[str, str, Any]]
"""(when, what, value) in order."""

SINGLE = (
    *("results", "instances", "running_by_class", "running_from", "loading", "homes", "reports"),
    *("weights_ready_ps", "spot", "waiting", "pulls", "under_way", "manager_ppm", "ids"),
)
"""Reads of one episode that ask for nothing."""

MANY = ("times_ps", "n_finished", "n_in_gateways", "n_swaps")
COUNTS = ("class_seen", "pool_seen", "queue_seen")

SINGLES = {method: order for order, method in METHODS.items()}


class OneEpisode:
    """The last episode of an engine, with the calls that a script makes."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.e = engine.n_episodes - 1

    def queues(self) -> list[list[int]]:
        n = len(self.engine.spec.queue_llm)
        return [self.engine.queued(self.e, q)["request"].tolist() for q in range(n)]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.engine, name)
        return lambda *args: found(self.e, *args)


def shown(engine: Engine, e: int) -> Iterator[tuple[str, Any]]:
    """All that an engine shows of episode `e`, but for counts."""
    spec = engine.spec
    for name in SINGLE:
        yield name, getattr(engine, name)(e)
    yield "finished_since", engine.finished_since(e, 3)
    for q in range(len(spec.queue_llm)):
        yield f"queued {q}", engine.queued(e, q)
        yield f"runs {q}", engine.runs(e, q)
    for i in range(spec.n_instances):
        yield f"own_queue {i}", engine.own_queue(e, i)
    for m in range(spec.n_llms):
        yield f"gateway {m}", engine.gateway(e, m)
        yield f"decode_gateway {m}", engine.decode_gateway(e, m)
        yield f"host_has {m}", [engine.host_has(e, h, m) for h in range(spec.n_hosts)]
        for c in range(len(spec.classes)):
            yield f"placement {m} {c}", engine.placement(e, m, c)
            if spec.routes[m][c].preference:
                yield f"regional {m} {c}", engine.regional(e, m, c)
    for name in MANY:
        yield name, getattr(engine, name)[e]
    yield "states_of_instances", engine.states_of_instances()[e]
    yield "ready_ps", engine.ready_ps(e, e + 1)
    yield (
        "next_decisions_ps",
        engine.next_decisions_ps(np.full(engine.n_episodes, 2), 1_000, 50_000)[e],
    )
    several = {
        "gateways": engine.gateways(e, e + 1, True),
        "weights": engine.weights(e, e + 1),
        "virtual_queues": engine.virtual_queues(e, e + 1),
    }
    for name, many in several.items():
        for field in fields(many):
            if field.name in ("waiting", "known") and name == "virtual_queues":
                continue
            value = getattr(many, field.name)
            for key, part in value.items() if isinstance(value, dict) else [("", value)]:
                yield f"{name}.{field.name}{key}", np.array(part)


def counts(engine: Engine, e: int) -> Iterator[tuple[str, Any]]:
    """Its counts, as of `close_windows`."""
    for name in COUNTS:
        rows = getattr(engine, name)[e]
        yield (
            name,
            rows[: len(engine.spec.queue_llm)].copy() if name == "queue_seen" else rows.copy(),
        )


def no_orders(engine: Engine) -> Orders:
    """Orders of every kind that the cluster has room for, none of them given."""
    n, spec = engine.n_episodes, engine.spec
    pools = len(spec.pools)
    return Orders(
        pools=PoolOrders.none(n, pools, len(spec.classes)),
        queues=QueueOrders.none(engine.virtual_queues(0, n)),
        places=PlaceOrders.none(engine.gateways(0, n, False)),
        endpoints=EndpointOrders.none(n, pools, spec.n_regions, len(spec.managers)),
    )


def as_single(name: str, args: tuple[Any, ...]) -> SingleOrder | None:
    """A command as a single order; None: arrays only can say it."""
    if name == "scale":
        slots, sources, *partners = args
        return Loads(tuple(slots), tuple(sources), *(tuple(p) for p in partners if p))
    return SINGLES[name](*args) if name in SINGLES else None


def as_orders(engine: Engine, e: int, name: str, args: tuple[Any, ...]) -> Orders | None:
    """What comes nearest to a command among orders for many episodes; None: nothing does."""
    orders: Any = no_orders(engine)
    pools, queues, places = orders.pools, orders.queues, orders.places
    match name, args:
        case "set_target", (pool, count, *source):
            pools.targets[e, pool] = count
            pools.sources[e, pool] = AS_IS if source in ([], [None]) else source[0]
        case "set_batch_limit", (pool, limit):
            pools.limits[e, pool] = limit
        case "set_overflow_share", (_, slo_class, share):
            pools.shares[e, slo_class] = share
        case "set_pull", (instance, pull):
            queues.pulls[e, instance, : len(pull)] = pull
            queues.counts[e, instance] = len(pull)
        case "set_operations", (pool, _, evicts, *_):
            queues.evicts[e, pool] = AS_IS if evicts is None else evicts
        case "set_arrival_queues", (llm, slo_class, _, to):
            queues.arrivals[e, llm, slo_class] = to[0]
        case "regroup", (requests, to):
            queues.moves.append((e, np.array(requests, np.int64), np.array(to, np.int64)))
        case "set_router", (_, _, kind):
            places.rules[e] = kind
        case "set_placement", (_, _, placement):
            places.gamma[e], places.theta[e] = placement.gamma, placement.theta
        case "set_placement_model", (instance, model):
            places.models[e] = True
            places.model_s = np.ones((engine.spec.n_instances, 5)) * 1e-9
            places.model_s[instance] *= 2 if model is None else 3
        case "assign", (requests, instances) if len(requests) > 0:
            places.requests[e], places.instances[e] = requests[0], instances[0]
        case "route_gateway", (llm,):
            places.again[e, llm] = True
        case "set_regional", (_, _, threshold, preference):
            orders.endpoints.thresholds[e] = (
                np.nan if threshold is None else np.array(threshold) / 1e6
            )
            orders.endpoints.first[e] = (
                AS_IS if preference is None else [row[0] for row in preference]
            )
        case "set_managers", (one, two):
            orders.endpoints.release[e] = np.stack([one, two], axis=-1) / 1e6
        case "set_scaling", (pool, kind, target, *_):
            orders.endpoints.rules[e, pool], orders.endpoints.goals[e, pool] = kind, target
        case _:
            return None
    return orders


def streams(spec: ClusterSpec) -> bool:
    """Whether requests may come in pieces."""
    try:
        check_streams(spec)
    except ValueError:
        return False
    return True


def pieces(case: Case) -> list[RequestTable]:
    """The requests up to the middle stop of a case, and those after it."""
    at_ps = case.stops_ps[len(case.stops_ps) // 2]
    first = int(np.searchsorted(case.requests.arrival_ps, at_ps))
    return [
        case.requests.take(np.arange(first)),
        case.requests.take(np.arange(first, len(case.requests))),
    ]


def run_through(
    engine: Engine, case: Case, doublings: int = 1, *, in_pieces: bool = False
) -> Shown:
    """Run a case in an engine's last episode; what is seen before and after the commands of every stop.

    Every other command is given as arrays, if they can say it (`as_orders`), the others as single orders.

    Args:
        engine: which is reset.
        case: what is run.
        doublings: how often time doubles after the last stop.
        in_pieces: requests come in two pieces, and those that are done are forgotten at every other stop,
            where the cluster allows it.
    """
    one, e = OneEpisode(engine), engine.n_episodes - 1
    in_pieces &= streams(case.spec)
    table, *later = pieces(case) if in_pieces else [case.requests]
    engine.reset(e, table)
    seen: Shown = []
    n_commands = 0

    def answer(when: str, name: str, call: Callable[[], Any]) -> None:
        try:
            said = call()
        except ValueError as error:
            said = f"refused: {error}"
        seen.append((when, f"answer of {name}", said))

    def look(when: str, *, closes: bool) -> None:
        if closes:
            engine.close_windows(e, e + 1)
            seen.extend((when, *item) for item in counts(engine, e))
        seen.extend((when, *item) for item in shown(engine, e))

    for k, stop_ps in enumerate(case.stops_ps):
        engine.advance(e, stop_ps)
        if later and k == len(case.stops_ps) // 2:
            engine.extend(e, later.pop())
        look(f"before commands at {stop_ps}", closes=True)
        due = [c for c in case.script if c.at_ps == stop_ps]
        for command in due:
            n_commands += 1
            args = arguments(one, case, command)
            single = as_single(command.name, args)
            orders = None if single is None else Orders(last=[(e, single)])
            if single is None or n_commands % 2:
                # There is no place in the arrays for pools and instances that are not there.
                with suppress(IndexError):
                    orders = as_orders(engine, e, command.name, args) or orders
            if orders is not None:
                answer(f"at {stop_ps}", command.name, partial(outcome, engine, e, orders))
        if in_pieces and k % 2:
            answer(f"at {stop_ps}", "retire", lambda: engine.retire(e).results)
        if due:
            look(f"after commands at {stop_ps}", closes=False)
    for _ in range(doublings):
        engine.advance(e, min(2 * engine.now_ps(e), int(NEVER) - 1))
        look(f"before the end at {engine.now_ps(e)}", closes=True)
    return seen


def outcome(engine: Engine, e: int, orders: Orders) -> tuple[list[int], list[str]]:
    """Instances of episode `e` that were missing by pool, and what the engine said of refused orders."""
    missing, refused = engine.apply(orders)
    return missing[e].tolist(), [str(error) for error in refused.values()]


def differences(one: Shown, other: Shown) -> Iterator[str]:
    """Where two engines show different things, in words."""
    for (when, name, a), (_, _, b) in zip(one, other, strict=True):
        if isinstance(a, np.ndarray):
            for column in a.dtype.names or ("",):
                x, y = (a[column], b[column]) if column else (a, b)
                if x.shape != y.shape:
                    yield f"{when}: {name}.{column}: of shape {x.shape} / {y.shape}"
                elif not np.array_equal(x, y, equal_nan=x.dtype.kind == "f"):
                    at = np.argwhere((x != y) & ~((x != x) & (y != y)))[0].tolist()
                    yield f"{when}: {name}.{column}{at}: {x[tuple(at)]} / {y[tuple(at)]}"
        elif isinstance(b, np.ndarray) or a != b:
            yield f"{when}: {name}: {a} / {b}"
