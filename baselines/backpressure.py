"""Chiron's global backpressures and what it does about them, as plain functions.

Patke et al., "Hierarchical Autoscaling for Large Language Model Serving with Chiron" (arXiv 2501.08090),
section 5: interactive backpressure (5.2), batch backpressure and Algorithm 2 (5.3); the waiting time is
QLM's (Patke et al., SoCC 2024), Eq. 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

# ---- interactive (section 5.2) ----


def interactive_backpressure(running: float, interactive: int, mixed: int) -> float:
    """IBP: instances that run interactive requests, over all interactive and mixed instances.

    Without any instance it is infinite if something runs, else 0.
    """
    total = interactive + mixed
    if total == 0:
        return math.inf if running > 0 else 0.0
    return running / total


def interactive_targets(
    running: float,
    interactive: int,
    mixed: int,
    *,
    theta: float,
    delta: float,
    min_interactive: int = 1,
    min_mixed: int = 1,
    max_total: int = 10**9,
) -> tuple[int, int]:
    """Interactive and mixed instances that bring IBP back to `theta` if it has left its range.

    The paper says that both kinds are added or removed, not how many of which. Here the total becomes
    the least at which IBP is at most theta, `ceil(running / theta)`; a share theta of it, rounded up, is
    interactive (what the load itself needs) and the rest mixed (the reserve). When instances are added
    neither kind falls, when they are removed neither rises.

    Args:
        running: instances that run interactive requests (or instance-equivalents).
        interactive, mixed: instances that there are, those on their way included.
        theta, delta: IBP is held in theta - delta .. theta + delta.
        min_interactive, min_mixed: never fewer.
        max_total: instances are added up to this number in all.
    """
    ibp = interactive_backpressure(running, interactive, mixed)
    have = interactive + mixed
    total = math.ceil(round(running / theta, 9))
    if ibp > theta + delta or interactive < min_interactive or mixed < min_mixed:
        own_range = max(interactive, min_interactive), 10**9
        mixed_range = max(mixed, min_mixed), 10**9
        total = min(max(total, have), max(max_total, have))
    elif ibp < theta - delta:
        own_range, mixed_range = (min_interactive, interactive), (min_mixed, mixed)
    else:
        return interactive, mixed
    total = min(max(total, own_range[0] + mixed_range[0]), own_range[1] + mixed_range[1])
    own = math.ceil(round(theta * total, 9))
    own = max(own, own_range[0], total - mixed_range[1])
    own = min(own, own_range[1], total - mixed_range[0])
    return own, total - own


def common_theta(theta: float, used_gpus: float, max_gpus: int) -> float:
    """The level of over-provisioning that several LLMs can have together.

    The paper has one LLM's autoscaler at a time. Where `used_gpus / theta` is more than there are, holding
    theta for one LLM would take another's GPUs; at the returned level they share what there is.

    Args:
        theta: level to hold while the GPUs suffice.
        used_gpus: GPUs that interactive requests use or wait for, over all LLMs.
        max_gpus: GPUs that there are.
    """
    return max(theta, used_gpus / max_gpus)


# ---- waiting time (section 5.3, Eq. 1) ----


def expected_tokens(
    requests: ArrayLike, mean_tokens: float, std_tokens: float, quantile: float = 0.5
) -> NDArray[np.float64]:
    """Output tokens of so many requests, by the central limit theorem: a quantile of their sum.

    Args:
        requests: (n,) or a number: how many requests.
        mean_tokens, std_tokens: of the output of one.
        quantile: 0.5 is the mean.
    """
    count = np.asarray(requests, np.float64)
    z = NormalDist().inv_cdf(quantile)
    return np.maximum(count * mean_tokens + z * np.sqrt(count) * std_tokens, 0.0)


def drain_time_s(tokens: ArrayLike, supply: Sequence[tuple[float, float]]) -> NDArray[np.float64]:
    """When so many tokens have been produced.

    Args:
        tokens: (n,) or a number.
        supply: (seconds from now, tokens per second from then on), in any order.

    Returns:
        Seconds from now; infinite where the supply never suffices.
    """
    wanted = np.asarray(tokens, np.float64)
    steps = sorted((max(0.0, when), rate) for when, rate in supply if rate > 0)
    if not steps:
        return np.where(wanted > 0, np.inf, 0.0)
    times = np.array([when for when, _ in steps])
    rates = np.cumsum([rate for _, rate in steps])
    made = np.concatenate([[0.0], np.cumsum(np.diff(times) * rates[:-1])])
    k = np.maximum(np.searchsorted(made, wanted, side="left") - 1, 0)
    return np.where(wanted > 0, times[k] + (wanted - made[k]) / rates[k], 0.0)


def waiting_time_s(
    requests_ahead: ArrayLike,
    mean_tokens: float,
    std_tokens: float,
    tokens_per_s: float,
    quantile: float = 0.5,
) -> NDArray[np.float64]:
    """Eq. 1: tokens ahead over token throughput, their sum modelled as normal.

    Args:
        requests_ahead: (n,) or a number: q - 1.
        mean_tokens, std_tokens: mu_o and sigma_o.
        tokens_per_s: Theta.
        quantile: of the tokens ahead; 0.5 is the mean.
    """
    tokens = expected_tokens(requests_ahead, mean_tokens, std_tokens, quantile)
    return drain_time_s(tokens, [(0.0, tokens_per_s)])


# ---- batch (section 5.3, Eq. 2 and Algorithm 2) ----


def requests_ahead(groups: Sequence[NDArray[np.int64]], counts: ArrayLike) -> NDArray[np.int64]:
    """Requests ahead of each when groups are served one after the other, each as its queue.

    Args:
        groups: places of requests or of runs of requests, see `grouping.request_groups`.
        counts: (n,) requests of each run; 1 for single requests.

    Returns:
        (n,) how many are ahead of the last request of each run.
    """
    requests = np.asarray(counts, np.int64)
    ahead = np.zeros(len(requests), np.int64)
    order = np.concatenate(groups) if len(groups) else np.zeros(0, np.int64)
    ahead[order] = np.cumsum(requests[order]) - 1
    return ahead


def batch_backpressure(
    groups: Sequence[NDArray[np.int64]],
    wait_s: ArrayLike,
    time_left_s: ArrayLike,
    judge: Literal["each", "group"] = "each",
    counts: ArrayLike | None = None,
) -> int:
    """BBP: groups whose estimated waiting time exceeds the time to their deadline.

    Of a run of requests with one deadline only the last has to be looked at: it waits longest.

    Args:
        groups: places of requests or runs of them, see `grouping.request_groups`.
        wait_s: (n,) estimated waiting time of each request, of the last one of each run.
        time_left_s: (n,) time to the deadline of each. A deadline that has passed is nobody's to
            meet and does not count.
        judge: "each": a group counts if any of its requests would be late. "group": one waiting
            time, that of its last request, against one deadline, the mean of its requests'.
        counts: (n,) requests of each run; None: single requests.
    """
    wait, left = np.asarray(wait_s, np.float64), np.asarray(time_left_s, np.float64)
    pressure = 0
    for group in groups:
        open_ = group[left[group] > 0]
        if len(open_) == 0:
            continue
        if judge == "each":
            late = bool((wait[open_] > left[open_]).any())
        else:
            weights = None if counts is None else np.asarray(counts)[open_]
            late = bool(wait[open_].max() > np.average(left[open_], weights=weights))
        pressure += late
    return pressure


def batch_instances_needed(pressure_with: Callable[[int], int], most: int) -> int:
    """Algorithm 2: the least number of instances to add at which BBP is 0.

    Args:
        pressure_with: BBP if so many were added; it falls as they grow.
        most: so many can be added. If BBP stays above 0 even then, the least number that brings it as
            low as `most` would (the algorithm as printed would not end).
    """
    added, pressure = 0, pressure_with(0)
    if pressure == 0 or most <= 0:
        return 0
    reachable = pressure_with(most)
    while pressure > reachable:
        added += 1
        pressure = pressure_with(added)
    return added
