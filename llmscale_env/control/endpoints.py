"""Endpoints of many episodes side by side: what is seen of them, and what is ordered.

The same as `control.regions` gives for one episode, as arrays, and besides what requests the clients of
each region have had, what more can be expected, and how long they waited.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.demand import WHOLE, DemandRecord
from llmscale_env.control.forecast import Forecaster, make_forecaster
from llmscale_env.control.regions import RegionPlaces
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.engine import Engine
from llmscale_env.sim.spec import InstanceState
from llmscale_env.workload.requests import PS_PER_S

DAY_S = 86_400.0
HOUR_S = 3600.0
_BITS = 51
_LONGEST_NS = 2**_BITS - 1


class EndpointLayout:
    """What of a scenario orders and observations about endpoints need.

    Attributes:
        places: who is where.
        pool_of: (I,) pool of each slot.
        n_slots, least, most: (P,) slots; instances that the pool's rule allows (without one 0 and all).
        interactive: (C,) classes that are served at once; the others can wait.
        interval_s: of control: width of the windows of `EndpointsSeen`.
        bins_per_hour: such windows in an hour, at least one.
        season: windows in a day if the history has a whole one, else 0.

    Raises:
        ValueError: the history is no whole number of intervals.
    """

    def __init__(self, scenario: Scenario) -> None:
        pools = scenario.fleet.pools
        self.places = RegionPlaces(scenario)
        self.n_slots = np.array([pool.max_instances for pool in pools])
        self.pool_of = np.repeat(np.arange(len(pools)), self.n_slots)
        rules = [pool.scaling for pool in pools]
        self.least = np.array([rule.least if rule else 0 for rule in rules])
        most = [rule.most if rule else None for rule in rules]
        self.most = np.array(
            [p.max_instances if m is None else m for p, m in zip(pools, most, strict=True)]
        )
        self.interactive = np.array([c.priority == 0 for c in scenario.classes])
        self.interval_s = scenario.control_interval_s
        self.bins_per_hour = max(1, round(HOUR_S / self.interval_s))
        before = scenario.history_s / self.interval_s
        if abs(before - round(before)) > WHOLE * max(before, 1):
            raise ValueError(
                f"history_s = {scenario.history_s:g}: must be a whole number of intervals of "
                f"control_interval_s = {self.interval_s:g}"
            )
        per_day = DAY_S / self.interval_s
        whole = scenario.history_s >= DAY_S and per_day == round(per_day)
        self.season = round(per_day) if whole else 0

    @property
    def n_series(self) -> int:
        """LLMs times regions of clients."""
        return len(self.places.llms) * len(self.places.regions)

    def group_spot(self, spot: NDArray[np.int64]) -> NDArray[np.int64]:
        """(E, P) VMs leased out that a pool may take, of its own LLM and of others, of (E, P) by LLM."""
        group = self.places.group
        shared = (group[:, None] == group) & (group[:, None] >= 0)
        return spot @ shared.T


@dataclass(frozen=True)
class EndpointsSeen:
    """Endpoints of `E` episodes at an instant.

    Attributes:
        layout: who is where.
        spot: (E, P) VMs leased out with a pool's LLM.
        donating, off: (E, P) instances on their way to spot; slots that nothing is on.
        left_s: (E, I) seconds until an instance on its way serves; infinite: it is not on its way.
        bins: intervals that have ended, the history's included, of each episode (E,).
        recent: (E, k, M, R, 2) input and predicted output tokens per second of the requests of clients
            of each region in the last `k` intervals (an hour), the newest first: of those that are served
            at once, and of those that can wait; zeros before the first one.
        forecast: (E, 2, M, R) tokens per second of the former that are expected in the next interval, and in
            the one that ends an hour ahead.
        error: (E, 2, M, R) recent weighted absolute percentage error of such forecasts.
        ttft_s: (E, M, R, 2) median and 95th percentile of the TTFT of the former that finished in the last
            interval, 0 without any.
    """

    layout: EndpointLayout
    spot: NDArray[np.int64]
    donating: NDArray[np.int64]
    off: NDArray[np.int64]
    left_s: NDArray[np.float64]
    bins: NDArray[np.int64]
    recent: NDArray[np.float64]
    forecast: NDArray[np.float64]
    error: NDArray[np.float64]
    ttft_s: NDArray[np.float64]


def see_endpoints(
    layout: EndpointLayout,
    engine: Engine,
    first: int,
    records: Sequence[Callable[[], DemandRecord]],
    finished_before: NDArray[np.int64],
) -> EndpointsSeen:
    """Episodes `first..first + len(records) - 1` as they stand.

    Args:
        layout: of the scenario.
        engine: with these episodes.
        first: the first of them.
        records: of each what came in it.
        finished_before: (E,) requests that had finished when the last interval began.
    """
    end = first + len(records)
    state = engine.states_of_instances()[first:end]
    n, n_pools = len(records), len(layout.n_slots)

    def count(which: NDArray[np.bool_]) -> NDArray[np.int64]:
        found = np.zeros((n, n_pools), np.int64)
        for p in range(n_pools):
            found[:, p] = which[:, layout.pool_of == p].sum(axis=1)
        return found

    now_ps, ready_ps = engine.times_ps[first:end], engine.ready_ps(first, end)
    left_s = np.maximum(ready_ps - now_ps[:, None], 0) / PS_PER_S
    shape = (len(layout.places.llms), len(layout.places.regions))
    hour = layout.bins_per_hour
    bins = np.zeros(n, np.int64)
    recent = np.zeros((n, hour, *shape, 2))
    forecast, error = np.zeros((n, 2, *shape)), np.zeros((n, 2, *shape))
    ttft_s = np.zeros((n, *shape, 2))
    for k, record in enumerate(records):
        demand = record().until(float(now_ps[k]) / PS_PER_S, layout.interval_s)
        bins[k] = len(demand.tokens)
        last = demand.tokens_per_s[::-1][:hour]
        for column, which in enumerate((layout.interactive, ~layout.interactive)):
            recent[k, : len(last), ..., column] = last[..., which].sum(axis=-1)
        followed = _follow(record(), layout, demand.tokens_per_s)
        forecast[k] = followed.predict_path(hour)[[0, -1]].reshape(2, *shape)
        for column, steps in enumerate((1, hour)):
            error[k, column] = followed.recent_error(steps).reshape(shape)
        ttft_s[k] = _ttft(layout, engine, first + k, int(finished_before[k]))
    return EndpointsSeen(
        layout=layout,
        spot=np.stack([engine.spot(e)["spot"] for e in range(first, end)]),
        donating=count(state == InstanceState.DONATING),
        off=count(state == InstanceState.OFF),
        left_s=np.where(ready_ps < 0, np.inf, left_s),
        bins=bins,
        recent=recent,
        forecast=forecast,
        error=error,
        ttft_s=ttft_s,
    )


def _follow(
    record: DemandRecord, layout: EndpointLayout, tokens_per_s: NDArray[np.float64]
) -> Forecaster:
    """A forecaster that has been told all intervals so far, of one series per LLM and region.

    It is kept with the record and goes on from where it was; before an earlier time it starts anew.
    """
    key = ("forecaster", layout.interval_s)
    kept = record.known.get(key)
    if kept is None or kept.age[0] > len(tokens_per_s):
        settings = {"kind": "holt-winters", "season_length": layout.season}
        kept = make_forecaster({**settings, "max_steps": layout.bins_per_hour})
        kept.reset(layout.n_series)
        record.known[key] = kept
    for values in tokens_per_s[int(kept.age[0]) :]:
        kept.update(values[..., layout.interactive].sum(axis=-1).reshape(-1))
    return kept


def _ttft(
    layout: EndpointLayout, engine: Engine, e: int, finished_before: int
) -> NDArray[np.float64]:
    """(M, R, 2) see `EndpointsSeen.ttft_s`."""
    n_regions = len(layout.places.regions)
    found = np.zeros((layout.n_series, 2))
    rows = engine.finished_since(e, finished_before)
    rows = rows[layout.interactive[rows["slo_class"]]]
    series = rows["llm"] * n_regions + rows["region"]
    # One sort for all series: nanoseconds of 26 days are within 51 bits.
    waited = np.minimum(rows["ttft_ps"] // 1000, _LONGEST_NS)
    keys = np.sort((series << _BITS) + waited)
    starts = np.searchsorted(keys, np.arange(layout.n_series + 1) << _BITS)
    for k in np.flatnonzero(np.diff(starts)).tolist():
        mine = keys[starts[k] : starts[k + 1]] & _LONGEST_NS
        # The order statistic at or above the quantile's place.
        found[k] = [mine[-(-(len(mine) - 1) * q // 100)] / 1e9 for q in (50, 95)]
    return found.reshape(-1, n_regions, 2)
