"""Folders that commands work in: one command at a time, and none over what another has left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from agents.runs.remote_folders import LOG
from llmscale_env._cli import Slip

LOCK = ".lock"
"""Held while a command works in a folder; it is let go of with the process, however that ends."""

_SLIGHT = (LOCK, LOG)
"""What a run leaves that was told to stop before it began."""


class FolderTaken(Slip):
    """Another command is at work in a folder, or has left something there since it was chosen."""


def is_unused(folder: Path) -> bool:
    """Whether nothing is there yet: no such folder, or nothing in it that a run has made.

    Raises:
        Slip: it is a file.
    """
    if folder.is_dir():
        return all(path.name in _SLIGHT for path in folder.iterdir())
    if folder.exists():
        raise Slip(f"out = {str(folder)!r}: is a file, and no folder")
    return True


def clear_parts(folder: Path) -> None:
    """Remove what a killed writer of models has left behind (`llmscale_env._writing`)."""
    for path in folder.glob(".model_*.????????.safetensors"):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def held(folder: Path, *, goes_on: bool) -> Iterator[None]:
    """Keep a folder for this process alone; it is made.

    Args:
        folder: that is worked in.
        goes_on: with what lies there; otherwise nothing may.

    Raises:
        FolderTaken: another process holds it, or `goes_on` is false and something lies there.
        OSError: it cannot be made or written.
    """
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise FolderTaken(f"out = {str(folder)!r}: another command is at work there") from None
    try:
        if not goes_on and not is_unused(folder):
            raise FolderTaken(
                f"out = {str(folder)!r}: is in use; choose another, or add resume=true to go on with it"
            )
        yield
    finally:
        lock.release()
