"""What a fleet can serve by class, and who of those that wait will be late, from calibrated times."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.reward import expected_arrivals
from llmscale_env.control.snapshot import Snapshot
from llmscale_env.control.unfinished_work import seconds_per_token
from llmscale_env.envs.observation_blocks.base import Floats
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import serving
from llmscale_env.sim.observed import LOAD_BOUNDS_PS, SLACK_BOUNDS
from llmscale_env.workload.requests import PS_PER_S

LEAST_FREE = 0.05
"""Share of the fleet that is taken to be left to a class, however much those before it ask for."""

NEVER_S = 1e9
"""Stands for a time without end."""

_LOAD_S = np.array([b / PS_PER_S for b in (*LOAD_BOUNDS_PS, 2 * LOAD_BOUNDS_PS[-1])])
"""When instances of each bin of loading times are taken to serve: at its end."""

_AFTER_S = np.array([0.0, *_LOAD_S])
"""The same with those that are active before them."""


def positive_share(first: Floats, last: Floats) -> Floats:
    """Share of the way from `first` to `last`, straight, on which the value is above 0."""
    high = np.maximum(first, last)
    rise = np.maximum(high - np.minimum(first, last), 1e-12)
    return np.where(high > 0, np.clip(high / rise, 0.0, 1.0), 0.0)


class Service:
    """Capacity and delay by class, for any number of episodes at once.

    An instance serves a request of a class in so many seconds of its own: prompt tokens at the pace of a
    prefill of 1,024, predicted output tokens at that of the largest batch of contexts of 1,024 that
    fits the KV cache, the pool's `max_batch` and the class's ITL target. That pace is the machine's: it
    does not depend on the batch limits of the moment. Of several LLMs of a pool the dearest counts.

    Nothing in here knows how many slots the pools have, so it reads alike for clusters of any size.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        fleet, classes = scenario.fleet, scenario.classes
        shape = (len(classes), len(fleet.pools))
        self.per_input_s, self.per_output_s = np.full((2, *shape), 0.0)
        self.serves = np.zeros(shape, bool)
        self._direct = np.zeros(shape, bool)
        for c, slo_class in enumerate(classes):
            for p, pool in enumerate(fleet.pools):
                for llm in pool.llms:
                    route = scenario.route_of(llm, slo_class.name)
                    own = pool.name in (*route.pools, *route.overflow, *route.decode_pools)
                    pulls = bool(fleet.group_queues) or bool(set(route.queues) & set(pool.pull))
                    if not (own or pulls or (fleet.queue_manager and route.queues)):
                        continue
                    self.serves[c, p] = True
                    self._direct[c, p] |= own and route.kind != "shared-queue"
                    costs = seconds_per_token(scenario, serving(pool, llm), slo_class.itl_s)
                    self.per_input_s[c, p] = max(self.per_input_s[c, p], costs[0])
                    self.per_output_s[c, p] = max(self.per_output_s[c, p], costs[1])
        phases = np.array([pool.phase for pool in fleet.pools])
        stages = [phases == "both"]
        if (phases != "both").any():
            stages = [phases == "prefill", phases == "decode"]
        # By stage: seconds per prompt token and per output token, and who serves.
        self._stages = [
            (
                self.per_input_s * (stage if k == 0 else np.zeros_like(stage)),
                self.per_output_s * (stage if k == len(stages) - 1 else np.zeros_like(stage)),
                self.serves & stage,
            )
            for k, stage in enumerate(stages)
        ]
        self.ttft_s = np.array([c.ttft_s for c in classes])
        # Row c: those whom a request of class c lets pass.
        priority = np.array([c.priority for c in classes])
        self._before = (priority[None, :] < priority[:, None]).astype(np.float64)
        self._of_queue = self._queue_shares(scenario)

    def _queue_shares(self, scenario: Scenario) -> Floats:
        """(C, Q) the share of a queue's requests that is taken to be of each class."""
        fleet, expected = scenario.fleet, expected_arrivals(scenario)
        shares = np.zeros((len(scenario.classes), len(fleet.queues)))
        for c, slo_class in enumerate(scenario.classes):
            for q, queue in enumerate(fleet.queues):
                llms = fleet.llms if queue.llm is None else (queue.llm,)
                routes = [scenario.route_of(llm, slo_class.name) for llm in llms]
                if any(queue.name in route.queues for route in routes):
                    shares[c, q] = expected[c]
        return shares / np.maximum(shares.sum(axis=0), 1e-12)

    def _once(self, now: Snapshot, what: str, make: Callable[[Snapshot], Floats]) -> Floats:
        """What several blocks, or the shaping, ask for of the same snapshot."""
        key = (what, id(self._scenario))
        if key not in now.known:
            now.known[key] = make(now)
        found: Floats = now.known[key]
        return found

    # ---- capacity ----

    def rate(self, instances: NDArray, inputs: Floats, outputs: Floats) -> Floats:
        """(..., C) how often per second `instances` (..., P) serve `inputs` and `outputs` (..., C) tokens.

        Of split phases the slower one counts.
        """
        rates: list[Floats] = []
        for per_input_s, per_output_s, counted in self._stages:
            work = inputs[..., None] * per_input_s + outputs[..., None] * per_output_s
            each = instances[..., None, :] / np.maximum(work, 1e-9)
            rates.append(np.where(counted, each, 0.0).sum(axis=-1))
        return rates[0] if len(rates) == 1 else np.minimum(*rates)

    def load(self, instances: NDArray, inputs_per_s: Floats, outputs_per_s: Floats) -> Floats:
        """(..., C) tokens asked for per second over what `instances` (..., P) can serve of them."""
        asked = (inputs_per_s + outputs_per_s) > 0
        rate = self.rate(instances, inputs_per_s, outputs_per_s)
        return np.where(asked, 1.0 / np.maximum(rate, 1.0 / NEVER_S), 0.0)

    def load_now(self, now: Snapshot) -> Floats:
        """(E, C) of the last interval, against active instances."""
        return self._once(now, "load_now", self._load_now)

    def _load_now(self, now: Snapshot) -> Floats:
        return self.load(now.pools["active"], *self.tokens_per_s(now))

    def tokens_per_s(self, now: Snapshot) -> tuple[Floats, Floats]:
        """(E, C) prompt and predicted output tokens that came per second of the last interval."""
        length_s = np.where(now.length_s > 0, now.length_s, np.inf)[:, None]
        return now.by_class["input_tokens"] / length_s, now.by_class["predicted_tokens"] / length_s

    def tokens_each(self, now: Snapshot) -> tuple[Floats, Floats]:
        """(E, C) mean prompt and predicted output tokens of a request so far."""
        arrived = np.maximum(now.tally["arrived"], 1)
        return now.tally["input_tokens"] / arrived, now.tally["predicted_tokens"] / arrived

    # ---- delay ----

    def waiting(self, now: Snapshot) -> Floats:
        """(E, C) requests that have come and have not had their first token, wherever they are."""
        tally = now.tally
        return (tally["arrived"] - tally["started"] - tally["rejected"]).astype(np.float64)

    def drain_s(self, now: Snapshot, requests: Floats) -> Floats:
        """(E, C) or (E, C, k) seconds until so many requests of each class are served.

        By active instances and those on their way as they come, as far as classes of higher priority leave
        them free.
        """
        total, missed = self._once(now, "drains", self._drains)
        asked = requests.reshape(*total.shape[:2], 1, -1)
        times = (asked + missed[..., None]) / np.maximum(total[..., None], 1e-12)
        least = np.minimum(times.min(axis=2), NEVER_S)
        return np.where(asked[:, :, 0] > 0, least, 0.0).reshape(requests.shape)

    def _drains(self, now: Snapshot) -> Floats:
        """(2, E, C, k) rates of the first groups of instances together, and what they miss until they come.

        Served until t: the sum of rate * (t - after) over those that are there by t; the first ones, in
        order of coming, give the largest such sum, so the least of their times is the time.
        """
        inputs, outputs = self.tokens_each(now)
        free = np.maximum(1.0 - self.load_now(now) @ self._before.T, LEAST_FREE)
        active, bins = now.pools["active"], now.pools["load_bins"]
        groups = np.concatenate([active[:, None], bins.transpose(0, 2, 1)], axis=1)
        rates = self.rate(groups, inputs[:, None], outputs[:, None]) * free[:, None]
        sums = np.cumsum(np.stack([rates, rates * _AFTER_S[:, None]]), axis=2)
        return sums.transpose(0, 1, 3, 2)

    def oldest_s(self, now: Snapshot) -> Floats:
        """(E, C) age of the oldest that waits in a queue of the class or at an instance that serves it."""

        def age(since_ps: NDArray) -> Floats:
            return np.where(since_ps < 0, 0.0, now.time_s[:, None] - since_ps / PS_PER_S)

        queues = age(now.queues["oldest_ps"])[:, None, :] * (self._of_queue > 0)
        return np.maximum(queues.max(axis=2, initial=0.0), self._own_oldest_s(now))

    def _own_oldest_s(self, now: Snapshot) -> Floats:
        return self._once(now, "own_oldest_s", self._oldest_at_instances_s)

    def _oldest_at_instances_s(self, now: Snapshot) -> Floats:
        since = now.pools["oldest_ps"]
        age = np.where(since < 0, 0.0, now.time_s[:, None] - since / PS_PER_S)
        return (age[:, None, :] * self._direct).max(axis=2)

    def will_be_late(self, now: Snapshot) -> Floats:
        """(E, C) expected number of those that wait whose first token will come after their deadline.

        Those whose deadline has passed are late already and do not count. Within a bin of the slack
        histogram, and between the oldest and the newest at instances, waiting requests are taken to lie
        evenly.
        """
        waiting = self.waiting(now)
        bins, fresh = self._queued(now)
        queued = bins.sum(axis=2)
        places = np.concatenate([np.zeros_like(bins[..., :1]), np.cumsum(bins, axis=2)], axis=2)
        rest = np.maximum(waiting - fresh, 0.0)
        at_s = self.drain_s(now, np.concatenate([places, rest[..., None]], axis=2))
        slack_s = self.ttft_s[:, None] * np.array([*SLACK_BOUNDS, 1.0])
        # Bin k lies between places k and k + 1 and between slacks k - 1 and k; bin 0 has none left.
        begin = at_s[..., 1:-2] - slack_s[:, :-1]
        end = at_s[..., 2:-1] - slack_s[:, 1:]
        late = (bins[..., 1:] * positive_share(begin, end)).sum(axis=2)
        late *= np.divide(fresh, queued, out=np.zeros_like(fresh), where=queued > 0)
        oldest_s, last_s = self._own_oldest_s(now), at_s[..., -1]
        passed = positive_share(oldest_s - self.ttft_s, np.broadcast_to(-self.ttft_s, rest.shape))
        lost = positive_share(oldest_s - self.ttft_s, last_s - self.ttft_s)
        return late + rest * np.maximum(lost - passed, 0.0)

    def _queued(self, now: Snapshot) -> tuple[Floats, Floats]:
        """(E, C, bins) requests in shared queues by slack; (E, C) those of them without a first token."""
        bins = np.einsum("eqb,cq->ecb", now.queues["slack_bins"].astype(np.float64), self._of_queue)
        return bins, now.queues["fresh"] @ self._of_queue.T
