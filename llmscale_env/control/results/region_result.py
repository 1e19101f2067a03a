"""What an episode of a cluster with regions leaves behind: instance-hours, spot VMs, latencies by region."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.machine_metrics import time_integral
from llmscale_env.sim.metrics import RequestColumns
from llmscale_env.sim.picoseconds import seconds

HOUR_S = 3600.0
PERCENTILES = (50, 95)
_COUNTS = ("reclaims_own", "reclaims_others", "donations", "looks_out", "looks_in")


def has_regions(scenario: Scenario) -> bool:
    """Whether there is anything to add to an episode's result."""
    pools = scenario.fleet.pools
    return len(scenario.region_names) > 1 or any(pool.spot or pool.scaling for pool in pools)


def region_summary(
    scenario: Scenario,
    columns: RequestColumns,
    spot: NDArray[Any],
    gpu_s: NDArray[np.float64],
    series: Mapping[str, Sequence[Any] | NDArray[Any]],
) -> dict[str, float]:
    """Entries for `EpisodeResult.summary`; its docstring lists them.

    Args:
        scenario: whose.
        columns: of the requests that have arrived.
        spot: (P,) SPOT_DTYPE at the horizon.
        gpu_s: (P,) GPU-seconds billed.
        series: with `time_s` and `POOL/spot`.
    """
    found: dict[str, float] = {}
    for p, pool in enumerate(scenario.fleet.pools):
        waste = {name: seconds(spot, name)[p] / HOUR_S for name in ("own", "others")}
        initial = pool.spot.initial if pool.spot else 0
        leased = time_integral(series[f"{pool.name}/spot"], series["time_s"], initial)
        values = {
            "instance_hours": gpu_s[p] / pool.tp / HOUR_S,
            "spot_gpu_hours": leased * pool.tp / HOUR_S,
            "waste_own_gpu_hours": waste["own"] * pool.tp,
            "waste_others_gpu_hours": waste["others"] * pool.tp,
            **{name: spot[name][p] for name in _COUNTS},
        }
        for name, value in values.items():
            found[f"pool/{pool.name}/{name}"] = float(value)
            found[name] = found.get(name, 0.0) + float(value)
    return found | _latencies(scenario, columns)


def _latencies(scenario: Scenario, columns: RequestColumns) -> dict[str, float]:
    """Percentiles by region of the client, class, and LLM where there are several."""
    llms, regions = scenario.fleet.llms, scenario.region_names
    found: dict[str, float] = {}
    for c, slo_class in enumerate(scenario.classes):
        mine = columns.slo_class == c
        groups = [(slo_class.name, mine)]
        if len(llms) > 1:
            groups += [
                (f"{llm}/{slo_class.name}", mine & (columns.llm == m)) for m, llm in enumerate(llms)
            ]
        for name, rows in groups:
            found |= _percentiles(name, columns, rows)
            if len(regions) == 1:
                continue
            for j, region in enumerate(regions):
                there = rows & (columns.region == j)
                found[f"region/{region}/{name}/requests"] = float(there.sum())
                found |= _percentiles(f"region/{region}/{name}", columns, there)
    return found


def _percentiles(name: str, columns: RequestColumns, group: NDArray[np.bool_]) -> dict[str, float]:
    found = {}
    for what in ("ttft_s", "e2e_s"):
        values = getattr(columns, what)[group]
        values = values[~np.isnan(values)]
        many = np.percentile(values, PERCENTILES) if len(values) else (np.nan,) * len(PERCENTILES)
        for q, value in zip(PERCENTILES, many, strict=True):
            found[f"{name}/{what}_p{q}"] = float(value)
    return found


def regions_of_instances(scenario: Scenario, instance: NDArray[Any]) -> NDArray[np.int8]:
    """Regions of instances (-1: of none)."""
    homes = [
        scenario.region_names.index(scenario.region_of(pool.region))
        for pool in scenario.fleet.pools
        for _ in range(pool.max_instances)
    ]
    return np.where(instance < 0, -1, np.array(homes, np.int8)[np.maximum(instance, 0)])
