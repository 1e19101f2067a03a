"""The records of what flows over links: KV caches, weights, and what live pairs have of both."""

from __future__ import annotations

import numpy as np

FLOW = np.dtype(
    [
        ("left", np.int64),  # millionths of a byte to move from `seen` on, at `rate` bytes/us
        ("rate", np.int64),
        ("seen", np.int64),
        ("end", np.int64),
        ("source", np.int64),  # who holds a request's KV until it has been copied, -1: nobody
        ("pending", np.int64),  # of a request's KV the flows under way, of its own and its helper's
        ("first", np.int64),  # the two rows of links that are its path
        ("second", np.int64),
        ("fixed", np.int64),
        ("active", np.int64),
    ]
)
"""By number: KV of a request between its phases, weights (see `network`, `handover`, `loading`)."""

LOAD = np.dtype(
    [
        ("code", np.int64),  # source code of the weights, also one that is only named yet
        ("layers", np.int64),  # that have come
        ("flows", np.int64),  # whether one is on its way
        ("twin", np.int64),  # slot on the same GPUs, -1: none
        ("mutating", np.int64),  # it drains to become its twin
        ("asleep_ps", np.int64),  # since when its process sleeps, -1: none does
    ]
)
"""An instance slot's weights: see `loading`."""

LIVE = np.dtype(
    [
        # as the one that serves
        ("helper", np.int64),  # -1: none
        ("first", np.int64),  # batches formed and not taken: a batch is its first request, -1: none
        ("last", np.int64),
        ("batches", np.int64),
        ("executing", np.int64),  # batch of which it executes the rest
        # as the one that loads
        ("leader", np.int64),
        ("work", np.int64),  # batch of which it executes layers
        ("work_layers", np.int64),
        ("work_ps", np.int64),
        ("helped_ps", np.int64),  # time of all operations that have ended
        ("held_first", np.int64),  # requests that it co-holds
        ("held_last", np.int64),
        ("n_held", np.int64),
    ]
)
"""An instance slot's part in live pairs: see `live_pairs`, `live`."""

CO = np.dtype(
    [
        ("helper", np.int32),  # who has executed its first layers, until it has landed; -1: nobody
        ("layers", np.int32),  # how many, once its batch has been taken
        ("origin", np.int32),  # shared queue that it was taken from, -1: own queue
        ("prev", np.int32),  # among those that the helper co-holds
        ("after", np.int32),
        # as the first request of a batch
        ("n", np.int32),
        ("done", np.int32),
        ("later", np.int32),  # next batch
        ("tokens", np.int64),
        ("squares", np.int64),
        ("ps", np.int64),
    ]
)
"""A request that two instances prefill, one after the other, and the batch that it stands for."""

HOME = np.dtype(
    [
        ("host", np.int64),  # that keeps a copy of the LLM's weights, -1: none
        ("there", np.int64),
        ("restored_from", np.int64),  # source code of the copy on its way, `NO_SOURCE`: none is
        ("bytes", np.int64),
    ]
)
"""Per LLM: see `parameter_pool`."""
