"""Admission and launch at an iteration boundary: docs/engine.md section 4, step 5."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.reference.state.block_pool import BlockName
from llmscale_env.sim.reference.state.request import Request
from llmscale_env.sim.spec import InstanceState, PullRule

if TYPE_CHECKING:
    from llmscale_env.sim.reference.instance import Instance


@dataclass
class Iteration:
    """What an instance runs until its next boundary.

    Attributes:
        decoding: requests that emit a token at the end.
        chunks: (request, tokens to prefill); who has no more to prefill emits too.
        is_decode: counts as a decode iteration for the controller.
        report: what the worker will report of it, by field of `REPORT_DTYPE`.
    """

    duration_ps: int
    decoding: list[Request] = field(default_factory=list)
    chunks: list[tuple[Request, int]] = field(default_factory=list)
    is_decode: bool = False
    report: dict[str, int] = field(default_factory=dict)

    def end(self) -> list[Request]:
        """It ends: prefills go on. Returns who emits a token."""
        emitting = list(self.decoding)
        for request, tokens in self.chunks:
            request.to_prefill -= tokens
            if request.to_prefill == 0:
                emitting.append(request)
        return emitting

    @property
    def due(self) -> int:
        """Tokens that will be emitted at its end."""
        return len(self.decoding) + sum(r.to_prefill == n for r, n in self.chunks)


def time_at(
    tokens: int, knots: NDArray[np.int64], times_ps: NDArray[np.int64], slopes: NDArray[np.int64]
) -> int:
    """Piecewise linear time of an iteration of `tokens` new tokens, in ps."""
    k = max(k for k in range(len(knots)) if knots[k] <= tokens)
    return int(times_ps[k]) + int(slopes[k]) * (tokens - int(knots[k]))


class Scheduler(ABC):
    """Decides who runs next on one instance.

    Attributes:
        admitted: requests admitted in this boundary.
        origins: of each the shared queue that it was taken from, -1: none.
        composed: an iteration that is decided on while another one runs, if any.
        kv_cached, asked_tokens, hit_tokens: as in `INSTANCE_DTYPE`.
    """

    composed: Iteration | None = None
    asked_tokens = hit_tokens = 0

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.admitted: list[Request] = []
        self.origins: list[int] = []

    def has_last_step(self, request: Request) -> bool:
        """Whether a running request's last token has its step, and it is left out of later ones."""
        return False

    @abstractmethod
    def plan(self) -> Iteration | None:
        """Admission, then the iteration to launch; None if nothing runs."""

    @abstractmethod
    def _assign(self, request: Request) -> None:
        """Charge an admitted request to the budget."""

    @property
    @abstractmethod
    def kv_tokens(self) -> int:
        """KV tokens that the running requests use."""

    @property
    def kv_cached(self) -> int:
        return 0

    @property
    def pending_prefill(self) -> int:
        """Tokens of the running requests' contexts still to be computed."""
        return sum(r.to_prefill for r in self.instance.running)

    def found_tokens(self, request: Request) -> int:
        """Tokens of a waiting request that the prefix cache holds now; nothing changes."""
        return 0

    @property
    def cached_blocks(self) -> list[BlockName]:
        """Names of blocks in the prefix cache that no request holds, the next one to go first."""
        return []

    def complete(self, request: Request) -> None:  # noqa: B027 (most have nothing to do)
        """A running request has emitted its last token."""

    def release(self, request: Request) -> None:  # noqa: B027
        """A request leaves the batch."""

    def forget(self) -> None:  # noqa: B027
        """What is in the memory of the GPUs is lost."""

    # --- admission ---

    def _sources(self) -> Iterator[tuple[str, int, deque[Request]]]:
        """(name, place on the list of shared queues or -1, requests) in order, none of them empty."""
        instance = self.instance
        if instance.handover.landed:
            yield "landed", -1, instance.handover.landed
        if instance.preempted:
            yield "preempted", -1, instance.preempted
        if instance.state == InstanceState.DRAINING or instance.handover.decodes:
            return
        if instance.own_queue:
            yield "own", -1, instance.own_queue
        allowed = [(p, q) for p, q in instance.non_empty() if p < instance.pull_until]
        if instance.operations.pull_rule == PullRule.EARLIEST_DEADLINE:
            allowed.sort(key=lambda pq: self._deadline_ps(pq[1]))
        for place, queue in allowed:
            yield f"pull_{place}", place, instance.engine.queues_of[queue]

    def _deadline_ps(self, queue: int) -> int:
        head = self.instance.engine.queues_of[queue][0]
        slo_class = self.instance.engine.spec.classes[head.slo_class]
        return head.arrival_ps + int(slo_class.ttft_slo_ps)

    def _admit(self) -> None:
        """Take requests while they fit; the first that does not ends it."""
        instance = self.instance
        self.admitted, self.origins = [], []
        while True:
            name, place, source = next(self._sources(), ("", -1, None))
            if source is None or instance.closed:
                return
            request = source[0]
            if request.llm != instance.llm:
                instance.foreign = place
                return
            if not self._make_room(request, name, place):
                return
            # Evictions push to the fronts of shared queues, but not of the candidate's.
            source.popleft()
            if place >= 0:
                instance.engine.wake_pullers(instance.pull[place])
            self.instance.engine.events[f"from_{name}"] += 1
            self.instance.join(request)
            self.admitted.append(request)
            self.origins.append(instance.pull[place] if place >= 0 else -1)
            self._assign(request)

    @abstractmethod
    def _make_room(self, request: Request, source: str, place: int) -> bool:
        """Whether a candidate may join, if need be after evictions."""

    def _decode_ps(self, requests: int, context: int) -> int:
        profile = self.instance.profile
        return (
            int(profile.decode_base_ps[requests])
            + int(profile.decode_per_token_ps[requests]) * context
        )

    def _mixed_ps(self, decoding: int, context: int, tokens: int, pairs: int, chunks: int) -> int:
        """Time of `decoding` requests with `context` tokens beside `tokens` of so many chunks."""
        profile = self.instance.profile
        knots = profile.mixed_knot_tokens, profile.mixed_knot_ps, profile.mixed_slope_ps
        duration = time_at(decoding + tokens, *knots)
        duration += int(profile.mixed_base_ps[decoding])
        duration += int(profile.mixed_per_token_ps[decoding]) * context
        return duration + int(profile.mixed_pair_ps) * pairs + int(profile.mixed_chunk_ps) * chunks


class TokenScheduler(Scheduler):
    """KV memory is counted in tokens, and a request needs room for its whole context."""

    @property
    def kv_tokens(self) -> int:
        return self.instance.kv_of(self.instance.running)

    @abstractmethod
    def _due_to_emit(self, running: list[Request]) -> int:
        """Of these, how many may need one KV token more at the end of this iteration."""

    @abstractmethod
    def _in_budget(self, request: Request) -> bool:
        """The iteration's token budget has a place for this request."""

    def _make_room(self, request: Request, source: str, place: int) -> bool:
        """Rules a, b and the budget hold, if need be after evictions (rule c)."""
        instance = self.instance
        running = instance.running
        under_limit = self._under_limit(running)
        if source == "landed":  # its memory is taken, and it needs no prefill
            if not under_limit:
                instance.engine.events["landed_waits"] += 1
            return under_limit
        in_budget = self._in_budget(request)
        if under_limit and in_budget and self._in_memory(request, running):
            return True
        victims = self._victims(request, source, place) if in_budget else []
        others = [r for r in running if r not in victims]
        if victims and self._would_fit(request, others):
            while not self._would_fit(request, running):
                instance.engine.events[f"evict_for_{source.partition('_')[0]}"] += 1
                self._evict(victims.pop())
                instance.pull_until = min(instance.pull_until, place + 1)
            if self._in_memory(request, running):
                return True
            instance.engine.events["evicted_still_there"] += 1
        return False

    def _victims(self, request: Request, source: str, place: int) -> list[Request]:
        """Running requests that may have to make way for a candidate, most recently admitted last."""
        instance = self.instance
        pool = instance.pool
        if source == "own" and pool.evicts and request.priority == 0:
            return [r for r in instance.evictable() if r not in self.admitted]
        operations = instance.operations
        in_order = operations.pull_rule == PullRule.IN_ORDER
        if place >= 0 and operations.evicts_in_order and in_order:
            return [
                r
                for r in instance.running
                if r.queue >= 0 and instance.place_of(r) > place and r not in self.admitted
            ]
        return []

    def _would_fit(self, request: Request, running: list[Request]) -> bool:
        """Rules a and b hold, or will when what is being copied out has gone."""
        leaving = self.instance.leaving_tokens
        return self._under_limit(running) and self._in_memory(request, running, leaving)

    def _under_limit(self, running: list[Request]) -> bool:
        return len(running) < self.instance.batch_limit

    def _in_memory(self, request: Request, running: list[Request], gone_tokens: int = 0) -> bool:
        watermark = self.instance.watermark_tokens if running else 0
        used = self.instance.kv_of(running) + self._due_to_emit(running)
        used += self.instance.leaving_tokens - gone_tokens + self.instance.handover.tokens
        return used + self.instance.engine.demand(request) + watermark <= self.instance.capacity

    def _evict(self, request: Request) -> None:
        self.instance.evict(request)

    def _make_way(self) -> bool:
        """A batch that comes later on the list does not hold up a swap, where swaps flush."""
        instance = self.instance
        place = instance.foreign
        if place is None or not instance.operations.swap_flushes:
            return False
        if instance.operations.pull_rule != PullRule.IN_ORDER:
            return False
        # Preempted requests come before all queues: none waits when a head is foreign, but some may
        # have been admitted in this boundary. They go as well.
        if not all(r.queue >= 0 and instance.place_of(r) > place for r in instance.running):
            return False
        instance.flush()
        return True

    # --- launch ---

    def _decode(self, requests: list[Request]) -> Iteration:
        b = len(requests)
        self.instance.engine.events["decode_iteration"] += 1
        self.instance.closed = self.instance.operations.static_batch
        context = sum(r.ctx for r in requests)
        duration_ps = self._decode_ps(b, context)
        report = {"decode_requests": b, "decode_context": context, "decode_ps": duration_ps}
        return Iteration(duration_ps, decoding=list(requests), is_decode=True, report=report)


class PrefillFirst(TokenScheduler):
    """New prompts run on their own, before the next decode iteration.

    Attributes:
        fresh: requests of this boundary that need prefill, all of which emit at its end.
    """

    def __init__(self, instance: Instance) -> None:
        super().__init__(instance)
        self.fresh: list[Request] = []

    def plan(self) -> Iteration | None:
        instance = self.instance
        self.fresh = []
        instance.foreign = None
        self._admit()
        if self._make_way():
            self.fresh = []  # a preempted request may have been taken back just before
        if self.fresh:
            return self._prefill()
        while instance.running and instance.kv_tokens + len(instance.running) > instance.capacity:
            instance.preempt_latest()
        return self._decode(instance.running) if instance.running else None

    def form(self) -> Iteration | None:
        """Admission while other requests are being prefilled, for a live pair; None if nobody comes."""
        self.fresh = []
        self._admit()
        return self._prefill() if self.fresh else None

    def _due_to_emit(self, running: list[Request]) -> int:
        # A PREFILL instance runs nothing but prompts, in a live pair those of several batches.
        return len(running) if self.instance.handover.hands_over else len(self.fresh)

    def _in_budget(self, request: Request) -> bool:
        if not self.fresh or self.instance.keeps_copy_of(request):
            return True
        tokens = sum(r.ctx for r in self.fresh) + request.ctx
        within = tokens <= self.instance.pool.prefill_tokens
        if not within:
            self.instance.engine.events["prefill_budget"] += 1
        return within

    def _assign(self, request: Request) -> None:
        if request.to_prefill > 0:
            self.fresh.append(request)

    def _prefill(self) -> Iteration:
        profile = self.instance.profile
        self.instance.engine.events["prefill_iteration"] += 1
        tokens = [r.to_prefill for r in self.fresh]
        duration = time_at(
            sum(tokens),
            profile.prefill_knot_tokens,
            profile.prefill_knot_ps,
            profile.prefill_slope_ps,
        )
        squares = sum(n * n for n in tokens)
        duration += int(profile.prefill_pair_ps) * squares
        report = {
            "prefill_tokens": sum(tokens),
            "prefill_squares": squares,
            "prefill_requests": len(tokens),
            "prefill_ps": duration,
        }
        chunks = list(zip(self.fresh, tokens, strict=True))
        return Iteration(duration, chunks=chunks, report=report)


class Chunked(TokenScheduler):
    """Decode tokens and chunks of prompts share iterations of `chunk_tokens`.

    Attributes:
        left: tokens of the budget not given away yet.
        chunks: tokens that each prefilling request gets in this iteration.
    """

    def __init__(self, instance: Instance) -> None:
        super().__init__(instance)
        self.left = 0
        self.chunks: dict[Request, int] = {}

    def plan(self) -> Iteration | None:
        instance = self.instance
        self.chunks = {}
        instance.foreign = None
        preempted = False
        while instance.running and instance.kv_tokens + len(instance.running) > instance.capacity:
            instance.preempt_latest()
            preempted = True
        decoding = [r for r in instance.running if r.to_prefill == 0]
        self.left = max(0, instance.pool.chunk_tokens - len(decoding))
        for request in instance.running:
            if request.to_prefill > 0:
                self._give_chunk(request)
        if not preempted:
            self._admit()
            if self._make_way():
                self.chunks = {}
        decoding = [r for r in instance.running if r.to_prefill == 0]
        if any(self.chunks.values()):
            return self._mixed(decoding)
        return self._decode(decoding) if decoding else None

    def _give_chunk(self, request: Request) -> None:
        chunk = min(request.to_prefill, self.left)
        if chunk < request.to_prefill:
            self.instance.engine.events["prompt_split"] += 1
        self.chunks[request] = chunk
        self.left -= chunk

    def _due_to_emit(self, running: list[Request]) -> int:
        return len(running)

    def _in_budget(self, request: Request) -> bool:
        return self.left >= 1

    def _assign(self, request: Request) -> None:
        if request.to_prefill > 0:
            self._give_chunk(request)
        else:
            self.left -= 1

    def _evict(self, request: Request) -> None:
        self.chunks.pop(request, None)
        super()._evict(request)

    def _mixed(self, decoding: list[Request]) -> Iteration:
        b = len(decoding)
        self.instance.engine.events["mixed_iteration"] += 1
        chunks = [(r, n) for r, n in self.chunks.items() if n > 0]
        context = sum(r.ctx for r in decoding)
        pairs = sum(n * (2 * (r.ctx - r.to_prefill) + n) for r, n in chunks)
        duration = self._mixed_ps(b, context, sum(n for _, n in chunks), pairs, len(chunks))
        return Iteration(duration, decoding=decoding, chunks=chunks, is_decode=b > 0)
