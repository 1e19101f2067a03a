"""A planner of virtual queues: orders of request groups are tried on twins before one is given (ours).

Groups, their places in the beginning and how they follow each other are QLM's (`baselines.qlm`). Where QLM's
scheduler reckons with averages, here every order is played in the same few drawn futures, to the token.
These are tried:

- the order that there is, and QLM's plan where its scheduler makes one;
- the earliest deadline first, with swaps and without;
- the order that there is, but groups of the loaded LLM first;
- the order that there is, with another group in front at one instance.

An order costs the requests that become late until the end of the look-ahead, at the reward's price, and those
that wait then and cannot be served in time by all GPUs together (`late_in_queues`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from baselines.parameters import NonNegative, PolicyError, Positive
from baselines.qlm.book import Changes, LiveGroup
from baselines.qlm.policy import Order, QlmParameters, QlmPolicy, Standing
from baselines.qlm.schedule import QueueProblem
from baselines.qlm.search import edf
from baselines.space import Choice, Real, Space, Whole
from baselines.twin.futures import FutureDrawer
from baselines.twin.late import late_in_queues
from baselines.twin.player import Player
from llmscale_env.control.command import Command
from llmscale_env.control.results.region_result import has_regions
from llmscale_env.control.reward import violation_prices
from llmscale_env.control.unfinished_work import full_batch_cost_gpu_s
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import compile_cluster
from llmscale_env.sim.streaming import check_streams


class TwinQueuesParameters(QlmParameters):
    """QLM's, and how orders are tried.

    Attributes:
        look_ahead_s: how far ahead orders are played.
        futures: in how many drawn futures.
        fronts: groups that are tried in front of each instance.
        pace: share of the time to its deadline in which what is left is to be done.
        threads: threads that play the twins; what is found is the same with any number.
    """

    solve_time_s: NonNegative = 0.0
    look_ahead_s: Positive = 60.0
    futures: Annotated[int, Field(ge=1, le=64)] = 4
    fronts: Annotated[int, Field(ge=0, le=16)] = 2
    pace: Positive = 0.7
    threads: Annotated[int, Field(ge=1, le=256)] = 1


def why_not(scenario: Scenario) -> str:
    """Why the policy cannot run a scenario that QLM can; "": it can."""
    if has_regions(scenario):
        return "has regions"
    try:
        check_streams(compile_cluster(scenario))
    except ValueError as error:
        return f"cannot be copied: {error}"
    return ""


class TwinQueuesPolicy(QlmPolicy):
    """See the module; for scenarios that QLM can run, with group queues in one region."""

    parameters_type = TwinQueuesParameters
    usual_name = "twin-queues"
    parameters: TwinQueuesParameters
    SPACE: ClassVar[Space] = {
        "delta": Real(1.0, 16.0, log=True),
        "average_batch": Choice(("shared", "profiled")),
        "token_clusters": Whole(1, 4),
        "look_ahead_s": Real(15, 240, log=True),
        "pace": Real(0.3, 1.5),
    }

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Start an episode.

        Raises:
            PolicyError: no group queues, regions, or a cluster that cannot be copied.
        """
        super().reset(scenario, seed)
        if reason := why_not(scenario):
            raise PolicyError(f"{self.name}: {scenario.name!r} {reason}")
        strata = (1 / self.parameters.futures,) * self.parameters.futures
        self._drawer = FutureDrawer(scenario, seed, strata)
        self._player = Player(scenario, self.parameters.threads)
        self._prices = violation_prices(scenario)
        self._cost = full_batch_cost_gpu_s(scenario)
        self._problem_now: tuple[QueueProblem, list[LiveGroup]] | None = None
        self._unplanned: Order = {}

    def act(self, view: ClusterView) -> Command:
        """The order that costs least in the drawn futures."""
        self._drawer.see(view)
        self._player.see(view)
        self._problem_now, self._unplanned = None, {}
        command = super().act(view)
        self._player.said(command)
        return command

    def _adopt(self, order: Order) -> None:
        self._unplanned = {
            instance: list(queues) for instance, queues in self._standing.order.items()
        }
        super()._adopt(order)

    def _problem(
        self, view: ClusterView, instances: NDArray[np.int64], groups: list[LiveGroup]
    ) -> QueueProblem:
        problem = super()._problem(view, instances, groups)
        self._problem_now = problem, groups
        return problem

    def _command(
        self,
        view: ClusterView,
        instances: NDArray[np.int64],
        groups: list[LiveGroup],
        changes: Changes,
    ) -> Command:
        if self._problem_now is None or not self._drawer.knows:
            return super()._command(view, instances, groups, changes)
        orders = self._orders(view, instances, *self._problem_now)
        tried: dict[tuple[tuple[int, ...], ...], tuple[Standing, Command]] = {}
        before = self._standing
        for order in orders:
            self._standing = before.with_order(order)
            command = super()._command(view, instances, groups, changes)
            sent = tuple(self._standing.sent.get(i, ()) for i in instances.tolist())
            tried.setdefault(sent, (self._standing, command))
        best = self._best(view, [command for _, command in tried.values()])
        self._standing, command = list(tried.values())[best]
        return command

    def _orders(
        self,
        view: ClusterView,
        instances: NDArray[np.int64],
        problem: QueueProblem,
        groups: list[LiveGroup],
    ) -> list[Order]:
        """What is tried; the order that there is comes first, or QLM's new plan and then that before it."""
        numbers, there = instances.tolist(), self._standing.order
        loaded, cells = view.instances["llm"], self._book.cell_of

        def planned(queues: tuple[tuple[int, ...], ...]) -> Order:
            """Queues of the problem's groups; what has no waiting request stays behind."""
            order = {
                i: [groups[n].queue for n in mine] for i, mine in zip(numbers, queues, strict=True)
            }
            known = {queue for mine in order.values() for queue in mine}
            return {i: order[i] + [q for q in there[i] if q not in known] for i in numbers}

        # A plan may help against what is late after the look-ahead only: where costs are equal it is taken.
        found: list[Order] = [there, self._unplanned] if self._unplanned else [there]
        found.append(planned(edf(problem).queues))
        # Without swaps, but for LLMs that nobody has loaded.
        stays = problem.llm[None, :] == problem.loaded[:, None]
        stays |= ~(stays & np.isfinite(problem.work_s)).any(axis=0)[None, :]
        no_swaps = replace(problem, work_s=np.where(stays, problem.work_s, np.inf))
        found.append(planned(edf(no_swaps).queues))
        found.append(
            {
                i: sorted(there[i], key=lambda q: q not in cells or cells[q].llm != loaded[i])
                for i in numbers
            }
        )
        for i in numbers:
            for queue in there[i][1 : 1 + self.parameters.fronts]:
                front = [queue, *(q for q in there[i] if q != queue)]
                found.append({**there, i: front})
        return found

    def _best(self, view: ClusterView, commands: list[Command]) -> int:
        """Number of the command that costs least."""
        if len(commands) == 1:
            return 0
        p, scenario = self.parameters, view.scenario
        until_s = min(self._player.now_s(view) + p.look_ahead_s, scenario.horizon_s)
        futures = self._drawer.draw(view, until_s)
        played = self._player.play(view, futures, commands, until_s)
        queues = sorted(self._book.cell_of)
        cells = [self._book.cell_of[queue] for queue in queues]
        gpus = [pool.tp for pool in scenario.fleet.pools]
        llms, classes = [c.llm for c in cells], [c.slo_class for c in cells]
        late = late_in_queues(
            played.queues[:, queues],
            self._cost[:, llms, classes],
            np.array([scenario.classes[c].ttft_s for c in classes]),
            until_s,
            p.pace * max(1, int(played.pools["active"].max(axis=0) @ gpus)),
        )
        cost = played.violations @ self._prices + late @ self._prices[classes]
        return int(np.argmin(cost.reshape(len(commands), -1).mean(axis=1)))
