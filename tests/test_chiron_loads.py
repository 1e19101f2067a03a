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
    assert llumnix_sweep.best(frame, 0.01) == {
        "high": 0.2,
        "low": 0.1,
        "batch_limit": 64,
        "rebalance": True,
        "slo_attainment": 0.975,
        "throughput_per_instance": 4.0,
        "gpus": 1.0,
    }
    assert llumnix_sweep.best(frame, 0.001)["high"] == 0.1
    assert llumnix_sweep.best(frame, 0.1)["high"] == 0.4


def test_the_untuned_setting_serves_all_workloads_and_the_tuned_ones_their_own():
    other = trials((0.1, 1, 0.5, 1.0), (0.2, 1, 0.9, 1.0)).assign(configuration="large")
    frame = pd.concat([trials((0.1, 1, 1.0, 1.0), (0.2, 1, 0.8, 1.0)), other])
    found = llumnix_sweep.found_settings(frame)
    assert found["untuned"]["high"] == 0.2  # 0.85 against 0.75
    assert {name: entry["high"] for name, entry in found["tuned"].items()} == {
        "W_A small": 0.1,
        "W_A large": 0.2,
    }


def test_the_sweep_covers_every_workload_and_no_seed_of_an_experiment():
    cases = llumnix_sweep.sweep_cases([1000])
    assert len(cases) == 12 * len(llumnix_sweep.points())
    assert {f"{c['workload']} {c['configuration']}" for c in cases} == set(llumnix_sweep.LOADS)
    assert llumnix_sweep.FIRST_SEED + llumnix_sweep.MAX_SEEDS < FIRST_SEED
    for case in cases[:: len(llumnix_sweep.points()) + 1]:
        assert make_policy(case["policy"]).parameters.high == case["high"]


def test_the_committed_settings_are_of_the_grid():
    points = llumnix_sweep.points()
    assert llumnix_settings.untuned() in points
    for name in llumnix_sweep.LOADS:
        assert llumnix_settings.tuned(*name.split()) in points
    assert set(llumnix_settings.settings()["tuned"]) == set(llumnix_sweep.LOADS)


def test_settings_become_policies():
    text = llumnix_settings.llumnix_of("W_A", "small", is_tuned=False)
    parameters = make_policy(text).parameters
    chosen = llumnix_settings.untuned()
    assert {name: getattr(parameters, name) for name in chosen} == chosen
    text = llumnix_settings.llumnix_of("W_B", "large", is_tuned=True)
    chosen = llumnix_settings.tuned("W_B", "large")
    assert {name: getattr(make_policy(text).parameters, name) for name in chosen} == chosen


def test_the_command_writes_what_it_found(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        llumnix_sweep,
        "GRID",
        {"high": (0.4,), "low_share": (0.5,), "batch_limit": (64,), "rebalance": (True,)},
    )
    monkeypatch.setattr(llumnix_sweep, "LOADS", {"W_A large": (1,)})
    monkeypatch.setattr(
        llumnix_sweep, "TIMES", {"W_A": {"warm_up_s": 0, "measured_s": 60, "tail_s": 0}}
    )
    path = tmp_path / "found.yaml"
    assert llumnix_sweep.main(["workers=1", f"out={path}"]) == 0
    found = yaml.safe_load(path.read_text())
    assert found["command"] == "python -m experiments.chiron.llumnix_sweep"
    assert found["untuned"] == found["tuned"]["W_A large"]
    assert found["untuned"]["low"] == 0.2
    assert llumnix_sweep.main(["nonsense=1"]) == 2
    assert "nonsense" in capsys.readouterr().err
