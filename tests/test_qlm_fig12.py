"""QLM's Figures 12 and 13: what is claimed of made-up rows."""

from __future__ import annotations

import pytest

from experiments.harness.claims import Verdict
from experiments.qlm import fig12_multi_model as fig12
from tests.small_studies import judged, made_up


def found_of(met, **throughput):
    """Claims of two seeds of two rates; per cent met by policy, at the lower and the higher rate."""
    parameters = fig12.MultiModel(seeds=2, batch_1_per_s=(100, 600), policies=tuple(throughput))

    def row(case):
        low, high = met[case["policy"]]
        share = low if case["batch_1_per_s"] == 100 else high
        seed = case["seed"] - 30_000
        return {
            "requests_per_s": throughput[case["policy"]] + 0.01 * seed,
            "attainment": share / 100 - 0.001 * seed,
            "batch-1_attainment": 1.0,
            "batch-2_attainment": 0.5,
            "swaps": 10,
        }

    return judged(fig12, made_up(fig12, parameters, row), parameters)


ALL = "Below 500 Batch-1 requests/s QLM satisfies more than 90 % of all SLOs"


def test_claims_on_made_up_rows():
    met = {"qlm": (95, 90), "edf": (95, 80), "vllm": (95, 40), "shepherd": (80, 85)}
    found = found_of(met, qlm=20.0, edf=10.0, vllm=6.0, shepherd=30.0)
    # The most over the rates: 90 - 40 at the higher one, 95 - 80 at the lower one.
    above = found["QLM's SLO attainment is 40 to 90 % above that of vLLM"]
    assert (above.ours.mean, above.verdict) == (pytest.approx(50), Verdict.REPRODUCED)
    assert above.unit.endswith("(at 600 Batch-1 requests/s)")
    assert above.note == "percentage points: +0 at 100/s, +50 at 600/s"
    less = found["QLM's SLO attainment is 50 to 90 % above that of SHEPHERD"]
    assert (less.ours.mean, less.verdict) == (pytest.approx(15), Verdict.DIRECTION)
    assert "meets 100 % of the Batch-1 SLOs at that rate and 50 % of the Batch-2" in less.reason
    verdicts = {
        name: found[f"QLM's throughput is 3 to 4 times that of {name}"]
        for name in ("vLLM", "EDF", "SHEPHERD")
    }
    assert verdicts["vLLM"].ours.mean == pytest.approx(20 / 6, rel=0.01)
    assert [claim.verdict for claim in verdicts.values()] == [
        Verdict.REPRODUCED,
        Verdict.DIRECTION,
        Verdict.NOT,
    ]
    assert "10 with QLM" in verdicts["EDF"].reason
    # Of the rates below 500 only.
    assert (found[ALL].ours.mean, found[ALL].verdict) == (
        pytest.approx(94.95),
        Verdict.REPRODUCED,
    )


def test_a_qlm_that_misses_slos_at_low_rates_is_told():
    found = found_of({"qlm": (80, 100), "edf": (70, 70)}, qlm=2.0, edf=1.0)
    assert found[ALL].verdict is Verdict.NOT


def test_without_qlm_nothing_is_claimed():
    found = found_of({"edf": (1, 1)}, edf=1.0)
    assert found == {}


def test_claims_are_held_against_both_forms_and_only_the_note_tells_of_a_queue_per_instance():
    forms = ("vllm", "vllm:swapping=true", "vllm:swapping=true,queues=per-instance")
    met = {"qlm": (95, 90), **dict(zip(forms, ((95, 80), (60, 40), (10, 10)), strict=True))}
    speed = {"qlm": 20.0, **dict(zip(forms, (16.0, 5.0, 2.0), strict=True))}
    found = found_of(met, **speed)
    means = {
        name: (
            found[f"QLM's SLO attainment is 40 to 90 % above that of {name}"].ours.mean,
            found[f"QLM's throughput is 3 to 4 times that of {name}"].ours.mean,
        )
        for name in ("vLLM", "vLLM with swapping")
    }
    assert means["vLLM"] == pytest.approx((10, 1.25), rel=0.01)
    assert means["vLLM with swapping"] == pytest.approx((50, 4), rel=0.01)
    swapping = found["QLM's throughput is 3 to 4 times that of vLLM with swapping"]
    assert swapping.note == "10.0 times with a queue per instance"
    assert len(found) == 5


def test_the_other_reading_of_the_queues_is_told():
    other = "vllm:queues=per-instance"
    met = {"qlm": (95, 90), "vllm": (95, 40), other: (10, 10)}
    found = found_of(met, **{"qlm": 20.0, "vllm": 6.0, other: 2.0})
    claim = found["QLM's throughput is 3 to 4 times that of vLLM"]
    assert claim.note == "10.0 times with a queue per instance"
    assert not any("a queue per instance" in sentence for sentence in found)
