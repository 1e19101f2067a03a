"""Generated cases in which weights flow, copies have homes, hosts fail and pools have twins (engine.md, 15).

They are clusters of `split_cases`, with weights on the links; live ones have prefill instances that help
while they load (section 16). `python -m tests.weight_cases FIRST COUNT [live]` prints which mechanisms a
range of seeds reaches.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np

from llmscale_env.sim.spec import (
    FROM_SSD,
    ClusterSpec,
    InstanceState,
    LoadSource,
    NetworkSpec,
    PoolPhase,
    PoolSpec,
    RouterKind,
    RouteSpec,
)
from llmscale_env.workload.requests import RequestTable
from tests.engine_cases import DRAWN, Case, Command, print_reached
from tests.split_cases import _SplitGenerator

WEIGHT_MECHANISMS = frozenset(
    {
        # layers
        "layer_flows",
        "layer_waits",
        "layer_broken_off",
        "source_changed",
        "load_as_named",
        "named_source_gone",
        "load_ssd",
        "load_host",
        "load_multicast",
        "multicast_from_draining",
        "fallback_from_host",
        "fallback_from_multicast",
        "cancel_acquiring",
        "cancel_loading",
        "fail_acquiring",
        "fail_loading",
        "fail_active",
        "fail_draining",
        "flows_shared",
        "landed",
        # homes
        "fail_host",
        "restored_from_ssd",
        "restored_from_host",
        "restored_from_multicast",
        "restored_anew",
        "restoring_lost",
        # orders
        "scaled",
        "mutated",
        "mutation_called_off",
        "source_mutated",
        "target_missed",
        "reactivated",
        "command_refused",
    }
)
"""What a good set of these cases must have made happen."""


LIVE_MECHANISMS = frozenset(
    {
        "live_formed",
        "live_operation",
        "live_comes_back",
        "live_taken",
        "live_waits_for_helper",
        "live_helper_forms",
        "live_activation_waited",
        "live_moved",
        "live_helper_lost",
        "live_leader_gone",
        "live_given_back",
        "live_given_back_draining",
        "live_broken_off",
        "live_dropped",
        "co_flow",
        "landed_in_part",
        "fail_co_held",
        "fail_held",
        "fail_before_landing",
        "layer_flows",
        "source_changed",
        "fail_host",
        "mutated",
        "cancel_loading",
        "drained_off",
        "command_refused",
    }
)
"""What a good set of live cases must have made happen."""


class _WeightGenerator(_SplitGenerator):
    """Draws the parts of one case."""

    def __init__(self, seed: int, live: bool = False) -> None:
        super().__init__(seed)
        self.live = live
        if live:
            self.split, self.virtual, self.common_batch = True, False, 0
            self.capacity = self.pick(100, 200, 200, 5000)

    def spec(self) -> ClusterSpec:
        spec = super().spec()
        if self.live and self.chance(0.8):  # links within a host may take no time
            spec = replace(spec, gpus_per_host=self.pick(1, 1, 2), network=None)
        if self.live and self.chance(0.7):
            spec = replace(spec, max_gpus=2**31 - 1)
        pools = list(spec.pools)
        network = spec.network
        while network is None:
            network = self.network(pools, spec.gpus_per_host)
        for llm in range(spec.n_llms):
            size, layers = self.pick(2, 11, 60, 300) * self.bytes, self.pick(1, 2, 3, 7)
            if self.live:  # layers take about as long as a few iterations
                layers = self.pick(2, 3, 5, 7)
                speed = int(self.pick(*network.capacity))
                size = max(layers, layers * self.ps(1, self.pick(5, 20, 60)) * speed // 10**6)
            if self.live or self.chance(0.85):
                for p, pool in enumerate(pools):
                    if pool.llm == llm and not pool.swaps:
                        pools[p] = replace(pool, weight_bytes=size, layers=layers, wake_ps=-1)
        spec = replace(spec, pools=tuple(pools), network=network)
        if self.chance(0.6):
            spec = self.with_twin(spec)
        assert spec.network is not None
        homes = [
            self.int(-1, spec.n_hosts - 1)
            if any(pool.llm == llm and pool.weight_bytes for pool in pools)
            else -1
            for llm in range(spec.n_llms)
        ]
        if self.chance(0.2):
            homes = []
        return replace(
            spec,
            homes=tuple(homes),
            host_cache_at_start=self.chance(0.3),
            network=self.with_weights(spec.network, spec),
        )

    def phase(self, pool: PoolSpec, phase: int) -> PoolSpec:
        """In live cases instances of prefill pools can help one another."""
        pool = super().phase(pool, phase)
        if not self.live:
            return pool
        if pool.phase != PoolPhase.PREFILL:
            return replace(pool, initial_active=max(1, pool.initial_active))
        n_slots = self.int(3, 6)
        return replace(
            pool,
            n_slots=n_slots,
            initial_active=self.pick(1, 1, self.int(1, max(1, n_slots - 1))),
            chunk_tokens=0 if self.chance(0.9) else pool.chunk_tokens,
            prefill_tokens=self.pick(1, 1, 10, 20, 4096),
            batch_limit=max(pool.batch_limit, self.pick(1, 4, 4)),
            live_mode=self.pick(0, 0, 1),
            acquire_ps=self.pick(0, 0, pool.acquire_ps),
        )

    def with_twin(self, spec: ClusterSpec) -> ClusterSpec:
        """One pool has a twin, of the other phase if it has one."""
        candidates = [p for p, pool in enumerate(spec.pools) if not pool.swaps]
        if not candidates:
            return spec
        p = int(self.pick(*candidates))
        pool = spec.pools[p]
        other = {
            PoolPhase.BOTH: PoolPhase.BOTH,
            PoolPhase.PREFILL: PoolPhase.DECODE,
            PoolPhase.DECODE: PoolPhase.PREFILL,
        }[PoolPhase(pool.phase)]
        twin = replace(
            self.twin_pool(pool, other),
            twin_of=p,
            initial_active=self.int(0, pool.n_slots - pool.initial_active),
        )
        q = len(spec.pools)
        rows = []
        for llm, row in enumerate(spec.routes):
            routes = list(row)
            for c, route in enumerate(row if llm == pool.llm else ()):
                if other == PoolPhase.DECODE:
                    routes[c] = replace(route, decode_pools=(*route.decode_pools, q))
                elif route.pools:
                    routes[c] = replace(route, pools=(*route.pools, q))
            rows.append(tuple(routes))
        assert spec.network is not None
        mine = slice(spec.first_slot[p], spec.first_slot[p] + pool.n_slots)
        tables = {
            name: (*rows_of, *rows_of[mine])
            for name in ("out_links", "in_links", "local_out_links", "local_in_links")
            if (rows_of := getattr(spec.network, name))
        }
        return replace(
            spec,
            pools=(*spec.pools, twin),
            routes=tuple(rows),
            network=replace(spec.network, **tables),
            max_gpus=spec.max_gpus + twin.initial_active * twin.gpus
            if spec.max_gpus < 2**31 - 1
            else spec.max_gpus,
        )

    def twin_pool(self, pool: PoolSpec, phase: PoolPhase) -> PoolSpec:
        if phase != PoolPhase.BOTH:
            pool = super().phase(replace(pool, chunk_tokens=0), phase)
        return replace(pool, batch_limit=self.int(1, pool.batch_limit), drifts=())

    def with_weights(self, network: NetworkSpec, spec: ClusterSpec) -> NetworkSpec:
        """Links from host memories and SSDs, some of them shared, some missing."""
        capacity = network.capacity.tolist()

        def link(slower: int = 1) -> int:
            capacity.append(max(1, int(self.pick(*network.capacity)) // slower))
            return len(capacity) - 1

        hosts, n_hosts = spec.host_of_slot, spec.n_hosts
        twins = spec.twin_of_slot
        from_host: list[tuple[int, ...]] = []
        shared = [link() for _ in range(n_hosts)]
        ssd = [link(self.pick(1, 5, 30, 200)) for _ in range(n_hosts)]
        kind = self.pick("own", "shared", "both", "none")
        for i, h in enumerate(hosts):
            own = (link(),) if kind in ("own", "both") else ()
            row = (*own, *((shared[h],) if kind in ("shared", "both") else ()))
            from_host.append(from_host[twins[i]] if 0 <= twins[i] < i else row)
        through_memory = self.chance(0.4)
        direct = self.chance(0.8)
        ports = self.chance(0.7)
        return replace(
            network,
            from_host_links=tuple(from_host),
            from_ssd_links=tuple(
                (ssd[h], *(from_host[i] if through_memory else ())) for i, h in enumerate(hosts)
            )
            if direct
            else (),
            host_out_links=tuple((link(),) for _ in range(n_hosts)) if ports else (),
            host_in_links=tuple((link(self.pick(1, 20, 200)),) for _ in range(n_hosts))
            if ports
            else (),
            ssd_host_links=tuple((s,) for s in ssd) if direct else (),
            capacity=np.array(capacity),
        )

    # -- what happens to it --

    def command(self, spec: ClusterSpec, at_ps: int) -> Command:
        if self.live and self.chance(
            0.35
        ):  # or there is soon nobody left who could be helped, or help
            p = self.int(0, len(spec.pools) - 1)
            return Command(at_ps, "set_target", (p, self.pick(1, 2, spec.pools[p].n_slots), None))
        if self.chance(0.25):
            return super().command(spec, at_ps)
        kind = self.rng.choice(
            ["scale", "target", "mutate", "host", "fail", "drain"],
            p=[0.34, 0.24, 0.16, 0.1, 0.1, 0.06],
        )
        instance = self.int(0, spec.n_instances - 1)
        if kind == "target":
            p = self.int(0, len(spec.pools) - 1)
            source = self.pick(None, *(int(s) for s in LoadSource))
            return Command(at_ps, "set_target", (p, self.int(0, spec.pools[p].n_slots), source))
        if kind == "host":
            return Command(at_ps, "fail_host", (self.int(0, spec.n_hosts - 1),))
        if kind == "mutate":
            return Command(at_ps, "mutate", (int(self.rng.integers(2**31)),))
        if kind == "scale":
            return Command(at_ps, "scale", (int(self.rng.integers(2**31)), self.live))
        return Command(at_ps, str(kind), (instance,))

    def bunches(
        self, spec: ClusterSpec, script: list[Command], last_ps: int, arrivals_ps: list[int]
    ) -> list[Command]:
        """Orders and failures close to one another, as they meet while weights flow."""
        bunches: list[Command] = []
        for _ in range(self.pick(2, 4, 6) if self.live else self.pick(0, 1, 2, 4)):
            at_ps = self.int(0, last_ps)
            trouble = self.chance(0.3)
            if self.live:
                arrival_ps = int(self.pick(*arrivals_ps))
                at_ps = self.pick(at_ps, arrival_ps, arrival_ps, arrival_ps + self.ps(1, 100))
                bunches += self.live_bunch(at_ps)
                if self.chance(0.85):
                    continue
            elif self.chance(0.5):
                bunches += self.directed_bunch(at_ps)
                continue
            for _ in range(self.int(2, 6)):
                command = self.command(spec, at_ps)
                if trouble and self.chance(0.7):
                    host, instance = (
                        self.int(0, spec.n_hosts - 1),
                        self.int(0, spec.n_instances - 1),
                    )
                    command = self.pick(
                        Command(at_ps, "fail_host", (host,)),
                        Command(at_ps, "fail_host", (host,)),
                        Command(at_ps, "fail", (instance,)),
                        Command(at_ps, "mutate", (int(self.rng.integers(2**31)),)),
                    )
                bunches.append(command)
                at_ps += self.ps(0, self.pick(2, 20, 100))
        return sorted([*script, *bunches], key=lambda command: command.at_ps)

    def directed_bunch(self, at_ps: int) -> list[Command]:
        """Homes and sources that go while somebody needs them."""
        options = [
            [("scale",), ("mutate",), ("mutate",)],
            [("fail_host", "home"), ("fail", "lowest")],
            [("fail_host", "home"), ("fail_host", "home"), ("scale",), ("fail_host", "home")],
            [("set_target", "none"), ("fail_host", "home"), ("scale",)],
        ]
        bunch = []
        for name, *role in self.pick(*options):
            if role == ["none"]:  # nobody of an LLM is left
                for p in range(6):
                    bunch.append(Command(at_ps, "set_target", (p, 0)))
            else:
                bunch.append(Command(at_ps, name, (int(self.rng.integers(2**31)), *role)))
            at_ps += self.ps(0, self.pick(2, 5, 20))
        return bunch

    def live_bunch(self, at_ps: int) -> list[Command]:
        """Pairs, and what may happen to them."""
        bunch = [Command(at_ps, "scale", (int(self.rng.integers(2**31)), True))]
        if self.chance(0.1):
            for name, role in (("drain", "leader"), ("fail", "helper")):
                at_ps += self.ps(1, self.pick(20, 60))
                bunch.append(Command(at_ps, name, (int(self.rng.integers(2**31)), role)))
            return bunch
        for _ in range(self.pick(0, 0, 0, 1, 2)):
            at_ps += self.ps(1, self.pick(20, 60, 200))
            seed = int(self.rng.integers(2**31))
            name, role = self.pick(
                ("fail", "helper"),
                ("fail", "leader"),
                ("drain", "leader"),
                ("set_target", "helper"),
            )
            if role == "leader" and self.chance(0.5):
                continue  # who is gone cannot be helped any more
            bunch.append(Command(at_ps, name, (seed, role)))
        return bunch

    def split_route(self, *args: Any) -> RouteSpec:
        """In live cases most requests go straight to an instance."""
        route = super().split_route(*args)
        if self.live and self.chance(0.8):
            kind = RouterKind.JSQ_REQUESTS if route.queue < 0 else RouterKind.SHARED_QUEUE
            route = replace(route, kind=self.pick(kind, RouterKind.JSQ_REQUESTS))
        if self.live and self.chance(0.5):
            route = replace(route, decode_kind=RouterKind.JSQ_REQUESTS)
        return route

    def requests(self, spec: ClusterSpec) -> RequestTable:
        """In live cases so many at once that they queue."""
        table = super().requests(spec)
        while self.live and len(table) < 60:
            table = super().requests(spec)
        if not self.live or self.chance(0.2):
            return table
        gaps = np.diff(table.arrival_ps, prepend=0) // self.pick(1, 3, 10)
        return replace(table, arrival_ps=np.cumsum(gaps))

    def case(self) -> Case:
        case = super().case()
        last_ps = int(case.requests.arrival_ps[-1]) + 50 * self.unit_ps
        if self.live:
            last_ps += len(case.requests) * 8 * self.unit_ps
        # The last commands of all see to it that somebody serves in the end.
        arrivals_ps = case.requests.arrival_ps.tolist()
        if self.live:  # what else is ordered mostly ends pairs
            last = case.stops_ps[-2]
            kept = tuple(c for c in case.script if c.at_ps == last or self.chance(0.3))
            case = replace(case, script=kept)
        script = self.bunches(case.spec, list(case.script), last_ps, arrivals_ps)
        final = [c for c in script if c.at_ps == case.stops_ps[-2]]
        last_ps = max(c.at_ps for c in script) if script else 0
        script = [c for c in script if c not in final] + [
            replace(c, at_ps=max(last_ps, case.stops_ps[-2])) for c in final
        ]
        stops = {*case.stops_ps, *(c.at_ps for c in script)}
        return replace(
            case,
            script=tuple(script),
            stops_ps=tuple(sorted(stops)),
            observes=("loading", "homes"),
        )


def make_weight_case(seed: int, live: bool = False) -> Case:
    """The case of a seed; `live`: with pairs of prefill instances."""
    return _WeightGenerator(seed, live).case()


# --- commands whose arguments are drawn when they are given ---


def _some_to_scale(engine: Any, case: Case, seed: int, live: bool = False) -> tuple[list[int], ...]:
    rng = np.random.default_rng(seed)
    spec = case.spec
    states, twins = engine.instances()["state"].tolist(), spec.twin_of_slot
    pools = [spec.pools[p] for p in spec.pool_of_slot]
    n = spec.n_instances
    homes = engine.homes()["host"].tolist()

    def free(i: int) -> bool:
        twin_free = twins[i] < 0 or states[twins[i]] == InstanceState.OFF
        return states[i] == InstanceState.OFF and twin_free

    slots: list[int] = []
    sources: list[int] = []
    order = rng.permutation(n)
    if live:  # prefill slots come first, so that there are pairs
        order = np.array(sorted(order, key=lambda i: pools[i].phase != PoolPhase.PREFILL))
    for k in order[: int(rng.integers(1, 6))]:
        i = int(k)
        nonsense = rng.random() < 0.02
        good = free(i) and pools[i].weight_bytes > 0 and twins[i] not in slots
        if live:
            held = sum(p.gpus for p, s in zip(pools, states, strict=True) if s)
            wanted = sum(pools[j].gpus for j in [*slots, i])
            good &= held + wanted <= spec.max_gpus
        if not (good or nonsense):
            continue
        known = [
            j
            for j in range(n)
            if pools[j].llms == pools[i].llms and (states[j] != InstanceState.OFF or j in slots)
        ]
        options = [FROM_SSD, *known, *known, *slots[-1:], *slots[-1:]]
        home = homes[pools[i].llm]
        options += [n + home] * 2 if home >= 0 else []
        options = [s for s in options if s >= n or s < 0 or pools[s].llm == pools[i].llm]
        slots.append(i)
        source = int(rng.choice(options))
        sources.append(int(rng.integers(-1, n + spec.n_hosts)) if nonsense else source)
    if not live:
        return slots, sources
    partners = []
    taken = engine.loading()["partner"].tolist()
    for i in slots:
        pool = pools[i]
        helps = pool.phase == PoolPhase.PREFILL and pool.chunk_tokens == 0
        good = [
            j
            for j in range(n)
            if spec.pool_of_slot[j] == spec.pool_of_slot[i]
            and states[j] == InstanceState.ACTIVE
            and taken[j] < 0
            and j not in partners
        ]
        waiting = engine.instances()["waiting"][good]
        partner = int(good[int(np.argmax(waiting))]) if helps and good else -1
        if partner >= 0 and rng.random() < 0.6:
            sources[slots.index(i)] = partner
        partners.append(int(rng.integers(-1, n)) if rng.random() < 0.03 else partner)
    return slots, sources, partners


def _one_to_mutate(engine: Any, case: Case, seed: int) -> tuple[int]:
    """Any slot, but mostly one that can; of these one that others load from, if there is any."""
    rng = np.random.default_rng(seed)
    fleet = engine.instances()
    twins = np.array(case.spec.twin_of_slot)
    good = np.flatnonzero((fleet["state"] == InstanceState.ACTIVE) & (twins >= 0))
    sources = engine.loading()["load_from"][fleet["state"] == InstanceState.LOADING]
    loved = good[np.isin(good, sources)]
    if len(good) == 0 or rng.random() < 0.05:
        return (int(rng.integers(len(fleet))),)
    return (int(rng.choice(loved if len(loved) else good)),)


def _of_a_pair(engine: Any, case: Case, seed: int, role: str | None = None) -> tuple[int]:
    """An instance in a live pair, in this role, if there is any; without a role: what is given.

    Role "lowest": the lowest one that is active, which is the nearest source for many.
    """
    if role is None:
        return (seed,)
    if role == "lowest":
        return (int(np.argmax(engine.instances()["state"] >= InstanceState.ACTIVE)),)
    pairs = engine.loading()["partner"] >= 0
    leads = engine.instances()["state"] >= InstanceState.ACTIVE
    good = np.flatnonzero(pairs & (leads if role == "leader" else ~leads))
    rng = np.random.default_rng(seed)
    return (int(rng.choice(good)) if len(good) else int(rng.integers(len(pairs))),)


def _a_home(engine: Any, case: Case, seed: int, role: str | None = None) -> tuple[int]:
    """The home of some LLM; without a role: what is given."""
    homes = engine.homes()["host"]
    homes = homes[homes >= 0]
    if role is None or len(homes) == 0:
        return (seed,)
    return (int(np.random.default_rng(seed).choice(homes)),)


def _one_fewer(engine: Any, case: Case, *args: Any) -> tuple[Any, ...]:
    """A target that gives up an instance of a pool with a live pair; without a role: what is given."""
    if len(args) != 2 or args[1] != "helper":
        return args
    (slot,) = _of_a_pair(engine, case, *args)
    p = case.spec.pool_of_slot[slot]
    first = case.spec.first_slot[p]
    states = engine.instances()["state"][first : first + case.spec.pools[p].n_slots]
    there = int(np.isin(states, [1, 2, 3]).sum())
    return (p, max(0, there - 1))


DRAWN["fail"] = DRAWN["drain"] = _of_a_pair
DRAWN["fail_host"] = _a_home
DRAWN["set_target"] = _one_fewer
DRAWN["scale"] = _some_to_scale
DRAWN["mutate"] = _one_to_mutate


if __name__ == "__main__":
    live = "live" in sys.argv
    among = LIVE_MECHANISMS if live else WEIGHT_MECHANISMS
    print_reached(lambda seed: make_weight_case(seed, live), among)
