"""Commands that start, stop and break instances, as Python sees them (docs/engine.md, sections 8, 10, 15)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.fast import advance as kernels
from llmscale_env.sim.fast.fleet import scaling
from llmscale_env.sim.fast.state.layout import State
from llmscale_env.sim.fast.weights import live, loading
from llmscale_env.sim.observed import HOME_DTYPE, LOADING_DTYPE
from llmscale_env.sim.spec import ClusterSpec
from llmscale_env.sim.spec.checks import (
    check_drain,
    check_fail,
    check_mutate,
    check_range,
    check_target,
)
from llmscale_env.sim.spec.weight_checks import check_scale


class FleetOrders:
    """The part of `EngineBatch` that orders instances."""

    spec: ClusterSpec
    states: State
    _router: Any
    _features: list[Any]

    @property
    @abstractmethod
    def handles(self) -> NDArray[np.int64]:
        """(E,) where the kernels find the episodes."""

    def set_target(self, e: int, pool: int, count: int, source: int | None = None) -> int:
        order = check_target(self.spec, pool, count, source)
        return int(
            kernels.set_target(int(self.handles[e]), *order, self._router, self._features[e])
        )

    def drain(self, e: int, instance: int) -> None:
        instance = check_drain(self.spec, instance, self.states.inst["state"][e])
        kernels.drain(int(self.handles[e]), instance, self._router, self._features[e])

    def fail(self, e: int, instance: int) -> None:
        instance = check_fail(self.spec, instance, self.states.inst["state"][e])
        kernels.fail(int(self.handles[e]), instance, self._router, self._features[e])

    def scale(
        self,
        e: int,
        slots: Sequence[int],
        sources: Sequence[int],
        partners: Sequence[int] | None = None,
    ) -> None:
        handle, fleet_now = int(self.handles[e]), self.states.inst[e]
        orders = check_scale(
            self.spec,
            slots,
            sources,
            partners,
            fleet_now["state"].tolist(),
            fleet_now["llm"].tolist(),
            self._in_pair(e).tolist(),
            lambda host, llm: bool(scaling.will_have(handle, host, llm)),
        )
        scaling.scale(handle, *(np.array(numbers, np.int64) for numbers in orders))

    def _in_pair(self, e: int) -> NDArray[np.bool_]:
        """(I,) whether a slot helps another or is helped."""
        live = self.states.live[e]
        paired: NDArray[np.bool_] = (live["helper"] >= 0) | (live["leader"] >= 0)
        return paired

    def mutate(self, e: int, instance: int) -> None:
        states = self.states.inst["state"][e]
        instance = check_mutate(self.spec, instance, states, self._in_pair(e))
        scaling.mutate(int(self.handles[e]), instance, self._router, self._features[e])

    def fail_host(self, e: int, host: int) -> None:
        host = check_range("host", host, 0, self.spec.n_hosts - 1)
        scaling.fail_host(int(self.handles[e]), host, self._router, self._features[e])

    # ---- reading ----

    def loading(self, e: int) -> NDArray[Any]:
        out = np.zeros(self.spec.n_instances, LOADING_DTYPE)
        loading.read_loading(int(self.handles[e]), out)
        live.read_pairs(int(self.handles[e]), out)
        return out

    def homes(self, e: int) -> NDArray[Any]:
        out = np.zeros(self.spec.n_llms, HOME_DTYPE)
        loading.read_homes(int(self.handles[e]), out)
        return out
