"""Observation blocks whose entries and scales do not depend on the size of the cluster.

Whatever is counted is stated relative to what there is (instances present, the load that they can carry) or
to a target, never to a number of slots, to `max_gpus` or to an expected rate: one network reads clusters of
any size.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.run import load_steps
from llmscale_env.control.snapshot import Snapshot
from llmscale_env.envs.observation_blocks.base import (
    Entry,
    Floats,
    log_scale,
    past_means,
    present,
    ranges,
    share,
)
from llmscale_env.envs.service import Service
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.observed import LOAD_BOUNDS_PS, TTFT_BOUNDS
from llmscale_env.workload.requests import PS_PER_S

MOST_LOAD = 16.0
"""Load at which an entry is 1, in what the instances can serve."""

TOP_BATCH = 1024.0
"""Batch limit at which an entry is 1."""

_LOWER, _UPPER = np.array([0.0, *TTFT_BOUNDS]), np.array([*TTFT_BOUNDS, np.inf])


class ClassLoad:
    """Tokens that arrive by class against what the fleet can serve: now, lately, and once it has loaded."""

    name = "class_load"

    def __init__(self, scenario: Scenario) -> None:
        self._classes = [c.name for c in scenario.classes]
        self._service = Service(scenario)
        interval = scenario.control_interval_s
        self._spans = [max(1, round(seconds / interval)) for seconds in (60.0, 300.0)]
        self._ahead_s = load_steps(scenario) * interval

    def entries(self) -> list[Entry]:
        scale = f"log scale to {MOST_LOAD:g}"
        ahead = (
            f"{self._ahead_s:g} s ahead over what instances present and on their way serve, {scale}"
        )
        out = []
        for c in self._classes:
            out += [
                Entry(f"{c}/load", f"tokens/s asked for over what active instances serve, {scale}"),
                Entry(f"{c}/load_soon", f"the same with those on their way, {scale}"),
                Entry(f"{c}/tokens_60s", "log2(tokens in the interval / mean of 60 s) / 4", -1.0),
                Entry(f"{c}/tokens_300s", "log2(tokens in the interval / mean of 300 s) / 4", -1.0),
                Entry(f"{c}/load_median", f"median forecast {ahead}"),
                Entry(f"{c}/load_high", f"90 % forecast {ahead}"),
                Entry(f"{c}/load_error", "recent weighted absolute percentage error / 2"),
            ]
        return out

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        service, there = self._service, present(now)
        current, *means = past_means(now.token_history, now.interval, (1, *self._spans))
        some = 0.1 * means[-1] + 1e-9
        rates = np.moveaxis(now.forecast_quantiles_per_s, -1, 0)
        # Of the last interval, and of every quantile of the forecast.
        inputs, outputs = (
            np.concatenate([[asked], rates * each])
            for asked, each in zip(service.tokens_per_s(now), service.tokens_each(now), strict=True)
        )
        loads = [service.load_now(now), *service.load(there, inputs, outputs)]
        soon, *ahead = (log_scale(load, MOST_LOAD) for load in loads[1:])
        parts = [
            log_scale(loads[0], MOST_LOAD),
            soon,
            *(np.log2((current + some) / (mean + some)) / 4.0 for mean in means),
            *ahead,
            now.forecast_error / 2.0,
        ]
        return np.stack(parts, axis=2).reshape(len(there), -1)


class Urgency:
    """Waiting requests by class, against their TTFT target."""

    name = "urgency"

    def __init__(self, scenario: Scenario) -> None:
        self._classes = [c.name for c in scenario.classes]
        self._service = Service(scenario)

    def entries(self) -> list[Entry]:
        out = []
        for c in self._classes:
            out += [
                Entry(f"{c}/drain", "time until all that wait are served / TTFT target, log to 16"),
                Entry(f"{c}/oldest_wait", "age of the oldest that waits / TTFT target / 2"),
                Entry(
                    f"{c}/will_be_late", "share of those that wait, by that time and their slack"
                ),
            ]
        return out

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        service = self._service
        waiting = service.waiting(now)
        parts = [
            log_scale(service.drain_s(now, waiting) / service.ttft_s, 16.0),
            service.oldest_s(now) / service.ttft_s / 2.0,
            share(service.will_be_late(now), waiting),
        ]
        return np.stack(parts, axis=2).reshape(len(waiting), -1)


class PoolState:
    """Pools: instances by state relative to those present, how full they are."""

    name = "pool_state"

    def __init__(self, scenario: Scenario) -> None:
        fleet = scenario.fleet
        self._names = [p.name for p in fleet.pools]
        self._gpus = np.array([p.tp for p in fleet.pools], float)
        self._max_gpus = float(fleet.max_gpus)

    def entries(self) -> list[Entry]:
        left = ranges([f"{b / PS_PER_S:g} s" for b in LOAD_BOUNDS_PS])
        out = [Entry("gpus/room", "free GPUs / GPUs held, log scale to 8")]
        for p in self._names:
            out += [
                Entry(f"{p}/share", "its GPUs of all that present instances hold"),
                Entry(f"{p}/one", "1 / (1 + instances present): what one of them weighs"),
                Entry(f"{p}/serving", "active instances / present"),
            ]
            out += [
                Entry(f"{p}/coming_{k}", f"not yet active, {text} left, / present")
                for k, text in enumerate(left)
            ]
            out += [
                Entry(f"{p}/leaving", "draining instances / (present + draining)"),
                Entry(f"{p}/full", "running requests / sum of batch limits"),
                Entry(f"{p}/queued", "waiting requests / sum of batch limits, log scale to 8"),
                Entry(f"{p}/memory", "KV use / capacity"),
                Entry(f"{p}/memory_max", "KV use of the fullest instance"),
                Entry(f"{p}/preempted", "preemptions and evictions per iteration, log to 1"),
                Entry(f"{p}/batch", f"mean batch limit, log scale to {TOP_BATCH:g}"),
                Entry(f"{p}/idle", "share of active instances without any request"),
            ]
        return out

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        pools, there = now.pools, present(now)
        active, draining = pools["active"], pools["draining"]
        gpus = there * self._gpus
        held = (gpus + draining * self._gpus).sum(axis=1)
        room = (self._max_gpus - held) / np.maximum(held, 1.0)
        lost = now.by_pool["preemptions"] + now.by_pool["evictions"]
        bins = pools["load_bins"]
        parts = [
            gpus / np.maximum(gpus.sum(axis=1), 1.0)[:, None],
            1.0 / (1.0 + there),
            share(active, there),
            *(share(bins[:, :, k], there) for k in range(bins.shape[2])),
            share(draining, there + draining),
            share(pools["running"], pools["limit_sum"]),
            log_scale(share(pools["waiting"], pools["limit_sum"]), 8.0),
            share(pools["kv_tokens"], pools["kv_capacity"]),
            pools["kv_max"],
            log_scale(share(lost, now.by_pool["iterations"]), 1.0),
            log_scale(share(pools["limit_sum"], active), TOP_BATCH),
            share(active - pools["busy"], active),
        ]
        each = np.stack(parts, axis=2).reshape(len(there), -1)
        return np.concatenate([log_scale(room, 8.0)[:, None], each], axis=1)


class SLOTails:
    """95th percentiles of latencies in the last interval over their targets, and misses, by class."""

    name = "slo_tails"
    quantile = 0.95

    def __init__(self, scenario: Scenario) -> None:
        self._classes = [c.name for c in scenario.classes]
        self._ttft_ps = np.array([c.ttft_s for c in scenario.classes]) * PS_PER_S
        self._itl_ps = np.array([c.itl_s for c in scenario.classes]) * PS_PER_S

    def entries(self) -> list[Entry]:
        out = []
        for c in self._classes:
            out += [
                Entry(f"{c}/ttft_p95", "95th percentile of TTFT / target / 2; 0 without any"),
                Entry(f"{c}/itl_p95", "the same of mean ITL of requests that finished"),
                Entry(f"{c}/missed", "violations / (violations + on time)"),
            ]
        return out

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        tally, w = now.tally, now.by_class
        late = w["rejected"] + w["ttft_late"] + w["itl_late"]
        # TTFT and ITL in one go.
        bins = np.stack([tally["ttft_bins"], tally["itl_bins"]])
        largest = np.stack(
            [tally["ttft_max_ps"] / self._ttft_ps, tally["itl_max_ps"] / self._itl_ps]
        )
        tails = binned_quantile(bins, largest, self.quantile) / 2.0
        parts = [*tails, share(late, late + w["on_time"])]
        return np.stack(parts, axis=2).reshape(len(late), -1)


def binned_quantile(bins: NDArray, largest: Floats, q: float) -> Floats:
    """(..., C) the `q` quantile of values counted in `bins` (..., C, k) of bounds `TTFT_BOUNDS`.

    Straight within a bin, and never above the largest value; 0 without any.
    """
    below = np.cumsum(bins, axis=-1)
    count = below[..., -1]
    wanted = q * count
    k = (below < wanted[..., None]).sum(axis=-1)
    k = np.minimum(k, bins.shape[-1] - 1)
    here, under = (np.take_along_axis(x, k[..., None], axis=-1)[..., 0] for x in (bins, below))
    under = under - here
    top = np.minimum(_UPPER[k], np.maximum(largest, _LOWER[k]))
    value = _LOWER[k] + (top - _LOWER[k]) * (wanted - under) / np.maximum(here, 1)
    return np.where(count > 0, np.minimum(value, largest), 0.0)


class Wishes:
    """What the reference policy wants now (action head `residual`)."""

    name = "wishes"

    def __init__(self, scenario: Scenario) -> None:
        self._names = [p.name for p in scenario.fleet.pools]

    def entries(self) -> list[Entry]:
        return [
            Entry(
                f"{p}/wish", "log2((wanted + 1) / (present + 1)) / 4 of the reference policy", -1.0
            )
            for p in self._names
        ]

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        if now.wanted is None:
            raise ValueError(
                "observation = 'wishes': needs a reference policy (argument `reference`)"
            )
        return np.log2((now.wanted + 1.0) / (present(now) + 1.0)) / 4.0
