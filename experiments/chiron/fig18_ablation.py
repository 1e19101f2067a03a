"""Ablation: what the local and the global autoscaler contribute, in throughput and in GPUs.

Four policies: "neither" (Llumnix, untuned), "Local" (Chiron's batch sizes under Llumnix's utilisation range),
"Global" (Chiron's backpressures over a static batch size), and Chiron. Throughput per billed instance is that
of interactive requests in workload A and of batch requests in workload B. The paper does not give the static
batch size: 64, which section 6.2 implies, or 1024, which Llumnix's sweep finds best. It gives neither the
queue nor theta: 1/3, the default of section 6.3, or 0.8, by the rule of section 5.2 for Poisson arrivals.

The names are those of Figure 2's caption: the autoscaler that is used independently. (Section 6.3 labels
them the other way round, by what is replaced.) Batch requests are measured from the arrival of the queue to
its deadline. GPUs are the mean over the same time (Figure 2, right). An autoscaler's contribution is judged
as section 6.3 measures it: by how much Chiron exceeds itself with that autoscaler replaced. Attainment stands
on every bar, since throughput can be bought with late requests.

Ours: the rates of workload A, low enough that Chiron's reserve does not take the whole cluster; the
utilisation range. What the local autoscaler is worth depends on the static batch size; 64 is a fiftieth of
2048 to 4096, and 1024 is about what KV memory holds. "Neither" has the untuned range that the sweep finds for
its batch size. "Local" has no static batch size, so it is run once, with the untuned range of the whole sweep
(that of 1024). Beside the bars of 64 it therefore differs from "neither" in its range too. A contribution
counts only where Chiron has no fewer requests on time, to a per cent. Theta "is chosen based on historic
arrival patterns" (section 5.2), 1 over the tail spike: Poisson arrivals (section 6) have 1.14 at the most
(Figure 5), and 0.8 leaves room for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

import numpy as np
from pydantic import (
    ConfigDict,
    PositiveFloat,
    PositiveInt,
)

from agents.statistics import Interval, mean_interval
from experiments.chiron.comparison import not_counted, weakest_first
from experiments.chiron.llumnix_settings import IMPLIED_LIMIT, policy_text, untuned, untuned_64
from experiments.chiron.loads import STYLES, run_load
from experiments.harness.claims import (
    Claim,
    Words,
    at_least,
    every,
    more,
    settings,
)
from experiments.harness.figure import SEEDS, Grid, claimed, legend_below, where
from experiments.harness.parameters import Parameters, one_each, ours, paper
from experiments.output import new_figure

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 18 and Figure 2 (right)"
POLICIES = ("neither", "local", "global", "chiron")
WORKLOADS = {"W_A": ("interactive", "requests/s"), "W_B": ("batch", "requests queued")}
STATIC = (
    "neither",
    "global",
    "global-lean",
)  # the others are the same whatever the static batch size
LEAN = {"chiron-lean": "chiron", "global-lean": "global"}
"""Policies with hardly any reserve, and those with the default reserve whose place they take."""

NO_WORSE = 0.01
"""Share of requests on time by which a policy may lie below Chiron and still be compared in GPUs."""

LEAST = 30.0
"""Per cent that each autoscaler contributes at the least (section 6.3: 30 to 60)."""

_MIDDLE = "Chiron does not take the whole cluster"


class Ablation(Parameters):
    """Parameters of this figure."""

    model_config = ConfigDict(validate_default=True)

    seeds: Annotated[int, ours("enough for an interval", ge=1, le=1000)] = 10
    configurations: Annotated[
        tuple[Literal["small", "large", "mixed"], ...], ours("each model by itself", min_length=1)
    ] = ("small", "large")
    rates_per_s: Annotated[tuple[PositiveFloat, ...], ours(_MIDDLE)] = (100, 10)
    queues: Annotated[tuple[PositiveInt, ...], paper("section 6.2: 700k and 80k")] = (
        700_000,
        80_000,
    )
    queue_shares: Annotated[
        tuple[PositiveFloat, ...], ours("all of 6.2's queues, and half of them", min_length=1)
    ] = (1.0, 0.5)
    lean_theta: Annotated[
        float, ours("5.2: 1 over the tail spike, of Poisson arrivals; as in Figure 9", gt=0, lt=0.9)
    ] = 0.8
    static_batches: Annotated[
        tuple[PositiveInt, ...],
        ours(
            "6.2: Chiron's 2048 to 4096 is nearly 50 times as much; and what Llumnix's sweep finds",
            min_length=1,
        ),
    ] = (64, 1024)
    warm_up_s: Annotated[int, ours("as in Figure 9", ge=0)] = 600
    measured_s: Annotated[int, ours("as in Figure 9", ge=60)] = 1080
    tail_s: Annotated[int, ours("as in Figure 9", ge=0)] = 120

    _one_each = one_each("rates_per_s", "queues")


PARAMETERS = {
    "quick": Ablation(
        seeds=1, rates_per_s=(50, 8), queues=(50_000, 10_000), warm_up_s=300, measured_s=300
    ),
    "paper": Ablation(),
}


def _loads(parameters: Ablation, case: dict[str, Any]) -> list[dict[str, Any]]:
    """The configurations with their loads in the workload of a case."""
    return [
        {"configuration": configuration, "load": load}
        for share in (parameters.queue_shares if case["workload"] == "W_B" else (1.0,))
        for configuration in parameters.configurations
        for load in [_load(parameters, case["workload"], configuration, share)]
    ]


def _load(parameters: Ablation, workload: str, configuration: str, share: float) -> float:
    """Requests per second (W_A), or so much of the queue (W_B)."""
    k = parameters.configurations.index(configuration)
    return float(parameters.rates_per_s[k] if workload == "W_A" else share * parameters.queues[k])


def _policies(parameters: Ablation, case: dict[str, Any]) -> list[dict[str, str]]:
    """The policies; those without a static batch, and the lean ones, only beside the first batch size."""
    without_batch = {name: value for name, value in untuned().items() if name != "batch_limit"}
    batch, lean = case["static_batch"], parameters.lean_theta
    static = untuned_64() if batch == IMPLIED_LIMIT else untuned()
    policies = {
        "neither": policy_text("llumnix", {**static, "batch_limit": batch}),
        "local": policy_text("chiron-local", without_batch),
        "global": f"chiron-global:batch_limit={batch}",
        "chiron": "chiron",
        "global-lean": f"chiron-global:batch_limit={batch},theta={lean:g}",
        "chiron-lean": f"chiron:theta={lean:g}",
    }
    return [
        {"policy_name": name, "policy": policy}
        for name, policy in policies.items()
        if batch == parameters.static_batches[0] or (name in STATIC and name not in LEAN)
    ]


cases = Grid(
    {
        "workload": tuple(WORKLOADS),
        "load": _loads,
        "static_batch": "static_batches",
        "policy": _policies,
        "seed": SEEDS,
    },
    keep=("warm_up_s", "measured_s", "tail_s"),
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One episode."""
    return [run_load(case)]


def plot(frame: DataFrame, parameters: Ablation) -> dict[str, Any]:
    """A picture per static batch size, and one with hardly any reserve."""
    first = parameters.static_batches[0]
    words = "static batch size where there is one: {}; theta {}; on the bars: requests on time"
    pictures = {
        f"static-batch-{batch}": _bars(
            _at(frame, batch, lean=False), parameters, words.format(batch, "1/3")
        )
        for batch in parameters.static_batches
    }
    lean = words.format(first, f"{parameters.lean_theta:g}")
    return {**pictures, "small-reserve": _bars(_at(frame, first, lean=True), parameters, lean)}


def _bars(frame: DataFrame, parameters: Ablation, words: str) -> Any:
    """Bars: throughput per instance of the workload's class, and GPUs, with attainment on them."""
    n = len(parameters.configurations)
    figure = new_figure(13, 3.6 * n)
    panels = figure.subplots(n, 4, squeeze=False)
    for row, configuration in zip(panels, parameters.configurations, strict=True):
        for k, (workload, (slo_class, unit)) in enumerate(WORKLOADS.items()):
            load = _load(parameters, workload, configuration, parameters.queue_shares[0])
            mine = where(frame, configuration=configuration, workload=workload, load=load)
            mine = mine.rename(columns={f"{slo_class}_per_instance_s": "throughput"})
            columns = ["throughput", "gpus", f"{slo_class}_attainment"]
            grouped = mine.groupby("policy_name")[columns]
            mean = grouped.mean().reindex(POLICIES)
            low, high = grouped.min().reindex(POLICIES), grouped.max().reindex(POLICIES)
            places = np.arange(len(POLICIES))
            names = ["neither\n(Llumnix)", "Local", "Global", "both\n(Chiron)"]
            colours = [STYLES[policy][1] for policy in POLICIES]
            for axes, column, label in (
                (row[k], "throughput", f"{slo_class} requests/s per instance"),
                (row[2 + k], "gpus", "GPUs (mean)"),
            ):
                spread = np.stack([mean[column] - low[column], high[column] - mean[column]])
                spread = spread.clip(min=0.0)  # a mean of equal numbers may be off by a rounding
                axes.bar(places, mean[column], color=colours, alpha=0.85, yerr=spread, capsize=3)
                for x, policy in zip(places, POLICIES, strict=True):
                    text = f"{100 * mean.loc[policy, f'{slo_class}_attainment']:.0f} %"
                    look = {"textcoords": "offset points", "ha": "center", "fontsize": 7}
                    axes.annotate(text, (x, high.loc[policy, column]), (0, 2), **look)
                if column == "throughput":
                    whole = mean.loc["chiron", column]
                    alone = [POLICIES.index("local"), POLICIES.index("global")]
                    low_high = [whole / (1 + part) for part in (0.6, 0.3)]
                    told = "the paper: Chiron is 30 to 60 % above either alone"
                    axes.vlines(alone, *low_high, color="k", lw=4, alpha=0.6, label=told)
                axes.set_xticks(places, names, fontsize=8)
                axes.set_ylabel(label)
                axes.margins(y=0.18)
                axes.set_title(f"{configuration}, {workload}: {load:,.0f} {unit}", fontsize=9)
    legend_below(figure, panels[0, 0])
    figure.suptitle(words, fontsize=10)
    return figure


@claimed
def claims(frame: DataFrame, parameters: Ablation) -> Iterator[Claim]:
    """Sections 1 and 6.3."""
    yield _by_setting(
        "Both local and global backpressure contribute to throughput improvement",
        frame,
        parameters,
        lambda name, gain, reason: more(name, 0, gain, unit="%", reason=reason),
        paper="improvement",
    )
    yield _by_setting(
        "Each autoscaler individually contributes 30 to 60 % improvement in throughput",
        frame,
        parameters,
        lambda name, gain, reason: at_least(name, LEAST, gain, nothing=0, unit="%", reason=reason),
        paper="30 to 60 %",
    )


def _by_setting(
    sentence: str,
    frame: DataFrame,
    parameters: Ablation,
    judge: Callable[[str, Interval, str], Claim],
    **words: Unpack[Words],
) -> Claim:
    """A sentence about both autoscalers in every reading: theta, queues and static batch size."""
    first = parameters.static_batches[0]
    thetas = {
        False: ("1/3", "section 6.3: the default over-provisioning of 3"),
        True: (f"{parameters.lean_theta:g}", "section 5.2: 1 over the tail spike of the arrivals"),
    }
    batches = {first: "section 6.2: nearly 50 times less than 2048 to 4096"}
    batches |= dict.fromkeys(parameters.static_batches[1:], "section 6: best for SLO attainment")
    found = []
    for batch, source in batches.items():
        for lean, (theta, reserve) in thetas.items():
            for share in parameters.queue_shares if batch == first else parameters.queue_shares[:1]:
                if lean and batch != first:
                    continue
                mine = _at(frame, batch, lean=lean)
                parts = [
                    _contribution(f"{autoscaler}, {name}", rows, without, slo_class, judge)
                    for autoscaler, without in (("local", "global"), ("global", "local"))
                    for name, slo_class, rows in _each(mine, parameters, share)
                ]
                gains = ", ".join(f"{part.sentence} {part.ours.mean:+.0f}" for part in parts)
                queues = "6.2's queues" if share == 1 else f"{share:g} of 6.2's queues"
                told = every(
                    f"static {batch}, theta {theta}, {queues}",
                    weakest_first(parts),
                    reason=f"in %: {gains}",
                    setting=f"batch of {source}; theta of {reserve}; both models, interactive and batch "
                    "requests; counted where no fewer are on time",
                )
                found.append(told if told.reason else replace(told, note=f"in %: {gains}"))
    words["how"] = (
        "Chiron beside itself with one autoscaler replaced: larger batches need fewer instances, and batch "
        "requests that wait need fewer still"
    )
    return settings(sentence, found, **words)


def _each(
    frame: DataFrame, parameters: Ablation, share: float
) -> Iterator[tuple[str, str, DataFrame]]:
    """A name, the class of requests, and the rows, for each model and workload."""
    for configuration in parameters.configurations:
        for workload, (slo_class, _) in WORKLOADS.items():
            load = _load(parameters, workload, configuration, share)
            mine = where(frame, configuration=configuration, workload=workload, load=load)
            yield f"{configuration}, {slo_class}", slo_class, mine


def _at(frame: DataFrame, batch: int, *, lean: bool) -> DataFrame:
    """The policies with this static batch size and those without any; the lean ones under the usual names."""
    found = frame[(frame["static_batch"] == batch) | ~frame["policy_name"].isin(STATIC)]
    away = tuple(LEAN.values()) if lean else tuple(LEAN)
    found = found[~found["policy_name"].isin(away)]
    return found.assign(policy_name=found["policy_name"].replace(LEAN))


def _contribution(
    name: str,
    frame: DataFrame,
    without: str,
    slo_class: str,
    judge: Callable[[str, Interval, str], Claim],
) -> Claim:
    """By how much Chiron exceeds itself with an autoscaler replaced; does not count if fewer are on time."""
    attainment = f"{slo_class}_attainment"
    gain = _gain(frame, f"{slo_class}_per_instance_s", "chiron", without)
    beside = _beside(frame, attainment)
    told = judge(name, gain, beside)
    if _counts(frame, attainment, without):
        return told
    return not_counted(told, f"{gain.mean:.0f} % do not count, since fewer are on time. {beside}")


def _counts(frame: DataFrame, attainment: str, other: str) -> bool:
    """Whether Chiron has no fewer requests on time than another."""
    means = frame.groupby("policy_name")[attainment].mean()
    return bool(means["chiron"] >= means[other] - NO_WORSE)


def _gain(frame: DataFrame, column: str, policy: str, other: str) -> Interval:
    """By how many per cent a policy's values lie above another's, seed by seed."""
    table = frame.pivot_table(index="seed", columns="policy_name", values=column)
    return mean_interval(100 * (table[policy] / table[other] - 1))


def _beside(frame: DataFrame, attainment: str) -> str:
    """All policies: what is on time with how many GPUs."""
    means = frame.groupby("policy_name")[[attainment, "gpus"]].mean()
    order = [name for policy in POLICIES for name in means.index if name.startswith(policy)]
    parts = [
        f"{name} {100 * means.loc[name, attainment]:.0f} % with {means.loc[name, 'gpus']:.0f} GPUs"
        for name in order
    ]
    return "On time: " + ", ".join(parts)
