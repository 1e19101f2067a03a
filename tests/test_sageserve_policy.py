"""SageServe's policies on small clusters: what they are for, what they order, that none sees the future."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from baselines import PolicyError, make_policy, policies_for
from baselines.sageserve.endpoints import Endpoints, charged_itl_s
from baselines.sageserve.forecast import DemandAhead
from baselines.sageserve.profile import Profile, ProfileSettings
from baselines.sageserve.throughput import throughput
from llmscale_env.control.forecast import Clairvoyant, Forecaster
from llmscale_env.control.reward import draw_requests
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.scenarios.regions import ScalingConfig
from llmscale_env.workload.requests import COLUMNS, PS_PER_S, RequestTable
from tests.sageserve_rules import Thresholds, UtilisedAhead
from tests.small_fleets import A_QUARTER
from tests.small_world import SMALL_WORLD

LONG_TERM = ("lt-i", "lt-u", "lt-ua")


@pytest.fixture(scope="module")
def scenario():
    """Six hours from Monday 6 h, with six hours of history: a quarter of the load, prompts in one piece."""
    return load_scenario(
        "multi-region",
        horizon_s=21_600,
        history_s=21_600,
        **{"fleet.pools.*.chunk_tokens": 0, **A_QUARTER},
    )


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
    assert "lt-u" not in policies_for(load_scenario(SMALL_WORLD))


@pytest.mark.parametrize(
    "policy, scenario_name, message",
    [
        ("reactive", "sageserve-siloed-day", "needs no pools of role batch"),
        ("siloed", "sageserve-day", "needs pools of role batch, as sageserve-siloed-day has"),
        ("lt-u", "sageserve-siloed-day", "is siloed"),
        ("reactive", SMALL_WORLD, "has no scaling"),
        ("lt-i", SMALL_WORLD, "has no scaling"),
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
        *(
            (
                f"lt-i:order={order}",
                rf"order = '{order}': must be three whole numbers p,d,q: p and q in 0..100",
            )
            for order in (
                "3,1",
                "1",
                "1,2,3,4",
                "1,,2",
                "-1,0,0",
                "1,3,0",
                "101,0,0",
                "1.5,0,0",
                "nan,0,0",
            )
        ),
        (
            "lt-u:forecast=ewma,order=1,0,0",
            r"order = \(1, 0, 0\): for forecast = arima or in-sample",
        ),
        ("lt-u:bin_s=0", "bin_s = '0': Input should be greater than or equal to 1"),
        ("lt-u:bin_s=-1", "bin_s = '-1': Input should be greater than or equal to 1"),
        ("lt-u:bin_s=1e-9", "bin_s = '1e-9': Input should be greater than or equal to 1"),
        ("lt-u:bin_s=nan", "bin_s = 'nan': Input should be a finite number"),
        ("lt-u:bin_s=7200", "bin_s = '7200': Input should be less than or equal to 3600"),
        ("lt-u:train_s=0", "train_s = '0': Input should be greater than 0"),
        ("lt-u:train_s=-1", "train_s = '-1': Input should be greater than 0"),
        ("lt-u:train_s=nan", "train_s = 'nan': Input should be a finite number"),
        ("lt-u:train_s=1e15", "train_s = '1e15': Input should be less than or equal to 31622400"),
        ("lt-u:train_s=900", "train_s = 900: must be at least 21600: six hours and two seasons"),
        ("lt-u:season_s=86400,train_s=86400", "train_s = 86400: must be at least 172800"),
        ("lt-u:forecast=ewma,train_s=86400", "train_s = 86400: for forecast = arima only"),
        ("lt-u:theta_ttft_s=1e300", "theta_ttft_s = '1e300': Input should be less than"),
        ("lt-u:vm_cost=1e300", "vm_cost = '1e300': Input should be less than or equal to 1000000"),
        ("lt-u:start_cost=1e300", "start_cost = '1e300': Input should be less than or equal to 10"),
        ("lt-u:high=1e-9", "high = '1e-9': Input should be greater than"),
        ("lt-u:bin_s=700", "horizon_s"),
        ("lt-u:high=0", "high = '0'"),
        ("lt-u:thresholds=code", "thresholds = 'code': Input should be 'scenario', 'paper' or"),
        ("reactive:epsilon=1", "there is no parameter 'epsilon'"),
        ("lt-u:forecast=seasonal-naive,season_s=0", "season_s = 0: must be above 0"),
        ("lt-u:season_s=1800", "season_s = 1800.*at least three bins"),
        ("lt-u:season_s=1e15", "season_s"),
        ("lt-u:forecast=in-sample,season_s=86400", "season_s = 86400.*arima, holt-winters or"),
        ("lt-u:level_s=900", "level_s = 900: for forecast = seasonal-naive only"),
        ("lt-u:harmonics=4", "harmonics = 4: for forecast = arima with a season_s"),
    ],
)
def test_slips_in_parameters(text, message):
    with pytest.raises(PolicyError, match=message):
        make_policy(text)


def test_thresholds_of_scenario_and_rules_are_the_same():
    config, rules = ScalingConfig(), Thresholds()
    assert (config.high, config.low) == (rules.high, rules.low)


def orders_of(text, scenario):
    """Thresholds of the first order of the first pool."""
    short = load_scenario(scenario, horizon_s=900.0)
    result = run_episode(make_policy(text), short, 1, forecaster=None)
    return result.decisions[0]["scaling"]["bloom-us-west"]["thresholds"]


@pytest.mark.parametrize(
    "text, ordered",
    [
        ("lt-u", {}),  # the scenario's
        ("lt-u:thresholds=paper", {"high": 0.7, "low": 0.3}),
        ("reactive:thresholds=released", {"high": 0.5, "low": 0.25}),
        ("lt-ua:thresholds=released,high=0.6", {"high": 0.6, "low": 0.25}),
        ("lt-ua:above=2,below=0.25,last_s=900", {"above": 2, "below": 0.25, "last_s": 900}),
    ],
)
def test_thresholds_of_the_text_of_the_code_and_any_others(text, ordered, scenario):
    assert orders_of(text, scenario) == ordered


def test_thresholds_that_contradict_the_scenario_are_refused(scenario):
    with pytest.raises(PolicyError, match=r"pool 'bloom-us-west': low = 0\.3: must be below high"):
        make_policy("lt-u:high=0.2").reset(scenario, 0)
    with pytest.raises(PolicyError, match=r"low = 0\.3: must be below high"):
        make_policy("lt-u:high=0.3000001").reset(scenario, 0)  # equal in millionths
    with pytest.raises(PolicyError, match="last_s = 7200"):
        make_policy("lt-ua:last_s=7200").reset(scenario, 0)


def test_other_thresholds_change_what_is_done(scenario, requests):
    """Among them a threshold that is never passed: nothing scales out, nor in."""
    (_, paper), (_, released), (_, never) = (
        asked("reactive", scenario, requests, **given)
        for given in ({}, {"thresholds": "released"}, {"high": 10.0, "low": 0.0})
    )
    assert released.summary["instance_hours"] > paper.summary["instance_hours"]
    assert never.summary["looks_out"] == never.summary["looks_in"] == 0


def test_the_fleet_as_the_programme_takes_it(scenario):
    endpoints = Endpoints(scenario, "test")
    assert endpoints.pool.tolist() == [[[0], [1], [2]], [[3], [4], [5]]]
    assert endpoints.least.tolist() == [[1] * 3] * 2
    assert endpoints.most.tolist() == [[9] * 3] * 2
    assert endpoints.interactive.tolist() == [True, False, False, False]
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


def test_theta_keeps_every_target_that_the_scenario_charges(scenario):
    """Theta on TTFT alone is higher where requests keep that, and are slow token by token."""
    assert charged_itl_s(scenario) == 1.0
    paper = Endpoints(scenario, "test", theta_ttft_s=20.0, theta_itl=False).theta
    both = Endpoints(scenario, "test", theta_ttft_s=20.0).theta
    assert (both <= paper).all()
    assert both[1, 0] < 0.9 * paper[1, 0]  # Llama-2
    pool, ones = scenario.fleet.pools[3], np.full(200, 100)
    settings = ProfileSettings(instances=2, ttft_s=5.0, itl_s=0.1, duration_s=300.0, requests=500)
    inputs = np.random.default_rng(0).integers(100, 8000, 200)
    profile = Profile(scenario, pool, inputs, ones, settings)
    theta = profile.theta()
    assert profile.attainment(theta) >= 0.95 > profile.attainment(1.05 * theta)
    alone = Profile(scenario, pool, inputs, ones, replace(settings, itl_s=None))
    assert alone.attainment(1.05 * theta) >= 0.95
    with pytest.raises(ValueError, match="itl_s = 0"):
        ProfileSettings(itl_s=0.0)


def test_a_scenario_that_charges_no_itl_has_thetas_of_ttft(scenario):
    """Only interactive classes with a weight are charged."""
    free = load_scenario(scenario, **{"classes.0.weight": 0.0})
    assert charged_itl_s(free) is None
    both = [Endpoints(free, "t", theta_ttft_s=20.0, theta_itl=on).theta for on in (True, False)]
    assert (both[0] == both[1]).all()


def test_a_target_that_no_request_meets_is_refused(scenario):
    for on, also in ((False, ""), (True, " with an ITL of 1 s (theta_itl)")):
        message = f"theta_ttft_s = 0.001{also}: too short for 'bloom-176b' on 8"
        with pytest.raises(PolicyError, match=re.escape(message)):
            Endpoints(scenario, "test", theta_ttft_s=0.001, theta_itl=on)


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
    assert ahead.decisions[0]["scaling"]["bloom-us-west"]["thresholds"] == {}
    assert ahead.decisions[0]["scaling"]["bloom-us-west"]["kind"] == "target-ahead"


class Line(Forecaster):
    """A user's own: the last value, and so much more per interval."""

    def __init__(self, slope, sees_future=False):
        super().__init__()
        self.slope = slope
        self.is_clairvoyant = sees_future

    def _allocate(self, n_series):
        return {"last": np.zeros(n_series)}

    def _observe(self, values):
        self._state["last"][:] = values

    def _path(self, steps):
        return self._state["last"] + self.slope * np.arange(1, steps + 1)[:, None]


def test_a_forecaster_of_ones_own_is_taken(scenario, requests):
    mine, flat = Line(slope=1000.0), Line(slope=0.0)
    one, steep = asked("lt-u", scenario, requests, forecast=mine)
    _, level = asked("lt-u", scenario, requests, forecast=flat)
    _, named = asked("lt-u", scenario, requests, forecast="last-value")
    assert level.decisions == named.decisions
    assert not one.is_clairvoyant
    assert mine.n_series == 0  # it was copied
    targets = [
        sum(order["target"] for order in result.decisions[0]["scaling"].values())
        for result in (steep, level)
    ]
    assert targets[0] > targets[1]


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_what_cannot_be_planned_for_is_told(scenario, requests, value):
    with pytest.raises(
        ValueError, match=r"^Line\._path\(12\)\[0, 0\] = .*: must be finite and at most"
    ):
        asked("lt-u", scenario, requests, forecast=Line(slope=value))


def test_the_largest_forecast_is_planned_for(scenario, requests):
    """Any load that is too much has the same plan: all the VMs that there are."""
    short = load_scenario(scenario, horizon_s=900.0)
    first = requests.between(0, 900 * PS_PER_S)
    first = replace(first, history=requests.history)
    targets = [
        [order["target"] for order in result.decisions[0]["scaling"].values()]
        for slope in (1e6, 1e9, 8e9)
        for result in [asked("lt-u", short, first, forecast=Line(slope=slope))[1]]
    ]
    assert targets[0] == targets[1] == targets[2]
    assert sum(targets[0]) > 3 * len(targets[0])


def test_a_forecaster_that_is_told_the_future_is_refused():
    for told in (Line(0.0, sees_future=True), Clairvoyant(), 3):
        with pytest.raises(PolicyError, match="or a Forecaster not told the future"):
            make_policy("lt-u", forecast=told)


def test_lt_ua_compares_the_load_with_what_was_forecast_for_that_time(scenario, requests):
    """By hand: windows of 15 min, load falling from 800 by 200 each. The last 20 min are 5 of the third
    window's (400) and the fourth's 15 (200): (5 * 400 + 15 * 200) / 20 = 250. The peak is 800."""
    ahead = DemandAhead(
        np.array([[[800.0, 600.0, 400.0, 200.0]]]),
        np.zeros((1, 1)),
        np.ones((1, 1)),
        900.0 * np.arange(4),
        900.0,
    )
    assert ahead.mean(2400.0, 3600.0) == [[250.0]]
    assert ahead.peak == [[800.0]]
    assert ahead.mean(3600.0, 7200.0) == ahead.peak  # nothing is forecast for then
    # In an hour that falls to a quarter, as forecast, LT-UA against the peak goes on in: 200 <= 0.5 * 800.
    # Against the forecast of that time it stays, as LT-U does: the forecast was right.
    for load, forecast, change in ((200.0, 800.0, -1), (200.0, 250.0, 0), (1250.0, 250.0, 1)):
        rule = UtilisedAhead()
        rule.hour(0.0, 5, 5, forecast)
        assert rule.arrival(3000.0, 5, 0.5, load) == change
    then, peak = (
        [
            order["forecast_tokens_per_s"]
            for decision in asked("lt-ua", scenario, requests, expected=expected)[1].decisions
            for order in decision.get("scaling", {}).values()
        ]
        for expected in ("then", "peak")
    )
    assert all(0 < one <= other for one, other in zip(then, peak, strict=True))
    assert then != peak


def test_lt_ua_can_differ_from_lt_u(scenario, requests):
    """With a low threshold it goes beyond the target, which LT-U never does."""
    _, plain = asked("lt-u", scenario, requests)
    _, ahead = asked("lt-ua", scenario, requests, above=1.2, below=0.9)
    assert ahead.decisions[0]["scaling"].keys() == plain.decisions[0]["scaling"].keys()
    assert ahead.summary["instance_hours"] != plain.summary["instance_hours"]


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
    later = hour & (history.llm == 0) & (history.region == 2) & (history.slo_class > 0)
    waits = (history.input_tokens + history.predicted_output_tokens)[later].sum()
    assert ahead.buffer[0, 2] == pytest.approx(0.1 * waits / 3600)


def changed_after(requests: RequestTable, at_s: float) -> RequestTable:
    """Other requests from `at_s` on: half as many, of other lengths, from other regions."""
    old = requests.arrival_ps < at_s * PS_PER_S
    keep = old | (np.arange(len(requests)) % 2 == 0)
    new = ~old[keep]
    columns = {name: getattr(requests, name)[keep].copy() for name in COLUMNS}
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
