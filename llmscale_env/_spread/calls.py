"""What spreads calls, whatever carries them out; and the plainest one, in this process."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Hears = Callable[[Any, Any], Any]


class WorkerLost(RuntimeError):
    """A process or a machine ended without an answer, as when the system killed it for memory."""


class OtherCode(RuntimeError):
    """A machine of the cluster has another version of the project, or of what its numbers hang on."""


@dataclass(frozen=True)
class Launcher:
    """Where calls run.

    Attributes:
        kind: one of `LAUNCHERS`.
        workers: calls side by side; None: as many as the cluster has room for. With one worker in place of
            processes they run in this one, which is easier to debug.
        address: of the Ray cluster; None: RAY_ADDRESS, else "auto".
    """

    kind: str = "processes"
    workers: int | None = 1
    address: str | None = None


ALONE = Launcher()
"""One call after the other, in this process."""


class Crew(ABC):
    """Workers to whom calls are given, and from whom answers come.

    Iterating gives (key, value) until nothing is out.

    Raises:
        WorkerLost: no answer will come from a worker.
        OtherCode: on a cluster, of a machine that has other code.

    What a call raises is raised by the iteration; the other calls are given up on leaving the context.
    """

    def __init__(self, hears: Hears | None) -> None:
        self._hears = hears

    def __enter__(self) -> Crew:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None:
        """Give up what is out."""

    @abstractmethod
    def submit(self, key: Any, function: Callable[..., Any], *args: Any) -> None:
        """Have `function(*args)` called, `function(*args, tell=...)` where somebody hears."""

    @abstractmethod
    def __len__(self) -> int:
        """Calls that are out."""

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """(key, value) of every call, as they are ready."""


class InThisProcess(Crew):
    """One call after the other, when its answer is wanted."""

    def __init__(self, hears: Hears | None) -> None:
        super().__init__(hears)
        self._waiting: deque[tuple[Any, Callable[..., Any], tuple[Any, ...]]] = deque()

    def __exit__(self, *_: object) -> None:
        self._waiting.clear()

    def submit(self, key: Any, function: Callable[..., Any], *args: Any) -> None:
        self._waiting.append((key, function, args))

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        while self._waiting:
            key, function, args = self._waiting[0]
            tell = functools.partial(self._hears, key) if self._hears else None
            value = called(function, args, tell)
            self._waiting.popleft()
            yield key, value


def called(function: Callable[..., Any], args: tuple[Any, ...], tell: Any) -> Any:
    """The call, told how to tell where somebody hears."""
    return function(*args) if tell is None else function(*args, tell=tell)
