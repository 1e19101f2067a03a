"""What the reference engine shows of many episodes side by side (`sim.observed`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.observed import NO_SLACK, WORKER_DTYPE, Gateways, VirtualQueues, Weights
from llmscale_env.sim.orders import AS_IS
from llmscale_env.sim.reference.engine import ReferenceEngine
from llmscale_env.sim.reference.instance import Instance
from llmscale_env.sim.reference.serving.best_fit import predicted
from llmscale_env.sim.reference.serving.network import MILLIONTHS
from llmscale_env.sim.reference.state.request import Request
from llmscale_env.sim.spec import InstanceState
from llmscale_env.workload.requests import PS_PER_S

Episodes = Sequence[ReferenceEngine]


def times_ps(episodes: Episodes) -> NDArray[np.int64]:
    """(n,) present time of each."""
    return np.array([engine.now_ps for engine in episodes], np.int64)


# ---- virtual queues ----


def virtual_queues(
    episodes: Episodes, queues: NDArray[Any], waiting: Callable[[int, int], NDArray[Any]]
) -> VirtualQueues:
    """Who waits and runs where; `queues` and `waiting` as there."""
    engines = list(episodes)
    return VirtualQueues(
        time_ps=times_ps(episodes),
        queues=queues,
        oldest_fresh_ps=_stack([_oldest_fresh_ps(engine) for engine in engines]),
        running=_stack([engine.running_from() for engine in engines]),
        running_by_class=_stack([engine.running_by_class() for engine in engines]),
        instances=np.stack([engine.instances() for engine in engines]),
        kv_share=np.array(
            [[i.kv_tokens / i.capacity for i in engine.all_instances] for engine in engines]
        ),
        pull=_stack([_lists(engine) for engine in engines]),
        arrival=_stack([_arrival_queues(engine) for engine in engines]),
        weights_ready_ps=_stack([engine.weights_ready_ps() for engine in engines]),
        evicts=_stack([_evicts(engine) for engine in engines]),
        waiting=waiting,
    )


def _stack(rows: list[Any]) -> NDArray[np.int64]:
    return np.stack([np.asarray(row, np.int64) for row in rows])


def _oldest_fresh_ps(engine: ReferenceEngine) -> list[int]:
    """(Q,) arrival of the first in each queue that has had no token, -1: none."""
    return [
        next((r.arrival_ps for r in queue if r.first_token_ps < 0), -1)
        for queue in engine.queues_of
    ]


def _lists(engine: ReferenceEngine) -> NDArray[np.int64]:
    """(I, Q) queues on each instance's list, in order, -1 behind the last."""
    found = np.full((len(engine.all_instances), len(engine.queues_of)), -1, np.int64)
    for row, pull in zip(found, engine.pulls(), strict=True):
        row[: len(pull)] = pull
    return found


def _arrival_queues(engine: ReferenceEngine) -> list[list[int]]:
    """(M, C) queue that arrivals join, the shortest ones if several."""
    queues, spec = engine.router.arrival_queues, engine.spec
    return [[queues[m, c][1][0] for c in range(len(spec.classes))] for m in range(spec.n_llms)]


def _evicts(engine: ReferenceEngine) -> list[int]:
    """(P,) 1 where a pool's instances evict in order and flush at swaps, 0 where they do neither."""
    return [
        int(rule.evicts_in_order) if rule.evicts_in_order == rule.swap_flushes else AS_IS
        for rule in engine.operations
    ]


# ---- gateways ----


def gateways(episodes: Episodes, with_workers: bool) -> Gateways:
    """Who waits for a place, and what workers have to do."""
    turns = [turn(engine) for engine in episodes]
    fields: dict[str, Callable[[Request], int]] = {
        "arrival_ps": lambda r: r.arrival_ps,
        "input_tokens": lambda r: r.input_tokens,
        "predicted_tokens": lambda r: r.predicted_output_tokens,
        "emitted_tokens": lambda r: r.emitted,
        "llm": lambda r: r.llm,
        "slo_class": lambda r: r.slo_class,
    }
    return Gateways(
        time_ps=times_ps(episodes),
        waiting=_stack([[len(gateway) for gateway in engine.gateways] for engine in episodes]),
        head_ps=_stack(
            [[g[0].arrival_ps if g else -1 for g in engine.gateways] for engine in episodes]
        ),
        turn=np.array([-1 if r is None else r.id for r in turns], np.int64),
        request={
            name: np.array([0 if r is None else of(r) for r in turns], np.int64)
            for name, of in fields.items()
        },
        workers=np.stack(
            [
                _workers(engine, r) if with_workers else np.zeros(0, WORKER_DTYPE)
                for engine, r in zip(episodes, turns, strict=True)
            ]
        ),
    )


def turn(engine: ReferenceEngine) -> Request | None:
    """Of the heads of all gateways the request that arrived first."""
    return min((g[0] for g in engine.gateways if g), key=lambda r: r.id, default=None)


def _workers(engine: ReferenceEngine, request: Request | None) -> NDArray[Any]:
    """(I,) WORKER_DTYPE; how far they are ahead goes by the target of the request's class."""
    slo_class = 0 if request is None else request.slo_class
    itl_ps = int(engine.spec.classes[slo_class].itl_slo_ps)
    return np.array([_worker(i, itl_ps) for i in engine.all_instances], dtype=WORKER_DTYPE)


def _worker(i: Instance, itl_ps: int) -> tuple[int, ...]:
    there, now_ps = i.all_requests, i.engine.now_ps
    ahead = [itl_ps * r.emitted - (now_ps - r.first_token_ps) for r in i.running if r.emitted > 0]
    return (
        int(i.state),
        i.llm,
        int(i.pool.phase),
        i.batch_limit,
        len(there),
        sum(r.input_tokens for r in there),
        sum(predicted(r) for r in there),
        sum(r.ctx for r in there),
        sum(r.ctx for r in i.own_queue),
        min(ahead, default=int(NO_SLACK)),
        i.kv_tokens,
        i.waiting_demand,
        i.capacity,
    )


# ---- weights ----


def weights(episodes: Episodes) -> Weights:
    """Where weights are, and the instances that have them or get them."""
    loading = np.stack([engine.loading() for engine in episodes])
    homes = np.stack([engine.homes() for engine in episodes])
    use = [_use(engine) for engine in episodes]
    return Weights(
        instances=np.stack([engine.instances() for engine in episodes]),
        layers=loading["layers_loaded"].astype(np.int64),
        source=loading["load_from"].astype(np.int64),
        partner=loading["partner"].astype(np.int64),
        mutating=np.array([[i.mutating for i in engine.all_instances] for engine in episodes]),
        left_s=np.array([[_left_s(i) for i in engine.all_instances] for engine in episodes]),
        home=homes["host"].astype(np.int64),
        there=homes["there"].copy(),
        out_use=np.stack([out for out, _ in use]),
        in_use=np.stack([into for _, into in use]),
    )


def _left_s(instance: Instance) -> float:
    """Seconds until all layers of an instance are there if the present rate stays; NaN: none comes."""
    flow = instance.engine.network.flows.get(instance.loader.number)
    if instance.state != InstanceState.LOADING or flow is None or flow.rate == 0:
        return float("nan")
    pool = instance.pool
    later_bytes = sum(pool.layer_bytes(k) for k in range(instance.loader.layers + 1, pool.layers))
    left = max(0, flow.left - flow.rate * (instance.engine.now_ps - flow.seen_ps))
    return (left + later_bytes * MILLIONTHS) / flow.rate / PS_PER_S


def _use(engine: ReferenceEngine) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(I,) shares in use of every slot's own link out, and in; 0 where it has none or is off."""
    network = engine.spec.network
    if network is None:
        return np.zeros(len(engine.all_instances)), np.zeros(len(engine.all_instances))
    carried = [0] * len(network.capacity)
    for flow in engine.network.flows.values():
        for link in flow.path:
            carried[link] += flow.rate

    def share(instance: Instance, links: Sequence[int]) -> float:
        if not links or instance.state == InstanceState.OFF:
            return 0.0
        return carried[links[0]] / int(network.capacity[links[0]])

    ways = (network.out_links, network.in_links)
    out, into = (
        np.array([share(i, links) for i, links in zip(engine.all_instances, rows, strict=True)])
        for rows in ways
    )
    return out, into
