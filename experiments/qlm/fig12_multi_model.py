"""Batch requests of several LLMs: throughput and SLO attainment against the rate of Batch-1 requests.

Workload W_B on 50 A100 (12 instances of four GPUs): Batch-1 requests (TTFT target one minute) of
two LLMs and Batch-2 requests (one hour) of three, each of which an instance can load in turn:
Mistral-7B, Vicuna-13B and three fine-tuned versions of Llama-2-70B. Throughput is that of the whole
trace, from its first arrival to the end of its last request; attainment counts all requests, as
Figure 13 does for "all SLO values".

Ours: four GPUs per instance for every LLM, so that all can take turns; host memory of 320 GB per
instance (the paper's "additional 320 GB" for Llama-70B), which holds two of the large LLMs and the
small ones; Batch-2 requests arrive at a fixed 250 per second. SHEPHERD, which does not share instances
between LLMs, places them anew every minute.

EDF and vLLM have three forms. In the first, ours and the strongest, each instance keeps one LLM. The
others swap whenever the next request in their order needs it: section 8.2 says that no baseline considers
the impact of swapping. Their instances share one queue, or have one each as section 2.3 reads; then
the LLM changes with nearly every request. Claims are held against the first two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from agents.statistics import mean_interval
from experiments.harness.claims import Claim, at_least, between
from experiments.harness.figure import SEEDS, Grid, claimed, dress, legend_below, listed, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.harness.picture import Published
from experiments.output import new_figure
from experiments.qlm.loads import STYLES, lines_by_policy, of_policy, points_above, run_trace

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figures 12 and 13"
RATE, SPEED = "batch_1_per_s", "requests_per_s"
KEPT = ("requests", "interval_s", "patience_s")
BELOW_PER_S = 500.0
"""Section 8.2: below this rate QLM satisfies more than 90 %."""


class MultiModel(Parameters):
    """Parameters of these figures."""

    policies: Annotated[
        tuple[str, ...],
        paper("section 8; swapping as 8.2 and queues as 2.3 read", min_length=1),
    ] = (
        "qlm",
        "edf",
        "vllm",
        "shepherd",
        "edf:swapping=true",
        "vllm:swapping=true",
        "edf:swapping=true,queues=per-instance",
        "vllm:swapping=true,queues=per-instance",
    )
    batch_1_per_s: Annotated[
        tuple[float, ...], ours("from far below to twice the rates of section 8.2", min_length=1)
    ] = (25, 50, 100, 250, 400, 500, 1000)
    batch_2_per_s: Annotated[float, ours("the paper does not give it", gt=0)] = 250.0
    requests: Annotated[int, paper("section 8", ge=10)] = 3500
    interval_s: Annotated[float, ours("how often arrivals are looked at", gt=0)] = 5.0
    patience_s: Annotated[float, ours("long enough for all to end", gt=0)] = 3600.0


PARAMETERS = {
    "quick": MultiModel(seeds=1, batch_1_per_s=(50, 250, 1000), requests=1000, patience_s=1800.0),
    "paper": MultiModel(seeds=5),
}


cases = Grid(
    {
        "scenario": ("qlm-multi",),
        "rate": lambda parameters, _: [
            {
                "rates": {"batch-1": float(rate), "batch-2": parameters.batch_2_per_s},
                "batch_1_per_s": float(rate),
            }
            for rate in parameters.batch_1_per_s
        ],
        "policy": "policies",
        "seed": SEEDS,
    },
    keep=KEPT,
    first=("scenario", "rates", "batch_1_per_s", *KEPT),
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One trace."""
    return [run_trace(case)]


def plot(frame: DataFrame, parameters: MultiModel) -> Any:
    """Throughput, attainment of all and of Batch-1, swaps; bands over seeds."""
    figure = new_figure(11, 6.4)
    panels = figure.subplots(2, 2).reshape(-1)
    columns = (
        ("requests_per_s", 1, "throughput (requests/s)"),
        ("attainment", 100, "SLOs met (% of all requests)"),
        ("batch-1_attainment", 100, "SLOs met (% of Batch-1 requests)"),
        ("swaps", 1, "swaps of LLMs, all instances"),
    )
    for axes, (column, scale, label) in zip(panels, columns, strict=True):
        lines_by_policy(axes, frame, parameters.policies, "batch_1_per_s", column, scale)
        dress(axes, log="x", bottom=0, xlabel="Batch-1 requests/s", ylabel=label)
    legend_below(figure, panels[0], 3)
    return figure


PAPER_POINTS = (
    Published(
        "section 8.2", ((25.0, 90.0), (500.0, 90.0)), "line", panels=(1,),
        label="the paper: QLM above 90 % below 500/s",
    ),
)  # fmt: skip


@claimed
def claims(frame: DataFrame, parameters: MultiModel) -> Iterator[Claim]:
    """Sections 1 and 8.2."""
    if "qlm" not in parameters.policies:
        return
    others = [
        policy
        for policy in parameters.policies
        if policy != "qlm" and not policy.endswith("queues=per-instance")
    ]
    ranges = {"vllm": (40, 90), "vllm:swapping=true": (40, 90), "shepherd": (50, 90)}
    for other in (policy for policy in others if policy in ranges):
        low, high = ranges[other]
        gain = points_above(frame, other, RATE)
        rate = gain.mean().idxmax()
        yield between(
            f"QLM's SLO attainment is {low} to {high} % above that of {STYLES[other][0]}",
            low,
            high,
            mean_interval(gain[rate]),
            nothing=0,
            unit=f"percentage points, the most (at {rate:g} Batch-1 requests/s)",
            reason=_met(frame, other, rate),
            note=f"percentage points: {listed(gain.mean(), form='+.0f', place='/s')}",
        )
    for other in others:
        ratio = of_policy(frame, "qlm", RATE, SPEED) / of_policy(frame, other, RATE, SPEED)
        rate = ratio.mean().idxmax()
        yield between(
            f"QLM's throughput is 3 to 4 times that of {STYLES[other][0]}",
            3,
            4,
            mean_interval(ratio[rate]),
            nothing=1,
            unit=f"x, the most (at {rate:g} Batch-1 requests/s)",
            paper="up to 3 to 4 x",
            reason=_why(frame, other, rate),
            note=_per_instance(frame, other, rate),
        )
    below = [rate for rate in parameters.batch_1_per_s if rate < BELOW_PER_S]
    if below:
        mine = where(frame, policy="qlm")
        mine = mine[mine["batch_1_per_s"].isin(below)]
        worst = mine.groupby("batch_1_per_s")["attainment"].mean().idxmin()
        yield at_least(
            "Below 500 Batch-1 requests/s QLM satisfies more than 90 % of all SLOs",
            90,
            mean_interval(100 * where(mine, batch_1_per_s=worst)["attainment"]),
            nothing=None,
            unit=f"% at {worst:g}/s, the worst of these rates",
        )


def _met(frame: DataFrame, other: str, rate: float) -> str:
    """Which SLOs another policy meets."""
    mean = where(frame, policy=other, batch_1_per_s=rate).mean(numeric_only=True)
    return (
        f"{STYLES[other][0]} meets {100 * mean['batch-1_attainment']:.0f} % of the Batch-1 SLOs at that "
        f"rate and {100 * mean['batch-2_attainment']:.0f} % of the Batch-2 ones, which are an hour"
    )


def _per_instance(frame: DataFrame, other: str, rate: float) -> str:
    """How often QLM's throughput is that of the same policy with a queue per instance."""
    name = f"{other}{',' if ':' in other else ':'}queues=per-instance"
    if not (frame["policy"] == name).any():
        return ""
    ratio = of_policy(frame, "qlm", RATE, SPEED) / of_policy(frame, name, RATE, SPEED)
    return f"{ratio[rate].mean():.1f} times with a queue per instance"


def _why(frame: DataFrame, other: str, rate: float) -> str:
    at = frame[frame["batch_1_per_s"] == rate].groupby("policy")[["swaps", "requests_per_s"]].mean()
    return (
        f"swaps of all instances at that rate: {at.loc['qlm', 'swaps']:.0f} with QLM, "
        f"{at.loc[other, 'swaps']:.0f} with {STYLES[other][0]}; a warm swap takes 4 to 6 s here, "
        "a batch of long answers up to a minute to drain, whoever orders it"
    )
