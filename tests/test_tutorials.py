"""The tutorials: notebooks that run, and that hold what they printed and drew."""

from __future__ import annotations

import base64
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from experiments import tutorials, words
from experiments.tutorials import FOLDER, ROOT, CellRaised, execute, read, texts
from tests.test_docs import anchors

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
INDEX = (FOLDER / "index.md").read_text("utf-8")
MOST_BYTES = 200_000
PNG = b"\x89PNG"


def ids(path: Path) -> str:
    return path.stem


def outputs(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """All outputs of a notebook, in order."""
    return [output for cell in notebook["cells"] for output in cell.get("outputs", ())]


def notebook_of(*cells: str) -> dict[str, Any]:
    """A notebook of code cells."""
    made = [
        {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": [c]}
        for c in cells
    ]
    return {"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def written(folder: Path, name: str, *cells: str) -> Path:
    path = folder / name
    path.write_text(json.dumps(notebook_of(*cells)))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=ids)
def test_every_cell_of_a_tutorial_runs(path: Path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("stable_baselines3")
    execute(texts(read(path), "code"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=ids)
def test_a_tutorial_begins_with_its_title_and_what_one_learns(path: Path):
    cells = read(path)["cells"]
    title, _, paragraph = "".join(cells[0]["source"]).partition("\n")
    assert title.startswith("# ")
    assert paragraph.strip().startswith("You learn ")
    assert f"[{title[2:]}]({path.name})" in INDEX
    kinds = [cell["cell_type"] for cell in cells]
    assert 4 <= kinds.count("code") <= 8
    # Every code cell comes after a sentence about it.
    assert all("markdown" in pair for pair in pairwise(kinds))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=ids)
def test_a_tutorial_holds_its_outputs(path: Path):
    notebook = read(path)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    kinds = {kind for output in outputs(notebook) for kind in output.get("data", ())}
    assert kinds & {"image/png", "text/html"}
    assert not [output for output in outputs(notebook) if output["output_type"] == "error"]
    assert path.stat().st_size < MOST_BYTES


@pytest.mark.parametrize("path", NOTEBOOKS, ids=ids)
def test_a_tutorial_names_no_place_of_a_machine(path: Path):
    found = [
        word
        for cell in read(path)["cells"]
        for text in (
            "".join(cell["source"]),
            *("".join(o.get("text", ())) for o in cell.get("outputs", ())),
            *(
                "".join(data)
                for o in cell.get("outputs", ())
                for kind, data in o.get("data", {}).items()
                if kind != "image/png"
            ),
        )
        for word in re.findall(r"(?<![\w.:/<])/(?:\w+/)+\w*|[A-Z]:\\\w+|https?://\S+", text)
    ]
    assert found == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=ids)
def test_the_words_of_a_tutorial_keep_the_bounds(path: Path, tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("\n\n".join(texts(read(path), "markdown")))
    said = words.read_page(page)
    assert said.too_long == []
    assert said.mean <= words.MEAN


@pytest.mark.parametrize("path", NOTEBOOKS, ids=ids)
def test_links_of_a_tutorial_lead_somewhere(path: Path):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", "\n".join(texts(read(path), "markdown"))):
        place, _, anchor = target.partition("#")
        to = path.parent / place
        if not to.exists() or (anchor and anchor not in anchors(to)):
            broken.append(target)
    assert broken == []


def test_the_index_names_every_tutorial_and_no_other():
    assert NOTEBOOKS
    assert re.findall(r"\]\(([^)]+\.ipynb)\)", INDEX) == [path.name for path in NOTEBOOKS]


def test_cells_share_names_and_leave_what_they_print_and_are_worth():
    printed, worth, silent = execute(["x = 3\nprint('a')", "x + 1", "x;"])
    assert printed == [{"name": "stdout", "output_type": "stream", "text": ["a\n"]}]
    assert worth[0]["data"] == {"text/plain": ["4"]}
    assert silent == []


def test_figures_and_tables_are_kept():
    pytest.importorskip("matplotlib")
    drawn, table = execute(
        [
            "import matplotlib.pyplot as plt\nplt.plot([1, 2]);",
            "import pandas as pd\npd.DataFrame({'a': [1]})",
        ]
    )
    assert base64.b64decode(drawn[0]["data"]["image/png"]).startswith(PNG)
    assert {"text/html", "text/plain"} == set(table[0]["data"])


def test_a_cell_that_raises_is_named():
    with pytest.raises(CellRaised, match="cell 2, line 2: ZeroDivisionError"):
        execute(["x = 0", "y = 1\ny / x"])
    with pytest.raises(CellRaised, match="cell 1: SyntaxError"):
        execute(["x ="])
    with pytest.raises(CellRaised, match="exit code 3"):
        execute(["import os\nos._exit(3)"])


def test_the_command_stores_outputs_and_leaves_what_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("matplotlib")
    good = written(tmp_path, "1-good.ipynb", "1 + 1")
    bad = written(tmp_path, "2-bad.ipynb", "1 / 0")
    before = good.read_text(), bad.read_text()
    assert tutorials.main([f"folder={tmp_path}", "1", "check=true"]) == 0
    assert good.read_text() == before[0]
    assert tutorials.main([f"folder={tmp_path}"]) == 1
    assert outputs(read(good))[0]["data"] == {"text/plain": ["2"]}
    assert bad.read_text() == before[1]
    assert "2-bad.ipynb: cell 1, line 1: ZeroDivisionError" in capsys.readouterr().err


def test_slips_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a.ipynb").write_text('{"cells": 3}')
    for given in ("nonsense", f"folder={tmp_path / 'none'}", f"folder={tmp_path}", "chekc=true"):
        assert tutorials.main([given]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_folder_is_that_of_the_site():
    assert FOLDER == ROOT / "docs" / "tutorials"
