"""What the fast engine shows of many episodes side by side (`sim.observed`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.fast import gateways as gateway_kernels
from llmscale_env.sim.fast import virtual_queues as queue_kernels
from llmscale_env.sim.fast.serving.network import MILLIONTHS, bring_up_to_date
from llmscale_env.sim.observed import (
    FINISHED_DTYPE,
    INSTANCE_DTYPE,
    WORKER_DTYPE,
    Gateways,
    VirtualQueues,
    Weights,
)
from llmscale_env.sim.orders import AS_IS
from llmscale_env.sim.spec import InstanceState
from llmscale_env.workload.requests import PS_PER_S

if TYPE_CHECKING:
    from llmscale_env.sim.fast.engine import EngineBatch

_OF_REQUEST = ("arrival", "input", "predicted", "emitted", "llm", "cls")


def finished(engine: EngineBatch, e: int, before: int) -> NDArray[Any]:
    """(n,) FINISHED_DTYPE, requests of episode `e` that finished after the first `before` ones, in order."""
    states = engine.states
    places = states.log[e, 0, before : int(states.glob[e, 0]["n_finished"])]
    rows = states.req[e][places]
    found = np.empty(len(places), FINISHED_DTYPE)
    found["request"] = states.ids[e][places]
    found["region"] = states.roam["region"][e, places] if engine.spec.regional else 0
    found["ttft_ps"] = rows["first"] - rows["arrival"]
    for name, own in (("llm", "llm"), ("slo_class", "cls"), ("input_tokens", "input")):
        found[name] = rows[own]
    found["output_tokens"] = rows["output"]
    return found


def ready_ps(engine: EngineBatch, first: int, last: int) -> NDArray[np.int64]:
    """(n, I) when instances that are acquired or loaded will serve; 0: not known, -1: others."""
    slots = engine.states.inst[first:last]
    coming = np.isin(slots["state"], (InstanceState.ACQUIRING, InstanceState.LOADING))
    return np.where(coming, np.maximum(slots["loaded_ps"], 0), -1)


def virtual_queues(engine: EngineBatch, first: int, last: int) -> VirtualQueues:
    """Episodes `first..last - 1` as they stand (some arrays are live: read them at once)."""
    n, spec, states = last - first, engine.spec, engine.states
    n_queues = len(spec.queue_llm)
    instances = np.zeros((n, spec.n_instances), INSTANCE_DTYPE)
    kv_share = np.zeros((n, spec.n_instances))
    running = np.zeros((n, spec.n_instances, n_queues), np.int64)
    oldest = np.zeros((n, n_queues), np.int64)
    pull = np.zeros((n, spec.n_instances, n_queues), np.int64)
    queue_kernels.see_many(engine.handles, first, last, instances, kv_share, running, oldest, pull)
    mine = slice(first, last)
    evicts = states.pool["evicts_in_order"][mine]
    return VirtualQueues(
        time_ps=states.glob["now_ps"][mine, 0],
        queues=states.queue_seen[mine, :n_queues],
        oldest_fresh_ps=oldest,
        running=running,
        running_by_class=states.running_cls[mine],
        instances=instances,
        kv_share=kv_share,
        pull=pull,
        arrival=states.route["queues"][mine, :, :, 0],
        weights_ready_ps=states.host_ready[mine],
        evicts=np.where(states.pool["swap_flushes"][mine] == evicts, evicts, AS_IS),
        waiting=lambda e, queue: engine.queued(first + e, queue),
    )


def gateways(engine: EngineBatch, first: int, last: int, with_workers: bool) -> Gateways:
    """Episodes `first..last - 1` as they stand."""
    n, spec = last - first, engine.spec
    waiting = np.zeros((n, spec.n_llms), np.int64)
    head_ps = np.zeros((n, spec.n_llms), np.int64)
    turn = np.zeros(n, np.int64)
    workers = np.zeros((n, spec.n_instances if with_workers else 0), WORKER_DTYPE)
    itl_ps = np.array([c.itl_slo_ps for c in spec.classes], np.int64)
    gateway_kernels.see_gateways(
        engine.handles, first, last, itl_ps, waiting, head_ps, turn, workers
    )
    at, there = (np.arange(first, last), np.maximum(turn, 0)), turn >= 0
    rows = engine.states.req[at]
    values = [np.where(there, rows[name], 0).astype(np.int64) for name in _OF_REQUEST]
    names = (
        "arrival_ps",
        "input_tokens",
        "predicted_tokens",
        "emitted_tokens",
        "llm",
        "slo_class",
    )
    return Gateways(
        time_ps=engine.states.glob["now_ps"][first:last, 0].copy(),
        waiting=waiting,
        head_ps=head_ps,
        turn=np.where(there, engine.states.ids[at], -1),
        request=dict(zip(names, values, strict=True)),
        workers=workers,
    )


def weights(engine: EngineBatch, first: int, last: int) -> Weights:
    """Episodes `first..last - 1` as they stand."""
    n, spec, states = last - first, engine.spec, engine.states
    shape = (n, spec.n_instances)
    instances = np.zeros(shape, INSTANCE_DTYPE)
    layers, source, partner = (np.zeros(shape, np.int64) for _ in range(3))
    left_s = np.full(shape, np.nan)
    home, there = np.zeros((n, spec.n_llms), np.int64), np.zeros((n, spec.n_llms), bool)
    use = np.zeros((2, *shape))
    bring_up_to_date(engine.handles, first, last)
    flowing = np.array([spec.pools[p].weight_bytes > 0 for p in spec.pool_of_slot])
    for k, e in enumerate(range(first, last)):
        instances[k] = engine.instances(e)
        loading, homes = engine.loading(e), engine.homes(e)
        layers[k], source[k] = loading["layers_loaded"], loading["load_from"]
        partner[k] = loading["partner"]
        home[k], there[k] = homes["host"], homes["there"]
        loads = instances[k]["state"] == InstanceState.LOADING
        loads &= flowing
        if spec.network is not None:
            left_s[k, loads] = _left_s(engine, e, np.flatnonzero(loads))
            on = instances[k]["state"] != InstanceState.OFF
            use[:, k] = np.where(on, _use(engine, e), 0.0)
    return Weights(
        instances=instances,
        layers=layers,
        source=source,
        partner=partner,
        mutating=states.load["mutating"][first:last].astype(bool),
        left_s=left_s,
        home=home,
        there=there,
        out_use=use[0],
        in_use=use[1],
    )


def _left_s(engine: EngineBatch, e: int, slots: NDArray[np.int64]) -> NDArray[np.float64]:
    """(n,) time left of instances that load."""
    spec, states = engine.spec, engine.states
    pools = [spec.pools[spec.pool_of_slot[i]] for i in slots]
    load = states.load[e, slots]
    flows = states.flow[e, int(states.glob[e, 0]["n_requests"]) + slots]
    now = int(states.glob[e, 0]["now_ps"])
    found = np.full(len(slots), np.nan)
    for k, (pool, row, flow) in enumerate(zip(pools, load, flows, strict=True)):
        if row["flows"] and flow["rate"]:
            has = int(row["layers"])
            later = pool.weight_bytes - pool.weight_bytes * (has + 1) // pool.layers
            rate = int(flow["rate"])
            moved = rate * (now - int(flow["seen"]))
            found[k] = (max(0, int(flow["left"]) - moved) + later * MILLIONTHS) / rate / PS_PER_S
    return found


def _use(engine: EngineBatch, e: int) -> NDArray[np.float64]:
    """(2, I) shares in use of every slot's own links out and in."""
    spec, states = engine.spec, engine.states
    assert spec.network is not None
    numbers = states.flows[e, : int(states.glob[e, 0]["n_flows"])]
    flows = states.flow[e, numbers]
    carried = np.zeros(len(spec.network.capacity) + 1)  # the last one: no link
    for name in ("first", "second"):
        np.add.at(carried, states.links[flows[name]], flows["rate"][:, None])
    found = np.zeros((2, spec.n_instances))
    for way, rows in enumerate((spec.network.out_links, spec.network.in_links)):
        own = [row[0] if row else -1 for row in rows]
        capacity = np.array([spec.network.capacity[k] if k >= 0 else 1 for k in own])
        found[way] = np.where(np.array(own) < 0, 0.0, carried[own] / capacity)
    return found
