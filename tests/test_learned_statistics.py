"""Statistics of the learned policies' protocol, against cases that were worked out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from agents.statistics import interquartile_mean
from experiments.learned.matched import Settings, at_target, held_out, matched_hours, mixture
from experiments.learned.statistics import (
    improvement_interval,
    probability_of_improvement,
    seed_draws,
    stratified_interval,
    t_interval,
    window_draws,
)


def test_interquartile_mean_cuts_a_quarter_of_all_values():
    assert interquartile_mean([8, 1, 100, 3, 4, 5, 6, -50]) == (3 + 4 + 5 + 6) / 4
    assert interquartile_mean([[1, 2], [3, 40]]) == 2.5  # of the whole table, one cut at each end
    assert interquartile_mean([1.0, 2.0, 9.0]) == 4.0  # a quarter of three, rounded down, is nobody
    assert np.isnan(interquartile_mean([]))


def test_probability_of_improvement_counts_pairs_and_half_of_ties():
    # 1 ties with 1 and loses to 3; 2 beats 1 and loses to 3: 1.5 of 4 pairs.
    assert probability_of_improvement({"w": [1, 2]}, {"w": [1, 3]}) == 1.5 / 4
    # The mean over workloads, however many runs each has.
    two = probability_of_improvement(
        {"w": [1, 2], "v": [[5.0], [6.0], [7.0]]}, {"w": [1, 3], "v": [0.0]}
    )
    assert two == (1.5 / 4 + 1.0) / 2
    with pytest.raises(ValueError, match="must be the same"):
        probability_of_improvement({"w": [1]}, {"v": [1]})


def test_all_policies_meet_the_same_windows_and_each_training_has_its_own_seeds():
    windows = window_draws("w", 4, resamples=200)
    assert windows.shape == (200, 4)
    assert set(windows.ravel()) == {0, 1, 2, 3}
    assert np.array_equal(windows, window_draws("w", 4, resamples=200))
    assert not np.array_equal(windows, window_draws("v", 4, resamples=200))
    assert not np.array_equal(seed_draws("a", 4, resamples=200), seed_draws("b", 4, resamples=200))


def test_few_things_drawn_from_make_wide_intervals():
    """A sample of five: 2.776 * sqrt(5/4) = 3.104 standard deviations of its resamples."""
    resampled = np.random.default_rng(0).normal(size=100_000)
    found = t_interval(1.0, resampled, 5)
    assert (found.low, found.high) == (pytest.approx(-2.1, abs=0.02), pytest.approx(4.1, abs=0.02))
    found = t_interval(0.0, resampled, 10**6)
    assert found.high == pytest.approx(1.96, abs=0.01)
    # A few infinite ones are left out, more make it endless.
    found = t_interval(1.0, np.append(resampled, [np.inf] * 2000), 5)
    assert found.high == pytest.approx(4.1, abs=0.02)
    found = t_interval(1.0, np.append(resampled, [np.inf] * 3000), 5)
    assert (found.low, found.high) == (pytest.approx(-2.1, abs=0.02), np.inf)


def test_an_interval_of_few_reaches_as_far_as_the_resamples_do_on_each_side():
    """One resample in thirty is far above the others: the standard error does not reach there."""
    resampled = np.append(np.linspace(-0.1, 0.1, 2900), np.full(100, 3.0))
    found = t_interval(0.0, resampled, 9)
    half = 2.306 * np.sqrt(9 / 8) * resampled.std(ddof=1)
    assert (found.low, found.high) == (pytest.approx(-half, rel=0.01), 3.0)


def test_an_interval_of_many_is_short_where_the_resamples_are():
    """The same with 40: down to the percentile, 2.023 * sqrt(40/39) / 1.960 = 1.0452 times as far."""
    resampled = np.append(np.linspace(-0.1, 0.1, 2900), np.full(100, 3.0))
    found = t_interval(0.0, resampled, 40)
    assert found.low == pytest.approx(1.0452 * (-0.1 + 0.2 * 75 / 2900), rel=0.01)
    assert found.high == pytest.approx(1.0452 * 3.0, rel=0.001)
    # Resamples that all lie above the statistic leave its lower end where it is.
    found = t_interval(-1.0, resampled, 40)
    assert (found.low, found.high) == (-1.0, pytest.approx(-1.0 + 1.0452 * 4.0, rel=0.001))
    found = t_interval(0.0, np.append(resampled, [np.inf] * 200), 40)
    assert (found.low, found.high) == (pytest.approx(-0.098, abs=0.001), np.inf)


@pytest.mark.parametrize("n", [10, 20, 40])
def test_intervals_of_many_windows_cover_the_truth(n: int):
    """Windows of an exponential law, whose mean is 1: 95 % of such studies should hold it."""
    rng = np.random.default_rng(n)
    held = 0
    for _ in range(200):
        found = stratified_interval(
            {"w": rng.exponential(size=n)}, lambda v: float(np.mean(v)), resamples=300
        )
        held += found.low <= 1 <= found.high
    assert 0.87 * 200 <= held <= 0.99 * 200


@pytest.mark.parametrize("n_seeds", [2, 3, 5, 8])
def test_intervals_of_few_seeds_cover_the_truth(n_seeds: int):
    """Seeds differ more than windows do: 95 % of such studies should hold the mean, which is 0."""
    rng = np.random.default_rng(n_seeds)
    held = 0
    for _ in range(200):
        scores = {"w": rng.normal(size=(n_seeds, 1)) + 0.1 * rng.normal(size=(n_seeds, 20))}
        found = stratified_interval(
            scores, lambda v: float(np.mean(v)), trainings={"w": "a"}, resamples=300
        )
        held += found.low <= 0 <= found.high
    assert 0.91 * 200 <= held <= 0.99 * 200  # give or take three standard deviations


def test_the_interval_of_two_windows_has_one_degree_of_freedom():
    # The mean of two draws from {0, 1} is 0, 0.5, 0.5 or 1, with a standard deviation of 0.3536.
    found = stratified_interval({"w": [0.0, 1.0]}, lambda v: float(np.mean(v)))
    half = 12.706 * np.sqrt(2) * 0.3536
    assert (found.mean, found.high) == (0.5, pytest.approx(0.5 + half, rel=0.05))
    assert found.low == pytest.approx(0.5 - half, rel=0.05)


def test_trainings_for_one_workload_each_are_drawn_apart():
    """Seeds -1 and 1 on both workloads: drawn together the mean of both is -1, 0 or 1, else -0.5 as well."""
    scores = {"w": [[-1.0] * 8, [1.0] * 8], "v": [[-1.0] * 8, [1.0] * 8]}
    some: set[float] = set()

    def mean(values: object) -> float:
        some.add(float(np.mean(values)))
        return float(np.mean(values))

    stratified_interval(scores, mean, trainings={"w": "a", "v": "a"}, resamples=100)
    assert some == {-1.0, 0.0, 1.0}
    some.clear()
    stratified_interval(scores, mean, trainings={"w": "a", "v": "b"}, resamples=100)
    assert some >= {-0.5, 0.5}
    # and need not be as many
    stratified_interval(
        {**scores, "v": [[0.0] * 8]}, mean, trainings={"w": "a", "v": "b"}, resamples=100
    )


def test_strata_are_resampled_apart():
    # Each workload's windows are equal, so there is nothing to resample, however far apart they are.
    found = stratified_interval({"w": [1.0, 1.0], "v": [9.0, 9.0]}, lambda v: float(np.mean(v)))
    assert (found.mean, found.low, found.high) == (5.0, 5.0, 5.0)


def test_training_seeds_widen_the_interval():
    # Windows alike, seeds 0 and 10: only the drawing of seeds can move the mean.
    scores = {"w": [[0.0] * 30, [10.0] * 30]}
    found = stratified_interval(scores, lambda v: float(np.mean(v)), trainings={"w": "a"})
    half = 12.706 * np.sqrt(2) * 3.536  # Student's t of two
    assert found.high - 5.0 == pytest.approx(half, rel=0.05)
    one = stratified_interval({"w": [[0.0, 1.0] * 15]}, trainings={"w": "a"})
    assert np.isnan(one.low)  # what another training would have done is not known


def test_the_spread_of_the_bootstrap_is_that_of_theory():
    values = np.random.default_rng(3).normal(size=400)
    found = stratified_interval({"w": values}, lambda v: float(np.mean(v)))
    half = 1.966 * values.std() / 20
    assert found.high - found.low == pytest.approx(2 * half, rel=0.1)


def test_one_value_has_no_interval():
    found = stratified_interval({"w": [3.0]})
    assert found.mean == 3.0
    assert np.isnan(found.low)
    with pytest.raises(ValueError, match="as many training seeds"):
        stratified_interval({"w": [1.0, 2.0], "v": [[1.0], [2.0]]})
    with pytest.raises(ValueError, match="there are none"):
        stratified_interval({})


def test_improvement_is_judged_on_the_same_windows():
    # Always one better, window by window, but windows differ more: 1 + 2 + 3 + 4 of the 16 pairs are won.
    one = {"w": [1.0, 11.0, 21.0, 31.0]}
    other = {"w": [0.0, 10.0, 20.0, 30.0]}
    found = improvement_interval(one, other, resamples=300)
    assert found.mean == 10 / 16
    # The standard error is that of all 256 resamples of four windows, the same for both.
    every = [
        probability_of_improvement(
            {"w": np.array(one["w"])[list(k)]}, {"w": np.array(other["w"])[list(k)]}
        )
        for k in itertools.product(range(4), repeat=4)
    ]
    half = 3.182 * np.sqrt(4 / 3) * np.std(every)
    assert found.high == pytest.approx(10 / 16 + half, rel=0.05)
    assert found.low == pytest.approx(10 / 16 - half, rel=0.05)


# ---------------------------------------------------------------- matched attainment


def test_between_two_settings_is_a_straight_line():
    # 0.98 at 4, 0.995 at 7: two thirds of the windows under the second reach 0.99, at 4 + 2/3 * 3.
    assert at_target(np.array([0.98, 0.995]), np.array([4.0, 7.0])) == pytest.approx(6.0)


def test_a_cheaper_setting_that_reaches_it_wins():
    share, hours = np.array([0.98, 0.995, 0.99]), np.array([4.0, 7.0, 5.0])
    assert at_target(share, hours) == 5.0
    # and one that is dearer and worse changes nothing
    assert at_target(np.append(share, 0.5), np.append(hours, 99.0)) == 5.0


def test_the_lower_edge_of_the_hull_is_taken_whatever_lies_between():
    # The line from (0.90, 1) to (1.00, 2) passes 0.99 at 1.9, below the neighbours' 0.985 and 0.995.
    share, hours = np.array([0.90, 0.985, 0.995, 1.0]), np.array([1.0, 3.0, 3.0, 2.0])
    assert at_target(share, hours) == pytest.approx(1.9)


def test_who_never_reaches_it_has_no_answer():
    assert np.isnan(at_target(np.array([0.98, 0.9899]), np.array([4.0, 7.0])))
    only = Settings(("a",), np.ones((1, 1, 3)), np.full((1, 2, 1, 3), 0.98))
    assert np.isnan(matched_hours(only, resamples=10).interval.mean)


def settings_of(hours: list[list[float]], share: list[list[float]]) -> Settings:
    """One training seed; the second class always on time."""
    attainment = np.array([[[s], [[1.0] * len(s)]] for s in share])
    labels = tuple(str(k) for k in range(len(hours)))
    return Settings(labels, np.array(hours)[:, None, :], attainment.reshape(len(hours), 2, 1, -1))


def test_the_worst_class_counts():
    made = settings_of([[4.0, 6.0]], [[0.98, 0.996]])
    share, hours = made.points()
    assert share.tolist() == [pytest.approx(0.988)]
    assert hours.tolist() == [5.0]
    both = settings_of([[4.0, 6.0], [6.0, 8.0]], [[0.98, 0.996], [1.0, 1.0]])
    # 0.988 at 5 and 1.0 at 7: a sixth of the windows under the second
    assert matched_hours(both, resamples=10).interval.mean == pytest.approx(5 + 2 / 6)


def test_intervals_of_the_matched_hours_are_those_of_all_resamples():
    """Two windows: a resample is (0,0), (0,1), (1,0) or (1,1); the answer of each by hand."""
    made = settings_of([[4.0, 6.0], [10.0, 10.0]], [[0.985, 0.995], [0.995, 0.995]])
    by_hand = []
    for a, b in itertools.product((0, 1), repeat=2):
        share = (np.array([0.985, 0.995])[[a, b]].mean(), 0.995)
        by_hand.append(
            at_target(np.array(share), np.array([(4.0, 6.0)[a] / 2 + (4.0, 6.0)[b] / 2, 10.0]))
        )
    # both cheap windows: half way from (0.985, 4) to (0.995, 10); both dear: 6; one each: 0.99 at 5
    assert by_hand == [pytest.approx(7.0), 5.0, 5.0, 6.0]
    found = matched_hours(made, resamples=400)
    assert found.interval.mean == 5.0
    half = 12.706 * np.sqrt(2) * np.std([7.0, 5.0, 5.0, 6.0])
    assert found.interval.high - 5.0 == pytest.approx(half, rel=0.06)
    assert {round(hours, 9) for hours in found.resampled} == {5.0, 6.0, 7.0}
    assert found.by_seed.tolist() == [5.0]


def test_an_interval_that_would_miss_the_target_has_no_end():
    made = settings_of([[4.0, 4.0]], [[0.98, 1.0]])  # a quarter of the resamples is at 0.98
    found = matched_hours(made, resamples=200)
    assert found.interval.mean == 4.0
    assert found.interval.high == np.inf
    assert np.isinf(found.resampled).mean() == pytest.approx(0.25, abs=0.1)


def two_networks(first: list[float], second: list[float]) -> Settings:
    """Settings "a" and "b" of two networks in two windows, all alike; attainment of the first class."""
    hours = np.array([[[4.0, 4.0], [5.0, 5.0]], [[8.0, 8.0], [7.0, 7.0]]])
    share = np.array([[first[0], second[0]], [first[1], second[1]]])
    attainment = np.ones((2, 2, 2, 2))
    attainment[:, 0] = share[:, :, None]
    return Settings(("a", "b"), hours, attainment)


def test_each_network_is_matched_by_itself():
    """The first needs half of the windows under each setting, the second one setting alone: 6 and 5.

    Means over networks are 0.985 at 4.5 and 1.0 at 7.5: pooled, a third of the windows under the second.
    """
    made = two_networks([0.98, 1.0], [0.99, 1.0])
    found = matched_hours(made, training="one", resamples=400)
    assert found.by_seed.tolist() == [pytest.approx(6.0), pytest.approx(5.0)]
    assert found.interval.mean == pytest.approx(5.5)
    assert found.pooled.mean == pytest.approx(4.5 + 3 * 0.005 / 0.015)
    # Drawn are both networks, or one of them twice.
    assert {round(hours, 9) for hours in found.resampled} == {5.0, 5.5, 6.0}
    half = 12.706 * np.sqrt(2) * np.std([6.0, 5.5, 5.5, 5.0])
    assert found.interval.high - 5.5 == pytest.approx(half, rel=0.06)


def test_a_network_that_never_reaches_the_target_leaves_no_mean():
    found = matched_hours(two_networks([0.98, 0.985], [1.0, 1.0]), training="one", resamples=50)
    assert np.isnan(found.interval.mean)
    assert np.isinf(found.resampled).all()
    assert np.isnan(found.by_seed[0])
    assert found.by_seed[1] == 5.0
    assert found.pooled.mean == pytest.approx(4.5)


def test_a_network_that_does_not_reach_it_in_some_windows_is_endless_there_alone():
    made = two_networks([0.98, 0.99], [1.0, 1.0])
    attainment = made.attainment.copy()
    attainment[1, 0, 0] = (0.98, 1.0)  # the first network's second setting, by window
    made = Settings(made.labels, made.gpu_hours, attainment)
    found = matched_hours(made, training="one", resamples=400)
    assert found.interval.mean == pytest.approx((8.0 + 5.0) / 2)
    # The first window twice, a quarter of the draws, and the first network at least once, three quarters.
    assert np.isinf(found.resampled).mean() == pytest.approx(3 / 16, abs=0.06)
    assert found.interval.high == np.inf


def test_arrays_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="do not fit"):
        Settings(("a", "b"), np.ones((1, 1, 3)), np.ones((1, 2, 1, 3)))


def test_a_mixture_says_how_much_of_which_setting():
    share, hours = np.array([0.97, 0.98, 1.0]), np.array([1.0, 3.0, 4.0])
    # Half of the way from 0.98 to 1 costs 3.5; two thirds of that from 0.97 cost 1 + 2/3 * 3 = 3.
    np.testing.assert_allclose(mixture(share, hours, 0.99), [1 / 3, 0, 2 / 3])
    assert at_target(share, hours, 0.99) == pytest.approx(3.0)
    np.testing.assert_allclose(mixture(share, hours, 0.9), [1, 0, 0])
    assert mixture(share, hours, 1.1) is None


def test_held_out_windows_show_what_was_picked_by_chance():
    """Of two settings each keeps the target on every other window alone: matched on these, bad on those."""
    share = np.array([[1.0, 0.9] * 3, [0.9, 1.0] * 3])
    hours = np.ones((2, 1, 6))
    made = Settings(("a", "b"), hours, share[:, None, None, :])
    found = held_out(made, 0.99)
    assert (found.gpu_hours, found.attainment) == (1.0, pytest.approx(0.9))
    same = Settings(("a", "b"), hours, np.full((2, 1, 1, 6), 0.995))
    assert held_out(same, 0.99).attainment == pytest.approx(0.995)
    # What reaches the target nowhere is held to the setting that comes nearest.
    never = Settings(("a", "b"), hours * [[[1.0]], [[2.0]]], np.full((2, 1, 1, 6), 0.9))
    assert held_out(never, 0.99).gpu_hours == 1.0
    one = Settings(("a", "b"), hours[:, :, :1], np.ones((2, 1, 1, 1)))
    assert np.isnan(held_out(one, 0.99).gpu_hours)
