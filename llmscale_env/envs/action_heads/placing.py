"""Action heads that place requests: by a rule and its strictness, or one request at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.command import RULES
from llmscale_env.control.snapshot import Snapshot
from llmscale_env.envs.action_heads.orders import ActionOrders
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import compile_cluster
from llmscale_env.sim.linear import worker_times_s
from llmscale_env.sim.spec import InstanceState, PoolPhase


class Ranks:
    """Workers in the order in which a network sees and names them: by requests there, fewest first.

    Workers are alike, but a network does not know that: were they named by number, it would have to learn
    for each anew what to do with it. By rank, the first choice is the shortest queue, whoever has it. Those
    that cannot take the request at issue (one of any LLM, if there is none) come last; ties go by number.
    """

    def __init__(self, scenario: Scenario) -> None:
        pools = scenario.fleet.pools
        swaps = [bool(p.swaps_to) for p in pools for _ in range(p.max_instances)]
        self._takes = ~np.array(swaps)
        self.names = [f"rank-{k + 1}" for k in range(len(swaps))]

    def serving(self, now: Snapshot) -> NDArray[np.bool_]:
        """(E, I) by number: whether a worker could take the request at issue, or one of any LLM."""
        seen = now.workers
        workers = seen.workers
        can = (workers["state"] == InstanceState.ACTIVE) & (workers["phase"] != PoolPhase.DECODE)
        of_llm = workers["llm"] == seen.request["llm"][:, None]
        return can & self._takes & (of_llm | (seen.turn < 0)[:, None])

    def order(self, now: Snapshot) -> NDArray[np.int64]:
        """(E, I) number of the worker at each rank."""
        last = np.iinfo(np.int64).max
        return np.argsort(
            np.where(self.serving(now), now.workers.workers["requests"], last),
            axis=1,
            kind="stable",
        )


def placed_pools(scenario: Scenario, what: str) -> None:
    """Refuse a scenario in which some requests go to no pool.

    Raises:
        ValueError: naming `what` and the route.
    """
    for llm in scenario.fleet.llms:
        for slo_class in scenario.classes:
            pools = scenario.route_of(llm, slo_class.name).pools
            if not any(llm in p.llms for p in scenario.fleet.pools if p.name in pools):
                raise ValueError(
                    f"action = {what!r}: the route of class {slo_class.name!r} of {llm} has no pools; it "
                    "needs some"
                )


class Placement:
    """By which rule arrivals find a worker, and how strict best fit is."""

    name = "placement"
    rules = ("round-robin", "jsq-requests", "power-of-two", "least-kv")
    gammas = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    thetas = np.array([0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2])

    def __init__(self, scenario: Scenario) -> None:
        placed_pools(scenario, self.name)
        routes = [
            scenario.route_of(llm, c.name) for llm in scenario.fleet.llms for c in scenario.classes
        ]
        fits = all(r.placement is not None or r.kind == "best-fit" for r in routes)
        names = (*self.rules, "best-fit") if fits else self.rules
        self._kinds = np.array([RULES[name] for name in names], np.int64)
        self.parts, self.choices = ["placement/rule"], [list(names)]
        self._models = np.zeros((0, 5))
        if fits:
            self.parts += ["placement/gamma", "placement/theta"]
            self.choices += [[f"{v:g}" for v in levels] for levels in (self.gammas, self.thetas)]
            # Best fit takes a route's first pool for all; the pools here need not be alike.
            self._models = worker_times_s(compile_cluster(scenario.as_calibrated))

    def write(self, action: NDArray[np.int64], now: Snapshot, orders: ActionOrders) -> None:
        places = orders.for_places(now)
        places.rules[:] = self._kinds[action[:, 0]]
        if len(self.parts) > 1:
            places.gamma[:] = self.gammas[action[:, 1]]
            places.theta[:] = self.thetas[action[:, 2]]
            places.models[:] = now.step == 0
            places.model_s = self._models
        places.again[:] = now.gateways.waiting > 0

    def mask(self, now: Snapshot) -> list[NDArray[np.bool_]]:
        return [np.ones((len(now.time_s), len(c)), bool) for c in self.choices]


class PlaceRequest:
    """Where the earliest request in a gateway goes."""

    name = "place_request"

    def __init__(self, scenario: Scenario) -> None:
        kinds = {
            scenario.route_of(llm, c.name).kind
            for llm in scenario.fleet.llms
            for c in scenario.classes
        }
        if kinds != {"hold"}:
            raise ValueError(
                f"action = {self.name!r}: routes are {sorted(kinds)}; all must be 'hold', so that "
                "requests wait until they are placed"
            )
        if scenario.decisions != "arrivals":
            raise ValueError(
                f"action = {self.name!r}: decisions = {scenario.decisions!r}; must be 'arrivals'"
            )
        self._ranks = Ranks(scenario)
        self.parts = ["request/worker"]
        self.choices = [["wait", *self._ranks.names]]

    def possible(self, now: Snapshot) -> NDArray[np.bool_]:
        """(E, I) by rank: whether that worker can take the request at issue."""
        can = self._ranks.serving(now) & (now.workers.turn >= 0)[:, None]
        return np.take_along_axis(can, self._ranks.order(now), axis=1)

    def write(self, action: NDArray[np.int64], now: Snapshot, orders: ActionOrders) -> None:
        places = orders.for_places(now)
        chosen = action[:, 0] - 1
        rank = np.maximum(chosen, 0)[:, None]
        can = np.take_along_axis(self.possible(now), rank, axis=1)[:, 0]
        worker = np.take_along_axis(self._ranks.order(now), rank, axis=1)[:, 0]
        placed = (chosen >= 0) & can
        orders.impossible += (chosen >= 0) & ~can
        places.requests[placed] = now.workers.turn[placed]
        places.instances[placed] = worker[placed]

    def mask(self, now: Snapshot) -> list[NDArray[np.bool_]]:
        can = self.possible(now)
        return [np.concatenate([np.ones((len(can), 1), bool), can], axis=1)]
