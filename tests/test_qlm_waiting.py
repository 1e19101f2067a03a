"""QLM's waiting-time estimator and what it learns from, on numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baselines.backpressure import waiting_time_s
from baselines.qlm.history import OutputHistory
from baselines.qlm.waiting import (
    Ahead,
    BatchProfile,
    batch_size,
    inefficiency,
    outlook,
)

# B = 50 requests, 0.04 s per token and 25 % lost to preemption: 50 / 0.05 = 1000 tokens per second.
PROFILE = BatchProfile(prefill_s=0.2, decode_s_per_token=0.04, batch=50, inefficiency=1.25)

# ---- throughput ----


def test_throughput_of_a_profiled_batch():
    assert PROFILE.tokens_per_s == pytest.approx(1000.0)


def test_batch_that_fits():
    assert batch_size(120_000, 200, 300) == 240
    assert batch_size(120_000, 200, 300, largest=128) == 128
    assert batch_size(120_000, 250, 300, held_output=0.5) == 300
    assert batch_size(100, 200, 300) == 1
    # Eq. 21: the mean of 240 requests' tokens has a standard deviation of 155 / sqrt(240) = 10.005.
    cautious = batch_size(120_000, 200, 300, std_tokens=155, quantile=0.975)
    assert cautious == pytest.approx(120_000 / (500 + 1.96 * 10.005), rel=1e-4)


def test_eq_18_puts_it_together():
    # E[W] = E[O] delta epsilon E[I + O] / GPU, for 30 requests ahead.
    batch = batch_size(25_000, 200, 300)
    profile = BatchProfile(0.2, 0.04, batch, 1.25)
    expected = 30 * 300 * 0.04 * 1.25 * 500 / 25_000
    assert outlook(31, 300, 0, 2048, profile).wait_s[30] == pytest.approx(expected)


def test_inefficiency():
    assert inefficiency(0.05, 0.04) == pytest.approx(1.25)
    assert inefficiency(0.03, 0.04) == 1.0


# ---- one group ----


def test_waiting_and_completion_of_each_request():
    group = outlook(3, 300, 200, 2048, PROFILE)
    assert group.wait_s == pytest.approx([0.0, 0.3, 0.6])
    assert group.first_token_s == pytest.approx([0.2, 0.5, 0.8])
    # The maximum output: 2048 tokens at 0.05 s.
    assert group.completion_s == pytest.approx([102.6, 102.9, 103.2])
    mean = outlook(3, 300, 200, 2048, PROFILE, decode="mean")
    assert mean.completion_s.max() == pytest.approx(0.6 + 0.2 + 15.0)


def test_a_quantile_adds_standard_deviations_of_the_sum():
    # 100 ahead: 30,000 tokens, standard deviation 10 * 200 = 2,000; 97.5 %: 33,920.
    group = outlook(101, 300, 200, 2048, PROFILE, quantile=0.975)
    assert group.wait_s[100] == pytest.approx(33.92, abs=1e-3)


def test_groups_ahead_count_with_their_own_throughput():
    ahead = [Ahead(50, 150, 0, 1000.0), Ahead(10, 400, 300, 500.0)]
    # 7.5 s + 8 s; variance 10 * (300 / 500)^2 = 3.6.
    assert outlook(1, 1, 0, 1, PROFILE, ahead=ahead).wait_s == pytest.approx([15.5])
    late = outlook(1, 1, 0, 1, PROFILE, ahead=ahead, quantile=0.975).wait_s
    assert late == pytest.approx([15.5 + 1.96 * 3.6**0.5], rel=1e-3)


@given(
    n=st.integers(1, 300),
    mean=st.floats(1, 1000),
    std=st.floats(0, 1000),
    quantile=st.floats(0.01, 0.99),
)
def test_one_kind_of_request_gives_chirons_eq_1(n: int, mean: float, std: float, quantile: float):
    ours = outlook(n, mean, std, 4096, PROFILE, quantile=quantile)
    theirs = waiting_time_s(np.arange(n), mean, std, PROFILE.tokens_per_s, quantile)
    assert ours.wait_s == pytest.approx(theirs, rel=1e-9, abs=1e-9)


def test_short_queues():
    running = [Ahead(48, 150, 0, 1000.0)]
    literal = outlook(4, 300, 0, 2048, PROFILE, ahead=running)
    # 48 and 49 ahead leave slots of the 50 free: the paper has them wait 7.2 s all the same.
    assert literal.full.tolist() == [False, False, True, True]
    assert literal.wait_s == pytest.approx([7.2, 7.5, 7.8, 8.1])
    knowing = outlook(4, 300, 0, 2048, PROFILE, ahead=running, free_slots=50)
    assert knowing.wait_s == pytest.approx([0, 0, 7.8, 8.1])


def test_the_relative_error_shrinks_with_the_queue():
    """The sum of n outputs is within 5 % of n times the mean for long queues, not for short ones."""
    rng = np.random.default_rng(0)
    true = rng.lognormal(5, 1, (400, 2000)).cumsum(axis=1) / 1000.0
    mean, std = np.exp(5.5), np.exp(5.5) * np.sqrt(np.e - 1)
    said = outlook(2001, mean, std, 1e4, PROFILE).wait_s[1:]
    error = np.abs(true / said - 1).mean(axis=0)
    assert error[4] > 0.3
    assert error[1999] < 0.05
    cautious = outlook(2001, mean, std, 1e4, PROFILE, quantile=0.95).wait_s[1:]
    assert (true[:, 1999] < cautious[1999]).mean() == pytest.approx(0.95, abs=0.03)


# ---- history ----


def test_the_prior_counts_as_some_requests():
    history = OutputHistory(prior_mean=100, prior_std=0, prior_requests=2)
    assert history.statistics("chat").mean == 100
    history.observe("chat", [200, 400])
    # 100, 100, 200, 400: mean 200, squares 100^2 + 100^2 + 0 + 200^2 = 60,000 over 4.
    seen = history.statistics("chat")
    assert (seen.mean, seen.std, seen.largest, seen.count) == (
        200,
        pytest.approx(15000**0.5),
        400,
        2,
    )
    assert history.statistics("code").mean == 100


def test_without_weight_only_what_was_seen_counts():
    history = OutputHistory(100, 50, prior_requests=0)
    assert history.statistics(0).std == 50
    history.observe(0, [10, 20])
    assert (history.statistics(0).mean, history.statistics(0).std) == (15, 5)


@given(
    parts=st.lists(st.lists(st.integers(0, 4096), max_size=20), min_size=1, max_size=6),
    weight=st.sampled_from([0.0, 1.0, 32.0]),
)
def test_online_equals_all_at_once(parts: list[list[int]], weight: float):
    online, at_once = OutputHistory(300, 200, weight), OutputHistory(300, 200, weight)
    for part in parts:
        online.observe(("llm", 1), part)
    everything = [tokens for part in parts for tokens in part]
    at_once.observe(("llm", 1), everything)
    a, b = online.statistics(("llm", 1)), at_once.statistics(("llm", 1))
    assert (a.mean, a.std) == (pytest.approx(b.mean), pytest.approx(b.std, abs=1e-6))
    assert (a.count, a.largest) == (len(everything), max(everything, default=0))


# ---- bad input ----


@pytest.mark.parametrize(
    "call,message",
    [
        (lambda: BatchProfile(-1, 0.04, 50), "prefill_s = -1: must be at least 0"),
        (lambda: BatchProfile(0, 0.0, 50), "decode_s_per_token = 0.0: must be positive"),
        (lambda: BatchProfile(0, 0.04, 0), "batch = 0: must be positive"),
        (lambda: BatchProfile(0, 0.04, 50, 0.9), "inefficiency = 0.9: must be at least 1"),
        (lambda: Ahead(-1, 1, 1, 1), "requests = -1: must be at least 0"),
        (lambda: Ahead(1, 1, 1, 0), "tokens_per_s = 0: must be positive"),
        (lambda: batch_size(0, 1, 1), "kv_tokens = 0: must be positive"),
        (lambda: batch_size(9, 0, 0), "must be positive"),
        (lambda: batch_size(9, 1, 1, held_output=2), r"held_output = 2: must be in 0\.\.1"),
        (lambda: outlook(0, 1, 1, 1, PROFILE), "requests = 0: must be at least 1"),
        (lambda: outlook(1, 9, 1, 8, PROFILE), "max_output = 8: must be at least"),
        (lambda: outlook(1, 1, 1, 1, PROFILE, quantile=1.0), "quantile = 1.0"),
        (lambda: outlook(1, 1, 1, 1, PROFILE, free_slots=-1), "free_slots = -1"),
        (lambda: outlook(1, 1, 1, 1, PROFILE, decode="min"), "decode = 'min'"),
        (lambda: inefficiency(0, 1), "measured_s_per_token = 0"),
        (lambda: OutputHistory(-1, 1), "prior_mean = -1"),
        (lambda: OutputHistory(1, 1).observe(0, [-1]), "tokens"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
