"""The benefit of QLM when some requests are mega prompts.

Workload W_C: Batch-1 requests of Vicuna-13B (TTFT target one minute), of which more and more become mega
prompts of 3,000 to 4,000 tokens. QLM is compared with vLLM, SHEPHERD and two QLMs of ours: one that knows
nothing of tokens, and one that places groups at random. Four instances of an A100 are ours, because 3,500
requests fit into 50 all at once.

A mega prompt takes about nine times the KV memory of an ordinary request. EDF is vLLM where all requests have
one target. QLM that knows nothing of tokens has one group for all prompts. QLM "without sharing" is QLM to
the letter, one group in one virtual queue; ours lets an instance with nothing left in its queue take from the
groups of others. The paper calls the workload "single-model", yet "in addition to the workload from W_B",
which has five LLMs; this is the former (`scenario=qlm-multi` the latter). 15 requests per second are some 80
% of what four instances serve without mega prompts. Benefit is read as percentage points of SLOs met.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from agents.statistics import mean_interval
from experiments.harness.claims import Claim, at_least, every
from experiments.harness.figure import SEEDS, Grid, claimed, dress, legend_below, listed, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from experiments.qlm.loads import (
    STYLES,
    lines_by_policy,
    of_policy,
    points_above,
    run_trace,
)
from experiments.qlm.mega import LEAST, MOST
from experiments.qlm.readings import read

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 16"
LOOKS = {
    **STYLES,
    "qlm:share=false": ("QLM without sharing", "C4", "v-"),
    "qlm:token_clusters=1": ("QLM blind to tokens", "C5", "P-"),
    "qlm:placement=random": ("QLM, groups placed at random", "C6", "X-"),
}
"""Name in pictures, colour, line."""
KEPT = ("scenario", "requests", "interval_s", "patience_s")
PLACES: dict[str, Any] = {"scale": 100, "place": " %"}
"""How `listed` tells shares of mega prompts."""
FEW = 0.25
"""Largest share of mega prompts that counts as a few."""


class MegaPrompts(Parameters):
    """Parameters of this figure."""

    policies: Annotated[tuple[str, ...], paper("sections 8 and 8.3", min_length=1)] = (
        "qlm",
        "qlm:share=false",
        "qlm:token_clusters=1",
        "qlm:placement=random",
        "vllm",
        "shepherd",
    )
    shares: Annotated[
        tuple[Annotated[float, Field(ge=0, le=1)], ...],
        ours(
            "mega prompts among the requests, from none to nearly three times the load that can be served",
            min_length=2,
        ),
    ] = (0.0, 0.05, 0.1, 0.2, 0.3)
    scenario: Annotated[
        Literal["qlm-single", "qlm-multi"], ours("one LLM, or the five of W_B with both classes")
    ] = "qlm-single"
    instances: Annotated[int, ours("few enough for a queue", ge=1, le=12)] = 4
    requests_per_s: Annotated[float, ours("80 % of capacity without mega prompts", gt=0)] = 15.0
    requests: Annotated[int, paper("section 8", ge=10)] = 3500
    least_tokens: Annotated[int, paper("section 8, 3K")] = LEAST
    most_tokens: Annotated[int, paper("section 8, 4K")] = MOST
    interval_s: Annotated[float, ours("how often arrivals are looked at", gt=0)] = 5.0
    patience_s: Annotated[float, ours("long enough for all to end", gt=0)] = 3600.0


PARAMETERS = {
    "quick": MegaPrompts(
        seeds=1,
        shares=(0.0, 0.1, 0.3),
        policies=("qlm", "qlm:token_clusters=1", "vllm"),
        requests=2000,
    ),
    "paper": MegaPrompts(seeds=3),
}


def _rates(parameters: MegaPrompts, _: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All requests are Batch-1, or half of them Batch-2, on so many instances."""
    rate, pool = parameters.requests_per_s, "fleet.pools.a100"
    both = {"batch-1": rate / 2, "batch-2": rate / 2}
    instances = (f"{pool}.max_instances", f"{pool}.initial_instances")
    return [
        {
            "rates": {"batch-1": rate} if parameters.scenario == "qlm-single" else both,
            "changes": dict.fromkeys(instances, parameters.instances),
        }
    ]


cases = Grid(
    {
        "rates": _rates,
        "share": lambda parameters, _: [
            {
                "share": float(share),
                "mega": [float(share), parameters.least_tokens, parameters.most_tokens],
            }
            for share in parameters.shares
        ],
        "policy": "policies",
        "seed": SEEDS,
    },
    keep=KEPT,
    first=("scenario", "rates", "share", "mega", "changes", *KEPT[1:]),
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One trace."""
    return [run_trace(case)]


def plot(frame: DataFrame, parameters: MegaPrompts) -> Any:
    """SLOs met of all, of ordinary requests and of mega prompts; QLM's benefit; time to drain."""
    figure = new_figure(11.5, 6.8)
    panels = figure.subplots(2, 2).reshape(-1)
    columns = {
        "attainment": "SLOs met (% of all requests)",
        "ordinary_attainment": "SLOs met (% of ordinary requests)",
        "mega_attainment": "SLOs met (% of mega prompts)",
    }
    for axes, (column, label) in zip(panels, columns.items(), strict=False):
        met = frame.dropna(subset=[column])
        look: dict[str, Any] = {"along": 0.01, "shade": 0.12}
        lines_by_policy(axes, met, parameters.policies, "share", column, 100, LOOKS, **look)
        axes.set(ylabel=label, ylim=(0, 103))
    for other in parameters.policies if "qlm" in parameters.policies else ():
        if other != "qlm":
            gain = points_above(frame, other, "share").melt(value_name="points")
            gain["policy"] = other
            look = {"along": 0.01, "band": None}
            lines_by_policy(panels[3], gain, [other], "share", "points", 1, LOOKS, **look)
    panels[3].axhline(0, color="0.4", lw=0.8)
    panels[3].set_ylabel("QLM above the other (percentage points)")
    for axes in panels:
        dress(axes, xlabel="mega prompts (% of requests)")
    legend_below(figure, panels[0], 6)
    return figure


@claimed
def claims(frame: DataFrame, parameters: MegaPrompts) -> Iterator[Claim]:
    """Section 8.3."""
    if "qlm" not in parameters.policies:
        return
    some = [share for share in parameters.shares if share > 0]
    few = [share for share in some if share <= FEW]
    baselines = [policy for policy in ("vllm", "shepherd") if policy in parameters.policies]
    points = {other: points_above(frame, other, "share")[some] for other in baselines}
    note = "; ".join(
        f"over {LOOKS[other][0]} {listed(table.mean(), form='+.0f', **PLACES)}"
        for other, table in points.items()
    )
    if baselines:
        yield every(
            "QLM has a benefit for the workload with mega prompts",
            [_most(table, LOOKS[other][0], 1.0, "points more") for other, table in points.items()],
            paper="benefit (bars)",
            how="QLM groups mega prompts apart and evicts; vLLM serves in order of arrival",
            reason="the traces differ much",
            note=note,
            setting="at the share of mega prompts where it is most",
        )
    if baselines and few:
        last = 100 * where(frame, share=some[-1]).groupby("policy")["ordinary_attainment"].mean()
        yield every(
            "The benefit is highest for a few mega prompts and falls as their share grows",
            [
                at_least(
                    f"over {LOOKS[other][0]}",
                    1.0,
                    mean_interval(table[few].max(axis=1) - table[some[-1]]),
                    nothing=0,
                    unit="points",
                )
                for other, table in points.items()
            ],
            paper="highest for a few",
            how="ordinary requests go to instances without mega prompts",
            reason=f"at {100 * some[-1]:g} % mega prompts ordinary requests in time are "
            + ", ".join(
                f"{last[each]:.0f} % with {LOOKS[each][0]}" for each in ("qlm", *baselines)
            ),
            note=note,
            setting=f"largest benefit up to {100 * FEW:g} % mega prompts, less that at {100 * some[-1]:g} %",
        )
    drained = {
        policy: of_policy(frame, policy, "share", "drained_s")[some]
        for policy in ("qlm", "qlm:token_clusters=1", "qlm:placement=random")
        if policy in parameters.policies
    }
    if len(drained) > 1:
        parts = [
            _most(100 * (table / drained["qlm"] - 1), LOOKS[policy][0], 1.0, "%")
            for policy, table in drained.items()
            if policy != "qlm"
        ]
        yield every(
            "Knowing token distributions, QLM balances load so that the queue drains sooner",
            parts,
            paper="intelligently, to minimise the drain time (read as 1 % or more)",
            how="groups of mega prompts and of others are placed by their estimated work",
            reason="groups placed at random drain as soon: idle instances take from the groups of others",
            setting="at the share of mega prompts where it is most",
        )
    apart = {
        policy: of_policy(frame, policy, "share", "apart")[some]
        for policy in ("qlm", "qlm:share=false")
        if policy in parameters.policies
    }
    parts = [
        _most(table, LOOKS[policy][0], 0.9, "of 1 (no instance serves both)")
        for policy, table in apart.items()
    ]
    yield read(
        "QLM allocates all ordinary requests to other instances than mega prompts",
        parts,
        paper="all (read as 90 %)",
        how="groups of mega prompts are in other virtual queues",
        reason="with four instances most virtual queues have groups of both kinds",
        setting="at the share of mega prompts where it is most",
    )


def _most(table: DataFrame, sentence: str, number: float, unit: str) -> Claim:
    """At the share where it is most."""
    best = table.mean().idxmax()
    place = f"{unit} at {100 * best:g} %"
    return at_least(sentence, number, mean_interval(table[best]), nothing=0, unit=place)
