"""Batch requests of several LLMs: throughput and SLO attainment against the rate of Batch-1 requests.

Workload W_B on 50 A100 (12 instances of four GPUs): Batch-1 requests (TTFT target one minute) of two LLMs and
Batch-2 requests (one hour) of three, each of which an instance can load in turn. Throughput is that of the
whole trace, from its first arrival to the end of its last request. EDF and vLLM have three forms: swapping
for the next request from one queue or from a queue per instance, or an LLM per instance.

The LLMs are Mistral-7B, Vicuna-13B and three fine-tuned versions of Llama-2-70B. Attainment counts all
requests, as Figure 13 does for "all SLO values", or Batch-1 requests, whose rate is varied ("SLO satisfied
for the interactive services against their arrival rate").

Ours: four GPUs per instance for every LLM, so that all can take turns; host memory of 320 GB per instance
(the paper's "additional 320 GB" for Llama-70B), which holds two of the large LLMs and the small ones; Batch-2
requests arrive at a fixed 250 per second. SHEPHERD, which does not share instances between LLMs, places them
anew every minute.

Of the forms of EDF and vLLM the one with an LLM per instance, dealt out by the trace's work, is ours and the
strongest. The others swap whenever the next request in their order needs it: section 8.2 says that no
baseline considers the impact of swapping, and that QLM swaps "once per request group instead of per
individual request". Their instances share one queue, or have one each: EDF sorts "the virtual queue"
(section 8), of which there is one per instance (definition 4.2); then the LLM changes with nearly every
request. Claims are held against the shared queue first, the stronger of the two. "Other LLM serving systems"
(section 1) are read with SHEPHERD, a baseline, and without it, since section 1 counts it among the
"traditional ML serving systems".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from agents.statistics import mean_interval
from experiments.harness.claims import Claim, about, asked, at_least, best_of, settings
from experiments.harness.figure import SEEDS, Grid, claimed, dress, legend_below
from experiments.harness.parameters import Parameters, ours, paper
from experiments.harness.picture import Published
from experiments.output import new_figure
from experiments.qlm.loads import (
    STYLES,
    lines_by_policy,
    of_policy,
    points_above,
    run_trace,
)
from experiments.qlm.readings import read

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


FORMS = {
    "swapping for the next request": ":swapping=true",
    "swapping, a queue per instance": ":swapping=true,queues=per-instance",
    "an LLM per instance": "",
}
"""Of EDF and vLLM, the paper's first."""
OURS = "an LLM per instance"
SOURCES = {
    "swapping for the next request": "section 8.2: per individual request",
    "swapping, a queue per instance": "sections 8 and 8.2, definition 4.2",
    OURS: "ours",
}


@claimed
def claims(frame: DataFrame, parameters: MultiModel) -> Iterator[Claim]:
    """Sections 1 and 8.2."""
    if "qlm" not in parameters.policies:
        return
    forms = {
        form: [name + end for name in ("vllm", "edf") if name + end in parameters.policies]
        for form, end in FORMS.items()
    }
    forms = {form: policies for form, policies in forms.items() if policies}
    shepherd = [policy for policy in parameters.policies if policy == "shepherd"]
    if set(forms) - {OURS}:
        yield from _throughput_claims(frame, forms, shepherd)
    vllm = {f", {form}": policies[0] for form, policies in forms.items() if "vllm" in policies[0]}
    columns = {"Batch-1 requests": "batch-1_attainment", "all requests": "attainment"}
    seldom = "QLM swaps within the target of a minute; SHEPHERD changes LLMs once a minute at most"
    for name, low, baselines, how in (
        ("vLLM", 40, vllm, "QLM loads an LLM once per request group, vLLM for the next request"),
        ("SHEPHERD", 50, dict(zip([""], shepherd, strict=False)), seldom),
    ):
        parts = [
            # Rounded as the paper rounds.
            _most(points_above(frame, policy, RATE, column), whose + form, low - 0.5, 0, "points")
            for form, policy in baselines.items()
            for whose, column in columns.items()
        ]
        if parts:
            yield read(
                f"With several models QLM's SLO attainment is {low} to 90 % above that of {name}",
                parts,
                paper=f"{low} to 90 %",
                how=how,
                reason="Batch-2 requests have an hour and are on time with every policy",
                setting="Batch-1 requests, as section 8.2 reads, at the best rate",
            )
    if below := [rate for rate in parameters.batch_1_per_s if rate < BELOW_PER_S]:
        mine = 100 * of_policy(frame, "qlm", RATE, "attainment")[below]
        worst = mine.mean().idxmin()
        yield at_least(
            "Below 500 Batch-1 requests/s QLM satisfies more than 90 % of all SLOs",
            90,
            mean_interval(mine[worst]),
            nothing=None,
            unit=f"% at {worst:g}/s, the worst of these rates",
            how="groups of an LLM follow each other, so that instances rarely swap",
        )


def _throughput_claims(
    frame: DataFrame, forms: Mapping[str, list[str]], shepherd: list[str]
) -> Iterator[Claim]:
    """QLM's throughput over that of EDF and vLLM in their forms."""
    baselines = [policy for policies in forms.values() for policy in policies] + shepherd
    ratio = {
        policy: of_policy(frame, "qlm", RATE, SPEED) / of_policy(frame, policy, RATE, SPEED)
        for policy in baselines
    }
    swaps = frame.groupby("policy")["swaps"].mean()
    swapped = f"a trace has {swaps['qlm']:,.0f} swaps with QLM; with vLLM and EDF " + ", ".join(
        f"{' and '.join(f'{swaps[each]:,.0f}' for each in policies)} ({form})"
        for form, policies in forms.items()
        if form.startswith("swapping")
    )
    parts = [
        _sourced(
            best_of(form, [_most(ratio[each], _name(each), 3, 1, "x") for each in policies]), form
        )
        for form, policies in forms.items()
    ]
    yield settings(
        "QLM provides up to 3 to 4 times higher throughput, since it swaps once per request group",
        parts,
        paper="up to 3 to 4 x",
        how="QLM loads an LLM once per request group, vLLM and EDF for the next request",
        reason=swapped,
        setting="vLLM and EDF at the best rate"
        + "".join(f"; over SHEPHERD {ratio[each].mean().max():.2g} x" for each in shepherd),
    )
    parts = []
    for form, policies in forms.items():
        for what, others in (("", policies + shepherd), (", without SHEPHERD", policies)):
            mean = np.mean([ratio[each].mean(axis=1) for each in others], axis=0)
            # Far beyond is no better here: it is another way to swap of those that QLM is compared with.
            claim = about(
                f"{form}{what}", 400, mean_interval(100 * (mean - 1)), nothing=0, unit="%"
            )
            if not what or shepherd:
                parts.append(_sourced(claim, form))
    yield settings(
        "With several models QLM improves throughput by 400 % on average over other systems",
        parts,
        how="QLM loads an LLM once per request group, vLLM and EDF for the next request; mean over all rates "
        "and baselines",
        reason=swapped,
        note=swapped,
    )


def _sourced(claim: Claim, form: str) -> Claim:
    """With the place that allows the form, or as a question of ours."""
    told = replace(claim, setting=SOURCES[form])
    return asked(told) if form == OURS else told


def _name(policy: str) -> str:
    return STYLES[policy.partition(":")[0]][0]


def _most(table: DataFrame, name: str, number: float, nothing: float, unit: str) -> Claim:
    """At the rate where it is most."""
    rate = table.mean().idxmax()
    found = mean_interval(table[rate])
    return at_least(name, number, found, nothing=nothing, unit=f"{unit} at {rate:g}/s")
