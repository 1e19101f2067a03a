"""How much of the distance to the clairvoyant bound anybody could save.

The bound lets requests and instances be divided and moved at will, so nobody reaches it. Here the window is
known in advance, and a search over schedules (mixed instances by slot, at the batch limit that is best for a
fixed fleet) plays hundreds of them and keeps the cheapest in which both classes are on time in 99 % of all
cases. What is found was played, so a policy that is told the future needs no more than that; what it needs at
the least is between the two. The fixed fleet is the smallest one of mixed instances that attains in this very
window, which no policy can know either.

A search that is given more episodes finds cheaper schedules, so the numbers are upper ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field, field_validator

from agents.statistics import mean_interval
from experiments.harness.claims import Claim, at_most
from experiments.harness.figure import claimed, plain
from experiments.harness.parameters import Parameters, ours
from experiments.learned.family import TestWorkloads, scenario_of, shape_of, tested
from experiments.learned.hindsight import MIXED, best_fixed, player, trimmed
from experiments.learned.protocol import place
from experiments.learned.verdicts import with_interval
from experiments.output import new_figure

if TYPE_CHECKING:
    from pandas import DataFrame

NAME = "learned-hindsight"
FIGURE = "Foresight"


class Settings(Parameters):
    """Attributes are explained where they are declared."""

    seeds: Annotated[int, ours("test windows, the first ones of learned-mixed-slo-v0", ge=1)] = 5
    workloads: Annotated[TestWorkloads, ours("test workloads; empty: all")] = ()
    episodes: Annotated[int, ours("schedules that a search tries", ge=1)] = 500
    slot_control_s: Annotated[float, ours("of a schedule", gt=0)] = 30.0
    limits: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...], ours("batch limits, of which one is kept")
    ] = (24, 32, 48, 64, 96, 128, 192)
    attainment: Annotated[float, ours("of both classes (issue 8)", gt=0, lt=1)] = 0.99
    slot_s: Annotated[float, ours("of the bound's programme", gt=0)] = 30.0

    @field_validator("slot_control_s")
    @classmethod
    def _slots(cls, seconds: float) -> float:
        horizon = scenario_of("mixed-slo-v0/test-chat").horizon_s
        if not horizon / 1000 <= seconds <= horizon / 3:
            raise ValueError(f"must make 3 to 1000 slots of an episode of {horizon:g} s")
        return seconds


PARAMETERS = {
    "quick": Settings(seeds=1, workloads=("test-spikes",), episodes=60, limits=(48, 96)),
    "paper": Settings(),
}


def cases(parameters: Settings) -> list[dict[str, Any]]:
    """A search each."""
    names = ("episodes", "slot_control_s", "limits", "attainment", "slot_s")
    what = {name: plain(getattr(parameters, name)) for name in names}
    return [
        {**place(w, 1), **what, "seed": seed, "windows": [seed]}
        for w in tested(parameters.workloads)
        for seed in place(w, parameters.seeds)["windows"]
    ]


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The bound, the fixed fleet and the best schedule of one window."""
    from baselines.clairvoyant import clairvoyant_bound

    scenario = scenario_of(case["data"], case["overrides"])
    bound = clairvoyant_bound(scenario, case["seed"], case["attainment"], case["slot_s"])
    play = player(scenario, case["seed"], case["slot_control_s"])
    slots = math.ceil(scenario.horizon_s / case["slot_control_s"])
    pool = next(p for p in scenario.fleet.pools if p.name == MIXED)
    most = min(pool.max_instances, scenario.fleet.max_gpus // pool.tp)
    fixed = best_fixed(play, slots, most, case["limits"], case["attainment"])
    found: dict[str, Any] = {
        "window": case["seed"],
        "bound_gpu_hours": bound.gpu_hours if bound.status == "optimal" else None,
        "fixed_gpu_hours": None,
        "schedule_gpu_hours": None,
    }
    if fixed is not None:
        rng = np.random.default_rng(case["seed"])
        best = trimmed(play, fixed, case["attainment"], case["episodes"], rng)
        found |= {
            "fixed_gpu_hours": fixed.gpu_hours,
            "fixed_attainment": fixed.attainment,
            "schedule_gpu_hours": best.gpu_hours,
            "schedule_attainment": best.attainment,
            "batch_limit": best.batch_limit,
            "counts": " ".join(map(str, best.counts)),
        }
    return [found]


def _of(frame: DataFrame, workload: str) -> Any:
    """Arrays of a workload's windows that have all three numbers: bound, schedule, fixed fleet."""
    columns = ["bound_gpu_hours", "schedule_gpu_hours", "fixed_gpu_hours"]
    return frame.loc[frame["workload"] == workload, columns].astype(float).dropna().to_numpy().T


def tables(frame: DataFrame, parameters: Settings) -> dict[str, list[dict[str, Any]]]:
    """GPU-hours of all three, and the share of the distance that is left."""
    rows = []
    for workload in dict.fromkeys(frame["workload"]):
        bound, schedule, fixed = _of(frame, workload)
        rows.append(
            {
                "workload": workload,
                "windows": len(bound),
                "bound GPU-h": mean_interval(bound),
                "known schedule GPU-h": mean_interval(schedule),
                "fixed fleet GPU-h": mean_interval(fixed),
                "distance left": mean_interval((schedule - bound) / (fixed - bound)),
            }
        )
    return {"windows": rows}


def plot(frame: DataFrame, parameters: Settings) -> Any:
    """Three bars per workload."""
    names = list(dict.fromkeys(frame["workload"]))
    figure = new_figure(1.6 * len(names) + 3.0, 4.2)
    axis = figure.subplots()
    labels = (
        "clairvoyant bound",
        "best schedule found, window known",
        "best fixed fleet, window known",
    )
    for k, label in enumerate(labels):
        found = [mean_interval(_of(frame, name)[k]) for name in names]
        x = np.arange(len(names)) + 0.27 * (k - 1)
        axis.bar(x, [i.mean for i in found], width=0.25, label=label, color=f"C{k}")
        low, high = ([getattr(i, side) for i in found] for side in ("low", "high"))
        axis.vlines(x, low, high, color="black", lw=1.2)
    axis.set_xticks(range(len(names)), [f"{n}\n({shape_of(n)})" for n in names])
    axis.set_ylabel(f"GPU-hours per window at {parameters.attainment:.0%} of every class")
    axis.grid(alpha=0.3, axis="y")
    figure.legend(loc="outside upper center", ncols=3, fontsize=9)
    return figure


@claimed
def claims(frame: DataFrame, parameters: Settings) -> Iterator[Claim]:
    """Whether a schedule made for a known window halves a fixed fleet's distance to the bound."""
    for workload in dict.fromkeys(frame["workload"]):
        bound, schedule, fixed = _of(frame, workload)
        claim = at_most(
            f"on {workload}, a schedule that knows the window has half of a fixed fleet's distance "
            "to the bound",
            0.5,
            mean_interval((schedule - bound) / (fixed - bound)),
            nothing=1.0,
            unit="of the fixed fleet's GPU-hours above the bound",
            reason=f"the best of {parameters.episodes} schedules leaves more of it"
            if len(bound)
            else "no window has a bound and a fleet that attains",
            note=f"{len(bound)} windows, each with the fixed fleet that is best for it.",
        )
        yield with_interval(claim)
