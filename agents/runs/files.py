"""What a run leaves on disk: tables and JSON, and where they came from."""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from llmscale_env import _reading as reading
from llmscale_env._cli import Slip
from llmscale_env._writing import write_text

PACKAGES = (
    *("gymnasium", "numba", "numpy", "pandas", "sb3-contrib", "scipy"),
    *("stable-baselines3", "torch"),
)
"""Their versions are written down beside llmscale's own."""


def write_json(path: Path, data: Mapping[str, Any]) -> Path:
    """Write a JSON file whole."""
    return write_text(path, json.dumps(data, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """What a JSON file of a run folder holds.

    Raises:
        Slip: it cannot be read: damaged, or no object.
    """
    try:
        found = reading.read_json(path)
    except reading.Unreadable:
        found = None
    if not isinstance(found, dict):
        raise Slip(f"{path}: is damaged: it cannot be read as a JSON object")
    return found


def read_yaml(path: Path, what: str, missing: str = "there is no such file") -> Any:
    """What a YAML file that somebody named holds.

    Args:
        path: where it is.
        what: begins the message of an error, as "card = 'card.yaml'".
        missing: says that there is no file.

    Raises:
        Slip: it is none, or cannot be read.
    """
    if not path.is_file():
        raise Slip(f"{what}: {missing}")
    try:
        return reading.read_yaml(path)
    except reading.Unreadable as error:
        raise Slip(f"{what}: {error}") from None


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows as CSV, with the columns of the first and what later ones add (empty where missing)."""
    columns = dict.fromkeys(key for row in rows for key in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return write_text(path, text.getvalue())


def read_csv(path: Path) -> list[dict[str, Any]]:
    """Rows of a CSV that `write_csv` wrote; numbers as numbers.

    Raises:
        Slip: it is damaged.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (csv.Error, UnicodeDecodeError):
        rows = [{"": None}]
    # A row that is too short or too long has None for a value or a column.
    if any(None in row.values() or None in row for row in rows):
        raise Slip(f"{path}: is damaged: it cannot be read as a table")
    return [{key: _number(value) for key, value in row.items()} for row in rows]


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def provenance(words: Sequence[str], module: str) -> dict[str, Any]:
    """Command, time, code and versions: what it takes to repeat a run."""
    versions = {}
    for name in ("llmscale", *PACKAGES):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "command": shlex.join(["python", "-m", module, *words]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": git_revision(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "versions": versions,
    }


def git_revision() -> str:
    """Commit of the code, with "-dirty" where files differ from it; "unknown" outside a checkout."""
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def said(message: str) -> None:
    """A line for people; on standard error, so that tables can be piped."""
    print(message, file=sys.stderr, flush=True)
