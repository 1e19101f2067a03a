"""Chiron's Figure 18: claims on made-up rows, and small runs of all four policies."""

from __future__ import annotations

import pandas as pd
import pytest

from experiments.chiron import fig18_ablation as fig18
from experiments.harness.claims import Verdict

PARAMETERS = fig18.Ablation(
    seeds=2, configurations=("small",), rates_per_s=(10,), queues=(100,), static_batches=(64,)
)  # fmt: skip
GAINS = {"llumnix": 1.0, "local": 1.45, "global": 1.4, "chiron": 2.03}


@pytest.fixture
def as_in_the_paper():
    return pd.DataFrame(
        [
            {
                "workload": workload,
                "configuration": "small",
                "load": 10.0,
                "static_batch": 64,
                "policy_name": policy,
                "seed": seed,
                "interactive_per_instance_s": gain * (1 + seed),
                "batch_per_instance_s": gain * (1 + seed),
                "interactive_attainment": 1.0,
                "batch_attainment": 1.0,
                "gpus": 20 / gain,
            }
            for workload in fig18.WORKLOADS
            for policy, gain in GAINS.items()
            for seed in (0, 1)
        ]
    )


def test_the_papers_numbers_are_reproduced(as_in_the_paper):
    found = fig18.claims(as_in_the_paper, PARAMETERS)
    assert all(claim.verdict is Verdict.REPRODUCED for claim in found)
    # Over what lacks the local one, the global one; GPUs against the better one alone.
    assert [c.ours.mean for c in found[:3]] == pytest.approx([45, 40, 100 * (1 - 1.45 / 2.03)])
    assert "alone it gains 45 % over neither" in found[0].reason
    assert found[2].unit == "% fewer than local"
    assert len(found) == 6


def test_an_autoscaler_that_gains_nothing_is_not_reproduced(as_in_the_paper):
    flat = as_in_the_paper.assign(interactive_per_instance_s=1.0, gpus=20.0)
    found = fig18.claims(flat, PARAMETERS)
    assert [c.verdict for c in found[:3]] == [Verdict.NOT] * 3


def test_gpus_are_compared_with_who_is_on_time(as_in_the_paper):
    late = as_in_the_paper.copy()
    late.loc[late["policy_name"] == "local", "interactive_attainment"] = 0.5
    found = fig18.claims(late, PARAMETERS)
    assert found[2].unit == "% fewer than global"
    assert found[2].ours.mean == pytest.approx(100 * (1 - 1.4 / 2.03))


def test_small_runs_of_the_four_policies_and_the_picture():
    settings = fig18.Ablation(
        seeds=1,
        configurations=("large",),
        rates_per_s=(2,),
        queues=(100,),
        static_batches=(64,),
        warm_up_s=0,
        measured_s=60,
        tail_s=0,
    )
    rows = []
    for case in fig18.cases(settings):
        if case["workload"] == "W_A":
            rows.append({**case, **fig18.run(case)[0]})
            rows.append({**rows[-1], "workload": "W_B"})
    assert [row["policy_name"] for row in rows[::2]] == list(fig18.POLICIES)
    assert len({row["policy"] for row in rows}) == 4
    assert all(0 < row["gpus"] <= 50 for row in rows)
    (figure,) = fig18.plot(pd.DataFrame(rows), settings).values()
    assert len(figure.axes) == 4
