"""Request groups: how large they may be, and which requests come apart by their tokens (section 4).

QLM's Algorithm 1 clusters by k-means over LLM, SLO value and token statistics, and halves what is too large;
it is at work in `baselines.qlm.book`. Requests of different LLMs or SLO values must never share a group, so
those two features are scaled without bound: requests are first told apart by them, and k-means runs on the
token statistics within. On a line its optimum is exact (`baselines.grouping.kmeans_1d`), so nothing is drawn
and no start matters.

Ours, since the paper does not say it:

- Token statistics are the input tokens. They are cut into the most clusters, up to `max_clusters`, of which
  each needs `min_ratio` times the tokens of the one before (expected output included: by Eq. 16 the batch
  that fits shrinks so). The best two clusters of a uniform or an exponential distribution are at a factor of
  3.0 and 4.4, and less with the outputs added, so 4 leaves one distribution whole and takes mega prompts of
  some thousand tokens from conversations of some hundred. A plain k-means is `min_ratio = 1`.
- A new arrival goes to the youngest group of its kind, so that it passes nobody of its own kind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from baselines.grouping import in_steps, kmeans_1d


@dataclass(frozen=True)
class TokenClustering:
    """How requests of one LLM and SLO value are told apart by their tokens.

    Attributes:
        max_clusters: largest k of the k-means; 1: tokens do not matter.
        min_ratio: each cluster has so many times the mean tokens of the one before.
        resolution_tokens: inputs are told apart in steps of this.

    Raises:
        ValueError: a value out of range.
    """

    max_clusters: int = 2
    min_ratio: float = 4.0
    resolution_tokens: float = 16.0

    def __post_init__(self) -> None:
        if self.max_clusters < 1:
            raise ValueError(f"max_clusters = {self.max_clusters}: must be at least 1")
        if not self.min_ratio >= 1:
            raise ValueError(f"min_ratio = {self.min_ratio}: must be at least 1")
        if not self.resolution_tokens > 0:
            raise ValueError(f"resolution_tokens = {self.resolution_tokens}: must be positive")


def size_limit(average_batch: float, delta: float = 4.0) -> int:
    """Largest number of requests in a group: delta times the average batch, at least 1.

    Raises:
        ValueError: delta outside 1..16 (section 8.3), or a batch that is not positive.
    """
    if not 1 <= delta <= 16:
        raise ValueError(f"delta = {delta}: must be in 1..16")
    if not (average_batch > 0 and np.isfinite(average_batch)):
        raise ValueError(f"average_batch = {average_batch}: must be positive and finite")
    return max(1, int(average_batch * delta))


def token_bounds(
    input_tokens: NDArray[np.int64], expected_output: float, rule: TokenClustering
) -> tuple[float, ...]:
    """Upper bounds of input tokens of the most clusters that differ by `rule.min_ratio`, the last infinite.

    A request belongs to the first cluster whose bound is at least its input.

    Args:
        input_tokens: (n,) of requests of one LLM and SLO value, at least one.
        expected_output: mean tokens that each has besides.
        rule: when clusters are different.
    """
    values = np.asarray(input_tokens, np.float64)
    steps, place = in_steps(values, rule.resolution_tokens)
    total = np.bincount(place, values)
    count = np.bincount(place)
    for k in range(min(rule.max_clusters, len(steps)), 1, -1):
        of_step = kmeans_1d(steps, count, k)
        mean = np.bincount(of_step, total) / np.bincount(of_step, count) + expected_output
        if (mean[1:] < rule.min_ratio * mean[:-1]).any():
            continue
        label = of_step[place]
        # In the middle of the gap: each request of a cluster is classified into it again.
        cuts = [
            (float(values[label == c].max()) + float(values[label == c + 1].min())) / 2
            for c in range(k - 1)
        ]
        return (*cuts, np.inf)
    return (np.inf,)
