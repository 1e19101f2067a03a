"""The records that the fast engine's arrays are made of, field by field, and its small constants."""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.observed import CLASS_SEEN
from llmscale_env.sim.spec import MAX_ARRIVAL_QUEUES

NO_EVENT = np.int64(2**63 - 1)
"""Event key of an instance that has nothing scheduled."""

STALE = np.int64(-1)
"""Event key of the flows when rates are to be computed anew."""

NOT_KNOWN = 1 << 40
"""Above every place on a list of queues."""

# What an active or draining instance is doing.
IDLE, DECODE, PREFILL, MIXED, STEP = 0, 1, 2, 3, 4

# Error codes that a kernel leaves in `glob.error`.
NO_ERROR, BAD_ROUTER_ANSWER, NEEDS_ROOM = 0, 1, 2

GLOB = np.dtype(
    [
        ("now_ps", np.int64),
        ("phase", np.int64),  # where in the order of events we are: see docs/engine.md, section 1
        ("index", np.int64),
        ("n_requests", np.int64),
        ("capacity", np.int64),
        ("next_arrival", np.int64),
        ("n_finished", np.int64),
        ("n_first_tokens", np.int64),
        ("n_rejected", np.int64),
        ("gpus_held", np.int64),
        ("n_dirty", np.int64),  # shared queues that changed during the event at hand
        ("n_choosers", np.int64),  # instances with more than one queue on their list
        ("event_ps", np.int64),  # time of the latest event
        ("n_handed", np.int64),  # requests handed over in the boundary at hand
        ("n_flows", np.int64),
        ("flow_key", np.int64),  # 2 * time of the next end of a flow (or `STALE`), and its number
        ("flow_next", np.int64),
        ("first_cursor", np.int64),  # how much of the logs has been counted
        ("finish_cursor", np.int64),
        ("arrival_cursor", np.int64),  # arrivals before it have been counted
        ("next_id", np.int64),  # of the first request of the next piece
        ("last_arrival_ps", np.int64),  # of all pieces so far, -1: none
        ("n_pairs", np.int64),  # live pairs
        ("failing_host", np.int64),  # while the command lasts; -1: none
        ("salt", np.int64),
        ("n_transit", np.int64),  # requests on their way to a region
        ("signal_ps", np.int64),  # of the next signal of a manager, and which
        ("signal_index", np.int64),
        ("error", np.int64),
        ("error_request", np.int64),
        ("error_answer", np.int64),
        ("error_candidates", np.int64),
        # prefix caches: extents in use, those ever used, the first of those not in use any more, all
        ("extents", np.int64),
        ("extent_top", np.int64),
        ("extent_free", np.int64),
        ("extent_size", np.int64),
        ("bucket_mask", np.int64),
        ("shares", np.int64),  # some requests begin with the same tokens
        ("n_spans", np.int64),
        ("next_name", np.int64),  # of the first request of the next piece
    ]
)

INST = np.dtype(
    [
        ("state", np.int64),
        ("source", np.int64),  # ordered
        ("loaded_from", np.int64),  # used, -1: none yet
        ("pool", np.int64),
        ("host", np.int64),
        ("llm", np.int64),
        ("profile", np.int64),
        ("watermark", np.int64),  # of the LLM
        ("mode", np.int64),
        ("loaded_ps", np.int64),
        ("billed_ps", np.int64),  # since when GPU time is billed, -1 if it is not
        ("gpu_ps", np.int64),  # billed before
        # the running batch
        ("n_run", np.int64),
        ("n_coming", np.int64),  # in flight to it, or landed
        ("n_dec", np.int64),
        ("n_pre", np.int64),
        ("kv", np.int64),  # KV tokens at the start of the iteration or segment under way
        ("ctx", np.int64),  # context of the decoding requests, likewise
        ("left", np.int64),  # sum of predicted - emitted over all requests here, likewise
        ("waiting", np.int64),  # sum of demand over own queue and preempted list
        ("ev_n", np.int64),  # running requests that may be evicted: number, decoding, KV
        ("ev_dec", np.int64),
        ("ev_kv", np.int64),
        ("iter_no", np.int64),  # emission counter: a request finishes at a known value of it
        ("order_evict", np.int64),
        ("admissions", np.int64),
        ("moving_ps", np.int64),  # KV transfers to add to the next iteration
        ("host_kv", np.int64),  # bytes
        ("leaving", np.int64),  # KV tokens (part of `kv`) being copied out, and until when
        ("copied_ps", np.int64),
        # split phases (part of `kv`: what is held, and what is reserved for who has not joined the batch)
        ("kv_held", np.int64),  # KV tokens that wait to be copied to a decode instance
        ("fit_valid", np.int64),  # what `best_fit` has summed up still holds
        # shared queues
        ("n_pull", np.int64),
        ("pull_until", np.int64),  # in this boundary only so many of them
        ("foreign", np.int64),  # place of a head that needs another LLM, -1: none
        # nobody running came from behind this place; NOT_KNOWN: to be found out
        ("settled", np.int64),
        ("swaps", np.int64),
        ("failures", np.int64),
        # the segment of decode iterations (or the single other iteration) under way
        ("seg_begin", np.int64),  # boundary at which it was launched
        ("seg_start", np.int64),  # after KV transfers
        ("seg_n", np.int64),
        ("seg_first_ps", np.int64),
        ("seg_step_ps", np.int64),
        # max-ITL stack
        ("items", np.int64),
        ("stack_n", np.int64),
        ("pend_n", np.int64),
        ("gaps_open", np.int64),
        # controller
        ("limit", np.int64),
        ("x", np.float64),
        ("x_before", np.float64),  # the limit that the last raise raised
        ("thr_prev", np.float64),  # throughput of the window before, 0: none
        ("w_start", np.int64),
        ("w_iter", np.int64),
        ("w_tokens", np.int64),
        # flags; two of them in a word keep the record short, which is scanned
        ("settling", np.int32),  # the batch is on its way to a limit that has moved
        ("joined", np.int32),  # a request joined the batch since the last boundary
        ("changed", np.int32),
        ("raised", np.int32),  # the last update raised the limit
        ("restart", np.int32),
        ("closed", np.int32),  # a static batch is under way
        # totals
        ("iterations", np.int64),
        ("tokens", np.int64),
        ("busy_ps", np.int64),
        ("preemptions", np.int64),
        ("evictions", np.int64),
    ]
)

REQ = np.dtype(
    [
        ("arrival", np.int64),
        ("admitted", np.int64),
        ("first", np.int64),
        ("finished", np.int64),
        ("max_itl", np.int64),
        ("last_token", np.int64),
        ("item_start", np.int64),
        # While it decodes: the instance's `iter_no` less `emitted`. While it is prefilled, with `v1`: of
        # `pre_done`, the tokens in the step that runs.
        ("join_iter", np.int64),
        ("input", np.int32),
        ("output", np.int32),
        ("predicted", np.int32),
        ("emitted", np.int32),
        ("next", np.int32),
        ("prev", np.int32),
        ("aux_next", np.int32),
        ("aux_prev", np.int32),
        ("admission", np.int32),  # counts admissions of the instance
        ("instance", np.int32),
        ("kv_host", np.int32),  # instance in whose host memory the KV cache is saved, or -1
        ("pre_done", np.int32),
        ("pre_target", np.int32),
        ("chunk", np.int32),
        ("preemptions", np.int32),
        ("evictions", np.int32),
        ("restarts", np.int32),
        ("queue", np.int32),  # shared queue that it waits in, came from, or would go to, or -1
        # Instance in whose own queue it waits, or to which it is handed over, or -1. In a shared queue: while
        # queues are regrouped, the one that it is moved to, otherwise -1.
        ("at", np.int32),
        ("run_n", np.int32),  # first of a run in a shared queue: its requests, the last one
        ("run_last", np.int32),
        ("llm", np.int16),
        ("cls", np.int16),
        ("state", np.int8),
        ("decoding", np.int8),  # 2: its last token is under way (see `vllm_v1`)
        ("evictable", np.int8),
        ("gap_open", np.int8),
    ]
)

POOL = np.dtype(
    [
        ("llm", np.int64),
        ("profile", np.int64),
        ("first_slot", np.int64),
        ("n_slots", np.int64),
        ("gpus", np.int64),
        ("n_active", np.int64),
        ("controller", np.int64),
        ("controller_alpha", np.float64),
        ("controller_min_batch", np.int64),
        ("controller_max_batch", np.int64),
        ("controller_window_iterations", np.int64),
        ("controller_settles", np.int64),
        ("controller_reverts", np.int64),
        ("chunk_tokens", np.int64),
        ("prefill_tokens", np.int64),
        ("preemption", np.int64),
        ("evicts", np.int64),
        ("acquire_ps", np.int64),
        ("load_ps", np.int64, (3,)),
        ("wake_ps", np.int64),  # in place of that from host memory; -1: no process sleeps
        ("host_kv_bytes", np.int64),
        ("pull_rule", np.int64),
        ("evicts_in_order", np.int64),
        ("static_batch", np.int64),
        ("async_kv", np.int64),
        ("n_llms", np.int64),  # that an instance can serve
        ("swap_flushes", np.int64),
        ("host_weight_bytes", np.int64),
        ("repair_ps", np.int64),
        ("phase", np.int64),
        ("load_source", np.int64),
        ("source_used", np.int64, (3,)),
        ("started", np.int64),  # instances ordered so far, and given up again
        ("stopped", np.int64),
        ("weight_bytes", np.int64),  # 0: loads by `load_ps`
        ("layers", np.int64),
        ("live_mode", np.int64),
        ("block_tokens", np.int64),  # tokens of a KV block, 0: memory is not in blocks (no `v1`)
        ("asynchronous", np.int64),  # 1: a step is composed while the one before it runs
        ("reserve_full", np.int64),
        ("prefix_cache", np.int64),
        ("host_base_ps", np.int64),
        ("host_per_request_ps", np.int64),
    ]
)

ROUTE = np.dtype(
    [
        ("kind", np.int64),
        ("queue", np.int64),
        ("share", np.float64),
        ("n_pools", np.int64),
        ("n_overflow", np.int64),
        ("counter", np.int64),
        ("n_uppers", np.int64),  # input tokens that tell arrivals apart, and where they go
        ("uppers", np.int64, (MAX_ARRIVAL_QUEUES,)),
        ("queues", np.int64, (MAX_ARRIVAL_QUEUES,)),
        ("decode_kind", np.int64),
        ("n_decode", np.int64),
        ("decode_counter", np.int64),
        ("prefill_load_scale", np.float64),  # prefix-aware
        ("overlap_score_credit", np.float64),
        # regions
        ("by_region", np.int64),  # its queue hangs on the client's region
        # best fit, to the end
        ("c1", np.float64),
        ("k1", np.float64),
        ("c3", np.float64),
        ("c2", np.float64),
        ("k2", np.float64),
        ("gamma", np.float64),
        ("theta", np.float64),
        ("ttft_ps", np.int64),
        ("itl_ps", np.int64),
        ("fallback", np.int64),
        ("scaled", np.int64),
        ("saved_over_tokens", np.int64),
    ]
)

REPORT = np.dtype(
    [
        ("prefill_tokens", np.int32),
        ("prefill_requests", np.int32),
        ("prefill_squares", np.int64),
        ("prefill_ps", np.int64),
        # of the prefill iteration under way
        ("next_tokens", np.int32),
        ("next_requests", np.int32),
        ("next_squares", np.int64),
        ("next_ps", np.int64),
        ("decode_requests", np.int32),
        ("decode_context", np.int32),
        ("decode_ps", np.int64),
    ]
)
"""A worker's last iterations of each kind: written at every boundary, hence no longer than a cache line."""

FIT = np.dtype(
    [
        ("touched", np.int64),  # somebody left its own queue in the command at hand
        # coefficients of its own, if it has them
        ("has_model", np.int64),
        ("c1", np.float64),
        ("k1", np.float64),
        ("c3", np.float64),
        ("c2", np.float64),
        ("k2", np.float64),
        # what is there, as of emission counter `iter_no`
        ("iter_no", np.int64),
        ("life", np.int64),  # so many iterations on, somebody exceeds the prediction
        ("itl_ps", np.int64),  # the target that `ahead` is reckoned with
        ("n", np.int64),
        ("n_dec", np.int64),
        ("n_over", np.int64),  # of those, who emit more than was predicted
        ("inputs", np.int64),
        ("outputs", np.int64),  # predicted
        ("context", np.int64),
        ("own_tokens", np.int64),  # prefill tokens of the own queue
        ("new_tokens", np.int64),  # prompts of those that have had no token yet
        ("prefilling", np.int64),  # the prefill of some of these is under way
        ("ahead", np.int64),  # least of T_dec * emitted + first token, decoding and not
        ("ahead_still", np.int64),
        ("listed", np.int64),  # the list below is there
        ("n_moving", np.int64),  # its part that decodes, and the rest
        ("n_still", np.int64),
    ]
)
"""What placement knows of an instance."""

PROF = np.dtype(
    [
        ("n_prefill", np.int64),
        ("n_mixed", np.int64),
        ("prefill_pair", np.int64),
        ("mixed_pair", np.int64),
        ("mixed_chunk", np.int64),
        ("cap", np.int64),
        ("swap_out", np.int64),
        ("swap_in", np.int64),
        ("kv_bytes", np.int64),
    ]
)

V1 = np.dtype(
    [
        ("used", np.int64),  # blocks
        ("flying", np.int64),  # first so many of the preempted list: they gave way while a step ran
        # the step that runs: requests that decode, their context, chunks of prompts
        ("decoding", np.int64),
        ("context", np.int64),
        ("chunks", np.int64),
        # prefix cache: free blocks with names, their extents in order of release, tokens asked for and found
        ("cached", np.int64),
        ("oldest", np.int64),
        ("newest", np.int64),
        ("asked", np.int64),
        ("hit", np.int64),
    ]
)

CLS = np.dtype(
    [
        ("priority", np.int64),
        ("itl_slo_ps", np.int64),
        ("ttft_slo_ps", np.int64),
        ("itl_max", np.int64),
        ("promote_ps", np.int64),
    ]
)

LISTS = {
    "own": "instance",  # row `i` itself
    "preempted": "instance",
    "running": "instance",  # that are not evictable
    "evictable": "instance",  # running ones: right behind
    "prefilling": "instance",
    "queue": "queue",
    "gateway": "llm",
    "oldest": "queue",
    "landed": "instance",
    "in_flight": "instance",
    "held": "instance",
    "decode_gateway": "llm",
    "ending": "instance",
}
"""Lists of requests in the order of their rows, and what there is one of each for (see `lists`)."""

CONST = np.dtype(
    [
        (name, np.int64)
        for name in (
            "n_inst",
            "n_queues",
            "n_llms",
            "n_classes",
            "n_pools",
            "n_hosts",
            "half_block",
            "max_gpus",
            "keep_alive",
            "leaves",
            "batch",
            "stack_depth",
            "slots",
            "knots",
            "pull_width",
            "pulled_by_width",
            "tab_width",
            "link_width",
            "fit_width",
            "weights",  # whether any flow over links
            "live",  # whether there may be live pairs
            "regional",  # whether anything of docs/engine.md, section 17, is at work
            "n_regions",
            "more_regions",  # one more
            "n_managers",
            "manager_period",
            "waiting_counts",
            "latency_width",
            "reclaim_width",
            "bins_width",
            "pools_width",  # one more than pools
            "block_width",
            "caches",  # whether there may be prefix caches
            "extent_room",  # extents that one event may need
            *(f"row_{name}" for name in LISTS),  # first row in `lists`
        )
    ]
)

TALLY = np.dtype(
    [
        ("end", np.int64),  # where the class ends in `by_class`
        ("cursor", np.int64),  # the first whose deadline has not been looked at
        *CLASS_SEEN.descr,
    ]
)

# Columns of `served[pool, llm]`; a profile of -1: the pool does not serve the LLM.
SERVED_PROFILE, SERVED_BYTES, SERVED_FETCH, SERVED_SWAP, SERVED_WATERMARK = 0, 1, 2, 3, 4
SERVED_COLUMNS = 5

# Rows of `tab[profile]`.
DECODE_BASE, DECODE_TOKEN, MIXED_BASE, MIXED_TOKEN = 0, 1, 2, 3
