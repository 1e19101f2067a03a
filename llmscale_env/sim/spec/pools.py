"""Parts of a cluster that hold instances: pools, and the LLMs that their instances swap between.

docs/engine.md says exactly what every field does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from llmscale_env.sim.spec.checks import check_fields
from llmscale_env.sim.spec.kinds import (
    NEVER,
    ControllerKind,
    LiveMode,
    LoadSource,
    PoolPhase,
    PreemptionMode,
    PullRule,
)
from llmscale_env.sim.spec.operations import Operations
from llmscale_env.sim.spec.regions import ScalingSpec, SpotSpec

_TIME = (0, int(NEVER) // 2)
"""Two of them after the last picosecond still fit 64 bits."""
_TOKENS = (0, 2**31 - 1)
_COUNT = (1, 2**31 - 1)
_BYTES = (0, 2**62)
_SWAP_RANGES = {
    **dict.fromkeys(("llm", "profile"), (0, 2**20)),
    **dict.fromkeys(("fetch_ps", "swap_ps"), _TIME),
    "weight_bytes": _BYTES,
    "watermark_tokens": _TOKENS,
}
_POOL_RANGES: dict[str, tuple[int, int] | type[IntEnum]] = {
    **dict.fromkeys(("profile", "llm", "n_slots", "initial_active"), (0, 2**20)),
    "batch_limit": _COUNT,
    "phase": PoolPhase,
    "gpus": (1, 2**20),
    "controller": ControllerKind,
    **dict.fromkeys(("controller_min_batch", "controller_max_batch"), _COUNT),
    "controller_window_iterations": _COUNT,
    "pull_rule": PullRule,
    "preemption": PreemptionMode,
    "load_source": LoadSource,
    "live_mode": LiveMode,
    **dict.fromkeys(("chunk_tokens", "watermark_tokens", "deployment_slots"), _TOKENS),
    "prefill_tokens": _COUNT,
    **dict.fromkeys(("acquire_ps", "load_ps", "repair_ps"), _TIME),
    "wake_ps": (-1, _TIME[1]),
    **dict.fromkeys(("host_kv_bytes", "host_weight_bytes", "weight_bytes"), _BYTES),
    "layers": (1, 2**20),
}


@dataclass(frozen=True)
class SwapSpec:
    """An LLM that instances of a pool can swap to.

    Attributes:
        llm, profile: indices into the cluster's LLMs and profiles.
        weight_bytes: what its weights take in host memory.
        fetch_ps: from storage to host memory.
        swap_ps: from host memory to the GPUs.
        watermark_tokens: KV tokens kept free at admission while it is served.
    """

    llm: int
    profile: int
    weight_bytes: int = 0
    fetch_ps: int = 0
    swap_ps: int = 0
    watermark_tokens: int = 0


_V1_RANGES = {
    "block_tokens": (1, 2**20),
    **dict.fromkeys(("host_base_ps", "host_per_request_ps"), _TIME),
}


@dataclass(frozen=True)
class V1Spec:
    """The scheduler of vLLM's V1 engine (docs/engine.md, section 19; read in vLLM 0.26).

    Its `max_num_batched_tokens` is the pool's `chunk_tokens`, its `max_num_seqs` the batch limit, its
    `num_gpu_blocks` the profile's `kv_capacity_tokens` in blocks.

    Attributes:
        block_tokens: tokens of a KV block (vLLM's `block_size`).
        reserve_full: a request is admitted only if blocks for its whole context are free
            (`scheduler_reserve_full_isl`).
        asynchronous: a step is composed while the one before it runs (`async_scheduling`).
        prefix_cache: KV of full blocks is found again by requests that begin with the same tokens, until
            its blocks are needed (`enable_prefix_caching`).
        host_base_ps, host_per_request_ps: time that the engine needs to compose and launch a step, and
            more for each request in it. Beside the GPU if `asynchronous`, otherwise before it.
    """

    block_tokens: int = 16
    reserve_full: bool = True
    asynchronous: bool = True
    prefix_cache: bool = True
    host_base_ps: int = 0
    host_per_request_ps: int = 0

    def blocks(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.block_tokens)


@dataclass(frozen=True)
class PoolSpec:
    """Instances of one kind: `n_slots` of them at most, each serving one LLM at a time.

    Attributes:
        llm, profile: indices into the cluster's LLMs and profiles; of the LLM that is loaded first.
        n_slots: most instances this pool can ever hold.
        gpus: GPUs per instance.
        initial_active: instances that are active at time 0 (the lowest slots; of a pool with `twin_of`
            the highest).
        batch_limit: running requests allowed per instance at the start.
        controller: how the limit moves; `controller_*` its parameters (Chiron's Algorithm 1).
        pull: shared queues that the pool's instances pull from at the start, in order.
        pull_rule: a `PullRule`.
        evicts_in_order: the head of a queue that comes earlier on an instance's list evicts running
            requests that came from later ones, or from none of them.
        static_batch: nobody joins a batch that has begun to decode.
        async_kv: the KV cache of evicted requests is copied to host memory beside the iterations.
        swaps: the LLMs that an instance can serve one after the other, `llm` the first of them;
            empty: `llm` only.
        swap_flushes: a swap does not wait for a batch that comes later on the instance's list.
        host_weight_bytes: host memory of one instance for weights of `swaps`.
        warm: LLMs of `swaps` whose weights are there at the start.
        repair_ps: from a failure to the start of loading.
        phase: a `PoolPhase`.
        v1: the instances schedule as vLLM's V1 engine does, with `chunk_tokens` as the budget of a step.
        drifts: profiles of the same machine at other speeds, for those who order `set_profile`.
        chunk_tokens: token budget of a chunked-prefill iteration; 0 means prefill first.
        prefill_tokens: token budget of a prefill-first iteration.
        preemption: what happens to KV on overflow.
        evicts: requests of a priority-0 class in an instance's own queue evict running requests of
            priority-1 classes that have a shared queue.
        acquire_ps: from the order to the start of loading.
        load_ps: (3,) loading time by `LoadSource`, where `weight_bytes` is 0.
        wake_ps: loading time from `HOST` of a slot whose own process sleeps; -1: none ever sleeps.
        weight_bytes: weights that flow over the network's links, layer by layer; 0: loading takes `load_ps`.
        layers: how many layers they are.
        live_mode: a `LiveMode`, of the pairs of this pool.
        twin_of: pool on the same GPUs, slot by slot; -1: none. Named by one of the two.
        region: where its instances are.
        deployment_slots: so many slots each form a deployment; 0: the pool is one.
        priorities: requests of priority 0 come first in an instance's own queue.
        spot: its instances come from spot VMs and go back to them, not by `acquire_ps` and `load_ps`.
        scaling: how it scales when a request reaches its region.
        host_kv_bytes: KV cache that one instance may keep in host memory.
        watermark_tokens: KV tokens kept free at admission; where LLMs take turns each has its own.
    """

    llm: int
    profile: int
    n_slots: int
    gpus: int = 1
    initial_active: int = 0
    batch_limit: int = 256
    controller: int = ControllerKind.FIXED
    controller_alpha: float = 0.5
    controller_min_batch: int = 1
    controller_max_batch: int = 4096
    controller_window_iterations: int = 1
    controller_settles: bool = False
    controller_reverts: bool = False
    pull: tuple[int, ...] = ()
    chunk_tokens: int = 0
    prefill_tokens: int = 4096
    preemption: int = PreemptionMode.RECOMPUTE
    evicts: bool = False
    acquire_ps: int = 0
    load_ps: tuple[int, int, int] = (0, 0, 0)
    wake_ps: int = -1
    load_source: int = LoadSource.SSD
    host_kv_bytes: int = 2**40
    watermark_tokens: int = 0
    pull_rule: int = PullRule.IN_ORDER
    evicts_in_order: bool = False
    static_batch: bool = False
    async_kv: bool = False
    swaps: tuple[SwapSpec, ...] = ()
    swap_flushes: bool = False
    host_weight_bytes: int = 2**62
    warm: tuple[int, ...] = ()
    repair_ps: int = 0
    phase: int = PoolPhase.BOTH
    drifts: tuple[int, ...] = ()
    weight_bytes: int = 0
    layers: int = 1
    live_mode: int = LiveMode.ZIGZAG
    twin_of: int = -1
    region: int = 0
    deployment_slots: int = 0
    priorities: bool = False
    spot: SpotSpec | None = None
    scaling: ScalingSpec | None = None
    v1: V1Spec | None = None

    def refuse_nonsense(self, where: str) -> None:
        """Refuse numbers that are out of range, whatever the rest of the cluster is.

        Raises:
            ValueError: which field, its value, and what it must be.
        """
        check_fields(self, _POOL_RANGES, where)
        if not 0 < self.controller_alpha < float("inf"):
            raise ValueError(
                f"{where}controller_alpha = {self.controller_alpha!r}: must be a positive number"
            )
        if len(self.load_ps) != len(LoadSource):
            raise ValueError(f"{where}load_ps = {self.load_ps}: must be {len(LoadSource)} times")
        if self.controller_min_batch > self.controller_max_batch:
            raise ValueError(
                f"{where}controller_min_batch = {self.controller_min_batch}: must be at most "
                f"controller_max_batch = {self.controller_max_batch}"
            )
        if self.wake_ps >= 0 and (self.swaps or self.weight_bytes):
            raise ValueError(
                f"{where}wake_ps = {self.wake_ps}: must be -1 together with swaps or weight_bytes"
            )
        for k, swap in enumerate(self.swaps):
            check_fields(swap, _SWAP_RANGES, f"{where}swaps[{k}].")
        if self.v1 is not None:
            check_fields(self.v1, _V1_RANGES, f"{where}v1.")

    def layer_bytes(self, layer: int) -> int:
        """Bytes of one layer, the first being 0; all of them together are `weight_bytes`."""
        size, n = self.weight_bytes, self.layers
        return size * (layer + 1) // n - size * layer // n

    @property
    def operations(self) -> Operations:
        """Those at the start."""
        return Operations(
            int(self.pull_rule), self.evicts_in_order, self.swap_flushes, self.static_batch
        )

    @property
    def served(self) -> tuple[SwapSpec, ...]:
        """Every LLM that an instance can serve, the first one first."""
        alone = SwapSpec(self.llm, self.profile, watermark_tokens=self.watermark_tokens)
        return self.swaps or (alone,)

    @property
    def llms(self) -> tuple[int, ...]:
        """Indices of those LLMs."""
        return tuple(swap.llm for swap in self.served)


def first_warm(pool: PoolSpec) -> tuple[int, ...]:
    """LLMs whose weights are in an instance's host memory at the start."""
    return fitting([pool.llm, *pool.warm], {s.llm: s.weight_bytes for s in pool.served}, pool)


def fitting(
    order: Sequence[int], weight_bytes: Mapping[int, int], pool: PoolSpec
) -> tuple[int, ...]:
    """Of LLMs in order of preference those that an instance's host memory has room for."""
    left, chosen = pool.host_weight_bytes, []
    for llm in dict.fromkeys(order):
        if weight_bytes[llm] <= left:
            left -= weight_bytes[llm]
            chosen.append(llm)
    return tuple(chosen)
