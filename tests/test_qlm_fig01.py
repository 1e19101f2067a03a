"""QLM's Figure 1 in small: fixed batches of the longest output, and GPUs counted from attainment."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from experiments.qlm import fig01_overestimation as fig01
from tests.test_figures import small_run


def test_fixed_batches_by_hand():
    # Two at a time, ten seconds each.
    found = fig01.fixed_batches_s(np.arange(5), 2, 10.0)
    assert found.tolist() == [0, 0, 10, 10, 20]


def test_the_left_half_over_estimates():
    frame = small_run("qlm-fig01")
    last = frame[frame["half"] == "waits"].iloc[-1]
    assert (last["position"], last["fixed_batch"]) == (199, 32)
    assert last["fixed_s"] == pytest.approx(199 // 32 * last["execution_s"])
    # 2,048 tokens a batch where requests have 472 on average.
    assert last["fixed_s"] > 2.5 * last["wait_s"]
    assert last["qlm_s"] == pytest.approx(last["wait_s"], rel=0.3)


@pytest.mark.parametrize("llms", ["one", "several"])
def test_the_right_half_counts_who_is_on_time(llms):
    frame = small_run("qlm-fig01")
    row = frame[(frame["llms"] == llms) & (frame["policy"] == "edf")].iloc[0]
    assert row["gpus"] == 4
    assert 0 <= row["interactive_on_time"] <= 1
    # One instance takes 30 requests of its own LLM at once, and three swaps take too long.
    assert (row["batch_on_time"] == 1) == (llms == "one")


def fleets(shares, policy="qlm", llms="one", seed=30_000):
    return [
        {
            "half": "gpus",
            "seed": seed,
            "policy": policy,
            "llms": llms,
            "gpus": gpus,
            "interactive_on_time": share,
            "batch_on_time": 1.0,
        }
        for gpus, share in zip((40, 64, 128), shares, strict=True)
    ]


@pytest.mark.parametrize(
    "shares, gpus",
    [((1, 1, 1), 40), ((0.9, 1, 1), 64), ((1, 0.9, 1), 128), ((1, 1, 0.9), None)],
)
def test_gpus_are_needed_from_which_on_all_is_well(shares, gpus):
    found = fig01.needed(pd.DataFrame(fleets(shares)), "qlm", "one", 0.99)
    assert found.tolist() == ([] if gpus is None else [gpus])


def test_claims_on_made_up_rows():
    parameters = fig01.Overestimation(
        seeds=1, policies=("qlm", "edf", "shepherd"), instances=(10, 16, 32)
    )
    waits = [
        {"half": "waits", "seed": 30_000, "position": k, "wait_s": 2.0 * k, "fixed_s": 8.0 * k}
        | {"qlm_s": 2.1 * k, "fixed_batch": 32, "execution_s": 100.0}
        for k in (0, 50, 99)
    ]
    rows = [*waits]
    for llms in fig01.MODELS:
        rows += fleets((0.5, 1, 1), "qlm", llms)
        rows += fleets((1, 1, 1), "edf", llms)
        rows += fleets((0, 0.5, 0.9), "shepherd", llms)
    frame = pd.DataFrame(rows)
    over, right, one, several = fig01.claims(frame, parameters)
    assert (over.ours.mean, over.verdict) == (4, "reproduced")
    assert (right.ours.mean, right.verdict) == (pytest.approx(1.05), "reproduced")
    # SHEPHERD, which section 1 names, comes first. Not with 128: at least twice what QLM takes.
    assert (one.ours.mean, one.verdict) == (2, "reproduced")
    edf = several.parts[1]
    assert edf.sentence == "EDF against QLM"
    assert (edf.ours.mean, edf.verdict) == (40 / 64, "not reproduced")
    assert fig01.plot(frame, parameters) is not None


def test_what_takes_no_more_says_what_it_needs():
    parameters = fig01.Overestimation(seeds=1, policies=("qlm", "shepherd"), instances=(10, 16, 32))
    waits = {"half": "waits", "seed": 30_000, "position": 9, "wait_s": 2.0, "fixed_s": 8.0}
    rows = [{**waits, "qlm_s": 2.1, "fixed_batch": 32, "execution_s": 100.0}]
    for llms in fig01.MODELS:
        rows += fleets((0, 0.5, 1), "qlm", llms) + fleets((1, 1, 1), "shepherd", llms)
    *_, one, _ = fig01.claims(pd.DataFrame(rows), parameters)
    assert one.verdict == "not reproduced"
    assert one.reason.endswith("Needed: QLM 128 GPUs; SHEPHERD 40 GPUs")
