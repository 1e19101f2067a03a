"""Request groups: Chiron's clusters of queued requests with similar deadlines.

Chiron, section 5.3, clusters by k-means (MacQueen 1967) on the TTFT targets. On a line the optimum is
a matter of dynamic programming over the sorted values, so nothing is drawn and nothing depends on a start.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

MAX_DISTINCT = 512


def kmeans_1d(values: ArrayLike, weights: ArrayLike, k: int) -> NDArray[np.int64]:
    """The clustering into at most `k` clusters with the least weighted sum of squared distances.

    Args:
        values: (n,) strictly ascending.
        weights: (n,) positive.
        k: at least 1.

    Returns:
        (n,) cluster of each value, ascending from 0. Of equally good clusterings the one whose
        clusters begin first.
    """
    x, w = np.asarray(values, np.float64), np.asarray(weights, np.float64)
    n = len(x)
    if n == 0:
        return np.zeros(0, np.int64)
    x = x - np.average(x, weights=w)  # keeps the differences of sums below accurate
    sums = [np.concatenate([[0.0], np.cumsum(w * x**power)]) for power in (0, 1, 2)]
    # cost[i, j]: one cluster of the values i..j-1.
    mass, first, second = (s[None, :] - s[:, None] for s in sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        cost = np.maximum(second - first**2 / mass, 0.0)
    cost[np.tril_indices(n + 1)] = np.inf
    best = cost[0].copy()  # of the first j values, in one cluster
    best[0] = 0.0
    cuts = []
    for _ in range(min(k, n) - 1):
        options = best[:, None] + cost
        cut = options.argmin(axis=0)
        cuts.append(cut)
        best = options[cut, np.arange(n + 1)]
    labels = np.zeros(n, np.int64)
    end = n
    for cluster in range(len(cuts), 0, -1):
        begin = int(cuts[cluster - 1][end])
        labels[begin:end] = cluster
        end = begin
    return labels


def in_steps(values: ArrayLike, resolution: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Values told apart in steps of `resolution`, doubled until at most `MAX_DISTINCT` are left.

    Args:
        values: (n,).
        resolution: the finest step, positive.

    Returns:
        The distinct lower ends of the steps, ascending, and (n,) which of them each value is in.
    """
    x = np.asarray(values, np.float64)
    while True:
        steps, place = np.unique(np.floor(x / resolution), return_inverse=True)
        if len(steps) <= MAX_DISTINCT:
            return steps * resolution, place
        resolution *= 2


def request_groups(
    deadline_s: ArrayLike,
    max_groups: int,
    resolution_s: float = 1.0,
    counts: ArrayLike | None = None,
) -> list[NDArray[np.int64]]:
    """Groups of requests with similar deadlines, the earliest group first.

    Args:
        deadline_s: (n,) of requests in the order of their queue, or of runs of consecutive requests
            with one deadline.
        max_groups: at most so many groups.
        resolution_s: deadlines are told apart in steps of this (doubled until at most
            `MAX_DISTINCT` are left).
        counts: (n,) requests of each run, at least 1; None: single requests.

    Returns:
        For each group the places of its requests (or runs) in the queue, first come first served.
        Runs fall into the groups that their requests would.
    """
    deadlines = np.asarray(deadline_s, np.float64)
    if max_groups < 1:
        raise ValueError(f"max_groups = {max_groups}: must be at least 1")
    if len(deadlines) == 0:
        return []
    steps, place = in_steps(deadlines, resolution_s)
    cluster = kmeans_1d(steps, np.bincount(place, counts), max_groups)[place]
    return [np.flatnonzero(cluster == g) for g in range(int(cluster.max()) + 1)]
