"""Another load, forecasts, load times, calibration errors and late metrics.

Policies as they are, in a world that is not: with 0.8 to 1.4 times the load, without a forecast or with an
oracle's (the learned policy's observations alone change; it is not trained again), with weights that load in
15 to 300 s, iterations 20 % faster or slower than the calibration by which everybody plans, and late metrics.
Heuristics run at their tuned setting (factor 1), learned policies at every setting given, on the bursty test
workloads and the same windows. Blind to a block of its observation, a learned policy sees it at its mean
over an episode. What counts is the reward of an episode against the same policy's in the world as it is,
window by window; attainment and GPU-hours say where it comes from. At another load all rewards are others:
there attainment tells who can be left alone. Who is better in a changed world the rewards themselves say, and
not their changes; policies are to be compared on the same workloads, which column `on` names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import field_validator

from agents.statistics import Interval
from experiments.harness.claims import Claim, less
from experiments.harness.figure import claimed
from experiments.harness.parameters import Parameters, known, ours
from experiments.learned.ablations import ABLATIONS
from experiments.learned.family import TestWorkloads, tested
from experiments.learned.knobs import Heuristics
from experiments.learned.protocol import (
    heuristic_cases,
    learned_cases,
    play,
)
from experiments.learned.runs import find_runs
from experiments.learned.standings import mean_of
from experiments.learned.statistics import stratified_interval
from experiments.learned.verdicts import NOTHING, why_not, with_interval
from experiments.output import new_figure

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Ablations"
SERIES = ("policy",)

Names = tuple[str, ...]


class Settings(Parameters):
    """Attributes are explained where they are declared."""

    seeds: Annotated[int, ours("windows of each workload", ge=1, le=1000)] = 10
    policies: Annotated[
        Heuristics,
        ours("heuristics of different kinds: none, of load and deadlines, of use, of backpressure"),
    ] = ("static", "paced", "llumnix", "chiron")
    learned: Annotated[Names, ours('as in learned-mixed-slo-v0; "pretrained": all that ship')] = (
        "pretrained",
    )
    ablations: Annotated[Names, ours("all, with the world as it is")] = tuple(ABLATIONS)
    workloads: Annotated[TestWorkloads, ours("the bursty ones of the test")] = (
        "test-code",
        "test-spikes",
        "test-mmpp",
    )

    @field_validator("ablations")
    @classmethod
    def _known(cls, names: Names) -> Names:
        known(names, ABLATIONS)
        return names if "none" in names else ("none", *names)


PARAMETERS = {
    "quick": Settings(
        seeds=2,
        policies=("llumnix", "chiron"),
        ablations=("none", "load-60", "load-300", "times-1.2", "metrics-30"),
        workloads=("test-spikes",),
    ),
    "paper": Settings(),
}


def cases(parameters: Settings) -> list[dict[str, Any]]:
    """Every policy under every ablation that it notices."""
    if not parameters.workloads:
        raise ValueError("workloads: there must be one")
    tests = tested(parameters.workloads)
    windows = {"test": parameters.seeds, "validation": 0}
    made = heuristic_cases(parameters.policies, (1.0,), tests, (), windows)
    made += learned_cases(find_runs(parameters.learned, "mixed-slo-v0"), tests, (), windows)
    return [
        {**ABLATIONS[name].of(case), "ablation": name}
        for case in made
        for name in parameters.ablations
        if ABLATIONS[name].holds(case)
    ]


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The episodes of one policy on one workload under one ablation."""
    return play(case)


def changes(frame: DataFrame, column: str = "reward") -> dict[tuple[str, str], Interval]:
    """By policy (and setting, for learned ones) and ablation: a column against the world as it is.

    Mean over workloads, training seeds and windows of the paired differences, with its interval.
    """
    found: dict[tuple[str, str], Interval] = {}
    keys = ["workload", "training_seed", "window"]
    for name, mine in frame.assign(name=_names(frame)).groupby("name", sort=False):
        plain = mine[mine["ablation"] == "none"].set_index(keys)[column]
        for ablation, rows in mine[mine["ablation"] != "none"].groupby("ablation", sort=False):
            difference = (rows.set_index(keys)[column] - plain).astype(float)
            scores = {
                str(workload): part.unstack("window").to_numpy(np.float64)
                for workload, part in difference.groupby(level="workload")
            }
            bases = mine.drop_duplicates("workload").set_index("workload")["base"]
            of = {w: f"{name}, {bases[w]}" for w in scores}
            found[str(name), str(ablation)] = stratified_interval(
                scores,
                mean_of,
                trainings=of if bool(mine["learned"].iloc[0]) else None,
                resamples=1000,
            )
    return found


def plot(frame: DataFrame, parameters: Settings) -> Any:
    """Change of reward, GPU-hours and attainment by ablation and policy."""
    panels = (
        ("reward", "change of an episode's reward", 1.0),
        ("gpu_hours", "change of GPU-hours", 1.0),
        ("interactive_attainment", "change of interactive requests on time, %", 100.0),
    )
    done = set(frame["ablation"]) - {"none"}
    names = [n for n in parameters.ablations if n in done]
    figure = new_figure(13.0, 2.2 + 0.45 * len(names))
    axes = figure.subplots(1, len(panels), sharey=True)
    for axis, (column, label, factor) in zip(axes, panels, strict=True):
        found = changes(frame, column)
        policies = list(dict.fromkeys(policy for policy, _ in found))
        for k, policy in enumerate(policies):
            for y, name in enumerate(names):
                change = found.get((policy, name))
                if change is None:
                    continue
                at = y + 0.7 * (k - (len(policies) - 1) / 2) / len(policies)
                what = {"color": f"C{k}", "label": policy if y == 0 or name == names[-1] else None}
                axis.plot(factor * change.mean, at, "o", ms=5, **what)
                axis.plot(
                    [factor * change.low, factor * change.high], [at, at], color=f"C{k}", lw=1.5
                )
        axis.axvline(0.0, color="gray", lw=0.8)
        axis.set_xlabel(label)
        if column == "reward":  # a fixed fleet at 1.4 times its load would hide all others
            axis.set_xscale("symlog", linthresh=20)
            axis.set_xticks((-1000, -100, -10, 0, 10, 100))
        axis.grid(alpha=0.3, axis="x")
    axes[0].set_yticks(range(len(names)), [ABLATIONS[n].text for n in names])
    axes[0].invert_yaxis()
    handles, labels = axes[0].get_legend_handles_labels()
    seen = dict(zip(labels, handles, strict=True))
    figure.legend(seen.values(), seen.keys(), loc="outside lower center", ncols=3)
    return figure


def tables(frame: DataFrame, parameters: Settings) -> dict[str, list[dict[str, Any]]]:
    """A row per policy and ablation: what becomes of it, and by how much that is less."""
    reward, hours = changes(frame), changes(frame, "gpu_hours")
    shares = {c: changes(frame, f"{c}_attainment") for c in ("interactive", "batch")}
    levels = _levels(frame)
    made = []
    for policy, name in levels.index:
        level = levels.loc[(policy, name)]
        paired = (policy, name) in reward
        made.append(
            {
                "policy": policy,
                "on": level["on"],
                "ablation": ABLATIONS[name].text,
                "reward": float(level["reward"]),
                "GPU-h": float(level["gpu_hours"]),
                **{f"{c} %": 100 * float(level[f"{c}_attainment"]) for c in shares},
                "change of reward": reward[policy, name] if paired else "-",
                "of GPU-h": hours[policy, name] if paired else "-",
                **{
                    f"of {c} %": _percent(shares[c][policy, name]) if paired else "-"
                    for c in shares
                },
            }
        )
    return {"changes": made}


def _levels(frame: DataFrame) -> DataFrame:
    """By policy (and setting) and ablation: means over workloads of means over episodes, and `on` which."""
    columns = ["reward", "gpu_hours", "interactive_attainment", "batch_attainment"]
    keys = ["name", "ablation"]
    named = frame.assign(name=_names(frame))
    by_workload = named.groupby([*keys, "workload"], sort=False)[columns].mean()
    found = by_workload.groupby(keys, sort=False).mean()
    on = by_workload.reset_index().groupby(keys, sort=False)["workload"]
    found["on"] = on.agg(lambda names: ", ".join(sorted(n.removeprefix("test-") for n in names)))
    return found


def _names(frame: DataFrame) -> Any:
    """What policies are called: of learned ones with the setting."""
    return frame["policy"].where(
        ~frame["learned"].astype(bool), frame["policy"] + ", " + frame["setting"]
    )


def _percent(change: Interval) -> Interval:
    return Interval(100 * change.mean, 100 * change.low, 100 * change.high)


@claimed
def claims(frame: DataFrame, parameters: Settings) -> Iterator[Claim]:
    """What neighbouring projects report, and what the learned policy's forecast is worth.

    Nothing holds without an interval, and a learned policy that has seen the test claims nothing.
    """
    fair = frame[~frame["base"].str.startswith("leaks")]
    reward = changes(fair)

    def lower(sentence: str, change: Interval, reason: str) -> Claim:
        return with_interval(less(sentence, 0.0, change, unit="reward", reason=reason))

    for policy in parameters.policies:
        change = reward.get((policy, "load-300"))
        if change is not None:
            yield lower(
                f"{policy} has a lower reward when weights take 300 s to load (users report a cliff "
                "beyond 100 s)",
                change,
                why_not(change),
            )
    mine = {
        name: change
        for (name, ablation), change in reward.items()
        if ablation == "forecast-none" and name not in parameters.policies
    }
    for name, change in mine.items():
        yield lower(f"without its forecast {name} has a lower reward", change, why_not(change))
    if not mine and "forecast-none" in parameters.ablations:
        yield lower(
            "without its forecast the learned policy has a lower reward",
            NOTHING,
            "no learned policy that was compared sees a forecast",
        )
