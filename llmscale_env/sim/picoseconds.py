"""Seconds as the engines count them."""

from __future__ import annotations

from llmscale_env.sim.spec import NEVER
from llmscale_env.workload.requests import PS_PER_S


def ps(seconds: float) -> int:
    """Seconds as picoseconds, at most the time that never comes."""
    return min(round(seconds * PS_PER_S), int(NEVER))
