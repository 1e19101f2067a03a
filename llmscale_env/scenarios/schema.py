"""What a scenario is: one frozen, validated object that says everything about a family of episodes.

Every name (LLM, GPU, class, pool, queue) is checked here, so whatever is built from a scenario may
take it at its word. Its machines are in `fleet` and `pools`.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from llmscale_env.cluster.cards import llm_card
from llmscale_env.cluster.loading import NetworkConfig
from llmscale_env.scenarios.fields import (
    NAME_PATTERN,
    Frozen,
    Name,
    NonNegative,
    Positive,
    by_name,
    known_by,
)
from llmscale_env.scenarios.fleet import FleetConfig, RouteConfig
from llmscale_env.scenarios.regions import LatencyConfig
from llmscale_env.workload.config import (
    DEFAULT_CLASSES,
    TEN_MINUTES_S,
    JobsConfig,
    SLOClass,
    WorkloadConfig,
)

MAX_HORIZON_S = 30 * 86_400.0
"""Engine time would last for 53 days; a scenario may use 30."""


class PriceConfig(Frozen):
    """What an episode costs in dollars.

    Attributes:
        gpu_hour_usd: a GPU held for an hour, loading and draining included.
        late_request_usd: a request that misses a target or is rejected, times the weight of its class; or by
            class, 0 for those that are not named.
        start_usd: an instance that is started.
        unit_usd: so many dollars are a reward of -1.
    """

    gpu_hour_usd: NonNegative = 2.5
    late_request_usd: NonNegative | dict[Name, NonNegative] = 0.002
    start_usd: NonNegative = 0.0
    unit_usd: Positive = 1.0


class RewardConfig(Frozen):
    """What an episode costs; the reward of a step is minus the step's cost (`control.reward`).

    Attributes:
        prices: costs in dollars, in place of all that follows. Work that the horizon leaves is charged its
            share of a full batch then, and who can no longer be served in time is late
            (`control.unfinished_work`).
        gpu_weight: cost of holding `reference_gpus` GPUs (loading and draining included) for one
            control interval.
        violation_weight: cost of violating as many requests of a class as are expected to arrive
            in one control interval, times the class's own weight.
        load_weight: cost of starting one instance.
        reference_gpus: see `gpu_weight`; the fleet's `max_gpus` if None.
    """

    prices: PriceConfig | None = None
    gpu_weight: NonNegative = 1.0
    violation_weight: NonNegative = 10.0
    load_weight: NonNegative = 0.02
    reference_gpus: Positive | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> RewardConfig:
        if self.prices is None:
            return self
        for name in ("gpu_weight", "violation_weight", "load_weight", "reference_gpus"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} = {getattr(self, name)}: not together with prices")
        return self


class Scenario(Frozen):
    """One family of episodes: the same cluster, classes and kind of workload, another seed each.

    Attributes:
        name, description: for people.
        horizon_s: length of an episode.
        control_interval_s: time between two decisions, or the longest, see `decisions`.
        decisions: when a policy is asked: at the end of every control interval, or at every arrival
            besides, and while anybody waits in a gateway: after `retry_s`, or after a millisecond if the
            last orders have made one leave it.
        retry_s: see `decisions`.
        metric_delay_s: what a policy (or an environment's agent) is shown is the cluster as it was so long
            ago, a whole number of control intervals, its clock included; in the first ones, as it was at
            the start. Orders count at once.
        classes: SLO classes, the tightest first.
        workload: what arrives.
        history_s: requests are drawn from so long before the start; the cluster does not serve those, but a
            controller knows what they asked for (`ClusterView.demand`). Times of streams count from there,
            those of batch queues from the episode's start.
        regions: names of the regions that clients and pools are in; empty: one without a name.
        latency: of the network, from clients' regions to those that serve; None: requests take no time.
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
    metric_delay_s: Annotated[float, Field(ge=0, le=MAX_HORIZON_S)] = 0.0
    classes: Annotated[tuple[SLOClass, ...], Field(min_length=1, max_length=16)] = DEFAULT_CLASSES
    workload: WorkloadConfig
    history_s: Annotated[float, Field(ge=0, le=MAX_HORIZON_S)] = 0.0
    regions: Annotated[tuple[Name, ...], Field(max_length=100)] = ()
    latency: LatencyConfig | None = None
    fleet: FleetConfig
    network: NetworkConfig = NetworkConfig()
    reward: RewardConfig = RewardConfig()
    itl_statistic: Literal["mean", "max"] = "mean"
    impossible_commands: Literal["clip", "error"] = "clip"
    iteration_times: str | None = None
    memory_fraction: Annotated[float, Field(gt=0, le=1)] = 0.9

    @field_validator("workload")
    @classmethod
    def _by_card_name(cls, workload: WorkloadConfig) -> WorkloadConfig:
        """LLMs by their cards' names, as pools have them; a workload itself knows no cards."""
        changes = {}
        for field in ("streams", "batch_queues", "jobs"):
            parts = getattr(workload, field)
            named = tuple(
                part if part.llm is None or part.llm == llm_card(part.llm).name
                else part.model_copy(update={"llm": llm_card(part.llm).name})
                for part in parts
            )  # fmt: skip
            if named != parts:
                changes[field] = named
        return workload.model_copy(update=changes) if changes else workload

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        classes = by_name(self.classes, "classes")
        for name in classes:
            if name == "joint" or not re.fullmatch(NAME_PATTERN, name):
                raise ValueError(
                    f"classes: name {name!r} must be letters, digits, '_', '.', '-', and not 'joint'"
                )
        prices = self.reward.prices
        if prices is not None and isinstance(prices.late_request_usd, dict):
            for name in prices.late_request_usd:
                known_by(name, classes, "reward.prices.late_request_usd")
        for slo_class in self.classes:
            group = slo_class.group
            if group is None:
                continue
            if group in classes or group == "joint" or not re.fullmatch(NAME_PATTERN, group):
                raise ValueError(
                    f"classes.{slo_class.name}.group = {group!r}: must be letters, digits, '_', '.', '-', "
                    "and not 'joint' or the name of a class"
                )
        llms = self.fleet.llms
        if self.control_interval_s > self.horizon_s:
            raise ValueError(
                f"control_interval_s = {self.control_interval_s}: must be at most "
                f"horizon_s = {self.horizon_s}"
            )
        self._check_history()
        self._check_delay()
        if len(set(self.regions)) < len(self.regions):
            raise ValueError(f"regions = {list(self.regions)}: names must be unique")
        for name in self.workload.regions:
            if name not in self.regions:
                raise ValueError(
                    f"workload: region {name!r} is unknown; regions are {list(self.regions)}"
                )
        self._check_regions()
        manager = self.fleet.queue_manager
        if manager is not None and isinstance(manager.promote_after_s, dict):
            for name in manager.promote_after_s:
                known_by(name, classes, "fleet.queue_manager.promote_after_s")
        for job in self.workload.jobs:
            for name in job.classes:
                known_by(name, classes, f"workload.{job.name}.classes")
        for part in self.workload.parts:
            if not isinstance(part, JobsConfig) and part.slo_class is not None:
                known_by(part.slo_class, classes, f"workload.{part.name}.slo_class")
            if part.llm is not None and part.llm not in llms:
                raise ValueError(
                    f"workload.{part.name}.llm = {part.llm!r}: no pool serves it; "
                    f"pools serve {list(llms)}"
                )
        for k, route in enumerate(self.fleet.routes):
            if route.slo_class != "*":
                known_by(route.slo_class, classes, f"fleet.routes.{k}.slo_class")
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
                if evicting and slo_class.priority == 1 and not route.queues:
                    raise ValueError(
                        f"fleet.routes: class {slo_class.name!r} needs a queue, since a pool of "
                        f"{llm} evicts its requests"
                    )
        return self

    def _check_history(self) -> None:
        if self.workload.counts_history and self.history_s % TEN_MINUTES_S:
            raise ValueError(
                f"history_s = {self.history_s:g}: must be a whole number of {TEN_MINUTES_S} s, for "
                "which the rates of this workload hold"
            )

    def _check_delay(self) -> None:
        if self.metric_delay_s == 0:
            return
        steps = self.metric_delay_s / self.control_interval_s
        if abs(steps - round(steps)) > 1e-9 or self.metric_delay_s > self.horizon_s:
            raise ValueError(
                f"metric_delay_s = {self.metric_delay_s:g}: must be a whole number of control intervals of "
                f"{self.control_interval_s:g} s, and at most horizon_s = {self.horizon_s:g}"
            )
        if self.decisions != "intervals":
            raise ValueError(
                f"metric_delay_s = {self.metric_delay_s:g}: not together with decisions = {self.decisions!r}"
            )

    def _check_regions(self) -> None:
        if len(self.region_names) > 64:
            raise ValueError(f"regions: {len(self.region_names)} of them, must be at most 64")
        known = dict.fromkeys(self.regions)
        named = [("pools", pool.name, pool.region) for pool in self.fleet.pools]
        named += [("queues", queue.name, queue.region) for queue in self.fleet.queues]
        for kind, name, region in named:
            if region is not None:
                known_by(region, known, f"fleet.{kind}.{name}.region")
        for name in self.latency.regions if self.latency else ():
            known_by(name, known, "latency")
        homes = {pool.name: self.region_of(pool.region) for pool in self.fleet.pools}
        for k, route in enumerate(self.fleet.routes):
            there = {homes[name] for name in route.pools}
            for client, order in route.preference.items():
                where = f"fleet.routes.{k}.preference"
                known_by(client, known, where)
                if set(order) != there or len(order) != len(there):
                    raise ValueError(
                        f"{where}.{client} = {list(order)}: must name each of {sorted(there)} once, the "
                        "regions of the route's pools"
                    )
            if route.region_queues and set(route.region_queues) != set(self.region_names):
                raise ValueError(
                    f"fleet.routes.{k}.region_queues = {route.region_queues}: must have a queue for each "
                    f"of {list(self.region_names)}"
                )

    @property
    def class_groups(self) -> dict[str, tuple[int, ...]]:
        """Numbers of the classes of each group, in order; a class without one stands for itself."""
        found: dict[str, tuple[int, ...]] = {}
        for c, slo_class in enumerate(self.classes):
            name = slo_class.group or slo_class.name
            found[name] = (*found.get(name, ()), c)
        return found

    @property
    def named_groups(self) -> dict[str, tuple[int, ...]]:
        """The same without those that are classes."""
        names = {c.name for c in self.classes}
        return {name: rows for name, rows in self.class_groups.items() if name not in names}

    def region_of(self, name: str | None) -> str:
        """The region that a part of the fleet names, or the first one."""
        return self.region_names[0] if name is None else name

    def preference_of(self, route: RouteConfig, client: str) -> tuple[str, ...]:
        """Regions of a route's pools in the order in which clients of a region try them."""
        if client in route.preference:
            return route.preference[client]
        homes = {pool.name: self.region_of(pool.region) for pool in self.fleet.pools}
        there = {homes[name] for name in route.pools}
        names = [name for name in self.region_names if name in there]
        latency = self.latency
        if latency is None:
            return tuple(sorted(names, key=lambda name: name != client))
        return tuple(sorted(names, key=lambda n: (n != client, latency.median(client, n))))

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
    def delay_steps(self) -> int:
        """Control intervals by which what is shown is behind."""
        return round(self.metric_delay_s / self.control_interval_s)

    @property
    def as_calibrated(self) -> Scenario:
        """The cluster as everybody takes it to be: without calibration errors."""
        right = {"time_factor": 1.0, "load_time_factor": 1.0, "acquire_time_factor": 1.0}
        if all(getattr(pool, name) == 1.0 for pool in self.fleet.pools for name in right):
            return self
        pools = tuple(pool.model_copy(update=right) for pool in self.fleet.pools)
        return self.model_copy(update={"fleet": self.fleet.model_copy(update={"pools": pools})})

    @property
    def region_names(self) -> tuple[str, ...]:
        """Names behind the `region` index of the episode's requests; at least one."""
        return self.regions or ("region",)

    @property
    def n_steps(self) -> int:
        """Control intervals per episode: the last one may be shorter."""
        whole = int(self.horizon_s // self.control_interval_s)
        return whole + (self.horizon_s - whole * self.control_interval_s > 1e-9)
