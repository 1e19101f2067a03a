"""Chiron's Figure 9: claims on made-up rows, and one small run."""

from __future__ import annotations

import pandas as pd
import pytest

from experiments.chiron import fig09_interactive_load as fig09
from experiments.chiron.llumnix_settings import OPPONENTS, UNTUNED_READINGS
from experiments.harness.claims import Verdict
from tests.small_studies import made_up
from tests.test_figures import small_run

PARAMETERS = fig09.InteractiveLoad(
    seeds=2,
    small_rates_per_s=(100, 340),
    large_rates_per_s=(10, 40),
    mixed_rates_per_s=(20, 40, 100, 120),
)


@pytest.fixture
def as_in_the_paper():
    """Rows that say exactly what the paper says."""

    def row(case):
        configuration, load, policy = (case[k] for k in ("configuration", "load", "policy_name"))
        mixed, chiron = configuration == "mixed", policy == "chiron"
        full = mixed and load >= 40
        served = 1.0 if not mixed or load <= 100 else 0.5
        better = 4.0 if (configuration, load) == ("small", 100) else 1.1
        limits = {"small": 500 if chiron else None, "large": 100 if chiron else None}
        untuned = policy in UNTUNED_READINGS
        tuned = served - (0.02 if full and policy == "llumnix-tuned" else 0)
        return {
            "slo_attainment": (0.1 if full else 1.0) if untuned else tuned,
            "throughput_per_instance": better if chiron else 1.0,
            "gpus": 49 if full and untuned else 20,
            **{f"{name}_interactive_limit": limit for name, limit in limits.items()},
        }

    return made_up(fig09, PARAMETERS, row)


def test_the_papers_numbers_are_reproduced(as_in_the_paper):
    found = {claim.sentence: claim for claim in fig09.claims(as_in_the_paper, PARAMETERS)}
    assert len(found) == 18  # six of them are said of the untuned Llumnix in both readings
    for claim in found.values():
        assert claim.verdict is Verdict.REPRODUCED, claim
    ours = [claim.ours.mean for claim in found.values()]
    both = [90, 90, 300, 300, *[100] * 6, 10, 10, 5, 40, 10, 40, 10, 100]
    assert ours == pytest.approx(both)


def test_no_difference_is_not_reproduced(as_in_the_paper):
    chiron = as_in_the_paper[as_in_the_paper["policy_name"] == "chiron"]
    same = [chiron.assign(policy_name=policy) for policy in fig09.POLICIES]
    found = fig09.claims(pd.concat(same, ignore_index=True), PARAMETERS)
    words = ("more throughput", "higher SLO", "Better SLO")
    missed = [c for c in found if any(word in c.sentence for word in words)]
    assert len(missed) == 9
    assert all(c.verdict is Verdict.NOT and c.ours.mean == 0 for c in missed)


def test_throughput_bought_with_late_requests_is_no_gain(as_in_the_paper):
    late = as_in_the_paper.copy()
    late.loc[late["policy_name"] == "chiron", "slo_attainment"] = 0.05
    found = {c.sentence: c for c in fig09.claims(late, PARAMETERS)}
    for reading in UNTUNED_READINGS:
        more = found[
            f"Up to 300 % more throughput per instance than Llumnix ({OPPONENTS[reading]}), with no more "
            "late requests"
        ]
        assert more.ours.mean == 0
        assert more.verdict is Verdict.NOT
    assert found["Better SLO attainment than Llumnix (tuned)"].ours.mean == 0
    equal = found[
        "Equal or higher throughput per instance than Llumnix (tuned) for all configurations"
    ]
    assert "attainment is lower by more than 1 percentage point at 8 of 8 loads" in equal.note


@pytest.mark.parametrize("reading", UNTUNED_READINGS)
def test_llumnix_that_meets_its_slos_with_all_gpus_is_not_the_papers(as_in_the_paper, reading):
    met = as_in_the_paper.copy()
    met.loc[met["policy_name"] == reading, "slo_attainment"] = 1.0
    found = {c.sentence: c for c in fig09.claims(met, PARAMETERS)}
    for policy in UNTUNED_READINGS:
        name = f"Llumnix ({OPPONENTS[policy]})"
        full = found[f"Mixed: {name} exhausts the GPUs at 40 requests/s"]
        assert full.verdict is Verdict.REPRODUCED
        late = found[f"Mixed: at 40 requests/s that leads to SLO violations of {name}"]
        if policy == reading:
            assert (late.verdict, late.ours.mean) == (Verdict.NOT, 100)
            assert f"; {reading} none up to 120" in late.reason
        else:
            assert (late.verdict, late.ours.mean) == (Verdict.REPRODUCED, 10)


def test_rates_that_were_not_run_have_no_claims(as_in_the_paper):
    few = PARAMETERS.model_copy(update={"mixed_rates_per_s": (20,), "large_rates_per_s": (10,)})
    frame = as_in_the_paper
    kept = (frame["configuration"] == "small") | frame["load"].isin([10, 20])
    sentences = [c.sentence for c in fig09.claims(frame[kept], few)]
    assert len(sentences) == 14
    assert not any("large" in s or "violations" in s for s in sentences)


def test_a_run_of_every_policy():
    frame = small_run("chiron-fig09")
    assert frame["policy_name"].value_counts().to_dict() == dict.fromkeys(fig09.DRAWN, 3)
    assert frame["slo_attainment"].between(0, 1).all()
    assert (frame["throughput_per_instance"] > 0).all()
