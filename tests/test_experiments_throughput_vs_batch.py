"""Chiron's Figure 3 in small: throughput rises with the batch and bends where memory runs out."""

from __future__ import annotations

import numpy as np
import pytest

from experiments import throughput_vs_batch
from experiments.throughput_vs_batch import measure
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.workload.requests import RequestTable

LIMITS = (16, 64, 256, 512, 1024)


@pytest.fixture(scope="module")
def found():
    model = iteration_time_model("llama-3.1-8b", "a100-80gb", 1)
    requests = throughput_vs_batch.backlog("sharegpt-single-turn", 40_000)
    return {
        (watermark, limit): measure(
            model, requests, limit, watermark=watermark, warm_up_s=600, measured_s=600
        )
        for watermark in (0.0, 0.01)
        for limit in LIMITS
    }


def test_throughput_rises_while_memory_lasts_and_then_bends(found):
    tokens_per_s = [found[0.0, limit][0] for limit in LIMITS]
    assert tokens_per_s[:-1] == sorted(tokens_per_s[:-1])
    assert tokens_per_s[-1] < 0.8 * tokens_per_s[-2]


def test_latency_rises_with_the_batch(found):
    itl_s = [found[0.0, limit][2] for limit in LIMITS]
    assert itl_s == sorted(itl_s)


def test_preemptions_are_what_bends_it(found):
    assert all(found[0.0, limit][3] == 0 for limit in LIMITS[:-1])
    assert found[0.0, LIMITS[-1]][3] > 0.5
    # A reserve at admission spares most of them, and with them the bend.
    assert found[0.01, LIMITS[-1]][3] < 0.1 * found[0.0, LIMITS[-1]][3]
    assert found[0.01, LIMITS[-1]][0] > found[0.01, LIMITS[-2]][0]


def test_requests_and_tokens_agree(found):
    for tokens_per_s, requests_per_s, _, _ in found.values():
        assert tokens_per_s / requests_per_s == pytest.approx(
            472, rel=0.05
        )  # the mean output of the table


def test_a_queue_that_runs_empty_is_no_measurement():
    model = iteration_time_model("llama-3.1-8b", "a100-80gb", 1)
    with pytest.raises(ValueError, match="5 requests do not outlast 60 s"):
        measure(model, RequestTable.build(np.zeros(5), 50, 50), 8, warm_up_s=30, measured_s=30)


def test_command_prints_and_draws(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(throughput_vs_batch, "BATCH_LIMITS", (8, 64))
    monkeypatch.setattr(throughput_vs_batch, "WATERMARKS", (0.0, 0.01))
    assert throughput_vs_batch.main(["llms=llama-3.1-8b", f"out={tmp_path}"]) == 0
    assert capsys.readouterr().out.count("llama-3.1-8b") == 4
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".csv", ".png"]


def test_slips_are_one_line_and_code_2(capsys):
    for words in (["llms=gpt-4"], ["lengths=short"], ["preemption=drop"], ["batch=8"]):
        assert throughput_vs_batch.main(words) == 2
        assert capsys.readouterr().err.count("\n") == 1
