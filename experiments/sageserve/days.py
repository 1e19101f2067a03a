"""Days of SageServe's week under a policy: one run, the rows that figures share, and sums of them.

The week begins on Monday 0 h UTC; hours of the week name parts of it. Rows are of three kinds: "series" (a
pool at the end of an interval), "latency" (interactive or non-interactive requests of an LLM from a region's
clients, in a bin of time) and "total" (a pool over all of the time).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.statistics import Interval, mean_interval
from baselines import make_policy
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.workload.config import LoadBurst
from llmscale_env.workload.week import sageserve_week

if TYPE_CHECKING:
    from pandas import DataFrame, Series

    from llmscale_env.control.results.result import EpisodeResult

HOUR_S = 3600.0
POLICIES = ("reactive", "lt-i", "lt-u", "lt-ua")
ORACLE = "lt-u:forecast=oracle"
"""An ablation that is told what will come."""

NAMES = {
    "siloed": "siloed",
    "reactive": "reactive",
    "lt-i": "LT-I",
    "lt-u": "LT-U",
    "lt-ua": "LT-UA",
    ORACLE: "LT-U, oracle (sees the future)",
}
STYLES = {"siloed": "C7", "reactive": "C3", "lt-i": "C1", "lt-u": "C0", "lt-ua": "C2", ORACLE: "k"}
PLACES = {"us-east": "US-East", "us-central": "US-Central", "us-west": "US-West"}
LATENCIES = {"ttft_s_p95": "TTFT", "e2e_s_p95": "E2E latency"}
TIME = "hour of the day (UTC)"
LLAMA_2 = "llama-2-70b"
EVERYWHERE = "all"
"""Region of latency rows of all clients together."""

_WASTE = ("waste_own_gpu_hours", "waste_others_gpu_hours")
_COUNTS = ("instance_hours", "reclaims_own", "reclaims_others", "donations")


def scenario_of(case: Mapping[str, Any]) -> Scenario:
    """The part of the week that a case is about, with its history, rates and bursts.

    Args:
        case: `policy`, `from_h` and `hours` (of the week), `history_h`, `interval_s` (between decisions and
            rows), `rate_scale`, `bursts` (lists of start in hours after `from_h`, minutes, factor),
            `thresholds_over` (if there: Llama-2 scales at thresholds that are so many times lower), `most`
            (if there: instances that an endpoint may have, its own 20 VMs or others').
    """
    history_s = case["history_h"] * HOUR_S
    scenario = load_scenario(
        "sageserve-siloed-day" if case["policy"] == "siloed" else "sageserve-day",
        horizon_s=case["hours"] * HOUR_S,
        history_s=history_s,
        control_interval_s=case["interval_s"],
    )
    workload = sageserve_week(
        rate_scale=case["rate_scale"],
        start_s=case["from_h"] * HOUR_S - history_s,
        bursts=[
            LoadBurst(at_s=at_h * HOUR_S + history_s, duration_s=60.0 * minutes, factor=factor)
            for at_h, minutes, factor in case["bursts"]
        ],
    )
    scenario = scenario.model_copy(update={"workload": workload})
    return _varied(scenario, case.get("thresholds_over", 1.0), case.get("most"))


def _varied(scenario: Scenario, times: float, most: int | None) -> Scenario:
    """Llama-2's thresholds divided by `times`, and room for `most` instances at every endpoint."""
    pools = []
    for pool in scenario.fleet.pools:
        rule = pool.scaling
        assert rule is not None, "days of SageServe scale at the endpoint"
        if pool.llm == LLAMA_2:
            thresholds = {"high": rule.high / times, "low": rule.low / times}
            rule = rule.model_copy(update=thresholds)
        room = pool.max_instances if most is None else most
        if most is not None:
            rule = rule.model_copy(update={"most": most})
        pools.append(pool.model_copy(update={"scaling": rule, "max_instances": room}))
    fleet = scenario.fleet.model_copy(update={"pools": tuple(pools)})
    return scenario.model_copy(update={"fleet": fleet})


def run_days(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One policy over a part of the week.

    Args:
        case: as in `scenario_of`, with `bin_h` (of latencies), `seed`, and `thresholds` and `epsilon` of
            policies (if there).
    """
    scenario = scenario_of(case)
    changes: dict[str, Any] = {"thresholds": case.get("thresholds", "scenario")}
    if case["policy"].startswith("lt-"):
        # The paper's service levels are of TTFT: the ITL limit of the scenario is ours.
        changes |= {"theta_itl": False, "epsilon": case.get("epsilon", 1.0)}
    result = run_episode(make_policy(case["policy"], **changes), scenario, case["seed"])
    return [
        *series_rows(result, scenario),
        *latency_rows(result.requests, case["bin_h"], scenario.region_names),
        *total_rows(result, scenario),
    ]


def series_rows(result: EpisodeResult, scenario: Scenario) -> Iterator[dict[str, Any]]:
    """Instances (there or on their way, and those that serve), memory in use and hours billed by interval."""
    series = result.series
    for pool in scenario.fleet.pools:
        mine = {
            name: series[f"{pool.name}/{name}"].to_numpy()
            for name in ("acquiring", "loading", "active", "kv_use", "gpu_s", "spot")
        }
        for k, time_s in enumerate(series["time_s"]):
            yield {
                "kind": "series",
                "llm": pool.llm,
                "region": scenario.region_of(pool.region),
                "role": pool.role,
                "hour": float(time_s) / HOUR_S,
                "instances": int(mine["acquiring"][k] + mine["loading"][k] + mine["active"][k]),
                "active": int(mine["active"][k]),
                "kv_use": float(mine["kv_use"][k]),
                "spot": int(mine["spot"][k]),
                "instance_hours": float(mine["gpu_s"][k]) / pool.tp / HOUR_S,
            }


def latency_rows(
    requests: DataFrame, bin_h: float, regions: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    """95th percentiles by LLM, class, clients' region (and all) and time of arrival.

    A row has `hour`, the start of its bin. A percentile is that of the requests that have the latency by the
    end: of those without it `unfinished` are still there.
    """
    bins = (requests["arrival_s"] // (bin_h * HOUR_S)).astype(int)
    keys = [bins, requests["llm"], requests["slo_class"]]
    for region in (EVERYWHERE, *regions):
        chosen = requests if region == EVERYWHERE else requests[requests["region"] == region]
        for (k, llm, slo_class), mine in chosen.groupby(keys, observed=True):
            row = {
                "kind": "latency",
                "llm": llm,
                "region": region,
                "slo_class": slo_class,
                "hour": float(k) * bin_h,
                "requests": len(mine),
                "unfinished": int((mine["outcome"] == "unfinished").sum()),
                "on_time": int((mine["outcome"] == "on_time").sum()),
            }
            for name in ("ttft_s", "e2e_s"):
                for q in (50, 95):
                    values = mine[name].to_numpy()
                    values = values[~np.isnan(values)]
                    row[f"{name}_p{q}"] = float(np.percentile(values, q)) if len(values) else None
            yield row


def total_rows(result: EpisodeResult, scenario: Scenario) -> Iterator[dict[str, Any]]:
    """Of every pool instance-hours, those spent until instances served, and VMs moved."""
    for pool in scenario.fleet.pools:
        of = {name: result.summary[f"pool/{pool.name}/{name}"] for name in (*_WASTE, *_COUNTS)}
        yield {
            "kind": "total",
            "llm": pool.llm,
            "region": scenario.region_of(pool.region),
            "role": pool.role,
            **{name: of[name] for name in _COUNTS},
            "waste_own_h": of[_WASTE[0]] / pool.tp,
            "waste_others_h": of[_WASTE[1]] / pool.tp,
        }


# ---- what figures ask of the rows ----


def chosen(frame: DataFrame, kind: str, **values: Any) -> DataFrame:
    """Rows of a kind with these values."""
    keep = (frame["kind"] == kind).to_numpy()
    for name, value in values.items():
        keep = keep & (frame[name] == value).to_numpy()
    return frame[keep]


def by_seed(
    frame: DataFrame, policy: str, column: str = "instance_hours", **values: Any
) -> Series[float]:
    """Sum of a column of a policy's "total" rows, by seed."""
    mine = chosen(frame, "total", policy=policy, **values)
    return mine[column].astype(float).groupby(mine["seed"]).sum()


def less_percent(mine: Any, other: Any) -> Interval:
    """By how much one is below another, in percent of that; both by seed."""
    return mean_interval(100 * (1 - mine / other))


def more_percent(mine: Any, other: Any) -> Interval:
    """By how much one is above another, in percent of that; both by seed."""
    return mean_interval(100 * (mine / other - 1))


def saved_percent(frame: DataFrame, policy: str, **values: Any) -> Interval:
    """By how much a policy's instance-hours are below the reactive one's, in percent of those."""
    return less_percent(*(by_seed(frame, name, **values) for name in (policy, "reactive")))


def interactive(frame: DataFrame, policy: str, **values: Any) -> DataFrame:
    """A policy's rows of interactive requests."""
    values = {"policy": policy, "slo_class": "interactive", **values}
    return chosen(frame, "latency", **values)


def percentile(
    frame: DataFrame, policy: str, column: str, llm: str, region: str = EVERYWHERE
) -> Series[float]:
    """A latency of interactive requests, by seed: the mean over bins of their percentiles."""
    mine = interactive(frame, policy, llm=llm, region=region)
    return mine[column].astype(float).groupby(mine["seed"]).mean()


def utilisation(frame: DataFrame, policy: str, llm: str, region: str) -> DataFrame:
    """Effective memory utilisation of an endpoint: a row per time, a column per seed.

    Pools of one endpoint count by their instances that serve.
    """
    mine = chosen(frame, "series", policy=policy, llm=llm, region=region)
    mine = mine.astype({"kv_use": float, "active": float})
    mine = mine.assign(used=mine["kv_use"] * mine["active"])
    sums = mine.groupby(["hour", "seed"])[["used", "active"]].sum()
    return (sums["used"] / sums["active"].where(sums["active"] > 0)).unstack("seed")


def instances(frame: DataFrame, policy: str, llm: str, region: str | None = None) -> DataFrame:
    """Instances of an LLM in a region, or in all: a row per time, a column per seed."""
    there = {} if region is None else {"region": region}
    mine = chosen(frame, "series", policy=policy, llm=llm, **there)
    return mine.astype({"instances": float}).groupby(["hour", "seed"])["instances"].sum().unstack()


def stairs(axes: Any, rows: DataFrame, column: str, bin_h: float, **look: Any) -> None:
    """A column of latency rows by the time of arrival, a step for each bin."""
    rows = rows.sort_values("hour")
    hour = rows["hour"].to_numpy(float)
    values = rows[column].to_numpy(float)
    axes.step([*hour, hour[-1] + bin_h], [*values, values[-1]], where="post", **look)
