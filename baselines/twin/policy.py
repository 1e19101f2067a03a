"""A planner: every order is tried on twins of the cluster before it is given (ours).

At each decision a few orders near the last one are played in a few drawn futures (`futures`): an instance
or two more or fewer of the pool that serves all classes, and another batch limit. Without a day before, these
are also limits below what runs, which bind at once. Every order meets the same futures. The one that costs
least in their weighted mean is given, where it beats the last one by enough.

Costs are those of the scenario's reward until the end of the look-ahead, with a price of the planner's
own for late requests. What the reward charges at the horizon, for what is unfinished then, is left out.
What is left in shared queues costs its GPU time in full batches. Those of its requests are late that all
GPUs together, less what interactive requests keep busy, could not serve in time any more.
"""

from __future__ import annotations

import math
from time import perf_counter
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from baselines.fleet import class_pool
from baselines.parameters import (
    LoadSource,
    NamedPolicy,
    NonNegative,
    Parameters,
    PolicyError,
    Positive,
    PositiveCount,
)
from baselines.space import Real, Space
from baselines.twin.futures import FutureDrawer
from baselines.twin.late import late_in_queues
from baselines.twin.player import Player
from llmscale_env.control.command import Command
from llmscale_env.control.results.region_result import has_regions
from llmscale_env.control.reward import RewardModel, violation_prices
from llmscale_env.control.twins import Played
from llmscale_env.control.unfinished_work import full_batch_cost_gpu_s
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import compile_cluster
from llmscale_env.sim.streaming import check_streams

STRATA = (0.2, 0.2, 0.2, 0.15, 0.11, 0.07, 0.045, 0.025)
"""Shares of futures of which one is played each, from the mildest to the worst."""
LIMITS = tuple(sorted({2**k for k in range(14)} | {3 * 2**k for k in range(12)}))
"""Batch limits that are tried."""
LEAST_BINDING = 4


class TwinParameters(Parameters):
    """All ours.

    Attributes:
        look_ahead_s: how far ahead orders are played.
        rounds: how many futures of each stratum. The worse half of the orders is given up after each.
        budget_ms: no further round begins once so much time has passed since the first began; None: all
            are played. With it an episode is not the same on another machine.
        late_price: a late request in planning costs so many times what the reward charges.
        later_price: GPU time that work in shared queues will take later, likewise.
        pace: share of the time to its deadline in which work in shared queues is to be done.
        inertia: a change must gain so many instances for one control interval, for each instance that it
            starts or stops; a change of limits as for one.
        least_limit: lowest batch limit where none is to bind; the next ones of `LIMITS` above and below the
            last are tried.
        binding: whether limits down to `LEAST_BINDING` are tried, among them the next one below what runs on
            an instance, half of it, and twice the last; None: where no day before is known. On training
            windows of mixed-slo-hours, which have one, they gain nothing.
        spread: see `FutureDrawer`.
        threads: threads that play the twins; what is found is the same with any number.
        load_source: from where instances load their weights; None: as the scenario says.
    """

    look_ahead_s: Positive = 120.0
    rounds: Annotated[int, Field(ge=1, le=16)] = 1
    budget_ms: NonNegative | None = None
    late_price: Annotated[float, Field(gt=0, le=1e6)] = 2.0
    later_price: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    pace: Positive = 0.7
    inertia: NonNegative = 1.0
    least_limit: PositiveCount = 64
    binding: bool | None = None
    spread: Annotated[float, Field(ge=0, le=1)] = 0.1
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    load_source: LoadSource | None = "multicast"

    @model_validator(mode="after")
    def _has_effect(self) -> TwinParameters:
        if self.budget_ms is not None and self.rounds == 1:
            raise ValueError(f"budget_ms = {self.budget_ms:g}: does nothing with rounds = 1")
        return self


def why_not(scenario: Scenario) -> str:
    """Why the policy cannot run a scenario; "": it can."""
    fleet = scenario.fleet
    if len(fleet.llms) != 1:
        return f"has {len(fleet.llms)} LLMs"
    if has_regions(scenario):
        return "has regions"
    if any(route.placement is not None or route.kind == "hold" for route in fleet.routes):
        return "has requests that wait to be placed"
    if any(pool.flows for pool in fleet.pools):
        return "has weights that flow over a network"
    try:
        class_pool(scenario, fleet.llms[0], "")
    except PolicyError:
        return "has no pool that serves all classes by the scenario's routes"
    try:
        check_streams(compile_cluster(scenario))
    except ValueError as error:
        return f"cannot be copied: {error}"
    return ""


class TwinPolicy(NamedPolicy):
    """See the module; for scenarios of one LLM, without flows, with a pool that serves all classes.

    It goes on from the instances that there are, whoever ordered them; where metrics are late, from the last
    order (`Player`).
    """

    parameters_type = TwinParameters
    usual_name = "twin"
    parameters: TwinParameters
    SPACE: ClassVar[Space] = {
        "look_ahead_s": Real(60, 360, log=True),
        "late_price": Real(0.3, 10, log=True),
        "later_price": Real(0.5, 1.5),
        "pace": Real(0.3, 1.0),
        "inertia": Real(0.0, 3.0),
        "spread": Real(0.0, 0.3),
    }

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Find the pool, and forget what was seen.

        Raises:
            PolicyError: several LLMs or regions, flows, requests that wait to be placed, or no pool of all
                classes.
        """
        if reason := why_not(scenario):
            raise PolicyError(
                f"{self.name}: is for one LLM in one region, with a pool of all classes; "
                f"{scenario.name!r} {reason}"
            )
        p = self.parameters
        self._pool = class_pool(scenario, scenario.fleet.llms[0], self.name)
        self._player = Player(scenario, p.threads)
        self._drawer = FutureDrawer(scenario, seed, STRATA, spread=p.spread)
        none = np.zeros((1, len(scenario.classes)))
        costs = RewardModel(scenario).parts(np.ones(1), none, np.ones(1))
        self._gpu_s_price, self._start_price = float(costs.gpu[0]), float(costs.loads[0])
        self._late_price = p.late_price * violation_prices(scenario)
        self._cost = full_batch_cost_gpu_s(scenario)[:, 0]
        classes = scenario.classes
        self._urgent = np.array([c.priority == 0 for c in classes])
        names = [c.name for c in classes]
        # Of classes that share a queue the one that is due first counts; nobody waits in one without.
        first = {q.name: 0 for q in scenario.fleet.queues}
        found = [(r.queue, names.index(r.slo_class)) for r in scenario.fleet.routes if r.queue]
        for queue, c in sorted(found, key=lambda each: -classes[each[1]].ttft_s):
            first[queue] = c
        self._class_of_queue = np.array(list(first.values()), np.int64)
        self._ttft_s = np.array([c.ttft_s for c in classes])
        pool = scenario.fleet.pools[self._pool]
        self._pool_name, self._tp = pool.name, pool.tp
        self._most = min(pool.max_instances, scenario.fleet.max_gpus // pool.tp)
        self._target = min(self._most, sum(q.initial_instances for q in scenario.fleet.pools))
        self._limit = pool.batch_limit
        self._ordered = self._before = (self._target, self._limit)
        self._rate = 0.0  # urgent work, GPU-seconds per second

    def act(self, view: ClusterView) -> Command:
        """The order that costs least in the drawn futures."""
        self._look(view)
        reason = self._choose(view) if self._drawer.knows else "nothing has come"
        return self._say(view, reason)

    def see(self, view: ClusterView) -> None:
        """Look at a decision at which nothing is asked."""
        self._look(view)
        self._say(view)

    def carried_out(self, command: Command) -> None:
        """What was ordered in place of its last order; what is not named stays as it was."""
        (count, limit), name = self._before, self._pool_name
        self._ordered = command.targets.get(name, count), command.batch_limits.get(name, limit)
        self._player.carried_out(command)

    def _look(self, view: ClusterView) -> None:
        self._drawer.see(view)
        self._follow(view)

    def _say(self, view: ClusterView, reason: str = "") -> Command:
        self._before, self._ordered = self._ordered, (self._target, self._limit)
        command = self._command(view.scenario, self._ordered, reason)
        self._player.said(command)
        return command

    def _choose(self, view: ClusterView) -> str:
        """Choose instances and batch limit; returns why."""
        p, scenario = self.parameters, view.scenario
        until_s = min(self._player.now_s(view) + p.look_ahead_s, scenario.horizon_s)
        options = self._options(view)
        interval = self._gpu_s_price * scenario.control_interval_s * self._tp
        changes = np.array([abs(n - self._target) + (x != self._limit) for n, x in options])
        charged = p.inertia * interval * changes
        begun, left = perf_counter(), np.arange(len(options))
        cost, weights = np.zeros(len(options)), np.array(self._drawer.strata)
        for k in range(p.rounds):
            futures = self._drawer.draw(view, until_s)
            commands = [self._command(scenario, options[i]) for i in left]
            played = self._player.play(view, futures, commands, until_s)
            costs = self._costs(played, until_s).reshape(len(left), len(futures))
            cost[left] += (costs @ weights / weights.sum() - cost[left]) / (k + 1)
            left = left[np.argsort((charged + cost)[left], kind="stable")]
            if p.budget_ms is not None and 1e3 * (perf_counter() - begun) > p.budget_ms:
                break
            left = left[: max(2, math.ceil(len(left) / 2))]
        best = int(left[0])
        self._target, self._limit = options[best]
        return f"expected cost {charged[best] + cost[best]:.4f}"

    def _follow(self, view: ClusterView) -> None:
        """What there is, which another policy may have ordered, and what comes."""
        late, window = view.scenario.metric_delay_s > 0, view.window
        if late:  # the last order may not show yet
            self._target, self._limit = self._ordered
        if window.length_s <= 0:
            return
        there = view.pools[self._pool]
        if not late:
            self._target = view.instances_of(self._pool)
            if there["active"]:
                self._limit = round(int(there["limit_sum"]) / int(there["active"]))
        self._player.see(view)
        tokens = np.stack([window.input_tokens, window.predicted_tokens])[:, self._urgent]
        rate = float((tokens * self._cost[:, self._urgent]).sum()) / window.length_s
        keep = math.exp(-window.length_s / 600.0) if view.step > 1 else 0.0
        self._rate = keep * self._rate + (1 - keep) * rate

    def _options(self, view: ClusterView) -> list[tuple[int, int]]:
        """(instances, batch limit) to try; what there is comes first."""
        p, pool = self.parameters, view.scenario.fleet.pools[self._pool]
        n, limit = max(self._target, 1), self._limit
        counts = [min(max(n + k, 1), self._most) for k in (0, 1, -1, 2, -2)]
        allowed = {*LIMITS, pool.max_batch}
        binds = not self._drawer.knows_a_day if p.binding is None else p.binding
        least = min(p.least_limit, LEAST_BINDING) if binds else p.least_limit
        tried = sorted(x for x in allowed if least <= x <= pool.max_batch)

        def next_below(most: float) -> list[int]:
            return [x for x in tried if x < most][-1:]

        limits = [x for x in tried if x > limit][:1] + next_below(limit)
        if binds:
            there = view.pools[self._pool]
            runs = min(limit, math.ceil(int(there["running"]) / max(1, int(there["active"]))))
            limits += next_below(runs) + next_below(runs / 2 + 0.5)
            limits += [x for x in tried if x >= 2 * limit][:1]
        return list(dict.fromkeys([*((k, limit) for k in counts), *((n, x) for x in limits)]))

    def _command(self, scenario: Scenario, option: tuple[int, int], reason: str = "") -> Command:
        none = dict.fromkeys((pool.name for pool in scenario.fleet.pools), 0)
        return Command(
            targets={**none, self._pool_name: option[0]},
            batch_limits={self._pool_name: option[1]},
            load_source=self.parameters.load_source,
            reason=reason,
        )

    def _costs(self, played: Played, until_s: float) -> NDArray[np.float64]:
        """(n,) cost of each trial."""
        cost = played.gpu_s * self._gpu_s_price + played.violations @ self._late_price
        return cost + played.loads * self._start_price + self._left(played, until_s)

    def _left(self, played: Played, until_s: float) -> NDArray[np.float64]:
        """(n,) what the shared queues will cost."""
        mine = self._class_of_queue
        if len(mine) == 0:
            return np.zeros(len(played.gpu_s))
        p, queues, cost = self.parameters, played.queues, self._cost[:, mine]
        work = queues["tokens"] * cost[0] + queues["predicted_tokens"] * cost[1]
        spare = max(1.0, self._most * self._tp - 1.2 * self._rate)
        late = late_in_queues(queues, cost, self._ttft_s[mine], until_s, p.pace * spare)
        charged = work.sum(axis=1) * self._gpu_s_price * p.later_price
        return charged + late @ self._late_price[mine]
