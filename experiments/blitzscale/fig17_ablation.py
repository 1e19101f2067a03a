"""From ServerlessLLM to BlitzScale step by step.

The workloads of Figure 13, means over requests: ServerlessLLM (5 minutes); +network: weights come from other
instances in chains, whatever those send already; +interference-free: not from instances that send KV
caches; BlitzScale: live as well, which includes prefill instances that become decode ones while others
start in their place. All with the same trigger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.blitzscale.end_to_end import (
    COLUMNS,
    EndToEnd,
    cases,
    means,
    panels,
    run,
    shorter,
)
from experiments.harness.claims import Claim, about, at_least, between

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["FIGURE", "PARAMETERS", "cases", "claims", "plot", "run"]

FIGURE = "Figure 17"
STEPS = ("serverlessllm", "network", "interference-free", "blitzscale")
PARAMETERS = {
    "quick": EndToEnd(systems=STEPS, seeds=3, arrivals_s=300.0, bursty_arrivals_s=1200.0),
    "paper": EndToEnd(systems=STEPS, seeds=5),
}


def plot(frame: DataFrame, parameters: EndToEnd) -> Any:
    """A column per workload."""
    return panels(frame, parameters, "upper right")


def claims(frame: DataFrame, parameters: EndToEnd) -> list[Claim]:
    """Section 6.3."""
    found = []
    for column in parameters.columns:
        name = COLUMNS[column].split(",")[0]
        for what in ("ttft", "tbt"):
            value = f"{what}_mean_s"
            seen = f"ms: {means(frame, column, parameters.systems, value)}"
            step = shorter(frame, column, "network", "serverlessllm", value)
            if (column, what) == ("azure-conv", "tbt"):
                found.append(
                    between(
                        f"{name}: TBT stays as it is with the network",
                        -5.0,
                        5.0,
                        step,
                        nothing=None,
                        unit="% shorter",
                        paper="no improvement (within 5 %: ours)",
                        note=seen,
                    )
                )
            else:
                found.append(
                    at_least(
                        f"{name}: the network shortens {what.upper()}",
                        0.0,
                        step,
                        nothing=None,
                        unit="% shorter",
                        paper="shorter",
                        note=seen,
                        reason=REASONS.get((column, what, "network"), ""),
                    )
                )
            found.append(
                between(
                    f"{name}: an interference-free plan shortens {what.upper()} by 0.4 to 5 %",
                    0.4,
                    5.0,
                    shorter(frame, column, "interference-free", "network", value),
                    nothing=0,
                    unit="% shorter",
                    reason=REASONS.get((column, what, "interference-free"), ""),
                )
            )
    if "azure-code" in parameters.columns:
        found.append(
            about(
                "AzureCode: live scaling shortens TBT by up to 40 %",
                40,
                shorter(frame, "azure-code", "blitzscale", "interference-free", "tbt_mean_s"),
                nothing=0,
                unit="%",
                paper="up to 40 %",
                note=_live(frame, parameters),
                reason=REASONS.get(("azure-code", "tbt", "live"), ""),
            )
        )
    return found


def _live(frame: DataFrame, parameters: EndToEnd) -> str:
    parts = []
    for column in parameters.columns:
        less = [
            shorter(frame, column, "blitzscale", "interference-free", f"{what}_mean_s").mean
            for what in ("ttft", "tbt")
        ]
        parts.append(f"{COLUMNS[column].split(',')[0]} TTFT {less[0]:+.0f}, TBT {less[1]:+.0f}")
    return f"% shorter: {'; '.join(parts)}"


_MEMORY = (
    "ServerlessLLM never loads from SSD here, as both machines always run an instance, and their memory is "
    "faster (128 Gbps) than the network (100 Gbps)"
)
_SOURCES = (
    "without it weights come from the instance of the lowest number (ours); the planner also takes the copy "
    "in a machine's memory and several sources, so the step is more than the lack of interference"
)
_NONE = "what interference there is hits few loads: the interval has no effect in it"
REASONS = {
    ("azure-conv", "ttft", "network"): _MEMORY,
    ("burstgpt", "ttft", "interference-free"): _SOURCES,
    ("azure-code", "ttft", "interference-free"): _SOURCES,
    ("burstgpt", "tbt", "interference-free"): _NONE,
    ("azure-code", "tbt", "interference-free"): _NONE,
    ("azure-conv", "ttft", "interference-free"): _NONE,
    ("azure-conv", "tbt", "interference-free"): _NONE,
    (
        "azure-code",
        "tbt",
        "live",
    ): "with weights over the network no KV cache ever waits for a decode instance "
    "here, live or not, so prefill instances that become decode ones have nothing to shorten",
}
"""Why a claim does not reproduce, where it does not."""
