"""The docs are true: examples run, commands exist, links lead somewhere, the manual is the docstring's."""

from __future__ import annotations

import csv
import gzip
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import llmscale_env
from experiments import manual
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.control.view import in_seconds
from llmscale_env.sim.observed import CLASS_SEEN, POOL_SEEN, QUEUE_SEEN

ROOT = Path(__file__).resolve().parents[1]
README, GUIDE = ROOT / "README.md", ROOT / "docs" / "guide.md"
PAGES = [
    README,
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
PAGES += [ROOT / "llmscale_env" / "workload" / "data" / "README.md"]
# Files that are there only after somebody has put a name in place of the capitals.
PLACEHOLDER = re.compile(r"[A-Z]{3,}")


def split(page: Path) -> tuple[str, list[tuple[str, str]]]:
    """A page's running text, and its fenced blocks as (language, content)."""
    parts = re.split(r"^```(.*)\n", page.read_text(), flags=re.MULTILINE)
    # text, language, content, nothing (after the closing fence), text, ...
    assert len(parts) % 4 == 1, f"{page}: a fence is not closed"
    return "".join(parts[::4]), list(zip(parts[1::4], parts[2::4], strict=True))


def blocks(page: Path, language: str) -> list[str]:
    """Fenced blocks of a language, "" for those without one."""
    return [content for found, content in split(page)[1] if found == language]


def module_commands(page: Path) -> Iterator[list[str]]:
    """Words after `python -m` of every command of a page, in blocks and in running text."""
    found = [line for block in blocks(page, "") for line in block.replace("\\\n", " ").splitlines()]
    found += re.findall(r"`([^`\n]+)`", split(page)[0])
    for line in found:
        command = line.partition("#")[0].strip()
        if command.startswith("python -m "):
            yield shlex.split(command)[2:]


def guide_command(module: str) -> list[str]:
    """The words of the guide's first command of a module that takes any."""
    return next(found[1:] for found in module_commands(GUIDE) if found[0] == module and found[1:])


def test_every_column_that_a_policy_sees_is_explained():
    text = (ROOT / "docs" / "reference" / "control.md").read_text()
    for name, rows in (("pools", POOL_SEEN), ("queues", QUEUE_SEEN), ("totals", CLASS_SEEN)):
        mine = text.partition(f"### `view.{name}`")[2].partition("###")[0]
        told = [
            word
            for cell in re.findall(r"^\|([^|]*)\|", mine, re.M)
            for word in cell.split("`")[1::2]
        ]
        assert sorted(told) == sorted(in_seconds(np.zeros(1, rows)).dtype.names)


def test_the_searches_find_something():
    assert len(blocks(README, "python")) == 1
    assert len(blocks(GUIDE, "python")) == 7
    assert ["experiments.bench"] in list(module_commands(README))
    assert "make test" in "".join(blocks(README, ""))
    assert guide_command("llmscale_env.calibrate")[0].startswith("csv=")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the docs speak of: traces and measurements."""
    folder = tmp_path_factory.mktemp("readme")
    rng = np.random.default_rng(0)
    with (folder / "my_trace.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["arrival_time_s", "input_tokens", "output_tokens"])
        for time_s in np.cumsum(rng.exponential(0.5, 2000)):
            rows.writerow([f"{time_s:.3f}", rng.integers(10, 2000), rng.integers(2, 300)])
    (folder / "traces").mkdir()
    for name in ("conv", "code"):
        with gzip.open(folder / "traces" / f"azure_{name}_2023.csv.gz", "wb") as packed:
            packed.write((folder / "my_trace.csv").read_bytes())
    model = iteration_time_model("llama-3.1-8b", "a100-80gb", 1)
    with (folder / "my_gpu.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        head = "kind,decode_requests,decode_mean_context,prefill_requests,prefill_chunk_tokens"
        rows.writerow([*head.split(","), "prefill_cached_tokens", "iteration_ms"])
        for batch in (1, 8, 32, 128, 512):
            for context in (128, 1024, 2048):
                time_ms = 1000 * model.decode_s(batch, batch * context)
                rows.writerow(["decode", batch, context, 0, 0, 0, time_ms])
        for tokens in (32, 64, 128, 256, 512, 1024, 2048, 4096):
            rows.writerow(["prefill", 0, 0, 1, tokens, 0, 1000 * model.prefill_s(tokens)])
    return folder


@pytest.fixture
def inside(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(workplace)
    return workplace


@pytest.fixture
def calibrated(inside: Path) -> None:
    """The guide's fit of a user's GPU has been made."""
    if not (inside / "my_gpu.json").exists():
        words = guide_command("llmscale_env.calibrate")
        assert import_module("llmscale_env.calibrate").main(words) == 0


# A run folder is what only training makes; everything else is in the workplace.
RUNNABLE = [
    pytest.param(code, id=f"{page.relative_to(ROOT).as_posix()}-{number}")
    for page in PAGES
    for number, code in enumerate(blocks(page, "python"))
    if '"runs/' not in code
]


@pytest.mark.parametrize("code", RUNNABLE)
@pytest.mark.usefixtures("calibrated")
def test_python_in_the_docs_runs(code: str):
    exec(compile(code, "<docs>", "exec"), {"__name__": "__main__"})


def test_the_readme_shows_what_its_lines_print(capsys: pytest.CaptureFixture[str]):
    (code,) = blocks(README, "python")
    exec(compile(code, "<docs>", "exec"), {"__name__": "__main__"})
    shown = code.splitlines()[-1].removeprefix("# ")
    printed = capsys.readouterr().out.splitlines()[-1]
    assert np.allclose([float(x) for x in printed.split()], [float(x) for x in shown.split()])


def test_the_guide_evaluates_policies(inside: Path, capsys: pytest.CaptureFixture[str]):
    words = guide_command("agents.evaluate")
    options = dict(word.split("=", 1) for word in words)
    policies = [name for name in options["policies"].split(",") if not name.startswith("runs/")]
    options |= {"policies": ",".join(policies), "episodes": "2", "scenario.horizon_s": "120"}
    options["out"] = str(inside / "evaluated")
    short = [f"{key}={value}" for key, value in options.items()]
    assert import_module("agents.evaluate").main(short) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in policies)
    assert (inside / "evaluated" / "summary.csv").is_file()


def test_the_guide_reads_a_trace(inside: Path, capsys: pytest.CaptureFixture[str]):
    assert import_module("llmscale_env.traces").main(guide_command("llmscale_env.traces")) == 0
    assert "rate" in capsys.readouterr().out


def test_the_readme_is_a_screen_long_and_shows_one_picture():
    text = README.read_text()
    assert len(text.split()) <= 700
    shown = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert shown == ["docs/images/day.png"]
    assert (ROOT / shown[0]).is_file()


def test_the_guide_names_every_reference_policy():
    from baselines import POLICY_NAMES
    from baselines.make import TUNED_NAMES

    text = GUIDE.read_text()
    names = [name for name in POLICY_NAMES if name not in TUNED_NAMES]
    assert [name for name in names if f"`{name}`" not in text] == []
    assert "`NAME-tuned`" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_exist(page: Path):
    for words in module_commands(page):
        assert find_spec(words[0]), f"{page.name}: python -m {words[0]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_make_targets_exist(page: Path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"^make ([a-z-]+)", "\n".join(blocks(page, "")), re.MULTILINE)
    named += re.findall(r"`make ([a-z-]+)", split(page)[0])
    assert set(named) <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", split(page)[0]):
        place, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        path = (page.parent / place) if place else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert broken == []


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_are_named_exist(page: Path):
    """`llmscale_env/...`, `tests/...` and the like in running text are files or folders."""
    rooms = "llmscale_env|agents|baselines|experiments|tests|docs"
    named = re.findall(rf"`((?:{rooms})/[\w./-]+)`", split(page)[0])
    missing = [n for n in named if not PLACEHOLDER.search(n) and not (ROOT / n).exists()]
    assert missing == []


def test_pages_of_environments_are_current():
    assert manual.outdated(ROOT / "docs") == []
    for entry in llmscale_env.ENVIRONMENTS:
        assert manual.picture_path(entry, ROOT / "docs").is_file()


def test_a_page_that_is_not_current_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    check = [f"out={tmp_path}", "check=true"]
    assert manual.main(check) == 1
    for entry in llmscale_env.ENVIRONMENTS:
        path = manual.page_path(entry, tmp_path)
        path.parent.mkdir(exist_ok=True)
        path.write_text(manual.page(entry))
    manual.forms_path(tmp_path).write_text(manual.forms())
    assert manual.main(check) == 0
    path.write_text(manual.page(entry) + "more\n")
    assert manual.main(check) == 1
    assert path.name in capsys.readouterr().err
    assert manual.main(["chekc=true"]) == 2
    assert "chekc=true" in capsys.readouterr().err
