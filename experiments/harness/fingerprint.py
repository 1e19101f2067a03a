"""A number for the code that a result depends on, so that other code never passes for it.

It covers the experiment's module and every module of this project that it imports, directly or not,
read from the sources; the data files that ship with `llmscale_env` and `baselines`; and files beside an
imported module that it names. Comments,
docstrings and layout do not count. Versions of other packages do not either: they stand in the result.
"""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
ROOMS = ("llmscale_env", "baselines", "agents", "experiments")
_DATA = (".yaml", ".json", ".csv", ".gz", ".npz")


def fingerprint(module: str) -> str:
    """Sixteen hex digits for `module` (dotted) and all that it imports of this project."""
    seen: dict[str, str] = {}
    todo = [module]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        digest, imports = _source(name)
        seen[name] = digest
        todo += imports
    text = "\n".join(f"{name} {seen[name]}" for name in sorted(seen) if seen[name])
    return hashlib.sha256(f"{text}\n{_data()}".encode()).hexdigest()[:16]


def _path(name: str) -> Path | None:
    base = ROOT.joinpath(*name.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


@cache
def _source(name: str) -> tuple[str, list[str]]:
    """Digest of a module's code, and what it imports of the project."""
    path = _path(name)
    if path is None:
        return "", []
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(
            node, clean=False
        ):
            node.body = node.body[1:]
    parents = name.split(".")
    found.update(".".join(parents[:k]) for k in range(1, len(parents)))
    mine = sorted(f for f in found if f.split(".")[0] in ROOMS and _path(f) is not None)
    total = hashlib.sha256(ast.dump(tree).encode())
    for file in sorted(_named_files(tree, path.parent)):
        total.update(file.read_bytes())
    return total.hexdigest(), mine


def _named_files(tree: ast.AST, folder: Path) -> set[Path]:
    """Data files in a module's folder that its code names."""
    words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    names = {word for word in words if isinstance(word, str) and word.endswith(_DATA)}
    return {folder / name for name in names if (folder / name).is_file()}


@cache
def _data() -> str:
    total = hashlib.sha256()
    for room in ("llmscale_env", "baselines"):
        for path in sorted((ROOT / room).rglob("*")):
            if path.suffix in _DATA and path.is_file():
                total.update(str(path.relative_to(ROOT)).encode() + b"\0")
                total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
