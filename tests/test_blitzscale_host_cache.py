"""The model of ServerlessLLM's host cache, by hand and in general."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.blitzscale.host_cache import PLACEMENTS, lasting, published_count, simulate


def cache(demand, **keys):
    values = {"hosts": 4, "keep_alive_s": 3, "idle_timeout_s": 0, "rng": np.random.default_rng(0)}
    columns = np.array(demand, dtype=np.int64)
    columns = columns[:, None] if columns.ndim == 1 else columns
    return simulate(columns, **{**values, **keys})


def test_instances_last_until_the_idle_timeout():
    demand = np.array([0, 3, 0, 1, 0, 0, 0])
    assert lasting(demand, 0).tolist() == demand.tolist()
    assert lasting(demand, 2).tolist() == [0, 3, 3, 3, 1, 1, 0]


def test_packed_by_hand():
    #  hosts 0 and 1 at 1 s; both stop at 2 s and keep copies until 5 s; 3 at 3 s: only host 2 has none
    #  (until 4 + 3 = 7 s, all); at 9 s all are gone.
    found = cache([0, 2, 0, 3, 0, 0, 0, 0, 0, 1])
    assert found.started[:, 0].tolist() == [0, 2, 0, 3, 0, 0, 0, 0, 0, 1]
    assert found.missed[:, 0].tolist() == [0, 2, 0, 1, 0, 0, 0, 0, 0, 1]
    assert found.copies[:, 0].tolist() == [0, 2, 2, 3, 3, 3, 3, 0, 0, 1]
    assert found.running[:, 0].tolist() == [0, 2, 0, 3, 0, 0, 0, 0, 0, 1]


def test_two_llms_compete_for_hosts():
    # The second LLM takes the host that has the first one's copy, so that one starts elsewhere and misses.
    found = cache([[1, 0], [0, 1], [1, 1]], hosts=2)
    assert found.missed[:, 0].tolist() == [1, 0, 1]
    assert found.missed[:, 1].tolist() == [0, 1, 0]
    assert found.copies[2].tolist() == [2, 1]
    full = cache([[2, 0], [2, 1]], hosts=2)
    assert full.refused[:, 1].tolist() == [0, 1]


def test_hosts_with_a_copy_come_first_if_told():
    demand = [3, 0, 1, 0, 2, 0, 3]
    keys = {"hosts": 50, "keep_alive_s": 30}
    assert cache(demand, placement="cached", **keys).missed.sum() == 3
    missed = [
        cache(demand, placement="random", rng=np.random.default_rng(seed), **keys).missed.sum()
        for seed in range(5)
    ]
    assert min(missed) > 5


def test_the_published_count_by_hand():
    # Seconds without demand are not there: 4 after 2 are two starts, 3 after 4 none.
    started, missed = published_count(np.array([1, 2, 0, 4, 0, 3, 4, 5, 0, 0, 0, 0, 6, 7]), 4)
    assert started.tolist() == [0, 1, 0, 2, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1]
    # At 6 s the largest of 3 to 5 s is 4: none; at 12 s nothing is left to compare with: none.
    assert missed.tolist() == [0, 1, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1]


@settings(max_examples=60, deadline=None)
@given(
    demand=st.lists(st.integers(0, 6), min_size=1, max_size=60),
    placement=st.sampled_from(sorted(PLACEMENTS)),
    keep=st.integers(0, 20),
    idle=st.integers(0, 4),
)
def test_what_always_holds(demand, placement, keep, idle):
    found = cache(demand, hosts=6, keep_alive_s=keep, idle_timeout_s=idle, placement=placement)
    assert (found.running[:, 0] == lasting(np.array(demand), idle)).all()
    assert (found.missed <= found.started).all()
    assert (found.running <= found.copies).all()
    assert (found.copies <= 6).all()
    assert found.refused.sum() == 0
    # Copies come by misses only, and those that are there at the end are among them.
    assert found.copies[-1, 0] <= found.missed.sum()


@settings(max_examples=30, deadline=None)
@given(demand=st.lists(st.integers(0, 6), min_size=1, max_size=60), keep=st.integers(0, 20))
def test_a_longer_keep_alive_never_misses_more_when_packed(demand, keep):
    short = cache(demand, hosts=6, keep_alive_s=keep).missed.sum()
    assert cache(demand, hosts=6, keep_alive_s=keep + 5).missed.sum() <= short


def test_an_unknown_placement_is_named():
    with pytest.raises(ValueError, match="placement = 'best'"):
        cache([1], placement="best")
