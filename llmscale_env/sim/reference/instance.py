"""One instance slot: its iteration boundaries and its KV cache (engine.md 4)."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING

from llmscale_env.sim.observed import REPORT_DTYPE
from llmscale_env.sim.reference.fleet.lifecycle import HOLDING_WEIGHTS, SlotLife
from llmscale_env.sim.reference.serving.controller import BatchController
from llmscale_env.sim.reference.serving.handover import Handover, let_go
from llmscale_env.sim.reference.serving.scheduler import Chunked, Iteration, PrefillFirst, Scheduler
from llmscale_env.sim.reference.serving.vllm_v1 import VllmV1
from llmscale_env.sim.reference.state.clock import Due, Phase
from llmscale_env.sim.reference.state.request import Request
from llmscale_env.sim.reference.weights.live import Helper, Leader
from llmscale_env.sim.spec import (
    ControllerKind,
    InstanceState,
    Operations,
    PreemptionMode,
    RequestState,
)

if TYPE_CHECKING:
    from llmscale_env.sim.reference.engine import ReferenceEngine


class Instance(SlotLife):
    """A slot of a pool and, while it is not `OFF`, the instance in it.

    `running` is in order of admission: the most recently admitted request is the last.

    Attributes:
        host: host it sits on.
        own_queue: requests routed to it and not yet admitted.
        preempted: requests that it preempted, next one first.
        llm, profile, profile_index, capacity, watermark_tokens: the LLM that is or will be loaded, its
            times, KV tokens, and those of them kept free at admission.
        pull: shared queues that it pulls from, in order.
        pull_until: in this boundary only the first so many of them.
        foreign: place on the list of a request that has ended this boundary's admission as it
            needs another LLM.
        closed: a static batch is under way.
        gave_way: a request has been preempted in this boundary.
        weights: its share of host memory.
        host_kv_bytes: KV cache that it keeps in host memory.
        leaving_tokens, copied_ps: KV tokens that are being copied out and when they will be free.
        moving_ps: saving and restoring KV that the next iteration has to pay for.
        ordered_evictions: how many the `evict` command asked for.
        under_way: the iteration that runs.
        handover: requests between their two phases.
        leading, helping: its part in a live pair, as the one that serves or loads.
        report: of its last iterations, by field of `REPORT_DTYPE`.
        placement_model: its own coefficients for best fit, if any.
        preemptions, evictions: how many requests have given way here so far.
    """

    def __init__(self, engine: ReferenceEngine, index: int, pool_index: int, host: int) -> None:
        self.engine = engine
        self.index = index
        self.pool_index = pool_index
        self.pool = engine.spec.pools[pool_index]
        self.host = host
        self._begin_life()
        self.handover = Handover(self)
        self.leading = Leader(self)
        self.helping = Helper(self)
        self.report = dict.fromkeys(REPORT_DTYPE.names or (), -1)
        self.placement_model: tuple[float, ...] | None = None
        self.pull: tuple[int, ...] = self.pool.pull
        self.pull_until = len(self.pull)
        self.foreign: int | None = None
        self.closed = False
        self.gave_way = False

        self.running: list[Request] = []
        self.own_queue: deque[Request] = deque()
        self.preempted: deque[Request] = deque()
        self.host_kv_bytes = 0
        self.moving_ps = 0
        self.leaving_tokens = 0
        self.copied_ps = 0
        self.ordered_evictions = 0
        self.iterations = 0
        self.tokens = 0
        self.preemptions = 0
        self.evictions = 0
        self._busy_ps = 0
        self._began_ps = -1
        self.swaps = 0
        self.failures = 0
        self.controller = BatchController(self)
        self.scheduler: Scheduler
        if self.pool.v1 is not None:
            self.scheduler = VllmV1(self, self.pool.v1)
        else:
            self.scheduler = Chunked(self) if self.pool.chunk_tokens > 0 else PrefillFirst(self)

        self._iteration_end: Due | None = None
        self.under_way: Iteration | None = None
        self._busy = False
        self._wake_up = Due(engine.clock, Phase.WAKE_UP, index)
        engine.clock.process(self._serve())

    # --- what routers and observers see ---

    @property
    def operations(self) -> Operations:
        """What its pool's instances do by themselves now."""
        return self.engine.operations[self.pool_index]

    @property
    def batch_limit(self) -> int:
        return self.controller.batch_limit

    @property
    def requests(self) -> int:
        """Requests that are here, wherever they wait."""
        return len(self.all_requests)

    @property
    def all_requests(self) -> list[Request]:
        """Those requests: own queue, running, preempted, in flight, landed."""
        handover = self.handover
        return [
            *self.own_queue,
            *self.running,
            *self.preempted,
            *handover.in_flight,
            *handover.landed,
        ]

    @property
    def kv_tokens(self) -> int:
        """KV tokens used, those on their way to host memory, held or reserved included."""
        return self.scheduler.kv_tokens + self.leaving_tokens + self.handover.tokens

    def kv_of(self, requests: Iterable[Request]) -> int:
        """KV tokens that these occupy while they run, where memory is counted in tokens."""
        half = self.engine.spec.half_block_tokens
        return sum(r.ctx + half for r in requests)

    @property
    def waiting_demand(self) -> int:
        """KV tokens that the own queue and the preempted ones will ask for."""
        return sum(self.engine.demand(r) for r in (*self.own_queue, *self.preempted))

    @property
    def pending_prefill(self) -> int:
        """Tokens of contexts still to be computed here, of waiting requests all of them."""
        waiting = sum(r.ctx for r in (*self.own_queue, *self.preempted))
        return waiting + self.scheduler.pending_prefill

    @property
    def left_tokens(self) -> int:
        """Predicted tokens still to emit over all requests here."""
        return sum(r.left for r in self.all_requests)

    def evictable(self) -> list[Request]:
        """Running requests of priority-1 classes that have a shared queue to go to."""
        return [r for r in self.running if r.priority == 1 and r.queue >= 0]

    # --- serving ---

    def take_in(self, request: Request) -> None:
        """A request joins the own queue, at the end of those of its priority."""
        request.state = RequestState.OWN_QUEUE
        request.at = self
        self.own_queue.insert(self._place_in_queue(request), request)
        self.wake()

    def _place_in_queue(self, request: Request) -> int:
        """The end of the own queue, or of those of its priority."""
        if not self.pool.priorities:
            return len(self.own_queue)
        age_ps = self.engine.now_ps - request.arrival_ps
        old = age_ps >= self.engine.spec.classes[request.slo_class].promote_ps
        self.engine.events["promoted"] += old and request.priority == 1
        request.rank = 0 if old else request.priority
        if request.rank == 1:
            return len(self.own_queue)
        before = sum(r.rank == 0 for r in self.own_queue)
        self.engine.events["went_before"] += before < len(self.own_queue)
        return before

    def wake(self) -> None:
        """If idle, look at the sources once this time's iterations and arrivals are through.

        Whoever helps it looks, too.
        """
        self.leading.call_helper()
        here = self.state in HOLDING_WEIGHTS
        if here and not self._busy and not self._wake_up.triggered:
            self._wake_up.at(self.engine.now_ps)

    @property
    def in_pair(self) -> bool:
        """Whether it helps another instance or is helped."""
        return self.leading.helper is not None or self.helping.leader is not None

    @property
    def is_busy(self) -> bool:
        """An iteration or a boundary is under way."""
        return self._busy

    @property
    def busy_ps(self) -> int:
        """Time that it has spent on iterations so far, the one under way included."""
        works = self.under_way is not None
        return self._busy_ps + (self.engine.now_ps - self._began_ps if works else 0)

    def _end_work(self) -> None:
        """The iteration that was under way has ended, or is broken off."""
        self._busy_ps += self.engine.now_ps - self._began_ps

    def break_off_iteration(self) -> None:
        """What runs now will not end."""
        if self._iteration_end is not None:
            self._iteration_end.cancel()
            if self.under_way is not None:
                self._end_work()
            self._iteration_end = self.under_way = self.scheduler.composed = None
            self._busy = False
            self.engine.clock.process(self._serve())

    def _serve(self) -> Generator:
        """Iterations back to back while there is something to run."""
        while True:
            yield self._wake_up
            self._wake_up = Due(self.engine.clock, Phase.WAKE_UP, self.index)
            if self.state not in HOLDING_WEIGHTS:
                continue
            self._busy = True
            iteration = self._boundary(None)
            while iteration is not None:
                self.under_way = iteration
                self._began_ps = self.engine.now_ps
                self._iteration_end = self._after(iteration.duration_ps)
                yield self._iteration_end
                self.under_way = None
                self._end_work()
                iteration = self._boundary(iteration)
            self._iteration_end = None
            self._busy = False
            self._before_sleep()

    def _before_sleep(self) -> None:
        """See to it that it does not sleep on what it could not look at, or had no memory for yet."""
        limited = self.state == InstanceState.ACTIVE and self.pull_until < len(self.pull)
        if limited and any(True for _ in self.non_empty()):
            self.engine.events["wakes_itself"] += 1
            self.wake()
        if self.handover.landed:
            self.engine.events["wakes_itself_for_landed"] += 1
            self.wake()
        if self.gave_way:  # others may be smaller than who had to go
            self.engine.events["wakes_itself_after_preemption"] += 1
            self.wake()
        if self.state in HOLDING_WEIGHTS and self.leaving_tokens:
            self.engine.events["waits_for_copy"] += 1
            self._after(self.copied_ps - self.engine.now_ps).then(self.wake)

    def non_empty(self) -> Iterator[tuple[int, int]]:
        """(place, queue) of the queues on its list whose head it can serve."""
        for place, queue in enumerate(self.pull):
            waiting = self.engine.queues_of[queue]
            if waiting and waiting[0].llm in self._profiles:
                yield place, queue

    def place_of(self, request: Request) -> int:
        """Place on its list of the queue that a request came from; behind all if it is not there."""
        return self.pull.index(request.queue) if request.queue in self.pull else len(self.pull)

    def _boundary(self, ended: Iteration | None) -> Iteration | None:
        """Section 4; returns the iteration to run next, None if it is idle or off."""
        if ended is not None:
            self._leave(self._emit(ended))
            self.handover.hand_over()
        if self.engine.now_ps >= self.copied_ps:
            self.leaving_tokens = 0
        self.pull_until = len(self.pull)
        self.gave_way = False
        self.handover.reserve()
        self._obey_evictions()
        nothing = not self.running and not self.preempted and self.handover.empty
        if self.state == InstanceState.DRAINING and nothing:
            self.engine.events["drained_off"] += 1
            self._turn_off()
            return None
        if not self.running:
            self.closed = False
        self.controller.step(ControllerKind(self.engine.controller_kind[self.pool_index]))
        if len(self.running) > self.batch_limit:
            self.engine.events["limit_below_batch"] += 1
        iteration = self.leading.plan()
        if iteration is not None:
            iteration.duration_ps += self.moving_ps
            self.moving_ps = 0
        elif self.foreign is not None and not self.preempted:
            self.swap(self.engine.queues_of[self.pull[self.foreign]][0].llm)
        return iteration

    def _emit(self, ended: Iteration) -> list[Request]:
        emitting = ended.end()
        for request in emitting:
            request.emit(self.engine.now_ps)
        self.iterations += bool(ended.decoding or ended.chunks)
        self.report |= ended.report
        self.tokens += len(emitting)
        self.controller.count(len(emitting), ended.is_decode)
        self.engine.last_boundary_ps = self.engine.now_ps
        return emitting

    def _leave(self, emitting: list[Request]) -> None:
        done = [r for r in emitting if r.emitted == r.output_tokens]
        for request in done if self.pool.v1 else sorted(done, key=lambda r: r.id):
            if request.state == RequestState.PREEMPTED:
                self.engine.events["finished_preempted"] += 1
                self.preempted.remove(request)
            else:
                self.scheduler.complete(request)
                self.take_out(request)
            let_go(request)
            request.state = RequestState.FINISHED
            request.finished_ps = self.engine.now_ps
            self.engine.finished.append(request.id)

    def _obey_evictions(self) -> None:
        evictable = self.evictable()
        for _ in range(min(self.ordered_evictions, len(evictable))):
            self.engine.events["evict_by_command"] += 1
            self.evict(evictable.pop())
            self.pull_until = 0
        self.ordered_evictions = 0

    # --- requests in and out of the batch ---

    def keeps_copy_of(self, request: Request) -> bool:
        """Whether the request's saved KV cache can be restored here."""
        if request.saved_on is None or self.handover.hands_over or self.pool.v1 is not None:
            return False
        return request.saved_on.host == self.host

    def join(self, request: Request) -> None:
        """Admit a request: its KV has landed or is restored, or its whole context is to be prefilled."""
        engine = self.engine
        if request.state == RequestState.HANDOVER:
            request.to_prefill = 0
        elif self.keeps_copy_of(request):
            request.to_prefill = 0
            self.moving_ps += request.ctx * self.profile.swap_in_ps_per_token
            engine.events["restored" if request.saved_on is self else "restored_by_neighbour"] += 1
        else:
            request.to_prefill = request.ctx
            if request.saved_on is not None:
                engine.events["saved_copy_dropped"] += 1
        self._drop_copy(request)
        if request.admitted_ps < 0:
            request.admitted_ps = engine.now_ps
        request.instance = self.index
        request.at = None
        request.state = RequestState.RUNNING
        self.running.append(request)
        self.controller.changed = self.controller.joined = True

    @staticmethod
    def _drop_copy(request: Request) -> None:
        if request.saved_on is not None:
            request.saved_on.host_kv_bytes -= request.saved_bytes
            request.saved_on, request.saved_bytes = None, 0

    def take_out(self, request: Request) -> None:
        """It leaves the batch."""
        self.running.remove(request)
        self.scheduler.release(request)
        self.controller.changed = True

    def lose_memory(self) -> None:
        self.scheduler.forget()

    def _save_kv(self, request: Request, *, beside: bool) -> None:
        """Copy its KV cache to host memory, if it is whole and there is room.

        Args:
            request: no longer in the batch.
            beside: the copy does not delay the next iteration, but frees its memory only at its end.
        """
        if request.to_prefill > 0:
            self.engine.events["prefill_lost"] += 1
            return
        size = request.ctx * self.profile.kv_bytes_per_token
        if self.host_kv_bytes + size > self.pool.host_kv_bytes:
            self.engine.events["host_full"] += 1
            return
        self.host_kv_bytes += size
        request.saved_on, request.saved_bytes = self, size
        copy_ps = request.ctx * self.profile.swap_out_ps_per_token
        if not beside:
            self.moving_ps += copy_ps
        elif copy_ps > 0:
            begin_ps = self.copied_ps if self.leaving_tokens else self.engine.now_ps
            self.copied_ps = begin_ps + copy_ps
            self.leaving_tokens += self.kv_of([request])

    def evict(self, request: Request, *, save: bool = True) -> None:
        """Out of the batch to the front of its shared queue, KV saved."""
        self.take_out(request)
        if save:
            self._save_kv(request, beside=self.pool.async_kv)
        request.evictions += 1
        self.evictions += 1
        self.engine.enqueue(request, request.queue, front=True)

    def flush(self) -> None:
        """Everything out of the batch to make way for another LLM; KV is lost."""
        for request in reversed(list(self.running)):
            self.engine.events["flushed"] += 1
            self.evict(request, save=False)

    def preempt_latest(self) -> None:
        """KV overflow: the most recently admitted request gives way."""
        request = self.running[-1]
        self.take_out(request)
        self.gave_way = True
        mode = PreemptionMode(self.pool.preemption)
        self.engine.events[f"preempt_{mode.name.lower()}"] += 1
        if mode == PreemptionMode.SWAP:
            self._save_kv(request, beside=False)
        request.preemptions += 1
        self.preemptions += 1
        if self.pool.evicts and request.priority == 1:
            self.engine.events["preempt_to_shared_queue"] += 1
            self.engine.enqueue(request, request.queue, front=True)
        else:
            request.state = RequestState.PREEMPTED
            self.preempted.appendleft(request)
