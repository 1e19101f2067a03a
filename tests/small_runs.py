"""Training runs of seconds, for tests of the commands around training."""

from __future__ import annotations

import csv
from pathlib import Path

SMALL_RUN = (
    "env=mixed-slo-v0",
    "scenario.horizon_s=60",
    "scenario.fleet.max_gpus=4",
    "scenario.fleet.pools.interactive.initial_instances=2",
    "scenario.fleet.pools.mixed.initial_instances=1",
    "n_envs=2",
    "ppo.batch_size=16",
    "ppo.n_epochs=1",
)
"""Words of `agents.train`; how long and how it is validated is the test's."""


def rows(path: Path) -> list[dict[str, str]]:
    """Of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
