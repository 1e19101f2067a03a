"""GPUs over time when a million batch requests arrive beside bursty interactive ones.

Llama 8B on at most 50 A100: interactive requests with Gamma gaps, 30 per second, coefficient of
variation 4; after five minutes a queue of a million batch requests with a TTFT target of one hour.
Chiron lets them wait and serves them on spare mixed instances, adding batch instances where the
waiting-time estimate asks for it; Llumnix knows no queue: it hands every request to an instance at once
and adds instances one by one. "Tuned" is the setting that its sweep finds for W_B with the small model; in it
requests stay at the instance that they reached on arrival, since moving them makes interactive requests
wait among batch ones everywhere. A third line is the same with moving, so that instances which have
just come get work (the paper says nothing of either). GPU-hours are those billed until the deadline at
65 minutes, whoever finishes earlier or later. All start with 15 instances. Ours: ShareGPT single-turn
lengths, whose outputs (472 tokens on average) seem longer than those of the paper's Figure 8 (`lengths`
changes them). The load is feasible with them: an instance does 15.3 of these requests per second at
best (Figure 3), so that a million of them within the hour and 30 interactive ones per second take 21 of
the 50 GPUs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from baselines import make_policy
from experiments.chiron.batch_queue import batch_requests, last_finish_s, queue_kept, queued
from experiments.chiron.llumnix_settings import tuned
from experiments.chiron.setting import measured, scenario_of
from experiments.chiron.workflow_claims import judge
from experiments.harness.claims import Claim
from experiments.harness.figure import SEEDS, Grid, dress, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from llmscale_env.control.policy import Policy
from llmscale_env.control.result import EpisodeResult
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.scenarios.schema import Scenario

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 19"
NAMES = {
    "chiron": "Chiron",
    "llumnix-tuned": "Llumnix (tuned)",
    "llumnix-tuned-moving": "the same, waiting requests move to emptier instances",
}
ALL_MET = 0.995
"""What rounds to "all": the paper gives whole per cents."""


class Workflow(Parameters):
    """Parameters of this figure."""

    policies: Annotated[
        tuple[Literal["chiron", "llumnix-tuned", "llumnix-tuned-moving"], ...],
        ours("A.2 has the first two; llumnix-tuned-moving: see the text", min_length=1),
    ] = ("chiron", "llumnix-tuned", "llumnix-tuned-moving")
    rate_per_s: Annotated[float, paper("A.2", gt=0)] = 30.0
    cv: Annotated[float, paper("A.2", gt=0)] = 4.0
    batch_requests: Annotated[int, paper("A.2", ge=1)] = 1_000_000
    batch_at_s: Annotated[float, paper("A.2", ge=10)] = 300.0
    batch_ttft_s: Annotated[float, paper("section 6: one hour", ge=60)] = 3600.0
    close_share: Annotated[
        float, paper("A.2: at 50 of 5 to 65 minutes it gets close", ge=0.1, le=1)
    ] = 0.75
    after_s: Annotated[float, ours("to see what is late", ge=0)] = 600.0
    lengths: Annotated[str, ours("ShareGPT as serving benchmarks use it")] = "sharegpt-single-turn"


PARAMETERS = {
    "quick": Workflow(seeds=1, batch_requests=100_000, batch_ttft_s=360.0, after_s=120.0),
    "paper": Workflow(seeds=5),
}


cases = Grid(
    {"seed": SEEDS, "policy": "policies"},
    keep=(
        *("rate_per_s", "cv", "batch_requests", "batch_at_s", "batch_ttft_s"),
        *("close_share", "after_s", "lengths"),
    ),
)


def scenario_for(case: Mapping[str, Any]) -> Scenario:
    """`chiron-8b` with bursty interactive requests and the queue."""
    scenario = scenario_of(
        "small", rate_per_s=case["rate_per_s"], batch_requests=case["batch_requests"]
    )
    return load_scenario(
        scenario,
        **{
            "workload.streams.interactive.arrivals": {"kind": "gamma", "cv": case["cv"]},
            "workload.streams.interactive.lengths": case["lengths"],
            "workload.batch_queues.batch.lengths": case["lengths"],
            "workload.batch_queues.batch.at_s": case["batch_at_s"],
            "classes.batch.ttft_s": case["batch_ttft_s"],
            "horizon_s": case["batch_at_s"] + case["batch_ttft_s"] + case["after_s"],
        },
    )


def policy_for(case: Mapping[str, Any]) -> Policy:
    """The case's policy; Llumnix as its sweep says, "llumnix-tuned-moving" with rebalancing."""
    if not case["policy"].startswith("llumnix-tuned"):
        return make_policy(case["policy"])
    moving = {"rebalance": True} if case["policy"] == "llumnix-tuned-moving" else {}
    return make_policy("llumnix", **{**tuned("W_B", "small"), **moving})


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One episode: a row that sums it up, and a row per control interval."""
    scenario = scenario_for(case)
    start = time.perf_counter()
    result = run_episode(policy_for(case), scenario, case["seed"])
    wall_s = time.perf_counter() - start
    return [
        {"row": "summary", **summary(result, scenario, case), "wall_s": wall_s},
        *({"row": "interval", **row} for row in over_time(result, scenario)),
    ]


def over_time(result: EpisodeResult, scenario: Scenario) -> list[dict[str, float]]:
    """A row per control interval.

    Its end, mean GPUs billed (in all, by mixed and batch instances), batch requests that wait for their
    first admission at its end, requests in the shared queues.
    """
    series = result.series
    time_s = series["time_s"].to_numpy(np.float64)
    length_s = np.diff(time_s, prepend=0.0)
    gpus = {
        pool.name: series[f"{pool.name}/gpu_s"].to_numpy(np.float64) / length_s
        for pool in scenario.fleet.pools
    }
    batch = batch_requests(result)
    admitted_s = np.sort((batch["arrival_s"] + batch["queued_s"]).dropna())
    arrived = np.searchsorted(np.sort(batch["arrival_s"]), time_s, side="right")
    waiting = arrived - np.searchsorted(admitted_s, time_s, side="right")
    roles = {pool.name: pool.role for pool in scenario.fleet.pools}
    return [
        {
            "time_s": float(time_s[k]),
            "gpus": float(sum(each[k] for each in gpus.values())),
            "mixed_gpus": float(sum(gpus[p][k] for p in gpus if roles[p] == "mixed")),
            "batch_gpus": float(sum(gpus[p][k] for p in gpus if roles[p] == "batch")),
            "waiting": int(waiting[k]),
            "shared_queue": int(shared),
        }
        for k, shared in enumerate(queued(result, scenario))
    ]


def summary(
    result: EpisodeResult, scenario: Scenario, case: Mapping[str, Any]
) -> dict[str, float | None]:
    """What the text of A.2 speaks of; times in minutes."""
    at_s, deadline_s = case["batch_at_s"], case["batch_at_s"] + case["batch_ttft_s"]
    close_s = at_s + case["close_share"] * case["batch_ttft_s"]
    rows = over_time(result, scenario)
    time_s = np.array([row["time_s"] for row in rows])
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    multiplexing = (time_s > at_s) & (time_s <= close_s)
    remaining = float(columns["waiting"][time_s <= close_s + 1e-9][-1])
    started = sum(
        result.series[f"{pool.name}/loads"].to_numpy(np.float64)
        for pool in scenario.fleet.pools
        if pool.role == "batch"
    )
    most = int(started.argmax())
    finished_min = last_finish_s(result, scenario) / 60
    until_deadline = measured(result, scenario, 0.0, deadline_s)
    multiplexed = queue_kept(result, scenario, at_s, close_s)
    return {
        "gpus_before": float(columns["gpus"][time_s <= at_s].mean()),
        "gpus_most": float(columns["gpus"].max()),
        "mixed_gpus": float(columns["mixed_gpus"][multiplexing].mean()),
        "mixed_served_per_s": multiplexed["finished_per_s"] * multiplexed["mixed_share"],
        "served_per_s": multiplexed["finished_per_s"],
        "remaining": remaining,
        "added_at_once": float(started[most]),
        "added_most_min": float(time_s[most]) / 60 if started[most] > 0 else None,
        "finished_min": finished_min,
        "gpu_hours": until_deadline["gpu_hours"],
        # Of those that arrived before the deadline: the rest of the run is for them to finish.
        "attainment": until_deadline["slo_attainment"],
        "interactive_attainment": until_deadline["interactive_attainment"],
        "batch_attainment": until_deadline["batch_attainment"],
    }


def plot(frame: DataFrame, parameters: Workflow) -> Any:
    """GPUs over time above, batch requests that still wait below; a line per seed."""
    figure = new_figure(8.4, 6.4)
    top, bottom = figure.subplots(2, 1, sharex=True)
    rows = frame[frame["row"] == "interval"]
    for k, policy in enumerate(parameters.policies):
        mine = where(rows, policy=policy)
        for n, (_, one) in enumerate(mine.groupby("seed")):
            minutes = one["time_s"] / 60
            label = NAMES.get(policy, policy) if n == 0 else None
            look = {"color": f"C{k}", "lw": 1.6 if n == 0 else 0.7, "alpha": 1 if n == 0 else 0.5}
            top.plot(minutes, one["gpus"], label=label, **look)
            if one["batch_gpus"].max() > 0:
                name = f"{label}: of these batch instances" if label else None
                top.plot(minutes, one["batch_gpus"], ":", label=name, **look)
            bottom.plot(minutes, one["waiting"] / 1000, label=label, **look)
    at_min = parameters.batch_at_s / 60
    deadline_min = at_min + parameters.batch_ttft_s / 60
    close_min = at_min + parameters.close_share * parameters.batch_ttft_s / 60
    for axes in (top, bottom):
        for time_min in (at_min, deadline_min):
            axes.axvline(time_min, color="0.4", lw=0.9, ls="--")
        dress(axes, bottom=0)
    top.axhline(50, color="0.4", lw=0.8, ls=":")
    top.plot(at_min, 15, "k*", ms=10, label="the paper: 15 GPUs until then")
    top.set_ylabel("GPUs (billed)")
    top.set_title(
        f"{parameters.batch_requests:,} batch requests at {at_min:g} min, their "
        f"deadline at {deadline_min:g} min (dashed); cap of 50 GPUs (dotted)",
        fontsize=9,
    )
    fifth = parameters.batch_requests / 5000
    bottom.plot(close_min, fifth, "k*", ms=10, label="the paper's Chiron: a fifth is left")
    bottom.set(xlabel="time (min)", ylabel="batch requests not yet\nadmitted (thousands)")
    for axes in (top, bottom):
        axes.legend(fontsize=8)
    return figure


def claims(frame: DataFrame, parameters: Workflow) -> list[Claim]:
    """The sentences of A.2."""
    return judge(frame, parameters, all_met=ALL_MET)
