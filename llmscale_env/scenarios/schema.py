"""What a scenario is: one frozen, validated object that says everything about a family of episodes.

Every name (LLM, GPU, class, pool, queue) is checked here, so whatever is built from a scenario may
take it at its word.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from llmscale_env.cluster.cards import gpu_card, llm_card
from llmscale_env.cluster.kv import kv_capacity_tokens
from llmscale_env.cluster.loading import NetworkConfig
from llmscale_env.cluster.optimisations import PrefixCacheConfig, SpeculativeConfig, check_draft
from llmscale_env.workload.config import (
    DEFAULT_CLASSES,
    BatchQueueConfig,
    SLOClass,
    StreamConfig,
    WorkloadConfig,
)

NAME_PATTERN = r"[A-Za-z0-9][\w.-]*"
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=f"^{NAME_PATTERN}$")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]

MAX_HORIZON_S = 30 * 86_400.0
"""Engine time would last for 53 days; a scenario may use 30."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PoolConfig(_Frozen):
    """Instances of one kind.

    Attributes:
        name: unique in the fleet.
        role: what policies take the pool for (Chiron's three kinds; "general" serves everything).
        llm, gpu, tp: what an instance is: names of cards, tensor-parallel degree.
        max_instances, initial_instances: slots, and how many are active at time 0.
        batch_limit: running requests per instance at the start.
        max_batch: the largest batch limit that anybody may set.
        controller: who moves the limit (docs/engine.md, section 7); `controller_*` its parameters.
        pull: shared queues that the instances pull from, in order.
        chunk_tokens: token budget of a chunked-prefill iteration; 0: prefill first.
        prefill_tokens: token budget of a prefill-first iteration.
        preemption: what becomes of the KV cache of a preempted request.
        evicts: priority-0 requests evict running priority-1 requests.
        acquire_s: from the order to the start of loading.
        host_kv_bytes: host memory per instance for KV caches that were moved out.
        kv_watermark: share of KV memory kept free at admission (vLLM: 0.01).
        load_source: where weights come from unless a command says otherwise.
        load_s: seconds to load by source, in place of those computed from weight size and links.
        prefix_cache, speculative: optimisations that change iteration times and KV memory
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
    """

    name: Name
    role: Literal["general", "interactive", "mixed", "batch"] = "general"
    llm: str
    gpu: str = "a100-80gb"
    tp: Annotated[int, Field(ge=1, le=8)] = 1
    max_instances: Annotated[int, Field(ge=1, le=10_000)]
    initial_instances: Annotated[int, Field(ge=0, le=10_000)] = 1
    batch_limit: Annotated[int, Field(ge=1, le=4096)] = 256
    max_batch: Annotated[int, Field(ge=1, le=4096)] = 4096
    controller: Literal["fixed", "chiron", "chiron-literal"] = "fixed"
    controller_alpha: Annotated[float, Field(gt=0, le=1)] = 0.5
    controller_min_batch: Annotated[int, Field(ge=1, le=4096)] = 1
    controller_window_iterations: Annotated[int, Field(ge=1, le=100_000)] = 16
    pull: tuple[Name, ...] = ()
    chunk_tokens: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    prefill_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 4096
    preemption: Literal["recompute", "swap"] = "recompute"
    evicts: bool = False
    acquire_s: NonNegative = 0.0
    host_kv_bytes: NonNegative = 64e9
    kv_watermark: Annotated[float, Field(ge=0, lt=0.5)] = 0.01
    load_source: Literal["ssd", "host", "multicast"] = "ssd"
    load_s: dict[Literal["ssd", "host", "multicast"], NonNegative] | None = None
    prefix_cache: PrefixCacheConfig | None = None
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

    @property
    def flows(self) -> bool:
        """Whether its weights come over links."""
        return self.weights == "flow"

    @property
    def llms(self) -> tuple[str, ...]:
        """Every LLM that an instance can serve, the first one first."""
        return (self.llm, *self.swaps_to)

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
        if self.batch_limit > self.max_batch:
            raise ValueError(
                f"batch_limit = {self.batch_limit}: must be at most max_batch = {self.max_batch}"
            )
        draft = None
        if self.speculative is not None:
            draft = check_draft(self.llm, self.tp, self.speculative)
        kv_capacity_tokens(self.llm, self.gpu, self.tp, draft=draft)
        self._check_swaps()
        self._check_phase()
        for name in ("swaps_to", "load_s", "speculative"):
            if self.flows and getattr(self, name):
                raise ValueError(f"{name}: not together with weights = 'flow'")
        return self

    def _check_phase(self) -> None:
        if self.phase == "both":
            return
        for name in ("evicts", "evicts_in_order", "swaps_to", "static_batch", "async_kv"):
            if getattr(self, name):
                raise ValueError(f"{name}: not together with phase = {self.phase!r}")
        for name in ("pull", "chunk_tokens"):
            if self.phase == "decode" and getattr(self, name):
                raise ValueError(f"{name}: not together with phase = 'decode'")

    def _check_swaps(self) -> None:
        for llm in self.swaps_to:
            kv_capacity_tokens(llm, self.gpu, self.tp)
        if len(set(self.llms)) < len(self.llms):
            raise ValueError(f"swaps_to = {list(self.swaps_to)}: names an LLM twice")
        for llm in self.warm:
            if llm not in self.llms:
                raise ValueError(f"warm: {llm!r} must be one of {list(self.llms)}")
        for name in ("prefix_cache", "speculative", "load_s"):
            if self.swaps_to and getattr(self, name) is not None:
                raise ValueError(f"{name}: not together with swaps_to")
        if self.static_batch and self.chunk_tokens > 0:
            raise ValueError("static_batch: not together with chunk_tokens")


class QueueConfig(_Frozen):
    """A queue shared by the instances that pull from it; it holds requests of one LLM, or of any (None)."""

    name: Name
    llm: str | None = None

    @field_validator("llm")
    @classmethod
    def _known_llm(cls, value: str | None) -> str | None:
        return None if value is None else llm_card(value).name


class PlacementConfig(_Frozen):
    """What best fit goes by (Aladdin; docs/engine.md, section 14). Times left out are derived.

    Attributes:
        prefill_const_s, prefill_per_token_s: a prefill iteration takes so long; None: fitted to the
            iteration times of the route's first pool.
        decode_const_s, decode_per_request_s, decode_per_token_s: the same of a decode iteration, from the
            first pool of those where requests decode.
        ttft_s, itl_s: targets; None: those of the class.
        gamma: share of the predicted output that counts as context (0: only the first iteration meets the
            target by prediction, 1: the last one too).
        theta: share of the slack that may be used; below 1 it allows for wrong predictions.
        fallback: what becomes of a request that no instance may take: it waits in the gateway, or goes to
            the least full instance.
        scaled_norm: requests and context are measured in batch limits and KV capacities before the
            fullest instance is looked for; otherwise as Aladdin prints it.
    """

    prefill_const_s: Positive | None = None
    prefill_per_token_s: NonNegative | None = None
    decode_const_s: NonNegative | None = None
    decode_per_request_s: NonNegative | None = None
    decode_per_token_s: Positive | None = None
    ttft_s: Annotated[float, Field(gt=0, le=1000)] | None = None
    itl_s: Annotated[float, Field(gt=0, le=1000)] | None = None
    gamma: Annotated[float, Field(ge=0, le=1)] = 0.5
    theta: Annotated[float, Field(ge=0, le=10)] = 0.9
    fallback: Literal["wait", "least"] = "wait"
    scaled_norm: bool = False


class RouteConfig(_Frozen):
    """How requests of one class (of one LLM, or of each) find an instance: docs/engine.md, section 6.

    Attributes:
        slo_class: name of the class, "*" for all that no other route names.
        llm: name, or None for every LLM.
        kind: the rule.
        pools, overflow: candidate pools; those of another LLM are passed over.
        queue: shared queue of the class, if it has one.
        overflow_share: share of requests that try the overflow pools first.
        decode_pools, decode_kind: where requests that a prefill pool hands over go on, and the rule.
        placement: for kind or decode_kind "best-fit"; None there: all by default.
    """

    slo_class: str = "*"
    llm: str | None = None
    kind: Literal[
        "round-robin",
        "jsq-requests",
        "jsq-tokens",
        "power-of-two",
        "least-kv",
        "class-affine",
        "shared-queue",
        "custom",
        "hold",
        "best-fit",
    ] = "jsq-requests"
    pools: tuple[Name, ...] = ()
    overflow: tuple[Name, ...] = ()
    queue: Name | None = None
    overflow_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    decode_pools: tuple[Name, ...] = ()
    decode_kind: Literal[
        "round-robin",
        "jsq-requests",
        "jsq-tokens",
        "power-of-two",
        "least-kv",
        "custom",
        "hold",
        "best-fit",
    ] = "jsq-requests"
    placement: PlacementConfig | None = None


class FleetConfig(_Frozen):
    """The machines.

    Attributes:
        max_gpus: GPUs that all instances together may hold.
        gpus_per_host: GPUs of a machine; instances are packed in order.
        host_keep_alive_s: how long a machine keeps weights in memory after its last instance left.
        host_cache: "keep-alive": machines have in memory what that leaves there; "always": all of them have
            all weights all the time, whatever `host_keep_alive_s` says.
        host_copies: "none", or "one": of every LLM whose weights flow there is one copy for ever in some
            machine's memory, LLM by LLM on the next machine (BlitzScale, section 5.3).
        block_tokens: KV tokens per page; half of one is charged to each running request.
        pools, queues, routes: as their classes say.
        group_queues: shared queues without a name, for requests of any LLM, that policies use for request
            groups (`Command.regroup`, `Command.pull`).
    """

    max_gpus: Annotated[int, Field(ge=1, le=100_000)] = 16
    gpus_per_host: Annotated[int, Field(ge=1, le=64)] = 8
    host_keep_alive_s: NonNegative = 300.0
    host_cache: Literal["keep-alive", "always"] = "keep-alive"
    host_copies: Literal["none", "one"] = "none"
    block_tokens: Annotated[int, Field(ge=1, le=1024)] = 16
    pools: Annotated[tuple[PoolConfig, ...], Field(min_length=1)]
    queues: tuple[QueueConfig, ...] = ()
    group_queues: Annotated[int, Field(ge=0, le=10_000)] = 0
    routes: Annotated[tuple[RouteConfig, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> FleetConfig:
        pools = _by_name(self.pools, "pools")
        queues = _by_name(self.queues, "queues")
        for pool in self.pools:
            if pool.tp > self.max_gpus:
                raise ValueError(
                    f"max_gpus = {self.max_gpus}: cannot hold one instance of pool "
                    f"{pool.name!r}, which takes {pool.tp}"
                )
            for name in pool.pull:
                queue = _known(name, queues, f"pools.{pool.name}.pull")
                if queue.llm is not None and queue.llm not in pool.llms:
                    raise ValueError(
                        f"pools.{pool.name}.pull: queue {name!r} holds requests of {queue.llm}, "
                        f"the pool serves {' and '.join(pool.llms)}"
                    )
        held = sum(pool.initial_instances * pool.tp for pool in self.pools)
        if held > self.max_gpus:
            raise ValueError(
                f"max_gpus = {self.max_gpus}: the initial instances already hold {held}"
            )
        for k, route in enumerate(self.routes):
            for name in (*route.pools, *route.overflow):
                if _known(name, pools, f"routes.{k}.pools").swaps_to:
                    raise ValueError(
                        f"routes.{k}.pools: {name!r} swaps between LLMs, so requests come to it from "
                        "shared queues only"
                    )
                if pools[name].phase == "decode":
                    raise ValueError(
                        f"routes.{k}.pools: {name!r} is a decode pool; name it in decode_pools"
                    )
            for name in route.decode_pools:
                if _known(name, pools, f"routes.{k}.decode_pools").phase != "decode":
                    raise ValueError(f"routes.{k}.decode_pools: {name!r} is no decode pool")
            if route.queue is not None:
                _known(route.queue, queues, f"routes.{k}.queue")
            elif route.kind == "shared-queue":
                raise ValueError(f"routes.{k}.queue is missing: kind shared-queue needs one")
        self._check_twins(pools)
        if self.host_copies != "none" and not any(pool.flows for pool in self.pools):
            raise ValueError(
                f"host_copies = {self.host_copies!r}: no pool has weights = 'flow' to load from them"
            )
        return self

    def _check_twins(self, pools: dict[str, PoolConfig]) -> None:
        named: set[str] = set()
        for pool in self.pools:
            if pool.twin_of is None:
                continue
            where = f"pools.{pool.name}.twin_of"
            twin = _known(pool.twin_of, pools, where)
            if twin.name == pool.name or twin.twin_of is not None or twin.name in named:
                raise ValueError(
                    f"{where} = {twin.name!r}: must be another pool that names no twin and is nobody's yet"
                )
            named.add(twin.name)
            if not (pool.flows and twin.flows):
                raise ValueError(f"{where}: both pools need weights = 'flow'")
            for name in ("llm", "gpu", "tp", "max_instances"):
                if getattr(pool, name) != getattr(twin, name):
                    raise ValueError(
                        f"{where}: {name} = {getattr(pool, name)!r} must be {getattr(twin, name)!r} as in "
                        f"{twin.name!r}"
                    )
            both = pool.initial_instances + twin.initial_instances
            if both > pool.max_instances:
                raise ValueError(
                    f"{where}: {both} initial instances of both pools, on GPUs for {pool.max_instances}"
                )

    @property
    def llms(self) -> tuple[str, ...]:
        """Names of the LLMs that the pools serve, in order of first mention."""
        return tuple(dict.fromkeys(llm for pool in self.pools for llm in pool.llms))


class RewardConfig(_Frozen):
    """What an episode costs; the reward of a step is minus the step's cost (`control.reward`).

    Attributes:
        gpu_weight: cost of holding `reference_gpus` GPUs (loading and draining included) for one
            control interval.
        violation_weight: cost of violating as many requests of a class as are expected to arrive
            in one control interval, times the class's own weight.
        load_weight: cost of starting one instance.
        reference_gpus: see `gpu_weight`; the fleet's `max_gpus` if None.
    """

    gpu_weight: NonNegative = 1.0
    violation_weight: NonNegative = 10.0
    load_weight: NonNegative = 0.02
    reference_gpus: Positive | None = None


class Scenario(_Frozen):
    """One family of episodes: the same cluster, classes and kind of workload, another seed each.

    Attributes:
        name, description: for people.
        horizon_s: length of an episode.
        control_interval_s: time between two decisions, or the longest, see `decisions`.
        decisions: when a policy is asked: at the end of every control interval, or at every arrival
            besides, and while anybody waits in a gateway: after `retry_s`, or after a millisecond if the
            last orders have made one leave it.
        retry_s: see `decisions`.
        classes: SLO classes, the tightest first.
        workload: what arrives.
        fleet: what serves.
        network: links and speeds that weights are loaded over, or the name of a machine that has them
            (`cluster.machines`): "blitzscale-a", "p4d.24xlarge".
        reward: what it costs.
        itl_statistic: which inter-token latency of a request its ITL target holds for.
        impossible_commands: "clip" orders to what is possible (and count it), or raise an "error".
        iteration_times: data file of iteration-time models in place of the shipped one.
        memory_fraction: share of GPU memory that an engine uses for weights, activations and KV.
    """

    name: Name
    description: str = ""
    horizon_s: Annotated[float, Field(gt=0, le=MAX_HORIZON_S)] = 3600.0
    control_interval_s: Annotated[float, Field(gt=0, le=MAX_HORIZON_S)] = 10.0
    decisions: Literal["intervals", "arrivals"] = "intervals"
    retry_s: Annotated[float, Field(ge=1e-3, le=1000)] = 0.1
    classes: Annotated[tuple[SLOClass, ...], Field(min_length=1, max_length=16)] = DEFAULT_CLASSES
    workload: WorkloadConfig
    fleet: FleetConfig
    network: NetworkConfig = NetworkConfig()
    reward: RewardConfig = RewardConfig()
    itl_statistic: Literal["mean", "max"] = "mean"
    impossible_commands: Literal["clip", "error"] = "clip"
    iteration_times: str | None = None
    memory_fraction: Annotated[float, Field(gt=0, le=1)] = 0.9

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        classes = _by_name(self.classes, "classes")
        for name in classes:
            if name == "joint" or not re.fullmatch(NAME_PATTERN, name):
                raise ValueError(
                    f"classes: name {name!r} must be letters, digits, '_', '.', '-', and not 'joint'"
                )
        llms = self.fleet.llms
        if self.control_interval_s > self.horizon_s:
            raise ValueError(
                f"control_interval_s = {self.control_interval_s}: must be at most "
                f"horizon_s = {self.horizon_s}"
            )
        parts: list[StreamConfig | BatchQueueConfig] = [
            *self.workload.streams,
            *self.workload.batch_queues,
        ]
        for part in parts:
            if part.slo_class is not None:
                _known(part.slo_class, classes, f"workload.{part.name}.slo_class")
            if part.llm is not None and llm_card(part.llm).name not in llms:
                raise ValueError(
                    f"workload.{part.name}.llm = {part.llm!r}: no pool serves it; "
                    f"pools serve {list(llms)}"
                )
        for k, route in enumerate(self.fleet.routes):
            if route.slo_class != "*":
                _known(route.slo_class, classes, f"fleet.routes.{k}.slo_class")
        for llm in llms:
            for slo_class in self.classes:
                route = self.route_of(llm, slo_class.name)
                prefills = [
                    p.name for p in self.fleet.pools if p.llm == llm and p.phase == "prefill"
                ]
                decodes = {p.name for p in self.fleet.pools if p.llm == llm}
                if prefills and not decodes & set(route.decode_pools):
                    raise ValueError(
                        f"fleet.routes: class {slo_class.name!r} needs decode_pools for {llm}, since "
                        f"pool {prefills[0]!r} hands its requests over"
                    )
                evicting = any(p.evicts for p in self.fleet.pools if llm in p.llms)
                if evicting and slo_class.priority == 1 and route.queue is None:
                    raise ValueError(
                        f"fleet.routes: class {slo_class.name!r} needs a queue, since a pool of "
                        f"{llm} evicts its requests"
                    )
        return self

    def route_of(self, llm: str, slo_class: str) -> RouteConfig:
        """The most specific route of an LLM and a class (class and LLM, class, LLM, neither)."""
        best, rank = None, -1
        for route in self.fleet.routes:
            if route.slo_class not in ("*", slo_class):
                continue
            if route.llm is not None and llm_card(route.llm).name != llm:
                continue
            mine = 2 * (route.slo_class != "*") + (route.llm is not None)
            if mine > rank:
                best, rank = route, mine
        if best is None:
            raise ValueError(f"fleet.routes: none for class {slo_class!r} of {llm}")
        return best

    @property
    def n_steps(self) -> int:
        """Control intervals per episode: the last one may be shorter."""
        whole = int(self.horizon_s // self.control_interval_s)
        return whole + (self.horizon_s - whole * self.control_interval_s > 1e-9)


def _by_name(parts: tuple[Any, ...], what: str) -> dict[str, Any]:
    known = {part.name: part for part in parts}
    if len(known) < len(parts):
        names = [part.name for part in parts]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{what}: two are called {twice!r}; names must be unique")
    return known


def _known(name: str, known: dict[str, Any], where: str) -> Any:
    if name not in known:
        raise ValueError(f"{where} = {name!r}: unknown; there are {sorted(known)}")
    return known[name]
