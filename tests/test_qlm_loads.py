"""QLM's traces under policies."""

from __future__ import annotations

import numpy as np
import pytest

from baselines import make_policy
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


def test_classes_without_a_rate_have_no_requests_and_a_policy_can_be_given():
    case = {**CASE, "rates": {"batch-1": 100.0}, "policy": "vllm"}
    row = run_trace(case)
    assert row["batch-2_attainment"] is None
    assert run_trace({**case, "policy": "qlm"}, make_policy("vllm")) == row


def test_an_llm_per_instance_is_dealt_by_the_work_of_the_trace():
    """Ten times the weights take about ten times the work, so most of 12 instances serve the large LLMs."""
    policy = make_policy("vllm")
    run_trace({**CASE, "policy": "vllm"}, policy)
    mistral, vicuna, *large = np.bincount(policy._llm, minlength=5).tolist()
    assert (mistral, vicuna, sum(large)) == (1, 1, 10)
    assert large[0] > 3, "50 requests/s against 16.7 each"
    assert min(large) > 1
