"""Observation blocks for a service that follows days: the hour, load against yesterday's, work by deadline.

Load and work are stated in the instances that they keep busy, as a share of all that the GPUs allow, so one
network reads a busy and a quiet day alike. No entry counts to the horizon.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.run import load_steps
from llmscale_env.control.snapshot import Snapshot
from llmscale_env.envs.observation_blocks.base import Entry, Floats, log_scale, past_means, share
from llmscale_env.envs.observation_blocks.size_free import TOP_BATCH, binned_quantile
from llmscale_env.envs.service import Service
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.observed import SLACK_BOUNDS
from llmscale_env.workload.requests import PS_PER_S

DAY_S = 86_400.0
YESTERDAY_S = 600.0
"""Length of the piece of yesterday that an entry is the mean of: its rates are known by ten minutes."""

DUE_WITHIN_S = (900.0, 3600.0, 14_400.0)
"""Spans within which work is due, one entry each."""

BACKLOG_S = 7200.0
"""Time for which all GPUs have work where the entry of the whole backlog is 1."""


def _max_instances(scenario: Scenario) -> float:
    """Instances that the GPUs allow of the smallest kind."""
    return scenario.fleet.max_gpus / min(pool.tp for pool in scenario.fleet.pools)


class DayClock:
    """The time of day, as a point on a circle."""

    name = "day_clock"

    def __init__(self, scenario: Scenario) -> None:
        pass

    def entries(self) -> list[Entry]:
        return [
            Entry("clock/sine", "sine of the time of day", -1.0),
            Entry("clock/cosine", "cosine of the time of day", -1.0),
        ]

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        angle = 2 * np.pi * now.clock_s / DAY_S
        return np.stack([np.sin(angle), np.cos(angle)], axis=1)


class _Work:
    """Instances that tokens of each class keep busy, as a share of all that there may be."""

    def __init__(self, scenario: Scenario) -> None:
        service = Service(scenario)
        # The dearest pool that serves the class, as the capacity of a fleet nobody has chosen yet.
        self.per_input_s = np.where(service.serves, service.per_input_s, 0.0).max(axis=1)
        self.per_output_s = np.where(service.serves, service.per_output_s, 0.0).max(axis=1)
        self.most = _max_instances(scenario)
        self.groups = scenario.class_groups
        self.urgent = {
            name: all(scenario.classes[c].priority == 0 for c in rows)
            for name, rows in self.groups.items()
        }

    def seconds(self, inputs: NDArray, outputs: NDArray) -> Floats:
        """(..., C) seconds of an instance for (..., C) prompt and output tokens."""
        return inputs * self.per_input_s + outputs * self.per_output_s

    def by_group(self, values: Floats) -> list[Floats]:
        """Sums over the classes of each group, from (..., C)."""
        return [values[..., list(rows)].sum(axis=-1) for rows in self.groups.values()]


class Load:
    """What arrives, by group of classes: now, lately, at this time yesterday, and as forecast."""

    name = "load"

    def __init__(self, scenario: Scenario) -> None:
        self._work = _Work(scenario)
        interval = scenario.control_interval_s
        self._interval_s = interval
        self._spans = [max(1, round(seconds / interval)) for seconds in (300.0, 1800.0)]
        self._ahead_s = load_steps(scenario) * interval

    def entries(self) -> list[Entry]:
        out = []
        for g, urgent in self._work.urgent.items():
            out += [
                Entry(f"{g}/load", "work that came in the interval, in instances / most instances"),
                Entry(f"{g}/load_5m", "the same, mean of five minutes"),
                Entry(f"{g}/load_30m", "the same, mean of half an hour"),
            ]
            if urgent:
                soon = f"{self._ahead_s:g} s on"
                out += [
                    Entry(f"{g}/yesterday", "the same, ten minutes from this time yesterday"),
                    Entry(f"{g}/yesterday_soon", f"the same, ten minutes of yesterday from {soon}"),
                    Entry(f"{g}/forecast", f"the same, forecast for {soon} (when an order serves)"),
                    Entry(f"{g}/forecast_error", "recent weighted absolute percentage error / 2"),
                ]
        return out

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        work = self._work
        length_s = np.where(now.length_s > 0, now.length_s, np.inf)[:, None]
        asked = work.seconds(now.by_class["input_tokens"], now.by_class["predicted_tokens"])
        latest = asked / length_s
        # Histories have sums of tokens; what a token of the class takes so far turns them into work.
        each = work.seconds(now.tally["input_tokens"], now.tally["predicted_tokens"]) / np.maximum(
            now.tally["input_tokens"] + now.tally["predicted_tokens"], 1
        )
        means = [
            mean * each / self._interval_s
            for mean in past_means(now.token_history, now.interval, self._spans)
        ]
        then = [self._yesterday(now, after_s) for after_s in (0.0, self._ahead_s)]
        requests = np.maximum(now.tally["arrived"], 1)
        per_request = (
            work.seconds(now.tally["input_tokens"], now.tally["predicted_tokens"]) / requests
        )
        ahead = now.forecast_rate_per_s * per_request
        always = [work.by_group(x / work.most) for x in (latest, *means)]
        urgent = [work.by_group(x / work.most) for x in (*then, ahead)]
        out: list[Floats] = []
        for k, (name, rows) in enumerate(work.groups.items()):
            out += [x[k] for x in always]
            if work.urgent[name]:
                out += [x[k] for x in urgent]
                out.append(now.forecast_error[:, list(rows)].max(axis=1) / 2.0)
        return np.stack(out, axis=1)

    def _yesterday(self, now: Snapshot, after_s: float) -> Floats:
        """(E, C) instances kept busy a day before `after_s` from now; 0 where that is not known."""
        found = np.zeros(now.by_class["arrived"].shape)
        for e, past in enumerate(now.pasts):
            if past is None:
                continue
            from_s = float(now.time_s[e]) + after_s - DAY_S
            inputs, outputs = past.tokens_by_class(from_s, from_s + YESTERDAY_S)
            found[e] = self._work.seconds(inputs, outputs) / YESTERDAY_S
        return found


class Deferrable:
    """Work that waits in shared queues, by when it is due."""

    name = "deferrable"

    def __init__(self, scenario: Scenario) -> None:
        self._work = _Work(scenario)
        self._ttft_s = np.array([c.ttft_s for c in scenario.classes])
        self._class_of = np.array(
            [
                next(
                    c
                    for c, slo_class in enumerate(scenario.classes)
                    if queue.name
                    in scenario.route_of(scenario.fleet.llms[0], slo_class.name).queues
                )
                for queue in scenario.fleet.queues
            ],
            np.int64,
        )
        bounds = np.array([*SLACK_BOUNDS, 1.0])
        self._low = np.concatenate([[0.0], bounds[:-1]])  # of each bin, as shares of the target
        self._high = bounds

    def entries(self) -> list[Entry]:
        out = [
            Entry(
                f"queues/due_{span_s / 60:g}m",
                f"work due within {span_s / 60:g} minutes / what all GPUs can do until then",
            )
            for span_s in DUE_WITHIN_S
        ]
        return [
            *out,
            Entry("queues/work", f"all work, log scale to {BACKLOG_S / 3600:g} hours of all GPUs"),
        ]

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        queues, work = now.queues, self._work
        each_s = (
            queues["tokens"] * work.per_input_s[self._class_of]
            + queues["predicted_tokens"] * work.per_output_s[self._class_of]
        ) / np.maximum(queues["requests"], 1)
        # Within a bin of slack, requests are taken to lie evenly.
        ttft_s = self._ttft_s[self._class_of][:, None]
        low, high = self._low * ttft_s, self._high * ttft_s
        counts = queues["slack_bins"].astype(np.float64)
        due = []
        for span_s in DUE_WITHIN_S:
            part = np.clip((span_s - low) / np.maximum(high - low, 1e-9), 0.0, 1.0)
            part[:, 0] = 1.0  # late already
            seconds = ((counts * part).sum(axis=2) * each_s).sum(axis=1)
            due.append(seconds / (work.most * span_s))
        whole = (queues["requests"] * each_s).sum(axis=1) / work.most
        return np.stack([*due, log_scale(whole, BACKLOG_S)], axis=1)


class Felt:
    """Latency tails, waiting requests and misses in the last interval, by group of classes."""

    name = "felt"
    quantile = 0.95

    def __init__(self, scenario: Scenario) -> None:
        self._groups = scenario.class_groups
        self._urgent = [
            c for c, slo_class in enumerate(scenario.classes) if slo_class.priority == 0
        ]
        self._names = [scenario.classes[c].name for c in self._urgent]
        self._ttft_ps = np.array([scenario.classes[c].ttft_s for c in self._urgent]) * PS_PER_S
        self._itl_ps = np.array([scenario.classes[c].itl_s for c in self._urgent]) * PS_PER_S

    def entries(self) -> list[Entry]:
        out = []
        for c in self._names:
            out += [
                Entry(f"{c}/ttft_p95", "95th percentile of TTFT / target / 2; 0 without any"),
                Entry(f"{c}/itl_p95", "the same of mean ITL of requests that finished"),
                Entry(f"{c}/waiting", "requests without a token, log scale to 1024"),
            ]
        return [
            *out,
            *(Entry(f"{g}/missed", "violations / (violations + on time)") for g in self._groups),
        ]

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        tally, w, rows = now.tally, now.by_class, self._urgent
        bins = np.stack([tally["ttft_bins"][:, rows], tally["itl_bins"][:, rows]])
        largest = np.stack(
            [
                tally["ttft_max_ps"][:, rows] / self._ttft_ps,
                tally["itl_max_ps"][:, rows] / self._itl_ps,
            ]
        )
        tails = binned_quantile(bins, largest, self.quantile) / 2.0
        waiting = (tally["arrived"] - tally["started"] - tally["rejected"])[:, rows]
        late = w["rejected"] + w["ttft_late"] + w["itl_late"]
        missed = [
            share(late[:, list(rows)].sum(axis=1), (late + w["on_time"])[:, list(rows)].sum(axis=1))
            for rows in self._groups.values()
        ]
        felt = np.stack([*tails, log_scale(waiting, 1024.0)], axis=2).reshape(len(late), -1)
        return np.concatenate([felt, np.stack(missed, axis=1)], axis=1)


class Pools:
    """Pools: instances that serve, are on their way and leave; how full those are that serve."""

    name = "pools"

    def __init__(self, scenario: Scenario) -> None:
        fleet = scenario.fleet
        self._names = [p.name for p in fleet.pools]
        self._most = np.array([p.max_instances for p in fleet.pools], float)
        self._gpus = np.array([p.tp for p in fleet.pools], float)
        self._max_gpus = float(fleet.max_gpus)

    def entries(self) -> list[Entry]:
        out = [Entry("gpus/free", "free GPUs / max_gpus")]
        for p in self._names:
            out += [
                Entry(f"{p}/active", "active instances / slots"),
                Entry(f"{p}/coming", "instances on their way / slots"),
                Entry(f"{p}/draining", "draining instances / slots"),
                Entry(f"{p}/running", "running requests / sum of batch limits"),
                Entry(f"{p}/kv", "KV use / capacity"),
                Entry(f"{p}/kv_max", "KV use of the fullest instance"),
                Entry(f"{p}/preempted", "preemptions and evictions per iteration, log to 1"),
                Entry(f"{p}/limit", f"mean batch limit, log scale to {TOP_BATCH:g}"),
            ]
        return out

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        pools = now.pools
        active, draining = pools["active"], pools["draining"]
        coming = pools["acquiring"] + pools["loading"]
        held = (coming + active + draining) @ self._gpus
        lost = now.by_pool["preemptions"] + now.by_pool["evictions"]
        parts = [
            active / self._most,
            coming / self._most,
            draining / self._most,
            share(pools["running"], pools["limit_sum"]),
            share(pools["kv_tokens"], pools["kv_capacity"]),
            pools["kv_max"],
            log_scale(share(lost, now.by_pool["iterations"]), 1.0),
            log_scale(share(pools["limit_sum"], active), TOP_BATCH),
        ]
        each = np.stack(parts, axis=2).reshape(len(held), -1)
        return np.concatenate([1.0 - held[:, None] / self._max_gpus, each], axis=1)
