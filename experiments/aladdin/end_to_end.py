"""Attainment and p99 ATGT against the rate on a machine of 4 GPUs (Figures 9 and 10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from agents.statistics import Interval, mean_interval
from experiments.aladdin.serving import capacity_per_worker, four_gpus, serve
from experiments.aladdin.setting import DEGREES, SLOS_S, shown
from experiments.harness.figure import SEEDS, Grid, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure

if TYPE_CHECKING:
    from pandas import DataFrame

GPUS = 4
STYLES = {
    "aladdin": ("Aladdin", "C0", "o", "-"),
    "aladdin:theta=0.7": ("Aladdin, theta = 0.7", "C0", ".", "--"),
    "jsq": ("shortest queue, best degree", "C1", "s", "-"),
    "machine-wide": ("default vLLM: one worker of 4 GPUs", "C3", "^", "-"),
}
ALADDIN, STRICT, JSQ, WIDE = STYLES


class EndToEnd(Parameters):
    """Parameters of both figures."""

    llms: Annotated[tuple[str, ...], paper("section 6.3", min_length=1)]
    gpu: Annotated[str, paper("section 6.1")]
    policies: Annotated[
        tuple[str, ...], paper("section 6.3; theta = 0.7 is ours", min_length=1)
    ] = tuple(STYLES)
    degrees: Annotated[
        Literal["table3", "own"],
        paper("Table 3; or the best by Eq. 6 with this project's times"),
    ] = "table3"
    loads: Annotated[
        tuple[Annotated[float, Field(gt=0, le=5)], ...],
        ours(
            "the paper's rates are only drawn: shares of what the workers of Table 3 take as a fluid",
            min_length=1,
        ),
    ] = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25)
    arrivals_s: Annotated[float, ours("some thousand requests", gt=0)] = 240.0
    patience_s: Annotated[float, ours("until all have ended", gt=0)] = 120.0
    heartbeat_s: Annotated[float, ours("the paper gives none", gt=0)] = 0.1
    predictor: Annotated[
        Literal["conditional_mean", "oracle"], paper("section 2.3; oracle: a bound")
    ] = "conditional_mean"


KEPT = ("gpu", "degrees", "arrivals_s", "patience_s", "heartbeat_s", "predictor")
cases = Grid(
    {
        "llm": "llms",
        "load": "loads",
        "rate_per_s": lambda parameters, case: [
            case["load"] * fluid_rate(case["llm"], parameters.gpu)
        ],
        "policy": "policies",
        "seed": SEEDS,
    },
    keep=KEPT,
    first=KEPT,
)


def fluid_rate(llm: str, gpu: str) -> float:
    """Requests/s that the machine takes with workers of Table 3's degree, to four digits."""
    tp = DEGREES[llm, gpu]
    return float(f"{GPUS // tp * capacity_per_worker(llm, gpu, tp):.4g}")


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One episode."""
    parameters = {}
    if case["degrees"] == "table3" and not case["policy"].startswith(WIDE):
        parameters["tp"] = DEGREES[case["llm"], case["gpu"]]
    scenario = four_gpus(case["llm"], case["gpu"], case["rate_per_s"])
    return [serve(scenario, case["policy"], case, **parameters)]


def plot(frame: DataFrame, parameters: EndToEnd) -> Any:
    """A column per LLM: attainment above, p99 ATGT below."""
    figure = new_figure(5.6 * len(parameters.llms), 6.4)
    panels = figure.subplots(2, len(parameters.llms), squeeze=False)
    for (top, bottom), llm in zip(panels.T, parameters.llms, strict=True):
        ttft_s, itl_s = SLOS_S[llm, parameters.gpu]
        for policy in parameters.policies:
            label, colour, marker, line = STYLES.get(policy, (policy, None, "x", "-"))
            mine = where(frame, llm=llm, policy=policy)
            by_rate = mine.groupby("rate_per_s")
            for axes, column, scale in ((top, "attainment", 100), (bottom, "atgt_p99_s", 1e3)):
                part = scale * by_rate[column].agg(["mean", "min", "max"])
                axes.plot(part["mean"], marker=marker, ms=4, color=colour, ls=line, label=label)
                axes.fill_between(
                    part.index, part["min"], part["max"], color=colour, alpha=0.15, lw=0
                )
        for axes in (top, bottom):
            axes.axvline(
                fluid_rate(llm, parameters.gpu), color="grey", lw=0.8, ls=":",
                label="what workers of this degree can take",
            )  # fmt: skip
            axes.grid(alpha=0.3)
        bottom.axhline(1e3 * itl_s, color="grey", lw=0.8, label="SLO")
        bottom.set_ylim(0, 3e3 * itl_s)
        top.set_ylim(0, 103)
        top.set_title(
            f"{shown(llm, parameters.gpu, DEGREES[llm, parameters.gpu])} per worker; "
            f"TTFT {1e3 * ttft_s:g} ms, ATGT {1e3 * itl_s:g} ms",
            fontsize=9,
        )
        bottom.set_xlabel("requests/s")
    panels[0][0].set_ylabel("requests that keep both SLOs (%)")
    panels[1][0].set_ylabel("p99 ATGT (ms)")
    panels[0][0].legend(fontsize=7, loc="lower left")
    return figure


# ---- what claims are made of ----


def compared(
    frame: DataFrame, llm: str, column: str, first: str, second: str
) -> tuple[DataFrame, DataFrame]:
    """A column under two policies, by seed (rows) and load (columns)."""
    mine = where(frame, llm=llm)
    one, two = (
        where(mine, policy=policy).pivot_table(index="seed", columns="load", values=column)
        for policy in (first, second)
    )
    return one, two


def largest(table: DataFrame) -> tuple[Interval, float]:
    """The load with the largest mean, its mean and interval over seeds ("up to").

    It is chosen by the mean over all seeds, so that it is one load and not the luckiest run of each seed.
    """
    if table.empty:
        return Interval(float("nan"), float("nan"), float("nan")), float("nan")
    load = table.mean().idxmax()
    return mean_interval(table[load]), float(load)


def more_attained(frame: DataFrame, llm: str, other: str) -> DataFrame:
    """Attainment of Aladdin less that of another, in percentage points."""
    one, two = compared(frame, llm, "attainment", ALADDIN, other)
    return 100 * (one - two)


def shorter(frame: DataFrame, llm: str, first: str, other: str) -> DataFrame:
    """By how many per cent the p99 ATGT of the first is below another's."""
    one, two = compared(frame, llm, "atgt_p99_s", first, other)
    return 100 * (1 - one / two)


def name(llm: str) -> str:
    """Of an LLM, by its size."""
    return llm.removeprefix("llama-2-").upper()
