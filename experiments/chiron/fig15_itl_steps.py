"""Inter-token latency across steps of the local autoscaler.

One instance of each model, plain, from a batch limit of 64, under some three times the interactive requests
that it can serve. A step lasts from one change of the limit to the next; its latency is the mean over the
requests that run in it, stalls by the prefills of others included. Drawn is the first seed, for Chiron and
for the algorithm as printed.

Latency is the time in which requests ran over the tokens that they received. The algorithm lowers a limit
after a target was missed; how far latency overshoots and for how long is what is to be seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import PositiveFloat

from experiments.chiron.convergence import (
    NAMES,
    SHARED,
    SHORT,
    LocalParameters,
    overloaded,
    steps,
    watch,
)
from experiments.harness.claims import Claim, at_most, every
from experiments.harness.figure import SEEDS, Grid, by_seed, claimed, dress, legend_below, where
from experiments.harness.parameters import ours, paper
from experiments.output import new_figure

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 15"
FEW_STEPS = 3
"""What the paper's "a few steps" is read as."""


class ItlSteps(LocalParameters):
    """Parameters of this figure."""

    slos_s: Annotated[
        tuple[PositiveFloat, ...],
        paper("section 6, interactive, of which it speaks; the first one is drawn", min_length=1),
    ] = (0.2,)
    drawn_steps: Annotated[int, ours("what a picture shows", ge=1)] = 100


PARAMETERS = {
    "quick": ItlSteps(seeds=2, duration_s=600),
    "paper": ItlSteps(seeds=10),
}


cases = Grid(
    {
        "seed": SEEDS,
        "llm": overloaded,
        "variant": ("plain",),
        "controller": lambda parameters, _: (*parameters.controllers, "fixed"),
        "itl_slo_s": "slos_s",
    },
    keep=SHARED,
    first=("seed", "llm", "variant", "controller", "itl_slo_s"),
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per step; the last one only if it was not cut short (which would show its beginning only)."""
    taken = steps(watch(case)).rename_axis("step").reset_index()
    length_s = taken["end_s"] - taken["start_s"]
    if len(taken) > 1 and length_s.iloc[-1] < length_s.iloc[:-1].median():
        taken = taken.iloc[:-1]
    taken["raised"] = taken["limit"].diff() > 0
    return [{str(key): value for key, value in row.items()} for row in taken.to_dict("records")]


def excerpt(frame: DataFrame, parameters: ItlSteps) -> DataFrame:
    """What is drawn: the first steps of the first seed."""
    first = (frame["seed"] == frame["seed"].min()) & (frame["step"] < parameters.drawn_steps)
    columns = [
        "seed",
        "llm",
        "controller",
        "itl_slo_s",
        "step",
        "end_s",
        "limit",
        "running",
        "itl_s",
    ]
    return frame.loc[first, columns]


def plot(frame: DataFrame, parameters: ItlSteps) -> Any:
    """Latency above, the limit below; a column per model."""
    figure = new_figure(5.6 * len(parameters.llms), 5.6)
    grid = figure.subplots(2, len(parameters.llms), squeeze=False, sharex=True)
    slo_s = parameters.slos_s[0]
    first = frame[(frame["seed"] == frame["seed"].min()) & np.isclose(frame["itl_slo_s"], slo_s)]
    itl_ticks, limit_ticks = (
        [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2],
        [1, 4, 16, 64, 256, 1024, 4096],
    )
    for (above, below), llm in zip(grid.T, parameters.llms, strict=True):
        for k, controller in enumerate(parameters.controllers):
            mine = where(first, llm=llm, controller=controller)
            mine = mine[mine["step"] < parameters.drawn_steps]
            look = {"color": f"C{k}", "marker": ".", "ms": 4, "lw": 1}
            above.plot(mine["step"], mine["itl_s"], label=NAMES[controller], **look)
            below.plot(mine["step"], mine["limit"], **look)
        above.axhline(slo_s, color="C3", lw=1, ls="--", label=f"target, {slo_s:g} s")
        dress(above, title=llm, log="y", ylabel="inter-token latency (s)")
        above.set_yticks(itl_ticks, itl_ticks)
        above.minorticks_off()
        below.set_yscale("log", base=2)
        below.set_yticks(limit_ticks, limit_ticks)
        what = "step of the autoscaler (change of the limit)"
        dress(below, xlabel=what, ylabel="batch limit (requests)")
    legend_below(figure, grid[0, 0])
    return figure


@claimed
def claims(frame: DataFrame, parameters: ItlSteps) -> Iterator[Claim]:
    """Section 6.3: the target is exceeded, but for a few steps."""
    mine = where(frame, controller="chiron")
    if mine.empty:
        return
    late = mine[mine["end_s"] > parameters.duration_s / 2]
    fixed = where(frame, controller="fixed")["itl_s"].median()
    yield every(
        "The local autoscaler may exceed the ITL target for a few steps",
        [
            at_most(
                SHORT[llm] + (f", {slo_s:g} s" if len(parameters.slos_s) > 1 else ""),
                FEW_STEPS,
                by_seed(one, partial(_longest_excess, slo_s=slo_s)),
                nothing=None,
                unit="steps in a row at most",
                reason=_excess_reason(one, slo_s),
            )
            for slo_s in parameters.slos_s
            for llm in parameters.llms
            for one in [where(late[np.isclose(late["itl_slo_s"], slo_s)], llm=llm)]
        ],
        paper=f"a few steps (read as {FEW_STEPS})",
        how="the limit is halved after each step whose latency exceeds the target",
        setting="second half of a saturated run",
        note=f"median latency {late['itl_s'].median():.2f} s, with the first limit {fixed:.2f} s",
    )


def _longest_excess(frame: DataFrame, slo_s: float) -> int:
    """Most steps in a row with latency above the target."""
    longest = current = 0
    for itl_s in frame.sort_values("step")["itl_s"]:
        current = current + 1 if itl_s > slo_s else 0
        longest = max(longest, current)
    return longest


def _excess_reason(late: DataFrame, slo_s: float) -> str:
    length_s = late["end_s"] - late["start_s"]
    above = late["itl_s"] > slo_s
    if not above.any():
        return ""
    return (
        f"{above.mean():.0%} of the steps and {length_s[above].sum() / length_s.sum():.0%} of the time are "
        f"above the target, by at most {late['itl_s'].max() / slo_s - 1:.0%}"
    )
