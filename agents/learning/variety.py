"""Training on many scenarios: ranges to draw from (domain randomisation) and stages (a curriculum).

Groups of episodes are side by side in one vector environment, each of a scenario of its own, which is
drawn anew after some episodes. What is validated and evaluated stays the scenario itself.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from agents.configuration.config import TrainConfig
from agents.configuration.environments import codec_of, make_vector_env
from agents.configuration.settings import RangeConfig, is_number
from llmscale_env._cli import Slip
from llmscale_env.envs.base import seeds_of
from llmscale_env.envs.vector import final_infos
from llmscale_env.scenarios import Scenario, ScenarioError, load_scenario

_SEEDS, _DRAWS = 2, 3
"""Tell the seeds of later groups, and the drawing of scenarios, from other uses of the run's seed."""

_BETWEEN = 0.618
"""Of an interval: no end and no round number, so that what must be one is found."""

_MOST_KNOWN = 256
"""Scenarios that are remembered."""


class ScenarioSource:
    """The training scenarios of a run.

    Args:
        config: of the run.
        scenario: what is validated on, and what ranges and stages change.
    """

    def __init__(self, config: TrainConfig, scenario: Scenario) -> None:
        self._config, self._scenario = config, scenario
        self._known: dict[str, Scenario] = {}

    @property
    def recurs(self) -> bool:
        """Whether the same scenarios may come again, then as the same objects."""
        return all(spec.choices for spec in self._config.randomise.ranges.values())

    def stage(self, steps: int) -> int:
        """Which stage of the curriculum holds after `steps` environment steps; their number: none."""
        end = 0
        for number, stage in enumerate(self._config.curriculum):
            end += stage.steps
            if steps < end:
                return number
        return len(self._config.curriculum)

    def scenario(self, group: int, generation: int, stage: int) -> Scenario:
        """The `generation`-th scenario that a group gets, in a stage of the curriculum."""
        rng = self._rng(group, generation)
        values = [draw(spec, rng) for spec in self._config.randomise.ranges.values()]
        if not self.recurs:
            return self._changed(stage, values)
        key = repr((stage, values))
        if key not in self._known:
            if len(self._known) == _MOST_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[key] = self._changed(stage, values)
        return self._known[key]

    def label(self, group: int, generation: int) -> str:
        """Name of the workload that the group draws then, if workloads are drawn by name; else ""."""
        drawn = self._config.randomise.ranges.get("workload")
        names = self._config.drawn_workloads()
        if drawn is None or not names:
            return ""
        rng = self._rng(group, generation)
        for path, spec in self._config.randomise.ranges.items():
            value = draw(spec, rng)
            if path == "workload":
                return str(value)
        return ""

    def _rng(self, group: int, generation: int) -> np.random.Generator:
        return np.random.default_rng([self._config.seed, 0, _DRAWS, group, generation])

    def check(self) -> None:
        """Try every stage with all ranges at both ends and at a number between, and with each choice.

        Raises:
            Slip: a field or value that the scenario does not allow, or that changes observations or actions.
        """
        codec = codec_of(self._config, self._scenario)
        for stage in range(len(self._config.curriculum) + 1):
            for which, values in self._corners():
                try:
                    changed = self._changed(stage, values)
                except ScenarioError as error:
                    raise Slip(f"training scenario ({which}): {error}") from None
                other = codec_of(self._config, changed)
                for what in ("observation_space", "action_space"):
                    if getattr(codec, what) != getattr(other, what):
                        raise Slip(
                            f"training scenario ({which}): has another {what} than "
                            f"{self._scenario.name!r}, so one network cannot do both"
                        )

    def _corners(self) -> Iterator[tuple[str, list[Any]]]:
        """Values of the ranges that stand for all, and what to call them: what the ones before had not."""
        ranges = self._config.randomise.ranges
        low, high = ([ends(spec)[k] for spec in ranges.values()] for k in (0, 1))

        def called(values: Sequence[Any], which: str) -> str:
            said = [
                f"{path} = {value!r}"
                for (path, spec), value in zip(ranges.items(), values, strict=True)
                if spec.choices
            ]
            return ", ".join([which] * (len(said) < len(ranges)) + said) or "its stages"

        yield called(low, "low ends of its ranges"), low
        if not self.recurs:
            between = [
                a if a == b or spec.choices else a + _BETWEEN * (b - a)
                for a, b, spec in zip(low, high, ranges.values(), strict=True)
            ]
            yield called(between, "within its ranges"), between
        for place, (path, spec) in enumerate(ranges.items()):
            for choice in spec.choices[1:]:
                yield f"{path} = {choice!r}", [*low[:place], choice, *low[place + 1 :]]
        yield called(high, "high ends of its ranges"), high

    def _changed(self, stage: int, values: Sequence[Any]) -> Scenario:
        """The scenario in a stage with these values of the ranges."""
        stages, ranges = self._config.curriculum, self._config.randomise.ranges
        scenario = self._scenario
        if stage < len(stages):
            scenario = load_scenario(scenario, **stages[stage].overrides)
        # Each on what those before it have made.
        for (path, spec), value in zip(ranges.items(), values, strict=True):
            found = fields_at(scenario.model_dump(), path.split("."))
            if spec.times and (not found or any(not is_number(old) for _, old in found)):
                raise Slip(
                    f"randomise.ranges.{path}: is no number in the scenario, so nothing can be multiplied"
                )
            overrides: dict[str, Any] = {}
            for name, old in found or [(path, None)]:
                new = value * old if spec.times else value
                is_whole = isinstance(old, int) and not isinstance(old, bool)
                overrides[name] = round(new) if is_whole and is_number(new) else new
            scenario = load_scenario(scenario, **overrides)
        return scenario


def draw(spec: RangeConfig, rng: np.random.Generator) -> Any:
    """A value of a range."""
    if spec.choices:
        return spec.choices[int(rng.integers(len(spec.choices)))]
    low, high = ends(spec)
    share = float(rng.random())
    if spec.scale == "log":
        return float(low * (high / low) ** share)
    return float(low + (high - low) * share)


def ends(spec: RangeConfig) -> tuple[Any, Any]:
    """First and last value of a range."""
    return (spec.choices[0], spec.choices[-1]) if spec.choices else (spec.low, spec.high)


def fields_at(data: Any, path: Sequence[str], before: str = "") -> list[tuple[str, Any]]:
    """(dotted path, value) of the fields that a path means, "*" being all members; none: there is none."""
    if not path:
        return [(before, data)]
    part, rest = path[0], path[1:]
    members: list[tuple[str, Any]] = []
    if isinstance(data, Mapping):
        members = [(k, v) for k, v in data.items() if part in (k, "*")]
    elif isinstance(data, (list, tuple)):
        for number, member in enumerate(data):
            name = member.get("name") if isinstance(member, Mapping) else None
            if part in (name, str(number), "*"):
                members.append((str(number), member))
    found = []
    for name, member in members:
        found += fields_at(member, rest, f"{before}.{name}" if before else str(name))
    return found


def is_varied(config: TrainConfig) -> bool:
    """Whether training is on other scenarios than the run's own."""
    return bool(config.randomise.ranges or config.curriculum)


class VarietyVectorEnv(VectorEnv):
    """Groups of episodes of scenarios of their own, as one vector environment.

    The episodes of a group end together. After `randomise.episodes` of them, or when a stage of the
    curriculum has ended meanwhile, the group goes on with another scenario and new seeds. Where scenarios
    recur, their environments wait for that, at most as many as there are groups: to make one and to let its
    arrays grow takes several times as long as to start its episodes.

    Args:
        config: of the run.
        source: where scenarios come from.

    Attributes:
        scenarios: the present one of each group; groups are of equal size, in order.
        labels: what `ScenarioSource.label` calls them.
    """

    def __init__(self, config: TrainConfig, source: ScenarioSource) -> None:
        self._config, self._source = config, source
        self.num_envs = config.n_envs
        self._groups = config.randomise.groups if config.randomise.ranges else 1
        self._size = config.n_envs // self._groups
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}
        self.render_mode = None
        self._stage = [source.stage(0)] * self._groups
        self.scenarios = [source.scenario(g, 0, self._stage[g]) for g in range(self._groups)]
        self.labels = [source.label(group, 0) for group in range(self._groups)]
        self._envs = [make_vector_env(config, s, self._size) for s in self.scenarios]
        self._waiting: list[tuple[Scenario, Any]] = []
        self._collects = False  # garbage, at the end of the step: it has closed an environment
        self._generation = [0] * self._groups
        self._ended = [0] * self._groups
        self._steps = 0
        one = self._envs[0]
        self.single_observation_space = one.single_observation_space
        self.single_action_space = one.single_action_space
        self.observation_space = batch_space(one.single_observation_space, self.num_envs)
        self.action_space = batch_space(one.single_action_space, self.num_envs)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """New episodes of the groups' present scenarios; an integer seed gives episode `e` `seed + e`."""
        seeds = seeds_of(seed, self.num_envs)
        found = [
            env.reset(seed=seeds[self._slice(g)], options=options)
            for g, env in enumerate(self._envs)
        ]
        self._ended = [0] * self._groups
        return np.concatenate([obs for obs, _ in found]), self._merged([i for _, i in found])

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Carry out actions (n, parts) and run every episode to its next decision."""
        self._steps += self.num_envs
        found = []
        for group, env in enumerate(self._envs):
            # Episodes that nobody would see are not begun.
            changes = self._would_change(group)
            env.unwrapped.autoreset_mode = (
                AutoresetMode.DISABLED if changes else AutoresetMode.SAME_STEP
            )
            found.append(env.step(actions[self._slice(group)]))
        observations, infos = [result[0] for result in found], [result[4] for result in found]
        ended = [np.logical_or(result[2], result[3]).any() for result in found]
        others = [g for g in np.flatnonzero(ended).tolist() if self._would_change(g)]
        for group in np.flatnonzero(ended).tolist():
            self._ended[group] += 1
        self._set_aside(others)
        for group in others:
            final = {}
            if "final_obs" not in infos[group]:
                final = final_infos(observations[group], infos[group], found[group][3])
            observations[group], first = self._replace(group)
            now = {name: first[name] for name in ("action_mask", "metrics")}
            infos[group] = {**infos[group], **final, **now}
        while len(self._waiting) > self._groups:
            self._waiting.pop(0)[1].close()
            self._collects = True
        if self._collects:
            # Tens of megabytes each, in cycles of references: Python, which counts objects, would wait long.
            gc.collect()
            self._collects = False
        rewards, terminated, truncated = (
            np.concatenate([result[k] for result in found]) for k in (1, 2, 3)
        )
        return (
            np.concatenate(observations),
            rewards,
            terminated,
            truncated,
            self._merged(infos),
        )

    def so_far(self) -> dict[str, Any]:
        """What plays the episodes under way again, for `replay`: numbers and text alone."""
        return {
            "groups": [env.unwrapped.so_far() for env in self._envs],
            "steps": self._steps,
            "generation": list(self._generation),
            "stage": list(self._stage),
            "ended": list(self._ended),
        }

    def replay(self, saved: Mapping[str, Any]) -> NDArray[np.float32]:
        """Bring every episode to where it was at `so_far`; the observations there."""
        self._steps, self._ended = saved["steps"], list(saved["ended"])
        self._generation, self._stage = list(saved["generation"]), list(saved["stage"])
        self._set_aside(range(self._groups))
        envs = [self._enter(group) for group in range(self._groups)]
        played = [env.unwrapped.replay(g) for env, g in zip(envs, saved["groups"], strict=True)]
        return np.concatenate(played)

    def action_masks(self) -> NDArray[np.bool_]:
        """(n, sum of choices) possible choices."""
        return np.concatenate([env.action_masks() for env in self._envs])

    def close_extras(self, **kwargs: Any) -> None:
        """Close every group's environment."""
        for env in (*self._envs, *(env for _, env in self._waiting)):
            env.close()

    def _slice(self, group: int) -> slice:
        return slice(group * self._size, (group + 1) * self._size)

    def _would_change(self, group: int) -> bool:
        """Whether the group gets another scenario when the episodes under way have ended."""
        drawn = bool(self._config.randomise.ranges)
        return (drawn and self._ended[group] + 1 >= self._config.randomise.episodes) or (
            self._source.stage(self._steps) != self._stage[group]
        )

    def _set_aside(self, groups: Sequence[int]) -> None:
        """Environments of groups that get others: they wait until they are wanted, or are closed."""
        for group in groups:
            if self._source.recurs:
                self._waiting.append((self.scenarios[group], self._envs[group]))
            else:
                self._envs[group].close()
                self._collects = True

    def _env_of(self, scenario: Scenario) -> Any:
        """An environment that waits, or a new one."""
        for place, (of, env) in enumerate(self._waiting):
            if of is scenario:
                del self._waiting[place]
                return env
        return make_vector_env(self._config, scenario, self._size)

    def _replace(self, group: int) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Another scenario for a group; the first observation of its new episodes, and their infos."""
        self._generation[group] += 1
        self._ended[group] = 0
        self._stage[group] = self._source.stage(self._steps)
        generation = self._generation[group]
        env = self._enter(group)
        key = (0, _SEEDS, group, generation)
        found: tuple[NDArray[np.float32], dict[str, Any]] = env.reset(
            seed=self._config.drawn_seeds(self._size, *key)
        )
        return found

    def _enter(self, group: int) -> Any:
        """The environment of a group that is in another stage or generation."""
        generation, stage = self._generation[group], self._stage[group]
        self.scenarios[group] = self._source.scenario(group, generation, stage)
        self.labels[group] = self._source.label(group, generation)
        self._envs[group] = self._env_of(self.scenarios[group])
        return self._envs[group]

    def _merged(self, infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return merged_infos(infos, [self._size] * self._groups)


def merged_infos(infos: Sequence[Mapping[str, Any] | None], sizes: Sequence[int]) -> dict[str, Any]:
    """Infos of vector environments as one's; where a key is missing: zeros or None, and `_key` False."""
    merged: dict[str, Any] = {}
    for key in dict.fromkeys(key for info in infos if info for key in info):
        values: list[Any] = [info.get(key) if info else None for info in infos]
        if all(isinstance(value, np.ndarray) for value in values):
            merged[key] = np.concatenate(values)
            continue
        known = next(value for value in values if value is not None)
        if isinstance(known, Mapping):
            merged[key] = merged_infos(values, sizes)
            continue
        shape, dtype = np.shape(known)[1:], np.asarray(known).dtype
        merged[key] = np.concatenate(
            [
                np.full((n, *shape), None if dtype.hasobject else 0, dtype)
                if value is None
                else value
                for value, n in zip(values, sizes, strict=True)
            ]
        )
    return merged
