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
        changed: a request joined or left the running batch in this window.
        bound: in this window the limit alone kept a request out, here or at the router.
        held: in this window limit or memory kept a request out, here or at the router.
        filling: the limit was raised, and since then only the token budget ended admissions.
        reference: (tokens per picosecond, limit) that a doubled limit has to improve on.
        throughput_before: of the window before (`CHIRON_LITERAL`).
        alone_ps: time of the window in which no running request was decoding.
        restart: limit or kind was set by command, so what was measured so far is forgotten.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.throughput_before: float | None = None
        self.reference: tuple[float, int] | None = None
        self.changed = self.bound = self.held = self.filling = False
        self.restart = False
        self.start_ps = 0
        self.decode_iterations = 0
        self.tokens = 0
        self.alone_ps = 0
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

    def turned_away(self, under_limit: bool, fits: bool, in_budget: bool) -> None:
        """An admission has ended with a request at hand.

        Args:
            under_limit: rule a holds.
            fits: rules a and b hold.
            in_budget: the iteration's token budget has a place for it.
        """
        self.bound |= not under_limit
        self.held |= in_budget or not under_limit
        self.filling &= fits and not in_budget

    def start_window(self) -> None:
        """Measure anew from now on; what is known of requests that came, left or waited stays."""
        self.start_ps = self.instance.engine.now_ps
        self.decode_iterations = 0
        self.tokens = 0
        self.alone_ps = 0

    def forget(self) -> None:
        """Measure anew, as nothing runs."""
        self.start_window()
        self.changed = self.bound = self.held = self.filling = self.restart = False

    def step(self, kind: ControllerKind, ran: int) -> None:
        """Step 4 of a boundary; `ran`: requests in the iteration that has just ended."""
        if self.restart or not self.instance.running:
            self.forget()
            return
        if kind == ControllerKind.FIXED:
            return
        literal = kind == ControllerKind.CHIRON_LITERAL
        if not literal and (ran > self.batch_limit or self.filling):
            # Neither the larger batch of before nor one still filling says anything about the limit.
            self.instance.engine.events["batch_filling"] += self.filling
            self.start_window()
            return
        enough = 1 if literal else self.instance.pool.controller_window_iterations
        if self.changed and self.decode_iterations >= enough:
            self._update(literal, ran)

    def _update(self, literal: bool, ran: int) -> None:
        instance = self.instance
        before = self.batch_limit
        elapsed_ps = instance.engine.now_ps - self.start_ps
        throughput = float(self.tokens) / float(elapsed_ps)
        waited_ps = elapsed_ps if literal else elapsed_ps - self.alone_ps
        itl_ps = float(waited_ps) / float(self.decode_iterations)
        slo_ps = min(instance.engine.itl_slo_ps(r) for r in instance.running)
        latency_pressure = itl_ps / float(slo_ps)
        if literal:
            self._move_literally(latency_pressure, throughput)
        else:
            self._move(latency_pressure, throughput, ran)
        kind = "literal" if literal else "chiron"
        moved = (self.batch_limit > before) - (self.batch_limit < before)
        instance.engine.events[f"limit_{('kept', 'raised', 'lowered')[moved]}_{kind}"] += 1
        filling = self.filling
        self.forget()
        self.filling = filling

    def _grown(self, pressure: float) -> float:
        """Line 10 of Algorithm 1."""
        alpha = self.instance.pool.controller_alpha
        return alpha * (1.0 / pressure) * self.x + (1.0 - alpha) * self.x

    def _move_literally(self, latency_pressure: float, throughput: float) -> None:
        """Algorithm 1 as printed."""
        pressure = latency_pressure
        if self.throughput_before is not None:
            pressure = max(pressure, self.throughput_before / throughput)
        self._set_held(self._grown(pressure) if pressure < 1.0 else self.x / 2.0)
        self.throughput_before = throughput

    def _move(self, latency_pressure: float, throughput: float, ran: int) -> None:
        """Algorithm 1 made steady; the last iteration was one of `ran` requests."""
        before = self.batch_limit
        doubled = self.reference is not None and before >= 2 * self.reference[1]
        throughput_pressure = 0.0
        if self.reference is not None and doubled and self.held:
            throughput_pressure = self.reference[0] / throughput
        if latency_pressure >= 1.0:
            self._set_held(self.x / 2.0)
        elif throughput_pressure >= 1.0:
            self.instance.engine.events["halved_for_throughput"] += 1
            # Memory may hold the batch below the limit; it is the batch that is to shrink.
            self._set_held(min(self.x, float(ran)) / 2.0)
        elif self.bound:
            if doubled or self.reference is None or before == self.reference[1]:
                self.reference = (throughput, before)
            self._set_held(min(self._grown(latency_pressure), 2.0 * self.x))
            self.filling = self.batch_limit > before
        if self.reference is not None and self.batch_limit < self.reference[1]:
            self.reference = None

    def _set_held(self, x: float) -> None:
        """`x` held in the pool's range, which never goes beyond the iteration-time tables."""
        pool = self.instance.pool
        highest = min(pool.controller_max_batch, self.instance.profile.max_batch)
        self.x = min(max(x, float(pool.controller_min_batch)), float(highest))
        self.batch_limit = math.floor(self.x)
