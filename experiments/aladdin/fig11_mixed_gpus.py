"""Least GPUs for full attainment against the rate, prefill and decode in the same workers.

Llama-2-13B and 70B on A100 (PCIe): for each rate and policy a search finds the least number of workers with
which all requests (P100), or 99 % of them, keep Table 2's SLOs, with the same requests for every number.
Aladdin places on that many workers of Table 3's degree; strictness is its knob, so three values of theta are
searched and claims take the least of them. A dotted line is the fluid bound: what Eq. 3 and 4 say that such
workers could take if every one of them used all of its decode SLO all the time. A policy "never" reaches a
target where not even `max_gpus` do: best fit fills a worker before it takes the next, however many
there are, so more GPUs do not help where the strictness lets through what misses.
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

FIGURE = "Figure 11"
ALADDIN = ("aladdin", "aladdin:gamma=1+theta=0.5", "aladdin:theta=0.7")
OTHERS = {"machine-wide": ("default vLLM", 71), "jsq": ("shortest queue with the best degree", 40)}
PARAMETERS = {
    "quick": Fleets(
        study="mixed", policies=(*ALADDIN[::2], *OTHERS), seeds=1, llms=("llama-2-13b",),
        rates_per_s=(5.0, 15.0), targets=(0.99,), arrivals_s=40.0, patience_s=45.0, max_gpus=64,
    ),
    "paper": Fleets(study="mixed", policies=(*ALADDIN, *OTHERS), seeds=3),
}  # fmt: skip


def claims(frame: DataFrame, parameters: Fleets) -> list[Claim]:
    """Section 6.4 and the abstract."""
    mine = tuple(p for p in parameters.policies if p.startswith("aladdin"))
    found = []
    for other, (name, percent) in OTHERS.items():
        if other not in parameters.policies or not mine:
            continue
        for llm in parameters.llms:
            for target in parameters.targets:
                table = saved(frame, llm, target, mine, other)
                ours, rate = most_saved(table)
                found.append(
                    about(
                        f"{llm.removeprefix('llama-2-').upper()}, {100 * target:g} %: up to {percent} % "
                        f"fewer GPUs than {name}",
                        percent,
                        ours,
                        nothing=0,
                        unit=f"% fewer at {rate:g} requests/s, the most",
                        paper=f"up to {percent} %",
                        note=_words(frame, llm, target, mine, other),
                        reason="the fluid bound leaves no more than "
                        f"{bound(frame, llm, target, other):.0f} % to any placement on workers of this "
                        "degree, at any rate shown"
                        + (
                            ": queues of requests of such lengths are even, so shortest queue already "
                            "comes close to it"
                            if other == "jsq"
                            else ""
                        ),
                    )
                )
    return found


def _words(frame: DataFrame, llm: str, target: float, mine: tuple[str, ...], other: str) -> str:
    """Mean least GPUs of both at each rate."""
    one, two = gpus_of(frame, llm, target, mine), gpus_of(frame, llm, target, (other,))
    return "GPUs, Aladdin against the other: " + ", ".join(
        f"{one[rate].mean():.3g} to {two[rate].mean():.3g} at {rate:g}/s" for rate in one.columns
    )
