"""Least GPUs for full attainment against the rate, prefill and decode in the same workers.

Llama-2-7B, 13B and 70B on A100 (PCIe): for each rate and policy a search finds the least number of workers
with which all requests (P100), or 99 % of them, keep Table 2's SLOs, with the same requests for every number.
Aladdin places on that many workers of Table 3's degree; strictness is its knob, so three settings are
searched, and claims are about the one, for all rates, that has most answers and then fewest GPUs. A dotted
line is a fluid: what Eq. 3 and 4 say that such workers could take if every one of them used all of its decode
SLO all the time. There is "no answer" where not even `max_gpus` reach the target: best fit fills a worker
before it takes the next, so more GPUs do not help where the strictness lets through what misses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.aladdin.fleets import Fleets, cases, plot, run, saving_claims
from experiments.harness.claims import Claim

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
    return saving_claims(
        frame,
        parameters,
        OTHERS,
        "{llm}, {target}: up to {percent} % fewer GPUs than {name}",
        "requests of such lengths make even queues, so that the shortest queue is close to it, and default "
        "vLLM is as much worse as Eq. 6 says of its degree",
    )
