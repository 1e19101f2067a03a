"""Put trained runs among the policies that ship with the project.

    python -m agents.ship runs=FOLDER[,FOLDER ...] card=FILE.yaml [name=NAME] [out=FOLDER] [replace=true]

    runs=FOLDER,...   run folders; of each the best model is taken
    card=FILE.yaml    what the cards say that no run knows: about, data, limits, and more figures; with
                      recommended: true the run that validated best becomes the one that `pretrained` means;
                      several runs must then be seeds of one training
    name=NAME         of the policy; several runs get "-seedN" (default: ENV-AGENT)
    out=FOLDER        default: agents/pretrained
    replace=true      policies of these names that ship already give way

A card's environment, seeds, command, revision of the code and figures of validation come from the run
(agents/pretrained says what else a card has). SHA256SUMS lists models and configurations, and no cards.
Nothing is written unless all can be, and the files of the other policies are the ones that are listed.
After an interrupt the policy is not loaded; the same command mends it.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from agents.configuration.config import environment_id, read_config
from agents.pretrained import (
    CARD,
    FOLDER,
    KEYS,
    MAX_BYTES,
    MODEL,
    SUMS,
    PretrainedError,
    check_others,
    lines_of,
    listed,
    shipped,
    sums_of,
)
from agents.runs.files import read_csv, read_json, read_yaml
from llmscale_env._cli import Slip, flag, parse_options, run_command
from llmscale_env._writing import replace_file, write_text

_LEFT_OUT = ("out", "resume", "env_threads", "torch_threads", "engine")
"""Words of a command that do not change what comes of it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 2 after a slip, named in one line."""
    from agents.models.store import ModelError

    return run_command("ship", __doc__, argv, _ship, slips=(ModelError, PretrainedError))


def _ship(words: list[str]) -> int:
    options = parse_options(words, ("runs", "card", "name", "out", "replace"))
    for needed in ("runs", "card"):
        if needed not in options:
            raise Slip(f"{needed}= is missing")
    said = read_card(Path(options["card"]))
    runs = [Path(text) for text in options["runs"].split(",") if text]
    if not runs:
        raise Slip(f"runs = {options['runs']!r}: names no folder")
    home = Path(options.get("out", FOLDER))
    names = _names(runs, options.get("name"))
    check_others(home, names)
    # A folder that is not listed is what an interrupted command has left.
    replaced = [name for name in names if lines_of(listed(home), (name,))]
    if replaced and not flag(options, "replace"):
        raise Slip(
            f"name: {replaced[0]!r} ships already from {home}; replace=true lets it give way"
        )
    recommended = _recommended(runs, names, home) if said.pop("recommended", False) else None
    with tempfile.TemporaryDirectory(prefix="llmscale-") as aside:
        made = {}
        for run, name in zip(runs, names, strict=True):
            more = {"recommended": True} if run == recommended else {}
            made[name] = ship(run, Path(aside) / name, {**said, **more})
        for name, folder in made.items():
            # The card last: without it there is no policy. Until the sums are written, none of it is loaded.
            for file in (MODEL, "config.yaml", CARD):
                replace_file(home / name / file, partial(shutil.copyfile, folder / file))
            (home / name / "model.zip").unlink(missing_ok=True)  # of an older version
        others = lines_of(listed(home), names, others=True)
        mine = lines_of(sums_of(home).splitlines(keepends=True), names)
        write_text(home / SUMS, "".join(sorted([*others, *mine], key=lambda line: line[66:])))
        for name in names:
            print(f"written: {home / name}")
    return 0


def _names(runs: Sequence[Path], name: str | None) -> list[str]:
    """What the policies of runs are called."""
    if name is not None and not re.fullmatch(r"\w[\w.-]*", name):
        raise Slip(
            f"name = {name!r}: must be letters, digits, points and dashes, a letter or digit first"
        )
    names = []
    for run in runs:
        config = read_config(run)
        plain = name or f"{config.env}-{config.agent}"
        names.append(plain if len(runs) == 1 else f"{plain}-seed{config.seed}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise Slip(f"runs: several are {twice[0]!r}; ship them one by one with name=")
    return names


def _recommended(runs: Sequence[Path], names: Sequence[str], home: Path) -> Path:
    """The run that validated best.

    Raises:
        Slip: runs of several environments, runs that were trained or validated in different ways, or another
            policy is the one that is recommended.
        PretrainedError: a policy in `home` is not whole.
    """
    envs = sorted({read_config(run).env for run in runs})
    if len(envs) > 1:
        raise Slip(f"card: recommended = true: is for runs of one environment; these are of {envs}")
    there = [p.name for p in shipped(envs[0], home, names) if p.recommended]
    if there:
        raise Slip(f"card: recommended = true: {there[0]!r} is recommended for {envs[0]!r} already")
    _check_alike(runs)
    return max(runs, key=best_worth)


_OF_ONE_RUN = (
    *("seed", "env_threads", "torch_threads", "engine"),
    *("references", "evaluation_episodes"),
)
"""Options in which runs may differ whose validations are ranked."""


def _check_alike(runs: Sequence[Path]) -> None:
    """Validations are compared by numbers (`agents.learning.validation_score`) that mean the same in runs
    alike alone.

    Raises:
        Slip: naming the first option in which two runs differ.
    """
    first, *others = runs
    mine = _options(first)
    for other in others:
        theirs = _options(other)
        for name in {**mine, **theirs}:
            if mine.get(name) != theirs.get(name):
                raise Slip(
                    f"card: recommended = true: {first} and {other} may differ in their seeds alone; "
                    f"{name} is {mine.get(name)!r} and {theirs.get(name)!r}"
                )


def _options(run: Path) -> dict[str, Any]:
    """A run's options by dotted path, without those in which ranked runs may differ."""
    data = read_config(run).model_dump(mode="json", by_alias=True, exclude=set(_OF_ONE_RUN))
    data["scenario"] = {"": data["scenario"], **data.pop("overrides")}

    def flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict):
            for name, each in value.items():
                yield from flat(each, f"{path}.{name}".strip("."))
        else:
            yield path, value

    return dict(flat(data, ""))


def best_worth(run: Path) -> float:
    """What the best validation of a run is worth (`agents.learning.validation_score`)."""
    from agents.configuration.environments import make_scenario
    from agents.learning import validation_score

    config = read_config(run)
    scenario = make_scenario(config)
    return validation_score.best_worth(_validation(run), config, scenario)


def _validation(run: Path) -> list[dict[str, Any]]:
    path = run / "validation.csv"
    rows = read_csv(path) if path.is_file() else []
    if not rows or "timesteps" not in rows[0]:
        raise Slip(f"runs: {run} has no {path.name}: it is no folder that agents.train has made")
    return rows


def read_card(path: Path) -> dict[str, Any]:
    """What a person says of policies.

    Raises:
        Slip: no such file, not valid, or it says too little.
    """
    where = f"card = {str(path)!r}"
    said = read_yaml(path, where)
    if not isinstance(said, dict):
        raise Slip(f"{where}: must be keys and what they say")
    made_here = ("environment", "id", "seeds", "command", "figures")
    for key in ("id", "seeds", "command", "revision"):
        if key in said:
            raise Slip(f"{where}: {key} = {said[key]!r}: comes from the run, not from a card")
    missing = [key for key in KEYS if key not in made_here and not said.get(key)]
    if missing:
        raise Slip(f"{where}: lacks {missing}")
    if not isinstance(said.get("recommended", False), bool):
        raise Slip(f"{where}: recommended = {said['recommended']!r}: must be true or false")
    if not isinstance(said.get("figures") or {}, dict):
        raise Slip(f"{where}: figures = {said['figures']!r}: must be names and what they say")
    if "validation" in (said.get("figures") or {}):
        raise Slip(f"{where}: figures.validation: comes from the run, not from a card")
    return said


def ship(run: Path, folder: Path, said: dict[str, Any]) -> Path:
    """Write a run's model, configuration and card to `folder`.

    Raises:
        ModelError: the run has no model, or one that cannot be read.
        Slip: the folder is none of a training, its model was never validated, the model is too large, or the
            card is of another environment.
    """
    from agents.models.store import contents_of, find_model, load_model, write

    config = read_config(run)
    for name in ("run.json", "validation.csv"):
        if not (run / name).is_file():
            raise Slip(f"runs: {run} has no {name}: it is no folder that agents.train has made")
    if said.get("environment", config.env) != config.env:
        raise Slip(f"card: environment = {said['environment']!r}: {run} is of {config.env!r}")
    model = load_model(find_model(run), config)
    card = {
        "environment": config.env,
        "id": environment_id(config.env),
        **said,
        "seeds": [config.seed],
        "command": command_of(run),
        "revision": revision_of(run),
        "figures": {
            "validation": validated(run, model.num_timesteps),
            **dict(said.get("figures") or {}),
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = write(folder / MODEL, contents_of(model))
    if path.stat().st_size > MAX_BYTES:
        size = path.stat().st_size
        path.unlink()
        raise Slip(f"{run}: the model has {size:,} bytes; at most {MAX_BYTES:,} ship")
    write_text(folder / "config.yaml", config.to_yaml())
    write_text(folder / CARD, yaml.safe_dump(card, sort_keys=False, width=110))
    return folder


def command_of(run: Path) -> str:
    """The command that trains it again, without where and on how many threads."""
    words = shlex.split(_sessions(run)[0]["command"])
    return shlex.join(word for word in words if word.partition("=")[0] not in _LEFT_OUT)


def revision_of(run: Path) -> str:
    """Git's name of the code that trained it, with which the command makes the same policy again."""
    return str(_sessions(run)[-1].get("git") or "unknown")


def _sessions(run: Path) -> list[dict[str, Any]]:
    found = read_json(run / "run.json").get("sessions")
    if not isinstance(found, list) or not found or "command" not in found[0]:
        raise Slip(f"{run / 'run.json'}: is damaged: it lists no sessions")
    return found


def validated(run: Path, steps: int) -> dict[str, float]:
    """Means of a run's validation after so many steps.

    Returns:
        `after_steps`, `episodes`, `reward`, `gpu_hours`, `CLASS_on_time` in per cent.

    Raises:
        Slip: there was no validation then.
    """
    from agents.runs.comparison import judged_shares

    rows = [row for row in _validation(run) if row["timesteps"] == steps]
    if not rows:
        raise Slip(f"runs: {run} was not validated after the {steps:,} steps of its model")
    found: dict[str, float] = {"after_steps": steps, "episodes": len(rows)}
    found["reward"] = round(fmean(row["reward"] for row in rows), 1)
    found["gpu_hours"] = round(fmean(row["gpu_hours"] for row in rows), 3)
    for key in rows[0]:
        name, _, what = key.partition("/")
        if what == "slo_attainment" and name != "joint" and (judged := judged_shares(rows, name)):
            found[f"{name}_on_time"] = round(100 * fmean(judged), 2)
    return found


if __name__ == "__main__":
    sys.exit(main())
