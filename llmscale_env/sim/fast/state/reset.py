"""What the fast engine's arrays hold at time 0."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.fast.state.cache_records import Loose
from llmscale_env.sim.fast.state.layout import State
from llmscale_env.sim.fast.state.records import NO_EVENT, REQ
from llmscale_env.sim.fast.state.region_records import REGION_FIELDS, reset_regions
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec import (
    NEVER,
    NO_SOURCE,
    ClusterSpec,
    InstanceState,
    PlacementSpec,
    RequestState,
    V1Spec,
    first_warm,
)
from llmscale_env.sim.streaming import names_of
from llmscale_env.workload.requests import RequestTable


def put(row: Any, **values: Any) -> None:
    """Fill a record by the names of its fields; those that are not named become 0."""
    assert values.keys() <= set(row.dtype.names)
    for name in row.dtype.names:
        row[name] = values.get(name, 0)


def placement_fields(placement: PlacementSpec | None) -> dict[str, float | int]:
    """What a route's record holds of a placement."""
    if placement is None:
        return {}
    return {
        **dict(zip(("c1", "k1", "c3", "c2", "k2"), placement.model, strict=True)),
        "gamma": placement.gamma,
        "theta": placement.theta,
        "ttft_ps": placement.ttft_ps,
        "itl_ps": placement.itl_ps,
        "fallback": placement.fallback,
        "scaled": placement.scaled_norm,
        "saved_over_tokens": placement.saved_over_tokens,
    }


def v1_fields(v1: V1Spec | None) -> dict[str, int]:
    """What a pool's record holds of vLLM V1."""
    if v1 is None:
        return {}
    return {
        "block_tokens": v1.block_tokens,
        "asynchronous": v1.asynchronous,
        "reserve_full": v1.reserve_full,
        "prefix_cache": v1.prefix_cache,
        "host_base_ps": v1.host_base_ps,
        "host_per_request_ps": v1.host_per_request_ps,
    }


def _future() -> NDArray[Any]:
    """(1,) a request that is still to come, whoever's it is."""
    row = np.zeros(1, REQ)
    for name in ("admitted", "first", "finished", "max_itl", "last_token", "instance", "kv_host"):
        row[name] = -1
    for name in ("next", "prev", "aux_next", "aux_prev", "queue", "at"):
        row[name] = -1
    row["state"] = RequestState.FUTURE
    return row


_FUTURE = _future()


@njit
def _put(req, future, arrival, tokens, predicted, llm, cls, evictable):  # type: ignore[no-untyped-def]
    """Write whole records, one after the other: column by column memory would be gone through eight times."""
    for k in range(len(req)):
        req[k] = future[0]
        req[k].arrival = arrival[k]
        req[k].input, req[k].output = tokens[0][k], tokens[1][k]
        req[k].predicted = predicted[k]
        req[k].llm, req[k].cls = llm[k], cls[k]
        req[k].evictable = evictable[llm[k], cls[k]]


def put_requests(
    states: State, e: int, spec: ClusterSpec, requests: RequestTable, first: int
) -> None:
    """Fill the places from `first` on with requests that are still to come.

    Raises:
        ValueError: see `names_of`.
    """
    n = len(requests)
    glob = states.glob[e, 0]
    mine = slice(first, first + n)
    names = names_of(requests, int(glob["next_name"]))
    states.ids[e, mine] = np.arange(n) + glob["next_id"]
    glob["next_id"] += n
    if n == 0:
        return
    glob["next_name"] = names[-1] + 1
    if states.const["caches"][0]:
        _put_blocks(states.blocks[e, mine], names, requests, glob)
    glob["last_arrival_ps"] = requests.arrival_ps[-1]
    if spec.regional:
        states.roam["region"][e, mine] = requests.region if spec.n_regions > 1 else 0
        states.roam["to"][e, mine] = -1
    evictable = np.array(
        [
            [
                c.priority == 1 and route.queue >= 0
                for c, route in zip(spec.classes, row, strict=True)
            ]
            for row in spec.routes
        ],
        np.int8,
    )
    _put(
        states.req[e, mine],
        _FUTURE,
        requests.arrival_ps,
        (requests.input_tokens, requests.output_tokens),
        requests.predicted_output_tokens,
        requests.llm,
        requests.slo_class,
        evictable,
    )


def _put_blocks(rows: Any, names: NDArray[np.int64], requests: RequestTable, glob: Any) -> None:
    """What requests have of a prefix cache before they come; their spans are behind those of earlier ones."""
    rows[:] = 0
    rows["name"], rows["made"] = names, -1
    if requests.prefixes is not None:
        rows["span"] = glob["n_spans"] + requests.prefixes.first[:-1]
        rows["n_spans"] = np.diff(requests.prefixes.first)
        glob["n_spans"] += len(requests.prefixes.owner)
        glob["shares"] |= len(requests.prefixes.owner) > 0


def reset_episode(
    states: State, e: int, spec: ClusterSpec, requests: RequestTable, loose: Loose, salt: int = 0
) -> None:
    """Put episode `e` at time 0 with `requests`; its arrays must be large enough, and its spans in place."""
    n = len(requests)
    hosts = np.array(spec.host_of_slot)

    glob = states.glob[e]
    glob[:] = 0
    glob["n_requests"] = n
    glob["capacity"] = states.req.shape[1]
    glob["flow_key"] = NO_EVENT
    glob["last_arrival_ps"] = -1
    glob["failing_host"] = -1
    glob["extent_free"] = -1
    glob["extent_size"] = len(loose.extent)
    glob["bucket_mask"] = len(loose.bucket) - 1
    loose.bucket[:] = -1
    glob["salt"] = np.array(salt % 2**64, np.uint64).view(np.int64)
    glob["signal_ps"] = spec.manager_period_ps if spec.managers else NEVER
    reset_regions({name: getattr(states, name)[e] for name in REGION_FIELDS}, spec)
    states.load[e] = 0
    states.load["code"][e] = NO_SOURCE
    states.load["asleep_ps"][e] = 0 if spec.host_cache_at_start else -1
    states.load["twin"][e] = spec.twin_of_slot
    homes = np.array(spec.homes if spec.homes else (-1,) * spec.n_llms, np.int64)
    states.home["host"][e] = homes
    states.home["there"][e] = homes >= 0
    states.home["restored_from"][e] = NO_SOURCE
    states.home["bytes"][e] = 0
    states.live[e] = 0
    states.v1[e] = 0
    states.v1["oldest"][e] = states.v1["newest"][e] = -1
    states.growing[e] = 0
    for name in ("helper", "first", "last", "executing", "leader", "work"):
        states.live[name][e] = -1
    for name in ("held_first", "held_last"):
        states.live[name][e] = -1
    states.co[e] = 0
    for name in ("helper", "origin", "prev", "after", "later"):
        states.co[name][e] = -1
    states.flow[e] = 0
    states.flow["source"][e] = -1
    states.report[e] = -1
    states.fit[e] = 0

    put_requests(states, e, spec, requests, 0)
    states.lists[e, :, :2] = -1
    states.lists[e, :, 2] = 0
    states.running[e] = 0
    states.running_cls[e] = 0
    states.host_count[e] = 0
    states.host_gone[e] = 0 if spec.host_cache_at_start else -1
    states.arrived[e] = 0
    states.by_class[e, :n] = np.argsort(requests.slo_class, kind="stable")
    states.tally[e] = 0
    states.pool_seen[e] = 0
    states.queue_seen[e] = 0
    states.queue[e] = 0
    states.aging[e] = 0
    ends = np.cumsum(np.bincount(requests.slo_class, minlength=len(spec.classes)))
    states.tally["end"][e] = ends
    states.tally["cursor"][e, 1:] = ends[:-1]
    states.aging["end"][e] = ends
    states.aging["cursor"][e, 1:] = ends[:-1, None]
    states.key[e] = NO_EVENT

    for m, row in enumerate(spec.routes):
        for c, route in enumerate(row):
            put(
                states.route[e, m, c],
                kind=route.kind,
                queue=route.queue,
                share=route.overflow_share,
                n_pools=len(route.pools),
                n_overflow=len(route.overflow),
                queues=route.queue,
                decode_kind=route.decode_kind,
                n_decode=len(route.decode_pools),
                by_region=bool(route.region_queues),
                prefill_load_scale=route.prefill_load_scale,
                overlap_score_credit=route.overlap_score_credit,
                **placement_fields(route.placement),
            )

    inst = states.inst[e]
    inst[:] = 0
    inst["host"] = hosts
    inst["billed_ps"] = -1
    inst["loaded_ps"] = -1
    inst["loaded_from"] = -1
    inst["thr_prev"] = -1.0
    inst["foreign"] = -1
    n_queues = len(spec.queue_llm)
    states.place[e] = n_queues
    states.pulled_by[e] = 0
    states.host_ready[e] = -1
    states.host_used[e] = 0
    for p, pool in enumerate(spec.pools):
        first = spec.first_slot[p]
        mine = slice(first, first + pool.n_slots)
        limit = pool.batch_limit
        if pool.controller != 0:
            limit = min(max(limit, pool.controller_min_batch), pool.controller_max_batch)
        inst["pool"][mine] = p
        inst["llm"][mine] = pool.llm
        inst["profile"][mine] = pool.profile
        inst["watermark"][mine] = next(s.watermark_tokens for s in pool.served if s.llm == pool.llm)
        inst["limit"][mine] = limit
        inst["x"][mine] = limit
        inst["source"][mine] = pool.load_source
        inst["n_pull"][mine] = len(pool.pull)
        states.pull[e, mine, : len(pool.pull)] = pool.pull
        for place, q in enumerate(pool.pull):
            states.place[e, mine, q] = place
            count = int(states.pulled_by[e, q, 0])
            pullers = states.pulled_by[e, q]
            pullers[1 + count : 1 + count + pool.n_slots] = np.arange(first, first + pool.n_slots)
            pullers[0] = count + pool.n_slots
        states.host_ready[e, mine, list(first_warm(pool))] = 0
        up = first + np.flatnonzero(spec.active_at_start[mine])
        inst["state"][up] = InstanceState.ACTIVE
        inst["billed_ps"][up] = 0
        states.active[e, p, : pool.initial_active] = up
        states.home["bytes"][e, pool.llm] = max(
            states.home["bytes"][e, pool.llm], pool.weight_bytes
        )
        for host in hosts[up]:
            states.host_count[e, host, pool.llm] += 1
        glob["gpus_held"] += pool.initial_active * pool.gpus
        glob["n_choosers"] += pool.n_slots if len(pool.pull) > 1 else 0
        put(
            states.pool[e, p],
            llm=pool.llm,
            profile=pool.profile,
            first_slot=first,
            n_slots=pool.n_slots,
            gpus=pool.gpus,
            n_active=pool.initial_active,
            controller=pool.controller,
            controller_alpha=pool.controller_alpha,
            controller_min_batch=pool.controller_min_batch,
            controller_max_batch=min(
                pool.controller_max_batch, spec.profiles[pool.profile].max_batch
            ),
            controller_window_iterations=pool.controller_window_iterations,
            controller_settles=pool.controller_settles,
            controller_reverts=pool.controller_reverts,
            chunk_tokens=pool.chunk_tokens,
            prefill_tokens=pool.prefill_tokens,
            preemption=pool.preemption,
            evicts=pool.evicts,
            acquire_ps=pool.acquire_ps,
            load_ps=pool.load_ps,
            wake_ps=pool.wake_ps,
            host_kv_bytes=pool.host_kv_bytes,
            pull_rule=pool.pull_rule,
            evicts_in_order=pool.evicts_in_order,
            static_batch=pool.static_batch,
            async_kv=pool.async_kv,
            n_llms=len(pool.served),
            swap_flushes=pool.swap_flushes,
            host_weight_bytes=pool.host_weight_bytes,
            repair_ps=pool.repair_ps,
            phase=pool.phase,
            load_source=pool.load_source,
            weight_bytes=pool.weight_bytes,
            layers=pool.layers,
            live_mode=pool.live_mode,
            **v1_fields(pool.v1),
        )
    leaves = int(states.const["leaves"][0])
    tree = states.tree[e]
    tree[leaves:] = np.minimum(np.arange(leaves), spec.n_instances - 1)
    for node in range(leaves - 1, 0, -1):
        tree[node] = tree[2 * node]  # nothing is scheduled: the lowest index wins
