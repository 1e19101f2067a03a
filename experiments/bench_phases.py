"""Where the fast engine's time goes, for `python -m experiments.bench`.

The event loop of `llmscale_env.sim.fast.advance` once more, with a clock read around every event. An
event is named after what it is: an arrival, or the end of what the instance was doing. The clock's
own time is measured and taken off; the few events during which another process got the core are left
out.
"""

from __future__ import annotations

import sys
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from experiments.bench_engines import ROUTERS, arrivals, capacity_per_s, cluster
from llmscale_env.sim.fast import FastEngine
from llmscale_env.sim.fast.advance import _arrive, _instance_event
from llmscale_env.sim.fast.state.memory import glob_of, inst_at, key_of, req_at, tree_of
from llmscale_env.sim.fast.state.records import DECODE, MIXED, NO_EVENT, PREFILL

KINDS = (
    "arrival, routed",
    "prefill ends",
    "decode segment ends, requests leave",
    "decode segment cut, no request leaves",
    "chunked iteration ends",
    "wake-up of an idle instance, loading",
)
INTERRUPTED_NS = 100_000
"""No event takes as long: meanwhile another process had the core, and the event is left out."""

_ARRIVAL, _PREFILL, _FINISH, _CUT, _MIXED, _OTHER = range(len(KINDS))

# A function of the C library, found by name in the running process.
_clock_gettime: Any = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.intp))
_MONOTONIC = 6 if sys.platform == "darwin" else 1


@numba.njit(nogil=True)
def _now_ns(buffer):  # type: ignore[no-untyped-def]
    _clock_gettime(_MONOTONIC, buffer.ctypes.data)
    return buffer[0] * 1_000_000_000 + buffer[1]


@numba.njit(nogil=True)
def _clock_cost_ns(n):  # type: ignore[no-untyped-def]
    buffer = np.zeros(2, np.int64)
    start = _now_ns(buffer)
    for _ in range(n):
        _now_ns(buffer)
    return (_now_ns(buffer) - start) / n


@numba.njit(nogil=True)
def _advance_timed(S, router, features, count, total_ns):  # type: ignore[no-untyped-def]
    """Every event of the episode; `count` and `total_ns` (kinds,) are added to."""
    buffer = np.zeros(2, np.int64)
    glob = glob_of(S)
    last = _now_ns(buffer)
    while glob.error == 0:
        i = tree_of(S)[1]
        key = key_of(S)[i]
        arrives = (
            glob.next_arrival < glob.n_requests and 2 * req_at(S, glob.next_arrival).arrival < key
        )
        if arrives:
            kind = _ARRIVAL
            r = glob.next_arrival
            glob.next_arrival += 1
            _arrive(S, r, router, features)
        elif key == NO_EVENT:
            break
        else:
            mode, before = inst_at(S, i).mode, glob.n_finished
            _instance_event(S, i, key, router, features)
            if mode == PREFILL:
                kind = _PREFILL
            elif mode == MIXED:
                kind = _MIXED
            elif mode == DECODE:
                kind = _FINISH if glob.n_finished > before else _CUT
            else:
                kind = _OTHER
        now = _now_ns(buffer)
        if now - last < INTERRUPTED_NS:
            count[kind] += 1
            total_ns[kind] += now - last
        last = now


def event_times(engine: FastEngine) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Run a fresh engine to its end: (kinds,) events, and nanoseconds spent in them.

    The rest of the loop (finding the next event) is counted with the event.
    """
    batch = engine.batch
    count, total_ns = np.zeros(len(KINDS), np.int64), np.zeros(len(KINDS), np.int64)
    timed: Any = _advance_timed
    timed(int(batch.handles[0]), batch._router, batch._features[0], count, total_ns)
    clock_ns = min(_clock_cost_ns(10_000) for _ in range(100))
    return count, np.maximum(total_ns - count * clock_ns, 0.0)


def bench_phases(quick: bool) -> list[dict[str, Any]]:
    """Events per request and time per event, by kind; of three runs the fastest."""
    capacity = capacity_per_s()
    n = 5_000 if quick else 200_000
    rows: list[dict[str, Any]] = []
    for router in ROUTERS[-1:] if quick else ROUTERS:
        for instances in (50,) if quick else (8, 50, 1000):
            load = 0.9
            spec = cluster(router, instances)
            requests = arrivals(router, load * capacity * instances, n)
            runs = [event_times(FastEngine(spec, requests)) for _ in range(1 if quick else 3)]
            count, spent_ns = min(runs, key=lambda run: float(run[1].sum()))
            for kind, events, ns in zip(KINDS, count, spent_ns, strict=True):
                if events:
                    rows.append(
                        {
                            "router": router,
                            "instances": instances,
                            "load": load,
                            "event": kind,
                            "events_per_request": round(int(events) / n, 3),
                            "ns_per_event": round(float(ns) / int(events)),
                            "ns_per_request": round(float(ns) / n),
                            "share_percent": round(100 * float(ns) / float(spent_ns.sum()), 1),
                        }
                    )
    return rows
