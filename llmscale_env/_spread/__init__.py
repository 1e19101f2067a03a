"""Calls that know nothing of each other, side by side: in processes of this machine, or on a Ray cluster.

This package is the only one that knows how. A call is a function of a module and its arguments; all of it
is pickled, and so is what it returns. Answers come as they are ready, so whoever wants an order goes by
the keys: then the results are the same with any number of workers anywhere.

    with crew(launcher) as workers:
        workers.submit(0, function, argument)
        for key, value in workers:       # ends when nothing is out; more may be submitted on the way
            ...

With `hears`, calls are given `tell` besides: `tell(message)` hands a message to the command and returns what
`hears(key, message)` says to it. So a training run reports, and is told to go on or to stop.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from llmscale_env._cli import Slip, one_of, whole
from llmscale_env._spread.calls import (
    ALONE,
    Crew,
    Hears,
    InThisProcess,
    Launcher,
    OtherCode,
    WorkerLost,
)
from llmscale_env._spread.on_ray import OnRay
from llmscale_env._spread.processes import InProcesses

__all__ = (
    "ALONE",
    "LAUNCHERS",
    "WORDS",
    "Crew",
    "Launcher",
    "OtherCode",
    "WorkerLost",
    "crew",
    "default_workers",
    "launcher_of",
    "spread",
)

LAUNCHERS = ("processes", "ray")
WORDS = ("launcher", "ray.address", "workers")
"""What a command line that spreads its work takes besides."""

_MOST_WORKERS = 1024


def default_workers() -> int:
    """One per processor that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def launcher_of(options: Mapping[str, str], workers: int | None = None) -> Launcher:
    """What `launcher=`, `ray.address=` and `workers=` ask for.

    Args:
        options: of the command line.
        workers: processes if it does not say; None: one per processor.

    Raises:
        Slip: another launcher, an address without Ray, no Ray, no number of workers.
    """
    kind = one_of(options, "launcher", LAUNCHERS)
    address = options.get("ray.address")
    given = "workers" in options
    asked = whole(options, "workers", workers or default_workers(), 1, _MOST_WORKERS)
    if kind == "ray":
        if importlib.util.find_spec("ray") is None:
            raise Slip("launcher=ray needs Ray: pip install 'llmscale[ray]'")
        return Launcher(kind, asked if given else None, address)
    if address is not None:
        raise Slip(f"ray.address = {address!r}: goes with launcher=ray")
    return Launcher(kind, asked)


def crew(
    launcher: Launcher, most: int | None = None, hears: Hears | None = None, cpus: int = 1
) -> Crew:
    """Workers, to be used as a context: whatever happens in it, no call outlives it.

    Args:
        launcher: where.
        most: calls there will be; no more workers are started.
        hears: `hears(key, message)` answers what a call tells.
        cpus: processors that a call keeps busy (on a cluster they are set aside for it).

    Raises:
        Slip: on entering, where no cluster answers.
    """
    if launcher.kind == "ray":
        return OnRay(launcher, hears, cpus)
    workers = min(launcher.workers or default_workers(), most or _MOST_WORKERS)
    return InThisProcess(hears) if workers <= 1 else InProcesses(workers, hears)


def spread(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], launcher: Launcher
) -> Generator[tuple[int, Any], None, None]:
    """`function(*call)` of every call, as (its number, what it returned), as they are ready.

    Raises:
        Slip, WorkerLost, OtherCode: see `crew` and `Crew`; and whatever the function raises.
    """
    if not calls:
        return
    with crew(launcher, len(calls)) as workers:
        for number, call in enumerate(calls):
            workers.submit(number, function, *call)
        yield from workers
