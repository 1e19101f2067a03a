"""What is built from the project holds everything that it needs, and nothing else."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmscale_env._cli import EXTRA_OF
from tests.installed import MOST_WHEEL_BYTES

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
    "*.html",
    "py.typed",
    "README.md",
    "SHA256SUMS",
)
# Data files in folders without Python, easily forgotten; the second folder has a name no package can have.
PROBES = (
    *("probe_data/" + pattern.replace("*", "probe") for pattern in DATA),
    *("probe-2.5-data/" + pattern.replace("*", "probe") for pattern in DATA if "*" in pattern),
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, with the probes."""
    source = tmp_path_factory.mktemp("wheel") / "source"
    source.mkdir()
    for name in (*PACKAGES, "tests"):
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=ignore)
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "constraints.txt"):
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, source)
    for name in PROBES:
        path = source / "llmscale_env" / "workload" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    return source


def python(*words: str, folder: Path) -> None:
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def build_wheel(project: Path, folder: Path) -> Path:
    """A wheel of a folder or a source distribution, built offline."""
    command = "--no-deps --no-build-isolation --no-index --disable-pip-version-check --wheel-dir"
    python("-m", "pip", "wheel", str(project), *command.split(), str(folder), folder=folder)
    (wheel,) = folder.glob("llmscale-*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    return build_wheel(source, source.parent)


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> set[str]:
    return names_in(wheel)


def recommended(card: Path) -> bool:
    return yaml.safe_load(card.read_text()).get("recommended") is True


def left_out(path: Path) -> bool:
    """Seeds of trained policies that no environment recommends, and logs of measurements."""
    card = path.parent / "card.yaml"
    is_seed = path.parent.parent.name == "pretrained" and not recommended(card)
    return is_seed or path.parent.name == "vllm_h200"


def test_wheel_holds_every_module_and_data_file(wheel_names: set[str]):
    paths = {
        path
        for package in PACKAGES
        for pattern in ("*.py", *DATA)
        for path in (ROOT / package).rglob(pattern)
        if "__pycache__" not in path.parts
    }
    wanted = {path.relative_to(ROOT).as_posix() for path in paths if not left_out(path)}
    unwanted = {path.relative_to(ROOT).as_posix() for path in paths if left_out(path)}
    assert {f"{package}/py.typed" for package in PACKAGES} <= wanted
    assert "llmscale_env/workload/data/README.md" in wanted  # licences of the data
    assert wanted - wheel_names == set()
    assert unwanted & wheel_names == set()


def test_wheel_has_one_trained_policy_per_environment(wheel_names: set[str]):
    cards = list((ROOT / "agents" / "pretrained").glob("*/card.yaml"))
    environments = {yaml.safe_load(card.read_text())["environment"] for card in cards}
    models = [name for name in wheel_names if name.endswith("/model.safetensors")]
    assert len(models) == len(environments)


def test_wheel_is_small(wheel: Path):
    assert wheel.stat().st_size < MOST_WHEEL_BYTES


@pytest.mark.slow
def test_source_distribution_builds_the_same_wheel(
    source: Path, wheel_names: set[str], tmp_path: Path
):
    build = f"import setuptools.build_meta as b; b.build_sdist({str(tmp_path)!r})"
    python("-c", build, folder=source)
    (made,) = tmp_path.glob("llmscale-*.tar.gz")
    assert names_in(build_wheel(made, tmp_path)) == wheel_names
    with tarfile.open(made) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"constraints.txt", "tests/test_packaging.py", "agents/pretrained/SHA256SUMS"} <= names
    pretrained = (ROOT / "agents" / "pretrained").glob("*/model.safetensors")
    assert {path.relative_to(ROOT).as_posix() for path in pretrained} <= names


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
    assert requirement_names(asked) - requirement_names(pins) == {"llmscale"}  # extras of extras


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


DISTRIBUTION = {"sb3_contrib": "sb3-contrib", "yaml": "pyyaml"}
"""Of modules whose names a change of `_` to `-` does not give."""


def distribution(module: str) -> str:
    return DISTRIBUTION.get(module, module.replace("_", "-").lower())


@pytest.mark.parametrize("module, extra", sorted(EXTRA_OF.items()))
def test_extra_that_is_named_brings_the_module(module: str, extra: str):
    lines = project()["optional-dependencies"][extra]
    assert distribution(module) in requirement_names(lines)


def imported(package: str) -> set[str]:
    """Top names of all absolute imports of a package, also of those inside functions."""
    found = set()
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found.add(node.module.partition(".")[0])
    return found


BESIDE = {"llvmlite", "PIL", "sqlalchemy"}  # come with Numba, Matplotlib and Optuna
ASKED_ELSEWHERE = {"onnx", "onnxruntime", "onnxscript", "tensordict", "torchrl"}
"""Modules of extras whose commands say themselves what is missing."""


@pytest.mark.parametrize("package", PACKAGES)
def test_every_import_is_of_the_core_or_of_a_named_extra(package: str):
    core = requirement_names(project()["dependencies"])
    others = imported(package) - set(sys.stdlib_module_names) - {*PACKAGES, "tests", "__main__"}
    unknown = others - set(EXTRA_OF) - BESIDE - ASKED_ELSEWHERE
    assert {name for name in unknown if distribution(name) not in core} == set()


def test_setup_installs_every_extra():
    makefile = (ROOT / "Makefile").read_text()
    (said,) = re.findall(r"^EXTRAS := (.+)$", makefile, flags=re.MULTILINE)
    assert set(said.split(",")) == set(project()["optional-dependencies"])


def test_extras_are_in_the_manual():
    manual = (ROOT / "docs" / "start" / "install.md").read_text()
    rows = "\n".join(line for line in manual.splitlines() if line.startswith("| `"))
    assert {name for name in project()["optional-dependencies"] if f"`{name}`" not in rows} == set()


def test_script_exists():
    (script,) = project()["scripts"].values()
    module, _, name = script.partition(":")
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_citation_has_what_its_format_requires():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "title", "message", "authors", "version", "license"} <= set(citation)
    assert citation["license"] == project()["license"]
    assert citation["authors"] == project()["authors"]


@pytest.mark.parametrize(
    "form", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem
)
def test_issue_form_is_one_that_github_takes(form: Path):
    found = yaml.safe_load(form.read_text())
    if form.stem == "config":
        assert isinstance(found["blank_issues_enabled"], bool)
        return
    assert {"name", "description", "body"} <= set(found)
    ids = [part["id"] for part in found["body"]]
    assert len(ids) == len(set(ids))
    for part in found["body"]:
        assert part["type"] in {"textarea", "input", "dropdown", "checkboxes", "markdown"}
        assert part["attributes"]["label"]
        # A bare yes or no is no string in YAML, and GitHub refuses the form.
        assert all(isinstance(option, str) for option in part["attributes"].get("options", []))


def test_version_is_said_once():
    import llmscale_env

    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {llmscale_env.__version__}\n" in citation
    assert f"## [{llmscale_env.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
