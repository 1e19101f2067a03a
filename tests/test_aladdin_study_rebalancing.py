"""What Aladdin's re-balancing is worth, in small and on made-up numbers."""

from __future__ import annotations

import pytest

from experiments.aladdin import study_rebalancing as study
from tests.small_studies import judged, made_up
from tests.test_figures import small_run


def test_a_run():
    found = small_run("aladdin-rebalancing").set_index("variant")
    assert list(found.index) == [v for v in study.VARIANTS if not v.startswith(study.HELD)]
    none, some = found.loc[study.OFF], found.loc["both"]
    assert none["moves"] == 0
    assert some["moves"] > 0
    assert some["requests"] == none["requests"] > 100


def test_held_requests_are_placed_together_at_the_heartbeat():
    parameters = study.Rebalancing(
        seeds=1, loads=(1.0,), predictors=(study.MEAN,), arrivals_s=8.0, patience_s=40.0
    )
    held = [case for case in study.cases(parameters) if case["variant"] in ("off", study.HELD_OFF)]
    now, later = (study.run(case)[0] for case in held)
    assert now["requests"] == later["requests"] > 50
    assert now["moves"] == later["moves"] == 0
    assert later["ttft_p99_s"] > now["ttft_p99_s"]


@pytest.mark.parametrize("gain, verdict", [(0.05, "reproduced"), (-0.05, "not reproduced")])
def test_claims_on_made_up_gains(gain, verdict):
    def row(case):
        more = gain * (1 + 0.1 * (case["seed"] % 3)) if case["variant"] == study.ON else 0.0
        more = more if case["load"] == 1 or gain < 0 else 0.0
        met = 0.9 + 1e-4 * (case["seed"] % 3) + more
        return {"requests": 200, "moves": 5, "attainment": met}

    parameters = study.Rebalancing(seeds=3)
    (found,) = judged(study, made_up(study, parameters, row), parameters).values()
    assert found.verdict == verdict
    assert found.mapped
    # Two loads: eight variants with the mean, five with noise.
    assert len(found.parts) == 26
    assert sum(part.question for part in found.parts) == 2 * (3 + 5)
    if gain > 0:
        assert found.ours.mean == pytest.approx(110 * gain)
        assert found.unit == "points of attainment (load 1, outstanding requests (default))"
    else:
        assert found.ours.mean == 0
        assert "2.5 of 100 requests move" in found.reason
