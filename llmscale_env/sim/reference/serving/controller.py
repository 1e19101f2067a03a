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
        raised: the last update raised the batch limit.
        x_before: the limit that it raised.
        settling: the batch is on its way to a limit that has moved (`controller_settles`).
        joined: a request joined the running batch since the last boundary.
        throughput_before: tokens per picosecond of the window before; None: there was none.
        restart: limit or kind was set by command, so what was measured so far is forgotten.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.throughput_before: float | None = None
        self.changed = self.raised = self.restart = False
        self.settling = self.joined = False
        self.x_before = 0.0
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
        """Measure anew from now on."""
        self.start_ps = self.instance.engine.now_ps
        self.decode_iterations = 0
        self.tokens = 0
        self.changed = False

    def forget(self) -> None:
        """Measure anew; a throughput that follows is not the effect of the last raise."""
        self.start_window()
        self.raised = self.restart = self.settling = False

    def step(self, kind: ControllerKind) -> None:
        """Step 4 of a boundary."""
        if self.restart or not self.instance.running:
            self.forget()
            return
        if self.settling:
            self._settle()
            return
        enough = self.decode_iterations >= self.instance.pool.controller_window_iterations
        if kind != ControllerKind.FIXED and self.changed and enough:
            self._update(kind)
            self.start_window()

    def _settle(self) -> None:
        """The window of a limit that has moved begins when the batch has its size, or grows no more."""
        room = self.batch_limit - len(self.instance.running)
        self.settling = room < 0 or (room > 0 and self.joined)
        self.joined = False
        self.instance.engine.events["settling" if self.settling else "settled"] += 1
        self.start_window()

    def _update(self, kind: ControllerKind) -> None:
        """Lines 4 to 15 of Algorithm 1."""
        instance = self.instance
        before, x = self.batch_limit, self.x
        elapsed_ps = float(instance.engine.now_ps - self.start_ps)
        itl_ps = elapsed_ps / float(self.decode_iterations)
        slo_ps = min(instance.engine.itl_slo_ps(r) for r in instance.running)
        latency_pressure = itl_ps / float(slo_ps)
        throughput = float(self.tokens) / elapsed_ps
        pressure = latency_pressure
        if self.throughput_before is not None:
            if self.raised or kind == ControllerKind.CHIRON_LITERAL:
                pressure = max(pressure, self.throughput_before / throughput)
            elif self.throughput_before > throughput:
                instance.engine.events["loss_without_raise"] += 1
        if pressure < 1.0:
            alpha = instance.pool.controller_alpha
            self._set_held(alpha * (1.0 / pressure) * self.x + (1.0 - alpha) * self.x)
        elif instance.pool.controller_reverts and self.raised and latency_pressure < 1.0:
            instance.engine.events["raise_taken_back"] += 1
            self._set_held(self.x_before)
        else:
            instance.engine.events["halved_for_throughput"] += latency_pressure < 1.0
            self._set_held(self.x / 2.0)
        self.throughput_before = throughput
        self.raised = self.batch_limit > before
        if self.raised:
            self.x_before = x
        self.settling = instance.pool.controller_settles and self.batch_limit != before
        self.joined = False
        moved = self.raised - (self.batch_limit < before)
        name = "literal" if kind == ControllerKind.CHIRON_LITERAL else "chiron"
        instance.engine.events[f"limit_{('kept', 'raised', 'lowered')[moved]}_{name}"] += 1

    def _set_held(self, x: float) -> None:
        """`x` held in the pool's range, which never goes beyond the iteration-time tables."""
        pool = self.instance.pool
        highest = min(pool.controller_max_batch, self.instance.profile.max_batch)
        self.x = min(max(x, float(pool.controller_min_batch)), float(highest))
        self.batch_limit = math.floor(self.x)
