"""What each operation is worth with one LLM: QLM without one of them.

Workload W_A at 500 interactive requests per second (Figure 9's setting, each class a third), QLM whole and
with one operation switched off. A second rate is ours, 150 per second: twice what the fleet serves, since at
500 seven times as much arrives and no order helps most requests.

Without pulling in the order of the plan, instances take their groups in order of arrival; without eviction,
running requests stay; without swapping, each instance keeps one LLM, which here is the only one; without load
balancing, groups go to instances round robin. One more bar evicts only while the estimator foresees a
violation, as section 5 can be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from agents.statistics import Interval, mean_interval
from experiments.harness.claims import Claim, at_least, between, every, gain, more
from experiments.harness.figure import SEEDS, Grid, claimed, where, wide
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from experiments.qlm.loads import (
    bars_by_variant,
    run_trace,
    single_model_cases,
)
from experiments.qlm.readings import read

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


@claimed
def claims(frame: DataFrame, parameters: Ablation) -> Iterator[Claim]:
    """Sections 1 and 8.1; led by the first rate, the paper's."""
    rates = [
        (f"{rate:g}/s", where(frame, interactive_per_s=rate))
        for rate in parameters.interactive_per_s
    ]
    evicted = rates[0][1].groupby("variant")["evictions"].mean()

    def points(part: DataFrame, column: str, variant: str) -> Interval:
        """Percentage points that QLM has more."""
        met = wide(part, "variant", column)
        return mean_interval(100 * (met["QLM"] - met[variant]))

    def faster(part: DataFrame) -> Interval:
        """Per cent of throughput that QLM has more than without eviction."""
        found = wide(part, "variant", "requests_per_s")
        return mean_interval(100 * (found["QLM"] / found["without eviction"] - 1))

    parts = [
        at_least(
            name,
            5,
            points(part, "interactive_attainment", "without pulling"),
            nothing=0,
            unit="percentage points",
        )
        for name, part in rates
    ]
    yield read(
        "Request pulling contributes significantly to the SLOs met of interactive requests",
        parts,
        paper="significantly (read as 5 points or more)",
        how="instances take groups in the order of the plan, not of their arrival",
        reason="eviction goes on without it, in order of arrival of the groups "
        f"({evicted['without pulling']:,.0f} evictions, {evicted['QLM']:,.0f} with pulling)",
    )
    parts = [
        gain(
            f"{whose} requests, {name}",
            80,
            points(part, column, "without eviction"),
            nothing=0,
            unit="percentage points",
        )
        for name, part in rates
        for whose, column in (("all", "attainment"), ("interactive", "interactive_attainment"))
    ]
    met = 100 * wide(rates[0][1], "variant", "attainment")["without eviction"].mean()
    yield read(
        "Request eviction improves SLO attainment by 80 %",
        parts,
        paper="80 %",
        how="evicted batch requests make room for interactive ones",
        reason=f"without eviction {met:.0f} % of all SLOs are met, as Batch-2 requests, a third, are on time "
        f"either way; nearest: {parts[1].ours.mean:.3g} points, {parts[1].sentence}",
        setting="leads: all requests, as section 8.1 names no class",
    )
    parts = [more(name, 0, faster(part), unit="%") for name, part in rates]
    yield read(
        "Request eviction increases request throughput",
        parts,
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
            for name, part in rates
        ],
        paper="no impact (read as half a point at most)",
        how="there is no other LLM to swap to",
    )
