"""Ctrl-C while a command of ours still imports: one line and exit code 130, as later on.

The packages import this before anything else. It does nothing unless `python -m` runs one of their modules.
Every command calls `listen` when it begins: from then on an interrupt is a KeyboardInterrupt again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGES = ("agents", "baselines", "experiments", "llmscale_env")


def _command() -> str | None:
    """The module that `python -m` is about to run, if it is one of ours."""
    if sys.argv[:1] != ["-m"]:  # what it is while the module's packages are imported
        return None
    module = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
    package = sys.modules.get(module.partition(".")[0])
    if package is None or package.__name__ not in PACKAGES or package.__file__ is None:
        return None
    # Others have packages of these names, too.
    ours = Path(package.__file__).parents[1] == Path(__file__).parents[1]
    return module if ours else None


def _end(_signal: int, _frame: Any) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"{_NAME}: interrupted\n".encode())
    os._exit(130)


@contextlib.contextmanager
def in_one_line(name: str) -> Iterator[None]:
    """While a command's module is imported, Ctrl-C ends the process in one line with this name.

    Half an import can raise anything, so an exception would not do.
    """
    global _NAME
    mine = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if not mine or before not in (signal.default_int_handler, _end):
        yield
        return
    _NAME = name
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def listen() -> None:
    """Interrupts are exceptions from now on."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_NAME = (_command() or "").removesuffix(".__main__").rpartition(".")[2]
if _NAME and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)
