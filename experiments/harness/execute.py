"""Runs side by side: in processes of this machine, or on a Ray cluster that the user names."""

from __future__ import annotations

import importlib
import math
import os
import threading
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from typing import Any

import numpy as np

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Case = Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What became of a run: rows, or the reason why there are none."""

    case: Case
    rows: list[dict[str, Any]]
    wall_s: float
    error: str = ""


class WorkerLost(RuntimeError):
    """A process ended without an answer, as when the system killed it for memory."""


def execute(module: str, case: Case) -> Outcome:
    """Do one run of an experiment; an exception becomes an `Outcome` with its text."""
    begin = time.perf_counter()
    try:
        rows = importlib.import_module(module).run(dict(case))
        plain = [{key: plain_value(value) for key, value in row.items()} for row in rows]
    except Exception as error:
        return Outcome(case, [], time.perf_counter() - begin, describe(error))
    return Outcome(case, plain, time.perf_counter() - begin)


def describe(error: Exception) -> str:
    """An exception in a line: its type, its text, and where it was raised."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}:{where.lineno})"


def plain_value(value: Any) -> Any:
    """A NumPy scalar as Python's, NaN and infinities as None, so that JSON can hold it.

    Raises:
        TypeError: it is neither text, number, truth value nor None.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int, bool)):
        return value
    raise TypeError(f"a row holds {value!r}: must be text, a number, a truth value or None")


def default_workers() -> int:
    """One per processor that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def in_processes(
    module: str, cases: Sequence[Case], workers: int
) -> Generator[Outcome, None, None]:
    """Runs as they end. With one worker they are done in this process, which is easier to debug.

    Raises:
        WorkerLost: a process died.
    """
    if workers == 1 or len(cases) <= 1:
        for case in cases:
            yield execute(module, case)
        return
    for name in _THREAD_VARIABLES:  # what the processes start with
        os.environ.setdefault(name, "1")
    pool = ProcessPoolExecutor(
        min(workers, len(cases)), mp_context=get_context("spawn"), initializer=_end_with_parent
    )
    try:
        futures = [pool.submit(execute, module, dict(case)) for case in cases]
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool:
        raise WorkerLost(
            "a process ended without an answer (out of memory, or killed); try fewer workers"
        ) from None
    finally:
        # Whoever stops in the middle does not wait for the runs under way.
        processes = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()


def _end_with_parent() -> None:
    """In a process of the pool: end as soon as the command is gone, even if it was killed outright."""
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def on_ray(module: str, cases: Sequence[Case], address: str) -> Generator[Outcome, None, None]:
    """Runs as they end, as tasks of the Ray cluster at `address` ("auto": the one that runs here).

    Raises:
        ModuleNotFoundError: Ray is not installed.
        ConnectionError: no cluster answers there.
    """
    import ray

    ray.init(
        address=address, log_to_driver=False, runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}}
    )
    try:
        task: Callable[..., Any] = ray.remote(num_cpus=1)(execute).remote
        waiting = [task(module, dict(case)) for case in cases]
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1)
            yield ray.get(done[0])
    finally:
        ray.shutdown()
