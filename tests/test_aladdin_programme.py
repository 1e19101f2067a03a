"""Aladdin's programme (section 4.2): constraints by hand, and the optimum against brute force."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.aladdin.constraints import Request, Rules
from baselines.aladdin.performance import DecodeTime, KvUse, PrefillTime
from baselines.aladdin.programme import fewest_workers
from baselines.solver import SolverSettings

EXACT = SolverSettings(gap=0.0)


def rules(**change) -> Rules:
    """1 ms per prompt token; decode 10 ms + 1 ms per request + 0.01 ms per token of context."""
    arguments = {
        "prefill": PrefillTime(1e-3, 0.01),
        "decode": DecodeTime(1e-5, 1e-3, 0.01),
        "kv_capacity": 1000.0,
        "ttft_slo_s": 1.0,
        "itl_slo_s": 0.05,
        "gamma": 0.5,
        "theta": 1.0,
    }
    return Rules(**(arguments | change))


# ---- the constraints by hand ----


def test_decode_limit():
    some = rules()
    # Two requests: (50 - 10 - 2) / 0.01 = 3800 tokens.
    assert some.context_limit(2) == pytest.approx(3800)
    assert some.context_limit(1) == math.inf
    assert rules(theta=0.5).context_limit(2) == pytest.approx(1900)
    request = Request(1000, 200)
    assert some.weight(request) == 1100
    assert rules(gamma=0.0).weight(request) == 1000
    assert rules(length="emitted").weight(Request(1000, 200, 40, 1.0)) == 1020
    assert some.weight(Request(1000, 200, 500, 1.0)) == 1000 + 0.5 * 501  # outlived
    wide = rules(kv_capacity=1e9, ttft_slo_s=100)
    assert wide.broken([Request(1800, 200)] * 2) == ""  # 3800
    assert wide.broken([Request(1801, 200)] * 2) == "b"
    assert wide.broken([Request(50_000, 200)]) == ""  # one alone has no limit


def test_prefill_limits():
    some = rules(kv_capacity=1e9, itl_slo_s=0.1)
    assert some.broken([Request(500, 1), Request(490, 1)]) == ""  # 10 + 990 ms
    assert some.broken([Request(500, 1), Request(491, 1)]) == "c"
    # 9 tokens at 100 ms from one to the next would take 800 ms, in 300 ms: 500 ms are saved.
    ongoing = Request(10, 50, 9, 0.3)
    assert some.patience_s([ongoing]) == pytest.approx(0.5)
    printed = rules(kv_capacity=1e9, itl_slo_s=0.1, saved_over="tokens")
    assert printed.patience_s([ongoing]) == pytest.approx(0.6)
    # Who has just had its first token has saved nothing by its ATGT.
    assert some.broken([Request(10, 50, 1, 0.0), Request(5, 1)]) == "d"
    assert printed.broken([Request(10, 50, 1, 0.0), Request(5, 1)]) == ""
    assert some.broken([ongoing, Request(490, 1)]) == ""
    assert some.broken([ongoing, Request(491, 1)]) == "d"
    assert rules(theta=0.5, itl_slo_s=0.1).patience_s([ongoing]) == pytest.approx(0.25)
    late = Request(10, 50, 8, 0.9)
    assert some.broken([late]) == ""  # nothing new: nothing to wait for
    assert some.broken([late, Request(1, 1)]) == "d"
    assert rules(decode_only=True, kv_capacity=1e9).broken([late, Request(1, 1)]) == ""


def test_memory_by_hand():
    some = rules(kv=KvUse(1.0, 8.0))
    # 100 + 50 tokens: the last iteration holds 149; the second ends after 10.
    a, b = Request(100, 50), Request(200, 10)
    assert some.peak_kv([a]) == 149 + 8
    assert some.peak_kv([a, b]) == (100 + 9) + (200 + 9) + 16
    assert some.peak_kv([Request(100, 50, 30, 1.0), b]) == (130 + 9) + (200 + 9) + 16
    literal = rules(count_last_token=True)
    assert literal.peak_kv([a]) == 150
    assert [literal.kv_at(a, k) for k in (0, 50, 51)] == [100, 150, 0]
    assert [rules().kv_at(a, k) for k in (0, 49, 50)] == [100, 149, 0]
    assert some.peak_kv([]) == 0
    assert rules(kv_capacity=149.0).broken([a]) == ""
    assert rules(kv_capacity=148.0).broken([a]) == "e"


@settings(max_examples=60, deadline=None)
@given(
    worker=st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 30), st.integers(0, 35)), min_size=1, max_size=6
    ),
    literal=st.booleans(),
)  # fmt: skip
def test_the_peak_is_that_of_all_iterations(worker, literal: bool):
    some = rules(kv=KvUse(2.0, 3.0), count_last_token=literal)
    requests = [Request(*each) for each in worker]
    totals = [sum(naive_kv(some, r, k) for r in requests) for k in range(70)]
    assert some.peak_kv(requests) == pytest.approx(max(totals))


@pytest.mark.parametrize(
    "change", [{"gamma": 1.1}, {"theta": 0.0}, {"kv_capacity": 0.0}, {"itl_slo_s": -1.0}, {"length": "x"}]
)  # fmt: skip
def test_bad_rules(change: dict):
    with pytest.raises(ValueError, match=next(iter(change))):
        rules(**change)


def test_bad_requests():
    for wrong in ((0, 1), (1, 0), (1, 1, -1), (1, 1, 0, -1.0), (1, math.nan)):
        with pytest.raises(ValueError, match="must be at least"):
            Request(*wrong)


# ---- the optimum ----


def naive_kv(some: Rules, r: Request, k: int) -> float:
    expected = max(r.predicted_tokens, r.emitted_tokens + 1)
    there = r.emitted_tokens + k <= expected if some.count_last_token else (
        r.emitted_tokens + k < expected
    )  # fmt: skip
    tokens = r.input_tokens + r.emitted_tokens + k
    return some.kv.per_token * tokens + some.kv.const if there else 0.0


def naive_holds(some: Rules, worker: Sequence[Request]) -> bool:
    """(b) to (e) in plain words, iteration by iteration."""
    new = [r for r in worker if r.emitted_tokens == 0]
    context = sum(
        r.input_tokens + some.gamma * max(r.predicted_tokens, r.emitted_tokens + 1) for r in worker
    )
    d = some.decode
    limit = (some.itl_slo_s - d.const_s - d.per_request_s * len(worker)) / d.per_token_s
    if len(worker) > 1 and context > some.theta * limit + 1e-9:
        return False
    if new and not some.decode_only:
        seconds = some.prefill.const_s + some.prefill.per_token_s * sum(r.input_tokens for r in new)
        if seconds > some.ttft_slo_s + 1e-12:
            return False
        for r in worker:
            times = r.emitted_tokens - (some.saved_over == "intervals")
            saved = some.itl_slo_s * times - r.decoding_s
            if r.emitted_tokens and seconds > some.theta * saved + 1e-12:
                return False
    return all(
        sum(naive_kv(some, r, k) for r in worker) <= some.kv_capacity + 1e-9 for k in range(300)
    )


def brute_force(requests, workers, some: Rules, total: int) -> int:
    """Fewest workers, -1 if none do; empty ones are opened in order."""
    best = -1
    there = len(workers)
    for assigned in itertools.product(range(total), repeat=len(requests)):
        opened = [i for i in assigned if i >= there]
        if any(i > there + len(set(opened[:k])) for k, i in enumerate(opened)):
            continue  # the same as another with the empty workers renamed
        now = [list(worker) for worker in workers] + [[] for _ in range(total - there)]
        for r, i in zip(requests, assigned, strict=True):
            now[i].append(r)
        touched = [now[i] for i in set(assigned)]
        if all(naive_holds(some, worker) for worker in touched):
            used = sum(bool(worker) for worker in now)
            best = used if best < 0 else min(best, used)
    return best


def case(seed: int) -> tuple[list[Request], list[tuple[Request, ...]], Rules]:
    """A few new requests and up to two workers with ongoing ones, of which some may be broken."""
    rng = np.random.default_rng(seed)
    some = rules(
        kv_capacity=float(rng.integers(200, 700)),
        itl_slo_s=float(rng.uniform(0.014, 0.022)),
        ttft_slo_s=float(rng.uniform(0.1, 0.6)),
        gamma=float(rng.choice([0.0, 0.5, 1.0])),
        theta=float(rng.choice([0.7, 0.9, 1.0])),
        count_last_token=bool(rng.integers(2)),
        decode_only=bool(rng.random() < 0.2),
        saved_over="tokens" if rng.random() < 0.5 else "intervals",
    )
    requests = [
        Request(int(rng.integers(5, 180)), int(rng.integers(1, 200)))
        for _ in range(rng.integers(1, 5))
    ]
    workers = []
    for _ in range(rng.integers(0, 3)):
        ongoing = []
        for _ in range(rng.integers(0, 4)):
            emitted = int(rng.integers(0, 60))
            spent = emitted * some.itl_slo_s * rng.uniform(0, 1.05)
            ongoing.append(
                Request(int(rng.integers(5, 120)), int(rng.integers(1, 150)), emitted, float(spent))
            )
        workers.append(tuple(ongoing))
    return requests, workers, some


@pytest.mark.parametrize("block", range(4))
def test_the_optimum_is_that_of_brute_force(block: int):
    seen = set()
    for seed in range(20 * block, 20 * block + 20):
        requests, workers, some = case(seed)
        total = len(workers) + len(requests)
        best = brute_force(requests, workers, some, total)
        found = fewest_workers(requests, workers, some, settings=EXACT)
        assert found.used == best, seed
        assert found.infeasible == (best < 0)
        if best >= 0:
            assert found.optimal
            now = [list(worker) for worker in workers] + [[] for _ in requests]
            for r, i in zip(requests, found.assigned, strict=True):
                now[i].append(r)
            assert all(naive_holds(some, now[i]) for i in set(found.assigned))
        seen.add(best)
    assert len(seen) > 2  # the cases differ


def test_cbc_finds_the_same():
    for seed in range(6):
        requests, workers, some = case(seed)
        a = fewest_workers(requests, workers, some, settings=EXACT)
        b = fewest_workers(
            requests, workers, some,
            settings=SolverSettings(gap=0.0, solver="cbc"),
        )  # fmt: skip
        assert a.used == b.used


def test_ongoing_requests_stay_and_broken_workers_take_nothing():
    some = rules(kv_capacity=300.0)
    full = (Request(200, 150, 50, 0.1),)  # would end with 350
    found = fewest_workers([Request(10, 10)], [full], some, settings=EXACT)
    assert (found.used, found.assigned) == (2, (1,))
    assert fewest_workers([], [full, ()], some, settings=EXACT).used == 1


def test_too_few_workers():
    some = rules(kv_capacity=100.0)
    requests = [Request(60, 10)] * 3
    assert fewest_workers(requests, [], some, settings=EXACT).used == 3
    found = fewest_workers(requests, [], some, most_workers=2, settings=EXACT)
    assert (found.used, found.infeasible) == (-1, True)
    with pytest.raises(ValueError, match="most_workers"):
        fewest_workers(requests, [(), ()], some, most_workers=1)
