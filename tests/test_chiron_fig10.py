"""Chiron's Figure 10: claims on made-up rows, and one small run."""

from __future__ import annotations

import pandas as pd
import pytest

from experiments.chiron import fig10_batch_queue as fig10
from experiments.chiron.llumnix_settings import untuned
from experiments.harness.claims import Verdict

PARAMETERS = fig10.BatchQueue(
    seeds=1, small_queues=(100, 700_000), large_queues=(80_000,), mixed_queues=(1000,)
)


@pytest.fixture
def as_in_the_paper():
    """Rows that say what the paper says; the batch size is 50 times Llumnix's."""
    rows = []
    for configuration, queues in fig10._queues(PARAMETERS).items():
        for load in queues:
            for policy in fig10.POLICIES:
                chiron = policy == "chiron"
                rows.append(
                    {
                        "configuration": configuration,
                        "load": float(load),
                        "policy_name": policy,
                        "seed": 0,
                        "slo_attainment": 1.0 if chiron else 0.7,
                        "batch_attainment": 0.99 if chiron else 0.5,
                        "interactive_attainment": 1.0,
                        "throughput_per_instance": 4.0 if chiron else 1.0,
                        "gpus": 9.0 if chiron else 30.0,
                        "small_batch_limit": 50.0 * untuned()["batch_limit"] if chiron else None,
                        "small_batch_running": 700.0 if chiron else None,
                        "small_mixed_limit": 400.0 if chiron else None,
                    }
                )
    return pd.DataFrame(rows)


def test_the_papers_numbers_are_reproduced(as_in_the_paper):
    found = fig10.claims(as_in_the_paper, PARAMETERS)
    assert len(found) == 9
    for claim in found:
        assert claim.verdict is Verdict.REPRODUCED, claim
    ours = [claim.ours.mean for claim in found]
    limit = 50 * untuned()["batch_limit"]
    assert ours == pytest.approx([50, limit, 99, 99, 30, 30, 300, 300, 70])


def test_fewer_gpus_count_only_with_the_same_attainment(as_in_the_paper):
    late = as_in_the_paper.copy()
    late.loc[late["policy_name"] == "chiron", "slo_attainment"] = 0.6
    by_sentence = {c.sentence: c for c in fig10.claims(late, PARAMETERS)}
    saved = by_sentence["Up to 70 % fewer GPUs than previous systems"]
    assert saved.verdict is Verdict.NOT
    assert saved.ours.mean != saved.ours.mean  # NaN


def test_a_run_and_the_picture():
    settings = fig10.BatchQueue(seeds=1, small_queues=(), large_queues=(500,), mixed_queues=())
    case = fig10.cases(settings)[0]
    assert case["policy"] == "chiron"
    (found,) = fig10.run({**case, "tail_s": 0})
    assert found["batch_attainment"] > 0.5
    assert found["interactive_attainment"] > 0.5
    assert found["gpus"] <= 50
    shown = fig10.BatchQueue(seeds=1, small_queues=(1,), large_queues=(500,), mixed_queues=(1,))
    rows = [
        {**other, **found}
        for other in fig10.cases(shown)
    ]  # fmt: skip
    assert len(fig10.plot(pd.DataFrame(rows), shown).axes) == 12
