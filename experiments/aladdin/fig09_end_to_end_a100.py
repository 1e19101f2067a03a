"""End to end on 4 A100: attainment and p99 ATGT against the rate.

Llama-2-13B and 70B on a machine of 4 A100 (PCIe), with Poisson arrivals of ShareGPT's first turns and
Table 2's SLOs: Aladdin (best fit, re-prediction, re-balancing) and join-shortest-queue on workers of Table
3's degree, default vLLM as one worker of all 4 GPUs. The paper draws its rates only; ours are shares of what
the workers take as a fluid (Eq. 4), the dotted line. Outputs are ShareGPT's own (mean 472 tokens, at most
1,000 or so), not answers of the served LLMs. Aladdin at its default strictness (gamma = 0.5, theta = 0.9)
and a stricter theta = 0.7. A request that no worker may take waits, also beyond its TTFT target: the machine
has no more GPUs. `degrees=own` takes the best degree by this project's times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from agents.statistics import mean_interval
from experiments.aladdin.end_to_end import (
    ALADDIN,
    JSQ,
    WIDE,
    EndToEnd,
    by_load,
    cases,
    compared,
    gain,
    largest,
    plot,
    run,
    shorter,
)
from experiments.harness.claims import Claim, about, between
from experiments.harness.figure import claimed

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["FIGURE", "PARAMETERS", "cases", "claims", "plot", "run"]

FIGURE = "Figure 9"
SMALL, LARGE = "llama-2-13b", "llama-2-70b"
PARAMETERS = {
    "quick": EndToEnd(
        llms=(SMALL, LARGE), gpu="a100-80gb", seeds=3, loads=(0.1, 0.9, 1.15),
        arrivals_s=60.0, patience_s=100.0,
    ),
    "paper": EndToEnd(llms=(SMALL, LARGE), gpu="a100-80gb", seeds=5),
}  # fmt: skip


@claimed
def claims(frame: DataFrame, parameters: EndToEnd) -> Iterator[Claim]:
    """Section 6.3."""
    if not {ALADDIN, JSQ, WIDE} <= set(parameters.policies):
        return
    for llm, points in ((SMALL, 51), (LARGE, 19)):
        if llm not in parameters.llms:
            continue
        up = gain(frame, llm, JSQ)
        ours, load = largest(up)
        yield about(
            f"{_short(llm)}: attainment up by up to {points} % over shortest queue with the best degree",
            points,
            ours,
            nothing=0,
            unit=f"percentage points at a load of {load:g}",
            paper=f"up to {points} %",
            note=f"by load: {by_load(up)}",
            reason="the largest gain is in overload, where shortest queue lets every request miss the "
            "ATGT a little and Aladdin makes some wait so that the others keep it; its size goes with "
            "how far loads go beyond what the workers can take",
        )
    if LARGE in parameters.llms:
        one, two = compared(frame, LARGE, "attainment", ALADDIN, WIDE)
        # A ratio of small numbers says nothing: loads at which default vLLM loses at least 2 %.
        some = two.columns[(1 - two.mean()) >= 0.02]
        ratio = ((1 - two) / (1 - one).clip(lower=1e-3))[some]
        ours, load = largest(ratio)
        yield about(
            "70B: SLO violations down by up to 3.5 times against default vLLM",
            3.5,
            ours,
            nothing=1,
            unit=f"times fewer at a load of {load:g}",
            paper="up to 3.5X",
            note=f"by load: {by_load(ratio, '{:.2f}')}" if len(some) else "",
            reason="default vLLM's one worker of 4 GPUs takes some 10 % less than two of 2 here (Eq. 6, "
            "see Table 3), so the curves are close but near the limit",
        )
        down = shorter(frame, LARGE, JSQ)
        ours, load = largest(down)
        yield about(
            "70B: p99 ATGT down by up to 40 % against shortest queue",
            40,
            ours,
            nothing=0,
            unit=f"% shorter at a load of {load:g}",
            paper="up to 40 %",
            note=f"by load: {by_load(down)}",
            reason="shortest queue's ATGT exceeds the target only by what the load exceeds the workers: "
            "its batches grow evenly, decode time is linear in them and most of it is constant (reading "
            "weights); see the p99 by load in the lower panel",
        )
    if SMALL in parameters.llms:
        down = shorter(frame, SMALL, JSQ)
        below = down[[k for k in down.columns if k <= 1.0]]
        yield between(
            "13B: p99 ATGT improves only a little over shortest queue",
            0,
            10,
            mean_interval(below.mean(axis=1)),
            nothing=None,
            unit="% shorter, mean of the loads up to 1",
            paper="minor",
            note=f"by load: {by_load(down)}; the limit of 10 % is ours",
            reason="below the limit best fit makes it longer: it fills a worker up to the target "
            "before it takes the next, shortest queue spreads requests over all four (lower panel)",
        )


def _short(llm: str) -> str:
    return llm.removeprefix("llama-2-").upper()
