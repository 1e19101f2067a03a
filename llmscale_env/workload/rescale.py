"""How much busier a workload may become until its peak fills a capacity; its pattern in time stays.

The rates of `counts`, `levels` and traces with `rescale: sample` are raised by repeating requests within
a second of the original (and lowered by dropping some), as TraceUpscaler does: bursts keep their place,
their length and their height over the mean, and gaps stay gaps. To compress time instead (`rescale: time`)
reaches a rate too, but makes bursts as much shorter as it makes them higher, and gaps with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from llmscale_env.workload.config import SLOClass, WorkloadConfig
from llmscale_env.workload.generate import generate_requests
from llmscale_env.workload.requests import RequestTable

_ROUNDS = 4


def scale_to_peak(
    workload: WorkloadConfig,
    capacity: float,
    load_of: Callable[[RequestTable], NDArray[np.floating]],
    *,
    classes: Sequence[SLOClass],
    llms: Sequence[str],
    horizon_s: float,
    seeds: Sequence[int],
) -> float:
    """The factor for `WorkloadConfig.scaled` with which the peak of the load is the capacity.

    Lengths and copies are drawn, so the peak is the mean over `seeds` of each episode's; loads that grow by
    whole copies are met by trying again from the first answer.

    Args:
        workload: what to scale; its own rates are the start.
        capacity: what the peak is to be, in the unit of `load_of`.
        load_of: (n,) load over time of an episode's requests.
        classes, llms, horizon_s: as in `generate_requests`.
        seeds: episodes.

    Raises:
        ValueError: `capacity` is not positive, there are no seeds, or no episode has any load.
    """
    if capacity <= 0 or not seeds:
        raise ValueError(f"capacity = {capacity}, {len(seeds)} seeds: needs more than none of both")
    factor = 1.0
    for _ in range(_ROUNDS):
        scaled = workload.scaled(factor)
        peaks = [
            float(
                np.max(
                    load_of(
                        generate_requests(
                            scaled,
                            classes=classes,
                            llms=llms,
                            horizon_s=horizon_s,
                            rng=np.random.default_rng(seed),
                        )
                    ),
                    initial=0.0,
                )
            )
            for seed in seeds
        ]
        peak = float(np.mean(peaks))
        if peak <= 0:
            raise ValueError(f"no load in {len(seeds)} episodes of {horizon_s:g} s")
        factor *= capacity / peak
    return factor
