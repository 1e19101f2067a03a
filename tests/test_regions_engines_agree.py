"""Both engines agree to the picosecond with regions, managers, spot VMs, endpoint scaling (engine.md 17)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import ClassVar

import pytest

from llmscale_env.sim.fast import FastEngine
from llmscale_env.sim.fast.state.layout import State
from llmscale_env.sim.spec import InstanceState, RequestState, SpotSpec
from tests.engine_cases import run_case
from tests.moved_episodes import (
    Restless,
    difference_when_moved,
    often,
    refuse_touching,
    three_tables,
)
from tests.region_cases import REGION_MECHANISMS, broken_spot_law, make_region_case
from tests.test_engines_agree import CHUNK, CHUNKS, compared, never_reached


@CHUNKS
def test_engines_agree_on_regions(first: int) -> None:
    for seed in range(first, first + CHUNK):
        compared(seed, make_region_case(seed))


@pytest.mark.slow
def test_cases_reach_every_mechanism_of_regions() -> None:
    assert never_reached(make_region_case, REGION_MECHANISMS) == []


def test_the_law_of_spot_vms_can_be_broken() -> None:
    case = next(
        case
        for case in map(make_region_case, range(50))
        if any(pool.spot and pool.spot.initial for pool in case.spec.pools)
    )
    _, trace = run_case(FastEngine, case)
    assert broken_spot_law(case, trace) is None
    p = next(p for p, pool in enumerate(case.spec.pools) if pool.spot)
    spot = case.spec.pools[p].spot
    assert isinstance(spot, SpotSpec)
    more = case.spec.with_pool(p, spot=replace(spot, initial=spot.initial + 1))
    assert broken_spot_law(replace(case, spec=more), trace) is not None


class RestlessTraveller(Restless):
    seen: ClassVar[Counter[str]] = Counter()

    def look(self, states: State, e: int) -> None:
        n = len(states.req[e])
        self.seen["transit"] += bool((states.req["state"][e, :n] == RequestState.TRANSIT).any())
        self.seen["several in transit"] += int(states.glob["n_transit"][e, 0] > 1)
        self.seen["donating"] += bool((states.inst["state"][e] == InstanceState.DONATING).any())
        self.seen["leased"] += bool((states.lease["since_ps"][e] >= 0).any())
        self.seen["first ones wait"] += bool((states.lease["last_first"][e] >= 0).any())
        self.seen["tokens in bins"] += bool(states.token_bins[e].any())
        self.seen["cooldown"] += bool((states.endpoint["changed_ps"][e] >= 0).any())


@pytest.mark.slow
def test_a_saved_episode_goes_on_the_same_in_regions() -> None:
    RestlessTraveller.seen.clear()
    for seed in range(1000, 1012):
        case = often(make_region_case(seed))
        assert difference_when_moved(case, RestlessTraveller) is None, seed
    assert len(RestlessTraveller.seen) == 7
    assert all(RestlessTraveller.seen.values()), RestlessTraveller.seen


@pytest.mark.parametrize("seed", range(8))
def test_episodes_in_regions_do_not_touch_each_other(seed: int) -> None:
    """Three of one cluster in one call, each with its own requests and salt."""
    case = make_region_case(2000 + seed)
    tables = three_tables(case.requests)
    refuse_touching(case, [replace(table, salt=k) for k, table in enumerate(tables)], "spot")
