"""The numbers of many episodes side by side, at the instants of their decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.endpoints import EndpointsSeen
from llmscale_env.sim.observed import Gateways, VirtualQueues, Weights
from llmscale_env.workload.days import PastRequests

FORECAST_QUANTILES = (0.5, 0.9)
"""Quantiles of the forecast that a controller may ask for."""


@dataclass(frozen=True)
class Snapshot:
    """The numbers of many episodes side by side: what observation blocks are computed from.

    Structured arrays are the engine's own, with times in picoseconds. Blocks divide them by targets in
    picoseconds, as whole numbers: a detour by seconds would change the last digits of observations.

    Attributes:
        time_s: (E,) present time.
        clock_s: (E,) present time of the week, as in `ClusterView`.
        pasts: (E,) what came before each episode, where it is counted; else None.
        length_s: (E,) length of the last interval, 0 at the start.
        by_class: name -> (E, C) counts of the last interval (names as in `CLASS_SEEN`).
        by_pool: name -> (E, P) counts of the last interval.
        tally, pools, queues: (E, C), (E, P), (E, Q) structured (`CLASS_SEEN`, `POOL_SEEN`, `QUEUE_SEEN`).
        history: (E, k, C) arrivals of all intervals; those before `interval[e]` have ended.
        token_history: (E, k, C) likewise their input and predicted output tokens.
        step, interval: (E,) number of the decision, intervals that have ended: the same unless decisions
            are made at arrivals.
        forecast_rate_per_s, forecast_error: (E, C); zeros without a forecaster.
        forecast_quantiles_per_s: (E, C, 2) `FORECAST_QUANTILES` of the same forecast; zeros without one.
        wanted: (E, P) instances that a reference policy wants, if there is one beside the agent.
        see_tokens, see_quantiles: make `token_history`, `forecast_quantiles_per_s` likewise.
        see_virtual, see_gateways, see_weights, see_endpoints: make `virtual`, `gateways` and `workers`,
            `weights`, `endpoints` when they are asked for.
        known: what was computed from it and may be asked for again; a changed copy begins with nothing.
    """

    time_s: NDArray[np.float64]
    clock_s: NDArray[np.float64]
    pasts: tuple[PastRequests | None, ...]
    length_s: NDArray[np.float64]
    by_class: dict[str, NDArray[np.int64]]
    by_pool: dict[str, NDArray[np.int64]]
    tally: NDArray[Any]
    pools: NDArray[Any]
    queues: NDArray[Any]
    history: NDArray[np.int64]
    step: NDArray[np.int64]
    interval: NDArray[np.int64]
    forecast_rate_per_s: NDArray[np.float64]
    forecast_error: NDArray[np.float64]
    see_virtual: Callable[[], VirtualQueues]
    see_gateways: Callable[[bool], Gateways]
    see_weights: Callable[[], Weights]
    see_endpoints: Callable[[], EndpointsSeen]
    see_tokens: Callable[[], NDArray[np.int64]]
    see_quantiles: Callable[[], NDArray[np.float64]] | None
    wanted: NDArray[np.int64] | None = None
    known: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def token_history(self) -> NDArray[np.int64]:
        """Tokens asked for by interval."""
        return self.see_tokens()

    @cached_property
    def forecast_quantiles_per_s(self) -> NDArray[np.float64]:
        """Median and high quantile of the forecast."""
        if self.see_quantiles is None:
            return np.zeros((*self.forecast_rate_per_s.shape, len(FORECAST_QUANTILES)))
        return self.see_quantiles()

    @cached_property
    def virtual(self) -> VirtualQueues:
        """Queues, lists and instances one by one."""
        return self.see_virtual()

    @cached_property
    def gateways(self) -> Gateways:
        """Who waits for a place."""
        return self.see_gateways(False)

    @cached_property
    def weights(self) -> Weights:
        """Where weights are."""
        return self.see_weights()

    @cached_property
    def endpoints(self) -> EndpointsSeen:
        """Spot VMs, load of the clients of each region, what is expected of it."""
        return self.see_endpoints()

    @cached_property
    def workers(self) -> Gateways:
        """The same, with what every instance has to do."""
        return self.see_gateways(True)
