"""One window of load on a fixed number of workers, for `experiments.capacity`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from baselines import make_policy
from baselines.aladdin.fleet import history, profiled
from baselines.aladdin.scaling import requests_per_worker
from experiments.capacity_load import Window, window
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios.load import load_scenario, validate_scenario
from llmscale_env.scenarios.schema import Scenario

HEARTBEAT_S = {"aladdin": 0.1}
"""As in Aladdin's scenarios. The other rules order nothing after the first decision."""


def scenario_of(case: Mapping[str, Any], tp: int, workers: int) -> Scenario:
    """A cluster of workers that are there from the start, and the load.

    Args:
        case: `llm`, `gpu`, `gpus_per_host`, `batch_limit`, `ttft_s`, `itl_s`, `stream` (of the workload),
            `predictor`, `iteration_times` (a path, or None).
        tp: GPUs of a worker.
        workers: how many.

    Raises:
        ScenarioError: naming the field.
    """
    pool = {
        "name": f"tp{tp}", "llm": case["llm"], "gpu": case["gpu"], "tp": tp,
        "v1": None, "max_instances": workers, "initial_instances": workers,
        "batch_limit": case["batch_limit"], "max_batch": case["batch_limit"], "load_s": {"ssd": 0.0},
    }  # fmt: skip
    data: dict[str, Any] = {
        "name": "capacity",
        "horizon_s": 60,
        "control_interval_s": 1.0,
        "impossible_commands": "error",
        "iteration_times": case["iteration_times"],
        "classes": [{"name": "mine", "ttft_s": case["ttft_s"], "itl_s": case["itl_s"]}],
        "workload": {
            "streams": [
                {"name": "mine", "llm": case["llm"], "slo_class": "mine", **case["stream"]}
            ],
            "predictor": {"kind": case["predictor"]},
        },
        "fleet": {
            "max_gpus": workers * tp,
            "gpus_per_host": case["gpus_per_host"],
            "pools": [pool],
            "routes": [{"kind": "best-fit", "pools": [pool["name"]], "placement": {}}],
        },
    }
    return validate_scenario(data)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Serve one window.

    Args:
        case: as `scenario_of` and `window` take it, with `tp`, `workers`, `policy` (name), `parameters`
            (of the policy).

    Returns:
        One row: `requests` counted, and how many of them were `in_time`.
    """
    scenario = scenario_of(case, case["tp"], case["workers"])
    load = window(scenario, case)
    if not load.counted.any():
        return [{"requests": 0, "in_time": 0}]
    policy = make_policy(
        case["policy"], **{**case["parameters"], "tp": case["tp"], "workers": case["workers"]}
    )
    scenario = load_scenario(
        scenario,
        horizon_s=_end_s(scenario, load),
        control_interval_s=HEARTBEAT_S.get(case["policy"], 1.0),
    )
    found = run_episode(policy, scenario, case["seed"], requests=load.requests, forecaster=None)
    in_time = (found.requests["outcome"] == "on_time").to_numpy()
    mine = found.requests["id"].to_numpy()[in_time]
    return [{"requests": int(load.counted.sum()), "in_time": int(load.counted[mine].sum())}]


def _end_s(scenario: Scenario, load: Window) -> float:
    """When a counted request that has not ended is late for certain, and all others have come."""
    (slo,) = scenario.classes
    arrival_s, outputs = load.requests.arrival_s, load.requests.output_tokens
    latest = arrival_s + slo.ttft_s + (outputs - 1) * slo.itl_s
    return float(np.ceil(max(latest[load.counted].max(), arrival_s.max()))) + 1.0


def idle_in_time(scenario: Scenario, loads: list[Window]) -> list[int]:
    """Counted requests of each window that a worker with nothing else to do would serve in time.

    No number of workers does better: work of others only adds to an iteration.
    """
    (pool,), (slo,) = scenario.fleet.pools, scenario.classes
    model = iteration_time_model(pool.llm, pool.gpu, pool.tp, data=scenario.iteration_times)
    capacity = model.profile(max_batch=1).kv_capacity_tokens
    found = []
    for load in loads:
        good = 0
        inputs = load.requests.input_tokens[load.counted].tolist()
        outputs = load.requests.output_tokens[load.counted].tolist()
        for a, b in zip(inputs, outputs, strict=True):
            early = a + b <= capacity and model.prefill_s(a) <= slo.ttft_s
            # Times are linear in the context, which is (a + b / 2) on average.
            good += early and (b == 1 or model.decode_s(1, a + b / 2) <= slo.itl_s)
        found.append(good)
    return found


def guess(scenario: Scenario, rate_per_s: float) -> int:
    """Workers that Eq. 7 of Aladdin asks for, where the search begins."""
    inputs, outputs = history(scenario)
    try:
        found = profiled(scenario, scenario.fleet.pools[0])
        each = requests_per_worker(
            found.prefill, found.decode, found.kv_capacity_tokens, scenario.classes[0].itl_s,
            inputs, outputs,
        )  # fmt: skip
    except ValueError:  # not one average request keeps the SLO; shorter ones may
        return 1
    return max(1, int(np.ceil(rate_per_s / each)))
