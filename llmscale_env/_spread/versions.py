"""Whether two machines run the same: the project's code and data, and the libraries that numbers hang on."""

from __future__ import annotations

import functools
import hashlib
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from llmscale_env._spread.calls import OtherCode

_ROOT = Path(__file__).resolve().parents[2]
_ROOMS = ("llmscale_env", "baselines", "agents", "experiments")
_CODE = (".py", ".yaml", ".json", ".csv", ".gz", ".npz", ".safetensors")
COMPARED = ("numba", "numpy", "ray", "stable-baselines3", "torch")


@functools.cache
def identity() -> dict[str, str]:
    """What the numbers hang on besides the calls: code and data of the project, versions of libraries."""
    made = hashlib.sha256()
    for room in _ROOMS:
        for path in sorted((_ROOT / room).rglob("*")):
            if path.suffix in _CODE and path.is_file():
                made.update(path.relative_to(_ROOT).as_posix().encode())
                made.update(path.read_bytes())
    found = {"llmscale's code": made.hexdigest()[:16]}
    for name in COMPARED:
        try:
            found[name] = metadata.version(name).partition("+")[0]  # "+cpu" is a way to build
        except metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def check_code(theirs: Mapping[str, str], ours: Mapping[str, str]) -> None:
    """That a machine runs what the command runs.

    Raises:
        OtherCode: naming what differs, and the machine.
    """
    differs = [
        f"{name} is {ours.get(name, 'none')} there, {what} here"
        for name, what in theirs.items()
        if ours.get(name, "none") != what
    ]
    if differs:
        raise OtherCode(f"machine {platform.node()!r} has other versions: {'; '.join(differs)}")
