"""Which links bytes cross: between GPUs, hosts' memories, SSDs and GPUs.

From the speeds of `NetworkConfig` and the order in which instances lie on hosts come plain tables of
links (directed, numbered, each with a capacity), from which a path is put together:

| from | to | links |
|---|---|---|
| slot i | slot j, other host | `out_links[i]` + `in_links[j]`: RDMA of its GPUs, of neighbours, of the host |
| slot i | slot j, same host | `local_out_links[i]` + `local_in_links[j]`: NVLink, or PCIe (shared) |
| memory of its host | slot j | `from_host_links[j]`: PCIe |
| memory of host h | slot j elsewhere | `host_out_links[h]` + `in_links[j]` |
| slot i | memory of host h | `out_links[i]` + `host_in_links[h]` |
| SSD of its host | slot j | `from_ssd_links[j]`: SSD, then PCIe |
| SSD of host h | its memory | `ssd_host_links[h]` |

Choices that are ours: links to other hosts and to neighbours are as wide as an instance's GPUs
together; an instance that holds more than one group of GPUs behind a shared PCIe link or network card
shares none of them, and gets what its groups allow; RDMA does not cross the PCIe link towards the host
(GPU and network card hang on one switch).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from llmscale_env.cluster.loading import NetworkConfig

Links = tuple[int, ...]
FROM_SSD = -1
"""The code of a slot's own SSD as a source; slots come from 0 on, then the memories of hosts."""


@dataclass(frozen=True)
class PoolLayout:
    """Instances of one kind, in the order in which they are put on hosts.

    Attributes:
        tp: GPUs of each.
        slots: how many.
        twin_of: number of the pool whose slots have the same GPUs as this one's, which then takes none;
            -1: it has its own.
    """

    tp: int
    slots: int
    twin_of: int = -1


class LinkTables(NamedTuple):
    """Links of a cluster; see the module for how paths are made.

    Attributes:
        capacity: bytes per microsecond of each link.
        out_links, in_links, local_out_links, local_in_links, from_host_links, from_ssd_links: per slot.
        host_out_links, host_in_links, ssd_host_links: per host.
        hosts: host of each slot.
    """

    capacity: tuple[int, ...]
    out_links: tuple[Links, ...]
    in_links: tuple[Links, ...]
    local_out_links: tuple[Links, ...]
    local_in_links: tuple[Links, ...]
    from_host_links: tuple[Links, ...]
    from_ssd_links: tuple[Links, ...]
    host_out_links: tuple[Links, ...]
    host_in_links: tuple[Links, ...]
    ssd_host_links: tuple[Links, ...]
    hosts: tuple[int, ...]


def first_gpus(pools: Sequence[PoolLayout]) -> list[list[int]]:
    """The first GPU of every slot, by pool.

    Raises:
        ValueError: a twin of a pool that is itself a twin, or of another shape.
    """
    found: list[list[int]] = []
    before = 0
    for pool in pools:
        found.append([] if pool.twin_of >= 0 else [before + k * pool.tp for k in range(pool.slots)])
        before += len(found[-1]) * pool.tp
    for p, pool in enumerate(pools):
        if pool.twin_of < 0:
            continue
        if pool.twin_of >= len(pools) or pools[pool.twin_of].twin_of >= 0:
            raise ValueError(
                f"pools[{p}].twin_of = {pool.twin_of}: must be a pool with its own GPUs"
            )
        other = pools[pool.twin_of]
        if (other.tp, other.slots) != (pool.tp, pool.slots):
            raise ValueError(
                f"pools[{p}].twin_of = {pool.twin_of}: must have the same tp and slots, not "
                f"{other.tp} and {other.slots} against {pool.tp} and {pool.slots}"
            )
        found[p] = found[pool.twin_of]
    return found


class _Group:
    """Links of GPUs that share a PCIe link or a network card, made when they are first needed."""

    def __init__(
        self,
        link: Callable[[float], int],
        bytes_per_s: float | None,
        gpus: int,
        gpus_per_host: int,
    ) -> None:
        self.link = link
        self.bytes_per_s = bytes_per_s
        self.gpus = gpus
        self.gpus_per_host = gpus_per_host
        self.made: dict[tuple[int, int], dict[str, int]] = {}

    def _of(self, gpu: int) -> tuple[int, int]:
        host, place = divmod(gpu, self.gpus_per_host)
        return host, place // self.gpus

    def speed(self, gpu: int, tp: int, lane_bytes_per_s: float) -> float:
        """What `tp` GPUs get, each over a lane of its own, through the groups that they lie in."""
        if self.bytes_per_s is None:
            return tp * lane_bytes_per_s
        groups = {self._of(gpu + k) for k in range(tp)}
        return min(tp * lane_bytes_per_s, len(groups) * self.bytes_per_s)

    def shared(self, gpu: int, tp: int, way: str) -> Links:
        """The group's link, if the instance lies in one group and may have a neighbour there."""
        groups = {self._of(gpu + k) for k in range(tp)}
        if self.bytes_per_s is None or len(groups) > 1 or tp >= self.gpus:
            return ()
        made = self.made.setdefault(groups.pop(), {})
        if way not in made:
            made[way] = self.link(self.bytes_per_s)
        return (made[way],)


def link_tables(
    network: NetworkConfig,
    gpus_per_host: int,
    pools: Sequence[PoolLayout],
    *,
    loading: bool = True,
) -> LinkTables:
    """Links of a cluster whose instances are packed on hosts in order.

    Args:
        network: speeds.
        gpus_per_host: GPUs of a machine.
        pools: what lies on them.
        loading: with the links that only weights cross; without them those tables are empty.

    Raises:
        ValueError: see `first_gpus`.
    """
    capacity: list[int] = []

    def link(bytes_per_s: float) -> int:
        capacity.append(max(1, round(bytes_per_s / 1e6)))
        return len(capacity) - 1

    pcie = _Group(link, network.pcie_bytes_per_s, network.gpus_per_pcie, gpus_per_host)
    nic = _Group(link, network.nic_bytes_per_s, network.gpus_per_nic, gpus_per_host)
    all_gpus = nic.speed(0, gpus_per_host, network.inter_host_bytes_per_s)
    shared = network.host_network_bytes_per_s
    if shared is None and network.memory_uses_nics:
        shared = all_gpus
    of_host: dict[int, tuple[Links, Links]] = {}
    ways = ("out", "in")
    places = first_gpus(pools)

    def between(gpu: int, tp: int) -> list[Links]:
        """Out, in, and the same within the host."""
        host = gpu // gpus_per_host
        if host not in of_host:
            of_host[host] = ((), ()) if shared is None else ((link(shared),), (link(shared),))
        found: list[list[Links]] = [[], []]
        for way, name in enumerate(ways):
            wide = nic.speed(gpu, tp, network.inter_host_bytes_per_s)
            found[0].append((link(wide), *nic.shared(gpu, tp, name), *of_host[host][way]))
            inside = tp * network.intra_host_bytes_per_s
            neighbours: Links = ()
            if not network.nvlink:
                inside = pcie.speed(gpu, tp, network.intra_host_bytes_per_s)
                neighbours = pcie.shared(gpu, tp, name)
            found[1].append((link(inside), *neighbours))
        return [*found[0], *found[1]]

    def loads(gpu: int, tp: int) -> tuple[Links, Links]:
        """From the host's memory and from its SSD."""
        lane = pcie.speed(gpu, tp, network.host_bytes_per_s)
        memory = (link(lane), *pcie.shared(gpu, tp, "in"))
        return memory, (link(tp * network.ssd_bytes_per_s), *ssd_of(gpu // gpus_per_host), *memory)

    ssds: dict[int, Links] = {}

    def ssd_of(host: int) -> Links:
        if network.ssd_host_bytes_per_s is None:
            return ()
        if host not in ssds:
            ssds[host] = (link(network.ssd_host_bytes_per_s),)
        return ssds[host]

    gpus = [
        (first, pool.tp, pool.twin_of)
        for pool, row in zip(pools, places, strict=True)
        for first in row
    ]
    known: dict[int, list[Links]] = {}
    for first, tp, twin_of in gpus:
        if twin_of < 0:
            known[first] = between(first, tp)
    weights: dict[int, tuple[Links, Links]] = {}
    per_host: list[list[Links]] = [[], [], []]
    if loading:
        weights = {first: loads(first, tp) for first, tp, twin_of in gpus if twin_of < 0}
        n_hosts = 1 + max((first // gpus_per_host for first, _, _ in gpus), default=-1)
        own = network.host_memory_bytes_per_s
        for host in range(n_hosts):
            for way in range(2):
                total = of_host.get(host, ((), ()))[way]
                speed = own if own is not None else None if total else all_gpus
                per_host[way].append((*(() if speed is None else (link(speed),)), *total))
            per_host[2].append(ssd_of(host) or (link(network.ssd_bytes_per_s * gpus_per_host),))
    firsts = [first for first, _, _ in gpus]
    out, into, local_out, local_in = (tuple(known[g][k] for g in firsts) for k in range(4))
    memory, ssd = (tuple(weights[g][k] for g in firsts if loading) for k in range(2))
    return LinkTables(
        tuple(capacity),
        out,
        into,
        local_out,
        local_in,
        memory,
        ssd,
        tuple(per_host[0]),
        tuple(per_host[1]),
        tuple(per_host[2]),
        tuple(first // gpus_per_host for first in firsts),
    )


@dataclass(frozen=True)
class Topology:
    """Links with the paths over them.

    Attributes:
        links: of a cluster, those for loading included.
        nvlink: whether GPUs of a host have links to each other.
    """

    links: LinkTables
    nvlink: bool

    @property
    def n_slots(self) -> int:
        """Slots of all pools."""
        return len(self.links.hosts)

    def memory(self, host: int) -> int:
        """The code of a host's memory as a source."""
        return self.n_slots + host

    def host_of(self, code: int) -> int:
        """Host of a slot or a memory; -1 for `FROM_SSD`."""
        if code < 0:
            return -1
        return self.links.hosts[code] if code < self.n_slots else code - self.n_slots

    def path(self, source: int, slot: int) -> Links:
        """Links from a source (slot, memory of a host, `FROM_SSD`) to a slot."""
        links = self.links
        if source == FROM_SSD:
            return links.from_ssd_links[slot]
        here = self.host_of(source) == links.hosts[slot]
        if source >= self.n_slots:
            if here:
                return links.from_host_links[slot]
            return (*links.host_out_links[source - self.n_slots], *links.in_links[slot])
        if here:
            return (*links.local_out_links[source], *links.local_in_links[slot])
        return (*links.out_links[source], *links.in_links[slot])

    def out_bytes_per_s(self, source: int) -> float:
        """What a slot or a memory can send to other hosts."""
        host = source - self.n_slots
        links = self.links.host_out_links[host] if host >= 0 else self.links.out_links[source]
        return 1e6 * min(self.links.capacity[k] for k in links)

    def in_bytes_per_s(self, slot: int) -> float:
        """What a slot can get from other hosts."""
        return 1e6 * min(self.links.capacity[k] for k in self.links.in_links[slot])


def topology(network: NetworkConfig, gpus_per_host: int, pools: Sequence[PoolLayout]) -> Topology:
    """The topology of a cluster; arguments as `link_tables`."""
    return Topology(link_tables(network, gpus_per_host, pools), network.nvlink)


def switch(speeds_bytes_per_s: Sequence[float]) -> Topology:
    """Slots on hosts of their own at a switch that is never in the way.

    Args:
        speeds_bytes_per_s: of each slot's link, the same out and in.
    """
    n = len(speeds_bytes_per_s)
    own = [max(1, round(speed / 1e6)) for speed in speeds_bytes_per_s]
    out, into = (tuple((k + way * n,) for k in range(n)) for way in range(2))
    nothing: tuple[Links, ...] = ((),) * n
    tables = LinkTables(
        (*own, *own), out, into, nothing, nothing, nothing, nothing, (), (), (), tuple(range(n))
    )
    return Topology(tables, nvlink=True)
