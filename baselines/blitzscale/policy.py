"""BlitzScale and what it compares itself with, on a cluster: who scales when, and loads from where.

All of them that scale go by the same trigger (`trigger`) above the same base fleet (`base_fleet`: section 1
says it of every service that scales, not of BlitzScale alone); they differ in where weights come from and in
whether instances work while they load.

Ours, for all of them, as the paper leaves open what happens with few GPUs: decode instances start before
prefill ones. GPUs are divided by want (`trigger.divided`) when nearly all decode memory is taken and more is
wanted than there are GPUs for. What prefill then has too much becomes decode instances (BlitzScale) or drains
(the others). What waits at full decode instances goes to those that have room (`monitor.spread`). Instances
in repair do not count, so that others start in their place (section 5.3: "autoscale new instances using our
scaling mechanism"). They count again when they load.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from baselines.blitzscale.base_fleet import BaseFleet
from baselines.blitzscale.monitor import (
    InstanceCapacity,
    Monitor,
    Pair,
    Repairs,
    capacity_of,
    kv_tokens,
    pair_of,
    spread,
    waiting_tokens,
)
from baselines.blitzscale.trigger import (
    DECODE,
    PREFILL,
    CodeTrigger,
    PaperTrigger,
    divided,
    instances_for,
)
from baselines.parameters import (
    NamedPolicy,
    NonNegative,
    Parameters,
    PolicyError,
    PositiveCount,
)
from baselines.space import Choice, Real, Space, Whole
from llmscale_env.cluster.topology import first_gpus
from llmscale_env.control.command import Command
from llmscale_env.control.scaling import FleetSeen, Scaler
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import pool_layout, pool_tables
from llmscale_env.sim.orders import Loads
from llmscale_env.sim.spec import FROM_SSD, InstanceState


class ScalingParameters(Parameters):
    """When instances start and stop.

    Attributes:
        trigger: the "paper"'s rule, or the released "code"'s (`trigger`).
        timeout_s: of the scale-down; None: 2 s (paper), 1.5 s (code).
        window_s: of the tokens per second that the paper's rule goes by (ours).
        prefill_tokens_per_s, decode_tokens: of one instance; None: profiled.
        min_prefill, min_decode: instances that always stay; None: the average number required so far
            (section 1: "the average number of instances required over the long term"; `base_fleet`).
        base_start_s: seconds for which the fleet at the start counts in it (ours).
        base_over: "all" time counts, or only "busy" time, when the load asks for an instance (ours: it keeps
            more where requests come in bursts with silence between them).
    """

    trigger: Literal["paper", "code"] = "paper"
    timeout_s: NonNegative | None = None
    window_s: Annotated[float, Field(ge=0.001, le=3600)] = 1.0
    prefill_tokens_per_s: Annotated[float, Field(ge=1, le=1e9)] | None = None
    decode_tokens: Annotated[float, Field(ge=1, le=1e9)] | None = None
    min_prefill: PositiveCount | None = None
    min_decode: PositiveCount | None = None
    base_start_s: Annotated[float, Field(ge=0, le=1e9)] = 60.0
    base_over: Literal["all", "busy"] = "all"


class BlitzScaleParameters(ScalingParameters):
    """What BlitzScale's ablation switches off (its Figure 17, the other way round).

    Attributes:
        network: weights come from other instances, by the scale planner; otherwise as ServerlessLLM has them.
        interference_free: the planner prunes sources that send KV caches (Algorithm 1, line 2). Without it
            they are sources like others, and nothing else differs. Where the copy in memory is a source it
            comes first either way, as a machine's memory has all its network cards and a GPU one, so this
            matters with `host_copy="last"`.
        host_copy: the pool's copy in a machine's memory is a source "always" (section 5.3: "exactly one
            copy"; Figure 16), or "last": only while no instance has the weights ("either in a instance or at
            one of the local cache").
        live: prefill instances that load help overloaded ones (section 5.2).
        mutate: prefill instances become decode ones, and others start in their place: "any" of them, the
            least busy first, those that are "idle", or "never"; None: "any" with `live`, of which the paper
            counts it a part, else "never".
        keep_alive_s: without `network`, as `ServerlessLlmParameters`.
    """

    network: bool = True
    interference_free: bool = True
    host_copy: Literal["always", "last"] = "always"
    live: bool = True
    mutate: Literal["any", "idle", "never"] | None = None
    keep_alive_s: NonNegative | None = None


class ServerlessLlmParameters(ScalingParameters):
    """ServerlessLLM: weights from a machine's own memory, where they are kept for a while, else from SSD.

    Attributes:
        keep_alive_s: how long after its last instance a machine has them; None: as the scenario says. Not
            longer than that.
        logical_host_gpus: GPUs of a logical host, each with a memory of its own for copies: 1 for models of
            one GPU, 4 for the 70B one in section 6.2 (Figure 16). Links stay the machine's. None: the
            machine's GPUs.
    """

    keep_alive_s: NonNegative | None = None
    logical_host_gpus: PositiveCount | None = None


class ScalingPolicy(NamedPolicy, ABC):
    """Prefill and decode instances by the trigger; a subclass says where weights come from."""

    parameters_type = ScalingParameters
    parameters: ScalingParameters

    @classmethod
    def space_of(cls, scenario: Scenario) -> Space:
        """What a search of settings is over: when to start and stop, and what always stays."""
        pair = pair_of(scenario, cls.__name__)
        tp = sum(scenario.fleet.pools[p].tp for p in (pair.prefill, pair.decode))
        most = max(1, scenario.fleet.max_gpus // tp)
        return {
            "trigger": Choice(("paper", "code")),
            "timeout_s": Real(0.5, 60.0, log=True),
            "window_s": Real(0.2, 10.0, log=True),
            "min_prefill": Whole(1, most),
            "min_decode": Whole(1, most),
        }

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Start an episode: profile an instance.

        Raises:
            PolicyError: a scenario that it cannot serve.
        """
        p = self.parameters
        self.scenario = scenario
        self.pair: Pair = pair_of(scenario, self.name)
        self.scaler = Scaler(scenario)
        pools, most = self.scaler.spec.pools, self.scaler.spec.max_gpus
        self._gpus = (pools[self.pair.prefill].gpus, pools[self.pair.decode].gpus)
        self._least = (p.min_prefill or 1, p.min_decode or 1)
        for k, asked in ((self.pair.prefill, p.min_prefill), (self.pair.decode, p.min_decode)):
            if asked is not None and asked > pools[k].n_slots:
                raise PolicyError(
                    f"{self.name}: min_{'prefill' if k == self.pair.prefill else 'decode'} = {asked}: pool "
                    f"{scenario.fleet.pools[k].name!r} has at most {pools[k].n_slots} instances"
                )
        if self._gpus_of(self._least) > most:
            raise PolicyError(
                f"{self.name}: min_prefill = {p.min_prefill}, min_decode = {p.min_decode}: must take at most "
                f"{most} GPUs, max_gpus of scenario {scenario.name!r}"
            )
        self._bases = tuple(
            BaseFleet(
                start=scenario.fleet.pools[k].initial_instances,
                most=min(pools[k].n_slots, most // pools[k].gpus),
                start_s=p.base_start_s,
                busy=p.base_over == "busy",
            )
            for k in (self.pair.prefill, self.pair.decode)
        )
        self.capacity: InstanceCapacity = capacity_of(scenario, self.pair)
        self._decode_memory = pool_tables(
            scenario, scenario.fleet.pools[self.pair.decode]
        ).kv_capacity_tokens
        self._monitor = Monitor(p.window_s)
        self._repairs = Repairs()
        self.caches: HostCaches | None = None
        speed = p.prefill_tokens_per_s or self.capacity.prefill_tokens_per_s
        memory = p.decode_tokens or self.capacity.decode_tokens
        self._triggers: tuple[PaperTrigger | CodeTrigger, ...]
        if p.trigger == "paper":
            timeout = 2.0 if p.timeout_s is None else p.timeout_s
            self._triggers = (
                PaperTrigger(speed, PREFILL, timeout),
                PaperTrigger(memory, DECODE, timeout),
            )
        else:
            ttl = 1.5 if p.timeout_s is None else p.timeout_s
            self._triggers = (
                CodeTrigger(speed, PREFILL, ttl),
                CodeTrigger(memory, DECODE, ttl),
            )

    def _gpus_of(self, numbers: Sequence[int]) -> int:
        """GPUs that so many instances of each phase take."""
        return sum(n * size for n, size in zip(numbers, self._gpus, strict=True))

    def _base(self, view: ClusterView, loads: tuple[float, float]) -> tuple[int, int]:
        """Prefill and decode instances that stay whatever the load, as far as there are GPUs for them."""
        p = self.parameters
        learnt = [
            base.look(
                view.window.length_s,
                instances_for(load, trigger.capacity, trigger.bounds.tight),
            )
            for base, trigger, load in zip(self._bases, self._triggers, loads, strict=True)
        ]
        wanted = (p.min_prefill or learnt[0], p.min_decode or learnt[1])
        return divided(wanted, self._gpus, self.scaler.spec.max_gpus, self._least)

    def act(self, view: ClusterView) -> Command:
        """Look at the loads, and order what the trigger asks for."""
        seen = FleetSeen.of(view.weights)
        prefill, decode = self.pair.prefill, self.pair.decode
        slots = self.scaler.slots
        becoming = int(seen.mutating[slots[prefill]].sum())
        broken = self._repairs.look(view.weights.instances[0])
        have = [
            self.scaler.present(seen, p) - int(broken[slots[p]].sum()) for p in (prefill, decode)
        ]
        have[1] += becoming
        under_way = view.under_way
        rate = self._monitor.tokens_per_s(view, under_way)
        loads = (
            rate if self.parameters.trigger == "paper" else waiting_tokens(under_way),
            kv_tokens(view.weights.instances[0], slots[decode], under_way),
        )
        base = self._base(view, loads)
        want = [
            trigger.target(view.time_s, load, number, least)
            for trigger, load, number, least in zip(self._triggers, loads, have, base, strict=True)
        ]
        # As long as there is decode memory prefill may have more than its share: a decode instance above its
        # bound decodes all the same.
        if loads[1] > DECODE.tight * self._decode_memory * have[1]:
            gpus = self.scaler.spec.max_gpus - int(self.scaler.gpus[broken].sum())
            want = self._divided(have, want, gpus, base)
        if self.caches is not None:
            self.caches.look(view, seen)
        rows, most = view.weights.instances[0], self.capacity.decode_tokens
        if want == have:
            return Command(assign=spread(rows, slots[decode], under_way, most))
        reason = (
            f"prefill {have[0]} -> {want[0]} ({loads[0]:.0f} tokens), "
            f"decode {have[1]} -> {want[1]} ({loads[1]:.0f} tokens)"
        )
        # Who becomes a decode instance is to be replaced, so only as many as there are GPUs for.
        free = self.scaler.free_gpus(seen) // self.scaler.spec.pools[prefill].gpus
        mutate = self.mutations(seen, min(want[1] - have[1], have[0] + free - want[0]))
        have[0] -= len(mutate)
        have[1] += len(mutate)
        targets, drain, wanted = {}, [], {}
        # Decode first: what has been prefilled is to go on.
        for p, rise in ((decode, want[1] - have[1]), (prefill, want[0] - have[0])):
            if rise < 0:
                active = int((seen.state[slots[p]] == InstanceState.ACTIVE).sum())
                gone = len(mutate) if p == prefill else 0
                idle = [i for i in self.scaler.release(seen, p, -rise + gone) if i not in mutate]
                drain += idle[: min(-rise, active - gone - 1)]
            elif rise > 0:
                back = 0 if mutate else min(rise, self.scaler.revivable(seen, p))
                if back:
                    present = self.scaler.present(seen, p)
                    targets[self.scenario.fleet.pools[p].name] = present + back
                wanted[p] = rise - back
        found = self.loads(view, seen, wanted, [*mutate, *drain])
        return Command(
            targets=targets,
            drain=tuple(drain),
            mutate=tuple(mutate),
            scale=found if len(found) else None,
            reason=reason,
            assign=spread(rows, np.setdiff1d(slots[decode], drain), under_way, most),
        )

    def _divided(
        self, have: list[int], want: list[int], total: int, base: tuple[int, int]
    ) -> list[int]:
        """What is wanted of each phase, as far as `total` GPUs go, when decode memory is full.

        KV caches that find no decode memory keep prefill instances from stopping, so this cannot wait. Only
        prefill makes way: decode instances stop late, after their last answers.
        """
        pools = [self.scaler.spec.pools[k] for k in (self.pair.prefill, self.pair.decode)]
        # In repair there may be more than can be spared.
        total = max(total, self._gpus_of(base))
        prefill, decode = (min(n, pool.n_slots) for n, pool in zip(want, pools, strict=True))
        stay = min(decode, have[1], (total - base[0] * self._gpus[0]) // self._gpus[1])
        least = (base[0], max(base[1], stay))
        return list(divided((prefill, decode), self._gpus, total, least))

    def mutations(self, seen: FleetSeen, count: int) -> list[int]:
        """Prefill instances that become decode ones, of which there shall be so many more."""
        return []

    @abstractmethod
    def loads(
        self, view: ClusterView, seen: FleetSeen, wanted: dict[int, int], going: Sequence[int]
    ) -> Loads:
        """Loads that start so many more instances by pool, while those `going` stop."""


class HostCaches:
    """Which hosts have the weights in memory because an instance was there a short while ago.

    The copy that BlitzScale's pool of parameters keeps is not counted. An instance that has gone between two
    decisions is remembered from the last one on which it was seen, so nothing is counted on for too long.

    Args:
        scaler: of the cluster.
        keep_alive_s: how long a host has them after its last instance.
        host_gpus: GPUs of a logical host; None: a host is a machine.
    """

    def __init__(self, scaler: Scaler, keep_alive_s: float, host_gpus: int | None = None) -> None:
        self.scaler = scaler
        self.keep_alive_s = keep_alive_s
        fleet = scaler.scenario.fleet
        gpus = np.concatenate(first_gpus(pool_layout(fleet)))
        self._host = gpus // (host_gpus or fleet.gpus_per_host)
        self._seen_s = np.full(int(self._host.max()) + 1, -np.inf)

    def look(self, view: ClusterView, seen: FleetSeen) -> None:
        """Remember where instances are now."""
        has = np.isin(seen.state, (InstanceState.ACTIVE, InstanceState.DRAINING))
        self._seen_s[self._host[has]] = view.time_s

    def has(self, view: ClusterView, slot: int) -> bool:
        """Whether the host of a slot has the weights."""
        if view.time_s - self._seen_s[self._host[slot]] > self.keep_alive_s:
            return False
        return view.host_has(int(self.scaler.hosts[slot]), self.scaler.scenario.fleet.llms[0])

    def loads(self, view: ClusterView, seen: FleetSeen, wanted: dict[int, int]) -> Loads:
        """From the own host's memory or SSD, first where memory has them."""
        scaler = self.scaler
        cached = [self.has(view, slot) for slot in range(len(scaler.hosts))]
        slots = scaler.choose(seen, wanted, first=lambda i: (not cached[i], i))
        memory = scaler.topology.memory
        return Loads(
            tuple(slots),
            tuple(memory(int(scaler.hosts[i])) if cached[i] else FROM_SSD for i in slots),
        )


def keep_alive_of(scenario: Scenario, given: float | None, policy: str) -> float:
    """Seconds that machines keep weights.

    Raises:
        PolicyError: longer than the scenario's do.
    """
    fleet = scenario.fleet
    most = np.inf if fleet.host_cache == "always" else fleet.host_keep_alive_s
    if given is None:
        return fleet.host_keep_alive_s
    if given > most:
        raise PolicyError(
            f"{policy}: keep_alive_s = {given:g}: must be at most {most:g}, host_keep_alive_s of scenario "
            f"{scenario.name!r}"
        )
    return given


class BlitzScalePolicy(ScalingPolicy):
    """See `BlitzScaleParameters`."""

    @classmethod
    def space_of(cls, scenario: Scenario) -> Space:
        """Also who becomes a decode instance, and where weights come from."""
        mutate = ("any", "idle", "never") if pair_of(scenario, cls.__name__).twins else ("never",)
        own: Space = {"mutate": Choice(mutate), "host_copy": Choice(("always", "last"))}
        return {**super().space_of(scenario), **own}

    parameters_type = BlitzScaleParameters
    usual_name = "blitzscale"
    parameters: BlitzScaleParameters

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Start an episode.

        Raises:
            PolicyError: a scenario that it cannot serve, or pools without twins where instances are to
                become others.
        """
        super().reset(scenario, seed)
        p = self.parameters
        if p.mutate in ("any", "idle") and not self.pair.twins:
            raise PolicyError(
                f"{self.name}: mutate = {p.mutate!r}: needs twin_of in one of the pools of scenario "
                f"{scenario.name!r}"
            )
        usual = "any" if p.live and self.pair.twins else "never"
        self._mutate = usual if p.mutate is None else p.mutate
        keep = keep_alive_of(scenario, self.parameters.keep_alive_s, self.name)
        self.caches = HostCaches(self.scaler, keep)
        # A request that waits for a load of this length misses its target.
        ttft_s = min(c.ttft_s for c in scenario.classes)
        self._slow_s = max(0.0, ttft_s - self.capacity.prefill_s)

    def mutations(self, seen: FleetSeen, count: int) -> list[int]:
        """Prefill instances that become decode ones, of which there shall be so many more."""
        if self._mutate == "never":
            return []
        return self.scaler.mutations(seen, self.pair.prefill, count, idle=self._mutate == "idle")

    def loads(
        self, view: ClusterView, seen: FleetSeen, wanted: dict[int, int], going: Sequence[int]
    ) -> Loads:
        """By the scale planner."""
        p = self.parameters
        if not p.network:
            assert self.caches is not None
            return self.caches.loads(view, seen, wanted)
        if p.host_copy == "last":
            seen = self.scaler.copies_last(seen, going)
        return self.scaler.loads(
            seen,
            wanted,
            prefer="planner" if p.interference_free else "unpruned",
            live=p.live,
            live_above_s=self._slow_s,
            going=going,
        )


class ServerlessLlmPolicy(ScalingPolicy):
    """See `ServerlessLlmParameters`."""

    parameters_type = ServerlessLlmParameters
    usual_name = "serverlessllm"
    parameters: ServerlessLlmParameters

    @classmethod
    def space_of(cls, scenario: Scenario) -> Space:
        """Also for how long machines keep weights."""
        most = scenario.fleet.host_keep_alive_s
        keep: Space = {"keep_alive_s": Real(0.0, most)} if most else {}
        return {**super().space_of(scenario), **keep}

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Start an episode.

        Raises:
            PolicyError: a scenario that it cannot serve, a keep-alive longer than its machines', or logical
                hosts into which machines and instances do not divide.
        """
        super().reset(scenario, seed)
        p, of_machine = self.parameters, scenario.fleet.gpus_per_host
        if p.logical_host_gpus is not None and (
            of_machine % p.logical_host_gpus or any(p.logical_host_gpus % n for n in self._gpus)
        ):
            raise PolicyError(
                f"{self.name}: logical_host_gpus = {p.logical_host_gpus}: must divide the {of_machine} GPUs "
                f"of a machine and hold whole instances of {max(self._gpus)} in scenario {scenario.name!r}"
            )
        keep = keep_alive_of(scenario, p.keep_alive_s, self.name)
        self.caches = HostCaches(self.scaler, keep, p.logical_host_gpus)

    def loads(
        self, view: ClusterView, seen: FleetSeen, wanted: dict[int, int], going: Sequence[int]
    ) -> Loads:
        """From memory where it has them, else from SSD."""
        assert self.caches is not None
        return self.caches.loads(view, seen, wanted)


class AllCachePolicy(ScalingPolicy):
    """ServerlessLLM if every machine always had the weights in memory."""

    usual_name = "allcache"

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Start an episode.

        Raises:
            PolicyError: a scenario that it cannot serve, or whose machines do not have them.
        """
        super().reset(scenario, seed)
        if scenario.fleet.host_cache != "always":
            raise PolicyError(
                f"{self.name}: fleet.host_cache = {scenario.fleet.host_cache!r} in scenario "
                f"{scenario.name!r}: must be 'always'"
            )

    def loads(
        self, view: ClusterView, seen: FleetSeen, wanted: dict[int, int], going: Sequence[int]
    ) -> Loads:
        """From the own machine's memory."""
        slots = self.scaler.choose(seen, wanted, first=lambda i: i)
        memory = self.scaler.topology.memory
        return Loads(
            tuple(slots), tuple(memory(host) for host in self.scaler.hosts[slots].tolist())
        )
