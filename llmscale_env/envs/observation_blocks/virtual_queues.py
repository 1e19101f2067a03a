"""Blocks for virtual queues: request groups, and instances one by one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.snapshot import Snapshot
from llmscale_env.envs.groups import SIZE_LIMIT, GroupLayout
from llmscale_env.envs.observation_blocks.base import (
    Entry,
    Floats,
    log_scale,
    share,
)
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.spec import InstanceState
from llmscale_env.workload.requests import PS_PER_S


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
