"""What every command line of the project shares: `key=value`, and slips told in one line."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import math
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmscale_env import _interrupt
from llmscale_env._reading import Unreadable, parse_yaml

HELP_WORDS = ("--help", "-h", "help")


class Slip(ValueError):
    """A slip on the command line, told in one line; the command ends with exit code 2."""


EXTRA_OF = {
    **dict.fromkeys(
        (
            "filelock",
            "rich",
            "safetensors",
            "sb3_contrib",
            "stable_baselines3",
            "tensorboard",
            "torch",
        ),
        "train",
    ),
    **dict.fromkeys(("ruptures", "statsmodels"), "forecast"),
    **dict.fromkeys(("markdown", "matplotlib"), "plots"),
    **dict.fromkeys(("highspy", "pulp"), "solver"),
    **dict.fromkeys(("jinja2", "plotly", "prometheus_client", "requests"), "operator"),
    **dict.fromkeys(("h5py", "minari"), "offline"),
    "optuna": "tune",
    "scipy": "fit",
    "pettingzoo": "multiagent",
    "ray": "ray",
    "torchrl": "torchrl",
}
"""Modules of optional dependencies, and the extra that brings them."""


def needs(*modules: str) -> None:
    """Say that an extra is missing before anything is begun.

    Raises:
        ModuleNotFoundError: one of the modules is not installed; `run_command` names its extra.
    """
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def run_command(
    name: str,
    manual: str | None,
    argv: Sequence[str] | None,
    work: Callable[[list[str]], int],
    *,
    interrupted: str = "interrupted",
    wordless: bool = False,
    slips: tuple[type[Exception], ...] = (),
) -> int:
    """Run a command line; slips and files that fail are told in one line.

    Args:
        name: told before what went wrong.
        manual: what help shows.
        argv: the words; None: the process's own.
        work: what to do with them; returns the exit code.
        interrupted: what is said after an interrupt.
        wordless: no words are an order as well, and no call for help.
        slips: further errors that are the user's.

    Returns:
        The exit code: that of `work`, 0 after help, 2 after a slip, 130 when interrupted, 141 when what it
        prints is not read any more.
    """
    _interrupt.listen()
    words = list(sys.argv[1:] if argv is None else argv)
    asked = any(word in HELP_WORDS for word in words)
    the_users: tuple[type[Exception], ...] = (Slip, Unreadable, *slips)
    try:
        if asked or not (words or wordless):
            print(manual)
            code = 0 if asked else 2
        else:
            check_words(words)
            code = work(words)
        _flush()
        return code
    except the_users as error:
        message = str(error)
    except (BrokenPipeError, _Unread) as error:
        _print_nowhere()
        cause = error.__cause__ or error
        complain(f"{name}: stopped: nothing more can be printed ({cause})")
        return UNREAD
    except OSError as error:
        what = error.strerror or str(error)
        message = f"{error.filename}: {what}" if error.filename else what
        with contextlib.suppress(_Unread):
            _flush()
    except ModuleNotFoundError as error:
        module = str(error.name).partition(".")[0]
        if module not in EXTRA_OF:
            raise
        message = f"needs {module}: pip install 'llmscale[{EXTRA_OF[module]}]'"
    except KeyboardInterrupt:
        complain(f"{name}: {interrupted}")
        return 130
    complain(f"{name}: {message}")
    return 2


UNREAD = 141
"""Exit code after standard output was closed, as shells give it: `| head` has read enough."""

MOST_SAID = 2000


def one_line(text: str) -> str:
    """Text that a terminal shows as one line of bearable length, whatever it quotes."""
    line = " ".join(part.strip() for part in text.splitlines() if part.strip())
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
    half = MOST_SAID // 2
    return line if len(line) <= MOST_SAID else f"{line[:half]} [...] {line[-half:]}"


def check_words(words: Sequence[str]) -> None:
    """Whether a command line is text.

    Raises:
        Slip: a word holds bytes that are no UTF-8, or a zero.
    """
    for word in words:
        if "\0" in word or any("\ud800" <= c <= "\udfff" for c in word):
            raise Slip(f"{word!r}: is no text in UTF-8")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], markdown: bool = False) -> str:
    """Rows of text below their head: columns aligned to the left, or a table of Markdown."""
    lines = [head, *rows]
    if markdown:
        lines.insert(1, ["---"] * len(head))
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)
    widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def complain(text: str) -> None:
    """Say on standard error what is wrong, in one line."""
    with contextlib.suppress(OSError):
        print(one_line(text), file=sys.stderr, flush=True)


class _Unread(Exception):
    """Standard output does not take what it is given."""


def _flush() -> None:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        _print_nowhere()
        raise _Unread from error


def _print_nowhere() -> None:
    """Python flushes once more when it ends, and would complain."""
    with contextlib.suppress(OSError, AttributeError), open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def closest(word: str, words: Collection[str]) -> str:
    """What to append to "unknown ...": the nearest word, or all there are."""
    near = difflib.get_close_matches(word, list(words), n=1)
    return f" (did you mean {near[0]}?)" if near else f"; there are {sorted(words)}"


def parse_options(
    words: Sequence[str], allowed: Collection[str], command: str = ""
) -> dict[str, str]:
    """The `key=value` words as a dictionary.

    Args:
        words: the command line without the command's name.
        allowed: keys that there are.
        command: named in errors, where a command line has several.

    Raises:
        Slip: a word that is not `key=value`, an unknown key, no value, a key given twice.
    """
    where = f"{command}: " if command else ""
    options: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in allowed:
            plain = key.lstrip("-")
            if plain != key and plain in allowed:
                raise Slip(f"{where}unknown argument {word!r}; write {plain}=VALUE")
            near = difflib.get_close_matches(plain, list(allowed), n=1)
            if near and equals:
                raise Slip(f"{where}unknown argument {word!r} (did you mean {near[0]}=?)")
            takes = ", ".join(f"{option}=" for option in allowed)
            raise Slip(f"{where}unknown argument {word!r}; it takes {takes}")
        if not value:
            raise Slip(f"{where}{key}= lacks a value")
        if key in options:
            raise Slip(f"{where}{key} is given twice")
        options[key] = value
    return options


def split_scenario_words(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Take the words `scenario.FIELD=VALUE` out of a command line.

    Returns:
        (the other words, changed fields of the scenario)

    Raises:
        Slip: no value, one that cannot be read, a field given twice.
    """
    plain: list[str] = []
    overrides: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        field = key.removeprefix("scenario.")
        if field == key:
            plain.append(word)
            continue
        if not (field and equals and text):
            raise Slip(f"{word!r}: expected scenario.FIELD=VALUE")
        if field in overrides:
            raise Slip(f"{key} is given twice")
        overrides[field] = read_value(key, text)
    return plain, overrides


def parse_scenario_words(
    words: Sequence[str], allowed: Sequence[str]
) -> tuple[dict[str, str], str | None, dict[str, Any]]:
    """Split a command line that runs a scenario.

    Returns:
        (options of `allowed`, the scenario's name or path if given, changed fields of it)

    Raises:
        Slip: as `split_scenario_words` and `parse_options`.
    """
    plain, overrides = split_scenario_words(words)
    for word in plain:
        key, equals, _ = word.partition("=")
        if equals and key not in (*allowed, "scenario"):
            raise Slip(f"unknown option {key!r}{closest(key, (*allowed, 'scenario'))}")
    options = parse_options(plain, (*allowed, "scenario"))
    return options, options.pop("scenario", None), overrides


def read_value(key: str, text: str) -> Any:
    """A value of the command line, read as YAML (`12`, `0.5`, `true`, `[64, 64]`, `chat`).

    Raises:
        Slip: not valid YAML.
    """
    try:
        value = parse_yaml(text)
    except Unreadable:
        raise Slip(f"{key} = {text!r}: cannot be read as a value") from None
    if isinstance(value, str):
        try:  # YAML 1.1 takes 3e-4 for a word, since it lacks the point
            return float(value)
        except ValueError:
            return value
    return value


def flag(options: Mapping[str, str], key: str, default: bool = False) -> bool:
    """The value of `key` as a truth value.

    Raises:
        Slip: neither "true" nor "false".
    """
    if key not in options:
        return default
    value = options[key].lower()
    if value not in ("true", "false"):
        raise Slip(f"{key} = {options[key]!r}: must be true or false")
    return value == "true"


def one_of(options: Mapping[str, str], key: str, allowed: Sequence[str]) -> str:
    """The value of `key`, one of `allowed` (the first of which is the default).

    Raises:
        Slip: anything else.
    """
    value = options.get(key, allowed[0])
    if value not in allowed:
        raise Slip(f"{key} = {value!r}: must be one of {list(allowed)}")
    return value


def some_of(options: Mapping[str, str], key: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """The comma-separated value of `key`, each one of `allowed`; all of them by default.

    Raises:
        Slip: anything else, or nothing.
    """
    if key not in options:
        return tuple(allowed)
    chosen = tuple(part for part in options[key].split(",") if part)
    for part in chosen or ("",):
        if part not in allowed:
            raise Slip(f"{key} = {options[key]!r}: must be some of {','.join(allowed)}")
    return chosen


def whole(options: Mapping[str, str], key: str, default: int, low: int, high: int) -> int:
    """The value of `key` as an integer in `low..high`.

    Raises:
        Slip: anything else.
    """
    text = options.get(key, str(default))
    try:
        value = int(text.replace("_", ""))
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise Slip(f"{key} = {text!r}: must be an integer in {low}..{high}")
    return value


def whole_numbers(
    options: Mapping[str, str], key: str, default: Sequence[int], low: int, high: int
) -> list[int]:
    """The comma-separated value of `key` as integers in `low..high`, as they are given.

    Raises:
        Slip: anything else.
    """
    if key not in options:
        return list(default)
    text = options[key]
    try:
        return [whole({key: part}, key, low, low, high) for part in text.split(",")]
    except Slip:
        raise Slip(
            f"{key} = {text!r}: must be integers in {low}..{high}, as {low},{high}"
        ) from None


def number(
    options: Mapping[str, str],
    key: str,
    default: float,
    low: float,
    high: float,
    *,
    above: bool = False,
    below: bool = False,
) -> float:
    """The value of `key` as a number in `low..high`; with `above` and `below` without that end itself.

    Raises:
        Slip: anything else.
    """
    text = options.get(key, str(default))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if low <= value <= high and not (above and value == low) and not (below and value == high):
        return value
    start = f"above {low:g}" if above else f"at least {low:g}"
    end = f"below {high:g}" if below else f"at most {high:g}"
    raise Slip(f"{key} = {text!r}: must be a number {start} and {end}")


def environment_of(env: str, names: Collection[str], key: str = "env") -> str:
    """An environment's short name that a command knows.

    Args:
        env: what is given.
        names: that the command knows.
        key: the option's name.

    Raises:
        Slip: it is Gymnasium's id of one, or unknown.
    """
    from llmscale_env import ENVIRONMENTS

    for entry in ENVIRONMENTS:
        if env.rpartition(":")[2] == entry.id and entry.short_name in names:
            short = entry.short_name
            raise Slip(f"{key} = {env!r}: is Gymnasium's id; the command line says {key}={short}")
    if env not in names:
        raise Slip(f"{key} = {env!r}: unknown environment{closest(env, names)}")
    return env


def scenario_of(env: str, names: Collection[str]) -> str:
    """An environment's short name, or the path of a scenario's file, which is left to who reads it.

    Raises:
        Slip: as `environment_of`.
    """
    return env if env.endswith((".yaml", ".yml")) else environment_of(env, names)


def check_folder(key: str, folder: Path) -> None:
    """Make a folder for results and try it, before the work that they take.

    Raises:
        Slip: `key` = it: is a file, cannot be made, or takes no files.
    """
    if os.path.exists(folder) and not folder.is_dir():
        raise Slip(f"{key} = {str(folder)!r}: is a file, and no folder")
    _try_to_write(f"{key} = {str(folder)!r}", folder)


def check_file(key: str, path: Path) -> None:
    """Make the folder of a file for results and try it, before the work that they take.

    Raises:
        Slip: `key` = the file: is a folder, or its own folder cannot be made or takes no files.
    """
    if os.path.isdir(path):
        raise Slip(f"{key} = {str(path)!r}: is a folder; must be a file's name")
    if (
        os.path.exists(path) and not path.is_file()
    ):  # a device, say, which would be replaced by a file
        raise Slip(f"{key} = {str(path)!r}: is no file that can be replaced")
    _try_to_write(f"{key} = {str(path)!r}", path.parent, path.name)


def _try_to_write(what: str, folder: Path, name: str = "") -> None:
    try:
        (folder / name).is_file()  # a name may be too long
        folder.mkdir(parents=True, exist_ok=True)
        # Permissions alone do not say it: of a read-only file system, say, or of /proc.
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")  # a full disk takes empty files
    except OSError as error:
        raise Slip(f"{what}: nothing can be written to {folder} ({error.strerror})") from None
