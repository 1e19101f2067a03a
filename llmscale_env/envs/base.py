"""The two Gymnasium forms of an environment: one episode at a time, or many in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from llmscale_env.control.forecast import ForecasterSpec
from llmscale_env.control.policy import Policy
from llmscale_env.control.reward import RewardParts
from llmscale_env.control.view import ClusterView
from llmscale_env.envs.codec import Codec
from llmscale_env.envs.core import ServingCore, parts_dict
from llmscale_env.envs.render import History, draw_frame, text_frame
from llmscale_env.envs.shaping import Shaping
from llmscale_env.scenarios import Scenario, load_scenario
from llmscale_env.sim.lock import Lock, one_at_a_time


class _Settings:
    """What both forms share: a scenario and how it is observed and steered.

    Attributes:
        scenario_name: the scenario when none is given.
        observation, action: names of observation blocks and action heads, in order.
    """

    scenario_name: ClassVar[str]
    observation: ClassVar[tuple[str, ...]]
    action: ClassVar[tuple[str, ...]]

    def _configure(
        self,
        n: int,
        scenario: str | Scenario | None,
        overrides: Mapping[str, Any] | None,
        observation: Sequence[str] | None,
        action: Sequence[str] | None,
        forecaster: ForecasterSpec | None,
        threads: int,
        reference: Policy | None,
        shaping: Shaping | Mapping[str, float] | float | None,
    ) -> None:
        self.scenario = load_scenario(scenario or self.scenario_name, **dict(overrides or {}))
        self._blocks = tuple(observation or self.observation)
        self._heads = tuple(action or self.action)
        self._reference = reference
        self._shaping = Shaping.of(shaping)
        self.core = ServingCore(
            self.scenario,
            n,
            self._blocks,
            self._heads,
            forecaster,
            threads,
            reference,
            self._shaping,
        )

    def make_codec(self) -> Codec:
        """A codec of its own for the same spaces: what a learned policy runs with."""
        return Codec(self.scenario, self._blocks, self._heads, self._reference)

    @property
    def lock(self) -> Lock:
        """Held by the thread that is at work on the episodes; others wait."""
        return self.core.lock

    @property
    def weights(self) -> dict[str, Any]:
        """Weights of the reward's parts now: `gpu`, `violations` by class, `loads`."""
        return (self.core.weighted or self.core.sim.rewards).weights

    @one_at_a_time
    def set_weights(
        self,
        *,
        gpu: float | None = None,
        violations: float | Mapping[str, float] | None = None,
        loads: float | None = None,
    ) -> None:
        """Other weights of the reward's parts from the next step on, in place of the scenario's.

        For a Lagrangian that follows an attainment target. Rewards and `reward_parts` are by these weights,
        what `metrics` has of the reward by the scenario's.

        Args:
            gpu, loads: in place of `gpu_weight` and `load_weight`.
            violations: in place of `violation_weight`, for all classes or by class; a class's own weight
                counts besides.

        Raises:
            ValueError: an unknown class, or a weight that is negative or not finite.
        """
        self.core.set_weights(gpu=gpu, violations=violations, loads=loads)

    def _rewards(
        self, costs: RewardParts
    ) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
        """(n,) rewards of a step, and their parts."""
        parts = {name: -cost for name, cost in parts_dict(costs).items()}
        if self.core.backlog is None:
            return costs.reward, parts
        parts["late_backlog"] = self.core.shaped
        return costs.reward + self.core.shaped, parts


class ServingEnv(gym.Env, _Settings):
    """One episode at a time; concrete environments are thin subclasses.

    Args:
        scenario: name, path of a YAML file, or a `Scenario`.
        overrides: dotted fields of the scenario with other values.
        observation, action: names of blocks and heads in place of the environment's own.
        forecaster: what the forecast block shows ("ewma", "holt-winters", {...}; None: zeros, as always
            where decisions are made at arrivals).
        render_mode: "ansi" or "rgb_array".
        reference: a policy whose instance counts the action head `residual` multiplies; it is copied.
        shaping: weight of a term of the reward for requests that will be late, or `Shaping`, or a mapping of
            its fields (`llmscale_env.envs.shaping`); None: without.

    Raises:
        ScenarioError: an unknown scenario or field, or a value out of range.
        ValueError: an unknown block, head, forecaster or render mode.
        ModuleNotFoundError: `render_mode="rgb_array"` without the extra "plots".
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 5}

    def __init__(
        self,
        scenario: str | Scenario | None = None,
        overrides: Mapping[str, Any] | None = None,
        observation: Sequence[str] | None = None,
        action: Sequence[str] | None = None,
        forecaster: ForecasterSpec | None = "ewma",
        render_mode: str | None = None,
        reference: Policy | None = None,
        shaping: Shaping | Mapping[str, float] | float | None = None,
    ) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(
                f"render_mode = {render_mode!r}: must be one of {self.metadata['render_modes']}"
            )
        if render_mode == "rgb_array" and find_spec("matplotlib") is None:
            # Said now, not after an episode.
            how = "needs matplotlib: pip install 'llmscale[plots]'"
            raise ModuleNotFoundError(f"render_mode = 'rgb_array' {how}", name="matplotlib")
        self.render_mode = render_mode
        self._configure(
            1, scenario, overrides, observation, action, forecaster, 1, reference, shaping
        )
        self.codec = self.core.codec
        self.observation_space = self.codec.observation_space
        self.action_space = self.codec.action_space
        self._started = False
        self._history = History()

    # ---- Gymnasium ----

    @one_at_a_time
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """A new episode; its requests come from `self.np_random`."""
        super().reset(seed=seed)
        self.core.rngs[0] = self.np_random
        self.core.start(0, seed)
        self._started = True
        self._history = History()
        return self.core.observe()[0], self._info({})

    @one_at_a_time
    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Carry out an action and run to the next decision. The horizon truncates.

        Raises:
            ValueError: the action is out of its space; nothing has happened then.
            gymnasium.error.ResetNeeded: before the first `reset`, or after the horizon.
        """
        if not self._started:
            raise gym.error.ResetNeeded("step() needs a reset() first")
        costs, done, clipped = self.core.step(action)
        truncated = bool(done[0])
        self._started = not truncated
        rewards, by_part = self._rewards(costs)
        parts = {name: float(value[0]) for name, value in by_part.items()}
        if self.render_mode is not None:
            self._history.add(self.scenario, self.core)
        info = self._info(parts, int(clipped[0]))
        if truncated:
            info["episode_summary"] = {name: float(v[0]) for name, v in self.core.summary().items()}
        return self.core.observe()[0], float(rewards[0]), False, truncated, info

    def _info(self, parts: dict[str, float], clipped: int = 0) -> dict[str, Any]:
        cost, by_class = self.core.violations()
        return {
            "metrics": {name: float(v[0]) for name, v in self.core.metrics().items()},
            "reward_parts": parts,
            "cost": float(cost[0]),
            "cost_by_class": {name: float(late[0]) for name, late in by_class.items()},
            "clipped": clipped,
            "action_mask": self.action_masks(),
        }

    @one_at_a_time
    def render(self) -> Any:
        """Text ("ansi"), or an (H, W, 3) uint8 picture ("rgb_array"), of the episode so far."""
        if self.render_mode == "ansi":
            return text_frame(self.scenario, self.core)
        if self.render_mode == "rgb_array":
            return draw_frame(self.scenario, self._history)
        return None

    @one_at_a_time
    def close(self) -> None:
        """Nothing stays open."""
        self.core.close()

    # ---- beyond Gymnasium ----

    @one_at_a_time
    def action_masks(self) -> NDArray[np.bool_]:
        """(sum of choices,) possible choices, parts one after the other (sb3-contrib's form)."""
        return self.core.masks()[0]

    @one_at_a_time
    def view(self) -> ClusterView:
        """The cluster as a handwritten policy sees it now."""
        return self.core.view(0)

    @one_at_a_time
    def save_state(self) -> dict[str, Any]:
        """The whole episode, generator included; can be pickled."""
        return {
            "core": self.core.save(0),
            "started": self._started,
            "history": self._history.copy(),
        }

    @one_at_a_time
    def restore_state(self, saved: dict[str, Any]) -> None:
        """Continue from where `save_state` was called, on this or another instance.

        Raises:
            ValueError: the state is of another scenario.
        """
        if self.core.rngs[0] is None:
            self.core.rngs[0] = self.np_random
        self.core.restore(0, saved["core"])
        self._started = saved["started"]
        self._history = saved["history"].copy()

    @one_at_a_time
    def fork(self) -> ServingEnv:
        """Another environment at the same point; the two go on independently."""
        other = type(self)(
            scenario=self.scenario,
            observation=self._blocks,
            action=self._heads,
            forecaster=self.core.forecaster_settings,
            render_mode=self.render_mode,
            reference=self._reference,
            shaping=self._shaping,
        )
        if self.core.weighted is not None:
            other.set_weights(**self.weights)
        other.restore_state(self.save_state())
        return other


class ServingVectorEnv(VectorEnv, _Settings):
    """Many episodes advanced in one call; the same episodes as as many single environments.

    Episodes that reach the horizon are reset in the same step (`AutoresetMode.SAME_STEP`): the
    observation is the new episode's, the old one's last is in `info["final_obs"]`.

    Args:
        num_envs: episodes.
        threads: threads that advance them.
        scenario, overrides, observation, action, forecaster, reference, shaping: as for the single form.
        render_mode: None only.

    Attributes:
        begins_anew: whether ended episodes are reset in the same step; if not, `reset` comes next, and the
            observation is the old one.
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
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs = {num_envs}: must be at least 1")
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
        )
        self._started = np.zeros(num_envs, bool)
        codec = self.core.codec
        self.single_observation_space = codec.observation_space
        self.single_action_space = codec.action_space
        self.observation_space = batch_space(codec.observation_space, num_envs)
        self.action_space = batch_space(codec.action_space, num_envs)

    @one_at_a_time
    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """New episodes; an integer seed gives episode `e` the seed `seed + e`.

        `options["reset_mask"]` (n,) bool: in these places only; the first time it must be in all.

        Raises:
            ValueError: another number of seeds, or a mask of another kind; nothing has happened then.
        """
        seeds = seeds_of(seed, self.num_envs)
        which = np.ones(self.num_envs, bool)
        if options and options.get("reset_mask") is not None:
            which = self._mask(options["reset_mask"])
        for e in np.flatnonzero(which):
            if seeds[e] is not None or self.core.rngs[e] is None:
                self.core.rngs[e] = seeding.np_random(seeds[e])[0]
            self.core.start(int(e), seeds[e])
            self._started[e] = True
        return self.core.observe(), self._info({}, np.zeros(self.num_envs, np.int64))

    @one_at_a_time
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
            gymnasium.error.ResetNeeded: of some episodes that have not begun.
        """
        if not self._started.all():
            waiting = np.flatnonzero(~self._started).tolist()
            raise gym.error.ResetNeeded(f"step() needs a reset() first, of episodes {waiting}")
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
            else:
                self._started &= ~done
        never = np.zeros(self.num_envs, bool)
        return observation, rewards, never, done.copy(), info

    def _mask(self, given: Any) -> NDArray[np.bool_]:
        """The places that a reset is for."""
        mask = np.asarray(given)
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

    @one_at_a_time
    def action_masks(self) -> NDArray[np.bool_]:
        """(n, sum of choices) possible choices."""
        return self.core.masks()

    @one_at_a_time
    def so_far(self) -> list[dict[str, Any]]:
        """What plays the episodes under way again: of each `seed`, `generator` and (k, parts) `actions`.

        Numbers and text alone, so it can be stored as such. It tells nothing of calls that gave some episodes
        another state in another way.
        """
        return [self.core.so_far(e) for e in range(self.num_envs)]

    @one_at_a_time
    def replay(self, episodes: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
        """Bring every episode to where it was at `so_far`, bit for bit; the observations there.

        It takes as long as the longest episode has taken so far.

        Raises:
            ValueError: another number of episodes, or what is no episode of this environment.
        """
        self.core.replay(episodes)
        self._started[:] = True
        return self.core.observe()

    @one_at_a_time
    def close_extras(self, **kwargs: Any) -> None:
        """End the threads."""
        self.core.close()


def seeds_of(seed: int | Sequence[int | None] | None, n: int) -> list[int | None]:
    """(n,) seeds of episodes side by side: an integer means that of the first, the others count on.

    Raises:
        ValueError: a sequence of another length.
    """
    if seed is None:
        return [None] * n
    if isinstance(seed, (int, np.integer)):
        return [int(seed) + e for e in range(n)]
    seeds = list(seed)
    if len(seeds) != n:
        raise ValueError(f"seed has {len(seeds)} entries: must be {n}")
    return seeds
