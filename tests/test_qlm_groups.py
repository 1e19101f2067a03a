"""QLM's request groups: Algorithm 1, the ageing SLO, and where arrivals go."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.qlm.groups import (
    Bounds,
    Grouping,
    Kind,
    TokenClustering,
    classify,
    make_groups,
    remaining_slo_s,
    size_limit,
)


def chat(rng: np.random.Generator, n: int) -> np.ndarray:
    """Input tokens like those of conversations: log-normal, a long tail, at most 2,000."""
    return np.minimum(rng.lognormal(4.8, 1.1, n), 2000.0).astype(np.int64)


def members(grouping: Grouping) -> list[list[int]]:
    return [group.members.tolist() for group in grouping.groups]


# ---- Algorithm 1 ----


def test_llm_and_slo_never_share_a_group_and_fcfs_holds():
    grouping = make_groups(
        llm=[0, 1, 0, 0, 1],
        slo_s=[20, 20, 60, 20, 20],
        arrival_s=[3, 1, 2, 0, 5],
        input_tokens=[9] * 5,
        expected_output=[50] * 5,
        average_batch=8,
    )
    # Deadlines of the oldest: LLM 0 with 20 s: 20, LLM 1: 21, LLM 0 with 60 s: 62.
    assert members(grouping) == [[3, 0], [1, 4], [2]]
    assert [group.kind for group in grouping.groups] == [Kind(0, 20), Kind(1, 20), Kind(0, 60)]


def test_large_groups_are_halved_by_arrival_until_none_is_too_large():
    # delta 1 of a batch of 3: 13 -> 7 + 6 -> 4 + 3, 3 + 3 -> 2 + 2, 3, 3, 3.
    arrival = np.arange(13.0)[::-1]
    grouping = make_groups([0] * 13, [60] * 13, arrival, [9] * 13, [50] * 13, 3, delta=1)
    assert [len(group) for group in members(grouping)] == [2, 2, 3, 3, 3]
    assert [*itertools.chain(*members(grouping))] == list(range(12, -1, -1))


def test_the_literal_single_pass_halves_once():
    args = [0] * 13, [60] * 13, np.arange(13.0), [9] * 13, [50] * 13, 3
    grouping = make_groups(*args, delta=1, split="once")
    assert [len(group) for group in members(grouping)] == [7, 6]


def test_at_the_limit_a_group_stays_whole():
    assert (
        len(make_groups([0] * 12, [1] * 12, range(12), [9] * 12, [50] * 12, 3, delta=4).groups) == 1
    )
    assert (
        len(make_groups([0] * 13, [1] * 13, range(13), [9] * 13, [50] * 13, 3, delta=4).groups) == 2
    )


def test_each_llm_has_its_own_batch():
    grouping = make_groups(
        [0] * 8 + [1] * 8, [60] * 16, range(16), [9] * 16, [50] * 16, {0: 2, 1: 4}, delta=2
    )
    assert [len(group) for group in members(grouping)] == [4, 4, 8]
    assert grouping.limits == {0: 4, 1: 8}


def test_ties_of_arrival_keep_the_order_given():
    assert members(make_groups([0] * 4, [9] * 4, [1.0] * 4, [9] * 4, [50] * 4, 1, delta=2)) == [
        [0, 1],
        [2, 3],
    ]


# ---- token statistics ----


@pytest.mark.parametrize("share", [0.02, 0.05, 0.3, 0.7])
@pytest.mark.parametrize("seed", range(3))
def test_mega_prompts_come_apart(share: float, seed: int):
    rng = np.random.default_rng(seed)
    n = 3500
    mega = rng.random(n) < share
    tokens = np.where(mega, rng.integers(3000, 4001, n), chat(rng, n))
    grouping = make_groups([0] * n, [60] * n, range(n), tokens, [200] * n, 256, delta=16)
    other = 0  # ordinary prompts among the mega prompts: the longest few may be
    for group in grouping.groups:
        if group.kind.input == 0:
            assert not mega[group.members].any()
        else:
            other += int((~mega[group.members]).sum())
    assert other < 0.02 * n
    (bound, last) = grouping.input_bounds(0, 60.0, 200.0)
    assert 1000 < bound < 3000
    assert last == np.inf


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n", [1000, 4000])
def test_homogeneous_prompts_stay_together(seed: int, n: int):
    rng = np.random.default_rng(seed)
    for tokens in (
        chat(rng, n),
        rng.exponential(300, n).astype(np.int64),
        rng.integers(1, 1000, n),
        np.abs(rng.normal(500, 150, n)).astype(np.int64),
        np.full(n, 7),
    ):
        grouping = make_groups([0] * n, [60] * n, range(n), tokens, [250] * n, 4000, delta=1)
        assert len(grouping.groups) == 1
        assert grouping.input_bounds(0, 60.0, 250.0).tolist() == [np.inf]


def test_the_ratio_counts_expected_outputs_with_the_inputs():
    tokens = [100] * 50 + [700] * 50
    args = [0] * 100, [9] * 100, range(100), tokens
    # (700 + 100) / (100 + 100) = 4, (700 + 101) / (100 + 101) < 4.
    grouping = make_groups(*args, [100] * 100, 100)
    assert members(grouping) == [list(range(50)), list(range(50, 100))]
    assert grouping.input_bounds(0, 9.0, 100.0).tolist() == [400.0, np.inf]
    assert len(make_groups(*args, [101] * 100, 100).groups) == 1


def test_classes_with_different_outputs_come_apart():
    outputs = [50.0] * 6 + [70.0] * 6 + [400.0] * 6
    grouping = make_groups([0] * 18, [9] * 18, range(18), [9] * 18, outputs, 99)
    assert members(grouping) == [list(range(12)), list(range(12, 18))]
    assert [group.kind.output for group in grouping.groups] == [0, 1]


def test_plain_kmeans_is_available():
    rng = np.random.default_rng(0)
    rule = TokenClustering(max_clusters=3, min_ratio=1)
    args = [0] * 99, [9] * 99, range(99), chat(rng, 99), [50] * 99, 99
    assert len(make_groups(*args, clustering=rule).groups) == 3
    assert len(make_groups(*args, clustering=TokenClustering(max_clusters=1)).groups) == 1


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_groups_are_a_partition_that_does_not_depend_on_the_order_given(data: st.DataObject):
    n = data.draw(st.integers(1, 60))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    llm, slo = rng.integers(0, 3, n), rng.choice([20.0, 60.0, 3600.0], n)
    arrival = rng.permutation(n).astype(np.float64)
    tokens = np.where(rng.random(n) < 0.3, 3500, chat(rng, n))
    outputs = rng.choice([100.0, 900.0], n)
    delta = float(rng.integers(1, 5))

    def grouped(order: np.ndarray) -> list[list[int]]:
        grouping = make_groups(
            llm[order], slo[order], arrival[order], tokens[order], outputs[order], 3,
            delta=delta,
        )  # fmt: skip
        assert all(len(group.members) <= 3 * delta for group in grouping.groups)
        for group in grouping.groups:
            mine = order[group.members]
            assert len(set(llm[mine])) == len(set(slo[mine])) == 1
            assert (np.diff(arrival[mine]) > 0).all()
            bounds = grouping.input_bounds(group.kind.llm, group.kind.slo_s, outputs[mine[0]])
            inside = np.searchsorted(bounds, tokens[mine], side="left")
            assert (inside == group.kind.input).all()
        return [order[group.members].tolist() for group in grouping.groups]

    groups = grouped(np.arange(n))
    assert sorted(itertools.chain(*groups)) == list(range(n))
    assert grouped(rng.permutation(n)) == groups


def test_400_000_requests():
    rng = np.random.default_rng(0)
    n = 400_000
    grouping = make_groups(
        rng.integers(0, 3, n),
        rng.choice([20.0, 60.0, 3600.0], n),
        rng.random(n),
        chat(rng, n),
        np.full(n, 200.0),
        256,
    )
    assert sum(len(group.members) for group in grouping.groups) == n
    assert max(len(group.members) for group in grouping.groups) <= 1024


def test_nobody_waits():
    grouping = make_groups([], [], [], [], [], 8)
    assert grouping.groups == ()


# ---- the SLO ages ----


def test_remaining_slo_is_that_of_the_oldest():
    assert remaining_slo_s(100.0, [95.0, 90.0, 99.0], 20.0) == 10.0
    assert remaining_slo_s(115.0, [95.0, 90.0, 99.0], 20.0) == -5.0
    with pytest.raises(ValueError, match="arrival_s is empty"):
        remaining_slo_s(1.0, [], 20.0)


# ---- arrivals ----

RULE = Grouping((), {(0, 60.0): Bounds((np.inf,), ((1000.0, np.inf),))}, {0: 4, 1: 4})


def test_arrivals_join_the_nearest_group_of_their_llm_and_slo():
    kinds = [Kind(0, 60.0, 0, 0), Kind(0, 60.0, 0, 1), Kind(1, 60.0)]
    done = classify(
        RULE, kinds, [1, 1, 1], [0, 0, 0],
        llm=[0, 0, 1, 0, 0], slo_s=[60.0, 60.0, 60.0, 60.0, 20.0],
        arrival_s=[1, 2, 3, 4, 5], input_tokens=[1000, 1001, 9, 3500, 9], expected_output=[50] * 5,
    )  # fmt: skip
    assert done.group.tolist() == [0, 1, 2, 1, 3]
    assert done.new == (Kind(0, 20.0),)


def test_a_full_group_takes_no_more():
    done = classify(
        RULE, [Kind(1, 9.0)], [3], [0], [1] * 7, [9.0] * 7, range(7, 0, -1), [5] * 7, [5] * 7
    )
    # The last one arrived first and takes the free place; then groups of 4 and 2.
    assert done.group.tolist() == [2, 2, 1, 1, 1, 1, 0]
    assert done.new == (Kind(1, 9.0), Kind(1, 9.0))


def test_arrivals_do_not_pass_their_own_kind():
    kinds = [Kind(1, 9.0), Kind(1, 9.0), Kind(1, 9.0)]
    done = classify(RULE, kinds, [1, 2, 4], [5.0, 8.0, 1.0], [1], [9.0], [9.0], [5], [5])
    assert done.group.tolist() == [1]
    done = classify(RULE, kinds, [1, 4, 4], [5.0, 8.0, 1.0], [1], [9.0], [9.0], [5], [5])
    assert done.group.tolist() == [3]  # the youngest is full; an older one would mean overtaking


def test_requests_of_the_groups_are_classified_into_their_own_kind():
    rng = np.random.default_rng(1)
    n = 600
    llm, slo = rng.integers(0, 2, n), rng.choice([20.0, 60.0], n)
    tokens = np.where(rng.random(n) < 0.2, rng.integers(3000, 4001, n), chat(rng, n))
    grouping = make_groups(llm, slo, range(n), tokens, [200] * n, 1000)
    kinds = [group.kind for group in grouping.groups]
    empty = [0] * len(kinds)
    done = classify(grouping, kinds, empty, empty, llm, slo, range(n), tokens, [200] * n)
    for g, group in enumerate(grouping.groups):
        assert (done.group[group.members] == g).all()


# ---- bad input ----


@pytest.mark.parametrize(
    "change,message",
    [
        ({"slo_s": [0.0, 1.0]}, "slo_s = 0.0: must be positive"),
        ({"input_tokens": [1, -2]}, "input_tokens = -2.0: must be at least 0"),
        ({"arrival_s": [np.nan, 1]}, "arrival_s = nan: must be finite"),
        ({"llm": [0]}, "shapes are llm"),
        ({"llm": [0, -1]}, "llm = -1: must be at least 0"),
        ({"delta": 17}, "delta = 17: must be in 1..16"),
        ({"average_batch": 0}, "average_batch = 0: must be positive"),
        ({"average_batch": {1: 4}}, "no entry for LLM 0"),
        ({"split": "twice"}, "split = 'twice'"),
    ],
)
def test_bad_input(change: dict, message: str):
    good = {
        "llm": [0, 0],
        "slo_s": [1.0, 1.0],
        "arrival_s": [0, 1],
        "input_tokens": [1, 2],
        "expected_output": [5, 5],
        "average_batch": 4,
    }
    with pytest.raises(ValueError, match=message):
        make_groups(**(good | change))


def test_bad_clustering_and_arrivals():
    for field, value in [
        ("max_clusters", 0),
        ("min_ratio", 0.5),
        ("resolution_tokens", 0.0),
    ]:
        with pytest.raises(ValueError, match=f"{field} = {value}"):
            TokenClustering(**{field: value})
    with pytest.raises(ValueError, match=r"llm = 2: must be one of \[0, 1\]"):
        classify(RULE, [], [], [], [2], [9.0], [0], [5], [5])
    with pytest.raises(ValueError, match="one per group"):
        classify(RULE, [Kind(0, 9.0)], [], [], [1], [9.0], [0], [5], [5])
    assert size_limit(0.2) == 1
