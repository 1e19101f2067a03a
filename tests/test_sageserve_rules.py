"""SageServe's rules by hand: routing, queue manager, scaling, where instances come from."""

from __future__ import annotations

import math

import pytest

from tests.sageserve_rules import (
    Bounds,
    PullRule,
    Reactive,
    Thresholds,
    Utilised,
    UtilisedAhead,
    choose_region,
    scale_out,
)

# ---- routing ----


def test_the_preferred_region_below_the_threshold():
    at = [0.7] * 3
    assert choose_region([0.69, 0.1, 0.0], (0, 1, 2), at) == 0
    assert choose_region([0.7, 0.6, 0.5], (0, 1, 2), at) == 1  # 70 % is not below 70 %
    assert choose_region([0.7, 0.8, 0.5], (0, 1, 2), at) == 2
    # None is below: the least utilised, of equals the preferred.
    assert choose_region([0.9, 0.8, 0.95], (0, 1, 2), at) == 1
    assert choose_region([0.9, 0.8, 0.8], (2, 1, 0), at) == 2
    assert choose_region([0.9, 0.2, 0.8], (0, 2), at) == 2  # the choices only
    assert choose_region([0.4, 0.2, 0.1], (0, 1, 2), [0.3] * 3) == 1
    assert choose_region([math.inf, 0.9], (0, 1), at) == 1
    assert choose_region([math.inf, math.inf], (0, 1), at) is None
    assert choose_region([0.4, 0.2, 0.1], (0, 1, 2), [0.4, 0.2, 0.5]) == 2
    assert choose_region([0.0, 0.2], (0, 1), [0, 0]) == 0  # none is below: the least


# ---- queue manager ----


@pytest.mark.parametrize("utilisation, pulled", [(0.6, 0), (0.59, 1), (0.5, 1), (0.49, 2), (0, 2)])
def test_pulls(utilisation, pulled):
    assert PullRule().pulls(utilisation) == pulled


def test_background_is_urgent_from_ten_hours_on():
    assert [PullRule().priority(age) for age in (0.0, 35_999.9, 36_000.0, 90_000.0)] == [1, 1, 0, 0]


# ---- scaling ----


def test_reactive():
    rule = Reactive(bounds=Bounds(2, 4))
    assert rule.arrival(0.0, 3, 0.7) == 0
    assert rule.arrival(0.0, 3, 0.71) == 1
    assert rule.arrival(14.9, 4, 0.1) == 0  # cooldown
    assert rule.arrival(15.0, 4, 0.3) == 0
    assert rule.arrival(15.0, 4, 0.29) == -1
    assert rule.arrival(40.0, 4, 0.9) == 0  # no more there
    assert rule.arrival(40.0, 2, 0.0) == 0
    assert rule.arrival(40.0, 2, 0.9) == 1  # what could not be done has no cooldown
    released = Reactive(Thresholds(0.5, 0.25))
    assert released.arrival(0.0, 3, 0.51) == 1
    assert released.arrival(20.0, 3, 0.26) == 0
    assert released.hour(3600.0, 3, 9) == 0


def test_those_that_serve_do_not_fall_below_the_least():
    rule = Reactive(bounds=Bounds(2, 20))
    assert rule.arrival(0.0, 5, 0.1, active=2) == 0
    assert rule.arrival(1.0, 5, 0.1, active=3) == -1  # nothing was changed: no cooldown


def test_utilised_goes_to_the_target_and_no_further():
    rule = Utilised()
    assert rule.arrival(0.0, 5, 0.9) == 0  # no plan yet
    assert rule.hour(0.0, 5, 7) == 0
    assert rule.arrival(1.0, 5, 0.5) == 0
    assert rule.arrival(1.0, 5, 0.1) == 0  # not away from the target
    assert rule.arrival(1.0, 5, 0.8) == 1
    assert rule.arrival(2.0, 6, 0.8) == 0
    assert rule.arrival(16.0, 6, 0.8) == 1
    assert rule.arrival(40.0, 7, 0.99) == 0
    assert rule.arrival(3500.0, 7, 0.0, 0.0) == 0
    assert rule.hour(3600.0, 7, 6) == 0
    assert rule.arrival(3601.0, 7, 0.99) == 0
    assert rule.arrival(3601.0, 7, 0.2) == -1
    assert rule.arrival(3700.0, 6, 0.2) == 0


def test_utilised_ahead_goes_by_traffic_in_the_last_20_minutes():
    rule = UtilisedAhead(bounds=Bounds(2, 9))
    rule.hour(-3600.0, 5, 6, 1000.0)
    assert rule.arrival(-1201.0, 6, 0.99, 9000.0) == 0  # there, but it is not late
    rule.hour(0.0, 5, 6, 1000.0)
    assert rule.arrival(2400.0, 5, 0.5, 9000.0) == 0  # late, but not there: memory decides
    assert rule.arrival(2400.0, 5, 0.8, 9000.0) == 1
    assert rule.arrival(2420.0, 6, 0.1, 5000.0) == 1  # five times the forecast, whatever the memory
    assert rule.arrival(2440.0, 7, 0.9, 4999.0) == 0
    assert rule.arrival(2440.0, 7, 0.9, 501.0) == 0
    assert rule.arrival(2440.0, 7, 0.9, 500.0) == -1
    assert rule.arrival(2460.0, 6, 0.9, 500.0) == -1  # on below the target
    assert rule.arrival(2480.0, 5, 0.9, 500.0) == -1  # it has been there in this hour
    rule.hour(3600.0, 4, 6, 1000.0)
    assert rule.arrival(6100.0, 4, 0.9, 100.0) == 1  # in the next hour not yet: memory decides
    assert rule.arrival(6120.0, 9, 0.9, 9e9) == 0  # bounds


def test_utilised_ahead_after_scaling_in():
    for either, change in ((True, 1), (False, 0)):
        rule = UtilisedAhead(either_way=either)
        rule.hour(0.0, 7, 6, 1000.0)
        assert rule.arrival(3000.0, 7, 0.1, 9000.0) == -1
        assert rule.arrival(3100.0, 6, 0.9, 9000.0) == change
        assert rule.arrival(3200.0, 6, 0.9, 100.0) == -1
    level = UtilisedAhead(either_way=False)
    level.hour(0.0, 6, 6, 1000.0)
    assert level.arrival(3100.0, 6, 0.9, 9000.0) == 1
    idle = UtilisedAhead()
    idle.hour(0.0, 6, 6, 0.0)
    assert idle.arrival(3100.0, 6, 0.0, 0.0) == -1  # nothing was forecast and nothing comes
    assert idle.arrival(3200.0, 5, 0.0, 10.0) == 1  # any load is more than five times nothing


# ---- where instances come from ----


def test_own_spot_first_then_the_largest_of_others():
    found = scale_out(7, 1, [3, 2, 1, 3])
    assert (found.own, found.others, found.missing) == (2, ((0, 3), (3, 2)), 0)
    assert scale_out(2, 1, [3, 0, 3]).others == ((0, 1), (2, 1))  # whoever has the most by then
    assert scale_out(2, 1, [3, 2]).others == ()
    assert scale_out(9, 0, [1, 2]).missing == 6
