"""From numbers of instances to orders: who starts, who loads from whom, who helps whom, who becomes another.

The scale planner of `cluster.multicast` on a cluster as it stands, for whoever decides how many instances
there shall be: reference policies and environments.

Ours, where BlitzScale says nothing: of the free GPUs those come first that share a machine with an instance
that has the weights (with NVLink), then those on the machine that keeps the copy, then by number; an
instance that already sends weights counts as one that sends, and a machine's memory has what its loads
under way leave of its bandwidth, as a source that Algorithm 1 has used once (its lines 7 and 9), until
nothing is left; where all that have the weights send already, chains under way get longer (a target that
has been reached is a source, line 10) and no source gets another one; of active instances those go first
that nobody loads from, the least busy first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from llmscale_env.cluster.multicast import (
    Plan,
    Source,
    live_pairs,
    scale_plan,
    sources_of,
    targets_of,
)
from llmscale_env.cluster.multicast_time import at_most_s
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import cluster_topology, compile_cluster
from llmscale_env.sim.observed import Weights
from llmscale_env.sim.orders import Loads
from llmscale_env.sim.spec import FROM_SSD, InstanceState, PoolPhase
from llmscale_env.workload.requests import PS_PER_S

Preference = Literal["planner", "unpruned", "decode", "any", "host", "ssd"]
"""Whose weights are sent:

- planner: those of instances that send nothing yet, and the copy in a machine's memory (Algorithm 1);
- unpruned: the same without its line 2, so that instances that send KV caches are sources like others. Who
  sends weights already is passed over all the same: that is bandwidth used up (lines 7 and 9), not pruning;
- decode: those of decode instances;
- any: those of any instance, whatever it sends already, the lowest number first;
- host: the copy in a machine's memory;
- ssd: everybody loads from the own SSD.

What is not there gives way: to any instance, to the copy, to SSD.
"""

UP = (InstanceState.ACQUIRING, InstanceState.LOADING, InstanceState.ACTIVE)


@dataclass(frozen=True)
class FleetSeen:
    """One episode's instances, as scaling needs them; see `Weights`.

    Attributes:
        state, requests, source, partner, mutating: (I,) `requests` running, waiting or under way to it.
        waiting: (I,) requests in its own queue.
        home, there: (M,).
    """

    state: NDArray[np.int64]
    requests: NDArray[np.int64]
    waiting: NDArray[np.int64]
    source: NDArray[np.int64]
    partner: NDArray[np.int64]
    mutating: NDArray[np.bool_]
    home: NDArray[np.int64]
    there: NDArray[np.bool_]

    @classmethod
    def of(cls, weights: Weights, e: int = 0) -> FleetSeen:
        """Of an episode of `weights`."""
        rows = weights.instances[e]
        names = ("running", "waiting", "preempted", "in_flight", "landed")
        return cls(
            state=rows["state"].astype(np.int64),
            requests=np.sum([rows[name].astype(np.int64) for name in names], axis=0),
            waiting=rows["waiting"].astype(np.int64),
            source=weights.source[e],
            partner=weights.partner[e],
            mutating=weights.mutating[e],
            home=weights.home[e],
            there=weights.there[e],
        )

    @property
    def in_pair(self) -> NDArray[np.bool_]:
        """(I,) whether it helps somebody, or is helped."""
        return self.partner >= 0

    def loads_from(self, code: int) -> list[int]:
        """Slots that load from a source code, or are about to."""
        loads = np.isin(self.state, (InstanceState.ACQUIRING, InstanceState.LOADING))
        return [int(i) for i in np.flatnonzero(loads & (self.source == code))]

    @property
    def sends_weights(self) -> NDArray[np.bool_]:
        """(I,) whether somebody loads from it."""
        loads = np.isin(self.state, (InstanceState.ACQUIRING, InstanceState.LOADING))
        found = np.zeros(len(self.state), bool)
        from_slots = self.source[loads & (self.source >= 0) & (self.source < len(found))]
        found[from_slots] = True
        return found


class Scaler:
    """Orders for a scenario's cluster.

    Args:
        scenario: with pools whose weights flow.

    Raises:
        ValueError: it has none.
    """

    def __init__(self, scenario: Scenario) -> None:
        pools = scenario.fleet.pools
        if not any(pool.flows for pool in pools):
            raise ValueError(
                f"scenario {scenario.name!r}: no pool has weights = 'flow', so none can be told from where "
                "to load"
            )
        self.scenario = scenario
        self.spec = spec = compile_cluster(scenario, as_calibrated=True)
        self.topology = cluster_topology(scenario)
        self.pool_of = np.array(spec.pool_of_slot)
        self.hosts = np.array(spec.host_of_slot)
        self.twins = np.array(spec.twin_of_slot)
        self.llm_of = np.array([pool.llm for pool in spec.pools])[self.pool_of]
        self.gpus = np.array([pool.gpus for pool in spec.pools])[self.pool_of]
        self.phase_of = np.array([pool.phase for pool in spec.pools])[self.pool_of]
        self.slots = [np.flatnonzero(self.pool_of == p) for p in range(len(pools))]

    # ---- what there is ----

    def present(self, seen: FleetSeen, p: int) -> int:
        """Instances of pool `p` that a target counts."""
        return int(np.isin(seen.state[self.slots[p]], UP).sum())

    def free_gpus(self, seen: FleetSeen) -> int:
        """GPUs that may still be taken."""
        held = int(self.gpus[seen.state != InstanceState.OFF].sum())
        return self.spec.max_gpus - held

    def revivable(self, seen: FleetSeen, p: int) -> int:
        """Draining instances that a higher target takes back; 0 while one of them becomes another."""
        mine = self.slots[p]
        if seen.mutating[mine].any():
            return 0
        return int((seen.state[mine] == InstanceState.DRAINING).sum())

    # ---- who starts, and from where ----

    def choose(
        self,
        seen: FleetSeen,
        wanted: Mapping[int, int],
        *,
        first: Callable[[int], object] | None = None,
        gpus: int | None = None,
    ) -> list[int]:
        """Slots to start: so many more of each pool, or as many as there are free ones and GPUs for.

        Args:
            seen: the cluster.
            wanted: instances by pool; the first pools choose first.
            first: sorts free slots; None: the nearest to the weights first (see the module).
            gpus: that may be taken; None: all that are free.
        """
        room = self.free_gpus(seen) if gpus is None else gpus
        chosen: list[int] = []
        for p, count in wanted.items():
            mine, twins = self.slots[p], self.twins[self.slots[p]]
            free = seen.state[mine] == InstanceState.OFF
            free &= (twins < 0) | (seen.state[twins] == InstanceState.OFF)
            free &= ~np.isin(mine, chosen) & ~np.isin(twins, chosen)
            order = sorted(mine[free].tolist(), key=first or self._nearness(seen, p))  # type: ignore[arg-type]
            size = self.spec.pools[p].gpus
            some = order[: min(max(0, count), max(0, room) // size)]
            room -= len(some) * size
            chosen += some
        return chosen

    def _nearness(self, seen: FleetSeen, p: int) -> Callable[[int], object]:
        llm = self.spec.pools[p].llm
        running: set[int] = set()
        if self.topology.nvlink:
            has = (seen.state == InstanceState.ACTIVE) & (self.llm_of == llm)
            running = set(self.hosts[has].tolist())
        home = int(seen.home[llm]) if seen.there[llm] else -1
        return lambda i: (self.hosts[i] not in running, self.hosts[i] != home, i)

    def loads(
        self,
        seen: FleetSeen,
        wanted: Mapping[int, int],
        *,
        prefer: Preference = "planner",
        chains: int | None = None,
        live: bool = False,
        live_above_s: float = 0.0,
        going: Sequence[int] = (),
        gpus: int | None = None,
    ) -> Loads:
        """Loads that start so many more instances, or as many as there are slots and GPUs for.

        Args:
            seen: the cluster.
            wanted: instances by pool.
            prefer: see `Preference`.
            chains: of the sources only the first so many; None: all. The planner's own come in its order.
            live: overloaded prefill instances are helped by those that load (section 5.2).
            live_above_s: only by those that load longer than this (the planner's estimate).
            going: instances about to stop or to become others: no sources, and nobody's partners.
            gpus: that may be taken; None: all that are free.
        """
        by_llm: dict[int, list[int]] = {}
        for slot in self.choose(seen, wanted, gpus=gpus):
            by_llm.setdefault(int(self.llm_of[slot]), []).append(slot)
        edges: list[tuple[int, int]] = []
        partners: dict[int, int] = {}
        for llm, slots in by_llm.items():
            plan = self.plan(seen, llm, slots, prefer, chains, going)
            if plan is None:
                edges += [(FROM_SSD, slot) for slot in slots]
                continue
            edges += plan.edges
            if live:
                partners |= self._partners(seen, plan, live_above_s, going)
        return Loads(
            tuple(slot for _, slot in edges),
            tuple(source for source, _ in edges),
            tuple(partners.get(slot, -1) for _, slot in edges) if partners else (),
        )

    def plan(
        self,
        seen: FleetSeen,
        llm: int,
        slots: Sequence[int],
        prefer: Preference = "planner",
        chains: int | None = None,
        going: Sequence[int] = (),
    ) -> Plan | None:
        """Who sends an LLM's weights to which of `slots`; None: nobody has them, or wants to send."""
        sources = self._sources(seen, llm, prefer, set(going))
        if not sources:
            return None
        if chains is not None and prefer in ("planner", "unpruned"):
            sources.sort(key=lambda source: (source.sends, -source.bytes_per_s))
        sources = sources[:chains]
        sending = np.flatnonzero(
            (seen.state == InstanceState.ACTIVE) & (self.phase_of == PoolPhase.PREFILL)
        )
        targets = targets_of(self.topology, slots, sending.tolist())
        return scale_plan(sources, targets, nvlink=self.topology.nvlink)

    def _sources(
        self, seen: FleetSeen, llm: int, prefer: Preference, going: set[int]
    ) -> list[Source]:
        has = (seen.state == InstanceState.ACTIVE) & (self.llm_of == llm)
        everybody = [int(i) for i in np.flatnonzero(has) if i not in going]
        decode = [i for i in everybody if self.phase_of[i] == PoolPhase.DECODE]
        copy = [int(seen.home[llm])] if seen.there[llm] and seen.home[llm] >= 0 else []
        if prefer == "ssd":
            return []
        if prefer == "host" and copy:
            return sources_of(self.topology, hosts=copy)
        if prefer == "decode" and decode:
            return sources_of(self.topology, decode)
        if prefer in ("decode", "any") and everybody:
            return sources_of(self.topology, everybody)
        if prefer in ("planner", "unpruned"):
            pruned = seen.sends_weights
            if prefer == "planner":
                pruned |= self.phase_of == PoolPhase.PREFILL
            busy = [i for i in everybody if pruned[i]]
            quiet = [i for i in everybody if i not in busy]
            memory = [self._left(seen, source) for source in sources_of(self.topology, hosts=copy)]
            found = [*sources_of(self.topology, [*quiet, *busy], sending=busy), *memory]
            if all(source.sends for source in found):
                found += sources_of(self.topology, self._tails(seen, llm, going))
            return found
        return sources_of(self.topology, everybody) or sources_of(self.topology, hosts=copy)

    def _tails(self, seen: FleetSeen, llm: int, going: set[int]) -> list[int]:
        """Instances that load, to whom nobody is bound: the ends of chains under way."""
        loads = (seen.state == InstanceState.LOADING) & (self.llm_of == llm)
        loads &= ~seen.sends_weights & ~seen.in_pair
        return [int(i) for i in np.flatnonzero(loads) if i not in going]

    def _left(self, seen: FleetSeen, memory: Source) -> Source:
        """A machine's memory with what loads of other machines leave of it; one that sends if nothing."""
        far = [i for i in seen.loads_from(memory.code) if self.hosts[i] != memory.host]
        used = sum(self.topology.in_bytes_per_s(i) for i in far)
        left = memory.bytes_per_s - used
        return replace(memory, bytes_per_s=left) if left > 0 else replace(memory, sends=True)

    def copies_last(self, seen: FleetSeen, going: Sequence[int] = ()) -> FleetSeen:
        """The same, but copies in memory count only of LLMs of which no instance runs that could send.

        The other reading of BlitzScale's section 5.3, "stored either in a instance or at one of the local
        cache".

        Args:
            seen: the cluster.
            going: instances about to stop or to become others, which send nothing.
        """
        runs = seen.state == InstanceState.ACTIVE
        runs[list(going)] = False
        there = seen.there & ~np.isin(np.arange(len(seen.there)), self.llm_of[runs])
        return replace(seen, there=there)

    def _partners(
        self, seen: FleetSeen, plan: Plan, above_s: float, going: Sequence[int]
    ) -> dict[int, int]:
        """Whom targets help while they load: by prefill pool, the fullest queue first."""
        found: dict[int, int] = {}
        slow = set(self.slow(plan, above_s))
        for p, pool in enumerate(self.spec.pools):
            if pool.phase != PoolPhase.PREFILL:
                continue
            mine = self.slots[p]
            want = (seen.state[mine] == InstanceState.ACTIVE) & (seen.waiting[mine] > 0)
            want &= ~seen.in_pair[mine] & ~np.isin(mine, going)
            overloaded = sorted(mine[want].tolist(), key=lambda i: (-seen.waiting[i], i))
            edges = [edge for edge in plan.edges if self.pool_of[edge[1]] == p]
            senders = {sender for sender, _ in plan.edges}
            # Tails first also where a target of another pool loads from it.
            order = [slot for slot in live_order(Plan(tuple(edges)), senders) if slot in slow]
            found |= dict(zip(order, overloaded, strict=False))
        return found

    def slow(self, plan: Plan, above_s: float) -> list[int]:
        """Targets that have not all layers after so many seconds, if nobody else used the links."""
        if above_s <= 0:
            return list(plan.slots)
        done = self.done_s(plan)
        return [slot for slot in plan.slots if done[slot] > above_s]

    def done_s(self, plan: Plan) -> dict[int, float]:
        """Seconds until each target serves at the latest, if nobody else used the links (`at_most_s`)."""
        pool = self.spec.pools[self.pool_of[plan.slots[0]]]
        took = at_most_s(self.topology, plan, pool.weight_bytes, pool.layers)
        before = pool.acquire_ps / PS_PER_S
        return dict(zip(plan.slots, (took + before).tolist(), strict=True))

    # ---- who stops, who becomes another ----

    def release(self, seen: FleetSeen, p: int, count: int) -> list[int]:
        """So many active instances of a pool that may go: those nobody loads from, the least busy first."""
        mine = self.slots[p]
        may = mine[(seen.state[mine] == InstanceState.ACTIVE) & ~seen.in_pair[mine]]
        sends = seen.sends_weights
        order = sorted(may.tolist(), key=lambda i: (sends[i], seen.requests[i], -i))
        return order[: max(0, count)]

    def stops(self, seen: FleetSeen, p: int, fewer: int, going: Sequence[int] = ()) -> list[int]:
        """Active instances that drain if a pool's target falls by so many (docs/engine.md, section 8).

        Nearly: queues that are routed again change who is the least busy.
        """
        mine = self.slots[p]
        state = seen.state[mine]
        fewer -= int(np.isin(state, (InstanceState.ACQUIRING, InstanceState.LOADING)).sum())
        active = [i for i in mine[state == InstanceState.ACTIVE].tolist() if i not in going]
        return sorted(active, key=lambda i: (seen.requests[i], -i))[: max(0, fewer)]

    def mutations(self, seen: FleetSeen, p: int, count: int, *, idle: bool = False) -> list[int]:
        """So many active instances of pool `p` whose twins may serve in their place, the least busy first.

        With `idle` only those that have no requests, whose twins serve at once. One active instance stays.
        None if no instance of the twins' pool is active: KV caches that they hold
        would find no decode instance (docs/engine.md, section 15).
        """
        mine = self.slots[p]
        twins = self.twins[mine]
        active = seen.state[mine] == InstanceState.ACTIVE
        if (twins < 0).any() or not len(mine):
            return []
        other = self.slots[self.pool_of[twins[0]]]
        if not (seen.state[other] == InstanceState.ACTIVE).any():
            return []
        may = mine[active & ~seen.in_pair[mine]]
        order = sorted(may.tolist(), key=lambda i: (seen.requests[i], -i))
        order = [i for i in order if not (idle and seen.requests[i])]
        return order[: max(0, min(count, int(active.sum()) - 1))]


def live_order(plan: Plan, senders: set[int]) -> list[int]:
    """Targets in the order in which they are chosen to work live (`live_pairs`): the tails first."""
    order = list(live_pairs(plan, range(len(plan.slots))))
    return sorted(order, key=lambda slot: slot in senders)
