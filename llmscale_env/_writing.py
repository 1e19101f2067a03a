"""Files that are whole or not there: written beside their place, then moved into it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path


def replace_files(writers: Mapping[Path, Callable[[Path], object]]) -> list[Path]:
    """Let each of `writers` make its file; move them to their places once all of them are written.

    Raises:
        OSError: a folder takes no files, or the disk is full; it names the place.
    """
    parts: dict[Path, Path] = {}
    path = Path()
    try:
        for path, write in writers.items():
            handle, name = tempfile.mkstemp(
                dir=path.parent, prefix=f".{path.stem}.", suffix=path.suffix
            )
            os.close(handle)
            parts[path] = Path(name)
            write(parts[path])
            parts[path].chmod(0o644)
        for path, part in parts.items():
            part.replace(path)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
    return list(parts)


def replace_file(path: Path, write: Callable[[Path], object]) -> Path:
    """Let `write` make a file and put it at `path` whole, or leave `path` as it was; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return replace_files({path: write})[0]


def write_text(path: Path, text: str) -> Path:
    """Write a text file whole."""
    return replace_file(path, lambda part: part.write_text(text, encoding="utf-8"))
