"""How long an instance takes to load its weights, from each source.

Link speeds are those of BlitzScale's evaluation clusters (its Table 1, in `machines`). A
tensor-parallel instance loads its shards in parallel, each over its own links. A serial forwarding
chain takes the time of its slowest link however many receive (BlitzScale, section 5.1: "irrespective
of the instances scaled"), but for the time until the first layer has come through.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from llmscale_env.cluster.cards import GpuCard, LlmCard, gpu_card, llm_card
from llmscale_env.cluster.machines import BYTES_PER_GBIT, machine

GBIT_PER_S = BYTES_PER_GBIT
"""Bytes per second of one gigabit per second, the unit of the paper's table."""

SOURCES = ("ssd", "host", "multicast")
"""Slowest first, in the order of the engine's `LoadSource`."""


class NetworkConfig(BaseModel):
    """Link speeds of a cluster, per GPU and one direction, and the fixed part of a start-up.

    The defaults are BlitzScale's cluster A. `startup_s` (process and engine initialisation) is
    not in its paper: at 3 s, the LLMs of 8 to 70 billion weights load from SSD in 16 to 60 s at the
    smallest degree that fits an A100, which is the range of load times that Chiron reports (15 s to
    one minute), and those below 3 billion in less than its TTFT target of 10 s, as it says.

    The name of one of `machines.MACHINES` stands for its links: `network: blitzscale-b`, or with changes
    `network: {machine: blitzscale-b, startup_s: 0}`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    ssd_bytes_per_s: float = Field(default=10 * GBIT_PER_S, gt=0)
    ssd_host_bytes_per_s: float | None = Field(default=None, gt=0)
    """All SSDs of a host together, shared by an instance's shards; None: enough for all GPUs."""
    host_bytes_per_s: float = Field(default=128 * GBIT_PER_S, gt=0)
    intra_host_bytes_per_s: float = Field(default=1600 * GBIT_PER_S, gt=0)
    inter_host_bytes_per_s: float = Field(default=100 * GBIT_PER_S, gt=0)
    host_network_bytes_per_s: float | None = Field(default=None, gt=0)
    """What a host's GPUs together can send to, and get from, other hosts; None: enough for all."""
    startup_s: float = Field(default=3.0, ge=0)
    communicator_s: float = Field(default=0.0, ge=0)
    """Before the first byte of a load that crosses links moves: 0 with connections made beforehand, some
    0.1 s for a group of NCCL's (BlitzScale, section 5.3). Where loading takes a time by its source it is not
    counted."""
    pcie_bytes_per_s: float | None = Field(default=None, gt=0)
    """The PCIe link that neighbouring GPUs share, each way; None: they share none."""
    gpus_per_pcie: int = Field(default=2, ge=1)
    nic_bytes_per_s: float | None = Field(default=None, gt=0)
    """The network card that neighbouring GPUs share, each way; None: each has its own."""
    gpus_per_nic: int = Field(default=2, ge=1)
    nvlink: bool = True
    """Whether GPUs of a host have links to each other; otherwise they use the shared PCIe links."""
    host_memory_bytes_per_s: float | None = Field(default=None, gt=0)
    """What a host's memory can send to, and get from, other hosts; None: as much as all its GPUs."""
    memory_uses_nics: bool = False
    """Memory and GPUs of a host together have no more than its GPUs' links to other hosts, where
    `host_network_bytes_per_s` does not say what they have."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        """A machine's name in place of fields, or among them as `machine`."""
        if isinstance(value, str):
            return machine(value).network_fields()
        if isinstance(value, Mapping) and "machine" in value:
            changes = {key: each for key, each in value.items() if key != "machine"}
            return {**machine(str(value["machine"])).network_fields(), **changes}
        return value


CLUSTER_A = NetworkConfig()
"""BlitzScale's cluster A: 4 hosts of 8 A800, NVLink 1.6 Tbps, RDMA 100 Gbps, SSD 10 Gbps."""

CLUSTER_B = NetworkConfig.model_validate("blitzscale-b")
"""BlitzScale's cluster B: 2 hosts of 8 A100 without NVLink (PCIe 256 Gbps between GPUs)."""


def shard_bytes(llm: str | LlmCard, tp: int) -> float:
    """Weight bytes that each of `tp` GPUs loads.

    Raises:
        ValueError: `tp` does not divide the heads.
    """
    llm = llm_card(llm)
    llm.check_tp(tp)
    return llm.weight_bytes / tp


def chain_s(weight_bytes: float, links_bytes_per_s: Sequence[float], layers: int) -> float:
    """Seconds until the last receiver of a forwarding chain has all of `weight_bytes`.

    Every receiver hands a layer on as soon as it has it. The slowest link sets the pace; each other
    link adds the time of one layer, which is all that the number of receivers costs.

    Args:
        weight_bytes: what each receiver gets.
        links_bytes_per_s: speed of each link, from the source on.
        layers: pieces that are forwarded one by one.

    Raises:
        ValueError: no links, a speed that is not positive, or no layers.
    """
    if not links_bytes_per_s:
        raise ValueError("links_bytes_per_s is empty: a chain has at least one link")
    if min(links_bytes_per_s) <= 0:
        raise ValueError(f"links_bytes_per_s = {list(links_bytes_per_s)}: must be positive")
    if layers < 1:
        raise ValueError(f"layers = {layers}: must be at least 1")
    per_layer = [weight_bytes / layers / speed for speed in links_bytes_per_s]
    return sum(per_layer) + (layers - 1) * max(per_layer)


def load_times_s(
    llm: str | LlmCard,
    gpu: str | GpuCard,
    tp: int = 1,
    network: NetworkConfig = CLUSTER_A,
    *,
    receivers: int = 1,
    same_host: bool = False,
) -> dict[str, float]:
    """Seconds from the start of loading until an instance serves, by source.

    Args:
        llm: card or name.
        gpu: card or name; its PCIe is an upper bound for loads from host memory.
        tp: GPUs of the instance; each loads its shard.
        network: link speeds and start-up time.
        receivers: instances in the multicast chain; the time is the last one's.
        same_host: whether the chain stays within one host (NVLink) or crosses hosts (RDMA).

    Returns:
        Seconds for each of `SOURCES`.

    Raises:
        ValueError: `tp` does not divide the heads, or there are no receivers.
    """
    llm, gpu = llm_card(llm), gpu_card(gpu)
    weights = shard_bytes(llm, tp)
    if receivers < 1:
        raise ValueError(f"receivers = {receivers}: must be at least 1")
    ssd = network.ssd_bytes_per_s
    if network.ssd_host_bytes_per_s is not None:
        ssd = min(ssd, network.ssd_host_bytes_per_s / tp)
    # Shards of one instance share a PCIe link or a network card as neighbours do.
    pcie = _each(network.pcie_bytes_per_s, network.gpus_per_pcie, tp)
    host = min(network.host_bytes_per_s, gpu.pcie_bytes_per_s, pcie)
    if same_host:
        inside = network.intra_host_bytes_per_s
        link = inside if network.nvlink else min(inside, pcie)
    else:
        nic = _each(network.nic_bytes_per_s, network.gpus_per_nic, tp)
        link = min(network.inter_host_bytes_per_s, nic)
    return {
        "ssd": network.startup_s + weights / ssd,
        "host": network.startup_s + weights / host,
        "multicast": network.startup_s + chain_s(weights, [link] * receivers, llm.layers),
    }


def _each(shared_bytes_per_s: float | None, gpus: int, tp: int) -> float:
    """What each of `tp` GPUs gets of a link that `gpus` neighbours share."""
    return math.inf if shared_bytes_per_s is None else shared_bytes_per_s / min(tp, gpus)
