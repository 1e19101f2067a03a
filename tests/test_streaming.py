"""An episode whose requests come piece by piece, and go when they are done, is the same (engine.md 18)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmscale_env.sim.fast import FastEngine
from llmscale_env.sim.observed import RESULT_DTYPE
from llmscale_env.sim.reference import ReferenceEngine
from llmscale_env.sim.spec import RequestState
from llmscale_env.workload.requests import COLUMNS, RequestTable
from tests.engine_cases import Case, first_difference, make_case, run_case
from tests.refusals import refuses
from tests.region_cases import make_region_case
from tests.small_clusters import pool, queued, run
from tests.small_clusters import table as requests
from tests.split_cases import make_split_case
from tests.v1_cases import make_v1_case

N_CASES = int(os.environ.get("LLMSCALE_STREAM_CASES", "60"))


def part(table: RequestTable, first: int, last: int) -> RequestTable:
    """Rows `first` to `last - 1`."""
    columns: dict[str, Any] = {name: getattr(table, name)[first:last] for name in COLUMNS}
    if table.prefixes is not None:
        columns["prefixes"] = table.prefixes.take(np.arange(first, last))
    return replace(table, **columns)


class Streamed:
    """An engine that gets its requests piece by piece and forgets those that are done, as whim will have it.

    What is read of it is of all requests, as of an engine that has had them from the start.
    """

    engine_class: Any = FastEngine
    seen: Counter[str] = Counter()

    def __init__(self, spec: Any, table: RequestTable) -> None:
        self.table = table
        self.rng = np.random.default_rng(len(table))
        self.loaded = self._some(0)
        self.engine = self.engine_class(spec, part(table, 0, self.loaded))
        self.past = np.zeros(len(table), RESULT_DTYPE)
        for name in ("instance", "admitted_ps", "first_token_ps", "finished_ps", "max_itl_ps"):
            self.past[name] = -1
        self.log: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def _some(self, least: int) -> int:
        """At least the first `least` requests."""
        return int(self.rng.integers(least, len(self.table), endpoint=True))

    def advance(self, until_ps: int) -> None:
        self._forget()
        needed = int(np.searchsorted(self.table.arrival_ps, until_ps))
        if needed > self.loaded:
            more = self._some(needed) if self.rng.random() < 0.3 else needed
            self.engine.extend(part(self.table, self.loaded, more))
            self.loaded = more
            self.seen["extended"] += 1
            self.seen["after some were retired"] += bool((self.past["state"] > 0).any())
        self.engine.advance(until_ps)
        self._forget()

    def _forget(self) -> None:
        if self.rng.random() < 0.4:
            return
        log = self.engine.finish_log()
        gone = self.engine.retire()
        self.log += log
        self.past[gone.ids] = gone.results
        states = set(self.engine.results()["state"].tolist())
        self.seen["retired"] += len(gone.ids) > 0
        for state in states if len(gone.ids) else ():
            self.seen[f"retired beside {RequestState(state).name}"] += 1

    def results(self) -> NDArray[Any]:
        whole = self.past.copy()
        whole[self.engine.ids()] = self.engine.results()
        return whole

    def finish_log(self) -> list[int]:
        return self.log + list(self.engine.finish_log())

    def conservation(self) -> dict[RequestState, int]:
        counts = Counter(self.results()["state"].tolist())
        return {state: counts[int(state)] for state in RequestState}


class StreamedReference(Streamed):
    engine_class = ReferenceEngine


def with_more_stops(case: Case) -> Case:
    steps = np.linspace(0, case.stops_ps[-2], 12).astype(int).tolist()
    return replace(case, stops_ps=tuple(sorted({*case.stops_ps, *steps})))


def cases(kind: str, first: int) -> Iterator[tuple[int, Case]]:
    """(seed, case) of those from `first` on that can be streamed, with more stops."""
    for seed in range(first, first + N_CASES):
        made = {"regions": make_region_case, "v1": make_v1_case}
        case = made[kind](seed) if kind in made else make_case(seed, kind == "qlm")
        spec = case.spec
        flows = spec.splits or spec.network is not None or any(p.weight_bytes for p in spec.pools)
        if not flows:
            yield seed, with_more_stops(case)


@pytest.mark.parametrize("kind", ["plain", "qlm", "regions", "v1"])
def test_a_streamed_episode_is_the_same(kind: str) -> None:
    Streamed.seen.clear()
    for seed, case in cases(kind, 5000):
        _, expected = run_case(FastEngine, case)
        _, got = run_case(Streamed, case)
        assert (d := first_difference(expected, got)) is None, f"seed {seed}, fast: {d}"
        if seed % 3 == 0:
            _, got = run_case(StreamedReference, case)
            assert (d := first_difference(expected, got)) is None, f"seed {seed}, reference: {d}"
    beside = {"RUNNING", "OWN_QUEUE", "SHARED_QUEUE", "GATEWAY", "PREEMPTED"}
    beside |= {"TRANSIT"} if kind == "regions" else set()
    wanted = {"extended", "retired", "after some were retired"}
    wanted |= {f"retired beside {name}" for name in beside}
    assert not wanted - {name for name, n in Streamed.seen.items() if n}


@pytest.mark.parametrize("kind", ["plain", "qlm", "regions", "v1"])
def test_a_controller_is_shown_the_same(kind: str) -> None:
    """Windows are closed at every stop, and who is done is forgotten right after."""
    compared = 0
    for seed, case in cases(kind, 6000):
        table = case.requests
        whole = FastEngine(case.spec, table)
        streamed = FastEngine(case.spec, part(table, 0, 0))
        loaded = 0
        for stop_ps in case.stops_ps:
            needed = int(np.searchsorted(table.arrival_ps, stop_ps))
            streamed.extend(part(table, loaded, needed))
            loaded = needed
            for engine in (whole, streamed):
                engine.advance(stop_ps)
                engine.batch.close_windows(0, 1)
            for name in ("tally", "queue_seen", "pool_seen"):
                one, two = (getattr(e.batch.states, name)[0] for e in (whole, streamed))
                for field in one.dtype.names:
                    if field not in ("end", "cursor"):
                        assert np.array_equal(one[field], two[field]), (seed, stop_ps, name, field)
                        compared += bool(np.any(one[field]))
            for q in range(len(case.spec.queue_llm)):
                one, two = whole.batch.queued(0, q), streamed.batch.queued(0, q)
                assert one.tolist() == two.tolist()
                assert whole.batch.runs(0, q).tolist() == streamed.batch.runs(0, q).tolist()
            assert np.array_equal(whole.batch.under_way(0), streamed.batch.under_way(0))
            streamed.retire()
    assert compared > 1000


def test_who_is_done_is_forgotten_and_room_is_used_again(engine_class: Any) -> None:
    engine = run(engine_class, queued(pool()), requests((0, 4, 1), (5, 990, 100), (100, 4, 2)), 50)
    gone = engine.retire()
    assert gone.ids.tolist() == [0, 1]
    assert gone.results["state"].tolist() == [RequestState.FINISHED, RequestState.REJECTED]
    assert gone.results["finished_ps"].tolist() == [17, -1]
    assert engine.ids().tolist() == [2]
    engine.extend(requests((100, 4, 1)))
    assert engine.ids().tolist() == [2, 3]
    engine.advance(10**6)
    assert engine.finish_log() == [3, 2]
    assert engine.retire().ids.tolist() == [2, 3]
    assert len(engine.results()) == 0
    assert len(engine.retire().ids) == 0


def test_memory_is_that_of_who_is_there() -> None:
    engine = FastEngine(queued(pool()), requests((0, 4, 1)))
    for k in range(1, 200):
        engine.advance(1000 * k)
        engine.retire()
        engine.extend(requests(*((1000 * k, 4, 1),) * 5))
    assert engine.batch.capacity < 20


def test_what_cannot_be_streamed_is_refused(engine_class: Any) -> None:
    spec = queued(pool())
    engine = engine_class(spec, requests((0, 4, 1), (100, 4, 1)))
    with pytest.raises(ValueError, match=r"arrival_ps\[0\] = 99: must be at least 100"):
        engine.extend(requests((99, 4, 1)))
    engine.advance(200)
    with pytest.raises(ValueError, match=r"arrival_ps\[0\] = 199: must be at least 200"):
        engine.extend(requests((199, 4, 1)))
    refuses(r"slo_class\[0\] = 5", lambda: engine.extend(requests((300, 4, 1, 5))))
    case = make_split_case(0)
    engine = engine_class(case.spec, case.requests)
    for call in (engine.retire, lambda: engine.extend(case.requests)):
        refuses("split phases", call)
