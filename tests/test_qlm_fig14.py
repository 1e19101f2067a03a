"""QLM's Figure 14: what is claimed of made-up rows."""

from __future__ import annotations

import pytest

from experiments.harness.claims import Verdict
from experiments.qlm import fig14_multi_model_ablation as fig14
from tests.small_studies import judged, made_up

MOST = "Model warm start contributes the most to SLOs and throughput"
EACH = "Each of the four operations contributes to latency or throughput"
OTHERS = "The other operations contribute primarily to the latency SLO attainment"
WARM, SWAPPING = "without warm start", "without swapping"


def found_of(throughput=None, met=None):
    """Claims of two seeds; 20 requests/s and all SLOs met where nothing else is said."""
    parameters = fig14.Ablation(seeds=2)

    def row(case):
        speed = (throughput or {}).get(case["variant"], 20.0) + 0.01 * (case["seed"] - 30_000)
        share = (met or {}).get(case["variant"], 1.0)
        return {"requests_per_s": speed, "batch-1_attainment": share}

    return judged(fig14, made_up(fig14, parameters, row), parameters)


def test_warm_start_leads_and_swapping_is_another_reading():
    throughput = {SWAPPING: 5.0, "without pulling": 8.0, WARM: 10.0, "without eviction": 21.0}
    found = found_of(throughput, {SWAPPING: 0.5, WARM: 0.4, "without load balancing": 0.9})
    swapping = found["Model swapping improves throughput by 300 %"]
    assert (swapping.ours.mean, swapping.verdict) == (
        pytest.approx(300, rel=0.01),
        Verdict.REPRODUCED,
    )
    most = found[MOST]
    # 75 % are lost without swapping, 60 % without pulling, which comes next; without warm start 50 %.
    assert (most.ours.mean, most.verdict) == (pytest.approx(-10, rel=0.01), Verdict.NOT)
    assert [part.verdict for part in most.parts] == [Verdict.NOT, Verdict.REPRODUCED]
    assert most.parts[1].ours.mean == pytest.approx(15, rel=0.01)
    assert found[EACH].verdict is Verdict.NOT, "nothing is lost without eviction"


def test_where_nothing_is_lost_no_operation_contributes():
    found = found_of()
    for sentence in (MOST, EACH, OTHERS):
        assert (found[sentence].ours.mean, found[sentence].verdict) == (0, Verdict.NOT)
    assert "throughput 0.0, 0.0, 0.0, 0.0, 0.0 %" in found[EACH].reason


def test_each_operation_may_contribute_to_one_of_both():
    lost = dict.fromkeys(("without pulling", "without eviction"), 0.9)
    found = found_of({"without load balancing": 10.0, SWAPPING: 5.0}, lost)
    assert found[EACH].verdict is Verdict.REPRODUCED
    assert found[OTHERS].verdict is Verdict.NOT, "load balancing is worth no SLOs"
    assert [part.verdict for part in found[OTHERS].parts][:2] == [Verdict.REPRODUCED] * 2
