"""Convergence time of the local autoscaler, by model, optimisation and latency target.

One instance of each configuration of Figure 11, from a batch limit of 64, under constant rates of requests
that all exceed what it can serve. The paper does not define convergence. Here a run has converged at
the first time from which the batch that runs stays near its median over the run's second half: within a
factor of two, which is what the algorithm's own halving moves it by, for ten seconds without a break and
at least 90 % of the time that is left. `band=1.2`, `share=1` and `size=limit` are the strict readings
(never leaving +-20 %, and the limit itself). A run that has not converged in its first half counts with
that half's length, a lower bound. Algorithm 1 as printed converges too, to a batch of one (Figure 11).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from agents.statistics import Interval, mean_interval
from experiments.chiron.convergence import (
    OVERLOAD_PER_S,
    SHORT,
    VARIANTS,
    LocalParameters,
    converged_s,
    steady,
    steps,
    watch,
)
from experiments.harness.claims import Claim, about, at_least, at_most
from experiments.harness.parameters import ours
from experiments.output import new_figure

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 12"
CRITERION = {"band", "share", "hold_s", "size"}
NAMES = {"chiron": "Chiron, made steady", "chiron-literal": "Algorithm 1 as printed"}
PAPER_S = {"llama-3.1-8b": 15.0, "llama-3.1-70b": 150.0}


class ConvergenceTime(LocalParameters):
    """Parameters of this figure."""

    overloads: Annotated[
        tuple[float, ...],
        ours("times Figure 11's rate, which is some three times what an instance can serve"),
    ] = (0.5, 1.0, 2.0)
    band: Annotated[float, ours("the algorithm's own halving; 1.2: +-20 %", gt=1)] = 2.0
    share: Annotated[float, ours("of the time that is left; 1: never leaves", gt=0, le=1)] = 0.9
    hold_s: Annotated[float, ours("passing by is not converging", ge=0)] = 10.0
    size: Annotated[Literal["batch", "limit"], ours("as in Figure 11")] = "batch"


PARAMETERS = {
    "quick": ConvergenceTime(seeds=2, duration_s=400),
    "paper": ConvergenceTime(seeds=5),
}


def cases(parameters: ConvergenceTime) -> list[dict[str, Any]]:
    """A run per seed, model, variant, target, controller and rate."""
    common = {**parameters.shared(), **parameters.model_dump(include=CRITERION)}
    return [
        {
            "seed": seed,
            "llm": llm,
            "variant": variant,
            "itl_slo_s": slo_s,
            "controller": controller,
            "rate_per_s": overload * OVERLOAD_PER_S[llm],
            "overload": overload,
            **common,
        }
        for seed in parameters.seed_list()
        for llm in parameters.llms
        for variant in VARIANTS
        for slo_s in parameters.slos_s
        for controller in parameters.controllers
        for overload in parameters.overloads
    ]


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """When a run converged, and how many steps of which length it took."""
    watched = watch(case)
    samples = watched.samples
    column = {"batch": "running", "limit": "limit"}[case["size"]]
    found_s = converged_s(
        samples["time_s"].to_numpy(),
        samples[column].to_numpy(float),
        case["band"],
        case["share"],
        case["hold_s"],
    )
    converged = not np.isnan(found_s)
    time_s = found_s if converged else case["duration_s"] / 2
    taken = steps(watched)
    before = taken[taken["end_s"] <= time_s]
    return [
        {
            "converged": converged,
            "convergence_s": time_s,
            "steps": len(before),
            "lowered": int((before["limit"].diff() < 0).sum()),
            "size_at_end": steady(watched, case["itl_slo_s"])[case["size"]],
        }
    ]


def plot(frame: DataFrame, parameters: ConvergenceTime) -> Any:
    """A panel per model; a group per variant and target; points are rates."""
    figure = new_figure(5.8 * len(parameters.llms), 4.2)
    panels = figure.subplots(1, len(parameters.llms), squeeze=False, sharey=True)[0]
    groups = [(slo_s, variant) for slo_s in parameters.slos_s for variant in VARIANTS]
    width = 0.8 / len(parameters.controllers)
    for axes, llm in zip(panels, parameters.llms, strict=True):
        for k, controller in enumerate(parameters.controllers):
            mine = frame[(frame["llm"] == llm) & (frame["controller"] == controller)]
            by = ["itl_slo_s", "variant"]
            bars = mine.groupby(by)["convergence_s"].mean().loc[groups]
            points = mine.groupby([*by, "overload"])["convergence_s"].mean().unstack().loc[groups]
            x = np.arange(len(groups)) + (k - (len(parameters.controllers) - 1) / 2) * width
            name = NAMES.get(controller, controller)
            axes.bar(x, bars, width * 0.9, color=f"C{k}", alpha=0.5, label=name)
            for overload, marker in zip(points.columns, "v.^<>x+", strict=False):
                label = f"at {overload:g} x the rate of Figure 11" if k == 0 else None
                axes.plot(x, points[overload], marker, color="0.2", ms=4, ls="", label=label)
        if llm in PAPER_S:
            axes.axhline(PAPER_S[llm], color="C3", lw=1, ls="--", label="paper, interactive target")
        axes.set_yscale("log")
        axes.set_xticks(
            np.arange(len(groups)),
            [f"{variant}\n{slo_s:g} s" for slo_s, variant in groups],
            rotation=45,
            fontsize=8,
        )
        axes.set_title(llm, fontsize=10)
        axes.grid(axis="y", alpha=0.3)
    panels[0].set_ylabel("time to converge (s)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    return figure


def claims(frame: DataFrame, parameters: ConvergenceTime) -> list[Claim]:
    """Minutes at most, seconds for the small model, the same at all rates."""
    mine = frame[frame["controller"] == "chiron"]
    tight_s, half_s = min(parameters.slos_s), parameters.duration_s / 2
    found = []
    plain = mine[(mine["variant"] == "plain") & np.isclose(mine["itl_slo_s"], tight_s)]
    for llm in parameters.llms:
        if llm in PAPER_S:
            found.append(
                about(
                    f"{SHORT[llm]} with the interactive target converges in {PAPER_S[llm]:.0f} s",
                    PAPER_S[llm],
                    _by_seed(plain[plain["llm"] == llm], _time),
                    nothing=half_s,
                    unit="s",
                    reason=_steps_reason(plain, llm),
                )
            )
    if len(parameters.llms) > 1:
        small, large = parameters.llms[:2]
        found.append(
            about(
                "The small model converges 10 times faster than the large one",
                10.0,
                _by_seed(
                    plain,
                    lambda one: _time(one[one["llm"] == large]) / _time(one[one["llm"] == small]),
                ),
                nothing=1.0,
                unit="x",
                reason=f"{_steps_reason(plain, small)}; {_steps_reason(plain, large)}",
            )
        )
        found.append(
            at_least(
                "The large model with the interactive target takes longest",
                1.0,
                _by_seed(mine, lambda one: _over_others(one, large, tight_s)),
                nothing=0.99,
                unit="x the longest of all others",
                paper="the maximum",
                reason=_slowest_reason(mine),
            )
        )
    found.append(
        at_most(
            "Convergence takes less than a few minutes in every configuration",
            180.0,
            _by_seed(mine, _longest),
            nothing=half_s,
            unit="s, the longest of all configurations",
            paper="less than a few minutes",
            reason=_slowest_reason(mine),
        )
    )
    if len(parameters.overloads) > 1:
        rates = sorted(parameters.overloads)
        found.append(
            at_most(
                "Convergence time is independent of the arrival rate (interactive target)",
                1.25,
                _by_seed(mine[np.isclose(mine["itl_slo_s"], tight_s)], _over_rates),
                nothing=rates[-1] / rates[0],
                unit=f"x between rates that differ {rates[-1] / rates[0]:g} times",
                paper="independent",
                reason=_rate_reason(mine[np.isclose(mine["itl_slo_s"], tight_s)]),
            )
        )
    return found


def _time(frame: DataFrame) -> float:
    return float(frame["convergence_s"].mean())


def _per_configuration(frame: DataFrame) -> Any:
    return frame.groupby(["llm", "variant", "itl_slo_s"])["convergence_s"].mean()


def _longest(frame: DataFrame) -> float:
    return float(_per_configuration(frame).max())


def _over_others(frame: DataFrame, llm: str, slo_s: float) -> float:
    """Longest time of a model under a target over the longest of all else."""
    its = (frame["llm"] == llm) & np.isclose(frame["itl_slo_s"], slo_s)
    return _longest(frame[its]) / _longest(frame[~its])


def _over_rates(frame: DataFrame) -> float:
    times = frame.groupby("overload")["convergence_s"].mean()
    return float(times.max() / times.min())


def _by_seed(frame: DataFrame, number: Any) -> Interval:
    return mean_interval([float(number(mine)) for _, mine in frame.groupby("seed")])


def _steps_reason(plain: DataFrame, llm: str) -> str:
    one = plain[plain["llm"] == llm]
    mean = one[["steps", "lowered", "convergence_s", "size_at_end"]].mean()
    return (
        f"{SHORT.get(llm, llm)}: {mean['steps']:.1f} steps, {mean['lowered']:.1f} of them down, in "
        f"{mean['convergence_s']:.0f} s, to a batch of {mean['size_at_end']:.0f}"
    )


def _slowest_reason(mine: DataFrame) -> str:
    times = _per_configuration(mine)
    llm, variant, slo_s = times.idxmax()
    its = (mine["llm"] == llm) & (mine["variant"] == variant) & (mine["itl_slo_s"] == slo_s)
    worst = mine[its][["lowered"]].mean()
    missing = 1 - mine["converged"].astype(float).mean()
    return (
        f"slowest on average: {SHORT.get(llm, llm)}, {variant}, target {slo_s:g} s, with "
        f"{times.max():.0f} s ({worst['lowered']:.1f} steps down on the way); "
        f"{missing:.0%} of all runs did not converge in their first half"
    )


def _rate_reason(mine: DataFrame) -> str:
    times = mine.groupby("overload")["convergence_s"].mean()
    filling = (mine["size_at_end"] / mine["rate_per_s"]).groupby(mine["overload"]).mean()
    shown = ", ".join(
        f"{times[overload]:.0f} s ({filling[overload]:.0f} s) at {overload:g} x"
        for overload in times.index
    )
    down = mine.groupby("overload")["lowered"].mean()
    return (
        "a batch cannot fill before its requests have come: mean time to converge over configurations "
        f"(and converged batch over arrival rate) {shown}; and some runs lower the limit on the way: "
        + ", ".join(f"{count:.1f} times at {overload:g} x" for overload, count in down.items())
    )
