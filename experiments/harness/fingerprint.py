"""Numbers for the code that a result depends on, so that other code never passes for it.

`fingerprint(module)` covers a module and every module of this project that it imports, directly or not,
read from the sources; the data files that ship with `llmscale_env` and `baselines`; and files beside an
imported module that it names. `fingerprint(module, "run")` covers only what that function reaches: of
the modules of `experiments` the definitions that it uses, directly or not, of the other rooms whole
modules. So a sentence of a claim or the colour of a line changes no run. Comments, docstrings and layout
do not count. Versions of other packages do not either: they stand in the result.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
ROOMS = ("llmscale_env", "baselines", "agents", "experiments")
_DATA = (".yaml", ".json", ".csv", ".gz", ".npz")
_PRUNED = "experiments"

_Piece = tuple[str, str | None]
"""A module, or what defines one of its names."""
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def fingerprint(module: str, function: str | None = None) -> str:
    """Sixteen hex digits for `module` (dotted), or for one of its functions, and all that is behind it.

    Raises:
        LookupError: the module, or the function in it, does not exist.
    """
    source = _source(module)
    if source is None or (function is not None and function not in source.names):
        raise LookupError(f"no {function or 'code'} in {module}")
    seen: dict[_Piece, str] = {}
    todo: list[_Piece] = [(module, function)]
    while todo:
        name, what = todo.pop()
        if (name, what) in seen or (source := _source(name)) is None:
            continue
        seen[name, what], behind = source.piece(what)
        todo += behind
    text = "\n".join(f"{name} {what} {seen[name, what]}" for name, what in sorted(seen, key=str))
    return hashlib.sha256(f"{text}\n{_data()}".encode()).hexdigest()[:16]


_ALWAYS = ""
"""Name of the statements at the top of a module that define nothing: they run whatever is used."""


@dataclass(frozen=True)
class _Source:
    """A module's top-level statements, without docstrings, in all and by the name that they define."""

    name: str
    folder: Path
    statements: tuple[ast.stmt, ...]
    names: dict[str, tuple[ast.stmt, ...]]
    known: dict[str | None, tuple[str, tuple[_Piece, ...]]] = field(default_factory=dict)

    def piece(self, what: str | None) -> tuple[str, tuple[_Piece, ...]]:
        """(digest of what defines a name, or of all for None; what that leads to)."""
        if what not in self.known:
            statements = self.statements if what is None else self.names.get(what, ())
            behind: list[_Piece] = [(parent, None) for parent in _parents(self.name)]
            behind += _imported(statements, prune=what is not None)
            if what is not None:
                behind.append((self.name, _ALWAYS))
            if what:
                behind += [(self.name, used) for used in _used(statements) if used in self.names]
            self.known[what] = self._digest(statements), tuple(dict.fromkeys(behind))
        return self.known[what]

    def _digest(self, statements: Iterable[ast.stmt]) -> str:
        """Of these statements, and of the data files in the module's folder that they name."""
        total = hashlib.sha256()
        files: set[Path] = set()
        for statement in statements:
            total.update(ast.dump(statement).encode())
            for node in ast.walk(statement):
                if isinstance(node, ast.Constant) and str(node.value).endswith(_DATA):
                    files.add(self.folder / str(node.value))
        for file in sorted(files):
            if file.is_file():
                total.update(file.read_bytes())
        return total.hexdigest()


def _path(name: str) -> Path | None:
    base = ROOT.joinpath(*name.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


@cache
def _source(name: str) -> _Source | None:
    path = _path(name)
    if path is None:
        return None
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, _Definition)):
            node.body = [statement for statement in node.body if not _is_text(statement)]
    names: dict[str, tuple[ast.stmt, ...]] = {_ALWAYS: ()}
    for statement in tree.body:
        for defined, part in _defined(statement):
            names[defined] = (*names.get(defined, ()), part)
    return _Source(name, path.parent, tuple(tree.body), names)


def _is_text(statement: ast.stmt) -> bool:
    """A docstring: of a module, a definition, or a constant above it."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _defined(statement: ast.stmt) -> Iterator[tuple[str, ast.stmt]]:
    """Names that a top-level statement binds, each with the part of it that does so."""
    if isinstance(statement, _Definition):
        yield statement.name, statement
    elif isinstance(statement, ast.ImportFrom):
        for alias in statement.names:
            one = ast.ImportFrom(statement.module, [alias], statement.level)
            yield alias.asname or alias.name, one
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0], ast.Import([alias])
    elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id, statement
    else:
        yield _ALWAYS, statement


def _used(statements: Iterable[ast.stmt]) -> Iterator[str]:
    """Names that statements refer to."""
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name):
                yield node.id


def _imported(statements: Iterable[ast.stmt], *, prune: bool) -> Iterator[_Piece]:
    """What statements import of the project: modules, or with `prune` names of the pruned room."""
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Import):
                yield from ((alias.name, None) for alias in node.names if _ours(alias.name))
            elif isinstance(node, ast.ImportFrom) and node.module and _ours(node.module):
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    if _path(inner) is not None:
                        yield (inner, None)
                    elif prune and node.module.split(".")[0] == _PRUNED:
                        yield (node.module, alias.name)
                    else:
                        yield (node.module, None)


def _ours(name: str) -> bool:
    return name.split(".")[0] in ROOMS


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:k]) for k in range(1, len(parts))]


@cache
def _data() -> str:
    total = hashlib.sha256()
    for room in ("llmscale_env", "baselines"):
        for path in sorted((ROOT / room).rglob("*")):
            if path.suffix in _DATA and path.is_file():
                total.update(str(path.relative_to(ROOT)).encode() + b"\0")
                total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
