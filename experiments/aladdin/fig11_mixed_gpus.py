"""Least GPUs for full attainment against the rate, prefill and decode in the same workers.

Llama-2-7B, 13B and 70B on A100 (PCIe): a search finds the least number of workers with which all requests
(P100), or 99 % of them, keep Table 2's SLOs, with the same requests for every number. Aladdin and the
shortest queue have workers of Table 3's degree, default vLLM of 4 GPUs. The dotted line is a fluid that
uses all of every worker's decode SLO all the time (Eq. 3 and 4).

Strictness is Aladdin's knob and left open in the paper, so three settings are searched. There is "no
answer" where not even `max_gpus` reach the target: best fit fills a worker before it takes the next, so
more GPUs do not help where the strictness lets through what misses. Drawn are first turns of ShareGPT with
predictions by the conditional mean; whole conversations and true lengths are searched where they decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from experiments.aladdin.fleets import (
    WIDE,
    Fleets,
    cases,
    plot,
    reached,
    run,
    saving_claims,
    strictnesses,
)
from experiments.harness.claims import Claim
from experiments.harness.figure import claimed

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["FIGURE", "PARAMETERS", "cases", "claims", "plot", "run"]

FIGURE = "Figure 11"
ALADDIN = ("aladdin", "aladdin:gamma=1+theta=0.5", "aladdin:theta=0.7")
OTHERS = {WIDE: ("default vLLM", 71), "jsq": ("shortest queue with the best degree", 40)}
PARAMETERS = {
    "quick": Fleets(
        study="mixed", policies=(*ALADDIN[::2], *OTHERS), seeds=1, llms=("llama-2-13b",),
        rates_per_s=(5.0, 15.0), targets=(0.99,), arrivals_s=40.0, patience_s=45.0, max_gpus=64,
    ),
    "paper": Fleets(study="mixed", policies=(*ALADDIN, *OTHERS), seeds=3),
}  # fmt: skip


@claimed
def claims(frame: DataFrame, parameters: Fleets) -> Iterator[Claim]:
    """Section 6.4, the abstract and the introduction."""
    yield from saving_claims(
        frame,
        parameters,
        OTHERS,
        "Aladdin needs up to {percent} % fewer GPUs than {name}",
        hows={
            WIDE: "best fit on workers of Table 3's degree; against workers of 4 GPUs the degree does most "
            "of it, as shortest queue on the same workers shows",
            "jsq": "constraints (c) and (d) keep long prompts away from requests that have saved no time; "
            "shortest queue counts requests, and a long prefill makes short outputs late",
        },
        reason="with short prompts the difference is single requests, which decide P100",
    )
    if strictnesses(frame, parameters) and "jsq" in set(frame["policy"]):
        yield reached(
            frame, parameters, "Aladdin fulfils the SLOs of all requests, given enough GPUs"
        )
