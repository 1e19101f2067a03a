"""What MkDocs does for this site besides: pages made at build time, and links that lead out of `docs/`.

- Pages: the manual of every command (`commands/`), the files of `SHOWN`, and notebooks of `tutorials/`.
  Nothing of the project is imported or run: manuals and fields are read from the source text.
- An entry of the nav that ends with "/" stands for the pages of that folder.
- Links are written for a reader of the repository. One to a page leads to it here, too. One to another
  file leads to `repo_url`; without that it becomes plain text.
- Anchors are those that GitHub makes.
- In the reference, an entry of a docstring that is about several arguments becomes one for each.
"""

from __future__ import annotations

import ast
import base64
import html
import json
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from griffe import Extension, Object
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("llmscale_env", "agents", "baselines", "experiments")

SHOWN = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "llmscale_env/workload/data/README.md": "data.md",
}
"""Pages outside of `docs/` that the site has, and where."""

LINKED = {**SHOWN, "README.md": "index.md"}

FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")
IMAGE = re.compile(r"(!\[[^\]]*\]\()([^)\s]+)(\))")


# ---- MkDocs calls these ----


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Folders of the nav become their pages."""
    config.nav = expanded(config.nav or [])
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    made: dict[str, str | bytes] = {f"commands/{n}": text for n, text in command_pages().items()}
    made |= {page: (ROOT / source).read_text("utf-8") for source, page in SHOWN.items()}
    for path in notebooks():
        made |= notebook_page(path)
    for place, content in made.items():
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in tables that are read from the source, and turn links."""
    place = page.file.src_uri
    markdown = re.sub(r"<!-- fields: (.*?) -->", lambda m: fields(m[1].split()), markdown)
    if place.startswith("commands/"):
        return markdown
    source = {page: source for source, page in SHOWN.items()}.get(place, f"docs/{place}")
    return outside_code(markdown, lambda text: turn_links(text, source, place, config.repo_url))


# ---- links ----


def outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """The text with everything changed but blocks of code."""
    parts, end = [], 0
    for block in FENCE.finditer(markdown):
        parts += [change(markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, change(markdown[end:])])


def turn_links(text: str, source: str, place: str, repo_url: str | None = None) -> str:
    """Links of a page for the site.

    Args:
        text: without blocks of code.
        source: the page's file, from the root of the repository.
        place: where the page is in the site.
        repo_url: address of the repository.
    """

    def target(link: str) -> str | None:
        path, hash_, anchor = link.partition("#")
        if not path or re.match(r"[a-z]+:", link):
            return link
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if path in LINKED:
            path = f"docs/{LINKED[path]}"
        elif path.startswith("docs/tutorials/") and path.endswith(".ipynb"):
            path = path.removesuffix(".ipynb") + ".md"
        elif not path.startswith("docs/"):
            if not (ROOT / path).exists():
                return link  # MkDocs says that it leads nowhere
            return f"{repo_url.rstrip('/')}/blob/main/{path}{hash_}{anchor}" if repo_url else None
        path = posixpath.relpath(path.removeprefix("docs/"), posixpath.dirname(place) or ".")
        return f"{path}{hash_}{anchor}"

    def turned(match: re.Match[str]) -> str:
        to = target(match[2])
        return match[1] if to is None else f"[{match[1]}]({to})"

    text = IMAGE.sub(lambda m: f"{m[1]}{target(m[2]) or m[2]}{m[3]}", text)
    return LINK.sub(turned, text)


# ---- the reference ----


class OneNameEach(Extension):
    """Entries such as `low, high: the bounds` of a docstring, once for each name with its type."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Turn the docstring of an object that was found."""
        if obj.docstring:
            obj.docstring.value = one_name_each(obj.docstring.value)


def one_name_each(docstring: str) -> str:
    """A docstring in which every entry of "Args" and "Attributes" is about one name."""

    def of_section(section: re.Match[str]) -> str:
        entries = re.split(r"\n(?=    \S)", section[2].rstrip("\n"))
        split = [re.match(r"    (\w+(?:, \w+)+)(:.*)", entry, re.DOTALL) for entry in entries]
        each = [
            f"    {name}{found[2]}" if found else entry
            for entry, found in zip(entries, split, strict=True)
            for name in (found[1].split(", ") if found else [""])
        ]
        return (
            section[1] + "\n".join(each) + "\n" * (len(section[2]) - len(section[2].rstrip("\n")))
        )

    return re.sub(
        r"^((?:Args|Attributes):\n)((?:    .*\n?|\n)+)", of_section, docstring, flags=re.MULTILINE
    )


# ---- the nav ----


def expanded(nav: list[Any]) -> list[Any]:
    """The nav with the pages of its folders, and without those that are not there yet."""
    found: list[Any] = []
    for entry in nav:
        ((title, value),) = entry.items() if isinstance(entry, dict) else [(None, entry)]
        if isinstance(value, list):
            found.append({title: expanded(value)})
        elif value.endswith("/"):
            names = sorted(
                _pages_of(value.rstrip("/")), key=lambda name: (name != "index.md", name)
            )
            found.append({title: [f"{value}{name}" for name in names]})
        else:
            found.append(entry)
    return found


def _pages_of(folder: str) -> list[str]:
    if folder == "commands":
        return list(command_pages())
    found = {path.name for path in (ROOT / "docs" / folder).glob("*.md")}
    if folder == "tutorials":
        found |= {path.with_suffix(".md").name for path in notebooks()}
    return list(found)


# ---- commands ----

_SHOWS_ITS_OWN = re.compile(r"\brun_command\(\s*(\*\()?[^,()]+,\s*__doc__")


def commands() -> dict[str, Path]:
    """Modules that `python -m` runs, and the files whose docstrings are their manuals."""
    found = {}
    for path in sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        text = path.read_text("utf-8")
        if 'if __name__ == "__main__":' in text:
            module = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
            places = (path, path.with_name("__init__.py"), path.with_name("command.py"))
            shows = [
                p for p in places if p.is_file() and _SHOWS_ITS_OWN.search(p.read_text("utf-8"))
            ]
            if shows:  # that of `llmscale` itself lists the others
                found[module.removesuffix(".__main__")] = shows[0]
    return found


def command_pages() -> dict[str, str]:
    """A page per command, and the list of them, by file name."""
    pages, rows = {}, []
    for module, path in commands().items():
        manual = docstring(path)
        rows.append(f"| [`{module}`]({module}.md) | {_first_sentence(manual)} |")
        pages[f"{module}.md"] = (
            f"# {module}\n\nWhat `python -m {module} --help` prints:\n\n```\n{manual}\n```\n"
            f"{_named_pages(manual)}"
        )
    pages["index.md"] = (
        "# Commands\n\nEvery command takes `key=value` words. A mistyped word is refused in one line, before "
        "anything heavy is imported. Exit codes are in [architecture.md](../architecture.md#rooms).\n\n"
        "| `python -m` | what it does |\n|---|---|\n" + "\n".join(rows) + "\n"
    )
    return pages


def docstring(path: Path) -> str:
    """The docstring of a module, without importing it."""
    return ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""


def _first_sentence(manual: str) -> str:
    paragraph = " ".join(manual.split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", paragraph)[0].rstrip(".:")


def _named_pages(manual: str) -> str:
    named = dict.fromkeys(re.findall(r"\bdocs/([\w/-]+\.md)", manual))
    links = ", ".join(f"[{name}](../{name})" for name in named if (ROOT / "docs" / name).is_file())
    return f"\nSee also: {links}.\n" if links else ""


# ---- notebooks ----


def notebooks() -> list[Path]:
    """Notebooks among the tutorials, by name."""
    return sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


def notebook_page(path: Path) -> dict[str, str | bytes]:
    """A notebook with the outputs that it holds, as a page and its pictures; nothing is run."""
    page = f"tutorials/{path.stem}.md"
    files: dict[str, str | bytes] = {}
    parts = []
    for number, cell in enumerate(json.loads(path.read_text("utf-8"))["cells"]):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
        elif cell["cell_type"] == "code" and text.strip():
            parts.append(f"````python\n{text}\n````")
        for k, output in enumerate(cell.get("outputs", ())):
            shown = _output(output, name := f"{path.stem}-{number}-{k}.png")
            if isinstance(shown, bytes):
                files[f"tutorials/{name}"] = shown
                shown = f"![What the cell above draws]({name})"
            parts.append(shown)
    note = f'<a href="{path.name}" download>This page as a notebook</a>'
    head, *rest = parts or [f"# {path.stem}"]
    title, _, after = head.partition("\n")
    files[page] = "\n\n".join([title, note, after, *rest])
    return files


def _output(output: dict[str, Any], picture: str) -> str | bytes:
    """Markdown of an output of a cell; of a picture its bytes."""
    data = output.get("data", {})
    if "image/png" in data:
        return base64.b64decode("".join(data["image/png"]))
    if "text/markdown" in data:
        return "".join(data["text/markdown"])
    if "text/html" in data:
        table = re.sub(r"<style.*?</style>", "", "".join(data["text/html"]), flags=re.DOTALL)
        table = re.sub(r"<table[^>]*>", "<table>", table)
        return f'<div class="output">{" ".join(table.split())}</div>'
    said = output.get("text") or data.get("text/plain") or output.get("traceback", "")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", "".join(said)).rstrip()
    return f"````{{ .text .output }}\n{plain}\n````" if plain else ""


# ---- fields of scenarios ----


def fields(places: list[str]) -> str:
    """A table of fields for each public model (pydantic) of some modules, as Markdown.

    Args:
        places: modules, or `MODULE:NAME,NAME` for some of its models.
    """
    tables = []
    for place in places:
        module, _, chosen = place.partition(":")
        tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text("utf-8"))
        constants = {
            node.targets[0].id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and (
                node.name in chosen.split(",") if chosen else node.name[0] != "_"
            ):
                tables.append(_fields_of(node, constants))
    return "\n\n".join(tables)


def _fields_of(model: ast.ClassDef, constants: dict[str, ast.expr]) -> str:
    manual = ast.get_docstring(model) or ""
    said = dict(_said_of_fields(manual))
    rows = []
    for statement, after in zip(model.body, [*model.body[1:], None], strict=True):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        name = statement.target.id
        meaning = said.get(name, "")
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            meaning = " ".join(str(after.value.value).split())
        kind, default = _kind_and_default(statement, constants)
        cells = [f"`{name}`", _code(kind), default, meaning.replace("|", "&#124;")]
        rows.append(f"| {' | '.join(cells)} |")
    brief = re.split(r"\n\s*Attributes:\n", manual)[0].strip()
    head = ["| field | kind | default | meaning |", "|---|---|---|---|"] if rows else []
    return "\n".join([f"### {model.name}\n", f"{brief}\n", *head, *rows])


def _said_of_fields(manual: str) -> Iterator[tuple[str, str]]:
    """(field, meaning) of a docstring's section "Attributes"."""
    section = re.search(r"^Attributes:\n((?:[ ]{4}.*\n?|\n)+)", manual, re.MULTILINE)
    entries = re.split(r"\n(?=    \S)", section[1]) if section else []
    for entry in entries:
        names, _, meaning = entry.strip().partition(":")
        for name in names.split(","):
            yield name.strip(), " ".join(meaning.split())


def _kind_and_default(field: ast.AnnAssign, constants: dict[str, ast.expr]) -> tuple[str, str]:
    kind, value = field.annotation, field.value
    if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "Annotated":
        assert isinstance(kind.slice, ast.Tuple)
        kind = kind.slice.elts[0]
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "Field":
        given = {word.arg: word.value for word in value.keywords}
        value = given.get("default") or given.get("default_factory")
    if isinstance(value, ast.Name) and isinstance(constants.get(value.id), ast.Constant):
        value = constants[value.id]
    return ast.unparse(kind), "required" if value is None else _code(ast.unparse(value))


def _code(text: str) -> str:
    """Code in a cell of a table, where a bar would end the cell."""
    escaped = html.escape(text)
    for mark in "|*_":
        escaped = escaped.replace(mark, f"&#{ord(mark)};")
    return f"<code>{escaped}</code>"
