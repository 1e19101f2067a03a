"""QLM's Figure 14: what is claimed of made-up rows."""

from __future__ import annotations

import pytest

from experiments.harness.claims import Verdict
from experiments.qlm import fig14_multi_model_ablation as fig14
from tests.small_studies import judged, made_up

MOST = "Warm start contributes the most to {} ({} QLM loses most)"
WARM, SWAPPING = "without warm start", "without swapping"


def found_of(throughput=None, met=None):
    """Claims of two seeds; 20 requests/s and all SLOs met where nothing else is said."""
    parameters = fig14.Ablation(seeds=2)

    def row(case):
        speed = (throughput or {}).get(case["variant"], 20.0) + 0.01 * (case["seed"] - 30_000)
        share = (met or {}).get(case["variant"], 1.0)
        return {"requests_per_s": speed, "batch-1_attainment": share}

    return judged(fig14, made_up(fig14, parameters, row), parameters)


def test_the_operations_are_ranked_by_what_is_lost_without_them():
    throughput = {SWAPPING: 5.0, "without pulling": 8.0, WARM: 10.0, "without eviction": 21.0}
    found = found_of(throughput, {SWAPPING: 0.5, WARM: 0.4})
    swapping = found["Model swapping improves throughput by 300 %"]
    assert (swapping.ours.mean, swapping.verdict) == (
        pytest.approx(300, rel=0.01),
        Verdict.REPRODUCED,
    )
    ranks = {
        (measure, variant): found[MOST.format(measure, variant)]
        for measure in ("throughput", "SLOs")
        for variant in (WARM, SWAPPING)
    }
    assert {key: claim.ours.mean for key, claim in ranks.items()} == {
        ("throughput", SWAPPING): 1,
        ("throughput", WARM): 3,
        ("SLOs", SWAPPING): 2,
        ("SLOs", WARM): 1,
    }
    assert ranks["throughput", SWAPPING].verdict is Verdict.REPRODUCED
    assert ranks["throughput", WARM].verdict is Verdict.NOT
    assert ranks["throughput", WARM].reason.startswith(
        "requests/s fewer: 15.0 without swapping, 12.0 without pulling, 10.0 without warm start"
    )


def test_where_nothing_is_lost_no_operation_contributes_the_most():
    found = found_of()
    for measure in ("throughput", "SLOs"):
        for variant in (WARM, SWAPPING):
            claim = found[MOST.format(measure, variant)]
            assert (claim.ours.mean, claim.verdict) == (5, Verdict.NOT)


def test_bars_of_slos():
    found = found_of(met={"without eviction": 0.9, "QLM": 0.95})
    assert found["QLM without eviction meets fewer Batch-1 SLOs"].verdict is Verdict.REPRODUCED
    worse = found["QLM without pulling meets fewer Batch-1 SLOs"]
    assert (worse.ours.mean, worse.verdict) == (pytest.approx(-5), Verdict.NOT)
    # Nothing lost is nothing contributed.
    found = found_of(met={"without eviction": 0.95, "QLM": 0.95})
    assert found["QLM without eviction meets fewer Batch-1 SLOs"].verdict is Verdict.NOT
    assert worse.reason == "QLM whole meets 95.0 %"
