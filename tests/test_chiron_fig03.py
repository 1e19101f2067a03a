"""Chiron's Figure 3 in small: throughput rises with the batch and bends where memory runs out."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.chiron import fig03_batch_size as fig03
from experiments.chiron.instance import backlog, measure
from experiments.harness.claims import Verdict
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.workload.requests import RequestTable
from tests.small_studies import made_up

LIMITS = (16, 64, 256, 512, 1024)


@pytest.fixture(scope="module")
def found():
    model = iteration_time_model("llama-3.1-8b", "a100-80gb", 1)
    requests = backlog("sharegpt-single-turn", 40_000, 0)
    return {
        (watermark, limit): measure(
            model, requests, limit, watermark=watermark, warm_up_s=600, measured_s=600
        )
        for watermark in (0.0, 0.01)
        for limit in LIMITS
    }


def test_throughput_rises_while_memory_lasts_and_then_bends(found):
    tokens_per_s = [found[0.0, limit].tokens_per_s for limit in LIMITS]
    assert tokens_per_s[:-1] == sorted(tokens_per_s[:-1])
    assert tokens_per_s[-1] < 0.8 * tokens_per_s[-2]


def test_latency_rises_with_the_batch(found):
    itl_s = [found[0.0, limit].itl_s for limit in LIMITS]
    assert itl_s == sorted(itl_s)


def test_preemptions_are_what_bends_it(found):
    assert all(found[0.0, limit].preemptions_per_request == 0 for limit in LIMITS[:-1])
    assert found[0.0, LIMITS[-1]].preemptions_per_request > 0.5
    # A reserve at admission spares most of them, and with them the bend.
    assert (
        found[0.01, LIMITS[-1]].preemptions_per_request
        < 0.1 * found[0.0, LIMITS[-1]].preemptions_per_request
    )
    assert found[0.01, LIMITS[-1]].tokens_per_s > found[0.01, LIMITS[-2]].tokens_per_s


def test_requests_and_tokens_agree(found):
    mean_output = 472  # of the table
    for one in found.values():
        assert one.tokens_per_s / one.requests_per_s == pytest.approx(mean_output, rel=0.05)


def test_a_queue_that_runs_empty_is_no_measurement():
    model = iteration_time_model("llama-3.1-8b", "a100-80gb", 1)
    with pytest.raises(ValueError, match="5 requests do not outlast 60 s"):
        measure(model, RequestTable.build(np.zeros(5), 50, 50), 8, warm_up_s=30, measured_s=30)


def rows(parameters):
    """Throughput 1 to 4 and back to 2, with preemptions at the largest batch where nothing is kept free."""

    def row(case):
        free = case["kv_watermark"] == 0
        rate = {8: 1.0, 64: 4.0, 512: 2.0}[case["batch_limit"]] if free else 4.0
        preemptions = 3.0 if free else 0.02
        itl_s = case["batch_limit"] / 100
        return {"tokens_per_s": rate, "itl_s": itl_s, "preemptions_per_request": preemptions}

    return made_up(fig03, parameters, row)


def test_claims_on_made_up_rows():
    parameters = fig03.BatchSize(seeds=2, llms=("llama-3.1-8b",), batch_limits=(512, 8, 64))
    both, bends = fig03.claims(rows(parameters), parameters)
    latency, throughput = both.parts
    assert (latency.sentence, latency.ours.mean) == ("8B, latency", 64)
    # The last watermark's: as much at all batches.
    assert (throughput.ours.mean, throughput.verdict, both.verdict) == (1.0, *[Verdict.NOT] * 2)
    kept, free = bends.parts
    assert (free.ours.mean, free.verdict) == (0.5, Verdict.REPRODUCED)
    # vLLM's default judges.
    assert (kept.ours.mean, bends.ours.mean, bends.verdict) == (1.0, 1.0, Verdict.NOT)
    assert bends.how.endswith("3.00 with 0% free, 0.02 with 1% free")


def test_one_batch_claims_nothing():
    parameters = fig03.BatchSize(seeds=1, llms=("llama-3.1-8b",), batch_limits=(8,))
    assert fig03.claims(rows(parameters), parameters) == []
