"""BlitzScale's Figure 4 in small."""

from __future__ import annotations

import numpy as np

from experiments.blitzscale import fig04_cache_misses as fig04
from tests.small_studies import verdicts
from tests.test_figures import small, small_run

NAME = "blitzscale-fig04"


def test_rates_of_windows_by_hand():
    started = np.array([5, 5, 20, 0, 3, 0])
    missed = np.array([5, 0, 2, 0, 3, 0])
    low, high = fig04.window_rates(started, missed, 2)
    assert (low, high) == (10.0, 50.0)  # the last window has too few starts
    assert all(np.isnan(fig04.window_rates(started, missed, 2, least=100)))


def test_a_small_run():
    frame = small_run(NAME)
    hours = frame[frame["kind"] == "hour"]
    assert len(hours) == 3 * 5 * 2
    assert (hours["missed"].astype(float) <= hours["started"].astype(float)).all()
    minutes = frame[frame["kind"] == "minute"]
    assert minutes["minute"].max() == 29
    for _, mine in minutes[minutes["variant"] == "packed"].groupby(["seed", "keep_alive_s"]):
        assert mine["running"].astype(float).max() <= 6
    long = fig04.rate_of(frame, "packed", 300).mean
    assert long < fig04.rate_of(frame, "packed", 30).mean
    rates, misses = fig04.claims(frame, small(NAME))
    mine = hours[(hours["variant"] == "published") & (hours["keep_alive_s"] == 300)]
    lowest, highest = rates.parts
    assert lowest.ours.mean == mine["lowest"].astype(float).mean()
    assert highest.ours.mean == mine["highest"].astype(float).mean()
    assert "any free host" in rates.note
    assert len(misses.parts) == 2


def test_no_misses_are_not_reproduced():
    never = small_run(NAME).assign(missed=0, missed_several=0, lowest=0.0, highest=0.0)
    assert "reproduced" not in verdicts(fig04.claims(never, small(NAME)))


def test_the_same_seed_meets_the_same_demand():
    frame = small_run(NAME)
    minutes = frame[(frame["kind"] == "minute") & (frame["keep_alive_s"] == 300)]
    by = minutes.pivot(index=["seed", "minute"], columns="variant", values="requests")
    assert (by["packed"] == by["random"]).all()
    assert (by["packed"] == by["shared"]).all()  # the first of the four
