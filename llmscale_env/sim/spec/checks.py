"""Refusing what cannot be: parts of a cluster that do not fit together, orders that cannot be carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from llmscale_env.sim.spec.kinds import (
    DECODE_KINDS,
    MAX_ARRIVAL_QUEUES,
    MODEL_NAMES,
    InstanceState,
    PoolPhase,
    PreemptionMode,
    RouterKind,
)

if TYPE_CHECKING:
    from llmscale_env.sim.spec import ClusterSpec, Operations, PoolSpec, RouteSpec


def check_range(name: str, value: int, low: int, high: int) -> int:
    """`value` as an int in `low..high`, or a ValueError that says so."""
    if not (isinstance(value, (int, np.integer)) and low <= value <= high):
        raise ValueError(f"{name} = {value!r}: must be an integer in {low}..{high}")
    return int(value)


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
            whole = isinstance(one, (int, np.integer)) and not isinstance(one, (bool, np.bool_))
            if not (whole and low <= one <= high):
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
        if not (isinstance(q, (int, np.integer)) and 0 <= q < len(queue_llm)):
            raise ValueError(f"{name}: no shared queue {q}, must be in 0..{len(queue_llm) - 1}")
        if queue_llm[q] >= 0 and queue_llm[q] not in pool.llms:
            raise ValueError(f"{name}: queue {q} holds requests of another LLM")
    if len(set(queues)) < len(queues):
        raise ValueError(f"{name} = {tuple(queues)}: a queue comes twice")
    return tuple(int(q) for q in queues)


def check_regroup(
    requests: Sequence[int],
    queues: Sequence[int],
    waiting: Mapping[int, int],
    queue_llm: Sequence[int],
) -> None:
    """Refuse to move requests that do not wait, or to where they cannot be served.

    Args:
        requests, queues: what is to go where.
        waiting: LLM of every request in a shared queue, by id.
        queue_llm: as in the spec.

    Raises:
        ValueError: one is not in a shared queue, comes twice, or its queue does not exist or is for another
            LLM; or the two differ in length.
    """
    if len(requests) != len(queues):
        raise ValueError(f"queues: {len(queues)} of them for {len(requests)} requests")
    if len(set(requests)) < len(requests):
        raise ValueError("requests: one comes twice")
    for request, q in zip(requests, queues, strict=True):
        if request not in waiting:
            raise ValueError(f"requests: {request} is in no shared queue")
        if not 0 <= q < len(queue_llm):
            raise ValueError(f"queues: no shared queue {q}, must be in 0..{len(queue_llm) - 1}")
        if queue_llm[q] not in (-1, waiting[request]):
            raise ValueError(f"queues: request {request} is for another LLM than queue {q}")


def check_arrival_queues(
    spec: ClusterSpec, llm: int, slo_class: int, uppers: Sequence[int], queues: Sequence[int]
) -> None:
    """Refuse a classification of arrivals that is none.

    Raises:
        ValueError: the route has no shared queue; no or too many queues, bounds that do not rise or do
            not fit, or a queue that does not exist or is for another LLM.
    """
    if spec.routes[llm][slo_class].queue < 0:
        raise ValueError(f"slo_class = {slo_class}: the route of LLM {llm} has no shared queue")
    if spec.routes[llm][slo_class].region_queues:
        raise ValueError(f"slo_class = {slo_class}: the route of LLM {llm} has region_queues")
    if not 1 <= len(queues) <= MAX_ARRIVAL_QUEUES:
        raise ValueError(f"queues = {tuple(queues)}: must be 1..{MAX_ARRIVAL_QUEUES} of them")
    if len(uppers) != len(queues) - 1 or any(a >= b for a, b in pairwise(uppers)):
        raise ValueError(f"uppers = {tuple(uppers)}: must be {len(queues) - 1} rising numbers")
    for q in queues:
        if not (isinstance(q, (int, np.integer)) and 0 <= q < len(spec.queue_llm)):
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


def check_profile(spec: ClusterSpec, now: int, profile: int) -> None:
    """Refuse a profile that is not the same machine at another speed.

    Raises:
        ValueError: no such profile; or another KV capacity, bytes per token or table length.
    """
    if not 0 <= profile < len(spec.profiles):
        raise ValueError(f"profile = {profile}: must be in 0..{len(spec.profiles) - 1}")
    old, new = spec.profiles[now], spec.profiles[profile]
    for name in ("kv_capacity_tokens", "kv_bytes_per_token", "max_batch"):
        if getattr(old, name) != getattr(new, name):
            raise ValueError(
                f"profile = {profile}: {name} = {getattr(new, name)}, must be {getattr(old, name)} as now"
            )


def check_decode_router(spec: ClusterSpec, llm: int, slo_class: int, kind: int) -> None:
    """Refuse a rule by which handed-over requests cannot be routed.

    Raises:
        ValueError: it is none of `DECODE_KINDS`, or decode pools, a custom router or a placement are missing.
    """
    route = spec.routes[llm][slo_class]
    if kind not in DECODE_KINDS:
        raise ValueError(f"kind = {kind!r}: must be one of {sorted(int(k) for k in DECODE_KINDS)}")
    what = f"kind = {RouterKind(kind).name} for LLM {llm}, class {slo_class}"
    if not route.decode_pools:
        raise ValueError(f"{what}: the route has no decode_pools")
    _check_needs(spec, route, RouterKind(kind), what)


def _check_needs(spec: ClusterSpec, route: RouteSpec, rule: RouterKind, what: str) -> None:
    if rule == RouterKind.CUSTOM and spec.custom_router is None:
        raise ValueError(f"{what}: there is no custom router")
    if rule == RouterKind.BEST_FIT and route.placement is None:
        raise ValueError(f"{what}: the route has no placement")


def check_router(spec: ClusterSpec, llm: int, slo_class: int, kind: int) -> None:
    """Refuse a routing rule for which a route lacks what it needs.

    Raises:
        ValueError: a shared queue, candidate pools or a custom router are missing.
    """
    route = spec.routes[llm][slo_class]
    rule = RouterKind(kind)
    what = f"kind = {rule.name} for LLM {llm}, class {slo_class}"
    if rule == RouterKind.SHARED_QUEUE and route.queue < 0:
        raise ValueError(f"{what}: the route has no shared queue")
    if rule != RouterKind.SHARED_QUEUE and not route.pools:
        raise ValueError(f"{what}: the route has no candidate pools")
    if rule == RouterKind.REGIONAL and not route.preference:
        raise ValueError(f"{what}: the route has no preference")
    _check_needs(spec, route, rule, what)


def check_evict(spec: ClusterSpec, instance: int, states: Sequence[int]) -> None:
    """Refuse an order to evict requests of an instance that cannot.

    Raises:
        ValueError: it does not serve, or its pool serves one phase only or has `v1`.
    """
    pool = spec.pools[spec.pool_of_slot[instance]]
    if states[instance] not in (InstanceState.ACTIVE, InstanceState.DRAINING):
        state = InstanceState(states[instance]).name
        raise ValueError(f"instance = {instance}: is {state}, must be ACTIVE or DRAINING")
    if pool.phase != PoolPhase.BOTH or pool.v1 is not None:
        raise ValueError(
            f"instance = {instance}: serves one phase only or schedules as vLLM V1, has nothing to evict"
        )


def check_move_waiting(spec: ClusterSpec, instance: int, to: int, states: Sequence[int]) -> None:
    """Refuse to move what waits at one instance to another that could not serve it.

    Args:
        spec: the cluster.
        instance, to: from where, and where.
        states: `InstanceState` of every slot.

    Raises:
        ValueError: one of them is not `ACTIVE` or decodes only, both are the same, or their pools do not
            serve one and the same LLM (a pool with `swaps` serves several, from shared queues only).
    """
    pools = [spec.pools[spec.pool_of_slot[i]] for i in (instance, to)]
    for i, pool in zip((instance, to), pools, strict=True):
        if states[i] != InstanceState.ACTIVE:
            raise ValueError(f"instance = {i}: is {InstanceState(states[i]).name}, must be ACTIVE")
        if pool.phase == PoolPhase.DECODE:
            raise ValueError(f"instance = {i}: decodes only, use assign")
    if instance == to or pools[0].llms != pools[1].llms or len(pools[0].llms) > 1:
        raise ValueError(
            f"to = {to}: serves {pools[1].llms}, must be another instance of the one LLM of instance "
            f"{instance}, which serves {pools[0].llms}"
        )


def check_assign(
    spec: ClusterSpec,
    requests: Sequence[int],
    instances: Sequence[int],
    waiting: Mapping[int, tuple[int, bool]],
    states: Sequence[int],
) -> None:
    """Refuse to place requests that do not wait, or where they cannot be served.

    Args:
        spec: the cluster.
        requests, instances: which is to go where.
        waiting: of every request that may be placed its LLM, and whether it has been prefilled.
        states: `InstanceState` of every slot.

    Raises:
        ValueError: the two differ in length, a request comes twice or may not be placed, or its instance
            does not exist, is not `ACTIVE`, or does not serve its LLM and phase.
    """
    if len(requests) != len(instances):
        raise ValueError(f"instances: {len(instances)} of them for {len(requests)} requests")
    if len(set(requests)) < len(requests):
        raise ValueError("requests: one comes twice")
    pools = spec.pool_of_slot
    for request, i in zip(requests, instances, strict=True):
        if request not in waiting:
            raise ValueError(
                f"requests: {request} is in no gateway, and in no own queue without KV memory reserved"
            )
        if not 0 <= i < len(pools):
            raise ValueError(f"instances: no instance {i}, must be in 0..{len(pools) - 1}")
        llm, prefilled = waiting[request]
        pool = spec.pools[pools[i]]
        if states[i] != InstanceState.ACTIVE:
            state = InstanceState(states[i]).name
            raise ValueError(f"instances: instance {i} is {state}, must be ACTIVE")
        if pool.llms != (llm,):
            raise ValueError(
                f"instances: instance {i} serves {pool.llms}, request {request} is of {llm}"
            )
        if prefilled != (pool.phase == PoolPhase.DECODE):
            raise ValueError(
                f"instances: instance {i} is of phase {PoolPhase(pool.phase).name}, and request {request} "
                f"has {'' if prefilled else 'not '}been handed over"
            )


def check_predictions(
    requests: Sequence[int], tokens: Sequence[int], under_way: Mapping[int, bool]
) -> None:
    """Refuse predictions of output lengths that are none.

    Args:
        requests, tokens: which is predicted to emit how many in all.
        under_way: by id, whether a request has arrived and not ended.

    Raises:
        ValueError: the two differ in length, a request comes twice or is not under way, or a number is not in
            1..2**31 - 1.
    """
    if len(requests) != len(tokens):
        raise ValueError(f"tokens: {len(tokens)} of them for {len(requests)} requests")
    if len(set(requests)) < len(requests):
        raise ValueError("requests: one comes twice")
    for request, n in zip(requests, tokens, strict=True):
        if not under_way.get(request, False):
            raise ValueError(f"requests: {request} has not arrived, or has ended")
        if not 1 <= n < 2**31:
            raise ValueError(f"tokens: {n} for request {request}: must be in 1..2**31 - 1")
