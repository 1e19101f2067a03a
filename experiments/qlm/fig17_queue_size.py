"""SLOs met against the size of the queue, several LLMs.

Workload W_B (Figure 12's setting): Batch-1 and Batch-2 requests, as many of each, of five LLMs on 12
instances of four A100. A trace of 3,500 requests comes at 0.5 to 1,000 per second, which makes the queue. EDF
and vLLM swap whenever the next request needs it, or keep an LLM per instance, which is ours.

Attainment counts all requests. Ours: the size of the queue is the largest number of requests that wait for
their first token at any instant of a run. Policies at the same rate have queues of their own; the left
picture, on which the claims rest, therefore has for all of them the queue that QLM has at that rate, which is
the shortest or nearly so; the right one has each policy's own. Half of the requests have a TTFT target of an
hour, which every policy meets, so that attainment cannot fall much below 50 %. Queues end at the trace's
3,500 requests; `requests=` makes longer ones.

An LLM per instance is the stronger form of EDF and vLLM; section 8.2 says that no baseline considers the
impact of swapping. With swapping all instances take from one queue. All that are idle load the LLM of its
head, for one request up to 33 s from storage, and no request behind it is served meanwhile. That form
therefore loses SLOs at rates at which hardly anything waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from agents.statistics import mean_interval
from experiments.harness.claims import Claim, at_least, at_most, every
from experiments.harness.figure import SEEDS, Grid, claimed, dress, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from experiments.qlm.loads import STYLES, of_policy, run_trace
from experiments.qlm.readings import read

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 17"
NO_BENEFIT = 1.0
"""Percentage points that count as none."""
HIGH = 90.0
"""Per cent: what section 8.2 says of QLM."""


class QueueSize(Parameters):
    """Parameters of this figure."""

    policies: Annotated[
        tuple[str, ...], paper("section 8; swapping as section 8.2 reads", min_length=1)
    ] = ("qlm", "edf", "vllm", "shepherd", "edf:swapping=true", "vllm:swapping=true")
    requests_per_s: Annotated[
        tuple[Annotated[float, Field(gt=0)], ...],
        ours("of both classes together; from no queue to all at once", min_length=2),
    ] = (0.5, 1, 2, 5, 10, 15, 20, 30, 50, 100, 300, 1000)
    requests: Annotated[int, paper("section 8", ge=10)] = 3500
    size: Annotated[Literal["largest", "mean"], ours("over the instants of a run")] = "largest"
    interval_s: Annotated[float, ours("how often arrivals are looked at", gt=0)] = 5.0
    patience_s: Annotated[float, ours("after the trace, long enough for all to end", gt=0)] = 3600.0


PARAMETERS = {
    "quick": QueueSize(seeds=1, requests_per_s=(0.5, 20, 300)),
    "paper": QueueSize(seeds=5),
}


cases = Grid(
    {
        "scenario": ("qlm-multi",),
        "rate": lambda parameters, _: [
            {
                "rates": {"batch-1": rate / 2, "batch-2": rate / 2},
                "per_s": float(rate),
                "requests": parameters.requests,
                "interval_s": parameters.interval_s,
                "patience_s": parameters.patience_s + 1.5 * parameters.requests / rate,
            }
            for rate in parameters.requests_per_s
        ],
        "policy": "policies",
        "seed": SEEDS,
    }
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One trace."""
    return [run_trace(case)]


def plot(frame: DataFrame, parameters: QueueSize) -> Any:
    """Attainment against QLM's queue at the same rate, and against each policy's own."""
    figure = new_figure(11, 4.4)
    left, right = figure.subplots(1, 2, sharey=True)
    column = f"{parameters.size}_queue"
    common = "qlm" if "qlm" in parameters.policies else parameters.policies[0]
    reference = of_policy(frame, common, "per_s", column).mean()
    for policy in parameters.policies:
        name, colour, style = STYLES.get(policy, (policy, None, "x-"))
        grouped = where(frame, policy=policy).groupby("per_s")
        met = 100 * grouped["attainment"].agg(["mean", "min", "max"])
        for axes, sizes in ((left, reference), (right, grouped[column].mean())):
            axes.plot(sizes, met["mean"], style, ms=4, color=colour, label=name)
            axes.fill_between(sizes, met["min"], met["max"], color=colour, alpha=0.15)
    for axes, whose in ((left, f"{STYLES[common][0]}'s"), (right, "each policy's own")):
        axes.set_xscale("symlog", linthresh=10)
        dress(
            axes,
            xlabel=f"{parameters.size} queue, {whose} (requests)",
            xlim=(0, 1.3 * axes.dataLim.x1),
        )
    left.set(ylabel="SLOs met (% of all requests)", ylim=(0, 103))
    left.legend(fontsize=8)
    return figure


@claimed
def claims(frame: DataFrame, parameters: QueueSize) -> Iterator[Claim]:
    """Section 8.3."""
    if "qlm" not in parameters.policies:
        return
    rates = sorted(frame["per_s"].unique())
    sizes = of_policy(frame, "qlm", "per_s", f"{parameters.size}_queue").mean()
    met = {
        policy: 100 * of_policy(frame, policy, "per_s", "attainment")
        for policy in parameters.policies
    }
    swaps = where(frame, per_s=rates[0]).groupby("policy")["swaps"].mean()
    for sentence, judge, words in (
        (
            "With no queue QLM offers no benefit over the baselines",
            _no_benefit,
            {
                "paper": f"no benefit (read as {NO_BENEFIT:g} point at most)",
                "how": "nearly every request begins at once",
                "reason": "all idle instances load the LLM of the queue's head, and no request behind it is "
                f"served meanwhile (up to {swaps.max():,.0f} swaps, {swaps['qlm']:,.0f} with QLM)",
                "setting": f"{rates[0]:g} requests/s, a queue of {sizes[rates[0]]:.0f} under QLM",
            },
        ),
        (
            "As the queue grows, the baselines meet fewer and fewer SLOs",
            _falls,
            {
                "paper": "keeps dropping (read as a rank correlation of -0.9 at most)",
                "how": "Batch-1 requests wait behind others or for another LLM",
                "reason": "half of the requests have an hour and are met by all, so the share stops at 50 %",
                "setting": f"{rates[0]:g} to {rates[-1]:g} requests/s",
            },
        ),
        (
            "The benefit of QLM is largely present when the queue is large",
            _benefit,
            {
                "paper": "more SLOs met (curves)",
                "how": "QLM orders groups by deadline and LLM",
                "reason": "the traces differ much",
                "setting": f"{rates[-1]:g} requests/s, a queue of {sizes[rates[-1]]:,.0f}",
            },
        ),
    ):
        parts = [
            every(form, each)
            for form, end in (("swapping", ":swapping=true"), ("an LLM per instance", ""))
            if (
                each := [
                    judge(STYLES[policy.partition(":")[0]][0], met["qlm"], met[policy])
                    for policy in (f"vllm{end}", f"edf{end}", "shepherd")
                    if policy in met
                ]
            )
        ]
        if parts:
            yield read(sentence, parts, **words)
    worst = met["qlm"].mean().idxmin()
    yield at_least(
        "QLM maintains a high SLO satisfaction as the queue grows",
        HIGH,
        mean_interval(met["qlm"][worst]),
        nothing=None,
        unit=f"% of all requests at {worst:g} requests/s, the least",
        paper=f"high (read as {HIGH:g} %, as in section 8.2)",
        how="QLM orders groups by deadline and LLM",
        reason="more Batch-1 requests come than can begin in a minute",
    )


def _no_benefit(name: str, mine: DataFrame, its: DataFrame) -> Claim:
    gap = mine.iloc[:, 0] - its.iloc[:, 0]
    return at_most(name, NO_BENEFIT, mean_interval(gap), nothing=None, unit="points more")


def _falls(name: str, mine: DataFrame, its: DataFrame) -> Claim:
    falls = its.rank(axis=1).corrwith(its.columns.to_series().rank(), axis=1)
    falls = mean_interval(falls.fillna(0.0))  # always the same share: none
    unit = f"rank correlation, from {its.iloc[:, 0].mean():.0f} to {its.iloc[:, -1].mean():.0f} %"
    return at_most(name, -0.9, falls, nothing=0, unit=unit)


def _benefit(name: str, mine: DataFrame, its: DataFrame) -> Claim:
    gap = mine.iloc[:, -1] - its.iloc[:, -1]
    return at_least(name, NO_BENEFIT, mean_interval(gap), nothing=0, unit="points more")
