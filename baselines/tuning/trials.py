"""What a setting came to, by which score it is better than another, and how it is shown and written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml

SCORES = ("reward", "attainment", "gpu-hours")
SHOWN = 12


@dataclass(frozen=True)
class Outcome:
    """One episode under a setting.

    Attributes:
        reward: sum over the intervals.
        attainment: share of all arrivals on time.
        by_class: the same of each class; NaN where no request of it was judged.
        gpu_hours: billed.
    """

    reward: float
    attainment: float
    by_class: tuple[float, ...]
    gpu_hours: float


def worst_class(outcomes: Sequence[Outcome]) -> float:
    """Mean attainment of the class that has the lowest, over episodes that judge it; 1 if none judges any."""
    shares = np.array([o.by_class for o in outcomes])
    judged = ~np.isnan(shares)
    total = np.where(judged, shares, 0.0).sum(axis=0)
    mean = np.where(judged.any(axis=0), total / np.maximum(judged.sum(axis=0), 1), 1.0)
    return float(mean.min())


@dataclass(frozen=True)
class Score:
    """What "better" means.

    Attributes:
        name: "reward"; "attainment", then fewer GPU-hours; or "gpu-hours": the fewest of those settings
            that keep the mean attainment of every class, on every scenario, at `target` (of others the
            nearest to it).
        target: of "gpu-hours".
    """

    name: str = "reward"
    target: float = 0.99

    def key(self, trial: Trial) -> tuple[float, ...]:
        """What to sort by, the best first; rounded, so that ties go to fewer GPU-hours."""
        if self.name == "reward":
            return (-trial.reward,)
        if self.name == "attainment":
            return (-round(trial.attainment, 4), trial.gpu_hours)
        short = max(0.0, round(self.target - trial.worst_class, 6))
        return (short, trial.gpu_hours)

    def loss(self, trial: Trial, most_gpu_hours: float) -> float:
        """One number for a sampler, smaller for better.

        Args:
            trial: to be judged.
            most_gpu_hours: of an episode in which the whole fleet runs all the time.
        """
        if self.name == "reward":
            return -trial.reward
        share = trial.gpu_hours / most_gpu_hours
        if self.name == "attainment":
            return -trial.attainment + 1e-4 * share
        short = self.target - trial.worst_class
        return share if short <= 0 else 2.0 + short

    def __str__(self) -> str:
        return f"{self.name} at {self.target:g}" if self.name == "gpu-hours" else self.name


@dataclass(frozen=True)
class Trial:
    """One setting and what it came to: means over the episodes.

    Attributes:
        parameters: of the policy.
        reward, attainment, gpu_hours: of an episode; attainment is the share of all arrivals on time.
        reward_error: standard error of the mean reward.
        worst_class: mean attainment of the class that has the lowest; of several scenarios, on the one on
            which a class has the lowest.
        episodes: how many.
    """

    parameters: dict[str, Any]
    reward: float
    attainment: float
    gpu_hours: float
    reward_error: float
    worst_class: float = math.nan
    episodes: int = 0

    @classmethod
    def of(
        cls, parameters: Mapping[str, Any], outcomes: Sequence[Outcome], scenarios: int = 1
    ) -> Trial:
        """Means of episodes.

        Args:
            parameters: of the policy.
            outcomes: seed after seed, of each scenario in turn.
            scenarios: how many there are.

        Raises:
            ValueError: there is no outcome.
        """
        if not outcomes:
            raise ValueError("outcomes: must be at least one episode")
        rewards = np.array([o.reward for o in outcomes])
        n = len(outcomes)
        return cls(
            parameters=dict(parameters),
            reward=float(rewards.mean()),
            attainment=float(np.mean([o.attainment for o in outcomes])),
            gpu_hours=float(np.mean([o.gpu_hours for o in outcomes])),
            reward_error=float(rewards.std(ddof=1) / np.sqrt(n)) if n > 1 else math.nan,
            worst_class=min(worst_class(outcomes[k::scenarios]) for k in range(min(scenarios, n))),
            episodes=n,
        )

    def key(self, score: str) -> tuple[float, ...]:
        """`Score(score).key`."""
        return Score(score).key(self)


def settings_text(trial: Trial, header: Mapping[str, Any]) -> str:
    """The YAML file of a search's best setting."""
    content = {
        **header,
        "parameters": trial.parameters,
        "mean": {
            "reward": round(trial.reward, 3),
            "reward_standard_error": round(trial.reward_error, 3),
            "slo_attainment": round(trial.attainment, 5),
            "slo_attainment_worst_class": round(trial.worst_class, 5),
            "gpu_hours": round(trial.gpu_hours, 4),
            "episodes": trial.episodes,
        },
    }
    comment = "# Written by baselines.tune; the command below makes it anew.\n"
    return comment + yaml.safe_dump(content, sort_keys=False)


def table_text(trials: Sequence[Trial], shown: int = SHOWN) -> str:
    """The best trials as a table."""
    names = list(dict.fromkeys(name for trial in trials[:shown] for name in trial.parameters))
    head = [*names, "reward", "+-", "on time", "worst class", "GPU-h", "episodes"]
    rows = [
        [
            *(_cell(trial.parameters.get(name, "-")) for name in names),
            f"{trial.reward:.1f}",
            f"{trial.reward_error:.1f}",
            f"{100 * trial.attainment:.2f}%",
            f"{100 * trial.worst_class:.2f}%",
            f"{trial.gpu_hours:.2f}",
            str(trial.episodes),
        ]
        for trial in trials[:shown]
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in (head, *rows)
    ]
    if len(trials) > shown:
        lines.append(f"... and {len(trials) - shown} more")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
