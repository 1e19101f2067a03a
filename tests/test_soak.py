"""The soak of both engines: its own kinds of cases, what it says of a difference, and the page's counter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llmscale_env.sim.fast import FastEngine
from llmscale_env.sim.spec import RequestState, RouterKind
from tests import soak, test_engines_agree
from tests.engine_cases import Case, run_case
from tests.soak import (
    KINDS,
    PAGE,
    counted,
    main,
    make_custom_case,
    make_long_case,
    recorded,
    rows_of,
)

PAGE_BEFORE = """
**0 fresh cases** in 0 runs, 0 differences

| date | revision | seed | whole | custom | differences |
|---|---|---|---:|---:|---:|
<!-- next run -->

| another | table |
|---|---|
| 7 | 8 |
"""


@pytest.mark.parametrize("kind", ["custom", "long"])
def test_engines_agree_to_the_end(kind: str) -> None:
    for seed in range(12):
        soak.run_one(kind, seed)


def test_most_custom_cases_ask_the_users_function() -> None:
    specs = [make_custom_case(seed).spec for seed in range(24)]
    routes = [[route for row in spec.routes for route in row] for spec in specs]
    asked = sum(any(r.kind == RouterKind.CUSTOM for r in of_one) for of_one in routes)
    decode = sum(any(r.decode_kind == RouterKind.CUSTOM for r in of_one) for of_one in routes)
    assert asked >= 12
    assert decode >= 6


def test_long_cases_last_hours_to_weeks() -> None:
    last = sorted(int(make_long_case(seed).requests.arrival_ps[-1]) for seed in range(24))
    assert last[12] > 3600 * 10**12
    assert last[-1] > 7 * 86400 * 10**12


def test_nearly_every_request_of_a_case_is_served_in_the_end() -> None:
    def left(case: Case) -> int:
        states = run_case(FastEngine, case, soak.DOUBLINGS)[1].results["state"]
        return int((states < RequestState.FINISHED).sum() + (states > RequestState.REJECTED).sum())

    cases = [kind.make(seed) for kind in KINDS.values() for seed in range(6)]
    before, after = (sum(map(left, some)) for some in (cases, map(soak.to_its_end, cases)))
    assert 0 < after < before / 3


def test_a_difference_names_the_words_that_run_its_case_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = test_engines_agree.FastEngine

    def slower(spec: Any, requests: Any) -> Any:
        late = [replace(p, prefill_knot_ps=p.prefill_knot_ps + 1) for p in spec.profiles]
        return whole(replace(spec, profiles=tuple(late)), requests)

    monkeypatch.setattr(test_engines_agree, "FastEngine", slower)
    assert soak.main(["kind=whole,qlm", "cases=4", "seed=1", "processes=1"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("soak: seed=1 cases=4 kind=whole,qlm")
    assert "python -m tests.soak kind=whole seed=1 cases=1" in said


def test_every_kind_has_its_share_and_seeds_count_up() -> None:
    chunks = soak.chunks_of(list(KINDS), 1003, 50)
    seeds = {kind: [s for name, some in chunks if name == kind for s in some] for kind in KINDS}
    assert sum(map(len, seeds.values())) == 1003
    for mine in seeds.values():
        assert len(mine) - 1003 // len(KINDS) in (0, 1)
        assert mine == list(range(50, 50 + len(mine)))


def test_a_recorded_run_is_a_row_and_counts() -> None:
    page = recorded(PAGE_BEFORE, ("2026-11-25", "abc", 7, 10, 1200, 0))
    page = recorded(page, ("2026-11-26", "abd", 8, 0, 90, 2))
    assert rows_of(page)[1] == ["2026-11-26", "abd", "8", "0", "90", "2"]
    assert "**1,300 fresh cases** in 2 runs, 2 differences\n" in page


@pytest.mark.parametrize(
    "words, revision, says",
    [
        (["seed=7"], "a" * 40, "record = true: is for fresh cases"),
        ([], "a" * 40 + "-dirty", "record = true: " + "a" * 40 + "-dirty: commit what differs"),
    ],
)
def test_only_drawn_cases_of_committed_code_are_recorded(
    words: list[str],
    revision: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def not_run(*_: object) -> list[object]:
        raise AssertionError("the cases were run")

    monkeypatch.setattr("tests.soak.git_revision", lambda: revision)
    monkeypatch.setattr("tests.soak.soak", not_run)
    assert main(["record=true", "cases=1", *words]) == 2
    assert says in capsys.readouterr().err


def test_the_pages_counter_is_that_of_its_table() -> None:
    assert counted(PAGE.read_text(encoding="utf-8")) in PAGE.read_text(encoding="utf-8")
