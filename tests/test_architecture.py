"""The house: imports point down, the top-level import is light, and no file knows this machine."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import printed

ROOT = Path(__file__).resolve().parents[1]

# The rooms from the ground up. A room may import itself and the rooms with a smaller number; two
# rooms with the same number do not know each other.
FLOORS = {
    "llmscale_env._reading": -1,
    "llmscale_env._writing": -1,
    "llmscale_env.cluster": 0,
    "llmscale_env.workload": 0,
    "llmscale_env.scenarios": 1,
    "llmscale_env.sim": 2,
    "llmscale_env.control": 3,
    "llmscale_env.envs": 4,
    "llmscale_env": 5,  # the entry points: __init__, calibrate, cards, traces, wrappers
    "baselines": 6,
    "agents": 7,
    "experiments": 8,
}
ENTRY_POINTS = {
    "llmscale_env",
    "llmscale_env._cli",
    "llmscale_env._interrupt",
    "llmscale_env._sealed",
    "llmscale_env._spread",
    "llmscale_env._spread.calls",
    "llmscale_env._spread.on_ray",
    "llmscale_env._spread.processes",
    "llmscale_env._spread.versions",
    "llmscale_env.calibrate",
    "llmscale_env.calibrate.__main__",
    "llmscale_env.calibrate.fit",
    "llmscale_env.calibrate.observed",
    "llmscale_env.calibrate.replay",
    "llmscale_env.calibrate.client_report",
    "llmscale_env.cards",
    "llmscale_env.traces",
    "llmscale_env.wrappers",
}
PACKAGES = ("llmscale_env", "baselines", "agents", "experiments")


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str | None:
    """The room of a module of the project; None for other people's modules."""
    parts = module.split(".")
    if parts[0] not in PACKAGES:
        return None
    if parts[0] != "llmscale_env" or len(parts) == 1:
        return parts[0]
    room = ".".join(parts[:2])
    return room if room in FLOORS else "llmscale_env"


def imported_modules(source: str, module: str, is_package: bool) -> list[tuple[int, str]]:
    """(line, absolute module name) of every import of a source, those inside functions included.

    `from package import name` is listed as `package.name`, since `name` may be a module.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if is_package else module.split(".")[:-1]
                package = package[: len(package) - (node.level - 1)]
                base = ".".join([*package, *([base] if base else [])])
            found += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.Call) and node.args:
            # importlib.import_module("...") and __import__("...") with the name written out
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            argument = node.args[0]
            if (
                name in {"import_module", "__import__"}
                and isinstance(argument, ast.Constant)
                and isinstance(argument.value, str)
            ):
                found.append((node.lineno, argument.value))
    return found


def upward_imports(root: Path) -> list[str]:
    """Every import below `root` that does not point down, as a sentence."""
    wrong = []
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            module = module_name(path, root)
            room = room_of(module)
            assert room is not None
            where = path.relative_to(root).as_posix()
            if room == "llmscale_env" and module not in ENTRY_POINTS:
                wrong.append(f"{where}: not in a room; the rooms are {', '.join(FLOORS)}")
            text = path.read_text(encoding="utf-8")
            for line, target in imported_modules(text, module, path.name == "__init__.py"):
                target_room = room_of(target)
                if target_room is None or target_room == room:
                    continue
                if target == "llmscale_env.__version__":
                    continue  # a string, there before anything else is imported
                if FLOORS[target_room] >= FLOORS[room]:
                    wrong.append(f"{where}:{line}: {room} must not import {target}")
    return wrong


def write_tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_imports_point_down():
    assert upward_imports(ROOT) == []


@pytest.mark.parametrize(
    "name,source",
    [
        ("llmscale_env/cluster/a.py", "import llmscale_env.workload.requests"),
        ("llmscale_env/workload/a.py", "from llmscale_env import cluster"),
        ("llmscale_env/sim/a.py", "from ..control import view"),
        ("llmscale_env/sim/fast/a.py", "from ...envs.mixed_slo import MixedSLOEnv"),
        ("llmscale_env/sim/__init__.py", "from .. import control"),
        ("llmscale_env/envs/a.py", "def f():\n    from baselines import chiron"),
        ("llmscale_env/envs/a.py", "import importlib\nimportlib.import_module('agents.train')"),
        ("llmscale_env/envs/a.py", "from llmscale_env import load_scenario"),
        ("llmscale_env/traces.py", "import experiments"),
        ("llmscale_env/elsewhere.py", ""),
        ("baselines/a.py", "if True:\n    import agents.evaluate"),
        ("agents/a.py", "from experiments.bench import run"),
    ],
)
def test_an_import_that_points_up_is_found(tmp_path: Path, name: str, source: str):
    write_tree(tmp_path, {name: source})
    assert len(upward_imports(tmp_path)) == 1


def test_imports_that_point_down_are_allowed(tmp_path: Path):
    write_tree(
        tmp_path,
        {
            "llmscale_env/__init__.py": "from llmscale_env.sim import spec",
            "llmscale_env/calibrate/__init__.py": "from ..cluster import cards",
            "llmscale_env/cluster/a.py": "import numpy\nfrom . import b",
            "llmscale_env/sim/a.py": "from ..scenarios.load import load_scenario",
            "llmscale_env/control/a.py": "from llmscale_env import __version__",
            "llmscale_env/sim/fast/a.py": "from ..spec import NEVER",
            "baselines/a.py": "import llmscale_env\nfrom baselines import b",
            "agents/a.py": "def f():\n    import baselines.chiron",
            "experiments/a.py": "from agents import evaluate",
        },
    )
    assert upward_imports(tmp_path) == []


def test_top_level_import_is_light():
    """What takes long to import is imported where it is used: the package must load in 0.5 s."""
    heavy = "agents baselines experiments matplotlib numba pandas pulp ray scipy simpy"
    heavy += " stable_baselines3 statsmodels tensorboard torch"
    code = f"import sys, llmscale_env; print(*[m for m in {heavy.split()} if m in sys.modules])"
    assert printed(code).split() == []


def test_public_names_exist():
    import llmscale_env

    for name in llmscale_env.__all__:
        assert getattr(llmscale_env, name) is not None
    assert set(llmscale_env.__all__) <= set(dir(llmscale_env))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = llmscale_env.nonsense


def test_registration_can_be_repeated():
    import gymnasium

    import llmscale_env

    before = dict(gymnasium.registry)
    llmscale_env.register_environments()  # a warning of Gymnasium's would fail this test
    assert gymnasium.registry == before
    for entry in llmscale_env.ENVIRONMENTS:
        spec = gymnasium.spec(entry.id)
        assert spec.entry_point == entry.entry_point
        assert spec.vector_entry_point == entry.vector_entry_point


def project_files(root: Path) -> list[Path]:
    """The files of the project: what git tracks, or would track."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return [path for name in done.stdout.split("\0") if name and (path := root / name).is_file()]


def machine_paths(text: str) -> list[str]:
    """Absolute paths that exist on one machine only: home folders, and the folder of a checkout."""
    folders = r"/(?:home|Users)/\w[\w.-]*/|/root/|/" + r"(?:work|farm)/|/tmp/bash_jobs"
    found = re.findall(rf"(?<![\w.~$}}/-])(?:{folders})[\w./-]*", text)
    return [*found, *re.findall(r"[A-Z]:\\Users\\\w+", text)]


def test_no_file_knows_this_machine():
    found = []
    for path in project_files(ROOT):
        if path == Path(__file__).resolve():
            continue
        content = path.read_bytes()
        if b"\0" in content[:8192]:
            continue  # binary
        text = content.decode("utf-8", errors="replace")
        found += [f"{path.relative_to(ROOT)}: {where}" for where in machine_paths(text)]
        if str(ROOT) in text and len(ROOT.parts) > 2:
            found.append(f"{path.relative_to(ROOT)}: {ROOT}")
    assert found == []


@pytest.mark.parametrize("text", ["see /home/ann/llmscale/a.py", "'/root/x'", r"C:\Users\ann"])
def test_a_machine_path_is_found(text: str):
    assert machine_paths(text)


@pytest.mark.parametrize("text", ["https://host.org/home/ann/", "docs/work/a", "$ROOT/work/x"])
def test_other_paths_are_no_machine_paths(text: str):
    assert machine_paths(text) == []


MOST_FILES = 20

# The rooms of both engines from the ground up; what lies in none of them is above all.
ENGINE_ROOMS = ("state", "serving", "weights", "fleet", "regions")


def upward_in_engines(root: Path) -> list[str]:
    """Imports inside `sim` that do not point down, as sentences.

    An engine's room may import the rooms before it; `sim.spec` imports nothing of `sim` besides itself;
    the engines do not know each other, and nobody but `sim.engine` knows an engine.
    """

    def height(module: str) -> tuple[str, int]:
        parts = module.split(".")[2:]
        if parts[:1] not in (["fast"], ["reference"]):
            return (parts[0] if parts else "", 0)
        room = parts[1] if len(parts) > 1 else ""
        return parts[0], ENGINE_ROOMS.index(room) if room in ENGINE_ROOMS else len(ENGINE_ROOMS)

    wrong = []
    sim = root / "llmscale_env" / "sim"
    for path in sorted(sim.rglob("*.py")):
        module = module_name(path, root)
        if module == "llmscale_env.sim.engine":
            continue
        mine, my_height = height(module)
        text, where = path.read_text(encoding="utf-8"), path.relative_to(root).as_posix()
        for line, target in imported_modules(text, module, path.name == "__init__.py"):
            if not target.startswith("llmscale_env.sim."):
                continue
            theirs, their_height = height(target)
            up = theirs == mine and their_height > my_height
            if mine == "spec" and theirs != "spec":
                up = True
            if theirs in ("fast", "reference") and theirs != mine:
                up = True
            if up and not _for_types_only(text, line):
                wrong.append(f"{where}:{line}: must not import {target}")
    return wrong


def _for_types_only(source: str, line: int) -> bool:
    """Whether an import stands below `if TYPE_CHECKING:`, where it names what a part belongs to."""
    return any(
        isinstance(node, ast.If)
        and ast.unparse(node.test) == "TYPE_CHECKING"
        and node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0)
        for node in ast.walk(ast.parse(source))
    )


def test_imports_inside_the_simulator_point_down():
    assert upward_in_engines(ROOT) == []


@pytest.mark.parametrize(
    "name,source",
    [
        ("fast/state/a.py", "from llmscale_env.sim.fast.serving import timing"),
        ("fast/serving/a.py", "from llmscale_env.sim.fast.advance import advance_many"),
        ("reference/weights/a.py", "from ..fleet import lifecycle"),
        ("reference/a.py", "from llmscale_env.sim.fast.state import lists"),
        ("spec/a.py", "from llmscale_env.sim.observed import RESULT_DTYPE"),
        ("metrics.py", "from llmscale_env.sim.fast import FastEngine"),
    ],
)
def test_an_import_that_points_up_in_the_simulator_is_found(tmp_path: Path, name: str, source: str):
    write_tree(tmp_path, {f"llmscale_env/sim/{name}": source})
    assert len(upward_in_engines(tmp_path)) == 1


def test_no_folder_is_crowded():
    """A reader sees a folder's files at a glance."""
    crowded = {
        folder.relative_to(ROOT).as_posix(): count
        for package in ("llmscale_env",)
        for folder in (ROOT / package).rglob("*")
        if folder.is_dir() and (count := len(list(folder.glob("*.py")))) > MOST_FILES
    }
    assert crowded == {}


ENGINES = ("llmscale_env.sim.fast", "llmscale_env.sim.reference")
OUTSIDE = ("llmscale_env/control", "llmscale_env/envs", "baselines", "agents", "experiments")
INSIDES = {"states", "handles", "engines"}
"""What `EngineBatch` and `ReferenceBatch` have beyond `Engine`; nothing outside of `sim` has such a name."""

MEASURE_AN_ENGINE = {
    f"experiments/bench_{name}.py" for name in ("engines", "env", "phases", "placement")
}
"""The benchmarks that time an engine's parts, which have to be taken out of it first."""

PRIVATE_OF_OTHERS = {"agents/learning/checkpoint.py", "agents/models/algorithms.py"}
"""They restore what Stable-Baselines3 keeps in private, and know no engine."""

ITSELF = ("self", "cls", "super()", "other")
"""What is of a class's own kind: `other` is another one of it in `__eq__` and the like."""


def border_crossings(root: Path) -> list[str]:
    """Where anything outside of `sim` reaches past `sim/engine.py` into an engine, as sentences.

    An engine is known by what is asked of it, under whatever name it goes: its arrays, and what is private
    of anything but an object of the same class.
    """
    wrong = []
    for path in sorted(p for folder in OUTSIDE for p in (root / folder).rglob("*.py")):
        text, where = path.read_text(encoding="utf-8"), path.relative_to(root).as_posix()
        module = module_name(path, root)
        for line, target in imported_modules(text, module, path.name == "__init__.py"):
            if target.startswith(ENGINES):
                wrong.append(f"{where}:{line}: imports {target}")
        for node in ast.walk(ast.parse(text)):
            owner, names = _asked_of(node)
            foreign = owner not in ITSELF and where not in PRIVATE_OF_OTHERS
            for name in names:
                private = re.fullmatch(r"_\w*[^_]", name) and name != "_replace"  # a NamedTuple's
                if name in INSIDES or (foreign and private):
                    wrong.append(f"{where}:{node.lineno}: reads {ast.unparse(node)}")
    return wrong


def _asked_of(node: Any) -> tuple[str, list[str]]:
    """Whose attributes a node names, and which; those of `getattr` and the like if they are written out."""
    if isinstance(node, ast.Attribute):
        return ast.unparse(node.value), [node.attr]
    if not isinstance(node, ast.Call):
        return "", []
    function = ast.unparse(node.func).rpartition(".")[2]
    if function not in ("getattr", "setattr", "attrgetter"):
        return "", []
    written = [a.value for a in node.args if isinstance(a, ast.Constant)]
    return ast.unparse(node.args[0]), [name for name in written if isinstance(name, str)]


def test_only_the_simulator_knows_the_inside_of_an_engine():
    """But for the benchmarks of the list, each of which has to."""
    crossings = border_crossings(ROOT)
    assert {sentence.partition(":")[0] for sentence in crossings} == MEASURE_AN_ENGINE, crossings


@pytest.mark.parametrize(
    "name,source",
    [
        ("llmscale_env/control/a.py", "from llmscale_env.sim.fast import EngineBatch"),
        ("llmscale_env/envs/a.py", "def f():\n    import llmscale_env.sim.reference"),
        ("experiments/a.py", "from llmscale_env.sim import fast"),
        ("baselines/a.py", "def f(sim):\n    return sim.engine.states.inst"),
        ("baselines/a.py", "def f(sim):\n    one = sim.engine\n    return one.states"),
        ("agents/a.py", "def f(engine):\n    return getattr(engine, 'states')"),
        ("agents/a.py", "def f(engine):\n    return attrgetter('states')(engine)"),
        ("llmscale_env/control/a.py", "class A:\n    def f(self):\n        self._engine.handles"),
        ("llmscale_env/envs/a.py", "def f(engine):\n    return engine._tables"),
        ("llmscale_env/envs/a.py", "class A:\n    def f(self):\n        self.sim.engine._tables"),
        ("experiments/qlm/a.py", "def f(engine):\n    return engine.engines[0]"),
    ],
)
def test_a_look_into_an_engine_is_found(tmp_path: Path, name: str, source: str):
    write_tree(tmp_path, {name: source})
    assert len(border_crossings(tmp_path)) == 1


def test_what_is_no_look_into_an_engine(tmp_path: Path):
    own = "class A:\n    def f(self):\n        return self._engine.results(0), self.__class__.__name__"
    write_tree(tmp_path, {"experiments/a.py": f"{own}\n\nx = getattr(A(), 'f')"})
    assert border_crossings(tmp_path) == []


def test_the_page_states_the_sizes_of_records():
    from llmscale_env.sim.fast.state.records import INST, REQ

    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert f"of instances and requests are {INST.itemsize} and {REQ.itemsize} bytes" in page
