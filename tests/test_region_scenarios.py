"""Scenarios with regions: what may be written, what the engines get, which requests are drawn."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import yaml

from llmscale_env.control.reward import draw_chunks, draw_requests, expected_arrivals
from llmscale_env.scenarios.load import ScenarioError, load_scenario, validate_scenario
from llmscale_env.scenarios.regions import LatencyConfig, SpotConfig
from llmscale_env.sim.compile import compile_cluster
from llmscale_env.sim.compile_regions import managed
from llmscale_env.sim.spec import RouterKind, ScalingKind
from llmscale_env.workload.config import WorkloadConfig
from tests.small_world import SMALL_WORLD

SMALL = yaml.safe_load("""
name: small
horizon_s: 3600
control_interval_s: 900
regions: [west, east]
latency: {median_s: {west: {east: 0.07}}}
classes:
  - {name: interactive, ttft_s: 10, itl_s: 1}
  - {name: background, ttft_s: 86400, itl_s: 2, priority: 1}
workload:
  streams:
    - {name: chat, llm: llama-3.1-8b, region: {west: 1, east: 3}, rate_per_s: 1}
    - {name: batch, llm: llama-3.1-8b, slo_class: background, region: east, rate_per_s: 0.1}
fleet:
  max_gpus: 16
  queue_manager: {}
  queues: [{name: later, llm: llama-3.1-8b}]
  pools:
    - {name: chat, region: "*", v1: null, llm: llama-3.1-8b, max_instances: 4, initial_instances: 1,
       spot: {initial: 3}, scaling: {least: 1}}
  routes:
    - {slo_class: interactive, kind: regional, pools: [chat]}
    - {slo_class: background, kind: shared-queue, queue: later, pools: [chat]}
""")


def small(**changes):
    """The small scenario with some fields changed, by dotted path."""
    data = copy.deepcopy(SMALL)
    for path, value in changes.items():
        here = data
        *parts, last = path.split("__")
        for part in parts:
            here = here[int(part)] if part.isdigit() else here[part]
        here[last] = value
    return data


def test_latency_is_figure_9s():
    latency = load_scenario("sageserve-day").latency
    times = latency.quantiles("us-west", "us-east")
    assert times[50] == pytest.approx(0.070)
    assert times[0] == pytest.approx(0.035)
    assert times[90] == pytest.approx(0.5)
    assert times[-1] == pytest.approx(2.5)
    assert 0 < np.mean(times >= 2.5 - 1e-9) < 0.025
    assert latency.median("us-east", "us-west") == 0.070  # in either order
    assert latency.median("us-east", "us-east") == 0.002
    assert LatencyConfig().median("a", "b") == 0.05
    given = LatencyConfig(quantiles_s={"a": {"b": (0.0, 0.1, 0.4)}})
    assert given.median("a", "b") == pytest.approx(0.1)
    assert given.quantiles("a", "b").tolist() == [0.0, 0.1, 0.4]


def test_times_of_reclaiming_are_log_uniform():
    found = SpotConfig().reclaim_quantiles_s()
    np.testing.assert_allclose(found[[0, 50, 100]], [12, 60, 300])
    np.testing.assert_allclose(np.diff(np.log(found)), np.log(25) / 100)
    assert SpotConfig(reclaim_median_s=0).reclaim_quantiles_s().tolist() == [0, 0]


def test_a_pool_of_every_region_is_written_once():
    scenario = validate_scenario(SMALL)
    assert [(p.name, p.region) for p in scenario.fleet.pools] == [
        ("chat-west", "west"),
        ("chat-east", "east"),
    ]
    assert scenario.fleet.routes[1].pools == ("chat-west", "chat-east")
    # Copies share nothing.
    changed = load_scenario(scenario, **{"fleet.pools.chat-east.spot.initial": 1})
    assert [pool.spot.initial for pool in changed.fleet.pools] == [3, 1]
    every = load_scenario(scenario, **{"fleet.pools.*.scaling.high": 0.5})
    assert [pool.scaling.high for pool in every.fleet.pools] == [0.5, 0.5]
    with pytest.raises(ScenarioError, match=r"fleet.pools.chat.region = '\*': the scenario names"):
        validate_scenario(small(regions=[]))


def test_a_queue_of_every_region_is_for_its_own_clients():
    scenario = validate_scenario(small(fleet__queues__0__region="*"))
    assert scenario.fleet.routes[1].queue is None
    assert scenario.fleet.routes[1].region_queues == {"west": "later-west", "east": "later-east"}
    assert managed(scenario) == (
        ("later-west", "west", ("chat-west",)),
        ("later-east", "east", ("chat-east",)),
    )
    route = compile_cluster(scenario).routes[0][1]
    assert (route.queue, route.region_queues) == (0, (0, 1))


def test_what_the_engines_get():
    spec = compile_cluster(validate_scenario(SMALL))
    assert spec.n_regions == 2
    assert [pool.region for pool in spec.pools] == [0, 1]
    assert [pool.spot.group for pool in spec.pools] == [0, 1]
    route = spec.routes[0][0]
    assert route.kind == RouterKind.REGIONAL
    assert route.preference == ((0, 1), (1, 0))
    assert route.threshold_ppm == 700_000
    assert spec.routes[0][1].kind == RouterKind.SHARED_QUEUE
    assert [(m.queue, m.pools, m.one_ppm, m.two_ppm) for m in spec.managers] == [
        (0, (0,), 600_000, 500_000),
        (0, (1,), 600_000, 500_000),
    ]
    assert spec.manager_period_ps == 10**12
    assert [c.promote_ps for c in spec.classes] == [36_000 * 10**12] * len(spec.classes)
    scaling = spec.pools[0].scaling
    assert (scaling.kind, scaling.least, scaling.most) == (ScalingKind.REACTIVE, 1, 4)
    assert spec.latency.knots_ps[0][1][50] == 70 * 10**9


def test_ages_of_promotion_by_class():
    ages = {"fleet__queue_manager__promote_after_s": {"background": 60}}
    scenario = validate_scenario(small(**ages))
    by_name = {
        c.name: s.promote_ps
        for c, s in zip(scenario.classes, compile_cluster(scenario).classes, strict=True)
    }
    assert by_name.pop("background") == 60 * 10**12
    assert set(by_name.values()) == {2**62}  # never


def test_a_batch_queue_comes_after_the_history():
    queue = {
        "name": "q",
        "llm": "llama-3.1-8b",
        "slo_class": "background",
        "n_requests": 7,
        "at_s": 30,
    }
    scenario = validate_scenario(small(history_s=3600, workload__batch_queues=[queue]))
    table = draw_requests(scenario, np.random.default_rng(0))
    assert (table.arrival_ps == 30 * 10**12).sum() == 7
    (_, first), *rest = list(draw_chunks(scenario, np.random.default_rng(0), 600.0))
    whole = first
    for _, later in rest:
        whole = whole.followed_by(later)
    assert whole.arrival_ps.tolist() == table.arrival_ps.tolist()
    quiet = validate_scenario(small(history_s=3600))
    more = np.subtract(expected_arrivals(scenario), expected_arrivals(quiet))
    assert more[[c.name for c in scenario.classes].index("background")] == 7


def test_sageserves_day_has_the_papers_fleet():
    scenario = load_scenario("sageserve-day")
    spec = compile_cluster(scenario)
    assert len(spec.pools) == 12
    assert sorted({pool.spot.group for pool in spec.pools}) == [0, 1, 2]
    for region in range(3):
        vms = [p.initial_active + p.spot.initial for p in spec.pools if p.region == region]
        assert vms == [20] * 4
    assert len(spec.managers) == 12
    # Central is 45 ms from the west and 30 ms from the east.
    assert spec.routes[0][0].preference == ((0, 1, 2), (1, 2, 0), (2, 1, 0))
    siloed = compile_cluster(load_scenario("sageserve-siloed-day"))
    assert len(siloed.pools) == 24
    assert len({pool.spot.group for pool in siloed.pools}) == 24
    most = [p.initial_active + p.spot.initial for p in siloed.pools]
    assert sorted(set(most)) == [4, 16]
    assert sum(p.initial_active for p in siloed.pools) == sum(p.initial_active for p in spec.pools)
    assert load_scenario("sageserve-week").n_steps == 672


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"fleet__pools__0__region": "north"}, r"region = 'north': unknown"),
        ({"latency": {"median_s": {"north": {"east": 0.1}}}}, r"latency = 'north': unknown"),
        ({"latency": {"tail": [[0.9, 0.5]]}}, r"the last one must be 1"),
        ({"latency": {"tail": [[0.9, 0.01], [1, 1]]}}, r"times must not fall"),
        ({"latency": {"quantiles_s": {"west": {"east": [1, 0]}}}}, r"quantiles_s.west.east"),
        ({"fleet__routes__0__pools": []}, r"routes.0.pools is missing"),
        ({"fleet__routes__0__preference": {"west": ["west"]}}, r"must name each of"),
        ({"fleet__routes__0__preference": {"north": ["west"]}}, r"= 'north': unknown"),
        ({"fleet__routes__1__region_queues": {"west": "later"}}, r"must have a queue for each of"),
        ({"fleet__routes__1__pools": []}, r"no route of kind shared-queue names pools"),
        ({"fleet__queues__0__llm": None}, r"queues.later.llm is missing"),
        ({"fleet__pools__0__pull": ["later"]}, r"no instance pulls from it"),
        ({"fleet__pools__0__scaling": {"least": 5}}, r"scaling.least = 5: must be at most 4"),
        ({"fleet__pools__0__scaling": {"most": 5}}, r"scaling.most = 5: must be at most"),
        ({"fleet__pools__0__scaling": {"low": 0.8}}, r"low = 0.8: must be below high"),
        ({"fleet__pools__0__scaling": {"last_s": 4000}}, r"last_s = 4000.*at most period_s"),
        ({"fleet__pools__0__spot": {"reclaim_median_s": 400}}, r"at most reclaim_most_s"),
        ({"fleet__pools__0__swaps_to": ["llama-3.2-3b"]}, r"spot: not together with swaps_to"),
        ({"fleet__queue_manager__promote_after_s": {"foreground": 60}}, r"promote_after_s = 'foreground'"),
        ({"fleet__utilisation": "full"}, r"utilisation = 'full'.*'running' or 'demanded'"),
    ],
)  # fmt: skip
def test_a_slip_is_one_line(changes, message):
    with pytest.raises(ScenarioError, match=message) as caught:
        validate_scenario(small(**changes))
    assert "\n" not in str(caught.value)


def test_history_and_episode_are_one_draw():
    both = draw_requests(validate_scenario(small(horizon_s=7200)), np.random.default_rng(3))
    parted = draw_requests(validate_scenario(small(history_s=3600)), np.random.default_rng(3))
    hour = 3600 * 10**12
    first = int((both.arrival_ps < hour).sum())
    assert len(parted.history) == first
    assert len(parted) == len(both) - first
    np.testing.assert_array_equal(parted.history.arrival_ps, both.arrival_ps[:first])
    np.testing.assert_array_equal(parted.arrival_ps, both.arrival_ps[first:] - hour)
    np.testing.assert_array_equal(parted.region, both.region[first:])
    assert parted.salt == both.salt != 0


def test_expected_arrivals_of_hourly_rates_are_not_drawn():
    """A day of the week's mix, with a burst: what is computed is what is drawn, but for chance."""
    workload = {"mix": "sageserve-week", "rate_scale": 0.05}
    day = load_scenario("sageserve-day", workload=workload)
    burst = day.workload.model_dump()
    burst["streams"][0]["arrivals"]["bursts"] = [{"at_s": 90_000, "duration_s": 7200, "factor": 8}]
    day = day.model_copy(update={"workload": WorkloadConfig.model_validate(burst)})
    drawn = np.mean(
        [
            np.bincount(draw_requests(day, np.random.default_rng(seed)).slo_class)
            for seed in range(3)
        ],
        axis=0,
    )
    np.testing.assert_allclose(expected_arrivals(day), drawn, rtol=0.03)


def test_a_utilisation_by_which_nothing_goes_is_refused():
    with pytest.raises(
        ScenarioError, match=r"utilisation = 'demanded'.*needs routes of kind region"
    ):
        load_scenario(SMALL_WORLD, **{"fleet.utilisation": "demanded"})
    assert not compile_cluster(load_scenario("sageserve-day")).waiting_counts
    assert compile_cluster(load_scenario("multi-region")).waiting_counts
