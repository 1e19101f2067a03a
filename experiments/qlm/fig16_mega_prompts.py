"""The benefit of QLM when some requests are mega prompts.

Workload W_C: requests of one LLM (Vicuna-13B, an A100 per instance), all Batch-1 (TTFT target one minute),
some of which are mega prompts: 3,000 to 4,000 tokens of input and output together, about nine times
the KV memory of an ordinary request. Of the same trace more and more requests become mega prompts.
QLM is compared with vLLM and SHEPHERD (EDF is vLLM where all requests have one target), with QLM that
knows nothing of tokens (one group for all prompts), and with QLM that places groups at random. QLM "without
sharing" is QLM to the letter, one group in one virtual queue; ours lets an instance with nothing left in
its queue take from the groups of others.

Ours: the paper calls the workload "single-model", yet "in addition to the workload from W_B", which has five
LLMs; this is the former (`scenario=qlm-multi` the latter). Four instances, because 3,500 requests fit
into 50 all at once, so that nothing waits; 15 requests per second, some 80 % of what four serve
without mega prompts. Benefit is read as percentage points of SLOs met.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from agents.statistics import mean_interval
from experiments.harness.claims import Claim, at_least, at_most
from experiments.harness.figure import SEEDS, Grid, claimed, dress, legend_below, listed, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from experiments.qlm.loads import STYLES, lines_by_policy, of_policy, points_above, run_trace
from experiments.qlm.mega import LEAST, MOST

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

FALLS = ("vllm", "shepherd", "qlm:placement=random")
"""Over whom the benefit may fall; the paper does not say whom it compares with (Figure 15: random)."""


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
    gains = {
        other: points_above(frame, other, "share")[some]
        for other in parameters.policies
        # QLM without sharing is what the paper describes, not what it compares with.
        if other not in ("qlm", "qlm:share=false")
    }
    for other in (policy for policy in gains if policy in ("vllm", "shepherd")):
        sentence = f"QLM meets more SLOs than {LOOKS[other][0]} when there are mega prompts"
        yield _most(sentence, gains[other], "benefit (bars)")
    for other in (policy for policy in gains if policy in FALLS and min(some) <= FEW):
        few = [share for share in some if share <= FEW]
        yield at_least(
            f"The benefit over {LOOKS[other][0]} is highest for a few mega prompts and falls as "
            "their share grows",
            1.0,
            mean_interval(gains[other][few].max(axis=1) - gains[other][some[-1]]),
            nothing=0,
            unit=f"percentage points that the largest benefit up to {100 * FEW:g} % of mega "
            f"prompts is above that at {100 * some[-1]:g} %",
            paper="highest for a few",
            reason=_where(frame, other, some[-1]),
            note=_shown(gains[other]),
        )
    for other in (policy for policy in gains if policy.startswith("qlm:")):
        sentence = f"Knowing token distributions, QLM balances load better than {LOOKS[other][0]}"
        yield _most(sentence, gains[other], "balances intelligently")
    apart, kept = (
        of_policy(frame, "qlm", "share", column)[some]
        for column in ("apart", "ordinary_attainment")
    )
    kept = 100 * kept
    most, worst = apart.mean().idxmax(), kept.mean().idxmin()
    table = listed(apart.mean(), form=".2f", **PLACES)
    yield at_least(
        "Ordinary requests are moved to other instances than mega prompts",
        0.5,
        mean_interval(apart[most]),
        nothing=0,
        unit=f"of 1 (no instance serves both), the most (at {100 * most:g} % mega prompts)",
        paper="all ordinary requests elsewhere (read as half the way)",
        reason=f"0 is the same mix on all instances: {table}; an instance that has nothing left takes "
        "from the groups of others, and without that has longer to drain",
        note=table,
    )
    yield at_most(
        "Ordinary requests keep their SLOs, whatever the share of mega prompts",
        10.0,
        mean_interval(100 - kept[worst]),
        nothing=None,
        unit=f"% of ordinary requests late, the most (at {100 * worst:g} % mega prompts)",
        paper="can be moved to another GPU (read as 10 % late at most)",
        reason=f"{listed(kept.mean(), ' %', '.0f', **PLACES)} in time",
    )


def _most(sentence: str, gain: DataFrame, paper: str) -> Claim:
    """What QLM has more at the share where that is most."""
    best = gain.mean().idxmax()
    return at_least(
        sentence,
        1.0,
        mean_interval(gain[best]),
        nothing=0,
        unit=f"percentage points more, the most (at {100 * best:g} % mega prompts)",
        paper=paper,
        reason=_shown(gain),
        note=_shown(gain),
    )


def _shown(gain: DataFrame) -> str:
    return f"percentage points: {listed(gain.mean(), form='+.0f', **PLACES)}"


def _where(frame: DataFrame, other: str, last: float) -> str:
    at = where(frame, share=last).groupby("policy")
    mean = 100 * at[["ordinary_attainment", "mega_attainment"]].mean()
    parts = [
        f"{LOOKS[policy][0]} {mean.loc[policy, 'ordinary_attainment']:.0f} % of ordinary requests and "
        f"{mean.loc[policy, 'mega_attainment']:.0f} % of mega prompts"
        for policy in ("qlm", other)
    ]
    return f"at {100 * last:g} % mega prompts {' and '.join(parts)} are in time"
