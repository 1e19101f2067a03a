"""What an episode was like, interval by interval: columns of numbers, a value per decision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.results.region_result import has_regions
from llmscale_env.control.reward import PARTS
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.sim.picoseconds import PS_PER_S

Column = NDArray[Any]

_OF_CLASSES = ("arrived", "finished", "on_time", "ttft_mean_s", "itl_mean_s")
_POOLS_NOW = ("acquiring", "loading", "active", "draining", "running", "waiting")
_OF_POOLS = ("preemptions", "evictions", "loads", "tokens", "busy_s")


class SeriesRecorder:
    """Remembers a simulation's first episode after every interval.

    Only whole arrays are put aside on the way; columns are made once, at the end.

    Args:
        sim: the simulation.
    """

    def __init__(self, sim: ClusterSimulation) -> None:
        self._sim = sim
        self._spot = has_regions(sim.scenario)
        self._seen: list[tuple[Any, ...]] = []

    def add(self, costs: NDArray[np.float64], clipped: int) -> None:
        """An interval is over.

        Args:
            costs: its `PARTS`.
            clipped: orders of the last command that were.
        """
        sim = self._sim
        self._seen.append(
            (
                sim.engine.now_ps(0),
                costs,
                clipped,
                sim.window(0),
                sim.engine.pool_seen[0].copy(),
                sim.engine.queue_seen[0]["requests"].copy(),
                sim.by_pool["stopped"][0],
                sim.engine.spot(0)["spot"] if self._spot else None,
            )
        )

    def columns(self) -> dict[str, Column]:
        """(k,) values by name: `time_s`, `reward`, `cost/PART`, `CLASS/...`, `POOL/...`, `queue/QUEUE`."""
        scenario = self._sim.scenario
        if not self._seen:
            return {}
        now_ps, costs, clipped, windows, pools, queues, stopped, spot = zip(
            *self._seen, strict=True
        )
        cost, seen, queued = np.array(costs), np.stack(pools), np.stack(queues)
        stops = np.stack(stopped)

        def of(name: str) -> Callable[[int], Column]:
            values = np.stack([getattr(window, name) for window in windows])
            return lambda k: values[:, k]

        found: dict[str, Column] = {
            "time_s": np.array(now_ps) / PS_PER_S,
            "reward": np.array([-float(each.sum()) for each in costs]),
            **{f"cost/{part}": cost[:, k] for k, part in enumerate(PARTS)},
            "clipped": np.array(clipped),
            "gpu_s": np.array([window.gpu_s.sum() for window in windows]),
        }
        by_class = {name: of(name) for name in (*_OF_CLASSES, "violations")}
        for c, slo_class in enumerate(scenario.classes):
            found |= {f"{slo_class.name}/{name}": by_class[name](c) for name in by_class}
        by_pool = {name: of(name) for name in (*_OF_POOLS, "gpu_s")}
        for p, pool in enumerate(scenario.fleet.pools):
            mine = seen[:, p]
            found |= {f"{pool.name}/{name}": mine[name].astype(np.int64) for name in _POOLS_NOW}
            capacity, active = np.maximum(mine["kv_capacity"], 1), np.maximum(mine["active"], 1)
            found[f"{pool.name}/kv_use"] = mine["kv_tokens"] / capacity
            found[f"{pool.name}/batch_limit"] = mine["limit_sum"] / active
            found |= {f"{pool.name}/{name}": by_pool[name](p) for name in by_pool}
            found[f"{pool.name}/stops"] = stops[:, p]
        if self._spot:
            on_spot = np.stack(spot)
            for p, pool in enumerate(scenario.fleet.pools):
                found[f"{pool.name}/spot"] = on_spot[:, p]
        for q, queue in enumerate(scenario.fleet.queues):
            found[f"queue/{queue.name}"] = queued[:, q]
        return found
