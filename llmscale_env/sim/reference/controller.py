"""How an instance's batch limit moves: docs/engine.md section 7.

Source: Patke et al., "Hierarchical Autoscaling for LLM Serving with Chiron", Algorithm 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from llmscale_env.sim.spec import ControllerKind

if TYPE_CHECKING:
    from llmscale_env.sim.reference.instance import Instance


class BatchController:
    """Measures one instance's windows and, unless `FIXED`, moves its batch limit.

    Attributes:
        x: the float64 limit, of which `batch_limit` is the whole part.
        throughput_before: tokens per picosecond of the window before (None at first).
        changed: a request joined or left the running batch in this window.
        bound: an admission of this window ended at the batch limit.
        was_bound: whether the window before was `bound`.
        restart: limit or kind was set by command, so what was measured so far is forgotten.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.throughput_before: float | None = None
        self.changed = False
        self.bound = False
        self.was_bound = False
        self.restart = False
        self.start_ps = 0
        self.decode_iterations = 0
        self.tokens = 0
        self.set_limit(instance.pool.batch_limit, ControllerKind(instance.pool.controller))

    def set_limit(self, limit: int, kind: ControllerKind) -> None:
        """A command sets the limit; under a controller it is held in the controller's range."""
        self.x = float(limit)
        self.batch_limit = limit
        if kind != ControllerKind.FIXED:
            self._set_held(self.x)

    def count(self, tokens: int, is_decode: bool) -> None:
        """An iteration has ended."""
        self.tokens += tokens
        self.decode_iterations += is_decode

    def start_window(self) -> None:
        """Measure anew from now on; `changed` and `bound` stay."""
        self.start_ps = self.instance.engine.now_ps
        self.decode_iterations = 0
        self.tokens = 0

    def forget(self) -> None:
        """Measure anew, as nothing runs."""
        self.start_window()
        self.changed = self.bound = self.restart = False

    def step(self, kind: ControllerKind, ran: int) -> None:
        """Step 4 of a boundary; `ran`: requests in the iteration that has just ended."""
        if self.restart or not self.instance.running:
            self.forget()
            return
        if kind == ControllerKind.FIXED:
            return
        if kind == ControllerKind.CHIRON and ran > self.batch_limit:
            # The larger batch of before says nothing about the limit of now.
            self.start_window()
            return
        literal = kind == ControllerKind.CHIRON_LITERAL
        enough = 1 if literal else self.instance.pool.controller_window_iterations
        if self.changed and self.decode_iterations >= enough:
            self._update(literal)

    def _update(self, literal: bool) -> None:
        instance, pool = self.instance, self.instance.pool
        elapsed = float(instance.engine.now_ps - self.start_ps)
        slo = float(min(instance.engine.itl_slo_ps(r) for r in instance.running))
        latency_pressure = elapsed / float(self.decode_iterations) / slo
        throughput = float(self.tokens) / elapsed
        throughput_pressure = 0.0
        if self.throughput_before is not None:
            throughput_pressure = self.throughput_before / throughput
        if not literal and not (self.bound and self.was_bound):
            # A batch that the limit did not hold back says nothing about the limit.
            throughput_pressure = 0.0

        before = self.batch_limit
        pressure = max(latency_pressure, throughput_pressure)
        alpha = pool.controller_alpha
        if pressure >= 1.0:
            self._set_held(self.x / 2.0)
        elif literal or self.bound:
            self._set_held(alpha * (1.0 / pressure) * self.x + (1.0 - alpha) * self.x)

        kind = "literal" if literal else "chiron"
        moved = (self.batch_limit > before) - (self.batch_limit < before)
        instance.engine.events[f"limit_{('kept', 'raised', 'lowered')[moved]}_{kind}"] += 1
        self.throughput_before = throughput
        self.was_bound = self.bound
        self.forget()

    def _set_held(self, x: float) -> None:
        """`x` held in the pool's range, which never goes beyond the iteration-time tables."""
        pool = self.instance.pool
        highest = min(pool.controller_max_batch, self.instance.profile.max_batch)
        self.x = min(max(x, float(pool.controller_min_batch)), float(highest))
        self.batch_limit = math.floor(self.x)
