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
from llmscale_env.envs.shaping import Shaping
from llmscale_env.scenarios import Scenario
from llmscale_env.sim.lock import one_at_a_time


class ServingVectorEnv(VectorEnv, Settings):
    """Many episodes advanced in one call; the same episodes as as many single environments.

    Episodes that reach the horizon are reset in the same step (`AutoresetMode.SAME_STEP`): the
    observation is the new episode's, the old one's last is in `info["final_obs"]`.

    Args:
        num_envs: episodes, 1 to `MAX_EPISODES`.
        threads: threads that advance them, at least 1.
        scenario, overrides, observation, action, forecaster, reference, shaping, engine: as for the single
            form.
        render_mode: None only.

    Attributes:
        begins_anew: whether ended episodes are reset in the same step; if not, `reset` comes next, and the
            observation is the old one.

    Raises:
        ScenarioError, ValueError: as for the single form, or a number of episodes or threads that is no
            integer of at least 1, or too many episodes.
        MemoryError: no memory for so many episodes; also from `reset`, when their requests are known.
    """

    begins_anew = True

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
    ) -> None:
        num_envs = check_integer("num_envs", num_envs, 1)
        if num_envs > MAX_EPISODES:
            raise ValueError(f"num_envs = {num_envs}: must be at most {MAX_EPISODES:,}")
        threads = check_integer("threads", threads, 1)
        if render_mode is not None:
            raise ValueError(f"render_mode = {render_mode!r}: the vectorised form draws nothing")
        self.num_envs = num_envs
        self.render_mode = None
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
        self._own: dict[str, tuple[Any, ...]] = {}
        self._seeds = [-1] * num_envs
        codec = self.core.codec
        self.single_observation_space = codec.observation_space
        self.single_action_space = codec.action_space
        self.observation_space = batch_space(codec.observation_space, num_envs)
        self.action_space = batch_space(codec.action_space, num_envs)

    @while_open
    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """New episodes; an integer seed gives episode `e` the seed `seed + e`.

        `options["reset_mask"]` (n,) bool: in these places only; the first time it must be in all.

        Raises:
            ValueError: a seed that is no integer of at least 0, another number of seeds, an unknown option,
                or a mask of another kind; nothing has happened then.
            gymnasium.error.ClosedEnvironmentError: after `close`, as from every method below.
        """
        check_options(options, "reset_mask")
        seeds = seeds_of(seed, self.num_envs)
        which = np.ones(self.num_envs, bool)
        if options and options.get("reset_mask") is not None:
            which = self._mask(options["reset_mask"])
        for e in np.flatnonzero(which):
            if seeds[e] is not None:
                self.core.rngs[e], self._seeds[e] = seeding.np_random(seeds[e])
        self._generators()
        for e in np.flatnonzero(which):
            self.core.start(int(e), seeds[e])
            self._started[e] = True
        self._begun = True
        return self.core.observe(), self._info({}, np.zeros(self.num_envs, np.int64))

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
        self._started[:] = False  # until the step is whole
        costs, done, clipped = self.core.step(actions)
        rewards, parts = self._rewards(costs)
        info = self._info(parts, clipped)
        observation = self.core.observe()
        if done.any():
            final = np.full(self.num_envs, None, dtype=object)
            for e in np.flatnonzero(done):
                final[e] = observation[e].copy()
            info["final_obs"] = final
            info["_final_obs"] = done.copy()
            info["final_info"] = {
                name: value for name, value in info.items() if not name.startswith(("_", "final"))
            }
            info["_final_info"] = done.copy()
            info["episode_summary"] = self.core.summary()
            info["_episode_summary"] = done.copy()
            if self.begins_anew:
                for e in np.flatnonzero(done):
                    self.core.start(int(e))
                observation = self.core.observe()
                info["action_mask"] = self.core.masks()
        self._started[:] = self.begins_anew or ~done
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
        self, parts: dict[str, NDArray[np.float64]], clipped: NDArray[np.int64]
    ) -> dict[str, Any]:
        every = np.ones(self.num_envs, bool)
        cost, by_class = self.core.violations()
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

        Numbers and text alone, so it can be stored as such.

        Raises:
            ValueError: `core.restore` has put an episode somewhere since it began.
        """
        return [self.core.so_far(e) for e in range(self.num_envs)]

    @while_open
    def replay(self, episodes: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
        """Bring every episode to where it was at `so_far`, bit for bit; the observations there.

        It takes as long as the longest episode has taken so far.

        Raises:
            ValueError: another number of episodes, or what is no episode of this environment.
        """
        self._started[:] = False  # until all are there
        self.core.replay(episodes)
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
