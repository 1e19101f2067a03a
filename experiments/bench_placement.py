"""Time of one best-fit placement in a busy cluster, for `python -m experiments.bench`.

The event loop of the fast engine with a clock around each placement and nothing else. Instances of
Llama 3.1 8B on one A100-80GB each, ShareGPT lengths, Poisson arrivals at a share (the "load") of what the
instances serve when saturated; predictions are wrong by up to half either way, so that some requests
exceed theirs. A prefill may wait for a second at most, so requests wait in the gateway and not at the
workers; the target of decoding is loose. Then batches are full (of 256) above a load of 1, or, with
`MEMORY_FRACTION` "tight", KV memory decides: the dearest case, since the predicted ends of all running
requests have to be gone through.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from experiments.bench_engines import (
    BATCH_LIMIT,
    GPU,
    LLM,
    arrivals,
    capacity_per_s,
)
from experiments.bench_phases import _clock_cost_ns, _now_ns
from llmscale_env.scenarios import validate_scenario
from llmscale_env.sim.compile import compile_cluster
from llmscale_env.sim.fast import FastEngine
from llmscale_env.sim.fast.advance import _ARRIVAL, _arrive, _instance_event
from llmscale_env.sim.fast.serving.best_fit import best_fit
from llmscale_env.sim.fast.state.memory import glob_of, inst_at, key_of, req_at, tree_of
from llmscale_env.sim.fast.state.records import NO_EVENT
from llmscale_env.sim.spec import ClusterSpec
from llmscale_env.workload.requests import RequestTable

MEMORY_FRACTION = {"ample": 0.9, "tight": 0.35}
WORKERS = (50, 200)
LOADS = (0.9, 1.5)


@numba.njit(nogil=True)
def _advance_placing(S, router, features, taken_ns, running):  # type: ignore[no-untyped-def]
    """Every event up to the last arrival; per arrival the placement's time and who runs in all."""
    buffer = np.zeros(2, np.int64)
    glob = glob_of(S)
    while glob.next_arrival < glob.n_requests:
        i = tree_of(S)[1]
        key = key_of(S)[i]
        r = glob.next_arrival
        t = req_at(S, r).arrival
        if 2 * t < key or key == NO_EVENT:
            glob.phase = _ARRIVAL
            begin = _now_ns(buffer)
            best_fit(S, np.int64(req_at(S, r).llm), np.int64(req_at(S, r).cls), 0, r, t)
            taken_ns[r] = _now_ns(buffer) - begin
            for j in range(len(features)):
                running[r] += inst_at(S, j).n_run
            glob.next_arrival += 1
            _arrive(S, r, router, features)
        else:
            _instance_event(S, i, key, router, features)


def cluster(workers: int, memory: str = "ample") -> ClusterSpec:
    """One pool whose route is by best fit; who fits nowhere waits in the gateway."""
    pool = {
        "name": "workers",
        "llm": LLM,
        "gpu": GPU,
        "v1": None,
        "max_instances": workers,
        "initial_instances": workers,
        "batch_limit": BATCH_LIMIT,
        "max_batch": BATCH_LIMIT,
    }
    loose = {"ttft_s": 1.0, "itl_s": 10.0}
    route = {"kind": "best-fit", "pools": ["workers"], "placement": loose}
    fleet = {"max_gpus": workers, "pools": [pool], "routes": [route]}
    scenario = {
        "name": "bench",
        "workload": {},
        "fleet": fleet,
        "memory_fraction": MEMORY_FRACTION[memory],
    }
    return compile_cluster(validate_scenario(scenario))


def requests(rate_per_s: float, n: int) -> RequestTable:
    """Poisson arrivals with wrong predictions."""
    table = arrivals("best-fit", rate_per_s, n)
    factor = np.random.default_rng(1).uniform(0.5, 1.5, n)
    predicted = np.maximum(1, (table.output_tokens * factor).astype(np.int64))
    return replace(table, predicted_output_tokens=predicted)


def timed(
    spec: ClusterSpec, table: RequestTable
) -> tuple[NDArray[np.int64], NDArray[np.int64], FastEngine]:
    """(n,) nanoseconds of each request's placement, (n,) requests that run then, the engine at the end."""
    engine = FastEngine(spec, table)
    batch = engine.batch
    taken, running = np.zeros(len(table), np.int64), np.zeros(len(table), np.int64)
    advance: Any = _advance_placing
    advance(int(batch.handles[0]), batch._router, batch._features[0], taken, running)
    clock_ns = min(_clock_cost_ns(10_000) for _ in range(100))
    return np.maximum(taken - clock_ns, 0), running, engine


def placement_times(
    spec: ClusterSpec, table: RequestTable
) -> tuple[NDArray[np.int64], float, float]:
    """Nanoseconds of each placement of the second half, running requests per worker, share of KV used."""
    taken, running, engine = timed(spec, table)
    half = len(table) // 2
    used = engine.batch.states.inst[0]["kv"] / spec.profiles[0].kv_capacity_tokens
    per_worker = float(running[half:].mean()) / spec.n_instances
    return taken[half:], per_worker, float(used.mean())


def bench_placement(quick: bool) -> list[dict[str, Any]]:
    """Microseconds per placement, over the second half of the arrivals, when the batches have filled."""
    capacity = capacity_per_s()
    placement_times(cluster(2), requests(1.0, 20))  # compiles
    rows: list[dict[str, Any]] = []
    settings = product(MEMORY_FRACTION, WORKERS[:1] if quick else WORKERS, LOADS)
    for memory, workers, load in list(settings)[-1:] if quick else settings:
        n = 2_000 if quick else 600 * workers
        spec, table = cluster(workers, memory), requests(load * capacity * workers, n)
        taken, per_worker, used = placement_times(spec, table)
        rows.append(
            {
                "kv_memory": memory,
                "workers": workers,
                "load": load,
                "placements": len(taken),
                "running_per_worker": round(per_worker, 1),
                "kv_used_percent": round(100 * used, 1),
                "us_mean": round(float(taken.mean()) / 1e3, 2),
                "us_median": round(float(np.median(taken)) / 1e3, 2),
                "us_p99": round(float(np.percentile(taken, 99)) / 1e3, 2),
            }
        )
    return rows
