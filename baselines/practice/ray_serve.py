"""Ray Serve's autoscaler: ongoing requests over a target, once it has said so for long enough.

Rule and constants are Ray's (`python/ray/serve/autoscaling_policy.py` and `AutoscalingConfig`): `desired =
ceil(ongoing / target)` with 2 ongoing requests per replica, their mean over the last 30 s; more replicas are
started when every look of 30 s wanted more, fewer are kept when every look of 600 s wanted fewer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from baselines.fleet import UniformPolicy
from baselines.parameters import NonNegative, Positive
from baselines.practice.seen import MovingMean, PracticeParameters, requests_in
from baselines.space import BATCH_LIMIT, Real, Space
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario


class RayServeParameters(PracticeParameters):
    """Ray Serve's defaults (`AutoscalingConfig`).

    Attributes:
        target: `target_ongoing_requests`, running and waiting.
        look_back_s: `look_back_period_s`, over which ongoing requests are averaged.
        up_delay_s, down_delay_s: `upscale_delay_s`, `downscale_delay_s`.
        up_factor, down_factor: `upscaling_factor`, `downscaling_factor`: of the way from the running replicas
            to what is desired.
        period_s: Ray looks every 0.1 s; here at every decision.
    """

    target: Positive = 2.0
    look_back_s: Positive = 30.0
    up_delay_s: NonNegative = 30.0
    down_delay_s: NonNegative = 600.0
    up_factor: Positive = 1.0
    down_factor: Positive = 1.0
    period_s: Positive = 0.1


def desired_replicas(
    ongoing: float, target: float, running: int, up_factor: float = 1.0, down_factor: float = 1.0
) -> int:
    """`ceil(ongoing / target)`, of which a factor may take part of the way only.

    A factor below 1 that would leave the number as it is still takes one replica away.
    """
    ideal = round(ongoing / target, 9)
    way = ideal - running
    wanted = math.ceil(round(running + (up_factor if way > 0 else down_factor) * way, 9))
    if math.ceil(ideal) < running == wanted:
        wanted -= 1
    return wanted


@dataclass
class Delay:
    """Applies what is desired when it has been above, or below, what there is for long enough.

    Attributes:
        up_s, down_s: how long.
    """

    up_s: float
    down_s: float
    _way: int = 0
    _since_s: float = 0.0

    def decide(self, time_s: float, desired: int, have: int) -> int:
        """`desired` if its time has come, else `have` (replicas ordered, loading ones included)."""
        way = (desired > have) - (desired < have)
        if way != self._way:
            self._way, self._since_s = way, time_s
        if way == 0 or time_s - self._since_s < (self.up_s if way > 0 else self.down_s) - 1e-9:
            return have
        self._way = 0  # it has to be said anew
        return desired


class RayServePolicy(UniformPolicy):
    """Ray Serve for all classes alike."""

    parameters_type = RayServeParameters
    usual_name = "ray-serve"
    parameters: RayServeParameters

    GRID: ClassVar[dict[str, tuple[object, ...]]] = {
        "target": (2.0, 8.0, 16.0, 32.0, 64.0),
        "up_delay_s": (0.0, 30.0),
        "down_delay_s": (60.0, 300.0, 600.0),
        "batch_limit": (64, 128, 256),
    }
    SPACE: ClassVar[Space] = {
        "target": Real(1, 250, log=True),
        "look_back_s": Real(5, 120, log=True),
        "up_delay_s": Real(0, 60),
        "down_delay_s": Real(10, 900, log=True),
        "batch_limit": BATCH_LIMIT,
    }

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Forget what was seen and said."""
        super().reset(scenario, seed)
        settings = self.parameters
        self._ongoing = {p: MovingMean(settings.look_back_s) for p in self._pools}
        self._delay = {p: Delay(settings.up_delay_s, settings.down_delay_s) for p in self._pools}

    def observe(self, view: ClusterView) -> None:
        """Take a sample of the ongoing requests."""
        for p, mean in self._ongoing.items():
            mean.add(view.time_s, requests_in(view, p))

    def desired(self, view: ClusterView, p: int, have: int) -> tuple[int, str]:
        """What has been desired for long enough."""
        settings = self.parameters
        running = int(view.pools["active"][p])
        if running == 0:
            return have, "nothing serves yet"
        ongoing = self._ongoing[p].mean(settings.look_back_s)
        wanted = desired_replicas(
            ongoing, settings.target, running, settings.up_factor, settings.down_factor
        )
        wanted = max(wanted, settings.min_instances)
        return self._delay[p].decide(view.time_s, wanted, have), f"ongoing {ongoing:.3g}"
