"""What a user gets: `python -m tests.installed dist` installs the wheel in `dist` into an empty environment.

Prints sizes and what was checked; exits with 1 where something is wrong. `make package` builds `dist`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = Path(__file__).with_name("outside.py")

MOST_WHEEL_BYTES = 3_000_000
MOST_INSTALLED_MB = 100.0
"""Of the core without Numba and pandas, with what these two need themselves."""

GIVEN = {"llvmlite", "numba", "numpy", "pandas", "python-dateutil", "six", "tzdata"}
"""Numba and pandas, and what they bring."""

TOOLS = {"pip", "setuptools"}
"""What an empty environment has."""

SIX_LINES = """
import gymnasium as gym
env = gym.make("llmscale_env:llmscale/MixedSLO-Hours-v1")
observation, info = env.reset(seed=0)
assert env.observation_space.contains(observation)
"""


def main(words: Sequence[str]) -> int:
    """Check the one wheel and the one source distribution of a folder."""
    folder = Path(words[0] if words else "dist")
    (wheel,) = folder.glob("llmscale-*.whl")
    (source,) = folder.glob("llmscale-*.tar.gz")
    print(f"{source.name}: {source.stat().st_size / 1e6:.1f} MB")
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB")
    if wheel.stat().st_size > MOST_WHEEL_BYTES:
        return _wrong(f"the wheel is over {MOST_WHEEL_BYTES / 1e6:g} MB")
    with tempfile.TemporaryDirectory() as made:
        home = Path(made)
        python = home / "venv" / "bin" / "python"
        venv.create(home / "venv", with_pip=True)
        # The newest versions, not the pinned ones: these are what a user gets.
        _run(python, "-m", "pip", "install", "-qq", "--only-binary", ":all:", str(wheel.resolve()))
        (site,) = (home / "venv" / "lib").glob("python*/site-packages")
        sizes = installed_mb(site)
        ours = sum(mb for name, mb in sizes.items() if name not in GIVEN | TOOLS)
        print(f"installed: {sum(sizes.values()):.0f} MB; without Numba, pandas, pip: {ours:.0f} MB")
        print("of these: " + ", ".join(f"{name} {mb:.0f}" for name, mb in largest(sizes)))
        if ours > MOST_INSTALLED_MB:
            return _wrong(f"the core is over {MOST_INSTALLED_MB:g} MB")
        _run(python, "-c", SIX_LINES, folder=home)
        _run(python.with_name("llmscale"), "--help", folder=home)
        missing = subprocess.run(
            [python.with_name("llmscale"), "train", "env=mixed-slo"],
            cwd=home,
            capture_output=True,
            text=True,
        )
        wanted = "pip install 'llmscale[train]'\n"
        if missing.returncode != 2 or not missing.stderr.endswith(wanted):
            return _wrong(f"what is missing is not named: {missing.stderr}")
        _run("-m", "mypy", "--strict", "--python-executable", python, OUTSIDE, folder=home)
    print("installed, made, reset, and typed from outside")
    return 0


def installed_mb(site: Path) -> dict[str, float]:
    """Megabytes (10^6 bytes) of each distribution in a folder of packages, compiled Python included."""
    return {
        each.name.lower().replace("_", "-"): sum(
            path.stat().st_size
            for file in each.files or []
            if (path := Path(str(each.locate_file(file)))).is_file()
        )
        / 1e6
        for each in distributions(path=[str(site)])
    }


def largest(sizes: dict[str, float], n: int = 6) -> list[tuple[str, float]]:
    """The largest that are neither given nor tools."""
    ours = [(name, mb) for name, mb in sizes.items() if name not in GIVEN | TOOLS]
    return sorted(ours, key=lambda item: -item[1])[:n]


def _run(*command: str | Path, folder: Path = ROOT) -> None:
    if command[0] == "-m":
        command = (sys.executable, *command)
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def _wrong(what: str) -> int:
    print(f"error: {what}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
