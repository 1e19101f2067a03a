"""Interactive and batch requests of one LLM: throughput and SLO attainment against the interactive rate.

Workload W_A on 50 A100 with Vicuna-13B: interactive requests (TTFT target 20 s), Batch-1 (one minute)
and Batch-2 (one hour). Throughput is that of a whole trace, from its first arrival to the end of its
last request; attainment counts all requests, further panels single classes.

Ours: the paper gives neither batch rates nor a duration. "equal": each class is a third of the
requests, as "we classify all requests into three categories" reads, and the rates are kept for a
minute. "fixed": Batch-1 and Batch-2 arrive at 50 per second each whatever the interactive rate, which
is half of what the fleet serves. "literal": thirds of 3,500 requests; they all fit into the
batches of 50 A100 at once, no queue forms and no policy misses anything, so the claims are of "equal".
EDF orders by deadline; "EDF by SLO" by the target alone, as section 8's sentence reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from agents.statistics import mean_interval
from experiments.harness.claims import Claim, about, at_most, between
from experiments.harness.figure import (
    SEEDS,
    Grid,
    claimed,
    dress,
    listed,
    paper_stars,
    where,
    wide,
)
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from experiments.qlm.loads import (
    STYLES,
    lines_by_policy,
    points_above,
    run_trace,
    single_model_cases,
)

if TYPE_CHECKING:
    from pandas import DataFrame, Series

FIGURE = "Figures 9 and 10"


class SingleModel(Parameters):
    """Parameters of these figures."""

    policies: Annotated[tuple[str, ...], paper("section 8", min_length=1)] = (
        "qlm",
        "edf",
        "edf:by=slo",
        "vllm",
        "shepherd",
    )
    loads: Annotated[tuple[str, ...], ours("see the text", min_length=1)] = (
        "equal",
        "fixed",
        "literal",
    )
    interactive_per_s: Annotated[
        tuple[float, ...], ours("a tenth to seven times what the fleet serves", min_length=1)
    ] = (25, 50, 75, 100, 150, 200, 300, 500)
    figure_9_per_s: Annotated[float, paper("Figure 9's caption", gt=0)] = 500.0
    batch_per_s: Annotated[float, ours("a quarter of what the fleet serves", gt=0)] = 50.0
    trace_s: Annotated[float, ours("three times the interactive target", gt=0)] = 60.0
    interval_s: Annotated[float, ours("how often arrivals are looked at", gt=0)] = 5.0
    patience_s: Annotated[float, ours("long enough for all to end", gt=0)] = 3600.0


PARAMETERS = {
    "quick": SingleModel(
        seeds=1,
        policies=("qlm", "edf", "vllm", "shepherd"),
        loads=("equal", "literal"),
        interactive_per_s=(50, 200, 500),
        trace_s=30.0,
    ),
    "paper": SingleModel(seeds=3),
}


cases = Grid(
    {
        "scenario": ("qlm-single",),
        "load": lambda parameters, _: single_model_cases(
            parameters,
            parameters.loads,
            sorted({*parameters.interactive_per_s, parameters.figure_9_per_s}),
        ),
        "policy": "policies",
        "seed": SEEDS,
    }
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One trace."""
    return [run_trace(case)]


def plot(frame: DataFrame, parameters: SingleModel) -> Any:
    """Throughput at one rate; attainment of all, by class, and of the other load; evictions."""
    figure = new_figure(13, 7)
    panels = figure.subplots(2, 3).reshape(-1)
    main = frame[frame["load"] == parameters.loads[0]]
    _bars(panels[0], main, parameters)
    for axes, data, column, scale, label in (
        (panels[1], main, "attainment", 100, "SLOs met (% of all requests)"),
        (panels[2], main, "interactive_attainment", 100, "SLOs met (% of interactive)"),
        (panels[3], main, "batch-1_attainment", 100, "SLOs met (% of Batch-1)"),
        (panels[4], frame[frame["load"] == "fixed"], "attainment", 100, "SLOs met (% of all)"),
        (panels[5], main, "requests_per_s", 1, "throughput (requests/s)"),
    ):
        if data.empty:
            axes.set_axis_off()
            continue
        lines_by_policy(axes, data, parameters.policies, "interactive_per_s", column, scale)
        fixed = data["load"].iloc[0] == "fixed"
        capacity = _capacity_per_s(data)
        edge = capacity - 2 * parameters.batch_per_s if fixed else capacity / 3
        axes.axvline(edge, color="grey", ls=":", lw=1)
        rates = sorted(data["interactive_per_s"].unique())
        title = f"batch {2 * parameters.batch_per_s:g}/s" if fixed else "equal thirds"
        title += f"; dotted: all arrivals = {capacity:.0f}/s served"
        labels: dict[str, Any] = {"xlabel": "interactive requests/s", "ylabel": label}
        dress(axes, title=title, size=8, log="x", ticks=rates, bottom=0, **labels)
        axes.tick_params("x", labelsize=7)
    panels[1].legend(fontsize=8)
    return figure


MORE = {"vllm": 1.2, "shepherd": 1.5}
"""Throughput of QLM as a multiple of another's, section 8.1."""


def _bars(axes: Any, main: DataFrame, parameters: SingleModel) -> None:
    at = main[main["interactive_per_s"] == parameters.figure_9_per_s].groupby("policy")
    names = list(parameters.policies)
    places = np.arange(len(names))
    for column, colour, label in (
        ("requests_per_s", "C7", "all requests"),
        ("on_time_per_s", "C0", "those on time"),
    ):
        axes.bar(places, at[column].mean().reindex(names), color=colour, label=label)
    if "qlm" in names:
        served = at["requests_per_s"].mean()
        told = [more * served[policy] for policy, more in MORE.items() if policy in names]
        label = "the paper's QLM (20 % above vLLM, 50 % above SHEPHERD, as they are here)"
        paper_stars(axes, [names.index("qlm")] * len(told), told, label)
    axes.set_xticks(places, [STYLES.get(p, (p,))[0] for p in names], fontsize=8)
    axes.set_ylim(top=1.25 * axes.get_ylim()[1])
    title = f"{parameters.figure_9_per_s:g} interactive requests/s"
    dress(axes, title=title, size=8, lines="y", legend={}, ylabel="throughput (requests/s)")


def _capacity_per_s(data: DataFrame) -> float:
    """What is served of all classes while more arrives than can be."""
    found = data.groupby(["policy", "interactive_per_s"])["loaded_per_s"].mean()
    return float(found.max())


@claimed
def claims(frame: DataFrame, parameters: SingleModel) -> Iterator[Claim]:
    """Sections 1 and 8.1."""
    if "qlm" not in parameters.policies:
        return
    main = where(frame, load=parameters.loads[0])
    others = [policy for policy in parameters.policies if policy != "qlm"]
    yield from _throughput_claims(main, parameters, others)
    for other in (policy for policy in others if policy in ("vllm", "shepherd")):
        low = {"vllm": 40, "shepherd": 50}[other]
        gaps = points_above(main, other, "interactive_per_s")
        rate = gaps.mean().idxmax()
        notes = [
            f"all requests: {_spread(main, other)}",
            f"interactive ones alone: {_spread(main, other, 'interactive_attainment')}",
            *(
                f"{load}: {_spread(where(frame, load=load), other)}"
                for load in ("fixed", "literal")
                if load in parameters.loads[1:]
            ),
        ]
        yield between(
            f"QLM's SLO attainment is {low} to 90 % above that of {STYLES[other][0]}",
            low,
            90,
            mean_interval(gaps[rate]),
            nothing=0,
            unit=f"percentage points, the most (at {rate:g} interactive requests/s)",
            note="percentage points, " + "; ".join(notes),
            reason="a third of the requests, Batch-2, is on time with every policy, which leaves at most "
            "67 points for the rest; of the interactive ones alone see the note",
        )
    for other in (policy for policy in others if policy.startswith("edf")):
        gaps = points_above(main, other, "interactive_per_s")
        rate = gaps.mean().idxmin()
        yield between(
            f"QLM satisfies the most SLOs, against {STYLES[other][0]}",
            -0.5,
            100,
            mean_interval(gaps[rate]),
            nothing=None,
            unit=f"percentage points more, the least (at {rate:g} interactive requests/s)",
            paper="never fewer",
            note=_spread(main, other),
            reason=_evictions(main, other, rate),
        )
    most = max(main["interactive_per_s"])
    at = wide(where(main, interactive_per_s=most), "policy", "attainment")
    best = max(parameters.policies, key=lambda policy: float(at[policy].mean()))
    yield at_most(
        "When the rate significantly exceeds the serving capacity, no system satisfies the SLOs",
        50,
        mean_interval(100 * at[best]),
        nothing=None,
        unit="% of all SLOs by the best policy",
        paper="none",
        note=f"{STYLES[best][0]} at {3 * most:g} requests/s in all; {_capacity_per_s(main):.0f} are "
        "served",
        reason="Batch-2 requests, a third, have an hour and are met by all policies; overload lasts a "
        "minute, and the batches, empty at the start, take up the first requests at once",
    )


def _throughput_claims(
    main: DataFrame, parameters: SingleModel, others: list[str]
) -> Iterator[Claim]:
    at = where(main, interactive_per_s=parameters.figure_9_per_s)
    by, good = (wide(at, "policy", name) for name in ("requests_per_s", "on_time_per_s"))
    evictions = at.groupby("policy")["evictions"].mean() / at.groupby("policy")["requests"].mean()
    for other in others:
        number = 50 if other == "shepherd" else 20
        work = (
            f"without a queue that is ever empty all policies but SHEPHERD keep the batches full; QLM evicts "
            f"{evictions['qlm']:.1f} times per request, and each time KV is copied or prefilled anew"
        )
        if other == "shepherd":
            work = "SHEPHERD's batches are sized for the longest outputs and wait for their last request"
        yield about(
            f"QLM's throughput is {number} % above that of {STYLES[other][0]}",
            number,
            mean_interval(100 * (by["qlm"] / by[other] - 1)),
            nothing=0,
            unit="%",
            note=f"of requests on time: {100 * float((good['qlm'] / good[other] - 1).mean()):+.0f} %",
            reason=work,
        )
    ratio: dict[str, Series] = {other: by["qlm"] / by[other] for other in others}
    for word, times, pick in (("least", 1.1, min), ("most", 2.3, max)):
        other = pick(ratio, key=lambda policy: float(ratio[policy].mean()))
        yield about(
            f"The throughput corresponds to 1.1 to 2.3 times fewer GPUs: the {word}",
            times,
            mean_interval(ratio[other]),
            nothing=1,
            unit=f"x the throughput of {STYLES[other][0]}",
            reason="see the throughputs",
        )


def _spread(main: DataFrame, other: str, column: str = "attainment") -> str:
    """QLM less another policy by rate, in points."""
    gaps = points_above(main, other, "interactive_per_s", column)
    return listed(gaps.mean(), form="+.0f", place="/s")


def _evictions(main: DataFrame, other: str, rate: float) -> str:
    at = where(main, interactive_per_s=rate).groupby("policy")
    done, n = at["loaded_per_s"].mean(), at["evictions"].mean()
    return (
        f"at that rate QLM evicts {n['qlm']:.0f} times and serves {done['qlm']:.0f} requests/s "
        f"while they arrive, {STYLES[other][0]} {done[other]:.0f}"
    )
