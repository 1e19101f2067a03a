"""Knative's pod autoscaler: concurrency over a stable window and over a short one, with a panic mode.

Rule and constants are Knative's (documentation, "Configuring concurrency" and "Additional autoscaling
configuration"; `pkg/autoscaler/scaling/autoscaler.go`): every 2 s `n = ceil(C / target)`, with the
concurrency C averaged over 60 s and over 6 s. If the short window asks for twice the ready replicas or
more, the autoscaler panics: it follows the larger of the two and never goes down, until 60 s have passed
since the threshold was last exceeded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from pydantic import model_validator

from baselines.fleet import UniformPolicy
from baselines.parameters import Positive
from baselines.practice.seen import MovingMean, PracticeParameters, requests_in
from baselines.space import BATCH_LIMIT, Real, Space
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario


class KpaParameters(PracticeParameters):
    """Knative's defaults (config-autoscaler).

    Attributes:
        target: requests in the system per replica; `container-concurrency-target-default` 100 at a
            `container-concurrency-target-percentage` of 70.
        stable_window_s, panic_window_s: 60 s, and 10 % of that.
        panic_threshold: share of the ready replicas that the panic window asks for; 200 %.
        max_up_rate, max_down_rate: `max-scale-up-rate`, `max-scale-down-rate`: factors per look.
        period_s: of the autoscaler's tick.
    """

    target: Positive = 70.0
    stable_window_s: Positive = 60.0
    panic_window_s: Positive = 6.0
    panic_threshold: Positive = 2.0
    max_up_rate: Positive = 1000.0
    max_down_rate: Positive = 2.0
    period_s: Positive = 2.0

    @model_validator(mode="after")
    def _sound(self) -> KpaParameters:
        if self.panic_window_s > self.stable_window_s:
            raise ValueError(
                f"panic_window_s = {self.panic_window_s}: must be at most stable_window_s = "
                f"{self.stable_window_s}"
            )
        for name in ("panic_threshold", "max_up_rate", "max_down_rate"):
            if getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must be more than 1")
        return self


def wanted_replicas(concurrency: float, target: float) -> int:
    """`ceil(C / target)`."""
    return math.ceil(round(concurrency / target, 9))


@dataclass
class PanicMode:
    """Whether the autoscaler panics, and the most replicas that it has asked for meanwhile.

    Attributes:
        since_s: when the threshold was last exceeded; None: no panic.
        most: replicas below which it does not go.
    """

    since_s: float | None = None
    most: int = 0

    def decide(
        self,
        time_s: float,
        stable: int,
        panic: int,
        ready: int,
        *,
        threshold: float = 2.0,
        hold_s: float = 60.0,
        max_up_rate: float = 1000.0,
        max_down_rate: float = 2.0,
    ) -> int:
        """Replicas to have.

        Args:
            time_s: now.
            stable, panic: what the two windows ask for.
            ready: replicas that serve (at least 1 counts).
            threshold: `panic / ready` at which panic begins.
            hold_s: how long it lasts after that.
            max_up_rate, max_down_rate: bounds of one look, over the ready replicas.
        """
        ready = max(ready, 1)
        low, high = math.floor(ready / max_down_rate), math.ceil(max_up_rate * ready)
        if panic / ready >= threshold:
            self.since_s = time_s
        elif self.since_s is not None and time_s > self.since_s + hold_s:
            self.since_s, self.most = None, 0
        wanted = min(max(stable, low), high)
        if self.since_s is None:
            return wanted
        self.most = max(self.most, wanted, min(max(panic, low), high))
        return self.most


class KpaPolicy(UniformPolicy):
    """Knative's KPA for all classes alike.

    Knative averages what its queue proxies report every second; here the gauge is read at every decision, so
    with decisions every 10 s the panic window holds one value (ours). As Knative's, it begins in panic with
    the replicas that it finds, if they are more than one. Loading replicas are not ready: they do not count
    in the threshold, and are not ordered twice, since what it wants does not hang on what there is.
    """

    parameters_type = KpaParameters
    usual_name = "kpa"
    parameters: KpaParameters

    GRID: ClassVar[dict[str, tuple[object, ...]]] = {
        "target": (8.0, 16.0, 32.0, 70.0, 140.0),
        "stable_window_s": (30.0, 60.0, 300.0),
        "panic_threshold": (1.5, 2.0, 4.0),
        "batch_limit": (64, 128, 256),
    }
    SPACE: ClassVar[Space] = {
        "target": Real(2, 250, log=True),
        "stable_window_s": Real(10, 600, log=True),
        "panic_threshold": Real(1.1, 8, log=True),
        "batch_limit": BATCH_LIMIT,
    }

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Forget concurrency and panic."""
        super().reset(scenario, seed)
        longest = self.parameters.stable_window_s
        self._concurrency = {p: MovingMean(longest) for p in self._pools}
        self._panic: dict[int, PanicMode] = {}

    def observe(self, view: ClusterView) -> None:
        """Take a sample of the concurrency."""
        for p, mean in self._concurrency.items():
            mean.add(view.time_s, requests_in(view, p))

    def desired(self, view: ClusterView, p: int, have: int) -> tuple[int, str]:
        """What the two windows ask for."""
        settings = self.parameters
        if p not in self._panic:
            self._panic[p] = PanicMode(view.time_s, have) if have > 1 else PanicMode()
        if not view.pools[p]["active"]:
            return have, "nothing serves yet"
        means = [
            self._concurrency[p].mean(window)
            for window in (settings.stable_window_s, settings.panic_window_s)
        ]
        stable, panic = (wanted_replicas(mean, settings.target) for mean in means)
        mode = self._panic[p]
        wanted = mode.decide(
            view.time_s,
            stable,
            panic,
            int(view.pools["active"][p]),
            threshold=settings.panic_threshold,
            hold_s=settings.stable_window_s,
            max_up_rate=settings.max_up_rate,
            max_down_rate=settings.max_down_rate,
        )
        panics = "" if mode.since_s is None else ", panic"
        return wanted, f"concurrency {means[0]:.3g}, {means[1]:.3g}{panics}"
