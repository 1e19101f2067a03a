"""Who sends weights to whom: BlitzScale's scale planner (its Algorithm 1), and what it is compared with.

A plan names a sender for every target; each target forwards a layer as soon as it has it
(`multicast_time` says when that is). Codes of senders are those of `Topology`: slots, then the memories
of hosts.

The planner groups targets of a host that NVLink joins (one of them loads over the network, the others
from it in a chain), removes sources that already send (prefill instances, whose KV caches leave by the
same links), and then takes the targets by bandwidth, each from the sender with the most bandwidth left,
of equals from the one that has waited longest. A sender that is not used up stays with what is left; a
target that has been reached becomes a sender of what it gets.

Where the paper is silent (ours): a group on a host with a running instance loads from that over NVLink,
even from a pruned one, since no network card takes part; targets on a host whose memory has the weights
load from there; targets of equal bandwidth come by host, those of the sources first, so that neighbours
in a chain share a host; if all sources are pruned, all are used, since loading slowly beats not loading.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from llmscale_env.cluster.topology import Topology


@dataclass(frozen=True)
class Source:
    """Something that has all weights.

    Attributes:
        code: a slot, or the memory of a host.
        host: where it is.
        bytes_per_s: what it can send to other hosts (BWO).
        memory: a host's memory, not a GPU.
        sends: it sends over the network already, so weights would be in the way.
    """

    code: int
    host: int
    bytes_per_s: float
    memory: bool = False
    sends: bool = False


@dataclass(frozen=True)
class Target:
    """An instance that is to load.

    Attributes:
        slot: its own.
        host: where it is.
        bytes_per_s: what it can get from other hosts (BWI), and hand on.
    """

    slot: int
    host: int
    bytes_per_s: float


@dataclass(frozen=True)
class Plan:
    """Who loads from whom.

    Attributes:
        edges: (sender, target) pairs; a target is named once, and before it sends.
    """

    edges: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        targets = [target for _, target in self.edges]
        if len(set(targets)) < len(targets):
            raise ValueError("edges: a target is named twice")
        waiting = set(targets)
        for sender, target in self.edges:
            if sender in waiting:
                raise ValueError(f"edges: {target} loads from {sender} before that has a sender")
            waiting.discard(target)

    @property
    def slots(self) -> tuple[int, ...]:
        """Targets, a sender before those that load from it."""
        return tuple(target for _, target in self.edges)

    @property
    def senders(self) -> tuple[int, ...]:
        """Sender of each of `slots`."""
        return tuple(sender for sender, _ in self.edges)

    @cached_property
    def depth(self) -> dict[int, int]:
        """Hops from a source to each target."""
        hops: dict[int, int] = {}
        for sender, target in self.edges:
            hops[target] = hops.get(sender, 0) + 1
        return hops

    def chains(self) -> tuple[tuple[int, ...], ...]:
        """The plan as paths from a source to a target that sends to nobody else first.

        Every target is in one path; a path begins with the sender of its first target.
        """
        found: list[list[int]] = []
        ends: dict[int, int] = {}
        for sender, target in self.edges:
            if sender in ends:
                chain = ends.pop(sender)
                found[chain].append(target)
            else:
                chain = len(found)
                found.append([sender, target])
            ends[target] = chain
        return tuple(map(tuple, found))


def scale_plan(
    sources: Sequence[Source], targets: Sequence[Target], *, nvlink: bool, local_first: bool = True
) -> Plan:
    """Algorithm 1.

    Args:
        sources: instances and memories that have the weights, in the order in which equals are used.
        targets: instances that are to load.
        nvlink: whether GPUs of a host have links to each other.
        local_first: what a host's own memory has is loaded from there; otherwise all memories are
            sources for everybody, as printed.

    Raises:
        ValueError: there is no source, or a target is named twice.
    """
    if not sources:
        raise ValueError("sources: none has the weights")
    running: dict[int, Source] = {}
    cached: dict[int, Source] = {}
    for source in sources:
        of_host = cached if source.memory else running
        held = of_host.get(source.host)
        if held is None or (held.sends and not source.sends):
            of_host[source.host] = source

    edges: list[tuple[int, int]] = []
    groups: list[list[Target]] = []  # line 1
    for group in _grouped(targets, nvlink):
        host = group[0].host
        if nvlink and host in running:
            edges += _chain(running[host].code, group)
        elif local_first and host in cached:
            edges += _chain(cached[host].code, group)
        else:
            groups.append(group)

    pool = [source for source in sources if not source.sends] or list(sources)  # line 2
    homes = {source.host for source in pool}
    groups.sort(key=lambda g: (-g[0].bytes_per_s, g[0].host not in homes, g[0].host, g[0].slot))
    queue = [(-source.bytes_per_s, k, source.code) for k, source in enumerate(pool)]
    heapq.heapify(queue)
    inserted = len(queue)
    for group in groups:  # lines 4 to 13
        first = group[0]
        left, _, code = heapq.heappop(queue)
        rate = min(-left, first.bytes_per_s)
        edges += _chain(code, group)
        for bytes_per_s, member in ((-left - rate, code), (rate, first.slot)):
            if bytes_per_s > 0:
                heapq.heappush(queue, (-bytes_per_s, inserted, member))
                inserted += 1
    return Plan(tuple(edges))


def _grouped(targets: Sequence[Target], nvlink: bool) -> list[list[Target]]:
    """Targets that load as one, the one with the widest link first."""
    groups: dict[int, list[Target]] = {}
    for k, target in enumerate(targets):
        groups.setdefault(target.host if nvlink else k, []).append(target)
    return [sorted(group, key=lambda t: (-t.bytes_per_s, t.slot)) for group in groups.values()]


def _chain(sender: int, group: Sequence[Target]) -> list[tuple[int, int]]:
    slots = [target.slot for target in group]
    return list(zip([sender, *slots], slots, strict=False))


def live_pairs(plan: Plan, overloaded: Sequence[int]) -> dict[int, int]:
    """Which targets work while they load, and with whom (section 5.2: "typically the tail instance").

    Targets that send to nobody come first, so that what they send of their own work is in nobody's way;
    of those, and of the others, the last of the plan first, since it loads longest.

    Args:
        plan: who loads from whom.
        overloaded: instances that want help, the neediest first; each gets one target at most.

    Returns:
        The overloaded instance of each target that works live.
    """
    senders = set(plan.senders)
    latest = sorted(enumerate(plan.slots), key=lambda each: (each[1] in senders, -each[0]))
    return dict(zip((slot for _, slot in latest), overloaded, strict=False))


def fan_out(source: int, targets: Sequence[Target]) -> Plan:
    """Every target loads from one source, all at once."""
    return Plan(tuple((source, target.slot) for target in targets))


def tree(source: int, targets: Sequence[Target], children: int = 2) -> Plan:
    """Every target forwards to at most `children` others, in the order given; 1: a single chain."""
    if children < 1:
        raise ValueError(f"children = {children}: must be at least 1")
    slots = [target.slot for target in targets]
    senders = [source, *(slots[(k - 1) // children] for k in range(1, len(slots)))]
    return Plan(tuple(zip(senders, slots, strict=False)))


def sources_of(
    topology: Topology,
    slots: Sequence[int] = (),
    hosts: Sequence[int] = (),
    sending: Sequence[int] = (),
) -> list[Source]:
    """Sources as the topology knows them.

    Args:
        topology: of the cluster.
        slots: instances that have the weights.
        hosts: machines whose memory has them.
        sending: those of `slots` that send KV caches to others.
    """
    busy = set(sending)
    found = [
        Source(slot, topology.host_of(slot), topology.out_bytes_per_s(slot), False, slot in busy)
        for slot in slots
    ]
    for host in hosts:
        code = topology.memory(host)
        found.append(Source(code, host, topology.out_bytes_per_s(code), True))
    return found


def targets_of(
    topology: Topology, slots: Sequence[int], sending: Sequence[int] = ()
) -> list[Target]:
    """Targets as the topology knows them.

    Args:
        topology: of the cluster.
        slots: instances that are to load.
        sending: instances that send KV caches to others. A target that shares its narrowest link with one
            of them counts half its bandwidth (section 5.1: "only use the half bandwidth").
    """
    links = topology.links
    taken = {link for slot in sending for link in links.out_links[slot]}
    found = []
    for slot in slots:
        mine = links.out_links[slot]
        narrowest = min(links.capacity[link] for link in mine)
        shared = any(link in taken and links.capacity[link] == narrowest for link in mine)
        speed = topology.in_bytes_per_s(slot) * (0.5 if shared else 1.0)
        found.append(Target(slot, topology.host_of(slot), speed))
    return found


def all_forests(sources: Sequence[int], slots: Sequence[int]) -> Iterator[Plan]:
    """Every plan in which each slot has one sender: s * (s + n) ** (n - 1) of them for n slots and s sources.

    What the greedy planner is measured against, for few slots.
    """
    for senders in product([*sources, *slots], repeat=len(slots)):
        of = dict(zip(slots, senders, strict=True))
        order: list[int] = []
        reached = set(sources)
        waiting = list(slots)
        while True:
            ready = [slot for slot in waiting if of[slot] in reached]
            if not ready:
                break
            order += ready
            reached.update(ready)
            waiting = [slot for slot in waiting if slot not in reached]
        if not waiting:
            yield Plan(tuple((of[slot], slot) for slot in order))
