"""Learned policies that compete: run folders, folders of them, and those that ship."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from agents.configuration.config import TrainConfig, read_config
from agents.configuration.environments import are_counts, codec_of
from agents.models.store import find_model, steps_of
from agents.pretrained import is_pretrained, shipped
from experiments.learned.family import FAMILY, Workload, digest_of
from llmscale_env._cli import closest
from llmscale_env.scenarios import load_scenario
from llmscale_env.workload.families import members


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        policy: what it is called in tables: the learner, the policy whose counts it corrects, and "per
            workload" where there is one network for each workload.
        setting: by what it weighs GPUs against lateness, "as configured" if by nothing of its own.
        training_seed: runs that differ in it alone are one setting.
        path: of the model file.
        digest: of it, and of its configuration.
        made_for: the validation workload that it was trained on and on nothing else, as a heuristic is tuned
            on one; it competes where settings are chosen by that workload, alone or among others. Empty: it
            competes everywhere.
        leaks: workloads of the test, and unnamed ones, that it was trained on or its best model chosen by,
            and those of validation that it was trained on, but for `made_for`.
        turns: whether quantiles of its instance counts are settings of it: it decides some, and its network
            does not remember.
    """

    policy: str
    setting: str
    training_seed: int
    path: str
    digest: str
    made_for: str
    leaks: tuple[str, ...]
    turns: bool = True

    def competes_on(self, workload: Workload) -> bool:
        """Whether it takes part on a workload of test or validation."""
        if not self.made_for:
            return True
        return self.made_for == workload.name or self.made_for in workload.validated_on


NOBODY = "none"


def find_runs(texts: Sequence[str], env: str) -> list[Run]:
    """The runs that a list of names and folders means.

    Args:
        texts: "pretrained" (all that ship for the environment), "pretrained:NAME", run folders, folders
            that hold run folders, however deep; "none" is nobody. A run that is also among those that ship
            is taken from its folder.
        env: short name of the environment; runs of others below a folder are left out.

    Raises:
        ValueError: nothing is there; two runs have the same policy, setting and seed; or runs that would be
            seeds of one setting were trained in different ways; a model file that is none.
        Slip: a configuration that cannot be read.
    """
    found: dict[tuple[Any, ...], Run] = {}
    recipes: dict[tuple[Any, ...], tuple[dict[str, Any], Path]] = {}
    # What is named comes before what ships, of which it may be the original or a later version.
    for text in sorted((text for text in texts if text != NOBODY), key=is_pretrained):
        for path in _models(text, env):
            config = read_config(path.parent)
            if config.env != env:
                continue
            run = run_of(config, path)
            kind = (run.policy, run.leaks)
            key = (*kind, run.setting, run.training_seed, run.made_for)
            if key in found and is_pretrained(text):
                continue
            if key in found and found[key].digest != run.digest:
                raise ValueError(
                    f"learned = {text!r}: {path} and {found[key].path} are both {run.policy}, "
                    f"{run.setting}, seed {run.training_seed}"
                )
            recipe = recipe_of(config)
            first, where = recipes.setdefault(kind, (recipe, path))
            _check_alike(run.policy, path, recipe, where, first)
            steps_of(path)
            found[key] = run
    return list(found.values())


def one_each(runs: Sequence[Run]) -> list[Run]:
    """Of every policy, and of every workload that it is made for, one network: one price, one training seed.

    The setting is the one that most of all runs have, the first of several by name, so that it is the same
    for all workloads where it can be; of its networks it is the one with the lowest seed.
    """
    common = Counter(run.setting for run in runs)
    ranked = sorted(runs, key=lambda r: (-common[r.setting], r.setting, r.training_seed))
    first: dict[tuple[str, str], Run] = {}
    for run in ranked:
        first.setdefault((run.policy, run.made_for), run)
    return [run for run in runs if run is first[run.policy, run.made_for]]


_OF_ONE_RUN = (
    *("seed", "env_threads", "torch_threads"),
    *("references", "evaluation_episodes", "validation_episodes"),
)
"""Options in which runs of one setting may differ."""


def recipe_of(config: TrainConfig) -> dict[str, Any]:
    """How a run was trained, but for its seed, for what it was told about attainment, and for the workload of
    validation that it was made for.
    """
    data = config.model_dump(mode="json", by_alias=True, exclude=set(_OF_ONE_RUN))
    overrides = {k: v for k, v in data.pop("overrides").items() if not _is_price(k)}
    if len(workloads_of(config)) == 1 and _is_validation(workloads_of(config)[0]):
        overrides.pop("workload", None)
    data |= {f"scenario.{path}": value for path, value in overrides.items()}
    flat: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": each for inner, each in value.items()}
        else:
            flat[name] = value
    return {k: v for k, v in flat.items() if k not in _ATTAINMENT}


_ATTAINMENT = ("lagrangian.attainment", "lagrangian.start", "lagrangian.rate", "lagrangian.most")


def _is_price(path: str) -> bool:
    """Whether a field of the scenario weighs GPUs against lateness."""
    return path.startswith("reward") or path.endswith(".weight")


def _check_alike(
    policy: str, path: Path, recipe: Mapping[str, Any], other: Path, theirs: Mapping[str, Any]
) -> None:
    names = [k for k in {**recipe, **theirs} if recipe.get(k) != theirs.get(k)]
    if names:
        raise ValueError(
            f"learned: {path} and {other} are both {policy}, but differ in {names[0]} "
            f"({recipe.get(names[0])!r} and {theirs.get(names[0])!r}): compare them in tables of their own"
        )


def _models(text: str, env: str) -> list[Path]:
    if is_pretrained(text):
        name = text.partition(":")[2]
        every = [p.name for p in shipped(env)]
        if name and name not in every:
            raise ValueError(
                f"learned = {text!r}: no such policy ships for {env}{closest(name, every)}"
            )
        return [p.model for p in shipped(env) if name in ("", p.name)]
    place = Path(text)
    if not place.exists():
        raise ValueError(f"learned = {text!r}: there is no such file or folder")
    if place.is_file() or (place / "config.yaml").is_file():
        return [find_model(place)]
    folders = sorted(path.parent for path in place.rglob("config.yaml"))
    if not folders:
        raise ValueError(f"learned = {text!r}: holds neither a run nor folders of runs")
    return [find_model(folder) for folder in folders]


def _is_validation(name: str) -> bool:
    return name in {m.name for m in members(FAMILY, "validation")}


def run_of(config: TrainConfig, path: Path) -> Run:
    """What a run is, by its configuration."""
    policy = config.agent if config.reference is None else f"{config.agent} on {config.reference}"
    trained, chosen_by = workloads_of(config), validated_on(config)
    training = {m.name for m in members(FAMILY, "train")}
    leaks = {name for name in chosen_by if name not in training and not _is_validation(name)}
    made_for = ""
    if len(trained) == 1 and _is_validation(trained[0]) and not leaks:
        made_for = trained[0].partition("/")[2]
        policy += " per workload"
    else:
        leaks |= {name for name in trained if name not in training}
    own = digest_of(path) + digest_of(path.parent / "config.yaml")
    return Run(
        policy,
        setting_of(config),
        config.seed,
        str(path),
        own,
        made_for,
        tuple(sorted(leaks)),
        config.agent != "recurrent-ppo" and _decides_counts(config),
    )


def _decides_counts(config: TrainConfig) -> bool:
    """Whether any part of its actions is an instance count, on its environment's own scenario."""
    codec = codec_of(config, _scenario(config.env))
    return any(are_counts(codec.decoder.parts))


_scenario = cache(load_scenario)


def setting_of(config: TrainConfig) -> str:
    """What a run was told about attainment: a target, a price of every miss, or prices of the scenario."""
    target = config.lagrangian.attainment
    prices = {
        path: value
        for path, value in sorted(config.overrides.items())
        # Beside a price of misses a weight of 1 says nothing.
        if _is_price(path)
        and not (target is not None and path == "reward.violation_weight" and value == 1)
    }
    said = [f"{path.removeprefix('reward.')} {value:g}" for path, value in prices.items()]
    if target is not None and config.lagrangian.rate == 0:
        said = [f"misses at {config.lagrangian.start:g}", *said]
    elif isinstance(target, dict):
        said = [*(f"{name} at {share:g}" for name, share in sorted(target.items())), *said]
    elif target is not None:
        said = [f"at {target:g}", *said]
    return ", ".join(said) or "as configured"


UNNAMED = "unnamed"
"""A workload that is a named one no longer."""


def workloads_of(config: TrainConfig) -> tuple[str, ...]:
    """Names of the workloads that a run has learnt from: its scenario's, those that it drew, its stages'."""
    drawn = config.randomise.ranges.get("workload")
    named: list[Any] = list(drawn.choices) if drawn is not None else []
    named += [s.overrides["workload"] for s in config.curriculum if "workload" in s.overrides]
    # The scenario's own is trained on unless another is always drawn.
    if drawn is None:
        named.append(config.overrides.get("workload", config.scenario))
    paths = [*config.overrides, *config.randomise.ranges]
    paths += [path for stage in config.curriculum for path in stage.overrides]
    if any(_changes_more_than_load(path) for path in paths):
        named.append(None)
    return _names(named)


def validated_on(config: TrainConfig) -> tuple[str, ...]:
    """Names of the workloads by which a run's best model was chosen."""
    named: list[Any] = list(config.validation_workloads)
    named = named or [config.overrides.get("workload", config.scenario)]
    if any(_changes_more_than_load(path) for path in config.overrides):
        named.append(None)
    return _names(named)


def _names(named: Sequence[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each if isinstance(each, str) else UNNAMED for each in named))


_LOAD = ("rate_scale", "rate_per_s", "cv")


def _changes_more_than_load(path: str) -> bool:
    """Whether a field makes another workload of a named one: another part of its trace, say."""
    return path.startswith("workload.") and path.rpartition(".")[2] not in _LOAD
