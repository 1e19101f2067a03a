"""Refusing weights that cannot flow: pools, twins and homes that do not fit, orders to load from nowhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from llmscale_env.sim.spec.checks import check_range
from llmscale_env.sim.spec.kinds import FROM_SSD, InstanceState, PoolPhase
from llmscale_env.sim.spec.links import LINK_TABLES, WEIGHT_TABLES

if TYPE_CHECKING:
    from llmscale_env.sim.spec import ClusterSpec, PoolSpec

MOST_BYTES = 2**62 // 10**6
"""Flows count in millionths of a byte."""


def check_weights(where: str, pool: PoolSpec, spec: ClusterSpec) -> None:
    """Refuse weights of a pool that could not be loaded layer by layer.

    Raises:
        ValueError: more bytes than flows count; no network; several LLMs in turn; or other weights than those
            of another pool of the LLM.
    """
    check_range(f"{where}.weight_bytes", pool.weight_bytes, 0, MOST_BYTES - 1)
    if pool.weight_bytes == 0:
        return
    if pool.swaps:
        raise ValueError(f"{where}.swaps: must be empty where weight_bytes is positive")
    if spec.network is None:
        raise ValueError(f"{where}.weight_bytes = {pool.weight_bytes}: needs a network")
    for q, other in enumerate(spec.pools):
        same = (other.weight_bytes, other.layers) == (pool.weight_bytes, pool.layers)
        if other.llm == pool.llm and other.weight_bytes > 0 and not same:
            raise ValueError(
                f"{where}: {pool.weight_bytes} bytes in {pool.layers} layers; pools[{q}] has "
                f"{other.weight_bytes} in {other.layers} of the same LLM"
            )


def check_twin(where: str, index: int, spec: ClusterSpec) -> None:
    """Refuse a pool that cannot share its GPUs with the one it names.

    Raises:
        ValueError: which field, and why.
    """
    pool, twin_of = spec.pools[index], spec.pools[index].twin_of
    name = f"{where}.twin_of = {twin_of}"
    check_range(f"{where}.twin_of", twin_of, -1, len(spec.pools) - 1)
    if twin_of < 0:
        return
    twin = spec.pools[twin_of]
    if twin_of == index or twin.twin_of >= 0:
        raise ValueError(f"{name}: must be another pool, which names no twin itself")
    if sum(other.twin_of == twin_of for other in spec.pools) > 1:
        raise ValueError(f"{name}: is the twin of another pool already")
    if pool.swaps or twin.swaps:
        raise ValueError(f"{name}: swaps must be empty in both")
    for field in ("llm", "n_slots", "gpus", "weight_bytes", "layers"):
        if getattr(pool, field) != getattr(twin, field):
            raise ValueError(
                f"{name}: {field} = {getattr(pool, field)}, must be {getattr(twin, field)} as there"
            )
    if pool.initial_active + twin.initial_active > pool.n_slots:
        raise ValueError(
            f"{where}.initial_active = {pool.initial_active}: with the {twin.initial_active} of its twin "
            f"more than {pool.n_slots} slots"
        )
    first = spec.first_slot
    for table in (*LINK_TABLES, *WEIGHT_TABLES) if spec.network is not None else ():
        rows = getattr(spec.network, table)
        mine, others = (rows[first[p] : first[p] + pool.n_slots] for p in (index, twin_of))
        if mine != others:
            raise ValueError(f"network.{table}: slots of pools[{index}] and its twin must be alike")


def check_homes(spec: ClusterSpec) -> None:
    """Refuse homes of copies that nobody could use.

    Raises:
        ValueError: another number of homes than of LLMs, no such host, or no pool of the LLM whose
            weights flow.
    """
    if spec.homes and len(spec.homes) != spec.n_llms:
        raise ValueError(f"homes: {len(spec.homes)} of them for {spec.n_llms} LLMs")
    for llm, host in enumerate(spec.homes):
        check_range(f"homes[{llm}]", host, -1, spec.n_hosts - 1)
        flows = any(pool.llm == llm and pool.weight_bytes > 0 for pool in spec.pools)
        if host >= 0 and not flows:
            raise ValueError(f"homes[{llm}] = {host}: no pool of this LLM has weight_bytes")


def check_loads(
    spec: ClusterSpec, slots: Sequence[int], sources: Sequence[int], partners: Sequence[int]
) -> None:
    """Refuse to start slots in a way that is possible at no time.

    Args:
        spec: the cluster.
        slots, sources, partners: which slot is to load from which source code, and which instance it is to
            help while it loads, -1: none.

    Raises:
        ValueError: they differ in length; a slot, source or partner does not exist; a slot comes twice or
            with its twin, or is of a pool whose weights do not flow; a partner comes twice or is in another
            pool, or the pool does more than prefill, or that in chunks.
    """
    for name, others in (("sources", sources), ("partners", partners)):
        if len(slots) != len(others):
            raise ValueError(f"{name}: {len(others)} of them for {len(slots)} slots")
    pools, n = spec.pool_of_slot, spec.n_instances
    for k, (slot, source, partner) in enumerate(zip(slots, sources, partners, strict=True)):
        what = f"slots[{k}] = {check_range(f'slots[{k}]', slot, 0, n - 1)}"
        if slot in slots[:k] or spec.twin_of_slot[slot] in slots[:k]:
            raise ValueError(f"{what}: it or its twin comes twice")
        if spec.pools[pools[slot]].weight_bytes == 0:
            raise ValueError(f"{what}: weight_bytes of its pool is 0, use set_target")
        check_range(f"sources[{k}]", source, FROM_SSD, n + spec.n_hosts - 1)
        if check_range(f"partners[{k}]", partner, -1, n - 1) < 0:
            continue
        what = f"partners[{k}] = {partner}"
        pool = spec.pools[pools[partner]]
        if pools[partner] != pools[slot]:
            raise ValueError(f"{what}: is in another pool than slot {slot}")
        if pool.phase != PoolPhase.PREFILL or pool.chunk_tokens > 0:
            raise ValueError(f"{what}: its pool must be of phase PREFILL, with chunk_tokens = 0")
        if partner in partners[:k]:
            raise ValueError(f"{what}: is in a live pair already")


def check_scale(
    spec: ClusterSpec,
    slots: Sequence[int],
    sources: Sequence[int],
    partners: Sequence[int] | None,
    states: Sequence[int],
    llms: Sequence[int],
    in_pair: Sequence[bool],
    host_has: Callable[[int, int], bool],
) -> tuple[list[int], list[int], list[int]]:
    """Refuse to start slots, to load them from where the weights are not, or pairs that cannot be.

    Args:
        spec: the cluster.
        slots, sources, partners: as in `check_loads`; no partners: nobody helps.
        states, llms, in_pair: of every slot `InstanceState`, present LLM, and whether it is in a live pair.
        host_has: whether a host has an LLM's weights in memory, or is to have them as its home.

    Returns:
        Slots, sources and partners.

    Raises:
        ValueError: as `check_loads`; a slot or its twin is not `OFF`; `max_gpus`; a source has no weights of
            the LLM; a partner is not `ACTIVE` or is in a pair.
    """
    partners = [-1] * len(slots) if partners is None else partners
    check_loads(spec, slots, sources, partners)
    pools = [spec.pools[p] for p in spec.pool_of_slot]
    twins, n = spec.twin_of_slot, spec.n_instances
    for k, (slot, source, partner) in enumerate(zip(slots, sources, partners, strict=True)):
        what = f"slots[{k}] = {slot}"
        llm, twin = pools[slot].llm, twins[slot]
        if states[slot] != InstanceState.OFF:
            raise ValueError(f"{what}: is {InstanceState(states[slot]).name}, must be OFF")
        if twin >= 0 and states[twin] != InstanceState.OFF:
            raise ValueError(f"{what}: its twin {twin} is not OFF")
        if source >= n and not host_has(source - n, llm):
            raise ValueError(f"sources[{k}] = {source}: host {source - n} has no such weights")
        if 0 <= source < n:
            off = states[source] == InstanceState.OFF
            of_source = pools[source].llm if off else llms[source]
            if of_source != llm or (off and source not in slots[:k]):
                raise ValueError(
                    f"sources[{k}] = {source}: must be of LLM {llm}, and not OFF unless it comes "
                    "earlier in slots"
                )
        if partner >= 0 and states[partner] != InstanceState.ACTIVE:
            state = InstanceState(states[partner]).name
            raise ValueError(f"partners[{k}] = {partner}: is {state}, must be ACTIVE")
        if partner >= 0 and in_pair[partner]:
            raise ValueError(f"partners[{k}] = {partner}: is in a live pair already")
    held = sum(p.gpus for p, s in zip(pools, states, strict=True) if s != InstanceState.OFF)
    wanted = sum(pools[slot].gpus for slot in slots)
    if held + wanted > spec.max_gpus:
        raise ValueError(
            f"slots: {wanted} GPUs, but max_gpus = {spec.max_gpus} and {held} are held"
        )
    return [int(k) for k in slots], [int(k) for k in sources], [int(k) for k in partners]
