"""Live scaling, docs/engine.md section 16, by hand and as laws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llmscale_env.sim.reference import ReferenceEngine
from llmscale_env.sim.spec import (
    ClusterSpec,
    InstanceState,
    LiveMode,
    PoolPhase,
    PoolSpec,
    RouterKind,
    RouteSpec,
)
from tests.small_clusters import column, pool, profile, table
from tests.test_reference_weights import cluster

ENGINES = (ReferenceEngine,)
Engine = Callable[..., Any]
every = pytest.mark.parametrize("engine_class", ENGINES)
OFF, ACQUIRING, LOADING, ACTIVE, DRAINING = InstanceState

UNIT = 10
"""Picoseconds that one layer of a batch takes: 10 tokens are prefilled in 10 + 6 * 10 = 7 units."""


def prefilling(**changes: Any) -> PoolSpec:
    """Two slots, the first of them active; a request of 10 tokens fills a batch; 7 layers of 6 units each."""
    fields: dict[str, Any] = {
        "n_slots": 2,
        "phase": PoolPhase.PREFILL,
        "prefill_tokens": 10,
        "weight_bytes": 7 * 6 * UNIT,
        "layers": 7,
        "pull": (),
    }
    return pool(**(fields | changes))


def live(**changes: Any) -> ClusterSpec:
    """Prefill slots 0 and 1, of which 0 is active, and a decode slot 2, each on a host of its own."""
    routes = ((RouteSpec(RouterKind.JSQ_REQUESTS, (0,), decode_pools=(1,)),),)
    decode = pool(pull=(), phase=PoolPhase.DECODE)
    times_of = profile(prefill_const_ps=10, prefill_per_token_ps=6)
    fields = {"routes": routes, "profiles": (times_of,)}
    return cluster(prefilling(**changes), decode, **fields)


# --- Figure 12 of the paper ---


@every
@pytest.mark.parametrize("source", [0, 1])
@pytest.mark.parametrize(
    "mode, ends, latency",
    [
        (LiveMode.ZIGZAG, [7, 12, 17, 21, 24, 27], 22),
        (LiveMode.BEST_EFFORT, [7, 13, 19, 25, 31, 37], 32),
    ],
)
def test_figure_12(
    engine_class: Engine, mode: LiveMode, ends: list[int], latency: int, source: int
) -> None:
    """7 layers, a layer loads in the time of 6 executions; 6 requests come with the first layer.

    The paper counts request 6 from when the loading instance takes it, 5 units after the first layer has
    come: 22 units in zigzag, 32 by best effort.
    """
    loaded_ps = 6 * UNIT
    engine = engine_class(live(live_mode=mode), table(*((loaded_ps, 10, 1) for _ in range(6))))
    if source == 1:  # the other way round: events of the loading instance come first
        loaded_ps += 10**4
        engine = engine_class(live(live_mode=mode), table(*((loaded_ps, 10, 1) for _ in range(6))))
        engine.scale([1], [0])
        engine.advance(5000)
        engine.drain(0)
        engine.advance(10**4)
    engine.scale([1 - source], [source], [source])
    engine.advance(loaded_ps + 50 * UNIT)
    first = [(t - loaded_ps) / UNIT for t in column(engine, "first_token_ps")]
    assert first == ends
    assert first[-1] - 5 == latency
    assert column(engine, "instance") == [source] * 6
