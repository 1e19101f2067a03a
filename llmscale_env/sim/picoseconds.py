"""Seconds as the engines count them."""

from __future__ import annotations

from typing import Any

from llmscale_env.sim.spec import NEVER
from llmscale_env.workload.requests import PS_PER_S


def ps(seconds: float) -> int:
    """Seconds as picoseconds, at most the time that never comes."""
    return min(round(min(seconds * PS_PER_S, float(NEVER))), int(NEVER))


def seconds(counts: Any, name: str) -> Any:
    """What is kept as whole seconds `NAME_s` and the rest `NAME_ps`, or differences of them, in seconds.

    Args:
        counts: arrays by name, or a record array.
        name: which of them.
    """
    return counts[f"{name}_s"] + counts[f"{name}_ps"] / PS_PER_S
