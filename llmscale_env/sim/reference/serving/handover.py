"""Requests between their two phases, as one instance has them: docs/engine.md section 12."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from llmscale_env.sim.reference.state.request import Request
from llmscale_env.sim.spec import PoolPhase, RequestState

if TYPE_CHECKING:
    from llmscale_env.sim.reference.instance import Instance


class Handover:
    """Where an instance hands requests over, or gets them.

    Attributes:
        held: whose KV a `PREFILL` instance keeps until it has been copied, in order of handover.
        in_flight: whose KV is on its way to a `DECODE` instance, in order of reservation.
        landed: whose KV has come there and who wait for a place in the batch.
        co_held: of whose KV this instance keeps the layers that it has prefilled for another one, in order
            of admission there, until all has been copied.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.engine = instance.engine
        self.hands_over = instance.pool.phase == PoolPhase.PREFILL
        self.decodes = instance.pool.phase == PoolPhase.DECODE
        self.held: list[Request] = []
        self.in_flight: list[Request] = []
        self.landed: deque[Request] = deque()
        self.co_held: list[Request] = []

    @property
    def empty(self) -> bool:
        """Nothing here keeps the instance from turning off."""
        return not (self.held or self.in_flight or self.landed or self.co_held)

    @property
    def tokens(self) -> int:
        """KV tokens that are held or reserved."""
        return self.instance.kv_of([*self.held, *self.in_flight, *self.landed])

    @property
    def held_tokens(self) -> int:
        """KV tokens that wait to be copied."""
        return self.instance.kv_of(self.held)

    # --- the prefill instance ---

    def hand_over(self) -> None:
        """End of step 1: whose prefill has ended goes on to decode elsewhere."""
        if not self.hands_over:
            return
        done = [r for r in self.instance.running if r.to_prefill == 0]
        for request in sorted(done, key=lambda r: r.id):
            self.engine.events["handed_over"] += 1
            self.instance.take_out(request)
            request.held_by = self.instance
            self.held.append(request)
        for request in sorted(done, key=lambda r: r.id):
            self.engine.place_decode(request)

    def copied(self, request: Request) -> None:
        """A flow of a request's KV has ended."""
        request.flows -= 1
        if request.flows > 0:
            self.engine.events["landed_in_part"] += 1
            return
        let_go(request)
        target = request.at
        assert target is not None
        self.engine.events["landed"] += 1
        self.held.remove(request)
        request.held_by = None
        target.handover.in_flight.remove(request)
        target.handover.landed.append(request)
        self.instance.wake()
        target.wake()

    def lose_held(self) -> list[Request]:
        """This instance fails: whose KV it holds have lost it, wherever they are."""
        return self._lose(list(self.held), "fail_held")

    def lose_co_held(self) -> list[Request]:
        """It is lost as one that has helped: who needs the layers that it has has lost its KV."""
        return self._lose(list(self.co_held), "fail_co_held")

    def _lose(self, lost: list[Request], event: str) -> list[Request]:
        touched = set()
        for request in lost:
            self.engine.events[event] += 1
            if request.at is None:
                self.engine.decode_gateways[request.llm].remove(request)
            else:
                touched.add(request.at)
                request.at.handover.give_up(request)
            holder = request.held_by
            assert holder is not None
            holder.handover.held.remove(request)
            request.held_by = None
            holder.wake()
        for instance in sorted(touched, key=lambda i: i.index):
            instance.handover.reserve()
            instance.wake()
        return lost

    # --- the decode instance ---

    def join(self, request: Request) -> None:
        """A handed-over request joins the end of the own queue."""
        waiting = self.instance.own_queue
        request.state = RequestState.HANDOVER
        request.at = self.instance
        waiting.append(request)
        if len(waiting) == 1:
            self.reserve()

    def reserve(self) -> None:
        """Memory for the head of the own queue while it fits."""
        instance = self.instance
        if not self.decodes:
            return
        while instance.own_queue and self._fits(instance.own_queue[0]):
            request = instance.own_queue.popleft()
            source = request.held_by
            assert source is not None
            self.engine.events["reserved_under_way" if instance.under_way else "reserved"] += 1
            self.in_flight.append(request)
            self._send(request, source)

    def _send(self, request: Request, source: Instance) -> None:
        """The flow of its KV, or two if another instance has prefilled its first layers."""
        total_bytes = request.ctx * int(source.profile.kv_bytes_per_token)
        parts = {request.id: (source, total_bytes)}
        if request.helper is not None:
            self.engine.events["co_flow"] += 1
            theirs = total_bytes * request.helped_layers // source.pool.layers
            parts[request.id] = (source, total_bytes - theirs)
            parts[self._co_number(request)] = (request.helper, theirs)
        request.flows = len(parts)
        network = self.engine.network
        for number, (sender, volume_bytes) in parts.items():
            path = network.paths.between(sender.index, self.instance.index)
            network.start(number, path, volume_bytes, partial(source.handover.copied, request))

    def _co_number(self, request: Request) -> int:
        """Of the flow from a request's helper."""
        spec = self.engine.spec
        return len(self.engine.requests) + spec.n_instances + spec.n_llms + request.id

    def _fits(self, request: Request) -> bool:
        instance = self.instance
        if instance.preempted:
            self.engine.events["reservation_waits_for_preempted"] += 1
            return False
        busy = instance.running or self.in_flight or self.landed
        used = instance.kv_tokens + (instance.watermark_tokens if busy else 0)
        if instance.under_way is not None:
            used += instance.under_way.due
        fits = used + self.engine.demand(request) <= instance.capacity
        self.engine.events["reservation_waits"] += not fits
        return fits

    def give_up(self, request: Request) -> None:
        """A request that has not landed leaves; a flow is broken off."""
        if request in self.in_flight:
            self.engine.events["flow_broken_off"] += 1
            self.in_flight.remove(request)
            for number in (request.id, self._co_number(request)):
                if number in self.engine.network.flows:
                    self.engine.network.stop(number)
        else:
            self.instance.own_queue.remove(request)
        request.at = None

    def leave_all(self) -> list[Request]:
        """This instance fails: who has not landed is to go to another one."""
        leaving = [*self.in_flight, *(self.instance.own_queue if self.decodes else ())]
        for request in leaving:
            self.engine.events["fail_before_landing"] += 1
            self.give_up(request)
        return leaving


def let_go(request: Request) -> None:
    """Its helper need not keep its part of a request's KV any longer."""
    helper = request.helper
    if helper is not None:
        helper.handover.co_held.remove(request)
        request.helper, request.helped_layers = None, 0
        helper.wake()
