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
from llmscale_env.sim.spec import ClusterSpec, PlacementSpec
from llmscale_env.sim.spec.checks import (
    check_assign,
    check_class,
    check_decode_router,
    check_model,
    check_placement,
    check_predictions,
    check_profile,
    check_range,
    check_whole,
)


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
    def find(
        self, episodes: int | NDArray[np.int64], requests: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """(n,) places of requests by id, -1 where it is not known; their FOUND_DTYPE."""

    @abstractmethod
    def _named(self, e: int, rows: NDArray[Any] | Sequence[int]) -> NDArray[np.int64]:
        """Ids of the requests at these places."""

    @abstractmethod
    def _raise_errors(self, e: int) -> None:
        """Raise what a custom router has left behind."""

    # ---- commands ----

    def route_gateway(self, e: int, llm: int) -> None:
        llm = check_range("llm", llm, 0, self.spec.n_llms - 1)
        placement.route_again(int(self.handles[e]), llm, self._router, self._features[e])
        self._raise_errors(e)

    def assign(self, e: int, requests: Sequence[int], instances: Sequence[int]) -> None:
        ids = check_whole("requests", requests)
        places, found = self.find(e, ids)
        to = check_assign(self.spec, ids, instances, found, self.states.inst["state"][e])
        placement.assign(int(self.handles[e]), places, to)

    def set_predictions(self, e: int, requests: Sequence[int], tokens: Sequence[int]) -> None:
        ids = check_whole("requests", requests)
        places, found = self.find(e, ids)
        lengths = check_predictions(ids, tokens, found)
        placement.set_predictions(int(self.handles[e]), places, lengths)

    def set_profile(self, e: int, instance: int, profile: int) -> None:
        now = self.states.inst[e]
        order = check_profile(self.spec, instance, profile, now["state"], now["profile"])
        placement.set_profile(int(self.handles[e]), *order)

    def set_decode_router(self, e: int, llm: int, slo_class: int, kind: int) -> None:
        key, kind = check_decode_router(self.spec, llm, slo_class, kind)
        _ = self.handles[e]
        self.states.route["decode_kind"][e][key] = kind

    def set_placement(self, e: int, llm: int, slo_class: int, placement: PlacementSpec) -> None:
        key = check_placement(self.spec, llm, slo_class)
        _ = self.handles[e]
        for name, value in placement_fields(placement).items():
            self.states.route[name][e][key] = value

    def set_placement_model(self, e: int, instance: int, model: Sequence[float] | None) -> None:
        instance = check_range("instance", instance, 0, self.spec.n_instances - 1)
        values = None if model is None else check_model(model)
        _ = self.handles[e]
        fit = self.states.fit[e, instance]
        fit["has_model"] = values is not None
        if values is not None:
            for name, value in zip(("c1", "k1", "c3", "c2", "k2"), values, strict=True):
                fit[name] = value

    # ---- reading ----

    def own_queue(self, e: int, instance: int) -> list[int]:
        return self._list(e, check_range("instance", instance, 0, self.spec.n_instances - 1))

    def decode_gateway(self, e: int, llm: int) -> list[int]:
        check_range("llm", llm, 0, self.spec.n_llms - 1)
        return self._list(e, self._list_rows["decode_gateway"] + llm)

    def placement(self, e: int, llm: int, slo_class: int) -> PlacementSpec | None:
        key = check_class(self.spec, llm, slo_class)
        if self.spec.routes[llm][slo_class].placement is None:
            return None
        route = self.states.route[e][key]
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
