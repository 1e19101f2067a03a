"""Requests in gateways of many episodes side by side: who waits, what workers have to do, what is ordered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.virtual import AS_IS
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.fast import EngineBatch
from llmscale_env.sim.fast import gateways as kernels
from llmscale_env.sim.linear import linear_times
from llmscale_env.sim.observed import NO_SLACK, WORKER_DTYPE
from llmscale_env.sim.spec import ClusterSpec, RouterKind
from llmscale_env.workload.requests import PS_PER_S

__all__ = [
    "NO_SLACK",
    "RULES",
    "Gateways",
    "PlaceOrders",
    "see_gateways",
    "worker_times_s",
]

RULES = {kind.name.lower().replace("_", "-"): kind for kind in RouterKind}
"""Routing rules by the names that scenarios and commands use."""

_OF_REQUEST = ("arrival", "input", "predicted", "emitted", "llm", "cls")


@dataclass(frozen=True)
class Gateways:
    """Who waits for a place in `E` episodes, and what workers have to do.

    Attributes:
        time_ps: (E,) present time.
        waiting: (E, M) requests in each LLM's gateway.
        head_ps: (E, M) arrival of its head, -1: nobody waits.
        turn: (E,) of the heads the request that arrived first, -1: nobody waits.
        request: fields of `turn`, (E,) each, 0 without one: `arrival_ps`, `input_tokens`, `predicted_tokens`,
            `emitted_tokens`, `llm`, `slo_class`.
        workers: (E, I) `WORKER_DTYPE`; (E, 0) if they were not asked for.
    """

    time_ps: NDArray[np.int64]
    waiting: NDArray[np.int64]
    head_ps: NDArray[np.int64]
    turn: NDArray[np.int64]
    request: dict[str, NDArray[np.int64]]
    workers: NDArray[Any]


def see_gateways(engine: EngineBatch, first: int, last: int, with_workers: bool) -> Gateways:
    """Episodes `first..last - 1` as they stand."""
    n, spec = last - first, engine.spec
    waiting = np.zeros((n, spec.n_llms), np.int64)
    head_ps = np.zeros((n, spec.n_llms), np.int64)
    turn = np.zeros(n, np.int64)
    workers = np.zeros((n, spec.n_instances if with_workers else 0), WORKER_DTYPE)
    itl_ps = np.array([c.itl_slo_ps for c in spec.classes], np.int64)
    kernels.see_gateways(engine.handles, first, last, itl_ps, waiting, head_ps, turn, workers)
    rows = engine.states.req[np.arange(first, last), np.maximum(turn, 0)]
    there = turn >= 0
    values = [np.where(there, rows[name], 0).astype(np.int64) for name in _OF_REQUEST]
    names = (
        "arrival_ps",
        "input_tokens",
        "predicted_tokens",
        "emitted_tokens",
        "llm",
        "slo_class",
    )
    return Gateways(
        time_ps=engine.states.glob["now_ps"][first:last, 0].copy(),
        waiting=waiting,
        head_ps=head_ps,
        turn=turn,
        request=dict(zip(names, values, strict=True)),
        workers=workers,
    )


def worker_times_s(spec: ClusterSpec) -> NDArray[np.float64]:
    """(I, 5) Aladdin's (c1, k1, c3, c2, k2) of every slot, from its own pool's iteration times."""
    pools = [linear_times(spec.profiles[p.profile], p.batch_limit) for p in spec.pools]
    return np.array([pools[p] for p in spec.pool_of_slot]).reshape(-1, 5) / PS_PER_S


@dataclass
class PlaceOrders:
    """Orders about placement in `E` episodes; `AS_IS` (NaN) where nothing is ordered.

    Attributes:
        rules: (E,) `RouterKind` for all arrivals.
        gamma, theta: (E,) strictness of best fit, of all routes that have a placement.
        models: (E,) whether workers get the coefficients `model_s` (I, 5) for best fit.
        requests, instances: (E,) a request of a gateway, and where it goes.
        again: (E, M) whether the gateway is routed again.
        impossible: (E,) choices that were not possible and count for nothing.
    """

    rules: NDArray[np.int64]
    gamma: NDArray[np.float64]
    theta: NDArray[np.float64]
    models: NDArray[np.bool_]
    requests: NDArray[np.int64]
    instances: NDArray[np.int64]
    again: NDArray[np.bool_]
    impossible: NDArray[np.int64]
    model_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 5)))

    @classmethod
    def none(cls, seen: Gateways) -> PlaceOrders:
        """Nothing ordered."""
        n = len(seen.turn)
        return cls(
            rules=np.full(n, AS_IS, np.int64),
            gamma=np.full(n, np.nan),
            theta=np.full(n, np.nan),
            models=np.zeros(n, bool),
            requests=np.full(n, AS_IS, np.int64),
            instances=np.full(n, AS_IS, np.int64),
            again=np.zeros(seen.waiting.shape, bool),
            impossible=np.zeros(n, np.int64),
        )

    def carry_out(self, engine: EngineBatch) -> None:
        """Order it in all episodes of an engine; who gives orders sees to it that they are possible."""
        route = engine.states.route
        for name, values, given in (
            ("kind", self.rules, self.rules != AS_IS),
            ("gamma", self.gamma, ~np.isnan(self.gamma)),
            ("theta", self.theta, ~np.isnan(self.theta)),
        ):
            if given.any():
                route[name][given] = values[given, None, None]
        if self.models.any():
            fit = engine.states.fit
            fit["has_model"][self.models] = 1
            for k, name in enumerate(("c1", "k1", "c3", "c2", "k2")):
                fit[name][self.models] = self.model_s[:, k] * PS_PER_S
        if (self.requests != AS_IS).any():
            kernels.assign_many(engine.handles, self.requests, self.instances)
        for e, m in np.argwhere(self.again).tolist():
            engine.route_gateway(e, m)

    def fields(self, e: int, scenario: Scenario) -> dict[str, Any]:
        """The orders of episode `e` as fields of a `Command`."""
        names = {int(kind): name for name, kind in RULES.items()}
        classes = [c.name for c in scenario.classes]
        strict = {
            name: float(values[e])
            for name, values in (("gamma", self.gamma), ("theta", self.theta))
            if not np.isnan(values[e])
        }
        rule, request = int(self.rules[e]), int(self.requests[e])
        models = self.model_s if self.models[e] else self.model_s[:0]
        return {
            "routers": {} if rule == AS_IS else dict.fromkeys(classes, names[rule]),
            "placement": dict.fromkeys(classes, strict) if strict else {},
            "placement_models": {i: tuple(times.tolist()) for i, times in enumerate(models)},
            "assign": None if request == AS_IS else ([request], [int(self.instances[e])]),
            "route_gateway": tuple(
                llm for llm, again in zip(scenario.fleet.llms, self.again[e], strict=True) if again
            ),
        }
