"""The records of shared queues (see `queues`): as they stand, as they are seen, as they are read out."""

from __future__ import annotations

import numpy as np

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

QUEUE = np.dtype(
    [
        ("tokens", np.int64),
        ("predicted_tokens", np.int64),
        ("slack_bins", np.int64, (N_SLACK_BINS,)),  # as of the last look
        ("fresh", np.int64),
        ("fresh_input", np.int64),
        ("fresh_predicted", np.int64),
        ("fresh_squares", np.int64),
        ("runs", np.int64),
        ("last_run", np.int64),  # first request of the last run
        ("dirty", np.int64),
        ("touched", np.int64),
    ]
)
"""A shared queue as it stands: see `queues`."""

AGING = np.dtype(
    [
        ("end", np.int64),  # where the class ends in `by_class`
        ("queued", np.int64),  # its requests in shared queues
        # per bound of the slack bins, as of the last look: where those begin in `by_class` that have
        # not passed it, and the first of them
        ("cursor", np.int64, (N_SLACK_BINS - 1,)),
        ("first_id", np.int64, (N_SLACK_BINS - 1,)),
    ]
)
"""Per class: who has passed which bound of the slack bins."""

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
