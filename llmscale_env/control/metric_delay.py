"""Metrics that come late: the cluster as it was some control intervals ago (`Scenario.metric_delay_s`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from llmscale_env.control.command import Command
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.workload import RequestTable


class DelayedCluster:
    """A second simulation of the same episodes that is given the same orders `delay_steps` decisions later.

    Nothing is drawn while time passes, so it is at every decision what the first one was then, to the last
    detail that a view can ask for; copying the first one's state would cost more than simulating it again.

    Args:
        sim: the one to follow; its scenario says how far behind this one is.

    Attributes:
        sim: what is shown.
    """

    def __init__(self, sim: ClusterSimulation) -> None:
        self.steps = sim.scenario.delay_steps
        self.sim = ClusterSimulation(
            sim.scenario,
            sim.n_episodes,
            custom_router=sim.custom_router,
            threads=sim.threads,
            engine=sim.engine_name,
        )
        self._orders: list[deque[Command]] = [deque() for _ in range(sim.n_episodes)]

    def start(self, e: int, requests: RequestTable) -> None:
        """A new episode begins."""
        self.sim.start(e, requests)
        self._orders[e].clear()

    def follow(self, commands: Sequence[Command]) -> None:
        """The first simulation has carried out these commands, one per episode, and gone on."""
        held = np.zeros(len(commands), bool)
        due: dict[int, Command] = {}
        for e, (orders, command) in enumerate(zip(self._orders, commands, strict=True)):
            orders.append(command)
            held[e] = len(orders) <= self.steps
            if not held[e]:
                due[e] = orders.popleft()
        self.sim.command(due)
        if not held.all():
            self.sim.advance_others(held)

    def save(self, e: int) -> dict[str, Any]:
        """Everything about episode `e`, for `restore`; can be pickled."""
        return {"sim": self.sim.save(e), "orders": tuple(self._orders[e])}

    def restore(self, e: int, saved: dict[str, Any]) -> None:
        """Put episode `e` where it was at `save`.

        Raises:
            ValueError: `saved` is of another cluster, or not whole; nothing has changed then.
        """
        orders: Any = saved.get("orders") if isinstance(saved, dict) else None
        fits = isinstance(orders, tuple) and len(orders) <= self.steps and "sim" in saved
        if not fits or not all(isinstance(order, Command) for order in orders):
            raise ValueError("saved: core.behind: must be as `save_state` gives it")
        self.sim.restore(e, saved["sim"])
        self._orders[e] = deque(orders)

    def close(self) -> None:
        """End the threads."""
        self.sim.close()
