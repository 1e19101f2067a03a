"""Convergence time of the local autoscaler, by model, optimisation and latency target.

One instance of each configuration of Figure 11, from a batch limit of 64, under constant rates of requests
that all exceed what it can serve. The paper does not define convergence. Here a run has converged when the
running batch stays within a factor of two of its later median, for ten seconds without a break and 90 % of
the remaining time.

A factor of two is what the algorithm's own halving moves a batch by; the median is over the run's second
half. `band=1.2`, `share=1` and `size=limit` are the strict readings (never leaving +-20 %, and the limit
itself). A run that has not converged in its first half is said to take longer than any that has (infinitely
long): times are medians over rates, which such runs do not distort as they would a mean, and "longest" is
the longest of all runs. The picture marks how many there are. Algorithm 1 as printed converges too, mostly to
a batch of one (Figure 11).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import PositiveFloat

from experiments.chiron.convergence import (
    LARGE,
    NAMES,
    OVERLOAD_PER_S,
    SHARED,
    SHORT,
    SMALL,
    VARIANTS,
    LocalParameters,
    converged_s,
    steady,
    steps,
    watch,
)
from experiments.harness.claims import Claim, about, at_most, every, more
from experiments.harness.figure import (
    SEEDS,
    Grid,
    by_seed,
    claimed,
    dress,
    legend_below,
    places,
    where,
)
from experiments.harness.parameters import ours
from experiments.output import new_figure

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 12"
PAPER_S = {SMALL: 15.0, LARGE: 150.0}


class ConvergenceTime(LocalParameters):
    """Parameters of this figure."""

    overloads: Annotated[
        tuple[PositiveFloat, ...],
        ours(
            "times Figure 11's rate, which is some three times what an instance can serve",
            min_length=1,
        ),
    ] = (0.5, 1.0, 2.0)
    band: Annotated[float, ours("the algorithm's own halving; 1.2: +-20 %", gt=1)] = 2.0
    share: Annotated[float, ours("of the time that is left; 1: never leaves", gt=0, le=1)] = 0.9
    hold_s: Annotated[float, ours("passing by is not converging", ge=0)] = 10.0
    size: Annotated[Literal["batch", "limit"], ours("as in Figure 11")] = "batch"


PARAMETERS = {
    "quick": ConvergenceTime(seeds=2, duration_s=400),
    "paper": ConvergenceTime(seeds=5),
}


cases = Grid(
    {
        "seed": SEEDS,
        "llm": "llms",
        "variant": VARIANTS,
        "itl_slo_s": "slos_s",
        "controller": "controllers",
        "rate": lambda parameters, case: [
            {"rate_per_s": overload * OVERLOAD_PER_S[case["llm"]], "overload": overload}
            for overload in parameters.overloads
        ],
    },
    keep=(*SHARED, "band", "share", "hold_s", "size"),
)


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


def _times(frame: DataFrame) -> DataFrame:
    """With `time_s`: infinite where a run did not converge, of which only a lower bound is known."""
    converged = frame["converged"].astype(bool)
    return frame.assign(time_s=frame["convergence_s"].astype(float).where(converged, np.inf))


def plot(frame: DataFrame, parameters: ConvergenceTime) -> Any:
    """A panel per model; a group per variant and target; bars are medians, points those of a rate."""
    figure = new_figure(5.8 * len(parameters.llms), 4.2)
    panels = figure.subplots(1, len(parameters.llms), squeeze=False, sharey=True)[0]
    groups = [(slo_s, variant) for slo_s in parameters.slos_s for variant in VARIANTS]
    bound_s = parameters.duration_s / 2
    frame = _times(frame)
    for axes, llm in zip(panels, parameters.llms, strict=True):
        axes.set_yscale("log")
        for k, controller in enumerate(parameters.controllers):
            mine = where(frame, llm=llm, controller=controller)
            by = ["itl_slo_s", "variant"]
            bars = mine.groupby(by)["time_s"].median().loc[groups]
            points = mine.groupby([*by, "overload"])["time_s"].median().unstack().loc[groups]
            missing = (~np.isfinite(mine["time_s"])).groupby([mine[name] for name in by]).sum()
            x, width = places(k, len(parameters.controllers), len(groups))
            known = bars.replace(np.inf, np.nan)
            name = NAMES[controller]
            axes.bar(x, known, width * 0.9, color=f"C{k}", alpha=0.5, label=name)
            for overload, marker in zip(points.columns, "v.^<>x+", strict=False):
                label = f"at {overload:g} x the rate of Figure 11" if k == 0 else None
                known = points[overload].replace(np.inf, np.nan)
                axes.plot(x, known, marker, color="0.2", ms=4, ls="", label=label)
            for at, count in zip(x, missing.loc[groups], strict=True):
                if count:
                    look = {"fontsize": 7, "ha": "center", "va": "bottom"}
                    axes.annotate(f"{count}", (at, bound_s), **look)
        if llm in PAPER_S:
            axes.axhline(PAPER_S[llm], color="C3", lw=1, ls="--", label="paper, interactive target")
        what = "half a run; above it: runs that did not converge in it"
        axes.axhline(bound_s, color="0.4", lw=0.8, ls=":", label=what)
        names = [f"{variant}\n{slo_s:g} s" for slo_s, variant in groups]
        axes.set_xticks(range(len(groups)), names, rotation=45, fontsize=8)
        dress(axes, title=llm, lines="y", ylim=(1, 2 * bound_s))
    panels[0].set_ylabel("time to converge (s, median)")
    legend_below(figure, panels[0], 3)
    return figure


@claimed
def claims(frame: DataFrame, parameters: ConvergenceTime) -> Iterator[Claim]:
    """Section 6.3: minutes at most, the large model longest, the small one 10 times faster, at all rates."""
    mine = _times(where(frame, controller="chiron"))
    if mine.empty:
        return
    tight_s = min(parameters.slos_s)
    tight = mine[np.isclose(mine["itl_slo_s"], tight_s)]
    plain = where(tight, variant="plain")
    how = "the local autoscaler alone, from a limit of 64"

    def takes(llm: str) -> list[Claim]:
        if llm not in parameters.llms:
            return []
        found = by_seed(plain, partial(_median, llm=llm))
        words = {"unit": "s, median over rates", "reason": _steps(plain, llm)}
        return [about(SHORT[llm], PAPER_S[llm], found, nothing=None, **words)]

    faster, longest = [], []
    if set(PAPER_S) <= set(parameters.llms):
        faster = [
            about(
                "70B over 8B",
                10.0,
                by_seed(plain, lambda one: _median(one, LARGE) / _median(one, SMALL)),
                nothing=1.0,
                unit="x",
                reason=f"{_steps(plain, SMALL)}; {_steps(plain, LARGE)}",
            )
        ]
        longest = [
            more(
                "against all other configurations",
                1.0,
                by_seed(mine, lambda one: _over_others(one, LARGE, tight_s)),
                unit="x the longest of them",
                reason=_slowest(mine),
            )
        ]
    yield at_most(
        "Convergence times are less than a few minutes",
        180.0,
        by_seed(mine, lambda one: float(one["time_s"].max())),
        nothing=None,
        unit="s, the longest of all runs",
        paper="less than a few minutes",
        reason=_slowest(mine),
        note=_missing(mine) or f"all {len(mine)} runs converged",
        how=how,
        setting="every configuration, at three rates",
    )
    for sentence, paper_says, parts in (
        (
            "Llama 70B with the interactive target has the maximum convergence time, about 150 s",
            "150 s, the maximum",
            takes(LARGE) + longest,
        ),
        (
            "Llama 8B converges in 15 s, 10 times faster than Llama 70B",
            "15 s, 10 x",
            takes(SMALL) + faster,
        ),
    ):
        if parts:
            yield every(sentence, parts, paper=paper_says, how=how, setting=f"{tight_s:g} s, plain")
    rates = sorted(parameters.overloads)
    if len(rates) > 1:
        yield at_most(
            "The convergence time is independent of the arrival rate",
            1.25,
            by_seed(tight, _over_rates),
            nothing=None,
            unit=f"x between rates that differ {rates[-1] / rates[0]:g} times",
            paper="independent",
            reason=_rates(tight),
            how=how,
            setting=f"medians over the configurations with a target of {tight_s:g} s",
        )


def _median(frame: DataFrame, llm: str) -> float:
    """Of a model's runs; infinite if most of them did not converge."""
    return float(frame.loc[frame["llm"] == llm, "time_s"].median())


def _per_configuration(frame: DataFrame) -> Any:
    return frame.groupby(["llm", "variant", "itl_slo_s"])["time_s"].median()


def _over_others(frame: DataFrame, llm: str, slo_s: float) -> float:
    """Longest time of a model under a target over the longest of all else, medians over rates."""
    its = (frame["llm"] == llm) & np.isclose(frame["itl_slo_s"], slo_s)
    longest, others = (float(_per_configuration(part).max()) for part in (frame[its], frame[~its]))
    return longest / others


def _over_rates(frame: DataFrame) -> float:
    times = frame.groupby("overload")["time_s"].median()
    return float(times.max()) / float(times.min())


def _missing(frame: DataFrame) -> str:
    """How many runs did not converge; nothing if all did."""
    count = int(np.isinf(frame["time_s"]).sum())
    bound_s = frame["duration_s"].iloc[0] / 2
    text = f"{count} of {len(frame)} runs did not converge within {bound_s:g} s"
    return f"{text} and count as infinitely long" if count else ""


def _steps(plain: DataFrame, llm: str) -> str:
    mine = plain[plain["llm"] == llm]
    done = mine[np.isfinite(mine["time_s"])]
    if done.empty:
        return f"{SHORT[llm]}: no run converged"
    mean = done[["steps", "time_s", "size_at_end", "first_limit"]].mean()
    return (
        f"{SHORT[llm]}: {mean['steps']:.1f} steps in {mean['time_s']:.0f} s, from a limit of "
        f"{mean['first_limit']:.0f} to a batch of {mean['size_at_end']:.0f}"
    )


def _slowest(mine: DataFrame) -> str:
    times = _per_configuration(mine)
    llm, variant, slo_s = times.idxmax()
    return (
        f"slowest: {SHORT.get(llm, llm)}, {variant}, target {slo_s:g} s, median {times.max():.0f} s"
    )


def _rates(mine: DataFrame) -> str:
    times = mine.groupby("overload")["time_s"].median()
    filling = (mine["size_at_end"] / mine["rate_per_s"]).groupby(mine["overload"]).mean()
    shown = ", ".join(
        f"{time_s:.0f} s ({filling[overload]:.0f} s) at {overload:g} x"
        for overload, time_s in times.items()
    )
    return (
        "a batch cannot fill before its requests have come: median time to converge (and converged batch "
        f"over arrival rate) {shown}"
    )
