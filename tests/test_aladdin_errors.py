"""Aladdin's prediction errors: accumulated for outstanding requests, with every predictor."""

from __future__ import annotations

import numpy as np
import pytest

from baselines import PolicyError, make_policy
from baselines.aladdin import policy as policy_module
from baselines.aladdin.moves import ErrorLedger, Outlived, Seen, early
from baselines.aladdin.policy import AladdinPolicy
from baselines.aladdin.prediction import ConditionalMean, Constant, Oracle
from baselines.aladdin.rebalance import PredictionErrors
from llmscale_env.control.reward import draw_requests
from llmscale_env.control.run import run_episode
from llmscale_env.control.view import FinishedRequests, RequestsUnderWay
from llmscale_env.scenarios.load import load_scenario
from tests.small_policies import Watched
from tests.small_tables import guesses


def under_way(*rows):
    """Of (request, instance)."""
    request, instance = (np.array(column) for column in zip(*rows, strict=True))
    n = len(rows)
    zero = np.zeros(n, np.int64)
    return RequestsUnderWay(
        request_id=request, arrival_s=zero / 1.0, slo_class=zero, deadline_s=zero + 1.0,
        input_tokens=zero + 10, predicted_output_tokens=zero + 100, emitted_tokens=zero,
        llm=zero, instance=instance, state=zero.astype(np.int8), movable=zero > 0,
        first_token_s=zero / 1.0,
    )  # fmt: skip


def outlived(*rows):
    """Of (request, instance, planned, predicted)."""
    return Outlived(*(np.array(column) for column in zip(*rows, strict=True)))


# ---- the ledger by hand ----


def test_an_outlived_request_counts_while_it_is_there():
    ledger = ErrorLedger(token_s=0.03)
    ledger.fail(outlived((7, 0, 20, 60), (8, 1, 10, 15)))
    # 7 outlives its second prediction too: it is 90 where 20 were planned, and still one request.
    ledger.forget(under_way((7, 0), (8, 1)), 0.1)
    ledger.fail(outlived((7, 0, 60, 90)))
    assert ledger.errors([0, 1]) == [PredictionErrors(70, 1), PredictionErrors(5, 1)]
    # 8 was sent back to a queue, and 7 has ended.
    ledger.forget(under_way((7, 0), (8, -1)), 0.2)
    assert ledger.errors([0, 1]) == [PredictionErrors(70, 1), PredictionErrors()]
    ledger.forget(under_way((9, 0)), 0.3)
    assert ledger.errors([0, 1]) == [PredictionErrors()] * 2


def test_as_printed_all_of_the_new_prediction_counts():
    ledger = ErrorLedger(token_s=0.03, printed=True)
    ledger.fail(outlived((7, 0, 20, 60)))
    assert ledger.errors([0]) == [PredictionErrors(60, 1)]


def test_an_early_end_counts_until_it_was_predicted():
    ledger = ErrorLedger(token_s=0.03)
    ledger.end([(1, 30, 50)], 2.0)  # 20 tokens early: until 2.6 s
    there = under_way((9, 0))
    ledger.forget(there, 2.55)
    assert ledger.errors([0, 1]) == [PredictionErrors(), PredictionErrors(-20, -1)]
    ledger.forget(there, 2.65)
    assert ledger.errors([0, 1]) == [PredictionErrors()] * 2


def test_a_move_counts_at_both_workers_while_the_request_is_there():
    ledger = ErrorLedger(token_s=0.03)
    ledger.move(7, 0, 1, 40)
    assert ledger.errors([0, 1]) == [PredictionErrors(-40, -1), PredictionErrors(40, 1)]
    ledger.move(7, 1, 2, 40)  # on to a third: it has never been the second's
    assert ledger.errors([0, 1, 2]) == [
        PredictionErrors(-40, -1), PredictionErrors(), PredictionErrors(40, 1),
    ]  # fmt: skip
    ledger.forget(under_way((7, 2)), 0.1)
    assert ledger.errors([2]) == [PredictionErrors(40, 1)]
    ledger.move(7, 2, 0, 40)  # and home
    assert ledger.errors([0, 1, 2]) == [PredictionErrors()] * 3
    ledger.move(8, 0, 1, 40)
    ledger.forget(under_way((8, 0)), 0.2)  # the engine did not do it
    assert ledger.errors([0, 1]) == [PredictionErrors()] * 2


def test_who_ended_early_by_hand():
    before = Seen(np.array([5, 7, 9]), np.array([40, 50, 90]), np.array([1, 0, -1]))
    zero = np.zeros(4, np.int64)
    # 7 is 20 early, 5 as predicted, 9 was at no worker, 11 was never seen.
    ended = FinishedRequests(
        np.array([7, 5, 9, 11]), zero, zero, zero + 10, np.array([30, 40, 10, 10])
    )
    assert early(before, ended) == [(0, 30, 50), (-1, 10, 90)]
    assert early(None, ended) == []


# ---- in episodes ----


def short(horizon_s=15.0, **changes):
    return load_scenario("aladdin-13b-a100", horizon_s=horizon_s, **changes)


@pytest.mark.parametrize("repredict", [True, False])
def test_algorithm_2_sees_a_failure_once_whether_the_router_is_told_or_not(repredict, monkeypatch):
    seen = []

    def watched(workers, before, finished, failed, printed=False):
        seen.extend(failed.rows())
        return [PredictionErrors()] * len(workers)

    monkeypatch.setattr(policy_module, "errors_of", watched)
    scenario = short()
    policy = make_policy("aladdin", repredict=repredict, span="heartbeat")
    result = run_episode(policy, scenario, 0, requests=guesses(scenario))
    assert {request for request, *_ in seen} == set(range(12))
    for request in range(12):
        mine = [row for row in seen if row[0] == request]
        assert mine[0][2] == 20  # the scenario's guess
        # Each next failure is of what was believed since the last.
        assert [row[2] for row in mine[1:]] == [row[3] for row in mine[:-1]]
    told = sum(decision.get("predictions", 0) for decision in result.decisions)
    assert told == (len(seen) if repredict else 0)


def test_the_errors_of_a_heartbeat_are_forgotten_at_the_next(monkeypatch):
    totals = {}
    for span in ("outstanding", "heartbeat"):
        noted = totals[span] = []

        def watched(workers, errors, *rest, noted=noted):
            noted.append(sum(e.requests for e in errors))
            return np.zeros(0, np.int64), np.zeros(0, np.int64)

        monkeypatch.setattr(policy_module, "moves", watched)
        scenario = short()
        run_episode(make_policy("aladdin", span=span), scenario, 0, requests=guesses(scenario))
    assert max(totals["outstanding"]) == 12  # all that have outlived are still there
    assert max(totals["heartbeat"]) < 6
    assert totals["outstanding"][-1] <= 0  # nobody is there any more


def test_moves_are_noted(monkeypatch):
    """A request that Algorithm 2 moved counts where it is now, at every heartbeat while it is there."""
    real = ErrorLedger.move
    noted = []

    def watched(self, request, source, to, tokens):
        assert source != to
        noted.append((request, tokens))
        real(self, request, source, to, tokens)

    monkeypatch.setattr(ErrorLedger, "move", watched)
    scenario = short(**{"workload.streams.chat.rate_per_s": 14.0})
    requests = draw_requests(scenario, np.random.default_rng(0))
    result = run_episode(
        make_policy("aladdin", check=False, objective="squares"), scenario, 0, requests=requests
    )
    assert noted
    assert sum(d.get("assign", 0) for d in result.decisions) == len(noted)
    assert all(tokens == requests.predicted_output_tokens[j] for j, tokens in noted)


# ---- predictors ----


def told_of(policy, scenario, requests):
    """The first prediction that the router is told for each request; without re-prediction."""
    found = {}

    def beside(view, command):
        if command.predictions is not None:
            for j, n in zip(*(column.tolist() for column in command.predictions), strict=True):
                found.setdefault(j, n)

    run_episode(Watched(policy, beside), scenario, 3, requests=requests)
    return found


def test_predictors_by_name():
    scenario = short(10.0, **{"workload.streams.chat.rate_per_s": 2.0})
    drawn = draw_requests(scenario, np.random.default_rng(3))
    constant = AladdinPolicy(predict="constant", constant_tokens=123, repredict=False)
    found = told_of(constant, scenario, None)
    assert len(found) > 10
    assert set(found.values()) == {123}
    oracle = AladdinPolicy(predict="oracle", repredict=False)
    found = told_of(oracle, scenario, None)
    assert len(found) > 10
    assert all(n == drawn.output_tokens[j] for j, n in found.items())
    mean = told_of(AladdinPolicy(predict="constant", repredict=False), scenario, None)
    assert 300 < next(iter(mean.values())) < 600  # of the history


def test_an_oracle_is_marked():
    assert make_policy("aladdin:predict=oracle").name == "aladdin:predict=oracle (oracle)"
    assert AladdinPolicy(predictor=Oracle([3])).name == "aladdin (oracle)"
    assert AladdinPolicy(predictor=Oracle([3])).oracle
    for plain in (AladdinPolicy(), AladdinPolicy(predictor=Constant(9))):
        assert (plain.name, plain.oracle) == ("aladdin", False)
    scenario = short(1.0)
    result = run_episode(make_policy("aladdin:predict=oracle"), scenario, 0)
    assert result.policy.endswith("(oracle)")


def test_an_oracle_of_other_requests_says_so():
    scenario = short()
    with pytest.raises(PolicyError, match="knows the requests that the scenario draws"):
        run_episode(make_policy("aladdin:predict=oracle"), scenario, 0, requests=guesses(scenario))
    given = AladdinPolicy(predictor=Oracle(np.full(12, 200)), repredict=False)
    assert set(told_of(given, scenario, guesses(scenario)).values()) == {200}


def test_a_predictor_of_ones_own():
    scenario = short()
    mine = ConditionalMean(prior_requests=0)
    policy = AladdinPolicy(predictor=mine)
    for _ in range(2):
        run_episode(policy, scenario, 0, requests=guesses(scenario))
        # What an episode teaches stays in it: the history and those that ended before the last refit.
        assert policy.predictor.seen.sum() == 4000 + 12
    assert mine.seen.sum() == 0
    assert policy.predictor is not mine


@pytest.mark.parametrize(
    "values, message",
    [
        ({"predictor": 5}, "predictor = 5: must be an OutputPredictor"),
        ({"predictor": Constant(3), "predict": "given"}, "predict = 'given': not beside"),
        ({"constant_tokens": 7}, "constant_tokens = 7: needs predict=constant"),
        ({"predict": "guess"}, "predict = 'guess'"),
        ({"span": "week"}, "span = 'week'"),
    ],
)  # fmt: skip
def test_bad_choices_are_told_in_one_line(values, message):
    with pytest.raises(PolicyError, match=message) as error:
        AladdinPolicy(**values)
    assert "\n" not in str(error.value)
