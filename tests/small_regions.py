"""Small clusters of regions, for tests of both engines: docs/engine.md section 17.

A decode iteration takes 10 + b + 2c ps, a prefill 5 + 3T; paging rounds nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from llmscale_env.sim.spec import (
    ClassSpec,
    ClusterSpec,
    InstanceState,
    LatencySpec,
    PoolSpec,
    RouterKind,
    RouteSpec,
    SpotSpec,
)
from llmscale_env.workload.requests import RequestTable
from tests.small_clusters import pool, profile, table

OFF, ACQUIRING, LOADING, ACTIVE, DRAINING, DONATING = InstanceState
LATER = 10**6


def requests(*rows: tuple[int, ...], regions: tuple[int, ...] | None = None) -> RequestTable:
    """Rows of (arrival ps, input tokens, output tokens[, class]) from clients of regions."""
    made = table(*rows)
    regions = regions or (0,) * len(rows)
    names = tuple(f"region{j}" for j in range(max(regions) + 1))
    return replace(made, region=np.array(regions), region_names=names)


def cluster(
    *pools: PoolSpec,
    n_regions: int = 2,
    latency_ps: int | None = None,
    preference: tuple[tuple[int, ...], ...] | None = None,
    threshold_ppm: int = 700_000,
    capacity: int = 1000,
    **changes: Any,
) -> ClusterSpec:
    """Class 0 goes by regions among all pools of LLM 0; class 1, of priority 1, waits in queue 0."""
    pools = tuple(replace(p, pull=()) for p in pools)
    n_llms = 1 + max(p.llm for p in pools)
    there = sorted({p.region for p in pools if p.llm == 0})
    mine = tuple(k for k, p in enumerate(pools) if p.llm == 0)
    orders = preference or tuple(
        (c, *(j for j in there if j != c)) if c in there else tuple(there) for c in range(n_regions)
    )
    row = (
        RouteSpec(RouterKind.REGIONAL, mine, preference=orders, threshold_ppm=threshold_ppm),
        RouteSpec(RouterKind.SHARED_QUEUE, (), queue=0),
    )
    nothing = (RouteSpec(RouterKind.JSQ_REQUESTS, ()), RouteSpec(RouterKind.JSQ_REQUESTS, ()))
    latency = None
    if latency_ps is not None:
        rows = [
            [(0, 0) if c == j else (latency_ps,) * 2 for j in range(n_regions)]
            for c in range(n_regions)
        ]
        latency = LatencySpec(tuple(tuple(r) for r in rows))
    return ClusterSpec(
        **{
            "profiles": (profile(kv_capacity_tokens=capacity),),
            "pools": pools,
            "routes": (row, *([nothing] * (n_llms - 1))),
            "classes": (ClassSpec(priority=0), ClassSpec(priority=1)),
            "queue_llm": (0,),
            "half_block_tokens": 0,
            "n_regions": n_regions,
            "latency": latency,
            **changes,
        }
    )


def states(engine: Any) -> list[int]:
    return [int(s) for s in engine.instances()["state"]]


def leased(**changes: Any) -> SpotSpec:
    numbers: dict[str, Any] = {
        "initial": 0,
        "reclaim_knots_ps": (30, 30),
        "donate_ps": 20,
        "redeploy_ps": 100,
        "redeploy_remote_ps": 1000,
    }
    return SpotSpec(**(numbers | changes))


def market(**changes: Any) -> ClusterSpec:
    """LLM 0 has an instance of 2 GPUs and a VM of spot, LLM 1 two VMs."""
    return cluster(
        pool(n_slots=4, gpus=2, spot=leased(initial=1)),
        pool(llm=1, n_slots=4, gpus=2, initial_active=0, spot=leased(initial=2, local=False)),
        n_regions=1,
        **changes,
    )


NOBODY = requests((10**15, 1, 1))
