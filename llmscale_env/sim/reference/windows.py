"""What a controller is shown, computed from the records of requests and instances (`sim.observed`).

A second reading of what the columns mean: the fast engine keeps the same numbers up to date event by event.
Here they are what one request, one instance and one queue add to them at a time, and sums of that.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.observed import (
    LOAD_BOUNDS_PS,
    N_LOAD_BINS,
    N_SLACK_BINS,
    N_TTFT_BINS,
    SLACK_BOUNDS,
    TTFT_BOUNDS,
)
from llmscale_env.sim.reference.serving.network import MILLIONTHS
from llmscale_env.sim.reference.state.request import Request
from llmscale_env.sim.spec import ClassSpec, InstanceState, RequestState
from llmscale_env.workload.requests import PS_PER_S

if TYPE_CHECKING:
    from llmscale_env.sim.reference.engine import ReferenceEngine
    from llmscale_env.sim.reference.instance import Instance

_COMING = (InstanceState.ACQUIRING, InstanceState.LOADING)
_SERVING = (InstanceState.ACTIVE, InstanceState.DRAINING)
_DONE = (RequestState.FINISHED, RequestState.REJECTED)


# ---- one request ----


def mean_itl_ps(request: Request) -> int:
    """Of a finished request of several tokens."""
    return (request.finished_ps - request.first_token_ps) // (request.output_tokens - 1)


def in_time(request: Request, slo: ClassSpec) -> bool:
    """Whether its first token came before its deadline."""
    ttft_ps = request.first_token_ps - request.arrival_ps
    return request.first_token_ps >= 0 and ttft_ps <= slo.ttft_slo_ps


def keeps_pace(request: Request, slo: ClassSpec) -> bool:
    """Whether a finished request met its ITL target."""
    if request.output_tokens == 1:
        return True
    if slo.itl_max:
        return request.max_itl_ps <= slo.itl_slo_ps
    spent_ps = request.finished_ps - request.first_token_ps
    return spent_ps <= slo.itl_slo_ps * (request.output_tokens - 1)


def counted(request: Request, slo: ClassSpec, now_ps: int) -> Counter[str]:
    """What a request that has arrived adds to the counts since the start of its class."""
    found = Counter(
        arrived=1, input_tokens=request.input_tokens, predicted_tokens=request.first_prediction
    )
    if request.state == RequestState.REJECTED:
        found["rejected"] = 1
        return found
    if not in_time(request, slo) and request.arrival_ps + slo.ttft_slo_ps < now_ps:
        found["ttft_late"] = 1
    if request.first_token_ps >= 0:
        found["started"] = 1
        found["ttft_ps"] = request.first_token_ps - request.arrival_ps
    if request.state == RequestState.FINISHED:
        found["finished"] = 1
        found["output_tokens"] = request.output_tokens
        found["output_squares"] = request.output_tokens**2
        if request.output_tokens > 1:
            found["itl_count"] = 1
            found["itl_ps"] = mean_itl_ps(request)
        if in_time(request, slo):
            found["on_time" if keeps_pace(request, slo) else "itl_late"] = 1
    return found


def bin_of(value: float, bounds: Sequence[float]) -> int:
    """How many of the bounds a value exceeds."""
    return sum(value > bound for bound in bounds)


def histogram(values: Iterable[float], bounds: Sequence[float], n: int) -> list[int]:
    """(n,) of them in each bin."""
    bins = Counter(bin_of(value, bounds) for value in values)
    return [bins[b] for b in range(n)]


# ---- one instance ----


def time_left_ps(instance: Instance) -> int | None:
    """Time until an instance that is on its way serves; None: not known.

    Of flowing weights: until all layers are there, if the present one's rate stays.
    """
    now_ps, pool = instance.engine.now_ps, instance.pool
    if pool.weight_bytes == 0:
        acquires = instance.state == InstanceState.ACQUIRING
        return max(0, (instance.expected_ps if acquires else instance.loaded_ps) - now_ps)
    layers = instance.loader.layers
    if layers == pool.layers:
        return 0
    flow = instance.engine.network.flows.get(instance.loader.number)
    if flow is None or (flow.path and flow.rate == 0):
        return None
    later_bytes = sum(pool.layer_bytes(k) for k in range(layers + 1, pool.layers))
    if not flow.path:
        return 0
    moved = flow.rate * (now_ps - flow.seen_ps)
    present_ps = -(-max(0, flow.left - moved) // flow.rate)
    return present_ps + later_bytes * MILLIONTHS // flow.rate


def nearest(instance: Instance) -> list[Request]:
    """Its running requests and the head of its own queue."""
    return [*instance.running, *list(instance.own_queue)[:1]]


# ---- all of them ----


class Watch:
    """Fills the rows of one episode in what a batch shows.

    Args:
        engine: the episode.
        classes, pools, queues: (C,) CLASS_SEEN, (P,) POOL_SEEN, (Q,) QUEUE_SEEN, the rows.
    """

    def __init__(
        self,
        engine: ReferenceEngine,
        classes: NDArray[Any],
        pools: NDArray[Any],
        queues: NDArray[Any],
    ) -> None:
        self.engine = engine
        self.classes, self.pools, self.queues = classes, pools, queues
        for rows in (classes, pools, queues):
            rows[...] = np.zeros((), rows.dtype)
        n = len(engine.spec.classes)
        # Of requests of which nothing more is to be counted: they need not be looked at again.
        self._settled: list[Counter[str]] = [Counter() for _ in range(n)]
        self._open: list[Request] = []
        self._expected = deque(engine.requests)
        self._since_ps = 0

    def fill(self, classes: NDArray[Any], pools: NDArray[Any], queues: NDArray[Any]) -> None:
        """Fill these rows from now on."""
        classes[...], pools[...], queues[...] = self.classes, self.pools, self.queues
        self.classes, self.pools, self.queues = classes, pools, queues

    def extend(self, requests: Sequence[Request]) -> None:
        """These are expected, too."""
        self._expected += requests

    def expect_others(self) -> None:
        """Those that were to come are not: the engine has others."""
        arrived = [r for r in self._expected if r.state != RequestState.FUTURE]
        coming = [r for r in self.engine.requests if r.state == RequestState.FUTURE]
        self._expected = deque([*arrived, *coming])

    def close_window(self) -> None:
        """Bring all counts up to the present time."""
        self._see_classes()
        self._see_pools()
        self._see_queues()
        self._since_ps = self.engine.now_ps

    def settle(self) -> None:
        """Count those that are done, as they are to be forgotten; latencies of the window begin anew."""
        self._count()
        self._since_ps = self.engine.now_ps

    def count_late(self, name: str, count: NDArray[np.int64]) -> None:
        """Count requests besides as `ttft_late` or `itl_late`: (C,) of each class."""
        for settled, n in zip(self._settled, count.tolist(), strict=True):
            settled[name] += n
        self.classes[name] += count

    # -- classes --

    def _count(self) -> tuple[list[Counter[str]], list[Request]]:
        """Counts of each class since the start; the requests that may have changed since the last time."""
        now_ps, classes = self.engine.now_ps, self.engine.spec.classes
        looked_at = self._open
        while self._expected and self._expected[0].state != RequestState.FUTURE:
            looked_at.append(self._expected.popleft())
        self._open = []
        totals = [Counter(settled) for settled in self._settled]
        for request in looked_at:
            slo = classes[request.slo_class]
            adds = counted(request, slo, now_ps)
            totals[request.slo_class].update(adds)
            if request.state in _DONE:
                self._settled[request.slo_class].update(adds)
            else:
                self._open.append(request)
        return totals, looked_at

    def _see_classes(self) -> None:
        totals, looked_at = self._count()
        for c, slo in enumerate(self.engine.spec.classes):
            row, total = self.classes[c : c + 1], totals[c]
            for sum_of in ("ttft", "itl"):
                row[f"{sum_of}_sum_s"], row[f"{sum_of}_sum_ps"] = divmod(
                    total[f"{sum_of}_ps"], PS_PER_S
                )
            for name in (
                *("arrived", "input_tokens", "predicted_tokens", "rejected", "started"),
                *("finished", "on_time", "ttft_late", "itl_late", "itl_count"),
                *("output_tokens", "output_squares"),
            ):
                row[name] = total[name]
            mine = [r for r in looked_at if r.slo_class == c]
            ttfts = [
                r.first_token_ps - r.arrival_ps for r in mine if r.first_token_ps >= self._since_ps
            ]
            itls = [
                mean_itl_ps(r)
                for r in mine
                if r.finished_ps >= self._since_ps and r.output_tokens > 1
            ]
            for name, values, target_ps in (
                ("ttft", ttfts, slo.ttft_slo_ps),
                ("itl", itls, slo.itl_slo_ps),
            ):
                row[f"{name}_max_ps"] = max(values, default=0)
                shares = [value / target_ps for value in values]
                row[f"{name}_bins"] = histogram(shares, TTFT_BOUNDS, N_TTFT_BINS)

    # -- pools --

    def _see_pools(self) -> None:
        for p, instances in enumerate(self.engine.instances_of):
            for name, value in self._pool(instances).items():
                self.pools[name][p] = value

    def _pool(self, instances: list[Instance]) -> dict[str, Any]:
        """What is shown of a pool, by column."""
        active = [i for i in instances if i.state == InstanceState.ACTIVE]
        serving = [i for i in instances if i.state in _SERVING]
        left = [time_left_ps(i) for i in instances if i.state in _COMING]
        known = [ps for ps in left if ps is not None]
        states = Counter(i.state for i in instances)
        heads = [i.own_queue[0].arrival_ps for i in active if i.own_queue]
        busy_s, busy_ps = divmod(sum(i.busy_ps for i in instances), PS_PER_S)
        now_ps, gpus = self.engine.now_ps, instances[0].pool.gpus if instances else 0
        gpu_s, gpu_ps = divmod(sum(i.billed_until(now_ps) for i in instances) * gpus, PS_PER_S)
        return {
            "acquiring": states[InstanceState.ACQUIRING],
            "loading": states[InstanceState.LOADING],
            "active": len(active),
            "draining": states[InstanceState.DRAINING],
            "load_bins": histogram(
                [np.inf if ps is None else ps for ps in left], LOAD_BOUNDS_PS, N_LOAD_BINS
            ),
            "next_ready_ps": min(known, default=-1),
            "running": sum(len(i.running) for i in serving),
            "evictable": sum(len(i.evictable()) for i in serving),
            "waiting": sum(len(i.own_queue) for i in serving),
            "preempted": sum(len(i.preempted) for i in serving),
            "waiting_tokens": sum(i.waiting_demand for i in serving),
            "kv_tokens": sum(i.kv_tokens for i in active),
            "kv_capacity": sum(i.capacity for i in active),
            "kv_max": max((i.kv_tokens / i.capacity for i in active), default=0.0),
            "limit_sum": sum(i.batch_limit for i in active),
            "interactive": sum(any(r.priority == 0 for r in nearest(i)) for i in active),
            "busy": sum(bool(nearest(i)) for i in active),
            "oldest_ps": min(heads, default=-1),
            "iterations": sum(i.iterations for i in instances),
            "tokens": sum(i.tokens for i in instances),
            "preemptions": sum(i.preemptions for i in instances),
            "evictions": sum(i.evictions for i in instances),
            "busy_s": busy_s,
            "busy_ps": busy_ps,
            "gpu_s": gpu_s,
            "gpu_ps": gpu_ps,
            "started": sum(i.ordered for i in instances),
            "stopped": sum(i.given_up for i in instances),
            "source_used": np.sum([i.loads for i in instances], axis=0) if instances else 0,
        }

    # -- shared queues --

    def _see_queues(self) -> None:
        for q, queue in enumerate(self.engine.queues_of):
            for name, value in self._queue(list(queue)).items():
                self.queues[name][q] = value

    def _queue(self, requests: list[Request]) -> dict[str, Any]:
        """What is shown of a shared queue, by column."""
        fresh = [r for r in requests if r.first_token_ps < 0]
        slacks = Counter(sum(self._slack(r) >= bound for bound in SLACK_BOUNDS) for r in requests)
        return {
            "requests": len(requests),
            "tokens": sum(r.ctx for r in requests),
            "predicted_tokens": sum(max(1, r.left) for r in requests),
            "oldest_ps": min((r.arrival_ps for r in requests), default=-1),
            "slack_bins": [slacks[b] for b in range(N_SLACK_BINS)],
            "fresh": len(fresh),
            "fresh_input": sum(r.input_tokens for r in fresh),
            "fresh_predicted": sum(r.predicted_output_tokens for r in fresh),
            "fresh_squares": sum(r.predicted_output_tokens**2 for r in fresh),
        }

    def _slack(self, request: Request) -> float:
        """Time to its deadline over its target."""
        target_ps = self.engine.spec.classes[request.slo_class].ttft_slo_ps
        return float(request.arrival_ps + target_ps - self.engine.now_ps) / float(target_ps)
