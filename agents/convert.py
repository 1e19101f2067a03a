"""Make models of this project from the zips of stable-baselines3 that earlier versions wrote.

    python -m agents.convert model=RUN|FILE.zip trust=true

    model=PATH     run folder (all its models) or one file of it; config.yaml lies beside
    trust=true     you trust where it comes from: loading such a zip runs whatever its author wrote into it

Each `NAME.zip` gives a `NAME.safetensors` beside it, of which loading executes nothing. The zip stays;
a model that is there already is not replaced. Such a model can be evaluated and exported. Its run cannot be
resumed: a zip does not hold where training was.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agents.configuration.config import read_config
from agents.models.store import SUFFIX, ModelError, contents_of, model_of, write
from agents.runs.files import said
from llmscale_env._cli import Slip, flag, needs, parse_options, run_command


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 2 after a slip (named in one line), 130 when interrupted."""
    return run_command("convert", __doc__, argv, _convert, slips=(ModelError,))


def _convert(words: Sequence[str]) -> int:
    needs("safetensors", "torch", "stable_baselines3")
    options = parse_options(words, ("model", "trust"))
    if "model" not in options:
        raise Slip("model= is missing, such as model=runs/mixed-slo-ppo-seed0")
    place = Path(options["model"])
    zips = sorted(place.glob("model*.zip")) if place.is_dir() else [place]
    if not zips or not all(path.is_file() for path in zips):
        raise Slip(f"model = {str(place)!r}: there is no such zip")
    for path in zips:
        if path.with_suffix(SUFFIX).exists():
            raise Slip(
                f"model = {str(place)!r}: {path.with_suffix(SUFFIX)} is there already; move it away first"
            )
    if not flag(options, "trust"):
        raise Slip(
            f"model = {str(place)!r}: loading a zip of stable-baselines3 runs whatever its author wrote into "
            "it; trust=true if you know where it comes from"
        )
    said(f"warning: what {place} holds is executed now")
    for path in zips:
        print(convert(path))
    return 0


def convert(path: Path) -> Path:
    """Write the network of a zip as a model of this project, beside it. Executes what the zip holds.

    Raises:
        ModelError: it cannot be read, or does not go together with its `config.yaml`.
        Slip: there is no such configuration.
    """
    config = read_config(path.parent)
    model = _load(path, config.agent)
    try:
        contents = contents_of(model)
        model_of(contents, config)
    except (AttributeError, TypeError, ModelError) as error:
        raise ModelError(f"model {str(path)!r}: {error}") from None
    return write(path.with_suffix(SUFFIX), contents)


def _load(path: Path, agent: str) -> Any:
    from agents.models.algorithms import algorithm_of

    try:
        return algorithm_of(agent).load(path, device="cpu")
    except Exception as error:  # whatever an unpickler makes of foreign bytes
        text = " ".join(str(error).split())[:200]
        raise ModelError(
            f"model {str(path)!r}: cannot be read ({type(error).__name__}: {text})"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
