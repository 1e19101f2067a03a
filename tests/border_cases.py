"""Generated cases through the border `sim.engine`: all that an engine shows at every stop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np

from llmscale_env.sim.engine import Engine
from llmscale_env.sim.spec import NEVER
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


def run_through(engine: Engine, case: Case, doublings: int = 1) -> Shown:
    """Run a case in an engine's last episode; what is seen before and after the commands of every stop."""
    one, e = OneEpisode(engine), engine.n_episodes - 1
    engine.reset(e, case.requests)
    seen: Shown = []

    def look(when: str, *, closes: bool) -> None:
        if closes:
            engine.close_windows(e, e + 1)
            seen.extend((when, *item) for item in counts(engine, e))
        seen.extend((when, *item) for item in shown(engine, e))

    for stop_ps in case.stops_ps:
        engine.advance(e, stop_ps)
        look(f"before commands at {stop_ps}", closes=True)
        due = [c for c in case.script if c.at_ps == stop_ps]
        for command in due:
            args = arguments(one, case, command)
            try:
                answer = getattr(engine, command.name)(e, *args)
            except ValueError:
                answer = "refused"
            seen.append((f"at {stop_ps}", f"answer of {command.name}", answer))
        if due:
            look(f"after commands at {stop_ps}", closes=False)
    for _ in range(doublings):
        engine.advance(e, min(2 * engine.now_ps(e), int(NEVER) - 1))
        look(f"before the end at {engine.now_ps(e)}", closes=True)
    return seen


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
        elif a != b:
            yield f"{when}: {name}: {a} / {b}"
