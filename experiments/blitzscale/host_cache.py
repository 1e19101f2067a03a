"""Which hosts keep an LLM's weights in memory, and which starts of instances miss them (ServerlessLLM).

A second-by-second model without queues or load times: as many instances run as the demand of the last
`idle_timeout_s` asked for at most, a start misses if its host has neither an instance of the LLM nor a copy
left, and a copy stays for `keep_alive_s` after the host's last instance of it has stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Placement = Literal["packed", "cached", "random"]
PLACEMENTS: dict[str, str] = {
    "packed": "always the first free hosts",
    "cached": "hosts with a copy first, then at random",
    "random": "any free host",
}


@dataclass(frozen=True)
class HostCache:
    """What happened to each LLM.

    Attributes:
        started, missed: (n, llms) instances started in each second, and those without a copy on their host.
        refused: (n, llms) instances asked for that found no free host.
        copies: (n, llms) hosts with a copy, those that run an instance included.
        running: (n, llms) instances.
    """

    started: NDArray[np.int64]
    missed: NDArray[np.int64]
    refused: NDArray[np.int64]
    copies: NDArray[np.int64]
    running: NDArray[np.int64]


def lasting(demand: NDArray[np.int64], idle_timeout_s: int) -> NDArray[np.int64]:
    """Instances that run: the largest demand of each second and the `idle_timeout_s` before it."""
    out = demand.copy()
    for k in range(1, min(idle_timeout_s, len(demand) - 1) + 1):
        out[k:] = np.maximum(out[k:], demand[: len(demand) - k])
    return out


def simulate(
    demand: NDArray[np.int64],
    *,
    hosts: int,
    slots: int = 1,
    keep_alive_s: int,
    idle_timeout_s: int = 2,
    placement: Placement = "packed",
    rng: np.random.Generator,
) -> HostCache:
    """Run the demand of some LLMs over shared hosts.

    Args:
        demand: (n, llms) instances wanted in each second.
        hosts: how many; at the start none has a copy.
        slots: instances that fit on one.
        keep_alive_s: how long a copy is kept after the host's last instance has stopped.
        idle_timeout_s: how long an instance without work stays.
        placement: where instances start; they stop in the opposite order.
        rng: for the placements with chance.

    Raises:
        ValueError: an unknown placement.
    """
    if placement not in PLACEMENTS:
        raise ValueError(f"placement = {placement!r}: must be one of {list(PLACEMENTS)}")
    n, llms = demand.shape
    wanted = np.stack([lasting(demand[:, m], idle_timeout_s) for m in range(llms)], axis=1)
    names = ("started", "missed", "refused", "copies", "running")
    found = {name: np.zeros((n, llms), dtype=np.int64) for name in names}
    on_host = np.zeros((llms, hosts), dtype=np.int64)
    kept_until = np.full((llms, hosts), -1, dtype=np.int64)
    stack: list[list[int]] = [[] for _ in range(llms)]
    for t in range(n):
        for m in range(llms):
            for _ in range(len(stack[m]) - int(wanted[t, m])):
                host = stack[m].pop()
                on_host[m, host] -= 1
                kept_until[m, host] = t + keep_alive_s
        for m in range(llms):
            for _ in range(int(wanted[t, m]) - len(stack[m])):
                free = np.flatnonzero(on_host.sum(axis=0) < slots)
                if len(free) == 0:
                    found["refused"][t, m] += 1
                    continue
                cached = (on_host[m, free] > 0) | (kept_until[m, free] > t)
                if placement == "packed":
                    k = 0
                elif placement == "cached" and cached.any():
                    k = int(rng.choice(np.flatnonzero(cached)))
                else:
                    k = int(rng.integers(len(free)))
                found["started"][t, m] += 1
                found["missed"][t, m] += int(not cached[k])
                on_host[m, free[k]] += 1
                stack[m].append(int(free[k]))
        found["copies"][t] = ((on_host > 0) | (kept_until > t)).sum(axis=1)
        found["running"][t] = on_host.sum(axis=1)
    return HostCache(**found)


def published_count(
    demand: NDArray[np.int64], keep_alive_s: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Starts and misses as the script that drew the paper's figure counts them.

    It looks at seconds with demand only: starts are what a second asks for above the one before it, misses
    what it asks for above the largest of the last `keep_alive_s`. After a silence as long as that there is
    no such largest, and its comparison finds no miss.

    Args:
        demand: (n,) instances wanted in each second.
        keep_alive_s: as in `simulate`.

    Returns:
        (n,) starts and (n,) misses.
    """
    started, missed = np.zeros_like(demand), np.zeros_like(demand)
    seconds = np.flatnonzero(demand)
    for k in range(1, len(seconds)):
        t = int(seconds[k])
        up = int(demand[t] - demand[seconds[k - 1]])
        if up > 0:
            started[t] = up
            recent = demand[max(t - keep_alive_s + 1, 0) : t]
            if recent.any():
                missed[t] = max(int(demand[t] - recent.max()), 0)
    return started, missed
