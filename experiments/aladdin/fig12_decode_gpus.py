"""Least GPUs of decode workers for full attainment against the rate, phases split.

As Figure 11, for the decode phase alone, as in the paper: prefill workers are there to spare, KV caches
move in no time, and only the mean inter-token latency (ATGT) from the first token on is asked for. Best fit
places by constraints (b) and (e); against it shortest queue (as DistServe) and power of two. Of a
request's ATGT the first token gap holds what the decode worker's iteration under way still takes,
so that very short outputs can miss on any fleet: P100 hangs on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.aladdin.fleets import (
    Fleets,
    bound,
    cases,
    gpus_of,
    most_saved,
    plot,
    run,
    saved,
)
from experiments.harness.claims import Claim, about

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["FIGURE", "PARAMETERS", "cases", "claims", "plot", "run"]

FIGURE = "Figure 12"
ALADDIN = ("aladdin", "aladdin:gamma=1+theta=0.5", "aladdin:theta=0.7")
OTHERS = {"jsq": ("shortest queue", 60), "power-of-two": ("power of two", 49)}
PARAMETERS = {
    "quick": Fleets(
        study="decode", policies=(*ALADDIN[::2], *OTHERS), seeds=1, llms=("llama-2-13b",),
        rates_per_s=(5.0, 15.0), targets=(0.99,), arrivals_s=40.0, patience_s=45.0, max_gpus=64,
    ),
    "paper": Fleets(study="decode", policies=(*ALADDIN, *OTHERS), seeds=3),
}  # fmt: skip


def claims(frame: DataFrame, parameters: Fleets) -> list[Claim]:
    """Section 6.4."""
    mine = tuple(p for p in parameters.policies if p.startswith("aladdin"))
    found = []
    for other, (name, percent) in OTHERS.items():
        if other not in parameters.policies or not mine:
            continue
        for llm in parameters.llms:
            for target in parameters.targets:
                ours, rate = most_saved(saved(frame, llm, target, mine, other))
                one = gpus_of(frame, llm, target, mine)
                two = gpus_of(frame, llm, target, (other,))
                found.append(
                    about(
                        f"{llm.removeprefix('llama-2-').upper()}, {100 * target:g} %: up to {percent} % "
                        f"fewer GPUs for decode than {name}",
                        percent,
                        ours,
                        nothing=0,
                        unit=f"% fewer at {rate:g} requests/s, the most",
                        paper=f"up to {percent} %",
                        note="GPUs, Aladdin against the other: "
                        + ", ".join(
                            f"{one[r].mean():.3g} to {two[r].mean():.3g} at {r:g}/s"
                            for r in one.columns
                        ),
                        reason="the fluid bound leaves no more than "
                        f"{bound(frame, llm, target, other):.0f} % to any placement on such workers, at any "
                        "rate shown: batches of tens of requests differ little in context, so counting "
                        "requests balances decode times well",
                    )
                )
    return found
