"""Chiron's Figure 19 in small: the queue under Chiron and Llumnix, and the claims on made-up rows."""

from __future__ import annotations

import pandas as pd
import pytest

from experiments.chiron import fig19_workflow as fig19

SMALL = fig19.Workflow(
    seeds=1, batch_requests=3000, batch_at_s=60.0, batch_ttft_s=120.0, after_s=60.0, rate_per_s=10.0
)


@pytest.fixture(scope="module")
def frame():
    rows = [{**case, **row} for case in fig19.cases(SMALL) for row in fig19.run(case)]
    return pd.DataFrame(rows)


def test_a_run_gives_a_summary_and_a_row_per_interval(frame):
    by_policy = frame.groupby("policy")["row"].value_counts()
    for policy in SMALL.policies:
        assert by_policy[policy, "summary"] == 1
        assert by_policy[policy, "interval"] == 24  # 240 s, a decision every 10 s


def test_requests_wait_from_their_arrival_until_they_are_admitted(frame):
    mine = frame[(frame["row"] == "interval") & (frame["policy"] == "chiron")]
    waiting = mine.set_index("time_s")["waiting"]
    # Those that arrive exactly at the end of an interval have come.
    assert (waiting.loc[:50] == 0).all()
    assert waiting[60] == 3000
    assert 0 < waiting[70] < 3000
    assert waiting.iloc[-1] == 0
    assert (waiting.loc[60:].diff().dropna() <= 0).all()


def test_llumnix_keeps_no_shared_queue(frame):
    mine = frame[(frame["row"] == "interval") & (frame["policy"] == "llumnix")]
    assert (mine["shared_queue"] == 0).all()
    assert mine["waiting"].max() > 0


def test_gpu_hours_are_those_of_the_intervals_until_the_deadline(frame):
    for _, mine in frame.groupby("policy"):
        rows = mine[(mine["row"] == "interval") & (mine["time_s"] <= 180)]
        hours = mine.loc[mine["row"] == "summary", "gpu_hours"].item()
        assert hours == pytest.approx(rows["gpus"].sum() * 10 / 3600)


def test_plot_and_claims_take_the_frame(frame):
    fig19.plot(frame, SMALL)
    assert len(fig19.claims(frame, SMALL)) == 10 + 2 * (len(SMALL.policies) - 1)


def test_claims_on_made_up_rows():
    parameters = fig19.Workflow()
    common = {
        "row": "summary",
        "gpus_before": 15.0,
        "gpus_most": 50.0,
        "mixed_gpus": 10.0,
        "mixed_served_per_s": 296.0,
        "remaining": 200_000.0,
        "added_at_once": 10.0,
        "added_most_min": 50.0,
        "finished_min": 65.0,
        "interactive_attainment": 1.0,
        "batch_attainment": 1.0,
    }
    hours = {"chiron": (20.0, 40.0), "llumnix": (50.0, 100.0), "llumnix-moving": (40.0, 80.0)}
    shares = {"chiron": 1.0, "llumnix": 0.5, "llumnix-moving": 0.45}
    rows = [
        {"policy": policy, "seed": seed, **common, "gpu_hours": each, "attainment": shares[policy]}
        for policy, both in hours.items()
        for seed, each in enumerate(both)
    ]
    found = fig19.claims(pd.DataFrame(rows), parameters)
    verdicts = {claim.sentence: claim.verdict for claim in found}
    off = [sentence for sentence, verdict in verdicts.items() if verdict != "reproduced"]
    assert off == ["Chiron serves 20 batch requests per second on them"]
    saved = {claim.sentence: claim.ours.mean for claim in found if "GPU-hours" in claim.sentence}
    # by seed: 1 - 20/50, 1 - 40/100; 1 - 20/40, 1 - 40/80
    assert list(saved.values()) == pytest.approx([60, 50])
