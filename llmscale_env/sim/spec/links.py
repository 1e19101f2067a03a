"""The links of a cluster, and which of them a KV cache or a layer of weights takes (engine.md 11 and 15)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.spec.kinds import FROM_SSD

LINK_TABLES = ("out_links", "in_links", "local_out_links", "local_in_links")
"""The tables of a `NetworkSpec` for KV caches, a row per slot, those between hosts first."""

WEIGHT_TABLES = ("from_host_links", "from_ssd_links")
"""Those for weights with a row per slot."""

HOST_TABLES = ("host_out_links", "host_in_links", "ssd_host_links")
"""Those for weights with a row per host."""

Rows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class NetworkSpec:
    """Links over which KV caches and weights move (docs/engine.md, sections 11 and 15).

    The tables for weights may be left empty: then all their rows are.

    Attributes:
        capacity: (n_links,) bytes per microsecond of each directed link.
        out_links, in_links: per slot of the cluster the links that leave and reach it from other hosts.
        local_out_links, local_in_links: the same within its host.
        from_host_links: per slot the links to it from the memory of its own host.
        from_ssd_links: per slot the links to it from its host's SSD.
        host_out_links, host_in_links: per host the links by which its memory sends to, and gets from,
            slots of other hosts.
        ssd_host_links: per host the links from its SSD to its memory.
    """

    capacity: NDArray[np.int64]
    out_links: Rows
    in_links: Rows
    local_out_links: Rows
    local_in_links: Rows
    from_host_links: Rows = ()
    from_ssd_links: Rows = ()
    host_out_links: Rows = ()
    host_in_links: Rows = ()
    ssd_host_links: Rows = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "capacity", np.ascontiguousarray(self.capacity, dtype=np.int64))
        n = len(self.capacity)
        if self.capacity.ndim != 1 or (self.capacity < 1).any():
            raise ValueError("capacity: every link must carry at least 1 byte per microsecond")
        for name in (*LINK_TABLES, *WEIGHT_TABLES, *HOST_TABLES):
            for row, links in enumerate(getattr(self, name)):
                if len(set(links)) < len(links) or not all(0 <= k < n for k in links):
                    raise ValueError(
                        f"{name}[{row}] = {links}: must be different links of 0..{n - 1}"
                    )
        ends = (LINK_TABLES[:2], LINK_TABLES[2:], ("host_out_links", "in_links"))
        for out, into in (*ends, ("out_links", "host_in_links")):
            used = [{k for row in getattr(self, name) for k in row} for name in (out, into)]
            if used[0] & used[1]:
                raise ValueError(
                    f"{into}: links {sorted(used[0] & used[1])} are among {out}, so a path could hold "
                    "one twice; links are directed"
                )

    def links(self, table: str, row: int) -> tuple[int, ...]:
        """A row of a table by its name; empty if the table is."""
        rows: Rows = getattr(self, table)
        return rows[row] if rows else ()

    def refuse_other_sizes(self, n_slots: int, n_hosts: int) -> None:
        """Refuse tables that do not have a row for everything.

        Raises:
            ValueError: which one.
        """
        sizes = dict.fromkeys((*LINK_TABLES, *WEIGHT_TABLES), (n_slots, "slots"))
        sizes |= dict.fromkeys(HOST_TABLES, (n_hosts, "hosts"))
        for name, (n, what) in sizes.items():
            rows = getattr(self, name)
            if len(rows) != n and (rows or name in LINK_TABLES):
                raise ValueError(f"network.{name}: must have a row for each of {n} {what}")


class Paths:
    """Which links a flow takes.

    Args:
        network: None: no links anywhere.
        hosts: host of every slot.
    """

    def __init__(self, network: NetworkSpec | None, hosts: Sequence[int]) -> None:
        self.network = network
        self.hosts = hosts

    def between(self, source: int, target: int) -> tuple[int, ...]:
        """From one slot to another, of a KV cache or of weights."""
        if self.network is None:
            return ()
        local = "local_" if self.hosts[source] == self.hosts[target] else ""
        return (
            *self.network.links(f"{local}out_links", source),
            *self.network.links(f"{local}in_links", target),
        )

    def to_slot(self, source: int, target: int) -> tuple[int, ...]:
        """Weights from a source code (docs/engine.md, section 15) to a slot."""
        if self.network is None:
            return ()
        if source == FROM_SSD:
            return self.network.links("from_ssd_links", target)
        if source < len(self.hosts):
            return self.between(source, target)
        host = source - len(self.hosts)
        if host == self.hosts[target]:
            return self.network.links("from_host_links", target)
        return (
            *self.network.links("host_out_links", host),
            *self.network.links("in_links", target),
        )

    def to_host(self, source: int, host: int) -> tuple[int, ...]:
        """Weights from a source code, never another host's memory, to the memory of a host."""
        if self.network is None:
            return ()
        if source == FROM_SSD:
            return self.network.links("ssd_host_links", host)
        if source >= len(self.hosts) or self.hosts[source] == host:
            return ()
        return (
            *self.network.links("out_links", source),
            *self.network.links("host_in_links", host),
        )
