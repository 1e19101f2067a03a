"""What a controller can see of a cluster, at the instant of its decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.demand import Demand, DemandRecord
from llmscale_env.control.endpoints import EndpointLayout, EndpointsSeen, see_endpoints
from llmscale_env.control.regions import RegionsSeen, see_regions
from llmscale_env.control.snapshot import Snapshot
from llmscale_env.control.window import Window
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.engine import Engine
from llmscale_env.sim.observed import CLASS_SEEN, Weights
from llmscale_env.workload.days import PastRequests
from llmscale_env.workload.requests import PS_PER_S, WEEK_S, RequestTable


@dataclass(frozen=True)
class QueuedRequests:
    """Requests in a shared queue, head first; arrays of equal length.

    `predicted_output_tokens` is the predictor's word; the true length is nobody's to see.
    """

    request_id: NDArray[np.int64]
    arrival_s: NDArray[np.float64]
    slo_class: NDArray[np.int64]
    deadline_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    predicted_output_tokens: NDArray[np.int64]
    emitted_tokens: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.request_id)


@dataclass(frozen=True)
class QueuedRuns:
    """A shared queue in runs of consecutive requests that are alike, head first; arrays of equal length.

    A batch queue of a million requests that came together is one run, or a few once some of
    them have come back from evictions.

    Attributes:
        arrival_s, slo_class, deadline_s: of every request of the run.
        started: whether they have had their first token (and were evicted or preempted since).
        requests: how many they are.
    """

    arrival_s: NDArray[np.float64]
    slo_class: NDArray[np.int64]
    deadline_s: NDArray[np.float64]
    started: NDArray[np.bool_]
    requests: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.requests)


@dataclass(frozen=True)
class WaitingRequests(QueuedRequests):
    """Requests in shared queues, of all of them.

    Attributes:
        queue: number of the queue: those with a name, then the group queues.
        llm: index into `scenario.fleet.llms`.
        started: has had its first token (it was evicted).
    """

    queue: NDArray[np.int64]
    llm: NDArray[np.int64]
    started: NDArray[np.bool_]


@dataclass(frozen=True)
class FinishedRequests:
    """Requests that have finished; arrays (n,) in order of finishing.

    Attributes:
        request_id, llm, slo_class, input_tokens, output_tokens: of each.
    """

    request_id: NDArray[np.int64]
    llm: NDArray[np.int64]
    slo_class: NDArray[np.int64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]


@dataclass(frozen=True)
class ArrivedRequests:
    """Requests that have arrived, whatever has become of them; arrays (n,) in order of arrival.

    Attributes:
        arrival_s, llm, region, slo_class, input_tokens, predicted_output_tokens: of each.
    """

    arrival_s: NDArray[np.float64]
    llm: NDArray[np.int64]
    region: NDArray[np.int64]
    slo_class: NDArray[np.int64]
    input_tokens: NDArray[np.int64]
    predicted_output_tokens: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.arrival_s)


@dataclass(frozen=True)
class RequestsUnderWay(QueuedRequests):
    """Requests in gateways and at instances (those in shared queues are `ClusterView.waiting`).

    Attributes:
        llm: index into `scenario.fleet.llms`.
        instance: where it waits, runs, or its KV cache is on its way to or has landed; -1: in a gateway.
        state: a `RequestState`.
        movable: may be assigned to an instance (`Command.assign`).
        first_token_s: when it came out; NaN: not yet.
    """

    llm: NDArray[np.int64]
    instance: NDArray[np.int64]
    state: NDArray[np.int8]
    movable: NDArray[np.bool_]
    first_token_s: NDArray[np.float64]


class ClusterView:
    """Read-only state of a cluster as a controller could really know it.

    All times are seconds. Columns of structured arrays are those of `sim.observed`, where a column `NAME_s`
    stands for `NAME_ps`, or for both where whole seconds are kept there apart. NaN: there is no such time.

    Attributes:
        scenario: the configuration.
        time_s: present time.
        step: number of the decision.
        window: what happened since the last decision.
        forecast_rate_per_s: (C,) expected arrivals per second by class at the time at which an
            instance ordered now would serve, from the run's forecaster; None without one.
        forecast_error: (C,) its recent weighted absolute percentage error.
        history: (k, C) arrivals of every control interval that has ended, oldest first.
        clock_s: present time of the week, Monday 0 h being 0; modulo a day it is the time of day, which is
            all that it tells where the workload has no weekdays.
        past: what came before the episode, where it is counted (`workload.days`); else None.
    """

    def __init__(
        self,
        scenario: Scenario,
        engine: Engine,
        e: int,
        step: int,
        window: Window,
        history: NDArray[np.int64],
        forecast_rate_per_s: NDArray[np.float64] | None = None,
        forecast_error: NDArray[np.float64] | None = None,
        counts: tuple[dict[str, NDArray[np.int64]], dict[str, NDArray[np.int64]]] | None = None,
        finished_before: int = 0,
        demand: Callable[[], DemandRecord] | None = None,
        see_quantiles: Callable[[], NDArray[np.float64]] | None = None,
        see_tokens: Callable[[], NDArray[np.int64]] | None = None,
        begin_clock_s: float = 0.0,
        past: PastRequests | None = None,
        see_requests: Callable[[], RequestTable] | None = None,
    ) -> None:
        self._demand = demand
        self._see_requests = see_requests
        self._see_quantiles = see_quantiles
        self._see_tokens = see_tokens
        self.scenario = scenario
        self._counts = counts or ({}, {})
        self._finished_before = finished_before
        self.step = step
        self.window = window
        self.history = history
        self.forecast_rate_per_s = forecast_rate_per_s
        self.forecast_error = forecast_error
        self._engine = engine
        self._e = e
        self._now_ps = engine.now_ps(e)
        self.time_s = self._now_ps / PS_PER_S
        self.clock_s = (begin_clock_s + self.time_s) % WEEK_S
        self.past = past
        # Packed: a selection of fields keeps the bytes of the others in its gaps.
        totals = np.empty(engine.class_seen.shape[1], CLASS_SEEN)
        totals[...] = engine.class_seen[e]
        self._totals = _locked(totals)
        self._pools = _frozen(engine.pool_seen[e])
        self._queues = _frozen(engine.queue_seen[e])

    # ---- counts since the start, and what stands ----

    @cached_property
    def totals(self) -> NDArray[Any]:
        """(C,) CLASS_SEEN, counts by class since the start."""
        return _locked(in_seconds(self._totals))

    @cached_property
    def pools(self) -> NDArray[Any]:
        """(P,) POOL_SEEN, one row per pool."""
        return _locked(in_seconds(self._pools))

    @cached_property
    def queues(self) -> NDArray[Any]:
        """(Q,) QUEUE_SEEN, one row per shared queue with a name."""
        return _locked(in_seconds(self._queues[: len(self.scenario.fleet.queues)]))

    @cached_property
    def groups(self) -> NDArray[Any]:
        """(K,) likewise, the fleet's group queues: queue number `Q + k` is the k-th of them."""
        fleet = self.scenario.fleet
        named = len(fleet.queues)
        return _locked(in_seconds(self._queues[named : named + fleet.group_queues]))

    # ---- by name ----

    def pool(self, name: str) -> Any:
        """Row of `pools` of the pool called `name`."""
        for p, pool in enumerate(self.scenario.fleet.pools):
            if pool.name == name:
                return self.pools[p]
        raise KeyError(f"pool {name!r}: there are {[p.name for p in self.scenario.fleet.pools]}")

    def instances_of(self, p: int) -> int:
        """Instances of pool `p` that a target counts: acquiring, loading and active."""
        seen = self._pools[p]
        return int(seen["acquiring"] + seen["loading"] + seen["active"])

    # ---- details, made when asked for ----

    @property
    def snapshot(self) -> Snapshot:
        """The same numbers as a `Snapshot` of one episode."""
        n_steps, n_classes = self.scenario.n_steps, len(self.scenario.classes)
        history = np.zeros((1, n_steps + 1, n_classes), np.int64)
        history[0, : len(self.history)] = self.history
        none = np.zeros(n_classes)
        rate, error = self.forecast_rate_per_s, self.forecast_error
        quantiles = self._see_quantiles
        return Snapshot(
            time_s=np.array([self.time_s]),
            clock_s=np.array([self.clock_s]),
            pasts=(self.past,),
            length_s=np.array([self.window.length_s]),
            by_class=self._counts[0],
            by_pool=self._counts[1],
            tally=self._totals[None],
            pools=self._pools[None],
            queues=self._queues[None, : len(self.scenario.fleet.queues)],
            history=history,
            step=np.array([self.step]),
            interval=np.array([len(self.history)]),
            forecast_rate_per_s=(none if rate is None else rate)[None],
            forecast_error=(none if error is None else error)[None],
            see_virtual=partial(self._engine.virtual_queues, self._e, self._e + 1),
            see_gateways=partial(self._engine.gateways, self._e, self._e + 1),
            see_weights=partial(self._engine.weights, self._e, self._e + 1),
            see_endpoints=self._see_endpoints,
            see_tokens=self._padded_tokens,
            see_quantiles=None if quantiles is None else lambda: quantiles()[None],
        )

    def _padded_tokens(self) -> NDArray[np.int64]:
        """As a snapshot has it: with rows for the intervals to come."""
        tokens = np.zeros((1, self.scenario.n_steps + 1, len(self.scenario.classes)), np.int64)
        tokens[0, : len(self.history)] = self.token_history
        return tokens

    @property
    def token_history(self) -> NDArray[np.int64]:
        """(k, C) input and predicted output tokens of the arrivals of every interval that has ended."""
        return np.zeros_like(self.history) if self._see_tokens is None else self._see_tokens()

    @property
    def forecast_quantiles_per_s(self) -> NDArray[np.float64] | None:
        """(C, 2) `FORECAST_QUANTILES` of the same forecast: read it before time goes on."""
        return None if self._see_quantiles is None else self._see_quantiles()

    def _see_endpoints(self) -> EndpointsSeen:
        if self._demand is None:
            raise ValueError("endpoints: the demand was not recorded for this view")
        return see_endpoints(
            EndpointLayout(self.scenario),
            self._engine,
            self._e,
            [self._demand],
            np.array([self._finished_before]),
        )

    @cached_property
    def instances(self) -> NDArray[Any]:
        """(I,) INSTANCE_DTYPE, every instance slot."""
        return _locked(in_seconds(self._engine.instances(self._e)))

    @cached_property
    def weights(self) -> Weights:
        """Where weights are, of this episode alone: who loads from whom, for how long; use of links."""
        seen = self._engine.weights(self._e, self._e + 1)
        return replace(seen, instances=in_seconds(seen.instances))

    @cached_property
    def regions(self) -> RegionsSeen:
        """Utilisation, spot VMs, instances on their way, and requests that can wait, by pool and endpoint."""
        return see_regions(self.scenario, self._engine, self._e)

    def demand(self, bin_s: float = 900.0) -> Demand:
        """What clients asked for by LLM, region and class, in bins that have ended, from the history on.

        Raises:
            ValueError: the history is no whole number of such bins; or nobody recorded it.
        """
        if self._demand is None:
            raise ValueError("demand: was not recorded for this view")
        return self._demand().until(self.time_s, bin_s)

    @property
    def loading(self) -> NDArray[Any]:
        """(I,) LOADING_DTYPE, the weights of every instance slot."""
        return _locked(in_seconds(self._engine.loading(self._e)))

    @property
    def homes(self) -> NDArray[Any]:
        """(M,) HOME_DTYPE, the machine that is to keep each LLM's copy, and whether it has it."""
        return _locked(self._engine.homes(self._e))

    def host_has(self, host: int, llm: str) -> bool:
        """Whether a machine has an LLM's weights in memory, or is to have them as its home.

        Raises:
            KeyError, IndexError: there is no such LLM or machine.
        """
        llms = self.scenario.fleet.llms
        if llm not in llms:
            raise KeyError(f"llm {llm!r}: there are {list(llms)}")
        if not 0 <= host < self._engine.spec.n_hosts:
            raise IndexError(f"host = {host}: must be in 0..{self._engine.spec.n_hosts - 1}")
        return self._engine.host_has(self._e, host, llms.index(llm))

    @property
    def reports(self) -> NDArray[Any]:
        """(I,) REPORT_DTYPE, the last prefill and decode iteration that every worker has completed."""
        return _locked(in_seconds(self._engine.reports(self._e)))

    @property
    def under_way(self) -> RequestsUnderWay:
        """Every request in a gateway or at an instance: the cost grows with their number."""
        seen = _locked(self._engine.under_way(self._e))
        first = seen["first_token_ps"]
        return RequestsUnderWay(
            **self._columns(seen),
            llm=seen["llm"],
            instance=seen["instance"],
            state=seen["state"],
            movable=seen["movable"],
            first_token_s=_locked(np.where(first < 0, np.nan, first / PS_PER_S)),
        )

    @property
    def engine_name(self) -> str:
        """Of the engine that simulates the cluster."""
        return self._engine.name

    def save_under_way(self) -> dict[str, NDArray[Any]]:
        """The cluster without its past and its future, for `control.twins`, which replaces true lengths.

        Raises:
            ValueError: time has gone on since the view was made; see `Engine.save_under_way`.
        """
        now_ps = self._engine.now_ps(self._e)
        if now_ps != self._now_ps:
            raise ValueError(
                f"view: of {self.time_s:g} s, but the cluster is at {now_ps / PS_PER_S:g} s"
            )
        return self._engine.save_under_way(self._e)

    def own_queue(self, instance: int) -> tuple[int, ...]:
        """Requests that wait at an instance, head first; at a decode instance without KV reserved."""
        return tuple(self._engine.own_queue(self._e, instance))

    def gateway(self, llm: str, *, prefilled: bool = False) -> tuple[int, ...]:
        """Requests of an LLM that no instance has been found for, head first: before prefill, or after."""
        llms = self.scenario.fleet.llms
        if llm not in llms:
            raise KeyError(f"llm {llm!r}: there are {list(llms)}")
        read = self._engine.decode_gateway if prefilled else self._engine.gateway
        return tuple(read(self._e, llms.index(llm)))

    @property
    def running_by_class(self) -> NDArray[np.int32]:
        """(I, C) running requests."""
        return _locked(self._engine.running_by_class(self._e))

    @property
    def instance_pool(self) -> NDArray[np.int64]:
        """(I,) pool of each slot."""
        return _locked(np.array(self._engine.spec.pool_of_slot))

    def queued(self, queue: int) -> QueuedRequests:
        """What waits in a shared queue, request by request: the cost grows with the queue's length."""
        seen = _locked(self._engine.queued(self._e, queue))
        return QueuedRequests(**self._columns(seen))

    @property
    def waiting(self) -> WaitingRequests:
        """Every request in a shared queue, queue by queue, head first: the cost grows with their number."""
        seen = _locked(self._engine.waiting(self._e))
        return WaitingRequests(
            **self._columns(seen),
            queue=seen["queue"],
            llm=seen["llm"],
            started=seen["started"],
        )

    @property
    def running_from(self) -> NDArray[np.int64]:
        """(I, Q + K) requests that run on each instance or were preempted there, by their shared queue."""
        return _locked(self._engine.running_from(self._e))

    @property
    def virtual_queues(self) -> tuple[tuple[int, ...], ...]:
        """For every instance slot the numbers of the shared queues that it pulls from, in order."""
        return self._engine.pulls(self._e)

    @property
    def weights_ready_s(self) -> NDArray[np.float64]:
        """(I, M) seconds until weights are in an instance's host memory; infinite: not on their way."""
        ready = self._engine.weights_ready_ps(self._e)
        left = np.maximum(ready / PS_PER_S - self.time_s, 0.0)
        return _locked(np.where(ready < 0, np.inf, left))

    @property
    def arrived(self) -> ArrivedRequests:
        """What arrived in the interval that has just ended."""
        if self._see_requests is None:
            raise ValueError("arrived: the requests were not recorded for this view")
        known = self._see_requests()
        begin_ps = self._now_ps - round(self.window.length_s * PS_PER_S)
        rows = slice(*np.searchsorted(known.arrival_ps, (begin_ps, self._now_ps)))
        return ArrivedRequests(
            arrival_s=_locked(known.arrival_ps[rows] / PS_PER_S),
            llm=_locked(known.llm[rows].astype(np.int64)),
            region=_locked(known.region[rows].astype(np.int64)),
            slo_class=_locked(known.slo_class[rows].astype(np.int64)),
            input_tokens=_locked(known.input_tokens[rows].astype(np.int64)),
            predicted_output_tokens=_locked(known.predicted_output_tokens[rows].astype(np.int64)),
        )

    @property
    def finished(self) -> FinishedRequests:
        """What finished in the interval that has just ended: all that may be known of output lengths."""
        rows = _locked(self._engine.finished_since(self._e, self._finished_before))
        return FinishedRequests(
            request_id=rows["request"],
            llm=rows["llm"],
            slo_class=rows["slo_class"],
            input_tokens=rows["input_tokens"],
            output_tokens=rows["output_tokens"],
        )

    def queued_runs(self, queue: int) -> QueuedRuns:
        """The same in runs of requests that are alike; sums of tokens stand in `queues`."""
        seen = _locked(self._engine.runs(self._e, queue))
        arrival, deadline = self._times(seen)
        return QueuedRuns(
            arrival_s=arrival,
            slo_class=seen["slo_class"],
            deadline_s=deadline,
            started=seen["started"],
            requests=seen["requests"],
        )

    def _columns(self, seen: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """What is shown of every request, as fields of `QueuedRequests`."""
        arrival, deadline = self._times(seen)
        return {
            "request_id": seen["request"],
            "arrival_s": arrival,
            "slo_class": seen["slo_class"],
            "deadline_s": deadline,
            "input_tokens": seen["input_tokens"],
            "predicted_output_tokens": seen["predicted_tokens"],
            "emitted_tokens": seen["emitted_tokens"],
        }

    def _times(self, seen: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Arrivals and deadlines in seconds."""
        ttft = np.array([c.ttft_s for c in self.scenario.classes])
        arrival = seen["arrival_ps"] / PS_PER_S
        return _locked(arrival), _locked(arrival + ttft[seen["slo_class"]])

    def output_statistics(self, slo_class: int) -> tuple[float, float, int]:
        """(mean, standard deviation, number) of output tokens of finished requests of a class."""
        row = self._totals[slo_class]
        n = int(row["finished"])
        if n == 0:
            return 0.0, 0.0, 0
        mean = float(row["output_tokens"]) / n
        variance = max(0.0, float(row["output_squares"]) / n - mean * mean)
        return mean, float(np.sqrt(variance)), n


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    return _locked(array.copy())


def _locked(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array


def in_seconds(rows: NDArray[Any]) -> NDArray[Any]:
    """The same columns, but every `NAME_ps` is a `NAME_s` in seconds; NaN where there is none.

    What is kept as whole seconds and the rest becomes one column.

    Args:
        rows: in one piece, of which each picosecond is at least 0, or -1 for none.
    """
    shown_as, names, apart = _columns_in_seconds(rows.dtype)
    shown = rows.view(np.uint8).copy().view(shown_as)  # as bytes: a copy by columns is slow
    ps = np.array([rows[f"{name}_ps"] for name in names])
    for name, found in zip(names, np.where(ps < 0, np.nan, ps / PS_PER_S), strict=True):
        shown[f"{name}_s"] = found
    for name in apart:
        shown[name] += rows[name]
    return shown


@cache
def _columns_in_seconds(
    dtype: np.dtype[Any],
) -> tuple[np.dtype[Any], tuple[str, ...], tuple[str, ...]]:
    """The columns, float64 at the place of int64; names of those that change; those of whole seconds."""
    fields: Any = dtype.fields
    names = tuple(name[:-3] for name in fields if name.endswith("_ps"))
    apart = tuple(f"{name}_s" for name in names if f"{name}_s" in fields)
    kept = {name: of[:2] for name, of in fields.items()}
    for name in names:
        del kept[f"{name}_ps"]  # and the whole seconds, if they are apart, make way
        kept[f"{name}_s"] = (np.dtype(np.float64), fields[f"{name}_ps"][1])
    in_order = sorted(kept, key=lambda name: kept[name][1])
    formats, offsets = zip(*(kept[name] for name in in_order), strict=True)
    size = dtype.itemsize
    columns: Any = {"names": in_order, "formats": formats, "offsets": offsets, "itemsize": size}
    return np.dtype(columns), names, apart
