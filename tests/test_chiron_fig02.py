"""Chiron's Figure 2 (left): mixed instances without batch requests, and claims on made-up rows."""

from __future__ import annotations

import pytest

from experiments.chiron import fig02_spare_capacity as fig02
from experiments.chiron.loads import scenario_at
from experiments.harness.claims import Verdict
from tests.small_studies import made_up
from tests.test_figures import small_run

PARAMETERS = fig02.SpareCapacity(seeds=2)


@pytest.fixture
def frame():
    values = {"shared": (3.0, 60.0), "apart": (2.0, 40.0), "llumnix": (1.0, 20.0)}

    def row(case):
        throughput, kv_use = values[case["system"]]
        times = 0.5 if (case["system"], case["theta"]) == ("shared", 0.8) else 1.0
        return {
            "throughput_per_instance": times * throughput * (1 + case["seed"] - 30_000),
            "kv_use": kv_use * (1 + case["seed"] - 30_000),
            "gpus": 10.0,
            "interactive_attainment": 1.0,
        }

    return made_up(fig02, PARAMETERS, row)


def test_with_batch_requests_on_mixed_instances_there_is_more(frame):
    spare, less = fig02.claims(frame, PARAMETERS)
    assert (spare.verdict, spare.ours.mean) == (Verdict.REPRODUCED, 1.5)
    # With a small reserve it does not hold; section 5.2 allows that one as well.
    assert [(part.question, part.verdict) for part in spare.parts] == [
        (False, Verdict.REPRODUCED),
        (False, Verdict.NOT),
    ]
    assert (less.verdict, less.ours.mean) == (Verdict.REPRODUCED, 3)
    fig02.plot(frame, PARAMETERS)


def test_a_gain_counts_only_where_no_fewer_interactive_requests_are_on_time(frame):
    late = frame.copy()
    late.loc[late["system"] == "shared", "interactive_attainment"] = 0.9
    for claim in fig02.claims(late, PARAMETERS):
        assert claim.verdict is Verdict.NOT
        assert "90.0 %" in claim.reason


def test_apart_no_pool_but_that_of_batch_instances_takes_batch_requests():
    scenario = fig02.apart(scenario_at("W_B", "small", 100.0, 600))
    assert {pool.role: pool.pull for pool in scenario.fleet.pools if pool.pull} == {
        "batch": ("batch",)
    }
    interactive, batch = scenario.fleet.routes
    assert (interactive.overflow, batch.overflow) == (("mixed",), ())


def test_small_runs():
    frame = small_run("chiron-fig02").set_index("system")
    assert frame.index.tolist() == ["shared", "apart", "llumnix"]
    assert frame.loc["shared", "mixed_share"] > 0
    assert frame.loc["apart", "mixed_share"] == 0
    assert frame["kv_use"].between(0, 100).all()
