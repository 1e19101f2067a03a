"""Chiron's workloads at a load, and Llumnix's settings."""

from __future__ import annotations

import math

import pandas as pd
import pytest
import yaml

from baselines import make_policy
from experiments.chiron import llumnix_settings, llumnix_sweep, loads
from experiments.harness.parameters import FIRST_SEED

# ---- scenarios and episodes ----


def test_workload_b_has_each_models_own_rate_and_a_divided_queue():
    scenario = loads.scenario_at("W_B", "mixed", 1000, 4200)
    rates = {stream.llm: stream.rate_per_s for stream in scenario.workload.streams}
    assert rates == {"llama-3.1-8b": 50, "llama-3.1-70b": 10}
    assert [queue.n_requests for queue in scenario.workload.batch_queues] == [500, 500]


def test_workload_a_divides_its_rate_and_has_no_queue():
    scenario = loads.scenario_at("W_A", "mixed", 30, 600)
    assert [stream.rate_per_s for stream in scenario.workload.streams] == [15, 15]
    assert sum(queue.n_requests for queue in scenario.workload.batch_queues) == 0
    with pytest.raises(ValueError, match="workload = 'W_C': must be 'W_A' or 'W_B'"):
        loads.scenario_at("W_C", "mixed", 30, 600)


@pytest.fixture(scope="module")
def short_case():
    return {
        "workload": "W_A",
        "configuration": "small",
        "load": 4.0,
        "policy": "llumnix:high=0.9,low=0.001,batch_limit=32",
        "seed": 5,
        "warm_up_s": 20,
        "measured_s": 100,
        "tail_s": 60,
    }


def test_an_episode_is_measured_between_warm_up_and_tail(short_case):
    found = loads.run_load(short_case)
    assert found["slo_attainment"] == 1.0
    assert found["small_interactive_limit"] == 32
    assert 0 < found["small_interactive_running"] < 32
    assert math.isnan(found["small_batch_limit"])  # Llumnix has one pool
    assert found["instances"] == found["gpus"] > 0
    # As many leave as come, 4 per second.
    whole = found["interactive_per_instance_s"] * found["instances"]
    assert whole == pytest.approx(4.0, rel=0.25)
    assert found["throughput_per_instance"] == found["interactive_per_instance_s"]


def test_the_literal_reading_has_so_many_requests_and_ends_with_the_last(short_case):
    found = loads.run_load({**short_case, "requests": 40})
    assert found["slo_attainment"] == 1.0
    span_s = found["gpu_hours"] * 3600 / found["gpus"]
    assert 40 / 4 < span_s < 40 / 4 + 60
    done = found["throughput_per_instance"] * found["instances"] * span_s
    assert done == pytest.approx(40)


# ---- the sweep ----


def trials(*rows):
    names = ("high", "load", "slo_attainment", "throughput_per_instance")
    frame = pd.DataFrame([dict(zip(names, row, strict=True)) for row in rows])
    return frame.assign(
        low=0.5 * frame["high"],
        batch_limit=64,
        rebalance=True,
        gpus=1.0,
        workload="W_A",
        configuration="small",
    )


def test_of_equally_good_settings_the_one_with_more_throughput():
    frame = trials(
        (0.1, 1, 0.99, 1.0),
        (0.1, 2, 0.97, 1.0),  # 0.98
        (0.2, 1, 0.98, 2.0),
        (0.2, 2, 0.97, 8.0),  # 0.975, throughput 4
        (0.4, 1, 0.90, 9.0),
        (0.4, 2, 0.90, 9.0),
    )
    assert llumnix_sweep.entry(llumnix_sweep.ranked(frame, 0.01)) == {
        "high": 0.2,
        "low": 0.1,
        "batch_limit": 64,
        "rebalance": True,
        "slo_attainment": 0.975,
        "lowest_slo_attainment": 0.97,
        "throughput_per_instance": 4.0,
        "gpus": 1.0,
    }

    def order(tolerance):
        return list(llumnix_sweep.ranked(frame, tolerance).index.get_level_values("high"))

    # Those within the tolerance by throughput, then the others by attainment.
    assert order(0.001) == [0.1, 0.2, 0.4]
    assert order(0.01) == [0.2, 0.1, 0.4]
    assert order(0.1) == [0.4, 0.2, 0.1]


@pytest.fixture
def sweep(monkeypatch):
    """Makes the sweep one of few workloads, each at a load of 1, and of few settings."""

    def small(*workloads, high, batch_limit=(64,)):
        grid = {"high": high, "low_share": (0.5,), "batch_limit": batch_limit, "rebalance": (True,)}
        monkeypatch.setattr(llumnix_sweep, "LOADS", dict.fromkeys(workloads, (1,)))
        monkeypatch.setattr(llumnix_sweep, "GRID", grid)

    return small


def test_the_untuned_setting_serves_all_workloads_and_the_tuned_ones_their_own(sweep):
    sweep("W_A small", "W_A large", high=(0.1, 0.2), batch_limit=(64, 256))
    attainment = {
        ("small", 0.1): 1.0,
        ("small", 0.2): 0.8,
        ("large", 0.1): 0.5,
        ("large", 0.2): 0.9,
    }

    def served(case):
        more = 0.05 if case["batch_limit"] == 256 and case["high"] == 0.1 else 0.0
        return attainment[case["configuration"], case["high"]] + more

    found = llumnix_sweep.found_settings(made_up(served), 1)
    best = {name: (entry["high"], entry["batch_limit"]) for name, entry in flat(found).items()}
    assert best == {
        "untuned": (0.2, 64),  # 0.85 against 0.75 and 0.8; of equal ones the first
        "untuned_64": (0.2, 64),
        "W_A small": (0.1, 256),
        "W_A large": (0.2, 64),
    }
    assert found["untuned"]["slo_attainment"] == 0.85
    assert found["untuned"]["lowest_slo_attainment"] == 0.8


def test_a_setting_that_was_lucky_on_one_seed_is_found_out(sweep):
    """By hand: six settings; on seed 1000 the one with high = 0.6 has 100 %, on the others 40 %."""
    grid = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    sweep("W_A small", high=grid)
    asked = []

    def served(case):
        asked.append((case["high"], case["seed"]))
        if case["high"] == 0.6:
            return 1.0 if case["seed"] == 1000 else 0.4
        return 0.9 - case["high"] / 10  # 0.89, 0.88, ..., the same on every seed

    one = llumnix_sweep.found_settings(made_up(served), 1)["tuned"]["W_A small"]
    assert (one["high"], one["slo_attainment"]) == (0.6, 1.0)
    asked.clear()
    found = llumnix_sweep.found_settings(made_up(served), 8)["tuned"]["W_A small"]
    assert (found["high"], found["slo_attainment"]) == (0.1, 0.89)
    # All meet the first seed, four of them the others.
    assert {high for high, seed in asked if seed == 1000} == set(grid)
    assert {high for high, seed in asked if seed == 1001} == {0.1, 0.2, 0.3, 0.6}
    assert {seed for high, seed in asked if high == 0.1} == set(range(1000, 1008))
    assert {seed for high, seed in asked if high == 0.5} == {1000}


def made_up(served):
    """Runs that are not done: their attainment is a function of the case."""

    def run_all(cases):
        rows = [
            {**case, "slo_attainment": served(case), "throughput_per_instance": 1.0, "gpus": 1.0}
            for case in cases
        ]
        return pd.DataFrame(rows)

    return run_all


def flat(found):
    return {**{name: entry for name, entry in found.items() if name != "tuned"}, **found["tuned"]}


def test_the_sweep_covers_every_workload_and_no_seed_of_an_experiment():
    points = llumnix_sweep.points()
    assert llumnix_sweep.FIRST_SEED + llumnix_sweep.MAX_SEEDS < FIRST_SEED
    assert llumnix_sweep.rounds(8) == [1, 2, 8]
    assert llumnix_sweep.rounds(1) == [1]
    for name, tried in llumnix_sweep.LOADS.items():
        cases = llumnix_sweep.sweep_cases(name, points, [1000])
        assert len(cases) == len(points) * len(tried)
        assert {f"{c['workload']} {c['configuration']}" for c in cases} == {name}
        for case in cases[:: len(points) + 1]:
            assert make_policy(case["policy"]).parameters.high == case["high"]


def test_the_committed_settings_are_of_the_grid():
    points = llumnix_sweep.points()
    assert llumnix_settings.untuned() in points
    assert llumnix_settings.untuned_64() in points
    assert llumnix_settings.untuned_64()["batch_limit"] == llumnix_settings.IMPLIED_LIMIT == 64
    for name in llumnix_sweep.LOADS:
        assert llumnix_settings.tuned(*name.split()) in points
    assert set(llumnix_settings.settings()["tuned"]) == set(llumnix_sweep.LOADS)


def test_settings_rest_on_several_seeds():
    found = llumnix_settings.settings()
    first, last = found["seeds"]
    assert last - first + 1 == 8
    assert found["seeds_by_round"] == llumnix_sweep.rounds(8)


def test_settings_become_policies():
    chosen = {
        "llumnix-untuned-64": llumnix_settings.untuned_64(),
        "llumnix-untuned": llumnix_settings.untuned(),
        "llumnix-tuned": llumnix_settings.tuned("W_B", "large"),
    }
    policies = llumnix_settings.llumnix_policies("W_B", "large")
    assert list(policies) == list(chosen) == list(llumnix_settings.OPPONENTS)
    for name, text in policies.items():
        parameters = make_policy(text).parameters
        assert {key: getattr(parameters, key) for key in chosen[name]} == chosen[name]


def test_the_command_writes_what_it_found(sweep, tmp_path, monkeypatch, capsys):
    sweep("W_A large", high=(0.4,))
    monkeypatch.setattr(
        llumnix_sweep, "TIMES", {"W_A": {"warm_up_s": 0, "measured_s": 60, "tail_s": 0}}
    )
    path, cache = tmp_path / "found.yaml", tmp_path / "cache"
    words = ["workers=1", "seeds=2", f"out={path}", f"cache={cache}"]
    assert llumnix_sweep.main(words) == 0
    found = yaml.safe_load(path.read_text())
    assert found["command"] == "python -m experiments.chiron.llumnix_sweep seeds=2"
    assert found["seeds"] == [1000, 1001]
    assert found["untuned"] == found["untuned_64"] == found["tuned"]["W_A large"]
    assert found["untuned"]["low"] == 0.2
    # The same command takes the finished runs.
    before = path.read_text()
    assert len(list(cache.iterdir())) == 2
    monkeypatch.setattr(llumnix_sweep, "outcomes", lambda module, cases, launcher: iter(cases[:0]))
    assert llumnix_sweep.main(words) == 0
    assert path.read_text() == before
    assert llumnix_sweep.main(["nonsense=1"]) == 2
    assert "nonsense" in capsys.readouterr().err
