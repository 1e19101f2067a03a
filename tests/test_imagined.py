"""Other lengths and other arrivals for an episode that is under way (docs/engine.md, section 20)."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from llmscale_env.sim.engine import make_engine
from llmscale_env.sim.fast import FastEngine
from llmscale_env.sim.reference import ReferenceEngine
from llmscale_env.sim.spec import RequestState
from llmscale_env.workload.prefixes import Prefixes
from llmscale_env.workload.requests import COLUMNS, RequestTable
from tests.engine_cases import first_difference, run_case
from tests.refusals import refuses
from tests.small_clusters import column, pool, queued, run, table
from tests.test_streaming import Streamed, cases, part
from tests.test_vllm_v1 import cluster

N_CASES = int(os.environ.get("LLMSCALE_IMAGINED_CASES", "25"))
OVER = (RequestState.FUTURE, RequestState.FINISHED, RequestState.REJECTED)
KINDS = ["plain", "qlm", "regions", "v1"]


def under_way(engine: Any) -> np.ndarray:
    """Ids of the requests that have arrived and are not done."""
    return engine.ids()[~np.isin(engine.results()["state"], OVER)]


def drawn(spec: Any, known: RequestTable, ids: np.ndarray, rng: Any, most: int) -> np.ndarray:
    """Lengths that memory holds."""
    longest = np.array(spec.longest_tokens)[np.asarray(known.llm)[ids]]
    longest -= np.asarray(known.input_tokens)[ids] + spec.half_block_tokens
    return np.minimum(rng.integers(1, most, len(ids)), longest)


class Dreaming:
    """An engine that is told of another future at every stop, and of the true one before time goes on."""

    engine_class: Any = FastEngine
    seen: Counter[str] = Counter()

    def __init__(self, spec: Any, table: RequestTable) -> None:
        self.spec, self.table = spec, table
        self.rng = np.random.default_rng(len(table))
        self.engine = self.engine_class(spec, table)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def advance(self, until_ps: int) -> None:
        """Dream first."""
        self.dream()
        self.engine.advance(until_ps)

    def dream(self) -> None:
        ids, now_ps = under_way(self.engine), self.engine.now_ps
        some = ids[self.rng.random(len(ids)) < 0.7]
        n = int(np.searchsorted(self.table.arrival_ps, now_ps))
        others = part(self.table, 0, int(self.rng.integers(0, len(self.table) - n, endpoint=True)))
        late = np.sort(now_ps + self.rng.integers(0, 10**13, len(others)))
        others = replace(others, arrival_ps=late, prefixes=None)
        self.engine.imagine(some, drawn(self.spec, self.table, some, self.rng, 8), others)
        self.seen["others"] += len(others)
        # Not all of them: what nobody has changed is as it was.
        truth = np.asarray(self.table.output_tokens)[some]
        self.engine.imagine(some, truth, part(self.table, n, len(self.table)))
        self.seen["under way"] += len(some)


class DreamingReference(Dreaming):
    engine_class = ReferenceEngine


@pytest.mark.parametrize("kind", KINDS)
def test_with_its_own_future_an_episode_goes_on_as_it_would(kind: str) -> None:
    Dreaming.seen.clear()
    for seed, case in islice(cases(kind, 7000), N_CASES):
        _, expected = run_case(FastEngine, case)
        _, got = run_case(Dreaming, case)
        assert (d := first_difference(expected, got)) is None, f"seed {seed}, fast: {d}"
        if seed % 4 == 0:
            _, got = run_case(DreamingReference, case)
            assert (d := first_difference(expected, got)) is None, f"seed {seed}, reference: {d}"
    assert min(Dreaming.seen["others"], Dreaming.seen["under way"]) > 50


class Copied(Streamed):
    """An engine that at some stops goes on as a copy of what is under way."""

    def _forget(self) -> None:
        if self.rng.random() < 0.4:
            return
        now_ps, known = self.engine.now_ps, self.engine.ids()
        saved = self.engine.save_under_way()
        self.log += self.engine.finish_log()
        came = self.table.arrival_ps[known] < now_ps
        none, after = np.zeros(0, np.int64), known[~came]
        gone = self.engine.retire()
        self.past[gone.ids] = gone.results
        first = int(after[0]) if len(after) else self.loaded
        copy = self.engine_class(self.engine.spec, NOBODY)
        copy.restore(saved)
        assert copy.ids().tolist() == [r for r in self.engine.ids() if r not in set(after)]
        copy.imagine(none, none, part(self.table, first, self.loaded))
        self.engine = copy
        self.seen["copied"] += 1
        self.seen["copied with a past"] += len(gone.ids) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_of_what_is_under_way_goes_on_as_it_would(kind: str) -> None:
    Copied.seen.clear()
    for seed, case in islice(cases(kind, 9000), N_CASES):
        _, expected = run_case(FastEngine, case)
        _, got = run_case(Copied, case)
        assert (d := first_difference(expected, got)) is None, f"seed {seed}: {d}"
    assert min(Copied.seen["copied"], Copied.seen["copied with a past"]) > 50


class Changing(Dreaming):
    """An engine whose future becomes another one at every stop, and stays so."""

    def dream(self) -> None:
        ids, now_ps = under_way(self.engine), self.engine.now_ps
        some = ids[self.rng.random(len(ids)) < 0.7]
        later = self.table.arrival_ps >= now_ps
        others = part(self.table, int(np.argmax(later)) if later.any() else len(later), len(later))
        gaps = self.rng.integers(0, 10**12, len(others))
        arrival_ps = np.maximum(np.asarray(others.arrival_ps) - gaps, now_ps)
        others = replace(others, arrival_ps=np.sort(arrival_ps), prefixes=None)
        tokens = drawn(self.spec, self.table, some, self.rng, 40)
        self.engine.imagine(some, tokens, others)
        self.seen |= Counter(getattr(self.engine, "events", Counter()))
        self.table = _joined(part(self.table, 0, len(self.table) - len(others)), others)


class ChangingReference(Changing):
    engine_class = ReferenceEngine


def _joined(one: RequestTable, other: RequestTable) -> RequestTable:
    columns = {name: np.concatenate([getattr(one, name), getattr(other, name)]) for name in COLUMNS}
    return replace(one, prefixes=None, **columns)


@pytest.mark.parametrize("kind", KINDS)
def test_both_engines_go_on_alike_with_another_future(kind: str) -> None:
    Changing.seen.clear()
    for seed, case in islice(cases(kind, 8000), N_CASES):
        if case.requests.prefixes is not None:
            case = replace(case, requests=replace(case.requests, prefixes=None))
        _, expected = run_case(ChangingReference, case)
        _, got = run_case(Changing, case)
        assert (d := first_difference(expected, got)) is None, f"seed {seed}: {d}"
    assert Changing.seen["imagined_too_short"] > 0
    assert (Changing.seen["imagined_at_its_last_step"] > 0) == (kind == "v1")


def named_only(*names: int) -> Prefixes:
    """Sequences that have nothing in common."""
    return Prefixes(list(names), [0] * (len(names) + 1), [], [])


NOBODY = part(table((0, 1, 1)), 0, 0)


def finishes(engine_class: Any, *rows: tuple[int, int, int]) -> list[int]:
    return column(run(engine_class, queued(pool()), table(*rows), 10**6), "finished_ps")


def test_a_request_becomes_as_long_as_it_is_told(engine_class: Any) -> None:
    rows = [(0, 4, 10), (30, 6, 12)]
    for change in (5, 10, 25):
        engine = run(engine_class, queued(pool()), table(*rows), 70)
        engine.imagine(np.array([0]), np.array([change]), NOBODY)
        engine.advance(10**6)
        assert column(engine, "finished_ps") == finishes(engine_class, (0, 4, change), rows[1])
        assert column(engine, "emitted_tokens") == [change, 12]


def test_what_is_out_already_stays_out(engine_class: Any) -> None:
    engine = run(engine_class, queued(pool()), table((0, 4, 50)), 200)
    out = column(engine, "emitted_tokens")[0]
    assert out > 2
    engine.imagine(np.array([0]), np.array([1]), NOBODY)
    engine.advance(10**6)
    assert column(engine, "emitted_tokens") == [out + 1]
    assert column(engine, "finished_ps") == finishes(engine_class, (0, 4, out + 1))


def test_others_arrive_in_place_of_those_to_come(engine_class: Any) -> None:
    engine = run(engine_class, queued(pool()), table((0, 4, 3), (500, 4, 3), (600, 4, 3)), 100)
    engine.imagine(np.zeros(0, int), np.zeros(0, int), table((100, 2, 2)))
    engine.advance(10**6)
    assert engine.ids().tolist() == [0, 1]
    assert column(engine, "finished_ps") == finishes(engine_class, (0, 4, 3), (100, 2, 2))


def test_names_that_are_taken_are_refused_before_anything_changes(engine_class: Any) -> None:
    spec = cluster(blocks=30, prefix_cache=True)
    rows = table((0, 4, 3), (90, 4, 9), (600, 4, 3))
    named = replace(rows, prefixes=named_only(5, 6, 7))
    engine = run(engine_class, spec, named, 100)
    later = replace(table((200, 4, 2)), prefixes=named_only(3))
    refuses("prefixes.name", engine.imagine, np.array([1]), np.array([30]), later)
    engine.advance(10**6)
    assert column(engine, "emitted_tokens") == [3, 9, 3]
    engine = run(engine_class, queued(pool()), named, 100)
    engine.imagine(np.array([1]), np.array([30]), later)  # without a cache names mean nothing
    engine.advance(10**6)
    assert column(engine, "emitted_tokens") == [3, 30, 2]


def test_a_saved_future_is_the_callers_no_more() -> None:
    batch = make_engine(queued(pool()), 1, "reference")
    batch.reset(0, table((0, 4, 9)))
    batch.advance(0, 20)
    ids = np.array([0])
    batch.imagine(0, ids, np.array([5]), NOBODY)
    saved = batch.save(0)
    ids[0] = 7
    batch.restore(0, saved)
    batch.advance(0, 10**6)
    assert batch.results(0)["emitted_tokens"].tolist() == [5]


def test_a_window_counts_the_arrivals_that_came() -> None:
    for name in ("fast", "reference"):
        batch = make_engine(queued(pool()), 1, name)
        batch.reset(0, table((0, 4, 3), (500, 4, 3), (600, 4, 3)))
        batch.advance(0, 100)
        batch.close_windows(0, 1)
        saved = batch.save(0)
        batch.imagine(0, np.zeros(0, int), np.zeros(0, int), table((150, 2, 2)))
        batch.advance(0, 10**6)
        batch.close_windows(0, 1)
        assert batch.class_seen["finished"][0].tolist() == [2, 0]
        batch.restore(0, saved)
        batch.advance(0, 10**6)
        batch.close_windows(0, 1)
        assert batch.class_seen["finished"][0].tolist() == [3, 0]


def test_bad_futures_are_refused_and_change_nothing(engine_class: Any) -> None:
    engine = run(engine_class, queued(pool()), table((0, 4, 3), (90, 4, 9), (600, 4, 3)), 100)

    def bad(words: str, ids: Any, tokens: Any, later: RequestTable = NOBODY) -> None:
        refuses(words, engine.imagine, np.array(ids), np.array(tokens), later)

    bad(r"ids\[0\] = 0: must be under way or waiting, is FINISHED", [0], [3])
    bad(r"ids\[1\] = 2: must be under way or waiting, is FUTURE", [1, 2], [3, 3])
    bad(r"ids\[0\] = 7: must be under way", [7], [3])
    bad(r"output_tokens\[0\] = 0: must be in 1\.\.", [1], [0])
    bad(r"output_tokens\[0\] = 5000: must be in 1\.\.", [1], [5000])
    bad("output_tokens: 2 of them, must be one for each of 1 ids", [1], [3, 3])
    bad("ids: one stands there twice", [1, 1], [3, 3])
    bad("output_tokens: of shape", [1], [3.5])
    bad("output_tokens: of shape", [1], np.array([3], "m8[s]"))
    bad(r"arrival_ps\[0\] = 50: must be at least 100", [1], [3], table((50, 2, 2)))
    engine.advance(10**6)
    assert column(engine, "emitted_tokens") == [3, 9, 3]
