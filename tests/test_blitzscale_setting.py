"""Demand from a profile by hand; the rates of BlitzScale's mixes by the paper's rule."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from experiments.blitzscale import end_to_end
from experiments.blitzscale import fig04_cache_misses as fig04
from experiments.blitzscale import fig05_loading_times as fig05
from experiments.blitzscale import fig14_gpu_time as fig14
from experiments.blitzscale.demand import KV_BOUND, InstanceBounds, bounds, demand, held
from experiments.blitzscale.serving import SYSTEMS, SystemName
from experiments.blitzscale.setting import (
    SCALE_SEEDS,
    SCENARIOS,
    SETTINGS,
    Workload,
    bounds_of,
    horizon_of,
    requests_of,
    scaled_workload,
)
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.cluster.kv import kv_capacity_tokens
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.workload import WorkloadConfig
from llmscale_env.workload.generate import generate_requests
from llmscale_env.workload.mixes import load_mix
from llmscale_env.workload.rescale import scale_to_peak


def test_names_that_parameters_may_have_are_all_there_are():
    """So that a slip is told before a run starts; the command's words are in test_harness_run."""
    for names, known in (
        (Workload, SETTINGS), (Workload, SCENARIOS), (Workload, end_to_end.COLUMNS),
        (SystemName, SYSTEMS), (fig04.Variant, fig04.VARIANTS), (fig05.Load, fig05.LOADS),
    ):  # fmt: skip
        assert get_args(names) == tuple(known)


def test_targets_are_the_scenarios():
    """Section 3 for the 70B and 7B models, section 6.2's rule for the 8B one."""
    found = {name: (each.ttft_s, each.itl_s) for name, each in SETTINGS.items()}
    assert found == {
        "burstgpt": (1.25, 0.2),
        "azure-code": (0.45, 0.15),
        "azure-conv": (0.55, 0.15),
    }
    assert fig14.targets_s() == {"ttft": 0.45, "tbt": 0.15}


def test_what_is_held_by_hand():
    # 10 from 0.5 to 2.25 s, 4 from 2 s to beyond the end.
    found = held(np.array([0.5, 2.0]), np.array([2.25, 9.0]), np.array([10.0, 4.0]), 4)
    assert found == pytest.approx([5.0, 10.0, 6.5, 4.0])


def test_demand_by_hand():
    stream = {
        "name": "a",
        "llm": "llama-2-7b",
        "arrivals": {"kind": "spikes", "factor": 1000, "duration_s": 1.0, "at_s": [2.0]},
        "lengths": {"kind": "fixed", "input_tokens": 100, "output_tokens": 20},
        "rate_per_s": 1e-3,
    }
    workload = WorkloadConfig.model_validate({"streams": [stream]})
    requests = requests_of(workload.scaled(30.0), 10.0, 1)
    limits = InstanceBounds(1000.0, 550.0, 0.1, 1.0)
    found = demand(requests, limits, 10.0)
    n = found.requests[2]
    assert n == len(requests) > 10
    assert found.prefill[2] == pytest.approx(n * 0.1)
    # Each holds 110 tokens for 2 s: a fifth of an instance, all of them in the second after the spike.
    assert found.decode[3] == pytest.approx(n * 0.2)
    assert found.kv_tokens.sum() == pytest.approx(n * 110 * 2.0)
    assert found.instances("prefill")[2] == int(np.ceil(n * 0.1 - 1e-9))
    both = np.ceil(found.prefill - 1e-9) + np.ceil(found.decode - 1e-9)
    assert (found.instances() == both).all()
    with pytest.raises(ValueError, match="phases"):
        found.load("all")


def test_bounds_meet_the_targets():
    model = iteration_time_model("llama-2-7b", "a100-80gb", 1)
    keys = {"mean_input_tokens": 1000.0, "mean_output_tokens": 200.0}
    found = bounds("llama-2-7b", "a100-80gb", 1, ttft_s=0.45, itl_s=0.15, **keys)
    capacity = kv_capacity_tokens("llama-2-7b", "a100-80gb", 1)
    assert (
        KV_BOUND * capacity - 1100 < found.decode_kv_tokens <= KV_BOUND * capacity
    )  # memory binds
    assert found.itl_s < 0.15
    tight = bounds("llama-2-7b", "a100-80gb", 1, ttft_s=0.45, itl_s=0.03, **keys)
    batch = round(tight.decode_kv_tokens / 1100)
    assert tight.itl_s <= 0.03 < model.decode_s(batch + 1, (batch + 1) * 1100)
    with pytest.raises(ValueError, match="cannot meet"):
        bounds("llama-2-7b", "a100-80gb", 1, ttft_s=0.01, itl_s=0.15, **keys)


@pytest.mark.parametrize("name", ["azure-code", "azure-conv", "burstgpt"])
def test_mixes_have_the_rate_whose_peak_takes_the_cluster(name):
    setting = SETTINGS[name]
    mix = load_mix(setting.mix)
    scaled = scaled_workload(setting, setting.instances, "both", horizon_of(name))
    # The mixes have two digits of it; where hours differ (BurstGPT) eight of them say no more.
    assert scaled.rate_scale == pytest.approx(1.0, abs=0.15 if name == "burstgpt" else 0.03)
    assert mix.streams[0].llm == setting.llm


def test_prefill_rates_are_near_the_published_ones():
    # The published code has 13,000 (7B), 15,000 (8B) and 5,300 (72B on 4 GPUs) tokens/s.
    assert bounds_of(SETTINGS["azure-code"]).prefill_tokens_per_s == pytest.approx(13_000, rel=0.25)
    assert bounds_of(SETTINGS["azure-conv"]).prefill_tokens_per_s == pytest.approx(15_000, rel=0.25)
    assert bounds_of(SETTINGS["burstgpt"]).prefill_tokens_per_s == pytest.approx(5_300, rel=0.25)


def test_the_8b_targets_follow_the_rule_of_five():
    model = iteration_time_model("llama-3.1-8b", "a100-80gb-pcie", 1)
    prompt = 1155
    assert 5 * model.prefill_s(prompt, prompt**2) == pytest.approx(
        SETTINGS["azure-conv"].ttft_s, rel=0.05
    )


def test_the_environment_s_rate_takes_its_cluster_at_the_peak():
    scenario = load_scenario("burst-multicast")
    (stream,) = scenario.workload.streams
    horizon_s = horizon_of("azure-code")
    whole = stream.model_copy(
        update={"arrivals": stream.arrivals.model_copy(update={"start_s": 0.0})}
    )
    workload = scenario.workload.model_copy(update={"streams": (whole,)})
    requests = draw(workload, horizon_s)
    limits = bounds(
        "llama-3.1-8b",
        "a100-80gb-pcie",
        1,
        ttft_s=scenario.classes[0].ttft_s,
        itl_s=scenario.classes[0].itl_s,
        mean_input_tokens=float(requests.input_tokens.mean()),
        mean_output_tokens=float(requests.output_tokens.mean()),
    )
    factor = scale_to_peak(
        workload,
        scenario.fleet.max_gpus,
        lambda drawn: demand(drawn, limits, horizon_s).load("both"),
        classes=scenario.classes,
        llms=("llama-3.1-8b",),
        horizon_s=horizon_s,
        seeds=SCALE_SEEDS,
    )
    assert factor == pytest.approx(1.0, abs=0.03)


def draw(workload, horizon_s):
    scenario = load_scenario("burst-multicast")
    return generate_requests(
        workload,
        classes=scenario.classes,
        llms=("llama-3.1-8b",),
        horizon_s=horizon_s,
        rng=np.random.default_rng(1),
    )
