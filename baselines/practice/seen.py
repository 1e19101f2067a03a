"""What the autoscalers in use measure: requests and memory per replica, means over windows, arrivals."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baselines.fleet import UniformParameters
from baselines.parameters import BatchLimit, Positive
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import pool_tables
from llmscale_env.sim.spec import InstanceState
from llmscale_env.sim.spec.kinds import RequestState

_COUNTED = ("arrived", "input_tokens", "predicted_tokens")


class PracticeParameters(UniformParameters):
    """What the autoscalers in use have in common.

    Attributes:
        batch_limit: vLLM's default `max_num_seqs` was 256.
        router: of every class; a service with the fewest outstanding requests first.
    """

    period_s: Positive = 15.0
    batch_limit: BatchLimit | None = 256
    router: str = "jsq-requests"


@dataclass(frozen=True)
class Replicas:
    """Active instances of a pool; arrays (n,).

    Attributes:
        slot: their numbers.
        kv_tokens: KV memory in use, tokens.
        waiting: requests that wait there, preempted ones included.
    """

    slot: NDArray[np.int64]
    kv_tokens: NDArray[np.int64]
    waiting: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.slot)


def replicas_of(view: ClusterView, p: int) -> Replicas:
    """The active instances of pool `p`."""
    rows = view.instances
    slot = np.flatnonzero((view.instance_pool == p) & (rows["state"] == int(InstanceState.ACTIVE)))
    mine = rows[slot]
    return Replicas(slot, mine["kv_tokens"], mine["waiting"] + mine["preempted"])


def on_the_way(view: ClusterView, p: int) -> int:
    """Instances of pool `p` that are acquired or load."""
    return int(view.pools["acquiring"][p] + view.pools["loading"][p])


def requests_in(view: ClusterView, p: int) -> float:
    """Requests at the instances of pool `p`, waiting and running: their concurrency."""
    seen = view.pools[p]
    return float(seen["running"] + seen["waiting"] + seen["preempted"])


def kv_capacity(scenario: Scenario, p: int) -> int:
    """KV tokens of an instance of pool `p`."""
    return pool_tables(scenario, scenario.fleet.pools[p]).kv_capacity_tokens


@dataclass(frozen=True)
class Waiting:
    """Requests that wait at instances; arrays (n,).

    Attributes:
        instance: where.
        input_tokens: of the prompt and, of preempted ones, what they have emitted: what is to be prefilled.
        output_tokens: still expected, by the predictor.
    """

    instance: NDArray[np.int64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]


def waiting_requests(view: ClusterView) -> Waiting:
    """Every request that waits at an instance; the cost grows with the number under way."""
    seen = view.under_way
    waits = np.isin(seen.state, (int(RequestState.OWN_QUEUE), int(RequestState.PREEMPTED)))
    emitted = seen.emitted_tokens[waits]
    left = seen.predicted_output_tokens[waits] - emitted
    return Waiting(
        instance=seen.instance[waits],
        input_tokens=seen.input_tokens[waits] + emitted,
        output_tokens=np.maximum(left, 0),
    )


class MovingMean:
    """Means of a gauge over the last seconds, from samples taken whenever somebody looked."""

    def __init__(self, longest_s: float) -> None:
        self.longest_s = longest_s
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, time_s: float, value: float) -> None:
        """A sample; those too old for every window go."""
        self._samples.append((time_s, value))
        while self._samples[0][0] <= time_s - self.longest_s - 1e-9:
            self._samples.popleft()

    def mean(self, window_s: float) -> float:
        """Mean of the samples of the last `window_s` (open on the left); the newest is always one."""
        newest = self._samples[-1][0]
        values = [v for t, v in self._samples if t > newest - window_s + 1e-9 or t == newest]
        return sum(values) / len(values)


class ArrivalCounts:
    """What has arrived since the last look, by LLM.

    Classes are counted, LLMs are not: with several LLMs the arrivals of a class are shared out by the tokens
    that each LLM was asked for (exact where an LLM's requests of a class are as long as another's).
    """

    def __init__(self, scenario: Scenario) -> None:
        self._n_llms = len(scenario.fleet.llms)
        self._bin_s = scenario.control_interval_s
        self._before = np.zeros((len(scenario.classes), len(_COUNTED)))
        self._bins = 0

    def take(self, view: ClusterView) -> NDArray[np.float64]:
        """(M, 3) requests, input tokens and predicted output tokens since the last call."""
        now = np.stack([view.totals[name].astype(np.float64) for name in _COUNTED], axis=-1)
        since, self._before = now - self._before, now
        if self._n_llms == 1:
            return since.sum(axis=0)[None]
        tokens = view.demand(self._bin_s).tokens.sum(axis=2)
        asked = tokens[self._bins :].sum(axis=0).astype(np.float64)
        self._bins = len(tokens)
        total = asked.sum(axis=0)
        share = np.divide(asked, total, out=np.zeros_like(asked), where=total > 0)
        return share @ since


def tightest(scenario: Scenario) -> tuple[float, float]:
    """(TTFT, ITL) targets in seconds that hold for every class, for policies that know none."""
    return min(c.ttft_s for c in scenario.classes), min(c.itl_s for c in scenario.classes)


def median(values: Sequence[float] | NDArray[Any]) -> float:
    """The middle value; the mean of the two middle ones of an even number."""
    return float(np.median(values))
