"""Policies on the same episodes: rows per seed, a summary with intervals, a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import lru_cache, partial
from typing import Any

import numpy as np

from agents.statistics import (
    FEW,
    by_policy,
    interquartile_mean,
    mean_interval,
    paired_difference,
    share_better,
    shown,
)
from llmscale_env._spread import ALONE, Launcher, spread
from llmscale_env.control.policy import Policy
from llmscale_env.control.results.result import EpisodeResult, on_time_share
from llmscale_env.control.run import run_episode
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.scenarios import Scenario

Row = dict[str, Any]

LOAD_BIN_S = 600.0
"""Stretches over which a fleet is held against its load."""

EPISODES_PER_CALL = 2
"""Of a policy, where episodes run side by side: its network travels with each call."""

COLUMNS = {
    "joint/slo_attainment": ("joint %", 100.0),
    "joint/unfinished": ("open", 1.0),
    "gpu_hours": ("GPU-h", 1.0),
    "joint/preemptions": ("preempt.", 1.0),
    "scaling_actions": ("scalings", 1.0),
    "hysteresis": ("hysteresis", 1.0),
    "fleet_load_correlation": ("fleet~load", 1.0),
}
"""Metrics of the wide table after the reward and the classes' own: heading, factor."""

PREFIX_HITS = {"prefix_hit_rate": ("prefix hits %", 100.0)}
"""Likewise, of every table where a pool has a prefix cache."""


def run_policy(
    policy: Policy,
    scenario: Scenario,
    seeds: Iterable[int],
    *,
    simulation: ClusterSimulation | None = None,
    after_each: Callable[[], object] = lambda: None,
) -> list[Row]:
    """One row per seed: policy, seed, and the numbers of the episode's summary.

    Args:
        policy: runs through `run_episode`, like any other.
        scenario: what is simulated.
        seeds: of the episodes.
        simulation: one of the same scenario to use again.
        after_each: called after each episode (a progress bar).
    """
    simulation = simulation or ClusterSimulation(scenario)
    rows = []
    for seed in seeds:
        result = run_episode(
            policy, scenario, seed, simulation=simulation, forecaster=forecaster_of(policy)
        )
        summary = result.summary
        numbers = {
            key: value
            for key, value in summary.items()
            if isinstance(value, (int, float, np.number)) and key not in ("policy", "seed")
        }
        follows = fleet_load_correlation(result, scenario)
        rows.append(
            {"policy": policy.name, "seed": seed, **numbers, "fleet_load_correlation": follows}
        )
        after_each()
    return rows


def fleet_load_correlation(result: EpisodeResult, scenario: Scenario) -> float:
    """How a fleet follows its load: correlation over stretches of ten minutes.

    Between instances in service and arrivals of the class with the shortest TTFT target. NaN for a fleet that
    stays as it is, and for less than half an hour.
    """
    bins = int(scenario.horizon_s // LOAD_BIN_S)
    if bins < 3:
        return float("nan")
    edges = LOAD_BIN_S * np.arange(bins + 1)
    urgent = min(scenario.classes, key=lambda c: c.ttft_s).name
    came = result.requests["arrival_s"][result.requests["slo_class"] == urgent]
    load, _ = np.histogram(came, edges)
    series = result.series
    active = sum(series[c].to_numpy(float) for c in series.columns if c.endswith("/active"))
    place = np.digitize(series["time_s"].to_numpy(float) - 1e-6, edges) - 1
    mean = [active[place == k].mean() if (place == k).any() else np.nan for k in range(bins)]
    known = np.isfinite(mean)
    fleet, load = np.array(mean)[known], load[known]
    if len(fleet) < 3 or np.ptp(fleet) == 0 or np.ptp(load) == 0:
        return float("nan")
    return float(np.corrcoef(fleet, load)[0, 1])


def run_policies(
    policies: Sequence[Policy],
    scenario: Scenario,
    seeds: Sequence[int],
    *,
    launcher: Launcher = ALONE,
    simulation: ClusterSimulation | None = None,
    after_each: Callable[[str], object] = lambda name: None,
) -> list[Row]:
    """`run_policy` of each, in their order; episodes side by side where there are several workers.

    Args:
        policies: each can be pickled, if there are several workers.
        scenario: what is simulated.
        seeds: of the episodes.
        launcher: where they run; the rows are the same anywhere.
        simulation: one of the same scenario to use again in this process.
        after_each: called with the policy's name after each episode (a progress bar).

    Raises:
        Slip, WorkerLost, OtherCode: see `llmscale_env._spread.spread`.
    """
    rows: list[Row] = []
    if launcher == ALONE:
        for policy in policies:
            told = partial(after_each, policy.name)
            rows += run_policy(policy, scenario, seeds, simulation=simulation, after_each=told)
        return rows
    chunks = [seeds[k : k + EPISODES_PER_CALL] for k in range(0, len(seeds), EPISODES_PER_CALL)]
    calls = [(policy, scenario, chunk) for policy in policies for chunk in chunks]
    found: dict[int, list[Row]] = {}
    with closing(spread(run_some, calls, launcher)) as ended:
        for number, mine in ended:
            found[number] = mine
            for row in mine:
                after_each(row["policy"])
    return [row for number in range(len(calls)) for row in found[number]]


def run_some(policy: Policy, scenario: Scenario, seeds: Sequence[int]) -> list[Row]:
    """`run_policy` in a process that may be asked again for the same scenario."""
    return run_policy(policy, scenario, seeds, simulation=_simulation(scenario.model_dump_json()))


@lru_cache(maxsize=1)
def _simulation(scenario: str) -> ClusterSimulation:
    return ClusterSimulation(Scenario.model_validate_json(scenario))


def run_on_each(
    policy: Policy,
    scenarios: Mapping[str, Scenario],
    seeds: Iterable[int],
    *,
    simulations: Mapping[str, ClusterSimulation],
    after_each: Callable[[], object] = lambda: None,
) -> list[Row]:
    """`run_policy` on several scenarios, the same seeds on each; rows have its name as `workload`.

    Args:
        policy, seeds, after_each: see `run_policy`.
        scenarios: by name; the name "" is not written down.
        simulations: of each, to use again.
    """
    rows = []
    for name, scenario in scenarios.items():
        found = run_policy(
            policy, scenario, seeds, simulation=simulations[name], after_each=after_each
        )
        rows += [{"workload": name, **row} for row in found] if name else found
    return rows


def grouped(rows: Iterable[Row], key: str) -> dict[Any, list[Row]]:
    """Rows by what they have at `key` ("" where they have nothing), in the order in which it comes."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(row.get(key, ""), []).append(row)
    return found


def judged_shares(rows: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    """Shares on time of a class (`on_time_share`), without the episodes in which none was judged."""
    shares = [on_time_share(row, name) for row in rows]
    return [share for share in shares if not np.isnan(share)]


def lacking(rows: Sequence[Row], targets: Mapping[str, float]) -> float:
    """How much mean attainment falls short of its targets: over classes the sum, over workloads the mean.

    Episodes without judged requests of a class are left out (`on_time_share`). Where no episode has one, the
    attainment counts as 0, or as what is asked if no request arrived either.

    Args:
        rows: of one policy.
        targets: attainment asked, by class.
    """
    by_workload = grouped(rows, "workload")
    short = []
    for mine in by_workload.values():
        for name, target in targets.items():
            judged = judged_shares(mine, name)
            some_came = any(row.get(f"{name}/arrivals", 1) for row in mine)
            seen = np.mean(judged) if judged else 0.0 if some_came else target
            short.append(max(0.0, target - float(seen)))
    return float(np.sum(short) / len(by_workload))


def forecaster_of(policy: Policy) -> Any:
    """What a policy wants to see in `view.forecast_rate_per_s`: its own, or the usual one."""
    return getattr(policy, "forecaster", "ewma")


def classes_of(scenario: Scenario) -> dict[str, tuple[str, float]]:
    """Of the metrics, the attainment of each class or group of classes."""
    return {f"{name}/slo_attainment": (f"{name} %", 100.0) for name in scenario.class_groups}


def metrics_of(scenario: Scenario) -> dict[str, tuple[str, float]]:
    """Metrics of the wide table: key of the summary to heading and factor."""
    tails = {f"{n}/ttft_s_p99": (f"{n} TTFT p99 s", 1.0) for n in scenario.class_groups}
    caches = PREFIX_HITS if scenario.fleet.caching_pools else {}
    return {"reward": ("reward", 1.0), **classes_of(scenario), **tails, **COLUMNS, **caches}


def distinct(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows without those of seeds whose episodes are, for every policy, the same as an earlier seed's.

    A workload without chance gives every seed the same requests: more seeds are no more evidence.
    """
    by_seed: dict[Any, dict[str, str]] = {}
    for row in rows:
        numbers = {key: value for key, value in row.items() if key != "seed"}
        by_seed.setdefault(row["seed"], {})[row["policy"]] = repr(sorted(numbers.items()))
    first: dict[str, Any] = {}
    for seed, episodes in by_seed.items():
        first.setdefault(repr(sorted(episodes.items())), seed)
    kept = set(first.values())
    return [row for row in rows if row["seed"] in kept]


def summarise(rows: Sequence[Mapping[str, Any]], scenario: Scenario) -> list[Row]:
    """A row per policy: mean and interval of each metric, and the reward against the first policy's.

    Episodes that are the same count once (`distinct`). The attainment of a class is a mean over the episodes
    in which some of its requests were judged (`on_time_share`); NaN if there are none.

    Raises:
        ValueError: the policies did not meet the same seeds.
    """
    given, rows = len({row["seed"] for row in rows}), distinct(rows)
    metrics = [key for key in metrics_of(scenario) if key in rows[0]]
    judged = [
        key.removesuffix("/slo_attainment") for key in metrics if key.endswith("/slo_attainment")
    ]
    rows = [{**r, **{f"{n}/slo_attainment": on_time_share(r, n) for n in judged}} for r in rows]
    values = {key: by_policy(rows, key) for key in metrics}
    rewards = values["reward"]
    first = next(iter(rewards))
    summary = []
    for policy, reward in rewards.items():
        row: Row = {"policy": policy, "episodes": len(reward), "episodes/given": given}
        for key, mine in values.items():
            interval = mean_interval(mine[policy])
            row |= {key: interval.mean, f"{key}/low": interval.low, f"{key}/high": interval.high}
        row["reward/iqm"] = interquartile_mean(reward)
        difference = paired_difference(reward, rewards[first])
        row |= {
            "reward/vs": first,
            "reward/difference": difference.mean,
            "reward/difference/low": difference.low,
            "reward/difference/high": difference.high,
            "reward/share_better": share_better(reward, rewards[first]),
        }
        summary.append(row)
    return summary


def table(summary: Sequence[Mapping[str, Any]], scenario: Scenario, *, wide: bool = False) -> str:
    """The summary as text: means, and intervals of the reward and of its paired difference.

    Args:
        summary: of `summarise`.
        scenario: of the episodes.
        wide: with the interquartile mean of the reward, the classes' tail latency, all classes together,
            preemptions and scaling.
    """
    first = summary[0]["reward/vs"]
    metrics, classes = metrics_of(scenario), classes_of(scenario)
    before = [*classes, "gpu_hours", *(key for key in PREFIX_HITS if key in summary[0])]
    after = [k for k in metrics if k in summary[0] and k not in ("reward", *before)] if wide else []
    head = ["policy", *(metrics[key][0] for key in before), "reward [95 %]", f"vs {first} [95 %]"]
    head += [*(["IQM"] if wide else []), *(metrics[key][0] for key in after)]
    lines = [head]
    for row in summary:
        difference = "-"
        if row["policy"] != first:
            difference = _interval(row, "reward/difference", 1.0)
        lines.append(
            [
                str(row["policy"]),
                *(_shown(row[key] * metrics[key][1]) for key in before),
                _interval(row, "reward", 1.0, mean="reward"),
                difference,
                *([f"{row['reward/iqm']:.1f}"] if wide else []),
                *(_shown(row[key] * metrics[key][1]) for key in after),
            ]
        )
    widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
    rows = [
        "  ".join(
            [line[0].ljust(widths[0])]
            + [c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True)]
        )
        for line in lines
    ]
    rows.insert(1, "-" * len(rows[0]))
    episodes, given = (int(summary[0][key]) for key in ("episodes", "episodes/given"))
    return "\n".join([*rows, _note(episodes, given, str(first))])


def _note(episodes: int, given: int, first: str) -> str:
    same = f" (those of the {given} seeds that differ)" if given > episodes else ""
    if episodes == 1:
        return f"One episode{same}, the same requests for all: no intervals. 'vs {first}' is the difference."
    kind = "bootstrap" if episodes >= FEW else "Student's t"
    return (
        f"Means over {episodes} episodes{same}, the same requests for all. In brackets: 95 % {kind} "
        f"intervals; 'vs {first}' is the paired difference."
    )


def _interval(row: Mapping[str, Any], key: str, factor: float, mean: str | None = None) -> str:
    centre, low, high = (row[k] * factor for k in (mean or key, f"{key}/low", f"{key}/high"))
    sign = "+" if key.endswith("difference") else ""
    if np.isnan(low):
        return f"{centre:{sign}.1f}"
    return f"{centre:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


def _shown(value: float) -> str:
    return "-" if np.isnan(value) else shown(value)
