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
    minutes, large, small, rates = found.values()
    assert minutes.ours.mean == 151.5
    assert minutes.note == "all 48 runs converged"
    assert [part.ours.mean for part in large.parts] == pytest.approx([150, 1.5])
    assert [part.ours.mean for part in small.parts] == [15, 10]
    # Medians over both models: (13.5 + 148.5) / 2 at the lowest rate, (16.5 + 151.5) / 2 at the highest.
    assert rates.ours.mean == pytest.approx(84 / 81)


def claims_of(frame):
    """Minutes, the large model, the small one, rates."""
    return figure.claims(frame, PARAMETERS)


def test_a_run_that_did_not_converge_is_longer_than_any(frame):
    one = (
        (frame["llm"] == "llama-3.1-8b") & (frame["variant"] == "plain") & (frame["overload"] == 1)
    )
    # Half of a run as short as this would pass for less than a few minutes.
    frame.loc[one, ["converged", "convergence_s"]] = [False, 15.0]
    minutes, _, small, _ = claims_of(frame)
    assert math.isinf(minutes.ours.mean)
    assert minutes.verdict == Verdict.NOT
    # 2 targets, 1 rate; the literal controller is not the claims'.
    assert minutes.note == "2 of 48 runs did not converge within 900 s and count as infinitely long"
    assert small.parts[0].ours.mean == 16.5  # the median of 13.5, 16.5 and infinity


def test_where_most_runs_did_not_converge_there_is_no_number(frame):
    large = (frame["llm"] == "llama-3.1-70b") & (frame["overload"] >= 1)
    frame.loc[large, ["converged", "convergence_s"]] = [False, 150.0]
    _, large, small, _ = claims_of(frame)
    assert math.isinf(large.parts[0].ours.mean)
    faster = small.parts[1]
    assert math.isinf(faster.ours.mean)
    assert faster.verdict == Verdict.DIRECTION  # one converged and the other did not
    frame.loc[frame["overload"] >= 1, "converged"] = False
    assert claims_of(frame)[2].parts[1].verdict == Verdict.UNMEASURED
    assert len(figure.plot(frame, PARAMETERS).axes) == 2


def test_without_the_controller_or_a_model_claims_are_left_out(frame):
    assert figure.claims(frame[frame["controller"] == "chiron-literal"], PARAMETERS) == []
    alone = PARAMETERS.model_copy(update={"llms": ("llama-3.1-70b",)})
    found = figure.claims(frame[frame["llm"] == "llama-3.1-70b"], alone)
    assert [c.sentence.split()[0] for c in found] == ["Convergence", "Llama", "The"]
    assert [part.sentence for part in found[1].parts] == ["70B"]


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
