"""QLM's traces under policies, and what is claimed of them."""

from __future__ import annotations

import pandas as pd
import pytest

from experiments.harness.claims import Verdict
from experiments.qlm import fig12_multi_model as fig12
from experiments.qlm import fig14_multi_model_ablation as fig14
from experiments.qlm.loads import run_trace, scenario_at, trace

CASE = {
    "scenario": "qlm-multi",
    "rates": {"batch-1": 100.0, "batch-2": 50.0},
    "requests": 60,
    "interval_s": 5.0,
    "patience_s": 600.0,
    "policy": "qlm",
    "seed": 3,
}


def test_rates_are_spread_over_the_llms_of_a_class_and_the_trace_has_so_many():
    scenario = scenario_at(CASE)
    rates = {stream.name: stream.rate_per_s for stream in scenario.workload.streams}
    assert rates["batch-1-mistral"] == rates["batch-1-llama"] == 50
    assert rates["batch-2-vicuna"] == pytest.approx(50 / 3)
    table = trace(scenario, 60, 3)
    assert len(table) == 60
    assert float(table.arrival_s[-1]) == pytest.approx(60 / 150, rel=0.4)
    with pytest.raises(ValueError, match="requests = 1000000: only"):
        trace(scenario, 1_000_000, 3)


def test_a_trace_is_served_to_the_end():
    row = run_trace(CASE)
    assert row["drained_s"] is not None
    assert row["requests_per_s"] == pytest.approx(60 / row["drained_s"])
    assert 0 <= row["attainment"] <= 1
    assert row == run_trace(CASE)


def frame(**throughput):
    """Two seeds of two rates; QLM meets all, the others half."""
    rows = [
        {
            "seed": seed,
            "policy": policy,
            "batch_1_per_s": rate,
            "requests_per_s": value + 0.01 * seed,
            "attainment": (1.0 if policy == "qlm" else 0.45) - 0.001 * seed,
            "batch-1_attainment": 1.0,
            "swaps": 10,
        }
        for seed in (0, 1)
        for rate in (100.0, 400.0)
        for policy, value in throughput.items()
    ]
    return pd.DataFrame(rows)


def test_claims_of_figure_12():
    parameters = fig12.MultiModel(batch_1_per_s=(100, 400))
    found = fig12.claims(frame(qlm=20.0, edf=10.0, vllm=6.0, shepherd=30.0), parameters)
    by = {claim.sentence: claim for claim in found}
    assert by["QLM's SLO attainment is 40 to 90 % above that of vLLM"].ours.mean == pytest.approx(
        55
    )
    assert by["QLM's throughput is 3 to 4 times that of vLLM"].verdict is Verdict.REPRODUCED
    assert by["QLM's throughput is 3 to 4 times that of EDF"].verdict is Verdict.DIRECTION
    assert by["QLM's throughput is 3 to 4 times that of SHEPHERD"].verdict is Verdict.NOT
    assert "10 with QLM" in by["QLM's throughput is 3 to 4 times that of EDF"].reason
    only = fig12.claims(frame(edf=1.0), fig12.MultiModel(policies=("edf",)))
    assert only == []


def test_claims_of_figure_14():
    rows = [
        {
            "seed": seed,
            "variant": variant,
            "requests_per_s": (5.0 if variant == "without swapping" else 20.0) + 0.01 * seed,
            "batch-1_attainment": 1.0 if variant == "QLM" else 0.9,
        }
        for seed in (0, 1)
        for variant in fig14.WITHOUT
    ]
    found = fig14.claims(pd.DataFrame(rows), fig14.Ablation())
    assert found[0].ours.mean == pytest.approx(300, rel=0.01)
    assert {claim.verdict for claim in found} == {Verdict.REPRODUCED}
