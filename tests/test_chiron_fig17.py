"""Chiron's Figure 17: over-provisioning against burstiness."""

from __future__ import annotations

import pandas as pd
import pytest

from experiments.chiron import fig17_burstiness as fig17
from experiments.harness.claims import Verdict
from tests.small_studies import made_up
from tests.test_figures import small_run


def test_theta_is_the_inverse_of_the_over_provisioning():
    assert fig17.theta_delta(3) == pytest.approx({"theta": 1 / 3, "delta": 0.1})
    assert fig17.theta_delta(10) == pytest.approx({"theta": 0.1, "delta": 0.05})
    assert fig17.theta_delta(1 / 0.95) == pytest.approx({"theta": 0.95, "delta": 0.025})


def test_the_batch_limit_is_a_mean_over_instances():
    series = pd.DataFrame(
        {
            "a/active": [1, 3],
            "a/batch_limit": [10.0, 20.0],
            "b/active": [0, 2],
            "b/batch_limit": [99.0, 50.0],
        }
    )
    assert fig17.batch_limit(series, ["a", "b"]) == pytest.approx((10 + 60 + 100) / 6)


def rows(parameters):
    """Violations of cv / (1000 * over-provisioning), ten times that beyond a CV of 8."""

    def row(case):
        violated = case["cv"] * (10 if case["cv"] > 8 else 1) / (1000 * case["over_provisioning"])
        return {"slo_attainment": 1 - violated, "gpus": 10.0, "batch_limit": 64.0}

    return made_up(fig17, parameters, row)


def test_claims_and_picture():
    parameters = fig17.Burstiness(seeds=2, cvs=(1.0, 8.0, 16.0, 24.0))
    frame = rows(parameters)
    claims = fig17.claims(frame, parameters)
    # Violations of 16 and 24 hundredths over 3: the least of them counts.
    assert [round(claim.ours.mean, 4) for claim in claims] == [99.7333, 5.3333]
    assert {claim.verdict for claim in claims} == {Verdict.REPRODUCED}
    for claim in claims:
        assert [part.sentence for part in claim.parts] == ["small model", "large model"]
    assert len(fig17.plot(frame, parameters).axes) == 6


def test_levels_have_no_direction():
    parameters = fig17.Burstiness(seeds=2, cvs=(8.0, 16.0))
    late = rows(parameters)
    late.loc[late["cv"] == 8, "slo_attainment"] = 0.9
    late.loc[late["cv"] == 16, "slo_attainment"] = 0.999
    enough, beyond = fig17.claims(late, parameters)
    assert [c.verdict for c in (enough, beyond)] == [Verdict.NOT] * 2
    assert "90.00 % with 10.0 GPUs at 3" in enough.reason


def test_what_was_not_run_is_left_out():
    for changes, sentences in (
        ({"over_provisionings": (2.0, 5.0)}, []),
        ({"over_provisionings": (3.0,)}, ["is sufficient", "violations"]),
        ({"cvs": (1.0, 8.0)}, ["is sufficient"]),
        ({"cvs": (4.0, 12.0)}, ["violations"]),
    ):
        parameters = fig17.Burstiness(seeds=1, **changes)
        claims = fig17.claims(rows(parameters), parameters)
        assert len(claims) == len(sentences)
        assert all(word in c.sentence for word, c in zip(sentences, claims, strict=True))


def test_a_run():
    frame = small_run("chiron-fig17")
    at = frame.set_index(["over_provisioning", "cv"])
    assert at.loc[(3.0, 1.0), "slo_attainment"] > 0.99
    assert at.loc[(3.0, 1.0), "gpus"] > 1.5 * at.loc[(1 / 0.95, 1.0), "gpus"]
    assert frame["slo_attainment"].between(0, 1).all()
