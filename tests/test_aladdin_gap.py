"""Aladdin's gap to the optimum: generated problems by hand, the shortest queue, and the study in small."""

from __future__ import annotations

import numpy as np
import pytest

from baselines.aladdin.constraints import Request, Rules
from baselines.aladdin.gap import (
    SCARCE,
    Case,
    compare,
    compare_moves,
    fewest_by_shortest_queue,
    generate,
    summary,
)
from baselines.aladdin.performance import DecodeTime, PrefillTime
from baselines.aladdin.placement import best_fit
from experiments.aladdin import study_gap_to_optimum as study
from experiments.harness.catalogue import entries
from tests.small_studies import frame_of

MEMORY = Rules(
    prefill=PrefillTime(1e-9, 0.0),
    decode=DecodeTime(1e-9, 0.0, 0.0),
    kv_capacity=100.0,
    ttft_slo_s=1.0,
    itl_slo_s=1.0,
)


def memory(*sizes, there=()):
    """Requests that hold so many tokens each while they are prefilled, and are done."""
    workers = tuple((Request(size - 10, 11, 10, 0.0),) for size in there)
    return Case(tuple(Request(size, 1) for size in sizes), workers, MEMORY, "memory")


# ---- the gap by hand ----


def test_triplets_that_first_come_apart():
    # 49 + 26 + 25 and 38 + 32 + 30 fill two workers; in this order best fit joins 49 and 38.
    row = compare(memory(49, 38, 26, 25, 32, 30))
    assert (row["optimum"], row["best_fit"], row["first_fit"]) == (2, 3, 3)


def test_best_fit_finds_the_gap_and_first_fit_does_not():
    # Room for 60 and 20: a request of 20 at the first worker leaves none for 60.
    row = compare(memory(20, 60, there=(40, 80)))
    assert (row["optimum"], row["best_fit"], row["first_fit"]) == (2, 2, 3)
    # The shortest queue needs an empty worker for each: on three, 20 goes there and 60 to the first;
    # on two, 20 goes to the first and 60 to the second, which has 80.
    assert row["shortest"] == 3


def test_the_shortest_queue_gets_no_more_workers_than_it_needs():
    assert fewest_by_shortest_queue(memory(50, 50, 50, 50)) == 2
    assert fewest_by_shortest_queue(memory(60, 30, 30, 30)) == 2  # 60 + 30, 30 + 30
    assert fewest_by_shortest_queue(memory(60, 30, 50, 30)) == 3  # on two: 60 + 50
    with pytest.raises(ValueError, match="fits on no worker"):
        fewest_by_shortest_queue(memory(101))
    assert compare(memory(101))["shortest"] == -1


def test_an_optimum_that_is_not_proved_is_not_counted():
    rows = [
        {"optimum": 2, "best_fit": 2, "shortest": -1},
        {"optimum": 2, "best_fit": 3, "shortest": 6},
        {"optimum": -1, "best_fit": 9, "shortest": 9},
    ]
    assert summary(rows) == {
        "cases": 2, "optimal": 0.5, "mean_workers": 0.5, "worst_workers": 1, "mean_gap": 0.25,
        "worst_gap": 0.5,
    }  # fmt: skip
    assert summary(rows, "shortest")["worst_gap"] == 2
    with pytest.raises(ValueError, match="optimum"):
        summary(rows[2:])


# ---- generated problems ----


@pytest.mark.parametrize("scarce", SCARCE)
def test_what_is_generated_is_what_it_says(scarce):
    for seed in range(4):
        three = generate(seed, 9, 0, scarce=scarce, kind="triplets")
        row = compare(three)
        assert row["optimum"] == 3
        # Nothing is left: with one token more in each request the three workers do not do.
        more = tuple(Request(r.input_tokens + 1, r.predicted_tokens) for r in three.requests)
        assert compare(Case(more, (), three.rules, scarce))["optimum"] == 4
        gaps = generate(seed, 6, 6, scarce=scarce, kind="gaps")
        assert compare(gaps)["optimum"] == len(gaps.workers) == 6
        chat = generate(seed, 8, 4, scarce=scarce)
        assert sum(map(len, chat.workers)) == 4
        assert all(chat.rules.broken(worker) == "" for worker in chat.workers)
        if scarce != "prefill":  # the load says what is left
            assert compare(gaps)["best_fit"] == 6


def test_no_placement_beats_the_optimum():
    for seed in range(9):
        row = compare(generate(seed, new=5, ongoing=2))
        assert row["scarce"] == SCARCE[seed % 3]
        assert (
            1
            <= row["optimum"]
            <= min(row[name] for name in ("best_fit", "scaled", "first_fit", "shortest"))
        )


def test_bad_problems():
    for message, arguments in {
        "new": {"new": 0},
        "multiple of 3": {"new": 8, "ongoing": 0, "kind": "triplets"},
        "as many of either": {"new": 8, "ongoing": 4, "kind": "gaps"},
    }.items():
        with pytest.raises(ValueError, match=message):
            generate(0, **arguments)


def test_moves_of_both_searches():
    for seed in range(12):
        row = compare_moves(seed)
        assert 0 <= row["exact"] <= row["greedy"] * (1 + 1e-4) + 1e-3
        assert row["greedy"] <= row["before"]


# ---- the study ----


def test_it_is_found_by_name():
    (entry,) = (e for e in entries() if e.name == "aladdin-gap")
    assert entry.module == "experiments.aladdin.study_gap_to_optimum"
    assert not any(e.name in ("aladdin-setting", "aladdin-end") for e in entries())


@pytest.fixture(scope="module")
def frame():
    parameters = study.Gap(seeds=2, chat=(6,), triplets=(6,), gaps=(4,), moves=(4,), problems=2)
    return frame_of(study, parameters), parameters


def test_a_run(frame):
    table, parameters = frame
    assert len(table) == 2 * 2 * (3 * 3 + 1)
    mine = table[(table["kind"] == "gaps") & (table["scarce"] == "decode")]
    assert (mine["optimum"] == 4).all()
    assert len(study.claims(table, parameters)) == 2
    study.plot(table, parameters)


def test_claims_on_made_up_gaps(frame):
    table, parameters = frame
    table = table.copy()
    table.loc[table["kind"] != "moves", "optimum"] = 4
    for name, value in {"best_fit": 5, "scaled": 4, "first_fit": 6, "shortest": 10}.items():
        table.loc[table["kind"] != "moves", name] = value
    table.loc[table.index[0], "optimum"] = -1
    near, fewer = study.claims(table, parameters)
    assert (near.ours.mean, near.verdict) == (25, "not reproduced")
    assert near.note == "best fit is optimal in 0 % of them, first fit in 0 %"
    assert near.setting.startswith("one-shot packing; 1")
    assert [part.sentence for part in near.parts] == ["chat lengths", "gaps", "triplets"]
    assert (fewer.ours.mean, fewer.verdict) == (0.5, "reproduced")


def test_nothing_was_proved(frame):
    table, parameters = frame
    assert study.claims(table.assign(optimum=-1, exact=-1.0), parameters) == []


def test_best_fit_places_everything():
    for kind, new, ongoing in (("chat", 12, 6), ("triplets", 12, 0), ("gaps", 8, 8)):
        for seed in np.random.default_rng(0).integers(0, 10**6, 6).tolist():
            case = generate(seed, new, ongoing, kind=kind)
            assert best_fit(case.requests, case.workers, case.rules).misfits == ()
