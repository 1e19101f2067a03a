"""Performance models of every worker, learnt from its reports while it serves (step 3 of Figures 4 and 5)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from baselines.aladdin.online import SATURATING_TOKENS, DriftRule, WorkerModels
from baselines.aladdin.performance import DecodeTime, PrefillTime
from baselines.aladdin.profiling import Profile
from llmscale_env.control.view import ClusterView

Model = tuple[float, float, float, float, float]
"""Seconds: c1, k1 of prefill, c3, c2, k2 of decode, as `Command.placement_models` takes them."""


@dataclass
class WorkerBook:
    """Models by instance slot.

    Attributes:
        prefill, decode: profiles that workers begin with (of split phases those of two pools).
        rule: of drift.
        tolerance: a model is sent anew where its times differ from those sent by more than this share.
        shortest_tokens: of a prefill iteration that is a sample of Eq. 2.
        typical: batch, context of a batch, prompt tokens: where models are compared.
        drifts: (time in s, instance) of each drift found.
    """

    prefill: Profile
    decode: Profile
    rule: DriftRule = field(default_factory=DriftRule)
    tolerance: float = 0.01
    shortest_tokens: float = SATURATING_TOKENS
    typical: tuple[int, float, float] = (16, 8000.0, 256.0)
    drifts: list[tuple[float, int]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._models: dict[int, WorkerModels] = {}
        self._last: NDArray[np.void] | None = None
        self._sent: dict[int, Model] = {}
        self._known: Model = self._vector(self.prefill.prefill, self.decode.decode)

    @staticmethod
    def _vector(prefill: PrefillTime, decode: DecodeTime) -> Model:
        return (
            prefill.const_s,
            prefill.per_token_s,
            decode.const_s,
            decode.per_request_s,
            decode.per_token_s,
        )

    @property
    def profiled(self) -> Model:
        """What all workers begin with."""
        return self._known

    def decode_of(self, instance: int) -> DecodeTime:
        """Eq. 3 of a worker, as the router has it."""
        c3, c2, k2 = self._sent.get(instance, self._known)[2:]
        return DecodeTime(k2, c2, c3)

    def prefill_of(self, instance: int) -> PrefillTime:
        """Eq. 2 of a worker, as the router has it."""
        c1, k1 = self._sent.get(instance, self._known)[:2]
        return PrefillTime(k1, c1)

    def observe(self, view: ClusterView, instances: NDArray[np.int64]) -> list[int]:
        """Takes the reports that are new.

        Args:
            view: of the heartbeat.
            instances: workers that are looked at.

        Returns:
            Workers that have been found to drift by these reports.
        """
        reports = view.reports
        before, self._last = self._last, reports
        new = ~np.isnan(reports["decode_s"])
        fresh = ~np.isnan(reports["prefill_s"])
        if before is not None:
            same = [
                reports[name] == before[name]
                for name in ("decode_requests", "decode_context", "decode_s")
            ]
            new &= ~np.logical_and.reduce(same)
            fresh &= (reports["prefill_s"] != before["prefill_s"]) | (
                reports["prefill_tokens"] != before["prefill_tokens"]
            )
        found = []
        for i in instances.tolist():
            if not (new[i] or fresh[i]):
                continue
            row = reports[i]
            models = self._models.get(i)
            if models is None:
                models = WorkerModels(
                    self.prefill.prefill_fit,
                    self.decode.decode_fit,
                    self.rule,
                    (self.shortest_tokens, 4096.0),
                )
                self._models[i] = models
            drifted = False
            if fresh[i]:
                tokens, seconds = float(row["prefill_tokens"]), float(row["prefill_s"])
                drifted |= models.report_prefill(tokens, seconds)
            if new[i]:
                batch, context = int(row["decode_requests"]), float(row["decode_context"])
                drifted |= models.report_decode(batch, context, float(row["decode_s"]))
            if drifted:
                found.append(i)
                self.drifts.append((view.time_s, i))
        return found

    def news(self, instances: list[int]) -> dict[int, Model]:
        """Models of some workers that the router should have, where they have moved."""
        news = {}
        for i in instances:
            if i not in self._models:
                continue
            models = self._models[i]
            now = self._vector(models.prefill, models.decode)
            if self._apart(now, self._sent.get(i, self._known)):
                news[i] = self._sent[i] = now
        return news

    def learners(self) -> list[int]:
        """Workers that have reported."""
        return sorted(self._models)

    def _apart(self, now: Model, sent: Model) -> bool:
        batch, context, prompt = self.typical
        for a, b in (
            (now[0] + now[1] * prompt, sent[0] + sent[1] * prompt),
            (
                now[2] + now[3] * batch + now[4] * context,
                sent[2] + sent[3] * batch + sent[4] * context,
            ),
        ):
            if abs(a - b) > self.tolerance * b:
                return True
        return False
