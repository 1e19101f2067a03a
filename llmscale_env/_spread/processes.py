"""Calls in processes of this machine."""

from __future__ import annotations

import functools
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import current_process, get_context, parent_process
from multiprocessing.connection import Client, Listener, wait
from typing import Any

from llmscale_env._spread.calls import Crew, Hears, WorkerLost, called

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_GRACE_S = 5.0


class InProcesses(Crew):
    """`workers` processes, spawned; they end with this one."""

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
    return called(function, args, tell)


def _tell_by_socket(address: Any, key: Any, message: Any) -> Any:
    with Client(address, authkey=current_process().authkey) as connection:
        connection.send((key, message))
        return connection.recv()
