"""QLM's Figure 14: what is claimed of made-up rows."""

from __future__ import annotations

import pytest

from experiments.harness.claims import Verdict
from experiments.qlm import fig14_multi_model_ablation as fig14
from tests.small_studies import judged, made_up

MOST = "Model warm start contributes the most to SLOs and throughput"
EACH = "Each of the four operations contributes to latency or throughput"
OTHERS = "The other operations contribute primarily to the latency SLO attainment"
SWAPS = "Model swapping improves throughput by 300 %"
WARM, SWAPPING = "without warm start", "without swapping"
PARAMETERS = fig14.Ablation(seeds=2)


def found_of(throughput=None, met=None, setting=fig14.USUAL):
    """Claims of two seeds; 20 requests/s and all SLOs met where nothing else is said of a setting."""

    def row(case):
        mine = case["setting"] == setting
        speed = (throughput or {}).get(case["variant"], 20.0) if mine else 20.0
        share = (met or {}).get(case["variant"], 1.0) if mine else 1.0
        seed = case["seed"] - 30_000
        return {"requests_per_s": speed + 0.01 * seed, "batch-1_attainment": share}

    return judged(fig14, made_up(fig14, PARAMETERS, row), PARAMETERS)


def part_of(claim, sentence):
    return next(part for part in claim.parts if part.sentence == sentence)


def test_warm_start_leads_and_swapping_is_another_reading():
    throughput = {SWAPPING: 5.0, "without pulling": 8.0, WARM: 10.0, "without eviction": 21.0}
    found = found_of(throughput, {SWAPPING: 0.5, WARM: 0.4, "without load balancing": 0.9})
    swapping = found[SWAPS]
    assert swapping.verdict is Verdict.REPRODUCED
    assert swapping.ours.mean == pytest.approx(300, rel=0.01)
    assert part_of(swapping, "batches of 256, swaps from storage").ours.mean == pytest.approx(
        100, rel=0.01
    )
    # 75 % are lost without swapping, 60 % without pulling, which comes next; without warm start 50 %.
    warm, apart = found[MOST].parts[:2]
    assert (warm.ours.mean, warm.verdict) == (pytest.approx(-10, rel=0.01), Verdict.NOT)
    assert (apart.ours.mean, apart.verdict) == (pytest.approx(15, rel=0.01), Verdict.REPRODUCED)
    assert found[EACH].verdict is Verdict.NOT, "nothing is lost without eviction"


def test_where_nothing_is_lost_no_operation_contributes():
    found = found_of()
    for sentence in (MOST, EACH, OTHERS):
        assert (found[sentence].ours.mean, found[sentence].verdict) == (0, Verdict.NOT)
    assert "throughput 0.0, 0.0, 0.0, 0.0, 0.0, 0.0 %" in found[EACH].reason


def test_each_operation_may_contribute_to_one_of_both():
    lost = dict.fromkeys(("without pulling", "without eviction"), 0.9)
    found = found_of({"without load balancing": 10.0, SWAPPING: 5.0}, lost, "batches of 10")
    assert found[EACH].verdict is Verdict.REPRODUCED
    assert found[EACH].unit.endswith("(batches of 10; round robin; dealt by work)")
    assert found[OTHERS].verdict is Verdict.NOT, "load balancing is worth no SLOs"
    parts = found[OTHERS].parts[1].parts
    assert [part.verdict for part in parts][:2] == [Verdict.REPRODUCED] * 2


def test_an_instance_per_llm_is_ours():
    found = found_of({fig14.ALONE: 5.0})[SWAPS]
    assert found.verdict is Verdict.NOT
    alone = part_of(found, "batches of 256, an instance per LLM")
    assert (alone.question, alone.setting) == (True, "ours")


def test_pools_by_hand():
    cases = {c["variant"]: c for c in fig14.cases(PARAMETERS) if c["setting"] == "batches of 10"}
    pools = cases[fig14.IN_TURN]["changes"]["fleet.pools"]
    assert [pool["max_instances"] for pool in pools] == [3, 3, 2, 2, 2]
    assert [pool["llm"] for pool in pools][:3] == ["mistral-7b@a", "vicuna-13b@a", "llama-2-70b@a"]
    assert all(pool["batch_limit"] == 10 and not pool["swaps_to"] for pool in pools)
    assert cases["QLM"]["changes"] == {"fleet.pools.a100.batch_limit": 10}
    long = [c for c in fig14.cases(PARAMETERS) if c["setting"] == fig14.LONG]
    assert {c["variant"] for c in long} == set(fig14.SWAPS)
