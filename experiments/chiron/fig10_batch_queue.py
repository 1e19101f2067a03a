"""Workload B: throughput per instance and SLO attainment against the length of the batch queue.

A batch queue appears after five minutes beside interactive requests at a constant rate: 50/s for the small
model, 10/s for the large one, both in the mixed configuration. Batch requests have an hour to their first
token, and everything is measured until that deadline. Llumnix is "untuned", in both readings of its batch
limit, or "tuned", as in Figure 9. Chiron has its default reserve (theta = 1/3) or a small one (0.8).

Two minutes more are left for requests that have begun. Throughput per instance counts interactive and batch
requests; attainment is the share of all arrivals on time. The lower rows show interactive requests alone,
which are few beside the queue, and the GPUs taken on average, which is what a queue that is served in time
costs (Figure 2, right, is about these).

Ours: the queue lengths below the paper's largest; those of the mixed configuration, divided equally. Llumnix
sends batch requests to its instances as they come; whether it then evens out what waits there, so that
instances added later have something to do, is part of the settings that are swept (`rebalance` of
`baselines.llumnix`). Both models run plain, while the paper has prefix caching and speculative decoding on,
of which it gives no parameters. Theta "is chosen based on historic arrival patterns" (section 5.2), 1 over
the tail spike: Poisson arrivals (section 6) have 1.14 at the most (Figure 5), and 0.8 leaves room for that.
Gains in throughput and GPUs count only at queue lengths at which no more requests are late; sentences about
all of them are judged by the share of queue lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from pydantic import PositiveInt

from agents.statistics import mean_interval
from experiments.chiron.comparison import (
    against_all,
    at_load,
    better_served,
    by_load,
    gain_percent,
    largest_gain,
    mean_gains,
    most_gained,
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
from experiments.harness.claims import Claim, Words, at_least, between, every, gain, settings
from experiments.harness.figure import Grid, claimed, where
from experiments.harness.parameters import Parameters, ours
from experiments.output import new_figure

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 10"
POLICIES = ("chiron", "chiron-lean", *OPPONENTS)
RESERVES = {
    "chiron": ("theta 1/3", "section 6.3: the default over-provisioning of 3"),
    "chiron-lean": ("theta 0.8", "section 5.2: 1 over the tail spike, of Poisson arrivals"),
}
"""Chiron with both reserves: in sentences, and where the text allows it."""
ROWS = {
    "throughput_per_instance": "requests/s per instance",
    "slo_attainment": "SLO attainment (%), all",
    "interactive_attainment": "SLO attainment (%), interactive",
    "gpus": "GPUs (mean until the deadline)",
}


class BatchQueue(Parameters):
    """Parameters of this figure."""

    seeds: Annotated[
        int, ours("the longest queues of the small model, where gains are largest", ge=1, le=1000)
    ] = 10
    other_seeds: Annotated[int, ours("of all others, at most `seeds`", ge=1)] = 3
    long_queue: Annotated[int, ours("requests in a queue from which on it has `seeds`", ge=0)] = (
        350_000
    )
    small_queues: Annotated[tuple[PositiveInt, ...], ours("6.2's 700k, and shorter ones")] = (
        50_000, 100_000, 200_000, 350_000, 500_000, 600_000, 700_000,
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
    lean_theta: Annotated[
        float, ours("5.2: 1 over the tail spike, of Poisson arrivals; as in Figure 9", gt=0, lt=0.9)
    ] = 0.8


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
        "policy": lambda parameters, case: [
            {"policy_name": "chiron", "policy": "chiron"},
            {"policy_name": "chiron-lean", "policy": f"chiron:theta={parameters.lean_theta:g}"},
            *(
                {"policy_name": name, "policy": policy}
                for name, policy in llumnix_policies("W_B", case["configuration"]).items()
            ),
        ],
        "seed": lambda parameters, case: parameters.seed_list()[
            : None if case["load"] >= parameters.long_queue else parameters.other_seeds
        ],
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

    yield _most(
        frame,
        "Chiron improves the request throughput up to 300 % compared to previous systems",
        column,
        gain_percent,
        300,
        slack,
        how="larger batches on batch instances, and a queue that mixed instances serve beside interactive "
        "requests",
        note="per billed instance, and no more requests are late",
    )
    yield _most(
        frame,
        "Chiron saves up to 70 % of the GPUs",
        "gpus",
        saving_percent,
        70,
        slack,
        how="batch requests wait in the queue and few instances with large batches serve them",
        note="mean until the deadline, and no more requests are late",
    )

    def higher(other: str) -> Claim:
        share, loads = share_higher(frame, column, "chiron", other, slack)
        return at_least(
            OPPONENTS[other],
            100,
            share,
            nothing=50,
            unit=f"% of {loads} queue lengths",
            reason=f"{mean_gains(frame, other)}. {_instances(frame, other)}",
        )

    yield against_all(
        "Chiron has higher throughput per instance across all configurations than other autoscalers",
        higher,
        paper="higher, all configurations",
        how="larger batches on batch instances, and mixed instances that serve both kinds of requests",
        setting="counted where no more requests are late",
    )
    yield from _batch_sizes(frame, parameters)
    on_time = 100 * by_load(frame, "chiron", "batch_attainment")
    yield every(
        "Chiron handles a batch queue of 700k and 80k requests for the small and large model",
        [
            at_least(
                f"{configuration}, {max(queues):,} requests",
                95,
                at_load(on_time, configuration, float(max(queues))),
                nothing=None,
                unit="% of the batch requests on time",
            )
            for configuration, queues in list(_queues(parameters).items())[:2]
        ],
        paper="handled (95 % is ours)",
        how="batch instances are added when the estimated wait exceeds the deadline",
    )
    yield against_all(
        "Chiron achieves higher SLO attainment compared to other autoscalers",
        lambda other: better_served(OPPONENTS[other], frame, other, slack, "queue lengths"),
        paper="higher",
        how="the queue is served in time within 50 GPUs, while Llumnix adds one instance at a time",
    )


def _most(
    frame: DataFrame,
    sentence: str,
    column: str,
    gained: Callable[..., DataFrame],
    number: float,
    slack: float,
    **words: Unpack[Words],
) -> Claim:
    """A sentence about the largest gain, with both reserves and beside both readings of untuned."""
    parts = []
    limits = (untuned_64()["batch_limit"], untuned()["batch_limit"])
    for other, limit in zip(UNTUNED_READINGS, limits, strict=True):
        for policy, (theta, source) in RESERVES.items():
            found = largest_gain(frame, column, policy, other, gained, slack)
            name = f"{theta}, Llumnix's limit {limit:g}"
            told = most_gained(name, number, found, reason="no queue length has more", unit="%")
            parts.append(
                replace(
                    told,
                    setting=f"theta of {source}; against Llumnix {OPPONENTS[other]}; {told.setting}",
                )
            )
    return settings(sentence, parts, **words)


def _instances(frame: DataFrame, other: str) -> str:
    """Instances that are billed, from the shortest to the longest queue."""
    shown = []
    for configuration, mine in frame.groupby("configuration"):
        table = mine.pivot_table(index="load", columns="policy_name", values="instances")
        first, last = table.iloc[0], table.iloc[-1]
        counts = (f"{first[name]:.0f} to {last[name]:.0f}" for name in ("chiron", other))
        shown.append(f"{configuration} {' and '.join(counts)}")
    return (
        "Instances from the shortest to the longest queue, Chiron's and Llumnix's: "
        f"{', '.join(shown)}"
    )


def _batch_sizes(frame: DataFrame, parameters: BatchQueue) -> Iterator[Claim]:
    """Limits of the instances that serve batch requests alone, at the longest queue of each model."""
    parts = []
    for configuration, queues in list(_queues(parameters).items())[:2]:
        at = (configuration, float(max(queues)))
        limit, running = (
            by_load(frame, "chiron", f"{configuration}_batch_{what}")
            for what in ("limit", "running")
        )
        if at not in limit.index:
            continue
        static = untuned_64()["batch_limit"]
        mine = limit.loc[at]
        reason = (
            f"{configuration}: {at_load(running, *at).mean:.0f} requests run on a batch instance"
        )
        words = {"reason": f"{reason}, and a limit grows only while it holds them back"}
        number, times = mean_interval(mine), mean_interval(mine / static)
        parts += [
            between(configuration, 2048, 4096, number, nothing=None, unit="requests", **words),
            gain(f"{configuration}, over {static:.0f}", 50, times, nothing=1, unit="x", **words),
        ]
    if parts:
        yield every(
            "Chiron sets a nearly 50 times higher batch size (between 2048 and 4096) for batch requests",
            parts,
            paper="2048 to 4096, 50 x",
            how="the local autoscaler raises the limit under the ITL target of 2 s",
            setting="mean limit of batch instances at the longest queues",
        )


def _queues(parameters: BatchQueue) -> dict[str, tuple[int, ...]]:
    return {name: getattr(parameters, f"{name}_queues") for name in CONFIGURATIONS}
