"""QLM's request groups: how large they may be, and which requests come apart by their tokens.

Algorithm 1 at work on a cluster, halves and arrivals included: test_qlm_policy ("the book").
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.qlm.groups import TokenClustering, size_limit, token_bounds

RULE = TokenClustering()


def chat(rng: np.random.Generator, n: int) -> np.ndarray:
    """Input tokens like those of conversations: log-normal, a long tail, at most 2,000."""
    return np.minimum(rng.lognormal(4.8, 1.1, n), 2000.0).astype(np.int64)


@pytest.mark.parametrize("share", [0.02, 0.05, 0.3, 0.7])
@pytest.mark.parametrize("seed", range(3))
def test_mega_prompts_come_apart(share: float, seed: int):
    rng = np.random.default_rng(seed)
    n = 3500
    mega = rng.random(n) < share
    tokens = np.where(mega, rng.integers(3000, 4001, n), chat(rng, n))
    bound, last = token_bounds(tokens, 200.0, RULE)
    assert 1000 < bound < 3000
    assert last == np.inf
    assert not mega[tokens <= bound].any()
    # Ordinary prompts among the mega prompts: the longest few may be.
    assert int((~mega[tokens > bound]).sum()) < 0.02 * n


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n", [1000, 4000, 400_000])
def test_homogeneous_prompts_stay_together(seed: int, n: int):
    rng = np.random.default_rng(seed)
    for tokens in (
        chat(rng, n),
        rng.exponential(300, n).astype(np.int64),
        rng.integers(1, 1000, n),
        np.abs(rng.normal(500, 150, n)).astype(np.int64),
        np.full(n, 7),
    ):
        assert token_bounds(tokens, 250.0, RULE) == (np.inf,)


def test_the_ratio_counts_expected_outputs_with_the_inputs():
    tokens = np.array([100] * 50 + [700] * 50)
    # (700 + 100) / (100 + 100) = 4, (700 + 101) / (100 + 101) < 4.
    assert token_bounds(tokens, 100.0, RULE) == (400.0, np.inf)
    assert token_bounds(tokens, 101.0, RULE) == (np.inf,)


def test_plain_kmeans_is_available():
    tokens = chat(np.random.default_rng(0), 99)
    assert len(token_bounds(tokens, 50.0, TokenClustering(max_clusters=3, min_ratio=1))) == 3
    assert len(token_bounds(tokens, 50.0, TokenClustering(max_clusters=1))) == 1


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 60), seed=st.integers(0, 2**32 - 1), output=st.sampled_from([100.0, 900.0]))
def test_clusters_do_not_depend_on_the_order_and_differ_by_the_ratio(n, seed, output):
    rng = np.random.default_rng(seed)
    tokens = np.where(rng.random(n) < 0.3, 3500, chat(rng, n))
    bounds = token_bounds(tokens, output, RULE)
    assert token_bounds(rng.permutation(tokens), output, RULE) == bounds
    assert bounds[-1] == np.inf
    which = np.searchsorted(bounds, tokens, side="left")
    assert set(which.tolist()) == set(range(len(bounds)))  # no cluster is empty
    means = [tokens[which == k].mean() + output for k in range(len(bounds))]
    assert all(b >= 4 * a * (1 - 1e-12) for a, b in pairwise(means))


def test_the_largest_group_is_delta_average_batches():
    assert size_limit(3, delta=4) == 12
    assert size_limit(256) == 1024
    assert size_limit(0.2) == 1
    for batch, delta, message in (
        (4, 17, "delta = 17: must be in 1..16"),
        (0, 4, "average_batch = 0: must be positive"),
        (np.inf, 4, "average_batch = inf: must be positive"),
    ):
        with pytest.raises(ValueError, match=message):
            size_limit(batch, delta)


@pytest.mark.parametrize(
    "field, value", [("max_clusters", 0), ("min_ratio", 0.5), ("resolution_tokens", 0.0)]
)
def test_bad_clustering(field, value):
    with pytest.raises(ValueError, match=f"{field} = {value}"):
        TokenClustering(**{field: value})
