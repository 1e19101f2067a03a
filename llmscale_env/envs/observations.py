"""What a policy network is shown: blocks of normalised numbers, each documented entry by entry.

A block turns a `Snapshot` of `E` episodes into (E, k) floats in its stated bounds, dimensionless
and on fixed physical scales (no
running statistics), so that one observation means the same in every episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.reward import expected_arrivals
from llmscale_env.control.run import load_steps
from llmscale_env.control.snapshot import Snapshot
from llmscale_env.envs.day_blocks import DayClock, Deferrable, Felt, Load, Pools
from llmscale_env.envs.endpoint_blocks import Endpoints, RegionalLoad, Tails, WeekClock
from llmscale_env.envs.entries import (
    Block,
    Entry,
    Floats,
    check_names,
    log_scale,
    past_means,
    ranges,
    share,
)
from llmscale_env.envs.groups import SIZE_LIMIT, GroupLayout
from llmscale_env.envs.placing_blocks import Gateway, Lengths, Request, Workers
from llmscale_env.envs.size_free_blocks import ClassLoad, PoolState, SLOTails, Urgency, Wishes
from llmscale_env.envs.weight_blocks import Links, WeightsBlock
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.observed import LOAD_BOUNDS_PS, SLACK_BOUNDS
from llmscale_env.sim.picoseconds import seconds
from llmscale_env.sim.spec import InstanceState
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
    """What requests of each class have felt in the last interval, against their targets."""

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


class Groups:
    """Request groups (`envs.groups`): those shown one by one, the others per LLM."""

    name = "groups"

    def __init__(self, scenario: Scenario) -> None:
        self._layout = GroupLayout(scenario)
        self._top = float(max(p.max_batch for p in scenario.fleet.pools))

    def entries(self) -> list[Entry]:
        out = []
        for slot in self._layout.slot_names:
            out += [
                Entry(f"{slot}/requests", f"waiting requests, log scale to {4 * SIZE_LIMIT}"),
                Entry(f"{slot}/tokens", "their predicted output tokens, log scale to 10^6"),
                Entry(f"{slot}/slack", "time to the deadline / target; 1 without a group", -1.0),
                Entry(f"{slot}/running", f"requests of it that run, log scale to {self._top:g}"),
                Entry(f"{slot}/served_by", "instances that have it at the head / instances"),
            ]
        for llm in self._layout.llms:
            out += [
                Entry(f"{llm}/others/requests", "waiting in other groups, log scale to 4096"),
                Entry(f"{llm}/others/tokens", "their predicted output tokens, log scale to 10^7"),
                Entry(f"{llm}/others/late", "share of them whose deadline has passed"),
            ]
        return out

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        layout, seen = self._layout, now.virtual
        shown = layout.shown(seen)
        n = len(seen.pull)
        there = shown.group >= 0
        place = np.maximum(shown.group, 0)

        def of_shown(values: NDArray) -> NDArray:
            return np.where(there, np.take_along_axis(values, place, axis=2), 0)

        tokens = layout.by_pair(seen.queues["predicted_tokens"])
        late = layout.by_pair(seen.queues["slack_bins"][:, :, 0])
        running = layout.by_pair(seen.running.sum(axis=1))
        left_ps = of_shown(shown.deadline_ps) - seen.time_ps[:, None, None]
        slack = np.where(there, left_ps / layout.ttft_ps[:, None], 1.0)
        queue = layout.queue_of_slot(shown)
        heads = (seen.pull[:, :, 0, None] == queue[:, None, :]).mean(axis=1)
        requests_shown, tokens_shown = of_shown(shown.waiting), of_shown(tokens)
        each = [
            log_scale(requests_shown, 4.0 * SIZE_LIMIT),
            log_scale(tokens_shown, 1e6),
            slack,
            log_scale(of_shown(running), self._top),
            np.where(there, heads.reshape(there.shape), 0.0),
        ]

        def of_others(values: NDArray) -> NDArray:
            rest = values.sum(axis=2) - of_shown(values).sum(axis=2)
            return rest.reshape(n, len(layout.llms), -1).sum(axis=2)

        requests = of_others(shown.waiting)
        others = [
            log_scale(requests, 4096.0),
            log_scale(of_others(tokens), 1e7),
            share(of_others(late), requests),
        ]
        parts = [np.stack(each, axis=3).reshape(n, -1), np.stack(others, axis=2).reshape(n, -1)]
        return np.concatenate(parts, axis=1)


class Instances:
    """Instances one by one: which LLM they have, what they serve next, how full they are."""

    name = "instances"
    _until_s = 60.0

    def __init__(self, scenario: Scenario) -> None:
        self._layout = GroupLayout(scenario)
        pool_of = self._layout.pool_of
        self._top = np.array([scenario.fleet.pools[p].max_batch for p in pool_of], float)

    def entries(self) -> list[Entry]:
        layout = self._layout
        out = []
        for name in layout.names:
            out += [
                Entry(f"{name}/active", "1: it serves"),
                Entry(
                    f"{name}/ready_in", f"time until it does / {self._until_s:g} s, 0 if it does"
                ),
                Entry(f"{name}/kv", "KV use / capacity"),
            ]
            out += [
                Entry(f"{name}/has/{llm}", "1: has this LLM, or loads it") for llm in layout.llms
            ]
            out += [
                Entry(f"{name}/next/{llm}", "1: its list is of this LLM") for llm in layout.llms
            ]
            out += [
                Entry(f"{name}/weights/{llm}", "1: in host memory; less: on their way; 0: not")
                for llm in layout.llms
            ]
            out += [
                Entry(f"{name}/running/{c}", "running requests / largest batch limit")
                for c in layout.classes
            ]
        return out

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        layout, seen = self._layout, now.virtual
        instances = seen.instances
        llms = np.arange(len(layout.llms))
        loading = instances["loaded_ps"] >= 0
        left_s = (instances["loaded_ps"] - seen.time_ps[:, None]) / PS_PER_S
        pair = layout.pair_of(seen.pull[:, :, 0])
        listed = np.where(pair >= 0, pair // len(layout.classes), -1)
        ready_s = (seen.weights_ready_ps - seen.time_ps[:, None, None]) / PS_PER_S
        weights = 1.0 - np.clip(ready_s / self._until_s, 0.0, 1.0)
        first = np.stack(
            [
                instances["state"] == InstanceState.ACTIVE,
                np.where(loading, left_s / self._until_s, 0.0),
                seen.kv_share,
            ],
            axis=2,
        )
        parts = [
            first,
            instances["llm"][:, :, None] == llms,
            listed[:, :, None] == llms,
            np.where(seen.weights_ready_ps < 0, 0.0, weights),
            seen.running_by_class / self._top[:, None],
        ]
        return np.concatenate(parts, axis=2).reshape(len(instances), -1)


class LastAction:
    """The last decision, each part as a fraction of its range."""

    name = "last_action"

    def __init__(self, scenario: Scenario, parts: Sequence[str]) -> None:
        self._parts = list(parts)

    def entries(self) -> list[Entry]:
        return [
            Entry(f"last/{part}", "choice / (choices - 1); 0 at the start") for part in self._parts
        ]

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        return last_action


BLOCKS = {
    "clock": Clock,
    "arrivals": Arrivals,
    "forecast": Forecast,
    "latency": Latency,
    "queues": Queues,
    "fleet": Fleet,
    "backpressure": Backpressure,
    "groups": Groups,
    "instances": Instances,
    "gateway": Gateway,
    "lengths": Lengths,
    "request": Request,
    "workers": Workers,
    "weights": WeightsBlock,
    "links": Links,
    "week_clock": WeekClock,
    "regional_load": RegionalLoad,
    "endpoints": Endpoints,
    "tails": Tails,
    "class_load": ClassLoad,
    "urgency": Urgency,
    "pool_state": PoolState,
    "slo_tails": SLOTails,
    "day_clock": DayClock,
    "load": Load,
    "deferrable": Deferrable,
    "felt": Felt,
    "pools": Pools,
    "wishes": Wishes,
    "last_action": LastAction,
}
"""Known blocks; an environment is given their names, in order."""


class ObservationEncoder:
    """Blocks put together: one flat float32 vector per episode.

    Args:
        scenario: what is observed.
        blocks: names of `BLOCKS`, in order.
        action_parts: names of the action's parts, for `last_action`.

    Attributes:
        entries: of all blocks, in order.
        spans: which of them are each block's, by its name.

    Raises:
        ValueError: no names, an unknown one, or nothing to see.
    """

    def __init__(
        self, scenario: Scenario, blocks: Sequence[str], action_parts: Sequence[str]
    ) -> None:
        self.blocks: list[Block] = []
        self.entries: list[Entry] = []
        self.spans: dict[str, slice] = {}
        for name in check_names("observation", blocks, BLOCKS, "block"):
            if name == "queues" and not scenario.fleet.queues:
                continue
            last = name == "last_action"
            block = LastAction(scenario, action_parts) if last else BLOCKS[name](scenario)
            self.blocks.append(block)
            entries = block.entries()
            self.spans[name] = slice(len(self.entries), len(self.entries) + len(entries))
            self.entries += entries
        if not self.entries:
            raise ValueError(
                f"observation = {list(blocks)}: there is nothing to see in this scenario"
            )
        self.low = np.array([entry.low for entry in self.entries], np.float32)
        self.high = np.array([entry.high for entry in self.entries], np.float32)

    def encode(self, now: Snapshot, last_action: Floats) -> NDArray[np.float32]:
        """(E, k) observation, clipped to its bounds."""
        parts = [block.encode(now, last_action) for block in self.blocks]
        return np.clip(np.concatenate(parts, axis=1), self.low, self.high).astype(np.float32)
