"""Episodes of a scenario under control: time goes from decision to decision, counts become windows and costs.

The run loop of policies and the environments both stand on this, with one episode or with many.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.command import Command, Dispatcher
from llmscale_env.control.demand import DemandRecord
from llmscale_env.control.endpoints import (
    EndpointLayout,
    EndpointsSeen,
    see_endpoints,
)
from llmscale_env.control.reward import RewardModel, RewardParts
from llmscale_env.control.snapshot import Snapshot
from llmscale_env.control.unfinished_work import leftover_gpu_s, lost_at_horizon
from llmscale_env.control.view import ClusterView
from llmscale_env.control.window import IntervalCounts, Window
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import compile_cluster, ps
from llmscale_env.sim.engine import make_engine
from llmscale_env.sim.metrics import doomed
from llmscale_env.sim.observed import Gateways, VirtualQueues, Weights
from llmscale_env.sim.orders import Fail, Loads, Orders
from llmscale_env.sim.picoseconds import seconds
from llmscale_env.sim.spec import InstanceState, RequestState
from llmscale_env.workload.days import PastRequests
from llmscale_env.workload.requests import NO_REQUESTS, PS_PER_S, WEEK_S, RequestTable

NEXT_IN_GATEWAY_S = 0.001
"""From a decision that has placed somebody to the next one, if others wait (`Scenario.decisions`)."""


_SAVED = {
    *("engine", "requests", "step", "interval", "waiting", "length_s", "clipped"),
    *("finished_before", "history", "token_history", "counters"),
}
"""What `ClusterSimulation.save` gives."""


def check_alike(name: str, saved: object, like: object) -> None:
    """Refuse a saved value of another kind, shape or length than the one that is to be replaced.

    Raises:
        ValueError: which value.
    """
    if isinstance(like, np.ndarray):
        fits = isinstance(saved, np.ndarray) and saved.shape == like.shape
        fits = fits and getattr(saved, "dtype", None) == like.dtype
    else:
        fits = type(saved) is type(like)
    if not fits:
        raise ValueError(f"saved: {name}: must be as `save_state` gives it")
    if isinstance(like, dict) and isinstance(saved, dict):
        if saved.keys() != like.keys():
            raise ValueError(f"saved: {name}: must have {sorted(like)}")
        for key, value in like.items():
            check_alike(f"{name}.{key}", saved[key], value)
    if isinstance(like, (list, tuple)) and isinstance(saved, (list, tuple)):
        if len(saved) != len(like):
            raise ValueError(f"saved: {name}: must have {len(like)} members")
        for k, value in enumerate(like):
            check_alike(f"{name}[{k}]", saved[k], value)


class ClusterSimulation:
    """`n_episodes` episodes of a scenario, advanced from decision to decision.

    Args:
        scenario: what is simulated.
        n_episodes: episodes side by side.
        custom_router: see `sim.custom_router`.
        threads: threads that advance episodes; more than one helps with many episodes.
        engine: "fast", or "reference": the readable one, with the same numbers.

    Attributes:
        engine_name: which of them.
        looks: another number whenever what has been seen may no longer be true.
    """

    def __init__(
        self,
        scenario: Scenario,
        n_episodes: int = 1,
        *,
        custom_router: object | None = None,
        threads: int = 1,
        engine: str = "fast",
    ) -> None:
        self.scenario = scenario
        self.custom_router = custom_router
        self.engine_name = engine
        self.engine = make_engine(compile_cluster(scenario, custom_router), n_episodes, engine)
        self.rewards = RewardModel(scenario)
        self._dispatcher = Dispatcher(scenario, self.engine)
        self._threads = max(1, min(threads, n_episodes))
        self._executor: ThreadPoolExecutor | None = None
        self._executor_pid = 0
        n_classes = len(scenario.classes)
        self.requests: list[RequestTable | None] = [None] * n_episodes
        self._demand: list[DemandRecord | None] = [None] * n_episodes
        self.step = np.zeros(n_episodes, np.int64)
        self.interval = np.zeros(n_episodes, np.int64)
        self._waiting = np.zeros(n_episodes, np.int64)  # in gateways at the decision
        self.length_s = np.zeros(n_episodes)
        self._counts = IntervalCounts(self.engine)
        self.history = np.zeros((n_episodes, scenario.n_steps + 1, n_classes), np.int64)
        self.token_history = np.zeros_like(self.history)
        self.clipped = np.zeros(n_episodes, np.int64)
        self._finished_before = np.zeros(n_episodes, np.int64)
        self.looks = 0
        self._virtual: VirtualQueues | None = None
        self._gateways: dict[bool, Gateways] = {}
        self._weights: Weights | None = None
        self._layout: EndpointLayout | None = None
        self._endpoints: EndpointsSeen | None = None
        self._windows: dict[int, Window] = {}

    # ---- pickling: threads stay behind ----

    def __getstate__(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "_executor": None,
            "_virtual": None,
            "_gateways": {},
            "_weights": None,
            "_endpoints": None,
            "_windows": {},
        }

    def _look_again(self) -> None:
        """What has been seen of the cluster is no longer true."""
        self.looks += 1
        self._virtual = None
        self._gateways = {}
        self._weights = None
        self._endpoints = None
        self._windows = {}

    @property
    def n_episodes(self) -> int:
        return self.engine.n_episodes

    # ---- time ----

    def start(self, e: int, requests: RequestTable) -> None:
        """Put episode `e` at time 0 with `requests`.

        Raises:
            ValueError: `requests` have failures of an instance that is not there, or see `Engine.reset`.
        """
        last = self.engine.spec.n_instances - 1
        worst = requests.failures[:, 1].max(initial=0)
        if worst > last:
            raise ValueError(f"requests.failures: instance {worst}: must be in 0..{last}")
        self._look_again()
        self.engine.reset(e, requests)
        self.requests[e] = requests
        self._demand[e] = None
        self.engine.close_windows(e, e + 1)
        self.step[e] = 0
        self.interval[e] = 0
        self._waiting[e] = 0
        self.length_s[e] = 0.0
        self.clipped[e] = 0
        self.history[e] = 0
        self.token_history[e] = 0
        self._finished_before[e] = 0
        self._counts.start(e)

    def extend(self, e: int, requests: RequestTable) -> None:
        """Later requests of episode `e`, which must all have been given before time comes to them.

        Raises:
            ValueError: see `Engine.extend`, or a piece has prefixes and another one has not; nothing has
                changed then.
        """
        self._look_again()
        demand, had = self.demand(e), self.requests[e]
        assert had is not None, "an episode is started before it goes on"
        if (had.prefixes is None) != (requests.prefixes is None):
            raise ValueError("prefixes: must be there in all pieces of an episode, or in none")
        self.engine.extend(e, requests)
        demand.add(requests)
        self.requests[e] = had.followed_by(requests)

    def retire(self, e: int) -> tuple[RequestTable, NDArray[Any]]:
        """Forget the requests of episode `e` that are done; (their table, RESULT_DTYPE of them).

        What a view of before tells of single requests is no longer true.

        Raises:
            ValueError: see `EngineBatch.retire`.
        """
        self._look_again()
        self.demand(e)  # knows what came, before it is forgotten here
        had, known = self.requests[e], self.engine.ids(e)
        assert had is not None, "an episode is started before it goes on"
        gone = self.engine.retire(e)
        stays = np.ones(len(known), bool)
        stays[np.searchsorted(known, gone.ids)] = False
        self.requests[e] = replace(had.take(np.flatnonzero(stays)), history=None)
        self._finished_before[e] = 0
        return had.take(np.flatnonzero(~stays)), gone.results

    def apply(self, e: int, command: Command) -> int:
        """Carry out a command now; returns how many orders were clipped."""
        return int(self.command({e: command})[e])

    def command(self, commands: Mapping[int, Command]) -> NDArray[np.int64]:
        """Carry out commands by episode now; (E,) how many orders were clipped."""
        self._look_again()
        clipped = self._dispatcher.apply(commands)
        self.clipped += clipped
        return clipped

    def order(self, orders: Orders) -> NDArray[np.int64]:
        """Carry out orders for all episodes now; (E,) how many instances could not be started.

        Loads that are refused (a lower target may have stopped a source) count with all their instances.
        """
        self._look_again()
        outcome = self.engine.apply(orders)
        missing: NDArray[np.int64] = outcome.missing.sum(axis=1)
        for k, error in outcome.refused.items():
            e, order = (*orders.first, *orders.last)[k]
            if not isinstance(order, Loads):
                raise error
            missing[e] += len(order)
        self.clipped += missing
        return missing

    def interval_end_ps(self, number: NDArray[np.int64]) -> NDArray[np.int64]:
        """(E,) time at which control interval `number` ends."""
        interval = ps(self.scenario.control_interval_s)
        return np.minimum((number + 1) * interval, ps(self.scenario.horizon_s))

    def next_decision_ps(self) -> NDArray[np.int64]:
        """(E,) time of the next decision: the end of the interval, or sooner (`Scenario.decisions`)."""
        end = self.interval_end_ps(self.interval)
        if self.scenario.decisions == "intervals":
            return end
        soon, retry = ps(NEXT_IN_GATEWAY_S), ps(self.scenario.retry_s)
        return np.minimum(end, self.engine.next_decisions_ps(self._waiting, soon, retry))

    @property
    def threads(self) -> int:
        """Threads that advance the episodes."""
        return self._threads

    def advance(self) -> NDArray[np.bool_]:
        """Run every episode to its next decision; (E,) True where the horizon is reached.

        Afterwards `by_class` and `by_pool` hold what the time until then brought, (E, C) and (E, P).
        """
        return self.advance_others(None)

    def advance_others(self, held: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
        """`advance` but for episodes at their start whose time stands still: `held` (E,), None for none."""
        self._look_again()
        until = self.next_decision_ps()
        begin = self.engine.times_ps
        if held is not None:
            until[held] = begin[held]
        self._finished_before = self.engine.n_finished
        self._let_fail(begin, until)
        if self._threads == 1:
            self.engine.advance_range(0, self.n_episodes, until)
        else:
            bounds = np.linspace(0, self.n_episodes, self._threads + 1).astype(int)
            if self._executor is None or self._executor_pid != os.getpid():
                # A child process has none of its parent's threads.
                self._executor, self._executor_pid = ThreadPoolExecutor(self._threads), os.getpid()
            jobs = [
                self._executor.submit(self.engine.advance_range, int(a), int(b), until)
                for a, b in pairwise(bounds)
                if a < b
            ]
            for job in jobs:
                job.result()
        self.engine.close_windows(0, self.n_episodes)
        self._waiting = self.engine.n_in_gateways
        self.length_s = (until - begin) / PS_PER_S
        self._counts.close()
        every = np.arange(self.n_episodes)
        n_steps = self.scenario.n_steps
        row = np.minimum(self.interval, n_steps)
        self.history[every, row] += self.by_class["arrived"]
        tokens = self.by_class["input_tokens"] + self.by_class["predicted_tokens"]
        self.token_history[every, row] += tokens
        self.step += 1 if held is None else ~held
        self.interval += until == self.interval_end_ps(self.interval)
        done = self.interval >= n_steps
        for e in np.flatnonzero(done):
            self._charge_doomed(int(e))
        return done

    def _let_fail(self, begin: NDArray[np.int64], until: NDArray[np.int64]) -> None:
        """Failures that the requests' tables have for this interval: `begin <= time < until`."""
        for e, requests in enumerate(self.requests):
            if requests is None or len(requests.failures) == 0:
                continue
            times = requests.failures[:, 0]
            first, last = np.searchsorted(times, (begin[e], until[e]))
            for at_ps, instance in requests.failures[first:last].tolist():
                self.engine.advance(e, at_ps)
                if self.engine.instances(e)["state"][instance] != InstanceState.OFF:
                    self.engine.apply(Orders(last=[(e, Fail(instance))]))

    def _charge_doomed(self, e: int) -> None:
        """At the horizon: who can no longer meet a target is late, finished or not."""
        scenario = self.scenario
        requests, results = self._unfinished(e)
        horizon = self.engine.now_ps(e)
        lost = doomed(requests, results, scenario.classes, horizon, scenario.itl_statistic)
        ttft = np.array([ps(c.ttft_s) for c in scenario.classes])[requests.slo_class]
        lost &= (
            results["first_token_ps"] - requests.arrival_ps <= ttft
        )  # others are charged already
        never = lost_at_horizon(scenario, requests, results, horizon)
        for name, which in (("itl_late", lost), ("ttft_late", never)):
            count = np.bincount(requests.slo_class[which], minlength=len(scenario.classes))
            self.by_class[name][e] += count
            self.engine.count_late(e, name, count)

    # ---- what it brought ----

    @property
    def by_class(self) -> dict[str, NDArray[np.int64]]:
        """(E, C) counts of the last interval by name."""
        return self._counts.by_class

    @property
    def by_pool(self) -> dict[str, NDArray[np.int64]]:
        """(E, P) likewise."""
        return self._counts.by_pool

    def violations(self) -> NDArray[np.int64]:
        """(E, C) requests that were rejected or became certain to miss a target in the interval."""
        return self.by_class["rejected"] + self.by_class["ttft_late"] + self.by_class["itl_late"]

    def costs(self, done: NDArray[np.bool_]) -> RewardParts:
        """Costs of the interval; where `done`, with the work left over."""
        return self.costs_by(done, self.rewards)[0]

    def costs_by(self, done: NDArray[np.bool_], *models: RewardModel) -> list[RewardParts]:
        """The same by the weights of other models."""
        leftover = np.zeros(self.n_episodes)
        for e in np.flatnonzero(done):
            leftover[e] = self.leftover_gpu_s(int(e))
        gpu_s = seconds(self.by_pool, "gpu").sum(axis=1)
        violations, loads = self.violations(), self.by_pool["started"].sum(axis=1)
        return [model.parts(gpu_s, violations, loads, leftover) for model in models]

    def leftover_gpu_s(self, e: int) -> float:
        """GPU-seconds that episode `e`'s unfinished requests would take (`control.unfinished_work`)."""
        requests, results = self._unfinished(e)
        each = leftover_gpu_s(self.scenario, requests, results)
        return float(np.bincount(requests.llm, each, len(self.scenario.fleet.llms)).sum())

    def _unfinished(self, e: int) -> tuple[RequestTable, NDArray[Any]]:
        """Requests of episode `e` that have not finished, and how they stand; of many there are few."""
        requests, results = self.requests[e], self.engine.results(e)
        assert requests is not None, "an episode is started before it is judged"
        rows = np.flatnonzero(results["state"] != RequestState.FINISHED)
        return requests.take(rows), results[rows]

    def window(self, e: int) -> Window:
        """The last interval of episode `e`; the same object until time goes on."""
        if e not in self._windows:
            self._windows[e] = self._counts.window(e, float(self.length_s[e]))
        return self._windows[e]

    def demand(self, e: int) -> DemandRecord:
        """All that comes in episode `e`; made when it is first asked for."""
        record = self._demand[e]
        if record is None:
            requests = self.requests[e]
            assert requests is not None, "an episode is started before it is looked at"
            record = self._demand[e] = DemandRecord(requests, self.scenario.history_s)
        return record

    def view(
        self,
        e: int,
        forecast_rate_per_s: NDArray[np.float64] | None = None,
        forecast_error: NDArray[np.float64] | None = None,
        see_quantiles: Callable[[], NDArray[np.float64]] | None = None,
    ) -> ClusterView:
        """What a controller of episode `e` sees now."""
        step, interval = int(self.step[e]), int(self.interval[e])
        return ClusterView(
            self.scenario,
            self.engine,
            e,
            step,
            self.window(e),
            self.history[e, :interval].copy(),
            forecast_rate_per_s,
            forecast_error,
            (
                {name: values[e : e + 1].copy() for name, values in self.by_class.items()},
                {name: values[e : e + 1].copy() for name, values in self.by_pool.items()},
            ),
            int(self._finished_before[e]),
            partial(self.demand, e),
            see_quantiles,
            lambda: self.token_history[e, :interval].copy(),
            *self._before(e),
            partial(self._known, e),
        )

    def _known(self, e: int) -> RequestTable:
        """The requests of episode `e` that are known, those to come included."""
        found = self.requests[e]
        return NO_REQUESTS if found is None else found

    def _before(self, e: int) -> tuple[float, PastRequests | None]:
        """Time of the week at the start of episode `e`, and what came before; nothing until it starts."""
        requests = self.requests[e]
        return (0.0, None) if requests is None else (requests.clock_s, requests.past)

    def snapshot(
        self,
        forecast_rate_per_s: NDArray[np.float64],
        forecast_error: NDArray[np.float64],
        see_quantiles: Callable[[], NDArray[np.float64]] | None = None,
    ) -> Snapshot:
        """The numbers of all episodes as they stand (views of live arrays: read them at once)."""
        engine = self.engine
        time_s = engine.times_ps / PS_PER_S
        begin_s, pasts = zip(*(self._before(e) for e in range(self.n_episodes)), strict=True)
        return Snapshot(
            time_s=time_s,
            clock_s=(np.array(begin_s) + time_s) % WEEK_S,
            pasts=pasts,
            length_s=self.length_s,
            by_class=self.by_class,
            by_pool=self.by_pool,
            tally=engine.class_seen,
            pools=engine.pool_seen,
            queues=engine.queue_seen[:, : len(self.scenario.fleet.queues)],
            history=self.history,
            step=self.step,
            interval=self.interval,
            forecast_rate_per_s=forecast_rate_per_s,
            forecast_error=forecast_error,
            see_virtual=self.virtual_queues,
            see_gateways=self.gateways,
            see_weights=self.weights,
            see_endpoints=self.endpoints,
            see_tokens=lambda: self.token_history,
            see_quantiles=see_quantiles,
        )

    def virtual_queues(self) -> VirtualQueues:
        """Virtual queues of all episodes as they stand; looked at once between two orders."""
        if self._virtual is None:
            self._virtual = self.engine.virtual_queues(0, self.n_episodes)
        return self._virtual

    def gateways(self, with_workers: bool) -> Gateways:
        """Gateways (and workers) of all episodes; looked at once between two orders."""
        if with_workers not in self._gateways:
            seen = self.engine.gateways(0, self.n_episodes, with_workers)
            self._gateways[with_workers] = seen
        return self._gateways[with_workers]

    def weights(self) -> Weights:
        """Weights of all episodes; looked at once between two orders."""
        if self._weights is None:
            self._weights = self.engine.weights(0, self.n_episodes)
        return self._weights

    def endpoints(self) -> EndpointsSeen:
        """Endpoints of all episodes; looked at once between two orders."""
        if self._endpoints is None:
            if self._layout is None:
                self._layout = EndpointLayout(self.scenario)
            records = [partial(self.demand, e) for e in range(self.n_episodes)]
            before = self._finished_before
            self._endpoints = see_endpoints(self._layout, self.engine, 0, records, before)
        return self._endpoints

    # ---- forks ----

    def save(self, e: int) -> dict[str, Any]:
        """Everything about episode `e`, for `restore`; can be pickled."""
        return {
            "engine": self.engine.save(e),
            "requests": self.requests[e],
            "step": int(self.step[e]),
            "interval": int(self.interval[e]),
            "waiting": int(self._waiting[e]),
            "length_s": float(self.length_s[e]),
            "clipped": int(self.clipped[e]),
            "finished_before": int(self._finished_before[e]),
            "history": self.history[e].copy(),
            "token_history": self.token_history[e].copy(),
            "counters": self._counts.save(e),
        }

    def restore(self, e: int, saved: dict[str, Any]) -> None:
        """Put episode `e` where it, or another of the same scenario, was at `save`.

        Raises:
            ValueError: `saved` is of another cluster, or not whole; nothing has changed then.
        """
        missing = sorted(_SAVED - (saved.keys() if isinstance(saved, dict) else set()))
        if missing:
            raise ValueError(f"saved: {missing} missing")
        mine = {
            **dict.fromkeys(("step", "interval", "waiting", "clipped", "finished_before"), 0),
            "length_s": 0.0,
            "history": self.history[e],
            "token_history": self.token_history[e],
            "counters": self._counts.save(e),
        }
        check_alike("sim", {name: saved[name] for name in mine}, mine)
        if not isinstance(saved["requests"], RequestTable | None):
            raise ValueError(f"saved: requests = {saved['requests']!r}: must be a RequestTable")
        engine = saved["engine"]
        if not isinstance(engine, dict) or not all(
            isinstance(array, np.ndarray) for array in engine.values()
        ):
            raise ValueError("saved: engine: must be arrays by name")
        self._look_again()
        self.engine.restore(e, saved["engine"])
        self.requests[e] = saved["requests"]
        self._demand[e] = None
        self.step[e] = saved["step"]
        self.interval[e] = saved["interval"]
        self._waiting[e] = saved["waiting"]
        self.length_s[e] = saved["length_s"]
        self.clipped[e] = saved["clipped"]
        self._finished_before[e] = saved["finished_before"]
        self.history[e] = saved["history"]
        self.token_history[e] = saved["token_history"]
        self._counts.restore(e, saved["counters"])

    def close(self) -> None:
        """End the threads."""
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None
