"""Chiron's Figure 13 in small: what is measured of a queue, and one tiny run of each workload."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from experiments.chiron import fig13_batch_slo as fig13
from experiments.chiron.batch_queue import last_finish_s, queue_kept
from experiments.chiron.setting import scenario_of
from experiments.harness.claims import Verdict
from tests.small_studies import judged, made_up
from tests.test_figures import small, small_run

NAN = float("nan")


@pytest.fixture
def scenario():
    return scenario_of("small", horizon_s=40)  # 50 slots of each of three pools


@pytest.fixture
def result():
    requests = pd.DataFrame(
        {
            "slo_class": ["interactive", "batch", "batch", "batch", "batch"],
            "arrival_s": [0.0, 0.0, 0.0, 0.0, 30.0],
            "queued_s": [0.0, 5.0, 12.0, 16.0, NAN],
            "e2e_s": [1.0, 9.0, 15.0, 19.0, NAN],
            "instance": [0, 50, 99, 100, -1],  # interactive, mixed, mixed, batch, none
        }
    )
    series = pd.DataFrame({"time_s": [10.0, 20.0, 30.0, 40.0], "queue/batch": [3, 1, 0, 1]})
    return SimpleNamespace(requests=requests, series=series)


def test_queue_by_hand(result, scenario):
    found = queue_kept(result, scenario, 10, 30)
    assert found["queue_mean"] == 0.5  # at 20 and 30 s
    assert found["queue_max"] == 1
    assert found["wait_mean_s"] == 14  # those admitted at 12 and 16 s
    assert found["finished_per_s"] == 2 / 20  # at 15 and 19 s
    assert found["mixed_share"] == 0.5
    whole = queue_kept(result, scenario, 0, 40)
    assert whole["mixed_share"] == pytest.approx(2 / 3)
    assert np.isnan(queue_kept(result, scenario, 20, 40)["mixed_share"])


def test_last_finish_by_hand(result, scenario):
    assert last_finish_s(result, scenario) == 40  # one never finishes
    result.requests = result.requests[:4]
    assert last_finish_s(result, scenario) == 19


SMALL = small("chiron-fig13")


@pytest.fixture
def frame():
    return small_run("chiron-fig13")


def test_queues_are_watched_equally_long_and_streams_in_proportion():
    length = {}
    for case in fig13.cases(SMALL):
        scenario, from_s = fig13.scenario_for(case)
        length[case["workload"], case["batch_ttft_s"]] = scenario.horizon_s - from_s
        assert {c.name: c.ttft_s for c in scenario.classes}["batch"] == case["batch_ttft_s"]
    assert length == {
        ("queue", 60): 300,
        ("queue", 240): 300,
        ("stream", 60): 120,
        ("stream", 240): 480,
    }


def test_a_stream_waits_longer_with_a_longer_target(frame):
    stream = frame[frame["workload"] == "stream"].set_index("batch_ttft_s")
    assert stream.loc[240, "wait_mean_s"] > 2 * stream.loc[60, "wait_mean_s"] > 0
    assert stream.loc[240, "queue_mean"] > 2 * stream.loc[60, "queue_mean"]


def test_the_whole_queue_is_served(frame):
    queue = frame[frame["workload"] == "queue"]
    assert (queue["finished_per_s"] * 300).to_numpy() == pytest.approx([3000, 3000])


def test_claims_take_the_frame(frame):
    larger, _ = fig13.claims(frame, SMALL)
    _, stream = larger.parts
    by_hand = frame[frame["workload"] == "stream"].set_index("batch_ttft_s")["queue_mean"]
    assert stream.parts[0].ours.mean == pytest.approx(by_hand[240] / by_hand[60])


def rows(mixed_share, throughput):
    """Targets of 1 and 4 min: a queue of which mixed instances serve so much, by seed and target."""
    parameters = SMALL.model_copy(update={"seeds": 2})

    def row(case):
        k = SMALL.batch_ttft_s.index(case["batch_ttft_s"])
        return {
            "queue_mean": 10.0 * case["batch_ttft_s"],
            "wait_mean_s": case["batch_ttft_s"] / 2,
            "throughput_per_instance": throughput[k],
            "mixed_share": mixed_share[case["seed"] - 30_000][k],
            "finished_per_s": 10.0,
            "slo_attainment": 0.9,
        }

    return made_up(fig13, parameters, row)


def test_reasons_say_what_the_rows_hold():
    frame = rows(([0.5, 1.0], [1.0, 1.0]), (2.0, 1.5))
    longer, multiplexed = judged(fig13, frame, SMALL).values()
    assert (longer.verdict, longer.ours.mean, longer.reason) == (Verdict.REPRODUCED, 4, "")
    # Judged by the queue of workload B: one seed of two has a larger share, none a larger throughput.
    assert multiplexed.verdict is Verdict.NOT
    share, throughput = multiplexed.parts[0].parts
    assert share.reason.startswith("it rises for 1 of 2 seeds (1.00, 2.00 x); with the shortest")
    assert "already serve 50 to 100 % of" in share.reason
    assert (throughput.verdict, throughput.ours.mean) == (Verdict.NOT, 0.75)


def test_one_target_is_held_against_no_other():
    one = SMALL.model_copy(update={"batch_ttft_s": (60,)})
    assert fig13.claims(rows(([1, 1], [1, 1]), (1, 1)), one) == []
