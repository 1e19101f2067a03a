"""Least GPUs of decode workers for full attainment against the rate, phases split.

As Figure 11, for the decode phase alone, as in the paper: prefill workers are there to spare, KV caches
move in no time, and only the mean inter-token latency (ATGT) from the first token on counts. Best fit
places by constraints (b) and (e); against it stand the shortest queue (as DistServe) and power of two.

The first token gap of a request's ATGT holds what is left of the decode worker's iteration under way, so
that very short outputs can miss on any fleet: P100 depends on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.aladdin.fleets import Fleets, cases, plot, run, saving_claims
from experiments.harness.claims import Claim

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
    "paper": Fleets(study="decode", policies=(*ALADDIN, *OTHERS), seeds=3, deciding_seeds=3),
}  # fmt: skip


def claims(frame: DataFrame, parameters: Fleets) -> list[Claim]:
    """Section 6.4."""
    return saving_claims(
        frame,
        parameters,
        OTHERS,
        "Aladdin needs up to {percent} % fewer GPUs for decode than {name}",
        hows=dict.fromkeys(
            OTHERS, "best fit by constraints (b) and (e) on decode workers of Table 3's degree"
        ),
        reason="outputs of 2 to 4 tokens miss where an iteration is under way, which no constraint looks at; "
        "but for these both need about as many GPUs",
    )
