"""Players that look at nothing, for a table's lower end: no order, random ones, one action for ever."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import load_env_creator

from agents.configuration.config import environment_id
from baselines.space import Space, Whole
from llmscale_env.control.command import Command
from llmscale_env.control.view import ClusterView
from llmscale_env.envs.codec import Codec
from llmscale_env.scenarios.schema import Scenario


class DoNothing:
    """Leaves the cluster as the scenario starts it."""

    name = "do-nothing"

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Nothing is kept."""

    def act(self, view: ClusterView) -> Command:
        """No order."""
        return Command()


class _Actions:
    """What acts through an environment's own action space.

    Args:
        env: short name of the environment.
    """

    def __init__(self, env: str) -> None:
        self._kind: Any = load_env_creator(str(gym.spec(environment_id(env)).entry_point))
        self._scenario: Scenario | None = None
        self._codec: Any = None

    def reset(self, scenario: Scenario, seed: int) -> None:
        """A new episode; chance is drawn from `seed`."""
        if scenario is not self._scenario:
            self._codec = Codec(scenario, self._kind.observation, self._kind.action)
            self._scenario = scenario
        self._codec.reset(seed)
        self._random = np.random.default_rng(seed)

    @property
    def choices(self) -> np.ndarray[Any, Any]:
        """(parts,) number of choices of each part of an action."""
        return np.asarray(self._codec.action_space.nvec)


class RandomActions(_Actions):
    """Every part of an action uniform, each time.

    Args:
        env: short name of the environment.
        masked: only among what the action mask allows.
    """

    def __init__(self, env: str, masked: bool) -> None:
        super().__init__(env)
        self._masked = masked
        self.name = "random, masked" if masked else "random"

    def act(self, view: ClusterView) -> Command:
        """A command by chance."""
        if self._masked:
            ends = np.cumsum(self.choices)[:-1]
            possible = np.split(self._codec.mask(view), ends)
            action = [self._random.choice(np.flatnonzero(part)) for part in possible]
        else:
            action = [int(self._random.integers(n)) for n in self.choices]
        return self._codec.decode(np.array(action), view)


class ConstantAction(_Actions):
    """One action for ever.

    Args:
        env: short name of the environment.
        parts: `part0=3, part1=0, ...`; parts left out are 0.
    """

    name = "constant action"

    def __init__(self, env: str, **parts: int) -> None:
        super().__init__(env)
        self._parts = parts

    def act(self, view: ClusterView) -> Command:
        """The command that the action means now."""
        action = [self._parts.get(f"part{k}", 0) for k in range(len(self.choices))]
        return self._codec.decode(np.array(action), view)


def action_space_of(env: str, scenario: Scenario) -> Space:
    """Every constant action of an environment, to be searched."""
    player = ConstantAction(env)
    player.reset(scenario, 0)
    return {f"part{k}": Whole(0, int(n) - 1) for k, n in enumerate(player.choices)}


BLIND: dict[str, Callable[[str], DoNothing | RandomActions]] = {
    "do-nothing": lambda env: DoNothing(),
    "random": partial(RandomActions, masked=False),
    "random-masked": partial(RandomActions, masked=True),
}
"""By name, to be made for an environment."""
