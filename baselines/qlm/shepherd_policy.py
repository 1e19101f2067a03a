"""SHEPHERD as QLM compares itself with it: fixed batches, one LLM per instance, an ILP that places them."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from baselines.fleet import Period
from baselines.parameters import (
    NamedPolicy,
    Parameters,
    PolicyError,
    Positive,
    PositiveCount,
)
from baselines.qlm.history import OutputHistory
from baselines.qlm.problem import NO_HURRY_S, Profiler, serving_instances
from baselines.qlm.shepherd import PlacementProblem, execution_s, place
from baselines.solver import SolverSettings
from baselines.space import Choice, Real, Space
from llmscale_env.control.command import Command
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import pool_tables, serving, swap_times_s


class ShepherdParameters(Parameters):
    """What `baselines.qlm.shepherd` leaves open.

    Attributes:
        output: output tokens that every request is taken to have: the most that the LLM may produce
            (deterministic times, QLM section 1), or the mean of those seen.
        period_s: between two placements (ours).
        max_output_tokens: the most.
        mean_input_tokens, prior_mean_tokens: until enough have been seen.
        max_nodes, gap: of the solver.
    """

    output: Literal["maximum", "mean"] = "maximum"
    period_s: Positive = 60.0
    max_output_tokens: Positive = 2048.0
    mean_input_tokens: Positive = 300.0
    prior_mean_tokens: Positive = 300.0
    max_nodes: PositiveCount = 200
    gap: Positive = 0.001


class ShepherdPolicy(NamedPolicy):
    """A queue per LLM and class; instances run fixed batches, tightest SLO first, what is late last.

    What is placed is what waits and what arrives until the next placement at the rate of the last period.
    """

    parameters_type = ShepherdParameters
    usual_name = "shepherd"
    parameters: ShepherdParameters
    SPACE: ClassVar[Space] = {
        "output": Choice(("maximum", "mean")),
        "period_s": Real(5.0, 300.0, log=True),
    }

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Start an episode.

        Raises:
            PolicyError: fewer group queues than LLMs and classes, and LLMs besides.
        """
        fleet = scenario.fleet
        self._pairs = [
            (m, c)
            for m, llm in enumerate(fleet.llms)
            for c, slo_class in enumerate(scenario.classes)
            if scenario.route_of(llm, slo_class.name).queue is not None
        ]
        needed = len(self._pairs) + len(fleet.llms)
        if fleet.group_queues < needed or not self._pairs:
            raise PolicyError(
                f"{self.name}: needs a group queue for each LLM and class, and one more for each LLM; "
                f"scenario {scenario.name!r} has {fleet.group_queues} for {needed}"
            )
        self.scenario = scenario
        first = len(fleet.queues)
        self._queue = {pair: first + k for k, pair in enumerate(self._pairs)}
        self._late = {m: first + len(self._pairs) + m for m in range(len(fleet.llms))}
        self._period = Period(self.parameters.period_s)
        self._profiler = Profiler(scenario)
        self._history = OutputHistory(self.parameters.prior_mean_tokens, 0.0)
        self._llm: dict[int, int] = {}
        self._seen: dict[tuple[int, int], int] = dict.fromkeys(self._pairs, 0)

    def act(self, view: ClusterView) -> Command:
        """Place LLMs once per period; between placements the engine serves the queues."""
        done = view.finished
        for m, c in self._pairs:
            mine = (done.llm == m) & (done.slo_class == c)
            self._history.observe((m, 0), done.output_tokens[mine])
        instances = serving_instances(view)
        if not len(instances) or not (self._period.due(view.time_s) or self._changed(instances)):
            return Command(regroup=self._overdue(view))
        problem = self._problem(view, instances)
        settings = SolverSettings(
            gap=self.parameters.gap, time_limit_s=3600.0, max_nodes=self.parameters.max_nodes
        )
        try:
            chosen = place(problem, settings).llm
        except RuntimeError:  # nothing within the limits: all stays where it is
            chosen = problem.loaded
        return self._command(view, instances, problem, chosen)

    def _overdue(self, view: ClusterView) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Requests whose TTFT target has passed, into the last queue of their LLM, in order of arrival.

        The placement counts on serving what is late last; at the head of their class's queue they would make
        late all that come after them.
        """
        waiting = view.waiting
        ttft = np.array([c.ttft_s for c in self.scenario.classes])[waiting.slo_class]
        first = min(self._late.values())
        late = (view.time_s - waiting.arrival_s > ttft) & ~waiting.started & (waiting.queue < first)
        some = np.flatnonzero(late)
        if not len(some):
            return None
        some = some[np.argsort(waiting.arrival_s[some], kind="stable")]
        queues = np.array([self._late[m] for m in waiting.llm[some].tolist()])
        return waiting.request_id[some], queues

    def _changed(self, instances: NDArray[np.int64]) -> bool:
        return set(self._llm) != set(instances.tolist())

    def _batch(self, p: int, llm: str, limit: int, output: float) -> int:
        """Requests of the assumed output that memory holds to their end."""
        pool = serving(self.scenario.fleet.pools[p], llm)
        tokens = self.parameters.mean_input_tokens + output
        held = pool_tables(self.scenario, pool).kv_capacity_tokens // tokens
        return max(1, min(limit, int(held)))

    def _problem(self, view: ClusterView, instances: NDArray[np.int64]) -> PlacementProblem:
        fleet, mine = self.scenario.fleet, self.parameters
        g, m = len(instances), len(fleet.llms)
        batch = np.zeros((g, m), np.int64)
        run_s, prefill_s, swap_s = (np.zeros((g, m)) for _ in range(3))
        slots, pool_of = view.instances[instances], view.instance_pool[instances]
        for k in range(g):
            p = int(pool_of[k])
            pool = fleet.pools[p]
            for llm in pool.llms:
                n = fleet.llms.index(llm)
                mean = self._history.statistics((n, 0)).mean
                output = mine.max_output_tokens if mine.output == "maximum" else mean
                batch[k, n] = b = self._batch(p, llm, pool.batch_limit, output)
                tables = pool_tables(self.scenario, serving(pool, llm))
                prefill_s[k, n] = b * tables.prefill_s(mine.mean_input_tokens)
                step = tables.decode_s(b, b * (mine.mean_input_tokens + output / 2))
                run_s[k, n] = execution_s(
                    prefill_s[k, n], step, mine.max_output_tokens, mean, mine.output
                )
                if n != slots["llm"][k]:
                    swap_s[k, n] = sum(swap_times_s(self.scenario, pool, llm))
        streams = [stream for pair in self._pairs for stream in self._streams(view, *pair)]
        return PlacementProblem(
            llm=np.array([llm for llm, _, _ in streams]),
            slo_s=np.array([slo_s for _, slo_s, _ in streams]),
            requests=np.array([count for _, _, count in streams]),
            batch=batch,
            execution_s=run_s,
            prefill_s=prefill_s,
            swap_s=swap_s,
            loaded=slots["llm"].astype(np.int64),
        )

    def _streams(self, view: ClusterView, llm: int, slo_class: int) -> list[tuple[int, float, int]]:
        """(LLM, what is left of the SLO, requests): waiting and in time, to come, late already."""
        waiting = view.waiting
        there = (waiting.llm == llm) & (waiting.slo_class == slo_class)
        ttft = self.scenario.classes[slo_class].ttft_s
        age = view.time_s - waiting.arrival_s[there]
        in_time = age < ttft
        left = ttft - float(age[in_time].mean()) if in_time.any() else ttft
        return [
            (llm, left, int(in_time.sum())),
            (llm, ttft + self.parameters.period_s / 2, self._coming(view, llm, slo_class)),
            (llm, NO_HURRY_S, int((~in_time).sum())),
        ]

    def _coming(self, view: ClusterView, llm: int, slo_class: int) -> int:
        """Arrivals until the next placement: the class's rate, its LLMs' shares as they wait now."""
        rate = float(view.window.arrival_rate_per_s[slo_class])
        waiting = view.waiting
        of_class = waiting.slo_class == slo_class
        n = sum(1 for _, c in self._pairs if c == slo_class)
        share = 1 / n
        if of_class.any():
            share = float((waiting.llm[of_class] == llm).mean())
        return round(rate * self.parameters.period_s * share)

    def _command(
        self,
        view: ClusterView,
        instances: NDArray[np.int64],
        problem: PlacementProblem,
        chosen: NDArray[np.int64],
    ) -> Command:
        fleet, classes = self.scenario.fleet, self.scenario.classes
        pull, limits = {}, {}
        for k, instance in enumerate(instances.tolist()):
            llm = int(chosen[k]) if chosen[k] >= 0 else int(problem.loaded[k])
            if self._llm.get(instance) == llm:
                continue
            own = [pair for pair in self._pairs if pair[0] == llm]
            own.sort(key=lambda pair: classes[pair[1]].ttft_s)
            pull[instance] = (*(self._queue[pair] for pair in own), self._late[llm])
            limits[instance] = int(problem.batch[k, llm])
            self._llm[instance] = llm
        self._llm = {i: self._llm[i] for i in instances.tolist()}
        first = view.step == 0
        return Command(
            pull=pull,
            regroup=self._overdue(view),
            instance_batch_limits=limits,
            arrival_queues={
                (fleet.llms[m], classes[c].name): ((), (queue,))
                for (m, c), queue in self._queue.items()
                if first
            },
            operations={
                pool.name: {
                    "pull_rule": "in-order",
                    "evicts_in_order": False,
                    "swap_flushes": False,
                    "static_batch": True,
                }
                for pool in fleet.pools
                if first
            },
        )
