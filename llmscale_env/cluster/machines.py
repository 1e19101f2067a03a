"""Machines that BlitzScale names: its two evaluation clusters, its Figure 5, its survey of clouds.

One place for the numbers of the paper's Tables 1 and 2; `NetworkConfig` takes the names, so a scenario
may say `network: blitzscale-a`. Speeds are in gigabits per second, per GPU and one direction, as the
paper has them; what the tables leave out is taken from the GPU's card and marked so in `source`.

Two readings are ours. Table 1 gives 128 Gbps of PCIe per GPU where Figure 5 draws a link of 256 Gbps
that two GPUs share: both hold here, a cap per GPU and the shared link. Table 1 gives 100 Gbps of RDMA
per GPU, Figure 5 draws 200 Gbps; Figure 18 (a 7B model has crossed to another host after 1.1 s, which
is 100 Gbps) says that one GPU of cluster A has no more than the table's share, so it is a cap as well,
and `figure-5` is a machine of its own.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from llmscale_env.cluster.cards import gpu_card

BYTES_PER_GBIT = 1e9 / 8

_TABLE_1 = "BlitzScale, Table 1"
_TABLE_2 = "BlitzScale, Table 2; NVLink and PCIe from the GPU's card"


@dataclass(frozen=True)
class Machine:
    """A host with GPUs, and how many there are of it.

    Attributes:
        name: as a scenario's `network` spells it.
        gpu: name of a card.
        hosts: how many the paper has; None for a machine that can be rented.
        gpus_per_host: GPUs of one.
        ssd_gbps: local SSD, per GPU.
        remote_ssd_gbps: over the network; None: not given.
        network_gbps: RDMA to other hosts, per GPU and one direction.
        host_gbps: from the host's memory, per GPU.
        pcie_gbps: the PCIe link of two neighbouring GPUs together, one direction.
        intra_gbps: to the other GPUs of the host, per GPU and one direction.
        nvlink: whether that is NVLink; otherwise it runs over the shared PCIe links.
        gpus_per_nic: GPUs that share a network card of `network_gbps`; 1: each has its own.
        usd_per_h: price of the host; None: not given.
        source: where the numbers are from.
    """

    name: str
    gpu: str
    hosts: int | None
    gpus_per_host: int
    ssd_gbps: float
    remote_ssd_gbps: float | None
    network_gbps: float
    host_gbps: float
    pcie_gbps: float
    intra_gbps: float
    nvlink: bool
    usd_per_h: float | None
    source: str
    gpus_per_nic: int = 1

    def network_fields(self) -> dict[str, Any]:
        """The same as fields of `NetworkConfig`."""
        shared = self.gpus_per_nic > 1
        return {
            "ssd_bytes_per_s": self.ssd_gbps * BYTES_PER_GBIT,
            "host_bytes_per_s": self.host_gbps * BYTES_PER_GBIT,
            "pcie_bytes_per_s": self.pcie_gbps * BYTES_PER_GBIT,
            "intra_host_bytes_per_s": self.intra_gbps * BYTES_PER_GBIT,
            "nvlink": self.nvlink,
            "inter_host_bytes_per_s": self.network_gbps * BYTES_PER_GBIT,
            "nic_bytes_per_s": self.network_gbps * BYTES_PER_GBIT if shared else None,
            "gpus_per_nic": self.gpus_per_nic if shared else 2,
            "memory_uses_nics": True,
        }


def _cloud(
    name: str,
    gpu: str,
    ssd_gbps: float,
    remote_ssd_gbps: float | None,
    network_gbps: float,
    usd_per_h: float | None,
    *,
    nvlink: bool = True,
) -> Machine:
    card = gpu_card(gpu)
    pcie = card.pcie_bytes_per_s / BYTES_PER_GBIT
    return Machine(
        name=name,
        gpu=gpu,
        hosts=None,
        gpus_per_host=8,
        ssd_gbps=ssd_gbps,
        remote_ssd_gbps=remote_ssd_gbps,
        network_gbps=network_gbps,
        host_gbps=pcie / 2,
        pcie_gbps=pcie,
        intra_gbps=card.nvlink_bytes_per_s / BYTES_PER_GBIT if nvlink else pcie,
        nvlink=nvlink,
        usd_per_h=usd_per_h,
        source=_TABLE_2,
    )


MACHINES: dict[str, Machine] = {
    machine.name: machine
    for machine in (
        Machine(
            "blitzscale-a", "a100-80gb", 4, 8, 10, None, 100, 128, 256, 1600, True, None,
            f"{_TABLE_1}, cluster A (A800 80 GB); PCIe link shared by two GPUs: Figure 5",
        ),
        Machine(
            "blitzscale-b", "a100-80gb", 2, 8, 10, None, 100, 128, 256, 256, False, None,
            f"{_TABLE_1}, cluster B (A100 80 GB); PCIe link shared by two GPUs: Figure 5",
        ),
        Machine(
            "figure-5", "a100-80gb", None, 8, 10, None, 200, 256, 256, 1600, True, None,
            "BlitzScale, Figure 5 (a): PCIe link and network card shared by two GPUs; SSD: Table 1",
            gpus_per_nic=2,
        ),
        _cloud("a2-ultragpu-8g", "a100-80gb", 2.58, 0.29, 12.5, 40.44),
        _cloud("p4d.24xlarge", "a100-40gb", 2.31, None, 100, 45.039),
        _cloud("ml.hpcgni2.28xlarge", "a100-80gb", 4, None, 100, 48.23, nvlink=False),
        _cloud("p4de.24xlarge", "a100-80gb", 2.31, None, 100, 56.328),
        _cloud("a3-highgpu-8g", "h100-80gb", 6.09, 0.97, 100, 88.25),
        _cloud("a3-megagpu-8g", "h100-80gb", 6.09, 0.97, 200, None),
    )
}  # fmt: skip
"""By name."""


def machine(name: str) -> Machine:
    """A machine by name.

    Raises:
        ValueError: there is none of that name; the message lists those known.
    """
    if name in MACHINES:
        return MACHINES[name]
    near = difflib.get_close_matches(name, MACHINES, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"machine = {name!r}: unknown{hint}; there are {', '.join(MACHINES)}")
