"""What vLLM's metrics tell of a cluster, as a view for policies, and which policies need more than that.

vLLM reports per pod: requests running and waiting, the share of its KV memory in use, and counters of tokens,
first tokens, finished requests and preemptions. It does not report classes, deadlines, single requests, their
lengths or contexts, batch limits, or when a pod will be ready. A policy that reads such a thing gets
`NotSeen`.

The same `Seen` is made from Prometheus (`metrics`) and from a simulated cluster (`seen_of`). So a policy can
be tried in the simulator with exactly what it would see of a real cluster, and `needs` says what it lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baselines.make import make_policy, misfit
from baselines.parameters import PolicyError
from baselines.practice.seen import kv_capacity
from baselines.registry import POLICIES
from experiments.desk.advising.case import POOL
from llmscale_env.control.command import Command
from llmscale_env.control.policy import Policy
from llmscale_env.control.run import run_episode
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.load import load_scenario, validate_scenario
from llmscale_env.scenarios.schema import MAX_HORIZON_S, Scenario
from llmscale_env.sim.spec import InstanceState

CLASS_COUNTS = ("arrived", "started", "finished", "output_tokens")
POOL_COUNTS = ("tokens", "preemptions")
SUMS = ("ttft_sum_s", "itl_sum_s", "itl_count")

_PROMPTS = "the prompts of requests that have arrived (it counts them when they are prefilled)"
_WHY = {
    "instances.batch_limit": "how many requests a pod may run",
    "pools.limit_sum": "how many requests a pod may run",
    "pools.load_bins": "when a pod will be ready",
    "pools.next_ready_s": "when a pod will be ready",
    "pools.oldest_s": "when a waiting request arrived",
    "pools.waiting_tokens": "the KV memory that waiting requests need",
    "totals.input_tokens": _PROMPTS,
    "totals.predicted_tokens": "how long answers will be",
    "window.input_tokens": _PROMPTS,
    "window.predicted_tokens": "how long answers will be",
    "forecast_rate_per_s": "what is to come",
    "forecast_quantiles_per_s": "what is to come",
    "queued": "single requests",
    "under_way": "single requests, their lengths and deadlines",
    "waiting": "single requests, their lengths and deadlines",
    "arrived": "single requests",
    "finished": "single requests",
    "reports": "the tokens and times of single iterations",
    "save_under_way": "single requests, which a planner simulates",
    "snapshot": "what networks are shown: lateness by class, deadlines, batch limits, when pods are ready",
}
_ONE_CLASS = "which class a request is of; with one target there is one class, and counts are seen"


class NotSeen(RuntimeError):
    """A policy asked for something that vLLM's metrics do not tell.

    Args:
        what: the attribute or column.
    """

    def __init__(self, what: str, why: str = "") -> None:
        self.what = what
        super().__init__(f"{what}: vLLM does not tell {why or _WHY.get(what, 'it')}")


class Columns:
    """Rows with named columns of which only some are seen; used like NumPy's structured arrays."""

    def __init__(self, name: str, rows: Any, hidden: str = "") -> None:
        self._name, self._rows, self._hidden = name, rows, hidden

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: Any) -> Any:
        """A column by name, or the rows of an index, a slice or a mask.

        Raises:
            NotSeen: a column that is not seen.
        """
        if not isinstance(key, str):
            return Columns(self._name, self._rows[key], self._hidden)
        if self._hidden or key not in (self._rows.dtype.names or ()):
            raise NotSeen(f"{self._name}.{key}", self._hidden)
        return self._rows[key]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotSeen(self._name)


@dataclass(frozen=True)
class Seen:
    """A cluster of one pool at a decision, as far as vLLM's metrics tell.

    Attributes:
        time_s: since the start of the shadow, in whole control intervals.
        step: decisions before this one.
        clock_s: time of the week, Monday 0 h being 0 (UTC of a real cluster).
        length_s: since the last decision; 0 at the first one.
        state: (I,) `InstanceState` by slot: ACTIVE, DRAINING, else OFF.
        running, waiting: (I,) requests; those that were preempted wait, as vLLM counts them.
        kv_tokens: (I,) share of KV memory in use times the capacity that the cards give.
        on_the_way: pods that are ordered and do not serve yet.
        window: what counters grew by since the last decision, by name (`CLASS_COUNTS`, `POOL_COUNTS`,
            `SUMS`).
        totals: the same since the start of the shadow.
    """

    time_s: float
    step: int
    clock_s: float
    length_s: float
    state: NDArray[np.int8]
    running: NDArray[np.int64]
    waiting: NDArray[np.int64]
    kv_tokens: NDArray[np.int64]
    on_the_way: int
    window: Mapping[str, float]
    totals: Mapping[str, float]

    @property
    def active(self) -> NDArray[np.bool_]:
        """(I,) which slots serve."""
        return self.state == int(InstanceState.ACTIVE)

    @property
    def have(self) -> int:
        """Instances that a target counts: on their way, and active."""
        return self.on_the_way + int(self.active.sum())


def seen_of(view: ClusterView) -> Seen:
    """What vLLM's metrics would tell of a simulated cluster with one pool."""
    rows, pool = view.instances, view.pools[0]
    serves = np.isin(rows["state"], (int(InstanceState.ACTIVE), int(InstanceState.DRAINING)))
    window = view.window
    some = np.nan_to_num(window.ttft_mean_s) * window.started
    counts = {name: float(getattr(window, name).sum()) for name in (*CLASS_COUNTS, *POOL_COUNTS)}
    # Answers of a token have no time between tokens; a view tells the mean of the others alone.
    itl = float(np.nanmean(window.itl_mean_s)) if np.isfinite(window.itl_mean_s).any() else np.nan
    known = float(np.isfinite(itl))
    counts |= {
        "ttft_sum_s": float(some.sum()),
        "itl_sum_s": float(np.nan_to_num(itl)),
        "itl_count": known,
    }
    totals = {name: float(view.totals[name].sum()) for name in CLASS_COUNTS}
    totals |= {name: float(pool[name]) for name in POOL_COUNTS}
    zero = np.zeros(len(rows), np.int64)
    return Seen(
        time_s=view.time_s,
        step=view.step,
        clock_s=view.clock_s,
        length_s=window.length_s,
        state=np.where(serves, rows["state"], int(InstanceState.OFF)).astype(np.int8),
        running=np.where(serves, rows["running"], zero),
        waiting=np.where(serves, rows["waiting"] + rows["preempted"], zero),
        kv_tokens=np.where(serves, rows["kv_tokens"], zero),
        on_the_way=int(pool["acquiring"] + pool["loading"]),
        window=counts,
        totals=totals,
    )


class SeenWindow:
    """`Window`, as far as it is seen.

    Attributes:
        length_s: of the interval.
    """

    def __init__(self, seen: Seen, n_classes: int) -> None:
        self._counts, self._one = seen.window, n_classes == 1
        self.length_s = seen.length_s

    def __getattr__(self, name: str) -> Any:
        """Counts as (1,) arrays.

        Raises:
            NotSeen: what is not counted, and counts by class if there are several.
        """
        if name.startswith("_"):
            raise AttributeError(name)
        counts = self._counts
        if name in POOL_COUNTS:
            return np.array([round(counts[name])], np.int64)
        of_class = (*CLASS_COUNTS, "ttft_mean_s", "itl_mean_s", "arrival_rate_per_s")
        if name not in of_class:
            raise NotSeen(f"window.{name}")
        if not self._one:
            raise NotSeen(f"window.{name}", _ONE_CLASS)
        if name == "ttft_mean_s":
            return np.array([_mean(counts["ttft_sum_s"], counts["started"])])
        if name == "itl_mean_s":
            return np.array([_mean(counts["itl_sum_s"], counts["itl_count"])])
        if name == "arrival_rate_per_s":
            return np.array([counts["arrived"] / self.length_s if self.length_s else 0.0])
        return np.array([round(counts[name])], np.int64)


class SeenView:
    """`ClusterView`, as far as it is seen: everything else raises `NotSeen`.

    Attributes:
        scenario: one pool, one LLM.
        time_s, step, clock_s: see `Seen`.
        past: nothing is known of the time before.
    """

    def __init__(self, scenario: Scenario, seen: Seen) -> None:
        self.scenario = scenario
        self.time_s, self.step, self.clock_s = seen.time_s, seen.step, seen.clock_s
        self.past = None
        self.window = SeenWindow(seen, len(scenario.classes))
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotSeen(name)

    @cached_property
    def pools(self) -> Columns:
        """(1,) `POOL_SEEN`, the seen columns.

        Pods on their way are all `loading`; preempted requests are `waiting`.
        """
        seen, capacity = self._seen, kv_capacity(self.scenario, 0)
        active = seen.active
        n = int(active.sum())
        kv = np.where(active, seen.kv_tokens, 0)
        columns: dict[str, float] = {
            "acquiring": 0,
            "loading": seen.on_the_way,
            "active": n,
            "draining": int((seen.state == int(InstanceState.DRAINING)).sum()),
            "running": int(seen.running.sum()),
            "waiting": int(seen.waiting.sum()),
            "preempted": 0,
            "kv_tokens": int(kv.sum()),
            "kv_capacity": n * capacity,
            "kv_max": float(kv.max(initial=0)) / capacity,
            **{name: round(seen.totals[name]) for name in POOL_COUNTS},
        }
        return Columns("pools", _rows(1, columns))

    @cached_property
    def instances(self) -> Columns:
        """(I,) `INSTANCE_DTYPE`, the seen columns."""
        seen = self._seen
        columns = {
            "state": seen.state,
            "llm": 0,
            "running": seen.running,
            "waiting": seen.waiting,
            "preempted": 0,
            "kv_tokens": seen.kv_tokens,
        }
        return Columns("instances", _rows(len(seen.state), columns))

    @cached_property
    def totals(self) -> Columns:
        """(1,) `CLASS_SEEN`, the seen columns; nothing of several classes."""
        classes = len(self.scenario.classes)
        columns = {name: round(self._seen.totals[name]) for name in CLASS_COUNTS}
        return Columns("totals", _rows(classes, columns), "" if classes == 1 else _ONE_CLASS)

    @property
    def instance_pool(self) -> NDArray[np.int64]:
        """(I,) all slots are of the one pool."""
        return np.zeros(len(self._seen.state), np.int64)

    def pool(self, name: str) -> Columns:
        """Row of the pool called `name`."""
        if name != POOL:
            raise KeyError(f"pool {name!r}: there are {[POOL]}")
        row: Columns = self.pools[0]
        return row

    def instances_of(self, p: int) -> int:
        """Instances that a target counts."""
        if p != 0:
            raise IndexError(f"pool {p}: there is pool 0 only")
        return self._seen.have


def _rows(n: int, columns: Mapping[str, Any]) -> NDArray[Any]:
    """Structured rows; a column of one value has it in every row."""
    kinds = [(name, np.asarray(values).dtype) for name, values in columns.items()]
    rows = np.zeros(n, kinds)
    for name, values in columns.items():
        rows[name] = values
    rows.setflags(write=False)
    return rows


def _mean(total: float, count: float) -> float:
    return total / count if count else np.nan


# ---- the cluster that is believed to be there ----


@dataclass(frozen=True)
class Target:
    """What is promised to a class of requests: seconds to the first token, and between tokens."""

    name: str
    ttft_s: float
    itl_s: float


@dataclass(frozen=True)
class Cluster:
    """What a policy is told of the cluster in advance: its scenario.

    Attributes:
        llm, gpu, tp: cards, and GPUs per pod; they give the KV memory of a pod.
        load_s: from an order of a pod until it serves.
        max_instances: pods at most.
        every_s: control interval.
        targets: by class.
    """

    llm: str
    gpu: str
    tp: int
    load_s: float
    max_instances: int
    every_s: float
    targets: tuple[Target, ...]

    def scenario(self, initial: int, rate_per_s: float = 1.0) -> Scenario:
        """One pool of pods behind a service that sends each request to the pod with the fewest.

        Args:
            initial: pods at the start.
            rate_per_s: of the requests, for `needs`; a policy in the shadow is not told the load.

        Raises:
            ScenarioError: an unknown card, or an LLM that does not fit.
        """
        classes = [
            {"name": t.name, "ttft_s": t.ttft_s, "itl_s": t.itl_s, "priority": 0}
            for t in self.targets
        ]
        streams = [
            {"name": t.name, "llm": self.llm, "slo_class": t.name, "arrivals": "poisson",
             "rate_per_s": rate_per_s / len(self.targets), "lengths": "sharegpt-single-turn"}
            for t in self.targets
        ]  # fmt: skip
        pool = {
            "name": POOL, "role": "interactive", "llm": self.llm, "gpu": self.gpu, "tp": self.tp,
            "load_s": dict.fromkeys(("ssd", "host", "multicast"), self.load_s),
            "max_instances": self.max_instances,
            "initial_instances": min(initial, self.max_instances),
        }  # fmt: skip
        data: dict[str, Any] = {
            "name": "serve",
            "horizon_s": MAX_HORIZON_S // self.every_s * self.every_s,
            "control_interval_s": self.every_s,
            "classes": classes,
            "workload": {"streams": streams},
            "fleet": {
                "max_gpus": self.max_instances * self.tp,
                "host_keep_alive_s": 0,
                "pools": [pool],
                "routes": [{"kind": "jsq-requests", "pools": [POOL]}],
            },
        }
        return validate_scenario(data)


# ---- which policies can run ----

_TRIED_STEPS = 40
_TRIED_RATE = 20.0
"""Requests per second and pod of the trial: enough that requests wait, and policies want more pods."""


class _Blindfolded:
    """A policy that is shown what is seen alone."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self._policy = policy

    def reset(self, scenario: Scenario, seed: int) -> None:
        self._policy.reset(scenario, seed)

    def act(self, view: ClusterView) -> Command:
        return act(self._policy, view.scenario, seen_of(view))


def act(policy: Policy, scenario: Scenario, seen: Seen) -> Command:
    """What a policy orders that sees no more than vLLM's metrics tell.

    Raises:
        NotSeen: it asked for more.
    """
    shown: Any = SeenView(scenario, seen)
    return policy.act(shown)


def needs(policy: Policy, cluster: Cluster, simulation: ClusterSimulation | None = None) -> str:
    """What a policy needs and a shadow does not have, in a sentence; "" if it can run.

    The policy runs for a short simulated time with what it would see: pods that start idle, and more
    requests than they can serve. A policy that asks for more only in a rarer case is held in the shadow when
    it does.

    Args:
        policy: its state is lost: a policy is reset before it is used.
        cluster: that it is to run.
        simulation: of `trial(cluster)`, to use again.
    """
    if getattr(policy, "is_clairvoyant", False):
        return "is told the future, which nobody knows of a real cluster"
    scenario = trial(cluster) if simulation is None else simulation.scenario
    try:
        run_episode(_Blindfolded(policy), scenario, simulation=simulation, forecaster=None)
    except NotSeen as error:
        return f"needs {error}"
    except PolicyError as error:
        return misfit(policy.name, scenario, error)
    except ValueError as error:  # a model's, of a network
        return str(error)
    return ""


def trial(cluster: Cluster) -> Scenario:
    """The scenario in which `needs` tries a policy."""
    initial = min(2, cluster.max_instances)
    scenario = cluster.scenario(initial, _TRIED_RATE * initial)
    return load_scenario(scenario, horizon_s=_TRIED_STEPS * cluster.every_s)


def runnable(cluster: Cluster) -> list[tuple[str, str]]:
    """(name, what it lacks or "") of every reference policy that decides how many instances there are."""
    simulation = ClusterSimulation(trial(cluster))
    found = []
    for name, each in POLICIES.items():
        if each.family == "pools":
            found.append((name, needs(make_policy(name), cluster, simulation)))
    return found
