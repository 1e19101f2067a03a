"""The order of events: (time, phase, index), docs/engine.md section 1."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import simpy
from simpy.events import EventPriority


class Phase(IntEnum):
    """What comes first among the events of one picosecond."""

    COMMAND = 0
    FLOW = 1
    INSTANCE = 2
    ARRIVAL = 3
    WAKE_UP = 4
    SIGNAL = 5


class Due(simpy.Event):
    """An event of a phase and an index, which happens once `at` has given it a time.

    SimPy orders by (time, priority): phase and index share the priority. Phase 0 is never
    scheduled; its place is taken by SimPy's own events (the stop of `run`, the start of a
    process), so that `run(until)` ends before anything that is due at `until`.
    """

    def __init__(self, env: simpy.Environment, phase: Phase, index: int) -> None:
        super().__init__(env)
        self._priority = EventPriority(int(phase) * 2**32 + index)

    def at(self, time_ps: int) -> Due:
        """Schedule it."""
        self._ok = True
        self._value = None
        self.env.schedule(self, self._priority, time_ps - int(self.env.now))
        return self

    def then(self, do: Callable[[], None]) -> Due:
        """Call `do` when it happens."""
        assert self.callbacks is not None
        self.callbacks.append(lambda _: do())
        return self

    def cancel(self) -> None:
        """Its time will pass, but nobody will notice."""
        assert self.callbacks is not None
        self.callbacks.clear()
