"""Aladdin's number of workers in the policy (Eq. 7, Algorithm 1 line 12), by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from baselines import make_policy
from baselines.aladdin.demand import WorkerLine
from baselines.aladdin.fleet import PREFILL_LOAD, history, profiled
from baselines.aladdin.scaling import WorkerDemand
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios.load import load_scenario
from tests.small_tables import requests_of

LINE = WorkerLine(per_rate=0.5, const=1.0)


def demand(**changes):
    return WorkerDemand(LINE, 10.0, 1e-3, 1, 100, **changes)


def told(some, arrivals, used):
    """Numbers of workers at the end of periods with so many arrivals and workers in use."""
    start = some._since_s
    return [
        some.observe(start + 10.0 * (k + 1), a, u)
        for k, (a, u) in enumerate(zip(arrivals, used, strict=True))
    ]


# ---- Eq. 7 from experience ----


def test_c5_follows_the_workers_in_use():
    # 10 requests/s: 0.5 * 10 + 1 = 6, until three periods after the first three have passed; nine in
    # use are 4 beyond 5.
    assert told(demand(), [100] * 7, [9] * 7) == [6, 6, 6, 6, 6, 9, 9]
    assert told(demand(), [100] * 7, [3] * 7) == [6, 6, 6, 6, 6, 5, 5]  # c5 is not below 0
    assert told(demand(learns=False), [100] * 7, [9] * 7) == [6] * 7


def test_k5_is_fitted_once_rates_differ():
    some = demand()
    some.pairs.extend([(10.0, 3), (10.0, 3), (10.0, 3), (30.0, 7), (30.0, 7)])
    some.rate = 30.0
    # Too few: 0.5 r and the mean of 3, 3, 3 less 5 and 7, 7 less 15, which is below 0.
    assert some.workers() == 15
    some.pairs.append((30.0, 7))
    line = some.learnt()
    assert (line.per_rate, line.const) == pytest.approx((0.2, 1.0))  # through (10, 3) and (30, 7)
    assert some.workers() == 7
    some.rate = 50.0
    assert some.workers() == 11
    some.learns = False
    assert some.workers() == 26
    # Rates within half of each other do not tell k5.
    near = demand()
    near.pairs.extend([(10.0, 6), (14.0, 6)] * 3)
    assert near.learnt().per_rate == 0.5
    assert near.learnt().const == pytest.approx((1 - 1) / 2)


def test_periods_after_a_change_say_nothing():
    some = demand()
    told(some, [100] * 8, [6] * 8)
    assert len(some.pairs) == 5
    told(some, [400] * 6, [6] * 6)
    # The change shows at 90 s, with the period before it, and alone at 110 s. That one and two more
    # do not count.
    assert some.changes == [90.0, 110.0]
    assert list(some.pairs)[5:] == [(40.0, 6)]  # of 140 s


def test_the_rate_that_is_asked_for():
    counts = [100, 100, 100, 100, 400, 400, 400]
    for rate_of, rates in {
        "last": [10, 10, 10, 10, 40, 40, 40],
        "window": [10, 10, 10, 10, 16, 20, 160 / 7],
        # A level has two periods at least, so that the first of 40 takes one of 10 with it.
        "changes": [10, 10, 10, 10, 25, 30, 40],
    }.items():
        some = demand(rate_of=rate_of, learns=False)
        numbers = told(some, counts, [1] * 7)
        assert numbers == [math.ceil(0.5 * rate + 1) for rate in rates], rate_of


# ---- in the policy ----


@pytest.mark.parametrize("patience, first_s", [(0.0, 0.1), (0.25, 0.2), (0.5, 0.4), (1.0, 0.7)])
def test_a_worker_is_opened_for_a_request_that_waits(patience, first_s):
    """40 long prompts come at 10 ms; one worker takes some of them within 600 ms.

    The others are overdue when they have waited for so much of these: 0, 150, 300, 600 ms.
    """
    scenario = load_scenario("aladdin-large", horizon_s=3.0)
    requests = requests_of(scenario, np.full(40, 0.01), 1500, 5)
    policy = make_policy("aladdin", workers=1, scale=True, period_s=1000.0, patience=patience)
    result = run_episode(policy, scenario, 0, requests=requests)
    orders = [(d["time_s"], d["targets"]["tp1"]) for d in result.decisions[1:] if "targets" in d]
    assert orders[0] == (pytest.approx(first_s), 2)
    # One worker a heartbeat, as long as anybody waits so long.
    assert [n for _, n in orders] == list(range(2, 2 + len(orders)))
    assert (result.requests["outcome"] != "unfinished").all()


def test_prefill_workers_follow_the_rate():
    scenario = load_scenario("aladdin-split", horizon_s=12.0)
    inputs, _ = history(scenario)
    pool = scenario.fleet.pools[0]
    seconds = profiled(scenario, pool, inputs).prefill.seconds(float(np.mean(inputs)))
    numbers = {}
    for rate in (5, 60):
        policy = make_policy("aladdin", scale=True, period_s=10.0)
        requests = requests_of(scenario, np.linspace(0.01, 9.99, 10 * rate), 100, 5)
        result = run_episode(policy, scenario, 0, requests=requests)
        orders = [
            d["targets"]["prefill"]
            for d in result.decisions[1:]
            if "prefill" in d.get("targets", {})
        ]
        numbers[rate] = orders[0]
        # Busy for rate * seconds, at most 60 % of the time, and one more.
        assert orders[0] == math.ceil(rate * seconds / 0.6) + 1
    assert PREFILL_LOAD == 0.6
    assert numbers[60] > numbers[5]


def test_finished_requests_enter_the_history():
    scenario = load_scenario("aladdin-13b-a100", horizon_s=60.0)
    # 30 prompts of 3,000 tokens, longer than any of the history, are answered with 77 tokens.
    requests = requests_of(scenario, np.linspace(0.05, 6.0, 30), 3000, 77)
    scenario = load_scenario(scenario, **{"classes.chat.ttft_s": 10.0})
    policy = make_policy("aladdin")
    run_episode(policy, scenario, 0, requests=requests)
    assert policy.predictor.seen.sum() == 4000 + 30
    assert policy.predictor.predict([0], [3000])[0] == pytest.approx(77)


# ---- the baselines ----


@pytest.mark.parametrize("by, third", [("requests", 0), ("tokens", 1)])
def test_a_queue_is_as_long_as_its_requests_or_their_tokens(by, third):
    """Long and short outputs go to one worker each; the third request goes where fewer are left."""
    scenario = load_scenario("aladdin-13b-a100", horizon_s=10.0)
    requests = requests_of(scenario, [0.01, 0.02, 0.03], 20, [500, 50, 50])
    result = run_episode(make_policy(f"jsq:by={by}+workers=2"), scenario, 0, requests=requests)
    assert result.requests["instance"].tolist() == [0, 1, third]
