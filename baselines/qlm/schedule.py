"""What QLM's global scheduler decides on, and what an answer is worth (section 7).

A group's waiting time in a virtual queue follows the text around Eq. 10: the time W that each group ahead
takes from the one behind it if both use the same LLM; its whole completion time C if the LLM changes after
it, since the next one can be loaded only when the last request is done; and the swap time of every change,
its own included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Queues = Sequence[Sequence[int]]
Method = Literal["exact", "search", "edf"]


@dataclass(frozen=True, eq=False)
class QueueProblem:
    """Request groups to be put in order on instances: G instances, I groups, M LLMs.

    Attributes:
        llm: (I,) LLM of each group.
        slo_s: (I,) what is left of its SLO, of its oldest request; negative when late.
        requests: (I,) positive; weights of the penalties.
        work_s: (G, I) W: by how much a group delays the next one of the same LLM. Infinite: the instance
            cannot serve it (the LLM is larger than the GPU).
        completion_s: (G, I) C: until its last request is done (Eq. 5), at least W.
        swap_s: (G, M) time to make the instance serve the LLM, warm or cold, as it is now. Infinite: it never
            can.
        loaded: (G,) LLM that each serves now, -1: none.
        ready_s: (G,) seconds until a group of the loaded LLM could begin. None: 0.
        ready_tail_s: (G, I) seconds more until what runs now is done, as far as it stays, if the group comes
            next and is of another LLM. None: 0.
        own_wait_s: (G, I) from the begin of a group to the first token of its last request. The paper
            compares the begin of a group with its SLO; with this, its last request is. None: 0.
        waiting_weight: a second of waiting counts as so many seconds of lateness, which orders what is
            equally late and leaves no gaps (ours).

    Raises:
        ValueError: a wrong shape or a value out of range.
    """

    llm: NDArray[np.int64]
    slo_s: Floats
    requests: Floats
    work_s: Floats
    completion_s: Floats
    swap_s: Floats
    loaded: NDArray[np.int64]
    ready_s: Floats | None = None
    ready_tail_s: Floats | None = None
    own_wait_s: Floats | None = None
    waiting_weight: float = 1e-4
    ready: Floats = field(init=False, repr=False)
    ready_tail: Floats = field(init=False, repr=False)
    own_wait: Floats = field(init=False, repr=False)
    allowed: NDArray[np.bool_] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name, kind in (("llm", np.int64), ("loaded", np.int64)):
            put(self, name, np.asarray(getattr(self, name), kind))
        for name in ("slo_s", "requests", "work_s", "completion_s", "swap_s"):
            put(self, name, np.asarray(getattr(self, name), np.float64))
        if self.work_s.ndim != 2 or self.swap_s.ndim != 2:
            raise ValueError("work_s and swap_s: must have two axes, instances first")
        g, i = self.work_s.shape
        m = self.swap_s.shape[1]
        for name, given, shape in (
            ("ready", self.ready_s, (g,)),
            ("ready_tail", self.ready_tail_s, (g, i)),
            ("own_wait", self.own_wait_s, (g, i)),
        ):
            put(self, name, np.zeros(shape) if given is None else np.asarray(given, np.float64))
        shapes: dict[str, tuple[int, ...]] = {
            "llm": (i,),
            "slo_s": (i,),
            "requests": (i,),
            "completion_s": (g, i),
            "swap_s": (g, m),
            "loaded": (g,),
            "ready": (g,),
            "ready_tail": (g, i),
            "own_wait": (g, i),
        }
        for name, wanted in shapes.items():
            if getattr(self, name).shape != wanted:
                raise ValueError(f"{name} has shape {getattr(self, name).shape}: must be {wanted}")
        self._check(m)
        able = np.isfinite(self.work_s) & np.isfinite(self.swap_s[:, self.llm])
        put(self, "allowed", able)

    def _check(self, llms: int) -> None:
        _all("llm", self.llm, (self.llm >= 0) & (self.llm < llms), f"in 0..{llms - 1}")
        good = (self.loaded >= -1) & (self.loaded < llms)
        _all("loaded", self.loaded, good, f"in -1..{llms - 1}")
        _all("slo_s", self.slo_s, np.isfinite(self.slo_s), "finite")
        good = np.isfinite(self.requests) & (self.requests > 0)
        _all("requests", self.requests, good, "positive and finite")
        _all("work_s", self.work_s, self.work_s >= 0, "at least 0")
        _all("swap_s", self.swap_s, self.swap_s >= 0, "at least 0")
        for name in ("ready", "ready_tail", "own_wait"):
            value = getattr(self, name)
            _all(name + "_s", value, np.isfinite(value) & (value >= 0), "at least 0 and finite")
        served = np.isfinite(self.work_s)
        good = (self.completion_s >= self.work_s) & np.isfinite(self.completion_s)
        _all("completion_s", self.completion_s, good | ~served, "at least work_s and finite")
        if not 0 < self.waiting_weight < 1:
            raise ValueError(f"waiting_weight = {self.waiting_weight}: must be between 0 and 1")

    @property
    def instances(self) -> int:
        """G."""
        return self.work_s.shape[0]

    @property
    def groups(self) -> int:
        """I."""
        return self.work_s.shape[1]

    @property
    def servable(self) -> NDArray[np.int64]:
        """Groups that some instance can serve."""
        return np.flatnonzero(self.allowed.any(axis=0))

    @property
    def unservable(self) -> tuple[int, ...]:
        """Groups that no instance can serve."""
        return tuple(np.flatnonzero(~self.allowed.any(axis=0)).tolist())

    @property
    def tail_s(self) -> Floats:
        """(G, I) C - W, what a change of LLM after a group costs besides the swap."""
        return np.where(self.allowed, self.completion_s - np.where(self.allowed, self.work_s, 0), 0)


@dataclass(frozen=True, eq=False)
class Plan:
    """Virtual queues, and what they are worth.

    Attributes:
        queues: for each instance its groups in order.
        unservable: groups that no instance can serve; in no queue.
        wait_s: (I,) when each group begins; NaN for the unservable.
        late_s: (I,) max(0, p) of Eq. 11: by how much its SLO is missed; NaN likewise.
        penalty: request-seconds of lateness.
        waiting: request-seconds of waiting.
        objective: penalty + waiting_weight * waiting, what is minimised.
        feasible: no SLO is violated (Eq. 12 holds), unservable groups apart.
        method: "exact": the programme of Eq. 6 to 13; "search"; "edf".
        optimal: it is proved that no plan has a lower objective, within the gap asked for. With `feasible`
            false that proves that no plan meets all SLOs.
    """

    queues: tuple[tuple[int, ...], ...]
    unservable: tuple[int, ...]
    wait_s: Floats
    late_s: Floats
    penalty: float
    waiting: float
    objective: float
    feasible: bool
    method: Method
    optimal: bool = False


def queue_waits_s(problem: QueueProblem, instance: int, queue: Sequence[int]) -> list[float]:
    """When each group of a virtual queue begins (Eq. 10, see the module)."""
    now, llm = float(problem.ready[instance]), int(problem.loaded[instance])
    tail = float(problem.ready_tail[instance, queue[0]]) if len(queue) else 0.0
    waits = []
    for group in queue:
        wanted = int(problem.llm[group])
        if wanted != llm:
            now += float(tail + problem.swap_s[instance, wanted])
            llm = wanted
        waits.append(now)
        work = float(problem.work_s[instance, group])
        now += work
        tail = problem.completion_s[instance, group] - work
    return waits


def evaluate(problem: QueueProblem, queues: Queues, method: Method, optimal: bool = False) -> Plan:
    """What virtual queues are worth.

    Raises:
        ValueError: a group that is missing, there twice, or on an instance that cannot serve it.
    """
    placed = sorted(group for queue in queues for group in queue)
    if len(queues) != problem.instances or placed != problem.servable.tolist():
        raise ValueError(
            f"queues hold groups {placed}: must hold each of {problem.servable.tolist()} once, "
            f"on {problem.instances} instances"
        )
    wait = np.full(problem.groups, np.nan)
    late = np.full(problem.groups, np.nan)
    for g, queue in enumerate(queues):
        for group, begin in zip(queue, queue_waits_s(problem, g, queue), strict=True):
            if not problem.allowed[g, group]:
                raise ValueError(f"group {group} is on instance {g}, which cannot serve it")
            wait[group] = begin
            late[group] = max(0.0, begin + problem.own_wait[g, group] - problem.slo_s[group])
    penalty = float(np.nansum(problem.requests * late))
    waiting = float(np.nansum(problem.requests * wait))
    return Plan(
        queues=tuple(tuple(int(group) for group in queue) for queue in queues),
        unservable=problem.unservable,
        wait_s=wait,
        late_s=late,
        penalty=penalty,
        waiting=waiting,
        objective=penalty + problem.waiting_weight * waiting,
        feasible=penalty <= 1e-6 * float(problem.requests.sum()),
        method=method,
        optimal=optimal,
    )


def _all(name: str, values: NDArray[np.generic], good: NDArray[np.bool_], said: str) -> None:
    if not good.all():
        raise ValueError(f"{name} = {values[~good].reshape(-1)[0]}: must be {said}")
