"""A policy that is asked beside the network, whose orders the head `residual` changes."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.command import Command
from llmscale_env.control.policy import Policy, is_policy
from llmscale_env.control.view import ClusterView
from llmscale_env.envs.action_heads.size_free import times
from llmscale_env.scenarios.schema import Scenario


class Reference:
    """One episode's own copy of a reference policy, and what it wants.

    Args:
        policy: copied; it may not be told the future.
        scenario: of the episodes.

    Attributes:
        wanted: (P,) the last target that the policy gave for each pool, before any what the pool starts with.

    Raises:
        ValueError: no policy, or one that is to be told the future.
    """

    def __init__(self, policy: Policy, scenario: Scenario) -> None:
        if not is_policy(policy):
            raise ValueError(
                f"reference = {policy!r}: must be a policy, with `name`, `reset` and `act`"
            )
        if getattr(policy, "is_clairvoyant", False):
            raise ValueError(
                f"reference = {policy.name!r}: is told the future, which no agent may be"
            )
        self._policy = deepcopy(policy)
        self._scenario = scenario
        self._places = {pool.name: p for p, pool in enumerate(scenario.fleet.pools)}
        self._most = np.array([pool.max_instances for pool in scenario.fleet.pools])
        self._forget()

    def _forget(self) -> None:
        initial = [pool.initial_instances for pool in self._scenario.fleet.pools]
        self.wanted = np.array(initial, np.int64)
        self._ordered = self.wanted.copy()
        self._command = Command()
        self.has_looked = False

    def reset(self, seed: int) -> None:
        """A new episode begins."""
        self._forget()
        self._policy.reset(self._scenario, seed)

    def look(self, view: ClusterView) -> None:
        """Ask the policy; once per decision."""
        self._command = self._policy.act(view)
        for name, count in self._command.targets.items():
            if name in self._places:
                self.wanted[self._places[name]] = count
        self.has_looked = True

    def command(self, percents: NDArray[np.int64], more: Command) -> Command:
        """Its orders, with so many percent (P,) of the targets that it wants; 100 leaves them alone.

        `more` is ordered besides, or in their place. A policy that reckons with its last orders is told.
        """
        scaled = np.minimum(times(self.wanted, percents), self._most)
        targets = dict(self._command.targets)
        for name, p in self._places.items():
            if percents[p] != 100:
                targets[name] = int(scaled[p])
            elif name not in targets and self._ordered[p] != self.wanted[p]:
                targets[name] = int(self.wanted[p])
            self._ordered[p] = targets.get(name, self.wanted[p])
        self.has_looked = False
        command = self._command
        if targets != dict(command.targets):
            command = replace(command, targets=targets)
        command = with_orders(command, more)
        if carried_out := getattr(self._policy, "carried_out", None):
            carried_out(command)
        return command

    @property
    def state(self) -> dict[str, Any]:
        """Everything about the episode, as it is now."""
        names = ("_policy", "_command", "wanted", "_ordered", "has_looked")
        return {name: getattr(self, name) for name in names}

    def save(self) -> dict[str, Any]:
        """A copy of `state`, for `restore`; can be pickled if the policy can."""
        return deepcopy(self.state)

    def restore(self, saved: dict[str, Any]) -> None:
        """Put the episode where it was at `save`."""
        for name, value in deepcopy(saved).items():
            setattr(self, name, value)


def with_orders(command: Command, more: Command) -> Command:
    """`command` with what `more` orders besides, or in its place."""
    changed: dict[str, Any] = {}
    for field in fields(Command):
        old, new = getattr(command, field.name), getattr(more, field.name)
        if new is None or len(new) == 0:
            continue
        both = isinstance(old, Mapping) and isinstance(new, Mapping)
        changed[field.name] = {**old, **new} if both else new
    return replace(command, **changed) if changed else command
