"""Put trained runs among the policies that ship with the project.

    python -m agents.ship runs=FOLDER[,FOLDER ...] card=FILE.yaml [name=NAME] [out=FOLDER]

    runs=FOLDER,...   run folders; of each the best model is taken
    card=FILE.yaml    what the cards say that no run knows: about, data, limits, and more figures
    name=NAME         of the policy; several runs get "-seedN" (default: ENV-AGENT)
    out=FOLDER        default: agents/pretrained

A card's seeds, command, revision of the code and figures of validation come from the run (agents/pretrained
says what else a card has). The optimiser's memory, two thirds of a model file, is left out: what ships acts,
and a training that starts from it begins with a fresh one.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from agents.config import read_config
from agents.files import read_csv, replace_file, write_text
from agents.pretrained import CARD, FOLDER, KEYS, MAX_BYTES, MODEL
from llmscale_env._cli import Slip, parse_options, run_command

_LEFT_OUT = ("out", "resume", "env_threads", "torch_threads")
"""Words of a command that do not change what comes of it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 2 after a slip, named in one line."""
    from agents.learned import ModelError

    return run_command("ship", __doc__, argv, _ship, slips=(ModelError,))


def _ship(words: list[str]) -> int:
    options = parse_options(words, ("runs", "card", "name", "out"))
    for needed in ("runs", "card"):
        if needed not in options:
            raise Slip(f"{needed}= is missing")
    said = read_card(Path(options["card"]))
    runs = [Path(text) for text in options["runs"].split(",") if text]
    home = Path(options.get("out", FOLDER))
    names = []
    for run in runs:
        config = read_config(run)
        name = options.get("name", f"{config.env}-{config.agent}")
        names.append(name if len(runs) == 1 else f"{name}-seed{config.seed}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise Slip(f"runs: several are {twice[0]!r}; ship them one by one with name=")
    for run, name in zip(runs, names, strict=True):
        print(f"written: {ship(run, home / name, said)}")
    return 0


def read_card(path: Path) -> dict[str, Any]:
    """What a person says of policies.

    Raises:
        Slip: no such file, not valid, or it says too little.
    """
    if not path.is_file():
        raise Slip(f"card = {str(path)!r}: there is no such file")
    try:
        said = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError:
        raise Slip(f"card = {str(path)!r}: not valid YAML") from None
    if not isinstance(said, dict):
        raise Slip(f"card = {str(path)!r}: must be keys and what they say")
    made_here = ("environment", "seeds", "command", "figures")
    missing = [key for key in KEYS if key not in made_here and not said.get(key)]
    if missing:
        raise Slip(f"card = {str(path)!r}: lacks {missing}")
    return said


def ship(run: Path, folder: Path, said: dict[str, Any]) -> Path:
    """Write a run's model, configuration and card to `folder`.

    Raises:
        ModelError: the run has no model, or one that cannot be read.
        Slip: the folder is none of a training, its model was never validated, or the model is too large.
    """
    from agents.learned import find_model, load_model

    config = read_config(run)
    for name in ("run.json", "validation.csv"):
        if not (run / name).is_file():
            raise Slip(f"runs: {run} has no {name}: it is no folder that agents.train has made")
    model = load_model(find_model(run), config.agent)
    card = {
        "environment": config.env,
        **said,
        "seeds": [config.seed],
        "command": command_of(run),
        "revision": revision_of(run),
        "figures": {
            "validation": validated(run, model.num_timesteps),
            **dict(said.get("figures") or {}),
        },
    }
    optimiser = model.policy.optimizer
    model.policy.optimizer = type(optimiser)(model.policy.parameters(), **optimiser.defaults)
    model.ep_info_buffer = model.ep_success_buffer = None
    folder.mkdir(parents=True, exist_ok=True)
    path = replace_file(folder / MODEL, model.save)
    if path.stat().st_size > MAX_BYTES:
        size = path.stat().st_size
        path.unlink()
        raise Slip(f"{run}: the model has {size:,} bytes; at most {MAX_BYTES:,} ship")
    write_text(folder / "config.yaml", config.to_yaml())
    write_text(folder / CARD, yaml.safe_dump(card, sort_keys=False, width=110))
    return folder


def command_of(run: Path) -> str:
    """The command that trains it again, without where and on how many threads."""
    sessions = json.loads((run / "run.json").read_text(encoding="utf-8"))["sessions"]
    words = shlex.split(sessions[0]["command"])
    return shlex.join(word for word in words if word.partition("=")[0] not in _LEFT_OUT)


def revision_of(run: Path) -> str:
    """Git's name of the code that trained it, with which the command makes the same policy again."""
    sessions = json.loads((run / "run.json").read_text(encoding="utf-8"))["sessions"]
    return str(sessions[-1].get("git") or "unknown")


def validated(run: Path, steps: int) -> dict[str, float]:
    """Means of a run's validation after so many steps.

    Returns:
        `after_steps`, `episodes`, `gpu_hours`, `CLASS_on_time` in per cent.

    Raises:
        Slip: there was no validation then.
    """
    rows = [row for row in read_csv(run / "validation.csv") if row["timesteps"] == steps]
    if not rows:
        raise Slip(f"runs: {run} was not validated after the {steps:,} steps of its model")
    found: dict[str, float] = {"after_steps": steps, "episodes": len(rows)}
    found["gpu_hours"] = round(fmean(row["gpu_hours"] for row in rows), 3)
    for key in rows[0]:
        name, _, what = key.partition("/")
        if what == "slo_attainment" and name != "joint":
            found[f"{name}_on_time"] = round(100 * fmean(row[key] for row in rows), 2)
    return found


if __name__ == "__main__":
    sys.exit(main())
