"""Predicted output lengths: conditional means, predictions made again, the oracle, a constant."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.aladdin.prediction import (
    ConditionalMean,
    Constant,
    Oracle,
    OutputPredictor,
    under_estimated,
)
from llmscale_env.workload.tables import load_lengths


def small(**change) -> ConditionalMean:
    """Prompts below and from 100 tokens; two outputs are enough."""
    arguments = {"edges": (100,), "enough": 2, "prior_tokens": 50.0, "prior_requests": 0.0}
    return ConditionalMean(**(arguments | change))


def test_by_hand():
    predictor = small()
    assert predictor.predict([0], [10]).tolist() == [50]  # nothing is known
    predictor.observe([10], [4])
    assert predictor.predict([0, 1], [10, 200]).tolist() == [4, 4]  # too few: all together
    predictor.observe([20, 150, 100], [8, 30, 50])
    assert predictor.seen.tolist() == [2, 2]
    assert predictor.predict([0, 1, 2], [99, 100, 5000]).tolist() == [6, 40, 40]


def test_predicted_again_by_hand():
    predictor = small()
    predictor.observe([10] * 4 + [200] * 2, [4, 8, 10, 12, 40, 60])
    again = predictor.repredict([0] * 5, [10] * 5, [0, 3, 4, 8, 10])
    # Above 10 the bin has one output, too few: all together have 12, 40 and 60.
    assert again.tolist() == [8.5, 8.5, 10, 11, pytest.approx(112 / 3)]
    # Nobody was longer than 60.
    assert predictor.repredict([0], [10], [60]).tolist() == [61]
    assert predictor.repredict([0], [10], [10**7]).tolist() == [10**7 + 1]


def test_the_prior_gives_way():
    predictor = small(prior_requests=2.0)
    predictor.observe([200], [80])
    assert predictor.predict([0], [10]).tolist() == [(2 * 50 + 80) / 3]
    predictor.observe([200], [80])
    assert predictor.predict([0], [200]).tolist() == [80]  # its bin has enough


def test_long_outputs_count_up_to_the_limit():
    predictor = small(longest=100)
    predictor.observe([10, 10], [100, 900])
    assert predictor.predict([0], [10]).tolist() == [100]


@settings(max_examples=30, deadline=None)
@given(
    outputs=st.lists(st.integers(1, 300), min_size=1, max_size=40),
    emitted=st.integers(0, 310),
)
def test_the_conditional_mean_is_that_of_the_longer_ones(outputs: list[int], emitted: int):
    predictor = small(enough=1)
    predictor.observe([10] * len(outputs), outputs)
    longer = [tokens for tokens in outputs if tokens > emitted]
    expected = np.mean(longer) if longer else emitted + 1
    assert predictor.repredict([0], [10], [emitted])[0] == pytest.approx(expected)


def test_it_is_unbiased_in_every_bin():
    """On ShareGPT's lengths, learnt from one half and tried on the other."""
    rng = np.random.default_rng(0)
    inputs, outputs = (
        np.maximum(x.astype(int), 1) for x in load_lengths("sharegpt").sample(20_000, rng)
    )
    predictor = ConditionalMean(prior_requests=0)
    predictor.observe(inputs[:10_000], outputs[:10_000])
    later, truth = inputs[10_000:], outputs[10_000:]
    predicted = predictor.predict(np.arange(10_000), later)
    for each in range(len(predictor.seen)):
        some = predictor.bins(later) == each
        if some.sum() > 300:
            noise = truth[some].std() / np.sqrt(some.sum())
            assert abs(predicted[some].mean() - truth[some].mean()) < 6 * noise
    # And of those that go on, no worse than leaving the prediction as it was.
    emitted = np.ceil(predicted).astype(int)
    on = truth > emitted
    again = predictor.repredict(np.flatnonzero(on), later[on], emitted[on])
    assert abs(again - truth[on]).mean() < abs(emitted[on] + 1 - truth[on]).mean()


def test_oracle_and_constant():
    oracle = Oracle([5, 7, 9])
    assert oracle.oracle
    assert oracle.predict([2, 0], [1, 1]).tolist() == [9, 5]
    assert oracle.repredict([1], [1], [3]).tolist() == [7]
    constant = Constant(10)
    assert constant.predict([0, 1], [1, 2]).tolist() == [10, 10]
    assert constant.repredict([0, 1], [1, 2], [3, 10]).tolist() == [10, 11]
    for predictor in (oracle, constant, small()):
        assert isinstance(predictor, OutputPredictor)
    assert not constant.oracle
    assert not small().oracle


def test_under_estimated_requests():
    predictor = small(enough=1)
    predictor.observe([10, 10], [8, 20])
    ids, tokens = under_estimated(predictor, [3, 4, 5], [10, 10, 10], [8, 8, 20], [7, 8, 8])
    assert ids.tolist() == [4]
    assert tokens.tolist() == [20]


@pytest.mark.parametrize(
    "change,word",
    [({"edges": (5, 5)}, "edges"), ({"edges": (0,)}, "edges"), ({"enough": 0}, "enough"),
     ({"prior_tokens": 0.5}, "prior_tokens"), ({"longest": 0}, "longest")],
)  # fmt: skip
def test_bad_arguments(change: dict, word: str):
    with pytest.raises(ValueError, match=word):
        small(**change)


def test_bad_observations():
    with pytest.raises(ValueError, match="one of each"):
        small().observe([1, 2], [1])
    with pytest.raises(ValueError, match="positive"):
        small().observe([1], [0])
    with pytest.raises(ValueError, match="emitted"):
        small().repredict([0], [1], [-1])
    with pytest.raises(ValueError, match="tokens"):
        Constant(0)
