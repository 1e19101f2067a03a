"""Ending a run in good order: what Ctrl-C means while something is learnt."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from agents.runs.files import said


@contextmanager
def terminating() -> Iterator[None]:
    """SIGTERM interrupts as Ctrl-C does, and does not end the process without a word."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Stop:
    """Turns a first Ctrl-C (or SIGTERM) into a wish that the run ends in good order.

    The second one interrupts at once, as usual.

    Args:
        wished: asked now and then; whether somebody else wants the run to end.
        saying: told to the user after the first one.

    Attributes:
        wanted: whether the run is to end.
        in_order: false once it was interrupted at any moment.
    """

    def __init__(
        self,
        wished: Callable[[], bool] | None = None,
        saying: str = "stopping: saving the model (Ctrl-C again to stop without)",
    ) -> None:
        self.wanted = False
        self.in_order = True
        self._wished, self._saying = wished, saying
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._wish)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _wish(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            self.in_order = False
            raise KeyboardInterrupt
        self.wanted = True
        said(f"\n{self._saying}")

    def ask(self) -> None:
        """Ask whoever else may want the run to end."""
        if self._wished is not None and self._wished():
            self.wanted = True

    def check(self) -> None:
        """Raise KeyboardInterrupt if the run is to end."""
        if self.wanted:
            raise KeyboardInterrupt
