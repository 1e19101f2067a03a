"""Policies with something done beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from baselines.registry import TUNABLE
from llmscale_env.control.command import Command

HEURISTICS = tuple(
    name for name, kind in TUNABLE.items() if hasattr(kind, "GRID") or hasattr(kind, "grid_of")
)
"""Every policy with a grid of settings: those that start and stop instances of pools."""


class Watched:
    """A policy with something done beside it at every decision: what that returns is ordered instead."""

    def __init__(self, policy: Any, beside: Callable[[Any, Command], Command | None]) -> None:
        self.policy, self.beside, self.name = policy, beside, policy.name

    def reset(self, scenario: Any, seed: int) -> None:
        self.policy.reset(scenario, seed)

    def act(self, view: Any) -> Command:
        command = self.policy.act(view)
        return self.beside(view, command) or command
