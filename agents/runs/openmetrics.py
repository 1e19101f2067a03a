"""A comparison's summary as OpenMetrics, for dashboards that read nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmscale_env._writing import write_text

if TYPE_CHECKING:
    from llmscale_env.scenarios import Scenario

GAUGES: dict[str, tuple[str, str, str]] = {
    "reward": ("llmscale_reward", "", "Mean reward of an episode."),
    "gpu_hours": ("llmscale_gpu_hours", "hours", "Mean GPU time of an episode that is billed."),
    "joint/slo_attainment": (
        "llmscale_joint_attainment_ratio",
        "ratio",
        "Share of the requests of all classes that were on time.",
    ),
    "scaling_actions": (
        "llmscale_scaling_actions",
        "",
        "Mean number of orders in an episode that changed the number of instances.",
    ),
}
"""Metrics by policy: key of the summary, name, unit, help."""

OF_CLASSES: dict[str, tuple[str, str, str]] = {
    "slo_attainment": (
        "llmscale_attainment_ratio",
        "ratio",
        "Mean share of the requests of a class that were on time.",
    ),
    "ttft_s_p99": (
        "llmscale_time_to_first_token_p99_seconds",
        "seconds",
        "Mean 99th percentile of the time to first token.",
    ),
}
"""Metrics by policy and class: end of the key, name, unit, help."""


def write_openmetrics(path: Path, summary: Sequence[Mapping[str, Any]], scenario: Scenario) -> Path:
    """Write the summary as gauges with the labels `policy`, `env`, and for classes `class`.

    Beside each mean stand the ends of its 95 % interval as gauges NAME_low and NAME_high, with the unit last.
    What is not known (NaN: no request of the class was judged) is left out.

    Args:
        path: the file, replaced whole.
        summary: of `agents.runs.comparison.summarise`.
        scenario: of the episodes.

    Raises:
        ModuleNotFoundError: prometheus_client is not installed (extra `operator`).
        OSError: nothing can be written there.
    """
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import GaugeMetricFamily, Metric
    from prometheus_client.openmetrics.exposition import generate_latest

    families: list[Metric] = []

    def add(key_of: Mapping[str, str], name: str, unit: str, about: str) -> None:
        """One gauge and its bounds; `key_of` has the key of the summary by class ("": of the policy)."""
        stem = name.removesuffix(f"_{unit}") if unit else name
        for bound, told in (("", ""), ("low", " Lower end of its 95 % interval."),
                            ("high", " Upper end of its 95 % interval.")):  # fmt: skip
            labels = ["policy", "env", *(["class"] if "" not in key_of else [])]
            full = "_".join(part for part in (stem, bound) if part)
            family = GaugeMetricFamily(full, about + told, labels=labels, unit=unit)
            for row in summary:
                for of, key in key_of.items():
                    value = float(row.get(f"{key}/{bound}" if bound else key, math.nan))
                    if math.isfinite(value):
                        names = [str(row["policy"]), scenario.name, *([of] if of else [])]
                        family.add_metric(names, value)
            if family.samples:
                families.append(family)

    for key, (name, unit, about) in GAUGES.items():
        add({"": key}, name, unit, about)
    for end, (name, unit, about) in OF_CLASSES.items():
        add({of: f"{of}/{end}" for of in scenario.class_groups}, name, unit, about)
    episodes = GaugeMetricFamily(
        "llmscale_episodes", "Distinct episodes behind the means.", labels=["policy", "env"]
    )
    for row in summary:
        episodes.add_metric([str(row["policy"]), scenario.name], float(row["episodes"]))
    families.append(episodes)

    class Collected:
        def collect(self) -> list[Metric]:
            return families

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collected())
    return write_text(path, generate_latest(registry).decode("utf-8"))
