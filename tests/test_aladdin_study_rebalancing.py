"""What Aladdin's re-balancing is worth, in small and on made-up numbers."""

from __future__ import annotations

import pandas as pd
import pytest

from experiments.aladdin import study_rebalancing as study


def test_a_run():
    parameters = study.Rebalancing(
        seeds=1, loads=(1.0,), predictors=("noisy",), arrivals_s=12.0, patience_s=40.0
    )
    cases = {case["variant"]: case for case in study.cases(parameters)}
    assert list(cases) == list(study.VARIANTS)
    (none,), (some,) = (study.run(cases[v]) for v in (study.OFF, "both"))
    assert none["moves"] == 0
    assert some["moves"] > 0
    assert some["requests"] == none["requests"] > 100


def made_up(gain):
    parameters = study.Rebalancing(seeds=3)
    rows = [
        {
            **case, "requests": 200, "moves": 0 if case["variant"] == study.OFF else 5,
            "attainment": 0.9 + 1e-4 * (case["seed"] % 3)
            + (gain * (1 + 0.1 * (case["seed"] % 3)) if case["variant"] == study.ON else 0.0),
        }
        for case in study.cases(parameters)
    ]  # fmt: skip
    return pd.DataFrame(rows), parameters


@pytest.mark.parametrize("gain, verdict", [(0.05, "reproduced"), (-0.05, "not reproduced")])
def test_claims_on_made_up_gains(gain, verdict):
    frame, parameters = made_up(gain)
    found = study.claims(frame, parameters)
    assert len(found) == 4
    assert {claim.verdict for claim in found} == {verdict}
    assert found[0].ours.mean == pytest.approx(110 * gain)
    assert "one heartbeat: 2.50 moves per 100 requests, +0.00 points" in found[0].note
    study.plot(frame, parameters)
