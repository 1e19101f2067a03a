"""Calls for the tests of the launchers; not collected as tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from llmscale_env._spread import Launcher, crew
from tests.waiting import until


def where(x: int, seen: str) -> tuple[int, str]:
    """(square, node). No call ends before two machines have begun one: they leave their names in `seen`."""
    import ray

    if x == 13:
        raise ValueError("13 is no good")
    node = ray.get_runtime_context().get_node_id()
    (Path(seen) / node).touch()
    until(lambda: len(list(Path(seen).iterdir())) == 2, "a call on the other machine")
    return x * x, node


def count(upto: int, tell: Any) -> list[Any]:
    """Tells a number after the other until it is told to stop."""
    said: list[Any] = []
    for number in range(upto):
        said.append(tell(number))
        if said[-1] == "stop":
            break
    return said


def assert_told_and_answered(launcher: Launcher) -> None:
    """Two calls tell numbers, each gets its own answers, and one is stopped."""
    heard: dict[str, list[int]] = {"a": [], "b": []}

    def hears(key: str, number: int) -> str:
        heard[key].append(number)
        return "stop" if (key, number) == ("b", 2) else f"{key}{number}"

    with crew(launcher, 2, hears) as workers:
        workers.submit("a", count, 4)
        workers.submit("b", count, 4)
        assert dict(workers) == {"a": ["a0", "a1", "a2", "a3"], "b": ["b0", "b1", "stop"]}
    assert heard == {"a": [0, 1, 2, 3], "b": [0, 1, 2]}


def die(tell: Any) -> None:
    os._exit(1)


def lock() -> Any:
    """What no pickle can hold."""
    import threading

    return threading.Lock()
