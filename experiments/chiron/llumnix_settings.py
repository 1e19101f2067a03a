"""What `llumnix_sweep` found: Llumnix's settings for Chiron's workloads, as policies."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

PATH = Path(__file__).parent / "llumnix.yaml"
_SWEPT = ("high", "low", "batch_limit", "rebalance")


@cache
def settings(path: Path = PATH) -> dict[str, Any]:
    """The file's content."""
    data: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return data


def untuned() -> dict[str, float]:
    """The one setting for all workloads: `high`, `low`, `batch_limit`, `rebalance`."""
    return _parameters(settings()["untuned"])


def tuned(workload: str, configuration: str) -> dict[str, float]:
    """The setting for a workload ("W_A", "W_B") in a configuration ("small", "large", "mixed")."""
    return _parameters(settings()["tuned"][f"{workload} {configuration}"])


def llumnix_of(workload: str, configuration: str, *, is_tuned: bool) -> str:
    """The policy as `make_policy` takes it.

    Args:
        workload, configuration: as in `tuned`.
        is_tuned: the workload's own setting, or the one for all.
    """
    return policy_text("llumnix", tuned(workload, configuration) if is_tuned else untuned())


def policy_text(kind: str, parameters: dict[str, float]) -> str:
    """`kind` (llumnix or chiron-local) with parameters."""
    return f"{kind}:" + ",".join(f"{name}={value}" for name, value in parameters.items())


def _parameters(entry: dict[str, Any]) -> dict[str, float]:
    return {name: entry[name] for name in _SWEPT}
