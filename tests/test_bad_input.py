"""Bad input, generated: every command tells it in one line, soon, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import importlib
import io
import random
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from llmscale_env._cli import MOST_SAID, Slip
from tests.bad_input import COMMANDS, REACHED, VALUES, Command, lay_out, refused_places

MOST_CPU_S = 5.0
"""Of a command line that is refused, imports and first compilation left aside."""

MOST_S = 20
"""Seconds, after which it waits for something that does not come."""

PER_COMMAND = 15
"""Examples of each command in the normal suite; the long part has all that there are."""

Example = tuple[Command, tuple[str, ...], str, bool]
"""A command, its words, the option that is fuzzed, and whether the value is wrong for certain."""


def words_with(command: Command, key: str, value: str) -> tuple[str, ...]:
    """The command's words with another value of an option; the key "" is the word without one."""
    if not key:
        return (command.words[0], value, *command.words[2:])
    others = tuple(word for word in command.words if not word.startswith(f"{key}="))
    return (*others, f"{key}={value}")


def examples_of(command: Command, folder: Path) -> list[Example]:
    """Everything that is tried with a command; `lay_out` was done in the folder."""
    found: list[Example] = []
    keys = command.wrong.split()
    for value in VALUES:
        found += [(command, words_with(command, key, value), key, True) for key in keys]
        for key in (*command.free.split(), *command.reads.split(" "), *command.writes.split()):
            if key or command.words[:1] in (("stats",), ("fit",)):
                found.append((command, words_with(command, key, value), key, False))
    for path in lay_out_paths(folder):
        for key in command.reads.split(" "):
            if key or command.words[:1] in (("stats",), ("fit",)):
                found.append((command, words_with(command, key, str(path)), key, False))
    for place in refused_places(folder):
        for key in command.writes.split():
            found.append((command, words_with(command, key, place), key, True))
    for word in (
        "nonsense",
        "=",
        "=3",
        "none=3",
        "--out=x",
        "-",
        "\0",
        "\udcff=1",
        "a\nb=1",
        "x" * 9_999,
    ):
        found.append((command, (*command.words, word), "", True))
    for word in command.words:
        key, equals, _ = word.partition("=")
        if equals:
            found.append((command, (*command.words, word), key, True))
            found.append((command, (*command.words, f"{key[:-1]}=1"), "", True))
    return found


_PATHS: dict[Path, list[Path]] = {}


def lay_out_paths(folder: Path) -> list[Path]:
    if folder not in _PATHS:
        _PATHS[folder] = lay_out(folder)
    return _PATHS[folder]


@contextlib.contextmanager
def without_work(command: Command) -> Iterator[None]:
    """The command with what takes long replaced by a slip that says so."""

    def reached(*_args: object, **_kwargs: object) -> None:
        raise Slip(REACHED)

    with pytest.MonkeyPatch.context() as patch:
        for place in command.work:
            module, _, name = place.partition(":")
            patch.setattr(importlib.import_module(module), name, reached)
        yield


def _hangs(*_: object) -> None:
    raise TimeoutError("waits for something that does not come")


def _is_named(key: str, words: Sequence[str], text: str) -> bool:
    """Whether an error names an option, or what was given for it, or what stands for nothing in the words."""
    value = next((word for word in words if word.startswith(f"{key}=")), "=")[len(key) + 1 :]
    names = (
        *key.split("."),
        key.replace("ies", "y"),
        repr(value)[1:30],
        Path(value).name[:30] or "none",
        "none",
    )
    return any(name in text for name in names)


def fault_of(example: Example, out: Path) -> str | None:
    """What is wrong with how a command answers; None: nothing."""
    command, words, key, wrong = example
    name = command.module.rpartition(".")[2]
    packages = ("agents.offline", "baselines.clairvoyant", "experiments.fidelity")
    module = f"{command.module}.__main__" if command.module in packages else command.module
    main = importlib.import_module(module).main
    said, errors = io.StringIO(), io.StringIO()
    begin = time.process_time()
    signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(MOST_S)
    with (
        without_work(command),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(errors),
    ):
        try:
            code = main([word.replace("OUT", str(out)) for word in words])
        except (Exception, SystemExit) as error:
            return f"raised {type(error).__name__}: {str(error)[:300]}"
        finally:
            signal.alarm(0)
    took = time.process_time() - begin
    text = errors.getvalue()
    reached = REACHED in text
    left = [p for p in out.rglob("*") if p.is_file() and p.name != ".lock"]
    if took > MOST_CPU_S:
        return f"took {took:.1f} s of CPU"
    if code == 0:
        return "was accepted" if wrong else None
    if text.count("\n") != 1 or not text[:-1].isprintable():
        return f"said {text[:600]!r}"
    if not text.startswith(f"{name}: ") or len(text) > 2 * MOST_SAID:
        return f"said {text[:200]!r}... ({len(text)} characters)"
    if reached:
        return "was accepted" if wrong else None
    if said.getvalue():
        return f"printed {said.getvalue()[:200]!r}"
    if left:
        return f"left {left}"
    if key not in command.reads.split() and not _is_named(key, words, text):
        return f"did not name {key}: {text[:300]!r}"
    return None


def faults(examples: Sequence[Example], tmp: Path) -> list[str]:
    found = []
    for number, example in enumerate(examples):
        out = tmp / f"out-{number}"
        out.mkdir()
        fault = fault_of(example, out)
        if fault is not None:
            shown = [
                word if len(word) < 120 else f"{word[:60]}...({len(word)})" for word in example[1]
            ]
            found.append(f"{example[0].module} {shown}: {fault}")
    return found


@pytest.fixture
def bad_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files that no command can use; commands run in another, where nothing is."""
    folder = tmp_path / "bad"
    folder.mkdir()
    elsewhere = tmp_path / "elsewhere" / "here"
    elsewhere.mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def ids(command: Command) -> str:
    return " ".join([command.module, *(w for w in command.words[:1] if "=" not in w)])


@pytest.mark.parametrize("command", COMMANDS, ids=ids)
def test_bad_words_and_files_are_one_line(command: Command, bad_files: Path, tmp_path: Path):
    examples = examples_of(command, bad_files)
    some = random.Random(26).sample(examples, min(PER_COMMAND, len(examples)))
    found = faults(some, tmp_path)
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=ids)
def test_all_bad_words_and_files_are_one_line(command: Command, bad_files: Path, tmp_path: Path):
    found = faults(examples_of(command, bad_files), tmp_path)
    assert not found, "\n".join(found)
