"""Weights of many episodes side by side: which layers have come, from where, and how full the links are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.fast import EngineBatch
from llmscale_env.sim.fast.network import MILLIONTHS
from llmscale_env.sim.spec import INSTANCE_DTYPE, InstanceState
from llmscale_env.workload.requests import PS_PER_S


@dataclass(frozen=True)
class Weights:
    """Where weights are in `E` episodes, and the instances that have them or get them.

    Attributes:
        time_ps: (E,) present time.
        instances: (E, I) INSTANCE_DTYPE.
        layers: (E, I) layers that each slot has.
        source: (E, I) source code that they come or came from, -2: none (docs/engine.md, section 15).
        partner: (E, I) the other instance of its live pair, -1: none.
        mutating: (E, I) whether it drains so that its twin serves in its place.
        left_s: (E, I) seconds until all layers are there if the present rate of the one on its way stays; NaN
            where none is (nothing loads, or it waits for a layer of its source).
        home: (E, M) machine that is to keep a copy of each LLM's weights, -1: none.
        there: (E, M) whether it has it.
        out_use, in_use: (E, I) share of a slot's own link to, and from, other machines that flows use now; 0
            of a slot that is off, so the link that twins share counts once in a sum over slots.
    """

    time_ps: NDArray[np.int64]
    instances: NDArray[np.void]
    layers: NDArray[np.int64]
    source: NDArray[np.int64]
    partner: NDArray[np.int64]
    mutating: NDArray[np.bool_]
    left_s: NDArray[np.float64]
    home: NDArray[np.int64]
    there: NDArray[np.bool_]
    out_use: NDArray[np.float64]
    in_use: NDArray[np.float64]


def see_weights(engine: EngineBatch, first: int, last: int) -> Weights:
    """Episodes `first..last - 1` as they stand."""
    n, spec, states = last - first, engine.spec, engine.states
    shape = (n, spec.n_instances)
    instances = np.zeros(shape, INSTANCE_DTYPE)
    layers, source, partner = (np.zeros(shape, np.int64) for _ in range(3))
    left_s = np.full(shape, np.nan)
    home, there = np.zeros((n, spec.n_llms), np.int64), np.zeros((n, spec.n_llms), bool)
    use = np.zeros((2, *shape))
    for k, e in enumerate(range(first, last)):
        instances[k] = engine.instances(e)
        loading, homes = engine.loading(e), engine.homes(e)
        layers[k], source[k] = loading["layers_loaded"], loading["load_from"]
        partner[k] = loading["partner"]
        home[k], there[k] = homes["host"], homes["there"]
        loads = instances[k]["state"] == InstanceState.LOADING
        if spec.network is not None:
            left_s[k, loads] = _left_s(engine, e, np.flatnonzero(loads))
            on = instances[k]["state"] != InstanceState.OFF
            use[:, k] = np.where(on, _use(engine, e), 0.0)
    return Weights(
        time_ps=states.glob["now_ps"][first:last, 0].copy(),
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
        if pool.weight_bytes and row["flows"] and flow["rate"]:
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
