"""BlitzScale's Figure 16 in small."""

from __future__ import annotations

import pytest

from experiments.blitzscale import fig16_host_cache as fig16
from experiments.blitzscale.setting import SETTINGS
from tests.small_studies import frame_of


@pytest.fixture(scope="module")
def small():
    parameters = fig16.HostCopies(seeds=2, workloads=("burstgpt", "azure-code"))
    return frame_of(fig16, parameters), parameters


def test_a_small_run(small):
    frame, parameters = small
    bins = frame[frame["kind"] == "bin"]
    for name, mine in bins.groupby("workload"):
        assert mine["copies"].astype(float).max() <= SETTINGS[name].hosts
        assert (mine["running"].astype(float) <= mine["copies"].astype(float)).all()
    whole = frame[frame["kind"] == "whole"]
    mean = whole.groupby(["workload", "keep_alive_s"])["copies"].mean()
    assert mean["azure-code", 300] > mean["azure-code", 30] > 1
    assert mean["burstgpt", 300] > mean["burstgpt", 30]
    assert len(fig16.claims(frame, parameters)) == 4
    fig16.plot(frame, parameters)


def test_one_copy_is_no_reproduction(small):
    frame, parameters = small
    one = frame.assign(copies=1.0, of_hosts=1 / 16, without=0.0)
    verdicts = [claim.verdict for claim in fig16.claims(one, parameters)]
    assert verdicts[:2] == ["not reproduced"] * 2
    assert verdicts[-1] == "not reproduced"


def test_an_unknown_placement_is_named():
    with pytest.raises(ValueError, match="'packed', 'cached' or 'random'"):
        fig16.HostCopies(placement="best")
