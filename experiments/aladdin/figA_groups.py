"""Grouped scheduling: workers that groups cost, against the time that they save (Eq. 8).

Requests of a steady state are dealt to groups by round robin and packed by Algorithm 1, each group's on
workers of its own. Left: workers beyond those of a single group, by workers per group, beside the paper's
1 / (2 e). Right: the slowest group's round (as in Figure 13, in Python) by number of groups, beside a fit
of a n log n + b to one group.

The paper's rule says that half of the groups need one worker more. Eq. 8 limits rates from below by 1 /
(2 e); it is read as a limit of workers, as the appendix's text has it; `literal=true` takes it as
printed. Rates are ours: the paper gives none for its appendix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, PositiveInt

from agents.statistics import mean_interval
from baselines.aladdin.constraints import Worker
from baselines.aladdin.groups import SchedulingTime, choose_groups, smallest_group
from baselines.aladdin.placement import best_fit
from experiments.aladdin.fig13_overhead import least_s
from experiments.aladdin.population import arriving, ongoing
from experiments.aladdin.setting import DEGREES, LENGTHS, rules_of, shown
from experiments.harness.claims import Claim, about, asked, at_most
from experiments.harness.figure import claimed, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Appendix A"
CLOCKS = ("round_s",)
GPU = "a100-80gb"


class Groups(Parameters):
    """Parameters of this figure."""

    llm: Annotated[
        Literal["llama-2-7b", "llama-2-13b", "llama-2-70b"], ours("one GPU per worker, mid-sized")
    ] = "llama-2-13b"
    rates_per_s: Annotated[
        tuple[Annotated[float, Field(ge=2)], ...],
        ours("the paper's 25 per second and beyond", min_length=1),
    ] = (25, 50, 100, 200)
    groups: Annotated[
        tuple[PositiveInt, ...], ours("as far as there are workers", min_length=1)
    ] = (*(1, 2, 3, 4, 6, 8, 12, 16, 24),)
    error: Annotated[float, paper("appendix A: e", gt=0, lt=1)] = 0.1
    limit_s: Annotated[float, paper("section 6.5: T_s", gt=0)] = 0.05
    literal: Annotated[bool, ours("Eq. 8 as printed limits rates and not workers")] = False
    heartbeat_s: Annotated[float, ours("as Figure 13", gt=0)] = 1.0
    gamma: Annotated[float, paper("section 4.2", ge=0, le=1)] = 0.5
    theta: Annotated[float, ours("the paper gives no value", gt=0, le=1)] = 0.9
    pace: Annotated[float, ours("inter-token latency, of the SLO", gt=0, le=1)] = 0.8
    room: Annotated[float, ours("share of requests gone before a timed round", ge=0, lt=1)] = 0.1
    lengths: Annotated[str, paper("section 6.1: ShareGPT")] = LENGTHS
    repeats: Annotated[int, ours("of a timed round; the least counts", ge=1)] = 2


PARAMETERS = {
    "quick": Groups(seeds=3, rates_per_s=(25, 50, 100)),
    "paper": Groups(seeds=8),
}


def cases(parameters: Groups) -> list[dict[str, Any]]:
    """A run per seed and rate; all numbers of groups share its requests."""
    kept = {"seeds", "rates_per_s", "groups", "error", "limit_s", "literal"}
    common = parameters.model_dump(exclude=kept)
    return [
        {
            "seed": seed,
            "rate_per_s": float(rate),
            "groups": sorted({1, *parameters.groups}),
            **common,
        }
        for seed in parameters.seed_list()
        for rate in parameters.rates_per_s
    ]


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per number of groups, up to one per worker."""
    rng = np.random.default_rng(case["seed"])
    rules = rules_of(case["llm"], GPU, gamma=case["gamma"], theta=case["theta"])
    table, rate = case["lengths"], case["rate_per_s"]
    there = ongoing(table, rate, case["pace"] * rules.itl_slo_s, rng)
    new = arriving(table, max(1, round(rate * case["heartbeat_s"])), rng)
    left = rng.random(len(there)) >= case["room"]
    gone = {id(request) for request, stays in zip(there, left, strict=True) if not stays}
    rows: list[dict[str, Any]] = []
    for groups in case["groups"]:
        if rows and groups > rows[0]["workers"]:
            break
        packed = [best_fit(there[k::groups], (), rules).workers for k in range(groups)]
        slowest = 0.0
        for k, workers in enumerate(packed):
            now = tuple(_without(worker, gone) for worker in workers)
            mine = new[k::groups]
            call = lambda mine=mine, now=now: best_fit(mine, now, rules)  # noqa: E731
            slowest = max(slowest, least_s(call, case["repeats"]))
        rows.append(
            {
                "n_groups": groups,
                "workers": sum(map(len, packed)),
                "smallest": min(map(len, packed)),
                "ongoing": len(there),
                "round_s": slowest,
            }
        )
    return [{**row, "centralised": rows[0]["workers"]} for row in rows]


def _without(worker: Worker, gone: set[int]) -> Worker:
    return tuple(request for request in worker if id(request) not in gone)


def scheduling_time(frame: DataFrame, heartbeat_s: float) -> SchedulingTime | None:
    """The line a n log n + b through the rounds of one group; None with fewer than three rates."""
    one = where(frame, n_groups=1).groupby("rate_per_s")["round_s"].mean()
    if len(one) < 3:
        return None
    return SchedulingTime.fit(one.index.to_numpy(), one.to_numpy(), heartbeat_s)


def plot(frame: DataFrame, parameters: Groups) -> Any:
    """Left: additional workers. Right: time of a round."""
    figure = new_figure(10.6, 4.6)
    left, right = figure.subplots(1, 2)
    fit = scheduling_time(frame, parameters.heartbeat_s)
    for k, rate in enumerate(parameters.rates_per_s):
        mine = where(frame, rate_per_s=rate)
        # Many groups exist only in runs that happen to have as many workers: those would be chosen.
        seeds = mine.groupby("n_groups")["seed"].nunique()
        mean = mine.groupby("n_groups").mean(numeric_only=True)[seeds == seeds.max()]
        grouped = mean[mean.index > 1]
        extra = 100 * (grouped["workers"] / grouped["centralised"] - 1)
        label = f"{rate:g} requests/s, {mean['centralised'].iloc[0]:.0f} workers"
        left.plot(
            grouped["centralised"] / grouped.index, extra, "o-", ms=4, color=f"C{k}", label=label
        )
        right.plot(mean.index, 1e3 * mean["round_s"], "o-", ms=4, color=f"C{k}", label=label)
        if fit is not None:
            fitted = [1e3 * fit.seconds(rate / groups) for groups in mean.index]
            right.plot(mean.index, fitted, "--", lw=1, color=f"C{k}")
    size = np.geomspace(1, 50, 60)
    left.plot(size, 100 / (2 * size), "k--", lw=1, label="1 / (2 x workers per group)")
    left.plot(
        smallest_group(parameters.error), 100 * parameters.error, "k*", ms=11, ls="none",
        label="the paper's example",
    )  # fmt: skip
    left.set_xscale("log", base=2)
    left.set_xlabel("workers per group (of those of one group in all)")
    left.set_ylabel("additional workers (%)")
    left.set_ylim(bottom=0)
    if fit is not None:
        right.plot([], [], "--", lw=1, color="0.4", label="a n log n + b, of one group")
    right.axhline(
        1e3 * parameters.limit_s,
        color="0.4",
        lw=1,
        ls=":",
        label=f"{1e3 * parameters.limit_s:g} ms",
    )
    right.set_xscale("log", base=2)
    right.set_yscale("log")
    right.set_xlabel("groups")
    right.set_ylabel("slowest group's round (ms)")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle(shown(parameters.llm, GPU, DEGREES[parameters.llm, GPU]), fontsize=10)
    return figure


@claimed
def claims(frame: DataFrame, parameters: Groups) -> Iterator[Claim]:
    """Appendix A."""
    rate = max(parameters.rates_per_s)
    mine = where(frame, rate_per_s=rate)
    grouped = mine[mine["n_groups"] > 1]
    if len(grouped) == 0:
        return
    least = smallest_group(parameters.error)
    # Of each seed, the most groups that have enough workers each.
    enough = grouped[grouped["centralised"] / grouped["n_groups"] >= least]
    at = enough.loc[enough.groupby("seed")["n_groups"].idxmax()].set_index("seed")
    one = where(mine, n_groups=1).set_index("seed")["round_s"]
    extra = grouped.assign(each=(grouped["workers"] - grouped["centralised"]) / grouped["n_groups"])
    setting = f"{rate:g} requests/s, {mine['centralised'].mean():.0f} workers in one group"
    fit = scheduling_time(frame, parameters.heartbeat_s)
    yield at_most(
        f"With at least {least} workers in each group, groups need at most {100 * parameters.error:g} % more",
        100 * parameters.error,
        mean_interval(100 * (at["workers"] / at["centralised"] - 1)),
        nothing=None,
        unit="% more",
        how=f"Algorithm 1 packs each of {at['n_groups'].mean():.1f} groups on its own"
        if len(at)
        else "",
        setting=setting,
        reason=f"each group has {extra['each'].mean():.2f} workers too many on average",
    )
    yield asked(
        about(
            "Do half of the groups need one worker more, as the paper assumes?",
            0.5,
            mean_interval(extra.groupby("seed")["each"].mean()),
            nothing=0,
            unit="additional workers per group",
            how=f"the same packings in {grouped['n_groups'].min()} to {grouped['n_groups'].max()} groups",
            setting=setting,
        )
    )
    yield at_most(
        "Grouped scheduling reduces the scheduling latency",
        0.9,
        mean_interval(at["round_s"] / one.reindex(at.index)),
        nothing=1,
        unit="times that of one scheduler",
        paper="reduced (read as by a tenth or more)",
        how="each group places its part of the requests on its part of the workers",
        setting=setting,
        reason=f"{1e3 * one.mean():.1f} ms with one scheduler",
        note=_plans(parameters, rate, float(mine["centralised"].mean()), fit),
    )
    if fit is not None:
        predicted = grouped["n_groups"].map(lambda groups: fit.seconds(rate / groups))
        ratio = grouped.assign(ratio=grouped["round_s"] / predicted)
        by = ratio.groupby("n_groups")["ratio"].mean()
        yield about(
            "The scheduling latency of each group is predictable from its arrival rate as O(n log n)",
            1,
            mean_interval(ratio.groupby("seed")["ratio"].median()),
            nothing=None,
            unit="times the predicted round",
            paper="predictable",
            how="median over numbers of groups, against a fit to one group",
            setting=setting,
            reason=f"nearest: {by.iloc[0]:.2f} with {by.index[0]} groups; a round grows with its workers "
            "as well (Figure 13), and a group has fewer of them",
        )


def _plans(parameters: Groups, rate: float, workers: float, fit: SchedulingTime | None) -> str:
    """What Eq. 8 makes of the limit."""
    if fit is None:
        return ""
    plan = choose_groups(
        rate, round(workers), fit, parameters.limit_s, parameters.error, literal=parameters.literal
    )
    where = f"at {rate:g} requests/s and {1e3 * parameters.limit_s:g} ms"
    if plan is None:
        return f"Eq. 8 has no plan {where}"
    return (
        f"Eq. 8 plans {plan.groups} group{'s' if plan.groups > 1 else ''} {where}, with a round of "
        f"{1e3 * plan.scheduling_s:.0f} ms"
    )
