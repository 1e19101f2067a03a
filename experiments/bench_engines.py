"""Speed and memory of both engines, for `python -m experiments.bench`.

The cluster: instances of Llama 3.1 8B on one A100-80GB each, at most 256 running requests (1024 under
Chiron's controller), ShareGPT lengths (single turn), Poisson arrivals at a share (the "load") of what
the instances serve together when saturated.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import numpy as np

from experiments.chiron.instance import backlog, measure
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.scenarios import validate_scenario
from llmscale_env.sim.compile import compile_cluster
from llmscale_env.sim.spec import ClusterSpec, RequestState
from llmscale_env.workload import tables
from llmscale_env.workload.requests import PS_PER_S, RequestTable

LLM, GPU = "llama-3.1-8b", "a100-80gb"
LENGTHS = "sharegpt-single-turn"
BATCH_LIMIT = 256
MAX_TOKENS = 4096
CLASSES = ("interactive", "batch")
BATCH_SHARE = 0.3
"""Share of requests of the batch class where there are two classes."""

ROUTERS = ("round-robin", "jsq-requests", "power-of-two", "chiron")
"""`chiron`: two classes, three pools, class-affine routing with overflow, a shared queue from which two
pools pull, eviction, the batch-size controller. All of it is compiled into every run."""

INSTANCES = (8, 50, 200, 1000)
LOADS = (0.5, 0.9)
END_PS = 30 * 86_400 * PS_PER_S


def capacity_per_s() -> float:
    """Requests/s that one saturated instance serves."""
    model = iteration_time_model(LLM, GPU, 1)
    requests = backlog(LENGTHS, 30_000, 0)
    found = measure(model, requests, BATCH_LIMIT, watermark=0.01, warm_up_s=300, measured_s=900)
    return found.requests_per_s


def cluster(router: str, instances: int) -> ClusterSpec:
    """The cluster of a benchmark: all instances active, nobody scales."""

    def pool(name: str, n: int, **more: Any) -> dict[str, Any]:
        common = {"llm": LLM, "gpu": GPU, "batch_limit": BATCH_LIMIT, "max_batch": 1024}
        return {
            "name": name,
            "v1": None,
            "max_instances": n,
            "initial_instances": n,
            **common,
            **more,
        }

    if router == "chiron":
        interactive, mixed = max(1, instances * 4 // 10), max(1, instances * 3 // 10)
        controlled = {"controller": "chiron"}
        fleet: dict[str, Any] = {
            "pools": [
                pool("interactive", interactive, role="interactive", **controlled),
                pool("mixed", mixed, role="mixed", evicts=True, pull=["batch"], **controlled),
                pool("batch", instances - interactive - mixed, pull=["batch"], **controlled),
            ],
            "queues": [{"name": "batch", "llm": LLM}],
            "routes": [
                {
                    "slo_class": "interactive",
                    "kind": "class-affine",
                    "pools": ["interactive"],
                    "overflow": ["mixed"],
                },
                {"slo_class": "batch", "kind": "shared-queue", "queue": "batch"},
            ],
        }
    else:
        fleet = {
            "pools": [pool("general", instances)],
            "routes": [{"kind": router, "pools": ["general"]}],
        }
    scenario = {"name": "bench", "workload": {}, "fleet": {"max_gpus": instances, **fleet}}
    return compile_cluster(validate_scenario(scenario))


def arrivals(router: str, rate_per_s: float, n: int, seed: int = 0) -> RequestTable:
    """`n` requests of a Poisson process; with `chiron` three tenths are of the batch class."""
    rng = np.random.default_rng(seed)
    drawn = tables.load_lengths(LENGTHS).sample(n, rng)
    prompt, output = (tables.round_tokens(column, MAX_TOKENS) for column in drawn)
    batch = rng.random(n) < (BATCH_SHARE if router == "chiron" else 0.0)
    return RequestTable.build(
        rng.exponential(1 / rate_per_s, n).cumsum(),
        prompt,
        output,
        slo_class=batch.astype(np.int16),
        llm_names=(LLM,),
        class_names=CLASSES,
    )


def run_once(engine: str, spec: ClusterSpec, requests: RequestTable) -> tuple[float, int]:
    """CPU seconds of this thread for the whole simulation, and iterations simulated.

    Raises:
        RuntimeError: a request did not finish.
    """
    make: Any
    if engine == "fast":
        from llmscale_env.sim.fast import FastEngine as make
    else:
        from llmscale_env.sim.reference import ReferenceEngine as make
    simulated = make(spec, requests)
    start = time.thread_time()
    simulated.advance(END_PS)
    seconds = time.thread_time() - start
    unfinished = int((simulated.results()["state"] != RequestState.FINISHED).sum())
    if unfinished:
        raise RuntimeError(f"{unfinished} of {len(requests)} requests did not finish")
    return seconds, int(simulated.instances()["iterations"].sum())


def bench_engines(quick: bool) -> list[dict[str, Any]]:
    """Requests/s of both engines against router, instances and load; the best of the repeats."""
    capacity = capacity_per_s()
    rows: list[dict[str, Any]] = []
    for engine in ("fast", "reference"):
        for router in ROUTERS:
            for instances in INSTANCES[:2] if quick else INSTANCES:
                for load in LOADS[1:] if quick else LOADS:
                    if engine == "fast":
                        n = 5_000 if quick else max(200_000, 1_000 * instances)
                        repeats = 1 if quick else 5 if instances > 200 else 10
                    else:
                        n, repeats = 100 if quick else 2_000, 1
                    spec = cluster(router, instances)
                    requests = arrivals(router, load * capacity * instances, n)
                    runs = [run_once(engine, spec, requests) for _ in range(repeats)]
                    best_s = min(run[0] for run in runs)
                    rows.append(
                        {
                            "engine": engine,
                            "router": router,
                            "instances": instances,
                            "load": load,
                            "requests": n,
                            "repeats": repeats,
                            "requests_per_s": round(n / best_s),
                            "ns_per_request": round(best_s / n * 1e9),
                            "iterations_per_request": round(runs[0][1] / n, 2),
                        }
                    )
    return rows


def peak_bytes(instances: int, n: int) -> tuple[int, int, int]:
    """Peak memory of this process before the table, after it, and after the fast engine's run."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    spec = cluster("jsq-requests", instances)
    run_once("fast", spec, arrivals("jsq-requests", 1.0, 100))
    marks = [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit]
    requests = arrivals("jsq-requests", 5.0 * instances, n)
    marks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
    run_once("fast", spec, requests)
    marks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
    return marks[0], marks[1], marks[2]


def bench_memory(quick: bool) -> list[dict[str, Any]]:
    """Peak memory per million requests: the slope between two sizes, each in its own process."""
    sizes = (400_000, 800_000) if quick else (1_000_000, 3_000_000)
    rows: list[dict[str, Any]] = []
    for instances in (50,) if quick else (50, 1000):
        marks = []
        for n in sizes:
            code = (
                "import json; from experiments.bench_engines import peak_bytes;"
                f"print(json.dumps(peak_bytes({instances}, {n})))"
            )
            done = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True
            )
            marks.append(json.loads(done.stdout))
        per_million = (sizes[1] - sizes[0]) / 1e6
        for k, what in ((1, "drawing the requests"), (2, "with the fast engine and its results")):
            slope = (marks[1][k] - marks[0][k]) / per_million / 2**20
            rows.append(
                {
                    "instances": instances,
                    "requests_small": sizes[0],
                    "requests_large": sizes[1],
                    "mib_per_million_requests": round(slope),
                    "what": what,
                }
            )
    return rows
