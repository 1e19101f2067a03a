"""How long the scale planner takes: BlitzScale's Algorithm 1, and the time model of its plans.

A plan begins with what the topology knows of sources and targets, as it does in a policy. "nvlink" has 8
GPUs per host, of which targets are whole hosts; "hosts" one GPU per host; "unequal" one GPU per host with
links of 12.5 to 200 Gbps, and a tenth as many sources as targets, every other one pruned. Llama-2-7B of
32 layers.

"orders" is what a policy does: from so many instances wanted to orders, slots chosen and live pairs found
besides (`Scaler.loads`), on scenarios like "nvlink" and "hosts" (links of a scenario are equal).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from llmscale_env.cluster.cards import llm_card
from llmscale_env.cluster.loading import CLUSTER_A, GBIT_PER_S
from llmscale_env.cluster.multicast import (
    Plan,
    Target,
    fan_out,
    scale_plan,
    sources_of,
    targets_of,
    tree,
)
from llmscale_env.cluster.multicast_time import done_s, layer_times_ps
from llmscale_env.cluster.topology import PoolLayout, Topology, switch, topology
from llmscale_env.control.scaling import FleetSeen, Scaler
from llmscale_env.scenarios import validate_scenario
from llmscale_env.sim.spec import NO_SOURCE, InstanceState

TARGETS = (10, 100, 1000)
LLM = llm_card("llama-2-7b")
LIVE_ABOVE_S = 0.3
"""Loads longer than this are worth live scaling."""


def clusters(targets: int) -> dict[str, tuple[Topology, list[int], list[int], list[int]]]:
    """By name: topology, sources, those of them that send, slots to load."""
    hosts = 1 + -(-targets // 8)
    many = max(1, targets // 10)
    rng = np.random.default_rng(0)
    speeds = np.exp(rng.uniform(np.log(12.5), np.log(200), many + targets)) * GBIT_PER_S
    return {
        "nvlink": (
            topology(CLUSTER_A, 8, [PoolLayout(1, 8 * hosts)]),
            [0],
            [],
            list(range(8, 8 + targets)),
        ),
        "hosts": (
            switch([100 * GBIT_PER_S] * (targets + 1)),
            [0],
            [],
            list(range(1, targets + 1)),
        ),
        "unequal": (
            switch([float(speed) for speed in speeds]),
            list(range(many)),
            list(range(1, many, 2)),
            list(range(many, many + targets)),
        ),
    }


def planned(
    found: Topology, sources: list[int], sending: list[int], slots: list[int]
) -> tuple[Plan, list[Target]]:
    """What is timed."""
    targets = targets_of(found, slots, sending)
    made = scale_plan(sources_of(found, sources, sending=sending), targets, nvlink=found.nvlink)
    return made, targets


def scaler_of(gpus_per_host: int, targets: int) -> tuple[Scaler, FleetSeen]:
    """A cluster where an overloaded prefill instance and a decode one serve, with room for targets."""
    slots = -(-(targets + 2) // gpus_per_host) * gpus_per_host
    pool = {
        "name": "prefill",
        "llm": LLM.name,
        "v1": None,
        "max_instances": slots,
        "phase": "prefill",
        "weights": "flow",
    }
    fleet = {
        "max_gpus": slots,
        "gpus_per_host": gpus_per_host,
        "pools": [pool, {**pool, "name": "decode", "phase": "decode", "twin_of": "prefill"}],
        "routes": [{"pools": ["prefill"], "decode_pools": ["decode"]}],
    }
    network = {"machine": "blitzscale-a", "startup_s": 0}
    scaler = Scaler(
        validate_scenario({"name": "bench", "workload": {}, "fleet": fleet, "network": network})
    )
    n = 2 * slots
    state = np.full(n, InstanceState.OFF)
    state[[0, n - 1]] = InstanceState.ACTIVE
    waiting = np.zeros(n, np.int64)
    waiting[0] = 1
    none = np.full(n, NO_SOURCE)
    alone, stays = np.full(n, -1), np.zeros(n, bool)
    seen = FleetSeen(state, waiting, waiting, none, alone, stays, np.array([-1]), np.array([False]))
    return scaler, seen


def times_ms(call: Callable[[], Any], repeats: int) -> list[float]:
    """Processor time of each of some calls."""
    taken = []
    for _ in range(repeats):
        begin = time.process_time()
        call()
        taken.append(1e3 * (time.process_time() - begin))
    return taken


def bench_multicast(quick: bool) -> list[dict[str, Any]]:
    """Milliseconds per plan, and seconds that plans take."""
    rows: list[dict[str, Any]] = []
    for targets in TARGETS[:1] if quick else TARGETS:
        ordered: dict[str, list[float]] = {}
        for name, gpus in (("nvlink", 8), ("hosts", 1)):
            scaler, seen = scaler_of(gpus, targets)

            orders = partial(scaler.loads, seen, {0: targets}, live=True, live_above_s=LIVE_ABOVE_S)
            ordered[name] = times_ms(orders, 3 if quick else 20)
        for name, (found, sources, sending, slots) in clusters(targets).items():
            case = (found, sources, sending, slots)
            taken = times_ms(lambda case=case: planned(*case), 3 if quick else 50)  # type: ignore[misc]
            made, order_of = planned(*case)
            begin = time.process_time()
            last = [layer_times_ps(found, made, LLM.weight_bytes, LLM.layers)]
            model_ms = 1e3 * (time.process_time() - begin)
            last += [
                layer_times_ps(found, plan, LLM.weight_bytes, LLM.layers)
                for plan in (tree(0, order_of), fan_out(0, order_of))
            ]
            plan_s, tree_s, fan_out_s = (round(float(done_s(came).max()), 2) for came in last)
            orders_ms = ordered.get(name)
            rows.append(
                {
                    "cluster": name,
                    "targets": targets,
                    "sources": len(sources) - len(sending),
                    "plan_ms_median": round(float(np.median(taken)), 2),
                    "plan_ms_max": round(max(taken), 2),
                    "orders_ms_median": round(float(np.median(orders_ms)), 2) if orders_ms else "",
                    "orders_ms_max": round(max(orders_ms), 2) if orders_ms else "",
                    "time_model_ms": round(model_ms, 1),
                    "plan_s": plan_s,
                    "tree_s": tree_s,
                    "fan_out_s": fan_out_s,
                }
            )
    return rows
