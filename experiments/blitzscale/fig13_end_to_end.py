"""BlitzScale, ServerlessLLM and AllCache on three workloads.

The paper's three columns (trace, model, cluster), prefill and decode split, all with the same trigger, and
the peak scaled to what the cluster can serve. One LLM on a cluster, as in the paper. The Azure traces are
whole, from their start; seeds draw lengths and places within each second. The BurstGPT-like workload
imitates the trace, an hour anew with each seed. ServerlessLLM keeps host copies for the paper's 5 minutes
(section 6.2) and for the released code's 30 s. Bars are means over requests, whiskers the lowest and
highest run. Ours: a request's TBT is its mean time between tokens, KV transfer included; who has no
first token at the end counts with the time it has waited; processes are there before they are needed (no
start-up). `trigger=code` is the rule of the released code.
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
    ratio,
    run,
    shorter,
)
from experiments.blitzscale.serving import SystemName
from experiments.harness.claims import Claim, about, less
from experiments.harness.figure import claimed, where

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["FIGURE", "PARAMETERS", "cases", "claims", "plot", "run"]

FIGURE = "Figure 13"
SERIES = ("gpus",)
COMPARED: tuple[SystemName, ...] = ("blitzscale", "serverlessllm", "serverlessllm-30s", "allcache")
PARAMETERS = {
    "quick": EndToEnd(systems=COMPARED, seeds=3, arrivals_s=600.0, bursty_arrivals_s=1800.0),
    # A whole trace costs 10 to 16 s of a core: 4 seeds, 9 core-minutes.
    "paper": EndToEnd(systems=COMPARED, seeds=4),
}
SHORTER = {
    "burstgpt": {"ttft": 86.1, "tbt": 18.1},
    "azure-code": {"ttft": 55.5, "tbt": 57.8},
    "azure-conv": {"ttft": 31.0, "tbt": 1.1},
}
"""Per cent, section 6.1."""
FASTER = "azure-code"
"""Where the paper's system is not only close to AllCache, but faster; one claim each, not two."""


def excerpt(frame: DataFrame, parameters: EndToEnd) -> DataFrame:
    """A row per run."""
    return where(frame, kind="run")


def plot(frame: DataFrame, parameters: EndToEnd) -> Any:
    """A column per workload."""
    return panels(frame, parameters, "upper left", SHORTER)


@claimed
def claims(frame: DataFrame, parameters: EndToEnd) -> Iterator[Claim]:
    """Section 6.1."""
    for column in parameters.columns:
        name = COLUMNS[column].split(",")[0]
        for what, number in SHORTER[column].items():
            value = f"{what}_mean_s"
            seen = means(frame, column, parameters.systems, value)
            with_30_s = shorter(frame, column, "blitzscale", "serverlessllm-30s", value).mean
            yield about(
                f"{name}: {what.upper()} {number:g} % shorter than ServerlessLLM's",
                number,
                shorter(frame, column, "blitzscale", "serverlessllm", value),
                nothing=0,
                unit="%",
                note=f"ms: {seen}; {with_30_s:.0f} % shorter than with a keep-alive of 30 s",
                reason=looked_at(parameters, REASONS.get((column, what), "")),
            )
        if column == FASTER:
            continue
        for what in ("ttft", "tbt"):
            yield about(
                f"{name}: {what.upper()} close to AllCache's",
                1.0,
                ratio(frame, column, "blitzscale", "allcache", f"{what}_mean_s"),
                nothing=None,
                unit="times AllCache's",
                paper="close",
                reason=looked_at(parameters, REASONS.get((column, f"{what}/allcache"), "")),
            )
    if FASTER in parameters.columns:
        for what in ("ttft", "tbt"):
            yield less(
                f"AzureCode: {what.upper()} shorter than AllCache's",
                1.0,
                ratio(frame, FASTER, "blitzscale", "allcache", f"{what}_mean_s"),
                unit="times AllCache's",
                paper="faster",
                reason=looked_at(parameters, REASONS.get((FASTER, f"{what}/allcache"), "")),
            )


_MEMORY = (
    "ServerlessLLM is AllCache here: in a whole trace looked at none of its loads came from SSD, "
    "as each of the two machines always runs an instance of the cluster's one LLM and so has the "
    "weights in memory"
)
_HITS = (
    "of the loads looked at (a whole trace) most find the weights in memory: the cluster serves "
    "one LLM, on four machines of which each keeps them for 5 minutes; with 30 s (the note) more "
    "come from SSD"
)
_BURSTS = (
    "in the hour looked at nearly all TTFTs of over a second are waits during a load, in every "
    "system; the loads that make them take a fraction of a second over NVLink, two to three over "
    "the network or from memory, by where the burst before left instances, and only those from "
    "SSD take 28"
)
_GAP = (
    "looked at gap by gap the systems differ in a request's longest gap alone, which holds the KV "
    "transfer and the wait for a decode instance; waits of over a second are those of a few "
    "bursts of the trace, in one of which AllCache's are as long as ServerlessLLM's"
)
REASONS = {
    ("azure-code", "ttft"): _HITS,
    ("azure-code", "tbt"): _GAP,
    ("azure-conv", "ttft"): _MEMORY,
    ("azure-conv", "tbt"): _MEMORY,
    ("burstgpt", "ttft"): f"{_HITS}. {_BURSTS[0].upper()}{_BURSTS[1:]}",
    ("burstgpt", "tbt"): _HITS,
    ("burstgpt", "ttft/allcache"): _BURSTS,
}
"""Why a claim does not reproduce, where it does not."""
