"""Aladdin's best-fit placement: docs/engine.md section 14.

Source: Nie, Fonseca and Liu, "Aladdin: Joint Placement and Scaling for SLO-Aware LLM Serving",
Algorithm 1 and the constraints (b) to (e) of its section 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmscale_env.sim.reference.state.request import Request
from llmscale_env.sim.spec import Fallback, PlacementSpec, PoolPhase

if TYPE_CHECKING:
    from llmscale_env.sim.reference.instance import Instance


def predicted(request: Request) -> int:
    """Tokens that it will have emitted in all, at least one more than it has."""
    return max(request.predicted_output_tokens, request.emitted + 1)


class BestFit:
    """One placement: the candidates as they are at this time.

    Args:
        placement: coefficients, targets and strictness.
        request: who is placed.
        decode: whether it has been prefilled elsewhere.
    """

    def __init__(self, placement: PlacementSpec, request: Request, decode: bool) -> None:
        self.placement = placement
        self.request = request
        self.decode = decode

    def choose(self, candidates: Sequence[Instance]) -> Instance | None:
        """The fullest candidate that can take the request, or what the fallback says."""
        events = candidates[0].engine.events
        for instance in sorted(candidates, key=self.norm, reverse=True):
            broken = self._broken(instance)
            if not broken:
                events["best_fit_taken"] += 1
                return instance
            events[f"best_fit_{broken}"] += 1
        if self.placement.fallback == Fallback.WAIT:
            events["best_fit_wait"] += 1
            return None
        events["best_fit_least"] += 1
        return min(candidates, key=self.norm)

    def norm(self, instance: Instance) -> float:
        """Aladdin's capacity_norm."""
        there = instance.all_requests
        b, length = float(len(there)), self._length(there)
        if self.placement.scaled_norm:
            b = b / float(instance.batch_limit)
            length = length / float(instance.capacity)
        return b * b + length * length

    def _length(self, requests: Sequence[Request]) -> float:
        inputs = sum(r.input_tokens for r in requests)
        outputs = sum(predicted(r) for r in requests)
        return float(inputs) + self.placement.gamma * float(outputs)

    def _broken(self, instance: Instance) -> str:
        """The first constraint that would not hold, '' if all do."""
        c1, k1, c3, c2, k2 = instance.placement_model or self.placement.model
        there = instance.all_requests
        if instance.pool.phase != PoolPhase.PREFILL:
            b = float(len(there) + 1)
            theta, itl_ps = self.placement.theta, float(self.placement.itl_ps)
            if there:
                most = theta * (itl_ps - c3 - c2 * b) / k2
                if self._length([*there, self.request]) > most:
                    return "b"
        if not self.decode:
            new = [r.input_tokens for r in there if r.emitted == 0]
            events = instance.engine.events
            events["best_fit_under_way"] += len(new) > len(instance.own_queue)
            tokens = sum(new) + self.request.ctx
            prefill_ps = c1 + k1 * float(tokens)
            if prefill_ps > float(self.placement.ttft_ps):
                return "c"
            saved = self._saved_ps(instance)
            if saved is not None and prefill_ps > self.placement.theta * float(saved):
                return "d"
        if instance.pool.phase != PoolPhase.PREFILL and not self._fits_to_the_end(instance):
            return "e"
        return ""

    def _saved_ps(self, instance: Instance) -> int | None:
        """Least time by which a running request is ahead of its ITL target: 0 before its first token."""
        if instance.pool.phase == PoolPhase.PREFILL:
            return None
        now_ps = instance.engine.now_ps
        last = 0 if self.placement.saved_over_tokens else 1
        return min(
            (
                self.placement.itl_ps * (r.emitted - last) - (now_ps - r.first_token_ps)
                if r.emitted > 0
                else 0
                for r in instance.running
            ),
            default=None,
        )

    def _fits_to_the_end(self, instance: Instance) -> bool:
        there = [*instance.all_requests, self.request]
        half = instance.engine.spec.half_block_tokens
        allowed = instance.capacity - instance.watermark_tokens
        # The sum grows between two predicted ends, so it is largest just before one.
        for k in sorted({predicted(r) - r.emitted - 1 for r in there}):
            left = [r for r in there if predicted(r) - r.emitted > k]
            if sum(r.ctx + k + 1 + half for r in left) > allowed:
                return False
        return True
