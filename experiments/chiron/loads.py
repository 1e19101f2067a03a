"""Chiron's workloads W_A and W_B: one episode at a load, what is measured, and how it is drawn.

W_A: interactive requests only, the load is their rate. W_B: interactive requests at a fixed rate and a
batch queue, the load is its length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from baselines import make_policy
from experiments.chiron.llumnix_settings import OPPONENTS
from experiments.chiron.setting import measured, scenario_of
from experiments.harness.figure import dress, lines
from llmscale_env.control.reward import draw_requests
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.workload.requests import RequestTable

if TYPE_CHECKING:
    from pandas import DataFrame

    from llmscale_env.control.results.result import EpisodeResult

MODELS = {"llama-3.1-8b": "small", "llama-3.1-70b": "large"}
BESIDE_QUEUE_PER_S = {"small": 50.0, "large": 10.0}
"""Section 6.2: interactive requests per second of each model in W_B."""

EXHAUSTED = 0.95
"""Share of the cluster's GPUs, on average, from which on it counts as exhausted: 12 instances of the large
model, which are all that fit, take 48 of 50."""


# ---- one episode ----


def scenario_at(workload: str, configuration: str, load: float, horizon_s: float) -> Scenario:
    """The scenario of a workload at a load.

    Args:
        workload: "W_A" or "W_B".
        configuration: "small", "large" or "mixed".
        load: requests per second (W_A) or requests in the queue (W_B), of both models together.
        horizon_s: length of the episode.

    Raises:
        ValueError: an unknown workload.
    """
    if workload == "W_A":
        return scenario_of(configuration, rate_per_s=load, horizon_s=horizon_s)
    if workload != "W_B":
        raise ValueError(f"workload = {workload!r}: must be 'W_A' or 'W_B'")
    scenario = scenario_of(configuration, batch_requests=round(load), horizon_s=horizon_s)
    rates = {
        f"workload.streams.{stream.name}.rate_per_s": BESIDE_QUEUE_PER_S[MODELS[str(stream.llm)]]
        for stream in scenario.workload.streams
    }
    return load_scenario(scenario, **rates)


def run_load(case: Mapping[str, Any]) -> dict[str, Any]:
    """One episode.

    Args:
        case: `workload`, `configuration`, `load`, `policy` (as `make_policy` takes it), `seed`, and
            for W_A `warm_up_s`, `measured_s`, `tail_s` or, above 0, `requests` (so many and no more,
            measured from the first to the end of the last, for at most `tail_s` after the last
            arrival); for W_B `tail_s`, after the deadline of the batch queue.

    Returns:
        `setting.measured` of the measured part; `CLASS_per_instance_s`, its requests finished per second
        and instance; `MODEL_ROLE_limit` and `MODEL_ROLE_running`, mean batch limit of the active
        instances and requests that run on one (NaN without any).
    """
    load, literal = case["load"], int(case.get("requests", 0))
    begin_s = 0.0
    if case["workload"] == "W_B":
        probe = scenario_at("W_B", case["configuration"], load, 600)
        begin_s = min(queue.at_s for queue in probe.workload.batch_queues)
        target_s = next(c.ttft_s for c in probe.classes if c.name == "batch")
        end_s: float = begin_s + target_s
    elif literal:
        end_s = literal / load
    else:
        begin_s = case["warm_up_s"]
        end_s = begin_s + case["measured_s"]
    horizon_s = _whole_intervals(end_s + case["tail_s"], 10)
    scenario = scenario_at(case["workload"], case["configuration"], load, horizon_s)
    requests = draw_requests(scenario, np.random.default_rng(case["seed"]))
    if literal:
        requests = first_requests(requests, literal)
    result = run_episode(make_policy(case["policy"]), scenario, case["seed"], requests=requests)
    if literal:
        ends = result.requests["arrival_s"] + result.requests["e2e_s"]
        end_s = _whole_intervals(float(ends.max()), scenario.control_interval_s)
    return summary_of(result, scenario, begin_s, end_s)


def first_requests(requests: RequestTable, n: int) -> RequestTable:
    """The first `n` requests of a table."""
    return replace(
        requests,
        arrival_ps=requests.arrival_ps[:n],
        llm=requests.llm[:n],
        region=requests.region[:n],
        slo_class=requests.slo_class[:n],
        input_tokens=requests.input_tokens[:n],
        output_tokens=requests.output_tokens[:n],
        predicted_output_tokens=requests.predicted_output_tokens[:n],
    )


def summary_of(
    result: EpisodeResult, scenario: Scenario, from_s: float, until_s: float
) -> dict[str, Any]:
    """What `run_load` returns, of a part of an episode."""
    found: dict[str, Any] = measured(result, scenario, from_s, until_s)
    series = result.series
    within = (series["time_s"] > from_s + 1e-9) & (series["time_s"] <= until_s + 1e-9)
    part = series[within]
    instance_s = found["instances"] * (until_s - from_s)
    ended = (result.requests["arrival_s"] + result.requests["e2e_s"]).between(from_s, until_s)
    for slo_class in scenario.classes:
        mine = ended & (result.requests["slo_class"] == slo_class.name)
        found[f"{slo_class.name}_per_instance_s"] = float(mine.sum()) / max(instance_s, 1e-9)
    for pool in scenario.fleet.pools:
        # An instance that nobody uses keeps the limit that it began with.
        weight = part[f"{pool.name}/active"] * (part[f"{pool.name}/running"] > 0)
        limit = part[f"{pool.name}/batch_limit"]
        key, total = f"{MODELS[pool.llm]}_{pool.role}", float(weight.sum())
        found[f"{key}_limit"] = float((limit * weight).sum()) / total if total else math.nan
        running = float((part[f"{pool.name}/running"] * (weight > 0)).sum())
        found[f"{key}_running"] = running / total if total else math.nan
    return found


def _whole_intervals(time_s: float, interval_s: float) -> float:
    return math.ceil(round(time_s / interval_s, 9)) * interval_s


# ---- pictures ----

STYLES: dict[str, tuple[str, str, str]] = {
    "chiron": ("Chiron", "C0", "o-"),
    "chiron-lean": ("Chiron, small reserve", "C9", "x-"),
    "llumnix-untuned-64": (f"Llumnix ({OPPONENTS['llumnix-untuned-64']})", "C5", "P:"),
    "llumnix-untuned": (f"Llumnix ({OPPONENTS['llumnix-untuned']})", "C3", "s--"),
    "llumnix-tuned": (f"Llumnix ({OPPONENTS['llumnix-tuned']})", "C1", "^-."),
    "neither": ("neither (Llumnix)", "C3", "s--"),
    "local": ("Local alone", "C2", "D:"),
    "global": ("Global alone", "C4", "v:"),
}
"""Policies by `policy_name`: name, colour and line in pictures."""


def draw_column(
    panels: Sequence[Any],
    frame: DataFrame,
    policies: Sequence[str],
    rows: Mapping[str, str],
    *,
    names: bool,
    marks: Sequence[float] = (),
) -> None:
    """The panels of one configuration, one per column of the rows; the last one is the GPUs, of 50.

    Dotted lines at the loads of `marks`.
    """
    for axes, (column, name) in zip(panels, rows.items(), strict=True):
        share = column.endswith("attainment")
        look: dict[str, Any] = {"scale": 100.0 if share else 1.0, "ms": 5, "lw": 1.6}
        lines(axes, frame, "policy_name", policies, STYLES, "load", column, **look)
        dress(axes, ylim=(0, 105 if share else None))
        if names:
            axes.set_ylabel(name)
        for load in marks:
            axes.axvline(load, color="0.6", lw=0.8, ls=":")
    panels[-1].axhline(50, color="0.4", lw=0.8)
    panels[-1].set_ylim(0, 54)
