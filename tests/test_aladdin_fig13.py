"""Aladdin's Figure 13 in small, and the steady state that it starts from. Nothing depends on times."""

from __future__ import annotations

import numpy as np
import pytest

from baselines.aladdin.constraints import Request
from experiments.aladdin import fig13_overhead as fig13
from experiments.aladdin import population
from experiments.aladdin.setting import LENGTHS, MAX_OUTPUT, lengths, rules_of
from tests import small_studies
from tests.test_figures import small_run

LLM = "llama-2-13b"


def rules(**change):
    return rules_of(LLM, fig13.GPU, **{"gamma": 0.5, "theta": 0.9, **change})


# ---- the steady state ----


def test_as_many_as_little_s_law_says():
    itl_s, rate = 0.024, 40.0
    rng = np.random.default_rng(0)
    counts = [len(population.ongoing(LENGTHS, rate, itl_s, rng)) for _ in range(60)]
    outputs = lengths(LENGTHS, 50_000, rng)[1]
    # Tokens from the first to the last but one are emitted while it decodes.
    expected = rate * itl_s * (outputs.mean() - 1)
    assert np.mean(counts) == pytest.approx(expected, rel=0.03)


def test_an_ongoing_request():
    found = population.ongoing(LENGTHS, 20.0, 0.03, np.random.default_rng(1))
    emitted = [request.emitted_tokens for request in found]
    assert emitted == sorted(emitted, reverse=True)  # the oldest first
    assert min(emitted) >= 1
    assert max(emitted) < MAX_OUTPUT
    for request in found:
        assert request.predicted_tokens > request.emitted_tokens
        assert request.decoding_s == pytest.approx(0.03 * request.emitted_tokens)


def test_new_requests_have_the_mean_predicted():
    new = population.arriving(LENGTHS, 5000, np.random.default_rng(2))
    outputs = lengths(LENGTHS, 20_000, np.random.default_rng(3))[1]
    assert all(request.new for request in new)
    mean = np.mean([request.predicted_tokens for request in new])
    assert mean == pytest.approx(outputs.mean(), rel=0.03)


@pytest.mark.parametrize("room", [0.0, 0.4])
def test_a_fleet_keeps_its_limits_and_has_room(room):
    some = rules()
    rng = np.random.default_rng(4)
    found = population.fleet(LENGTHS, 20.0, some, 0.8, room, rng)
    assert all(some.broken(worker) == "" for worker in found)
    held = sum(map(len, found))
    expected = len(population.ongoing(LENGTHS, 20.0, 0.8 * some.itl_slo_s, rng))
    assert held == pytest.approx(expected, rel=0.25)
    # The more have left since, the more workers there are for as many.
    assert held / len(found) < 45 * (1 - room)


# ---- rounds ----


def test_workers_that_are_tried_by_hand():
    some = rules()
    full = tuple(Request(1000, 400.0, 10, 0.24) for _ in range(60))
    assert some.broken(full) != ""
    this = fig13.Round([Request(100, 300.0)], [full, full, ()], some)
    assert fig13.tries(this) == 3  # the fullest first
    assert fig13.tries(fig13.Round([Request(100, 300.0)] * 2, [()], some)) == 2


def test_the_least_of_some_repetitions():
    calls = []
    assert fig13.least_s(lambda: calls.append(1), 3) >= 0
    assert len(calls) == 3


def test_a_run():
    rows = small_run("aladdin-fig13").to_dict("records")
    python = [row for row in rows if row["scheduler"] == "python"]
    router = [row for row in rows if row["scheduler"] == "router"]
    assert [row["round"] for row in python] == [0, 1]
    assert all(row["requests"] == 4 and row["seconds"] >= 0 for row in python)
    assert all(row["workers"] >= 1 and row["tried"] >= 1 for row in python)
    assert 1 <= len(router) <= 2
    assert {row["workers"] for row in router} == {python[0]["workers"]}
    assert all(row["requests"] >= 1 and row["seconds"] > 0 for row in router)
    # Little's law, within the noise of one episode: 4 requests/s for some 470 tokens of 24 ms.
    assert 15 < router[-1]["ongoing"] < 90


def test_rounds_are_the_placements_of_a_heartbeat(monkeypatch):
    """Every placement takes 1 us in the first run and 2 us in the second."""
    runs = []

    def made_up(spec, requests):
        runs.append(len(requests))
        taken = np.full(len(requests), 1_000 * len(runs), np.int64)
        return taken, np.full(len(requests), 7), None

    monkeypatch.setattr(fig13, "timed", made_up)
    parameters = fig13.Overhead(seeds=1, llms=(LLM,), rates_per_s=(20,), rounds=3, repeats=2)
    (case,) = fig13.cases(parameters)
    rows = fig13.router_rounds(case, 5)
    assert [row["round"] for row in rows] == [0, 1, 2]
    # The first run only compiles.
    assert all(row["seconds"] == pytest.approx(2e-6 * row["requests"]) for row in rows)
    assert 30 < sum(row["requests"] for row in rows) < 95
    assert {row["ongoing"] for row in rows} == {7}


def test_n_log_n():
    assert fig13.steps(8) == 24
    assert fig13.steps(1) == 1


def judged(seconds_of):
    """Claims on rounds of the reference that take so long at 25 and at 100 requests/s."""
    parameters = fig13.Overhead(seeds=2, llms=(LLM,), rates_per_s=(25, 100), schedulers=("python",))

    def row(case):
        rate = case["rate_per_s"]
        fleet = {"workers": 7, "ongoing": 270, "tried": 2.0}
        return {"scheduler": "python", "requests": rate, "seconds": seconds_of(rate), **fleet}

    frame = small_studies.made_up(fig13, parameters, row)
    return small_studies.judged(fig13, frame, parameters).values()


def test_claims_on_made_up_rounds():
    time, growth = judged(lambda rate: 1e-4 * fig13.steps(rate))
    assert time.ours.mean == pytest.approx(0.1 * fig13.steps(25))
    assert growth.ours.mean == pytest.approx(1)
    assert {time.verdict, growth.verdict} == {"reproduced"}


def test_slow_rounds_and_squares_are_not_reproduced():
    time, growth = judged(lambda rate: 1e-4 * rate**2)
    assert (time.verdict, growth.verdict) == ("not reproduced", "not reproduced")
    assert "270" in growth.parts[0].reason
