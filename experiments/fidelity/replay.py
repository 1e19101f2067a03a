"""One replica, iteration by iteration, with any rule for how long an iteration takes.

A plain third implementation beside both engines, of what a peer's comparison needs and no more: round
robin, a batch limit, prefill first or chunked prefill, no shortage of KV memory. Since the rule is an
argument, it tells what differs by scheduling from what differs by iteration times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Chunks = Sequence[tuple[int, int]]
IterationSeconds = Callable[[int, int, Chunks], float]
"""Seconds of an iteration of: decoding requests, their context in all, chunks (tokens, cached)."""


@dataclass(frozen=True)
class Setting:
    """How a replica batches.

    Attributes:
        batch_limit: most running requests.
        prefill_tokens: most prompt tokens of a prefill iteration; one prompt is always taken.
        chunk_tokens: tokens of a chunked iteration, decodes included; 0 for prefill first.
    """

    batch_limit: int
    prefill_tokens: int
    chunk_tokens: int


def replay(
    arrival_s: Floats,
    prompt: Ints,
    output: Ints,
    replicas: int,
    setting: Setting,
    seconds: IterationSeconds,
) -> tuple[Floats, Floats]:
    """Requests dealt in turn to `replicas`, each served in order of arrival.

    Args:
        arrival_s: (n,) ascending arrival times.
        prompt, output: (n,) tokens, at least 1.
        replicas: number of replicas.
        setting: how they batch.
        seconds: how long an iteration takes.

    Returns:
        (n,) seconds from arrival to the first token, and to the last.
    """
    first, last = np.empty(len(arrival_s)), np.empty(len(arrival_s))
    for k in range(replicas):
        mine = slice(k, None, replicas)
        one = _Replica(arrival_s[mine], prompt[mine], output[mine], setting, seconds)
        one.run()
        first[mine], last[mine] = one.first_s - arrival_s[mine], one.last_s - arrival_s[mine]
    return first, last


class _Replica:
    def __init__(
        self,
        arrival_s: Floats,
        prompt: Ints,
        output: Ints,
        setting: Setting,
        seconds: IterationSeconds,
    ) -> None:
        self._arrival = arrival_s.tolist()
        self._prompt, self._output = prompt.tolist(), output.tolist()
        self._setting, self._seconds = setting, seconds
        self.first_s, self.last_s = np.empty(len(arrival_s)), np.empty(len(arrival_s))
        self._now, self._next = 0.0, 0
        self._queue: deque[int] = deque()
        self._done: dict[int, int] = {}  # prompt tokens cached, of requests in prefill, in order
        self._emitted: dict[int, int] = {}  # tokens emitted, of decoding requests
        self._context = 0  # of the decoding requests: prompt and emitted tokens

    def run(self) -> None:
        while self._next < len(self._arrival) or self._queue or self._done or self._emitted:
            if not (self._queue or self._done or self._emitted):
                self._now = max(self._now, self._arrival[self._next])
            while self._next < len(self._arrival) and self._arrival[self._next] <= self._now:
                self._queue.append(self._next)
                self._next += 1
            if self._setting.chunk_tokens:
                self._iterate(self._chunks(), decodes=True)
            else:
                prompts = self._prompts()
                self._iterate(prompts, decodes=not prompts)

    def _prompts(self) -> dict[int, int]:
        """Whole prompts of one prefill iteration."""
        taken: dict[int, int] = {}
        tokens = 0
        while self._queue and len(self._emitted) + len(taken) < self._setting.batch_limit:
            size = self._prompt[self._queue[0]]
            if taken and tokens + size > self._setting.prefill_tokens:
                break
            tokens += size
            taken[self._queue.popleft()] = size
        self._done |= dict.fromkeys(taken, 0)
        return taken

    def _chunks(self) -> dict[int, int]:
        """What is left of the token budget, first to prompts that have begun."""
        left = self._setting.chunk_tokens - len(self._emitted)
        chunks: dict[int, int] = {}
        for request, done in self._done.items():
            if left > 0:
                chunks[request] = min(self._prompt[request] - done, left)
                left -= chunks[request]
        running = len(self._emitted) + len(self._done)
        while left > 0 and self._queue and running < self._setting.batch_limit:
            request = self._queue.popleft()
            self._done[request] = 0
            chunks[request] = min(self._prompt[request], left)
            left -= chunks[request]
            running += 1
        return chunks

    def _iterate(self, chunks: dict[int, int], decodes: bool) -> None:
        decoding = list(self._emitted) if decodes else []
        context = self._context if decodes else 0
        sizes = [(tokens, self._done[request]) for request, tokens in chunks.items()]
        self._now += self._seconds(len(decoding), context, sizes)
        for request in decoding:
            self._emitted[request] += 1
            self._context += 1
            self._end(request)
        for request, tokens in chunks.items():
            self._done[request] += tokens
            if self._done[request] == self._prompt[request]:
                del self._done[request]
                self.first_s[request] = self._now
                self._emitted[request] = 1
                self._context += self._prompt[request] + 1
                self._end(request)

    def _end(self, request: int) -> None:
        if self._emitted[request] == self._output[request]:
            self.last_s[request] = self._now
            self._context -= self._prompt[request] + self._emitted.pop(request)
