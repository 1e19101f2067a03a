"""Episodes of the fast engine that are saved, put elsewhere and advanced beside others, for tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from llmscale_env.sim.fast import EngineBatch, FastEngine
from llmscale_env.sim.fast.state.layout import State
from llmscale_env.sim.spec import ClusterSpec, InstanceState
from llmscale_env.workload.requests import RequestTable
from tests.engine_cases import Case, arguments, first_difference, run_case


class Restless:
    """An episode that is saved and put elsewhere before every call; `seen`: what was under way then."""

    seen: ClassVar[Counter[str]] = Counter()

    def __init__(self, spec: ClusterSpec, requests: RequestTable) -> None:
        self.batches = [EngineBatch(spec, 1, 1), EngineBatch(spec, 3, len(requests) + 5)]
        self.places = [(0, 0), (1, 2), (1, 0), (1, 1)]
        self.at = 0
        for batch, e in self.places:  # what was there before is of no consequence
            self.batches[batch].reset(e, requests)
            self.batches[batch].advance(e, 50)
        self.batches[0].reset(0, requests)
        self.last = ""

    def look(self, states: State, e: int) -> None:
        """Count in `seen` what is under way in episode `e`."""
        inst = states.inst[e]
        swapping = (inst["state"] == InstanceState.LOADING) & (inst["swaps"] > 0)
        self.seen["mid-swap"] += bool(swapping.any())
        self.seen["mid-copy"] += bool((inst["leaving"] > 0).any())
        self.seen["after set_pull"] += self.last == "set_pull"

    def __getattr__(self, name: str) -> Any:
        batch, e = self.places[self.at]
        self.look(self.batches[batch].states, e)
        self.last = name
        saved = self.batches[batch].save(e)
        self.at = (self.at + 1) % len(self.places)
        batch, e = self.places[self.at]
        self.batches[batch].restore(e, saved)
        if name == "now_ps":
            return self.batches[batch].now_ps(e)
        return lambda *args: getattr(self.batches[batch], name)(e, *args)


def often(case: Case) -> Case:
    """The same case, looked at 40 times more while orders are given."""
    steps = np.linspace(0, case.stops_ps[-2], 40).astype(int).tolist()
    return replace(case, stops_ps=tuple(sorted({*case.stops_ps, *steps})))


def difference_when_moved(case: Case, moved: type[Restless] = Restless) -> str | None:
    """Where an episode parts from what it is when it is left where it is, in words; None if nowhere."""
    _, expected = run_case(FastEngine, case)
    _, got = run_case(moved, case)
    return first_difference(expected, got)


def later(table: RequestTable, shift_ps: int) -> RequestTable:
    """The same requests, each of which comes so much later than the one before."""
    return replace(table, arrival_ps=table.arrival_ps + shift_ps * np.arange(len(table)))


def three_tables(requests: RequestTable) -> list[RequestTable]:
    """Those requests as they are, and twice later ones."""
    return [requests, later(requests, 3), later(requests, 50)]


def refuse_touching(
    case: Case, tables: Sequence[RequestTable], *read: str, capacity: int = 1
) -> list[FastEngine]:
    """Episodes of one batch, advanced in one call, go on as each does alone.

    Args:
        case: cluster, times and commands.
        tables: requests of each episode.
        read: names of methods whose arrays must be equal, besides results, instances and queues.
        capacity: requests that the batch has room for at first.

    Returns:
        Each episode alone, at the end.
    """
    batch = EngineBatch(case.spec, len(tables), capacity)
    alone = [FastEngine(case.spec, requests) for requests in tables]
    for e, requests in enumerate(tables):
        batch.reset(e, requests)
    for stop_ps in case.stops_ps:
        batch.advance_range(0, len(tables), np.full(len(tables), stop_ps))
        for engine in alone:
            engine.advance(stop_ps)
        for command in (c for c in case.script if c.at_ps == stop_ps):
            for e, engine in enumerate(alone):
                args = arguments(engine, replace(case, requests=tables[e]), command)
                one = attempt(engine, command.name, *args)
                assert one == attempt(batch, command.name, e, *args)
        for e, engine in enumerate(alone):
            for name in ("results", "instances", *read):
                assert np.array_equal(getattr(batch, name)(e), getattr(engine, name)())
            assert batch.queues(e) == engine.queues()
    return alone


def attempt(engine: Any, name: str, *args: Any) -> Any:
    """What a command answers, or that it is refused."""
    try:
        return getattr(engine, name)(*args)
    except ValueError:
        return "refused"
