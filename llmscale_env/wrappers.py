"""Other forms of the environments: what libraries for constrained, multi-objective or continuous RL expect.

Each wraps a single environment; `NamedObservation`, `ContinuousAction` and `Curriculum` have vectorised
forms, whose names begin with `Vector`, and `VectorFlatInfo` is for these alone. Load and days can also be
drawn without a wrapper, by `reset(options={"randomise": ...})` (`llmscale_env.envs.reset_options`). In a
vectorised environment that holds until the next `reset`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import VectorWrapper
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from llmscale_env.envs.reset_options import ResetOptions

By = Literal["block", "entry"]


def _ours(env: Any, wrapper: str) -> Any:
    """The environment itself.

    Raises:
        TypeError: it is none of this package.
    """
    inner = env.unwrapped
    if not hasattr(inner, "observation_entries"):
        raise TypeError(
            f"{wrapper}: is for environments of llmscale_env, not {type(inner).__name__}"
        )
    return inner


class _Names:
    """Rows of observations as mappings, one level deep."""

    def __init__(self, env: Any, by: By, single: spaces.Box) -> None:
        if by not in ("block", "entry"):
            raise ValueError(f"by = {by!r}: must be 'block' or 'entry'")
        inner = _ours(env, "NamedObservation")
        spans = inner.core.codec.encoder.spans
        if by == "entry":
            spans = {name: slice(k, k + 1) for k, name in enumerate(inner.observation_names)}
        self.spans: dict[str, slice] = spans
        self.space = spaces.Dict(
            {
                name: spaces.Box(single.low[span], single.high[span], dtype=np.float32)
                for name, span in spans.items()
            }
        )

    def split(self, rows: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Of (..., k) the entries of each name, (..., its entries)."""
        return {name: rows[..., span] for name, span in self.spans.items()}


class NamedObservation(gym.ObservationWrapper, RecordConstructorArgs):
    """Observations as a `Dict`: a `Box` per block, or one per entry.

    Args:
        env: of this package.
        by: "block" (`load`, `pools`, ...; what a block's entries are is in docs/forms.md) or "entry".

    Raises:
        ValueError: another `by`.
        TypeError: another environment.
    """

    def __init__(self, env: gym.Env[Any, Any], by: By = "block") -> None:
        RecordConstructorArgs.__init__(self, by=by)
        super().__init__(env)
        self._names = _Names(env, by, env.observation_space)  # type: ignore[arg-type]
        self.observation_space = self._names.space

    def observation(self, observation: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """(k,) by name."""
        return self._names.split(observation)


class VectorNamedObservation(VectorWrapper):
    """`NamedObservation` of a vectorised environment; `final_obs` stay rows."""

    def __init__(self, env: Any, by: By = "block") -> None:
        super().__init__(env)
        self._names = _Names(env, by, env.single_observation_space)
        self.single_observation_space = self._names.space
        self.observation_space = batch_space(self._names.space, env.num_envs)

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        """As the environment's, by name."""
        observation, info = self.env.reset(**given)
        return self._names.split(observation), info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """As the environment's, by name."""
        observation, *others = self.env.step(actions)
        return (self._names.split(observation), *others)


class _Levels:
    """Numbers in -1..1 as choices."""

    def __init__(self, env: Any) -> None:
        self._nvec = _ours(env, "ContinuousAction").core.codec.decoder.nvec
        self.space = spaces.Box(-1.0, 1.0, (len(self._nvec),), np.float32)

    def choices(self, action: Any) -> NDArray[np.int64]:
        """Of (..., parts) the choices: each part's range is cut into equal pieces, in order."""
        given = np.asarray(action, np.float64)
        if not np.isfinite(given).all():
            raise ValueError(f"action = {given.tolist()}: must be finite numbers")
        share = (np.clip(given, -1.0, 1.0) + 1.0) / 2.0
        return np.minimum((share * self._nvec).astype(np.int64), self._nvec - 1)


class ContinuousAction(gym.ActionWrapper, RecordConstructorArgs):
    """Actions as a `Box` of -1..1 with a number per part, for SAC and TD3.

    A part of n choices takes n equal pieces of the range, in the order of `action_choices`. Numbers beyond
    the range count as its ends. Choices that are not possible are clipped as always.

    Raises:
        TypeError: another environment.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        self._levels = _Levels(env)
        self.action_space = self._levels.space

    def action(self, action: Any) -> NDArray[np.int64]:
        """(parts,) choices."""
        return self._levels.choices(action)


class VectorContinuousAction(VectorWrapper):
    """`ContinuousAction` of a vectorised environment."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._levels = _Levels(env)
        self.single_action_space = self._levels.space
        self.action_space = batch_space(self._levels.space, env.num_envs)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """(n, parts) numbers as choices."""
        return self.env.step(self._levels.choices(actions))


class VectorReward(gym.Wrapper, RecordConstructorArgs):
    """Rewards as vectors, one number per part, as MO-Gymnasium has them.

    The parts are those of `info["reward_parts"]`; their sum is the reward. `reward_space` is set on the
    environment itself as well, where MO-Gymnasium's wrappers look for it.

    Args:
        env: of this package.
        parts: which ones, in order; None: all of them. Others are in no reward then.

    Raises:
        ValueError: an unknown part, or none.
        TypeError: another environment.
    """

    def __init__(self, env: gym.Env[Any, Any], parts: Sequence[str] | None = None) -> None:
        from llmscale_env.control.reward import PARTS

        RecordConstructorArgs.__init__(self, parts=parts)
        super().__init__(env)
        inner = _ours(env, "VectorReward")
        known = (*PARTS, *(("late_backlog",) if inner.core.backlog is not None else ()))
        chosen = known if parts is None else tuple(parts)
        unknown = [part for part in chosen if part not in known]
        if unknown or not chosen or isinstance(parts, str):
            raise ValueError(f"parts = {parts!r}: must be some of {list(known)}")
        self.parts: tuple[str, ...] = chosen
        self.reward_space = spaces.Box(-np.inf, np.inf, (len(chosen),), np.float64)
        self.reward_dim = len(chosen)
        inner.reward_space = self.reward_space

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment's; the reward is (parts,)."""
        observation, _, terminated, truncated, info = self.env.step(action)
        reward = np.array([info["reward_parts"][part] for part in self.parts])
        return observation, reward, terminated, truncated, info


class SafetyStep(gym.Wrapper, RecordConstructorArgs):
    """Steps with a cost of their own, as Safety-Gymnasium has them: six values, the third is the cost.

    The cost is `info["cost"]`, the requests that became late in the interval; use an environment whose reward
    does not charge for them, such as `llmscale/MixedSLO-Constrained-v1`.

    Args:
        env: of this package.
        budget: costs that an episode may have; None: the environment's `cost_budget`.

    Attributes:
        cost_budget: of an episode.

    Raises:
        ValueError: no budget, or one that is negative or no number.
        TypeError: another environment.
    """

    def __init__(self, env: gym.Env[Any, Any], budget: float | None = None) -> None:
        RecordConstructorArgs.__init__(self, budget=budget)
        super().__init__(env)
        inner = _ours(env, "SafetyStep")
        given = getattr(inner, "cost_budget", None) if budget is None else budget
        if (
            given is None
            or isinstance(given, bool)
            or not (np.isreal(given) and 0 <= given < np.inf)
        ):
            raise ValueError(
                f"budget = {budget!r}: must be a number of at least 0; only environments with a "
                "`cost_budget` have one of their own"
            )
        self.cost_budget = float(given)

    def step(self, action: Any) -> Any:
        """(observation, reward, cost, terminated, truncated, info)."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, float(info["cost"]), terminated, truncated, info


class DomainRandomisation(gym.Wrapper, RecordConstructorArgs):
    """Every episode draws its load anew, from the environment's own generator.

    Args:
        env: of this package.
        ranges: `rate_scale`, or fields of the workload, with what is drawn from
            (`llmscale_env.envs.reset_options`).

    Raises:
        ValueError: a range that does not fit.
        TypeError: another environment.
    """

    def __init__(self, env: gym.Env[Any, Any], ranges: Mapping[str, Any]) -> None:
        RecordConstructorArgs.__init__(self, ranges=ranges)
        super().__init__(env)
        ResetOptions(_ours(env, "DomainRandomisation").scenario, {"randomise": ranges})
        self._ranges = dict(ranges)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """A new episode; options given here hold besides."""
        return self.env.reset(seed=seed, options={"randomise": self._ranges, **(options or {})})


class _Stages:
    """Options by the steps taken so far."""

    def __init__(self, env: Any, stages: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        scenario = _ours(env, "Curriculum").scenario
        firsts = [first for first, _ in stages]
        if not stages or firsts[0] != 0 or any(b <= a for a, b in pairwise(firsts)):
            raise ValueError(f"stages begin at {firsts}: must be rising numbers of steps from 0 on")
        for _, options in stages:
            ResetOptions(scenario, options)
        self._stages = [(int(first), dict(options)) for first, options in stages]
        self.steps = 0

    @property
    def number(self) -> int:
        return sum(first <= self.steps for first, _ in self._stages) - 1

    @property
    def options(self) -> dict[str, Any]:
        return self._stages[self.number][1]


class Curriculum(gym.Wrapper, RecordConstructorArgs):
    """Episodes that get harder, or other, with the steps taken.

    Args:
        env: of this package.
        stages: (step from which on, options of `reset`), the first from step 0.

    Attributes:
        stage: number of the present one; it takes effect at the next `reset`.

    Raises:
        ValueError: stages out of order, or options that do not fit.
        TypeError: another environment.
    """

    def __init__(
        self, env: gym.Env[Any, Any], stages: Sequence[tuple[int, Mapping[str, Any]]]
    ) -> None:
        RecordConstructorArgs.__init__(self, stages=stages)
        super().__init__(env)
        self._stages = _Stages(env, stages)

    @property
    def stage(self) -> int:
        return self._stages.number

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """A new episode of the present stage; options given here hold besides."""
        return self.env.reset(seed=seed, options={**self._stages.options, **(options or {})})

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment's; it is counted."""
        self._stages.steps += 1
        return self.env.step(action)


class VectorCurriculum(VectorWrapper):
    """`Curriculum` of a vectorised environment: a step counts once per episode side by side.

    A new stage holds for the episodes that begin after it, by whatever autoreset mode.
    """

    def __init__(self, env: Any, stages: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        super().__init__(env)
        self._stages = _Stages(env, stages)

    @property
    def stage(self) -> int:
        """Number of the present stage."""
        return self._stages.number

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """New episodes of the present stage; options given here hold besides, until the next stage."""
        return self.env.reset(seed=seed, options={**self._stages.options, **(options or {})})

    def step(self, actions: Any) -> Any:
        """As the environment's; it is counted before episodes that end begin anew."""
        before = self._stages.number
        self._stages.steps += self.num_envs
        if self._stages.number != before:
            self.env.unwrapped.set_options(self._stages.options)  # type: ignore[attr-defined]
        return self.env.step(actions)


class VectorFlatInfo(VectorWrapper):
    """Infos of a vectorised environment without mappings in them, for TorchRL's `GymWrapper`.

    Args:
        env: of this package.
        keep: which infos stay: `cost`, `clipped`, `action_mask`, or `metrics/NAME`, `reward_parts/NAME` and
            `cost_by_class/NAME`, which keep that name. `final_obs` stays, and `final_info` has the same.

    Raises:
        ValueError: an info that there is not, at the first `reset`.
        TypeError: another environment.
    """

    def __init__(self, env: Any, keep: Sequence[str] = ("cost",)) -> None:
        super().__init__(env)
        _ours(env, "VectorFlatInfo")
        self._keep = tuple(keep)

    @property
    def autoreset_mode(self) -> Any:
        """The environment's, which TorchRL asks for."""
        return self.env.unwrapped.autoreset_mode  # type: ignore[attr-defined]

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        """As the environment's."""
        observation, info = self.env.reset(**given)
        return observation, self._flat(info)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """As the environment's."""
        *others, info = self.env.step(actions)
        return (*others, self._flat(info))

    def _flat(self, info: Mapping[str, Any]) -> dict[str, Any]:
        flat: dict[str, Any] = {}
        for name in self._keep:
            first, _, rest = name.partition("/")
            value = info.get(first)
            if rest:
                value = value.get(rest) if isinstance(value, Mapping) else None
            if not isinstance(value, np.ndarray):
                raise ValueError(f"keep = {list(self._keep)}: there is no info {name!r}")
            flat |= {name: value, f"_{name}": info[f"_{first}"]}
        if "final_obs" in info:
            flat |= {name: info[name] for name in ("final_obs", "_final_obs", "_final_info")}
            flat["final_info"] = self._flat(info["final_info"])
        return flat
