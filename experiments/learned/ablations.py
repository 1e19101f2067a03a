"""What is taken from policies or made worse, by name: fields of the scenario, and forecasts they see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agents.configuration.config import read_config
from agents.configuration.environments import blocks_seen

BLINDED = (
    "clock",
    "arrivals",
    "forecast",
    "latency",
    "queues",
    "fleet",
    "backpressure",
    "class_load",
    "urgency",
    "pool_state",
    "slo_tails",
    "last_action",
)
"""Blocks that are taken away one by one."""

FORESEEING = ("forecast", "class_load")
"""Blocks that show forecasts."""

_LOADS = ("ssd", "host", "multicast")


@dataclass(frozen=True)
class Ablation:
    """A change of the world, or of what is known of it.

    Attributes:
        text: what it says in pictures.
        overrides: of the scenario, by dotted path.
        forecast: whether `forecaster` takes the place of the policy's own.
        forecaster: a name; None: no forecast.
        learned_only: heuristics see no difference, since none of them reads the view's forecast.
        blind: observation block that says nothing (`experiments.learned.blind`), of learned policies that
            have it.
    """

    text: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    forecast: bool = False
    forecaster: str | None = None
    learned_only: bool = False
    blind: str | None = None

    def holds(self, case: Mapping[str, Any]) -> bool:
        """Whether the policy of a case can notice it."""
        needed = FORESEEING if self.forecast else () if self.blind is None else (self.blind,)
        if not needed:
            return bool(case["learned"]) or not self.learned_only
        return bool(case["learned"]) and any(b in blocks_of(case["model"]) for b in needed)

    def of(self, case: Mapping[str, Any]) -> dict[str, Any]:
        """A case of `experiments.learned.protocol` under this ablation."""
        made = {**case, "overrides": {**case["overrides"], **self.overrides}}
        if self.forecast:
            made["forecaster"] = self.forecaster
        if self.blind is not None:
            made["blind"] = self.blind
        return made


def blocks_of(model: str) -> tuple[str, ...]:
    """Observation blocks of a learned policy.

    Raises:
        Slip: it has no configuration beside it.
    """
    return blocks_seen(read_config(Path(model).parent))


def _loading(seconds: float) -> Ablation:
    """Weights come in so many seconds from wherever, the calibrated load times notwithstanding."""
    loads = {f"fleet.pools.*.load_s.{source}": seconds for source in _LOADS}
    return Ablation(f"loading {seconds:g} s", loads)


def _rate(factor: float) -> Ablation:
    """All streams and queues bring so many times what they did where settings were found."""
    return Ablation(f"{factor:g} times the load", {"workload.rate_scale": factor})


ABLATIONS: dict[str, Ablation] = {
    "none": Ablation("as it is"),
    "rate-0.8": _rate(0.8),
    "rate-1.2": _rate(1.2),
    "rate-1.4": _rate(1.4),
    "forecast-none": Ablation("no forecast", forecast=True, learned_only=True),
    "forecast-oracle": Ablation(
        "forecast of an oracle", forecast=True, forecaster="clairvoyant", learned_only=True
    ),
    "load-15": _loading(15.0),
    "load-60": _loading(60.0),
    "load-120": _loading(120.0),
    "load-300": _loading(300.0),
    "times-0.8": Ablation(
        "iterations 20 % faster than calibrated", {"fleet.pools.*.time_factor": 0.8}
    ),
    "times-1.2": Ablation(
        "iterations 20 % slower than calibrated", {"fleet.pools.*.time_factor": 1.2}
    ),
    "metrics-10": Ablation("metrics 10 s late", {"metric_delay_s": 10.0}),
    "metrics-30": Ablation("metrics 30 s late", {"metric_delay_s": 30.0}),
    **{f"blind-{b}": Ablation(f"blind to {b}", learned_only=True, blind=b) for b in BLINDED},
}
"""By name. Loading times replace those of all sources, so a policy's choice of source says nothing there."""
