"""Run the notebooks of docs/tutorials from top to bottom, and store what their cells print and draw.

    python -m experiments.tutorials [NAME ...] [folder=docs/tutorials] [check=false]

NAME is a notebook's, or how it begins (`03`); all of them if left out. A notebook runs in a process and
an empty folder of its own, with the compiled kernels of this installation. `check=true` stores nothing.
Exit code 0 when every cell ran, 1 when one raised (it is named, and its notebook stays as it was), 2 for a
slip, 130 when interrupted.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import linecache
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmscale_env._cli import Slip, complain, flag, needs, parse_options, run_command
from llmscale_env._writing import write_text

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "tutorials"
DPI = 90
"""Of stored pictures: they stay small, and are as wide as the text of a page."""

Notebook = dict[str, Any]
Outputs = list[dict[str, Any]]


class CellRaised(RuntimeError):
    """A cell raised; the message has its number and the last line of the traceback."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 all ran, 1 a cell raised, 2 a slip (named in one line)."""
    return run_command("tutorials", __doc__, argv, _refresh, wordless=True)


def _refresh(words: list[str]) -> int:
    names = [word for word in words if "=" not in word]
    options = parse_options([word for word in words if "=" in word], ("folder", "check"))
    check = flag(options, "check")
    folder = Path(options["folder"]) if "folder" in options else FOLDER
    chosen = choose(names, folder)
    needs("matplotlib")
    code = 0
    for path in chosen:
        begun = time.perf_counter()
        try:
            done = executed(read(path))
        except CellRaised as error:
            complain(f"tutorials: {path.name}: {error}")
            code = 1
            continue
        if not check:
            write(path, done)
        print(f"{path.name}: {time.perf_counter() - begun:.0f} s", flush=True)
    return code


def choose(names: Sequence[str], folder: Path = FOLDER) -> list[Path]:
    """Notebooks of a folder by how their names begin, in order; all of them without names.

    Raises:
        Slip: there are none, or a name fits none.
    """
    there = sorted(folder.glob("*.ipynb")) if folder.is_dir() else []
    if not there:
        raise Slip(f"folder = {str(folder)!r}: has no notebooks")
    for name in names:
        if not any(path.name.startswith(name) for path in there):
            raise Slip(f"{name!r}: no notebook begins so; there are {[p.stem for p in there]}")
    return [p for p in there if not names or p.name.startswith(tuple(names))]


# ---- notebooks ----


def read(path: Path) -> Notebook:
    """A notebook.

    Raises:
        Slip: the file is none.
    """
    try:
        notebook = json.loads(path.read_text("utf-8"))
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Slip(f"{path}: is no notebook (a JSON file with `cells`)") from None
    if any(not isinstance(kind, str) for kind, _ in cells):
        raise Slip(f"{path}: is no notebook (a JSON file with `cells`)")
    return notebook


def write(path: Path, notebook: Notebook) -> None:
    """Write a notebook as Jupyter does."""
    write_text(path, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def texts(notebook: Notebook, kind: str) -> list[str]:
    """The cells of a kind, "code" or "markdown"."""
    return ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == kind]


def executed(notebook: Notebook) -> Notebook:
    """A copy with the outputs that its cells have now.

    Raises:
        CellRaised: one of them raised.
    """
    outputs = execute(texts(notebook, "code"))
    cells = [dict(cell) for cell in notebook["cells"]]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    for number, (cell, found) in enumerate(zip(code, outputs, strict=True), 1):
        cell["execution_count"], cell["outputs"] = number, found
        for output in found:
            if output["output_type"] == "execute_result":
                output["execution_count"] = number
    return {**notebook, "cells": cells}


# ---- running ----


_PLAY = "import sys; from experiments.tutorials import _play; _play(sys.argv[1])"


def execute(cells: Sequence[str]) -> list[Outputs]:
    """Run cells in order, in a process and an empty folder of their own.

    Raises:
        CellRaised: one of them raised.
    """
    with tempfile.TemporaryDirectory() as place:
        answer = Path(place) / "answer.json"
        work = Path(place) / "work"
        work.mkdir()
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(
            [sys.executable, "-c", _PLAY, str(answer)],
            input=json.dumps(list(cells)),
            cwd=work,
            env={**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode or not answer.is_file():
            last = done.stderr.strip().splitlines()[-1:] or ["ended without a word"]
            raise CellRaised(f"exit code {done.returncode}: {last[0]}")
        found: dict[str, Any] = json.loads(answer.read_text("utf-8"))
    if "raised" in found:
        raise CellRaised(found["raised"])
    return found["outputs"]


def _play(answer: str) -> None:
    """Run the cells of standard input in this process, and write outputs or what was raised to a file."""
    cells: list[str] = json.load(sys.stdin)
    import __main__

    names: dict[str, Any] = __main__.__dict__
    outputs = []
    for number, text in enumerate(cells, 1):
        try:
            outputs.append(_run_cell(text, f"<cell {number}>", names))
        except BaseException as error:
            where = [f for f in traceback.extract_tb(error.__traceback__) if "<cell" in f.filename]
            line = f", line {where[-1].lineno}" if where else ""
            raised = {"raised": f"cell {number}{line}: {type(error).__name__}: {error}"}
            write_text(Path(answer), json.dumps(raised))
            return
    write_text(Path(answer), json.dumps({"outputs": outputs}))


def _run_cell(text: str, name: str, names: dict[str, Any]) -> Outputs:
    """Run a cell: what it prints, what its last line is worth, and its open figures."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    tree = ast.parse(text, name)
    last = tree.body[-1] if tree.body else None
    shown = isinstance(last, ast.Expr) and not text.rstrip().endswith(";")
    if shown:
        tree.body.pop()
    value = None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), names)
        if shown:
            assert isinstance(last, ast.Expr)
            value = eval(compile(ast.Expression(last.value), name, "eval"), names)
    outputs: Outputs = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        outputs.append({"name": "stdout", "output_type": "stream", "text": lines})
    if value is not None:
        outputs.append({"data": _shown(value), "metadata": {}, "output_type": "execute_result"})
    return outputs + _figures()


def _shown(value: Any) -> dict[str, list[str]]:
    """A value in the forms that it has."""
    forms = {"text/plain": repr(value)}
    for kind, method in (("text/html", "_repr_html_"), ("text/markdown", "_repr_markdown_")):
        if callable(make := getattr(value, method, None)):
            forms[kind] = make()
    return {kind: text.splitlines(keepends=True) for kind, text in forms.items() if text}


def _figures() -> Outputs:
    """Open figures as pictures; they are closed then, as notebooks do."""
    if "matplotlib.pyplot" not in sys.modules:
        return []
    from matplotlib import pyplot

    outputs: Outputs = []
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        file = io.BytesIO()
        # Without the version of matplotlib, so that a picture changes only if what it shows does.
        figure.savefig(
            file, format="png", dpi=DPI, bbox_inches="tight", metadata={"Software": None}
        )
        picture = base64.b64encode(file.getvalue()).decode()
        plain = [f"<Figure with {len(figure.axes)} axes>"]
        data = {"image/png": picture, "text/plain": plain}
        outputs.append({"data": data, "metadata": {}, "output_type": "display_data"})
    pyplot.close("all")
    return outputs


if __name__ == "__main__":
    sys.exit(main())
