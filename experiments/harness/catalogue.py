"""Which experiments there are: the modules in the folders of the papers."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from experiments.harness.claims import Claim
from experiments.harness.parameters import Parameters
from experiments.harness.picture import Published
from llmscale_env._cli import Slip, closest

OURS = "learned"
"""Our own study, whose claims are what we set out to show."""
PAPERS = {
    "chiron": "Chiron (Patke et al., 2025)",
    "qlm": "QLM (Patke et al., 2024)",
    "aladdin": "Aladdin (Nie et al., 2024)",
    "blitzscale": "BlitzScale (Zhang et al., 2024)",
    "sageserve": "SageServe (Jaiswal et al., 2025)",
    OURS: "Planning and learning (ours)",
}
"""Folders of `experiments/` that hold experiments, and the papers whose figures they are."""

SCALES = ("quick", "paper")
_NEEDED = ("FIGURE", "PARAMETERS", "cases", "run", "plot", "claims")


@dataclass(frozen=True)
class Entry:
    """An experiment that has not been imported.

    Attributes:
        name: as in `python -m experiments.run NAME`.
        paper: key of `PAPERS`.
        module: dotted name.
        path: of its file.
        title: first line of its docstring.
        text: the rest of the docstring.
    """

    name: str
    paper: str
    module: str
    path: Path
    title: str
    text: str


@dataclass(frozen=True)
class Experiment:
    """An imported experiment; the attributes are those of its module (see `experiments.harness`)."""

    entry: Entry
    figure: str
    parameters: Mapping[str, Parameters]
    cases: Callable[[Any], Sequence[Mapping[str, Any]]]
    run: Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]]]
    plot: Callable[[Any, Any], Any]
    claims: Callable[[Any, Any], Sequence[Claim]]
    series: tuple[str, ...] = ()
    tables: Callable[[Any, Any], Mapping[str, Sequence[Mapping[str, Any]]]] | None = None
    published: tuple[Published, ...] = ()
    excerpt: Callable[[Any, Any], Any] | None = None
    clocks: tuple[str, ...] = ()

    def settings(self, scale: str, changes: Mapping[str, str]) -> Parameters:
        """Parameters of a scale with some changed, given as text (lists with commas).

        Raises:
            Slip: an unknown parameter, or a value that it may not have.
        """
        start = self.parameters[scale]
        values = start.model_dump()
        for key, text in changes.items():
            if key not in values:
                raise Slip(f"{self.entry.name} has no parameter {key!r}{closest(key, values)}")
            parts = [part for part in text.split(",") if part]
            values[key] = parts if isinstance(values[key], (tuple, list)) else text
        try:
            return type(start).model_validate(values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            message = first["msg"].removeprefix("Value error, ")
            if not where:  # fields that do not go together, named by the text itself
                raise Slip(message) from None
            raise Slip(f"{where} = {first['input']!r}: {message}") from None


@cache
def entries() -> tuple[Entry, ...]:
    """All experiments, by paper and name."""
    home = Path(__file__).parent.parent
    found = []
    for paper in PAPERS:
        for path in sorted((home / paper).glob("*.py")):
            kind, _, words = path.stem.partition("_")
            if kind == "study":
                kind = words.partition("_")[0]
            elif not kind.startswith(("fig", "table")):
                continue
            tree = ast.parse(path.read_text(encoding="utf-8"))
            title, _, text = (ast.get_docstring(tree) or "").partition("\n")
            module = f"experiments.{paper}.{path.stem}"
            name = _own_name(tree) or f"{paper}-{kind}"
            found.append(Entry(name, paper, module, path, title, text.strip()))
    return tuple(found)


def _own_name(tree: ast.Module) -> str | None:
    """The constant `NAME` of a module, without importing it."""
    for statement in tree.body:
        if (
            isinstance(statement, ast.Assign)
            and isinstance(statement.targets[0], ast.Name)
            and statement.targets[0].id == "NAME"
            and isinstance(statement.value, ast.Constant)
        ):
            return str(statement.value.value)
    return None


def matching(words: Sequence[str]) -> list[Entry]:
    """Experiments by name; a paper's name, or "all", stands for all of its.

    Raises:
        Slip: an unknown name.
    """
    chosen: dict[str, Entry] = {}
    known = {entry.name: entry for entry in entries()}
    for word in words:
        mine = [e for e in entries() if word in ("all", e.paper, e.name)]
        if not mine and (whole := _part_of(word)):
            raise Slip(f"{word} is part of {whole.name}")
        if not mine:
            raise Slip(f"unknown experiment {word!r}{closest(word, [*known, *PAPERS, 'all'])}")
        chosen.update((entry.name, entry) for entry in mine)
    return list(chosen.values())


def _part_of(word: str) -> Entry | None:
    """The experiment that shows a figure together with others, as its `FIGURE` says."""
    paper, _, number = word.partition("-fig")
    for entry in entries():
        figure = re.search(
            r'^FIGURE = "(.*)"', entry.path.read_text(encoding="utf-8"), re.MULTILINE
        )
        if entry.paper == paper and figure and number in re.findall(r"\d+", figure[1]):
            return entry
    return None


def load(entry: Entry) -> Experiment:
    """Import an experiment.

    Raises:
        TypeError: its module lacks something of what `experiments.harness` asks for, or its `SERIES` is not a
            tuple of names.
    """
    module = importlib.import_module(entry.module)
    missing = [name for name in _NEEDED if not hasattr(module, name)]
    if missing:
        raise TypeError(f"{entry.module} lacks {', '.join(missing)}")
    if set(module.PARAMETERS) != set(SCALES):
        raise TypeError(f"{entry.module}.PARAMETERS must have the keys {list(SCALES)}")
    series = getattr(module, "SERIES", ())
    if not isinstance(series, tuple) or not all(isinstance(kind, str) for kind in series):
        raise TypeError(f"{entry.module}.SERIES = {series!r}: must be a tuple of names")
    return Experiment(
        entry,
        module.FIGURE,
        module.PARAMETERS,
        module.cases,
        module.run,
        module.plot,
        module.claims,
        series,
        getattr(module, "tables", None),
        tuple(getattr(module, "PAPER_POINTS", ())),
        getattr(module, "excerpt", None),
        tuple(getattr(module, "CLOCKS", ())),
    )
