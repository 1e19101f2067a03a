"""The scheduler of vLLM's V1 engine: docs/engine.md, section 19."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from llmscale_env.sim.reference.serving.scheduler import Iteration, Scheduler
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
    """

    composed: Step | None

    def __init__(self, instance: Instance, v1: V1Spec) -> None:
        super().__init__(instance)
        self.v1 = v1
        self.left = 0
        self.step = Step(0)

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
        more = self.v1.blocks(request.done + tokens) - self.v1.blocks(request.done)
        return more <= self._free

    @property
    def _free(self) -> int:
        """Blocks that no request holds."""
        held = sum(self.v1.blocks(r.done) for r in self.instance.running)
        return self.instance.capacity // self.v1.block_tokens - held

    def _give(self, request: Request, tokens: int) -> None:
        if request.to_compute > 0:
            self.instance.engine.events["v1_prompt_split"] += tokens < request.to_compute
            self.step.chunks.append((request, tokens))
            request.to_compute -= tokens
        else:
            self.step.decoding.append(request)
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
        tokens = request.ctx if self.v1.reserve_full else min(request.ctx, self.left)
        kept = self.instance.watermark_tokens // self.v1.block_tokens if running else 0
        fits = self.v1.blocks(tokens) + kept <= self._free
        self.instance.engine.events["v1_no_blocks"] += not fits
        return fits

    def _assign(self, request: Request) -> None:
        request.to_compute = request.ctx
        self._give(request, min(request.ctx, self.left))

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
