"""From ServerlessLLM to BlitzScale step by step.

The workloads of Figure 13, means over requests: ServerlessLLM (5 minutes); +network: weights come from other
instances in chains, also from those that send KV caches; +interference-free: not from these, and no other
difference (who sends weights already is passed over in both); BlitzScale: live as well, which includes
prefill instances that become decode ones while others start in their place. All with the same trigger and
base fleet. The copy in a machine's memory is a source of all of them; as it comes before instances, pruned
or not, the two steps in the middle are shown again with that copy as a source only while no instance has the
weights (ours: the paper says both, section 5.3).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from experiments.blitzscale.end_to_end import (
    COLUMNS,
    EndToEnd,
    cases,
    looked_at,
    means,
    panels,
    run,
    shorter,
)
from experiments.blitzscale.serving import SystemName
from experiments.harness.claims import Claim, about, between, more
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
    for column in parameters.columns:
        name = COLUMNS[column].split(",")[0]
        for what in ("ttft", "tbt"):
            value = f"{what}_mean_s"
            seen = f"ms: {means(frame, column, parameters.systems, value)}"
            step = shorter(frame, column, "network", "serverlessllm", value)
            if (column, what) == ("azure-conv", "tbt"):
                yield between(
                    f"{name}: TBT stays as it is with the network",
                    -5.0,
                    5.0,
                    step,
                    nothing=None,
                    unit="% shorter",
                    paper="no improvement (within 5 %: ours)",
                    note=seen,
                    reason=looked_at(parameters, REASONS.get((column, what, "network"), "")),
                )
            else:
                yield more(
                    f"{name}: the network shortens {what.upper()}",
                    0.0,
                    step,
                    unit="% shorter",
                    paper="shorter",
                    note=seen,
                    reason=looked_at(parameters, REASONS.get((column, what, "network"), "")),
                )
            for copy, words in (("", ""), ("-last", ", the copy last")):
                yield between(
                    f"{name}: an interference-free plan shortens {what.upper()} by 0.4 to 5 %{words}",
                    0.4,
                    5.0,
                    shorter(frame, column, f"interference-free{copy}", f"network{copy}", value),
                    nothing=0,
                    unit="% shorter",
                    reason=looked_at(parameters, _pruning(column, what, last=bool(copy))),
                )
    if "azure-code" in parameters.columns:
        yield about(
            "AzureCode: live scaling shortens TBT by up to 40 %",
            40,
            shorter(frame, "azure-code", "blitzscale", "interference-free", "tbt_mean_s"),
            nothing=0,
            unit="%",
            paper="up to 40 %",
            note=_live(frame, parameters),
            reason=looked_at(parameters, REASONS.get(("azure-code", "tbt", "live"), "")),
        )


def _live(frame: DataFrame, parameters: EndToEnd) -> str:
    parts = []
    for column in parameters.columns:
        less = [
            shorter(frame, column, "blitzscale", "interference-free", f"{what}_mean_s").mean
            for what in ("ttft", "tbt")
        ]
        parts.append(f"{COLUMNS[column].split(',')[0]} TTFT {less[0]:+.0f}, TBT {less[1]:+.0f}")
    return f"% shorter: {'; '.join(parts)}"


def _pruning(column: str, what: str, *, last: bool) -> str:
    """Why the step of pruning is another one."""
    few = REASONS.get((column, what, "interference-free"), "")
    return "; ".join(filter(None, (_LAST if last else _COPY, few)))


_COPY = (
    "the copy in a machine's memory has all cards of the machine where an instance has one, so that "
    "the plan takes it first, pruned or not: in the traces looked at both plans had the same latencies "
    "to four digits"
)
_LAST = (
    "the plans differ in senders of KV caches alone: who sends weights already gets no other load in "
    "either plan"
)
_MEMORY = (
    "most of ServerlessLLM's loads find the weights in memory (on cluster B all did in the trace "
    "looked at), whose links are faster (128 Gbps) than the network (100 Gbps)"
)
_FEW = (
    "looked at gap by gap only a request's longest gap differs, the one with the KV transfer and "
    "the wait for a decode instance; it is a small part of the mean time between tokens of long "
    "answers"
)
_LIVE = (
    "waits for a decode instance, which live scaling shortens, come in a few bursts of the trace; "
    "looked at gap by gap all other gaps are alike, live or not"
)
REASONS = {
    ("azure-code", "ttft", "network"): _MEMORY,
    ("azure-code", "tbt", "network"): _MEMORY,
    ("azure-conv", "ttft", "network"): _MEMORY,
    ("azure-conv", "tbt", "network"): _MEMORY,
    ("burstgpt", "tbt", "interference-free"): _FEW,
    ("azure-conv", "tbt", "interference-free"): _FEW,
    ("azure-code", "tbt", "live"): _LIVE,
}
"""Why a claim does not reproduce, where it does not."""
