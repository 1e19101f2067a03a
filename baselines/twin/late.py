"""Who waits in shared queues at the end of a look-ahead, and will be late whatever is ordered then.

A coarse word on what comes after: a queue is due with its oldest request, and all in it count alike, also
those that are late already or were evicted after their first token.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def late_in_queues(
    queues: NDArray[Any],
    cost_gpu_s: NDArray[np.float64],
    ttft_s: NDArray[np.float64],
    now_s: float,
    gpus: float,
) -> NDArray[np.float64]:
    """Requests that so many GPUs, working in the order of deadlines, are not done with in time.

    Args:
        queues: (n, Q) QUEUE_SEEN of n clusters.
        cost_gpu_s: (2, Q) GPU-seconds per prompt and output token of each queue.
        ttft_s: (Q,) target of each queue; that of its oldest request counts for all.
        now_s: present time.
        gpus: that work on them.

    Returns:
        (n, Q) requests; parts of one count.
    """
    work = queues["tokens"] * cost_gpu_s[0] + queues["predicted_tokens"] * cost_gpu_s[1]
    due_s = np.where(queues["oldest_ps"] >= 0, queues["oldest_ps"] / 1e12 + ttft_s, np.inf)
    order = np.argsort(due_s, axis=1, kind="stable")
    by_due = np.take_along_axis(work, order, axis=1)
    left_s = np.maximum(np.take_along_axis(due_s, order, axis=1) - now_s, 1.0)
    able = np.where(np.isfinite(left_s), left_s * gpus, np.inf)
    over = np.clip(np.cumsum(by_due, axis=1) - able, 0, by_due)
    share = np.divide(over, by_due, out=np.zeros_like(over), where=by_due > 0)
    late = np.zeros_like(share)
    np.put_along_axis(late, order, share, axis=1)
    return late * queues["requests"]
