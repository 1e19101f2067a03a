"""Waiting for what other processes do: for the event itself, however busy the machine is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[1]

PATIENCE_S = 3600.0
"""A guard against hanging: far beyond what the slowest machine takes. Nothing is to be measured by it."""


def interruptible() -> None:
    # What a shell has started in the background ignores interrupts, and so would its children.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def command(*words: object) -> Iterator[subprocess.Popen[str]]:
    """`python WORDS` in the project's folder, in a session of its own; it is to end within the context."""
    process = subprocess.Popen(
        [sys.executable, *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=interruptible,
    )
    try:
        yield process
    except BaseException:
        _kill(process)
        raise


def printed(code: str) -> str:
    """What Python code prints in a process of its own, in the project's folder."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def until(
    happened: Callable[[], object], what: str, process: subprocess.Popen[str] | None = None
) -> None:
    """Wait until something has happened; fail, with the process's output, if it ends before.

    Args:
        happened: asked again and again.
        what: is awaited, for the message.
        process: that does it; None: none that could be asked.
    """
    give_up = time.monotonic() + PATIENCE_S
    while True:
        # Looked at first: what it did at its very end counts too.
        ended = process is not None and process.poll() is not None
        if happened():
            return
        if ended or time.monotonic() > give_up:
            _fail(what, process)
        time.sleep(0.05)


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """(standard output, standard error), when all who hold them have ended."""
    try:
        return process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        _fail("the end of the process and of all that it started", process)


def _fail(what: str, process: subprocess.Popen[str] | None) -> NoReturn:
    if process is None:
        pytest.fail(f"waited {PATIENCE_S:g} s for {what}")
    code = process.poll()
    state = f"is still at work after {PATIENCE_S:g} s" if code is None else f"ended with {code}"
    _kill(process)
    output, errors = process.communicate()
    pytest.fail(f"waited for {what}: the process {state}. It said:\n{output}\n{errors}")


def _kill(process: subprocess.Popen[str]) -> None:
    """With all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
