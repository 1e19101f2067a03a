"""How long SageServe's week takes: 10.2 million requests, streamed, on one core; `quick`: an hour.

Processor seconds of the whole run (drawing requests, simulating, deciding, the summary), and the peak memory
of a process that does nothing else. Kernels are compiled, or loaded, before: an hour is run first.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from typing import Any

POLICIES = ("reactive", "lt-ua")
SCENARIO = "sageserve-week"


def _run(name: str, days: float) -> dict[str, Any]:
    from baselines.make import make_policy
    from llmscale_env.control.run import run_streamed
    from llmscale_env.control.simulation import ClusterSimulation
    from llmscale_env.scenarios.load import load_scenario

    class Timed(ClusterSimulation):
        spent_s = 0.0

        def advance(self) -> Any:
            begin = time.process_time()
            try:
                return super().advance()
            finally:
                Timed.spent_s += time.process_time() - begin

    def scenario(horizon_s: float) -> Any:
        return load_scenario(SCENARIO).model_copy(update={"horizon_s": horizon_s})

    run_streamed(make_policy("reactive"), scenario(3600.0))
    policy, whole = make_policy(name), scenario(days * 86400.0)
    simulation = Timed(whole)
    begin = time.process_time()
    result = run_streamed(policy, whole, simulation=simulation)
    seconds = time.process_time() - begin
    s = result.summary
    arrivals = s["joint/arrivals"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    finished = (s["joint/on_time"] + s["joint/late"]) / arrivals
    return {
        "policy": name,
        "requests": int(arrivals),
        "seconds": seconds,
        "requests_per_s": arrivals / seconds,
        "engine_s": Timed.spent_s,
        "peak_gb": peak,
        "finished": finished,
        "instance_hours": s["instance_hours"],
        "ttft_s_p95": s["interactive/ttft_s_p95"],
    }


def bench_week(quick: bool) -> list[dict[str, Any]]:
    """A row per policy, each in a process of its own."""
    days = 1 / 24 if quick else 7.0
    rows = []
    for name in POLICIES:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            rows.append(pool.apply(_run, (name, days)))
    return rows
