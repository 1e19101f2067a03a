"""Calls on the machines of a Ray cluster."""

from __future__ import annotations

import functools
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from llmscale_env._cli import Slip
from llmscale_env._spread.calls import Crew, Hears, Launcher, OtherCode, WorkerLost, called
from llmscale_env._spread.versions import check_code, identity

_ANSWER_S = 10.0


class OnRay(Crew):
    """Tasks of a cluster, `cpus` processors set aside for each."""

    def __init__(self, launcher: Launcher, hears: Hears | None, cpus: int) -> None:
        super().__init__(hears)
        self._launcher, self._cpus = launcher, cpus
        self._waiting: deque[tuple[Any, Callable[..., Any], tuple[Any, ...]]] = deque()
        self._out: dict[Any, Any] = {}
        self._post: Any = None

    def __enter__(self) -> Crew:
        ray = import_ray()
        self._ray, self._ours = ray, not ray.is_initialized()
        if self._ours:
            connect(ray, self._launcher.address)
        try:
            self._warn_of_small_nodes()
            # Who talks has a state at the command, so it is not simply begun again.
            retries = 0 if self._hears else 2
            self._task = ray.remote(num_cpus=self._cpus, max_retries=retries)(_on_a_node).remote
            self._code = ray.put(identity())
            if self._hears:
                self._post = ray.remote(num_cpus=0)(_Post).remote()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _warn_of_small_nodes(self) -> None:
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        largest = max((node["Resources"].get("CPU", 0.0) for node in nodes), default=0.0)
        if largest < self._cpus:
            print(
                f"waiting for a machine with {self._cpus} processors; the largest of the cluster has "
                f"{largest:g}",
                file=sys.stderr,
                flush=True,
            )

    def submit(self, key: Any, function: Callable[..., Any], *args: Any) -> None:
        self._waiting.append((key, function, args))
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and len(self._out) < (self._launcher.workers or sys.maxsize):
            key, function, args = self._waiting.popleft()
            self._out[self._task(self._code, self._post, key, function, args)] = key

    def __len__(self) -> int:
        return len(self._out) + len(self._waiting)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        ray, said = self._ray, None
        while self._out:
            if self._post is not None and said is None:
                said = self._post.fetch.remote()
            for done in ray.wait([*self._out, *([said] if said else [])], num_returns=1)[0]:
                answered = self._out.pop(done, None)
                try:
                    value = ray.get(done)
                except ray.exceptions.RayTaskError as error:
                    last = str(error).strip().splitlines()[-1]
                    raise OtherCode(
                        f"a machine could not take a call, or not send its answer: {last}. Is the same "
                        "llmscale installed there?"
                    ) from None
                except ray.exceptions.RayError as error:
                    raise WorkerLost(
                        "a machine or a process of the cluster ended without an answer: "
                        f"{str(error).splitlines()[0]}"
                    ) from None
                if done == said:
                    assert self._hears is not None
                    number, key, message = value
                    self._post.answer.remote(number, self._hears(key, message))
                    said = None
                    continue
                self._hand_out()
                if value[1] is not None:
                    raise value[1]
                yield answered, value[0]

    def __exit__(self, *_: object) -> None:
        if self._ours:
            # Ends our tasks with our connection. To cancel them one by one may end this process as well:
            # Ray 2.60 aborts where a task is cancelled at the moment it ends (task_manager.cc, "Tried to
            # complete task that was not pending").
            self._ray.shutdown()
            return
        for task in self._out:
            self._ray.cancel(task)
        if self._post is not None:
            self._ray.kill(self._post)


def import_ray() -> Any:
    """Ray, told not to report its use to anybody.

    Raises:
        Slip: it is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # What newer versions will do anyway; older ones warn.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise Slip("launcher=ray needs Ray: pip install 'llmscale[ray]'") from None
    return ray


def connect(ray: Any, address: str | None) -> None:
    """Join the cluster, or begin one of this machine.

    Raises:
        Slip: none answers.
    """
    place = address or os.environ.get("RAY_ADDRESS") or "auto"
    more: dict[str, Any] = {"include_dashboard": False} if place == "local" else {}
    try:
        host, _, port = place.rpartition(":")
        if host and "/" not in host and port.isdigit():
            # Ray itself would try for minutes.
            with socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S):
                pass
        ray.init(address=place, log_to_driver=False, logging_level="error", **more)
    except (OSError, RuntimeError, ValueError, OverflowError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise Slip(
            f"ray.address = {place!r}: no Ray cluster answers there ({said[0][:200]}). `ray start --head` "
            "begins one; ray.address=local is one of this machine alone"
        ) from None


class _Post:
    """Where calls leave messages for the command, and wait for what it says (an actor)."""

    def __init__(self) -> None:
        import asyncio

        self._said: Any = asyncio.Queue()
        self._replies: dict[int, Any] = {}
        self._number = 0

    async def tell(self, key: Any, message: Any) -> Any:
        import asyncio

        self._number += 1
        number, reply = self._number, asyncio.get_running_loop().create_future()
        self._replies[number] = reply
        await self._said.put((number, key, message))
        return await reply

    async def fetch(self) -> Any:
        return await self._said.get()

    async def answer(self, number: int, reply: Any) -> None:
        self._replies.pop(number).set_result(reply)


def _on_a_node(
    code: Mapping[str, str],
    post: Any,
    key: Any,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> tuple[Any, Exception | None]:
    """A call on a machine of the cluster: (what it returned, what it raised)."""
    try:
        check_code(code, identity())
        tell = None if post is None else functools.partial(_tell_by_actor, post, key)
        return called(function, args, tell), None
    except Exception as error:
        return None, error


def _tell_by_actor(post: Any, key: Any, message: Any) -> Any:
    import ray

    return ray.get(post.tell.remote(key, message))
