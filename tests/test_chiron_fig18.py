"""Chiron's Figure 18: claims on made-up rows, and small runs of all four policies."""

from __future__ import annotations

import pandas as pd
import pytest

from experiments.chiron import fig18_ablation as fig18
from experiments.harness.claims import Verdict
from tests.small_studies import made_up
from tests.test_figures import small_run

PARAMETERS = fig18.Ablation(
    seeds=2, configurations=("small",), rates_per_s=(10,), queues=(100,), queue_shares=(1.0,),
    static_batches=(64,),
)  # fmt: skip
GAINS = {"neither": 1.0, "local": 1.45, "global": 1.4, "chiron": 2.03}
GAINS |= {"global-lean": 1.5, "chiron-lean": 2.4}


@pytest.fixture
def as_in_the_paper():
    def row(case):
        gain = GAINS[case["policy_name"]]
        per_s = gain * (1 + case["seed"] - 30_000)
        return {
            "interactive_per_instance_s": per_s,
            "batch_per_instance_s": per_s,
            "interactive_attainment": 1.0,
            "batch_attainment": 1.0,
            "gpus": 20 / gain,
        }

    return made_up(fig18, PARAMETERS, row)


def test_the_papers_numbers_are_reproduced(as_in_the_paper):
    both, each = fig18.claims(as_in_the_paper, PARAMETERS)
    assert {claim.verdict for claim in (both, each)} == {Verdict.REPRODUCED}
    # Over what lacks the local one, the global one.
    reading, lean = each.parts
    assert [part.sentence for part in each.parts] == [
        "static 64, theta 1/3, 6.2's queues",
        "static 64, theta 0.8, 6.2's queues",
    ]
    assert {part.sentence: part.ours.mean for part in lean.parts} == pytest.approx(
        {"local, small, interactive": 60, "local, small, batch": 60}
        | {
            "global, small, interactive": 100 * (2.4 / 1.45 - 1),
            "global, small, batch": 100 * (2.4 / 1.45 - 1),
        }
    )
    assert {part.sentence: part.ours.mean for part in reading.parts} == pytest.approx(
        {"local, small, interactive": 45, "local, small, batch": 45}
        | {"global, small, interactive": 40, "global, small, batch": 40}
    )


def test_an_autoscaler_that_gains_nothing_is_not_reproduced(as_in_the_paper):
    flat = as_in_the_paper.assign(interactive_per_instance_s=1.0, gpus=20.0)
    assert {claim.verdict for claim in fig18.claims(flat, PARAMETERS)} == {Verdict.NOT}


def test_more_than_sixty_per_cent_is_no_failure_and_less_than_thirty_is(as_in_the_paper):
    for times, verdict in ((1.2, Verdict.REPRODUCED), (0.85, Verdict.DIRECTION)):
        other = as_in_the_paper[~as_in_the_paper["policy_name"].isin(fig18.LEAN)].copy()
        other.loc[other["policy_name"] == "chiron", "interactive_per_instance_s"] *= times
        lean = other[other["policy_name"].isin(fig18.LEAN.values())]
        other = pd.concat([other, lean.assign(policy_name=lean["policy_name"] + "-lean")])
        both, each = fig18.claims(other, PARAMETERS)
        assert both.verdict is Verdict.REPRODUCED
        assert each.verdict is verdict


def test_throughput_of_late_requests_does_not_count(as_in_the_paper):
    late = as_in_the_paper.copy()
    mine = late["policy_name"].isin(("chiron", "chiron-lean"))
    late.loc[mine, "interactive_attainment"] = 0.9
    for claim in fig18.claims(late, PARAMETERS):
        assert (claim.parts[0].ours.mean, claim.verdict) == (pytest.approx(40), Verdict.NOT)
        assert claim.parts[0].reason.startswith(
            "in %: local, small, interactive +45, local, small, batch +45"
        )
        part = {each.sentence: each for each in claim.parts[0].parts}["local, small, interactive"]
        assert part.reason.startswith("45 % do not count, since fewer are on time")
        assert "chiron 90 %" in part.reason


def test_every_reading_is_a_part_and_the_best_counts(as_in_the_paper):
    parameters = PARAMETERS.model_copy(update={"static_batches": (64, 1024)})
    runs = pd.DataFrame(fig18.cases(parameters))
    # Two workloads and two seeds of each; the first two per batch size.
    counts = runs["policy_name"].value_counts()
    assert counts.to_dict() == {"neither": 8, "global": 8, "local": 4, "chiron": 4} | dict.fromkeys(
        fig18.LEAN, 4
    )
    other = as_in_the_paper[as_in_the_paper["policy_name"].isin(("neither", "global"))]
    better = other.assign(static_batch=1024, gpus=5.0, batch_per_instance_s=99.0)
    frame = pd.concat([as_in_the_paper, better])
    for claim in fig18.claims(frame, parameters):
        assert [part.verdict for part in claim.parts] == [
            Verdict.REPRODUCED, Verdict.REPRODUCED, Verdict.NOT,
        ]  # fmt: skip
        assert claim.mapped
        assert claim.verdict is Verdict.REPRODUCED
    pictures = {"static-batch-64", "static-batch-1024", "small-reserve"}
    assert set(fig18.plot(frame, parameters)) == pictures


def test_a_share_of_the_queue_is_a_load_of_its_own():
    parameters = PARAMETERS.model_copy(update={"queue_shares": (1.0, 0.5)})
    loads = {(case["workload"], case["load"]) for case in fig18.cases(parameters)}
    assert loads == {("W_A", 10.0), ("W_B", 100.0), ("W_B", 50.0)}


def test_small_runs_of_the_four_policies():
    frame = small_run("chiron-fig18")
    mine = frame[(frame["workload"] == "W_A") & (frame["static_batch"] == 64)]
    assert mine["policy_name"].tolist() == [*fig18.POLICIES, "global-lean", "chiron-lean"]
    assert mine["policy"].nunique() == 6
    assert mine["gpus"].between(0, 50, inclusive="right").all()
