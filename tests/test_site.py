"""The site of the documentation: its nav, the pages that are made for it, and that it needs no network.

`make docs` builds it and checks every link; nothing is built here.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import yaml

import llmscale_env
from experiments import words
from llmscale_env.scenarios import Scenario
from tests.bad_input import COMMANDS
from tests.test_docs import ROOT

DOCS = ROOT / "docs"
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
FOLDERS = ("tutorials/", "commands/")


def places(nav: Any) -> Iterator[str]:
    """Pages and folders of a nav, in order."""
    if isinstance(nav, str):
        yield nav
    else:
        for each in nav.values() if isinstance(nav, dict) else nav:
            yield from places(each)


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_nav_names_every_page_once():
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    named = [p for p in places(CONFIG["nav"]) if (DOCS / p).is_file()]
    assert sorted(named) == sorted(page for page in pages if not page.startswith(FOLDERS))
    assert set(FOLDERS) <= set(places(CONFIG["nav"]))


def test_what_the_nav_names_besides_is_made(hooks: ModuleType):
    made = {*hooks.SHOWN.values(), *FOLDERS}
    assert {p for p in places(CONFIG["nav"]) if not (DOCS / p).is_file()} <= made
    assert all((ROOT / source).is_file() for source in hooks.SHOWN)


def test_a_folder_of_the_nav_is_its_pages(hooks: ModuleType):
    named = list(places(hooks.expanded(CONFIG["nav"])))
    assert len(named) == len(set(named))
    assert not [place for place in named if place.endswith("/")]
    assert {"tutorials/index.md", "commands/index.md", "commands/agents.train.md"} <= set(named)


def test_every_command_has_a_page_with_its_manual(
    hooks: ModuleType, capsys: pytest.CaptureFixture[str]
):
    assert {command.module for command in COMMANDS} <= set(hooks.commands())
    pages = hooks.command_pages()
    for module, path in hooks.commands().items():
        calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        (call,) = [n for n in calls if getattr(n.func, "id", "") == "run_command"]
        assert "__doc__" in ast.unparse(call), f"{module}: help shows something else"
        assert f"[`{module}`]({module}.md)" in pages["index.md"]
        assert f"python -m {module}" in pages[f"{module}.md"]
    assert words.main(["--help"]) == 0
    assert f"```\n{capsys.readouterr().out.strip()}\n```" in pages["experiments.words.md"]


@pytest.mark.parametrize(
    "text, turned",
    [
        ("[a](policies.md#x)", "[a](policies.md#x)"),
        ("[a](../README.md) and [b](../CHANGELOG.md)", "[a](index.md) and [b](changelog.md)"),
        ("[the `code`](../baselines/hpa.py#L3)", "the `code`"),
        ("[a](https://example.org/a.md)", "[a](https://example.org/a.md)"),
        ("[a](#here) ![b](images/day.png)", "[a](#here) ![b](images/day.png)"),
        ("[a](../nowhere.py)", "[a](../nowhere.py)"),
        ("[a](tutorials/first.ipynb)", "[a](tutorials/first.md)"),
    ],
)
def test_links_lead_to_where_things_are_in_the_site(hooks: ModuleType, text: str, turned: str):
    assert hooks.turn_links(text, "docs/guide.md", "guide.md") == turned


def test_links_of_files_outside_docs_and_to_the_repository(hooks: ModuleType):
    turned = hooks.turn_links("[a](docs/engine.md#b)", "CONTRIBUTING.md", "contributing.md")
    assert turned == "[a](engine.md#b)"
    turned = hooks.turn_links("[a](../../LICENSE)", "docs/a/b.md", "a/b.md", "https://host/repo/")
    assert turned == "[a](https://host/repo/blob/main/LICENSE)"
    kept = "```\n[a](../LICENSE)\n```\n"
    assert hooks.outside_code(kept + "x", lambda text: text.replace("x", "y")) == kept + "y"


def test_a_notebook_becomes_a_page_with_its_outputs(hooks: ModuleType, tmp_path):
    outputs: list[dict[str, Any]] = [
        {"output_type": "stream", "text": ["\x1b[31mred\x1b[0m\n"]},
        {"output_type": "display_data", "data": {"image/png": "aGk="}},
        {"output_type": "execute_result", "data": {"text/html": '<table border="1">\n\n</table>'}},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "Text."]},
        {"cell_type": "code", "source": ["x = 1"], "outputs": outputs},
    ]
    path = tmp_path / "first.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    made = hooks.notebook_page(path)
    assert made["tutorials/first-1-1.png"] == b"hi"
    page = made["tutorials/first.md"]
    assert page.startswith("# Title\n\n<a href=")
    for part in ("Text.", "````python\nx = 1\n````", "\nred\n````", "<table> </table>"):
        assert part in page


def test_fields_of_scenarios_are_read_from_the_source(hooks: ModuleType):
    table = hooks.fields(["llmscale_env.scenarios.schema:Scenario"])
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE))
    assert list(rows) == list(Scenario.model_fields)
    assert all(row.split(" | ")[-1] for row in rows.values())
    assert "required" in rows["fleet"]
    assert "<code>3600.0</code>" in rows["horizon_s"]


def test_an_entry_about_several_names_becomes_one_for_each(hooks: ModuleType):
    said = "Args:\n    low, high: bounds,\n        both.\n    seed: one.\n\nReturns:\n    a, b: c"
    low, high = (f"    {name}: bounds,\n        both.\n" for name in ("low", "high"))
    each = f"Args:\n{low}{high}    seed: one.\n\nReturns:\n    a, b: c"
    assert hooks.one_name_each(said) == each


def test_public_names_and_environments_are_in_the_reference():
    text = "".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    public = set(llmscale_env.__all__) - {"__version__"}
    assert {name for name in public if not re.search(rf"\b{name}\b", text)} == set()
    listed = (DOCS / "environments" / "index.md").read_text()
    for entry in llmscale_env.ENVIRONMENTS:
        assert f"[`{entry.id}`]({entry.short_name}.md)" in listed


def test_the_site_takes_nothing_from_a_network():
    assert CONFIG["theme"]["font"] is False
    assert "offline" in CONFIG["plugins"]
    assert any("iframe-worker" in name for name in CONFIG["extra"]["polyfills"])
    own = [ROOT / "mkdocs.yml", *DOCS.glob("stylesheets/*"), *DOCS.glob("javascripts/*")]
    assert [path.name for path in own if "http" in path.read_text()] == []
