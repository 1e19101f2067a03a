"""The records of shared queues as they stand (see `queues`)."""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.observed import N_SLACK_BINS

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
