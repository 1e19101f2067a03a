"""Refusing regions, managers, spot pools and rules of scaling that cannot be (docs/engine.md, section 17)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from llmscale_env.sim.spec.checks import check_class, check_range
from llmscale_env.sim.spec.kinds import PoolPhase, RouterKind
from llmscale_env.sim.spec.regions import (
    HIGHEST_PPM,
    MOST_TOKENS,
    ScalingKind,
    ScalingSpec,
    ScalingThresholds,
)
from llmscale_env.workload.whole import whole_numbers

if TYPE_CHECKING:
    from llmscale_env.sim.spec import ClusterSpec, RouteSpec

MOST_REGIONS = 64


def check_region_pool(where: str, p: int, spec: ClusterSpec) -> None:
    """Refuse a pool whose region, priorities, spot VMs or scaling cannot be.

    Raises:
        ValueError: which field, and why.
    """
    pool = spec.pools[p]
    check_range("n_regions", spec.n_regions, 1, MOST_REGIONS)
    check_range(f"{where}.region", pool.region, 0, spec.n_regions - 1)
    check_range(f"{where}.deployment_slots", pool.deployment_slots, 0, 2**31 - 1)
    for name in ("priorities", "spot", "scaling"):
        if getattr(pool, name) and pool.phase != PoolPhase.BOTH:
            raise ValueError(f"{where}.{name}: only where phase is BOTH")
    for name in ("spot", "scaling"):
        if getattr(pool, name) is None:
            continue
        for without in ("swaps", "weight_bytes"):
            if getattr(pool, without):
                raise ValueError(f"{where}.{name}: not with {without}")
        if pool.twin_of >= 0 or any(other.twin_of == p for other in spec.pools):
            raise ValueError(f"{where}.{name}: not with a twin")
    if pool.scaling is not None and pool.scaling.most > pool.n_slots:
        raise ValueError(
            f"{where}.scaling.most = {pool.scaling.most}: must be at most n_slots = {pool.n_slots}"
        )
    if pool.spot is not None:
        for q, other in enumerate(spec.pools[:p]):
            if other.spot is not None and other.spot.group == pool.spot.group:
                for name in ("gpus", "region"):
                    if getattr(other, name) != getattr(pool, name):
                        raise ValueError(
                            f"{where}.{name} = {getattr(pool, name)}: must be "
                            f"{getattr(other, name)} as of pools[{q}] of the same spot group"
                        )


def check_preference(
    name: str, preference: Sequence[Sequence[int]], route: RouteSpec, spec: ClusterSpec
) -> tuple[tuple[int, ...], ...]:
    """Refuse orders of regions that do not name each region of a route's pools once, for every client.

    Raises:
        ValueError: what is wrong with them.
    """
    regions = sorted({spec.pools[p].region for p in route.pools})
    if len(preference) != spec.n_regions:
        raise ValueError(f"{name}: must have {spec.n_regions} rows, one per region of clients")
    for client, order in enumerate(preference):
        if sorted(int(j) for j in order) != regions:
            raise ValueError(
                f"{name}[{client}] = {tuple(order)}: must have each of {regions} once, the regions of "
                "the route's pools"
            )
    return tuple(tuple(int(j) for j in order) for order in preference)


def check_threshold(name: str, ppm: int) -> int:
    """Refuse a utilisation that is none, in millionths.

    Raises:
        ValueError: it is out of range.
    """
    return check_range(name, ppm, 0, HIGHEST_PPM)


def check_thresholds(name: str, ppm: int | Sequence[int], n_regions: int) -> tuple[int, ...]:
    """One utilisation by region, of one for all or of one for each.

    Raises:
        ValueError: there are more or fewer, or one is out of range.
    """
    if isinstance(ppm, (int, np.integer)):
        return (check_threshold(name, int(ppm)),) * n_regions
    if len(ppm) != n_regions:
        raise ValueError(
            f"{name} = {list(ppm)}: must be one number, or {n_regions}, one per region"
        )
    return tuple(check_threshold(f"{name}[{j}]", int(x)) for j, x in enumerate(ppm))


def check_region_route(where: str, llm: int, route: RouteSpec, spec: ClusterSpec) -> None:
    """Refuse a route that cannot go by regions as it says.

    Raises:
        ValueError: which field, and why.
    """
    if route.kind == RouterKind.REGIONAL and not route.preference:
        raise ValueError(f"{where}.preference: a REGIONAL route needs one")
    if route.preference:
        if not route.pools:
            raise ValueError(f"{where}.preference: the route has no pools")
        for p in route.pools:
            if spec.pools[p].phase != PoolPhase.BOTH:
                raise ValueError(f"{where}.preference: not with pool {p}, whose phase is not BOTH")
        check_preference(f"{where}.preference", route.preference, route, spec)
        check_threshold(f"{where}.threshold_ppm", route.threshold_ppm)
        _refuse_too_large(llm, spec)
    if route.region_queues:
        if len(route.region_queues) != spec.n_regions or route.queue != route.region_queues[0]:
            raise ValueError(
                f"{where}.region_queues = {route.region_queues}: must be {spec.n_regions} queues, the "
                f"first of them `queue` = {route.queue}"
            )
        for q in route.region_queues:
            if not 0 <= q < len(spec.queue_llm) or spec.queue_llm[q] not in (-1, llm):
                raise ValueError(f"{where}.region_queues: no shared queue {q} of LLM {llm}")


def _refuse_too_large(llm: int, spec: ClusterSpec) -> None:
    tokens = sum(
        pool.n_slots * int(spec.profiles[pool.profile].kv_capacity_tokens)
        for pool in spec.pools
        if pool.llm == llm
    )
    if tokens >= MOST_TOKENS:
        raise ValueError(
            f"profiles: {tokens} KV tokens on all instances of LLM {llm}, must be below {MOST_TOKENS}"
        )


def check_managers(spec: ClusterSpec) -> None:
    """Refuse managers that cannot take requests, and latencies of other regions than there are.

    Raises:
        ValueError: which field, and why.
    """
    for c, slo_class in enumerate(spec.classes):
        check_range(f"classes[{c}].promote_ps", slo_class.promote_ps, 0, 2**62)
    if spec.latency is not None:
        knots = spec.latency.knots_ps
        if len(knots) != spec.n_regions or any(len(row) != spec.n_regions for row in knots):
            raise ValueError(f"latency.knots_ps: must be {spec.n_regions} by {spec.n_regions}")
    for llm in {pool.llm for pool in spec.pools if pool.scaling is not None}:
        _refuse_too_large(llm, spec)
    if not spec.managers:
        return
    check_range("manager_period_ps", spec.manager_period_ps, 1, 2**62 - 1)
    for k, manager in enumerate(spec.managers):
        where = f"managers[{k}]"
        check_range(f"{where}.queue", manager.queue, 0, len(spec.queue_llm) - 1)
        for p in manager.pools:
            check_range(f"{where}.pools", p, 0, len(spec.pools) - 1)
        pools = [spec.pools[p] for p in manager.pools]
        llm, region = pools[0].llm, pools[0].region
        for p, pool in zip(manager.pools, pools, strict=True):
            if pool.llms != (llm,) or pool.region != region or pool.phase != PoolPhase.BOTH:
                raise ValueError(
                    f"{where}.pools = {manager.pools}: pool {p} must be of phase BOTH, of LLM {llm} "
                    f"only and in region {region}, as the first"
                )
        if spec.queue_llm[manager.queue] != llm:
            raise ValueError(f"{where}.queue = {manager.queue}: must be a queue of LLM {llm} only")
        _refuse_too_large(llm, spec)
    for p, pool in enumerate(spec.pools):
        check_not_managed(f"pools[{p}].pull", pool.pull, spec)


def check_not_managed(name: str, queues: Sequence[int], spec: ClusterSpec) -> None:
    """Refuse to pull from a queue that managers take from.

    Raises:
        ValueError: which queue.
    """
    managed = {manager.queue for manager in spec.managers}
    for q in queues:
        if q in managed:
            raise ValueError(f"{name}: queue {q} is a manager's, no instance pulls from it")


def check_manager_thresholds(
    spec: ClusterSpec, one_ppm: Sequence[int], two_ppm: Sequence[int]
) -> None:
    """Refuse thresholds of managers that are none.

    Raises:
        ValueError: not one per manager, or out of range.
    """
    for name, values in (("one_ppm", one_ppm), ("two_ppm", two_ppm)):
        if len(values) != len(spec.managers):
            raise ValueError(f"{name}: {len(values)} values, must be {len(spec.managers)}")
        for k, value in enumerate(whole_numbers(name, values, np.int64).tolist()):
            check_threshold(f"{name}[{k}]", value)


def check_regional(
    spec: ClusterSpec,
    llm: int,
    slo_class: int,
    threshold_ppm: int | Sequence[int] | None,
    preference: Sequence[Sequence[int]] | None,
) -> tuple[tuple[int, ...] | None, tuple[tuple[int, ...], ...] | None]:
    """Refuse thresholds and orders of regions that a route cannot have.

    Returns:
        One threshold by region, and one order by region of the client; None for what was not given.

    Raises:
        ValueError: there is no such route, or it has no preference, or what is wrong with either.
    """
    llm, slo_class = check_class(spec, llm, slo_class)
    route = spec.routes[llm][slo_class]
    if not route.preference:
        raise ValueError(f"slo_class = {slo_class}: the route of LLM {llm} has no preference")
    takes = orders = None
    if threshold_ppm is not None:
        takes = check_thresholds("threshold_ppm", threshold_ppm, spec.n_regions)
    if preference is not None:
        orders = check_preference("preference", preference, route, spec)
    return takes, orders


def check_scaling(
    spec: ClusterSpec,
    pool: int,
    kind: int,
    target: int,
    forecast_utps: int,
    thresholds: ScalingThresholds | None,
) -> ScalingSpec:
    """Refuse an hour of a rule that a pool does not have; otherwise the rule with the hour's thresholds.

    Raises:
        ValueError: there is no such pool, or it has no scaling, or a value is out of range.
    """
    asked = spec.pools[check_range("pool", pool, 0, len(spec.pools) - 1)]
    if asked.scaling is None:
        raise ValueError("pool: has no scaling")
    check_range("kind", kind, 0, len(ScalingKind) - 1)
    check_range("target", target, -1, asked.n_slots)
    check_range("forecast_utps", forecast_utps, 0, 2**62)
    return asked.scaling if thresholds is None else asked.scaling.with_thresholds(thresholds)
