"""What a training run is told: defaults per environment (YAML), `key=value` words on top, all checked.

Nothing here imports torch, so a slip is answered at once.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import ConfigDict, Field, ValidationError, model_validator

import llmscale_env
from agents.configuration.settings import (
    AGENTS,
    SECTIONS,
    SWITCHES,
    WORKLOAD,
    Count,
    Frozen,
    LagrangianConfig,
    MaskablePPOConfig,
    NonNegative,
    Positive,
    PPOConfig,
    RandomiseConfig,
    RecurrentPPOConfig,
    StageConfig,
    WarmStartConfig,
)
from agents.runs.files import read_yaml
from llmscale_env._cli import Slip, closest, environment_of, read_value

_HERE = Path(__file__).parent.parent / "configs"

VALIDATION_SEED = 20_000
"""First seed of the episodes that choose the best checkpoint and draw the learning curve."""

EVALUATION_SEED = 10_000
"""First seed of the episodes of the final table; nothing is chosen by them."""

FIRST_TRAINING_SEED = 2**31
"""Seeds of training episodes begin here, so they never meet the others."""

LISTS = (
    *("references", "observation", "action"),
    *("validation_workloads", "validation_rate_scales"),
)
"""Options that are names or numbers with commas between them on the command line."""


class TrainConfig(Frozen):
    """A training run.

    Attributes:
        env: short name of the environment.
        agent: the learner.
        seed: of the network, the exploration and the training episodes.
        total_timesteps: environment steps, over all episodes side by side.
        n_envs: episodes side by side, at most 100,000, and what memory has room for.
        env_threads: threads that advance them.
        engine: "fast", or "reference": the simulator in readable Python, with the same numbers.
        torch_threads: threads of torch; more than one rarely helps nets this small.
        observation, action: names of observation blocks and action heads; None: the environment's own.
        forecaster: what the forecast entries show; None: nothing.
        reference: reference policy whose counts residual heads start from; None: no such head.
        same_arrivals: so many episodes side by side get the same requests; it divides `n_envs`.
        noise_hold_steps: decisions for which an episode's exploration noise stays the same, in the mean
            (`agents.exploration.held_noise`); 1: each decision has its own.
        sharpen: by what the policy's logits have been multiplied at the end
            (`agents.exploration.sharpening`), so that it tries less and less; 1: by nothing.
        group_baseline: advantages are compared among those (`agents.learning.same_arrivals`).
        as_is_bias: how much likelier (natural logarithm) an untrained network finds the instance
            counts that leave the cluster as it is (`agents.exploration.prior`), or an instance's choice to
            stay with its LLM; 0: all choices alike.
        as_is_bias_settings: the same for everything else: batch limits, shares, sources, eviction.
        quantile: of the instance counts, that the trained policy takes in place of the most probable ones
            (`agents.learned`), in validation and ever after; None: those.
        reward_scale: the learner sees rewards times this; everything that is reported is unscaled.
        shaping: what a waiting request that will be late costs already, of the price of a miss
            (`llmscale_env.envs.shaping`); 0: nothing before it is late.
        validation_every: steps between two validations.
        validation_episodes: episodes of one (seeds from 20,000).
        validation_workloads: workloads that take the place of the scenario's in validation, with so many
            episodes each; empty: the scenario's own.
        validation_rate_scales: loads of validation (`workload.rate_scale`), with so many episodes each;
            empty: the scenario's own.
        evaluation_episodes: episodes of the table at the end (seeds from 10,000); 0: no table.
        evaluation_scenario, evaluation_workload: what that table is about, in place of the scenario and of
            its workload: whole days for what has learned on hours, say. `overrides` count there too.
        references: policies that the learner is compared with.
        scenario: name of a shipped scenario, or path of a YAML file.
        overrides: changed fields of it, by dotted path (`scenario.fleet.max_gpus=12`).
        warm_start, lagrangian, randomise: see their classes.
        curriculum: stages before the scenario itself, in order.
        ppo, maskable_ppo, recurrent_ppo: hyperparameters; those of the other learners are left out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    env: str
    agent: Literal["ppo", "maskable-ppo", "recurrent-ppo"]
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    total_timesteps: Count
    n_envs: Annotated[int, Field(ge=1, le=100_000)]
    env_threads: Annotated[int, Field(ge=1, le=1024)]
    engine: Literal["fast", "reference"] = "fast"
    torch_threads: Annotated[int, Field(ge=1, le=1024)]
    observation: tuple[str, ...] | None = None
    action: tuple[str, ...] | None = None
    forecaster: str | dict[str, Any] | None = "ewma"
    reference: str | None = None
    same_arrivals: Annotated[int, Field(ge=1, le=100_000)] = 1
    group_baseline: bool = False
    noise_hold_steps: Annotated[int, Field(ge=1, le=100_000)] = 1
    sharpen: Positive = 1.0
    as_is_bias: NonNegative
    as_is_bias_settings: NonNegative
    quantile: Annotated[float, Field(gt=0, lt=1)] | None = None
    reward_scale: Positive
    shaping: NonNegative = 0.0
    validation_every: Count
    validation_episodes: Annotated[int, Field(ge=1, le=10_000)]
    validation_workloads: tuple[str, ...] = ()
    validation_rate_scales: tuple[Positive, ...] = ()
    evaluation_episodes: Annotated[int, Field(ge=0, le=10_000)]
    evaluation_scenario: str | None = None
    evaluation_workload: str | None = None
    references: tuple[str, ...]
    scenario: str
    overrides: dict[str, Any] = {}
    warm_start: WarmStartConfig = WarmStartConfig()
    lagrangian: LagrangianConfig = LagrangianConfig()
    randomise: RandomiseConfig = RandomiseConfig()
    curriculum: tuple[StageConfig, ...] = ()
    ppo: PPOConfig | None = None
    maskable_ppo: Annotated[MaskablePPOConfig | None, Field(alias="maskable-ppo")] = None
    recurrent_ppo: Annotated[RecurrentPPOConfig | None, Field(alias="recurrent-ppo")] = None

    @property
    def hyper(self) -> PPOConfig:
        """Hyperparameters of the learner."""
        found = getattr(self, attribute_of(self.agent))
        assert found is not None, "checked when the configuration was made"
        return found

    @model_validator(mode="after")
    def _consistent(self) -> TrainConfig:
        for agent in AGENTS:
            given = getattr(self, attribute_of(agent)) is not None
            if given and agent != self.agent:
                raise ValueError(f"{agent}: is given, but the agent is {self.agent!r}")
            if agent == self.agent and not given:
                raise ValueError(f"{agent}: hyperparameters are missing for agent = {agent!r}")
        rollout = self.n_envs * self.hyper.n_steps
        if self.hyper.batch_size > rollout:
            raise ValueError(
                f"{self.agent}.batch_size = {self.hyper.batch_size}: must be at most "
                f"n_envs * {self.agent}.n_steps = {rollout}"
            )
        groups = self.randomise.groups if self.randomise.ranges else 1
        if self.n_envs % groups:
            raise ValueError(
                f"n_envs = {self.n_envs}: must be a multiple of randomise.groups = {groups}"
            )
        if self.n_envs // groups % self.same_arrivals:
            raise ValueError(
                f"same_arrivals = {self.same_arrivals}: must divide the {self.n_envs // groups} "
                "episodes side by side" + (" of a group" if groups > 1 else "")
            )
        teacher = self.warm_start.policy
        if teacher is not None and WORKLOAD in teacher and not self.drawn_workloads():
            raise ValueError(
                f"warm_start.policy = {teacher!r}: {WORKLOAD} needs randomise.ranges.workload.choices, "
                "names of workloads"
            )
        if self.lagrangian.per == "workload" and not self.drawn_workloads():
            raise ValueError(
                "lagrangian.per = 'workload': needs randomise.ranges.workload.choices, names of workloads"
            )
        if self.quantile is not None and self.agent == "recurrent-ppo":
            raise ValueError(
                f"quantile = {self.quantile}: is for networks without memory, not for recurrent-ppo"
            )
        if self.warm_start.every > 1 and self.agent == "recurrent-ppo":
            raise ValueError(
                f"warm_start.every = {self.warm_start.every}: must be 1 for recurrent-ppo, which learns from "
                "whole episodes"
            )
        if self.warm_start.every > 1 and self.warm_start.rounds == 1:
            raise ValueError(
                f"warm_start.every = {self.warm_start.every}: does nothing with warm_start.rounds = 1"
            )
        if self.group_baseline and self.same_arrivals < 2:
            raise ValueError("group_baseline = True: needs same_arrivals of at least 2")
        kl = self.warm_start.kl
        if kl not in (0.0, WarmStartConfig().kl) and not self.warm_start.kl_steps:
            raise ValueError(f"warm_start.kl = {kl}: does nothing without warm_start.kl_steps")
        if kl == 0 and self.warm_start.kl_steps:
            steps = self.warm_start.kl_steps
            raise ValueError(f"warm_start.kl_steps = {steps}: does nothing with warm_start.kl = 0")
        for section, switch in SWITCHES.items():
            _check_effect(section, getattr(self, section), switch)
        return self

    def drawn_workloads(self) -> tuple[str, ...]:
        """Names of the workloads that training draws, each once; empty where it draws none by name."""
        drawn = self.randomise.ranges.get("workload")
        names = drawn.choices if drawn is not None else ()
        return tuple(dict.fromkeys(names)) if all(isinstance(n, str) for n in names) else ()

    def validation_seeds(self) -> range:
        return range(VALIDATION_SEED, VALIDATION_SEED + self.validation_episodes)

    def evaluation_seeds(self) -> range:
        return range(EVALUATION_SEED, EVALUATION_SEED + self.evaluation_episodes)

    def training_seeds(self) -> list[int]:
        """(n_envs,) seeds of the first episodes that are learnt from; later ones follow from these."""
        return self.drawn_seeds(self.n_envs, 0)

    def drawn_seeds(self, n: int, *key: int) -> list[int]:
        """(n,) seeds of training episodes that `seed` and `key` stand for.

        `same_arrivals` neighbours have the same one.
        """
        import numpy as np

        words = np.random.SeedSequence([self.seed, *key]).generate_state(n // self.same_arrivals)
        return [FIRST_TRAINING_SEED + int(word) for word in np.repeat(words, self.same_arrivals)]

    def to_yaml(self) -> str:
        data = self.model_dump(mode="json", by_alias=True)
        for agent in AGENTS:
            if agent != self.agent:
                del data[agent]
        return yaml.safe_dump(data, sort_keys=False)


def _check_effect(section: str, given: Frozen, switch: str) -> None:
    """Refuse what is changed in a section that is not switched on."""
    if getattr(given, switch) not in (None, {}):
        return
    for name, field in type(given).model_fields.items():
        value = getattr(given, name)
        if name != switch and value != field.default:
            raise ValueError(
                f"{section}.{name} = {value!r}: does nothing without {section}.{switch}"
            )


def environment_names() -> tuple[str, ...]:
    """Short names of the environments that have a configuration here."""
    return tuple(sorted(path.stem for path in _HERE.glob("*.yaml")))


def environment_id(env: str) -> str:
    """Gymnasium's id of an environment by its short name.

    Raises:
        Slip: there is none.
    """
    ids = {entry.short_name: entry.id for entry in llmscale_env.ENVIRONMENTS}
    return ids[environment_of(env, ids)]


def _defaults(env: str) -> dict[str, Any]:
    """Options of an environment; a file with `like: NAME` has those of that one but for its own."""
    path = _HERE / f"{env}.yaml"
    data: dict[str, Any] = read_yaml(path, str(path))
    like = data.pop("like", None)
    return data if like is None else {**_defaults(like), **data}


def make_config(env: str, changes: Mapping[str, Any]) -> TrainConfig:
    """The environment's defaults with changes by dotted path.

    Ranges that are given (`randomise.ranges`) replace those of the defaults. With a fleet or workload of
    one's own, validation and evaluation are of that, where no others are named. None as the switch of a
    section (`SWITCHES`) takes the section's defaults away.

    Args:
        env: short name.
        changes: `{"ppo.gamma": 0.9, "scenario.fleet.max_gpus": 12}`.

    Raises:
        Slip: an unknown environment or option, or a value that is not allowed.
    """
    environment_id(env)
    if env not in environment_names():
        raise Slip(
            f"env = {env!r}: has no training configuration{closest(env, environment_names())}"
        )
    defaults = _defaults(env)
    data = {"env": env, "scenario": env, **defaults}
    for name in _not_of(data["scenario"], changes):
        data.pop(name, None)
    overrides = dict(data.pop("overrides", None) or {})
    agent = changes.get("agent", data.get("agent"))
    agent = agent if isinstance(agent, str) else None  # what else it may be, `parse_config` refuses
    off = {
        f"{s}.{switch}": s
        for s, switch in SWITCHES.items()
        if changes.get(f"{s}.{switch}", 0) is None
    }
    for section in off.values():
        data.pop(section, None)
    if any(path.startswith(_RANGES) for path in changes):
        data.get("randomise", {}).pop("ranges", None)
    for path, value in changes.items():
        if path in off:
            continue
        head, _, rest = path.partition(".")
        if head == "scenario" and rest:
            overrides[rest] = value
        elif not is_option(path):
            raise Slip(f"unknown option {path!r}{_hint(path)}")
        elif head in AGENTS and rest and agent in AGENTS and head != agent:
            raise Slip(f"{path}: is an option of agent={head}; the agent is {agent}")
        elif path.startswith(_RANGES):
            data.setdefault("randomise", {}).setdefault("ranges", {})[
                path.removeprefix(_RANGES)
            ] = value
        else:
            _put(data, path, value)
    others = set(AGENTS) - {agent} if agent in AGENTS else set()
    kept = {key: value for key, value in data.items() if key not in others}
    return parse_config({**kept, "overrides": overrides}, "")


def _not_of(usual: str, changes: Mapping[str, Any]) -> tuple[str, ...]:
    """Options whose defaults are not for what is learned on: it is judged there, not where it usually is."""
    from llmscale_env.scenarios import load_scenario

    given = changes.get("scenario", usual)
    on_usual = not any(
        re.match(r"scenario\.workload(\.(mix|streams|replay))?$", c) for c in changes
    )
    if given != usual and on_usual:
        with suppress(ValueError):  # told where the scenario is made
            own, other = (
                load_scenario(name, **{"workload.rate_scale": 1}) for name in (given, usual)
            )
            on_usual = own.workload == other.workload
    fleet = ("evaluation_scenario",) if given != usual or not on_usual else ()
    return fleet if on_usual else (*fleet, "validation_workloads", "evaluation_workload")


def parse_config(data: Any, where: str) -> TrainConfig:
    """A configuration from plain data.

    Raises:
        Slip: naming the field, its value and what is allowed, after `where`.
    """
    try:
        return TrainConfig.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        # Of a field that may be of several types, pydantic adds the type's name.
        loc = [str(part) for part in first["loc"] if not _is_type_name(str(part))]
        field = ".".join(loc)
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] in ("missing", "extra_forbidden"):
            said = f"{field}: {message}"
        elif field:
            said = f"{field} = {first['input']!r}: {message}"
        else:
            said = message
        raise Slip(where + said) from None


def _is_type_name(part: str) -> bool:
    return part in ("constrained-float", "float", "str") or "[" in part


def read_config(folder: Path) -> TrainConfig:
    """The configuration that a run folder was made with.

    Raises:
        Slip: it has none, or not a valid one.
    """
    path = folder / "config.yaml"
    missing = f"there is no such file; {folder} is no run folder"
    return parse_config(read_yaml(path, str(path), missing), f"{path}: ")


_RANGES = "randomise.ranges."
_WITH_SECTION = (*SECTIONS, *AGENTS, "scenario", _RANGES.removesuffix("."))
"""What a recipe may write as a section in place of dotted paths."""


def option_names() -> tuple[str, ...]:
    """What the command line may change, besides scenario.* and randomise.ranges.* (the scenario's fields)."""
    sections = {**SECTIONS, **AGENTS}
    no_option = {"env", "overrides", *SECTIONS, *map(attribute_of, AGENTS)}
    plain = [name for name in TrainConfig.model_fields if name not in no_option]
    return (
        *plain,
        *(f"{head}.{name}" for head, section in sections.items() for name in section.model_fields),
    )


def is_option(path: str) -> bool:
    """Whether the command line may change it; the scenario's own fields left aside."""
    return path in option_names() or (path.startswith(_RANGES) and len(path) > len(_RANGES))


def _may_change(path: str) -> bool:
    """Whether it is an option, or a field of the scenario."""
    return is_option(path) or (path.startswith("scenario.") and len(path) > len("scenario."))


def attribute_of(agent: str) -> str:
    """Name of the attribute that holds a learner's hyperparameters."""
    return agent.replace("-", "_")


def parse_words(
    words: Sequence[str], extra: Sequence[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Split a command line into changes of the configuration and the options in `extra`.

    What `recipe=` names (`read_recipe`) is changed too, unless another word says otherwise; a section that a
    word switches off (`warm_start.policy=null`) is switched off whole.

    Returns:
        (changes by dotted path, values read as YAML; options of `extra`, as text)

    Raises:
        Slip: a word that is not `key=value`, an unknown key, no value, a key given twice; no such recipe.
    """
    recipe: dict[str, Any] = {}
    changes: dict[str, Any] = {}
    options: dict[str, str] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise Slip(f"{word!r}: expected key=value, such as env=mixed-slo; see --help")
        if key == "recipe" and text:
            if recipe:
                raise Slip("recipe is given twice")
            recipe = read_recipe(text)
            continue
        if key not in extra and not _may_change(key):
            raise Slip(f"unknown option {key!r}{_hint(key, extra)}")
        if not text:
            raise Slip(f"{key}= lacks a value")
        if key in changes or key in options:
            raise Slip(f"{key} is given twice")
        if key in extra:
            options[key] = text
        elif key in LISTS:
            changes[key] = () if text == "none" else tuple(part for part in text.split(",") if part)
        else:
            changes[key] = read_value(key, text)
    for section, switch in SWITCHES.items():
        if changes.get(f"{section}.{switch}", ...) is None:
            recipe = {k: v for k, v in recipe.items() if not k.startswith(f"{section}.")}
    return {**recipe, **changes}, options


def read_recipe(name: str) -> dict[str, Any]:
    """Changes of the configuration that belong together, from a YAML file.

    Args:
        name: path of a file: options as on the command line with their values, or in sections
            (`warm_start: {episodes: 8}`).

    Raises:
        Slip: no such file, or one that is not valid or names what is no option.
    """
    data = read_yaml(Path(name), f"recipe = {name!r}")
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise Slip(f"recipe = {name!r}: must be options and their values")
    changes: dict[str, Any] = {}
    for key, value in _by_path(data):
        if not _may_change(key):
            raise Slip(f"recipe = {name!r}: unknown option {key!r}{_hint(key)}")
        if key in changes:
            raise Slip(f"recipe = {name!r}: {key} is given twice")
        changes[key] = tuple(value) if key in LISTS and isinstance(value, list) else value
    return changes


def _by_path(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Options by dotted path; what stands in a section (`warm_start:`, ...) has its name before.

    A section with nothing in it is none.
    """
    for key, value in data.items():
        path = f"{prefix}{key}"
        if path in _WITH_SECTION and (value is None or isinstance(value, dict)):
            yield from _by_path(value or {}, f"{path}.")
        else:
            yield path, value


def _hint(key: str, extra: Sequence[str] = ()) -> str:
    names = [*extra, *option_names()]
    head, _, last = key.partition(".")
    if head in AGENTS:
        takes = list(AGENTS[head].model_fields)
        others = [other for other in AGENTS if last in AGENTS[other].model_fields]
        near = difflib.get_close_matches(last, takes, n=1)
        if near and not others:
            return f" (did you mean {head}.{near[0]}?)"
        whose = f"; agent={others[0]} has it" if others else ""
        return f": {head} takes {takes}{whose}"
    near = (
        difflib.get_close_matches(key, names, n=1)
        or [name for name in names if name.rpartition(".")[2] == key][:1]
    )
    return f" (did you mean {near[0]}?)" if near else f"; there are {sorted(names)} and scenario.*"


def _put(data: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for part in parents:
        data = data.setdefault(part, {})
    data[last] = value
