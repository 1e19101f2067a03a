"""One instance slot: its life, its iteration boundaries, its KV cache (engine.md 3 and 4)."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING

from llmscale_env.sim.reference.clock import Due, Phase
from llmscale_env.sim.reference.controller import BatchController
from llmscale_env.sim.reference.request import Request
from llmscale_env.sim.reference.scheduler import Chunked, Iteration, PrefillFirst, Scheduler
from llmscale_env.sim.spec import (
    ControllerKind,
    InstanceState,
    LoadSource,
    PreemptionMode,
    RequestState,
)

if TYPE_CHECKING:
    from llmscale_env.sim.reference.engine import ReferenceEngine

HOLDING_WEIGHTS = (InstanceState.ACTIVE, InstanceState.DRAINING)


class Instance:
    """A slot of a pool and, while it is not `OFF`, the instance in it.

    `running` is in order of admission: the most recently admitted request is the last.

    Attributes:
        host: host it sits on.
        own_queue: requests routed to it and not yet admitted.
        preempted: requests that it preempted, next one first.
        host_kv_tokens: KV tokens that it keeps in host memory.
        moving_ps: saving and restoring KV that the next iteration has to pay for.
        ordered_evictions: how many the `evict` command asked for.
        evicted_in_boundary: the current boundary, or the latest, has evicted someone.
    """

    def __init__(self, engine: ReferenceEngine, index: int, pool_index: int, host: int) -> None:
        self.engine = engine
        self.index = index
        self.pool_index = pool_index
        self.pool = engine.spec.pools[pool_index]
        self.profile = engine.spec.profiles[self.pool.profile]
        self.host = host
        self.capacity = int(self.profile.kv_capacity_tokens)

        self.state = InstanceState.OFF
        self.source = -1
        self.loaded_ps = -1
        self.billed_from_ps = -1
        self.billed_ps = 0

        self.running: list[Request] = []
        self.own_queue: deque[Request] = deque()
        self.preempted: deque[Request] = deque()
        self.host_kv_tokens = 0
        self.moving_ps = 0
        self.ordered_evictions = 0
        self.evicted_in_boundary = False
        self.iterations = 0
        self.tokens = 0
        self.controller = BatchController(self)
        self.scheduler: Scheduler
        self.scheduler = Chunked(self) if self.pool.chunk_tokens > 0 else PrefillFirst(self)

        self._change: Due | None = None
        self._busy = False
        self._wake_up = Due(engine.clock, Phase.WAKE_UP, index)
        engine.clock.process(self._serve())

    # --- what routers and observers see ---

    @property
    def batch_limit(self) -> int:
        return self.controller.batch_limit

    @property
    def requests(self) -> int:
        """Requests that are here, wherever they wait."""
        return len(self.own_queue) + len(self.preempted) + len(self.running)

    @property
    def kv_tokens(self) -> int:
        """KV tokens used."""
        return self.kv_of(self.running)

    def kv_of(self, requests: Iterable[Request]) -> int:
        """KV tokens that these occupy while they run."""
        half = self.engine.spec.half_block_tokens
        return sum(r.ctx + half for r in requests)

    @property
    def waiting_demand(self) -> int:
        """KV tokens that the own queue and the preempted ones will ask for."""
        return sum(self.engine.demand(r) for r in (*self.own_queue, *self.preempted))

    @property
    def left_tokens(self) -> int:
        """Predicted tokens still to emit over all requests here."""
        return sum(r.left for r in (*self.own_queue, *self.preempted, *self.running))

    def evictable(self) -> list[Request]:
        """Running requests of priority-1 classes that have a shared queue to go to."""
        return [r for r in self.running if r.priority == 1 and r.queue >= 0]

    # --- life of a slot (section 3) ---

    def begin_active(self) -> None:
        """Active from the start of the simulation."""
        self.state = InstanceState.ACTIVE
        self.billed_from_ps = 0

    def start(self, source: LoadSource) -> None:
        """Order it: `OFF -> ACQUIRING`, and on to `LOADING` if that takes no time."""
        self.state = InstanceState.ACQUIRING
        if self.pool.acquire_ps == 0:
            self._load(source)
            return
        self._change = self._after(self.pool.acquire_ps).then(lambda: self._load(source))

    def _load(self, ordered: LoadSource) -> None:
        source = ordered
        while not self.engine.weights_at(source, self):
            source = LoadSource(source - 1)
        self.engine.events[f"load_{source.name.lower()}"] += 1
        if source != ordered:
            self.engine.events[f"fallback_from_{ordered.name.lower()}"] += 1
        if source == LoadSource.MULTICAST and not self.engine.is_active(self.pool.llm):
            self.engine.events["multicast_from_draining"] += 1
        self.state = InstanceState.LOADING
        self.source = int(source)
        self.billed_from_ps = self.engine.now_ps
        self.loaded_ps = self.engine.now_ps + self.pool.load_ps[source]
        self._change = self._after(self.pool.load_ps[source]).then(self._activate)

    def _activate(self) -> None:
        self.state = InstanceState.ACTIVE
        self.loaded_ps = -1
        self.controller.start_window()
        self.engine.route_gateway(self.pool.llm)
        self.wake()

    def cancel(self) -> None:
        """`ACQUIRING` or `LOADING` -> `OFF`."""
        assert self._change is not None
        self.engine.events[f"cancel_{self.state.name.lower()}"] += 1
        self._change.cancel()
        self._turn_off()

    def drain(self) -> None:
        """`ACTIVE -> DRAINING`: its own queue goes elsewhere, its batch is served to the end."""
        self.state = InstanceState.DRAINING
        moving = list(self.own_queue)
        self.own_queue.clear()
        for request in moving:
            self.engine.events["drained_reroute"] += 1
            self.engine.place(request)
        if not self._busy:
            self._turn_off()

    def reactivate(self) -> None:
        """`DRAINING -> ACTIVE`."""
        self.engine.events["reactivated"] += 1
        self.state = InstanceState.ACTIVE
        self.engine.route_gateway(self.pool.llm)

    def _turn_off(self) -> None:
        if self.state in HOLDING_WEIGHTS:
            self.engine.weights_gone_ps[self.host, self.pool.llm] = self.engine.now_ps
        self.billed_ps = self.billed_until(self.engine.now_ps)
        self.billed_from_ps = -1
        self.state = InstanceState.OFF
        self.source = self.loaded_ps = -1
        self.engine.events["kv_move_forgotten"] += self.moving_ps > 0
        self.moving_ps = 0

    def billed_until(self, now_ps: int) -> int:
        """Time billed so far over all lives of the slot."""
        running = now_ps - self.billed_from_ps if self.billed_from_ps >= 0 else 0
        return self.billed_ps + running

    def _after(self, duration_ps: int) -> Due:
        return Due(self.engine.clock, Phase.INSTANCE, self.index).at(
            self.engine.now_ps + duration_ps
        )

    # --- serving ---

    def wake(self) -> None:
        """If idle, look at the sources once this time's iterations and arrivals are through."""
        if self.state == InstanceState.ACTIVE and not self._busy and not self._wake_up.triggered:
            self._wake_up.at(self.engine.now_ps)

    def _serve(self) -> Generator:
        """Iterations back to back while there is something to run."""
        while True:
            yield self._wake_up
            self._wake_up = Due(self.engine.clock, Phase.WAKE_UP, self.index)
            if self.state != InstanceState.ACTIVE:
                continue
            self._busy = True
            iteration = self._boundary(None)
            while iteration is not None:
                yield self._after(iteration.duration_ps)
                iteration = self._boundary(iteration)
            self._busy = False
            if self.state == InstanceState.ACTIVE and self._pull_not_empty():
                # It must not sleep on what it has itself evicted into a queue.
                self.engine.events["wakes_itself"] += 1
                self.wake()

    def _pull_not_empty(self) -> bool:
        return any(self.engine.queues_of[q] for q in self.pool.pull)

    def _boundary(self, ended: Iteration | None) -> Iteration | None:
        """Section 4; returns the iteration to run next, None if it is idle or off."""
        ran = len(self.running)
        if ended is not None:
            if all(r.to_prefill > 0 for r in self.running):
                self.controller.alone_ps += ended.duration_ps
            self._emit(ended)
            self._leave()
        self.evicted_in_boundary = False
        self._obey_evictions()
        if self.state == InstanceState.DRAINING and not self.running and not self.preempted:
            self.engine.events["drained_off"] += 1
            self._turn_off()
            return None
        self.controller.step(ControllerKind(self.engine.controller_kind[self.pool_index]), ran)
        if len(self.running) > self.batch_limit:
            self.engine.events["limit_below_batch"] += 1
        iteration = self.scheduler.plan()
        if iteration is not None:
            iteration.duration_ps += self.moving_ps
            self.moving_ps = 0
        return iteration

    def _emit(self, ended: Iteration) -> None:
        emitting = list(ended.decoding)
        for request, tokens in ended.chunks:
            request.to_prefill -= tokens
            if request.to_prefill == 0:
                emitting.append(request)
        for request in emitting:
            request.emit(self.engine.now_ps)
        self.iterations += 1
        self.tokens += len(emitting)
        self.controller.count(len(emitting), ended.is_decode)
        self.engine.last_boundary_ps = self.engine.now_ps

    def _leave(self) -> None:
        done = [r for r in self.running if r.emitted == r.output_tokens]
        for request in sorted(done, key=lambda r: r.id):
            self._take_out(request)
            request.state = RequestState.FINISHED
            request.finished_ps = self.engine.now_ps
            self.engine.finished.append(request.id)

    def _obey_evictions(self) -> None:
        evictable = self.evictable()
        for _ in range(min(self.ordered_evictions, len(evictable))):
            self.engine.events["evict_by_command"] += 1
            self.evict(evictable.pop())
        self.ordered_evictions = 0

    # --- requests in and out of the batch ---

    def keeps_copy_of(self, request: Request) -> bool:
        """Whether the request's saved KV cache can be restored here."""
        return request.saved_on is not None and request.saved_on.host == self.host

    def join(self, request: Request) -> None:
        """Admit a request: its saved KV is restored, or its whole context is to be prefilled."""
        engine = self.engine
        if self.keeps_copy_of(request):
            request.to_prefill = 0
            self.moving_ps += request.ctx * self.profile.swap_in_ps_per_token
            engine.events["restored" if request.saved_on is self else "restored_by_neighbour"] += 1
        else:
            request.to_prefill = request.ctx
            if request.saved_on is not None:
                engine.events["saved_copy_dropped"] += 1
        if request.saved_on is not None:
            request.saved_on.host_kv_tokens -= request.saved_tokens
            request.saved_on, request.saved_tokens = None, 0
        if request.admitted_ps < 0:
            request.admitted_ps = engine.now_ps
        request.instance = self.index
        request.state = RequestState.RUNNING
        self.running.append(request)
        self.controller.changed = True

    def _take_out(self, request: Request) -> None:
        self.running.remove(request)
        self.controller.changed = True

    def _save_kv(self, request: Request) -> None:
        """Copy its KV cache to host memory, if it is whole and there is room."""
        if request.to_prefill > 0:
            self.engine.events["prefill_lost"] += 1
            return
        if self.host_kv_tokens + request.ctx > self.pool.host_kv_tokens:
            self.engine.events["host_full"] += 1
            return
        self.host_kv_tokens += request.ctx
        request.saved_on, request.saved_tokens = self, request.ctx
        self.moving_ps += request.ctx * self.profile.swap_out_ps_per_token

    def evict(self, request: Request) -> None:
        """Out of the batch to the front of its shared queue, KV saved."""
        self._take_out(request)
        self._save_kv(request)
        request.evictions += 1
        self.evicted_in_boundary = True
        self.engine.enqueue(request, front=True)

    def preempt_latest(self) -> None:
        """KV overflow: the most recently admitted request gives way."""
        request = self.running[-1]
        self._take_out(request)
        mode = PreemptionMode(self.pool.preemption)
        self.engine.events[f"preempt_{mode.name.lower()}"] += 1
        if mode == PreemptionMode.SWAP:
            self._save_kv(request)
        request.preemptions += 1
        if self.pool.evicts and request.priority == 1:
            self.engine.events["preempt_to_shared_queue"] += 1
            self.engine.enqueue(request, front=True)
        else:
            request.state = RequestState.PREEMPTED
            self.preempted.appendleft(request)
