"""From where the instances that a policy starts load their weights."""

from __future__ import annotations

from typing import Any

import pytest

from baselines import PolicyError, make_policy
from baselines.registry import TUNABLE, space_of
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios import load_scenario
from llmscale_env.sim.compile import pool_load_times_s
from tests.small_policies import HEURISTICS
from tests.small_world import SMALL_WORLD

STARTS = sorted(set(HEURISTICS) - {"static"})
BUSY: dict[str, Any] = {
    "horizon_s": 300.0,
    "workload": "chat",
    "workload.rate_scale": 3.0,
    "fleet.pools.interactive.initial_instances": 1,
    "fleet.pools.mixed.initial_instances": 1,
}


@pytest.mark.parametrize("name", STARTS)
def test_instances_load_from_where_the_policy_says(name: str):
    scenario = load_scenario(SMALL_WORLD, **BUSY)
    loads: dict[str, tuple[float, float, float]] = {}
    for words in ("", ":load_source=ssd", ":load_source=multicast"):
        found = run_episode(make_policy(name + words), scenario, 3).summary
        loads[words] = (found["loads_ssd"], found["loads_multicast"], found["reward"])
    assert loads[""] == loads[":load_source=ssd"]  # the scenario's own
    ssd, multicast, _ = loads[""]
    assert ssd > 0
    assert multicast == 0
    ssd, multicast, _ = loads[":load_source=multicast"]
    assert ssd == 0  # somebody serves all the time
    assert multicast > 0


@pytest.mark.parametrize("name", STARTS)
def test_a_search_tries_both(name: str):
    assert "load_source" in space_of(TUNABLE[name], load_scenario(SMALL_WORLD))


def test_a_fleet_that_stays_has_no_source():
    assert "load_source" not in space_of(TUNABLE["static"], load_scenario(SMALL_WORLD))


def test_chiron_reckons_with_the_time_that_its_loads_take():
    scenario = load_scenario(SMALL_WORLD)
    pool = scenario.fleet.pools[2]
    times = pool_load_times_s(scenario, pool)
    assert times["multicast"] < times["ssd"]
    for words, source in (("", "ssd"), (":load_source=multicast", "multicast")):
        policy: Any = make_policy(f"chiron{words}")
        policy.reset(scenario, 0)
        assert policy._load_s(2) == pytest.approx(pool.acquire_s + times[source])


def test_an_unknown_source_is_refused():
    with pytest.raises(PolicyError, match=r"load_source = 'tape'.*'ssd', 'host' or 'multicast'"):
        make_policy("hpa:load_source=tape")
