"""Autoscalers in use on short episodes, and the failures that users of such systems reported."""

from __future__ import annotations

import numpy as np
import pytest

from baselines import PolicyError, make_policy, policies_for
from llmscale_env.control.forecast import Clairvoyant, LastValue
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios.load import load_scenario
from tests.small_tables import requests_of
from tests.small_world import SMALL_WORLD

ALL = (
    "kpa",
    "ray-serve",
    "keda",
    "wva",
    "wva-tokens",
    "dynamo",
    "dynamo-load",
    "llumnix-freeness",
)


def slow_loads(load_s, **changes):
    """The small world where an instance takes `load_s` to load."""
    pools = {
        f"fleet.pools.{name}.load_s": {"ssd": load_s} for name in ("interactive", "mixed", "batch")
    }
    return load_scenario(SMALL_WORLD, **{"impossible_commands": "error", **pools, **changes})


def counts(result):
    """Instances that the pool has ordered, by interval."""
    columns = [result.series[f"interactive/{s}"] for s in ("acquiring", "loading", "active")]
    return sum(columns).to_numpy()


def test_they_are_compared_where_classes_share_a_pool():
    assert set(ALL) <= set(policies_for(load_scenario(SMALL_WORLD)))
    assert not set(ALL) & set(policies_for(load_scenario("qlm-multi")))


@pytest.mark.parametrize("name", ALL)
def test_loading_replicas_are_not_ordered_again(name):
    """400 long requests at once; what is ordered takes ten looks to load."""
    scenario = slow_loads(100.0, horizon_s=110)
    table = requests_of(scenario, np.linspace(0, 4, 400), 3000, 3000)
    # With one instance; thresholds as published but for those that so little would not reach.
    changes = {
        "ray-serve": {"target": 80.0, "up_delay_s": 10.0},
        "wva": {"period_s": 10.0},
        # A batch that is just being filled is not what the computation keeps up.
        "wva-tokens": {"period_s": 10.0, "queue_threshold": 1e6},
        "dynamo": {
            "period_s": 10.0,
            "margin": 0.1,
            "forecaster": {"kind": "ewma", "alpha": 0.001},
        },
        "dynamo-load": {"ttft_s": 0.5},
    }
    policy = make_policy(name, initial=1, batch_limit=128, **changes.get(name, {}))
    had = counts(run_episode(policy, scenario, requests=table))
    assert had[0] == 1
    assert had.max() > 1, "it has to order something"
    ordered = np.diff(had)
    # One order says it all (Knative's stable window and the like may add to it once more).
    assert (ordered > 0).sum() <= 2
    assert had.max() < 16


@pytest.mark.parametrize("name", ALL)
def test_no_replica_that_serves_is_no_idle_one(name):
    """While all load, no metric is there: nothing is taken away."""
    scenario = slow_loads(
        45.0,
        horizon_s=60,
        **{
            "fleet.pools.interactive.initial_instances": 0,
            "fleet.pools.mixed.initial_instances": 4,
        },
    )
    table = requests_of(scenario, np.linspace(0, 50, 50), 500, 100)
    changes = {"dynamo": {"margin": 100.0}} if name == "dynamo" else {}
    result = run_episode(make_policy(name, **changes.get(name, {})), scenario, requests=table)
    assert result.series["interactive/active"].iloc[3] == 0
    assert list(counts(result)[:4]) == [4, 4, 4, 4]


def test_dynamo_counts_arrivals_not_completions():
    """A saturated fleet finishes little; the plan goes by what comes."""
    scenario = slow_loads(20.0, horizon_s=240)
    table = requests_of(scenario, np.arange(0, 230, 0.05), 2000, 400)
    result = run_episode(make_policy("dynamo", initial=1), scenario, requests=table)
    assert result.series["interactive/finished"].iloc[:18].sum() < 0.4 * 180 * 20
    plan = next(d for d in result.decisions if d["time_s"] == 180)
    assert "20 requests/s" in plan["reason"]
    assert plan["targets"]["interactive"] >= 4
    assert all(d["time_s"] in (0, 180) for d in result.decisions if d.get("targets"))


def test_dynamo_plans_for_several_llms_each_by_its_own_load():
    scenario = load_scenario("chiron-both", horizon_s=70)
    policy = make_policy("dynamo", period_s=30.0)
    result = run_episode(policy, scenario, seed=1)
    plans = [
        d["reason"].split("; ") for d in result.decisions if "requests/s" in d.get("reason", "")
    ]
    rates = [float(part.split(" requests/s")[0]) for part in plans[0]]
    # 30 requests/s in all, half each; a class's arrivals are shared out by tokens.
    assert len(rates) == 2
    assert sum(rates) == pytest.approx(
        result.requests.query("arrival_s < 30").shape[0] / 30, rel=0.01
    )
    assert min(rates) > 10


def test_dynamo_plans_split_phases_apart():
    scenario = load_scenario("aladdin-split", horizon_s=20, impossible_commands="error")
    result = run_episode(make_policy("dynamo", period_s=5.0), scenario, seed=1)
    plans = [d for d in result.decisions if d.get("targets")]
    assert [d["time_s"] for d in plans] == [5, 10, 15]
    assert plans[-1]["targets"]["decode"] > plans[-1]["targets"]["prefill"] >= 1
    assert result.summary["chat/slo_attainment"] > 0.3
    with pytest.raises(PolicyError, match="weights = 'flow'"):
        make_policy("dynamo").reset(load_scenario("blitzscale-azure-conv-8b"), 0)


def test_the_expected_output_of_queued_requests_counts():
    """Short prompts, long answers: charged with the prompt alone, the queue is hardly seen."""
    scenario = slow_loads(20.0, horizon_s=20)
    table = requests_of(scenario, np.linspace(0, 4, 600), 20, 3000)
    most = {}
    for counted in (True, False):
        settings = {"batch_limit": 64, "period_s": 10.0, "queue_threshold": 1e6}
        policy = make_policy("wva-tokens", initial=1, count_output=counted, **settings)
        most[counted] = counts(run_episode(policy, scenario, requests=table)).max()
    assert most[True] >= 4
    assert most[False] == 1


def test_kpa_panics_and_stays_up_for_a_minute():
    scenario = slow_loads(5.0, horizon_s=240)
    table = requests_of(
        scenario, np.concatenate([np.full(600, 15.0), np.arange(20, 230, 2.0)]), 500, 100
    )
    result = run_episode(make_policy("kpa", initial=1), scenario, requests=table)
    had, time_s = counts(result), result.series["time_s"].to_numpy()
    assert had.max() >= 8  # 600 / 70
    top = time_s[had == had.max()]
    assert top[0] <= 40
    assert top[-1] - top[0] >= 50
    assert had[-1] == 1


def test_ray_serve_waits_before_it_acts():
    scenario = slow_loads(5.0, horizon_s=100)
    table = requests_of(scenario, np.linspace(0, 90, 900), 500, 300)
    result = run_episode(make_policy("ray-serve", initial=1, target=8), scenario, requests=table)
    first = next(d["time_s"] for d in result.decisions[1:] if d.get("targets"))
    assert first == 40  # wanted from 10 s on


def test_keda_swings_where_hpa_holds():
    """Nothing stabilises KEDA's own rule: the fleet goes as soon as the queue is empty."""
    scenario = slow_loads(5.0, horizon_s=200)
    table = requests_of(scenario, np.full(600, 12.0), 1000, 200)
    falls = {}
    for name in ("keda", "hpa"):
        had = counts(run_episode(make_policy(name, initial=1), scenario, requests=table))
        falls[name] = int((np.diff(had) < 0).sum())
        assert had.max() > 4
    assert falls["keda"] >= 1
    assert falls["hpa"] == 0


def test_wva_and_freeness_hold_a_steady_load():
    """No 2-1-2: under a load that does not change the count settles."""
    scenario = slow_loads(5.0, horizon_s=300)
    table = requests_of(scenario, np.linspace(0, 20, 300), 3000, 9000)
    for name, changes in (("wva", {"period_s": 10.0}), ("llumnix-freeness", {})):
        policy = make_policy(name, initial=2, batch_limit=512, **changes)
        had = counts(run_episode(policy, scenario, requests=table))[12:]
        turns = np.diff(np.sign(np.diff(had)[np.diff(had) != 0]))
        assert not turns.any(), (name, had)


def test_freeness_adds_what_is_missing_at_once_or_as_released_one_per_look():
    scenario = slow_loads(100.0, horizon_s=60)
    table = requests_of(scenario, np.linspace(0, 4, 800), 3000, 3000)
    first = {}
    for empty in ("real", "infinite"):
        policy = make_policy("llumnix-freeness", initial=1, empty=empty)
        result = run_episode(policy, scenario, requests=table)
        first[empty] = next(d["targets"] for d in result.decisions[1:] if d.get("targets"))
    assert first["infinite"] == {"interactive": 2}
    assert first["real"]["interactive"] > 3


@pytest.mark.parametrize(
    "text, message",
    [
        ("kpa:panic_window_s=90", "panic_window_s = 90.0: must be at most stable_window_s = 60.0"),
        ("kpa:panic_threshold=1", "panic_threshold = 1.0: must be more than 1"),
        ("wva:kv_spare=0.9", "kv_spare = 0.9: must be less than kv_threshold = 0.8"),
        ("wva-tokens:down_boundary=0.9", "must be less than up_threshold = 0.85"),
        ("dynamo:forecaster=clairvoyant", "must not be told the future"),
        ("dynamo:forecaster=prophet", "unknown; there are"),
        ("dynamo-load:min_samples=1", "min_samples"),
        ("llumnix-freeness:low=-5", "low = -5.0: must be less than high = -10.0"),
        ("keda:kv_target=0", "kv_target = '0': Input should be greater than 0"),
    ],
)
def test_slips_are_told_in_one_line(text, message):
    with pytest.raises(PolicyError, match=message) as error:
        make_policy(text)
    assert "\n" not in str(error.value)


def test_dynamo_takes_a_forecaster_of_ones_own():
    scenario = slow_loads(10.0, horizon_s=110)
    table = requests_of(scenario, np.linspace(0, 4, 400), 3000, 3000)
    own, named = (
        run_episode(
            make_policy("dynamo", period_s=10.0, forecaster=given), scenario, requests=table
        )
        for given in (LastValue(), "last-value")
    )
    assert own.decisions == named.decisions
    with pytest.raises(PolicyError, match="must not be told the future"):
        make_policy("dynamo", forecaster=Clairvoyant())
    with pytest.raises(PolicyError, match="must be a name, a mapping with `kind` or a Forecaster"):
        make_policy("dynamo", forecaster=3)


def test_dynamo_load_without_a_profile_waits_for_samples_of_both_kinds():
    """Prompts come first: an overloaded instance does not decode, and shows nothing to go by."""
    scenario = slow_loads(10.0, horizon_s=60)
    table = requests_of(scenario, np.linspace(0, 4, 400), 3000, 3000)
    most = {}
    for profile in (True, False):
        policy = make_policy("dynamo-load", initial=1, ttft_s=0.5, profile=profile)
        result = run_episode(policy, scenario, requests=table)
        most[profile] = counts(result).max()
    assert most[False] == 1
    assert "0 samples" in result.decisions[1]["reason"]
    assert most[True] == 2  # then one engine is idle, and not all are above the target


def test_dynamo_load_needs_iterations_of_one_kind():
    chunked = load_scenario(SMALL_WORLD, **{"fleet.pools.interactive.chunk_tokens": 512})
    with pytest.raises(PolicyError, match="chunk_tokens = 512"):
        make_policy("dynamo-load").reset(chunked, 0)
