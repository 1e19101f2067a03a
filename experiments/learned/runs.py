"""Learned policies that compete: run folders, folders of them, and those that ship."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.config import TrainConfig, read_config
from agents.learned import find_model
from agents.pretrained import is_pretrained, shipped
from experiments.learned.family import FAMILY, Workload, digest_of
from llmscale_env._cli import closest
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
        trained_on: names of workloads, as far as its configuration says.
        made_for: the validation workload that it was trained on and on nothing else, as a heuristic is tuned
            on one; it competes where settings are chosen by that workload, alone or among others. Empty: it
            competes everywhere.
        leaks: those of `trained_on` that belong to validation or test, but for `made_for`.
        remembers: whether its network does.
    """

    policy: str
    setting: str
    training_seed: int
    path: str
    digest: str
    trained_on: tuple[str, ...]
    made_for: str
    leaks: tuple[str, ...]
    remembers: bool = False

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
            seeds of one setting were trained in different ways.
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
            kind = (run.policy, run.setting, run.leaks)
            key = (*kind, run.training_seed, run.made_for)
            if key in found and is_pretrained(text):
                continue
            if key in found and found[key].digest != run.digest:
                raise ValueError(
                    f"learned = {text!r}: {path} and {found[key].path} are both {run.policy}, "
                    f"{run.setting}, seed {run.training_seed}"
                )
            recipe = recipe_of(config)
            first, where = recipes.setdefault(kind, (recipe, path))
            _check_alike(run, path, recipe, where, first)
            found[key] = run
    return list(found.values())


_OF_ONE_RUN = (
    *("seed", "env_threads", "torch_threads"),
    *("references", "evaluation_episodes", "validation_episodes"),
)
"""Options in which runs of one setting may differ."""


def recipe_of(config: TrainConfig) -> dict[str, Any]:
    """How a run was trained, but for its seed and for the workload of validation that it was made for."""
    data = config.model_dump(mode="json", by_alias=True, exclude=set(_OF_ONE_RUN))
    overrides = dict(data.pop("overrides"))
    if len(workloads_of(config)) == 1 and _is_validation(workloads_of(config)[0]):
        overrides.pop("workload", None)
    data |= {f"scenario.{path}": value for path, value in overrides.items()}
    flat: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": each for inner, each in value.items()}
        else:
            flat[name] = value
    return flat


def _check_alike(
    run: Run, path: Path, recipe: Mapping[str, Any], other: Path, theirs: Mapping[str, Any]
) -> None:
    names = [k for k in {**recipe, **theirs} if recipe.get(k) != theirs.get(k)]
    if names:
        raise ValueError(
            f"learned: {path} and {other} are both {run.policy}, {run.setting}, but differ in {names[0]} "
            f"({recipe.get(names[0])!r} and {theirs.get(names[0])!r}): compare them in tables of their own"
        )


def _models(text: str, env: str) -> list[Path]:
    if is_pretrained(text):
        name = text.partition(":")[2]
        every = [p.name for p in shipped()]
        if name and name not in every:
            raise ValueError(f"learned = {text!r}: no such policy ships{closest(name, every)}")
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
    names = workloads_of(config)
    training = {m.name for m in members(FAMILY, "train")}
    made_for = ""
    if len(names) == 1 and _is_validation(names[0]):
        made_for = names[0].partition("/")[2]
        policy += " per workload"
    own = digest_of(path) + digest_of(path.parent / "config.yaml")
    return Run(
        policy,
        setting_of(config),
        config.seed,
        str(path),
        own,
        names,
        made_for,
        tuple(name for name in names if name not in training and not made_for),
        config.agent == "recurrent-ppo",
    )


def setting_of(config: TrainConfig) -> str:
    """What a run was told about attainment: a target, a price of every miss, or prices of the scenario."""
    target = config.lagrangian.attainment
    if target is not None and config.lagrangian.rate == 0:
        return f"misses at {config.lagrangian.start:g}"
    if isinstance(target, dict):
        return ", ".join(f"{name} at {share:g}" for name, share in sorted(target.items()))
    if target is not None:
        return f"at {target:g}"
    prices = {
        path: value
        for path, value in sorted(config.overrides.items())
        if path.startswith("reward") or path.endswith(".weight")
    }
    return ", ".join(f"{p.rpartition('.')[2]} {v:g}" for p, v in prices.items()) or "as configured"


def workloads_of(config: TrainConfig) -> tuple[str, ...]:
    """Names of the workloads that a run has met: its scenario's, those that it drew, its stages'."""
    drawn = config.randomise.ranges.get("workload")
    named: list[Any] = list(drawn.choices) if drawn is not None else []
    named += [s.overrides["workload"] for s in config.curriculum if "workload" in s.overrides]
    # The scenario's own is trained on unless another is always drawn; it is validated on in any case.
    if drawn is None:
        named.append(config.overrides.get("workload", config.scenario))
    return tuple(dict.fromkeys(each if isinstance(each, str) else "unnamed" for each in named))
