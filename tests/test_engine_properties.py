"""Laws that hold at every step with everything on: virtual queues, swaps, copies, failures."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from llmscale_env.sim.fast import EngineBatch, FastEngine
from llmscale_env.sim.reference import ReferenceEngine
from llmscale_env.sim.spec import ClusterSpec, InstanceState, RequestState
from llmscale_env.workload.requests import RequestTable
from tests.engine_cases import Case, Trace, first_difference, make_case, run_case
from tests.test_engines_agree import broken_law


def rich(seed: int) -> Case:
    """A generated case whose instances pull from several queues and swap."""
    while True:
        case = make_case(seed)
        swaps = any(len(pool.llms) > 1 for pool in case.spec.pools)
        if swaps and len(case.script) > 5 and len(case.requests) > 10:
            return case
        seed += 10_000


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_lost_at_any_step(seed: int) -> None:
    case = rich(seed)
    last = int(case.requests.arrival_ps[-1]) + 200 * max(1, int(case.stops_ps[0]) // 50)
    more = np.linspace(1, last, 60).astype(int).tolist()
    case = replace(case, stops_ps=tuple(sorted({*case.stops_ps, *more})))
    _, expected = run_case(ReferenceEngine, case)
    _, got = run_case(FastEngine, case)
    assert broken_law(case, expected) is None
    assert broken_law(case, got) is None
    assert first_difference(expected, got) is None


SEEN_WHILE_SAVED: Counter[str] = Counter()


class Restless:
    """An episode that is saved and put elsewhere before every call."""

    def __init__(self, spec: ClusterSpec, requests: RequestTable) -> None:
        self.batches = [EngineBatch(spec, 1, 1), EngineBatch(spec, 3, len(requests) + 5)]
        self.places = [(0, 0), (1, 2), (1, 0), (1, 1)]
        self.at = 0
        for batch, e in self.places:  # what was there before is of no consequence
            self.batches[batch].reset(e, requests)
            self.batches[batch].advance(e, 50)
        self.batches[0].reset(0, requests)
        self.last = ""

    def __getattr__(self, name: str) -> Any:
        batch, e = self.places[self.at]
        inst = self.batches[batch].states.inst[e]
        swapping = (inst["state"] == InstanceState.LOADING) & (inst["swaps"] > 0)
        SEEN_WHILE_SAVED["mid-swap"] += bool(swapping.any())
        SEEN_WHILE_SAVED["mid-copy"] += bool((inst["leaving"] > 0).any())
        SEEN_WHILE_SAVED["after set_pull"] += self.last == "set_pull"
        self.last = name
        saved = self.batches[batch].save(e)
        self.at = (self.at + 1) % len(self.places)
        batch, e = self.places[self.at]
        self.batches[batch].restore(e, saved)
        if name == "now_ps":
            return self.batches[batch].now_ps(e)
        return lambda *args: getattr(self.batches[batch], name)(e, *args)


def test_a_saved_episode_goes_on_the_same() -> None:
    for seed in range(25):
        case = rich(seed)
        steps = np.linspace(0, case.stops_ps[-2], 40).astype(int).tolist()
        case = replace(case, stops_ps=tuple(sorted({*case.stops_ps, *steps})))
        _, expected = run_case(FastEngine, case)
        _, got = run_case(Restless, case)
        assert first_difference(expected, got) is None, seed
    assert all(SEEN_WHILE_SAVED[k] > 0 for k in ("mid-swap", "mid-copy", "after set_pull"))


def later(table: RequestTable, shift_ps: int) -> RequestTable:
    """The same requests, each of which comes so much later than the one before."""
    return replace(table, arrival_ps=table.arrival_ps + shift_ps * np.arange(len(table)))


@pytest.mark.parametrize("seed", range(8))
def test_episodes_side_by_side_do_not_touch_each_other(seed: int) -> None:
    case = rich(seed)
    tables = [case.requests, later(case.requests, 3), later(case.requests, 50)]
    batch = EngineBatch(case.spec, len(tables), len(case.requests))
    alone = [FastEngine(case.spec, table) for table in tables]
    for e, table in enumerate(tables):
        batch.reset(e, table)
    for stop_ps in case.stops_ps:
        batch.advance_range(0, len(tables), np.full(len(tables), stop_ps))
        for engine in alone:
            engine.advance(stop_ps)
        for command in (c for c in case.script if c.at_ps == stop_ps and c.name != "regroup"):
            for e, engine in enumerate(alone):
                answers = [
                    attempt(engine, command.name, *command.args),
                    attempt(batch, command.name, e, *command.args),
                ]
                assert answers[0] == answers[1]
        for e, engine in enumerate(alone):
            assert np.array_equal(batch.results(e), engine.results())
            assert np.array_equal(batch.instances(e), engine.instances())
            assert batch.queues(e) == engine.queues()
    finished = [(engine.results()["state"] == RequestState.FINISHED).sum() for engine in alone]
    assert seed > 0 or min(finished) > 0  # of the first case at least


def attempt(engine: Any, name: str, *args: Any) -> Any:
    try:
        return getattr(engine, name)(*args)
    except ValueError:
        return "refused"


def test_the_comparison_sees_a_difference() -> None:
    one, other = Trace(), Trace()
    one.answers, other.answers = [1], [2]
    assert first_difference(one, other) is not None
