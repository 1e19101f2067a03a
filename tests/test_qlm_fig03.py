"""QLM's Figure 3 in small: waiting is linear in the position."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from experiments.qlm import fig03_queue_position as fig03
from experiments.qlm.setting import A100, cluster, gpus_per_instance, lengths, shown, together
from llmscale_env.cluster.kv import kv_capacity_tokens
from llmscale_env.sim.compile import compile_cluster
from llmscale_env.workload.requests import RequestTable
from tests.test_figures import small_run


def test_least_squares_by_hand():
    # Through (0, 0), (1, 3), (2, 3): mean 2, slope 3 / 2.
    assert fig03.straight(np.array([0.0, 3.0, 3.0])) == pytest.approx([0.5, 2.0, 3.5])


def test_a_run_finds_a_straight_line():
    rows = small_run("qlm-fig03")
    assert rows["position"].tolist() == [0, 100, 199, 299]
    assert rows["wait_s"].is_monotonic_increasing
    assert rows["r2_line"].min() > 0.95


def made_up(r2):
    return pd.DataFrame(
        {
            **case,
            "position": k,
            "wait_s": 10.0 * k,
            "estimate_s": 11.0 * k,
            "r2_line": 0.999,
            "r2_estimate": r2,
        }
        for case in fig03.cases(fig03.QueuePosition(seeds=2, llms=("vicuna-13b",)))
        for k in (0, 5, 9)
    )


@pytest.mark.parametrize("r2, verdict", [(0.995, "reproduced"), (0.9, "not reproduced")])
def test_claims_on_made_up_rows(r2, verdict):
    line, estimate = fig03.claims(made_up(r2), fig03.QueuePosition(seeds=2, llms=("vicuna-13b",)))
    assert (line.verdict, estimate.verdict) == ("reproduced", verdict)
    if verdict != "reproduced":
        assert "the last position the estimate is +10.0 to +10.0 % off" in estimate.reason


def test_every_llm_has_room_for_a_full_batch_of_short_requests():
    for llm in A100:
        assert kv_capacity_tokens(llm, "a100-80gb", gpus_per_instance(llm)) > 256 * 200
    assert shown("vicuna-13b@b", "a10-24gb") == "Vicuna-13B, 2 x a10-24gb"


def test_queues_come_in_the_order_of_their_names():
    scenario = cluster(("mistral-7b@a", "mistral-7b@b"), ("first", "second"), instances=3)
    spec = compile_cluster(scenario)
    assert spec.pools[0].pull == (0, 1)
    assert [spec.routes[m][c].queue for m in range(2) for c in range(2)] == [0, 1, 0, 1]
    assert spec.n_instances == 3


def test_tables_are_merged_by_arrival():
    names = {"llm_names": ("a",), "class_names": ("x", "y")}
    one = RequestTable.build([0.0, 2.0], 1, [5, 6], slo_class=1, **names)
    two = RequestTable.build([0.0, 1.0], 2, [7, 8], slo_class=0, **names)
    both = together([one, two])
    assert both.output_tokens.tolist() == [5, 7, 8, 6]
    assert both.slo_class.tolist() == [1, 0, 0, 1]


def test_lengths_are_drawn_from_the_seed():
    one, two = (
        lengths("sharegpt-single-turn", 5, np.random.default_rng(seed))["output_tokens"].tolist()
        for seed in (1, 1)
    )
    assert one == two
