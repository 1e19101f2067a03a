"""BlitzScale's Figure 16 in small."""

from __future__ import annotations

from experiments.blitzscale import fig16_host_cache as fig16
from experiments.blitzscale.setting import SETTINGS
from tests.small_studies import verdicts
from tests.test_figures import small, small_run

NAME = "blitzscale-fig16"


def test_a_small_run():
    frame = small_run(NAME)
    bins = frame[frame["kind"] == "bin"]
    for name, mine in bins.groupby("workload"):
        assert mine["copies"].astype(float).max() <= SETTINGS[name].hosts
        assert (mine["running"].astype(float) <= mine["copies"].astype(float)).all()
    whole = frame[frame["kind"] == "whole"]
    mean = whole.groupby(["workload", "keep_alive_s"])["copies"].mean()
    assert mean["azure-code", 300] > mean["azure-code", 30] > 1
    assert mean["burstgpt", 300] > mean["burstgpt", 30]
    copies, silences = fig16.claims(frame, small(NAME))
    assert (len(copies.parts), len(silences.parts)) == (2, 2)


def test_one_copy_is_no_reproduction():
    one = small_run(NAME).assign(copies=1.0, of_hosts=1 / 16, without=0.0)
    found = verdicts(fig16.claims(one, small(NAME)))
    assert found == ["not reproduced"] * 2
