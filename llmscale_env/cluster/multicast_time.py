"""When each layer comes to each target of a plan.

Every target loads its layers in order, one at a time; a layer flows as soon as its sender has it, and
flows share links max-min fairly, in whole bytes per microsecond and picoseconds. These are the rules of
the engines (docs/engine.md) for flows and for instances that load, so a plan takes the time that it would
take there if nothing else happened. Flows of serving can be put beside it.

`at_most_s` is a bound in closed form that takes no simulation, the exact time of chains over links of their
own; `chain_s` of `loading` is the formula for one of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from llmscale_env.cluster.loading import NetworkConfig
from llmscale_env.cluster.multicast import Plan, scale_plan, sources_of, targets_of
from llmscale_env.cluster.topology import PoolLayout, Topology, topology

PS_PER_S = 10**12
MILLIONTHS = 10**6
"""A byte per microsecond is so many millionths of a byte per picosecond."""


def layer_bytes(weight_bytes: int, layers: int) -> list[int]:
    """Bytes of each layer: as equal as whole bytes can be.

    Raises:
        ValueError: fewer than one layer, or no weights.
    """
    if layers < 1:
        raise ValueError(f"layers = {layers}: must be at least 1")
    if weight_bytes < layers:
        raise ValueError(f"weight_bytes = {weight_bytes}: must be at least a byte per layer")
    return [weight_bytes * (k + 1) // layers - weight_bytes * k // layers for k in range(layers)]


def fair_rates(capacity: Sequence[int], paths: Sequence[Sequence[int]]) -> list[int]:
    """Max-min fair rates in whole numbers by progressive filling; 0 for an empty path.

    The tightest link (of equals the lowest number) gives each of its flows an equal share, at least 1;
    then the rest is shared in the same way.

    Args:
        capacity: of each link.
        paths: the links of each flow.
    """
    rates = [0] * len(paths)
    on: dict[int, list[int]] = {}
    for flow, path in enumerate(paths):
        for link in path:
            on.setdefault(link, []).append(flow)
    left = {link: int(capacity[link]) for link in on}
    count = {link: len(flows) for link, flows in on.items()}
    unfixed = sum(1 for path in paths if path)
    while unfixed:
        share, tightest = min((left[link] // n, link) for link, n in count.items())
        share = max(1, share)
        for flow in on[tightest]:
            if rates[flow]:
                continue
            rates[flow] = share
            unfixed -= 1
            for link in paths[flow]:
                left[link] = max(0, left[link] - share)
                count[link] -= 1
                if not count[link]:
                    del count[link]
    return rates


class _Cluster:
    """Flows that share links with each other and with no others, now or ever."""

    def __init__(self, capacity: Sequence[int], beside: list[Sequence[int]]) -> None:
        self.capacity = capacity
        self.beside = beside
        self.flows: dict[int, list[int]] = {}  # by target: millionths of a byte left, rate
        self.paths: dict[int, Sequence[int]] = {}
        self.seen_ps = 0
        self.version = 0

    def settle(self, now_ps: int) -> None:
        """Count what has moved since the last look."""
        gone = now_ps - self.seen_ps
        if gone:
            for flow in self.flows.values():
                flow[0] = max(0, flow[0] - flow[1] * gone)
        self.seen_ps = now_ps

    def share(self) -> int | None:
        """New rates; when the next flow ends."""
        self.version += 1
        if not self.flows:
            return None
        paths = [self.paths[target] for target in self.flows]
        rates = fair_rates(self.capacity, [*paths, *self.beside])
        soonest = None
        for flow, rate in zip(self.flows.values(), rates, strict=False):
            flow[1] = rate
            takes_ps = -(-flow[0] // rate)
            soonest = takes_ps if soonest is None else min(soonest, takes_ps)
        assert soonest is not None
        return self.seen_ps + soonest


def layer_times_ps(
    topology: Topology,
    plan: Plan,
    weight_bytes: int,
    layers: int,
    *,
    setup_s: float = 0.0,
    beside: Sequence[Sequence[int]] = (),
) -> NDArray[np.int64]:
    """When each target has each layer.

    Args:
        topology: whose links are crossed.
        plan: who loads from whom.
        weight_bytes: what every target gets.
        layers: pieces that are forwarded one by one.
        setup_s: until communicators are there and the first byte moves (section 5.3: about 100 ms for a
            group of NCCL's, nothing with connections made beforehand).
        beside: paths of flows that are there all the time, such as KV caches of a busy instance.

    Returns:
        (n_targets, layers) picoseconds from the start, targets as in `plan.slots`.

    Raises:
        ValueError: see `layer_bytes`; or `setup_s` is negative.
    """
    volumes = [MILLIONTHS * size for size in layer_bytes(weight_bytes, layers)]
    if setup_s < 0:
        raise ValueError(f"setup_s = {setup_s}: must not be negative")
    start_ps = round(setup_s * PS_PER_S)
    place = {slot: k for k, slot in enumerate(plan.slots)}
    parent = [place.get(sender, -1) for sender in plan.senders]
    children: list[list[int]] = [[] for _ in parent]
    for k, sender in enumerate(parent):
        if sender >= 0:
            children[sender].append(k)
    paths = [topology.path(sender, slot) for sender, slot in plan.edges]
    clusters = _clusters(topology.links.capacity, paths, beside)

    came = np.full((len(parent), layers), -1, dtype=np.int64)
    have = [0] * len(parent)
    events: list[tuple[int, int, int]] = []
    number = {id(cluster): c for c, cluster in enumerate(dict.fromkeys(clusters))}
    by_number = list(dict.fromkeys(clusters))

    def flow(k: int, now_ps: int) -> None:
        """Its next layer begins, if there is one, if its sender has it, if none is under way."""
        pending = [k]
        while pending:
            k = pending.pop()
            cluster = clusters[k]
            layer, sender = have[k], parent[k]
            if layer == layers or k in cluster.flows or (sender >= 0 and have[sender] <= layer):
                continue
            if paths[k]:
                cluster.settle(now_ps)
                cluster.flows[k] = [volumes[layer], 0]
                cluster.paths[k] = paths[k]
                changed.add(number[id(cluster)])
            else:  # takes no time
                came[k, layer] = now_ps
                have[k] += 1
                pending += [k, *children[k]]

    changed: set[int] = set()
    for k in range(len(parent)):
        flow(k, start_ps)
    now_ps = start_ps
    while True:
        for c in sorted(changed):
            cluster = by_number[c]
            end_ps = cluster.share()
            if end_ps is not None:
                heapq.heappush(events, (end_ps, c, cluster.version))
        changed.clear()
        while events and events[0][2] != by_number[events[0][1]].version:
            heapq.heappop(events)
        if not events:
            return came
        now_ps, c, _ = heapq.heappop(events)
        cluster = by_number[c]
        cluster.settle(now_ps)
        changed.add(c)
        ended = [k for k, (left, _) in cluster.flows.items() if left == 0]
        for k in ended:
            del cluster.flows[k]
            came[k, have[k]] = now_ps
            have[k] += 1
        for k in ended:
            for each in (k, *children[k]):
                flow(each, now_ps)


@lru_cache(maxsize=256)
def planned_load_s(
    network: NetworkConfig, gpus_per_host: int, tp: int, weight_bytes: int, layers: int
) -> float:
    """Seconds that weights take to one instance from one on another machine, by the planner's plan.

    Nobody else uses the links. Without start-up; what `loading.load_times_s` has in closed form, but that it
    knows of what a machine's GPUs share with each other.

    Args:
        network: speeds.
        gpus_per_host: GPUs of a machine.
        tp: GPUs of an instance.
        weight_bytes: of the LLM.
        layers: of the LLM.
    """
    slots = gpus_per_host // tp + 1 if tp <= gpus_per_host else 2
    cluster = topology(network, gpus_per_host, [PoolLayout(tp, slots)])
    hosts = cluster.links.hosts
    target = next(slot for slot, host in enumerate(hosts) if host != hosts[0])
    plan = scale_plan(
        sources_of(cluster, [0]), targets_of(cluster, [target]), nvlink=cluster.nvlink
    )
    return float(done_s(layer_times_ps(cluster, plan, weight_bytes, layers))[0])


def at_most_s(
    topology: Topology, plan: Plan, weight_bytes: int, layers: int
) -> NDArray[np.float64]:
    """Seconds after which each target has all layers at the latest: quick, for planning.

    Each flow gets an equal share of the narrowest link of its path, all the time and of all flows of the
    plan that cross it. Max-min fair rates are never below that, as fewer flows only leave more to each. A
    layer then comes through hop by hop, and the slowest hop sets the pace of the others, as in
    `loading.chain_s`. Exact but for rounding where no link is crossed by flows of several rates or lengths,
    such as chains over links of their own; otherwise too long, as what ends or waits leaves its share to
    others.

    Args:
        topology, plan, weight_bytes, layers: as `layer_times_ps`.

    Returns:
        (n_targets,) targets as in `plan.slots`.

    Raises:
        ValueError: see `layer_bytes`.
    """
    largest = max(layer_bytes(weight_bytes, layers)) * MILLIONTHS
    capacity = topology.links.capacity
    paths = [topology.path(sender, slot) for sender, slot in plan.edges]
    crossing: dict[int, int] = {}
    for path in paths:
        for link in path:
            crossing[link] = crossing.get(link, 0) + 1
    first: dict[int, int] = {}  # when the first layer has come
    pace: dict[int, int] = {}  # between two layers
    for (sender, slot), path in zip(plan.edges, paths, strict=True):
        share = min((max(1, capacity[k] // crossing[k]) for k in path), default=0)
        takes_ps = -(-largest // share) if share else 0
        first[slot] = first.get(sender, 0) + takes_ps
        pace[slot] = max(pace.get(sender, 0), takes_ps)
    done = [first[slot] + (layers - 1) * pace[slot] for slot in plan.slots]
    return np.array(done) / PS_PER_S


def done_s(came_ps: NDArray[np.int64]) -> NDArray[np.float64]:
    """(n_targets,) seconds until each target has all layers, from `layer_times_ps`."""
    return came_ps[:, -1] / PS_PER_S


def _clusters(
    capacity: Sequence[int], paths: Sequence[Sequence[int]], beside: Sequence[Sequence[int]]
) -> list[_Cluster]:
    """Of each path the flows that it can ever share a link with, directly or through others."""
    leader: dict[int, int] = {}

    def find(link: int) -> int:
        while leader.setdefault(link, link) != link:
            leader[link] = leader[leader[link]]
            link = leader[link]
        return link

    everything = [*paths, *beside]
    for path in everything:
        for link in path:
            leader[find(link)] = find(path[0])
    with_links: dict[int, _Cluster] = {}
    for path in everything:
        if path:
            with_links.setdefault(find(path[0]), _Cluster(capacity, []))
    for path in beside:
        if path:
            with_links[find(path[0])].beside.append(path)
    return [with_links[find(path[0])] if path else _Cluster(capacity, []) for path in paths]
