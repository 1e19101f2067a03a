"""A run folder away from home: where a run writes when it is not on the command's own machine.

Nobody assumes a file system that machines share. A run that is elsewhere gets its folder's files as bytes,
works in a temporary folder, and sends back whole files that have changed, at every validation and at the end.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from llmscale_env._writing import replace_file

Files = Mapping[str, bytes]

LOG = "log.txt"
"""What a run says that has no terminal of its own."""


def packed(folder: Path, known: dict[str, tuple[int, int]] | None = None) -> dict[str, bytes]:
    """The files below a folder by relative path, without those that are half written (`.name`).

    Args:
        folder: that is packed; nothing if there is none.
        known: what was packed before; files that have not changed since are left out. It is brought up to
            date.
    """
    known = {} if known is None else known
    found = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.name.startswith("."):
            continue
        name, state = path.relative_to(folder).as_posix(), path.stat()
        mark = (state.st_mtime_ns, state.st_size)
        if known.get(name) != mark:
            found[name] = path.read_bytes()
            known[name] = mark
    return found


def unpack(files: Files, folder: Path) -> None:
    """Put files below a folder, each whole.

    Raises:
        ValueError: a name that leads out of the folder.
    """
    for name, content in files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"file {name!r}: leads out of the folder")
        replace_file(path, lambda part, content=content: part.write_bytes(content))  # type: ignore[misc]


class Workplace:
    """A run's folder where it runs, and what is to be sent home from there.

    Attributes:
        folder: to work in.
    """

    def __init__(self, folder: Path, is_home: bool) -> None:
        self.folder = folder
        self._is_home = is_home
        self._known: dict[str, tuple[int, int]] = {}
        if not is_home:
            packed(folder, self._known)

    def news(self) -> dict[str, bytes]:
        """Files that have changed since the last time; none if the folder is at home already."""
        return {} if self._is_home else packed(self.folder, self._known)


@contextlib.contextmanager
def workplace(home: Path | None, files: Files) -> Iterator[Workplace]:
    """The folder of a run: its own, or where `home` is None a temporary one with `files` in it.

    Everything that is printed goes to `log.txt` in it.
    """
    with contextlib.ExitStack() as stack:
        if home is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="llmscale-")))
            unpack(files, folder)
        else:
            folder = home
            folder.mkdir(parents=True, exist_ok=True)
        log = stack.enter_context((folder / LOG).open("a", encoding="utf-8", buffering=1))
        stack.enter_context(contextlib.redirect_stdout(log))
        stack.enter_context(contextlib.redirect_stderr(log))
        yield Workplace(folder, home is not None)
