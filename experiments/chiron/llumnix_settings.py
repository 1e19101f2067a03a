"""What `llumnix_sweep` found: Llumnix's settings for Chiron's workloads, as policies.

Chiron's text does not give the batch limit of its opponent, and there are two readings of "untuned":

- `llumnix-untuned`: the best setting of our sweep over all workloads, which has a batch limit of 1024. It
  is the stronger opponent, and what section 6 says literally ("the configuration that maximizes SLO
  satisfaction across all workloads").
- `llumnix-untuned-64`: the best one with a batch limit of 64. Section 6.2 calls Chiron's batch size of 2048
  to 4096 "nearly 50x higher" than that of the untuned Llumnix, so the paper's own opponent had about 64.

The policies `llumnix` and `llumnix-64` of `baselines` have other settings, those for the shipped scenarios.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

PATH = Path(__file__).parent / "llumnix.yaml"
IMPLIED_LIMIT = 64
"""Batch limit of the untuned Llumnix that section 6.2 implies: a fiftieth of 2048 to 4096 is 41 to 82."""

OPPONENTS = {
    "llumnix-untuned-64": "untuned, batch limit 64 of the text",
    "llumnix-untuned": "untuned, batch limit of our sweep",
    "llumnix-tuned": "tuned",
}
"""Versions of Llumnix that Chiron is compared with, by name, and how sentences and pictures call them."""

UNTUNED_READINGS = ("llumnix-untuned-64", "llumnix-untuned")
"""Readings of the paper's untuned Llumnix. The first one judges, as the paper's numbers fit no other."""

_SWEPT = ("high", "low", "batch_limit", "rebalance")


@cache
def settings(path: Path = PATH) -> dict[str, Any]:
    """The file's content."""
    data: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return data


def untuned() -> dict[str, float]:
    """The one setting for all workloads: `high`, `low`, `batch_limit`, `rebalance`."""
    return _parameters(settings()["untuned"])


def untuned_64() -> dict[str, float]:
    """The same, of the settings with the batch limit that the text implies."""
    return _parameters(settings()[f"untuned_{IMPLIED_LIMIT}"])


def tuned(workload: str, configuration: str) -> dict[str, float]:
    """The setting for a workload ("W_A", "W_B") in a configuration ("small", "large", "mixed")."""
    return _parameters(settings()["tuned"][f"{workload} {configuration}"])


def llumnix_policies(workload: str, configuration: str) -> dict[str, str]:
    """Llumnix's versions for a workload, by name, as `make_policy` takes them.

    Args:
        workload, configuration: as in `tuned`.
    """
    return {
        "llumnix-untuned-64": policy_text("llumnix", untuned_64()),
        "llumnix-untuned": policy_text("llumnix", untuned()),
        "llumnix-tuned": policy_text("llumnix", tuned(workload, configuration)),
    }


def policy_text(kind: str, parameters: dict[str, float]) -> str:
    """`kind` (llumnix or chiron-local) with parameters."""
    return f"{kind}:" + ",".join(f"{name}={value}" for name, value in parameters.items())


def _parameters(entry: dict[str, Any]) -> dict[str, float]:
    return {name: entry[name] for name in _SWEPT}
