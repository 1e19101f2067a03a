"""Copies of a cluster, as its controller knows it, on which orders are tried before they are given.

A twin stands where the cluster of a view stands: who waits where, what runs until when, what loads. How long
the outputs of its requests are and what will arrive nobody knows; the caller says what they may be. With the
true values the twin goes on as the cluster does, to the picosecond (docs/engine.md, section 20).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.command import Command, Dispatcher
from llmscale_env.control.reward import RewardModel
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import compile_cluster, ps
from llmscale_env.sim.engine import Engine, make_engine
from llmscale_env.sim.picoseconds import seconds
from llmscale_env.workload.requests import RequestTable


class Future(NamedTuple):
    """What may come.

    Attributes:
        output_tokens: (n,) int64 lengths of the requests of `unfinished(view)`. What has come out already and
            what memory holds bound them.
        arrivals: who arrives from now on; times are those of the episode.
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


class Played(NamedTuple):
    """What came of trials; a row per trial.

    Attributes:
        gpu_s: (n,) GPU-seconds billed.
        violations: (n, C) requests that were rejected or became certain to miss a target.
        loads: (n,) instances started.
        pools: (n, P) POOL_SEEN at the end.
        queues: (n, Q) QUEUE_SEEN at the end.
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

    Args:
        scenario: what its user believes of the cluster.
        threads: threads that play them.
        engine: "fast", or "reference".
    """

    def __init__(self, scenario: Scenario, threads: int = 1, engine: str = "fast") -> None:
        self.scenario = scenario
        self.rewards = RewardModel(scenario)
        self._spec = compile_cluster(scenario)
        self._engine_name = engine
        self._threads = threads
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
    ) -> Played:
        """Try orders from the instant of a view until a time.

        Args:
            view: of the cluster as it stands now; time must not have gone on since.
            futures: what may come.
            trials: what is ordered, in which of them. Impossible orders are clipped.
            until_s: end of the trials, in seconds of the episode.

        Raises:
            ValueError: the cluster has flows; a future without a length for each request that is not done, or
                that does not go on from now; an end before now.
        """
        n = len(trials)
        if n > self.engine.n_episodes:
            self._make(n)
        engine = self.engine
        saved = view.save_under_way()
        known = unfinished(view)
        room = np.array(self._spec.longest_tokens)[known.llm] - self._spec.half_block_tokens
        room = room - known.input_tokens
        for k, future in enumerate(futures):
            if len(future.output_tokens) != len(known.request_id):
                raise ValueError(
                    f"futures[{k}].output_tokens: {len(future.output_tokens)} of them, must be one for each "
                    f"of {len(known.request_id)} requests that are not done"
                )
        for e, (_, number) in enumerate(trials):
            future = futures[number]
            tokens = np.clip(future.output_tokens, 1, room)
            engine.restore(e, saved)
            engine.imagine(e, known.request_id, tokens, future.arrivals)
        engine.close_windows(0, n)
        classes, pools = engine.class_seen[:n].copy(), engine.pool_seen[:n].copy()
        self._dispatcher.apply({e: trial.command for e, trial in enumerate(trials)})
        self._advance(n, ps(until_s))
        engine.close_windows(0, n)
        after = engine.class_seen[:n]
        late = sum(after[name] - classes[name] for name in ("rejected", "ttft_late", "itl_late"))
        return Played(
            gpu_s=(seconds(engine.pool_seen[:n], "gpu") - seconds(pools, "gpu")).sum(axis=1),
            violations=np.asarray(late),
            loads=(engine.pool_seen["started"][:n] - pools["started"]).sum(axis=1),
            pools=engine.pool_seen[:n].copy(),
            queues=engine.queue_seen[:n, : len(self.scenario.fleet.queues)].copy(),
        )

    def _advance(self, n: int, until_ps: int) -> None:
        engine = self.engine
        until = engine.times_ps
        until[:n] = until_ps
        if self._threads == 1 or n == 1:
            engine.advance_range(0, n, until)
            return
        if self._executor is None or self._executor_pid != os.getpid():
            # A child process has none of its parent's threads.
            self._executor, self._executor_pid = ThreadPoolExecutor(self._threads), os.getpid()
        # Episodes differ in what they take: in turns, so that threads end together.
        bounds = np.unique(np.linspace(0, n, 4 * self._threads + 1).astype(int))
        jobs = [
            self._executor.submit(engine.advance_range, int(a), int(b), until)
            for a, b in pairwise(bounds)
        ]
        for job in jobs:
            job.result()
