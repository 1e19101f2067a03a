"""Observation blocks for placement: requests without a worker, lengths, the request at issue, workers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.snapshot import Snapshot
from llmscale_env.envs.action_heads.placing import Ranks
from llmscale_env.envs.observation_blocks.base import Entry, Floats, log_scale, share
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import compile_cluster
from llmscale_env.sim.linear import worker_times_s
from llmscale_env.sim.observed import NO_SLACK
from llmscale_env.sim.spec import InstanceState
from llmscale_env.workload.requests import PS_PER_S

FULL_TOKENS = 4096.0
"""Where the scales of lengths end: Llama 2's context."""

FULL_GATEWAY = 256.0
"""Where the scale of waiting requests ends."""


class Gateway:
    """Requests without a worker, by LLM."""

    name = "gateway"

    def __init__(self, scenario: Scenario) -> None:
        self._llms = scenario.fleet.llms
        self._ttft_ps = max(c.ttft_s for c in scenario.classes) * PS_PER_S

    def entries(self) -> list[Entry]:
        out = []
        for llm in self._llms:
            out += [
                Entry(
                    f"{llm}/unplaced", f"requests without a worker, log scale to {FULL_GATEWAY:g}"
                ),
                Entry(f"{llm}/unplaced_age", "age of the first / longest TTFT target / 2"),
            ]
        return out

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        seen = now.gateways
        age_ps = np.where(seen.head_ps < 0, 0, seen.time_ps[:, None] - seen.head_ps)
        parts = [log_scale(seen.waiting, FULL_GATEWAY), age_ps / self._ttft_ps / 2.0]
        return np.stack(parts, axis=2).reshape(len(age_ps), -1)


class Lengths:
    """Mean lengths of the requests that arrived since the last decision, by class."""

    name = "lengths"

    def __init__(self, scenario: Scenario) -> None:
        self._classes = [c.name for c in scenario.classes]

    def entries(self) -> list[Entry]:
        out = []
        for c in self._classes:
            out += [
                Entry(f"{c}/input", f"mean input tokens, log scale to {FULL_TOKENS:g}"),
                Entry(
                    f"{c}/predicted", f"mean predicted output tokens, log scale to {FULL_TOKENS:g}"
                ),
            ]
        return out

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        w = now.by_class
        parts = [
            log_scale(share(w[name], w["arrived"]), FULL_TOKENS)
            for name in ("input_tokens", "predicted_tokens")
        ]
        return np.stack(parts, axis=2).reshape(len(now.time_s), -1)


class Request:
    """The request at issue: the first in a gateway."""

    name = "request"

    def __init__(self, scenario: Scenario) -> None:
        self._llms = len(scenario.fleet.llms)
        self._names = [f"request/is/{llm}" for llm in scenario.fleet.llms if self._llms > 1]
        n = len(scenario.classes)
        self._classes = [f"request/is/{c.name}" for c in scenario.classes if n > 1]
        self._ttft_ps = np.array([c.ttft_s for c in scenario.classes]) * PS_PER_S

    def entries(self) -> list[Entry]:
        return [
            Entry("request/there", "1: a request is to be placed"),
            Entry("request/input", f"input tokens, log scale to {FULL_TOKENS:g}"),
            Entry("request/predicted", f"predicted output tokens, log scale to {FULL_TOKENS:g}"),
            Entry("request/waited", "time since its arrival / TTFT target / 2"),
            Entry("request/others", f"others in gateways, log scale to {FULL_GATEWAY:g}"),
            *(Entry(name, "1: it is of this LLM") for name in self._names),
            *(Entry(name, "1: it is of this class") for name in self._classes),
        ]

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        seen = now.workers
        q, there = seen.request, seen.turn >= 0
        waited = (seen.time_ps - q["arrival_ps"]) / self._ttft_ps[q["slo_class"]] / 2.0
        parts = [
            there.astype(np.float64),
            log_scale(q["input_tokens"], FULL_TOKENS),
            log_scale(q["predicted_tokens"], FULL_TOKENS),
            np.where(there, waited, 0.0),
            log_scale(seen.waiting.sum(axis=1) - there, FULL_GATEWAY),
        ]
        kinds = [("llm", len(self._names)), ("slo_class", len(self._classes))]
        parts += [(q[name] == k) & there for name, n in kinds for k in range(n)]
        return np.stack(parts, axis=1)


class Workers:
    """Every worker as Aladdin's constraints see it, with the request at issue on it.

    They come by rank (`placing.Ranks`). Times are those of its linear models (section 3, Eq. 2 and 3),
    fitted to the iteration times of its pool.
    """

    name = "workers"

    def __init__(self, scenario: Scenario) -> None:
        self._ranks = Ranks(scenario)
        self._times_ps = worker_times_s(compile_cluster(scenario.as_calibrated)).T * PS_PER_S
        self._ttft_ps = np.array([c.ttft_s for c in scenario.classes]) * PS_PER_S
        self._itl_ps = np.array([c.itl_s for c in scenario.classes]) * PS_PER_S
        self._half = scenario.fleet.block_tokens // 2

    def entries(self) -> list[Entry]:
        out = []
        for name in self._ranks.names:
            out += [
                Entry(f"{name}/active", "1: it serves"),
                Entry(f"{name}/requests", "requests there, log scale to the batch limit"),
                Entry(
                    f"{name}/prefill", "prefill time of its queue and this one / TTFT target / 2"
                ),
                Entry(f"{name}/decode", "decode iteration with this one / ITL target / 2"),
                Entry(f"{name}/decode_end", "the same with all predicted outputs / ITL target / 2"),
                Entry(f"{name}/kv", "KV memory used, waited for, and by this one / capacity / 2"),
                Entry(f"{name}/kv_end", "the same with all predicted outputs / capacity / 2"),
                Entry(
                    f"{name}/slack",
                    "least time ahead of the ITL target / TTFT target; 1: none",
                    -1.0,
                ),
            ]
        return out

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        seen = now.workers
        w, q = seen.workers, seen.request
        there = (seen.turn >= 0).astype(np.int64)[:, None]
        ttft, itl = self._ttft_ps[q["slo_class"]][:, None], self._itl_ps[q["slo_class"]][:, None]
        context = (q["input_tokens"] + q["emitted_tokens"])[:, None]
        outputs = np.maximum(q["predicted_tokens"], q["emitted_tokens"] + 1)[:, None] * there
        c1, k1, c3, c2, k2 = self._times_ps
        b = w["requests"] + there
        end = w["input_tokens"] + w["predicted_tokens"] + q["input_tokens"][:, None] + outputs
        kv = w["kv_tokens"] + w["waiting_tokens"] + context + there * (1 + self._half)
        capacity = w["kv_capacity"]
        active = w["state"] == InstanceState.ACTIVE
        parts: list[NDArray] = [
            active,
            log_scale(w["requests"], w["batch_limit"]),
            (c1 + k1 * (w["queued_tokens"] + context)) / ttft / 2.0,
            (c3 + c2 * b + k2 * (w["context"] + context)) / itl / 2.0,
            (c3 + c2 * b + k2 * end) / itl / 2.0,
            kv / capacity / 2.0,
            (end + b * self._half) / capacity / 2.0,
            np.where(w["ahead_ps"] == NO_SLACK, 1.0, w["ahead_ps"] / ttft),
        ]
        # Of a worker that does not serve nothing is shown.
        parts = [np.where(active, part, 0.0) for part in parts]
        by_number = np.stack(parts, axis=2)
        order = self._ranks.order(now)[:, :, None]
        return np.take_along_axis(by_number, order, axis=1).reshape(len(active), -1)
