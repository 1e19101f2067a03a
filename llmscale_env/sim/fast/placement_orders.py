"""Commands of placement, prediction and drift, and what is read for them, as Python sees them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.fast import observe
from llmscale_env.sim.fast.serving import placement
from llmscale_env.sim.fast.state.layout import State
from llmscale_env.sim.fast.state.reset import placement_fields
from llmscale_env.sim.observed import REPORT_DTYPE, UNDER_WAY_DTYPE
from llmscale_env.sim.spec import ClusterSpec, InstanceState, PlacementSpec, RequestState
from llmscale_env.sim.spec.checks import (
    check_assign,
    check_class,
    check_decode_router,
    check_model,
    check_predictions,
    check_profile,
    check_range,
)
from llmscale_env.sim.spec.kinds import NOT_UNDER_WAY


class PlacementOrders(ABC):
    """The part of `EngineBatch` that Aladdin needs; docs/engine.md, sections 12 to 14."""

    spec: ClusterSpec
    states: State
    _router: Any
    _features: list[Any]
    _list_rows: dict[str, int]

    @property
    @abstractmethod
    def handles(self) -> NDArray[np.int64]:
        """(E,) where the kernels find the episodes."""

    @abstractmethod
    def _list(self, e: int, row: int) -> list[int]:
        """Request ids on one of the engine's lists, head first."""

    @abstractmethod
    def _rows(self, e: int, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Places of requests by id, -1 where it is not known."""

    @abstractmethod
    def _named(self, e: int, rows: NDArray[Any] | Sequence[int]) -> NDArray[np.int64]:
        """Ids of the requests at these places."""

    @abstractmethod
    def _raise_errors(self, e: int) -> None:
        """Raise what a custom router has left behind."""

    # ---- commands ----

    def route_gateway(self, e: int, llm: int) -> None:
        check_range("llm", llm, 0, self.spec.n_llms - 1)
        placement.route_again(int(self.handles[e]), llm, self._router, self._features[e])
        self._raise_errors(e)

    def assign(self, e: int, requests: Sequence[int], instances: Sequence[int]) -> None:
        ids, to = np.asarray(requests, np.int64), np.asarray(instances, np.int64)
        places = self._rows(e, ids)
        known = places >= 0
        rows = self.states.req[e, places[known]]
        handed = rows["state"] == RequestState.HANDOVER
        waits = np.isin(rows["state"], (RequestState.GATEWAY, RequestState.OWN_QUEUE))
        # One that has landed is held by nobody.
        if self.spec.splits:
            flows = self.states.flow[e, places[known]]
            waits |= handed & (flows["source"] >= 0) & (flows["pending"] == 0)
        placeable = {
            int(r): (int(llm), bool(prefilled))
            for r, llm, prefilled, waiting in zip(
                ids[known], rows["llm"], handed, waits, strict=True
            )
            if waiting
        }
        states = self.states.inst[e]["state"].tolist()
        check_assign(self.spec, ids.tolist(), to.tolist(), placeable, states)
        placement.assign(int(self.handles[e]), places, to)

    def set_predictions(self, e: int, requests: Sequence[int], tokens: Sequence[int]) -> None:
        ids, values = np.asarray(requests, np.int64), np.asarray(tokens, np.int64)
        places = self._rows(e, ids)
        known = places >= 0
        under_way = ~np.isin(self.states.req[e, places[known]]["state"], NOT_UNDER_WAY)
        there = dict(zip(ids[known].tolist(), under_way.tolist(), strict=True))
        check_predictions(ids.tolist(), values.tolist(), there)
        placement.set_predictions(int(self.handles[e]), places, values)

    def set_profile(self, e: int, instance: int, profile: int) -> None:
        check_range("instance", instance, 0, self.spec.n_instances - 1)
        row = self.states.inst[e, instance]
        if row["state"] == InstanceState.OFF:
            raise ValueError(f"instance = {instance}: is OFF, must not be")
        check_range("profile", profile, 0, len(self.spec.profiles) - 1)
        check_profile(self.spec, int(row["profile"]), profile)
        placement.set_profile(int(self.handles[e]), instance, profile)

    def set_decode_router(self, e: int, llm: int, slo_class: int, kind: int) -> None:
        route = self._route(e, llm, slo_class)
        check_decode_router(self.spec, llm, slo_class, kind)
        route["decode_kind"] = kind

    def set_placement(self, e: int, llm: int, slo_class: int, placement: PlacementSpec) -> None:
        route = self._route(e, llm, slo_class)
        if self.spec.routes[llm][slo_class].placement is None:
            raise ValueError(f"slo_class = {slo_class}: the route of LLM {llm} has no placement")
        for name, value in placement_fields(placement).items():
            route[name] = value

    def set_placement_model(self, e: int, instance: int, model: Sequence[float] | None) -> None:
        check_range("instance", instance, 0, self.spec.n_instances - 1)
        fit = self.states.fit[e, instance]
        fit["has_model"] = model is not None
        if model is not None:
            for name, value in zip(("c1", "k1", "c3", "c2", "k2"), check_model(model), strict=True):
                fit[name] = value

    def _route(self, e: int, llm: int, slo_class: int) -> Any:
        check_class(self.spec, llm, slo_class)
        return self.states.route[e, llm, slo_class]

    # ---- reading ----

    def own_queue(self, e: int, instance: int) -> list[int]:
        return self._list(e, check_range("instance", instance, 0, self.spec.n_instances - 1))

    def decode_gateway(self, e: int, llm: int) -> list[int]:
        check_range("llm", llm, 0, self.spec.n_llms - 1)
        return self._list(e, self._list_rows["decode_gateway"] + llm)

    def placement(self, e: int, llm: int, slo_class: int) -> PlacementSpec | None:
        route = self._route(e, llm, slo_class)
        if self.spec.routes[llm][slo_class].placement is None:
            return None
        c1, k1, c3, c2, k2 = (float(route[name]) for name in ("c1", "k1", "c3", "c2", "k2"))
        return PlacementSpec(
            prefill_const_ps=c1,
            prefill_per_token_ps=k1,
            decode_const_ps=c3,
            decode_per_request_ps=c2,
            decode_per_token_ps=k2,
            ttft_ps=int(route["ttft_ps"]),
            itl_ps=int(route["itl_ps"]),
            gamma=float(route["gamma"]),
            theta=float(route["theta"]),
            fallback=int(route["fallback"]),
            scaled_norm=bool(route["scaled"]),
            saved_over_tokens=bool(route["saved_over_tokens"]),
        )

    def under_way(self, e: int) -> NDArray[Any]:
        rows = self._list_rows
        counts = self.states.lists[e, :, 2].copy()
        counts[rows["prefilling"] : rows["gateway"]] = 0  # they run; and shared queues
        counts[rows["oldest"] : rows["landed"]] = 0  # second lists through shared queues
        out = np.empty(int(counts.sum()), UNDER_WAY_DTYPE)
        n = observe.read_under_way(int(self.handles[e]), out)
        out["request"][:n] = self._named(e, out["request"][:n])
        return out[:n]

    def reports(self, e: int) -> NDArray[Any]:
        out = np.zeros(self.spec.n_instances, REPORT_DTYPE)
        observe.read_reports(int(self.handles[e]), out)
        return out
