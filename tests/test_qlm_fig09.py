"""QLM's Figures 9 and 10: loads of one LLM, and what is claimed of them."""

from __future__ import annotations

import pytest

from experiments.harness.claims import Verdict
from experiments.qlm import fig09_single_model as fig09
from experiments.qlm.loads import RELEASED, single_model_load
from tests.small_studies import judged, made_up
from tests.test_figures import small, small_run


def test_loads_by_hand():
    equal = single_model_load("equal", 200, 50, 60)
    assert equal["rates"] == {"interactive": 200.0, "batch-1": 200.0, "batch-2": 200.0}
    assert equal["requests"] == 60 * 600
    fixed = single_model_load("fixed", 200, 50, 60)
    assert fixed["rates"] == {"interactive": 200.0, "batch-1": 50.0, "batch-2": 50.0}
    assert fixed["requests"] == 60 * 300
    literal = single_model_load("literal", 200, 50, 60)
    assert literal["requests"] == 3500
    assert "changes" not in literal
    released = single_model_load("released", 200, 50, 60)
    assert released == {**literal, "load": "released", "interval_s": 1.0, "changes": RELEASED}
    assert single_model_load("equal", 10, 50, 60)["requests"] == 3500, "never fewer"
    with pytest.raises(ValueError, match="load = 'thirds': must be"):
        single_model_load("thirds", 200, 50, 60)


PARAMETERS = fig09.SingleModel(
    seeds=2,
    policies=("qlm", "edf", "vllm", "shepherd"),
    loads=("equal", "literal"),
    interactive_per_s=(100,),
)


def found_of(attainment, speed):
    """Claims of two seeds of two rates, equal and literal load."""

    def row(case):
        plain, seed = case["policy"].partition(":")[0], case["seed"] - 30_000
        met, served = attainment[plain], speed.get(case["policy"], speed[plain])
        return {
            "requests": 1000,
            "requests_per_s": served + 0.01 * seed,
            "on_time_per_s": served * met + 0.01 * seed,
            "loaded_per_s": served,
            "attainment": met - 0.001 * seed if case["load"] == "equal" else 1.0,
            "interactive_attainment": met if case["load"] == "equal" else 1.0,
            "batch-1_attainment": met,
            "evictions": 500 if case["policy"] == "qlm" else 0,
        }

    return judged(fig09, made_up(fig09, PARAMETERS, row), PARAMETERS)


def test_what_the_paper_says_is_reproduced_by_such_numbers():
    found = found_of(
        {"qlm": 0.99, "edf": 0.6, "vllm": 0.49, "shepherd": 0.3},
        {"qlm": 120.0, "edf": 100.0, "vllm": 100.0, "shepherd": 80.0},
    )
    rest = [s for s, claim in found.items() if claim.verdict is not Verdict.REPRODUCED]
    # 120 / 80 is 1.5 x, not 2.3 x.
    assert rest == ["The throughput corresponds to 1.1 to 2.3 times fewer GPUs"]
    vllm = next(claim for s, claim in found.items() if "SLO attainment" in s and "vLLM" in s)
    assert vllm.ours.mean == pytest.approx(50)
    assert vllm.mapped
    assert [part.sentence for part in vllm.parts] == [
        "all requests, thirds",
        "interactive requests, thirds",
        "all requests, thirds, relative",
        "interactive requests, thirds, relative",
        "all requests, 3,500 requests",
        "interactive requests, 3,500 requests",
    ]
    # 99 in place of 49 of 100; of 3,500 requests none is late.
    assert vllm.parts[3].ours.mean == pytest.approx(100 * 50 / 49)
    assert vllm.parts[4].ours.mean == 0
    speed = found["QLM's throughput is 50 % higher than that of SHEPHERD"]
    assert speed.ours.mean == pytest.approx(50, rel=1e-3)


def test_nothing_of_it_by_equal_numbers():
    found = found_of(
        dict.fromkeys(PARAMETERS.policies, 0.9), dict.fromkeys(PARAMETERS.policies, 100.0)
    )
    for sentence, claim in found.items():
        # No fewer; and 90 % are not the 99th percentile.
        good = "maximum number of SLOs" in sentence or "no system satisfies" in sentence
        assert (claim.verdict is Verdict.REPRODUCED) == good, sentence


def test_throughput_is_of_all_requests_served_and_those_on_time_are_a_reading():
    found = found_of(
        {"qlm": 0.9, "edf": 0.6, "vllm": 0.6, "shepherd": 0.3},
        dict.fromkeys(PARAMETERS.policies, 100.0),
    )
    claim = found["QLM's throughput is 20 % higher than that of vLLM and EDF"]
    assert claim.verdict is Verdict.NOT
    on_time = [part for part in claim.parts if "on time" in part.sentence]
    assert all(part.question and part.verdict is Verdict.REPRODUCED for part in on_time)
    served = [part.sentence for part in claim.parts if not part.question]
    assert served == [
        "thirds, one queue",
        "thirds, a queue per instance",
        "3,500 requests, one queue",
        "QLM keeps KV, one queue",
        "QLM keeps KV, a queue per instance",
    ]


def test_a_queue_per_instance_is_another_setting():
    found = found_of(
        {"qlm": 0.9, "edf": 0.6, "vllm": 0.6, "shepherd": 0.3},
        dict.fromkeys(PARAMETERS.policies, 100.0) | dict.fromkeys(PARAMETERS.per_instance, 80.0),
    )
    claim = found["QLM's throughput is 20 % higher than that of vLLM and EDF"]
    assert claim.verdict is Verdict.REPRODUCED
    assert claim.unit.endswith("(thirds, a queue per instance)")
    assert claim.ours.mean == pytest.approx(25, rel=0.01)


def test_a_run():
    assert {case["requests"] for case in fig09.cases(small("qlm-fig09"))} == {3500}
    rows = small_run("qlm-fig09").to_dict("records")
    assert {row["policy"] for row in rows} == {"qlm", "vllm", "vllm:queues=per-instance"}
    assert all(row["attainment"] == 1 and row["drained_s"] for row in rows)
    assert all(row["on_time_per_s"] == row["requests_per_s"] for row in rows)
