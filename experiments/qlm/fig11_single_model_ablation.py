"""What each operation is worth with one LLM: QLM without one of them.

Workload W_A at 500 interactive requests per second (Figure 9's setting, each class a third), QLM whole and
with one operation switched off. A second rate is ours, 150 per second: twice what the fleet serves, since at
500 seven times as much arrives and no order helps most requests. In "batches of 10", as the released code has
them, the paper's 3,500 requests make a queue as well (Figure 9's load "released").

Without pulling in the order of the plan, instances take their groups in order of arrival; without eviction,
running requests stay; without swapping, each instance keeps one LLM, which here is the only one; without load
balancing, groups go to instances round robin, or at random as new groups of the released code do. QLM evicts
"when the head request group changes" (section 5). One more bar evicts only while the estimator foresees a
violation, as the same section can be read. Another pulls and evicts
nothing: for section 5 eviction is for requests that "are pulled into the running batch", so that without
pulling nothing calls for it.

Section 1 sums up this figure and Figure 14 ("all LSOs contribute"), and with one LLM there is nothing to
swap. So QLM with and without swapping runs on Figure 14's several LLMs as well, in batches of 10.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from agents.statistics import Interval, mean_interval
from experiments.harness.claims import (
    Claim,
    asked,
    at_least,
    best_of,
    between,
    every,
    gain,
    more,
    settings,
)
from experiments.harness.figure import SEEDS, Grid, claimed, where, wide
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from experiments.qlm.loads import (
    LITERAL_REQUESTS,
    RELEASED,
    bars_by_variant,
    run_trace,
    single_model_cases,
)

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 11"

THIRDS, TEN, SEVERAL = "thirds", "batches of 10", "several LLMs, batches of 10"
LOADS = {THIRDS: "equal", TEN: "released"}
WITHOUT = {
    "QLM": "qlm",
    "without pulling": "qlm:pulling=false",
    "without eviction": "qlm:eviction=false",
    "eviction on violations": "qlm:evict=violation",
    "without load balancing": "qlm:placement=round-robin",
    "without swapping": "qlm:swapping=false",
    "without pulling and eviction": "qlm:pulling=false,eviction=false",
    "random placement": "qlm:placement=random",
}
LEFT_OUT = {
    THIRDS: ("without pulling and eviction", "random placement"),
    TEN: ("without swapping", "eviction on violations"),
    SEVERAL: tuple(name for name in WITHOUT if name not in ("QLM", "without swapping")),
}
"""Variants that a load does not have."""


class Ablation(Parameters):
    """Parameters of this figure."""

    interactive_per_s: Annotated[
        tuple[float, ...], paper("Figure 11's caption, and ours: see the text", min_length=1)
    ] = (500.0, 150.0)
    loads: Annotated[tuple[str, ...], ours("see the text", min_length=1)] = (THIRDS, TEN)
    several_per_s: Annotated[float, paper("Figure 14's caption; ours of Batch-2", gt=0)] = 250.0
    batch_per_s: Annotated[float, ours("as in Figure 9, for load fixed", gt=0)] = 50.0
    trace_s: Annotated[float, ours("as in Figure 9", gt=0)] = 60.0
    interval_s: Annotated[float, ours("as in Figure 9", gt=0)] = 5.0
    patience_s: Annotated[float, ours("as in Figure 9", gt=0)] = 3600.0


PARAMETERS = {
    "quick": Ablation(seeds=1, interactive_per_s=(200.0,), trace_s=30.0),
    "paper": Ablation(seeds=3),
}


def _loads(parameters: Ablation, _: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Thirds at each rate, batches of 10 at the first, the paper's; Figure 14's several LLMs."""
    found = [
        {"of": load, **case}
        for load in parameters.loads
        for case in single_model_cases(
            parameters,
            [LOADS[load]],
            parameters.interactive_per_s[: 1 if load == TEN else None],
        )
    ]
    rate = parameters.several_per_s
    several = {
        "scenario": "qlm-multi",
        "of": SEVERAL,
        "interactive_per_s": rate,
        "interval_s": parameters.interval_s,
        "patience_s": parameters.patience_s,
        "load": "released",
        "rates": {"batch-1": rate, "batch-2": rate},
        "requests": LITERAL_REQUESTS,
        "changes": RELEASED,
    }
    return [*found, several] if TEN in parameters.loads else found


cases = Grid(
    {
        "scenario": ("qlm-single",),
        "rate": _loads,
        "variant": lambda parameters, case: [
            {"variant": name, "policy": policy}
            for name, policy in WITHOUT.items()
            if name not in LEFT_OUT[case["of"]]
        ],
        "seed": SEEDS,
    }
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One trace."""
    return [run_trace(case)]


def plot(frame: DataFrame, parameters: Ablation) -> Any:
    """Throughput and attainment of each variant; a row per load and rate."""
    parts = _parts(frame, parameters)
    figure = new_figure(11, 3.2 * len(parts) + 0.6)
    panels = figure.subplots(len(parts), 3, squeeze=False)
    columns = {
        "requests_per_s": "throughput (requests/s)",
        "interactive_attainment": "SLOs met (% of interactive)",
        "attainment": "SLOs met (% of all requests)",
    }
    for (name, part), row in zip(parts.items(), panels, strict=True):
        variants = [variant for variant in WITHOUT if variant in set(part["variant"])]
        for axes, (column, label) in zip(row, columns.items(), strict=True):
            bars_by_variant(axes, part, variants, column, label, names=axes is row[0])
        row[1].set_title(f"interactive requests: {name}", fontsize=9)
    return figure


def _parts(frame: DataFrame, parameters: Ablation) -> dict[str, DataFrame]:
    """The rows of each load and rate, by their name."""
    found = {
        f"{load}, {rate:g}/s": where(frame, of=load, interactive_per_s=rate)
        for load in parameters.loads
        for rate in parameters.interactive_per_s
    }
    return {name: part for name, part in found.items() if len(part)}


@claimed
def claims(frame: DataFrame, parameters: Ablation) -> Iterator[Claim]:
    """Sections 1 and 8.1; the paper's rate is the first one.

    Section 1 says "by 80%" where it says that swapping improves throughput "by 300%": both are relative.
    """
    parts = _parts(frame, parameters)
    first = next(iter(parts.values()))
    evicted = first.groupby("variant")["evictions"].mean()
    paper_rate = f"{parameters.interactive_per_s[0]:g}/s"

    def sourced(claim: Claim, name: str, words: str = "") -> Claim:
        """With the place that allows its load, or as a question of ours: the second rate is."""
        source = "released code, Figure 11" if name.startswith(TEN) else "Figure 11"
        told = replace(claim, setting=source + words)
        return told if name.endswith(paper_rate) else asked(replace(told, setting="ours"))

    def points(
        part: DataFrame, column: str, variant: str, of: str = "QLM", *, relative: bool = False
    ) -> Interval:
        """Percentage points, or per cent, that one variant has more than another."""
        met = wide(part, "variant", column)
        more_of = met[of] - met[variant]
        return mean_interval(100 * (more_of / met[variant] if relative else more_of))

    def faster(part: DataFrame) -> Interval:
        """Per cent of throughput that QLM has more than without eviction."""
        found = wide(part, "variant", "requests_per_s")
        return mean_interval(100 * (found["QLM"] / found["without eviction"] - 1))

    whole, both = "interactive_attainment", "without pulling and eviction"
    yield settings(
        "Request pulling contributes significantly to the SLOs met of interactive requests",
        [
            sourced(
                at_least(
                    f"{name}{', no eviction either way' if of != 'QLM' else ''}",
                    5,
                    points(part, whole, variant, of),
                    nothing=0,
                    unit="percentage points",
                ),
                name,
            )
            for name, part in parts.items()
            for of, variant in (("QLM", "without pulling"), ("without eviction", both))
            if variant in set(part["variant"])
        ],
        paper="significantly (read as 5 points or more)",
        how="instances take groups in the order of the plan, not of their arrival",
        reason="eviction goes on without it, in order of arrival of the groups "
        f"({evicted['without pulling']:,.0f} evictions, {evicted['QLM']:,.0f} with pulling)",
    )
    met = 100 * wide(first, "variant", "attainment")["without eviction"].mean()
    classes = (("all", "attainment"), ("interactive", "interactive_attainment"))
    evictions = [
        sourced(
            gain(
                f"{whose}, {name}{', ' + how if how else ''}",
                80,
                points(part, column, "without eviction", of, relative=how != "points"),
                nothing=0,
                unit="points" if how == "points" else "%",
            ),
            name,
            "" if whose == "all" else "; section 8.2: the interactive services",
        )
        for name, part in parts.items()
        for whose, column in classes
        for of, how in (
            ("QLM", ""),
            ("QLM", "points"),
            ("eviction on violations", "on violations"),
        )
        if of in set(part["variant"])
        and (how != "on violations" or whose == "interactive")
        and (how != "points" or name.endswith(paper_rate))
    ]
    yield settings(
        "Request eviction improves SLO attainment by 80 %",
        evictions,
        paper="80 %",
        how="evicted batch requests make room for interactive ones",
        reason=f"without eviction {met:.0f} % of all SLOs are met, as Batch-2 requests, a third, are on time "
        "either way",
    )
    slower = [sourced(more(name, 0, faster(part), unit="%"), name) for name, part in parts.items()]
    yield settings(
        "Request eviction increases request throughput",
        slower,
        paper="more",
        how="evicted KV goes to host memory",
        reason=f"each of {evicted['QLM']:,.0f} evictions copies KV to host memory and back, or costs a "
        "second prefill; without them batches are as full",
    )
    yield every(
        "Model swapping has no impact with a single model",
        [
            between(
                name,
                -0.5,
                0.5,
                points(part, "attainment", "without swapping"),
                nothing=None,
                unit="percentage points of SLOs",
            )
            for name, part in parts.items()
            if "without swapping" in set(part["variant"])
        ],
        paper="no impact (read as half a point at most)",
        how="there is no other LLM to swap to",
    )
    if len(several := where(frame, of=SEVERAL)):
        yield _all_contribute(parts, several)


def _all_contribute(parts: Mapping[str, DataFrame], several: DataFrame) -> Claim:
    """Section 1, of Figures 11 and 14: an operation is worth throughput, or SLOs of the tightest class."""
    ten = next(part for name, part in parts.items() if name.startswith(TEN))
    tight = ((ten, "interactive_attainment"), (several, "batch-1_attainment"))
    lost = {}
    for part, column in tight:
        met, speed = wide(part, "variant", column), wide(part, "variant", "requests_per_s")
        for variant in met:
            lost[variant] = {
                "points of SLOs": 100 * (met["QLM"] - met[variant]),
                "% of throughput": 100 * (1 - speed[variant] / speed["QLM"]),
            }

    def worth(variant: str) -> Claim:
        found = [
            at_least(unit, 1, mean_interval(table), nothing=0, unit=unit)
            for unit, table in lost[variant].items()
        ]
        return best_of(f"QLM {variant}", found)

    def without(variant: str, name: str) -> Claim:
        off = ("without pulling", "without eviction", variant, "without swapping")
        told = [worth(each) for each in off]
        return every(f"{TEN}, {name}", told, setting="released code; section 8.3")

    return settings(
        "All serving operations contribute to SLO attainment and throughput",
        [
            without("without load balancing", "round robin"),
            # The released code places at random itself.
            asked(without("random placement", "random placement")),
        ],
        paper="each contributes (read as 1 % or a point)",
        how="each operation switched off by itself: swapping with several LLMs, the others with one",
        reason="; ".join(
            f"{name} {', '.join(f'{table.mean():.1f} {unit}' for unit, table in tables.items())}"
            for name, tables in lost.items()
            if name != "QLM"
        ),
    )
