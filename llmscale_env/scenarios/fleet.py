"""What a scenario says of the machines: pools together, shared queues, routes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from llmscale_env.cluster.cards import llm_card
from llmscale_env.scenarios.fields import Frozen, Name, NonNegative, Positive, by_name, known_by
from llmscale_env.scenarios.pools import PoolConfig
from llmscale_env.scenarios.regions import QueueManagerConfig, Utilisation


class QueueConfig(Frozen):
    """A queue shared by the instances that pull from it; it holds requests of one LLM, or of any (None).

    One with a `region` is for clients of that region (`RouteConfig.region_queues`); in a file "*" stands
    for a queue for each region (`replicate`).
    """

    name: Name
    llm: str | None = None
    region: Name | None = None

    @field_validator("llm")
    @classmethod
    def _known_llm(cls, value: str | None) -> str | None:
        return None if value is None else llm_card(value).name


class PlacementConfig(Frozen):
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
        saved_over_tokens: constraint (d) as printed: a running request has saved the ITL target times its
            tokens. Otherwise it is times the intervals between them, as its mean ITL is measured.
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
    saved_over_tokens: bool = False


class RouteConfig(Frozen):
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
        threshold: of kind "regional": the first region in order of preference whose effective memory
            utilisation is below it gets the request, else the one with the least (section 17).
        preference: of clients of a region, the regions in which the route has pools, in order; regions of
            clients that it does not name: their own first, then by median latency, then as listed.
        region_queues: of kind "shared-queue": the queue by region of the client, in place of `queue`.
        prefill_load_scale, overlap_score_credit: of kind "prefix-aware", as NVIDIA Dynamo's KV router has
            them (`--router-prefill-load-scale`, `--router-kv-overlap-score-credit`; both 1 by default there
            too): weight of prompt tokens to compute, and share of prefix hits that counts.
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
        "regional",
        "prefix-aware",
        "least-pending-prefill",
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
    threshold: Utilisation = 0.7
    preference: dict[Name, tuple[Name, ...]] = {}
    region_queues: dict[Name, Name] = {}
    prefill_load_scale: Annotated[float, Field(ge=0, le=1000)] = 1.0
    overlap_score_credit: Annotated[float, Field(ge=0, le=1)] = 1.0

    @property
    def queues(self) -> tuple[str, ...]:
        """Every shared queue that it names."""
        first = () if self.queue is None else (self.queue,)
        return tuple(dict.fromkeys((*first, *self.region_queues.values())))


class FleetConfig(Frozen):
    """The machines.

    Attributes:
        max_gpus: GPUs that all instances together may hold.
        gpus_per_host: GPUs of a machine; instances are packed in order.
        host_keep_alive_s: how long a machine keeps weights in memory after its last instance left, and a
            process sleeps (a pool's `load_source`).
        host_cache: "keep-alive": machines have in memory what that leaves there; "always": all of them have
            all weights all the time, whatever `host_keep_alive_s` says, and all slots a process that sleeps.
        host_copies: "none", or "one": of every LLM whose weights flow there is one copy for ever in some
            machine's memory, LLM by LLM on the next machine (BlitzScale, section 5.3).
        block_tokens: KV tokens per page; half of one is charged to each running request.
        context_limits: "reject": requests with more tokens than their LLM's card allows for prompt and output
            together are rejected; "ignore": an LLM takes whatever fits in KV memory.
        pools, queues, routes: as their classes say.
        group_queues: shared queues without a name, for requests of any LLM, that policies use for request
            groups (`Command.regroup`, `Command.pull`).
        utilisation: memory in use by which requests are sent to regions, endpoints scale and queue managers
            take requests. "running": that of requests that run; "demanded": also what those that wait
            at an instance will ask for.
        queue_manager: lets endpoints take requests that can wait while they are little used; None: shared
            queues are pulled from, as pools say.
    """

    max_gpus: Annotated[int, Field(ge=1, le=100_000)] = 16
    gpus_per_host: Annotated[int, Field(ge=1, le=64)] = 8
    host_keep_alive_s: NonNegative = 300.0
    host_cache: Literal["keep-alive", "always"] = "keep-alive"
    host_copies: Literal["none", "one"] = "none"
    block_tokens: Annotated[int, Field(ge=1, le=1024)] = 16
    context_limits: Literal["reject", "ignore"] = "ignore"
    pools: Annotated[tuple[PoolConfig, ...], Field(min_length=1)]
    queues: tuple[QueueConfig, ...] = ()
    group_queues: Annotated[int, Field(ge=0, le=10_000)] = 0
    utilisation: Literal["running", "demanded"] = "running"
    queue_manager: QueueManagerConfig | None = None
    routes: Annotated[tuple[RouteConfig, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> FleetConfig:
        regional = any(route.kind == "regional" for route in self.routes)
        if self.utilisation == "demanded" and not (regional or self.queue_manager):
            raise ValueError(
                "utilisation = 'demanded': needs routes of kind regional or a queue_manager; nothing else "
                "goes by it"
            )
        pools = by_name(self.pools, "pools")
        queues = by_name(self.queues, "queues")
        for pool in self.pools:
            if pool.tp > self.max_gpus:
                raise ValueError(
                    f"max_gpus = {self.max_gpus}: cannot hold one instance of pool "
                    f"{pool.name!r}, which takes {pool.tp}"
                )
            if (
                pool.load_source == "sleep"
                and self.host_keep_alive_s == 0
                and self.host_cache == "keep-alive"
            ):
                raise ValueError(
                    f"host_keep_alive_s = 0: must be positive for load_source = 'sleep' of pool {pool.name!r}"
                )
            for name in pool.pull:
                queue = known_by(name, queues, f"pools.{pool.name}.pull")
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
                if known_by(name, pools, f"routes.{k}.pools").swaps_to:
                    raise ValueError(
                        f"routes.{k}.pools: {name!r} swaps between LLMs, so requests come to it from "
                        "shared queues only"
                    )
                if pools[name].phase == "decode":
                    raise ValueError(
                        f"routes.{k}.pools: {name!r} is a decode pool; name it in decode_pools"
                    )
            for name in route.decode_pools:
                if known_by(name, pools, f"routes.{k}.decode_pools").phase != "decode":
                    raise ValueError(f"routes.{k}.decode_pools: {name!r} is no decode pool")
            for name in route.queues:
                known_by(name, queues, f"routes.{k}.queue")
            if route.kind == "shared-queue" and not route.queues:
                raise ValueError(f"routes.{k}.queue is missing: kind shared-queue needs one")
            self._check_regional(f"routes.{k}", route, pools)
        self._check_twins(pools)
        self._check_managers(queues)
        if self.host_copies != "none" and not any(pool.flows for pool in self.pools):
            raise ValueError(
                f"host_copies = {self.host_copies!r}: no pool has weights = 'flow' to load from them"
            )
        return self

    def _check_regional(self, where: str, route: RouteConfig, pools: dict[str, PoolConfig]) -> None:
        if route.kind != "regional":
            return
        if not route.pools:
            raise ValueError(f"{where}.pools is missing: kind regional needs some")
        for name in ("overflow", "decode_pools"):
            if getattr(route, name):
                raise ValueError(f"{where}.{name}: not together with kind = 'regional'")
        for name in route.pools:
            if pools[name].phase != "both":
                raise ValueError(
                    f"{where}.pools: {name!r} serves one phase only, kind regional needs both"
                )

    def _check_managers(self, queues: dict[str, QueueConfig]) -> None:
        if self.queue_manager is None:
            return
        managed = [route for route in self.routes if route.kind == "shared-queue"]
        if not any(route.pools for route in managed):
            raise ValueError(
                "queue_manager: no route of kind shared-queue names pools that could take"
            )
        names = {name for route in managed for name in route.queues}
        for name in names:
            if queues[name].llm is None:
                raise ValueError(f"queues.{name}.llm is missing: a queue manager's is of one LLM")
        for pool in self.pools:
            for name in pool.pull:
                if name in names:
                    raise ValueError(
                        f"pools.{pool.name}.pull: queue {name!r} is its manager's, no instance pulls from it"
                    )

    def _check_twins(self, pools: dict[str, PoolConfig]) -> None:
        named: set[str] = set()
        for pool in self.pools:
            if pool.twin_of is None:
                continue
            where = f"pools.{pool.name}.twin_of"
            twin = known_by(pool.twin_of, pools, where)
            if twin.name == pool.name or twin.twin_of is not None or twin.name in named:
                raise ValueError(
                    f"{where} = {twin.name!r}: must be another pool, without a twin, and no other pool's yet"
                )
            named.add(twin.name)
            if not (pool.flows and twin.flows):
                raise ValueError(f"{where}: both pools need weights = 'flow'")
            for name in ("spot", "scaling"):
                if getattr(pool, name) or getattr(twin, name):
                    raise ValueError(f"{where}: not together with {name}")
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
    def caching_pools(self) -> tuple[int, ...]:
        """Numbers of the pools whose instances have a prefix cache by blocks (`v1`)."""
        return tuple(
            p for p, pool in enumerate(self.pools) if pool.v1 is not None and pool.v1.prefix_cache
        )

    @property
    def llms(self) -> tuple[str, ...]:
        """Names of the LLMs that the pools serve, in order of first mention."""
        return tuple(dict.fromkeys(llm for pool in self.pools for llm in pool.llms))
