"""Chiron's global autoscaler over its local one.

Patke et al., "Hierarchical Autoscaling for Large Language Model Serving with Chiron" (arXiv 2501.08090):
section 4 (Algorithm 1, in the engine: docs/engine.md, section 7) and section 5 (here). The formulas are
plain functions in `baselines.backpressure` and `baselines.grouping`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from baselines.backpressure import (
    batch_backpressure,
    batch_instances_needed,
    common_theta,
    drain_time_s,
    expected_tokens,
    interactive_backpressure,
    interactive_targets,
    requests_ahead,
)
from baselines.fleet import GpuBudget, pools_of
from baselines.grouping import request_groups
from baselines.parameters import (
    BatchLimit,
    Count,
    LoadSource,
    NamedPolicy,
    NonNegative,
    Parameters,
    PolicyError,
    PositiveCount,
    Share,
)
from baselines.profile import pool_tokens_per_s
from baselines.space import BATCH_LIMIT, Real, Space
from llmscale_env.control.command import Command
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import pool_load_times_s
from llmscale_env.sim.spec import InstanceState


class ChironParameters(Parameters):
    """Chiron's parameters, and the places where the paper leaves a choice.

    Attributes:
        theta: level of over-provisioning; the paper's example, for spikes of three times the mean,
            is 1/3 (5.2), its default over-provisioning is 3 (6.3).
        delta: half the width of the range of IBP (footnote 2; no value given).
        usage: what "instances running interactive requests" are. "occupancy": instance-equivalents.
            An instance counts with the share of a full batch, or of KV memory, that interactive
            requests take. A full batch is the batch limit that the pool starts with, or the
            instance's own limit where that is lower. So a limit that the local autoscaler raises
            never shrinks the fleet. An instance at which a request waits has no room (zero queueing,
            footnote 3) and counts as one. "any": instances with at least one, literally; under a
            router that spreads requests every instance has one, and IBP says nothing.
        window_s: "running" is the larger of what it is now and its mean over this time, so that a spike
            adds instances at once and a lull of one interval removes none; 0: only what it is now.
        controller: local autoscaler of all three pools. "chiron" is Algorithm 1 whose throughput
            backpressure speaks after a raise only, as section 4.1 describes it; "chiron-literal" lets
            it speak always, as printed; "fixed" switches the autoscaler off (the paper's "Global" alone).
        batch_limit: limit that all pools start with; None: as the scenario says.
        min_interactive, min_mixed: never fewer.
        max_groups: request groups (the paper gives no number).
        judge: when a group counts (see `backpressure.batch_backpressure`).
        slo_ages: waiting times are held against the time that is left; False: against the whole
            TTFT target, as Algorithm 2 prints it.
        quantile: of the tokens ahead (QLM's estimate errs on the safe side).
        loading_counts: instances that are loading serve once they are there, and new ones after
            their load time; False: everything ordered serves at once, as printed.
        measured_weight: weight of the last interval in the measured throughputs; 0: only profiled.
        retire: "all": all batch instances at once, when none has a request (Algorithm 2). "idle":
            those that have none.
        load_source: from where instances load their weights; None: as the scenario says.
    """

    theta: Share = 1 / 3
    delta: Share = 0.1
    usage: Literal["occupancy", "any"] = "occupancy"
    window_s: NonNegative = 60.0
    controller: Literal["chiron", "chiron-literal", "fixed"] = "chiron"
    batch_limit: BatchLimit | None = None
    min_interactive: PositiveCount = 1
    min_mixed: Count = 1
    max_groups: PositiveCount = 8
    judge: Literal["each", "group"] = "group"
    slo_ages: bool = True
    quantile: Share = 0.95
    loading_counts: bool = True
    measured_weight: float = 0.3
    retire: Literal["all", "idle"] = "all"
    load_source: LoadSource | None = None

    @model_validator(mode="after")
    def _range(self) -> ChironParameters:
        if self.delta >= self.theta or self.theta + self.delta >= 1:
            raise ValueError(
                f"theta = {self.theta:.3g}, delta = {self.delta:.3g}: theta - delta must be above "
                "0 and theta + delta below 1"
            )
        if not 0 <= self.measured_weight <= 1:
            raise ValueError(f"measured_weight = {self.measured_weight}: must be in 0..1")
        return self


@dataclass
class _Fleet:
    """What serves one LLM: pools by role, and the queues of its batch requests."""

    llm: str
    interactive: int
    mixed: int
    batch: int
    queues: tuple[int, ...]
    batch_classes: tuple[int, ...]
    backlog: bool = False  # whether requests waited at the last look
    batch_active: int = 0  # active batch instances at the last look
    evictable_share: float = 0.0  # of mixed instances' running requests, at the last look
    promised: float | None = None  # a mixed instance's spare tokens/s, before any were measured
    measured: dict[str, float] = field(default_factory=dict)  # tokens/s per instance, by role
    running: list[tuple[float, float]] = field(default_factory=list)  # (time_s, instances), recent


@dataclass(frozen=True)
class BatchOutlook:
    """What Algorithm 2 looks at, for the curious and for tests.

    Attributes:
        groups: request groups of those still waiting for their first token, in runs of requests
            that arrived together (`ClusterView.queued_runs`).
        requests: (n,) how many are in each run.
        ahead: (n,) requests ahead of the last one of each run.
        time_left_s: (n,).
        mean_tokens, std_tokens: mu_o and sigma_o.
        mixed_tokens_per_s: spare throughput of the mixed instances.
        instance_tokens_per_s: Theta of one batch instance.
        ready_s: for each batch instance, seconds until it serves.
        load_s: seconds until one ordered now would.
    """

    groups: list[NDArray[np.int64]]
    requests: NDArray[np.int64]
    ahead: NDArray[np.int64]
    time_left_s: NDArray[np.float64]
    mean_tokens: float
    std_tokens: float
    mixed_tokens_per_s: float
    instance_tokens_per_s: float
    ready_s: tuple[float, ...]
    load_s: float

    def wait_s(self, added: int, quantile: float) -> NDArray[np.float64]:
        """(n,) estimated waiting times of the runs' last requests if so many instances were added."""
        tokens = expected_tokens(self.ahead, self.mean_tokens, self.std_tokens, quantile)
        supply = [(0.0, self.mixed_tokens_per_s)]
        supply += [(ready, self.instance_tokens_per_s) for ready in self.ready_s]
        supply += [(self.load_s, self.instance_tokens_per_s)] * added
        return drain_time_s(tokens, supply)

    def pressure(self, added: int, quantile: float, judge: Literal["each", "group"]) -> int:
        """BBP if so many batch instances were added."""
        return batch_backpressure(
            self.groups, self.wait_s(added, quantile), self.time_left_s, judge, self.requests
        )


class ChironPolicy(NamedPolicy):
    """Three kinds of instances; two backpressures; batch sizes move by themselves.

    Needs, for every LLM, a pool of each role "interactive", "mixed" and "batch", and a queue for
    its priority-1 classes.

    Choices where the paper leaves one, besides the parameters: interactive and mixed instances
    first, batch instances from what GPUs are left; where the GPUs cannot give every LLM its theta,
    all get the same larger one, so that no LLM's reserve starves another (and an instance counts
    for more than one if more waits there than its batch holds); Theta of a batch instance is what
    such instances produced while requests waited, and before any did, what its iteration times
    promise for the queued prompts and mu_o; the mixed instances' spare throughput is likewise what
    their batch requests produced, and before that the promise times what interactive requests leave
    free of them; mu_o and sigma_o are of finished batch requests, and before any finished of the
    predicted lengths in the queue; requests sent back by an eviction have had their first token:
    they are ahead of all and have no deadline. Instances on their way are not retired while
    requests wait.
    """

    parameters_type = ChironParameters
    usual_name = "chiron"
    parameters: ChironParameters

    GRID: ClassVar[dict[str, tuple[object, ...]]] = {
        "theta": (0.2, 1 / 3, 0.5, 0.7),
        "delta": (0.05, 0.1),
        "batch_limit": (32, 64, 128),
    }
    SPACE: ClassVar[Space] = {
        "theta": Real(0.05, 0.95),
        "delta_share": Real(0.05, 0.95),
        "window_s": Real(1, 300, log=True),
        "batch_limit": BATCH_LIMIT,
    }

    @staticmethod
    def of_grid(point: dict[str, float]) -> dict[str, float]:
        """Parameters of a point of `GRID` or `SPACE`: delta as a share of the most that theta allows."""
        values = dict(point)
        share = values.pop("delta_share", None)
        if share is not None:
            most = min(values["theta"], 1 - values["theta"])
            values["delta"] = float(f"{share * most:.3g}")
        return values

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Find the pools by role.

        Raises:
            PolicyError: an LLM lacks a pool of one of the roles, or a batch class has no queue.
        """
        self._scenario = scenario
        self._fleets = [self._fleet(scenario, m) for m in range(len(scenario.fleet.llms))]
        self._first = np.array([c.priority == 0 for c in scenario.classes])

    def act(self, view: ClusterView) -> Command:
        """Counts of all pools; at the first decision also the local autoscalers."""
        budget = GpuBudget(view)
        targets: dict[str, int] = {}
        reasons = []
        for fleet in self._fleets:
            self._measure(view, fleet)
        used = [self._recent(view.time_s, f, self.running(view, f)) for f in self._fleets]
        theta, delta = self._band(used)
        for fleet, running in zip(self._fleets, used, strict=True):
            have = view.instances_of(fleet.interactive), view.instances_of(fleet.mixed)
            reasons.append(f"IBP {interactive_backpressure(running, *have):.2f}")
            wanted = have
            if view.step > 0:  # an interval must have passed before idle means that it is too much
                wanted = interactive_targets(
                    running,
                    *have,
                    theta=theta,
                    delta=delta,
                    min_interactive=self.parameters.min_interactive,
                    min_mixed=self.parameters.min_mixed,
                    max_total=sum(have) + self._room(view, fleet, budget),
                )
            for p, count in zip((fleet.interactive, fleet.mixed), wanted, strict=True):
                self._order(view, targets, p, budget.grant(p, count))
        for k, fleet in enumerate(self._fleets):  # what interactive requests of all LLMs leave
            count, bbp = self._batch(view, fleet, budget)
            self._order(view, targets, fleet.batch, count)
            reasons[k] += f", BBP {bbp}"
        first: dict[str, Any] = {}
        if view.step == 0:
            names = [
                self._scenario.fleet.pools[p].name
                for fleet in self._fleets
                for p in (fleet.interactive, fleet.mixed, fleet.batch)
            ]
            first["controllers"] = dict.fromkeys(names, self.parameters.controller)
            if self.parameters.batch_limit is not None:
                first["batch_limits"] = dict.fromkeys(names, self.parameters.batch_limit)
        source = self.parameters.load_source
        return Command(targets=targets, load_source=source, reason="; ".join(reasons), **first)

    # ---- interactive ----

    def _band(self, used: Sequence[float]) -> tuple[float, float]:
        """Theta and delta, or the same band about what the GPUs allow all LLMs alike."""
        theta, delta = self.parameters.theta, self.parameters.delta
        if len(self._fleets) == 1:  # the limit on its instances says the same
            return theta, delta
        pools = self._scenario.fleet.pools
        tps = [max(pools[f.interactive].tp, pools[f.mixed].tp) for f in self._fleets]
        gpus = sum(instances * tp for instances, tp in zip(used, tps, strict=True))
        common = common_theta(theta, gpus, self._scenario.fleet.max_gpus)
        return common, delta * common / theta

    def _recent(self, time_s: float, fleet: _Fleet, running: float) -> float:
        """The larger of `running` and its mean over `window_s`."""
        past = fleet.running
        past.append((time_s, running))
        past[:] = [seen for seen in past if seen[0] > time_s - self.parameters.window_s]
        mean = sum(value for _, value in past) / len(past) if past else running
        return max(running, mean)

    def running(self, view: ClusterView, fleet: _Fleet) -> float:
        """Instances that run interactive requests, by `usage`."""
        return sum(
            float(self._in_use(view, fleet, p).sum()) for p in (fleet.interactive, fleet.mixed)
        )

    def _in_use(self, view: ClusterView, fleet: _Fleet, p: int) -> NDArray[np.float64]:
        """For each active instance of an interactive or mixed pool, what of it interactive requests use."""
        mine = view.instance_pool == p
        mine &= view.instances["state"] == int(InstanceState.ACTIVE)
        states = view.instances[mine]
        # Own queues and preempted lists of these pools hold interactive requests only.
        requests = view.running_by_class[mine][:, self._first].sum(axis=1)
        requests = requests + states["waiting"] + states["preempted"]
        if self.parameters.usage == "any":
            return (requests > 0).astype(np.float64)
        start = self.parameters.batch_limit or self._scenario.fleet.pools[p].batch_limit
        share = requests / np.clip(states["batch_limit"], 1, start)
        share[(states["waiting"] > 0) & (share < 1)] = 1.0
        if p == fleet.interactive and len(states):
            each = float(view.pools["kv_capacity"][p]) / len(states)
            share = np.maximum(share, states["kv_tokens"] / each)
        # Of several LLMs, what waits beyond a full batch says who needs the next GPU.
        return np.minimum(share, 1.0) if len(self._fleets) == 1 else share

    def _room(self, view: ClusterView, fleet: _Fleet, budget: GpuBudget) -> int:
        """Interactive and mixed instances that could be added."""
        mine = (fleet.interactive, fleet.mixed)
        draining = sum(int(view.pools["draining"][p]) for p in mine)
        tp = max(self._scenario.fleet.pools[p].tp for p in mine)
        return draining + budget.free // tp

    # ---- batch ----

    def _batch(self, view: ClusterView, fleet: _Fleet, budget: GpuBudget) -> tuple[int, int]:
        """(batch instances to have, BBP)."""
        p = fleet.batch
        pool = self._scenario.fleet.pools[p]
        have = view.instances_of(p)
        outlook = self.outlook(view, fleet)
        waiting = sum(int(view.queues["requests"][q]) for q in fleet.queues)
        if outlook is None:
            return self._retire(view, fleet, have, waiting), 0
        settings = self.parameters

        def pressure(added: int) -> int:
            assert outlook is not None
            return outlook.pressure(added, settings.quantile, settings.judge)

        now = pressure(0)
        if now == 0:
            return self._retire(view, fleet, have, waiting), 0
        most = budget.grant(p, pool.max_instances) - have
        budget.free += self._new(view, p, have + most) * pool.tp
        return budget.grant(p, have + batch_instances_needed(pressure, most)), now

    def _retire(self, view: ClusterView, fleet: _Fleet, have: int, waiting: int) -> int:
        """Batch instances that stay when BBP is 0."""
        seen = view.pools[fleet.batch]
        on_the_way = int(seen["acquiring"] + seen["loading"])
        if waiting and on_the_way:
            return have
        busy = int(seen["busy"])
        if self.parameters.retire == "idle":
            return busy
        return have if busy else 0

    def outlook(self, view: ClusterView, fleet: _Fleet) -> BatchOutlook | None:
        """What Algorithm 2 looks at; None if no request waits for its first token."""
        settings = self.parameters
        seen = view.queues[list(fleet.queues)]
        n = int(seen["fresh"].sum())
        if n == 0:
            return None
        parts = [view.queued_runs(q) for q in fleet.queues]
        fresh = ~np.concatenate([part.started for part in parts])
        requests = np.concatenate([part.requests for part in parts])[fresh]
        deadline = np.concatenate([part.deadline_s for part in parts])[fresh]
        arrival = np.concatenate([part.arrival_s for part in parts])[fresh]
        groups = request_groups(deadline, settings.max_groups, counts=requests)
        ahead = requests_ahead(groups, requests) + int(seen["requests"].sum()) - n
        left = deadline - view.time_s if settings.slo_ages else deadline - arrival
        prompt = int(seen["fresh_input"].sum()) / n
        mean, std = self._lengths(view, fleet)
        active_mixed = int(view.pools["active"][fleet.mixed])
        mixed = fleet.measured.get("mixed")
        if mixed is None:
            idle = active_mixed - float(self._in_use(view, fleet, fleet.mixed).sum())
            spare = idle * self._promise(view, fleet.mixed, prompt, mean)
            fleet.promised = spare / max(active_mixed, 1)
        else:
            spare = active_mixed * mixed
        each = fleet.measured.get("batch")
        if each is None:
            each = self._promise(view, fleet.batch, prompt, mean)
        load_s = self._load_s(fleet.batch) if settings.loading_counts else 0.0
        return BatchOutlook(
            groups=groups,
            requests=requests,
            ahead=ahead,
            time_left_s=left,
            mean_tokens=mean,
            std_tokens=std,
            mixed_tokens_per_s=spare,
            instance_tokens_per_s=each,
            ready_s=self._ready_s(view, fleet.batch, load_s),
            load_s=load_s,
        )

    def _lengths(self, view: ClusterView, fleet: _Fleet) -> tuple[float, float]:
        """mu_o and sigma_o."""
        n = total = squares = 0.0
        for c in fleet.batch_classes:
            mean, std, count = view.output_statistics(c)
            n += count
            total += count * mean
            squares += count * (std**2 + mean**2)
        if n < 2:
            seen = view.queues[list(fleet.queues)]
            n, total, squares = (
                int(seen[name].sum()) for name in ("fresh", "fresh_predicted", "fresh_squares")
            )
            return total / n, float(np.sqrt(n * squares - total**2)) / n
        mean = total / n
        return mean, float(np.sqrt(max(squares / n - mean**2, 0.0)))

    def _promise(self, view: ClusterView, p: int, prompt: float, output: float) -> float:
        pool = self._scenario.fleet.pools[p]
        active = int(view.pools["active"][p])
        limit = self.parameters.batch_limit or pool.batch_limit
        if active:
            limit = max(1, int(view.pools["limit_sum"][p]) // active)
        return pool_tokens_per_s(self._scenario, pool, limit, prompt, output)

    def _load_s(self, p: int) -> float:
        pool = self._scenario.fleet.pools[p]
        source = self.parameters.load_source or pool.load_source
        return pool.acquire_s + pool_load_times_s(self._scenario, pool)[source]

    def _ready_s(self, view: ClusterView, p: int, load_s: float) -> tuple[float, ...]:
        """For each instance of pool `p`, seconds until it serves."""
        states = view.instances[view.instance_pool == p]
        ready = [0.0] * int((states["state"] == int(InstanceState.ACTIVE)).sum())
        loading = states[states["state"] == int(InstanceState.LOADING)]
        ready += [max(0.0, float(t) - view.time_s) for t in loading["loaded_s"]]
        ready += [load_s] * int((states["state"] == int(InstanceState.ACQUIRING)).sum())
        return tuple(ready) if self.parameters.loading_counts else (0.0,) * len(ready)

    def _measure(self, view: ClusterView, fleet: _Fleet) -> None:
        """Token throughput per instance while requests waited all the time."""
        seen = view.pools
        backlog = any(int(view.queues["requests"][q]) > 0 for q in fleet.queues)
        batch_active = int(seen["active"][fleet.batch])
        running = int(seen["running"][fleet.mixed])
        share = int(seen["evictable"][fleet.mixed]) / running if running else 0.0
        if backlog and fleet.backlog and view.window.length_s > 0:
            window = view.window
            busy = float(window.busy_s[fleet.batch])
            # An instance that has just come is still filling its batch.
            if 0 < batch_active == fleet.batch_active and busy > 0:
                self._update(fleet, "batch", float(window.tokens[fleet.batch]) / busy)
            active = int(seen["active"][fleet.mixed])
            if active:
                # Running requests emit one token per iteration each, whoever's they are.
                tokens = float(window.tokens[fleet.mixed]) * (share + fleet.evictable_share) / 2
                self._update(fleet, "mixed", tokens / window.length_s / active, fleet.promised)
        fleet.backlog, fleet.evictable_share = backlog, share
        fleet.batch_active = batch_active

    def _update(self, fleet: _Fleet, role: str, value: float, before: float | None = None) -> None:
        weight = self.parameters.measured_weight
        if weight == 0:
            return
        old = fleet.measured.get(role, before)
        fleet.measured[role] = value if old is None else (1 - weight) * old + weight * value

    # ---- parts ----

    def _new(self, view: ClusterView, p: int, count: int) -> int:
        """Instances that have to be started for pool `p` to have `count`."""
        return max(0, count - view.instances_of(p) - int(view.pools["draining"][p]))

    def _order(self, view: ClusterView, targets: dict[str, int], p: int, count: int) -> None:
        if count != view.instances_of(p):
            targets[self._scenario.fleet.pools[p].name] = count

    def _fleet(self, scenario: Scenario, m: int) -> _Fleet:
        llm = scenario.fleet.llms[m]
        pools = scenario.fleet.pools
        roles: dict[str, int] = {}
        for p in pools_of(scenario, llm):
            roles.setdefault(pools[p].role, p)
        for role in ("interactive", "mixed", "batch"):
            if role not in roles:
                raise PolicyError(
                    f"{self.name}: needs a pool of role {role!r} for {llm}; scenario "
                    f"{scenario.name!r} has roles {sorted(roles)}"
                )
        names = [queue.name for queue in scenario.fleet.queues]
        batch_classes, queues = [], []
        for c, slo_class in enumerate(scenario.classes):
            if slo_class.priority == 0:
                continue
            route = scenario.route_of(llm, slo_class.name)
            if route.queue is None:
                raise PolicyError(
                    f"{self.name}: needs a queue in the route of class {slo_class.name!r} of {llm}"
                )
            batch_classes.append(c)
            queues.append(names.index(route.queue))
        return _Fleet(
            llm=llm,
            interactive=roles["interactive"],
            mixed=roles["mixed"],
            batch=roles["batch"],
            queues=tuple(dict.fromkeys(queues)),
            batch_classes=tuple(batch_classes),
        )
