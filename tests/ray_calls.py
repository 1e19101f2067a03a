"""Calls for the tests of the Ray launcher; not collected as tests."""

from __future__ import annotations

import os
import time
from typing import Any


def where(x: int) -> tuple[int, str]:
    """(square, node). Long enough that two machines share the calls."""
    import ray

    time.sleep(0.3)
    if x == 13:
        raise ValueError("13 is no good")
    return x * x, ray.get_runtime_context().get_node_id()


def count(upto: int, tell: Any) -> list[Any]:
    """Tells a number after the other until it is told to stop."""
    said: list[Any] = []
    for number in range(upto):
        said.append(tell(number))
        if said[-1] == "stop":
            break
    return said


def die(tell: Any) -> None:
    os._exit(1)


def lock() -> Any:
    """What no pickle can hold."""
    import threading

    return threading.Lock()
