"""QLM's Figure 5 in small: every swap waits for the batch to end, and takes its time."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from experiments.qlm import fig05_drain_time as fig05
from tests.test_figures import small_run


def runs_of(order):
    return 1 + int((np.diff(order) != 0).sum())


@pytest.mark.parametrize("mean_run", [1, 5, 40])
def test_half_of_the_requests_are_of_each_llm(mean_run):
    order = fig05.alternating(20_001, mean_run, np.random.default_rng(0))
    assert np.bincount(order).tolist() == [10_001, 10_000]
    # In a random order two in a row are the same as often as not.
    assert 20_001 / runs_of(order) == pytest.approx(max(mean_run, 2), rel=0.15)


@pytest.fixture
def found():
    return small_run("qlm-fig05")


def part(frame, **values):
    for name, value in values.items():
        frame = frame[frame[name] == value]
    return frame.set_index("weights")


def test_the_oracle_swaps_once(found):
    assert part(found, order="oracle")["swaps"].tolist() == [1] * 4


def test_a_cold_swap_takes_what_it_takes_longer(found):
    own = part(found, order="edf", run=1.0, second="mistral-7b@b")
    # The same batches, and every swap fetches 14.5 GB at 1.25 GB/s first.
    longer = own.loc["cold", "drain_s"] - own.loc["warm", "drain_s"]
    fetch_s = 2 * 7_241_732_096 / 1.25e9
    assert own.loc["cold", "swap_s"] - own.loc["warm", "swap_s"] == pytest.approx(fetch_s)
    assert longer == pytest.approx(own.loc["cold", "swaps"] * fetch_s, rel=1e-6)


def test_grouping_beats_runs_beat_a_random_order(found):
    for (_, _), mine in found.groupby(["second", "weights"]):
        one, ten = (mine.loc[mine["run"] == run, "drain_s"].item() for run in (1.0, 10.0))
        assert mine.loc[mine["order"] == "oracle", "drain_s"].item() < ten < one


def test_claims_judge_the_longest_runs():
    parameters = fig05.DrainTime(gpus=("a10-24gb",), runs=(1, 8), seeds=2)
    times = {1.0: 900.0, 8.0: 120.0}
    frame = pd.DataFrame(
        {
            **case,
            "drain_s": times.get(case["run"], 100.0),
            "swaps": 6 if case["order"] == "edf" else 1,
            "swap_s": 5.0,
        }
        for case in fig05.cases(parameters)
    )
    (claim,) = fig05.claims(frame, parameters)
    assert len(claim.parts) == 2 * 2
    assert claim.ours.mean == pytest.approx(1.2)
    assert claim.verdict == "same direction, another size"
    assert claim.reason == "swapping takes 25 % of EDF's drain time"
    assert claim.note == "by mean run: 9x at 1, 1.2x at 8"
