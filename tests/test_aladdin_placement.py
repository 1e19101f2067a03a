"""Aladdin's Algorithm 1: best fit by hand, Figure 3, and the gap to the optimum."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.aladdin.constraints import Request, Rules
from baselines.aladdin.gap import generate
from baselines.aladdin.performance import DecodeTime, PrefillTime
from baselines.aladdin.placement import (
    best_fit,
    candidate,
    capacity_norm,
    figure_3,
    shortest_queue,
    smallest_peak,
)


def rules(**change) -> Rules:
    arguments = {
        "prefill": PrefillTime(1e-4, 0.0),
        "decode": DecodeTime(1e-6, 1e-4, 0.01),
        "kv_capacity": 1000.0,
        "ttft_slo_s": 10.0,
        "itl_slo_s": 1.0,
    }
    return Rules(**(arguments | change))


# ---- Figure 3 ----


def test_figure_3():
    example = figure_3()
    assert example.rules.kv_capacity == 9
    assert example.peaks(example.shortest) == (10, 10)  # "the max KV cache demand for both workers"
    assert example.peaks(example.best) == (7, 7)
    for worker in example.shortest.workers:  # which exceeds the capacity; one has to wait
        assert example.rules.broken(worker) == "e"
        assert len({r.input_tokens for r in worker}) == 1  # two long prompts, two long outputs
    for worker in (*example.best.workers, *example.best_fit.workers):
        assert example.rules.broken(worker) == ""
        assert len({r.input_tokens for r in worker}) == 2
    assert example.peaks(example.best_fit) == (7, 7)  # Algorithm 1 finds it too


def test_the_lengths_of_figure_3_are_the_only_ones():
    """Whole tokens, requests of a kind equal, long prompt (a, b), long output (c, d) with b < d."""
    literal = figure_3().rules

    def peak(*worker: tuple[int, int]) -> float:
        return literal.peak_kv([Request(*each) for each in worker])

    found = [
        (a, b, c, d)
        for a in range(1, 11) for b in range(1, 11) for c in range(1, a) for d in range(b + 1, 11)
        if peak((a, b), (a, b)) == 10 == peak((c, d), (c, d)) and peak((a, b), (c, d)) == 7
    ]  # fmt: skip
    assert found == [(4, 1, 1, 4)]


# ---- Algorithm 1 ----


def test_the_norm_by_hand():
    worker = [Request(100, 40), Request(200, 20, 5, 0.1)]
    assert capacity_norm(worker, rules()) == pytest.approx(math.hypot(2, 100 + 20 + 200 + 10))
    scaled = capacity_norm(worker, rules(batch_limit=4), scaled=True)
    assert scaled == pytest.approx(math.hypot(2 / 4, 330 / 1000))


def test_the_fullest_that_takes_it():
    some = rules(gamma=0.0)
    workers = [
        (Request(300, 10),),
        (Request(600, 10),),
        (Request(850, 10),),
        (Request(5, 10),) * 4,
    ]
    # Fullest first: 850 has no room for 200, 600 has.
    assert candidate(Request(200, 10), workers, some) == 1
    assert candidate(Request(100, 10), workers, some) == 2
    assert candidate(Request(990, 10), workers, some) is None
    assert candidate(Request(200, 10), workers, some, "first") == 0
    # As shares of a batch limit of 4 the worker with four small ones is the fullest.
    assert candidate(Request(100, 10), workers, rules(gamma=0.0, batch_limit=4), "scaled") == 3
    # On ties the first.
    assert candidate(Request(10, 10), [workers[0], workers[0]], some) == 0
    with pytest.raises(ValueError, match="order"):
        candidate(Request(10, 10), workers, some, "x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change,other",
    [
        ({"itl_slo_s": 0.01 + 2e-4 + 9e-4}, Request(200, 2)),  # b: 900 * 0.9 tokens of context
        ({"ttft_slo_s": 0.0885}, Request(90, 2)),  # c: 885 prompt tokens
        ({"kv_capacity": 890.0}, Request(90, 2)),  # e
    ],
)
def test_each_constraint_opens_a_new_worker(change: dict, other: Request):
    some = rules(**change)
    there = (Request(800, 4),)
    assert best_fit([other], [there], some).assigned == (1,)
    assert best_fit([Request(5, 2)], [there], some).assigned == (0,)


def test_ongoing_requests_that_cannot_wait():
    ongoing = Request(100, 400, 101, 99.99)  # 100 s for 100 intervals: 10 ms are saved
    some = rules()
    assert best_fit([Request(91, 2)], [(ongoing,)], some).assigned == (1,)  # 9.1 > 0.9 * 10 ms
    assert best_fit([Request(89, 2)], [(ongoing,)], some).assigned == (0,)
    assert best_fit([Request(91, 2)], [(ongoing,)], rules(decode_only=True)).assigned == (0,)


def test_new_workers_and_limits():
    requests = [Request(600, 10)] * 3
    placed = best_fit(requests, [], rules())
    assert (placed.assigned, placed.opened, placed.used) == ((0, 1, 2), 3, 3)
    held = best_fit(requests, [()], rules(), most_workers=2)
    assert (held.assigned, held.opened) == ((0, 1, -1), 1)
    # What no empty worker takes opens one all the same, as printed, and is told.
    odd = best_fit([Request(2000, 10)], [], rules())
    assert (odd.assigned, odd.misfits) == ((0,), (0,))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_what_best_fit_places_keeps_all_constraints(seed: int):
    case = generate(seed)
    placed = best_fit(case.requests, case.workers, case.rules)
    assert placed.misfits == ()
    assert all(case.rules.broken(worker) == "" for worker in placed.workers)
    assert sum(len(worker) for worker in placed.workers) == len(case.requests) + sum(
        len(worker) for worker in case.workers
    )
    for before, after in zip(case.workers, placed.workers, strict=False):
        assert after[: len(before)] == before  # nobody is moved


def test_shortest_queue_and_the_smallest_peak():
    requests = [Request(10, 5)] * 3
    placed = shortest_queue(requests, [(Request(500, 5),), ()])
    assert placed.assigned == (1, 0, 1)
    peak = smallest_peak(requests, [(Request(500, 5),), ()], rules())
    assert peak.assigned == (1, 1, 1)
    for place in (shortest_queue, lambda a, b: smallest_peak(a, b, rules())):
        with pytest.raises(ValueError, match="workers"):
            place(requests, [])
    with pytest.raises(ValueError, match="too many"):
        smallest_peak([Request(1, 1)] * 30, [(), ()], rules())


def test_nothing_joins_a_worker_while_it_prefills():
    """(d): an ongoing request without a token yet has saved T_dec * 0 - 0, and new ones share a batch."""
    limits = rules()
    assert limits.broken((Request(10, 5), Request(10, 5))) == ""
    assert limits.broken((Request(10, 5, started=True), Request(10, 5))) == "d"
    assert limits.patience_s((Request(10, 5, started=True),)) == 0.0
