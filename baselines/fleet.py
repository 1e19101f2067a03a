"""What the reference policies share: reading a fleet, spending its GPUs, keeping to a period."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal

from baselines.parameters import (
    BatchLimit,
    LoadSource,
    NamedPolicy,
    Parameters,
    PolicyError,
    Positive,
    PositiveCount,
)
from llmscale_env.control.command import Command
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario

_STATES = ("acquiring", "loading", "active", "draining")
_ROLES = ("general", "interactive", "mixed", "batch")


def pools_of(scenario: Scenario, llm: str) -> list[int]:
    """Numbers of the pools that serve an LLM."""
    return [p for p, pool in enumerate(scenario.fleet.pools) if pool.llm == llm]


def free_gpus(view: ClusterView) -> int:
    """GPUs that no instance holds, whatever its state."""
    held = sum(
        int(view.pools[name][p]) * pool.tp
        for p, pool in enumerate(view.scenario.fleet.pools)
        for name in _STATES
    )
    return view.scenario.fleet.max_gpus - held


class GpuBudget:
    """GPUs that an act may still spend, so that no order has to be clipped.

    GPUs of instances that are to go are not counted on: they are held until these have drained.
    """

    def __init__(self, view: ClusterView) -> None:
        self.view = view
        self.free = free_gpus(view)

    def grant(self, p: int, count: int) -> int:
        """`count` instances for pool `p`, or as many as its slots and the free GPUs allow."""
        pool = self.view.scenario.fleet.pools[p]
        have = self.view.instances_of(p)
        count = max(0, min(count, pool.max_instances))
        if count <= have:
            return count
        # A draining instance that is wanted again holds its GPUs already.
        revived = min(count - have, int(self.view.pools["draining"][p]))
        started = min(count - have - revived, self.free // pool.tp)
        self.free -= started * pool.tp
        return have + revived + started


class Period:
    """Says when a loop of period `period_s` is due, for decisions that come at other times."""

    def __init__(self, period_s: float) -> None:
        self.period_s = period_s
        self.next_s = 0.0

    def due(self, time_s: float) -> bool:
        """Whether the loop runs now; every missed turn but one is skipped."""
        if time_s < self.next_s - 1e-9:
            return False
        self.next_s += self.period_s
        if self.next_s <= time_s:
            self.next_s = time_s + self.period_s
        return True


def uniform_pool(scenario: Scenario, llm: str, policy: str) -> int:
    """The pool from which a policy that knows no classes serves an LLM.

    It is one that the routes of all classes name among their `pools`; of several, one that evicts
    nobody, and of those the first by role (general, interactive, mixed, batch).

    Raises:
        PolicyError: there is none.
    """
    routes = [scenario.route_of(llm, c.name) for c in scenario.classes]
    pools = scenario.fleet.pools
    shared = [p for p in pools_of(scenario, llm) if all(pools[p].name in r.pools for r in routes)]
    if not shared:
        raise PolicyError(
            f"{policy}: serves all classes from one pool, and no pool of {llm} stands in `pools` "
            f"of every class's route in scenario {scenario.name!r}"
        )
    return min(shared, key=lambda p: (pools[p].evicts, _ROLES.index(pools[p].role)))


def class_pool(scenario: Scenario, llm: str, policy: str) -> int:
    """The pool that serves all classes of an LLM by the scenario's own routes, whichever come first.

    It stands in `pools` or `overflow` of every class's route; of several, one that evicts (for who goes
    first), and of those the first by role (mixed, general, interactive, batch).

    Raises:
        PolicyError: there is none.
    """
    routes = [scenario.route_of(llm, c.name) for c in scenario.classes]
    pools = scenario.fleet.pools
    shared = [
        p
        for p in pools_of(scenario, llm)
        if all(pools[p].name in (*r.pools, *r.overflow) for r in routes)
    ]
    if not shared:
        raise PolicyError(
            f"{policy}: serving = 'by-class': no pool of {llm} stands in `pools` or `overflow` of every "
            f"class's route in scenario {scenario.name!r}"
        )
    roles = ("mixed", "general", "interactive", "batch")
    return min(shared, key=lambda p: (not pools[p].evicts, roles.index(pools[p].role)))


class UniformParameters(Parameters):
    """What policies without request classes have in common.

    Attributes:
        serving: "alike": every class goes to one pool by `router`, as where nobody knows classes;
            "by-class" (ours): one pool too, but with the scenario's own routes, queues and evictions, so
            that the rule only says how many instances there are. What waits in a queue of the scenario
            waits at no instance: rules do not see it.
        batch_limit: running requests per instance, fixed; None: as the scenario says.
        controller: who moves the limit; "fixed" leaves it alone.
        router: the rule by which requests of every class find an instance ("alike" only).
        initial: instances at the start; None: as many as the scenario starts in all pools of the LLM.
        min_instances: never fewer.
        load_source: from where instances load their weights; None: as the scenario says.
        period_s: time between two looks; never shorter than the time between decisions.
    """

    serving: Literal["alike", "by-class"] = "alike"
    batch_limit: BatchLimit | None = None
    controller: str = "fixed"
    router: str = "least-kv"
    initial: PositiveCount | None = None
    min_instances: PositiveCount = 1
    load_source: LoadSource | None = None
    period_s: Positive = 10.0


class UniformPolicy(NamedPolicy, ABC):
    """A policy that knows no request classes: per LLM one pool, one routing rule, no queueing.

    The other pools are switched off at the start, and every class is routed to the instances of the
    pool by `router` (or, `serving` "by-class", as the scenario does). A subclass says how many instances
    there should be.
    """

    parameters_type = UniformParameters
    parameters: UniformParameters

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Find the pool of each LLM.

        Raises:
            PolicyError: the scenario offers no pool for all classes, or the batch limit is higher
                than the pool allows.
        """
        choose = uniform_pool if self.parameters.serving == "alike" else class_pool
        self._pools = [choose(scenario, llm, self.name) for llm in scenario.fleet.llms]
        self._period = Period(self.parameters.period_s)
        limit = self.parameters.batch_limit
        for p in self._pools:
            pool = scenario.fleet.pools[p]
            if limit is not None and limit > pool.max_batch:
                raise PolicyError(
                    f"{self.name}: batch_limit = {limit}: must be at most {pool.max_batch}, "
                    f"max_batch of pool {pool.name!r}"
                )

    def act(self, view: ClusterView) -> Command:
        """Set the fleet up at the first decision; then counts, whenever the period is over."""
        self.observe(view)
        if view.step == 0:
            self._period.due(view.time_s)
            return self._set_up(view)
        if not self._period.due(view.time_s):
            return Command()
        budget = GpuBudget(view)
        targets: dict[str, int] = {}
        reasons = []
        for p in self._pools:
            have = view.instances_of(p)
            wanted, why = self.desired(view, p, have)
            count = budget.grant(p, max(wanted, self.parameters.min_instances))
            if count != have:
                targets[view.scenario.fleet.pools[p].name] = count
            reasons.append(why)
        source = self.parameters.load_source
        return Command(targets=targets, load_source=source, reason="; ".join(reasons))

    def observe(self, view: ClusterView) -> None:
        """Look at the cluster; called at every decision, also where the period is not over."""

    @abstractmethod
    def desired(self, view: ClusterView, p: int, have: int) -> tuple[int, str]:
        """How many instances pool `p` should have, and why; `have` counts those on their way."""

    def _set_up(self, view: ClusterView) -> Command:
        scenario, parameters = view.scenario, self.parameters
        pools = scenario.fleet.pools
        targets = {pool.name: 0 for pool in pools}
        gpus = scenario.fleet.max_gpus
        for llm, p in zip(scenario.fleet.llms, self._pools, strict=True):
            started = sum(pools[k].initial_instances for k in pools_of(scenario, llm))
            count = max(parameters.initial or started, parameters.min_instances)
            count = min(count, pools[p].max_instances, gpus // pools[p].tp)
            gpus -= count * pools[p].tp
            targets[pools[p].name] = count
        mine = [pools[p].name for p in self._pools]
        limits: Mapping[str, int] = {}
        if parameters.batch_limit is not None:
            limits = dict.fromkeys(mine, parameters.batch_limit)
        routers = {c.name: parameters.router for c in scenario.classes}
        return Command(
            targets=targets,
            batch_limits=limits,
            controllers=dict.fromkeys(mine, parameters.controller),
            routers=routers if parameters.serving == "alike" else {},
            load_source=parameters.load_source,
            reason="one pool for all classes",
        )
