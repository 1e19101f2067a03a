"""Import, start, compile and cache times, for `python -m experiments.bench`; each in a fresh process.

CPU seconds (on a machine with nothing else to do, and files in memory, they are the wall's).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import Any

_CLUSTER = (
    "from experiments.bench_engines import arrivals, cluster;"
    "spec, requests = cluster('jsq-requests', 2), arrivals('jsq-requests', 1.0, 10);"
)
_ENGINE = (
    "import time; start = time.process_time();"
    "from llmscale_env.sim.fast import FastEngine; FastEngine(spec, requests).advance(10**12);"
    "print(time.process_time() - start)"
)
_IMPORT = "import time; start = time.process_time(); import {}; print(time.process_time() - start)"
_MAKE = (
    "import time; start = time.process_time(); import gymnasium as gym, llmscale_env;"
    "env = gym.make('llmscale/MixedSLO-Hours-v1'); env.reset(seed=0); env.step(env.action_space.sample());"
    "print(time.process_time() - start)"
)


def _inside_s(code: str, **environ: str) -> float:
    """Seconds that `code`, run in a fresh interpreter, prints about itself."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environ},
    )
    return float(done.stdout.split()[-1])


def _outside_s(*arguments: str) -> float:
    """Seconds that a whole process takes."""
    start = os.times()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
    end = os.times()
    return end.children_user + end.children_system - start.children_user - start.children_system


def bench_start(quick: bool) -> list[dict[str, Any]]:
    """Seconds until something is there: imports, the compiled engine cold and cached, an environment."""
    repeats = 1 if quick else 3
    rows: list[dict[str, Any]] = []

    def add(what: str, times_s: list[float]) -> None:
        middle = sorted(times_s)[len(times_s) // 2]
        best = {"best_cpu_s": round(min(times_s), 3), "median_cpu_s": round(middle, 3)}
        rows.append({"what": what, "repeats": len(times_s), **best})

    add("start of the interpreter alone", [_outside_s("-c", "pass") for _ in range(repeats)])
    for module in ("llmscale_env", "llmscale_env.sim.fast"):
        add(f"import {module}", [_inside_s(_IMPORT.format(module)) for _ in range(repeats)])
    if not quick:
        times_s = []
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                times_s.append(_inside_s(_CLUSTER + _ENGINE, NUMBA_CACHE_DIR=folder))
        add("fast engine imported, compiled and run, nothing cached", times_s)
        with tempfile.TemporaryDirectory() as folder:
            _inside_s(_CLUSTER + _ENGINE, NUMBA_CACHE_DIR=folder)
            times_s = [
                _inside_s(_CLUSTER + _ENGINE, NUMBA_CACHE_DIR=folder) for _ in range(repeats)
            ]
        add("fast engine imported, loaded from the cache and run", times_s)
        _inside_s(_MAKE)
        add("environment made, reset and stepped, cached", [_inside_s(_MAKE) for _ in range(3)])
    wrong = [_outside_s("-m", "agents.train", "env=mixed-slow") for _ in range(repeats)]
    add("a mistyped option of agents.train answered", wrong)
    return rows
