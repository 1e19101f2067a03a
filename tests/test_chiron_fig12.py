"""Chiron's Figure 12: how convergence times are held against the paper's."""

from __future__ import annotations

import pandas as pd
import pytest

from experiments.chiron import fig12_convergence_time as figure
from experiments.chiron.convergence import OVERLOAD_PER_S, VARIANTS
from experiments.harness.claims import Verdict

PARAMETERS = figure.ConvergenceTime(seeds=1)


@pytest.fixture
def frame():
    """8B: 15 s; 70B: 150 s with the interactive target, 100 s with the batch one; +10 s at twice the rate."""
    return pd.DataFrame(
        {
            "seed": 1,
            "llm": llm,
            "variant": variant,
            "itl_slo_s": slo_s,
            "controller": controller,
            "overload": overload,
            "rate_per_s": overload * OVERLOAD_PER_S[llm],
            "converged": True,
            "convergence_s": (15.0 if "8b" in llm else 150.0 if slo_s < 1 else 100.0)
            + 3.0 * (overload - 1) * (controller == "chiron"),
            "steps": 4,
            "lowered": 1,
            "size_at_end": 200.0,
        }
        for llm in PARAMETERS.llms
        for variant in VARIANTS
        for slo_s in PARAMETERS.slos_s
        for controller in PARAMETERS.controllers
        for overload in (0.5, 1.0, 1.5)
    )


def test_claims_on_a_paper_like_outcome(frame):
    overloads = PARAMETERS.model_copy(update={"overloads": (0.5, 1.0, 1.5)})
    found = {claim.sentence: claim for claim in figure.claims(frame, overloads)}
    assert all(claim.verdict == Verdict.REPRODUCED for claim in found.values())
    assert found["8B with the interactive target converges in 15 s"].ours.mean == 15
    assert found["The small model converges 10 times faster than the large one"].ours.mean == 10
    longest = found["The large model with the interactive target takes longest"]
    assert longest.ours.mean == pytest.approx(1.5)
    # Means over both models: 81 s at the lowest rate, 84 s at the highest.
    rates = found["Convergence time is independent of the arrival rate (interactive target)"]
    assert rates.ours.mean == pytest.approx(84 / 81)
    assert "84 s (5 s) at 1.5 x" in rates.reason


def test_a_run_that_goes_on_changing_counts_with_its_bound(frame):
    slow = (frame["variant"] == "both") & (frame["llm"] == "llama-3.1-8b")
    frame.loc[slow, ["converged", "convergence_s"]] = [False, 900.0]
    found = figure.claims(frame, PARAMETERS)
    minutes = next(claim for claim in found if "few minutes" in claim.sentence)
    assert minutes.ours.mean == 900
    assert minutes.verdict == Verdict.NOT
    assert "12% of all runs did not converge" in minutes.reason
    assert "8B, both" in minutes.reason


def test_it_draws(frame):
    assert len(figure.plot(frame, PARAMETERS).axes) == 2


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
