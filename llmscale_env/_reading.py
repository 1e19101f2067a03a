"""YAML and JSON that others wrote: whatever a file holds, it is read soon, or refused in one line."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import yaml

MOST_CHARACTERS = 500_000
"""Of a YAML text: some seconds of parsing. The longest file that ships has a twentieth of it."""

MOST_DEPTH = 100
MOST_NODES = 200_000
"""Of what a YAML text stands for: an alias counts as all that it repeats."""


class Unreadable(ValueError):
    """A file or text that cannot be read; one line that says why, without the file's name."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, without keys given twice, bombs of aliases, and what holds itself."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._open = 0
        self._sizes: dict[int, tuple[int, int]] = {}  # id of a node: (nodes, depth)

    def compose_node(self, parent: Any, index: Any) -> Any:
        repeats = self.check_event(yaml.AliasEvent)
        self._open += 1
        if self._open > MOST_DEPTH:
            raise Unreadable(f"nested more than {MOST_DEPTH} deep")
        node = super().compose_node(parent, index)
        self._open -= 1
        if repeats and id(node) not in self._sizes:
            raise Unreadable("an alias stands for what it is a part of")
        if not repeats:
            parts: list[Any] = [] if isinstance(node, yaml.ScalarNode) else node.value
            if isinstance(node, yaml.MappingNode):
                _check_keys(node)
                parts = [part for pair in node.value for part in pair]
            sizes = [self._sizes[id(part)] for part in parts]
            nodes = 1 + sum(size for size, _ in sizes)
            depth = 1 + max((depth for _, depth in sizes), default=0)
            if nodes > MOST_NODES or depth > MOST_DEPTH:
                raise Unreadable(
                    f"its aliases make more than {MOST_NODES:,} values of it, or {MOST_DEPTH} levels"
                )
            self._sizes[id(node)] = nodes, depth
        return node


def _check_keys(node: Any) -> None:
    seen: set[tuple[str, str]] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if (key.tag, key.value) in seen:
                raise Unreadable(f"line {key.start_mark.line + 1}: {key.value!r} is given twice")
            seen.add((key.tag, key.value))


def parse_yaml(text: str) -> Any:
    """What a YAML text holds, of plain types.

    Raises:
        Unreadable: not YAML; too long or too deep; a key given twice; aliases that make too much of it.
    """
    if len(text) > MOST_CHARACTERS:
        raise Unreadable(f"longer than {MOST_CHARACTERS:,} characters")
    try:
        return _Loader(text).get_single_data()
    except Unreadable:
        raise
    # PyYAML lets through whatever its tags and numbers run into: `!!int ""`, `2020-13-45`, `{[a]: b}`.
    except (
        yaml.YAMLError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
    ) as e:
        raise Unreadable(f"not valid YAML: {' '.join(str(e).split())}") from None


def read_yaml(path: Path) -> Any:
    """What a YAML file holds.

    Raises:
        Unreadable: as `parse_yaml`; not in UTF-8; no file that may be read.
    """
    return parse_yaml(_text_of(path, 4 * MOST_CHARACTERS, "not valid YAML"))


def parse_json(text: str) -> Any:
    """What a JSON text holds; NaN and infinite numbers, which JSON has not, are refused.

    Raises:
        Unreadable: not JSON, or nested too deep.
    """
    try:
        return json.loads(text, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise Unreadable(f"line {error.lineno}: not JSON: {error.msg}") from None
    except ValueError as error:
        raise Unreadable(f"not JSON: {error}") from None
    except RecursionError:
        raise Unreadable("not JSON: nested too deep") from None


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        Unreadable: as `parse_json`; not in UTF-8; no file that may be read.
    """
    return parse_json(_text_of(path, 2**28, "not JSON"))


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _text_of(path: Path, most: int, otherwise: str) -> str:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # a pipe, say, which may wait for ever
            raise Unreadable("is no file that can be read")
        if found.st_size > most:
            raise Unreadable(f"longer than {most:,} bytes")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise Unreadable(f"cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise Unreadable(f"{otherwise}: byte {error.start} is no text in UTF-8") from None
