"""Calls that know nothing of each other, side by side: in processes of this machine, or on a Ray cluster.

This is the only module that knows how. A call is a function of a module and its arguments; all of it
is pickled, and so is what it returns. Answers come as they are ready, so whoever wants an order goes by
the keys: then the results are the same with any number of workers anywhere.

    with crew(launcher) as workers:
        workers.submit(0, function, argument)
        for key, value in workers:       # ends when nothing is out; more may be submitted on the way
            ...

With `hears`, calls are given `tell` besides: `tell(message)` hands a message to the command and returns what
`hears(key, message)` says to it. So a training run reports, and is told to go on or to stop.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib import metadata
from multiprocessing import current_process, get_context, parent_process
from multiprocessing.connection import Client, Listener, wait
from pathlib import Path
from typing import Any

from llmscale_env._cli import Slip, one_of, whole

LAUNCHERS = ("processes", "ray")
WORDS = ("launcher", "ray.address", "workers")
"""What a command line that spreads its work takes besides."""

_MOST_WORKERS = 1024
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_ROOT = Path(__file__).resolve().parents[1]
_ROOMS = ("llmscale_env", "baselines", "agents", "experiments")
_CODE = (".py", ".yaml", ".json", ".csv", ".gz", ".npz", ".zip")
_COMPARED = ("numba", "numpy", "ray", "stable-baselines3", "torch")
_GRACE_S = 5.0
_ANSWER_S = 10.0

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


def default_workers() -> int:
    """One per processor that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def launcher_of(options: Mapping[str, str], workers: int | None = None) -> Launcher:
    """What `launcher=`, `ray.address=` and `workers=` ask for.

    Args:
        options: of the command line.
        workers: processes if it does not say; None: one per processor.

    Raises:
        Slip: another launcher, an address without Ray, no Ray, no number of workers.
    """
    kind = one_of(options, "launcher", LAUNCHERS)
    address = options.get("ray.address")
    given = "workers" in options
    asked = whole(options, "workers", workers or default_workers(), 1, _MOST_WORKERS)
    if kind == "ray":
        if importlib.util.find_spec("ray") is None:
            raise Slip("launcher=ray needs Ray: pip install 'llmscale[ray]'")
        return Launcher(kind, asked if given else None, address)
    if address is not None:
        raise Slip(f"ray.address = {address!r}: goes with launcher=ray")
    return Launcher(kind, asked)


def crew(
    launcher: Launcher, most: int | None = None, hears: Hears | None = None, cpus: int = 1
) -> Crew:
    """Workers, to be used as a context: whatever happens in it, no call outlives it.

    Args:
        launcher: where.
        most: calls there will be; no more workers are started.
        hears: `hears(key, message)` answers what a call tells.
        cpus: processors that a call keeps busy (on a cluster they are set aside for it).

    Raises:
        Slip: on entering, where no cluster answers.
    """
    if launcher.kind == "ray":
        return _OnRay(launcher, hears, cpus)
    workers = min(launcher.workers or default_workers(), most or _MOST_WORKERS)
    return _Here(hears) if workers <= 1 else _InProcesses(workers, hears)


def spread(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], launcher: Launcher
) -> Generator[tuple[int, Any], None, None]:
    """`function(*call)` of every call, as (its number, what it returned), as they are ready.

    Raises:
        Slip, WorkerLost, OtherCode: see `crew` and `Crew`; and whatever the function raises.
    """
    if not calls:
        return
    with crew(launcher, len(calls)) as workers:
        for number, call in enumerate(calls):
            workers.submit(number, function, *call)
        yield from workers


class Crew:
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

    def __exit__(self, *_: object) -> None:
        """Give up what is out."""

    def submit(self, key: Any, function: Callable[..., Any], *args: Any) -> None:
        """Have `function(*args)` called, `function(*args, tell=...)` where somebody hears."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Calls that are out."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        raise NotImplementedError


# ---- in this process ----


class _Here(Crew):
    def __init__(self, hears: Hears | None) -> None:
        super().__init__(hears)
        self._waiting: deque[tuple[Any, Callable[..., Any], tuple[Any, ...]]] = deque()

    def submit(self, key: Any, function: Callable[..., Any], *args: Any) -> None:
        self._waiting.append((key, function, args))

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        while self._waiting:
            key, function, args = self._waiting[0]
            tell = functools.partial(self._hears, key) if self._hears else None
            value = _called(function, args, tell)
            self._waiting.popleft()
            yield key, value


def _called(function: Callable[..., Any], args: tuple[Any, ...], tell: Any) -> Any:
    return function(*args) if tell is None else function(*args, tell=tell)


# ---- in processes ----


class _InProcesses(Crew):
    def __init__(self, workers: int, hears: Hears | None) -> None:
        super().__init__(hears)
        self._events: queue.SimpleQueue[tuple[Any, Any, Any]] = queue.SimpleQueue()
        self._out = 0
        self._key = current_process().authkey
        self._listener = Listener(backlog=128, authkey=self._key) if hears else None
        self._address = self._listener.address if self._listener else None
        for name in _THREAD_VARIABLES:  # what the processes start with
            os.environ.setdefault(name, "1")
        self._pool = ProcessPoolExecutor(
            workers, mp_context=get_context("spawn"), initializer=_begin_process
        )

    def __enter__(self) -> Crew:
        if self._listener:
            threading.Thread(target=self._listen, args=(self._listener,), daemon=True).start()
        return self

    def _listen(self, listener: Listener) -> None:
        while True:
            try:
                connection = listener.accept()
                said = connection.recv()
            except (OSError, EOFError):  # closed, or a process was killed in the middle
                if self._listener is None:
                    return
                continue
            if said is None:
                return
            self._events.put((connection, *said))

    def submit(self, key: Any, function: Callable[..., Any], *args: Any) -> None:
        try:
            future = self._pool.submit(_in_process, self._address, key, function, args)
        except BrokenProcessPool:
            raise _lost() from None
        self._out += 1
        future.add_done_callback(lambda done: self._events.put((None, key, done)))

    def __len__(self) -> int:
        return self._out

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        while self._out:
            connection, key, what = self._events.get()
            if connection is not None:
                assert self._hears is not None
                try:
                    connection.send(self._hears(key, what))
                except OSError:
                    pass  # the process is gone, and its future says so
                finally:
                    connection.close()
                continue
            self._out -= 1
            try:
                value = what.result()
            except BrokenProcessPool:
                raise _lost() from None
            yield key, value

    def __exit__(self, *_: object) -> None:
        # Whoever stops in the middle does not wait for the calls under way.
        processes = list((getattr(self._pool, "_processes", None) or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + _GRACE_S
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
        if self._listener:
            listener, self._listener = self._listener, None
            try:
                with Client(listener.address, authkey=self._key) as last:
                    last.send(None)
            except OSError:
                pass
            listener.close()


def _lost() -> WorkerLost:
    return WorkerLost(
        "a process ended without an answer (out of memory, or killed); try fewer workers"
    )


def _begin_process() -> None:
    """In a process of the pool: leave Ctrl-C to the command, and end with it, even if that is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _in_process(address: Any, key: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    tell = None if address is None else functools.partial(_tell_by_socket, address, key)
    return _called(function, args, tell)


def _tell_by_socket(address: Any, key: Any, message: Any) -> Any:
    with Client(address, authkey=current_process().authkey) as connection:
        connection.send((key, message))
        return connection.recv()


# ---- on a Ray cluster ----


class _OnRay(Crew):
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
        return _called(function, args, tell), None
    except Exception as error:
        return None, error


def _tell_by_actor(post: Any, key: Any, message: Any) -> Any:
    import ray

    return ray.get(post.tell.remote(key, message))


@functools.cache
def identity() -> dict[str, str]:
    """What the numbers hang on besides the calls: code and data of the project, versions of libraries."""
    made = hashlib.sha256()
    for room in _ROOMS:
        for path in sorted((_ROOT / room).rglob("*")):
            if path.suffix in _CODE and path.is_file():
                made.update(path.relative_to(_ROOT).as_posix().encode())
                made.update(path.read_bytes())
    found = {"llmscale's code": made.hexdigest()[:16]}
    for name in _COMPARED:
        try:
            found[name] = metadata.version(name).partition("+")[0]  # "+cpu" is a way to build
        except metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def check_code(theirs: Mapping[str, str], ours: Mapping[str, str]) -> None:
    """That a machine runs what the command runs.

    Raises:
        OtherCode: naming what differs, and the machine.
    """
    import platform

    differs = [
        f"{name} is {ours.get(name, 'none')} there, {what} here"
        for name, what in theirs.items()
        if ours.get(name, "none") != what
    ]
    if differs:
        raise OtherCode(f"machine {platform.node()!r} has other versions: {'; '.join(differs)}")
