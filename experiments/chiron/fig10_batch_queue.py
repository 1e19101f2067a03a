"""Workload B: throughput per instance and SLO attainment against the length of the batch queue.

A batch queue appears after five minutes beside interactive requests at a constant rate (50/s for the small
model, 10/s for the large one, both in the mixed configuration); its requests have an hour to their first
token. Measured from then to the deadline, with two minutes more for requests that have begun.
Throughput per instance counts interactive and batch requests; attainment is the share of all arrivals on
time. The lower rows show interactive requests alone, which are few beside the queue, and the GPUs taken
on average, which is what a queue that is served in time costs (Figure 2, right, is about these).

Ours: the queue lengths below the paper's largest; those of the mixed configuration, divided equally. Llumnix
is "untuned" or "tuned" as in Figure 9; it sends batch requests to its instances as they come, and evens
out what waits there every ten seconds (`rebalance` of `baselines.llumnix`), so that instances added
later have something to do. `rebalance=false` leaves every request where it was first sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from agents.statistics import Interval, mean_interval
from experiments.chiron.llumnix_settings import llumnix_of, untuned
from experiments.chiron.loads import (
    at_load,
    by_load,
    compared,
    draw,
    gain_percent,
    gain_points,
    run_load,
    saving_percent,
    up_to,
)
from experiments.harness.claims import Claim, about, at_least
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 10"
POLICIES = ("chiron", "llumnix", "llumnix-tuned")
_NAN = Interval(float("nan"), float("nan"), float("nan"))


class BatchQueue(Parameters):
    """Parameters of this figure."""

    seeds: Annotated[int, ours("enough for an interval", ge=1, le=1000)] = 3
    small_queues: Annotated[tuple[int, ...], paper("6.2, up to 700k; those below ours")] = (
        50_000, 100_000, 200_000, 350_000, 500_000, 700_000,
    )  # fmt: skip
    large_queues: Annotated[tuple[int, ...], paper("6.2, up to 80k; those below ours")] = (
        5_000, 10_000, 20_000, 40_000, 60_000, 80_000,
    )  # fmt: skip
    mixed_queues: Annotated[tuple[int, ...], ours("in between, half for each model")] = (
        10_000, 20_000, 40_000, 80_000, 120_000,
    )  # fmt: skip
    tail_s: Annotated[int, ours("longer than a request that began in time takes", ge=0)] = 300
    rebalance: Annotated[bool, ours("Llumnix reschedules across instances")] = True
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


def cases(parameters: BatchQueue) -> list[dict[str, Any]]:
    """A run per seed, configuration, queue length and policy."""
    found = []
    for configuration, queues in _queues(parameters).items():
        policies = {"chiron": "chiron"}
        for name, is_tuned in (("llumnix", False), ("llumnix-tuned", True)):
            policies[name] = llumnix_of("W_B", configuration, is_tuned=is_tuned)
            if not parameters.rebalance:
                policies[name] += ",rebalance=false"
        found += [
            {
                "workload": "W_B",
                "configuration": configuration,
                "load": float(queue),
                "policy_name": name,
                "policy": policy,
                "seed": seed,
                "tail_s": parameters.tail_s,
            }
            for queue in queues
            for name, policy in policies.items()
            for seed in parameters.seed_list()
        ]
    return found


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One episode."""
    return [run_load(case)]


def plot(frame: DataFrame, parameters: BatchQueue) -> Any:
    """Three configurations side by side."""
    figure = new_figure(13, 11)
    panels = figure.subplots(4, 3, sharex="col")
    rows = (
        ("throughput_per_instance", 1.0, "requests/s per instance"),
        ("slo_attainment", 100.0, "SLO attainment (%), all"),
        ("interactive_attainment", 100.0, "SLO attainment (%), interactive"),
        ("gpus", 1.0, "GPUs (mean until the deadline)"),
    )
    for k, (configuration, queues) in enumerate(_queues(parameters).items()):
        mine = frame[frame["configuration"] == configuration].assign(
            load=lambda part: part["load"] / 1000
        )
        for axes, (column, scale, name) in zip(panels[:, k], rows, strict=True):
            draw(axes, mine, POLICIES, column, scale)
            axes.set_ylim(0, 105 if scale == 100 else None)
            axes.set_xlim(0, max(queues) / 1000 * 1.03)
            if k == 0:
                axes.set_ylabel(name)
        panels[3, k].axhline(50, color="0.4", lw=0.8)
        panels[3, k].set_ylim(0, 54)
        panels[0, k].set_title(configuration, fontsize=10)
        panels[3, k].set_xlabel("batch queue (thousand requests)")
    panels[1, 0].legend(fontsize=9, loc="lower left")
    return figure


def claims(frame: DataFrame, parameters: BatchQueue) -> list[Claim]:
    """Section 6.2, and what sections 1 and 8 say of throughput and GPUs."""
    slack = parameters.no_worse_points / 100
    found = _batch_sizes(frame, parameters)
    for configuration, most in (
        ("small", max(parameters.small_queues)),
        ("large", max(parameters.large_queues)),
    ):
        on_time = 100 * by_load(frame, "chiron", "batch_attainment")
        found.append(
            at_least(
                f"Chiron handles a batch queue of {most:,} requests ({configuration})",
                95,
                at_load(on_time, configuration, float(most)),
                nothing=0,
                unit="% of the batch requests on time",
                paper="handled",
                reason=_beside(frame, configuration, float(most)),
            )
        )
    for other, name in (("llumnix", "untuned"), ("llumnix-tuned", "tuned")):
        points, where = up_to(compared(frame, "slo_attainment", "chiron", other, gain_points))
        found.append(
            at_least(
                f"Higher SLO attainment than Llumnix ({name})",
                1,
                points,
                nothing=0,
                unit="percentage points",
                paper="higher",
                reason=f"largest difference, at {where}. {_beside(frame, *_place(where))}",
            )
        )
    for other, name, number in (("llumnix", "untuned", 300), ("llumnix-tuned", "tuned", None)):
        gain = compared(
            frame, "throughput_per_instance", "chiron", other, gain_percent, no_worse_by=slack
        )
        more, where = up_to(gain)
        reason = f"largest gain where attainment is no lower, at {where}"
        if number is not None:
            sentence = f"Up to 300 % more throughput per instance than Llumnix ({name})"
            found.append(about(sentence, number, more, nothing=0, unit="%", reason=reason))
        else:
            sentence = f"More throughput per instance than Llumnix ({name}), by multiplexing"
            found.append(
                at_least(sentence, 1, more, nothing=0, unit="%", paper="higher", reason=reason)
            )
    saved, where = up_to(
        compared(frame, "gpus", "chiron", "llumnix", saving_percent, no_worse_by=slack)
    )
    found.append(
        about(
            "Up to 70 % fewer GPUs than previous systems",
            70,
            saved,
            nothing=0,
            unit="%",
            reason=f"GPUs on average until the deadline, against Llumnix (untuned) where attainment is no "
            f"lower; largest saving, at {where}",
        )
    )
    return found


def _batch_sizes(frame: DataFrame, parameters: BatchQueue) -> list[Claim]:
    """Limits of the instances that serve batch requests alone, at the longest queue."""
    most = float(max(parameters.small_queues))
    mine = by_load(frame, "chiron", "small_batch_limit")
    limits = at_load(mine, "small", most)
    static = untuned()["batch_limit"]
    ratio = _NAN
    if ("small", most) in mine.index:
        ratio = mean_interval(mine.loc[("small", most)] / static)
    mixed = at_load(by_load(frame, "chiron", "small_mixed_limit"), "small", most)
    running = at_load(by_load(frame, "chiron", "small_batch_running"), "small", most)
    reason = (
        f"small, queue of {most:,.0f}; mean limit of the active batch instances (nan: none was needed), of "
        f"which {running.mean:.0f} run, as many as KV memory lets in: a limit grows only while it binds. On "
        f"mixed instances the limit is {mixed.mean:.0f}. Llumnix's sweep chooses {static:.0f} where the "
        "paper's Llumnix has a fiftieth of Chiron's"
    )
    return [
        about(
            "Chiron's batch size for batch requests is 50 times that of Llumnix (untuned)",
            50,
            ratio,
            nothing=1,
            unit="x",
            reason=reason,
        ),
        at_least(
            "Chiron's batch size for batch requests is between 2048 and 4096",
            2048,
            limits,
            nothing=256,
            unit="requests",
            paper="2048 to 4096",
            reason=reason,
        ),
    ]


def _place(where: str) -> tuple[str, float]:
    """Configuration and load from what `up_to` says."""
    configuration, _, load = where.partition(", ")
    return configuration, float(load.replace(",", "") or "nan")


def _beside(frame: DataFrame, configuration: str, load: float) -> str:
    here = frame[(frame["configuration"] == configuration) & (frame["load"] == load)]
    means = here.groupby("policy_name")[
        ["batch_attainment", "interactive_attainment", "gpus"]
    ].mean()
    parts = [
        f"{name}: {100 * row['batch_attainment']:.0f} % of batch and "
        f"{100 * row['interactive_attainment']:.0f} % of interactive requests on time with "
        f"{row['gpus']:.0f} GPUs"
        for name, row in means.iterrows()
    ]
    return "; ".join(parts)


def _queues(parameters: BatchQueue) -> dict[str, tuple[int, ...]]:
    return {
        "small": parameters.small_queues,
        "large": parameters.large_queues,
        "mixed": parameters.mixed_queues,
    }
