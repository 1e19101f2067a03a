"""QLM's policy: groups, estimates and the global scheduler at work on a cluster of virtual queues."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from baselines.parameters import (
    NamedPolicy,
    NonNegative,
    Parameters,
    PolicyError,
    Positive,
    PositiveCount,
)
from baselines.qlm.book import Cell, Changes, GroupBook, LiveGroup
from baselines.qlm.fixed import fixed_llms
from baselines.qlm.groups import TokenClustering, size_limit
from baselines.qlm.history import OutputHistory
from baselines.qlm.problem import Profiler, queue_problem, serving_instances
from baselines.qlm.programme import plan
from baselines.qlm.schedule import Plan, QueueProblem, evaluate, queue_waits_s
from baselines.qlm.search import edf
from baselines.qlm.waiting import batch_size
from baselines.solver import SolverSettings
from baselines.space import Choice, Real, Space, Whole
from llmscale_env.control.command import Command
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario

Order = dict[int, list[int]]
"""Virtual queues: shared queues by instance, in order."""


@dataclass
class Standing:
    """What has been ordered, and stands.

    Attributes:
        order: the virtual queues.
        sent: the lists of queues that instances were given last.
        started: whether anything has been ordered.
        evicting: whether groups may evict those behind them; None: nothing was said.
    """

    order: Order = field(default_factory=dict)
    sent: dict[int, tuple[int, ...]] = field(default_factory=dict)
    started: bool = False
    evicting: bool | None = None

    def with_order(self, order: Order) -> Standing:
        """A copy, in which other virtual queues stand."""
        lists = {instance: list(queues) for instance, queues in order.items()}
        return replace(self, order=lists, sent=dict(self.sent))


class QlmParameters(Parameters):
    """QLM (Patke et al., SoCC 2024), and what can be switched off.

    Attributes:
        delta: largest group, in average batches (section 8.3).
        average_batch: what delta multiplies. "shared" (ours): at most the batch that memory and limit
            hold, and so much less that the largest group is an even share of what waits. Every instance
            can then have a group. "profiled": that batch, as in Figures 19 and 20.
        token_clusters: most clusters by input tokens of one LLM and class; 1: tokens do not matter.
        scheduler: "plan": the programme, beyond its size the search (`baselines.qlm.programme.plan`);
            "edf": the fallback that the paper names, at every call.
        invoke: "violation": the scheduler is called when the estimator foresees one (the paper);
            "always": at every decision.
        solve_time_s: a plan takes effect at the first decision so long after its call.
        max_nodes, gap: of the solver; a clock would make episodes depend on the machine.
        reserve: share of a TTFT target that the estimator leaves free (ours; 0: the paper's p <= 0).
        share: an instance that has nothing left in its virtual queue also takes from groups of others, if
            they are of the LLM that it has loaded (ours; false: one group, one virtual queue, as in the
            paper).
        decode: decode time of a group's last request: of the maximum output (the paper), or of the mean.
        inefficiency: epsilon.
        prior_mean_tokens, prior_std_tokens: outputs, until enough have been seen.
        mean_input_tokens: likewise.
        max_output_tokens: most that the LLMs may produce.
        placement: which instance a group goes to: "plan" decides (the paper), "round-robin" or "random"
            (section 8.3); its order there is planned all the same.
        evict: when a group may take the place of those behind it: "order": whenever it does not fit
            otherwise; "violation": only from a decision at which a violation is foreseen to the next one
            (section 5 says that eviction is invoked by one).
        pulling, eviction, swapping: the operations of section 5. Without pulling in order, an instance
            takes its groups in order of arrival; without eviction, running requests stay, also when a
            group of another LLM comes next; without swapping, each instance serves one LLM
            (`baselines.qlm.fixed`).
    """

    delta: Annotated[float, Field(ge=1, le=16)] = 4.0
    average_batch: Literal["shared", "profiled"] = "shared"
    token_clusters: Annotated[int, Field(ge=1, le=4)] = 2
    scheduler: Literal["plan", "edf"] = "plan"
    invoke: Literal["violation", "always"] = "violation"
    solve_time_s: NonNegative = 1.0
    max_nodes: PositiveCount = 50
    gap: Annotated[float, Field(ge=0, lt=1)] = 0.01
    reserve: Annotated[float, Field(ge=0, lt=1)] = 0.25
    share: bool = True
    decode: Literal["maximum", "mean"] = "maximum"
    inefficiency: Annotated[float, Field(ge=1)] = 1.0
    prior_mean_tokens: Positive = 300.0
    prior_std_tokens: Positive = 300.0
    mean_input_tokens: Positive = 300.0
    max_output_tokens: Positive = 2048.0
    placement: Literal["plan", "round-robin", "random"] = "plan"
    evict: Literal["order", "violation"] = "order"
    pulling: bool = True
    eviction: bool = True
    swapping: bool = True


class QlmPolicy(NamedPolicy):
    """See `QlmParameters`; raises `PolicyError` for a scenario without group queues."""

    parameters_type = QlmParameters
    usual_name = "qlm"
    parameters: QlmParameters
    SPACE: ClassVar[Space] = {
        "delta": Real(1.0, 16.0, log=True),
        "average_batch": Choice(("shared", "profiled")),
        "token_clusters": Whole(1, 4),
        "invoke": Choice(("violation", "always")),
        "reserve": Real(0.0, 0.8),
        "share": Choice((True, False)),
        "decode": Choice(("maximum", "mean")),
        "evict": Choice(("order", "violation")),
    }

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Start an episode."""
        fleet, p = scenario.fleet, self.parameters
        pairs = [
            (m, c)
            for m, llm in enumerate(fleet.llms)
            for c, slo_class in enumerate(scenario.classes)
            if scenario.route_of(llm, slo_class.name).kind == "shared-queue"
        ]
        if not pairs or fleet.group_queues < 2 * len(pairs):
            raise PolicyError(
                f"{self.name}: needs routes of kind shared-queue and at least two group queues for each "
                f"LLM and class; scenario {scenario.name!r} has {fleet.group_queues}"
            )
        self.scenario = scenario
        self._rng = np.random.default_rng(seed)
        self._history = OutputHistory(p.prior_mean_tokens, p.prior_std_tokens)
        self._profiler = Profiler(scenario, p.inefficiency)
        first = len(fleet.queues)
        self._book = GroupBook(
            range(first, first + fleet.group_queues),
            pairs,
            self._limit,
            TokenClustering(max_clusters=p.token_clusters),
            expected_output=lambda llm, slo_class: self._history.statistics((llm, slo_class)).mean,
        )
        self._pairs = pairs
        self._standing = Standing()
        self._pending: tuple[float, Order] | None = None
        self._turn = 0
        self._home: dict[int, int] = {}
        self._fixed = None if p.swapping else fixed_llms(scenario, self.name)
        self._violated = False
        self._waiting = 0.0
        self.calls: list[tuple[float, int, Plan]] = []
        """(time, groups, plan) of every call of the scheduler in this episode."""

    def act(self, view: ClusterView) -> Command:
        """Classify, estimate, and if need be reorder."""
        self._learn(view)
        instances = serving_instances(view)
        if len(instances):
            self._waiting = len(view.waiting) / len(instances)
        groups, changes = self._book.update(view)
        self._follow(changes, groups, instances)
        waiting = [group for group in groups if group.waiting > 0]
        self._violated = False
        if waiting and len(instances):
            self._schedule(view, instances, waiting)
        if self._pending is not None and view.time_s >= self._pending[0] - 1e-9:
            self._adopt(self._pending[1])
            self._pending = None
        return self._command(view, instances, groups, changes)

    def solve(self, problem: QueueProblem) -> Plan:
        """The global scheduler's answer; a subclass may time it, or give another."""
        p = self.parameters
        if p.scheduler == "edf":
            return edf(problem)
        settings = SolverSettings(gap=p.gap, time_limit_s=3600.0, max_nodes=p.max_nodes)
        return plan(problem, settings=settings, seed=0)

    # ---- parts ----

    def _limit(self, llm: int) -> int:
        """Algorithm 1's largest group: delta average batches.

        Ours: not more than an even share of what waits. A group stands in one virtual queue, so that one
        larger than that leaves instances without work while its requests wait for a single one. The
        batch that memory and limit hold is that of the first pool that serves the LLM.
        """
        fleet = self.scenario.fleet
        name = fleet.llms[llm]
        p, pool = next((p, pool) for p, pool in enumerate(fleet.pools) if name in pool.llms)
        stats = self._history.statistics(llm)
        batch = batch_size(
            self._profiler.kv_tokens(p, name),
            self.parameters.mean_input_tokens,
            stats.mean,
            largest=pool.batch_limit,
            held_output=0.5,
        )
        delta = self.parameters.delta
        if self.parameters.average_batch == "profiled":
            return size_limit(batch, delta)
        return size_limit(max(1.0, min(batch, self._waiting / delta)), delta)

    def _learn(self, view: ClusterView) -> None:
        done = view.finished
        for m in np.unique(
            done.llm
        ).tolist():  # of all its classes, for what is not about one group
            self._history.observe(m, done.output_tokens[done.llm == m])
        for m, c in self._pairs:
            mine = (done.llm == m) & (done.slo_class == c)
            if mine.any():
                self._history.observe((m, c), done.output_tokens[mine])

    def _follow(
        self, changes: Changes, groups: list[LiveGroup], instances: NDArray[np.int64]
    ) -> None:
        """New groups take their place behind those that they came out of, freed ones leave."""
        orders = [self._standing.order] + ([self._pending[1]] if self._pending else [])
        for order in orders:
            for queues in order.values():
                queues[:] = [q for q in queues if q not in changes.freed]
                for new, parent in changes.parents.items():
                    if parent in queues:
                        queues.insert(queues.index(parent) + 1, new)
        for queue in changes.freed:
            self._home.pop(queue, None)
        for instance in instances.tolist():
            self._standing.order.setdefault(instance, [])
        gone = set(self._standing.order) - set(instances.tolist())
        for instance in gone:  # its groups are placed anew, none is lost
            del self._standing.order[instance]

    def _problem(
        self, view: ClusterView, instances: NDArray[np.int64], groups: list[LiveGroup]
    ) -> QueueProblem:
        p = self.parameters
        problem = queue_problem(
            view,
            instances,
            groups,
            self._history,
            self._profiler,
            mean_input=p.mean_input_tokens,
            max_output=p.max_output_tokens,
            decode=p.decode,
            reserve=p.reserve,
            fixed_llm=None if self._fixed is None else self._fixed[instances],
            staying=self._staying(view, instances, groups),
        )
        if p.placement == "plan":
            return problem
        here = self._dealt(problem, instances, groups)
        return replace(problem, work_s=np.where(here, problem.work_s, np.inf))

    def _staying(
        self, view: ClusterView, instances: NDArray[np.int64], waiting: list[LiveGroup]
    ) -> NDArray[np.bool_]:
        """(I, N) whether requests that run on an instance stay there if a group comes next.

        The engine removes what runs if all of it stands later on the instance's list (engine.md, section
        9). A group of the instance's own virtual queue that still waits stands behind the one that comes
        next, whatever its SLO; any other stands where `_with_running` puts it.
        """
        if not self.parameters.eviction:
            busy = view.instances["running"][instances] > 0
            return np.repeat(busy[:, None], len(waiting), axis=1)
        targets = np.array([self._target_s(group.cell) for group in waiting])
        queued = {group.queue for group in waiting}
        staying = np.zeros((len(instances), len(waiting)), np.bool_)
        for k, instance in enumerate(instances.tolist()):
            behind = queued.intersection(self._standing.order[instance])
            for queue in np.flatnonzero(view.running_from[instance]).tolist():
                if queue in self._book.cell_of and queue not in behind:
                    staying[k] |= targets >= self._target_s(self._book.cell_of[queue])
        return staying

    def _dealt(
        self, problem: QueueProblem, instances: NDArray[np.int64], groups: list[LiveGroup]
    ) -> NDArray[np.bool_]:
        """Round robin or random: (G, I) the one instance of each group, drawn when it is new."""
        numbers = instances.tolist()
        here = np.zeros(problem.allowed.shape, np.bool_)
        for n, group in enumerate(groups):
            able = [k for k in range(len(numbers)) if problem.allowed[k, n]]
            if not able:
                continue
            home = self._home.get(group.queue)
            if home not in [numbers[k] for k in able]:
                pick = self._turn % len(able)
                if self.parameters.placement == "random":
                    pick = int(self._rng.integers(len(able)))
                self._turn += 1
                home = self._home[group.queue] = numbers[able[pick]]
            here[numbers.index(home), n] = True
        return here

    def _schedule(
        self, view: ClusterView, instances: NDArray[np.int64], groups: list[LiveGroup]
    ) -> None:
        """Place what is new; call the scheduler if somebody will be late."""
        p = self.parameters
        problem = self._problem(view, instances, groups)
        number = {group.queue: n for n, group in enumerate(groups)}
        queues = self._present(problem, instances, number)
        now = evaluate(problem, queues, "edf")
        self._violated = not now.feasible
        if self._pending is not None:
            return
        if now.feasible and p.invoke == "violation":
            return
        found = self.solve(problem)
        self.calls.append((view.time_s, len(groups), found))
        if found.objective >= now.objective and p.scheduler == "plan":
            return
        order = {
            instance: [groups[n].queue for n in queue]
            for instance, queue in zip(instances.tolist(), found.queues, strict=True)
        }
        self._pending = (view.time_s + p.solve_time_s, order)

    def _present(
        self, problem: QueueProblem, instances: NDArray[np.int64], number: dict[int, int]
    ) -> list[list[int]]:
        """The virtual queues as they are, in the problem's numbers, with every group in one."""
        queues: list[list[int]] = []
        placed: set[int] = set()
        for k, instance in enumerate(instances.tolist()):
            mine = []
            for queue in self._standing.order[instance]:
                n = number.get(queue, -1)
                if n >= 0 and n not in placed and problem.allowed[k, n]:
                    mine.append(n)
                    placed.add(n)
            queues.append(mine)
        for queue, n in number.items():
            able = np.flatnonzero(problem.allowed[:, n])
            if n in placed or len(able) == 0:
                continue
            k = min(
                able.tolist(), key=lambda k: (queue_waits_s(problem, k, [*queues[k], n])[-1], k)
            )
            queues[k].append(n)
            for other in self._standing.order.values():
                if queue in other:
                    other.remove(queue)
            self._standing.order[int(instances[k])].append(queue)
        return queues

    def _adopt(self, order: Order) -> None:
        """A plan takes effect; what came since it was called for stays where it is, behind."""
        planned = {queue for queues in order.values() for queue in queues}
        for instance, queues in self._standing.order.items():
            rest = [queue for queue in queues if queue not in planned]
            queues[:] = [*order.get(instance, []), *rest]
        for instance, queues in order.items():
            if instance not in self._standing.order:  # it has failed meanwhile
                if (
                    not self._standing.order
                ):  # so have all others: whoever is back first will be planned for
                    return
                spare = min(self._standing.order, key=lambda i: len(self._standing.order[i]))
                self._standing.order[spare] += queues

    def _command(
        self,
        view: ClusterView,
        instances: NDArray[np.int64],
        groups: list[LiveGroup],
        changes: Changes,
    ) -> Command:
        known = {group.queue: group for group in groups}
        running = view.running_from
        loaded = view.instances["llm"]
        everything = sorted(
            (group for group in groups if group.waiting > 0),
            key=lambda group: (self._deadline(group, view.time_s), group.queue),
        )
        pull = {}
        for instance in instances.tolist():
            self._step_back(instance, known, running[instance])
            queues = [q for q in self._standing.order[instance] if q in known]
            if not self.parameters.pulling:
                queues.sort(key=lambda q: self._oldest(known[q]))
            queues = self._with_running(queues, known, running[instance])
            if self.parameters.share:
                here = set(queues)
                queues += [
                    group.queue
                    for group in everything
                    if group.queue not in here and group.cell.llm == loaded[instance]
                ]
            if self._standing.sent.get(instance) != tuple(queues):
                pull[instance] = tuple(queues)
                self._standing.sent[instance] = tuple(queues)
        for instance in set(self._standing.sent) - set(instances.tolist()):
            del self._standing.sent[instance]
        arrivals = changes.arrivals if self._standing.started else set(self._pairs)
        regroup = None
        if changes.requests:
            regroup = (np.concatenate(changes.requests), np.concatenate(changes.queues))
        names = self.scenario.fleet.llms, [c.name for c in self.scenario.classes]
        operations: dict[str, dict[str, object]] = {}
        pools = [pool.name for pool in self.scenario.fleet.pools]
        if not self._standing.started:
            operations = {
                pool.name: {
                    "pull_rule": "in-order",
                    # Section 5: what runs is removed "to make space" at a swap as at an eviction.
                    "swap_flushes": self.parameters.eviction,
                    "static_batch": False,
                }
                for pool in self.scenario.fleet.pools
            }
        evicting = self._evicts()
        if evicting != self._standing.evicting:
            for name in pools:
                operations.setdefault(name, {})["evicts_in_order"] = evicting
            self._standing.evicting = evicting
        self._standing.started = True
        return Command(
            pull=pull,
            regroup=regroup,
            arrival_queues={
                (names[0][m], names[1][c]): self._book.arrival_queues(m, c)
                for m, c in sorted(arrivals)
            },
            operations=operations,
        )

    def _evicts(self) -> bool:
        """Whether groups may evict those behind them until the next decision."""
        if not self.parameters.eviction:
            return False
        return self.parameters.evict == "order" or self._violated

    def _deadline(self, group: LiveGroup, now_s: float) -> float:
        """Of its oldest request, or of one that would come now."""
        return self._target_s(group.cell) + (
            float(group.arrival_s[0]) if len(group.arrival_s) else now_s
        )

    @staticmethod
    def _oldest(group: LiveGroup) -> float:
        return float(group.arrival_s[0]) if len(group.arrival_s) else -1.0

    def _step_back(
        self, instance: int, known: dict[int, LiveGroup], running: NDArray[np.int64]
    ) -> None:
        """Groups of an instance's own that only run there go where `_with_running` puts them.

        In the virtual queue itself, so that requests that are evicted come back in that place.
        """
        order = self._standing.order[instance]
        served = {q for q in order if q in known and known[q].waiting == 0 and running[q] > 0}
        if served:
            only = np.where(np.isin(np.arange(len(running)), list(served)), running, 0)
            rest = [q for q in order if q not in served]
            order[:] = self._with_running(rest, known, only)

    def _with_running(
        self, queues: list[int], known: dict[int, LiveGroup], running: NDArray[np.int64]
    ) -> list[int]:
        """Groups of which requests run but none wait stay before those of looser SLOs, so that only
        tighter ones evict them.
        """
        placed = list(queues)
        here = set(queues)
        for queue in np.flatnonzero(running).tolist():
            if queue in here or queue not in known:
                continue
            mine = self._target_s(known[queue].cell)
            at = 0
            while at < len(placed) and self._target_s(known[placed[at]].cell) < mine:
                at += 1
            placed.insert(at, queue)
        return placed

    def _target_s(self, cell: Cell) -> float:
        return self.scenario.classes[cell.slo_class].ttft_s
