"""The life of an instance slot, from an order to `OFF`: docs/engine.md sections 3, 8, 9, 10 and 15."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from llmscale_env.sim.reference.fleet.lease import Lease
from llmscale_env.sim.reference.serving.handover import let_go
from llmscale_env.sim.reference.state.clock import Due, Phase
from llmscale_env.sim.reference.weights.host_memory import HostWeights
from llmscale_env.sim.reference.weights.live import Helper, Leader
from llmscale_env.sim.reference.weights.loading import Loader
from llmscale_env.sim.spec import NO_SOURCE, InstanceState, LoadSource, PoolSpec

if TYPE_CHECKING:
    from llmscale_env.sim.reference.engine import ReferenceEngine
    from llmscale_env.sim.reference.serving.controller import BatchController
    from llmscale_env.sim.reference.serving.handover import Handover
    from llmscale_env.sim.reference.serving.scheduler import Iteration
    from llmscale_env.sim.reference.state.request import Request

HOLDING_WEIGHTS = (InstanceState.ACTIVE, InstanceState.DRAINING)


class SlotLife(ABC):
    """The part of `Instance` that moves it from state to state.

    Attributes:
        source: observed `LoadSource`, -1 without one.
        loaded_ps: end of loading, -1 if it does not load or nobody knows.
        expected_ps: while it is `ACQUIRING`, when it will serve if its weights are where they were ordered.
        ordered, given_up: how often it has been started or kept, and cancelled or drained.
        loads: how often it has loaded, by `LoadSource`.
        asleep_ps: since when its process sleeps, -1 if none does.
        loader: its weights on their way.
        lease: of its VM, where it comes from spot.
        twin: the slot on the same GPUs, if any.
        mutating: it drains to become its twin.
    """

    engine: ReferenceEngine
    pool: PoolSpec
    pool_index: int
    host: int
    index: int
    handover: Handover
    controller: BatchController
    weights: HostWeights
    running: list[Request]
    own_queue: deque[Request]
    preempted: deque[Request]
    under_way: Iteration | None
    leaving_tokens: int
    copied_ps: int
    moving_ps: int
    ordered_evictions: int
    closed: bool
    swaps: int
    failures: int
    leading: Leader
    helping: Helper
    _busy: bool

    def _begin_life(self) -> None:
        """`OFF`, with nothing loaded."""
        self._profiles = {s.llm: s.profile for s in self.pool.served}
        self._watermarks = {s.llm: s.watermark_tokens for s in self.pool.served}
        self._set_llm(self.pool.llm)
        self.weights = HostWeights(self.pool)
        self.state = InstanceState.OFF
        self.source = -1
        self.loaded_ps = self.expected_ps = -1
        self.billed_from_ps = -1
        self.billed_ps = 0
        self.ordered = self.given_up = 0
        self.loads = [0] * len(LoadSource)
        self.asleep_ps = 0 if self.engine.spec.host_cache_at_start else -1
        self.loader = Loader(self)
        self.lease = Lease(self)
        self.twin: SlotLife | None = None
        self.mutating = False
        self._change: Due | None = None

    @abstractmethod
    def break_off_iteration(self) -> None: ...

    @abstractmethod
    def wake(self) -> None: ...

    @abstractmethod
    def take_out(self, request: Request) -> None: ...

    @abstractmethod
    def lose_memory(self) -> None: ...

    @staticmethod
    @abstractmethod
    def _drop_copy(request: Request) -> None: ...

    @abstractmethod
    def non_empty(self) -> Iterator[tuple[int, int]]: ...

    def begin_active(self) -> None:
        """Active from the start of the simulation."""
        self.state = InstanceState.ACTIVE
        self.billed_from_ps = 0

    @property
    def is_free(self) -> bool:
        """Whether it can be started: `OFF`, and its GPUs are not its twin's."""
        taken = self.twin is not None and self.twin.state != InstanceState.OFF
        return self.state == InstanceState.OFF and not taken

    def start(self, source: LoadSource, named: int = NO_SOURCE) -> None:
        """Order it: `OFF -> ACQUIRING`, and on to `LOADING` if that takes no time.

        Args:
            source: where its weights are to come from.
            named: the source code that comes first, if `scale` named one.
        """
        self.ordered += 1
        self._set_llm(self.pool.llm)
        self.loader.source = named
        if self.pool.spot is not None:
            self.lease.reclaim()
        else:
            self._acquire(source, self.pool.acquire_ps)

    def _acquire(self, source: LoadSource, duration_ps: int) -> None:
        self.state = InstanceState.ACQUIRING
        self.expected_ps = self.engine.now_ps + duration_ps + int(self.pool.load_ps[source])
        if duration_ps == 0:
            self._load(source)
            return
        self._change = self._after(duration_ps).then(lambda: self._load(source))

    def _set_llm(self, llm: int) -> None:
        self.llm = llm
        self.watermark_tokens = self._watermarks[llm]
        self.set_profile(self._profiles[llm])

    def set_profile(self, profile: int) -> None:
        """Its times from now on."""
        self.profile_index = profile
        self.profile = self.engine.spec.profiles[profile]
        self.capacity = int(self.profile.kv_capacity_tokens)

    def take_times(self) -> None:
        """Those of the engine's cluster, whose times have changed."""
        self.pool = self.engine.spec.pools[self.pool_index]
        self.weights.take_times(self.pool, self.engine.now_ps)
        self.set_profile(self.profile_index)

    def _load(self, ordered: LoadSource) -> None:
        self._change = None
        if self.pool.weight_bytes > 0:
            source = self.comes_from(self.loader.begin(ordered))
        else:
            source = ordered
            while not self.engine.parameters.weights_at(source, self.llm, self.host):
                source = LoadSource(source - 1)
        self.engine.events[f"load_{source.name.lower()}"] += 1
        if source < ordered:
            self.engine.events[f"fallback_from_{ordered.name.lower()}"] += 1
        if source == LoadSource.MULTICAST and not self.engine.is_active(self.llm):
            self.engine.events["multicast_from_draining"] += 1
        self.state = InstanceState.LOADING
        self.source = int(source)
        self.loads[source] += 1
        self.billed_from_ps = self.engine.now_ps
        if self.pool.weight_bytes > 0:
            self.loader.look()
            return
        duration_ps = int(self.pool.load_ps[source])
        if source == LoadSource.HOST and self._sleeps():
            self.engine.events["wake_up"] += 1
            duration_ps = self.pool.wake_ps
        self.asleep_ps = -1
        self.loaded_ps = self.engine.now_ps + duration_ps
        self._change = self._after(duration_ps).then(self.activate)

    def _sleeps(self) -> bool:
        """Whether its process sleeps and can be woken."""
        if self.pool.wake_ps < 0 or self.asleep_ps < 0:
            return False
        return self.engine.now_ps - self.asleep_ps <= self.engine.spec.host_keep_alive_ps

    def comes_from(self, code: int) -> LoadSource:
        """Its weights come from this source code: what an observer sees of it."""
        self.source = int(self.engine.parameters.kind_of(code))
        return LoadSource(self.source)

    def loaded(self) -> None:
        """The last layer has come: it serves once what it executes for another one has ended."""
        if self.helping.work is None:
            self._change = self._after(0).then(self.activate)

    def activate(self) -> None:
        """`LOADING -> ACTIVE`."""
        self._change = None
        self.state = InstanceState.ACTIVE
        self.loaded_ps = -1
        self.lease.serves()
        self.helping.finish()
        self._serve_from_now()

    def _serve_from_now(self) -> None:
        self.engine.parameters.look(self.llm)
        self.controller.forget()
        self._route_waiting()
        self.wake()

    def _route_waiting(self) -> None:
        """It serves now: the gateway that it can take from is routed again."""
        if self.handover.decodes:
            self.engine.route_decode_gateway(self.llm)
        else:
            self.engine.route_arrival_gateway(self.llm)

    def swap(self, llm: int) -> None:
        """`ACTIVE -> LOADING` another LLM, by way of host memory."""
        engine = self.engine
        now_ps = engine.now_ps
        self.state = InstanceState.LOADING
        engine.parameters.slot_gone(self)
        self._set_llm(llm)
        self.swaps += 1
        self.weights.used[llm] = self.swaps
        self.plan_weights(demanded=llm)
        start_ps = max(now_ps, self.copied_ps if self.leaving_tokens else 0) + self.moving_ps
        self.moving_ps = self.leaving_tokens = 0
        swap = next(s for s in self.pool.served if s.llm == llm)
        ready_ps = self.weights.ready_ps.get(llm)
        if ready_ps is None:
            engine.events["swap_streamed"] += 1
            self.loaded_ps = start_ps + swap.fetch_ps + swap.swap_ps
        else:
            engine.events["swap_warm" if ready_ps <= now_ps else "swap_cold"] += 1
            self.loaded_ps = max(start_ps, ready_ps) + swap.swap_ps
        warm = ready_ps is not None and ready_ps <= now_ps
        self.source = int(LoadSource.HOST if warm else LoadSource.SSD)
        self._change = self._after(self.loaded_ps - now_ps).then(self.activate)

    def plan_weights(self, demanded: int | None = None) -> None:
        """Host memory for the LLMs that its list asks for, in order."""
        if len(self.pool.served) > 1:
            heads = [self.engine.queues_of[q][0].llm for _, q in self.non_empty()]
            self.weights.plan(self.engine.now_ps, [self.llm, *heads], demanded)

    def fail(self) -> None:
        """It loses what it has on its GPUs and its requests' KV, and is to be loaded anew."""
        engine = self.engine
        engine.events[f"fail_{self.state.name.lower()}"] += 1
        was = self.state
        self.end_change()
        if self.pool.spot is None:
            self.end_billing()
        self.failures += 1
        self.source = self.loaded_ps = self.asleep_ps = -1
        self.moving_ps = self.leaving_tokens = self.ordered_evictions = 0
        self.closed = self.mutating = False
        self.state = InstanceState.OFF
        self.loader.stop()
        engine.parameters.slot_gone(self, held=was in HOLDING_WEIGHTS)
        self._set_llm(self.pool.llm)
        self.break_off_iteration()
        self.leading.stop()
        self.helping.lose()
        self._lose_saved()
        landed = list(self.handover.landed)
        engine.events["fail_landed"] += len(landed)
        handover = self.handover
        started = [
            *self.preempted,
            *self.running,
            *landed,
            *handover.lose_held(),
            *handover.lose_co_held(),
        ]
        between = self.handover.leave_all()
        waiting = list(self.own_queue)
        for request in list(self.running):
            self.take_out(request)
        self.lose_memory()
        self.preempted.clear()
        self.own_queue.clear()
        self.handover.landed.clear()
        homeless = self._start_again(started)
        if self.pool.spot is not None:
            self.lease.fail(was)
        elif was != InstanceState.DRAINING:
            self._acquire(LoadSource(self.pool.load_source), self.pool.repair_ps)
        for request in homeless:
            engine.events["fail_rerouted"] += 1
            engine.place(request)
        for request in waiting:
            engine.events["fail_rerouted"] += 1
            engine.place_from(self, request)
        for request in between:
            engine.place_decode(request)

    def _start_again(self, requests: list[Request]) -> list[Request]:
        """Requests that have lost their KV, to the fronts of their queues; returns those without one."""
        for request in reversed(requests):
            let_go(request)
            request.emitted = request.to_prefill = request.to_come = 0
            request.at = None
            request.restarts += 1
            if request.queue >= 0:
                self.engine.events["fail_to_queue"] += 1
                self.engine.enqueue(request, request.queue, front=True)
        return [request for request in requests if request.queue < 0]

    def _lose_saved(self) -> None:
        """KV that it had saved in host memory is lost."""
        for request in self.engine.requests:
            if request.saved_on is self:
                self.engine.events["fail_saved"] += 1
                self._drop_copy(request)

    def lose_host_memory(self) -> None:
        """Its host fails: its share of host memory is empty, whatever its state."""
        self._lose_saved()
        self.asleep_ps = -1
        self.weights.ready_ps.clear()

    def cancel(self) -> None:
        """`ACQUIRING` or `LOADING` -> `OFF`."""
        self.engine.events[f"cancel_{self.state.name.lower()}"] += 1
        self.given_up += 1
        self.end_change()
        self._turn_off()
        self.helping.lose()
        for request in self._start_again(self.handover.lose_co_held()):
            self.engine.place(request)

    def end_change(self) -> None:
        """Nothing more comes of its acquiring or loading."""
        if self._change is not None:
            self._change.cancel()
            self._change = None

    def drain(self) -> None:
        """`ACTIVE -> DRAINING`: its own queue goes elsewhere, its batch is served to the end."""
        self.state = InstanceState.DRAINING
        self.given_up += 1
        moving = list(self.own_queue)
        self.own_queue.clear()
        for request in moving:
            if self.handover.decodes:
                self.engine.events["drained_reroute_decode"] += 1
                self.engine.place_decode(request)
            else:
                self.engine.events["drained_reroute"] += 1
                self.engine.place_from(self, request)
        nothing = not self.running and not self.preempted and self.handover.empty
        if not self._busy and nothing:
            self._turn_off()
        else:
            self.wake()

    def reactivate(self) -> None:
        """`DRAINING -> ACTIVE`."""
        self.engine.events["reactivated"] += 1
        self.ordered += 1
        self.engine.events["mutation_called_off"] += self.mutating
        self.mutating = False
        self.state = InstanceState.ACTIVE
        self._route_waiting()
        self.wake()

    def mutate(self) -> None:
        """It drains; at its end its twin has its weights and serves."""
        self.mutating = True
        self.drain()

    def _turn_off(self) -> None:
        held = self.state in HOLDING_WEIGHTS
        if held:
            self.asleep_ps = self.engine.now_ps
        self.lose_memory()
        if self.pool.spot is not None:
            self.lease.donate()
        else:
            self.end_billing()
            self.state = InstanceState.OFF
        source, code = self.source, self.loader.source
        self.source = self.loaded_ps = -1
        self.loader.stop()
        self.leading.stop()
        self.engine.events["kv_move_forgotten"] += self.moving_ps > 0
        self.moving_ps = self.leaving_tokens = 0
        if self.mutating:
            assert self.twin is not None
            self.mutating = False
            self.twin.take_over(self, source, code)
        else:
            self.engine.parameters.slot_gone(self, held)

    def take_over(self, other: SlotLife, source: int, code: int) -> None:
        """Its twin has turned off: the weights stay where they are, and are its own now."""
        self.engine.events["mutated"] += 1
        self.ordered += 1
        self._set_llm(self.pool.llm)
        self.state = InstanceState.ACTIVE
        self.source, self.loader.source = source, code
        self.billed_from_ps = self.engine.now_ps
        self.engine.parameters.slot_moved(other, self)
        self._serve_from_now()

    def end_billing(self) -> None:
        """Its GPUs cost nothing more."""
        self.billed_ps = self.billed_until(self.engine.now_ps)
        self.billed_from_ps = -1

    def change_after(self, duration_ps: int, do: Callable[[], None]) -> None:
        """What comes next in its life, in an event of its own."""

        def change() -> None:
            self._change = None
            do()

        self._change = self._after(duration_ps).then(change)

    def billed_until(self, now_ps: int) -> int:
        """Time billed so far over all lives of the slot."""
        running = now_ps - self.billed_from_ps if self.billed_from_ps >= 0 else 0
        return self.billed_ps + running

    def _after(self, duration_ps: int) -> Due:
        return Due(self.engine.clock, Phase.INSTANCE, self.index).at(
            self.engine.now_ps + duration_ps
        )
