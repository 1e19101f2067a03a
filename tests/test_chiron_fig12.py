"""Chiron's Figure 12: how convergence times are held against the paper's."""

from __future__ import annotations

import math

import pytest

from experiments.chiron import fig12_convergence_time as figure
from experiments.harness.claims import Verdict
from tests.small_studies import judged, made_up

PARAMETERS = figure.ConvergenceTime(seeds=1, overloads=(0.5, 1.0, 1.5))


@pytest.fixture
def frame():
    """8B: 15 s; 70B: 150 s with the interactive target, 100 s with the batch one; +10 s at twice the rate."""

    def row(case):
        large_s = 150.0 if case["itl_slo_s"] < 1 else 100.0
        more_s = 3.0 * (case["overload"] - 1) * (case["controller"] == "chiron")
        time_s = (15.0 if "8b" in case["llm"] else large_s) + more_s
        return {
            "converged": True, "convergence_s": time_s, "steps": 4, "lowered": 1, "size_at_end": 200.0
        }  # fmt: skip

    return made_up(figure, PARAMETERS, row)


def test_claims_on_a_paper_like_outcome(frame):
    found = judged(figure, frame, PARAMETERS)
    assert all(claim.verdict == Verdict.REPRODUCED for claim in found.values())
    first, *_ = found.values()
    assert "10 times faster" in first.sentence
    assert first.ours.mean == 10
    assert found["8B with the interactive target converges in 15 s"].ours.mean == 15
    longest = found["The large model with the interactive target takes longest"]
    assert longest.ours.mean == pytest.approx(1.5)
    # Medians over both models: (13.5 + 148.5) / 2 at the lowest rate, (16.5 + 151.5) / 2 at the highest.
    rates = found["Convergence time is independent of the arrival rate (interactive target)"]
    assert rates.ours.mean == pytest.approx(84 / 81)
    minutes = found["Convergence takes less than a few minutes in every configuration"]
    assert minutes.ours.mean == 151.5
    assert minutes.note == "all 48 runs converged"


def claim_of(frame, words):
    return next(c for c in figure.claims(frame, PARAMETERS) if words in c.sentence)


def test_a_run_that_did_not_converge_is_longer_than_any(frame):
    one = (
        (frame["llm"] == "llama-3.1-8b") & (frame["variant"] == "plain") & (frame["overload"] == 1)
    )
    # Half of a run as short as this would pass for less than a few minutes.
    frame.loc[one, ["converged", "convergence_s"]] = [False, 15.0]
    minutes = claim_of(frame, "few minutes")
    assert math.isinf(minutes.ours.mean)
    assert minutes.verdict == Verdict.NOT
    # 2 targets, 1 rate; the literal controller is not the claims'.
    assert minutes.note == "2 of 48 runs did not converge within 900 s and count as infinitely long"
    small = claim_of(frame, "8B with the interactive target")
    assert small.ours.mean == 16.5  # the median of 13.5, 16.5 and infinity
    assert small.note.startswith("1 of 3 runs did not converge")


def test_where_most_runs_did_not_converge_there_is_no_number(frame):
    large = (frame["llm"] == "llama-3.1-70b") & (frame["overload"] >= 1)
    frame.loc[large, ["converged", "convergence_s"]] = [False, 150.0]
    assert math.isinf(claim_of(frame, "70B with the interactive target").ours.mean)
    faster = claim_of(frame, "10 times faster")
    assert math.isinf(faster.ours.mean)
    assert faster.verdict == Verdict.DIRECTION  # one converged and the other did not
    frame.loc[frame["overload"] >= 1, "converged"] = False
    assert claim_of(frame, "10 times faster").verdict == Verdict.UNMEASURED
    assert len(figure.plot(frame, PARAMETERS).axes) == 2


def test_without_the_controller_or_a_model_claims_are_left_out(frame):
    assert figure.claims(frame[frame["controller"] == "chiron-literal"], PARAMETERS) == []
    alone = PARAMETERS.model_copy(update={"llms": ("llama-3.1-70b",)})
    found = figure.claims(frame[frame["llm"] == "llama-3.1-70b"], alone)
    assert [c.sentence[:3] for c in found] == ["70B", "Con", "Con"]


def test_cases_and_a_run():
    small = figure.ConvergenceTime(
        seeds=1, duration_s=60, llms=("llama-3.1-8b",), overloads=(1.0, 2.0), first_limit=16
    )
    found = figure.cases(small)
    assert len(found) == 4 * 2 * 2 * 2
    assert {case["rate_per_s"] for case in found} == {40.0, 80.0}
    fast, slow = (figure.run({**found[0], "band": band})[0] for band in (100.0, 1.01))
    assert fast["converged"]
    assert 0 < fast["convergence_s"] < slow["convergence_s"] == 30
    assert fast["steps"] < slow["steps"]
