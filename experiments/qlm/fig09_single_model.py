"""Interactive and batch requests of one LLM: throughput and SLO attainment against the interactive rate.

Workload W_A on 50 A100 with Vicuna-13B: interactive requests (TTFT target 20 s), Batch-1 (one minute) and
Batch-2 (one hour). Throughput is that of a whole trace, from its first arrival to the end of its last
request. Each class is a third of the requests and rates are kept for a minute, since the paper gives neither
batch rates nor a duration.

"equal": thirds, as "we classify all requests into three categories" reads. "fixed": Batch-1 and Batch-2
arrive at 50 per second each whatever the interactive rate, which is half of what the fleet serves. "literal":
thirds of 3,500 requests; they all fit into the batches of 50 A100 at once, no queue forms and no policy
misses anything. "released": the same in batches of at most 10, as the released code has them, where a queue
forms; at Figure 9's rate only. Arrivals are then looked at every second, which is nearer to section 4's "as
new requests join the global queue" than the five seconds of the longer traces. "kept": as "equal" at that
rate, where QLM alone keeps the KV of preempted requests in host memory, as section 8.1 can be read ("Request
eviction increases request throughput by swapping the KV cache into CPU memory").

Section 8.1 evaluates "similar to the multi-model evaluation in Section 8.2". Section 8.2 says of the same
picture for several LLMs that it shows "the percentage of SLO satisfied for the interactive services against
their arrival rate", and of throughput that it is "requests served per second"; both are read so here as well.
vLLM and EDF take from one queue, or, at Figure 9's rate, from a queue per instance as well: EDF sorts "the
virtual queue" (section 8), of which there is one per instance (definition 4.2), and balancing load is an
operation of QLM's. EDF orders by deadline; "EDF by SLO" by the target alone, as section 8's sentence reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from agents.statistics import Interval, mean_interval
from experiments.harness.claims import (
    Claim,
    asked,
    at_most,
    between,
    every,
    gain,
    settings,
)
from experiments.harness.figure import (
    SEEDS,
    Grid,
    claimed,
    dress,
    paper_stars,
    where,
    wide,
)
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from experiments.qlm.loads import (
    STYLES,
    lines_by_policy,
    of_policy,
    points_above,
    run_trace,
    single_model_cases,
)
from experiments.qlm.readings import least_first, read

if TYPE_CHECKING:
    from pandas import DataFrame, Series

FIGURE = "Figures 9 and 10"


KEPT = "kept"
KEEPS = {"fleet.pools.a100.preemption": "swap", "fleet.pools.a100.host_kv_bytes": 80e9}
"""KV of preempted requests goes to host memory, of which an instance has 80 GB (section 8.3)."""


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
        "released",
    )
    per_instance: Annotated[
        tuple[str, ...], paper("section 8 and definition 4.2: a virtual queue per instance")
    ] = ("edf:queues=per-instance", "vllm:queues=per-instance")
    kept: Annotated[bool, paper("section 8.1: eviction swaps KV into CPU memory")] = True
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
        per_instance=(),
        kept=False,
        interactive_per_s=(50, 200, 500),
        trace_s=30.0,
    ),
    "paper": SingleModel(seeds=3),
}


def _loads(parameters: SingleModel, _: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each load at each rate; batches as in the released code, which take long to serve, at Figure 9's."""
    rates = sorted({*parameters.interactive_per_s, parameters.figure_9_per_s})
    usual = [load for load in parameters.loads if load != "released"]
    slow = [load for load in parameters.loads if load == "released"]
    at = single_model_cases(parameters, parameters.loads[:1], [parameters.figure_9_per_s])
    return [
        *single_model_cases(parameters, usual, rates),
        *single_model_cases(parameters, slow, [parameters.figure_9_per_s]),
        *({**case, "load": KEPT, "changes": KEEPS} for case in at if parameters.kept),
    ]


def _policies(parameters: SingleModel, case: Mapping[str, Any]) -> tuple[str, ...]:
    """At Figure 9's rate those with a queue per instance as well; it is QLM that keeps KV."""
    if case["load"] == KEPT:
        return tuple(policy for policy in parameters.policies if policy == "qlm")
    at = case["interactive_per_s"] == parameters.figure_9_per_s
    if not at or case["load"] not in ("equal", "released"):
        return parameters.policies
    known = (
        each for each in parameters.per_instance if each.partition(":")[0] in parameters.policies
    )
    return (*parameters.policies, *known)


cases = Grid({"scenario": ("qlm-single",), "load": _loads, "policy": _policies, "seed": SEEDS})


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


LOADS = {
    "equal": "thirds",
    "fixed": "fixed batch rates",
    "literal": "3,500 requests",
    "released": "batches of 10",
}
SOURCES = {
    "equal": "section 8: three categories",
    "fixed": "section 8 gives no batch rates",
    "literal": "section 8: 3,500 requests",
    "released": "section 8, released code: batches of 10",
}
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
    others = [policy for policy in parameters.policies if policy != "qlm"]
    if not others or len(others) == len(parameters.policies):
        return
    main = where(frame, load=parameters.loads[0])
    loads = {LOADS[load]: where(frame, load=load) for load in parameters.loads}
    yield from _throughput_claims(frame, parameters, others)
    continuous = "QLM batches continuously; SHEPHERD's batches wait for their last request"
    for other, low, how in (
        ("vllm", 40, "QLM orders interactive requests first and evicts batch requests for them"),
        ("shepherd", 50, continuous),
    ):
        if other not in others:
            continue
        columns = {"all": "attainment", "interactive": "interactive_attainment"}
        parts = [
            # Rounded as the paper rounds.
            between(
                f"{whose} requests, {LOADS[load]}{', relative' if relative else ''}",
                low - 0.5,
                90.5,
                found,
                nothing=0,
                unit=unit,
                setting=SOURCES[load]
                + ("" if whose == "all" else "; section 8.2: the interactive services"),
            )
            for load in parameters.loads
            for relative in (False, True)
            if not relative or load in ("equal", "released")
            for whose, column in columns.items()
            for found, unit in (_gap(where(frame, load=load), other, "idxmax", column, relative),)
        ]
        yield settings(
            f"Depending on the arrival rate, QLM's SLO attainment is {low} to 90 % above that of "
            f"{STYLES[other][0]}",
            parts,
            paper=f"{low} to 90 %",
            how=how,
            reason="Batch-2 requests, a third, are on time with every policy",
        )
    parts = [
        every(
            load,
            least_first(
                between(STYLES[other][0], -0.5, 100, found, nothing=None, unit=unit)
                for other in others
                for found, unit in (_gap(part, other, "idxmin"),)
            ),
        )
        for load, part in loads.items()
    ]
    yield read(
        "As the arrival rate decreases, QLM satisfies the maximum number of SLOs",
        parts,
        paper="never fewer than another",
        how="QLM moves interactive requests ahead, evicts batch requests and batches continuously",
        reason="QLM's evictions cost work",
        setting="all requests, at the rate where it is least ahead",
    )
    most = max(main["interactive_per_s"])
    at = wide(where(main, interactive_per_s=most), "policy", "interactive_attainment")
    at = at[list(parameters.policies)]
    best = at.mean().idxmax()
    yield at_most(
        "When the rate significantly exceeds the serving capacity, no system satisfies the SLOs",
        99,
        mean_interval(100 * at[best]),
        nothing=None,
        unit=f"% of interactive SLOs ({STYLES[best][0]}, the best)",
        paper="none (SLOs are of the 99th percentile, section 8)",
        how=f"{3 * most:,.0f} requests/s come and {_capacity_per_s(main):.0f} are served, by any policy",
        reason="overload lasts for a minute only, and the batches are empty at the start",
    )


QUEUES = {
    "one queue": "",
    "a queue per instance": ":queues=per-instance",
}
"""Of vLLM and EDF; the text of the figure says where the paper allows both."""


def _throughput_settings(
    frame: DataFrame, parameters: SingleModel, batching: list[str]
) -> Iterator[Claim]:
    """QLM's throughput over that of vLLM and EDF, the lesser lead of both, in each setting."""
    at = where(frame, interactive_per_s=parameters.figure_9_per_s)
    loads = {LOADS[load]: (where(at, load=load), SOURCES[load]) for load in parameters.loads}
    first, source = next(iter(loads.values()))
    if parameters.kept:
        others = (at["load"] == parameters.loads[0]) & (at["policy"] != "qlm")
        told = f"{source}; section 8.1: KV in CPU memory"
        loads["QLM keeps KV"] = (at[others | (at["load"] == KEPT)], told)
    for column, what in (("requests_per_s", ""), ("on_time_per_s", ", those on time")):
        for load, (part, source) in loads.items():
            speed = wide(part, "policy", column)
            for queues, end in QUEUES.items():
                rivals = [other for other in batching if other + end in speed]
                # Section 8.2: "requests served per second", on time or not.
                if not rivals or (what and part is not first):
                    continue
                claim = every(
                    f"{load}, {queues}{what}",
                    least_first(
                        gain(
                            STYLES[other][0],
                            20,
                            mean_interval(100 * (speed["qlm"] / speed[other + end] - 1)),
                            nothing=0,
                            unit="%",
                        )
                        for other in rivals
                    ),
                    unit="%",
                    setting=source + ("; definition 4.2" if end else ""),
                )
                yield asked(replace(claim, setting="ours")) if what else claim


def _throughput_claims(
    frame: DataFrame, parameters: SingleModel, others: list[str]
) -> Iterator[Claim]:
    main = where(frame, load=parameters.loads[0])
    at = where(main, interactive_per_s=parameters.figure_9_per_s)
    served = wide(at, "policy", "requests_per_s")
    evicted = float(at.groupby("policy")["evictions"].mean()["qlm"] / at["requests"].mean())
    setting = f"{parameters.figure_9_per_s:g} interactive requests/s; requests served per second"

    def above(table: DataFrame, other: str, number: float, sentence: str, **words: Any) -> Claim:
        more: Series = 100 * (table["qlm"] / table[other] - 1)
        return gain(sentence, number, mean_interval(more), nothing=0, unit="%", **words)

    if batching := [other for other in others if other in ("vllm", "edf")]:
        parts = list(_throughput_settings(frame, parameters, batching))
        on_time = next(part.ours.mean for part in parts if part.question)
        yield settings(
            "QLM's throughput is 20 % higher than that of vLLM and EDF",
            parts,
            how="pulling and eviction in the order of the plan",
            reason="batches are as full with every policy, and eviction costs work, at "
            f"{parameters.figure_9_per_s:g}/s {evicted:.1f} times per request; of requests on time QLM has "
            f"{on_time:.3g} % more",
        )
    if "shepherd" in others:
        yield above(
            served,
            "shepherd",
            50,
            "QLM's throughput is 50 % higher than that of SHEPHERD",
            how="QLM batches continuously; SHEPHERD's batches are sized for the longest outputs and wait for "
            "their last request",
            setting=setting,
        )
    ratios = {other: mean_interval(served["qlm"] / served[other]) for other in others}
    by_size = sorted(others, key=lambda other: ratios[other].mean)
    yield every(
        "The throughput corresponds to 1.1 to 2.3 times fewer GPUs",
        [
            gain(f"the {word}: {STYLES[other][0]}", times, ratios[other], nothing=1, unit="x")
            for word, times, other in (("least", 1.1, by_size[0]), ("most", 2.3, by_size[-1]))
        ],
        paper="1.1 to 2.3 x",
        how="throughput at equal GPUs",
        reason="QLM serves fewer requests per second than the systems that batch continuously",
        setting=setting,
    )


def _gap(
    frame: DataFrame,
    other: str,
    extreme: str,
    column: str = "attainment",
    relative: bool = False,
) -> tuple[Interval, str]:
    """QLM's points above another at the rate where they are most or least, and their unit.

    Relative: in per cent of what the other meets.
    """
    gaps = points_above(frame, other, "interactive_per_s", column)
    if relative:
        gaps = gaps / of_policy(frame, other, "interactive_per_s", column)
    rate = getattr(gaps.mean(), extreme)()
    return mean_interval(gaps[rate]), f"{'%' if relative else 'points'} at {rate:g}/s"
