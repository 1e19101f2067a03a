"""Links and what flows over them: docs/engine.md sections 11 and 15."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import simpy

from llmscale_env.sim.reference.state.clock import Due, Phase
from llmscale_env.sim.spec.links import NetworkSpec, Paths

MILLIONTHS = 10**6
"""A byte per microsecond is so many millionths of a byte per millionth of a microsecond (a ps)."""


@dataclass(eq=False)
class Flow:
    """Bytes on their way.

    Attributes:
        path: links, none of them twice.
        left: millionths of a byte still to move at `seen_ps`.
        rate: bytes per microsecond since then; 0: not known yet.
    """

    path: tuple[int, ...]
    left: int
    seen_ps: int
    then: Callable[[], None]
    rate: int = 0


def fair_rates(capacity: Sequence[int], paths: Sequence[Sequence[int]]) -> list[int]:
    """Max-min fair rates in whole numbers, by progressive filling; 0 for an empty path.

    Args:
        capacity: of each link.
        paths: the links of each flow.
    """
    rates = [0] * len(paths)
    left = [int(c) for c in capacity]
    unfixed = [k for k, path in enumerate(paths) if path]
    while unfixed:
        flows = Counter(link for k in unfixed for link in paths[k])
        share, link = min((left[link] // n, link) for link, n in flows.items())
        share = max(1, share)
        for k in unfixed:
            if link in paths[k]:
                rates[k] = share
                for other in paths[k]:
                    left[other] = max(0, left[other] - share)
        unfixed = [k for k in unfixed if link not in paths[k]]
    return rates


class Network:
    """The flows that are under way.

    Args:
        clock: the simulation.
        spec: links; None: flows take no time.
        hosts: host of every slot.
        events: where it counts how often flows share a link.

    Attributes:
        paths: which links a flow takes.
        flows: by number.
    """

    def __init__(
        self,
        clock: simpy.Environment,
        spec: NetworkSpec | None,
        hosts: Sequence[int],
        events: Counter[str],
    ) -> None:
        self.clock = clock
        self.events = events
        self.paths = Paths(spec, hosts)
        self.capacity = [] if spec is None else [int(c) for c in spec.capacity]
        self.flows: dict[int, Flow] = {}
        # Of the next end only: with an event for each flow, SimPy's heap would keep those that every change
        # of rates makes stale.
        self._next: Due | None = None

    def start(
        self, number: int, path: Sequence[int], volume_bytes: int, then: Callable[[], None]
    ) -> None:
        """A flow over these links begins; `then` is called at its end."""
        now_ps = int(self.clock.now)
        self._settle(now_ps)
        assert number not in self.flows
        self.flows[number] = Flow(tuple(path), volume_bytes * MILLIONTHS, now_ps, then)
        self._share(now_ps)

    def stop(self, number: int) -> None:
        """A flow is broken off."""
        now_ps = int(self.clock.now)
        self._settle(now_ps)
        del self.flows[number]
        self._share(now_ps)

    def _end(self, number: int) -> None:
        self._next = None
        now_ps = int(self.clock.now)
        self._settle(now_ps)
        flow = self.flows.pop(number)
        assert flow.left == 0 or not flow.path
        self._share(now_ps)
        flow.then()

    def _settle(self, now_ps: int) -> None:
        """Count what has moved at the rates of until now."""
        for flow in self.flows.values():
            flow.left = max(0, flow.left - flow.rate * (now_ps - flow.seen_ps))
            flow.seen_ps = now_ps

    def _share(self, now_ps: int) -> None:
        """New rates, and the next end."""
        rates = fair_rates(self.capacity, [flow.path for flow in self.flows.values()])
        links = Counter(link for flow in self.flows.values() for link in flow.path)
        self.events["flows_shared"] += any(n > 1 for n in links.values())
        ends: list[tuple[int, int]] = []
        for (number, flow), rate in zip(self.flows.items(), rates, strict=True):
            flow.rate = rate
            ends.append((now_ps + (-(-flow.left // rate) if flow.path else 0), number))
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if ends:
            end_ps, number = min(ends)
            self._next = Due(self.clock, Phase.FLOW, number).at(end_ps)
            self._next.then(partial(self._end, number))
