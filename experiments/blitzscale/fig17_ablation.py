"""From ServerlessLLM to BlitzScale step by step.

The workloads of Figure 13, means over requests. The steps are ServerlessLLM (5 minutes); +network, where
weights come from other instances in chains; +interference-free, where those that send KV caches are no
sources; and BlitzScale, which is live as well. The two steps in the middle are shown again with the copy in a
machine's memory as a source only while no instance has the weights.

Live scaling includes prefill instances that become decode ones while others start in their place. Who sends
weights already is passed over with and without the interference-free plan, which differ in nothing else. All
have the same trigger and base fleet. The copy in memory is a source of all of them, and comes before
instances, pruned or not; the paper says both (section 5.3), hence the other reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from agents.statistics import Interval
from experiments.blitzscale.end_to_end import (
    COLUMNS,
    EndToEnd,
    cases,
    looked_at,
    panels,
    run,
    shorter,
)
from experiments.blitzscale.serving import SystemName
from experiments.harness.claims import Claim, at_least, best_of, between, every, gain, more
from experiments.harness.figure import claimed, where

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["FIGURE", "PARAMETERS", "cases", "claims", "plot", "run"]

FIGURE = "Figure 17"
SERIES = ("gpus",)
STEPS: tuple[SystemName, ...] = (
    "serverlessllm", "network", "interference-free", "blitzscale",
    "network-last", "interference-free-last",
)  # fmt: skip
PARAMETERS = {
    "quick": EndToEnd(systems=STEPS, seeds=3, arrivals_s=600.0, bursty_arrivals_s=1800.0),
    # A whole trace costs 10 to 16 s of a core, and there are six bars: 3 seeds, some 10 core-minutes.
    "paper": EndToEnd(systems=STEPS, seeds=3),
}


def excerpt(frame: DataFrame, parameters: EndToEnd) -> DataFrame:
    """A row per run."""
    return where(frame, kind="run")


def plot(frame: DataFrame, parameters: EndToEnd) -> Any:
    """A column per workload."""
    figure = panels(frame, parameters, "upper right")
    for axes in figure.axes:  # six names do not fit beside each other
        axes.tick_params(axis="x", labelrotation=25)
    return figure


@claimed
def claims(frame: DataFrame, parameters: EndToEnd) -> Iterator[Claim]:
    """Section 6.3."""
    # From the paper's smallest improvement to its largest, so that the worst is the one that is shown.
    cells = [
        (column, what, f"{COLUMNS[column].split(',')[0]}, {what.upper()}")
        for column in reversed(parameters.columns)
        for what in ("ttft", "tbt")
    ]

    def step(column: str, what: str, system: str, other: str) -> Interval:
        return shorter(frame, column, system, other, f"{what}_mean_s")

    yield every(
        "Network multicast shortens TTFT and TBT, but for the TBT of AzureConv",
        [
            between(
                name,
                -5.0,
                5.0,
                step(column, what, "network", "serverlessllm"),
                nothing=None,
                unit="% shorter",
                paper="no improvement (within 5 %: ours)",
            )
            if (column, what) == OUTLIER
            else more(name, 0.0, step(column, what, "network", "serverlessllm"), unit="% shorter")
            for column, what, name in cells
        ],
        paper="shorter in all",
        how="weights come from other instances in place of SSD or memory, without live scaling",
        setting="means over requests",
        reason=looked_at(parameters, _MEMORY),
    )
    yield best_of(
        "An interference-free plan shortens TTFT and TBT by 0.4 to 5 % across workloads",
        [
            every(
                words,
                [
                    at_least(
                        name,
                        0.4,
                        step(column, what, f"interference-free{last}", f"network{last}"),
                        nothing=0,
                        unit="% shorter",
                    )
                    for column, what, name in cells
                ],
                unit="% shorter",
            )
            for last, words in (("", "copy first"), ("-last", "copy last"))
        ],
        paper="0.4 to 5 %",
        how="prefill instances, which send KV caches, are no sources",
        setting="the copy in memory is a source always, or only while no instance has the weights",
        reason=looked_at(parameters, _PRUNED),
        note="; ".join(
            f"{name} {step(column, what, 'interference-free', 'network').mean:+.1f} %, copy last "
            f"{step(column, what, 'interference-free-last', 'network-last').mean:+.1f} %"
            for column, what, name in cells
        ),
    )
    if "azure-code" in parameters.columns:
        yield gain(
            "Live autoscaling further reduces AzureCode's TBT by up to 40 %",
            40,
            step("azure-code", "tbt", "blitzscale", "interference-free"),
            nothing=0,
            unit="%",
            paper="up to 40 %",
            how="a prefill instance becomes a decode one while another loads live in its place",
            setting="means over requests",
            note="; ".join(
                f"{name} {step(column, what, 'blitzscale', 'interference-free').mean:+.0f} %"
                for column, what, name in cells
            ),
            reason=looked_at(parameters, _LIVE),
        )


OUTLIER = ("azure-conv", "tbt")
"""Where the paper has no improvement, as decode instances hardly scale there."""
_MEMORY = (
    "on AzureConv all of ServerlessLLM's loads find the weights in memory, whose links (128 Gbps) are "
    "faster than the network (100 Gbps)"
)
_PRUNED = (
    "the copy in memory comes first by bandwidth, so both plans mostly load from it; with the copy last only "
    "who sends KV caches differs"
)
_LIVE = (
    "waits for a decode instance, which live scaling shortens, come in a few bursts; all other gaps are "
    "alike, live or not"
)
"""Why a claim does not reproduce, where it does not."""
