"""The fast engine's state: a handful of arrays, for one episode or for many side by side.

`State` holds, for `E` episodes, arrays with a leading axis of length `E`; a kernel function works
on one
of them (see `memory`). Plain arrays make copying, saving and forking an episode
a matter of copying memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.fast.state.cache_records import BLOCKS, Loose, room_for_an_event
from llmscale_env.sim.fast.state.flow_records import CO, FLOW, HOME, LIVE, LOAD
from llmscale_env.sim.fast.state.queue_records import AGING, QUEUE
from llmscale_env.sim.fast.state.records import (
    CLS,
    CONST,
    FIT,
    GLOB,
    INST,
    LISTS,
    POOL,
    PROF,
    REPORT,
    REQ,
    ROUTE,
    SERVED_COLUMNS,
    TALLY,
    V1,
)
from llmscale_env.sim.fast.state.region_records import episode_tables, shared_tables, widths
from llmscale_env.sim.observed import POOL_SEEN, QUEUE_SEEN
from llmscale_env.sim.spec import (
    ClusterSpec,
    PoolPhase,
)
from llmscale_env.sim.spec.links import HOST_TABLES, LINK_TABLES, WEIGHT_TABLES


class State(NamedTuple):
    """All arrays of `E` episodes.

    `lists` rows are (head, tail, count) of doubly linked lists of requests: see `lists`.
    """

    glob: NDArray  # (E, 1)
    inst: NDArray  # (E, I)
    req: NDArray  # (E, R)
    pool: NDArray  # (E, P)
    route: NDArray  # (E, M, C)
    key: NDArray[np.int64]  # (E, I) 2 * time (+ 1: wake-up) of the next event
    tree: NDArray[np.int64]  # (E, 2L) tournament of instances by key
    heap: NDArray[np.int64]  # (E, I, B) finishing iteration << 32 | request
    stack: NDArray[np.int64]  # (E, I, 2B + 16, 2) see kernels.itl
    lists: NDArray[np.int64]  # (E, rows, 3), rows as `LISTS` has them
    active: NDArray[np.int64]  # (E, P, max slots) active instances, ascending
    running: NDArray[np.int64]  # (E, I) running requests: `n_run` again, side by side for routers
    running_cls: NDArray[np.int64]  # (E, I, C)
    host_count: NDArray[np.int64]  # (E, H, M) serving instances on the host
    host_gone: NDArray[np.int64]  # (E, H, M) when the last one went, -1: never there
    log: NDArray[np.int64]  # (E, 2, R) requests in order of finishing, of first tokens
    arrived: NDArray[np.int64]  # (E, M, C) arrivals so far
    ids: NDArray[np.int64]  # (E, R) of the requests, ascending: see `streaming`
    by_class: NDArray[np.int64]  # (E, R) requests by class, by arrival within one
    tally: NDArray  # (E, C) see `windows`
    pool_seen: NDArray  # (E, P)
    queue_seen: NDArray  # (E, Q)
    queue: NDArray  # (E, Q) see `queues`, as `aging`
    aging: NDArray  # (E, C)
    pull: NDArray[np.int64]  # (E, I, Q) shared queues on an instance's list
    place: NDArray[np.int64]  # (E, I, Q) place of a queue there, Q: it is not
    pulled_by: NDArray[np.int64]  # (E, Q, I + 1) number of instances, then the instances, ascending
    dirty: NDArray[np.int64]  # (E, Q) queues that changed during the event at hand
    host_ready: NDArray[np.int64]  # (E, I, M) when weights are in host memory, -1: they are not
    host_used: NDArray[np.int64]  # (E, I, M) swap that brought them to the GPUs last
    flow: NDArray  # (E, N) by number, see `n_flows`
    flows: NDArray[np.int64]  # (E, N) numbers of those on their way, in no order
    link_use: NDArray[np.int64]  # (E, links, 2) capacity left and flows, while rates are computed
    report: NDArray  # (E, I)
    fit: NDArray  # (E, I) see `best_fit`
    fit_list: NDArray[np.int64]  # (E, I, W) predicted tokens to come << 32 | KV tokens
    fit_long: NDArray[np.int64]  # (E, R) the same of an instance with more requests than that
    norms: NDArray[np.float64]  # (E, I)
    load: NDArray  # (E, I) see `loading`
    home: NDArray  # (E, M)
    live: NDArray  # (E, I) see `live`
    v1: NDArray  # (E, I)
    growing: NDArray[np.int64]  # (E, I, W) decoding requests by when they need a block
    blocks: NDArray  # (E, R), or (E, 1) without prefix caches: see `cache_records`
    co: NDArray  # (E, R), or (E, 1) where there are no live pairs
    roam: NDArray  # (E, R), or (E, 1) where there are no regions: see `region_records`, as those below
    transit: NDArray[np.int64]  # (E, 2, R) or (E, 2, 1) heap of times and requests on their way
    lease: NDArray  # (E, I)
    endpoint: NDArray  # (E, P)
    token_bins: NDArray[np.int64]  # (E, P, W) tokens by bin, round and round
    manager: NDArray  # (E, managers)
    prefer: NDArray[
        np.int64
    ]  # (E, M, C, J, J) regions in order by region of the client, -1: no more
    takes: NDArray[np.int64]  # (E, M, C, J) utilisation up to which a region is taken in that order
    # the same for all episodes, never written
    prof: NDArray  # (F,)
    tab: NDArray[np.int64]  # (F, 4, B + 1)
    knots: NDArray[np.int64]  # (F, 2, K, 3)
    cls: NDArray  # (C,)
    route_pools: NDArray[np.int64]  # (M, C, 3, P) own, overflow and decode pools
    link_cap: NDArray[np.int64]  # (links,) bytes per microsecond
    links: NDArray[np.int64]  # (rows, width) see `links_of`; -1: no more
    served: NDArray[np.int64]  # (P, M, SERVED_COLUMNS) see `records`
    llm_cap: NDArray[np.int64]  # (M,) longest request that is not rejected
    const: NDArray  # (1,)
    region_pools: NDArray[np.int64]  # (M, C, P) a route's own pools, region by region
    region_first: NDArray[np.int64]  # (M, C, J + 1) where each region begins there
    client_queue: NDArray[np.int64]  # (M, C, J) shared queue by region of the client
    latency: NDArray[np.int64]  # (J, J, W) how many quantiles, then those
    manager_pools: NDArray[np.int64]  # (managers, P)
    counting: NDArray[np.int64]  # (M, J, P + 1) pools whose rules count an arrival, -1: no more
    reclaim: NDArray[np.int64]  # (P, W) quantiles


STATE_FIELDS = State._fields
EPISODE_FIELDS = STATE_FIELDS[: STATE_FIELDS.index("prof")]
PER_REQUEST = (
    "req",
    "log",
    "ids",
    "by_class",
    "flow",
    "flows",
    "fit_long",
    "blocks",
    "co",
    "roam",
    "transit",
)
"""Arrays whose last axis grows with the requests: see `length`."""


def may_be_live(spec: ClusterSpec) -> bool:
    """Whether any pool's instances can be pairs (docs/engine.md, section 16)."""
    return any(
        pool.phase == PoolPhase.PREFILL and pool.weight_bytes > 0 and pool.chunk_tokens == 0
        for pool in spec.pools
    )


def n_flows(spec: ClusterSpec, requests: int) -> int:
    """Numbers of flows that there may be with so many requests (docs/engine.md, sections 11, 15, 16)."""
    if any(pool.weight_bytes > 0 for pool in spec.pools):
        more = requests if may_be_live(spec) else 0
        return requests + spec.n_instances + spec.n_llms + more
    return requests if spec.splits else 1


def length(spec: ClusterSpec, name: str, requests: int) -> int:
    """Of an array of `PER_REQUEST` the last axis with so many requests."""
    if name in ("flow", "flows"):
        return n_flows(spec, requests)
    if (name == "fit_long" and not spec.places) or (name == "co" and not may_be_live(spec)):
        return 1
    if name in ("roam", "transit") and not spec.regional:
        return 1
    if name == "blocks" and not room_for_an_event(spec):
        return 1
    return requests


def used_widths(inst: NDArray[Any]) -> dict[str, int]:
    """How much of the rows of arrays with room for the largest batch is in use, at most."""
    return {"heap": int(inst["n_dec"].max(initial=0)), "stack": int(inst["stack_n"].max(initial=0))}


def list_rows(spec: ClusterSpec) -> tuple[dict[str, int], int]:
    """First row in `lists` of every kind of list, and how many rows there are."""
    sizes = {"instance": spec.n_instances, "queue": len(spec.queue_llm), "llm": spec.n_llms}
    rows, end = {}, 0
    for name, each in LISTS.items():
        rows[name] = end
        end += sizes[each]
    return rows, end


def addresses(states: State, e: int, loose: Loose) -> NDArray[np.int64]:
    """Where the arrays of episode `e` begin: what the kernels get (see `memory`)."""
    return np.array(
        [
            *(
                array.ctypes.data + (e * array.strides[0] if name in EPISODE_FIELDS else 0)
                for name, array in states._asdict().items()
            ),
            *(array.ctypes.data for array in loose),
        ],
        np.int64,
    )


def links_of(spec: ClusterSpec) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Capacity of the links, and the rows of links that paths are made of.

    Row 0 is empty; then every table of `LINK_TABLES` and `WEIGHT_TABLES` has a row per slot, and
    every one of `HOST_TABLES` one per host (see `network`).
    """
    sizes = dict.fromkeys((*LINK_TABLES, *WEIGHT_TABLES), spec.n_instances)
    sizes |= dict.fromkeys(HOST_TABLES, spec.n_hosts)
    rows: list[tuple[int, ...]] = [()]
    for name, n in sizes.items():
        rows += [spec.network.links(name, k) if spec.network is not None else () for k in range(n)]
    table = np.full((len(rows), max(1, *map(len, rows))), -1, np.int64)
    for row, links in zip(table, rows, strict=True):
        row[: len(links)] = links
    if spec.network is None or len(spec.network.capacity) == 0:
        return np.zeros(1, np.int64), table
    return spec.network.capacity, table


def allocate(spec: ClusterSpec, episodes: int, capacity: int) -> State:
    """Empty arrays for `episodes` episodes of up to `capacity` requests; `reset.reset_episode` fills one."""
    n_inst, n_pools, n_queues = spec.n_instances, len(spec.pools), len(spec.queue_llm)
    n_llms, n_classes, batch = spec.n_llms, len(spec.classes), spec.max_batch
    slots = max(pool.n_slots for pool in spec.pools)
    n_hosts = spec.n_hosts
    leaves = 1
    while leaves < n_inst:
        leaves *= 2

    prof = np.zeros(len(spec.profiles), PROF)
    tab = np.zeros((len(spec.profiles), 4, batch + 1), np.int64)
    n_knots = max(max(len(p.prefill_knot_ps), len(p.mixed_knot_ps)) for p in spec.profiles)
    knots = np.zeros((len(spec.profiles), 2, n_knots, 3), np.int64)
    for f, p in enumerate(spec.profiles):
        prof[f] = (
            len(p.prefill_knot_ps),
            len(p.mixed_knot_ps),
            p.prefill_pair_ps,
            p.mixed_pair_ps,
            p.mixed_chunk_ps,
            p.kv_capacity_tokens,
            p.swap_out_ps_per_token,
            p.swap_in_ps_per_token,
            p.kv_bytes_per_token,
        )
        rows = (p.decode_base_ps, p.decode_per_token_ps, p.mixed_base_ps, p.mixed_per_token_ps)
        for k, row in enumerate(rows):
            tab[f, k, : len(row)] = row
        for k, (x, y, slope) in enumerate(
            (
                (p.prefill_knot_tokens, p.prefill_knot_ps, p.prefill_slope_ps),
                (p.mixed_knot_tokens, p.mixed_knot_ps, p.mixed_slope_ps),
            )
        ):
            knots[f, k, : len(x)] = np.stack([x, y, slope], axis=1)

    served = np.full((n_pools, n_llms, SERVED_COLUMNS), -1, np.int64)
    for number, pool in enumerate(spec.pools):
        for swap in pool.served:
            served[number, swap.llm] = (
                swap.profile,
                swap.weight_bytes,
                swap.fetch_ps,
                swap.swap_ps,
                swap.watermark_tokens,
            )
    route_pools = np.full((n_llms, n_classes, 3, n_pools), -1, np.int64)
    for m, of_llm in enumerate(spec.routes):
        for c, route in enumerate(of_llm):
            route_pools[m, c, 0, : len(route.pools)] = route.pools
            route_pools[m, c, 1, : len(route.overflow)] = route.overflow
            route_pools[m, c, 2, : len(route.decode_pools)] = route.decode_pools
    link_cap, links = links_of(spec)
    block_width = max(pool.v1.block_tokens if pool.v1 else 1 for pool in spec.pools)
    moving = n_flows(spec, capacity)
    placing = 4 * batch + 64 if spec.places else 1
    cls = np.array(
        [(c.priority, c.itl_slo_ps, c.ttft_slo_ps, c.itl_max, c.promote_ps) for c in spec.classes],
        CLS,
    )
    const = np.zeros(1, CONST)
    const["n_inst"] = n_inst
    const["n_queues"] = n_queues
    const["n_llms"] = n_llms
    const["n_classes"] = n_classes
    const["n_pools"] = n_pools
    const["n_hosts"] = n_hosts
    const["half_block"] = spec.half_block_tokens
    const["max_gpus"] = spec.max_gpus
    const["keep_alive"] = spec.host_keep_alive_ps
    const["leaves"] = leaves
    const["batch"] = batch
    const["stack_depth"] = 2 * batch + 16
    const["slots"] = slots
    const["knots"] = n_knots
    const["pull_width"] = max(n_queues, 1)
    const["pulled_by_width"] = n_inst + 1
    const["tab_width"] = tab.shape[2]
    const["link_width"] = links.shape[1]
    const["fit_width"] = placing
    const["weights"] = any(pool.weight_bytes > 0 for pool in spec.pools)
    const["live"] = may_be_live(spec)
    const["pools_width"] = n_pools + 1
    const["block_width"] = block_width
    const["extent_room"] = room_for_an_event(spec)
    const["caches"] = const["extent_room"] > 0
    for name, value in widths(spec).items():
        const[name] = value
    e = episodes
    first_rows, n_lists = list_rows(spec)
    for name, first in first_rows.items():
        const[f"row_{name}"] = first
    return State(
        glob=np.zeros((e, 1), GLOB),
        inst=np.zeros((e, n_inst), INST),
        req=np.zeros((e, capacity), REQ),
        pool=np.zeros((e, n_pools), POOL),
        route=np.zeros((e, n_llms, n_classes), ROUTE),
        key=np.zeros((e, n_inst), np.int64),
        tree=np.zeros((e, 2 * leaves), np.int64),
        heap=np.zeros((e, n_inst, batch), np.int64),
        stack=np.zeros((e, n_inst, 2 * batch + 16, 2), np.int64),
        lists=np.zeros((e, n_lists, 3), np.int64),
        active=np.zeros((e, n_pools, slots), np.int64),
        running=np.zeros((e, n_inst), np.int64),
        running_cls=np.zeros((e, n_inst, n_classes), np.int64),
        host_count=np.zeros((e, n_hosts, n_llms), np.int64),
        host_gone=np.zeros((e, n_hosts, n_llms), np.int64),
        log=np.zeros((e, 2, capacity), np.int64),
        arrived=np.zeros((e, n_llms, n_classes), np.int64),
        ids=np.zeros((e, capacity), np.int64),
        by_class=np.zeros((e, capacity), np.int64),
        tally=np.zeros((e, n_classes), TALLY),
        pool_seen=np.zeros((e, n_pools), POOL_SEEN),
        queue_seen=np.zeros((e, max(n_queues, 1)), QUEUE_SEEN),
        queue=np.zeros((e, max(n_queues, 1)), QUEUE),
        aging=np.zeros((e, n_classes), AGING),
        pull=np.zeros((e, n_inst, max(n_queues, 1)), np.int64),
        place=np.zeros((e, n_inst, max(n_queues, 1)), np.int64),
        pulled_by=np.zeros((e, max(n_queues, 1), n_inst + 1), np.int64),
        dirty=np.zeros((e, max(n_queues, 1)), np.int64),
        host_ready=np.zeros((e, n_inst, n_llms), np.int64),
        host_used=np.zeros((e, n_inst, n_llms), np.int64),
        flow=np.zeros((e, moving), FLOW),
        flows=np.zeros((e, moving), np.int64),
        link_use=np.zeros((e, len(link_cap), 2), np.int64),
        report=np.zeros((e, n_inst), REPORT),
        fit=np.zeros((e, n_inst), FIT),
        fit_list=np.zeros((e, n_inst, placing), np.int64),
        fit_long=np.zeros((e, capacity if spec.places else 1), np.int64),
        norms=np.zeros((e, n_inst), np.float64),
        load=np.zeros((e, n_inst), LOAD),
        home=np.zeros((e, n_llms), HOME),
        live=np.zeros((e, n_inst), LIVE),
        v1=np.zeros((e, n_inst), V1),
        growing=np.zeros((e, n_inst, block_width), np.int64),
        blocks=np.zeros((e, length(spec, "blocks", capacity)), BLOCKS),
        co=np.zeros((e, capacity if may_be_live(spec) else 1), CO),
        **episode_tables(spec, e, capacity),
        prof=prof,
        tab=tab,
        knots=knots,
        cls=cls,
        route_pools=route_pools,
        link_cap=link_cap,
        links=links,
        served=served,
        llm_cap=np.array(spec.longest_tokens, np.int64),
        const=const,
        **shared_tables(spec),
    )
