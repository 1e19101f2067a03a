"""Policies beside each other, on made-up rows."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from experiments.chiron import comparison
from experiments.harness.claims import Verdict


@pytest.fixture
def frame():
    rows = []
    for configuration, load, policy, throughput, attainment in (
        ("small", 10, "chiron", 2.0, 1.00),
        ("small", 10, "llumnix", 1.0, 1.00),
        ("small", 20, "chiron", 9.0, 0.50),
        ("small", 20, "llumnix", 1.0, 0.90),
        ("large", 10, "chiron", 1.5, 0.97),
        ("large", 10, "llumnix", 1.0, 0.20),
    ):
        for seed in (0, 1):
            rows.append(
                {
                    "configuration": configuration,
                    "load": float(load),
                    "policy_name": policy,
                    "seed": seed,
                    "throughput": throughput * (1 + seed),
                    "slo_attainment": attainment,
                }
            )
    return pd.DataFrame(rows)


def test_up_to_is_the_largest_mean_and_says_where(frame):
    gains = comparison.compared(frame, "throughput", "chiron", "llumnix", comparison.gain_percent)
    largest, where = comparison.up_to(gains)
    assert (largest.mean, where) == (800, "small, 20")
    assert comparison.at_load(gains, "large", 10).mean == pytest.approx(50)
    assert math.isnan(comparison.at_load(gains, "large", 99).mean)


def test_throughput_bought_with_late_requests_does_not_count(frame):
    gains = comparison.compared(
        frame, "throughput", "chiron", "llumnix", comparison.gain_percent, no_worse_by=0.01
    )
    largest, where = comparison.up_to(gains)
    assert (largest.mean, where) == (100, "small, 10")


def test_points_and_savings(frame):
    points = comparison.compared(
        frame, "slo_attainment", "chiron", "llumnix", comparison.gain_points
    )
    assert comparison.up_to(points)[0].mean == pytest.approx(77)
    saved = comparison.compared(frame, "throughput", "llumnix", "chiron", comparison.saving_percent)
    assert comparison.at_load(saved, "small", 10).mean == pytest.approx(50)


def test_nothing_to_compare_is_not_a_number(frame):
    nothing = comparison.compared(frame, "throughput", "chiron", "nobody", comparison.gain_percent)
    largest, where = comparison.up_to(nothing)
    assert math.isnan(largest.mean)
    assert where == "nowhere"


def test_loads_at_which_something_begins_and_ends(frame):
    def reached(policy, column, limit, last):
        return comparison.reached(frame, policy, "small", column, limit, last).mean

    assert reached("chiron", "slo_attainment", 0.9, last=True) == 10
    # Seed 0 has 2 and 9, seed 1 has 4 and 18.
    assert reached("chiron", "throughput", 4, last=False) == 15
    # Below at the lowest load already.
    assert reached("llumnix", "slo_attainment", 1.1, last=True) == 0


def test_what_lies_beyond_the_loads_that_were_run_is_no_number_of_them(frame):
    def reached(policy, column, limit, last):
        return comparison.reached(frame, policy, "small", column, limit, last).mean

    assert math.isnan(reached("llumnix", "slo_attainment", 0.9, last=True))
    assert math.isnan(reached("chiron", "throughput", 99, last=False))
    # Only seed 1 comes to 10.
    assert math.isinf(reached("chiron", "throughput", 10, last=False))


def test_nothing_is_gained_where_attainment_is_lower_everywhere(frame):
    def gain(part):
        return comparison.largest_gain(
            part, "throughput", "chiron", "llumnix", comparison.gain_percent, 0.01
        )

    small = frame[frame["configuration"] == "small"]
    found, where, counts = gain(small)
    assert (found.mean, counts) == (100, True)
    assert where == (
        "at small, 10; attainment is not lower by more than 1 percentage point at 1 of 2 loads"
    )
    bought = gain(small[small["load"] == 20])
    found, where, counts = bought
    assert (found.mean, counts) == (800, False)
    assert (
        where == "at small, 20; attainment is lower by more than 1 percentage point at all 1 loads"
    )
    told = comparison.most_gained("small", 300, bought, reason="no load has more", unit="%")
    assert (told.ours.mean, told.verdict) == (800, Verdict.NOT)
    assert told.reason == f"does not count, since it is {where}"
    assert math.isnan(gain(frame[frame["policy_name"] == "chiron"])[0].mean)


def test_shares_of_loads(frame):
    # Throughput is higher at all three loads, attainment lower at one of them.
    share, loads = comparison.share_higher(frame, "throughput", "chiron", "llumnix", 0.01)
    assert (share.mean, loads) == (pytest.approx(200 / 3), 3)
    # Attainment is equal at small, 10, lower at small, 20, higher at large, 10.
    share, apart, loads = comparison.share_better_served(frame, "chiron", "llumnix", 0.01)
    assert (share.mean, apart, loads) == (50, 2, 3)
    same = frame[frame["load"] == 10]
    same = same[same["configuration"] == "small"]
    share, apart, loads = comparison.share_better_served(same, "chiron", "llumnix", 0.01)
    assert (share.mean, apart, loads) == (0, 0, 1)
    words = comparison.lower_at(frame, "chiron", "llumnix", 0.01)
    assert words.endswith("by more than 1 percentage point at 1 of 3 loads: small 20 (-40.0)")
