"""What each operation is worth with one LLM: QLM without one of them.

Workload W_A at 500 interactive requests per second (Figure 9's setting, its load "equal"), QLM whole
and with one operation switched off: without pulling in the order of the plan, instances take their
groups in order of arrival; without eviction, running requests stay; without swapping, each instance
keeps one LLM, which here is the only one; without load balancing, groups go to instances round robin.

Ours: a second rate, 150 interactive requests per second (twice what the fleet serves of all classes),
since at 500 seven times as much arrives and no order helps most requests. One more bar evicts only while
the estimator foresees a violation, as section 5 can be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from agents.statistics import mean_interval
from experiments.harness.claims import Claim, about, at_least, between
from experiments.harness.figure import SEEDS, Grid, listed, where, wide
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from experiments.qlm.loads import bars_by_variant, run_trace, single_model_cases

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 11"

WITHOUT = {
    "QLM": "qlm",
    "without pulling": "qlm:pulling=false",
    "without eviction": "qlm:eviction=false",
    "eviction on violations": "qlm:evict=violation",
    "without load balancing": "qlm:placement=round-robin",
    "without swapping": "qlm:swapping=false",
}


class Ablation(Parameters):
    """Parameters of this figure."""

    interactive_per_s: Annotated[
        tuple[float, ...], paper("Figure 11's caption, and ours: see the text", min_length=1)
    ] = (500.0, 150.0)
    load: Annotated[str, ours("as in Figure 9")] = "equal"
    batch_per_s: Annotated[float, ours("as in Figure 9, for load fixed", gt=0)] = 50.0
    trace_s: Annotated[float, ours("as in Figure 9", gt=0)] = 60.0
    interval_s: Annotated[float, ours("as in Figure 9", gt=0)] = 5.0
    patience_s: Annotated[float, ours("as in Figure 9", gt=0)] = 3600.0


PARAMETERS = {
    "quick": Ablation(seeds=1, interactive_per_s=(200.0,), trace_s=30.0),
    "paper": Ablation(seeds=3),
}


cases = Grid(
    {
        "scenario": ("qlm-single",),
        "rate": lambda parameters, _: single_model_cases(
            parameters, [parameters.load], parameters.interactive_per_s
        ),
        "variant": [{"variant": name, "policy": policy} for name, policy in WITHOUT.items()],
        "seed": SEEDS,
    }
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One trace."""
    return [run_trace(case)]


def plot(frame: DataFrame, parameters: Ablation) -> Any:
    """Throughput and attainment of each variant; a row per rate."""
    rates = parameters.interactive_per_s
    figure = new_figure(11, 3.2 * len(rates) + 0.6)
    panels = figure.subplots(len(rates), 3, squeeze=False)
    columns = {
        "requests_per_s": "throughput (requests/s)",
        "interactive_attainment": "SLOs met (% of interactive)",
        "attainment": "SLOs met (% of all requests)",
    }
    for rate, row in zip(rates, panels, strict=True):
        at = where(frame, interactive_per_s=rate)
        for axes, (column, label) in zip(row, columns.items(), strict=True):
            bars_by_variant(axes, at, list(WITHOUT), column, label, names=axes is row[0])
        row[1].set_title(f"{rate:g} interactive requests/s", fontsize=9)
    return figure


def claims(frame: DataFrame, parameters: Ablation) -> list[Claim]:
    """Sections 1 and 8.1; of the first rate, the paper's."""
    first = where(frame, interactive_per_s=parameters.interactive_per_s[0])
    speed, all_met, met, evictions = (
        wide(first, "variant", column)
        for column in ("requests_per_s", "attainment", "interactive_attainment", "evictions")
    )
    evicted = evictions.mean()
    gain = 100 * float((met["QLM"] / met["without eviction"] - 1).mean())
    return [
        at_least(
            "Request pulling contributes significantly to the SLOs met of interactive requests",
            5,
            mean_interval(100 * (met["QLM"] - met["without pulling"])),
            nothing=0,
            unit="percentage points of interactive SLOs",
            paper="significantly",
            note=_others(frame, parameters, "without pulling", "interactive_attainment"),
            reason=f"interactive SLOs met: {100 * float(met['QLM'].mean()):.1f} % with, "
            f"{100 * float(met['without pulling'].mean()):.1f} % without; eviction goes on without it "
            f"({evicted['without pulling']:.0f} times, {evicted['QLM']:.0f} with), in order of "
            "arrival of the groups' oldest requests",
        ),
        about(
            "Request eviction improves SLO attainment by 80 %",
            80,
            mean_interval(100 * (all_met["QLM"] / all_met["without eviction"] - 1)),
            nothing=0,
            unit="%, of all requests",
            note=f"of interactive ones {gain:+.0f} %; all, "
            + _others(frame, parameters, "without eviction", "attainment"),
            reason="Batch-2 requests, a third, are on time either way",
        ),
        at_least(
            "Request eviction increases request throughput",
            1,
            mean_interval(100 * (speed["QLM"] / speed["without eviction"] - 1)),
            nothing=0,
            unit="% more than without",
            paper="more",
            reason=f"{evicted['QLM']:.0f} evictions: each costs a copy of KV to host memory and back, or a "
            "second prefill when another instance takes the request up; without them batches are as full",
        ),
        between(
            "Model swapping has no impact with a single model",
            -0.5,
            0.5,
            mean_interval(100 * (all_met["QLM"] - all_met["without swapping"])),
            nothing=None,
            unit="percentage points of SLOs",
            paper="no impact",
            note=f"throughput {100 * float((speed['QLM'] / speed['without swapping'] - 1).mean()):+.1f} %",
        ),
    ]


def _others(frame: DataFrame, parameters: Ablation, variant: str, column: str) -> str:
    """QLM less a variant at every rate, in points."""
    mean = frame.groupby(["interactive_per_s", "variant"])[column].mean().unstack()
    gap = 100 * (mean["QLM"] - mean[variant]).loc[list(parameters.interactive_per_s)]
    return listed(gap, " points", "+.1f", place="/s")
