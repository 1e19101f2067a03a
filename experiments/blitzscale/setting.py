"""What BlitzScale's figures share: LLM and cluster of each trace, targets, rescaled workloads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from experiments.blitzscale.demand import Demand, InstanceBounds, bounds, demand
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.workload import DEFAULT_CLASSES, RequestTable, WorkloadConfig, generate_requests
from llmscale_env.workload.arrivals import Arrivals
from llmscale_env.workload.config import CountArrivals
from llmscale_env.workload.generate import draw_lengths
from llmscale_env.workload.mixes import load_mix, replayed
from llmscale_env.workload.rescale import scale_to_peak
from llmscale_env.workload.tables import load_counts

HOUR_S = 3600.0
SCALE_SEEDS = tuple(range(8))
"""Episodes whose peaks a workload is scaled by."""

_LENGTH_DRAWS = 20_000


Workload = Literal["burstgpt", "azure-code", "azure-conv"]
"""Names in `SETTINGS`."""


@dataclass(frozen=True)
class Setting:
    """One column of Figure 13.

    Attributes:
        mix: workload.
        shown: for pictures.
        llm, gpu, tp: an instance.
        instances: what the cluster of Table 1 holds; the peak is scaled to it.
        hosts: logical hosts of Figure 16, of one instance each.
        ttft_s, itl_s: targets.
    """

    mix: str
    shown: str
    llm: str
    gpu: str
    tp: int
    instances: int
    hosts: int
    ttft_s: float
    itl_s: float


SCENARIOS: dict[Workload, str] = {
    "burstgpt": "blitzscale-burstgpt-70b",
    "azure-code": "blitzscale-azure-code-7b",
    "azure-conv": "blitzscale-azure-conv-8b",
}
"""Clusters of the columns of Figure 13."""


def _targets(workload: Workload) -> dict[str, float]:
    """`ttft_s` and `itl_s` of a cluster's one class."""
    (target,) = load_scenario(SCENARIOS[workload]).classes
    return {"ttft_s": target.ttft_s, "itl_s": target.itl_s}


SETTINGS = {
    "burstgpt": Setting(
        "blitzscale-burstgpt",
        "BurstGPT-like, Llama-2-70B",
        "llama-2-70b",
        "a100-80gb",
        4,
        instances=8,
        hosts=16,
        **_targets("burstgpt"),
    ),
    "azure-code": Setting(
        "blitzscale-azure-code",
        "AzureCode, Llama-2-7B",
        "llama-2-7b",
        "a100-80gb",
        1,
        instances=32,
        hosts=32,
        **_targets("azure-code"),
    ),
    "azure-conv": Setting(
        "blitzscale-azure-conv",
        "AzureConv, Llama-3-8B",
        "llama-3.1-8b",
        "a100-80gb-pcie",
        1,
        instances=16,
        hosts=16,
        **_targets("azure-conv"),
    ),
}
"""Section 6. The 70B model needs the NVLink of cluster A (4 hosts of 8 A800, calibrated here as A100); the 7B
model's 32 logical hosts of one GPU (Figure 16) are that cluster too, the 8B model's 16 are cluster B (2 hosts
of 8 A100 with PCIe). Figure 16's 16 logical hosts of 4 GPUs for the 70B model are twice what cluster A has.
Targets are the scenarios': section 3; the 8B model's are ours, five times its prefill of a mean prompt of the
trace (0.11 s), as section 6.2 has it ("SLO of x5"), and the 7B model's ITL."""


def requests_of(
    workload: WorkloadConfig, horizon_s: float, seed: int | tuple[int, ...]
) -> RequestTable:
    """An episode's requests."""
    llms = tuple(dict.fromkeys(str(stream.llm) for stream in workload.streams))
    return generate_requests(
        workload,
        classes=DEFAULT_CLASSES,
        llms=llms,
        horizon_s=horizon_s,
        rng=np.random.default_rng(seed),
    )


@lru_cache(maxsize=16)
def bounds_of(setting: Setting) -> InstanceBounds:
    """Bounds of one instance of a setting, for the mean lengths of its workload."""
    (stream,) = load_mix(setting.mix).streams
    nobody = Arrivals(np.zeros(_LENGTH_DRAWS, dtype=np.int64))
    inputs, outputs = draw_lengths(stream.lengths, nobody, np.random.default_rng(0))
    return bounds(
        setting.llm,
        setting.gpu,
        setting.tp,
        ttft_s=setting.ttft_s,
        itl_s=setting.itl_s,
        mean_input_tokens=float(inputs.mean()),
        mean_output_tokens=float(outputs.mean()),
    )


def horizon_of(name: str) -> float:
    """Seconds of a setting's trace, or an hour of a generator."""
    arrivals = load_mix(SETTINGS[name].mix).streams[0].arrivals
    if isinstance(arrivals, CountArrivals):
        return float(len(load_counts(arrivals.table).counts))
    return HOUR_S


def workload_of(setting: Setting, traces: str = "") -> WorkloadConfig:
    """The mix of a setting; what replays a trace begins at its start.

    Args:
        setting: which.
        traces: folder of the real traces; empty for what imitates them.
    """
    data = load_mix(setting.mix).model_dump()
    for stream in data["streams"]:
        if stream["arrivals"]["kind"] == "counts":
            stream["arrivals"]["start_s"] = 0.0
    workload = WorkloadConfig.model_validate(data)
    return replayed(workload, traces) if traces else workload


@lru_cache(maxsize=64)
def scaled_workload(
    setting: Setting,
    instances: int,
    phases: str,
    horizon_s: float,
    seeds: tuple[int, ...] = SCALE_SEEDS,
    traces: str = "",
) -> WorkloadConfig:
    """The workload of a setting, its peak scaled to so many instances.

    Args:
        setting: which.
        instances: the demand of the peak second, averaged over the seeds.
        phases: which instances count: "prefill", "decode" or "both".
        horizon_s: length of an episode.
        seeds: episodes that the peak is taken from.
        traces: as in `workload_of`.
    """
    workload = workload_of(setting, traces)

    def load_of(requests: RequestTable) -> NDArray[np.float64]:
        return demand(requests, bounds_of(setting), horizon_s).load(phases)

    factor = scale_to_peak(
        workload,
        instances,
        load_of,
        classes=DEFAULT_CLASSES,
        llms=tuple(str(stream.llm) for stream in workload.streams),
        horizon_s=horizon_s,
        seeds=seeds,
    )
    return workload.scaled(factor)


def scaled_demand(
    setting: Setting,
    instances: int,
    phases: str,
    horizon_s: float,
    seed: int | tuple[int, ...],
    traces: str = "",
) -> Demand:
    """Demand of one episode of the rescaled workload (see `scaled_workload`)."""
    workload = scaled_workload(setting, instances, phases, horizon_s, SCALE_SEEDS, traces)
    return demand(requests_of(workload, horizon_s, seed), bounds_of(setting), horizon_s)
