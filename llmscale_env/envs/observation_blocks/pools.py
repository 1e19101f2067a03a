"""Blocks of a cluster of pools: time, arrivals, forecasts, latency, queues, instances, backpressure."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from llmscale_env.control.reward import expected_arrivals
from llmscale_env.control.run import load_steps
from llmscale_env.control.snapshot import Snapshot
from llmscale_env.envs.observation_blocks.base import (
    Entry,
    Floats,
    log_scale,
    past_means,
    ranges,
    share,
)
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.observed import LOAD_BOUNDS_PS, SLACK_BOUNDS
from llmscale_env.sim.picoseconds import seconds
from llmscale_env.workload.requests import PS_PER_S


class Clock:
    """How much of the episode has passed."""

    name = "clock"

    def __init__(self, scenario: Scenario) -> None:
        self._horizon_s = scenario.horizon_s

    def entries(self) -> list[Entry]:
        return [Entry("clock/elapsed", "time / horizon")]

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        return (now.time_s / self._horizon_s)[:, None]


class Arrivals:
    """Arrival rates per class: now, and against the last one and five minutes."""

    name = "arrivals"

    def __init__(self, scenario: Scenario) -> None:
        self._classes = [c.name for c in scenario.classes]
        self._expected = np.array(expected_arrivals(scenario)) / scenario.n_steps
        interval = scenario.control_interval_s
        self._spans = [max(1, round(seconds / interval)) for seconds in (60.0, 300.0)]

    def entries(self) -> list[Entry]:
        out = []
        for c in self._classes:
            out += [
                Entry(f"{c}/arrivals", "arrivals in the interval, log scale to 16 x expected"),
                Entry(f"{c}/trend_60s", "log2(interval / mean of 60 s) / 4", -1.0),
                Entry(f"{c}/trend_300s", "log2(interval / mean of 300 s) / 4", -1.0),
            ]
        return out

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        found = past_means(now.history, now.interval, (1, *self._spans))
        current, *means = (mean / self._expected for mean in found)
        parts = [log_scale(current, 16.0)]
        parts += [np.log2((current + 0.1) / (mean + 0.1)) / 4.0 for mean in means]
        return np.stack(parts, axis=2).reshape(len(now.time_s), -1)


class Forecast:
    """Forecast arrivals per class at the time at which an instance ordered now would serve."""

    name = "forecast"

    def __init__(self, scenario: Scenario) -> None:
        self._classes = [c.name for c in scenario.classes]
        expected = np.array(expected_arrivals(scenario)) / scenario.n_steps
        self._expected = expected / scenario.control_interval_s
        self._after_s = load_steps(scenario) * scenario.control_interval_s

    def entries(self) -> list[Entry]:
        out = []
        for c in self._classes:
            ahead = f"forecast rate {self._after_s:g} s ahead"
            out += [
                Entry(f"{c}/forecast", f"{ahead}, log scale to 16 x expected"),
                Entry(f"{c}/forecast_error", "its recent weighted absolute percentage error / 2"),
            ]
        return out

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        rate = log_scale(now.forecast_rate_per_s / self._expected, 16.0)
        return np.stack([rate, now.forecast_error / 2.0], axis=2).reshape(len(rate), -1)


class Latency:
    """Latencies and misses of each class in the last interval, against its targets."""

    name = "latency"

    def __init__(self, scenario: Scenario) -> None:
        self._classes = [c.name for c in scenario.classes]
        self._ttft_ps = np.array([c.ttft_s for c in scenario.classes]) * PS_PER_S
        self._itl_ps = np.array([c.itl_s for c in scenario.classes]) * PS_PER_S

    def entries(self) -> list[Entry]:
        out = []
        for c in self._classes:
            out += [
                Entry(f"{c}/ttft_mean", "mean TTFT / target / 2"),
                Entry(f"{c}/ttft_max", "largest TTFT / target / 2"),
                Entry(f"{c}/itl_mean", "mean ITL / target / 2"),
                Entry(f"{c}/itl_max", "largest mean ITL of a request / target / 4"),
                Entry(f"{c}/violations", "violations / (violations + on time)"),
            ]
        return out

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        w = now.by_class
        late = w["rejected"] + w["ttft_late"] + w["itl_late"]
        parts = [
            share(seconds(w, "ttft_sum"), w["started"]) * PS_PER_S / self._ttft_ps / 2.0,
            now.tally["ttft_max_ps"] / self._ttft_ps / 2.0,
            share(seconds(w, "itl_sum"), w["itl_count"]) * PS_PER_S / self._itl_ps / 2.0,
            now.tally["itl_max_ps"] / self._itl_ps / 4.0,
            share(late, late + w["on_time"]),
        ]
        return np.stack(parts, axis=2).reshape(len(now.time_s), -1)


class Queues:
    """Shared queues: length, age, time to the deadlines."""

    name = "queues"

    def __init__(self, scenario: Scenario) -> None:
        self._queues = [q.name for q in scenario.fleet.queues]
        self._full = float(max(sum(expected_arrivals(scenario)), 10.0))
        self._ttft_s = max(c.ttft_s for c in scenario.classes)

    def entries(self) -> list[Entry]:
        bounds = [f"{b:.0%}" for b in SLACK_BOUNDS]
        slack = ["deadline passed"]
        slack += [f"{a} to {b} of the target left" for a, b in pairwise(bounds)]
        slack += [f"{bounds[-1]} or more of the target left"]
        out = []
        for q in self._queues:
            out += [
                Entry(f"{q}/length", "requests, log scale to all expected in an episode"),
                Entry(f"{q}/oldest", "age of the oldest / longest TTFT target / 2"),
            ]
            out += [Entry(f"{q}/slack_{k}", f"share with {s}") for k, s in enumerate(slack)]
        return out

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        queues = now.queues
        oldest = queues["oldest_ps"] / PS_PER_S
        age = np.where(oldest < 0, 0.0, now.time_s[:, None] - oldest)
        parts = [log_scale(queues["requests"], self._full), age / self._ttft_s / 2.0]
        shares = share(queues["slack_bins"], queues["requests"][:, :, None])
        return np.concatenate([np.stack(parts, axis=2), shares], axis=2).reshape(len(age), -1)


class Fleet:
    """Pools: instances by state, loading ones by time left, how full they are."""

    name = "fleet"

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        fleet = scenario.fleet
        self._names = [p.name for p in fleet.pools]
        self._most = np.array([p.max_instances for p in fleet.pools], float)
        self._top = np.array([p.max_batch for p in fleet.pools], float)
        self._gpus = np.array([p.tp for p in fleet.pools], float)
        self._max_gpus = float(fleet.max_gpus)

    def entries(self) -> list[Entry]:
        left = ranges([f"{b / PS_PER_S:g} s" for b in LOAD_BOUNDS_PS])
        out = [Entry("gpus/free", "free GPUs / max_gpus")]
        for p in self._names:
            out += [
                Entry(f"{p}/active", "active instances / slots"),
                Entry(f"{p}/draining", "draining instances / slots"),
            ]
            out += [
                Entry(f"{p}/loading_{k}", f"not yet active, {text} left, / slots")
                for k, text in enumerate(left)
            ]
            out += [
                Entry(f"{p}/running", "running requests / sum of batch limits"),
                Entry(f"{p}/waiting", "waiting requests / sum of batch limits, log scale to 8"),
                Entry(f"{p}/kv", "KV use / capacity"),
                Entry(f"{p}/kv_max", "KV use of the fullest instance"),
                Entry(f"{p}/preemptions", "preemptions and evictions per iteration, log to 1"),
                Entry(f"{p}/limit", "mean batch limit, log scale to max_batch"),
                Entry(f"{p}/busy", "share of active instances with any request"),
            ]
        return out

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        pools = now.pools
        held = (
            pools["acquiring"] + pools["loading"] + pools["active"] + pools["draining"]
        ) @ self._gpus
        active = pools["active"]
        lost = now.by_pool["preemptions"] + now.by_pool["evictions"]
        parts = [active / self._most, pools["draining"] / self._most]
        parts += [
            pools["load_bins"][:, :, k] / self._most for k in range(pools["load_bins"].shape[2])
        ]
        parts += [
            share(pools["running"], pools["limit_sum"]),
            log_scale(share(pools["waiting"], pools["limit_sum"]), 8.0),
            share(pools["kv_tokens"], pools["kv_capacity"]),
            pools["kv_max"],
            log_scale(share(lost, now.by_pool["iterations"]), 1.0),
            log_scale(share(pools["limit_sum"], active), self._top),
            share(pools["busy"], active),
        ]
        fleet = np.stack(parts, axis=2).reshape(len(held), -1)
        return np.concatenate([1.0 - held[:, None] / self._max_gpus, fleet], axis=1)


class Backpressure:
    """Chiron's signals (sections 4.1 and 5.1): interactive, batch and local backpressure."""

    name = "backpressure"

    def __init__(self, scenario: Scenario) -> None:
        roles = [p.role for p in scenario.fleet.pools]
        self._serving = np.array([r in ("interactive", "mixed", "general") for r in roles])
        self._classes = [c.name for c in scenario.classes]
        self._itl_ps = np.array([c.itl_s for c in scenario.classes]) * PS_PER_S
        self._n_queues = len(scenario.fleet.queues)

    def entries(self) -> list[Entry]:
        out = [
            Entry("ibp", "instances with interactive requests / interactive and mixed instances"),
            Entry("bbp", "share of queued requests with under a quarter of their target left"),
        ]
        out += [
            Entry(f"{c}/lbp", "latency backpressure: largest ITL / target / 4")
            for c in self._classes
        ]
        return out

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        pools = now.pools
        interactive = (pools["interactive"] * self._serving).sum(axis=1)
        serving = (pools["active"] * self._serving).sum(axis=1)
        close = now.queues["slack_bins"][:, :, :3].sum(axis=(1, 2))
        queued = now.queues["requests"].sum(axis=1)
        lbp = now.tally["itl_max_ps"] / self._itl_ps / 4.0
        first = np.stack([share(interactive, serving), share(close, queued)], axis=1)
        return np.concatenate([first, lbp], axis=1)
