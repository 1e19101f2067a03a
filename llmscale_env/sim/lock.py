"""A lock that may be copied, pickled and forked with what it guards."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


class Lock:
    """A re-entrant lock for `with`; a copy, and a child process, begin with one that nobody holds."""

    def __init__(self) -> None:
        self._renew()

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if self._pid != os.getpid():  # whoever held it at the fork is not here
            self._renew()
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[Lock], tuple[()]]:
        return (Lock, ())


def one_at_a_time(method: F) -> F:
    """Let a second thread wait until the first has left any such method of the object (`self.lock`)."""

    @wraps(method)
    def waits(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.lock:
            return method(self, *args, **kwargs)

    return cast(F, waits)
