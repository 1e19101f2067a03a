"""The table of a comparison: what stands in brackets, and what the line below it says of them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from agents.runs.comparison import fleet_load_correlation, metrics_of, summarise, table
from llmscale_env.scenarios import load_scenario
from tests.small_world import SMALL_WORLD

SCENARIO = load_scenario(SMALL_WORLD)


def shown(episodes: int) -> list[str]:
    """Lines of the table of two policies whose rewards in episode k are -k and -2k."""
    rows = [
        {
            "policy": policy,
            "seed": k,
            **dict.fromkeys(metrics_of(SCENARIO), 0.5),
            "reward": -factor * k,
        }
        for policy, factor in (("one", 1.0), ("two", 2.0))
        for k in range(1, episodes + 1)
    ]
    return table(summarise(rows, SCENARIO), SCENARIO).splitlines()


def test_one_episode_has_no_interval():
    lines = shown(1)
    assert not any("nan" in line for line in lines)
    assert lines[2].split()[-2:] == ["-1.0", "-"]
    assert lines[3].split()[-2:] == ["-2.0", "-1.0"]
    assert lines[-1].startswith("One episode, the same requests for all: no intervals.")


@pytest.mark.parametrize(
    "episodes, kind", [(2, "Student's t"), (9, "Student's t"), (10, "bootstrap")]
)
def test_the_kind_of_interval_is_told(episodes: int, kind: str):
    lines = shown(episodes)
    mean = (episodes + 1) / 2
    assert lines[3].split()[0] == "two"
    assert f" {-2 * mean:.1f} [" in lines[3]
    assert lines[3].count("[") == 2
    assert f"95 % {kind} intervals" in lines[-1]


def episode(policy: str, seed: int, reward: float, **others: float) -> dict[str, object]:
    plain = dict.fromkeys(metrics_of(SCENARIO), 0.5)
    return {"policy": policy, "seed": seed, **plain, "reward": reward, **others}


def test_the_default_table_has_what_one_looks_at_first():
    rows = [episode(policy, 1, 3.0) for policy in ("one", "two")]
    summary = summarise(rows, SCENARIO)
    head = [part.strip() for part in table(summary, SCENARIO).splitlines()[0].split("  ") if part]
    assert head == ["policy", "interactive %", "batch %", "GPU-h", "reward [95 %]", "vs one [95 %]"]
    wide = table(summary, SCENARIO, wide=True).splitlines()[0]
    assert all(word in wide for word in ("IQM", "joint %", "preempt.", "hysteresis"))


def test_tail_latency_is_shown_class_by_class():
    quick = {"interactive/ttft_s_p99": 0.25, "batch/ttft_s_p99": 900.0, "joint/ttft_s_p99": 640.0}
    lines = table(summarise([episode("one", 1, 3.0, **quick)], SCENARIO), SCENARIO, wide=True)
    head, _, row = lines.splitlines()[:3]
    for name, value in (("interactive", "0.25"), ("batch", "900")):
        end = head.index(f"{name} TTFT p99 s") + len(f"{name} TTFT p99 s")
        assert row[:end].split()[-1] == value
    assert head.count("TTFT") == 2
    assert "640" not in row


def test_equal_episodes_count_once():
    rows = [episode("one", seed, -float(seed > 2)) for seed in range(5)]
    rows += [episode("two", seed, -2.0) for seed in range(5)]
    row = summarise(rows, SCENARIO)[0]
    assert (row["episodes"], row["episodes/given"]) == (2, 5)
    assert row["reward"] == -0.5
    # They differ as soon as one policy's do.
    rows[-1]["gpu_hours"] = 0.6
    assert summarise(rows, SCENARIO)[0]["episodes"] == 3
    lines = table(summarise(rows, SCENARIO), SCENARIO).splitlines()
    assert "Means over 3 episodes (those of the 5 seeds that differ)" in lines[-1]


def test_a_class_without_requests_has_no_attainment():
    counts = {"interactive/arrivals": 9.0, "batch/arrivals": 0.0, "batch/slo_attainment": 1.0}
    rows = [episode("one", 1, -1.0, **counts), episode("one", 2, -2.0, **counts)]
    (row,) = summarise(rows, SCENARIO)
    assert np.isnan(row["batch/slo_attainment"])
    assert row["interactive/slo_attainment"] == 0.5
    assert table([row], SCENARIO).splitlines()[2].split()[:3] == ["one", "50", "-"]
    # Episodes that have some count.
    rows[0] |= {"batch/arrivals": 1.0, "batch/slo_attainment": 0.25}
    assert summarise(rows, SCENARIO)[0]["batch/slo_attainment"] == 0.25


def test_a_class_that_the_horizon_cut_off_is_not_on_time():
    counts = {"batch/arrivals": 7.0, "batch/unfinished": 7.0}
    # Under prices a request that can still be in time counts in no share, so the share rests on nothing.
    (row,) = summarise(
        [episode("one", 1, -1.0, **counts, **{"batch/slo_attainment": 1.0})], SCENARIO
    )
    assert table([row], SCENARIO).splitlines()[2].split()[:3] == ["one", "50", "-"]
    # Without prices it counts as missed.
    (row,) = summarise(
        [episode("one", 1, -1.0, **counts, **{"batch/slo_attainment": 0.0})], SCENARIO
    )
    assert table([row], SCENARIO).splitlines()[2].split()[:3] == ["one", "50", "0"]


def test_how_a_fleet_follows_its_load_by_hand():
    scenario = load_scenario(SMALL_WORLD)
    times = np.repeat([100.0, 700.0, 1300.0], [10, 30, 20])
    requests = pd.DataFrame({"arrival_s": times, "slo_class": "interactive"})
    # The other class says nothing.
    other = pd.DataFrame({"arrival_s": [1300.0] * 99, "slo_class": "batch"})
    series = pd.DataFrame({"time_s": [600.0, 1200.0, 1800.0], "mixed/active": [2, 6, 4]})
    result = SimpleNamespace(requests=pd.concat([requests, other]), series=series)
    assert fleet_load_correlation(result, scenario) == pytest.approx(1.0)
    series["batch/active"] = [1, -3, -1]  # the sum is level
    assert np.isnan(fleet_load_correlation(result, scenario))
