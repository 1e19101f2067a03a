"""The reference policies' rules on cases worked out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baselines.backpressure import (
    batch_backpressure,
    batch_instances_needed,
    common_theta,
    drain_time_s,
    expected_tokens,
    interactive_backpressure,
    interactive_targets,
    requests_ahead,
    waiting_time_s,
)
from baselines.fleet import Period
from baselines.grouping import MAX_DISTINCT, kmeans_1d, request_groups
from baselines.hpa import recommendation, within_a_step
from baselines.llumnix import evened_out, freeness_load, token_utilisation
from baselines.profile import saturated_tokens_per_s
from llmscale_env.cluster.iteration_time import iteration_time_model

# ---- Chiron: interactive backpressure ----

BAND = {"theta": 1 / 3, "delta": 0.1}


def test_ibp_is_running_over_all():
    assert interactive_backpressure(5, 5, 10) == pytest.approx(1 / 3)  # appendix A.2: 5 of 15
    assert interactive_backpressure(0, 0, 0) == 0.0
    assert interactive_backpressure(1, 0, 0) == float("inf")


def test_llms_share_what_gpus_there_are():
    assert common_theta(1 / 3, 10, 50) == 1 / 3
    assert common_theta(1 / 3, 20, 50) == 0.4  # 60 would be needed
    assert common_theta(1 / 3, 60, 50) == 1.2


@pytest.mark.parametrize("running", [2.4, 3.0, 3.8])  # IBP 0.267, 0.333, 0.422
def test_within_the_band_nothing_moves(running):
    assert interactive_targets(running, 3, 6, **BAND) == (3, 6)


def test_above_the_band_both_kinds_grow_to_theta():
    # IBP 4.5 / 9 = 0.5; 4.5 / (1/3) = 13.5, so 14 in all, ceil(14 / 3) = 5 of them interactive.
    assert interactive_targets(4.5, 3, 6, **BAND) == (5, 9)


def test_below_the_band_both_kinds_shrink_to_theta():
    # IBP 1 / 9; 3 in all, one of them interactive.
    assert interactive_targets(1.0, 3, 6, **BAND) == (1, 2)


def test_neither_kind_falls_when_instances_are_added():
    # 12 in all, of which 4 interactive and 8 mixed; but 6 interactive ones are there, and stay.
    assert interactive_targets(4.0, 6, 2, **BAND) == (6, 6)


def test_neither_kind_rises_when_instances_are_removed():
    # 6 in all: 2 interactive and 4 mixed; but only 1 mixed one is there.
    assert interactive_targets(2.0, 9, 1, **BAND) == (5, 1)


def test_bounds_on_instances():
    assert interactive_targets(0.0, 3, 6, **BAND) == (1, 1)
    assert interactive_targets(0.0, 3, 6, **BAND, min_interactive=2, min_mixed=3) == (2, 3)
    assert sum(interactive_targets(9.0, 3, 6, **BAND, max_total=16)) == 16


@given(
    running=st.floats(0, 20),
    interactive=st.integers(1, 20),
    mixed=st.integers(1, 20),
    theta=st.floats(0.2, 0.8),
)
def test_targets_bring_ibp_to_theta_or_below(running, interactive, mixed, theta):
    running = min(running, interactive + mixed)
    new = interactive_targets(running, interactive, mixed, theta=theta, delta=0.05)
    before = interactive_backpressure(running, interactive, mixed)
    after = interactive_backpressure(running, *new)
    if theta - 0.05 <= before <= theta + 0.05:
        assert new == (interactive, mixed)
    elif before > theta:
        assert after <= theta + 1e-9
        assert new[0] >= interactive
        assert new[1] >= mixed
        assert sum(new) > interactive + mixed
        # One instance fewer would leave it above.
        assert sum(new) - 1 < running / theta + 1e-6
    else:
        assert new[0] <= interactive
        assert new[1] <= mixed
        assert min(new) >= 1
        assert after <= theta + 1e-9 or 1 in new


# ---- Chiron: waiting time ----


def test_eq_1_is_tokens_ahead_over_throughput():
    # 0, 9 and 99 requests ahead, 200 tokens each, 1000 tokens/s.
    assert waiting_time_s([0, 9, 99], 200.0, 100.0, 1000.0) == pytest.approx([0.0, 1.8, 19.8])


def test_quantiles_follow_the_central_limit_theorem():
    # 100 requests: mean 20000, standard deviation sqrt(100) * 100 = 1000; z(0.975) = 1.96.
    assert expected_tokens(100, 200.0, 100.0, 0.975) == pytest.approx(20_000 + 1_959.964)
    assert expected_tokens(100, 200.0, 100.0) == pytest.approx(20_000)
    assert expected_tokens(1, 10.0, 1000.0, 0.01) == 0.0  # no negative work


def test_loading_instances_serve_once_they_are_there():
    supply = [(0.0, 100.0), (10.0, 300.0)]
    # 1000 tokens in the first 10 s; then 400 per second.
    assert drain_time_s([0, 500, 1000, 3000], supply) == pytest.approx([0.0, 5.0, 10.0, 15.0])
    assert drain_time_s([100.0], [(5.0, 50.0)]) == pytest.approx([7.0])
    assert np.isinf(drain_time_s([1.0], [])).all()
    assert drain_time_s([0.0], []) == pytest.approx([0.0])


# ---- Chiron: groups ----


def test_groups_by_deadline():
    deadlines = [100, 3600, 105, 3590, 102, 1000]
    groups = request_groups(deadlines, 3)
    assert [group.tolist() for group in groups] == [[0, 2, 4], [5], [1, 3]]
    assert requests_ahead(groups, np.ones(6)).tolist() == [0, 4, 1, 5, 2, 3]


def test_as_many_groups_as_deadlines_at_most():
    assert [g.tolist() for g in request_groups([50.0] * 4, 8)] == [[0, 1, 2, 3]]
    assert request_groups([], 3) == []
    with pytest.raises(ValueError, match="max_groups = 0"):
        request_groups([1.0], 0)


def test_many_deadlines_are_told_apart_coarsely():
    groups = request_groups(np.arange(5 * MAX_DISTINCT), 4)
    assert [len(group) for group in groups] == pytest.approx([5 * MAX_DISTINCT / 4] * 4, rel=0.02)


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=8, unique=True),
    st.integers(1, 4),
    st.data(),
)
def test_kmeans_is_optimal(values, k, data):
    x = np.array(sorted(values), float)
    w = np.array(data.draw(st.lists(st.integers(1, 5), min_size=len(x), max_size=len(x))), float)
    labels = kmeans_1d(x, w, k)

    def cost(parts):
        return sum(
            float(w[p] @ (x[p] - np.average(x[p], weights=w[p])) ** 2) for p in parts if len(p)
        )

    everything = range(len(x))
    best = min(
        cost(np.split(np.arange(len(x)), list(cuts)))
        for n in range(min(k, len(x)))
        for cuts in itertools.combinations(everything[1:], n)
    )
    mine = cost([np.flatnonzero(labels == g) for g in range(k)])
    assert mine == pytest.approx(best, abs=1e-6)
    assert (np.diff(labels) >= 0).all()


# ---- Chiron: Algorithm 2 ----


def queue_of(deadlines_s, tokens_each, tokens_per_s):
    """BBP of a queue as a function of added instances, each of `tokens_per_s`, one being there."""
    groups = request_groups(deadlines_s, 8)
    ahead = requests_ahead(groups, np.ones(len(deadlines_s)))

    def pressure(added):
        wait = waiting_time_s(ahead, tokens_each, 0.0, tokens_per_s * (1 + added))
        return batch_backpressure(groups, wait, np.array(deadlines_s, float))

    return pressure


def test_algorithm_2_adds_the_least_number_that_brings_bbp_to_zero():
    # 101 requests of 100 tokens; the last waits 10000 tokens, at 100 tokens/s and instance. Due in 30 s:
    # one instance takes 100 s, two 50, three 33.3, four 25: three more are needed.
    pressure = queue_of([30.0] * 101, 100.0, 100.0)
    assert [pressure(n) for n in range(5)] == [1, 1, 1, 0, 0]
    assert batch_instances_needed(pressure, 10) == 3


def test_a_queue_that_has_time_needs_nothing():
    assert batch_instances_needed(queue_of([100.0] * 101, 100.0, 100.0), 10) == 0
    assert batch_instances_needed(lambda added: 1, 0) == 0


def test_each_group_is_held_against_its_own_deadline():
    # 50 requests due in 30 s, 50 due in 200 s: the last of the first group waits 49 s, that of the
    # second 99 s.
    pressure = queue_of([30.0] * 50 + [200.0] * 50, 100.0, 100.0)
    assert [pressure(n) for n in range(3)] == [1, 0, 0]
    # Were all due in 30 s, four instances would be needed instead of two.
    assert batch_instances_needed(queue_of([30.0] * 100, 100.0, 100.0), 10) == 3


def test_algorithm_2_ends_where_no_number_suffices():
    calls = []

    def pressure(added):
        calls.append(added)
        return max(2, 5 - added)

    assert batch_instances_needed(pressure, 9) == 3  # 2 is as low as it gets
    assert max(calls) == 9


def test_deadlines_that_have_passed_do_not_count():
    groups = request_groups([-10.0, -10.0, 40.0], 4)
    wait = np.array([1.0, 2.0, 3.0])
    assert batch_backpressure(groups, wait, [-10.0, -10.0, 40.0]) == 0
    assert batch_backpressure(groups, wait + 40, [-10.0, -10.0, 40.0]) == 1


def test_a_group_judged_as_one():
    groups = [np.array([0, 1])]
    # One member would be late by its own deadline; the group's last wait is within the mean deadline.
    wait, left = [12.0, 20.0], [10.0, 50.0]
    assert batch_backpressure(groups, wait, left, "each") == 1
    assert batch_backpressure(groups, wait, left, "group") == 0


@given(
    st.lists(st.tuples(st.integers(-50, 2000), st.integers(1, 40)), min_size=1, max_size=12),
    st.integers(1, 6),
    st.floats(0.01, 100.0),
    st.floats(0.05, 0.99),
    st.sampled_from(["each", "group"]),
)
def test_runs_of_requests_are_judged_as_their_requests_would_be(runs, k, rate, quantile, judge):
    deadlines, counts = (np.array(column) for column in zip(*runs, strict=True))
    groups = request_groups(deadlines, k, counts=counts)
    ahead = requests_ahead(groups, counts)
    wait = waiting_time_s(ahead, 10.0, 3.0, rate, quantile)
    one_by_one = np.repeat(deadlines, counts)
    run_of = np.repeat(np.arange(len(runs)), counts)
    all_groups = request_groups(one_by_one, k)
    all_ahead = requests_ahead(all_groups, np.ones(len(one_by_one)))
    all_wait = waiting_time_s(all_ahead, 10.0, 3.0, rate, quantile)
    assert [np.repeat(g, counts[g]).tolist() for g in groups] == [
        run_of[g].tolist() for g in all_groups
    ]
    last = np.cumsum(counts) - 1
    assert ahead.tolist() == all_ahead[last].tolist()
    assert batch_backpressure(groups, wait, deadlines, judge, counts) == batch_backpressure(
        all_groups, all_wait, one_by_one, judge
    )


# ---- profile ----


def test_saturated_throughput_is_what_a_cycle_takes():
    model = iteration_time_model("llama-3.1-8b", "a100-80gb", 1)
    found = saturated_tokens_per_s(model, 10, 100_000, 200.0, 100.0)
    cycle = 10 * model.prefill_s(200.0) + 100 * model.decode_s(10, 10 * 250.0)
    assert found == pytest.approx(10 * 100 / cycle)
    # KV memory for two of them only: 500 // 250.
    two = saturated_tokens_per_s(model, 10, 500, 200.0, 100.0)
    assert two == pytest.approx(saturated_tokens_per_s(model, 2, 10**6, 200.0, 100.0))


# ---- HPA ----


@pytest.mark.parametrize(
    "instances, queue, wanted",
    [
        (4, 120, 4),  # rho 1
        (4, 132, 4),  # rho 1.1: within the tolerance
        (4, 133, 5),  # ceil(4.43)
        (4, 108, 4),  # rho 0.9
        (4, 100, 4),  # rho 0.83: ceil(3.33)
        (4, 90, 3),
        (4, 0, 0),
        (4, 301, 11),
    ],
)
def test_kubernetes_rule(instances, queue, wanted):
    assert recommendation(instances, {"queue": queue}, {"queue": 30.0}, 0.1) == wanted


@pytest.mark.parametrize(
    "instances, wanted, found",
    [
        (1, 100, 5),  # four more is more than twice as many
        (2, 100, 6),
        (4, 100, 8),
        (5, 100, 10),  # twice as many is more than four more
        (5, 7, 7),
        (10, 1, 1),  # all but the least may go at once
    ],
)
def test_kubernetes_step(instances, wanted, found):
    assert within_a_step(wanted, instances, up_factor=2.0, up_count=4, down_factor=0.0) == found


@pytest.mark.parametrize("instances, wanted, found", [(1, 100, 2), (5, 100, 10), (5, 1, 2)])
def test_step_held_within_half_and_twice(instances, wanted, found):
    assert within_a_step(wanted, instances, up_factor=2.0, up_count=0, down_factor=0.5) == found


def test_of_several_metrics_the_largest_counts():
    demand, targets = {"queue": 10.0, "kv": 2.5}, {"queue": 30.0, "kv": 0.6}
    assert recommendation(2, demand, targets, 0.1) == 5  # ceil(2.5 / 0.6)


def test_a_period_that_is_no_multiple_of_the_interval_is_kept_on_average():
    period = Period(15.0)
    assert [t for t in range(0, 100, 10) if period.due(float(t))] == [0, 20, 30, 50, 60, 80, 90]
    late = Period(15.0)
    assert [late.due(t) for t in (0.0, 100.0, 110.0, 115.0)] == [True, True, False, True]


# ---- Llumnix ----


def test_utilisation_counts_waiting_demand():
    assert token_utilisation(30_000, 10_000, 100_000) == pytest.approx(0.4)
    assert token_utilisation(100_000, 50_000, 100_000) == pytest.approx(1.5)


def test_waiting_requests_are_evened_out():
    assert evened_out({}) == []
    assert evened_out({3: 5, 4: 5}) == []
    assert evened_out({0: 10, 1: 0}) == [(0, 1, 5)]
    assert evened_out({0: 1, 1: 0}) == []
    # 21 over four: 6, 5, 5, 5
    moves = evened_out({0: 14, 1: 7, 2: 0, 3: 0})
    assert moves == [(0, 3, 5), (0, 2, 3), (1, 2, 2)]


def test_freeness():
    # 100000 - 36000 tokens free: 4000 blocks of 16, over 50 requests.
    assert freeness_load(36_000, 0, 100_000, 50, 16) == pytest.approx(-80.0)
    assert freeness_load(96_000, 20_000, 100_000, 50, 16) == pytest.approx(20.0)
    assert freeness_load(0, 0, 100_000, 0, 16) == pytest.approx(-6250.0)
