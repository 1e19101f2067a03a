"""Aladdin's Algorithm 2: errors by hand, moves by hand, greedy against exact against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from baselines.aladdin.performance import DecodeTime
from baselines.aladdin.rebalance import NewRequest, PredictionErrors, exact, greedy, offset

# k2 = 3, c2 = 4: the norm is 5.
DECODE = DecodeTime(per_token_s=3.0, per_request_s=4.0, const_s=1.0)


def test_errors_by_hand():
    # Two outlived their predictions and are predicted to reach 120 and 80; one ended 30 tokens early.
    found = PredictionErrors.of([120, 80], [(50, 80)])
    assert (found.tokens, found.requests) == (120 + 80 - 30, 2 - 1)
    increase = PredictionErrors.of([120, 80], [(50, 80)], planned=[100, 60])
    assert (increase.tokens, increase.requests) == (20 + 20 - 30, 1)
    assert PredictionErrors.of() == PredictionErrors(0, 0)
    with pytest.raises(ValueError, match="early"):
        PredictionErrors.of([], [(80, 80)])
    with pytest.raises(ValueError, match="planned"):
        PredictionErrors.of([120], planned=[])


def test_the_distance_by_hand():
    # 3 l + 4 b + c = 0 through (10, 5): c = -50, at distance 50 / 5 from the origin.
    assert offset(PredictionErrors(10, 5), DECODE) == pytest.approx(10)
    assert offset(PredictionErrors(-10, -5), DECODE) == pytest.approx(-10)
    assert offset(PredictionErrors(-4, 3), DECODE) == 0  # errors that cancel


@pytest.mark.parametrize("method", [greedy, exact])
def test_moves_by_hand(method):
    """Worker 0 has 100 tokens and a request too much, worker 1 as much too little."""
    errors = [PredictionErrors(100, 1), PredictionErrors(-100, -1)]
    requests = [NewRequest(0, 40), NewRequest(0, 100), NewRequest(0, 300), NewRequest(1, 100)]
    found = method(errors, [DECODE] * 2, requests)
    assert found.assigned == (0, 1, 0, 1)
    assert found.moved == 1
    assert found.before == pytest.approx(2 * (300 + 4) / 5)
    assert found.after == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("method", [greedy, exact])
def test_errors_of_one_sign_move_nothing_as_printed(method):
    errors = [PredictionErrors(100, 1), PredictionErrors(0, 0)]
    requests = [NewRequest(0, 10)]
    found = method(errors, [DECODE] * 2, requests)
    assert (found.moved, found.after) == (0, found.before)
    # Squares even out: 304 and 0 become 270 and 34.
    even = greedy(errors, [DECODE] * 2, requests, objective="squares")
    assert even.assigned == (1,)
    assert even.after == pytest.approx((270 / 5) ** 2 + (34 / 5) ** 2)


def test_a_worker_that_cannot_take_it():
    errors = [PredictionErrors(100, 1), PredictionErrors(-100, -1), PredictionErrors(-50, -1)]
    requests = [NewRequest(0, 100)]
    assert greedy(errors, [DECODE] * 3, requests).assigned == (1,)
    found = greedy(errors, [DECODE] * 3, requests, takes=lambda j, i, assigned: i != 1)
    assert found.assigned == (2,)
    found = greedy(errors, [DECODE] * 3, requests, takes=lambda j, i, assigned: False)
    assert found.moved == 0


def sum_of_distances(errors, decode, requests, assigned) -> float:
    total = 0.0
    for i, (e, d) in enumerate(zip(errors, decode, strict=True)):
        tokens, count = e.tokens, e.requests
        for r, to in zip(requests, assigned, strict=True):
            if r.worker == i != to:
                tokens, count = tokens - r.tokens, count - 1
            if to == i != r.worker:
                tokens, count = tokens + r.tokens, count + 1
        total += abs(d.per_token_s * tokens + d.per_request_s * count) / math.hypot(
            d.per_token_s, d.per_request_s
        )
    return total


def test_against_brute_force():
    gaps = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        workers = int(rng.integers(2, 4))
        decode = [
            DecodeTime(5e-7 * rng.uniform(0.5, 2), 3e-5 * rng.uniform(0.5, 2), 0.01)
            for _ in range(workers)
        ]
        errors = [
            PredictionErrors(float(rng.integers(-400, 401)), float(rng.integers(-3, 4)))
            for _ in range(workers)
        ]
        requests = [
            NewRequest(int(rng.integers(workers)), float(rng.integers(5, 300)))
            for _ in range(rng.integers(1, 6))
        ]
        best = min(
            sum_of_distances(errors, decode, requests, assigned)
            for assigned in itertools.product(range(workers), repeat=len(requests))
        )
        found = exact(errors, decode, requests)
        near = greedy(errors, decode, requests)
        start = [r.worker for r in requests]
        for each in (found, near):
            assert each.before == pytest.approx(sum_of_distances(errors, decode, requests, start))
            assert each.after == pytest.approx(
                sum_of_distances(errors, decode, requests, each.assigned), abs=1e-9
            )
        # The price of a move is at most 1e-5 of the largest part.
        assert found.after == pytest.approx(best, rel=1e-4, abs=1e-3)
        assert near.after <= near.before
        assert near.after >= best - 1e-9
        gaps.append(near.after - best)
    assert np.mean(np.array(gaps) < 1e-6) > 0.5  # and mostly greedy is as good


def test_nothing_to_move():
    assert greedy([PredictionErrors(5, 1)], [DECODE], []).assigned == ()
    assert exact([PredictionErrors(5, 1)], [DECODE], []).before == pytest.approx(19 / 5)


def test_bad_arguments():
    with pytest.raises(ValueError, match="decode of 2"):
        greedy([PredictionErrors()], [DECODE] * 2, [])
    with pytest.raises(ValueError, match="worker = 1"):
        exact([PredictionErrors()], [DECODE], [NewRequest(1, 5)])
    with pytest.raises(ValueError, match="objective"):
        greedy([PredictionErrors()], [DECODE], [], objective="max")  # type: ignore[arg-type]
