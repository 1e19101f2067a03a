"""Copies of a cluster, as its controller knows it, on which orders are tried before they are given.

A twin stands where the cluster of a view stands: who waits where, what runs until when, what loads. How long
the outputs of its requests are and what will arrive nobody knows; the caller says what they may be. With the
true values the twin goes on as the cluster does, to the picosecond (docs/engine.md, section 20).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.command import Command, Dispatcher
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import compile_cluster, ps
from llmscale_env.sim.engine import Engine, make_engine
from llmscale_env.sim.picoseconds import seconds
from llmscale_env.sim.spec.checks import check_range
from llmscale_env.sim.streaming import check_streams
from llmscale_env.workload.requests import RequestTable

_MOST_REQUESTS = 4_000_000
"""Requests of all trials that are side by side: some 250 bytes each."""


class Future(NamedTuple):
    """What may come.

    Attributes:
        output_tokens: (n,) int64 lengths of the requests of `unfinished(view)`. What has come out already
            and what memory holds bound them. On pools with `v1` a request whose last token is being computed
            keeps its true length.
        arrivals: who arrives from now on; times are those of the episode. Failures in it do not count.
    """

    output_tokens: NDArray[np.int64]
    arrivals: RequestTable


class Trial(NamedTuple):
    """An order that is tried.

    Attributes:
        command: given now.
        future: number of the future in which it is tried.
    """

    command: Command
    future: int


class Given(NamedTuple):
    """An order that has been given.

    Attributes:
        time_s: when.
        command: what.
    """

    time_s: float
    command: Command


class Played(NamedTuple):
    """What came of trials, from when their orders were given; a row per trial.

    Attributes:
        gpu_s: (n,) GPU-seconds billed.
        violations: (n, C) requests that were rejected or became certain to miss a target.
        loads: (n,) instances started.
        pools: (n, P) POOL_SEEN at the end, in the engine's form: instants are in picoseconds (`oldest_ps`),
            sums in whole seconds (`gpu_s`) and the picoseconds beyond (`gpu_ps`); -1: none.
        queues: (n, Q) QUEUE_SEEN at the end, those with a name, then the group queues; in the same form.
    """

    gpu_s: NDArray[np.float64]
    violations: NDArray[np.int64]
    loads: NDArray[np.int64]
    pools: NDArray[Any]
    queues: NDArray[Any]


class Unfinished(NamedTuple):
    """Requests that have arrived and are not done, in order of their ids; arrays (n,) as in a view."""

    request_id: NDArray[np.int64]
    slo_class: NDArray[np.int64]
    llm: NDArray[np.int64]
    input_tokens: NDArray[np.int64]
    predicted_output_tokens: NDArray[np.int64]
    emitted_tokens: NDArray[np.int64]


def unfinished(view: ClusterView) -> Unfinished:
    """All that a view shows one by one: in gateways, at instances and in shared queues."""
    parts = (view.under_way, view.waiting)
    order = np.argsort(np.concatenate([part.request_id for part in parts]), kind="stable")

    def column(name: str) -> NDArray[np.int64]:
        found: NDArray[np.int64] = np.concatenate([getattr(part, name) for part in parts])[order]
        return found

    names = ("request_id", "slo_class", "llm", "input_tokens", "predicted_output_tokens")
    return Unfinished(*map(column, (*names, "emitted_tokens")))


class Twins:
    """Clusters of one scenario, side by side, on which orders are tried.

    Nobody knows calibration errors (`time_factor` and the like): iterations, starts and loads that begin in a
    twin take the calibrated times, iterations times `slowness`. What is under way ends when it really does.

    Args:
        scenario: of the clusters whose views are played.
        threads: threads that play them.
        engine: "fast", or "reference": that of the clusters whose views are played.
        slowness: iterations take so many times as long as calibrated.

    Raises:
        ValueError: no positive whole number of threads, another engine, a slowness that is not positive; the
            cluster has flows.
    """

    def __init__(
        self,
        scenario: Scenario,
        threads: int = 1,
        engine: str = "fast",
        slowness: float = 1.0,
    ) -> None:
        self.scenario = scenario
        if not 0 < slowness <= 100:
            raise ValueError(f"slowness = {slowness}: must be above 0 and at most 100")
        spec = compile_cluster(scenario, as_calibrated=True)
        try:
            check_streams(spec)
        except ValueError as error:
            raise ValueError(f"scenario = {scenario.name!r}: has no twins: {error}") from None
        self._spec = spec
        if slowness != 1.0:
            self._spec = replace(spec, profiles=tuple(p.slower(slowness) for p in spec.profiles))
        right = slowness == 1.0 and scenario.as_calibrated is scenario
        self._real = None if right else compile_cluster(scenario)
        self._engine_name = engine
        self._threads = int(check_range("threads", threads, 1, 1024))
        self._executor: ThreadPoolExecutor | None = None
        self._executor_pid = 0
        self._make(1)

    def _make(self, n: int) -> None:
        self.engine: Engine = make_engine(self._spec, n, self._engine_name)
        clips = self.scenario.model_copy(update={"impossible_commands": "clip"})
        self._dispatcher = Dispatcher(clips, self.engine)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_executor": None}

    def play(
        self,
        view: ClusterView,
        futures: Sequence[Future],
        trials: Sequence[Trial],
        until_s: float,
        *,
        at_s: float | None = None,
        given: Sequence[Given] = (),
    ) -> Played:
        """Try orders from the instant of a view until a time.

        Args:
            view: of the cluster; its simulation must not have gone on since.
            futures: what may come from its instant on.
            trials: what is ordered, in which of them. Impossible orders are clipped.
            until_s: end of the trials, in seconds of the episode; beyond its horizon the cluster goes on.
            at_s: when it is ordered; None: at the view's instant. Later where metrics are late.
            given: what has been ordered in between, in order of time.

        Raises:
            ValueError: the view is of the other engine; time has gone on since. A future lacks lengths, has
                other names, or does not go on from now. A trial is in a future that is not there. Times are
                not in order: the view's, those of what has been ordered, of the trials, and the end.
            TypeError: a trial is no `Trial`.
        """
        at_s = view.time_s if at_s is None else at_s
        times = [view.time_s, *(each.time_s for each in given), at_s, until_s]
        finite = np.isfinite(times).all()
        if not finite or not all(ps(a) <= ps(b) for a, b in pairwise(times)):
            raise ValueError(
                f"until_s = {until_s}: must be finite, and at least {at_s:g}, when trials begin; "
                f"times before must be in order from {view.time_s:g} on, the view's: {times[1:-1]}"
            )
        saved = view.save_under_way()
        if view.engine_name != self._engine_name:
            raise ValueError(
                f"engine = {self._engine_name!r}: the view is of a cluster of engine {view.engine_name!r}"
            )
        known = unfinished(view)
        for k, future in enumerate(futures):
            self._check(k, future, len(known.request_id))
        for k, trial in enumerate(trials):
            if not isinstance(trial, Trial):
                raise TypeError(f"trials[{k}]: must be a Trial, is a {type(trial).__name__}")
            if not 0 <= trial.future < len(futures):
                last = len(futures) - 1
                raise ValueError(f"trials[{k}].future = {trial.future}: must be in 0..{last}")
        # As many side by side as memory allows: trials do not know of each other.
        sizes = [len(known.request_id) + len(future.arrivals) for future in futures]
        block = max(1, _MOST_REQUESTS // max([1, *sizes]))
        parts = [
            self._play(saved, known, futures, trials[a : a + block], given, (at_s, until_s))
            for a in range(0, max(len(trials), 1), block)
        ]
        return Played(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _check(self, k: int, future: Future, n: int) -> None:
        tokens, table = np.asarray(future.output_tokens), future.arrivals
        if tokens.shape != (n,) or tokens.dtype.kind not in "iu":
            raise ValueError(
                f"futures[{k}].output_tokens: of shape {tokens.shape} and {tokens.dtype}, must be whole "
                f"numbers, one for each of {n} requests that are not done"
            )
        names = (self.scenario.fleet.llms, tuple(c.name for c in self.scenario.classes))
        if len(table) and (table.llm_names, table.class_names) != names:
            raise ValueError(
                f"futures[{k}].arrivals: of LLMs {table.llm_names} and classes {table.class_names}; the "
                f"scenario has {names[0]} and {names[1]}"
            )

    def _play(
        self,
        saved: dict[str, NDArray[Any]],
        known: Unfinished,
        futures: Sequence[Future],
        trials: Sequence[Trial],
        given: Sequence[Given],
        times_s: tuple[float, float],
    ) -> Played:
        n = len(trials)
        if n > self.engine.n_episodes:
            self._make(n)
        engine = self.engine
        room = np.array(self._spec.longest_tokens)[known.llm] - self._spec.half_block_tokens
        room = room - known.input_tokens
        begun: dict[int, dict[str, NDArray[Any]]] = {}  # by future: copies cost less than imagining
        last = {trial.future: e for e, trial in enumerate(trials)}
        for e, (_, number) in enumerate(trials):
            if number in begun:
                engine.restore(e, begun[number])
                continue
            future = futures[number]
            tokens = np.clip(np.asarray(future.output_tokens, np.int64), 1, room)
            engine.restore(e, saved, self._real)
            engine.imagine(e, known.request_id, tokens, future.arrivals)
            if e < last[number]:
                begun[number] = engine.save(e)
        for time_s, command in given:
            self._advance(n, ps(time_s))
            self._dispatcher.apply(dict.fromkeys(range(n), command))
        begin_s, end_s = times_s
        self._advance(n, ps(begin_s))
        engine.close_windows(0, n)
        classes, pools = engine.class_seen[:n].copy(), engine.pool_seen[:n].copy()
        self._dispatcher.apply({e: trial.command for e, trial in enumerate(trials)})
        self._advance(n, ps(end_s))
        engine.close_windows(0, n)
        after = engine.class_seen[:n]
        late = [after[name] - classes[name] for name in ("rejected", "ttft_late", "itl_late")]
        return Played(
            gpu_s=(seconds(engine.pool_seen[:n], "gpu") - seconds(pools, "gpu")).sum(axis=1),
            violations=np.sum(late, axis=0),
            loads=(engine.pool_seen["started"][:n] - pools["started"]).sum(axis=1),
            pools=engine.pool_seen[:n].copy(),
            queues=engine.queue_seen[:n, : len(self._spec.queue_llm)].copy(),
        )

    def _advance(self, n: int, until_ps: int) -> None:
        engine = self.engine
        until = engine.times_ps
        until[:n] = np.maximum(
            until[:n], until_ps
        )  # seconds may be less exact than the present time
        if self._threads == 1 or n == 1:
            engine.advance_range(0, n, until)
            return
        if self._executor is None or self._executor_pid != os.getpid():
            # A child process has none of its parent's threads.
            self._executor, self._executor_pid = ThreadPoolExecutor(self._threads), os.getpid()
        # Episodes differ in what they take: in turns, so that threads end together.
        bounds = np.unique(np.linspace(0, n, min(n, 4 * self._threads) + 1).astype(int))
        jobs = [
            self._executor.submit(engine.advance_range, int(a), int(b), until)
            for a, b in pairwise(bounds)
        ]
        for job in jobs:
            job.result()
