"""Immediate autoscaling of batch instances, what Chiron's request groups are held against (section 2.3)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from baselines import make_policy
from llmscale_env.control.command import Command
from llmscale_env.control.policy import Policy
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario


def instances_for(requests: int, batch_limit: int) -> int:
    """Instances on which so many requests run at once."""
    return math.ceil(requests / batch_limit)


class ImmediatePolicy:
    """Chiron, but batch instances come as batch requests arrive and go as they complete.

    At every decision there are as many as the requests that wait and those that already run on batch
    instances fill. All else, interactive and mixed instances and batch limits, is Chiron's.

    Args:
        values: Chiron's parameters.
    """

    def __init__(self, **values: Any) -> None:
        self.name = "immediate"
        self._chiron: Policy = make_policy("chiron", **values)

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Find the batch pool and its queues.

        Raises:
            ValueError: there is not exactly one batch pool.
        """
        self._chiron.reset(scenario, seed)
        pools = scenario.fleet.pools
        mine = [p for p, pool in enumerate(pools) if pool.role == "batch"]
        if len(mine) != 1:
            names = [pools[p].name for p in mine]
            raise ValueError(f"scenario {scenario.name!r}: batch pools {names}, must be one")
        self._pool = mine[0]
        queues = [queue.name for queue in scenario.fleet.queues]
        self._queues = [queues.index(name) for name in pools[self._pool].pull]

    def act(self, view: ClusterView) -> Command:
        """Chiron's orders with another number of batch instances."""
        orders = self._chiron.act(view)
        config = view.scenario.fleet.pools[self._pool]
        seen = view.pools[self._pool]
        active = int(seen["active"])
        limit = max(1, int(seen["limit_sum"]) // active) if active else config.batch_limit
        present = sum(int(view.queues["requests"][q]) for q in self._queues)
        present += int(seen["running"] + seen["preempted"])
        wanted = min(instances_for(present, limit), config.max_instances)
        return replace(orders, targets={**orders.targets, config.name: wanted})
