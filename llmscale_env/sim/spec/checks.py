"""Refusing what cannot be: parts of a cluster that do not fit together, orders that cannot be carried out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.spec.kinds import (
    DECODE_KINDS,
    MAX_ARRIVAL_QUEUES,
    MODEL_NAMES,
    NOT_UNDER_WAY,
    ControllerKind,
    InstanceState,
    LoadSource,
    PoolPhase,
    PreemptionMode,
    RequestState,
    RouterKind,
)

if TYPE_CHECKING:
    from llmscale_env.sim.spec import ClusterSpec, Operations, PoolSpec, RouteSpec
    from llmscale_env.workload.requests import RequestTable

_MOST = 2**31 - 1
_NOT_OFF = tuple(state for state in InstanceState if state != InstanceState.OFF)


def is_whole(value: object) -> bool:
    """Whether a value is an integer, of Python or NumPy; a truth value is none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def check_range(name: str, value: int, low: int, high: int) -> int:
    """`value` as an int in `low..high`, or a ValueError that says so."""
    if not (is_whole(value) and low <= value <= high):
        raise ValueError(f"{name} = {value!r}: must be an integer in {low}..{high}")
    return int(value)


def check_whole(name: str, values: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
    """(n,) the values, or a ValueError that they are no integers."""
    found = np.asarray(values)
    if found.ndim != 1 or (len(found) > 0 and found.dtype.kind not in "iu"):
        raise ValueError(
            f"{name}: of shape {found.shape} and type {found.dtype}, must be a list of integers"
        )
    return found.astype(np.int64)


def check_requests(spec: ClusterSpec, table: RequestTable) -> None:
    """Refuse requests for what the cluster does not have (with one region, any will do).

    Raises:
        ValueError: the first row of another LLM, class or region.
    """
    numbers = {"llm": spec.n_llms, "slo_class": len(spec.classes)}
    if spec.n_regions > 1:
        numbers["region"] = spec.n_regions
    for name, n in numbers.items():
        column = getattr(table, name)
        if len(table) and int(column.max()) >= n:
            row = int(np.argmax(column >= n))
            raise ValueError(f"{name}[{row}] = {column[row]}: must be in 0..{n - 1}")


def check_fields(
    owner: object, ranges: Mapping[str, tuple[int, int] | type[IntEnum]], where: str = ""
) -> None:
    """Refuse fields that are no whole numbers in their ranges, or none of an enumeration.

    Raises:
        ValueError: which field, its value, and what it must be.
    """
    for name, allowed in ranges.items():
        value = getattr(owner, name)
        if isinstance(allowed, tuple):
            low, high = allowed
            rule = f"an integer in {low}..{high}"
        else:
            low, high = 0, len(allowed) - 1
            rule = f"one of {', '.join(f'{int(k)} ({k.name})' for k in allowed)}"
        for k, one in enumerate(value if isinstance(value, tuple) else (value,)):
            if not (is_whole(one) and low <= one <= high):
                at = f"[{k}]" if isinstance(value, tuple) else ""
                raise ValueError(f"{where}{name}{at} = {one!r}: must be {rule}")


def check_class(spec: ClusterSpec, llm: int, slo_class: int) -> tuple[int, int]:
    """Both as ints, or a ValueError that says which of them the cluster does not have."""
    return (
        check_range("llm", llm, 0, spec.n_llms - 1),
        check_range("slo_class", slo_class, 0, len(spec.classes) - 1),
    )


def check_model(model: Sequence[float]) -> tuple[float, ...]:
    """Refuse coefficients of iteration times that are none.

    Raises:
        ValueError: not five finite numbers, or the time per token of context is not positive.
    """
    values = tuple(float(value) for value in model)
    if len(values) != len(MODEL_NAMES) or not np.isfinite(values).all():
        raise ValueError(f"model = {values}: must be five finite numbers, {', '.join(MODEL_NAMES)}")
    if values[4] <= 0:
        raise ValueError(f"decode_per_token_ps = {values[4]}: must be positive")
    return values


def check_pull(
    name: str, queues: Sequence[int], pool: PoolSpec, queue_llm: Sequence[int]
) -> tuple[int, ...]:
    """Refuse a list of shared queues that an instance of a pool could not pull from.

    Raises:
        ValueError: a queue does not exist, comes twice, or is for an LLM that the pool does not serve.
    """
    if pool.phase == PoolPhase.DECODE and len(queues) > 0:
        raise ValueError(f"{name} = {tuple(queues)}: a DECODE pool pulls from no queue")
    for q in queues:
        if not (is_whole(q) and 0 <= q < len(queue_llm)):
            raise ValueError(f"{name}: no shared queue {q}, must be in 0..{len(queue_llm) - 1}")
        if queue_llm[q] >= 0 and queue_llm[q] not in pool.llms:
            raise ValueError(f"{name}: queue {q} holds requests of another LLM")
    if len(set(queues)) < len(queues):
        raise ValueError(f"{name} = {tuple(queues)}: a queue comes twice")
    return tuple(int(q) for q in queues)


def check_regroup(
    spec: ClusterSpec,
    requests: NDArray[np.int64],
    queues: Sequence[int] | NDArray[Any],
    found: NDArray[Any],
) -> NDArray[np.int64]:
    """Refuse to move requests that do not wait, or to where they cannot be served; (n,) the queues.

    Args:
        spec: the cluster.
        requests, queues: what is to go where.
        found: FOUND_DTYPE of the requests.

    Raises:
        ValueError: one is not in a shared queue, comes twice, or its queue does not exist or is for another
            LLM; or the two differ in length.
    """
    to, n = check_whole("queues", queues), len(spec.queue_llm)
    _check_pairs(requests, "queues", to)
    for bad, say in (
        (found["state"] != RequestState.SHARED_QUEUE, "requests: {} is in no shared queue"),
        ((to < 0) | (to >= n), f"queues: no shared queue {{1}}, must be in 0..{n - 1}"),
    ):
        if bad.any():
            k = int(np.argmax(bad))
            raise ValueError(say.format(requests[k], to[k]))
    of = np.array(spec.queue_llm, np.int64)[to]
    bad = (of != -1) & (of != found["llm"])
    if bad.any():
        k = int(np.argmax(bad))
        raise ValueError(f"queues: request {requests[k]} is for another LLM than queue {to[k]}")
    return to


def _check_pairs(requests: NDArray[np.int64], name: str, values: NDArray[np.int64]) -> None:
    if len(requests) != len(values):
        raise ValueError(f"{name}: {len(values)} of them for {len(requests)} requests")
    if len(np.unique(requests)) < len(requests):
        raise ValueError("requests: one comes twice")


def check_arrival_queues(
    spec: ClusterSpec, llm: int, slo_class: int, uppers: Sequence[int], queues: Sequence[int]
) -> None:
    """Refuse a classification of arrivals that is none.

    Raises:
        ValueError: there is no such route, or it has no shared queue; no or too many queues, bounds that do
            not rise or do not fit, or a queue that does not exist or is for another LLM.
    """
    llm, slo_class = check_class(spec, llm, slo_class)
    if spec.routes[llm][slo_class].queue < 0:
        raise ValueError(f"slo_class = {slo_class}: the route of LLM {llm} has no shared queue")
    if spec.routes[llm][slo_class].region_queues:
        raise ValueError(f"slo_class = {slo_class}: the route of LLM {llm} has region_queues")
    if not 1 <= len(queues) <= MAX_ARRIVAL_QUEUES:
        raise ValueError(f"queues = {tuple(queues)}: must be 1..{MAX_ARRIVAL_QUEUES} of them")
    uppers = check_whole("uppers", uppers).tolist()
    if len(uppers) != len(queues) - 1 or any(a >= b for a, b in pairwise(uppers)):
        raise ValueError(f"uppers = {tuple(uppers)}: must be {len(queues) - 1} rising numbers")
    for q in queues:
        if not (is_whole(q) and 0 <= q < len(spec.queue_llm)):
            raise ValueError(f"queues: no shared queue {q}")
        if spec.queue_llm[q] not in (-1, llm):
            raise ValueError(f"queues: queue {q} is for another LLM than {llm}")


def check_swaps(where: str, pool: PoolSpec, spec: ClusterSpec) -> None:
    """Refuse LLMs that instances of a pool cannot swap between.

    Raises:
        ValueError: what is wrong with them.
    """
    first = pool.served[0]
    if (first.llm, first.profile) != (pool.llm, pool.profile):
        raise ValueError(f"{where}.swaps[0]: must be the pool's own LLM and profile")
    if len(set(pool.llms)) < len(pool.llms):
        raise ValueError(f"{where}.swaps: an LLM comes twice")
    for swap in pool.served:
        if not (0 <= swap.profile < len(spec.profiles) and 0 <= swap.llm < spec.n_llms):
            raise ValueError(f"{where}.swaps: no LLM {swap.llm} or no profile {swap.profile}")
        if spec.profiles[swap.profile].max_batch != spec.profiles[pool.profile].max_batch:
            raise ValueError(f"{where}.swaps: all profiles must have tables of the same length")
    if not set(pool.warm) <= set(pool.llms):
        raise ValueError(f"{where}.warm = {pool.warm}: must be among {pool.llms}")
    if pool.static_batch and pool.chunk_tokens > 0:
        raise ValueError(f"{where}.static_batch: not with chunked prefill")


def check_phase(where: str, pool: PoolSpec, spec: ClusterSpec) -> None:
    """Refuse what a pool that serves one phase only cannot do.

    Raises:
        ValueError: which field, and why.
    """
    if pool.phase == PoolPhase.BOTH:
        return
    phase = PoolPhase(pool.phase).name
    for name in ("evicts", "evicts_in_order", "swaps", "static_batch", "async_kv"):
        if getattr(pool, name):
            raise ValueError(f"{where}.{name}: not in a {phase} pool")
    if pool.phase == PoolPhase.DECODE and pool.chunk_tokens > 0:
        raise ValueError(f"{where}.chunk_tokens = {pool.chunk_tokens}: must be 0 in a DECODE pool")
    profile = spec.profiles[pool.profile]
    if profile.kv_capacity_tokens * profile.kv_bytes_per_token >= 2**62 // 10**6:
        raise ValueError(f"{where}.profile: KV cache of over 4.6 TB, more than flows can count")


def check_v1(where: str, pool: PoolSpec, spec: ClusterSpec) -> None:
    """Refuse what a pool of vLLM V1 instances cannot do.

    Raises:
        ValueError: which field, and why.
    """
    if pool.v1 is None:
        return
    for name in ("evicts", "evicts_in_order", "swaps", "static_batch", "async_kv"):
        if getattr(pool, name):
            raise ValueError(f"{where}.{name}: not in a pool with v1")
    if pool.phase != PoolPhase.BOTH or pool.preemption != PreemptionMode.RECOMPUTE:
        raise ValueError(f"{where}.v1: needs phase BOTH and preemption RECOMPUTE")
    profile = spec.profiles[pool.profile]
    if pool.chunk_tokens < profile.max_batch:
        raise ValueError(
            f"{where}.chunk_tokens = {pool.chunk_tokens}: must be at least {profile.max_batch} with v1, "
            "so that every running request gets a token in every step"
        )
    if profile.kv_capacity_tokens % pool.v1.block_tokens:
        raise ValueError(
            f"{where}.v1.block_tokens = {pool.v1.block_tokens}: kv_capacity_tokens, "
            f"{profile.kv_capacity_tokens}, must be a multiple of it"
        )


def check_phases_of_route(where: str, llm: int, route: RouteSpec, spec: ClusterSpec) -> None:
    """Refuse a route whose pools are of the wrong phase, or on which a handed-over request gets stuck.

    Raises:
        ValueError: which field, and why.
    """
    for p in (*route.pools, *route.overflow):
        if spec.pools[p].phase == PoolPhase.DECODE:
            raise ValueError(f"{where}.pools: pool {p} is a DECODE pool; name it in decode_pools")
    for p in route.decode_pools:
        if spec.pools[p].phase != PoolPhase.DECODE or spec.pools[p].llm != llm:
            raise ValueError(f"{where}.decode_pools: pool {p} is no DECODE pool of LLM {llm}")
    if route.decode_kind not in DECODE_KINDS:
        raise ValueError(
            f"{where}.decode_kind = {route.decode_kind!r}: must be one of "
            f"{sorted(int(kind) for kind in DECODE_KINDS)}"
        )
    prefills = [
        p
        for p, pool in enumerate(spec.pools)
        if pool.phase == PoolPhase.PREFILL and pool.llm == llm
    ]
    if prefills and not route.decode_pools:
        raise ValueError(
            f"{where}.decode_pools: must not be empty, as pool {prefills[0]} of LLM {llm} hands over"
        )
    if route.placement is not None and any(spec.pools[p].v1 for p in route.pools):
        raise ValueError(f"{where}.placement: not with pools of v1, whose KV memory is in blocks")
    best_fit = RouterKind.BEST_FIT in (route.kind, route.decode_kind)
    if best_fit and route.placement is None:
        raise ValueError(f"{where}.placement: BEST_FIT needs one")


def check_operations(pool: PoolSpec, new: Operations) -> None:
    """Refuse operations that a pool of one phase cannot have.

    Raises:
        ValueError: eviction in order or a static batch there.
    """
    both = pool.phase == PoolPhase.BOTH and pool.v1 is None
    if not both and (new.evicts_in_order or new.static_batch):
        raise ValueError("evicts_in_order, static_batch: only where phase is BOTH, and without v1")


def check_instance(
    spec: ClusterSpec,
    instance: int,
    states: Sequence[int] | NDArray[Any],
    allowed: Collection[InstanceState],
) -> int:
    """An instance as an int, or a ValueError that there is none or that it is in another state."""
    instance = check_range("instance", instance, 0, spec.n_instances - 1)
    state = InstanceState(int(states[instance]))
    if state not in allowed:
        names = " or ".join(good.name for good in allowed)
        raise ValueError(f"instance = {instance}: is {state.name}, must be {names}")
    return instance


def check_drain(spec: ClusterSpec, instance: int, states: Sequence[int] | NDArray[Any]) -> int:
    """An instance that can be drained, or a ValueError."""
    return check_instance(spec, instance, states, (InstanceState.ACTIVE,))


def check_fail(spec: ClusterSpec, instance: int, states: Sequence[int] | NDArray[Any]) -> int:
    """An instance that can break down, or a ValueError."""
    return check_instance(spec, instance, states, _NOT_OFF)


def check_mutate(
    spec: ClusterSpec,
    instance: int,
    states: Sequence[int] | NDArray[Any],
    in_pair: Sequence[bool] | NDArray[np.bool_],
) -> int:
    """An instance whose twin can serve in its place, or a ValueError.

    Args:
        spec: the cluster.
        instance: which.
        states, in_pair: `InstanceState` of every slot, and whether it is in a live pair.
    """
    instance = check_range("instance", instance, 0, spec.n_instances - 1)
    if spec.twin_of_slot[instance] < 0:
        raise ValueError(f"instance = {instance}: has no twin")
    check_drain(spec, instance, states)
    if in_pair[instance]:
        raise ValueError(f"instance = {instance}: is in a live pair")
    return instance


def check_target(
    spec: ClusterSpec, pool: int, count: int, source: int | None
) -> tuple[int, int, int]:
    """Pool, count and `LoadSource` (None: the pool's own), or a ValueError that says what is wrong."""
    pool = check_range("pool", pool, 0, len(spec.pools) - 1)
    count = check_range("count", count, 0, spec.pools[pool].n_slots)
    source = spec.pools[pool].load_source if source is None else source
    return pool, count, check_range("source", source, 0, len(LoadSource) - 1)


def check_batch_limit(spec: ClusterSpec, pool: int, limit: int) -> tuple[int, int]:
    """Pool and batch limit, or a ValueError that says which is out of range."""
    pool = check_range("pool", pool, 0, len(spec.pools) - 1)
    most = spec.profiles[spec.pools[pool].profile].max_batch
    return pool, check_range("limit", limit, 1, most)


def check_instance_limit(spec: ClusterSpec, instance: int, limit: int) -> tuple[int, int]:
    """Instance and batch limit, or a ValueError that says which is out of range."""
    instance = check_range("instance", instance, 0, spec.n_instances - 1)
    return instance, check_batch_limit(spec, spec.pool_of_slot[instance], limit)[1]


def check_controller(spec: ClusterSpec, pool: int, kind: int) -> tuple[int, int]:
    """Pool and `ControllerKind`, or a ValueError that says which is out of range."""
    pool = check_range("pool", pool, 0, len(spec.pools) - 1)
    return pool, check_range("kind", kind, 0, len(ControllerKind) - 1)


def check_share(
    spec: ClusterSpec, llm: int, slo_class: int, share: float
) -> tuple[tuple[int, int], float]:
    """Route and overflow share, or a ValueError that says which is out of range."""
    key = check_class(spec, llm, slo_class)
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share = {share!r}: must be in 0..1")
    return key, float(share)


def check_placement(spec: ClusterSpec, llm: int, slo_class: int) -> tuple[int, int]:
    """A route that has a placement, or a ValueError."""
    llm, slo_class = check_class(spec, llm, slo_class)
    if spec.routes[llm][slo_class].placement is None:
        raise ValueError(f"slo_class = {slo_class}: the route of LLM {llm} has no placement")
    return llm, slo_class


def check_profile(
    spec: ClusterSpec,
    instance: int,
    profile: int,
    states: Sequence[int] | NDArray[Any],
    profiles: Sequence[int] | NDArray[Any],
) -> tuple[int, int]:
    """Refuse a profile that is not the same machine at another speed; otherwise instance and profile.

    Args:
        spec: the cluster.
        instance, profile: which is to take which.
        states, profiles: `InstanceState` and present profile of every slot.

    Raises:
        ValueError: no such instance, or it is `OFF`; no such profile; or another KV capacity, bytes per token
            or table length.
    """
    instance = check_instance(spec, instance, states, _NOT_OFF)
    profile = check_range("profile", profile, 0, len(spec.profiles) - 1)
    old, new = spec.profiles[int(profiles[instance])], spec.profiles[profile]
    for name in ("kv_capacity_tokens", "kv_bytes_per_token", "max_batch"):
        if getattr(old, name) != getattr(new, name):
            raise ValueError(
                f"profile = {profile}: {name} = {getattr(new, name)}, must be {getattr(old, name)} as now"
            )
    return instance, profile


def check_decode_router(
    spec: ClusterSpec, llm: int, slo_class: int, kind: int
) -> tuple[tuple[int, int], RouterKind]:
    """Refuse a rule by which handed-over requests cannot be routed; otherwise route and rule.

    Raises:
        ValueError: there is no such route; the rule is none of `DECODE_KINDS`, or decode pools, a custom
            router or a placement are missing.
    """
    llm, slo_class = check_class(spec, llm, slo_class)
    route = spec.routes[llm][slo_class]
    if kind not in DECODE_KINDS:
        raise ValueError(f"kind = {kind!r}: must be one of {sorted(int(k) for k in DECODE_KINDS)}")
    what = f"kind = {RouterKind(kind).name} for LLM {llm}, class {slo_class}"
    if not route.decode_pools:
        raise ValueError(f"{what}: the route has no decode_pools")
    _check_needs(spec, route, RouterKind(kind), what)
    return (llm, slo_class), RouterKind(kind)


def _check_needs(spec: ClusterSpec, route: RouteSpec, rule: RouterKind, what: str) -> None:
    if rule == RouterKind.CUSTOM and spec.custom_router is None:
        raise ValueError(f"{what}: there is no custom router")
    if rule == RouterKind.BEST_FIT and route.placement is None:
        raise ValueError(f"{what}: the route has no placement")


def check_router(
    spec: ClusterSpec, llm: int, slo_class: int, kind: int
) -> tuple[tuple[int, int], RouterKind]:
    """Refuse a routing rule for which a route lacks what it needs; otherwise route and rule.

    Raises:
        ValueError: there is no such route or rule; a shared queue, candidate pools or a custom router are
            missing.
    """
    llm, slo_class = check_class(spec, llm, slo_class)
    route = spec.routes[llm][slo_class]
    rule = RouterKind(check_range("kind", kind, 0, len(RouterKind) - 1))
    what = f"kind = {rule.name} for LLM {llm}, class {slo_class}"
    if rule == RouterKind.SHARED_QUEUE and route.queue < 0:
        raise ValueError(f"{what}: the route has no shared queue")
    if rule != RouterKind.SHARED_QUEUE and not route.pools:
        raise ValueError(f"{what}: the route has no candidate pools")
    if rule == RouterKind.REGIONAL and not route.preference:
        raise ValueError(f"{what}: the route has no preference")
    _check_needs(spec, route, rule, what)
    return (llm, slo_class), rule


def check_evict(
    spec: ClusterSpec, instance: int, count: int, states: Sequence[int] | NDArray[Any]
) -> tuple[int, int]:
    """Instance and count of an order to evict requests, or a ValueError that says why it cannot be."""
    serving = (InstanceState.ACTIVE, InstanceState.DRAINING)
    instance = check_instance(spec, instance, states, serving)
    pool = spec.pools[spec.pool_of_slot[instance]]
    if pool.phase != PoolPhase.BOTH or pool.v1 is not None:
        raise ValueError(
            f"instance = {instance}: serves one phase only or schedules as vLLM V1, has nothing to evict"
        )
    return instance, check_range("count", count, 0, 2**31 - 1)


def check_move_waiting(
    spec: ClusterSpec, instance: int, to: int, count: int, states: Sequence[int] | NDArray[Any]
) -> tuple[int, int, int]:
    """Refuse to move what waits at one instance to another that could not serve it.

    Args:
        spec: the cluster.
        instance, to, count: from where, where, and how many at most.
        states: `InstanceState` of every slot.

    Returns:
        Instance, to and count.

    Raises:
        ValueError: one of them does not exist, is not `ACTIVE` or decodes only, both are the same, or their
            pools do not serve one and the same LLM (a pool with `swaps` serves several, from shared queues
            only).
    """
    instance = check_drain(spec, instance, states)
    to = check_drain(spec, check_range("to", to, 0, spec.n_instances - 1), states)
    count = check_range("count", count, 0, _MOST)
    pools = [spec.pools[spec.pool_of_slot[i]] for i in (instance, to)]
    for i, pool in zip((instance, to), pools, strict=True):
        if pool.phase == PoolPhase.DECODE:
            raise ValueError(f"instance = {i}: decodes only, use assign")
    if instance == to or pools[0].llms != pools[1].llms or len(pools[0].llms) > 1:
        raise ValueError(
            f"to = {to}: serves {pools[1].llms}, must be another instance of the one LLM of instance "
            f"{instance}, which serves {pools[0].llms}"
        )
    return instance, to, count


def check_assign(
    spec: ClusterSpec,
    requests: NDArray[np.int64],
    instances: Sequence[int] | NDArray[Any],
    found: NDArray[Any],
    states: Sequence[int] | NDArray[Any],
) -> NDArray[np.int64]:
    """Refuse to place requests that do not wait, or where they cannot be served; (n,) the instances.

    Args:
        spec: the cluster.
        requests, instances: which is to go where.
        found: FOUND_DTYPE of the requests.
        states: `InstanceState` of every slot.

    Raises:
        ValueError: the two differ in length, a request comes twice or may not be placed, or its instance
            does not exist, is not `ACTIVE`, or does not serve its LLM and phase.
    """
    to, pools = check_whole("instances", instances), spec.pool_of_slot
    _check_pairs(requests, "instances", to)
    for request, i, (state, llm, placeable) in zip(
        requests, to.tolist(), found.tolist(), strict=True
    ):
        if not placeable:
            raise ValueError(
                f"requests: {request} is in no gateway, and in no own queue without KV memory reserved"
            )
        if not 0 <= i < len(pools):
            raise ValueError(f"instances: no instance {i}, must be in 0..{len(pools) - 1}")
        pool = spec.pools[pools[i]]
        if states[i] != InstanceState.ACTIVE:
            raise ValueError(
                f"instances: instance {i} is {InstanceState(int(states[i])).name}, must be ACTIVE"
            )
        if pool.llms != (llm,):
            raise ValueError(
                f"instances: instance {i} serves {pool.llms}, request {request} is of {llm}"
            )
        prefilled = state == RequestState.HANDOVER
        if prefilled != (pool.phase == PoolPhase.DECODE):
            raise ValueError(
                f"instances: instance {i} is of phase {PoolPhase(pool.phase).name}, and request {request} "
                f"has {'' if prefilled else 'not '}been handed over"
            )
    return to


def check_predictions(
    requests: NDArray[np.int64],
    tokens: Sequence[int] | NDArray[Any],
    found: NDArray[Any],
) -> NDArray[np.int64]:
    """Refuse predictions of output lengths that are none; otherwise (n,) the lengths.

    Args:
        requests, tokens: which is predicted to emit how many in all.
        found: FOUND_DTYPE of the requests.

    Raises:
        ValueError: the two differ in length, a request comes twice or is not under way, or a number is not in
            1..2**31 - 1.
    """
    lengths = check_whole("tokens", tokens)
    _check_pairs(requests, "tokens", lengths)
    for request, n, state in zip(requests, lengths.tolist(), found["state"], strict=True):
        if state in NOT_UNDER_WAY:
            raise ValueError(f"requests: {request} has not arrived, or has ended")
        if not 1 <= n <= _MOST:
            raise ValueError(f"tokens: {n} for request {request}: must be in 1..2**31 - 1")
    return lengths
