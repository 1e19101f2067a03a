"""What is taken from policies or made worse, by name: fields of the scenario, and forecasts they see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
    """

    text: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    forecast: bool = False
    forecaster: str | None = None
    learned_only: bool = False

    def of(self, case: Mapping[str, Any]) -> dict[str, Any]:
        """A case of `experiments.learned.protocol` under this ablation."""
        made = {**case, "overrides": {**case["overrides"], **self.overrides}}
        if self.forecast:
            made["forecaster"] = self.forecaster
        return made


def _loading(seconds: float) -> Ablation:
    """Weights come in so many seconds from wherever, the calibrated load times notwithstanding."""
    loads = {f"fleet.pools.*.load_s.{source}": seconds for source in _LOADS}
    return Ablation(f"loading {seconds:g} s", loads)


ABLATIONS: dict[str, Ablation] = {
    "none": Ablation("as it is"),
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
}
"""By name. Loading times replace those of all sources, so a policy's choice of source says nothing there."""
