"""MultiRegion-v1: what its orders do, what is possible, what it sees; one agent per region."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from agents.exploration.prior import as_is_choices
from llmscale_env.control.region_costs import RegionCosts
from llmscale_env.envs.action_heads.endpoints import RELEASE, STEPS, THRESHOLDS
from llmscale_env.envs.codec import Codec
from llmscale_env.envs.multi_region import MultiRegionEnv
from llmscale_env.envs.observation_blocks.endpoints import WEEKDAYS
from llmscale_env.scenarios import load_scenario
from llmscale_env.sim.metrics import latencies
from llmscale_env.workload.hourly import expected_rates
from tests.env_kinds import entries_of, masks_of, played
from tests.small_fleets import FEW_VMS, TUESDAY
from tests.small_world import SMALL_WORLD

QUIET = {"horizon_s": 7200, "workload.rate_scale": 0.0025, **FEW_VMS, **TUESDAY}
"""Hardly any requests: some 14 in 15 minutes, and a fleet that is counted easily."""

NONE, TARGET, REACTIVE = range(3)
POOLS = [
    f"{llm}-{region}"
    for llm in ("bloom", "llama2")
    for region in ("us-west", "us-central", "us-east")
]
REGIONS = ["us-west", "us-central", "us-east"]


def act(
    changes: dict[str, int] | None = None,
    rule: int = NONE,
    threshold: float = 0.7,
    first: dict[str, str] | None = None,
    release: str = "usual",
) -> np.ndarray:
    """An action; pools, regions and queues that are not named stay as they are."""
    out: list[int] = []
    for pool in POOLS:
        out += [STEPS.tolist().index((changes or {}).get(pool, 0)), rule]
    for region in REGIONS:
        head = (first or {}).get(region, region)
        out += [THRESHOLDS.tolist().index(threshold), REGIONS.index(head)]
    return np.array(out + [[name for name, _, _ in RELEASE].index(release)] * 18)


def make(**changes: Any) -> MultiRegionEnv:
    env = MultiRegionEnv(overrides={**QUIET, **changes})
    env.reset(seed=0)
    return env


def seen(env: MultiRegionEnv, observation: Any) -> dict[str, float]:
    return entries_of(env.codec, observation)


def masks(env: MultiRegionEnv) -> list[list[bool]]:
    return [mask.tolist() for mask in masks_of(env)]


# ---- instances and spot VMs ----


def test_more_instances_come_from_own_spot_vms_first_then_from_the_other_llms() -> None:
    env = make(control_interval_s=300)
    entries = seen(env, env.step(act({"bloom-us-west": 4}))[0])
    regions = env.view().regions
    # Three VMs had Bloom and are there within 5 minutes; the fourth had Llama 2, and takes 10 more.
    assert regions.active.tolist() == [6, 3, 3, 3, 3, 3]
    assert regions.spot.tolist() == [0, 3, 3, 2, 3, 3]
    assert entries["bloom-us-west/active"] == pytest.approx(6 / 9)
    ready = [entries[f"bloom-us-west/ready_{k}"] for k in range(4)]
    assert sum(ready) == pytest.approx(1 / 9)
    assert ready[2] == pytest.approx(1 / 9)
    assert entries["bloom-us-west/spot"] == 0
    assert entries["bloom-us-west/spot_others"] == pytest.approx(2 / 9)
    assert entries["llama2-us-west/spot"] == pytest.approx(2 / 9)
    for _ in range(2):
        env.step(act())
    assert env.view().regions.active.tolist() == [7, 3, 3, 3, 3, 3]


def test_fewer_instances_become_spot_vms_of_their_llm() -> None:
    env = make(control_interval_s=300)
    entries = seen(env, env.step(act({"llama2-us-east": -2}))[0])
    regions = env.view().regions
    assert regions.active.tolist() == [3, 3, 3, 3, 3, 1]
    assert regions.draining[5] + regions.donating[5] + regions.spot[5] == 5
    left = (regions.draining[5] + regions.donating[5]) / 9
    assert entries["llama2-us-east/leaving"] == pytest.approx(left)
    env.step(act())
    assert env.view().regions.spot.tolist() == [3, 3, 3, 3, 3, 5]


def test_rules_carry_out_a_change_at_once_or_as_utilisation_asks_for_it() -> None:
    up, down = {"bloom-us-east": 2}, {"bloom-us-east": -2}
    numbers = {}
    for rule in (NONE, TARGET, REACTIVE):
        for name, change in (("up", up), ("down", down)):
            env = make(**{"workload.rate_scale": 0.025})
            env.step(act(change, rule))
            numbers[rule, name] = int(env.view().regions.instances[2])
    # With hardly any load nothing asks for more, and every request for less; reactive goes on to the least.
    assert numbers[NONE, "up"] == 5
    assert numbers[NONE, "down"] == 1
    assert numbers[TARGET, "up"] == 3
    assert numbers[TARGET, "down"] == 1
    assert numbers[REACTIVE, "up"] == numbers[REACTIVE, "down"] == 1
    # A target holds until the next decision only.
    env = make(**{"workload.rate_scale": 0.025})
    env.step(act({"bloom-us-east": -1}, TARGET))
    env.step(act({}, TARGET))
    assert env.view().regions.instances[2] == 2


def test_masks_go_by_spot_vms_and_by_the_rules_bounds() -> None:
    env = make()
    allowed = masks(env)
    # 3 instances, at least 1, at most 9; 6 VMs of the region are leased out.
    assert [s for s, m in zip(STEPS, allowed[0], strict=True) if m] == [-2, -1, 0, 1, 2, 4]
    assert all(all(m) for m in allowed[1:12:2] + allowed[12:])
    for _ in range(2):
        env.step(act({"bloom-us-west": 2, "llama2-us-west": 1}))
    assert env.view().regions.spot[[0, 3]].sum() == 0
    for k in (0, 6):
        assert [s for s, m in zip(STEPS, masks(env)[k], strict=True) if m and s > 0] == []
    assert env.step(act({"bloom-us-west": 1}))[4]["clipped"] == 1  # no VM is left
    env = make()
    assert env.step(act({"bloom-us-west": -4}))[4]["clipped"] == 2  # one stays
    assert env.view().regions.instances[0] == 1
    env = make(**{"fleet.max_gpus": 152})  # 18 of 19 VMs are taken
    assert [s for s, m in zip(STEPS, masks(env)[0], strict=True) if m and s > 0] == [1]
    with pytest.raises(ValueError, match="2 choices"):
        make(impossible_commands="error").step(act({"bloom-us-west": -4}))


def test_pools_without_spot_vms_are_refused() -> None:
    with pytest.raises(ValueError, match="action = 'endpoints': pool 'interactive' has no spot"):
        Codec(load_scenario(SMALL_WORLD), ["clock"], ["endpoints"])


def test_a_history_that_is_no_whole_number_of_intervals_is_refused() -> None:
    with pytest.raises(ValueError, match=r"history_s = 1000: must be a whole number of intervals"):
        MultiRegionEnv(overrides={"history_s": 1000})


# ---- routing and release ----


def served_in(env: MultiRegionEnv) -> np.ndarray:
    """(3, 3) interactive requests by region of the client and of the instance."""
    results = env.core.sim.engine.results(0)
    requests = env.core.sim.requests[0]
    mine = (requests.slo_class == 0) & (results["instance"] >= 0)
    found = np.zeros((3, 3), int)
    where = results["instance"][mine] // 9 % 3
    np.add.at(found, (requests.region[mine], where), 1)
    return found


def test_clients_go_to_the_region_that_is_to_be_tried_first() -> None:
    env = make()
    for _ in range(4):
        env.step(act(first={"us-west": "us-east"}))
    found = served_in(env)
    assert (found > 0).tolist() == [
        [False, False, True],
        [False, True, False],
        [False, False, True],
    ]


def test_a_threshold_of_0_sends_requests_to_the_least_utilised_region() -> None:
    env = make(**{"workload.rate_scale": 0.075})
    for _ in range(4):
        env.step(act(threshold=0.0))
    assert (served_in(env) > 0).all()
    other = make(**{"workload.rate_scale": 0.075})
    for _ in range(4):
        other.step(act(threshold=1.1))
    assert (served_in(other) > 0).sum() == 3
    assert other.core.sim.engine.states.takes[0, 0, 0].tolist() == [1_100_000] * 3


def test_what_is_held_back_waits_and_is_charged_at_the_end() -> None:
    left, late = {}, {}
    for release in ("hold", "eager"):
        env = make(**{"workload.rate_scale": 0.025, "horizon_s": 9000})
        truncated, parts = False, {}
        while not truncated:
            observation, _, _, truncated, info = env.step(act(release=release))
            for name, cost in info["reward_parts"].items():
                parts[name] = parts.get(name, 0.0) + cost
        left[release], late[release] = parts["leftover"], parts["violations"]
        entries = seen(env, observation)
        waits = info["metrics"]["queue/bloom-12h"]
        assert (waits > 30) == (release == "hold")
        assert (entries["bloom-12h/length"] > 0.1) == (release == "hold")
    assert left["hold"] < 5 * min(left["eager"], -0.001)
    # What is due within the episode is late, too: nearly all of the backlog of the shortest deadline.
    assert late["hold"] < min(10 * late["eager"], -0.001)


# ---- what is seen ----


def test_load_and_tails_are_those_of_the_requests() -> None:
    env = make(**{"workload.rate_scale": 0.05})
    for _ in range(3):
        observation = env.step(act())[0]
    entries = seen(env, observation)
    requests, results = env.core.sim.requests[0], env.core.sim.engine.results(0)
    block = next(b for b in env.codec.encoder.blocks if b.name == "regional_load")
    ttft_s = latencies(requests, results)["ttft_s"]
    finished = (results["finished_ps"] > 1800e12) & (results["finished_ps"] <= 2700e12)
    came = (requests.arrival_s >= 1800) & (requests.arrival_s < 2700)
    for m, llm in enumerate(env.scenario.fleet.llms):
        for j, region in enumerate(REGIONS):
            mine = (requests.llm == m) & (requests.region == j) & (requests.slo_class == 0)
            tokens = (requests.input_tokens + requests.predicted_output_tokens)[mine & came].sum()
            load = np.log1p(tokens / 900 / block._expected[m, j, 0]) / np.log1p(16)
            assert entries[f"{llm}/{region}/load"] == pytest.approx(min(load, 1), abs=1e-6)
            these = np.sort(ttft_s[mine & finished])
            if len(these):
                p95 = these[int(np.ceil(0.95 * (len(these) - 1)))]
                assert entries[f"{llm}/{region}/ttft_p95"] == pytest.approx(p95 / 120, abs=1e-6)


def test_the_clock_is_tuesdays_and_forecasts_know_monday() -> None:
    env = MultiRegionEnv(overrides=TUESDAY)
    observation, _ = env.reset(seed=0)
    entries = seen(env, observation)
    assert entries["clock/tuesday"] == 1
    assert entries["clock/monday"] == 0
    assert entries["clock/cosine"] == 1
    assert env.core.snapshot().endpoints.bins.tolist() == [96]
    # Told of Monday, forecasts are off by less than what comes.
    errors = [x for name, x in entries.items() if name.endswith("error_0")]
    assert 0 < max(errors) < 0.5
    # What a day's end has seen is what was seen from its beginning on: a forecast is not made anew.
    fresh = env.fork()
    env.step(act())
    fresh.step(act())
    one, two = (e.core.snapshot().endpoints for e in (env, fresh))
    assert (one.forecast == two.forecast).all()
    assert (one.error == two.error).all()


def test_a_seed_draws_the_day_for_all_streams_and_the_clock_tells_it() -> None:
    env = MultiRegionEnv(overrides={**FEW_VMS, "workload.rate_scale": 0.05})
    arrivals = {s.name: s for s in env.scenario.workload.streams}
    days = set()
    for seed in range(20):
        entries = seen(env, env.reset(seed=seed)[0])
        (day,) = (k for k, name in enumerate(WEEKDAYS) if entries[f"clock/{name}"])
        days.add(day)
        requests = env.core.sim.requests[0]
        for m, name in enumerate(("bloom-interactive", "llama-2-interactive")):
            stream = arrivals[name]
            rates = expected_rates(stream.arrivals, stream.rate_per_s * 0.05, day * 86_400.0, 24)
            mean, spread = rates.sum() * 60, (rates.sum() * 60) ** 0.5
            came = ((requests.llm == m) & (requests.slo_class == 0)).sum()
            assert abs(came - mean) < 5 * spread
    assert len(days) >= 5


def test_earlier_work_waits_at_the_start() -> None:
    env = make(**{"workload.rate_scale": 0.05})
    requests = env.core.sim.requests[0]
    at_once = requests.arrival_ps == 0
    # 4 hours' worth of a stream is due in 2 hours, 4.5 in 6 (a third of what can wait each).
    for m, per_s in enumerate((0.466, 0.197)):
        for c, hours in ((1, 4.0), (2, 4.5), (3, 0.0)):
            waiting = (at_once & (requests.llm == m) & (requests.slo_class == c)).sum()
            assert waiting == pytest.approx(0.05 * per_s * 3600 * hours, abs=1)
    assert requests.history is not None
    assert (requests.history.arrival_ps > 0).all()


def test_gpu_hours_of_a_day_are_more_than_an_int64_of_picoseconds() -> None:
    env = MultiRegionEnv(overrides={**FEW_VMS, "workload.rate_scale": 0.0005})
    info = played(env, act())[1][-1]
    assert info["episode_summary"]["gpu_hours"] == pytest.approx(18 * 8 * 24)


def test_training_starts_from_what_the_scenario_does_by_itself() -> None:
    env = MultiRegionEnv()
    decoder = env.codec.decoder
    found = as_is_choices(decoder.parts, decoder.choices, env.scenario)
    assert found == act({}, REACTIVE).tolist()


# ---- costs by region, one agent per region ----


def test_costs_by_region_add_up_to_the_whole() -> None:
    # Too few VMs for the load: requests come late.
    env = make(**{"workload.rate_scale": 0.25, "fleet.pools.*.initial_instances": 1})
    costs = RegionCosts(env.core.sim)
    truncated, late = False, np.zeros(3)
    while not truncated:
        _, _, _, truncated, info = env.step(act({}, REACTIVE))
        mine = costs.interval(truncated)
        for name, whole in info["reward_parts"].items():
            assert -getattr(mine, name).sum() == pytest.approx(whole)
        assert costs.violations.sum() == info["cost"]
        late += costs.violations.sum(axis=1)
    assert (late > 0).all()


def parallel(**arguments: Any) -> Any:
    pytest.importorskip("pettingzoo")
    from llmscale_env.envs.multi_region_parallel import parallel_env

    return parallel_env(**{"overrides": {**QUIET, "workload.rate_scale": 0.025}, **arguments})


def test_pettingzoos_own_checks_pass() -> None:
    env = parallel()
    from pettingzoo.test import parallel_api_test, parallel_seed_test

    parallel_api_test(env, num_cycles=20)
    parallel_seed_test(parallel, num_cycles=4)


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_agents_together_are_the_whole_environment(engine: str) -> None:
    env = parallel(engine=engine)
    assert env.env.core.sim.engine_name == engine
    whole = MultiRegionEnv(overrides={**QUIET, "workload.rate_scale": 0.025})
    observations, infos = env.reset(seed=3)
    observation, info = whole.reset(seed=3)
    names = whole.codec.decoder.parts
    assert sorted(part for parts in env.action_names.values() for part in parts) == sorted(names)
    rng = np.random.default_rng(0)
    while env.agents:
        for agent in env.agents:
            # Its own entries and those that are of no region.
            own = set(env.observation_names[agent])
            assert all(not any(o in name for o in REGIONS if o != agent) for name in own)
            expected = [
                x
                for entry, x in zip(whole.codec.encoder.entries, observation, strict=True)
                if entry.name in own
            ]
            assert observations[agent].tolist() == expected
        action = rng.integers(whole.action_space.nvec)
        chosen = dict(zip(names, action.tolist(), strict=True))
        observations, rewards, _, truncations, infos = env.step(
            {a: np.array([chosen[part] for part in env.action_names[a]]) for a in env.agents}
        )
        observation, reward, _, truncated, info = whole.step(action)
        assert set(rewards.values()) == {reward}
        assert set(truncations.values()) == {truncated}
        assert (env.state() == observation).all()
        costs = sum(sum(i["costs"].values()) for i in infos.values())
        assert costs == pytest.approx(reward)
        assert sum(i["cost"] for i in infos.values()) == info["cost"]
        assert sum(i["action_mask"].sum() for i in infos.values()) == info["action_mask"].sum()
    assert truncated
    assert infos["us-west"]["episode_summary"] == info["episode_summary"]


def test_options_of_a_reset_change_nothing() -> None:
    env = parallel()
    plain, _ = env.reset(seed=0)
    given, _ = env.reset(seed=0, options={"anything": 1})
    assert all((plain[agent] == given[agent]).all() for agent in env.agents)
    with pytest.raises(ValueError, match="options = 3: must be a mapping"):
        env.reset(seed=0, options=3)


def test_agents_may_see_everything_and_must_act_together() -> None:
    env = parallel(sees="all")
    observations, _ = env.reset(seed=0)
    assert (observations["us-east"] == env.state()).all()
    actions = {a: env.action_space(a).sample() for a in env.agents}
    with pytest.raises(ValueError, match="must be of each of"):
        env.step({"us-west": actions["us-west"]})
    with pytest.raises(ValueError, match=r"actions\['us-east'\]"):
        env.step({**actions, "us-east": np.full(8, 99)})
    assert env.env.view().time_s == 0
    with pytest.raises(ValueError, match="sees = 'nothing'"):
        parallel(sees="nothing")


def test_without_pettingzoo_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['pettingzoo'] = None\n"
        "import llmscale_env.envs.multi_region_parallel"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'llmscale[multiagent]'" in done.stderr
