"""What all environments share, and the form with one episode at a time; `vector` has the other one."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib.util import find_spec
from typing import Any, ClassVar, TypeVar, cast

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from llmscale_env.control.forecast import ForecasterSpec
from llmscale_env.control.forecast.base import check_integer
from llmscale_env.control.policy import Policy
from llmscale_env.control.reward import PARTS, RewardParts
from llmscale_env.control.view import ClusterView
from llmscale_env.envs.codec import Codec
from llmscale_env.envs.core import ServingCore, parts_dict
from llmscale_env.envs.observation_blocks.base import Entry
from llmscale_env.envs.render import FrameDrawer, History, text_frame
from llmscale_env.envs.reset_options import ResetOptions
from llmscale_env.envs.shaping import Shaping
from llmscale_env.scenarios import Scenario, ScenarioError, load_scenario
from llmscale_env.sim.lock import Lock, one_at_a_time

F = TypeVar("F", bound=Callable[..., Any])

MAX_EPISODES = 100_000
"""Episodes side by side of a vectorised environment, at most. What memory has room for is often less.

An episode takes about 200 bytes per request: 5 MB in Placement-v1, 100 MB in MixedSLO-Hours-v1.
"""


def while_open(method: F) -> F:
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


def of_an_episode(method: F) -> F:
    """As `while_open`; before the first `reset` there is nothing to look at."""

    @wraps(method)
    def checks(self: Any) -> Any:
        if not self._begun:
            raise gym.error.ResetNeeded(f"{method.__name__}() needs a reset() first")
        return method(self)

    return while_open(cast(F, checks))


class Settings:
    """What both forms share: a scenario and how it is observed and steered.

    Attributes:
        scenario_name: the scenario when none is given; "": one must be given.
        observation, action: names of observation blocks and action heads, in order.
        closed: whether `close` has been called; nothing but attributes can be used then.
    """

    closed = False
    _spec: EnvSpec | None = None
    _begun = False  # there has been an episode
    scenario_name: ClassVar[str] = ""
    observation: ClassVar[tuple[str, ...]] = ()
    action: ClassVar[tuple[str, ...]] = ()

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
        if scenario is None and not name:
            raise ValueError(
                f"scenario = None: {type(self).__name__} has none of its own; name one, or make a "
                "subclass such as MixedSLOEnv"
            )
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
    def spec(self) -> EnvSpec | None:
        """Gymnasium's; where decisions are in intervals, `max_episode_steps` is this scenario's."""
        return self._spec

    @spec.setter
    def spec(self, made: EnvSpec | None) -> None:
        self._spec = made
        if made is not None and self.scenario.decisions == "intervals":
            steps = self.scenario.n_steps
            made.max_episode_steps = min(made.max_episode_steps or steps, steps)

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

    @while_open
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

    @property
    def _part_names(self) -> tuple[str, ...]:
        return PARTS if self.core.backlog is None else (*PARTS, "late_backlog")

    def _rewards(
        self, costs: RewardParts
    ) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
        """(n,) rewards of a step, and their parts."""
        parts = {name: -cost for name, cost in parts_dict(costs).items()}
        if self.core.backlog is None:
            return costs.reward, parts
        parts["late_backlog"] = self.core.shaped
        return costs.reward + self.core.shaped, parts


class ServingEnv(Settings, gym.Env):
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

    | in `info` | what it is |
    |---|---|
    | `metrics` | numbers of the episode so far, listed below |
    | `episode_summary` | the same at the end of an episode |
    | `reward_parts` | the parts of the reward with their sign |
    | `clipped` | how many orders were not possible |
    | `action_mask` | which choices are possible now |
    | `cost`, `cost_by_class` | violations since the last decision, for constrained RL |

    `metrics` has `CLASS/slo_attainment`, `CLASS/violations`, `CLASS/arrived`,
    `joint/slo_attainment`, `gpu_hours`, `loads`, `preemptions`, `evictions`, `POOL/active`,
    `POOL/loading`, `POOL/running`, `POOL/waiting`, `POOL/batch_limit`, `queue/QUEUE`, `reward`.
    Attainment is the share of requests whose fate is known. In `episode_summary` it is that of all
    arrivals but those that prices leave open.

    | in `env.unwrapped` | what it is |
    |---|---|
    | `observation_names`, `action_names` | entries of the observation, parts of the action |
    | `observation_entries` | each entry with its meaning and bounds |
    | `action_choices` | each part's choices as words |
    | `set_weights(gpu=, violations=, loads=)` | other weights of the reward, for a Lagrangian |
    | `save_state()`, `restore_state(saved)`, `fork()` | copies of an episode in progress |
    | `view()` | the episode as a handwritten policy sees it |

    `set_weights` takes `violations` for all classes or by class. `metrics` keeps the reward by the
    scenario's weights.
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
        self._drawer: FrameDrawer | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A canvas draws for the process that has made it.
        return {**self.__dict__, "_drawer": None}

    # ---- Gymnasium ----

    @while_open
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """A new episode; its requests come from `self.np_random`.

        Args:
            seed: of another generator; None: the present one goes on.
            options: what is other in this episode: load, day (`llmscale_env.envs.reset_options`). What they
                change, drawn or given, is in `info["options"]`.

        Raises:
            ValueError: a seed that is no integer of at least 0, an unknown option or a value that does not
                fit; nothing has happened then.
            gymnasium.error.ClosedEnvironmentError: after `close`, as from every method below.
        """
        check_options(options)
        seed = None if seed is None else check_integer("seed", seed, 0)
        checked = ResetOptions(self.scenario, options)
        super().reset(seed=seed)
        self.core.rngs[0] = self.np_random
        changes = checked.draw(self.np_random)
        self.core.start(0, seed, changes)
        self._started = self._begun = True
        self._history, self._drawer = History(), None
        info = self._info(dict.fromkeys(self._part_names, 0.0))
        return self.core.observe()[0], {**info, "options": changes} if changes else info

    @while_open
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

    @of_an_episode
    def render(self) -> Any:
        """Text ("ansi"), or an (H, W, 3) uint8 picture ("rgb_array"), of the episode so far.

        Raises:
            gymnasium.error.ResetNeeded: before the first `reset`, as from `action_masks` and `view`.
        """
        if self.render_mode == "ansi":
            return text_frame(self.scenario, self.core)
        if self.render_mode == "rgb_array":
            if self._drawer is None:
                gateway = "queue/gateway" in self.core.metrics()
                self._drawer = FrameDrawer(self.scenario, gateway)
            return self._drawer.draw(self._history)
        return None

    @one_at_a_time
    def close(self) -> None:
        """Nothing stays open, and the environment can no longer be used; to close it again does nothing."""
        self.core.close()
        self.closed = True

    # ---- beyond Gymnasium ----

    @of_an_episode
    def action_masks(self) -> NDArray[np.bool_]:
        """(sum of choices,) possible choices, parts one after the other (sb3-contrib's form)."""
        return self.core.masks()[0]

    @of_an_episode
    def view(self) -> ClusterView:
        """The cluster as a handwritten policy sees it now."""
        return self.core.view(0)

    @while_open
    def save_state(self) -> dict[str, Any]:
        """The whole episode, generator included; can be pickled. What `set_weights` has set is not of it."""
        return {
            "core": self.core.save(0),
            "started": self._started,
            "history": self._history.copy(),
        }

    @while_open
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
        self._history, self._drawer = saved["history"].copy(), None

    @while_open
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


def check_options(options: object) -> None:
    """Refuse options of `reset` that are no mapping.

    Raises:
        ValueError: they are none.
    """
    if options is not None and not isinstance(options, Mapping):
        raise ValueError(f"options = {options!r}: must be a mapping of names to values, or None")


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
