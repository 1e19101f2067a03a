"""SageServe's policies on small clusters: what they are for, what they order, that none sees the future."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from baselines import PolicyError, make_policy, policies_for
from baselines.sageserve.endpoints import Endpoints
from baselines.sageserve.profile import Profile, ProfileSettings
from baselines.sageserve.scaling import Thresholds
from baselines.sageserve.throughput import throughput
from llmscale_env.control.reward import draw_requests
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.scenarios.regions import ScalingConfig
from llmscale_env.workload.requests import PS_PER_S, RequestTable

LONG_TERM = ("lt-i", "lt-u", "lt-ua")


@pytest.fixture(scope="module")
def scenario():
    """Six hours from Tuesday midnight, with six hours of history."""
    return load_scenario("multi-region", horizon_s=21_600, history_s=21_600)


@pytest.fixture(scope="module")
def requests(scenario):
    return draw_requests(scenario, np.random.default_rng(1))


def asked(policy, scenario, requests, **parameters):
    """(policy, result) of an episode."""
    made = make_policy(policy, **parameters)
    return made, run_episode(made, scenario, 1, requests=requests, forecaster=None)


def test_who_is_for_which_scenario():
    assert policies_for(load_scenario("sageserve-day")) == ("static", "reactive", *LONG_TERM)
    assert policies_for(load_scenario("sageserve-siloed-day")) == ("static", "siloed")
    assert "lt-u" not in policies_for(load_scenario("mixed-slo"))


@pytest.mark.parametrize(
    "policy, scenario_name, message",
    [
        ("reactive", "sageserve-siloed-day", "needs no pools of role batch"),
        ("siloed", "sageserve-day", "needs pools of role batch, as sageserve-siloed-day has"),
        ("lt-u", "sageserve-siloed-day", "is siloed"),
        ("reactive", "mixed-slo", "has no scaling"),
        ("lt-i", "mixed-slo", "has no scaling"),
    ],
)
def test_a_scenario_that_does_not_fit_is_refused(policy, scenario_name, message):
    with pytest.raises(PolicyError, match=message):
        make_policy(policy).reset(load_scenario(scenario_name), 0)


@pytest.mark.parametrize(
    "text, message",
    [
        ("lt-u:forecast=tomorrow", "forecast = 'tomorrow': must be one of"),
        ("lt-u:forecast=clairvoyant", "must be one of"),
        ("lt-u:epsilon=0", "epsilon"),
        ("lt-u:order=3,1", "order"),
        ("lt-u:order=-1,0,0", r"order\[0\] = -1"),
        ("lt-u:bin_s=700", "horizon_s"),
        ("lt-u:high=0.5", "there is no parameter 'high'"),
        ("reactive:high=0.5", "there is no parameter 'high'"),
    ],
)
def test_slips_in_parameters(text, message):
    with pytest.raises(PolicyError, match=message):
        make_policy(text)


def test_thresholds_of_scenario_and_rules_are_the_same():
    config, rules = ScalingConfig(), Thresholds()
    assert (config.high, config.low) == (rules.high, rules.low)


def test_the_fleet_as_the_programme_takes_it(scenario):
    endpoints = Endpoints(scenario, "test")
    assert endpoints.pool.tolist() == [[[0], [1], [2]], [[3], [4], [5]]]
    assert endpoints.least.tolist() == [[1] * 3] * 2
    assert endpoints.most.tolist() == [[9] * 3] * 2
    assert endpoints.interactive.tolist() == [True, False]
    upper = Endpoints(scenario, "test", theta_ttft_s=None).theta
    target = Endpoints(scenario, "test", theta_ttft_s=20.0).theta
    assert (target < upper).all()
    assert (target > 0.3 * upper).all()


def test_theta_is_where_the_target_is_just_met(scenario):
    pool = scenario.fleet.pools[3]
    inputs = np.random.default_rng(0).integers(100, 8000, 500)
    settings = ProfileSettings(instances=2, ttft_s=5.0, duration_s=300.0, requests=500)
    profile = Profile(scenario, pool, inputs, np.full(500, 100), settings)
    theta = profile.theta()
    assert profile.attainment(theta) >= 0.95 > profile.attainment(1.05 * theta)
    looser = replace(settings, ttft_s=20.0)
    assert Profile(scenario, pool, inputs, np.full(500, 100), looser).theta() > theta
    assert profile.upper_tokens_per_s == pytest.approx(
        throughput(pool.llm, pool.gpu, pool.tp, inputs, np.full(500, 100)).tokens_per_s
    )
    with pytest.raises(ValueError, match="attainment = 0"):
        ProfileSettings(attainment=0)


def test_a_target_that_no_request_meets_is_refused(scenario):
    with pytest.raises(PolicyError, match=r"theta_ttft_s = 0.001: too short for 'bloom-176b' on 8"):
        Endpoints(scenario, "test", theta_ttft_s=0.001)


def test_theta_does_not_depend_on_the_episode(scenario):
    """It is measured on lengths of its own."""
    policies = [make_policy("lt-u") for _ in range(2)]
    for seed, policy in enumerate(policies):
        policy.reset(scenario, seed)
    assert (policies[0].endpoints.theta == policies[1].endpoints.theta).all()


def test_reactive_lets_the_endpoints_scale(scenario, requests):
    _, result = asked("reactive", scenario, requests)
    assert result.decisions[0]["scaling"]["bloom-us-west"]["kind"] == "reactive"
    assert result.summary["looks_in"] > 0
    still = asked("static", scenario, requests)[1].summary
    assert still["looks_in"] == still["looks_out"] == 0
    assert still["instance_hours"] == pytest.approx(6 * 6 * 3)


def test_targets_are_reached_at_once_or_when_utilisation_asks(scenario, requests):
    _, immediate = asked("lt-i", scenario, requests)
    plans = [d for d in immediate.decisions if d.get("reason")]
    assert [d["time_s"] for d in plans] == [3600.0 * hour for hour in range(6)]
    assert "optimal" in plans[0]["reason"]
    assert all(order["kind"] == "none" for order in plans[0]["scaling"].values())
    for plan in plans:
        row = immediate.series[immediate.series["time_s"] == plan["time_s"] + 2700].iloc[0]
        for name, target in plan["targets"].items():
            assert row[f"{name}/active"] + row[f"{name}/acquiring"] == target
    _, used = asked("lt-u", scenario, requests)
    assert "targets" not in used.decisions[0]
    order = used.decisions[0]["scaling"]["bloom-us-west"]
    assert order["kind"] == "target"
    assert order["target"] == plans[0]["targets"]["bloom-us-west"]
    assert order["forecast_tokens_per_s"] > 0
    # Whatever instances it has are between those that it had and the target.
    first = used.series[used.series["time_s"] <= 3600]
    for name, order in used.decisions[0]["scaling"].items():
        there = first[f"{name}/active"] + first[f"{name}/acquiring"]
        assert there.between(min(3, order["target"]), max(3, order["target"])).all()
    _, ahead = asked("lt-ua", scenario, requests)
    assert ahead.decisions[0]["scaling"]["bloom-us-west"]["kind"] == "target-ahead"


def test_demand_that_vms_cannot_serve_is_told(scenario, requests):
    few = load_scenario(scenario, **{"fleet.pools.*.scaling.most": 1, "horizon_s": 3600.0})
    short = requests.between(0, 3600 * PS_PER_S)
    _, result = asked("lt-u", few, replace(short, history=requests.history))
    assert "instances missing" in result.decisions[0]["reason"]
    assert {order["target"] for order in result.decisions[0]["scaling"].values()} == {1}


def test_without_a_history_pools_are_reactive_for_an_hour(scenario):
    fresh = load_scenario(scenario, history_s=0.0, horizon_s=7200.0)
    result = run_episode(make_policy("lt-ua"), fresh, 1, forecaster=None)
    assert result.decisions[0]["scaling"]["bloom-us-west"]["kind"] == "reactive"
    assert "nothing to forecast from" in result.decisions[0]["reason"]
    assert result.decisions[4]["scaling"]["bloom-us-west"]["kind"] == "target-ahead"


def test_forecasts_are_of_what_clients_asked_for(scenario, requests):
    """The naive forecast of the first hour is the last quarter of the history, by hand."""
    policy = make_policy("lt-u", forecast="last-value")
    short = load_scenario(scenario, horizon_s=900.0)
    table = replace(requests.between(0, 900 * PS_PER_S), history=requests.history)
    run_episode(policy, short, 1, requests=table, forecaster=None)
    history = requests.history
    last = history.arrival_ps >= (21_600 - 900) * PS_PER_S
    mine = last & (history.llm == 0) & (history.region == 2) & (history.slo_class == 0)
    tokens = (history.input_tokens + history.predicted_output_tokens)[mine].sum()
    ahead = policy.forecast.ahead()
    np.testing.assert_allclose(ahead.tokens_per_s[0, 2], tokens / 900)
    hour = history.arrival_ps >= (21_600 - 3600) * PS_PER_S
    later = hour & (history.llm == 0) & (history.region == 2) & (history.slo_class == 1)
    waits = (history.input_tokens + history.predicted_output_tokens)[later].sum()
    assert ahead.buffer[0, 2] == pytest.approx(0.1 * waits / 3600)


def changed_after(requests: RequestTable, at_s: float) -> RequestTable:
    """Other requests from `at_s` on: half as many, of other lengths, from other regions."""
    old = requests.arrival_ps < at_s * PS_PER_S
    keep = old | (np.arange(len(requests)) % 2 == 0)
    new = ~old[keep]
    columns = {
        name: getattr(requests, name)[keep].copy()
        for name in (
            "arrival_ps",
            "llm",
            "region",
            "slo_class",
            "input_tokens",
            "output_tokens",
            "predicted_output_tokens",
        )
    }
    columns["region"][new] = (columns["region"][new] + 1) % 3
    for name in ("output_tokens", "predicted_output_tokens"):
        columns[name][new] = 2 * columns[name][new] + 7
    return replace(requests, **columns)


class Noting:
    """A policy, and the forecasts that it has made."""

    def __init__(self, policy):
        self.policy = policy
        self.name = policy.name
        self.forecasts = []

    @property
    def is_clairvoyant(self):
        return self.policy.is_clairvoyant

    def set_future(self, demand):
        self.policy.set_future(demand)

    def reset(self, scenario, seed):
        self.policy.reset(scenario, seed)

    def act(self, view):
        command = self.policy.act(view)
        if "error" in command.reason:
            self.forecasts.append((view.time_s, self.policy.forecast.ahead().windows.copy()))
        return command


def both(text, scenario, requests, at_s):
    """Decisions and forecasts until `at_s` in the world as it is, and where the time after it is another."""
    found = []
    for table in (requests, changed_after(requests, at_s)):
        policy = Noting(make_policy(text))
        result = run_episode(policy, scenario, 1, requests=table, forecaster=None)
        decisions = [d for d in result.decisions if d["time_s"] <= at_s]
        found.append((decisions, [f for t, f in policy.forecasts if t <= at_s], result))
    return found


@pytest.mark.parametrize("text", [*LONG_TERM, "lt-ua:forecast=seasonal-naive", "reactive"])
def test_the_future_changes_no_forecast_and_no_decision_before_it(text, scenario, requests):
    (decisions, forecasts, result), (others, other_forecasts, other) = both(
        text, scenario, requests, 10_800.0
    )
    assert decisions == others
    assert len(forecasts) == len(other_forecasts) == (0 if text == "reactive" else 4)
    for mine, its in zip(forecasts, other_forecasts, strict=True):
        np.testing.assert_array_equal(mine, its)
    seen = result.series["time_s"] <= 10_800
    columns = [c for c in result.series if "instance" not in c]
    assert result.series.loc[seen, columns].equals(other.series.loc[seen, columns])
    # The worlds do differ afterwards, and so does what is ordered.
    assert not result.series["reward"].equals(other.series["reward"])
    if text != "reactive":
        assert result.decisions != other.decisions


@pytest.mark.parametrize("forecast", ["oracle", "in-sample"])
def test_ablations_see_the_future_and_say_so(forecast, scenario, requests):
    """The test above can fail: it does with a policy that is told what will come."""
    text = f"lt-u:forecast={forecast}"
    assert make_policy(text).is_clairvoyant
    assert not make_policy("lt-u").is_clairvoyant
    (_, forecasts, _), (_, others, _) = both(text, scenario, requests, 10_800.0)
    assert any((mine != its).any() for mine, its in zip(forecasts, others, strict=True))


def test_the_oracle_forecasts_what_comes(scenario, requests):
    policy = Noting(make_policy("lt-u:forecast=oracle,beta=0"))
    run_episode(policy, scenario, 1, requests=requests, forecaster=None)
    time_s, windows = policy.forecasts[2]
    tokens = requests.input_tokens + requests.predicted_output_tokens
    for w in range(4):
        low, high = ((time_s + 900 * k) * PS_PER_S for k in (w, w + 1))
        mine = (requests.arrival_ps >= low) & (requests.arrival_ps < high)
        mine &= (requests.llm == 1) & (requests.region == 0) & (requests.slo_class == 0)
        assert windows[1, 0, w] == pytest.approx(tokens[mine].sum() / 900)
