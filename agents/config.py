"""What a training run is told: defaults per environment (YAML), `key=value` words on top, all checked.

Nothing here imports torch, so a slip is answered at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

import llmscale_env
from llmscale_env._cli import Slip, closest, parse_options

_HERE = Path(__file__).parent / "configs"

VALIDATION_SEED = 20_000
"""First seed of the episodes that choose the best checkpoint and draw the learning curve."""

EVALUATION_SEED = 10_000
"""First seed of the episodes of the final table; nothing is chosen by them."""

FIRST_TRAINING_SEED = 2**31
"""Seeds of training episodes begin here, so they never meet the others."""

Count = Annotated[int, Field(ge=1, le=10**12)]
Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PPOConfig(_Frozen):
    """Hyperparameters of stable-baselines3's PPO, under its names.

    Attributes:
        learning_rate, learning_rate_end: the rate falls linearly from one to the other.
        net: hidden layers, the same for policy and value, not shared.
        (others): as in stable-baselines3.
    """

    n_steps: Annotated[int, Field(ge=2, le=100_000)]
    batch_size: Annotated[int, Field(ge=2, le=10_000_000)]
    n_epochs: Annotated[int, Field(ge=1, le=1000)]
    learning_rate: Positive
    learning_rate_end: NonNegative
    gamma: Share
    gae_lambda: Share
    clip_range: Positive
    ent_coef: NonNegative
    vf_coef: NonNegative
    max_grad_norm: Positive
    target_kl: Positive | None
    net: Annotated[tuple[Annotated[int, Field(ge=1, le=65536)], ...], Field(max_length=16)]
    activation: Literal["tanh", "relu", "silu"]


class TrainConfig(_Frozen):
    """A training run.

    Attributes:
        env: short name of the environment.
        agent: the learner.
        seed: of the network, the exploration and the training episodes.
        total_timesteps: environment steps, over all episodes side by side.
        n_envs: episodes side by side.
        env_threads: threads that advance them.
        torch_threads: threads of torch; more than one rarely helps nets this small.
        as_is_bias: how much likelier (natural logarithm) an untrained network finds the instance
            counts that leave the cluster as it is (`agents.prior`), or an instance's choice to stay with
            its LLM; 0: all choices alike.
        as_is_bias_settings: the same for everything else: batch limits, shares, sources, eviction.
        reward_scale: the learner sees rewards times this; everything that is reported is unscaled.
        validation_every: steps between two validations.
        validation_episodes: episodes of one (seeds from 20,000).
        evaluation_episodes: episodes of the table at the end (seeds from 10,000); 0: no table.
        references: policies that the learner is compared with.
        scenario: name of a shipped scenario, or path of a YAML file.
        overrides: changed fields of it, by dotted path (`scenario.fleet.max_gpus=12`).
        ppo: hyperparameters.
    """

    env: str
    agent: Literal["ppo"]
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    total_timesteps: Count
    n_envs: Annotated[int, Field(ge=1, le=100_000)]
    env_threads: Annotated[int, Field(ge=1, le=1024)]
    torch_threads: Annotated[int, Field(ge=1, le=1024)]
    as_is_bias: NonNegative
    as_is_bias_settings: NonNegative
    reward_scale: Positive
    validation_every: Count
    validation_episodes: Annotated[int, Field(ge=1, le=10_000)]
    evaluation_episodes: Annotated[int, Field(ge=0, le=10_000)]
    references: tuple[str, ...]
    scenario: str
    overrides: dict[str, Any] = {}
    ppo: PPOConfig

    @model_validator(mode="after")
    def _consistent(self) -> TrainConfig:
        rollout = self.n_envs * self.ppo.n_steps
        if self.ppo.batch_size > rollout:
            raise ValueError(
                f"ppo.batch_size = {self.ppo.batch_size}: must be at most n_envs * ppo.n_steps "
                f"= {rollout}"
            )
        return self

    def validation_seeds(self) -> range:
        return range(VALIDATION_SEED, VALIDATION_SEED + self.validation_episodes)

    def evaluation_seeds(self) -> range:
        return range(EVALUATION_SEED, EVALUATION_SEED + self.evaluation_episodes)

    def training_seeds(self, steps: int) -> list[int]:
        """(n_envs,) seeds of the episodes begun after `steps` steps; others for other steps.

        A run that is taken up again thus meets new episodes, not the first ones again.
        """
        import numpy as np

        words = np.random.SeedSequence([self.seed, steps]).generate_state(self.n_envs)
        return [FIRST_TRAINING_SEED + int(word) for word in words]

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def environment_names() -> tuple[str, ...]:
    """Short names of the environments that have a configuration here."""
    return tuple(sorted(path.stem for path in _HERE.glob("*.yaml")))


def environment_id(env: str) -> str:
    """Gymnasium's id of an environment by its short name.

    Raises:
        Slip: there is none.
    """
    ids = {entry.short_name: entry.id for entry in llmscale_env.ENVIRONMENTS}
    if env not in ids:
        raise Slip(f"env = {env!r}: unknown environment{closest(env, ids)}")
    return ids[env]


def make_config(env: str, changes: Mapping[str, Any]) -> TrainConfig:
    """The environment's defaults with changes by dotted path.

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
    defaults = yaml.safe_load((_HERE / f"{env}.yaml").read_text(encoding="utf-8"))
    data = {"env": env, "scenario": env, **defaults}
    overrides = dict(data.pop("overrides", None) or {})
    for path, value in changes.items():
        head, _, rest = path.partition(".")
        if head == "scenario" and rest:
            overrides[rest] = value
        elif path in option_names():
            _put(data, path, value)
        else:
            raise Slip(f"unknown option {path!r}{_hint(path)}")
    return parse_config({**data, "overrides": overrides}, "")


def parse_config(data: Any, where: str) -> TrainConfig:
    """A configuration from plain data.

    Raises:
        Slip: naming the field, its value and what is allowed, after `where`.
    """
    try:
        return TrainConfig.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] in ("missing", "extra_forbidden"):
            said = f"{field}: {message}"
        elif field:
            said = f"{field} = {first['input']!r}: {message}"
        else:
            said = message
        raise Slip(where + said) from None


def read_config(folder: Path) -> TrainConfig:
    """The configuration that a run folder was made with.

    Raises:
        Slip: it has none, or not a valid one.
    """
    path = folder / "config.yaml"
    if not path.is_file():
        raise Slip(f"{path}: there is no such file; {folder} is no run folder")
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        raise Slip(f"{path}: not valid YAML") from None
    return parse_config(data, f"{path}: ")


def option_names() -> tuple[str, ...]:
    """What the command line may change, besides the scenario's fields (`scenario.*`)."""
    plain = [name for name in TrainConfig.model_fields if name not in ("env", "overrides", "ppo")]
    return (*plain, *(f"ppo.{name}" for name in PPOConfig.model_fields))


def parse_words(
    words: Sequence[str], extra: Sequence[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Split a command line into changes of the configuration and the options in `extra`.

    Returns:
        (changes by dotted path, values read as YAML; options of `extra`, as text)

    Raises:
        Slip: a word that is not `key=value`, an unknown key, no value, a key given twice.
    """
    changes: dict[str, Any] = {}
    options: dict[str, str] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise Slip(f"{word!r}: expected key=value; see --help")
        known = key in extra or key in option_names()
        if not known and not (key.startswith("scenario.") and len(key) > len("scenario.")):
            raise Slip(f"unknown option {key!r}{_hint(key, extra)}")
        if not text:
            raise Slip(f"{key}= lacks a value")
        if key in changes or key in options:
            raise Slip(f"{key} is given twice")
        if key in extra:
            options[key] = text
        elif key == "references":
            changes[key] = () if text == "none" else tuple(part for part in text.split(",") if part)
        else:
            changes[key] = read_value(key, text)
    return changes, options


def parse_scenario_words(
    words: Sequence[str], allowed: Sequence[str]
) -> tuple[dict[str, str], str | None, dict[str, Any]]:
    """Split a command line that runs a scenario but trains nothing.

    Returns:
        (options of `allowed`, the scenario's name or path if given, changed fields of it)

    Raises:
        Slip: as `parse_words`.
    """
    plain, overrides = [], {}
    for word in words:
        key, equals, text = word.partition("=")
        field = key.removeprefix("scenario.")
        if not equals or field == key or not field:
            plain.append(word)
            continue
        if not text:
            raise Slip(f"{key}= lacks a value")
        if field in overrides:
            raise Slip(f"{key} is given twice")
        overrides[field] = read_value(key, text)
    for word in plain:
        key, equals, _ = word.partition("=")
        if equals and key not in (*allowed, "scenario"):
            raise Slip(f"unknown option {key!r}{closest(key, (*allowed, 'scenario'))}")
    options = parse_options(plain, (*allowed, "scenario"))
    return options, options.pop("scenario", None), overrides


def read_value(key: str, text: str) -> Any:
    """A value of the command line, read as YAML (`12`, `0.5`, `true`, `[64, 64]`, `chat`).

    Raises:
        Slip: not valid YAML.
    """
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise Slip(f"{key} = {text!r}: cannot be read as a value") from None
    if isinstance(value, str):
        try:  # YAML 1.1 takes 3e-4 for a word, since it lacks the point
            return float(value)
        except ValueError:
            return value
    return value


def _hint(key: str, extra: Sequence[str] = ()) -> str:
    names = [*extra, *option_names()]
    near = difflib.get_close_matches(key, names, n=1) or [
        name for name in names if name.rpartition(".")[2] == key
    ]
    return f" (did you mean {near[0]}?)" if near else f"; there are {sorted(names)} and scenario.*"


def _put(data: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for part in parents:
        data = data.setdefault(part, {})
    data[last] = value
