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
ABOVE = "With several models QLM's SLO attainment is {} to 90 % above that of {}"
UP_TO = "QLM provides up to 3 to 4 times higher throughput, since it swaps once per request group"
MEAN = "With several models QLM improves throughput by 400 % on average over other systems"


def test_claims_on_made_up_rows():
    edf, vllm = "edf:swapping=true", "vllm:swapping=true"
    met = {"qlm": (95, 90), edf: (95, 80), vllm: (95, 40), "shepherd": (80, 85)}
    found = found_of(met, **{"qlm": 20.0, edf: 10.0, vllm: 6.0, "shepherd": 30.0})
    # Batch-1 requests come first; of all the most over the rates: 90 - 40 at the higher one, 95 - 80.
    batch, above = found[ABOVE.format(40, "vLLM")].parts
    assert (batch.ours.mean, batch.verdict) == (0, Verdict.NOT)
    assert (above.ours.mean, above.verdict) == (pytest.approx(50), Verdict.REPRODUCED)
    assert above.unit == "points at 600/s"
    less = found[ABOVE.format(50, "SHEPHERD")].parts[1]
    assert (less.ours.mean, less.verdict) == (pytest.approx(15), Verdict.DIRECTION)
    most = found[UP_TO]
    assert most.ours.mean == pytest.approx(20 / 6, rel=0.01)
    assert most.verdict is Verdict.REPRODUCED
    assert most.setting.endswith("over SHEPHERD 0.67 x")
    # (20 / 6 + 2 + 2 / 3) / 3 is twice; without SHEPHERD it is 2.67 times.
    mean = found[MEAN]
    assert [part.ours.mean for part in mean.parts] == pytest.approx([100, 167], rel=0.01)
    assert (mean.ours.mean, mean.verdict) == (pytest.approx(167, rel=0.01), Verdict.DIRECTION)
    assert "10 swaps with QLM" in mean.reason
    # Of the rates below 500 only.
    assert (found[ALL].ours.mean, found[ALL].verdict) == (pytest.approx(94.95), Verdict.REPRODUCED)


def test_a_qlm_that_misses_slos_at_low_rates_is_told():
    found = found_of({"qlm": (80, 100), "edf": (70, 70)}, qlm=2.0, edf=1.0)
    assert found[ALL].verdict is Verdict.NOT


def test_without_qlm_nothing_is_claimed():
    assert found_of({"edf": (1, 1)}, edf=1.0) == {}


def test_forms_are_settings_and_the_one_with_an_llm_per_instance_is_ours():
    forms = ("vllm", "vllm:swapping=true", "vllm:swapping=true,queues=per-instance")
    met = {"qlm": (95, 90), **dict(zip(forms, ((95, 80), (60, 40), (10, 10)), strict=True))}
    speed = {"qlm": 20.0, **dict(zip(forms, (16.0, 10.0, 2.0), strict=True))}
    found = found_of(met, **speed)
    assert [part.ours.mean for part in found[UP_TO].parts] == pytest.approx([2, 10, 1.25], rel=0.01)
    assert [part.question for part in found[UP_TO].parts] == [False, False, True]
    assert found[UP_TO].verdict is Verdict.REPRODUCED
    # Ten times the throughput is no nearer to five times than twice is.
    assert found[MEAN].verdict is Verdict.DIRECTION
    assert [part.ours.mean for part in found[MEAN].parts] == pytest.approx([100, 900, 25], rel=0.01)
    every = [part.ours.mean for part in found[ABOVE.format(40, "vLLM")].parts[1::2]]
    assert every == pytest.approx([50, 85, 10])
    assert len(found) == 4
