"""What each operation is worth with several LLMs: QLM without one of them.

Workload W_B at 250 Batch-1 requests per second (Figure 12's setting), QLM whole and with one
operation switched off: without pulling in the order of the plan, instances take their groups in
order of arrival; without eviction, running requests stay; without swapping, each instance keeps one
LLM, dealt out in turn over the instances; without load balancing, groups go to instances round
robin.

Ours: as far as the paper says, "model warm start" is the operation of swapping; what else it
switches off with it is not said. A second bar without warm start keeps swapping, with host memory
for one LLM only, so that every swap fetches from storage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from agents.statistics import mean_interval
from experiments.harness.claims import Claim, at_least, at_most, between
from experiments.harness.figure import SEEDS, Grid, claimed, wide
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from experiments.qlm.loads import bars_by_variant, run_trace

if TYPE_CHECKING:
    from pandas import DataFrame, Series

FIGURE = "Figure 14"
COLD_BYTES = 140e9
"""Holds the weights of one Llama-2-70B, or of the two small LLMs, but no two large ones."""

WITHOUT: dict[str, tuple[str, dict[str, Any]]] = {
    "QLM": ("qlm", {}),
    "without pulling": ("qlm:pulling=false", {}),
    "without eviction": ("qlm:eviction=false", {}),
    "without load balancing": ("qlm:placement=round-robin", {}),
    "without warm start": ("qlm", {"fleet.pools.a100.host_weight_bytes": COLD_BYTES}),
    "without swapping": ("qlm:swapping=false", {}),
}


class Ablation(Parameters):
    """Parameters of this figure."""

    batch_1_per_s: Annotated[float, paper("Figure 14's caption", gt=0)] = 250.0
    batch_2_per_s: Annotated[float, ours("as in Figure 12", gt=0)] = 250.0
    requests: Annotated[int, paper("section 8", ge=10)] = 3500
    interval_s: Annotated[float, ours("as in Figure 12", gt=0)] = 5.0
    patience_s: Annotated[float, ours("as in Figure 12", gt=0)] = 3600.0


PARAMETERS = {"quick": Ablation(seeds=1, requests=1000), "paper": Ablation(seeds=5)}


cases = Grid(
    {
        "scenario": ("qlm-multi",),
        "rates": lambda parameters, _: [
            {
                "rates": {"batch-1": parameters.batch_1_per_s, "batch-2": parameters.batch_2_per_s},
                "requests": parameters.requests,
                "interval_s": parameters.interval_s,
                "patience_s": parameters.patience_s,
            }
        ],
        "variant": [
            {"variant": variant, "policy": policy, "changes": changes}
            for variant, (policy, changes) in WITHOUT.items()
        ],
        "seed": SEEDS,
    }
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One trace."""
    return [run_trace(case)]


def plot(frame: DataFrame, parameters: Ablation) -> Any:
    """Throughput and attainment of each variant."""
    figure = new_figure(10, 4.2)
    left, right = figure.subplots(1, 2)
    names, met = list(WITHOUT), "SLOs met (% of Batch-1 requests)"
    bars_by_variant(left, frame, names, "requests_per_s", "throughput (requests/s)", names=True)
    bars_by_variant(right, frame, names, "batch-1_attainment", met, names=False)
    return figure


@claimed
def claims(frame: DataFrame, parameters: Ablation) -> Iterator[Claim]:
    """Sections 1 and 8.2."""
    by, met = (wide(frame, "variant", name) for name in ("requests_per_s", "batch-1_attainment"))
    yield between(
        "Model swapping improves throughput by 300 %",
        225,
        375,
        mean_interval(100 * (by["QLM"] / by["without swapping"] - 1)),
        nothing=0,
        unit="% more than with one LLM per instance",
        paper="300 %",
        reason="12 instances are enough for each of five LLMs to have two or three of its own: without "
        f"swapping {by['without swapping'].mean():.1f} requests/s are served",
    )
    for measure, table, scale, unit in (
        ("throughput", by, 1, "requests/s"),
        ("SLOs", met, 100, "points of Batch-1 SLOs"),
    ):
        for variant in ("without warm start", "without swapping"):
            yield at_most(
                f"Warm start contributes the most to {measure} ({variant} QLM loses most)",
                1,
                mean_interval(_rank(table, variant)),
                nothing=None,
                unit="rank among the five by what QLM loses without it (ties count against it)",
                paper="the most",
                reason=_losses(table, scale, unit),
            )
    for variant in list(WITHOUT)[1:]:
        yield at_least(
            f"QLM {variant} meets fewer Batch-1 SLOs",
            1,
            mean_interval(100 * (met["QLM"] - met[variant])),
            nothing=0,
            unit="percentage points fewer than QLM",
            paper="contributes (bars; read as a point or more)",
            reason=f"QLM whole meets {100 * met['QLM'].mean():.1f} %",
        )


def _rank(table: DataFrame, variant: str) -> Series:
    """1 (none of the others costs as much) to 5, per seed."""
    loss = table.rsub(table["QLM"], axis=0).drop(columns="QLM")
    others = loss.drop(columns=variant)
    rank: Series = 1 + others.ge(loss[variant], axis=0).sum(axis=1).astype(float)
    return rank


def _losses(table: DataFrame, scale: float, unit: str) -> str:
    lost = scale * (table["QLM"].mean() - table.drop(columns="QLM").mean())
    parts = ", ".join(f"{value:.1f} {name}" for name, value in lost.sort_values()[::-1].items())
    return f"{unit} fewer: {parts}"
