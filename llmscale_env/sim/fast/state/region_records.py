"""Records and tables of regions, managers, spot VMs and endpoint scaling (docs/engine.md, section 17)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.spec import NEVER, ClusterSpec

ROAM = np.dtype([("region", np.int16), ("to", np.int16)])
"""A request: its client's region, and the one that it is on its way to (-1: none)."""

LEASE = np.dtype(
    [
        ("last_first", np.int64),  # last one of priority 0 in the own queue, -1: none
        ("kind", np.int64),  # of its VM: see below
        ("since_ps", np.int64),  # when it was ordered, -1: it has served or failed since
    ]
)
"""An instance slot."""

REGION_FIELDS = (
    "roam",
    "transit",
    "lease",
    "endpoint",
    "token_bins",
    "manager",
    "prefer",
    "takes",
)
"""Arrays of an episode that are about regions."""

OWN_VM, OTHER_VM, REPAIRED_VM = 0, 1, 2

ENDPOINT = np.dtype(
    [
        (name, np.int64)
        for name in (
            "region",
            "deployment",  # slots of one
            "priorities",
            # spot VMs
            "spot",  # whether it has them
            "group",
            "vms",
            "local",
            "donate_ps",
            "redeploy_ps",
            "redeploy_remote_ps",
            "n_knots",
            "reclaims_own",
            "reclaims_others",
            "donations",
            "own_s",  # whole seconds, and the rest
            "own_ps",
            "others_s",
            "others_ps",
            # the rule of scaling
            "kind",
            "high_ppm",
            "low_ppm",
            "cooldown_ps",
            "least",
            "most",
            "late_ps",  # from here on in an hour
            "either_way",
            "changed_ps",
            "target",
            "began_ps",
            "way",
            "there",
            "above",  # tokens
            "below",
            "looks_out",
            "looks_in",
            "bin_ps",
            "bins",
            "bin",  # the one that is being filled
            "window",  # tokens of the last complete ones
        )
    ]
)
"""A pool."""

MANAGER = np.dtype([(name, np.int64) for name in ("queue", "n_pools", "one_ppm", "two_ppm")])


def widths(spec: ClusterSpec) -> dict[str, int]:
    """Constants of the kernels, and sizes of tables."""
    latency = spec.latency.knots_ps if spec.latency else ()
    return {
        "regional": int(spec.regional),
        "n_regions": spec.n_regions,
        "more_regions": spec.n_regions + 1,
        "n_managers": len(spec.managers),
        "manager_period": spec.manager_period_ps,
        "waiting_counts": int(spec.waiting_counts),
        "latency_width": 1 + max((len(k) for row in latency for k in row), default=0),
        "reclaim_width": max(
            (len(p.spot.reclaim_knots_ps) for p in spec.pools if p.spot), default=1
        ),
        "bins_width": 1 + max((p.scaling.bins for p in spec.pools if p.scaling), default=0),
    }


def shared_tables(spec: ClusterSpec) -> dict[str, NDArray[np.int64]]:
    """What is the same for all episodes and never written."""
    n_llms, n_classes, n_pools = spec.n_llms, len(spec.classes), len(spec.pools)
    size = widths(spec)
    regions = range(spec.n_regions)
    region_pools = np.full((n_llms, n_classes, n_pools), -1, np.int64)
    region_first = np.zeros((n_llms, n_classes, spec.n_regions + 1), np.int64)
    client_queue = np.full((n_llms, n_classes, spec.n_regions), -1, np.int64)
    for m, row in enumerate(spec.routes):
        for c, route in enumerate(row):
            there = [[p for p in route.pools if spec.pools[p].region == j] for j in regions]
            flat = [p for pools in there for p in pools]
            region_pools[m, c, : len(flat)] = flat
            region_first[m, c, 1:] = np.cumsum([len(pools) for pools in there])
            client_queue[m, c] = route.region_queues or route.queue
    latency = np.zeros((spec.n_regions, spec.n_regions, size["latency_width"]), np.int64)
    for client, rows in enumerate(spec.latency.knots_ps if spec.latency else ()):
        for j, knots in enumerate(rows):
            latency[client, j, : len(knots) + 1] = [len(knots), *knots]
    manager_pools = np.full((max(len(spec.managers), 1), n_pools), -1, np.int64)
    for k, manager in enumerate(spec.managers):
        manager_pools[k, : len(manager.pools)] = manager.pools
    counting = np.full((n_llms, spec.n_regions, n_pools + 1), -1, np.int64)
    for m in range(n_llms):
        for j in regions:
            mine = [
                p
                for p, pool in enumerate(spec.pools)
                if pool.scaling and pool.llm == m and pool.region == j
            ]
            counting[m, j, : len(mine)] = mine
    reclaim = np.zeros((n_pools, size["reclaim_width"]), np.int64)
    for p, pool in enumerate(spec.pools):
        if pool.spot:
            reclaim[p, : len(pool.spot.reclaim_knots_ps)] = pool.spot.reclaim_knots_ps
    return {
        "region_pools": region_pools,
        "region_first": region_first,
        "client_queue": client_queue,
        "latency": latency,
        "manager_pools": manager_pools,
        "counting": counting,
        "reclaim": reclaim,
    }


def episode_tables(spec: ClusterSpec, episodes: int, capacity: int) -> dict[str, NDArray]:
    """Arrays with a leading axis of episodes; `reset_regions` fills them."""
    e, n_pools, j = episodes, len(spec.pools), spec.n_regions
    return {
        "roam": np.zeros((e, capacity if spec.regional else 1), ROAM),
        "transit": np.zeros((e, 2, capacity if spec.regional else 1), np.int64),
        "lease": np.zeros((e, spec.n_instances), LEASE),
        "endpoint": np.zeros((e, n_pools), ENDPOINT),
        "token_bins": np.zeros((e, n_pools, widths(spec)["bins_width"]), np.int64),
        "manager": np.zeros((e, max(len(spec.managers), 1)), MANAGER),
        "prefer": np.zeros((e, spec.n_llms, len(spec.classes), j, j), np.int64),
        "takes": np.zeros((e, spec.n_llms, len(spec.classes), j), np.int64),
    }


def preference_rows(preference: tuple[tuple[int, ...], ...], n_regions: int) -> NDArray[np.int64]:
    """(n_regions, n_regions): of clients of each region the regions in order, -1: no more."""
    rows = np.full((n_regions, n_regions), -1, np.int64)
    for client, order in enumerate(preference):
        rows[client, : len(order)] = order
    return rows


def reset_regions(arrays: dict[str, NDArray], spec: ClusterSpec) -> None:
    """Put the arrays of one episode at time 0."""
    arrays["lease"]["last_first"] = arrays["lease"]["since_ps"] = -1
    arrays["lease"]["kind"] = OWN_VM
    arrays["token_bins"][:] = 0
    for k, manager in enumerate(spec.managers):
        arrays["manager"][k] = (
            manager.queue,
            len(manager.pools),
            manager.one_ppm,
            manager.two_ppm,
        )
    for m, row in enumerate(spec.routes):
        for c, route in enumerate(row):
            arrays["prefer"][m, c] = preference_rows(route.preference, spec.n_regions)
            arrays["takes"][m, c] = route.threshold_ppm
    arrays["endpoint"][:] = 0
    for p, pool in enumerate(spec.pools):
        row = arrays["endpoint"][p]
        row["region"] = pool.region
        row["deployment"] = pool.deployment_slots or pool.n_slots
        row["priorities"] = pool.priorities
        row["target"] = -1
        row["changed_ps"] = -NEVER
        if pool.spot:
            row["spot"] = 1
            row["vms"] = pool.spot.initial
            row["local"] = pool.spot.local_at_start or pool.initial_active > 0
            row["n_knots"] = len(pool.spot.reclaim_knots_ps)
            for name in ("group", "donate_ps", "redeploy_ps", "redeploy_remote_ps"):
                row[name] = getattr(pool.spot, name)
        if pool.scaling:
            row["late_ps"] = pool.scaling.period_ps - pool.scaling.last_ps
            names = ("kind", "high_ppm", "low_ppm", "cooldown_ps", "least", "most")
            for name in (*names, "either_way", "bin_ps", "bins"):
                row[name] = getattr(pool.scaling, name)
