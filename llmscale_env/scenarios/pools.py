"""What a scenario says of instances of one kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from llmscale_env.cluster.cards import gpu_card, llm_card
from llmscale_env.cluster.kv import kv_capacity_tokens
from llmscale_env.cluster.loading import StartConfig, StartSource
from llmscale_env.cluster.optimisations import AverageHits, SpeculativeConfig, check_draft
from llmscale_env.scenarios.fields import Frozen, Name, NonNegative, Positive
from llmscale_env.scenarios.regions import ScalingConfig, SpotConfig

_GPU = "a100-80gb"
_LARGEST_BATCH = 4096


class V1Config(Frozen):
    """Instances schedule as vLLM's V1 engine does (docs/engine.md, section 19).

    vLLM's `max_num_batched_tokens` is the pool's `chunk_tokens`, its `max_num_seqs` the batch limit.
    The time of the host was measured with vLLM 0.26 on a server with one H200
    (`experiments/data/vllm_h200`); it is seen only where the GPU is faster.

    Attributes:
        asynchronous: a step is composed while the one before runs (`async_scheduling`).
        reserve_full: a request waits until its whole context has room (`scheduler_reserve_full_isl`).
        prefix_cache: requests that begin with the same tokens find their KV (`enable_prefix_caching`), in
            place of the pool's `average_hits`, which is an average.
        watermark: share of the KV blocks kept free at admission, in place of `kv_watermark` (vLLM: 0).
        host_s, host_per_request_s: to compose and launch a step, and more for each request in it.
    """

    asynchronous: bool = True
    reserve_full: bool = True
    prefix_cache: bool = True
    watermark: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    host_s: Annotated[float, Field(ge=0, le=1)] = 2.3e-3
    host_per_request_s: Annotated[float, Field(ge=0, le=1)] = 20e-6


class PoolConfig(Frozen):
    """Instances of one kind.

    Attributes:
        name: unique in the fleet.
        role: what policies take the pool for (Chiron's three kinds; "general" serves everything).
        llm, gpu, tp: what an instance is: names of cards, tensor-parallel degree.
        max_instances, initial_instances: slots, and how many are active at time 0.
        batch_limit: running requests per instance at the start. Not given: with `v1` what vLLM takes on that
            GPU (256 on an A100, 1024 on an H100), else 256.
        max_batch: the largest batch limit that anybody may set. Not given: 4096, with `v1` at most
            `chunk_tokens`.
        controller: who moves the limit (docs/engine.md, section 7); `controller_*` its parameters.
        controller_settles: the window after a move begins once the batch has the new size. Ours.
        controller_reverts: a raise that brings no throughput is taken back, in place of a halving. Ours.
        pull: shared queues that the instances pull from, in order.
        chunk_tokens: token budget of a step or chunked-prefill iteration; 0: prefill first (not with `v1`).
            Not given: with `v1` what vLLM takes on that GPU (2048 on an A100, 8192 on an H100), else 0.
        prefill_tokens: token budget of a prefill-first iteration.
        v1: schedule as vLLM's V1 engine does, with `chunk_tokens` as the budget of a step; None: as vLLM did
            before (docs/engine.md, section 4), which evictions, swaps and split phases need.
        preemption: what becomes of the KV cache of a preempted request.
        evicts: priority-0 requests evict running priority-1 requests.
        acquire_s: from the order to the start of loading.
        host_kv_bytes: host memory per instance for KV caches that were moved out.
        kv_watermark: share of KV memory kept free at admission; None, without `v1`: vLLM's 0.01.
        start: how an instance starts, composed from cards and measurements (`cluster.loading`): "today", an
            engine's name, or fields. None: the network's `startup_s` and the bytes of the weights.
        load_source: where weights come from unless a command says otherwise. "download": a store. "ssd",
            "host": disk or memory of the host. "multicast": other instances. "sleep": an instance that goes
            leaves its process asleep, with the weights in host memory, for the fleet's `host_keep_alive_s`.
            A slot without one loads from "host", or from "ssd" if they are not there. In commands "ssd" also
            stands for "download", and "host" for "sleep".
        load_s: seconds to load by source, in place of those computed.
        time_factor, load_time_factor, acquire_time_factor: calibration error. Iterations, loading weights
            (swaps included) and `acquire_s` take so many times as long as the data say by which everybody
            plans: policies, forecasts of load times, the unit of unfinished work in the reward.
        average_hits, speculative: optimisations that change iteration times and KV memory
            (docs/calibration.md); None: without.
        swaps_to: other LLMs that an instance can load in turn (docs/engine.md, section 9). Such a pool is
            in no route: its instances take requests of all their LLMs from shared queues.
        swap_flushes: a swap does not wait for running requests that come later in the virtual queue.
        host_weight_bytes: host memory per instance for weights of those LLMs.
        warm: LLMs whose weights are there at the start.
        pull_rule: which of its shared queues an instance takes from next.
        evicts_in_order: requests of an earlier queue evict running ones of later queues.
        static_batch: nobody joins a batch that has begun to decode.
        async_kv: KV of evicted requests is copied out beside the iterations.
        phase: whether instances serve requests from prompt to last token, or one of the two phases
            (docs/engine.md, section 12). A "decode" pool is named in `decode_pools` of a route.
        drifts: other speeds that an instance can be made to have (`Command.drift`), as factors of its
            iteration times.
        mtbf_s: mean time between failures of an instance (exponential); None: it never fails by itself.
        repair_s: from a failure to the start of loading.
        weights: "timed": loading takes a time by its source; "flow": weights, as many and in as many layers
            as the LLM's card says, come over the network's links (docs/engine.md, section 15), after
            `acquire_s` and the network's `startup_s` and `communicator_s`.
        twin_of: another pool on whose GPUs this one's instances sit, slot by slot; one may become the
            other (`Command.mutate`).
        live: how an instance that loads helps one that serves (`Command.scale`): it comes back to a batch
            when it has more layers, or works on it once.
        region: where its instances are; None: the scenario's first region. In a file "*" stands for a pool
            in each region (`replicate`).
        deployment_instances: so many slots each form a deployment, among which requests that have reached
            the region go to the least utilised; 0: the pool is one.
        priorities: at an instance, requests of priority 0 wait before those of priority 1.
        spot: its instances come from spot VMs and go back to them; `acquire_s`, `load_s` and `load_source`
            say nothing then, and `start` may not be given. None: they do not.
        scaling: the rule by which it scales when a request reaches its region; None: it has none, and
            cannot be given one.
    """

    name: Name
    role: Literal["general", "interactive", "mixed", "batch"] = "general"
    llm: str
    gpu: str = _GPU
    tp: Annotated[int, Field(ge=1, le=8)] = 1
    max_instances: Annotated[int, Field(ge=1, le=10_000)]
    initial_instances: Annotated[int, Field(ge=0, le=10_000)] = 1
    batch_limit: Annotated[int, Field(ge=1, le=4096)] = 256
    max_batch: Annotated[int, Field(ge=1, le=_LARGEST_BATCH)] = _LARGEST_BATCH
    controller: Literal["fixed", "chiron", "chiron-literal"] = "fixed"
    controller_alpha: Annotated[float, Field(gt=0, le=1)] = 0.5
    controller_min_batch: Annotated[int, Field(ge=1, le=4096)] = 1
    controller_window_iterations: Annotated[int, Field(ge=1, le=100_000)] = 1
    controller_settles: bool = False
    controller_reverts: bool = False
    pull: tuple[Name, ...] = ()
    chunk_tokens: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    prefill_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 4096
    v1: V1Config | None = V1Config()
    preemption: Literal["recompute", "swap"] = "recompute"
    evicts: bool = False
    acquire_s: NonNegative = 0.0
    host_kv_bytes: NonNegative = 64e9
    kv_watermark: Annotated[float, Field(ge=0, lt=0.5)] | None = None
    start: StartConfig | None = None
    load_source: StartSource = "ssd"
    load_s: dict[StartSource, NonNegative] | None = None
    time_factor: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    load_time_factor: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    acquire_time_factor: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    average_hits: AverageHits | None = None
    speculative: SpeculativeConfig | None = None
    swaps_to: tuple[str, ...] = ()
    swap_flushes: bool = False
    host_weight_bytes: NonNegative = 320e9
    warm: tuple[str, ...] = ()
    pull_rule: Literal["in-order", "earliest-deadline"] = "in-order"
    evicts_in_order: bool = False
    static_batch: bool = False
    async_kv: bool = False
    phase: Literal["both", "prefill", "decode"] = "both"
    drifts: tuple[Positive, ...] = ()
    mtbf_s: Positive | None = None
    repair_s: NonNegative = 0.0
    weights: Literal["timed", "flow"] = "timed"
    twin_of: Name | None = None
    live: Literal["zigzag", "best-effort"] = "zigzag"
    region: Name | None = None
    deployment_instances: Annotated[int, Field(ge=0, le=10_000)] = 0
    priorities: bool = False
    spot: SpotConfig | None = None
    scaling: ScalingConfig | None = None

    @property
    def watermark(self) -> float:
        """Share of KV memory kept free at admission."""
        if self.v1 is not None:
            return self.v1.watermark
        return 0.01 if self.kv_watermark is None else self.kv_watermark

    @property
    def flows(self) -> bool:
        """Whether its weights come over links."""
        return self.weights == "flow"

    @property
    def engine_source(self) -> str:
        """What the engines and commands call its `load_source`: the store is there as an SSD is."""
        return {"download": "ssd", "sleep": "host"}.get(self.load_source, self.load_source)

    @property
    def llms(self) -> tuple[str, ...]:
        """Every LLM that an instance can serve, the first one first."""
        return (self.llm, *self.swaps_to)

    @model_validator(mode="before")
    @classmethod
    def _as_vllm(cls, value: Any) -> Any:
        """What vLLM takes for a step and a batch unless it is told."""
        if not isinstance(value, Mapping) or value.get("v1", {}) is None:
            return value
        try:
            tokens, seqs = gpu_card(value.get("gpu", _GPU)).vllm_batch_defaults
            given = {"chunk_tokens": tokens, **value}
            given.setdefault("max_batch", min(_LARGEST_BATCH, max(given["chunk_tokens"], 1)))
            given.setdefault("batch_limit", min(seqs, given["max_batch"]))
        except (AttributeError, TypeError, ValueError):
            return value  # what is wrong is said by the field's own check
        return given

    @field_validator("v1", "average_hits", mode="before")
    @classmethod
    def _fields_or_none(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool | str):
            fields = "{}" if info.field_name == "v1" else "{hit_share: 0.5}"
            raise ValueError(
                f"must be fields, as in `{info.field_name}: {fields}`, or `null`; vLLM's cache by "
                "blocks is v1.prefix_cache"
            )
        return value

    @field_validator("llm")
    @classmethod
    def _known_llm(cls, value: str) -> str:
        return llm_card(value).name

    @field_validator("swaps_to", "warm")
    @classmethod
    def _known_llms(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(llm_card(name).name for name in value)

    @field_validator("gpu")
    @classmethod
    def _known_gpu(cls, value: str) -> str:
        return gpu_card(value).name

    @model_validator(mode="after")
    def _consistent(self) -> PoolConfig:
        if self.initial_instances > self.max_instances:
            raise ValueError(
                f"initial_instances = {self.initial_instances}: must be at most "
                f"max_instances = {self.max_instances}"
            )
        for name in ("batch_limit", "controller_min_batch"):
            if getattr(self, name) > self.max_batch:
                raise ValueError(
                    f"{name} = {getattr(self, name)}: must be at most max_batch = {self.max_batch}"
                )
        draft = None
        if self.speculative is not None:
            draft = check_draft(self.llm, self.tp, self.speculative)
        kv_capacity_tokens(self.llm, self.gpu, self.tp, draft=draft)
        self._check_swaps()
        self._check_phase()
        self._check_v1()
        self._check_source()
        for name in ("swaps_to", "load_s", "speculative"):
            if self.flows and getattr(self, name):
                raise ValueError(f"{name}: not together with weights = 'flow'")
        if self.load_time_factor != 1.0 and (self.flows or self.spot):
            what = "weights = 'flow'" if self.flows else "spot"
            raise ValueError(
                f"load_time_factor = {self.load_time_factor:g}: must be 1 together with {what}"
            )
        if self.acquire_time_factor != 1.0 and self.spot:
            raise ValueError(
                f"acquire_time_factor = {self.acquire_time_factor:g}: must be 1 together with spot"
            )
        self._check_region_fields()
        return self

    def _check_source(self) -> None:
        if self.start is not None and self.spot is not None:
            raise ValueError("start: not together with spot, whose reclaim_* and redeploy_s say it")
        if self.load_source not in ("download", "sleep"):
            return
        if self.start is None and self.load_source not in (self.load_s or {}):
            raise ValueError(
                f"load_source = {self.load_source!r}: needs start (today, or fields), or its seconds in "
                "load_s"
            )
        without = {"weights = 'flow'": self.flows, "spot": self.spot, "swaps_to": self.swaps_to}
        for name, given in without.items():
            if given and (name != "swaps_to" or self.load_source == "sleep"):
                raise ValueError(f"load_source = {self.load_source!r}: not together with {name}")

    def _check_region_fields(self) -> None:
        for name in ("spot", "scaling"):
            if getattr(self, name) is None:
                continue
            for without, given in (("swaps_to", self.swaps_to), ("weights = 'flow'", self.flows)):
                if given:
                    raise ValueError(f"{name}: not together with {without}")
        if self.scaling is None:
            return
        most = self.scaling.most
        if most is not None and most > self.max_instances:
            raise ValueError(
                f"scaling.most = {most}: must be at most max_instances = {self.max_instances}"
            )
        top = self.max_instances if most is None else most
        if self.scaling.least > top:
            raise ValueError(f"scaling.least = {self.scaling.least}: must be at most {top}")

    def _check_phase(self) -> None:
        if self.phase == "both":
            return
        alone = ("evicts", "evicts_in_order", "swaps_to", "static_batch", "async_kv")
        for name in (*alone, "priorities", "spot", "scaling"):
            if getattr(self, name):
                raise ValueError(f"{name}: not together with phase = {self.phase!r}")
        for name in ("pull", "chunk_tokens"):
            if self.phase == "decode" and getattr(self, name):
                raise ValueError(f"{name}: not together with phase = 'decode'")

    def _check_v1(self) -> None:
        if self.v1 is None:
            return
        for name in (
            "evicts",
            "evicts_in_order",
            "swaps_to",
            "static_batch",
            "async_kv",
            "speculative",
        ):
            if getattr(self, name):
                raise ValueError(f"{name}: not together with v1; `v1: null` goes without")
        for name, must in (("phase", "both"), ("preemption", "recompute")):
            if getattr(self, name) != must:
                raise ValueError(
                    f"{name} = {getattr(self, name)!r}: must be {must!r} with v1; `v1: null` goes without"
                )
        if self.v1.prefix_cache and self.average_hits is not None:
            raise ValueError("average_hits: not together with v1.prefix_cache, which simulates it")
        if self.kv_watermark is not None:
            raise ValueError("kv_watermark: with v1, give v1.watermark in its place")
        if self.chunk_tokens < self.max_batch:
            raise ValueError(
                f"chunk_tokens = {self.chunk_tokens}: must be at least max_batch = {self.max_batch} "
                "with v1, as vLLM's max_num_batched_tokens must be at least its max_num_seqs"
            )

    def _check_swaps(self) -> None:
        for llm in self.swaps_to:
            kv_capacity_tokens(llm, self.gpu, self.tp)
        if len(set(self.llms)) < len(self.llms):
            raise ValueError(f"swaps_to = {list(self.swaps_to)}: names an LLM twice")
        for llm in self.warm:
            if llm not in self.llms:
                raise ValueError(f"warm: {llm!r} must be one of {list(self.llms)}")
        for name in ("average_hits", "speculative", "load_s"):
            if self.swaps_to and getattr(self, name) is not None:
                raise ValueError(f"{name}: not together with swaps_to")
        if self.static_batch and self.chunk_tokens > 0:
            raise ValueError("static_batch: not together with chunk_tokens")
