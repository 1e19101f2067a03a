"""What is built from the project holds everything that it needs, and nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("llmscale_env", "agents", "baselines", "experiments")
DATA = (
    "*.yaml",
    "*.json",
    "*.csv",
    "*.csv.gz",
    "*.npz",
    "*.safetensors",
    "*.onnx",
    "py.typed",
    "SHA256SUMS",
)
# Data files in folders without Python, easily forgotten; the second folder has a name no package can have.
PROBES = (
    *("probe_data/" + pattern.replace("*", "probe") for pattern in DATA),
    *("probe-2.5-data/" + pattern.replace("*", "probe") for pattern in DATA if "*" in pattern),
)


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the files in a wheel built, offline, from a copy of the project."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in (*PACKAGES, "tests"):
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, source)
    for name in PROBES:
        path = source / "llmscale_env" / "workload" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    command = "-m pip wheel . --no-deps --no-build-isolation --no-index --disable-pip-version-check"
    done = subprocess.run(
        [sys.executable, *command.split(), "--wheel-dir", str(folder)],
        cwd=source,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("llmscale-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_wheel_holds_every_module_and_data_file(wheel_names: set[str]):
    wanted = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for pattern in ("*.py", *DATA)
        for path in (ROOT / package).rglob(pattern)
        if "__pycache__" not in path.parts
    }
    assert "llmscale_env/py.typed" in wanted
    assert wanted - wheel_names == set()


@pytest.mark.parametrize("name", PROBES)
def test_wheel_holds_data_of_folders_without_python(wheel_names: set[str], name: str):
    assert f"llmscale_env/workload/{name}" in wheel_names


def test_wheel_holds_nothing_else(wheel_names: set[str]):
    tops = {name.split("/")[0] for name in wheel_names}
    metadata = {top for top in tops if re.fullmatch(r"llmscale-[0-9.]+\.dist-info", top)}
    assert len(metadata) == 1
    assert tops - metadata <= set(PACKAGES)
    assert f"{metadata.pop()}/licenses/LICENSE" in wheel_names


def requirement_names(lines: list[str]) -> set[str]:
    names = {re.split(r"[\s;<>=!~\[]", line.strip(), maxsplit=1)[0] for line in lines}
    return {re.sub(r"[-_.]+", "-", name).lower() for name in names if name and name[0] != "#"}


def test_every_dependency_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *[line for lines in extras.values() for line in lines]]
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in constraints if line.strip() and not line.startswith("#")]
    assert [line for line in pins if "==" not in line] == []
    assert [line for line in pins if "+" in line] == []  # a local build that others cannot get
    assert requirement_names(asked) - requirement_names(pins) == set()


def test_version_is_said_once():
    import llmscale_env

    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {llmscale_env.__version__}\n" in citation
    assert f"## [{llmscale_env.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
