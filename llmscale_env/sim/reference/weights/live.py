"""Live scaling: a loading instance executes layers for one that serves: docs/engine.md section 16."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmscale_env.sim.reference.serving.handover import let_go
from llmscale_env.sim.reference.serving.scheduler import Iteration, PrefillFirst
from llmscale_env.sim.reference.state.clock import Due, Phase
from llmscale_env.sim.reference.state.request import Request
from llmscale_env.sim.spec import InstanceState, LiveMode, RequestState

if TYPE_CHECKING:
    from llmscale_env.sim.reference.instance import Instance


@dataclass(eq=False)
class Batch:
    """Requests that are prefilled together by two instances, one after the other.

    Attributes:
        whole: the iteration that it would be on one instance.
        helper: who executes its first layers.
        origins: of each request the shared queue that it was taken from, -1: the own queue.
        done: layers that the helper has executed.
    """

    whole: Iteration
    helper: Instance
    origins: list[int]
    done: int = 0

    @property
    def requests(self) -> list[Request]:
        return [request for request, _ in self.whole.chunks]

    def time_ps(self, first: int, end: int) -> int:
        """Of the layers `first` to `end - 1`."""
        whole_ps, n = self.whole.duration_ps, self.helper.pool.layers
        return whole_ps * end // n - whole_ps * first // n


class Leader:
    """An instance as the one that serves, and is helped.

    Attributes:
        helper: the loading instance of its pair, if it is in one.
        batches: formed and not taken yet, in order.
        executing: the one whose last layers it executes.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.engine = instance.engine
        self.helper: Instance | None = None
        self.batches: deque[Batch] = deque()
        self.executing: Batch | None = None

    def call_helper(self) -> None:
        """Whoever helps it looks for work."""
        if self.helper is not None:
            self.helper.helping.wake()

    def plan(self) -> Iteration | None:
        """What it runs after a boundary: the first batch, or what it admits itself."""
        self.executing = None
        self.call_helper()
        if self.batches:
            batch = self.batches[0]
            if batch.helper.helping.work is batch:
                self.engine.events["live_waits_for_helper"] += 1
                return None
            self.engine.events["live_taken"] += 1
            self.executing = self.batches.popleft()
            for request in batch.requests:
                request.helped_layers = batch.done
            left_ps = batch.time_ps(batch.done, self.instance.pool.layers)
            return Iteration(left_ps, chunks=batch.whole.chunks, report=batch.whole.report)
        if self.helper is not None and self.helper.helping.live:
            self.engine.events["live_helper_forms"] += 1
            return None
        return self.instance.scheduler.plan()

    def form(self, helper: Instance) -> Batch | None:
        """Admit a batch whose first layers the helper executes; None if no request fits."""
        scheduler = self.instance.scheduler
        self.instance.pull_until = len(self.instance.pull)
        assert isinstance(scheduler, PrefillFirst)  # a pair's pool has no chunked prefill
        whole = scheduler.form()
        if whole is None:
            return None
        batch = Batch(whole, helper, list(scheduler.origins))
        self.batches.append(batch)
        for request in batch.requests:
            request.helper = helper
            helper.handover.co_held.append(request)
        self.engine.events["live_formed"] += 1
        return batch

    def give_back(self, helper: Instance) -> None:
        """A helper is lost: batches that it had a part in, and all later ones, are not admitted after all."""
        order = [*([self.executing] if self.executing else []), *self.batches]
        first = next((k for k, batch in enumerate(order) if batch.helper is helper), len(order))
        returned = order[first:]
        if not returned:
            return
        if self.executing in returned:
            self.engine.events["live_broken_off"] += 1
            self.executing = None
            self.instance.break_off_iteration()
        self.batches = deque(batch for batch in self.batches if batch not in returned)
        back = [pair for b in returned for pair in zip(b.requests, b.origins, strict=True)]
        for batch in returned:
            batch.helper.helping.drop(batch)
        for request, _ in back:
            self.engine.events["live_given_back"] += 1
            self.instance.take_out(request)
            request.to_prefill = 0
            let_go(request)
        self._queue_again(back)
        self.instance.wake()

    def _queue_again(self, back: list[tuple[Request, int]]) -> None:
        """At the front of where each came from, in order; routed if that is gone."""
        here = self.instance.state == InstanceState.ACTIVE
        for request, queue in reversed(back):
            if queue >= 0:
                self.engine.enqueue(request, queue, front=True)
            elif here:
                request.state = RequestState.OWN_QUEUE
                request.at = self.instance
                self.instance.own_queue.appendleft(request)
        if not here:
            for request, queue in back:
                if queue < 0:
                    self.engine.events["live_given_back_draining"] += 1
                    self.engine.place(request)

    def stop(self) -> None:
        """It turns off, or it fails and its requests with it: its pair is over."""
        batches = [*([self.executing] if self.executing else []), *self.batches]
        self.batches.clear()
        self.executing = None
        if self.helper is not None:
            self.engine.events["live_leader_gone"] += 1
            self.helper.helping.leader = None
            self.helper = None
        for batch in batches:
            batch.helper.helping.drop(batch)


class Helper:
    """An instance as the one that loads, and helps with the layers that it has.

    Attributes:
        leader: the serving instance of its pair, if it is in one.
        work: the batch of which it executes layers now.
        helped_ps: time of the operations that it has completed so far.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.engine = instance.engine
        self.leader: Instance | None = None
        self.work: Batch | None = None
        self.helped_ps = 0
        self._layers = 0
        self._end: Due | None = None
        self._woken = False

    @property
    def live(self) -> bool:
        """Whether it can execute anything."""
        loading = self.instance.state == InstanceState.LOADING
        return self.leader is not None and loading and self.instance.loader.layers >= 1

    def wake(self) -> None:
        """Look for work once this time's iterations and arrivals are through."""
        if self.live and self.work is None and not self._woken:
            self._woken = True
            due = Due(self.engine.clock, Phase.WAKE_UP, self.instance.index)
            due.at(self.engine.now_ps).then(self._wake_up)

    def _wake_up(self) -> None:
        self._woken = False
        self._look()

    def _look(self) -> None:
        """Begin an operation, if there is one to do."""
        loaded, n = self.instance.loader.layers, self.instance.pool.layers
        if not self.live or self.work is not None or loaded == n:
            return
        batch = self._unfinished(loaded)
        layers = 1
        if batch is None:
            assert self.leader is not None
            batch = self.leader.leading.form(self.instance)
            if self.instance.pool.live_mode == LiveMode.BEST_EFFORT:
                layers = max(1, min(loaded, n // 2))
        if batch is None:
            return
        self.work, self._layers = batch, layers
        self.engine.events["live_operation" if batch.done == 0 else "live_comes_back"] += 1
        takes_ps = max(1, batch.time_ps(batch.done, batch.done + layers))
        self._end = Due(self.engine.clock, Phase.INSTANCE, self.instance.index)
        self._end.at(self.engine.now_ps + takes_ps).then(lambda: self._ended(takes_ps))

    def _unfinished(self, loaded: int) -> Batch | None:
        """The first of its batches that it has a further layer for and that its leader leaves to it."""
        if self.instance.pool.live_mode != LiveMode.ZIGZAG:
            return None
        assert self.leader is not None
        for k, batch in enumerate(self.leader.leading.batches):
            leaders = k == 0 and not self.leader.is_busy
            if batch.helper is self.instance and batch.done < loaded and not leaders:
                return batch
        return None

    def _ended(self, took_ps: int) -> None:
        assert self.work is not None
        assert self.leader is not None
        self.work.done += self._layers
        self.work = self._end = None
        self.helped_ps += took_ps
        self.leader.wake()
        if self.instance.loader.layers == self.instance.pool.layers:
            self.engine.events["live_activation_waited"] += 1
            self.instance.activate()
        else:
            self._look()

    def drop(self, batch: Batch) -> None:
        """A batch is gone: so is the operation on it that is under way."""
        if self.work is not batch:
            return
        assert self._end is not None
        self.engine.events["live_dropped"] += 1
        self._end.cancel()
        self.work = self._end = None
        loads = self.instance.state == InstanceState.LOADING
        if loads and self.instance.loader.layers == self.instance.pool.layers:
            self.instance.loaded()
        self.wake()

    def finish(self) -> None:
        """It is `ACTIVE`: half of what waits at its leader is its own."""
        leader = self.leader
        if leader is None:
            return
        self._part()
        waiting = leader.own_queue
        moving = [waiting.pop() for _ in range(len(waiting) // 2)]
        for request in reversed(moving):
            self.engine.events["live_moved"] += 1
            self.instance.take_in(request)
        leader.wake()

    def lose(self) -> None:
        """It is lost, and with it all that only it has of batches that are not finished."""
        leader = self.leader
        if leader is not None:
            self.engine.events["live_helper_lost"] += 1
            self._part()
        for instance in self.engine.all_instances:
            instance.leading.give_back(self.instance)
        if leader is not None:
            leader.wake()

    def _part(self) -> None:
        """The pair is over."""
        assert self.leader is not None
        self.leader.leading.helper = None
        self.leader = None
