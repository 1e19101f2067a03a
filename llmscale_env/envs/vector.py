"""The vectorised form of an environment: many episodes advanced in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from llmscale_env.control.forecast import ForecasterSpec
from llmscale_env.control.forecast.base import check_integer
from llmscale_env.control.policy import Policy
from llmscale_env.control.view import ClusterView
from llmscale_env.envs.base import (
    MAX_EPISODES,
    Settings,
    check_options,
    of_an_episode,
    seeds_of,
    while_open,
)
from llmscale_env.envs.reset_options import ResetOptions
from llmscale_env.envs.shaping import Shaping
from llmscale_env.scenarios import Scenario
from llmscale_env.sim.lock import one_at_a_time


class ServingVectorEnv(Settings, VectorEnv):
    """Many episodes advanced in one call; the same episodes as as many single environments.

    What follows the horizon is `autoreset_mode`'s, as Gymnasium defines it:

    - `SAME_STEP`: the step that ends an episode begins the next one. Its observation, `metrics` and
      `action_mask` are the new episode's; `final_obs` and `final_info` hold the old one's.
    - `NEXT_STEP`: the next step begins it, whatever the action is, with a reward of 0.
    - `DISABLED`: `reset(options={"reset_mask": ...})` begins it.

    Rewards, `reward_parts`, `cost`, `cost_by_class` and `clipped` are always those of the step that was
    taken; `episode_summary` is there at the end of episodes in all modes.

    Args:
        num_envs: episodes, 1 to `MAX_EPISODES`.
        threads: threads that advance them, at least 1.
        autoreset_mode: an `AutoresetMode` or its value, such as "NextStep". `NormalizeObservation` of
            Gymnasium's vector wrappers asks for that one.
        max_episode_steps: episodes are cut off after so many steps (nothing is charged for what is left
            then); None: the horizon ends them.
        scenario, overrides, observation, action, forecaster, reference, shaping, engine: as for the single
            form.
        render_mode: None only.

    Raises:
        ScenarioError, ValueError: as for the single form, or a number of episodes, threads or steps that is
            no integer of at least 1, or too many episodes, or an unknown mode.
        MemoryError: no memory for so many episodes; also from `reset`, when their requests are known.
    """

    metadata: dict[str, Any] = {
        "render_modes": [],
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(
        self,
        num_envs: int = 1,
        scenario: str | Scenario | None = None,
        overrides: Mapping[str, Any] | None = None,
        observation: Sequence[str] | None = None,
        action: Sequence[str] | None = None,
        forecaster: ForecasterSpec | None = "ewma",
        threads: int = 1,
        render_mode: str | None = None,
        reference: Policy | None = None,
        shaping: Shaping | Mapping[str, float] | float | None = None,
        engine: str = "fast",
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        max_episode_steps: int | None = None,
    ) -> None:
        num_envs = check_integer("num_envs", num_envs, 1)
        if num_envs > MAX_EPISODES:
            raise ValueError(f"num_envs = {num_envs}: must be at most {MAX_EPISODES:,}")
        threads = check_integer("threads", threads, 1)
        if render_mode is not None:
            raise ValueError(f"render_mode = {render_mode!r}: the vectorised form draws nothing")
        if max_episode_steps is not None:
            max_episode_steps = check_integer("max_episode_steps", max_episode_steps, 1)
        self.num_envs = num_envs
        self.render_mode = None
        self.autoreset_mode = autoreset_mode
        self._limit = max_episode_steps
        self._configure(
            num_envs,
            scenario,
            overrides,
            observation,
            action,
            forecaster,
            threads,
            reference,
            shaping,
            engine,
        )
        self._started = np.zeros(num_envs, bool)
        self._due = np.zeros(num_envs, bool)  # the next step begins an episode there (NEXT_STEP)
        self._elapsed = np.zeros(num_envs, np.int64)
        self._options = [ResetOptions(self.scenario, None)] * num_envs
        self._own: dict[str, tuple[Any, ...]] = {}
        self._seeds = [-1] * num_envs
        codec = self.core.codec
        self.single_observation_space = codec.observation_space
        self.single_action_space = codec.action_space
        self.observation_space = batch_space(codec.observation_space, num_envs)
        self.action_space = batch_space(codec.action_space, num_envs)

    @property
    def autoreset_mode(self) -> AutoresetMode:
        """What follows the end of an episode; it can be set between two steps."""
        return self._mode

    @autoreset_mode.setter
    def autoreset_mode(self, mode: AutoresetMode | str) -> None:
        try:
            self._mode = AutoresetMode(mode)
        except ValueError:
            allowed = [each.value for each in AutoresetMode]
            raise ValueError(f"autoreset_mode = {mode!r}: must be one of {allowed}") from None
        self.metadata = {**type(self).metadata, "autoreset_mode": self._mode}

    @while_open
    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """New episodes; an integer seed gives episode `e` the seed `seed + e`.

        Args:
            seed: of all, or one of each, or None.
            options: `reset_mask` (n,) bool: in these places only; the first time it must be in all. Others
                (`llmscale_env.envs.reset_options`) hold there until the next `reset`.

        Raises:
            ValueError: a seed that is no integer of at least 0, another number of seeds, an unknown option
                or a value that does not fit, or a mask of another kind; nothing has happened then.
            gymnasium.error.ClosedEnvironmentError: after `close`, as from every method below.
        """
        check_options(options)
        seeds = seeds_of(seed, self.num_envs)
        which = np.ones(self.num_envs, bool)
        given = dict(options or {})
        mask = given.pop("reset_mask", None)
        if mask is not None:
            which = self._mask(mask)
        new = ResetOptions(self.scenario, given)
        for e in np.flatnonzero(which):
            if seeds[e] is not None:
                self.core.rngs[e], self._seeds[e] = seeding.np_random(seeds[e])
        self._generators()
        for e in np.flatnonzero(which):
            self._options[e] = new
            self._start(int(e), seeds[e])
        self._begun = True
        nothing = np.zeros(self.num_envs)
        parts = {name: nothing.copy() for name in self._part_names}
        return self.core.observe(), self._info(parts, nothing.astype(np.int64))

    @while_open
    def set_options(self, options: Mapping[str, Any] | None) -> None:
        """Options of `reset` for the episodes that begin from now on, until the next `reset`.

        Raises:
            ValueError: an unknown option or a value that does not fit; nothing has changed then.
        """
        check_options(options)
        self._options = [ResetOptions(self.scenario, options)] * self.num_envs

    def _start(self, e: int, seed: int | None = None) -> None:
        rng = self.core.rngs[e]
        assert rng is not None
        self.core.start(e, seed, self._options[e].draw(rng))
        self._started[e], self._due[e], self._elapsed[e] = True, False, 0

    @while_open
    def step(
        self, actions: Any
    ) -> tuple[
        NDArray[np.float32],
        NDArray[np.float64],
        NDArray[np.bool_],
        NDArray[np.bool_],
        dict[str, Any],
    ]:
        """Carry out actions (n, parts) and run every episode to its next decision.

        Raises:
            ValueError: an action is out of its space; nothing has happened then.
            CommandError: an order is impossible and the scenario says that this is an error; all episodes are
                over then, as after any other error while time passes.
            gymnasium.error.ResetNeeded: of some episodes that have not begun.
        """
        if not self._started.all():
            waiting = np.flatnonzero(~self._started).tolist()
            raise gym.error.ResetNeeded(f"step() needs a reset() first, of episodes {waiting}")
        actions = self.core.codec.decoder.check(actions, self.num_envs)
        due = self._due.copy()
        self._started[:] = False  # until the step is whole
        costs, ended, clipped = self.core.step(actions, due if due.any() else None)
        self._elapsed += 1
        done = (ended if self._limit is None else ended | (self._elapsed >= self._limit)) & ~due
        rewards, parts = self._rewards(costs)
        if due.any():
            rewards[due], clipped[due] = 0.0, 0
            parts = {name: np.where(due, 0.0, values) for name, values in parts.items()}
            for e in np.flatnonzero(due):
                self._start(int(e))
        info = self._info(parts, clipped, due)
        observation = self.core.observe()
        if done.any():
            info |= {"episode_summary": self.core.summary(), "_episode_summary": done.copy()}
            if self.autoreset_mode is AutoresetMode.SAME_STEP:
                info |= final_infos(observation, info, done)
                for e in np.flatnonzero(done):
                    self._start(int(e))
                observation = self.core.observe()
                info |= {"metrics": self.core.metrics(), "action_mask": self.core.masks()}
        self._due = done if self.autoreset_mode is AutoresetMode.NEXT_STEP else np.zeros_like(done)
        self._started[:] = True if self.autoreset_mode is not AutoresetMode.DISABLED else ~done
        never = np.zeros(self.num_envs, bool)
        return observation, rewards, never, done.copy(), info

    def _mask(self, given: Any) -> NDArray[np.bool_]:
        """The places that a reset is for."""
        try:
            mask = np.asarray(given)
        except ValueError:  # of no shape
            mask = np.zeros(0)
        if mask.dtype != bool or mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(
                f"options['reset_mask'] = {given!r}: must be {self.num_envs} booleans, one of them true"
            )
        left = np.flatnonzero(~mask & ~self._started).tolist()
        if left:
            raise ValueError(
                f"options['reset_mask'] = {given!r}: must be true for {left}, which have not begun"
            )
        return mask

    def _info(
        self,
        parts: dict[str, NDArray[np.float64]],
        clipped: NDArray[np.int64],
        due: NDArray[np.bool_] | None = None,
    ) -> dict[str, Any]:
        """Of every episode; those that are `due` have just begun, so nothing has been late."""
        every = np.ones(self.num_envs, bool)
        cost, by_class = self.core.violations()
        if due is not None and due.any():
            cost = np.where(due, 0.0, cost)
            by_class = {name: np.where(due, 0.0, late) for name, late in by_class.items()}
        info = {
            "metrics": self.core.metrics(),
            "reward_parts": parts,
            "cost": cost,
            "cost_by_class": by_class,
            "clipped": clipped,
            "action_mask": self.core.masks(),
        }
        return {**info, **{f"_{name}": every for name in info}}

    @of_an_episode
    def action_masks(self) -> NDArray[np.bool_]:
        """(n, sum of choices) possible choices.

        Raises:
            gymnasium.error.ResetNeeded: before the first `reset`.
        """
        return self.core.masks()

    @while_open
    def render(self) -> None:
        """Nothing: many episodes are not drawn."""

    @of_an_episode
    def so_far(self) -> list[dict[str, Any]]:
        """What plays the episodes under way again: of each `seed`, `generator` and (k, parts) `actions`.

        Numbers and text alone, so it can be stored as such, if the `options` of `reset` are.

        Raises:
            ValueError: `core.restore` has put an episode somewhere since it began, or one is over and the
                next has not begun.
        """
        over = np.flatnonzero(self._due | ~self._started).tolist()
        if over:
            raise ValueError(f"episodes {over} are over: nothing is under way there")
        return [
            {**self.core.so_far(e), "options": self._options[e].given} for e in range(self.num_envs)
        ]

    @while_open
    def replay(self, episodes: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
        """Bring every episode to where it was at `so_far`, bit for bit; the observations there.

        It takes as long as the longest episode has taken so far.

        Raises:
            ValueError: another number of episodes, or what is no episode of this environment.
        """
        self._started[:] = False  # until all are there
        self.core.replay(episodes)
        self._options = [ResetOptions(self.scenario, each.get("options")) for each in episodes]
        self._elapsed[:] = [len(episode["actions"]) for episode in episodes]
        self._due[:] = False
        self._started[:] = self._begun = True
        return self.core.observe()

    @one_at_a_time
    def close_extras(self, **kwargs: Any) -> None:
        """End the threads."""
        self.core.close()

    # ---- what single environments would be asked ----

    def _generators(self) -> list[np.random.Generator]:
        """Of all episodes; those that have no seed yet get one that nobody knows."""
        rngs: list[Any] = self.core.rngs
        for e, rng in enumerate(rngs):
            if rng is None:
                rngs[e], self._seeds[e] = seeding.np_random()
        return rngs

    @property  # type: ignore[misc]
    def np_random(self) -> Any:
        """The generator of each episode, as `gymnasium.vector.SyncVectorEnv` has them."""
        return tuple(self._generators())

    @property
    def np_random_seed(self) -> Any:
        """The seed of each of them."""
        self._generators()
        return tuple(self._seeds)

    @while_open
    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """What a method or attribute of each of `num_envs` single environments would give.

        There are no single environments: what all episodes share is asked or called once and given to each.
        `action_masks`, `view`, `np_random`, `np_random_seed` and attributes that `set_attr` has set are each
        episode's own.

        Raises:
            AttributeError: an unknown name, or a method that is only for all episodes together.
        """
        if name in self._own:
            return self._own[name]
        if name in ("reset", "step", "close", "close_extras", "call", "get_attr", "set_attr"):
            raise AttributeError(f"{name}: is for all episodes together; call it by itself")
        if name == "view":
            return tuple(self._views())
        if name in ("np_random", "np_random_seed"):
            return cast(tuple[Any, ...], getattr(self, name))
        if name in ("action_space", "observation_space"):
            name = f"single_{name}"
        found = getattr(self, name)
        found = found(*args, **kwargs) if callable(found) else found
        return tuple(found) if name == "action_masks" else (found,) * self.num_envs

    @of_an_episode
    def _views(self) -> list[ClusterView]:
        return [self.core.view(e) for e in range(self.num_envs)]

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """`call` without arguments."""
        return self.call(name)

    @while_open
    def set_attr(self, name: str, values: Any) -> None:
        """Note an attribute of one's own of each episode, for `get_attr`.

        Args:
            name: one that the environment does not have.
            values: a list or tuple with one for each episode, or one for all.

        Raises:
            AttributeError: an attribute of the environment itself, which would not take effect.
            ValueError: another number of values.
        """
        if hasattr(self, name):
            raise AttributeError(f"{name}: belongs to the environment and cannot be set by episode")
        if not isinstance(values, (list, tuple)):
            values = (values,) * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(f"{name}: {len(values)} values: must be {self.num_envs}")
        self._own[name] = tuple(values)


def final_infos(
    observation: NDArray[np.float32], info: Mapping[str, Any], done: NDArray[np.bool_]
) -> dict[str, Any]:
    """Last observations and infos of the episodes that are `done`, as in Gymnasium's `SyncVectorEnv`."""
    final = np.full(len(done), None, dtype=object)
    for e in np.flatnonzero(done):
        final[e] = observation[e].copy()
    infos = {name: value for name, value in info.items() if not name.startswith("_")}
    masks = {f"_{name}": done.copy() for name in infos}
    return {
        "final_obs": final,
        "_final_obs": done.copy(),
        "final_info": infos | masks,
        "_final_info": done.copy(),
    }
