"""What a validation is worth, as one number: by it searches compare trials, and seeds of a run are ranked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from agents.configuration.config import TrainConfig
from agents.configuration.environments import validation_scenarios
from agents.learning.lagrangian import asked_of, fixed_multipliers, priced_return
from agents.runs.comparison import grouped, lacking

if TYPE_CHECKING:
    from agents.runs.comparison import Row
    from llmscale_env.scenarios import Scenario

LACKING = 100.0
"""GPU-hours that the whole attainment is worth (ours: one hundredth is one hour)."""


def worth(rows: Sequence[Row], config: TrainConfig, scenario: Scenario) -> float:
    """Of one validation the mean reward; where an attainment is asked for, what is chosen by then.

    With prices that move that is minus the GPU-hours, minus what attainment lacks; at fixed prices it is
    the return.
    """
    if config.lagrangian.attainment is None:
        return float(np.mean([row["reward"] for row in rows]))
    if config.lagrangian.is_fixed:
        price = fixed_multipliers(config.lagrangian, scenario)
        of = validation_scenarios(config, scenario)
        return float(
            np.mean([priced_return(row, of[row.get("workload", "")], price) for row in rows])
        )
    hours = float(np.mean([row["gpu_hours"] for row in rows]))
    return -hours - LACKING * lacking(rows, asked_of(config.lagrangian, scenario))


def best_worth(rows: Sequence[Row], config: TrainConfig, scenario: Scenario) -> float:
    """What the best of a run's validations is worth, by the rows of all of them (validation.csv)."""
    return max(worth(mine, config, scenario) for mine in grouped(rows, "timesteps").values())
