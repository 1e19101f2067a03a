"""Predictions from a trace: honest about the request itself, and still of use."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmscale_env.workload.arrivals import Arrivals
from llmscale_env.workload.config import PredictorConfig, TraceLengths
from llmscale_env.workload.generate import draw_lengths, predict_outputs
from llmscale_env.workload.log_means import MOST_BINS, ROWS_PER_BIN, LogMeans
from llmscale_env.workload.readers import Trace


def predicted(x, y, rows=None, **most):
    """What a stream that replays these rows is told."""
    trace = Trace("made up", "plain", np.arange(len(x)) * 10**9, x, y)
    rows = np.arange(len(x)) if rows is None else rows
    arrivals = Arrivals(trace.arrival_ps[rows], trace, rows)
    config, rng = TraceLengths(**most), np.random.default_rng(0)
    inputs, outputs = draw_lengths(config, arrivals, rng)
    return predict_outputs(PredictorConfig(), config, arrivals, inputs, outputs, rng)


def correlation(a, b):
    return 0.0 if a.std() == 0 else float(np.corrcoef(a, b)[0, 1])


@pytest.mark.parametrize("n", [64, 200, 500, 2000])
def test_the_prediction_of_a_request_knows_nothing_of_the_request(n):
    # Independent lengths: the correlation of 100 traces is that of chance, 1 / sqrt(n) each. (A mean over
    # 64 bins that hold the request itself has 0.995, 0.50, 0.37 and 0.19 here.)
    found = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        x = rng.integers(1, 3000, n)
        y = np.maximum(1, rng.lognormal(5, 0.8, n).astype(np.int64))
        found.append(correlation(predicted(x, y), y))
    assert np.abs(found).max() < 4.5 / np.sqrt(n)
    # Halves of one bin are on either side of their mean: 0.8 / sqrt(n) below 0.
    assert abs(np.mean(found)) < 1.1 / np.sqrt(n)


@pytest.mark.parametrize("n, least", [(500, 0.85), (2000, 0.95), (20_000, 0.97)])
def test_lengths_that_follow_the_input_are_foretold(n, least):
    rng = np.random.default_rng(1)
    x = rng.integers(1, 3000, n)
    y = x + rng.integers(1, 500, n)
    p = predicted(x, y)
    assert correlation(p, y) > least
    assert p.mean() == pytest.approx(y.mean(), rel=0.01)


@pytest.mark.parametrize("n", [2, 3, 30, 300, 5000])
def test_a_request_that_changes_leaves_its_own_prediction_alone(n):
    rng = np.random.default_rng(2)
    x, y = rng.integers(1, 50, n), rng.integers(1, 1000, n)
    before = predicted(x, y)
    for row in rng.integers(0, n, 5):
        changed = y.copy()
        changed[row] += 100_000
        after = predicted(x, changed)
        assert after[row] == before[row]
        assert (after != before).any()


def test_a_regular_log_is_not_cut_along_its_rule():
    # Every second output is long: halves of even and odd rows would foretell the opposite.
    y = np.tile([10, 1000], 500)
    p = predicted(np.full(1000, 7), y)
    assert p == pytest.approx(505, rel=0.1)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.sampled_from([1, 3, 40, 100_000]), st.integers(0, 2**32))
def test_bins_hold_enough_rows_and_equal_inputs_share_one(n, kinds, seed):
    x = np.random.default_rng(seed).geometric(1 / kinds, n)
    found = LogMeans.of(x)
    bins = np.searchsorted(found.starts, x, side="right") - 1
    assert 1 <= len(found.starts) <= MOST_BINS
    assert found.starts[0] == x.min()
    counts = np.array(
        [np.bincount(bins[found.half == h], minlength=len(found.starts)) for h in (0, 1)]
    )
    if len(found.starts) > 1:
        assert counts.min() >= ROWS_PER_BIN // 2
    assert np.abs(counts[0] - counts[1]).max() <= 2
    assert abs(int(counts[0].sum()) - int(counts[1].sum())) <= 1


def test_the_number_of_bins_grows_with_the_rows():
    numbers = [len(LogMeans.of(np.arange(n)).starts) for n in (1, 203, 204, 2000, 10_000, 10**6)]
    assert numbers == [1, 1, 2, 19, 63, 64]


def test_small_logs_by_hand():
    assert predicted(np.array([5]), np.array([40])).tolist() == [40]
    assert predicted(np.array([5, 9]), np.array([40, 70])).tolist() == [70, 40]
    # Longer ones are cut before the mean is taken, and rows may be asked for in any order.
    x, y = np.array([5, 9, 5, 9]), np.array([40, 900, 40, 900])
    assert predicted(x, y, max_output_tokens=40).tolist() == [40] * 4
    rows = np.array([3, 0, 3])
    assert predicted(x, y, rows).tolist() == predicted(x, y)[rows].tolist()


def test_cut_inputs_are_told_apart_no_more():
    x = np.repeat([10, 5000], 500)
    y = np.repeat([100, 300], 500)
    assert predicted(x, y).tolist() == y.tolist()
    assert set(predicted(x, y, max_input_tokens=5)) == {200}
