"""Requests between their two phases, as one instance has them: docs/engine.md section 12."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from llmscale_env.sim.reference.request import Request
from llmscale_env.sim.spec import PoolPhase, RequestState

if TYPE_CHECKING:
    from llmscale_env.sim.reference.instance import Instance


class Desk:
    """Where an instance hands requests over, or gets them.

    Attributes:
        held: whose KV a `PREFILL` instance keeps until it has been copied, in order of handover.
        in_flight: whose KV is on its way to a `DECODE` instance, in order of reservation.
        landed: whose KV has come there and who wait for a place in the batch.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.engine = instance.engine
        self.hands_over = instance.pool.phase == PoolPhase.PREFILL
        self.decodes = instance.pool.phase == PoolPhase.DECODE
        self.held: list[Request] = []
        self.in_flight: list[Request] = []
        self.landed: deque[Request] = deque()

    @property
    def empty(self) -> bool:
        """Nothing here keeps the instance from turning off."""
        return not (self.held or self.in_flight or self.landed)

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
        """The flow of a request's KV has ended."""
        target = request.at
        assert target is not None
        self.engine.events["landed"] += 1
        self.held.remove(request)
        request.held_by = None
        target.desk.in_flight.remove(request)
        target.desk.landed.append(request)
        self.instance.wake()
        target.wake()

    def lose_held(self) -> list[Request]:
        """This instance fails: whose KV it holds have lost it, wherever they are."""
        lost, touched = list(self.held), set()
        for request in lost:
            self.engine.events["fail_held"] += 1
            if request.at is None:
                self.engine.decode_gateways[request.llm].remove(request)
            else:
                touched.add(request.at)
                request.at.desk.give_up(request)
            request.held_by = None
        self.held.clear()
        for instance in sorted(touched, key=lambda i: i.index):
            instance.desk.reserve()
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
            volume_bytes = request.ctx * int(source.profile.kv_bytes_per_token)
            self.engine.network.start(
                request.id,
                self.engine.network.paths.between(source.index, instance.index),
                volume_bytes,
                partial(source.desk.copied, request),
            )

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
            self.engine.network.stop(request.id)
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
