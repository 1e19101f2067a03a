"""GPU-hours at matched attainment, by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from experiments.learned.matched import at_target, difference, interval, matched_hours


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


def test_who_never_reaches_it_needs_endlessly_many():
    assert at_target(np.array([0.98, 0.9899]), np.array([4.0, 7.0])) == math.inf


def test_intervals_of_the_matched_hours_are_those_of_all_resamples():
    """Two windows, the second class always on time: a resample is (0,0), (0,1), (1,0) or (1,1)."""
    hours = np.array([[4.0, 6.0], [10.0, 10.0]])
    attainment = np.ones((2, 2, 2))
    attainment[:, 0] = [[0.985, 0.995], [0.995, 0.995]]
    by_hand = []
    for rows in itertools.product((0, 1), repeat=2):
        share = attainment[:, 0, list(rows)].mean(axis=1)
        by_hand.append(at_target(share, hours[:, list(rows)].mean(axis=1)))
    # both cheap windows: half way from (0.985, 4) to (0.995, 10); both dear: 6; one each: 0.99 at 5
    assert by_hand == [pytest.approx(7.0), 5.0, 5.0, 6.0]
    mean, resampled = matched_hours(hours, attainment)
    assert mean == 5.0
    assert {round(value, 9) for value in resampled} == {5.0, 6.0, 7.0}
    found = interval(mean, resampled)
    assert (found.low, found.high) == (5.0, pytest.approx(7.0))


def test_an_interval_that_would_miss_the_target_has_no_end():
    hours, attainment = np.array([[4.0, 4.0]]), np.array([[[0.98, 1.0]]])
    mean, resampled = matched_hours(hours, attainment)  # a quarter of the resamples is at 0.98
    assert mean == 4.0
    assert np.isinf(resampled).mean() == pytest.approx(0.25, abs=0.05)
    assert interval(mean, resampled).high == math.inf
    same = difference((mean, resampled), (mean, resampled))  # endless less endless: nobody knows
    assert (same.mean, same.low, same.high) == (0.0, 0.0, math.inf)
    endless = (math.inf, np.full(9, math.inf))
    assert difference(endless, endless).mean == math.inf
    four, five = (4.0, np.full(9, 4.0)), (5.0, np.full(9, 5.0))
    assert difference(four, five).high == -1.0
