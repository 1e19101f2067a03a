"""How long an instance takes to load its weights, and to start, from each source.

Link speeds are those of BlitzScale's evaluation clusters (its Table 1, in `machines`). A
tensor-parallel instance loads its shards in parallel, each over its own links. A serial forwarding
chain takes the time of its slowest link however many receive (BlitzScale, section 5.1: "irrespective
of the instances scaled"), but for the time until the first layer has come through.

`start_phases_s` composes the seconds of a whole start from the LLM's card (bytes and layers), from these
links and from what was measured of the engine (`ENGINES`). Most of a start is work of the CPU ("Breaking the
Ice", https://arxiv.org/abs/2606.07362), so a GPU's card counts by its PCIe link only. Measured is one LLM or
two per engine. How it grows with another LLM is inferred: compilation and the capture of graphs with layers,
as 33 starts of eleven LLMs with vLLM 0.10 do (`measured_starts`); bytes over a link with bytes.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

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


# ---- starting --------------------------------------------------------------------------------------

StartSource = Literal["download", "ssd", "host", "multicast", "sleep"]
START_SOURCES: tuple[str, ...] = get_args(StartSource)
"""Where an instance's start may find its weights.

`download`: an object store or registry; the file is stored, then read from the page cache. `ssd`: a file on
the host. `host`: a file in the host's page cache, and a compile cache beside it: a fast restart. `multicast`:
other instances. `sleep`: the instance's own process sleeps, with the weights in host memory (vLLM's sleep
mode, level 1).
"""

PHASES = ("process", "read", "load", "compile", "capture", "warm_up")
"""In order: interpreter, imports and workers; the bytes of the weights on their way; all else of loading
them, or of waking; `torch.compile`; capture of CUDA graphs; profiling run, KV cache, tuning of kernels."""


@dataclass(frozen=True)
class EngineStart:
    """What was measured of an engine's starts, on one GPU.

    Attributes:
        process_s: from the command to the start of loading, the container being there.
        load_s: of loading weights, without their bytes.
        compile_s, compile_layer_s: `torch.compile` without a cache, fixed and per layer.
        cached_s, cached_layer_s: the same with a compile cache.
        graphs: CUDA graphs that the default settings capture.
        graph_layer_s: capture of one graph of one layer.
        warm_up_s, warm_up_layer_s: the rest of vLLM's "init engine".
        source: which starts these are.
    """

    process_s: float
    load_s: float
    compile_s: float
    compile_layer_s: float
    cached_s: float
    cached_layer_s: float
    graphs: int
    graph_layer_s: float
    warm_up_s: float
    warm_up_layer_s: float
    source: str


ENGINES: dict[str, EngineStart] = {
    "vllm-0.11": EngineStart(
        process_s=9.7,
        load_s=1.4,
        # 15.9 s with 32 layers and 21.2 s with 48, which is how both logs have it.
        compile_s=5.3,
        compile_layer_s=5.3 / 16,
        cached_s=0.4,
        cached_layer_s=0.30,
        # 67 sizes up to 512 tokens for mixed batches, those up to max_num_seqs = 256 for decodes.
        graphs=67 + 35,
        graph_layer_s=1.1e-3,
        warm_up_s=0.0,
        warm_up_layer_s=0.17,
        source="logs of Llama 2 7B and CodeLlama 34B on H100 (inference-sim, revision e7a4aa37); process, "
        "compile cache and capture per layer and graph from vLLM 0.10.1.1 (upb-cn/vllm-startup-profiler)",
    ),
    "vllm-0.26": EngineStart(
        process_s=16.3,
        load_s=1.4,
        # 17.8 s with 32 layers; the step per layer is vLLM 0.11's.
        compile_s=17.8 - 2 * 5.3,
        compile_layer_s=5.3 / 16,
        cached_s=0.0,
        cached_layer_s=4.1 / 32,
        graphs=51 + 51,
        graph_layer_s=1.4e-3,
        # Mostly kernels that are tuned and compiled once each: not more of them with more layers.
        warm_up_s=15.8,
        warm_up_layer_s=0.0,
        source="two starts of Llama 3.1 8B on H200 (experiments/data/vllm_h200)",
    ),
}
"""vLLM 0.26 compiles as long as 0.11 and finds a cache faster; tuning kernels is new."""

TODAY = "vllm-0.26"
"""The engine that `start: today` means."""

WAKE_S = 0.2
"""Of waking a process, without the copy: Qwen3-0.6B wakes in 0.26 s (vLLM's blog, October 2025)."""

WAKE_LINK_SHARE = 0.7
"""Of the PCIe link's peak: Qwen3-Coder-30B-A3B wakes with 61 GB over 32 GB/s in 2.87 s (the same)."""


class StartConfig(BaseModel):
    """How instances of a pool start, where that is composed from cards and not one number.

    `today`, or the name of one of `ENGINES`, stands for all defaults. Seconds that are None are the engine's.

    Attributes:
        engine: one of `ENGINES`.
        compile_cache: `torch.compile` finds a cache (in the image, or on a volume). From `host` it always
            does: an instance of the LLM has run there.
        eager: neither compiles nor captures (vLLM's `enforce_eager`). Iteration times do not know of it.
        graphs: CUDA graphs that are captured; 0: none.
        process_s, load_s, compile_s, capture_s, warm_up_s: measured by the user, by phase.
        cached_compile_s: `compile_s` with a cache.
        wake_s: of waking, without the copy.
        download_bytes_per_s: what an instance gets from the store, all shards together. The default is 10
            Gbit/s, ours; AWS S3 gave 3.8e9 to a machine with 40 Gbit/s (Run:ai's model streamer 0.6).
        page_cache_bytes_per_s: what vLLM's loader reads of a file in memory, per GPU. The default was
            measured with an EPYC 9354; another server had 1.8e9 (upb-cn/vllm-startup-profiler).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    engine: str = TODAY
    compile_cache: bool = False
    eager: bool = False
    graphs: int | None = Field(default=None, ge=0, le=10_000)
    process_s: float | None = Field(default=None, ge=0)
    load_s: float | None = Field(default=None, ge=0)
    compile_s: float | None = Field(default=None, ge=0)
    cached_compile_s: float | None = Field(default=None, ge=0)
    capture_s: float | None = Field(default=None, ge=0)
    warm_up_s: float | None = Field(default=None, ge=0)
    wake_s: float = Field(default=WAKE_S, ge=0)
    download_bytes_per_s: float = Field(default=1.25e9, gt=0)
    page_cache_bytes_per_s: float = Field(default=8.3e9, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        """A name in place of fields."""
        if isinstance(value, str):
            return {} if value == "today" else {"engine": value}
        return value

    @field_validator("engine")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in ENGINES:
            raise ValueError(f"engine = {value!r}: must be today or one of {', '.join(ENGINES)}")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> StartConfig:
        for name in ("graphs", "compile_s", "cached_compile_s", "capture_s"):
            if self.eager and getattr(self, name):
                raise ValueError(f"{name} = {getattr(self, name)}: not together with eager")
        return self

    def fixed_s(self, layers: int, cached: bool) -> dict[str, float]:
        """Seconds of every phase but `read`, of a start that makes a process."""
        seen = ENGINES[self.engine]
        if self.eager:
            compile_s = 0.0
        elif cached:
            compile_s = _given(self.cached_compile_s, seen.cached_s + layers * seen.cached_layer_s)
        else:
            compile_s = _given(self.compile_s, seen.compile_s + layers * seen.compile_layer_s)
        graphs = 0 if self.eager else seen.graphs if self.graphs is None else self.graphs
        return {
            "process": _given(self.process_s, seen.process_s),
            "load": _given(self.load_s, seen.load_s),
            "compile": compile_s,
            "capture": _given(self.capture_s, graphs * layers * seen.graph_layer_s),
            "warm_up": _given(self.warm_up_s, seen.warm_up_s + layers * seen.warm_up_layer_s),
        }


def _given(value: float | None, default: float) -> float:
    return default if value is None else value


def read_times_s(
    llm: str | LlmCard,
    gpu: str | GpuCard,
    tp: int = 1,
    start: StartConfig | None = None,
    network: NetworkConfig = CLUSTER_A,
) -> dict[str, float]:
    """Seconds that the bytes of the weights are on their way, for each of `START_SOURCES`.

    Raises:
        ValueError: `tp` does not divide the heads.
    """
    llm, gpu = llm_card(llm), gpu_card(gpu)
    start = start or StartConfig()
    links = load_times_s(llm, gpu, tp, network.model_copy(update={"startup_s": 0.0}))
    shard = shard_bytes(llm, tp)
    cached = shard / start.page_cache_bytes_per_s
    host = max(links["host"], cached)
    return {
        "download": llm.weight_bytes / start.download_bytes_per_s + host,
        "ssd": max(links["ssd"], cached),
        "host": host,
        "multicast": links["multicast"],
        "sleep": max(links["host"], shard / (WAKE_LINK_SHARE * gpu.pcie_bytes_per_s)),
    }


def start_phases_s(
    llm: str | LlmCard,
    gpu: str | GpuCard,
    tp: int = 1,
    start: StartConfig | None = None,
    network: NetworkConfig = CLUSTER_A,
) -> dict[str, dict[str, float]]:
    """Seconds by phase from the start of an instance's process until it serves, by source.

    Args:
        llm, gpu: cards or names.
        tp: GPUs of the instance. They share bytes alone: what it takes to join several processes is not
            counted.
        start: the engine and what is known better; None: `today`.
        network: links; its `startup_s` does not count, which the phases stand for.

    Returns:
        For each of `START_SOURCES` the seconds of each of `PHASES`.

    Raises:
        ValueError: `tp` does not divide the heads.
    """
    llm = llm_card(llm)
    start = start or StartConfig()
    phases = {}
    for source, read_s in read_times_s(llm, gpu, tp, start, network).items():
        if source == "sleep":
            fixed = dict.fromkeys(PHASES, 0.0) | {"load": start.wake_s}
        else:
            fixed = start.fixed_s(llm.layers, start.compile_cache or source == "host")
        found = {**fixed, "read": read_s}
        phases[source] = {phase: found[phase] for phase in PHASES}
    return phases


# ---- what was measured ---------------------------------------------------------------------------


@dataclass(frozen=True)
class MeasuredStart:
    """A start that somebody has timed; seconds are None where they are not told.

    Attributes:
        llm, layers, weight_gb: name, and the two numbers that count; some of these LLMs have no card.
        gpu, tp: name, which may be of a GPU without a card.
        engine: and its version.
        compile: "cold", "cached", or "" if it is not told.
        graphs: CUDA graphs captured.
        seconds: by phase; "load" with the bytes of weights, since a log has them in one number; "wake";
            "ready": a whole start of an LLM that has run there before, as we take it to be (a fast restart).
        source: who measured, and where it is published.
    """

    llm: str
    layers: int
    weight_gb: float
    gpu: str
    tp: int
    engine: str
    compile: str
    graphs: int
    seconds: Mapping[str, float | None]
    source: str

    @property
    def composed(self) -> dict[str, float]:
        """The same phases composed, for those that do not depend on where the weights lie.

        vLLM 0.10 is compared with the numbers of 0.11.
        """
        engine = TODAY if self.engine == "vLLM 0.26" else "vllm-0.11"
        start = StartConfig(engine=engine, graphs=self.graphs)
        shard = self.weight_gb * 1e9 / self.tp
        found = start.fixed_s(self.layers, self.compile == "cached")
        restart = start.fixed_s(self.layers, cached=True)
        found["ready"] = sum(restart.values()) + shard / start.page_cache_bytes_per_s
        del found["load"]
        if self.seconds["wake"] is not None:
            link = WAKE_LINK_SHARE * gpu_card(self.gpu).pcie_bytes_per_s
            found["wake"] = WAKE_S + shard / link
        return found


_FILE = Path(__file__).parent / "data" / "starts.csv"
_MEASURED = ("process", "load", "compile", "capture", "warm_up", "wake", "ready")


@lru_cache(maxsize=1)
def measured_starts() -> tuple[MeasuredStart, ...]:
    """Starts of `data/starts.csv`: ours, two logs that are public, and what others have published."""
    with _FILE.open(encoding="utf-8", newline="") as file:
        return tuple(
            MeasuredStart(
                llm=row["llm"],
                layers=int(row["layers"]),
                weight_gb=float(row["weight_gb"]),
                gpu=row["gpu"],
                tp=int(row["tp"]),
                engine=row["engine"],
                compile=row["compile"],
                graphs=int(row["graphs"] or 0),
                seconds={
                    name: float(row[f"{name}_s"]) if row[f"{name}_s"] else None
                    for name in _MEASURED
                },
                source=row["source"],
            )
            for row in csv.DictReader(file)
        )
