"""Other streams in the place of a mix's: what becomes of its queues and jobs."""

from __future__ import annotations

import pytest

from llmscale_env.scenarios import load_scenario

MINE = {"name": "mine", "llm": "llama-3.1-8b", "slo_class": "interactive", "rate_per_s": 2.0}
QUEUE = {"name": "late", "llm": "llama-3.1-8b", "slo_class": "batch", "n_requests": 9}


def parts(scenario) -> list[str]:
    return [part.name for part in scenario.workload.parts]


@pytest.mark.parametrize("name", ["mixed-slo-v0", "mixed-slo"])
def test_other_streams_replace_queues_and_jobs(name):
    assert parts(load_scenario(name, **{"workload.streams": [MINE]})) == ["mine"]
    assert parts(load_scenario(load_scenario(name), **{"workload.streams": [MINE]})) == ["mine"]


@pytest.mark.parametrize("turn", [1, -1])
def test_queues_that_are_named_too_are_there(turn):
    changes = {"workload.streams": [MINE], "workload.batch_queues": [QUEUE]}
    scenario = load_scenario("mixed-slo-v0", **dict([*changes.items()][::turn]))
    assert parts(scenario) == ["mine", "late"]


def test_a_mix_with_other_streams():
    work = {"mix": "mixed-slo-v0", "streams": [MINE]}
    assert parts(load_scenario("mixed-slo-v0", workload=work)) == ["mine"]
    work["batch_queues"] = [QUEUE]
    assert parts(load_scenario("mixed-slo-v0", workload=work)) == ["mine", "late"]


def test_a_changed_stream_and_no_streams_leave_queues_as_they_are():
    plain = load_scenario("mixed-slo-v0")
    changed = load_scenario("mixed-slo-v0", **{"workload.streams.chat.rate_per_s": 3.0})
    assert changed.workload.batch_queues == plain.workload.batch_queues
    alone = load_scenario("mixed-slo-v0", **{"workload.streams": []})
    assert alone.workload.parts == plain.workload.batch_queues
