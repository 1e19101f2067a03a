"""What both engines show: the columns of their arrays, and the bounds of histograms in them.

Times are whole picoseconds (int64), as engines count them: sums and differences are exact, and two engines
are compared to the last one. A policy sees the same columns in seconds: `ClusterView` converts them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

RESULT_DTYPE = np.dtype(
    [
        ("state", np.int8),
        ("instance", np.int32),
        ("admitted_ps", np.int64),
        ("first_token_ps", np.int64),
        ("finished_ps", np.int64),
        ("max_itl_ps", np.int64),
        ("emitted_tokens", np.int32),
        ("preemptions", np.int32),
        ("evictions", np.int32),
        ("restarts", np.int32),
        ("cached_tokens", np.int32),
    ]
)
"""What both engines report per request; a time that has not come is -1, no instance is -1.

`cached_tokens`: of its prompt, those found in the prefix cache when it was first admitted (section 19).
"""
INSTANCE_DTYPE = np.dtype(
    [
        ("state", np.int8),
        ("source", np.int8),
        ("llm", np.int16),
        ("batch_limit", np.int64),
        ("running", np.int32),
        ("waiting", np.int32),
        ("preempted", np.int32),
        ("kv_tokens", np.int64),
        ("host_kv_bytes", np.int64),
        ("loaded_ps", np.int64),
        ("iterations", np.int64),
        ("tokens", np.int64),
        ("swaps", np.int32),
        ("failures", np.int32),
        ("in_flight", np.int32),
        ("landed", np.int32),
        ("kv_held", np.int64),
        ("kv_cached", np.int64),
        ("asked_tokens", np.int64),
        ("hit_tokens", np.int64),
    ]
)
"""What both engines report per instance slot at `now`; `loaded_ps` is -1 unless it is loading.

With a prefix cache, `kv_cached` (not part of `kv_tokens`) is KV that no running request holds and that can
be found again; `asked_tokens` are the contexts of requests admitted so far, those left out that had been
preempted before, `hit_tokens` what was found of them.

Where the phases are split, `waiting` of a DECODE instance counts requests without reservation, `kv_held`
(part of `kv_tokens`) what a PREFILL instance keeps until it has been copied.
"""
REPORT_DTYPE = np.dtype(
    [
        ("prefill_tokens", np.int64),
        ("prefill_squares", np.int64),
        ("prefill_requests", np.int64),
        ("prefill_ps", np.int64),
        ("decode_requests", np.int64),
        ("decode_context", np.int64),
        ("decode_ps", np.int64),
    ]
)
"""A worker's last completed prefill and decode iteration (docs/engine.md, section 13); -1: none yet."""
LOADING_DTYPE = np.dtype(
    [
        ("layers_loaded", np.int32),
        ("load_from", np.int32),
        ("partner", np.int32),
        ("batches", np.int32),
        ("helped_ps", np.int64),
    ]
)
"""Weights of an instance slot at `now` (docs/engine.md, sections 15 and 16).

Layers that it has; the source code that they come or came from, `NO_SOURCE` without one (`OFF`, active from
time 0, loading by `load_ps`); the other instance of its live pair, -1 without one; batches formed for it that
it has not taken yet; time that it has spent on layers for others so far.
"""
HOME_DTYPE = np.dtype([("host", np.int32), ("there", np.bool_)])
"""Per LLM the host that is to keep a copy of its weights (-1: none), and whether it is there."""
SPOT_DTYPE = np.dtype(
    [
        ("spot", np.int64),
        ("reclaims_own", np.int64),
        ("reclaims_others", np.int64),
        ("donations", np.int64),
        ("own_s", np.int64),
        ("own_ps", np.int64),
        ("others_s", np.int64),
        ("others_ps", np.int64),
        ("looks_out", np.int64),
        ("looks_in", np.int64),
    ]
)
"""Per pool at `now` (docs/engine.md, section 17).

VMs leased out with its LLM; instances that it has taken from its own ones and from those of others;
instances that it has given to spot; time that those from its own and from others have spent `ACQUIRING` and
`LOADING` (whole seconds, and the rest: a pool's picoseconds of days may be too many for 64 bits); changes
that looks have ordered, outwards and inwards.
"""

TTFT_BOUNDS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Bounds of the histograms of TTFT and of mean ITL over their targets."""

LOAD_BOUNDS_PS = (5_000_000_000_000, 15_000_000_000_000, 30_000_000_000_000)
"""Bounds of the histogram of time until an instance is active."""

SLACK_BOUNDS = (0.0, 0.1, 0.25, 0.5)
"""Bounds of the histogram of time to the deadline over the target."""

N_SLACK_BINS = 5

QUEUE_SEEN = np.dtype(
    [
        ("requests", np.int64),
        ("tokens", np.int64),  # demand
        ("predicted_tokens", np.int64),  # predicted output still to come
        ("oldest_ps", np.int64),  # earliest arrival, -1: empty
        ("slack_bins", np.int64, (N_SLACK_BINS,)),  # by time to the deadline over the target
        # of the requests that have not had their first token
        ("fresh", np.int64),
        ("fresh_input", np.int64),
        ("fresh_predicted", np.int64),
        ("fresh_squares", np.int64),  # sum of squares of the predicted tokens
    ]
)

N_TTFT_BINS = 8
"""Bins of the histograms of TTFT and of mean ITL over their targets."""

N_LOAD_BINS = 4

CLASS_SEEN = np.dtype(
    [
        # counted since the start of the episode
        ("arrived", np.int64),
        ("input_tokens", np.int64),
        ("predicted_tokens", np.int64),
        ("rejected", np.int64),
        ("started", np.int64),
        ("finished", np.int64),
        ("on_time", np.int64),
        ("ttft_late", np.int64),
        ("itl_late", np.int64),
        ("ttft_sum_s", np.int64),  # whole seconds, and the rest: picoseconds of many would overflow
        ("ttft_sum_ps", np.int64),
        ("itl_sum_s", np.int64),
        ("itl_sum_ps", np.int64),
        ("itl_count", np.int64),
        ("output_tokens", np.int64),  # of finished requests
        ("output_squares", np.float64),
        # in the last window
        ("ttft_max_ps", np.int64),
        ("itl_max_ps", np.int64),
        ("ttft_bins", np.int64, (N_TTFT_BINS,)),
        ("itl_bins", np.int64, (N_TTFT_BINS,)),
    ]
)
"""Per class; every violation is counted once: `rejected`, `ttft_late` or else `itl_late`."""

POOL_SEEN = np.dtype(
    [
        ("acquiring", np.int64),
        ("loading", np.int64),
        ("active", np.int64),
        ("draining", np.int64),
        ("load_bins", np.int64, (N_LOAD_BINS,)),  # acquiring and loading, by time left
        # time until the next one is active (of flowing weights at the present rate), -1: none on its way, or
        # nobody knows
        ("next_ready_ps", np.int64),
        ("running", np.int64),
        ("evictable", np.int64),
        ("waiting", np.int64),
        ("preempted", np.int64),
        ("waiting_tokens", np.int64),
        ("kv_tokens", np.int64),  # of active instances, as is the capacity
        ("kv_capacity", np.int64),
        ("kv_max", np.float64),  # fullest active instance's share
        ("limit_sum", np.int64),
        # active instances at which a request of priority 0, and any, runs or is the head of the own queue
        ("interactive", np.int64),
        ("busy", np.int64),
        (
            "oldest_ps",
            np.int64,
        ),  # of active instances' own queues the head that came first, -1: none waits
        # counted since the start of the episode
        ("iterations", np.int64),
        ("tokens", np.int64),
        ("preemptions", np.int64),
        ("evictions", np.int64),
        ("busy_s", np.int64),  # whole seconds, and the rest
        ("busy_ps", np.int64),
        ("gpu_s", np.int64),
        ("gpu_ps", np.int64),
        ("started", np.int64),
        ("stopped", np.int64),
        ("source_used", np.int64, (3,)),
    ]
)

UNDER_WAY_DTYPE = np.dtype(
    [
        ("request", np.int64),
        ("arrival_ps", np.int64),
        ("llm", np.int64),
        ("slo_class", np.int64),
        ("instance", np.int64),  # where it is, -1: in a gateway
        ("state", np.int8),
        ("movable", np.bool_),  # may be assigned
        ("input_tokens", np.int64),
        ("predicted_tokens", np.int64),
        ("emitted_tokens", np.int64),
        ("first_token_ps", np.int64),
    ]
)
"""A request in a gateway or at an instance, as it is read out."""

QUEUED_DTYPE = np.dtype(
    [
        ("request", np.int64),
        ("arrival_ps", np.int64),
        ("slo_class", np.int64),
        ("input_tokens", np.int64),
        ("predicted_tokens", np.int64),
        ("emitted_tokens", np.int64),
        ("queue", np.int64),
        ("llm", np.int64),
        ("started", np.bool_),  # has had its first token
    ]
)
"""A request in a shared queue, as it is read out."""

FOUND_DTYPE = np.dtype(
    [
        ("state", np.int8),
        ("llm", np.int64),
        ("placeable", np.bool_),  # waits, and no KV memory is reserved for it: may be assigned
    ]
)
"""A request that is looked up by its id; one that is not known: `FUTURE`, of LLM -1."""

RUN_DTYPE = np.dtype(
    [
        ("arrival_ps", np.int64),
        ("slo_class", np.int64),
        ("started", np.bool_),  # whether its requests have had their first token
        ("requests", np.int64),
    ]
)
"""Consecutive requests of a shared queue that are alike, as they are read out."""

NO_SLACK = np.int64(2**62)
"""`ahead_ps` of a worker on which nobody runs that has had a token."""

WORKER_DTYPE = np.dtype(
    [
        ("state", np.int64),
        ("llm", np.int64),
        ("phase", np.int64),
        ("batch_limit", np.int64),
        ("requests", np.int64),
        ("input_tokens", np.int64),
        ("predicted_tokens", np.int64),
        ("context", np.int64),
        ("queued_tokens", np.int64),
        ("ahead_ps", np.int64),
        ("kv_tokens", np.int64),
        ("waiting_tokens", np.int64),
        ("kv_capacity", np.int64),
    ]
)
"""A worker as best fit sees it (docs/engine.md, section 14), at the present time.

`requests` to `context` are of all requests there: how many, input, predicted output, context.
`queued_tokens` are the prefill tokens of its own queue, `waiting_tokens` the KV memory that own queue
and preempted list need. `ahead_ps` is `m`, the least time by which a running request is ahead of its
target.
"""

FINISHED_DTYPE = np.dtype(
    [
        ("request", np.int64),
        ("llm", np.int64),
        ("region", np.int64),  # of the client
        ("slo_class", np.int64),
        ("input_tokens", np.int64),
        ("output_tokens", np.int64),
        ("ttft_ps", np.int64),
    ]
)
"""A request that has finished, as it is read out."""


# --- many episodes side by side ---


@dataclass(frozen=True)
class VirtualQueues:
    """Who waits and runs where in `E` episodes; the same as in `ClusterView`, as arrays.

    Attributes:
        time_ps: (E,) present time.
        queues: (E, Q) structured (`QUEUE_SEEN`), all shared queues, those with a name first.
        oldest_fresh_ps: (E, Q) arrival of the first in a queue that has had no token, -1: none.
        running: (E, I, Q) running and preempted requests by the queue that they came from.
        running_by_class: (E, I, C) running requests.
        instances: (E, I) INSTANCE_DTYPE.
        kv_share: (E, I) KV memory in use over capacity.
        pull: (E, I, Q) queues on each instance's list, in order, -1 behind the last.
        arrival: (E, M, C) queue that arrivals join (the shortest ones, if several).
        weights_ready_ps: (E, I, M) when weights are in host memory, -1: not on their way.
        evicts: (E, P) 1 where a pool's instances evict in order and flush at swaps, 0 where they do
            neither, -1: one of the two.
        waiting: (episode, queue) -> (n,) QUEUED_DTYPE, the requests in a queue, head first.
        known: what has been computed from it already, by name.
    """

    time_ps: NDArray[np.int64]
    queues: NDArray[Any]
    oldest_fresh_ps: NDArray[np.int64]
    running: NDArray[np.int64]
    running_by_class: NDArray[np.int64]
    instances: NDArray[Any]
    kv_share: NDArray[np.float64]
    pull: NDArray[np.int64]
    arrival: NDArray[np.int64]
    weights_ready_ps: NDArray[np.int64]
    evicts: NDArray[np.int64]
    waiting: Callable[[int, int], NDArray[Any]]
    known: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Gateways:
    """Who waits for a place in `E` episodes, and what workers have to do.

    Attributes:
        time_ps: (E,) present time.
        waiting: (E, M) requests in each LLM's gateway.
        head_ps: (E, M) arrival of its head, -1: nobody waits.
        turn: (E,) of the heads the request that arrived first, -1: nobody waits.
        request: fields of `turn`, (E,) each, 0 without one: `arrival_ps`, `input_tokens`, `predicted_tokens`,
            `emitted_tokens`, `llm`, `slo_class`.
        workers: (E, I) `WORKER_DTYPE`; (E, 0) if they were not asked for.
    """

    time_ps: NDArray[np.int64]
    waiting: NDArray[np.int64]
    head_ps: NDArray[np.int64]
    turn: NDArray[np.int64]
    request: dict[str, NDArray[np.int64]]
    workers: NDArray[Any]


@dataclass(frozen=True)
class Weights:
    """Where weights are in `E` episodes, and the instances that have them or get them.

    Attributes:
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
