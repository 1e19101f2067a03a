"""Systems side by side on the paper's three workloads: what Figures 13, 14, 15 and 17 share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import numpy as np

from agents.statistics import Interval, mean_interval
from baselines import make_policy
from baselines.blitzscale.distserve import DistServePolicy
from experiments.blitzscale.serving import (
    DECODE,
    DOING,
    PREFILL,
    SYSTEMS,
    SystemName,
    Watched,
    episode,
    measured,
    policy_of,
    scenario_of,
)
from experiments.blitzscale.setting import SETTINGS, Workload, horizon_of, workload_of
from experiments.harness.figure import SEEDS, Grid, paper_stars, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.scenarios.schema import Scenario

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = {
    "burstgpt": "BurstGPT-like, Llama-2-70B, cluster A",
    "azure-code": "AzureCode, Llama-2-7B, cluster A",
    "azure-conv": "AzureConv, Llama-3-8B, cluster B",
}
FEW = 50
"""Episodes with fewer requests have no latencies to speak of."""
QUANTILES = (1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 98, 99, 99.5, 99.9)


class EndToEnd(Parameters):
    """Parameters of these figures."""

    columns: Annotated[tuple[Workload, ...], paper("section 6.1", min_length=1)] = get_args(
        Workload
    )
    systems: Annotated[tuple[SystemName, ...], paper("section 6", min_length=1)]
    arrivals_s: Annotated[
        float,
        paper("section 6: the traces. 0: each whole, else parts at random places, for cost", ge=0),
    ] = 0.0
    bursty_arrivals_s: Annotated[
        float, ours("of BurstGPT's, whose part is not named; 0: an hour, as the others have", ge=0)
    ] = 0.0
    patience_s: Annotated[float, ours("until all have ended", gt=0)] = 60.0
    trigger: Annotated[
        Literal["paper", "code"], paper('section 5.3; "code" is the released code\'s')
    ] = "paper"


def _span(parameters: EndToEnd, case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For how long requests of a column come."""
    bursty = case["column"] == "burstgpt"
    return [span(case["column"], parameters.bursty_arrivals_s if bursty else parameters.arrivals_s)]


KEPT = ("patience_s", "trigger")
cases = Grid(
    {"column": "columns", "system": "systems", "seed": SEEDS, "span": _span},
    keep=KEPT,
    first=KEPT,
)


def span(column: str, part_s: float) -> dict[str, Any]:
    """For how long requests come, and whether that is the whole trace; a part of 0 s: that is."""
    whole = part_s == 0
    return {"whole": whole, "arrivals_s": horizon_of(column) if whole else part_s}


def scenario_for(case: Mapping[str, Any]) -> Scenario:
    """The cluster of a case, with its trace from the start if all of it is to come."""
    scenario = scenario_of(case["column"], case["system"])
    if not case["whole"]:
        return scenario
    return load_scenario(scenario, workload=workload_of(SETTINGS[case["column"]]))


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One episode: a row of what is measured, and rows of GPUs over time and of the distribution.

    `timeout_s` of the case, if it has one, is the stop time of a system that scales; `part_s` the length of
    the only part that comes (`around_peak`).
    """
    scenario = scenario_for(case)
    text = policy_of(case["column"], case["system"])
    scales = {key: case[key] for key in ("trigger", "timeout_s") if key in case}
    policy = make_policy(text, **({} if text.startswith("distserve") else scales))
    if isinstance(policy, DistServePolicy):
        scenario = as_deployed(scenario, policy)
    watched = Watched(policy)
    arrivals_s, part_s = case["arrivals_s"], case.get("part_s")
    result = episode(scenario, watched, case["seed"], arrivals_s, case["patience_s"], part_s)
    arrivals_s = arrivals_s if part_s is None else part_s
    gpus, times = np.array(watched.gpus), np.array(watched.time_s)
    coming = times < arrivals_s
    row = measured(result, scenario)
    # Everybody has the same requests to end after the last arrival: GPU time is that until then.
    row["gpu_s"] = float(gpus[coming].sum() * scenario.control_interval_s)
    doing = np.array(watched.doing)[coming].sum(axis=0) * scenario.control_interval_s
    row |= {f"gpu_{name}_s": float(seconds) for name, seconds in zip(DOING, doing, strict=True)}
    rows: list[dict[str, Any]] = [{"kind": "run", **row}]
    second = times.astype(np.int64)
    for t in range(0, int(arrivals_s), 2):
        mine = gpus[(second >= t) & (second < t + 2)]
        if len(mine):
            rows.append(
                {"kind": "gpus", "time_s": float(t), "prefill_gpus": float(mine[:, PREFILL].mean()),
                 "decode_gpus": float(mine[:, DECODE].mean())}
            )  # fmt: skip
    table = result.requests
    waited = result.summary["horizon_s"] - table["arrival_s"]
    for what, values in (
        ("ttft", table["ttft_s"].fillna(waited)),
        ("tbt", table["itl_mean_s"].dropna()),
    ):
        rows += [
            {"kind": "quantile", "what": what, "q": float(q), "seconds": float(values.quantile(q / 100))}
            for q in QUANTILES
            if len(values)
        ]  # fmt: skip
    return rows


def as_deployed(scenario: Scenario, policy: DistServePolicy) -> Scenario:
    """With the instances of a fixed fleet there from the beginning."""
    policy.reset(scenario, 0)
    pools = scenario.fleet.pools
    return load_scenario(
        scenario,
        **{f"fleet.pools.{pools[p].name}.initial_instances": n for p, n in policy.numbers.items()},
    )


# ---- what claims are made of ----


def looked_at(parameters: EndToEnd, reason: str) -> str:
    """A reason that was found on whole traces with the paper's trigger, with that said where others ran."""
    if not reason:
        return ""
    there = EndToEnd(systems=parameters.systems)
    same = parameters.model_dump(include=_LOOKED_AT) == there.model_dump(include=_LOOKED_AT)
    if same:
        return reason
    return (
        f"not looked at with these parameters; on whole traces with the paper's trigger: {reason}"
    )


_LOOKED_AT = {"arrivals_s", "bursty_arrivals_s", "patience_s", "trigger"}


def runs(frame: DataFrame, column: str, system: str, value: str) -> Any:
    """A value of every run, by seed; of runs with requests to speak of."""
    mine = where(frame, column=column, system=system, kind="run")
    mine = mine[mine["requests"].astype(float) >= FEW]
    return mine.set_index("seed")[value].dropna().astype(float)


def shorter(frame: DataFrame, column: str, system: str, other: str, value: str) -> Interval:
    """By how many per cent a value is below another system's, over seeds."""
    one, two = (runs(frame, column, name, value) for name in (system, other))
    return mean_interval((100 * (1 - one / two)).dropna().to_numpy())


def longer(frame: DataFrame, column: str, system: str, other: str, value: str) -> Interval:
    """By how many per cent a value is above another system's, over seeds."""
    one, two = (runs(frame, column, name, value) for name in (system, other))
    return mean_interval((100 * (one / two - 1)).dropna().to_numpy())


def ratio(frame: DataFrame, column: str, system: str, other: str, value: str) -> Interval:
    """A value over another system's, over seeds."""
    one, two = (runs(frame, column, name, value) for name in (system, other))
    return mean_interval((one / two).dropna().to_numpy())


def means(
    frame: DataFrame, column: str, systems: Sequence[str], value: str, scale: float = 1e3
) -> str:
    """Means of a value in words."""
    return ", ".join(
        f"{SYSTEMS[name].shown} {scale * runs(frame, column, name, value).mean():.4g}"
        for name in systems
    )


def bars(
    axes: Any,
    frame: DataFrame,
    column: str,
    systems: Sequence[str],
    what: str,
    less: float | None = None,
) -> None:
    """Means of every system, with the lowest and highest run; p95 as a mark.

    A star is where the paper has BlitzScale: `less` per cent below ServerlessLLM, as it is here.
    """
    for k, name in enumerate(systems):
        system = SYSTEMS[name]
        values = 1e3 * runs(frame, column, name, f"{what}_mean_s")
        if len(values) == 0:
            continue
        mean = float(values.mean())
        axes.bar(
            k, mean, color=system.colour, alpha=0.9 if system.line == "-" else 0.45,
            yerr=[[max(mean - values.min(), 0.0)], [max(values.max() - mean, 0.0)]], capsize=3, ecolor="0.3",
        )  # fmt: skip
        p95 = 1e3 * runs(frame, column, name, f"{what}_p95_s").mean()
        axes.plot(k, p95, "k_", ms=12, label="p95, mean of the runs" if k == 0 else None)
        axes.annotate(f"{mean:.0f}", (k, mean), ha="right", va="bottom", fontsize=8)
    axes.set_xticks(
        range(len(systems)), [SYSTEMS[name].shown.replace(", ", ",\n") for name in systems],
        fontsize=7,
    )  # fmt: skip
    if less is not None and {"blitzscale", "serverlessllm"} <= set(systems):
        told = 1e3 * runs(frame, column, "serverlessllm", f"{what}_mean_s").mean()
        at, label = (
            systems.index("blitzscale"),
            "the paper's saving (section 6.1) from our ServerlessLLM",
        )
        paper_stars(axes, [at], [(1 - less / 100) * told], label)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3, axis="y")


def panels(
    frame: DataFrame,
    parameters: EndToEnd,
    legend: str,
    shorter: Mapping[str, Mapping[str, float]] | None = None,
) -> Any:
    """A column per workload: TTFT above, TBT below; the legend in a corner of the first.

    `shorter`: the paper's savings in per cent, by workload and latency.
    """
    n = len(parameters.columns)
    figure = new_figure(4.6 * n, 6.4)
    grid = figure.subplots(2, n, squeeze=False)
    for (top, bottom), column in zip(grid.T, parameters.columns, strict=True):
        less = (shorter or {}).get(column, {})
        bars(top, frame, column, parameters.systems, "ttft", less.get("ttft"))
        bars(bottom, frame, column, parameters.systems, "tbt", less.get("tbt"))
        top.set_title(COLUMNS[column], fontsize=9)
    grid[0][0].set_ylabel("TTFT, mean (ms)")
    grid[1][0].set_ylabel("time between tokens, mean (ms)")
    grid[0][0].legend(fontsize=7, loc=legend)
    return figure
