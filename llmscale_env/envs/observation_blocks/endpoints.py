"""Observation blocks of clusters with regions: time of the week, load by region, endpoints, tails."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.endpoints import DAY_S, EndpointLayout
from llmscale_env.control.regions import used_tokens
from llmscale_env.control.reward import draw_requests, expected_arrivals, seed_of_each_day
from llmscale_env.control.snapshot import Snapshot
from llmscale_env.envs.observation_blocks.base import Entry, Floats, log_scale, ranges, share
from llmscale_env.scenarios.schema import Scenario

READY_S = (60.0, 300.0, 900.0)
"""Bounds of the histogram of instances on their way, by time left: an own VM is there after 1 minute in the
mean and 5 at most, one of another LLM after 10 more (SageServe, sections 4 and 7.1)."""

WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

_SEED, _ENOUGH = 990_200, 50_000
"""Of the requests from which the mean load of each LLM and region is known: no episode's own."""


class WeekClock:
    """Hour of the day and day of the week (UTC as in the workload's table; it starts on a Monday)."""

    name = "week_clock"

    def __init__(self, scenario: Scenario) -> None:
        pass

    def entries(self) -> list[Entry]:
        return [
            Entry("clock/sine", "sine of the time of day", -1.0),
            Entry("clock/cosine", "cosine of the time of day", -1.0),
            *(Entry(f"clock/{day}", "1: it is this day") for day in WEEKDAYS),
        ]

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        angle = 2 * np.pi * now.clock_s / DAY_S
        day = (now.clock_s // DAY_S).astype(np.int64)
        turn = np.stack([np.sin(angle), np.cos(angle)], axis=1)
        return np.concatenate([turn, day[:, None] == np.arange(7)], axis=1)


class RegionalLoad:
    """Tokens that the clients of each region asked for, by LLM: lately, and what is expected."""

    name = "regional_load"

    def __init__(self, scenario: Scenario) -> None:
        layout = EndpointLayout(scenario)
        self._hour = layout.bins_per_hour
        self._width_s = layout.interval_s
        places = layout.places
        self._names = [f"{llm}/{region}" for llm in places.llms for region in places.regions]
        self._expected = _mean_load(scenario.model_dump_json())

    def entries(self) -> list[Entry]:
        scale = "log scale to 16"
        ahead = [f"{self._width_s:g} s", f"{self._hour * self._width_s:g} s"]
        out = []
        for name in self._names:
            out += [
                Entry(f"{name}/load", f"tokens/s / expected, {scale}"),
                Entry(f"{name}/trend", "log2(interval / mean of the last hour) / 4", -1.0),
                Entry(f"{name}/background", f"of the last hour, that can wait, {scale}"),
            ]
            for k, text in enumerate(ahead):
                out += [
                    Entry(f"{name}/forecast_{k}", f"forecast {text} ahead, {scale}"),
                    Entry(f"{name}/error_{k}", "its recent weighted absolute percentage error / 2"),
                ]
        return out

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        seen = now.endpoints
        n = len(now.time_s)
        known = np.minimum(np.maximum(seen.bins, 1), self._hour)
        mean = seen.recent.sum(axis=1) / known[:, None, None, None] / self._expected
        latest = seen.recent[:, 0, ..., 0] / self._expected[..., 0]
        forecast = seen.forecast / self._expected[..., 0]
        parts = [
            log_scale(latest, 16.0),
            np.log2((latest + 0.1) / (mean[..., 0] + 0.1)) / 4.0,
            log_scale(mean[..., 1], 16.0),
            log_scale(forecast[:, 0], 16.0),
            seen.error[:, 0] / 2.0,
            log_scale(forecast[:, 1], 16.0),
            seen.error[:, 1] / 2.0,
        ]
        return np.stack(parts, axis=3).reshape(n, -1)


@lru_cache(maxsize=16)
def _mean_load(scenario_json: str) -> NDArray[np.float64]:
    """(M, R, 2) mean tokens per second by LLM, client's region, and whether they can wait; above 0.

    Of draws of the scenario's workload, one for each day that may come, thinned if they are large.
    """
    scenario = Scenario.model_validate_json(scenario_json)
    part = min(1.0, _ENOUGH / sum(expected_arrivals(scenario)))
    few = scenario.model_copy(update={"workload": scenario.workload.scaled(part)})
    waits_by_class = np.array([c.priority != 0 for c in scenario.classes])
    found = np.zeros((len(scenario.fleet.llms), len(scenario.region_names), 2))
    seeds = seed_of_each_day(scenario, _SEED)
    for seed in seeds:
        table = draw_requests(few, np.random.default_rng(seed))
        waits = waits_by_class[table.slo_class].astype(np.int64)
        tokens = table.input_tokens.astype(np.float64) + table.predicted_output_tokens
        np.add.at(found, (table.llm, table.region, waits), tokens)
    found /= part * scenario.horizon_s * len(seeds)
    # Where nothing is expected, nothing will be: any scale does.
    return np.where(found > 0, found, 1.0)


class Endpoints:
    """Pools: instances, those on their way by time left, spot VMs, memory in use."""

    name = "endpoints"

    def __init__(self, scenario: Scenario) -> None:
        self._layout = layout = EndpointLayout(scenario)
        self._scenario = scenario
        self._names = [p.name for p in scenario.fleet.pools]
        self._slots = layout.n_slots.astype(float)
        # Slots of those with which VMs are shared: no more VMs than that can be of use.
        self._shared = layout.group_spot(layout.n_slots[None])[0].astype(float)

    def entries(self) -> list[Entry]:
        left = ranges([f"{b:g} s" for b in READY_S])
        out = []
        for p in self._names:
            out += [
                Entry(f"{p}/active", "active instances / slots"),
                Entry(f"{p}/leaving", "instances that drain or go to spot / slots"),
            ]
            out += [
                Entry(f"{p}/ready_{k}", f"on their way, {text} left, / slots")
                for k, text in enumerate(left)
            ]
            out += [
                Entry(f"{p}/spot", "VMs leased out with its LLM / slots"),
                Entry(f"{p}/spot_others", "VMs of others that it may take / their slots"),
                Entry(f"{p}/utilisation", "memory in use / capacity; 1 if none is active"),
                Entry(f"{p}/kv_max", "KV use of the fullest instance"),
                Entry(f"{p}/waiting", "waiting requests per active instance, log scale to 256"),
                Entry(f"{p}/preemptions", "preemptions per iteration, log to 1"),
                Entry(f"{p}/reclaimed", "instances started in the interval / slots / 4"),
            ]
        return out

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        pools, seen, slots = now.pools, now.endpoints, self._slots
        active = pools["active"]
        starts = np.searchsorted(self._layout.pool_of, np.arange(len(slots)))
        parts = [active / slots, (pools["draining"] + seen.donating) / slots]
        edges = (-1.0, *READY_S, np.finfo(np.float64).max)
        for low, high in pairwise(edges):
            within = (seen.left_s > low) & (seen.left_s <= high)
            parts.append(np.add.reduceat(within.astype(np.int64), starts, axis=1) / slots)
        others = self._layout.group_spot(seen.spot) - seen.spot
        lost = now.by_pool["preemptions"] + now.by_pool["evictions"]
        parts += [
            seen.spot / slots,
            others / np.maximum(self._shared - slots, 1.0),
            np.where(
                active > 0, share(used_tokens(self._scenario, pools), pools["kv_capacity"]), 1.0
            ),
            pools["kv_max"],
            log_scale(share(pools["waiting"], active), 256.0),
            log_scale(share(lost, now.by_pool["iterations"]), 1.0),
            now.by_pool["started"] / slots / 4.0,
        ]
        return np.stack(parts, axis=2).reshape(len(active), -1)


class Tails:
    """TTFT of interactive requests that finished in the last interval, by LLM and region of the client."""

    name = "tails"

    def __init__(self, scenario: Scenario) -> None:
        places = EndpointLayout(scenario).places
        self._names = [f"{llm}/{region}" for llm in places.llms for region in places.regions]
        self._target_s = min((c.ttft_s for c in scenario.classes if c.priority == 0), default=1.0)

    def entries(self) -> list[Entry]:
        return [
            Entry(f"{name}/ttft_{q}", f"{text} TTFT / target / 2; 0 without any")
            for name in self._names
            for q, text in (("p50", "median"), ("p95", "95th percentile of"))
        ]

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        found: Floats = now.endpoints.ttft_s / self._target_s / 2.0
        return found.reshape(len(found), -1)
