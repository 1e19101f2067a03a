"""What both engines show: the columns of their arrays, and the bounds of histograms in them."""

from __future__ import annotations

import numpy as np

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
    ]
)
"""What both engines report per request; a time that has not come is -1, no instance is -1."""
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
    ]
)
"""What both engines report per instance slot at `now`; `loaded_ps` is -1 unless it is loading.

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
        ("interactive", np.int64),  # serving instances with a priority-0 request
        ("busy", np.int64),  # serving instances with any request
        ("oldest_ps", np.int64),  # earliest arrival in an own queue, -1: none
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
