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
from llmscale_env.sim.spec import ClusterSpec, InstanceState, LoadSource
from llmscale_env.sim.spec.checks import check_range
from llmscale_env.sim.spec.weight_checks import check_partners, check_scale


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
        check_range("pool", pool, 0, len(self.spec.pools) - 1)
        check_range("count", count, 0, self.spec.pools[pool].n_slots)
        if source is None:
            source = self.spec.pools[pool].load_source
        check_range("source", source, 0, len(LoadSource) - 1)
        return int(
            kernels.set_target(
                int(self.handles[e]), pool, count, source, self._router, self._features[e]
            )
        )

    def drain(self, e: int, instance: int) -> None:
        check_range("instance", instance, 0, self.spec.n_instances - 1)
        state = InstanceState(int(self.states.inst[e, instance]["state"]))
        if state != InstanceState.ACTIVE:
            raise ValueError(
                f"instance = {instance}: is {state.name}, must be ACTIVE to be drained"
            )
        kernels.drain(int(self.handles[e]), instance, self._router, self._features[e])

    def fail(self, e: int, instance: int) -> None:
        check_range("instance", instance, 0, self.spec.n_instances - 1)
        if int(self.states.inst[e, instance]["state"]) == InstanceState.OFF:
            raise ValueError(f"instance = {instance}: is OFF, cannot fail")
        kernels.fail(int(self.handles[e]), instance, self._router, self._features[e])

    def scale(
        self,
        e: int,
        slots: Sequence[int],
        sources: Sequence[int],
        partners: Sequence[int] | None = None,
    ) -> None:
        slots, sources = [int(k) for k in slots], [int(k) for k in sources]
        partners = [-1] * len(slots) if partners is None else [int(k) for k in partners]
        handle, fleet_now = int(self.handles[e]), self.states.inst[e]
        check_scale(
            self.spec,
            slots,
            sources,
            fleet_now["state"].tolist(),
            fleet_now["llm"].tolist(),
            lambda host, llm: bool(scaling.will_have(handle, host, llm)),
        )
        check_partners(
            self.spec, slots, partners, fleet_now["state"].tolist(), self._in_pair(e).tolist()
        )
        scaling.scale(
            handle,
            np.array(slots, np.int64),
            np.array(sources, np.int64),
            np.array(partners, np.int64),
        )

    def _in_pair(self, e: int) -> NDArray[np.bool_]:
        """(I,) whether a slot helps another or is helped."""
        live = self.states.live[e]
        paired: NDArray[np.bool_] = (live["helper"] >= 0) | (live["leader"] >= 0)
        return paired

    def mutate(self, e: int, instance: int) -> None:
        check_range("instance", instance, 0, self.spec.n_instances - 1)
        if self.spec.twin_of_slot[instance] < 0:
            raise ValueError(f"instance = {instance}: has no twin")
        state = InstanceState(int(self.states.inst[e, instance]["state"]))
        if state != InstanceState.ACTIVE:
            raise ValueError(f"instance = {instance}: is {state.name}, must be ACTIVE")
        if self._in_pair(e)[instance]:
            raise ValueError(f"instance = {instance}: is in a live pair")
        scaling.mutate(int(self.handles[e]), instance, self._router, self._features[e])

    def fail_host(self, e: int, host: int) -> None:
        check_range("host", host, 0, self.spec.n_hosts - 1)
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
