"""Learned against tuned autoscalers on the family mixed-slo-v0.

Every policy runs on the same windows of six test workloads, whose times and parameters neither training nor
tuning has seen (`llmscale_env/workload/families/mixed-slo-v0.yaml`). A heuristic runs at several factors of
its knob around its tuned setting (column `base` says whether a search has found one), a learned policy at
every price or target it was trained for, at several quantiles of its instance counts, and with all its
training seeds.

Two answers per workload. *Chosen*: the cheapest setting that keeps both classes at 99 % on the validation
windows, run on the test windows: what an operator gets, who may then miss 99 %. *Matched*: GPU-hours at
exactly 99 % on the test windows, interpolated between settings, the same for all: what the claims are about;
networks are matched one by one (column *pooled*: their means are). Who never reaches 99 % is said to.
Intervals are 95 %, bootstrapped over training seeds and windows
(`experiments/learned/statistics.py`); the bound is the clairvoyant one (docs/clairvoyant.md), for 99 % of
both classes.

`workload.trace=PATH` puts one more trace beside the test workloads; then everything is made anew with it, at
scale=quick with one network per workload that networks are made for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from experiments.harness.parameters import Parameters, ours
from experiments.learned.family import TestWorkloads, Workload, dropped_in, tested, workloads
from experiments.learned.knobs import HEURISTICS, Heuristics
from experiments.learned.pictures import bars, distances, pareto
from experiments.learned.protocol import (
    CLASSES,
    bound_cases,
    heuristic_cases,
    learned_cases,
    play,
)
from experiments.learned.runs import find_runs, one_each
from experiments.learned.standings import Standing, bounds_of, impossible, overall, standings
from experiments.learned.verdicts import verdicts

if TYPE_CHECKING:
    from pandas import DataFrame

    from experiments.harness.claims import Claim

NAME = "learned-mixed-slo-v0"
FIGURE = "Learned policies"
SERIES = ("policy",)

Names = tuple[str, ...]


class Settings(Parameters):
    """Attributes are explained where they are declared."""

    seeds: Annotated[int, ours("test windows; the issue asks for at least 20", ge=1, le=1000)] = 40
    skip: Annotated[int, ours("test windows that are left out before them", ge=0, le=1000)] = 0
    validation_windows: Annotated[int, ours("by which settings are chosen", ge=1, le=1000)] = 8
    policies: Annotated[Heuristics, ours("every heuristic with settings to tune")] = HEURISTICS
    learned: Annotated[
        Names, ours('run folders, folders of runs, or "pretrained": all that ship for mixed-slo-v0')
    ] = ("pretrained",)
    factors: Annotated[
        tuple[Annotated[float, Field(gt=0)], ...],
        ours("of a heuristic's knob, around its tuned setting"),
    ] = (0.2, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 8.0)
    quantiles: Annotated[
        tuple[Annotated[float, Field(gt=0, lt=1)], ...],
        ours("of a learned policy's instance counts, beside the one of its run"),
    ] = (0.1, 0.15, 0.2, 0.3, 0.7, 0.85, 0.95, 0.98)
    workloads: Annotated[TestWorkloads, ours("test workloads; empty: all")] = ()
    attainment: Annotated[float, ours("of both classes (issue 8)", gt=0, lt=1)] = 0.99
    bound: Annotated[bool, ours("whether the clairvoyant bound is computed")] = True
    slot_s: Annotated[
        float,
        ours("of the bound's programme; docs/clairvoyant.md: 5 s changes the sixth digit", gt=0),
    ] = 30.0
    resamples: Annotated[int, ours("of the bootstrap", ge=10)] = 2000
    workload_trace: Annotated[str, ours("a trace file as one more test workload")] = ""
    trace_rate_per_s: Annotated[
        float, ours("mean rate of its requests, about that of the family; 0: its own", ge=0)
    ] = 14.0

    trace_all_networks: Annotated[
        bool,
        ours("with a trace: whether all networks compete, or one price and one seed per workload"),
    ] = True

    def tests(self) -> list[Workload]:
        """The test workloads, with the dropped-in trace if there is one."""
        found = tested(self.workloads)
        if self.workload_trace:
            found.append(dropped_in(self.workload_trace, self.trace_rate_per_s or None))
        return found


PARAMETERS = {
    "quick": Settings(
        seeds=2,
        validation_windows=1,
        policies=("static", "llumnix", "chiron"),
        factors=(0.7, 1.0, 1.5),
        quantiles=(0.7,),
        workloads=("test-chat", "test-spikes"),
        resamples=200,
        trace_all_networks=False,
    ),
    "paper": Settings(),
}


def cases(parameters: Settings) -> list[dict[str, Any]]:
    """Every setting on test and validation windows, and the bound of every test window."""
    tests, validation = parameters.tests(), workloads("validation")
    windows = {"test": parameters.seeds, "validation": parameters.validation_windows}
    runs = find_runs(parameters.learned, "mixed-slo-v0")
    if parameters.workload_trace and not parameters.trace_all_networks:
        runs = one_each(runs)
    skip = parameters.skip
    made = heuristic_cases(
        parameters.policies, parameters.factors, tests, validation, windows, skip
    )
    made += learned_cases(runs, tests, validation, windows, parameters.quantiles, skip)
    if parameters.bound:
        made += bound_cases(tests, parameters.seeds, parameters.attainment, parameters.slot_s, skip)
    return made


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The episodes of one setting on one workload, or the bound of one window."""
    return play(case)


def _found(frame: DataFrame, parameters: Settings) -> list[Standing]:
    validated_on = {w.name: w.validated_on for w in parameters.tests()}
    return standings(frame, validated_on, parameters.attainment, resamples=parameters.resamples)


def plot(frame: DataFrame, parameters: Settings) -> dict[str, Any]:
    """Pareto fronts, GPU-hours at matched attainment, distances to the bound."""
    found = _found(frame, parameters)
    target = parameters.attainment
    pictures = {
        "pareto": pareto(frame, found, target),
        "matched": bars(frame, found, target),
    }
    if parameters.bound:
        pictures["distance"] = distances(found, target)
    return pictures


def tables(frame: DataFrame, parameters: Settings) -> dict[str, list[dict[str, Any]]]:
    """A row per workload and policy; a row per policy over all workloads."""
    found = _found(frame, parameters)
    best = best_heuristic_overall(found)
    return {
        "workloads": [_row(s, parameters.attainment) for s in found],
        "overall": overall(frame, found, best, resamples=parameters.resamples),
    }


def _row(s: Standing, target: float) -> dict[str, Any]:
    matched: Any = f"{s.matched} (lowest of its knob)" if s.at_edge else s.matched
    if np.isnan(s.matched.mean):
        matched = s.shortfall(target)
    return {
        "workload": s.workload,
        "policy": s.policy,
        "base": s.base,
        "matched GPU-h": matched,
        "over bound": s.matched_distance,
        "seed by seed": _seed_by_seed(s) if s.learned else "-",
        "pooled GPU-h": s.at_target.pooled if s.learned else "-",
        "held out GPU-h": s.at_target.held_out.gpu_hours,
        "held out %": 100 * s.at_target.held_out.attainment,
        "chosen": str(s.choice) + ("" if s.choice.reaches else " (misses in validation)"),
        "GPU-h": s.gpu_hours,
        "GPU-h / bound": s.distance,
        **{f"{c} %": 100 * s.attainment[c] for c in CLASSES},
        "worst window %": 100 * s.others["worst_window"],
        "violations": s.others["violations"],
        "rejected": s.others["rejected"],
        "interactive TTFT p99 s": s.others["ttft_s_p99"],
        "interactive ITL p99 s": s.others["itl_s_p99"],
        "scalings": s.others["scaling_actions"],
        "reward": s.others["reward"],
    }


def _seed_by_seed(s: Standing) -> str:
    """How many training seeds reach the target alone, and with how few and many GPU-hours."""
    some = s.at_target.by_seed[~np.isnan(s.at_target.by_seed)]
    reach = f"{len(some)} of {len(s.at_target.by_seed)}"
    return f"{reach}: {some.min():.4g} to {some.max():.4g}" if len(some) else reach


def best_heuristic_overall(found: Sequence[Standing]) -> str | None:
    """The heuristic that reaches the target on most workloads, and of these the one that needs least.

    In the mean over the workloads where it does, relative to the least that any heuristic needs there.
    """
    names = dict.fromkeys(s.policy for s in found if not s.learned)
    if not names:
        return None

    least: dict[str, float] = {}
    for s in found:
        if not s.learned and not np.isnan(s.matched.mean):
            least[s.workload] = min(least.get(s.workload, np.inf), s.matched.mean)

    def rank(name: str) -> tuple[int, float]:
        mine = [s for s in found if s.policy == name]
        reach = [s.matched.mean / least[s.workload] for s in mine if not np.isnan(s.matched.mean)]
        return (len(mine) - len(reach), float(np.mean(reach)) if reach else np.inf)

    return min(names, key=rank)


def claims(frame: DataFrame, parameters: Settings) -> list[Claim]:
    """The lines of issue 8's "Done when", workload by workload (`experiments.learned.verdicts`)."""
    found = _found(frame, parameters)
    bounds = {s.workload: bounds_of(frame, s.workload) for s in found}
    *others, distance = verdicts(
        found, bounds, parameters.attainment, resamples=parameters.resamples
    )
    notes = [distance.note]
    for workload, by_window in bounds.items():
        if windows := impossible(frame, workload):
            notes.append(f"{len(windows)} windows of {workload} allow nobody so much")
            none = sum(bool(np.isnan(by_window[w])) for w in windows)
            notes[-1] += ": there the bound is of less attainment."
            if none:
                notes[-1] = notes[-1][:-1] + f", but for {none} that allow even less."
    return [*others, replace(distance, note=" ".join(notes).strip())]
