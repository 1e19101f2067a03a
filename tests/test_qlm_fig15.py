"""QLM's Figure 15: mixes of A10 and A100."""

from __future__ import annotations

import pytest

from experiments.harness.claims import Verdict
from experiments.qlm import fig15_heterogeneity as fig15
from tests.small_studies import made_up

SHARES = (0.0, 0.2, 0.5, 1.0)
PARAMETERS = fig15.Heterogeneity(seeds=2, a10_shares=SHARES)


def frame(gain, a10):
    """Two seeds: A10 have a third of the speed; `gain` of QLM over even placement by share."""

    def row(case):
        share, even = case["a10_share"], case["policy"] in (fig15.ROUND_ROBIN, fig15.RANDOM)
        base = 90 * (1 - share) + 30 * share
        return {
            "requests_per_s": base / (1 + gain[share]) if even else base,
            "a10_requests": share if even else a10[share],
        }

    return made_up(fig15, PARAMETERS, row)


def test_shares_by_speed():
    # 20 % of A10 at 30 each, 80 % of A100 at 90 each: 6 of 78; half and half: 15 of 60.
    fair = fig15._fair_share(frame(dict.fromkeys(SHARES, 0.0), dict.fromkeys(SHARES, 0.0)))
    assert fair == pytest.approx({0.0: 0.0, 0.2: 6 / 78, 0.5: 0.25, 1.0: 1.0})


def test_the_papers_numbers_are_reproduced():
    gain = {0.0: 0.1, 0.2: 0.3, 0.5: 0.3, 1.0: 0.1}
    a10 = {0.0: 0.0, 0.2: 6 / 78, 0.5: 0.25, 1.0: 1.0}
    found = fig15.claims(frame(gain, a10), PARAMETERS)
    assert [claim.verdict for claim in found] == [Verdict.REPRODUCED] * 3
    assert found[-1].ours.mean == pytest.approx(3)
    assert "20 % A10: 8 % of requests, by speed 8 %" in found[0].note


def test_no_gain_at_the_ends_gives_no_ratio():
    gain = {0.0: 0.0, 0.2: 0.3, 0.5: 0.3, 1.0: 0.0}
    found = fig15.claims(frame(gain, dict(zip(SHARES, SHARES, strict=True))), PARAMETERS)
    assert found[0].verdict is Verdict.NOT, "evenly, whatever their speed"
    assert found[-1].verdict is not Verdict.REPRODUCED
    assert found[-1].reason == "there is no gain at the ends, so no ratio"


@pytest.mark.parametrize("llm, gpus", [("vicuna-13b", 2 + 2), ("mistral-7b", 1 + 2)])
def test_the_cluster_of_a_case(llm, gpus):
    small = fig15.Heterogeneity(seeds=1, a10_shares=(0.34,), instances=3, llm=llm)
    case = {**fig15.cases(small)[0], "requests": 60, "patience_s": 300}
    made = fig15.mixed(case)
    assert [(pool.name, pool.max_instances) for pool in made.fleet.pools] == [
        ("a10", 1),
        ("a100", 2),
    ]
    assert made.fleet.max_gpus == gpus
    row = fig15.run(case)[0]
    assert 0 < row["a10_requests"] < 1
    assert row["drained_s"] is not None
