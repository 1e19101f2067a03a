"""Chiron's Figure 19 in small: the queue under Chiron and Llumnix, and the claims on made-up rows."""

from __future__ import annotations

import pandas as pd
import pytest

from experiments.chiron import fig19_workflow as fig19
from experiments.chiron.llumnix_settings import tuned
from experiments.harness.claims import Verdict
from tests.test_figures import small, small_run

SMALL = small("chiron-fig19")


@pytest.fixture
def frame():
    return small_run("chiron-fig19")


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
    mine = frame[(frame["row"] == "interval") & (frame["policy"] == "llumnix-tuned")]
    assert (mine["shared_queue"] == 0).all()
    assert mine["waiting"].max() > 0


def test_gpu_hours_are_those_of_the_intervals_until_the_deadline(frame):
    for _, mine in frame.groupby("policy"):
        rows = mine[(mine["row"] == "interval") & (mine["time_s"] <= 180)]
        hours = mine.loc[mine["row"] == "summary", "gpu_hours"].item()
        assert hours == pytest.approx(rows["gpus"].sum() * 10 / 3600)


def test_claims_take_the_frame(frame):
    found = fig19.claims(frame, SMALL)
    assert len(found) == 7
    # The queue comes before the first minutes are over, so nothing is said of them.
    assert [part.sentence for part in found[2].parts] == ["Chiron, mixed"]


@pytest.mark.parametrize(
    "policies", [("chiron",), ("llumnix-tuned",), ("llumnix-tuned-moving", "chiron")]
)
def test_what_was_not_run_is_left_out(frame, policies):
    mine = frame[frame["policy"].isin(policies)]
    parameters = SMALL.model_copy(update={"policies": policies})
    found = fig19.claims(mine, parameters)
    sentences = " ".join(claim.sentence for claim in found)
    assert ("Chiron uses" in sentences) == ("chiron" in policies)
    assert ("Llumnix adds" in sentences) == (len(set(policies) - {"chiron"}) > 0)
    names = {part.sentence for claim in found for part in claim.parts}
    assert ("they stay, as tuned" in names) == ("llumnix-tuned" in policies)
    assert ("waiting requests move" in names) == ("llumnix-tuned-moving" in policies)
    fig19.plot(mine, parameters)


def test_llumnix_is_set_as_its_sweep_says():
    swept = tuned("W_B", "small")
    assert swept["rebalance"] is False  # as the text of the figure says
    for name, moving in (("llumnix-tuned", False), ("llumnix-tuned-moving", True)):
        parameters = fig19.policy_for({"policy": name}).parameters
        assert {key: getattr(parameters, key) for key in swept} == {**swept, "rebalance": moving}


SUMMARY = {
    "row": "summary",
    "gpus_most": 50.0,
    "mixed_gpus": 10.0,
    "mixed_served_per_s": 20.0,
    "remaining": 200_000.0,
    "added_at_once": 10.0,
    "added_most_min": 50.0,
    "finished_min": 65.0,
    "interactive_attainment": 1.0,
    "batch_attainment": 1.0,
}
HOURS = {
    "chiron": (20.0, 40.0),
    "llumnix-tuned": (50.0, 100.0),
    "llumnix-tuned-moving": (40.0, 80.0),
}
SHARES = {"chiron": 1.0, "llumnix-tuned": 0.5, "llumnix-tuned-moving": 0.45}


def as_in_the_paper(gpus_before=15.0, **changes):
    """Episodes of two seeds, and three intervals of each: at 2 and 5 minutes, and at the deadline."""
    rows = []
    for policy, hours in HOURS.items():
        for seed, each in enumerate(hours):
            start = {"policy": policy, "seed": seed}
            rows.append({**start, **SUMMARY, "gpu_hours": each, "attainment": SHARES[policy]})
            rows += [
                {**start, "row": "interval", "time_s": time_s, "gpus": gpus, "waiting": waiting}
                | {"mixed_gpus": 10.0, "batch_gpus": 0.0 if time_s <= 300 else 10.0}
                for time_s, gpus, waiting in (
                    (120.0, 99.0, 0), (300.0, gpus_before, 900_000), (3900.0, 50.0, 180_000),
                )
            ]  # fmt: skip
    frame = pd.DataFrame(rows)
    for name, value in changes.items():
        policy, _, column = name.partition("__")
        frame.loc[
            (frame["policy"] == policy.replace("_", "-")) & (frame["row"] == "summary"), column
        ] = value
    return frame


def test_claims_on_made_up_rows():
    found = fig19.claims(as_in_the_paper(), fig19.Workflow())
    assert {claim.verdict for claim in found} == {Verdict.REPRODUCED}
    assert len(found) == 7
    # By seed 1 - 20/40, 1 - 40/80 where waiting requests move; 1 - 20/50, 1 - 40/100 where they stay.
    hours, met = found[0].parts
    assert [part.ours.mean for part in hours.parts] == pytest.approx([50, 60])
    assert hours.ours.mean == pytest.approx(50)
    assert met.ours.mean == 100


def test_a_level_has_no_direction():
    """More than none on time, or more than no GPUs, is no effect that the paper speaks of."""
    frame = as_in_the_paper(
        gpus_before=6.0, chiron__attainment=0.9, llumnix_tuned_moving__attainment=0.8,
        chiron__added_most_min=6.0, chiron__finished_min=70.0,
    )  # fmt: skip
    saved, half, first, cap, pace, added, done = fig19.claims(frame, fig19.Workflow())
    assert {claim.verdict for claim in (cap, pace)} == {Verdict.REPRODUCED}
    assert {claim.verdict for claim in (saved, half, first, added, done)} == {Verdict.NOT}
    assert [part.verdict for part in half.parts] == [Verdict.NOT, Verdict.REPRODUCED]
    # 20 requests/s for an hour are 72,000, not a million.
    assert "72,000 of 1,000,000 in time" in added.reason
    assert "an instance serves 5.0 interactive requests/s" in first.reason


def test_a_rate_is_read_per_instance_or_in_all():
    frame = as_in_the_paper(chiron__mixed_served_per_s=180.0)
    pace = fig19.claims(frame, fig19.Workflow())[4]
    assert [part.ours.mean for part in pace.parts] == [18, 180]
    assert (pace.verdict, pace.ours.mean) == (Verdict.REPRODUCED, 18)


def test_gpu_hours_saved_by_being_late_do_not_count():
    found = fig19.claims(
        as_in_the_paper(chiron__attainment=0.9, llumnix_tuned_moving__attainment=0.95),
        fig19.Workflow(),
    )
    assert (found[0].ours.mean, found[0].verdict) == (0, Verdict.NOT)
    assert "50 % fewer do not count, since Chiron has 90.0 %" in found[0].reason


def test_the_pace_of_a_queue_by_hand():
    times = [600.0 * k for k in range(6)]
    one = pd.DataFrame({"time_s": times, "waiting": [0, 9000, 7800, 3000, 600, 0]})
    assert fig19._pace(one, 600.0, at_last=False) == 2  # 9000 to 7800
    assert fig19._pace(one, 9999.0, at_last=True) == 4  # 3000 to 600
    assert fig19._pace(one, 1900.0, at_last=True) == 8  # 7800 to 3000
