"""The scheduler of vLLM's V1 engine: docs/engine.md, section 19."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from llmscale_env.sim.reference.serving.scheduler import Iteration, Scheduler
from llmscale_env.sim.reference.state.block_pool import Block, BlockName, BlockPool
from llmscale_env.sim.reference.state.request import Request
from llmscale_env.sim.spec import V1Spec

if TYPE_CHECKING:
    from llmscale_env.sim.reference.instance import Instance


class Share(NamedTuple):
    """What one request gets in a step.

    Attributes:
        done: tokens of it computed before.
        emits: it emits a token at the end of the step.
    """

    request: Request
    tokens: int
    done: int
    emits: bool


@dataclass
class Step(Iteration):
    """An iteration as it was composed, whoever has been preempted since.

    Attributes:
        shares: what each request gets, in order of admission.
    """

    shares: list[Share] = field(default_factory=list)

    def end(self) -> list[Request]:
        for request, tokens in self.chunks:
            request.to_prefill -= tokens
        emitting = [share.request for share in self.shares if share.emits]
        for request in emitting:
            request.to_come -= 1
        return emitting


class VllmV1(Scheduler):
    """One list of requests in order of admission, each of which has tokens to catch up on.

    Attributes:
        left: tokens of the budget not given away yet.
        step: what is being composed.
        memory: its KV blocks.
    """

    composed: Step | None

    def __init__(self, instance: Instance, v1: V1Spec) -> None:
        super().__init__(instance)
        self.v1 = v1
        self.left = 0
        self.step = Step(0)
        self.memory = BlockPool(instance.capacity // v1.block_tokens)
        self._named_now: set[BlockName] = set()
        self._blocked: tuple[Request, int] | None = None

    # --- memory ---

    @property
    def kv_tokens(self) -> int:
        return (self.memory.size - self.memory.free) * self.v1.block_tokens

    @property
    def kv_cached(self) -> int:
        return len(self.memory.cached) * self.v1.block_tokens

    @property
    def cached_blocks(self) -> list[BlockName]:
        return [block.name for block in self.memory.cached if block.name is not None]

    def found_tokens(self, request: Request) -> int:
        return len(self._hits(request)) * self.v1.block_tokens

    def _take(self, request: Request, tokens: int) -> None:
        """Blocks for the next `tokens` of a request, and names for those full of tokens that are known."""
        before = self.memory.evicted
        more = self.v1.blocks(request.done + tokens) - len(request.blocks)
        request.blocks += self.memory.take(more)
        self.instance.engine.events["v1_evicted"] += self.memory.evicted > before
        self._name(request, min(request.done + tokens, request.ctx))

    def _name(self, request: Request, tokens: int) -> None:
        """Give the blocks that are full of a request's first `tokens` tokens their names."""
        if not self.v1.prefix_cache:
            return
        size = self.v1.block_tokens
        for index in range(request.named, tokens // size):
            name = request.block_name(index, size)
            there = self.memory.give_name(request.blocks[index], name)
            self.instance.engine.events["v1_second_bearer"] += there
            self._named_now.add(name)
            request.named += 1

    def _hits(self, request: Request) -> list[Block]:
        """Blocks of its first tokens that are there; at least one token is left to be computed."""
        found: list[Block] = []
        size = self.v1.block_tokens
        for index in range((request.ctx - 1) // size if self.v1.prefix_cache else 0):
            block = self.memory.find(request.block_name(index, size))
            if block is None:
                break
            found.append(block)
        return found

    def has_last_step(self, request: Request) -> bool:
        if self.composed is None or request.emitted + request.to_come < request.output_tokens:
            return False
        return all(share.request is not request for share in self.composed.shares)

    def complete(self, request: Request) -> None:
        """The KV of its last token is never made, that of all others is known now."""
        self._name(request, request.done)

    def release(self, request: Request) -> None:
        self.memory.release(request.blocks)
        request.blocks, request.named, request.done = [], 0, 0

    def forget(self) -> None:
        self.instance.engine.events["v1_cache_lost"] += self.kv_cached > 0
        self.memory = BlockPool(self.memory.size)
        self._blocked = None

    # --- steps ---

    def plan(self) -> Iteration | None:
        """The step that runs now: with `asynchronous` the one composed a boundary ago."""
        if not self.v1.asynchronous:
            self._compose()
            runs, host_ps = self.step, self._host_ps(self.step)
            duration_ps = host_ps + self._gpu_ps(runs)
        else:
            runs = self.composed or Step(0)
            self._compose()
            self.composed = self.step
            duration_ps = max(self._gpu_ps(runs), self._host_ps(self.step))
            if not runs.shares and self.step.shares:
                self.instance.engine.events["v1_waits_for_host"] += 1
        if not (runs.shares or self.step.shares):
            self.composed = None
            return None
        runs.duration_ps = duration_ps
        if runs.decoding and not runs.chunks:
            context = sum(s.done + 1 for s in runs.shares)
            runs.report = {
                "decode_requests": len(runs.decoding),
                "decode_context": context,
                "decode_ps": duration_ps,
            }
        return runs

    def _compose(self) -> None:
        """Running requests in order of admission, then, unless one had to give way, waiting ones."""
        instance, events = self.instance, self.instance.engine.events
        self.step = Step(0)
        self._named_now.clear()
        self.left = instance.pool.chunk_tokens
        instance.foreign = None
        preempted = False
        for request in list(instance.running):
            if request not in instance.running:  # nor is anybody behind it
                break
            if request.emitted + request.to_come >= request.output_tokens:
                events["v1_last_token_in_flight"] += 1
                continue
            missing = request.ctx + request.to_come - request.done
            tokens = min(missing, self.left)
            if tokens == 0:
                break
            while request in instance.running and not self._has_blocks(request, tokens):
                latest = instance.running[-1]
                events["v1_preempted_in_flight"] += latest.to_come > 0
                instance.preempt_latest()
                preempted = True
            if request in instance.running:
                self._give(request, tokens)
        if not preempted:
            self._admit()
        self.step.is_decode = bool(self.step.decoding)

    def _has_blocks(self, request: Request, tokens: int) -> bool:
        return self.v1.blocks(request.done + tokens) - len(request.blocks) <= self.memory.free

    def _give(self, request: Request, tokens: int) -> None:
        if request.to_compute > 0:
            self.instance.engine.events["v1_prompt_split"] += tokens < request.to_compute
            self.step.chunks.append((request, tokens))
            request.to_compute -= tokens
        else:
            self.step.decoding.append(request)
        self._take(request, tokens)
        emits = request.done + tokens == request.ctx + request.to_come
        self.step.shares.append(Share(request, tokens, request.done, emits))
        request.done += tokens
        request.to_come += emits
        self.left -= tokens

    def _make_room(self, request: Request, source: str, place: int) -> bool:
        """The head of a queue may join: it needs a place, budget and blocks; it passes nobody by."""
        running = self.instance.running
        if len(running) >= self.instance.batch_limit or self.left == 0:
            return False
        hits = self._hits(request)
        tokens = request.ctx
        if not self.v1.reserve_full:
            tokens = min(tokens, len(hits) * self.v1.block_tokens + self.left)
        kept = self.instance.watermark_tokens // self.v1.block_tokens if running else 0
        idle = sum(block.holders == 0 for block in hits)  # free now, and no longer once it has them
        fits = self.v1.blocks(tokens) - len(hits) + idle + kept <= self.memory.free
        if not fits:
            self.instance.engine.events["v1_no_blocks"] += 1
            if self._blocked is None or self._blocked[0] is not request:
                self._blocked = request, len(hits)
        return fits

    def _assign(self, request: Request) -> None:
        hits = self._hits(request)
        self._count_hits(request, hits)
        self.memory.hold(hits)
        request.blocks, request.named = hits, len(hits)
        request.done = len(hits) * self.v1.block_tokens
        request.to_compute = request.to_prefill = request.ctx - request.done
        self._give(request, min(request.to_compute, self.left))

    def _count_hits(self, request: Request, hits: list[Block]) -> None:
        if not self.v1.prefix_cache:
            return
        tokens = len(hits) * self.v1.block_tokens
        if request.preemptions + request.evictions + request.restarts == 0:
            request.cached_tokens = tokens
        if request.preemptions == 0:  # vLLM counts the others apart
            self.asked_tokens += request.ctx
            self.hit_tokens += tokens
        events = self.instance.engine.events
        events["v1_hit"] += tokens > 0
        events["v1_hit_of_running"] += any(block.holders > 0 for block in hits)
        events["v1_hit_in_step"] += any(block.name in self._named_now for block in hits)
        events["v1_found_again"] += request.preemptions > 0 and tokens > 0
        if self._blocked is not None and self._blocked[0] is request:
            events["v1_more_hits_later"] += len(hits) > self._blocked[1]
            self._blocked = None

    def _host_ps(self, step: Step) -> int:
        n = len(step.shares)
        return self.v1.host_base_ps + self.v1.host_per_request_ps * n if n else 0

    def _gpu_ps(self, step: Step) -> int:
        """Section 4's time of a mixed iteration, or of a decode iteration if no prompt is in it."""
        before = {share.request: share.done for share in step.shares}
        context = sum(before[r] + 1 for r in step.decoding)
        if step.chunks:
            pairs = sum(n * (2 * before[r] + n) for r, n in step.chunks)
            tokens = sum(n for _, n in step.chunks)
            return self._mixed_ps(len(step.decoding), context, tokens, pairs, len(step.chunks))
        return self._decode_ps(len(step.decoding), context) if step.decoding else 0
