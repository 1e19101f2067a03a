"""Commands to regions, managers and rules of scaling, as Python sees them (docs/engine.md, section 17)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.fast.regions import endpoint_scaling
from llmscale_env.sim.fast.state.layout import State
from llmscale_env.sim.fast.state.region_records import OWN_VM, preference_rows
from llmscale_env.sim.observed import SPOT_DTYPE
from llmscale_env.sim.spec import ClusterSpec
from llmscale_env.sim.spec.region_checks import (
    check_manager_thresholds,
    check_regional,
    check_scaling,
)
from llmscale_env.sim.spec.regions import ScalingThresholds
from llmscale_env.workload.requests import PS_PER_S


class RegionOrders:
    """The part of `EngineBatch` that SageServe needs."""

    spec: ClusterSpec
    states: State

    @property
    @abstractmethod
    def handles(self) -> NDArray[np.int64]:
        """(E,) where the kernels find the episodes."""

    def set_regional(
        self,
        e: int,
        llm: int,
        slo_class: int,
        threshold_ppm: int | Sequence[int] | None = None,
        preference: Sequence[Sequence[int]] | None = None,
    ) -> None:
        takes, orders = check_regional(self.spec, llm, slo_class, threshold_ppm, preference)
        if orders is not None:
            rows = preference_rows(orders, self.spec.n_regions)
            self.states.prefer[e, llm, slo_class] = rows
        if takes is not None:
            self.states.takes[e, llm, slo_class] = takes

    def regional(
        self, e: int, llm: int, slo_class: int
    ) -> tuple[list[int], tuple[tuple[int, ...], ...]]:
        rows = self.states.prefer[e, llm, slo_class].tolist()
        order = tuple(tuple(j for j in row if j >= 0) for row in rows)
        return self.states.takes[e, llm, slo_class].tolist(), order

    def manager_ppm(self, e: int) -> NDArray[np.int64]:
        mine = self.states.manager[e][: len(self.spec.managers)]
        return np.stack([mine["one_ppm"], mine["two_ppm"]], axis=-1)

    def set_managers(self, e: int, one_ppm: Sequence[int], two_ppm: Sequence[int]) -> None:
        check_manager_thresholds(self.spec, one_ppm, two_ppm)
        n = len(self.spec.managers)
        self.states.manager["one_ppm"][e, :n] = one_ppm
        self.states.manager["two_ppm"][e, :n] = two_ppm

    def set_scaling(
        self,
        e: int,
        pool: int,
        kind: int,
        target: int = -1,
        forecast_utps: int = 0,
        thresholds: ScalingThresholds | None = None,
    ) -> None:
        scaling = check_scaling(self.spec, pool, kind, target, forecast_utps, thresholds)
        handle, row = int(self.handles[e]), self.states.endpoint[e, pool]
        row["high_ppm"], row["low_ppm"] = scaling.high_ppm, scaling.low_ppm
        row["late_ps"] = scaling.period_ps - scaling.last_ps
        above, below = scaling.marks(int(forecast_utps))
        endpoint_scaling.begin_hour(handle, pool, int(kind), int(target), above, below)

    def spot(self, e: int) -> NDArray[Any]:
        out = np.zeros(len(self.spec.pools), SPOT_DTYPE)
        rows = self.states.endpoint[e]
        out["spot"] = rows["vms"]
        for name in SPOT_DTYPE.names or ():
            if name != "spot":
                out[name] = rows[name]
        lease, now = self.states.lease[e], int(self.states.glob[e, 0]["now_ps"])
        for i in np.flatnonzero(lease["since_ps"] >= 0):
            whose = "own" if lease["kind"][i] == OWN_VM else "others"
            p = self.states.inst[e, i]["pool"]
            seconds, rest = divmod(now - int(lease["since_ps"][i]), PS_PER_S)
            out[f"{whose}_s"][p] += seconds
            out[f"{whose}_ps"][p] += rest
        for whose in ("own", "others"):
            out[f"{whose}_s"] += out[f"{whose}_ps"] // PS_PER_S
            out[f"{whose}_ps"] %= PS_PER_S
        return out
