"""`llmscale/MultiRegion-v1` with one agent per region, as a PettingZoo parallel environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from llmscale_env.control.region_costs import RegionCosts, by_region
from llmscale_env.envs.base import check_options
from llmscale_env.envs.multi_region import MultiRegionEnv
from llmscale_env.envs.reset_options import NAMES
from llmscale_env.scenarios import Scenario

try:
    from pettingzoo import ParallelEnv
except ImportError as error:
    raise ImportError(
        "llmscale_env.envs.multi_region_parallel needs pettingzoo: pip install 'llmscale[multiagent]'"
    ) from error

Sees = Literal["own", "all"]


class MultiRegionParallelEnv(ParallelEnv):
    """One agent per region: its pools' instances and rules, its routing, its release of background work.

    Episodes are those of `MultiRegionEnv`: the same seed gives the same requests, and the same choices the
    same episode. Each agent's action holds the parts of the whole action that name its region or one of
    its pools, in the same order, each agent's observation (`sees="own"`) the entries that name its own
    region or none (clock, latencies of classes, shared queues), or all of them (`sees="all"`).

    The reward is the whole cluster's, the same for all: a region that keeps its GPUs busy with others'
    clients would look bad by its own costs. These are in the infos.

    Each agent's info has

    - `action_mask`: possible choices of its parts, one after the other;
    - `costs`: its share of the reward's parts (`gpu` and `loads` of its pools, `violations` and `leftover` of
      its clients, with the reward's sign); over all agents they add up to the reward;
    - `cost`: violations among its own clients' requests in the interval, for constrained RL;
    - `clipped`, `metrics`, and at the end `episode_summary`: the whole cluster's.

    Args:
        scenario, overrides, observation, action, render_mode, engine: as for `MultiRegionEnv`. Every part
            of the action must belong to a region.
        sees: what an agent observes.

    Attributes:
        observation_names, observation_entries, action_names, action_choices: by agent, as `MultiRegionEnv`
            has them for all.

    Raises:
        ScenarioError, ValueError: as for `MultiRegionEnv`, or a part of the action that is nobody's.
    """

    metadata: dict[str, Any] = {
        "name": "llmscale_multi_region_v1",
        "render_modes": MultiRegionEnv.metadata["render_modes"],
        "render_fps": MultiRegionEnv.metadata["render_fps"],
        "is_parallelizable": True,
    }

    def __init__(
        self,
        scenario: str | Scenario | None = None,
        overrides: Mapping[str, Any] | None = None,
        observation: Sequence[str] | None = None,
        action: Sequence[str] | None = None,
        sees: Sees = "own",
        render_mode: str | None = None,
        engine: str = "fast",
    ) -> None:
        if sees not in ("own", "all"):
            raise ValueError(f"sees = {sees!r}: must be 'own' or 'all'")
        self.env = MultiRegionEnv(
            scenario, overrides, observation, action, engine=engine, render_mode=render_mode
        )
        self.render_mode = render_mode
        self.scenario = self.env.scenario
        self.possible_agents = list(self.scenario.region_names)
        self.agents: list[str] = []
        self._homes = _homes(self.scenario)
        codec = self.env.codec
        owners = [self._owner(part) for part in codec.decoder.parts]
        for part, owner in zip(codec.decoder.parts, owners, strict=True):
            if owner is None:
                raise ValueError(f"action: part {part!r} belongs to no region")
        self._parts = {a: np.flatnonzero([o == a for o in owners]) for a in self.possible_agents}
        entries = [self._owner(entry.name) for entry in codec.encoder.entries]
        self._entries = {
            a: np.flatnonzero([sees == "all" or o in (a, None) for o in entries])
            for a in self.possible_agents
        }
        widths = codec.decoder.nvec
        part_of_choice = np.repeat(np.arange(len(widths)), widths)
        self._choices = {
            a: np.flatnonzero(np.isin(part_of_choice, parts)) for a, parts in self._parts.items()
        }
        words = list(self.env.action_choices.items())
        self.action_choices = {a: dict(words[k] for k in parts) for a, parts in self._parts.items()}
        self.action_names = {a: tuple(choices) for a, choices in self.action_choices.items()}
        self.observation_entries = {
            a: tuple(codec.encoder.entries[k] for k in mine) for a, mine in self._entries.items()
        }
        self.observation_names = {
            a: tuple(entry.name for entry in mine) for a, mine in self.observation_entries.items()
        }
        low, high = codec.encoder.low, codec.encoder.high
        self.observation_spaces = {
            a: spaces.Box(low[mine], high[mine], dtype=np.float32)
            for a, mine in self._entries.items()
        }
        self.action_spaces = {
            a: spaces.MultiDiscrete(widths[parts]) for a, parts in self._parts.items()
        }
        self.state_space = codec.observation_space
        self._costs: RegionCosts | None = None
        self._seen = np.zeros(len(low), np.float32)

    def _owner(self, name: str) -> str | None:
        """Region that a name of an entry or part is about."""
        for word in name.split("/"):
            if word in self._homes:
                return self._homes[word]
        return None

    # ---- PettingZoo ----

    def observation_space(self, agent: str) -> spaces.Box:
        """Of one agent; always the same object."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.MultiDiscrete:
        """Of one agent; always the same object."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[np.float32]], dict[str, dict[str, Any]]]:
        """A new episode, in which all agents take part to the end.

        Args:
            seed: as for `MultiRegionEnv`.
            options: as for `MultiRegionEnv`; names that it does not know change nothing, since PettingZoo's
                own checks give such.

        Raises:
            ValueError: a seed that is no integer of at least 0, or options that do not fit.
        """
        check_options(options)
        known = {k: v for k, v in (options or {}).items() if str(k).split(".")[0] in NAMES}
        self._seen, info = self.env.reset(seed=seed, options=known)
        self.agents = list(self.possible_agents)
        self._costs = RegionCosts(self.env.core.sim)
        return self._observations(), {a: self._info(a, info) for a in self.agents}

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[
        dict[str, NDArray[np.float32]],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """Carry out everybody's actions and run to the next decision. The horizon truncates for all.

        Raises:
            ValueError: an action is missing, too much, or out of its space; nothing has happened then.
            gymnasium.error.ResetNeeded: before the first `reset`, or after the horizon.
        """
        if not isinstance(actions, Mapping):
            raise ValueError(f"actions = {actions!r}: must be a mapping of agents to actions")
        if self.agents and set(actions) != set(self.agents):
            raise ValueError(f"actions of {list(actions)}: must be of each of {self.agents}")
        whole = np.zeros(len(self.env.codec.decoder.nvec), np.int64)
        for agent in self.agents:
            given = np.asarray(actions[agent])
            if given not in self.action_spaces[agent]:
                raise ValueError(
                    f"actions[{agent!r}] = {actions[agent]!r}: not in {self.action_spaces[agent]}"
                )
            whole[self._parts[agent]] = given
        self._seen, reward, _, truncated, info = self.env.step(whole)
        assert self._costs is not None, "the environment refuses a step before a reset"
        costs = self._costs.interval(truncated)
        infos = {}
        for j, agent in enumerate(self.possible_agents):
            infos[agent] = self._info(agent, info)
            infos[agent]["costs"] = by_region(costs, j)
            infos[agent]["cost"] = float(self._costs.violations[j].sum())
        agents = self.agents
        observations = self._observations()
        if truncated:
            self.agents = []
        return (
            observations,
            dict.fromkeys(agents, reward),
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, truncated),
            infos,
        )

    def _observations(self) -> dict[str, NDArray[np.float32]]:
        return {a: self._seen[self._entries[a]] for a in self.agents}

    def _info(self, agent: str, info: dict[str, Any]) -> dict[str, Any]:
        kept: dict[str, Any] = {
            name: info[name] for name in ("clipped", "metrics", "episode_summary") if name in info
        }
        return {
            **kept,
            "action_mask": info["action_mask"][self._choices[agent]],
            "costs": {},
            "cost": 0.0,
        }

    def state(self) -> NDArray[np.float32]:
        """The whole cluster's observation, as `MultiRegionEnv` gives it."""
        return self._seen.copy()

    def render(self) -> Any:
        """As `MultiRegionEnv`."""
        return self.env.render()

    def close(self) -> None:
        """Nothing stays open."""
        self.env.close()


def parallel_env(**arguments: Any) -> MultiRegionParallelEnv:
    """`MultiRegionParallelEnv`, by the name under which PettingZoo's tools look for it."""
    return MultiRegionParallelEnv(**arguments)


def _homes(scenario: Scenario) -> dict[str, str]:
    """Region of each region and pool, by name.

    Raises:
        ValueError: a pool is called like another region.
    """
    homes = {name: name for name in scenario.region_names}
    for pool in scenario.fleet.pools:
        region = scenario.region_of(pool.region)
        if homes.setdefault(pool.name, region) != region:
            raise ValueError(f"pool {pool.name!r} in {region!r} has the name of another region")
    return homes
