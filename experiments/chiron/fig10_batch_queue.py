"""Workload B: throughput per instance and SLO attainment against the length of the batch queue.

A batch queue appears after five minutes beside interactive requests at a constant rate (50/s for the small
model, 10/s for the large one, both in the mixed configuration); its requests have an hour to their first
token. Measured from then to the deadline, with two minutes more for requests that have begun.
Throughput per instance counts interactive and batch requests; attainment is the share of all arrivals on
time. The lower rows show interactive requests alone, which are few beside the queue, and the GPUs taken
on average, which is what a queue that is served in time costs (Figure 2, right, is about these).

Ours: the queue lengths below the paper's largest; those of the mixed configuration, divided equally. Llumnix
is "untuned", in both readings of its batch limit, or "tuned", as in Figure 9. It sends batch requests to its
instances as they come; whether it then evens out what waits there, so that instances added later have
something to do, is part of the settings that are swept (`rebalance` of `baselines.llumnix`). Both models run
plain, while the paper has prefix caching and speculative decoding on, of which it gives no parameters. Gains
in throughput and GPUs count only at queue lengths at which no more requests are late; sentences about all
of them are judged by the share of queue lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import PositiveInt

from agents.statistics import mean_interval
from experiments.chiron.comparison import (
    at_load,
    better_served,
    by_load,
    gain_percent,
    largest_gain,
    lower_at,
    saving_percent,
    share_higher,
)
from experiments.chiron.llumnix_settings import (
    OPPONENTS,
    UNTUNED_READINGS,
    llumnix_policies,
    untuned,
    untuned_64,
)
from experiments.chiron.loads import draw_column, run_load
from experiments.chiron.setting import CONFIGURATIONS
from experiments.harness.claims import Claim, about, at_least, between
from experiments.harness.figure import SEEDS, Grid, claimed, where
from experiments.harness.parameters import Parameters, ours
from experiments.output import new_figure

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 10"
POLICIES = ("chiron", *OPPONENTS)
ROWS = {
    "throughput_per_instance": "requests/s per instance",
    "slo_attainment": "SLO attainment (%), all",
    "interactive_attainment": "SLO attainment (%), interactive",
    "gpus": "GPUs (mean until the deadline)",
}


class BatchQueue(Parameters):
    """Parameters of this figure."""

    seeds: Annotated[int, ours("enough for an interval", ge=1, le=1000)] = 3
    small_queues: Annotated[tuple[PositiveInt, ...], ours("6.2's 700k, and shorter ones")] = (
        50_000, 100_000, 200_000, 350_000, 500_000, 700_000,
    )  # fmt: skip
    large_queues: Annotated[tuple[PositiveInt, ...], ours("6.2's 80k, and shorter ones")] = (
        5_000, 10_000, 20_000, 40_000, 60_000, 80_000,
    )  # fmt: skip
    mixed_queues: Annotated[tuple[PositiveInt, ...], ours("in between, half for each model")] = (
        10_000, 20_000, 40_000, 80_000, 120_000,
    )  # fmt: skip
    tail_s: Annotated[int, ours("longer than a request that began in time takes", ge=0)] = 300
    no_worse_points: Annotated[
        float, ours("throughput and GPUs count only where attainment is no lower", ge=0)
    ] = 1.0


PARAMETERS = {
    "quick": BatchQueue(
        seeds=1,
        small_queues=(50_000, 200_000),
        large_queues=(5_000, 30_000),
        mixed_queues=(20_000,),
    ),
    "paper": BatchQueue(),
}


cases = Grid(
    {
        "workload": ("W_B",),
        "configuration": CONFIGURATIONS,
        "load": lambda parameters, case: map(float, _queues(parameters)[case["configuration"]]),
        "policy": lambda _, case: [
            {"policy_name": "chiron", "policy": "chiron"},
            *(
                {"policy_name": name, "policy": policy}
                for name, policy in llumnix_policies("W_B", case["configuration"]).items()
            ),
        ],
        "seed": SEEDS,
    },
    keep=("tail_s",),
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One episode."""
    return [run_load(case)]


def plot(frame: DataFrame, parameters: BatchQueue) -> Any:
    """Three configurations side by side."""
    figure = new_figure(13, 11)
    panels = figure.subplots(4, 3, sharex="col")
    frame = frame.assign(load=frame["load"] / 1000)
    for k, (configuration, queues) in enumerate(_queues(parameters).items()):
        mine = where(frame, configuration=configuration)
        draw_column(panels[:, k], mine, POLICIES, ROWS, names=k == 0)
        panels[0, k].set_title(configuration, fontsize=10)
        panels[3, k].set(
            xlabel="batch queue (thousand requests)", xlim=(0, max(queues) / 1000 * 1.03)
        )
    panels[1, 0].legend(fontsize=9, loc="lower left")
    return figure


@claimed
def claims(frame: DataFrame, parameters: BatchQueue) -> Iterator[Claim]:
    """What sections 1 and 8 say of throughput and GPUs, and section 6.2."""
    slack = parameters.no_worse_points / 100
    column = "throughput_per_instance"
    for other in UNTUNED_READINGS:
        name = f"Llumnix ({OPPONENTS[other]})"
        more, at = largest_gain(frame, column, "chiron", other, gain_percent, slack)
        saved, there = largest_gain(frame, "gpus", "chiron", other, saving_percent, slack)
        yield about(
            f"Up to 300 % more throughput per instance than {name}, with no more late requests",
            300,
            more,
            nothing=0,
            unit="%",
            reason=_limits(frame, parameters, other),
            note=f"largest gain {at}",
        )
        yield about(
            f"Up to 70 % fewer GPUs than {name}, with no more late requests",
            70,
            saved,
            nothing=0,
            unit="%",
            reason=_instances(frame, other),
            note='"previous systems" in the paper; GPUs on average until the deadline; largest saving '
            f"{there}",
        )
    for other, name in OPPONENTS.items():
        share, loads = share_higher(frame, column, "chiron", other, slack)
        yield at_least(
            f"Higher throughput per instance than Llumnix ({name}) in all configurations, with no more "
            "late requests",
            100,
            share,
            nothing=50,
            unit=f"% of {loads} queue lengths",
            paper="higher, all configurations",
            reason=f"mean gain (%) by configuration: {_gains(frame, other)}. {_instances(frame, other)}",
            note=lower_at(frame, "chiron", other, slack),
        )
    for other, name in OPPONENTS.items():
        yield better_served(
            f"Higher SLO attainment than Llumnix ({name})",
            "higher",
            frame,
            other,
            slack,
            "queue lengths",
            reason=lower_at(frame, "chiron", other, slack),
        )
    on_time = 100 * by_load(frame, "chiron", "batch_attainment")
    for configuration, queues in list(_queues(parameters).items())[:2]:
        most = max(queues)
        yield at_least(
            f"Chiron handles a batch queue of {most:,} requests ({configuration})",
            95,
            at_load(on_time, configuration, float(most)),
            nothing=None,
            unit="% of the batch requests on time",
            paper="handled (95 % is ours)",
            note=_beside(frame, configuration, float(most)),
        )
    yield from _batch_sizes(frame, parameters)


def _limits(frame: DataFrame, parameters: BatchQueue, other: str) -> str:
    """Why a batch size of Chiron's is worth less here than in the paper."""
    static = _static()[other]
    most = float(max(parameters.small_queues))
    used = at_load(by_load(frame, "chiron", "small_batch_running"), "small", most).mean
    return (
        f"Llumnix's static batch limit is {static:.0f}; in the paper it is a fiftieth of Chiron's, whose "
        f"batch instances run {used:.0f} requests each here (small, {most:,.0f})"
    )


def _static() -> dict[str, float]:
    """Batch limits of the untuned versions of Llumnix."""
    limits = (untuned_64()["batch_limit"], untuned()["batch_limit"])
    return dict(zip(UNTUNED_READINGS, limits, strict=True))


def _gains(frame: DataFrame, other: str) -> str:
    means = frame.groupby(["configuration", "policy_name"])["throughput_per_instance"].mean()
    table = means.unstack()
    gains = 100 * (table["chiron"] / table[other] - 1)
    return ", ".join(f"{name} {gain:+.0f}" for name, gain in gains.items())


def _instances(frame: DataFrame, other: str) -> str:
    """Instances that are billed, from the shortest to the longest queue."""
    shown = []
    for configuration, mine in frame.groupby("configuration"):
        table = mine.pivot_table(index="load", columns="policy_name", values="instances")
        first, last = table.iloc[0], table.iloc[-1]
        counts = (f"{first[name]:.0f} to {last[name]:.0f}" for name in ("chiron", other))
        shown.append(f"{configuration} {' and '.join(counts)}")
    return (
        "Instances billed from the shortest to the longest queue, Chiron's, of which its reserve for "
        f"interactive requests is there with the shortest already, and Llumnix's: {', '.join(shown)}"
    )


def _batch_sizes(frame: DataFrame, parameters: BatchQueue) -> Iterator[Claim]:
    """Limits of the instances that serve batch requests alone, at the longest queue."""
    at = ("small", float(max(parameters.small_queues)))
    mine = by_load(frame, "chiron", "small_batch_limit")
    if at not in mine.index:
        return
    mixed, running = (
        at_load(by_load(frame, "chiron", f"small_{column}"), *at).mean
        for column in ("mixed_limit", "batch_running")
    )
    reason = f"{running:.0f} requests run on average"
    note = (
        f"small, queue of {at[1]:,.0f}: mean limit of active batch instances; on mixed instances it is "
        f"{mixed:.0f}"
    )
    for other, static in _static().items():
        yield about(
            f"Chiron's batch size for batch requests is 50 times that of Llumnix ({OPPONENTS[other]})",
            50,
            mean_interval(mine.loc[at] / static),
            nothing=1,
            unit="x",
            reason=f"{reason}; Llumnix's limit is {static:.0f}",
            note=note,
        )
    yield between(
        "Chiron's batch size for batch requests is between 2048 and 4096",
        2048,
        4096,
        at_load(mine, *at),
        nothing=None,
        unit="requests",
        reason=reason,
        note=note,
    )


def _beside(frame: DataFrame, configuration: str, load: float) -> str:
    here = where(frame, configuration=configuration, load=load).groupby("policy_name")
    means = here[["batch_attainment", "interactive_attainment", "gpus"]].mean()
    return "; ".join(
        f"{name}: {100 * row['batch_attainment']:.0f} % of batch and "
        f"{100 * row['interactive_attainment']:.0f} % of interactive requests on time with "
        f"{row['gpus']:.0f} GPUs"
        for name, row in means.iterrows()
    )


def _queues(parameters: BatchQueue) -> dict[str, tuple[int, ...]]:
    return {name: getattr(parameters, f"{name}_queues") for name in CONFIGURATIONS}
