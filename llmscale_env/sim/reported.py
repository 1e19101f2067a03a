"""What both engines report of requests and instances: the columns of their arrays."""

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
