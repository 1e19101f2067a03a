"""The two Gymnasium forms of an environment: one episode at a time, or many in one call."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib.util import find_spec
from typing import Any, ClassVar, TypeVar, cast

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from llmscale_env.control.forecast import ForecasterSpec
from llmscale_env.control.forecast.base import check_integer
from llmscale_env.control.policy import Policy
from llmscale_env.control.reward import RewardParts
from llmscale_env.control.view import ClusterView
from llmscale_env.envs.blocks.entries import Entry
from llmscale_env.envs.codec import Codec
from llmscale_env.envs.core import ServingCore, parts_dict
from llmscale_env.envs.render import History, draw_frame, text_frame
from llmscale_env.envs.shaping import Shaping
from llmscale_env.scenarios import Scenario, ScenarioError, load_scenario
from llmscale_env.sim.lock import Lock, one_at_a_time

F = TypeVar("F", bound=Callable[..., Any])

MAX_EPISODES = 100_000
"""Episodes side by side of a vectorised environment, at most. What memory has room for is often less.

An episode takes about 200 bytes per request: 5 MB in Placement-v1, 100 MB in MixedSLO-Hours-v1.
"""


def _while_open(method: F) -> F:
    """As `one_at_a_time`; a closed environment refuses the call."""

    @wraps(method)
    @one_at_a_time
    def checks(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.closed:
            raise gym.error.ClosedEnvironmentError(
                f"{method.__name__}() of a closed environment: make another one"
            )
        return method(self, *args, **kwargs)

    return cast(F, checks)


def _of_an_episode(method: F) -> F:
    """As `_while_open`; before the first `reset` there is nothing to look at."""

    @wraps(method)
    def checks(self: Any) -> Any:
        if not self._begun:
            raise gym.error.ResetNeeded(f"{method.__name__}() needs a reset() first")
        return method(self)

    return _while_open(cast(F, checks))


class _Settings:
    """What both forms share: a scenario and how it is observed and steered.

    Attributes:
        scenario_name: the scenario when none is given.
        observation, action: names of observation blocks and action heads, in order.
        closed: whether `close` has been called; nothing but attributes can be used then.
    """

    closed = False
    _begun = False  # there has been an episode
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
        engine: str,
    ) -> None:
        overrides = {} if overrides is None else overrides
        if not isinstance(overrides, Mapping) or not all(isinstance(key, str) for key in overrides):
            raise ScenarioError(
                f"overrides = {overrides!r}: must be a mapping of fields, by dotted path, to values"
            )
        name = self.scenario_name if scenario is None else scenario
        self.scenario = load_scenario(name, **overrides)
        blocks = self.observation if observation is None else observation
        heads = self.action if action is None else action
        self._reference = reference
        self._shaping = Shaping.of(shaping)
        self._engine = engine
        self.core = ServingCore(
            self.scenario,
            n,
            blocks,
            heads,
            forecaster,
            threads,
            reference,
            self._shaping,
            engine,
        )
        self._blocks, self._heads = tuple(blocks), tuple(heads)

    @property
    def observation_entries(self) -> tuple[Entry, ...]:
        """The numbers of one episode's observation, in order, each with name, meaning and bounds."""
        return tuple(self.core.codec.encoder.entries)

    @property
    def observation_names(self) -> tuple[str, ...]:
        """Names of the entries of one episode's observation, in order, such as `queue/interactive`."""
        return tuple(entry.name for entry in self.observation_entries)

    @property
    def action_choices(self) -> dict[str, tuple[str, ...]]:
        """What can be chosen for each part of one episode's action, in order, as words."""
        decoder = self.core.codec.decoder
        return dict(zip(decoder.parts, map(tuple, decoder.choices), strict=True))

    @property
    def action_names(self) -> tuple[str, ...]:
        """Names of the parts of one episode's action, in order, such as `mixed/instances`."""
        return tuple(self.action_choices)

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

    @_while_open
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
            ValueError: an unknown class, or a weight that is no number, negative or not finite; nothing
                has changed then.
            gymnasium.error.ClosedEnvironmentError: after `close`.
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
        engine: "fast", or "reference": the simulator in readable Python, with the same numbers, about a
            hundred times slower, to be read and changed (docs/architecture.md).

    Raises:
        ScenarioError: an unknown scenario or field, or a value out of range.
        ValueError: an unknown block, head, forecaster, engine or render mode, none at all, or a value of
            another kind.
        ModuleNotFoundError: `render_mode="rgb_array"` without the extra "plots".

    ## Information

    - `metrics`: of the episode so far: `CLASS/slo_attainment`, `CLASS/violations`, `CLASS/arrived`,
      `joint/slo_attainment`, `gpu_hours`, `loads`, `preemptions`, `evictions`, `POOL/active`, `POOL/loading`,
      `POOL/running`, `POOL/waiting`, `POOL/batch_limit`, `queue/QUEUE`, `reward`;
    - `reward_parts`: the parts of the reward with their sign; `clipped`: orders that were not possible;
      `action_mask`: which choices are possible now;
    - `cost`: violations since the last decision, for constrained RL, and `cost_by_class`;
    - `episode_summary`: the metrics at the end of an episode. Attainment is there the share of all arrivals,
      in `metrics` of those whose fate is known; requests that prices leave open are in no share.

    `set_weights(gpu=, violations=, loads=)` moves the weights of the reward's parts, `violations` for all
    classes or by class, as a Lagrangian needs; `metrics` keeps the reward by the scenario's own.
    `save_state()`, `restore_state(saved)` and `fork()` copy an episode in progress; `view()` shows it as a
    handwritten policy sees it.
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
        engine: str = "fast",
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
            1, scenario, overrides, observation, action, forecaster, 1, reference, shaping, engine
        )
        self.codec = self.core.codec
        self.observation_space = self.codec.observation_space
        self.action_space = self.codec.action_space
        self._started = False
        self._history = History()

    # ---- Gymnasium ----

    @_while_open
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """A new episode; its requests come from `self.np_random`.

        Args:
            seed: of another generator; None: the present one goes on.
            options: there are none.

        Raises:
            ValueError: a seed that is no integer of at least 0, or any option; nothing has happened then.
            gymnasium.error.ClosedEnvironmentError: after `close`, as from every method below.
        """
        check_options(options)
        seed = None if seed is None else check_integer("seed", seed, 0)
        super().reset(seed=seed)
        self.core.rngs[0] = self.np_random
        self.core.start(0, seed)
        self._started = self._begun = True
        self._history = History()
        return self.core.observe()[0], self._info({})

    @_while_open
    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Carry out an action and run to the next decision. The horizon truncates.

        Raises:
            ValueError: the action is out of its space; nothing has happened then.
            CommandError: an order is impossible and the scenario says that this is an error; the episode is
                over then, as after any other error while time passes.
            gymnasium.error.ResetNeeded: before the first `reset`, or after the episode.
        """
        if not self._started:
            raise gym.error.ResetNeeded("step() needs a reset() first")
        action = self.codec.decoder.check(action, 1)
        self._started = False  # until the step is whole
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

    @_of_an_episode
    def render(self) -> Any:
        """Text ("ansi"), or an (H, W, 3) uint8 picture ("rgb_array"), of the episode so far.

        Raises:
            gymnasium.error.ResetNeeded: before the first `reset`, as from `action_masks` and `view`.
        """
        if self.render_mode == "ansi":
            return text_frame(self.scenario, self.core)
        if self.render_mode == "rgb_array":
            return draw_frame(self.scenario, self._history)
        return None

    @one_at_a_time
    def close(self) -> None:
        """Nothing stays open, and the environment can no longer be used; to close it again does nothing."""
        self.core.close()
        self.closed = True

    # ---- beyond Gymnasium ----

    @_of_an_episode
    def action_masks(self) -> NDArray[np.bool_]:
        """(sum of choices,) possible choices, parts one after the other (sb3-contrib's form)."""
        return self.core.masks()[0]

    @_of_an_episode
    def view(self) -> ClusterView:
        """The cluster as a handwritten policy sees it now."""
        return self.core.view(0)

    @_while_open
    def save_state(self) -> dict[str, Any]:
        """The whole episode, generator included; can be pickled. What `set_weights` has set is not of it."""
        return {
            "core": self.core.save(0),
            "started": self._started,
            "history": self._history.copy(),
        }

    @_while_open
    def restore_state(self, saved: dict[str, Any]) -> None:
        """Continue from where `save_state` was called, on this or another instance.

        Kinds and shapes of `saved` are checked. Its numbers are not: changed ones are taken as they are.

        Raises:
            ValueError: no state of an environment, or one of another scenario; nothing has changed then.
        """
        kinds = {"core": dict, "started": bool, "history": History}
        if not isinstance(saved, dict) or not all(
            isinstance(saved.get(name), kind) for name, kind in kinds.items()
        ):
            raise ValueError(
                f"saved = {textwrap.shorten(repr(saved), 80)}: must be from `save_state`"
            )
        if self.core.rngs[0] is None:
            self.core.rngs[0] = self.np_random
        self.core.restore(0, saved["core"])
        self._begun = self.core.sim.requests[0] is not None
        self._started = saved["started"]
        self._history = saved["history"].copy()

    @_while_open
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
            engine=self._engine,
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

    @_while_open
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

    @_while_open
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

    @_of_an_episode
    def action_masks(self) -> NDArray[np.bool_]:
        """(n, sum of choices) possible choices.

        Raises:
            gymnasium.error.ResetNeeded: before the first `reset`.
        """
        return self.core.masks()

    @_while_open
    def render(self) -> None:
        """Nothing: many episodes are not drawn."""

    @_of_an_episode
    def so_far(self) -> list[dict[str, Any]]:
        """What plays the episodes under way again: of each `seed`, `generator` and (k, parts) `actions`.

        Numbers and text alone, so it can be stored as such.

        Raises:
            ValueError: `core.restore` has put an episode somewhere since it began.
        """
        return [self.core.so_far(e) for e in range(self.num_envs)]

    @_while_open
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

    @_while_open
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

    @_of_an_episode
    def _views(self) -> list[ClusterView]:
        return [self.core.view(e) for e in range(self.num_envs)]

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """`call` without arguments."""
        return self.call(name)

    @_while_open
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


def check_options(options: object, *known: str) -> None:
    """Refuse options of `reset` that mean nothing.

    Raises:
        ValueError: no mapping, or an unknown name.
    """
    if options is None:
        return
    if not isinstance(options, Mapping):
        raise ValueError(f"options = {options!r}: must be a mapping of names to values, or None")
    for name in options:
        if name not in known:
            raise ValueError(f"options[{name!r}]: unknown; there are {list(known)}")


def seeds_of(
    seed: int | Sequence[int | None] | NDArray[np.integer] | None, n: int
) -> list[int | None]:
    """(n,) seeds of episodes side by side: an integer means that of the first, the others count on.

    Raises:
        ValueError: a sequence of another length, or a seed that is no integer of at least 0.
    """
    if seed is None:
        return [None] * n
    if isinstance(seed, np.ndarray):
        seed = seed.tolist()
    if isinstance(seed, Sequence) and not isinstance(seed, (str, bytes)):
        if len(seed) != n:
            raise ValueError(f"seed has {len(seed)} entries: must be {n}")
        return [
            None if one is None else check_integer(f"seed[{e}]", one, 0)
            for e, one in enumerate(seed)
        ]
    return [check_integer("seed", seed, 0) + e for e in range(n)]
