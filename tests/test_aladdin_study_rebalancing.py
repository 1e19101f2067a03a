"""What Aladdin's re-balancing is worth, in small and on made-up numbers."""

from __future__ import annotations

import pytest

from experiments.aladdin import study_rebalancing as study
from tests.small_studies import judged, made_up
from tests.test_figures import small_run


def test_a_run():
    found = small_run("aladdin-rebalancing").set_index("variant")
    assert list(found.index) == list(study.VARIANTS)
    none, some = found.loc[study.OFF], found.loc["both"]
    assert none["moves"] == 0
    assert some["moves"] > 0
    assert some["requests"] == none["requests"] > 100


@pytest.mark.parametrize("gain, verdict", [(0.05, "reproduced"), (-0.05, "not reproduced")])
def test_claims_on_made_up_gains(gain, verdict):
    def row(case):
        more = gain * (1 + 0.1 * (case["seed"] % 3)) if case["variant"] == study.ON else 0.0
        moves = 0 if case["variant"] == study.OFF else 5
        met = 0.9 + 1e-4 * (case["seed"] % 3) + more
        return {"requests": 200, "moves": moves, "attainment": met}

    parameters = study.Rebalancing(seeds=3)
    found = list(judged(study, made_up(study, parameters, row), parameters).values())
    assert len(found) == 1
    assert {claim.verdict for claim in (*found, *found[0].parts)} == {verdict}
    assert len(found[0].parts) == 2
    assert found[0].ours.mean == pytest.approx(110 * gain)
    if gain < 0:
        assert "2.5 of 100 requests move" in found[0].reason
        assert "the best reading (one heartbeat) gains +0.00 points" in found[0].reason
