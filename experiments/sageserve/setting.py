"""What SageServe's figures share: the week, what arrives in bins of it, and parts of sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.statistics import Interval, mean_interval
from experiments.harness.claims import Claim
from llmscale_env.workload import PS_PER_S, WorkloadConfig, request_chunks
from llmscale_env.workload.requests import WEEK_S
from llmscale_env.workload.week import WEEK_LLMS, WEEK_REGIONS, week_classes

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
SHOWN = {
    "bloom-176b": "Bloom-176B",
    "llama-2-70b": "Llama-2-70B",
    "llama-3.1-8b": "Llama-3.1-8B",
    "llama-3.2-3b": "Llama-3.2-3B",
}
PUBLISHED_REQUESTS = 7_435_314.0
"""Of the released hourly counts that the mix follows; the mix has 10.2 million."""

RAISED = 10.2e6 / PUBLISHED_REQUESTS


@dataclass(frozen=True)
class Binned:
    """What arrives in each bin. Arrays (2, bins, LLM, region): interactive, then non-interactive.

    Attributes:
        bin_s: width of a bin.
        requests: arrivals.
        input_tokens, output_tokens: of them.
    """

    bin_s: float
    requests: NDArray[np.float64]
    input_tokens: NDArray[np.float64]
    output_tokens: NDArray[np.float64]

    def coarser(self, times: int) -> Binned:
        """Bins `times` as wide; what does not fill one at the end is left out."""

        def summed(a: NDArray[np.float64]) -> NDArray[np.float64]:
            n = a.shape[1] // times
            cut = a[:, : n * times]
            return cut.reshape(2, n, times, *a.shape[2:]).sum(axis=2)

        return Binned(
            self.bin_s * times,
            summed(self.requests),
            summed(self.input_tokens),
            summed(self.output_tokens),
        )


def parts(
    judge: Callable[..., Claim], numbers: Any, found: Mapping[str, Any], **words: Any
) -> list[Claim]:
    """Parts of a sentence: what was found by name (an interval, or values by seed), all judged alike.

    Args:
        judge: as `claims.about`.
        numbers: of the paper, by name, or one for all.
        found: see above.
        words: for `judge`.
    """
    return [
        judge(
            name,
            numbers[name] if isinstance(numbers, Mapping) else numbers,
            ours if isinstance(ours, Interval) else mean_interval(ours),
            **words,
        )
        for name, ours in found.items()
    ]


def binned(
    workload: WorkloadConfig, seed: int, *, horizon_s: float = WEEK_S, bin_s: float = 60.0
) -> Binned:
    """Requests and tokens per bin of a draw of the week, taken chunk by chunk.

    Args:
        workload: with classes of `WEEK_CLASSES`, LLMs and regions of the week.
        seed: of the draw.
        horizon_s: length.
        bin_s: width of a bin; must divide an hour.
    """
    n = int(horizon_s // bin_s)
    classes = week_classes(workload)
    first_background = [c.name.startswith("interactive") for c in classes]
    kind_of = np.array([0 if interactive else 1 for interactive in first_background])
    shape = (2, n, len(WEEK_LLMS), len(WEEK_REGIONS))
    sums = [np.zeros(int(np.prod(shape))) for _ in range(3)]
    bin_ps = round(bin_s * PS_PER_S)
    chunks = request_chunks(
        workload,
        classes=classes,
        llms=WEEK_LLMS,
        regions=WEEK_REGIONS,
        horizon_s=n * bin_s,
        rng=np.random.default_rng(seed),
    )
    for chunk in chunks:
        table = chunk.requests
        place = np.ravel_multi_index(
            (kind_of[table.slo_class], table.arrival_ps // bin_ps, table.llm, table.region), shape
        )
        for total, weights in zip(
            sums, (None, table.input_tokens, table.output_tokens), strict=True
        ):
            total += np.bincount(place, weights, minlength=len(total))
    requests, inputs, outputs = (total.reshape(shape) for total in sums)
    return Binned(bin_s, requests, inputs, outputs)
