"""Aladdin's policy and its baselines on clusters: served, learnt, moved, scaled as section 4 and 5 say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from baselines import PolicyError, make_policy, policies_for
from baselines.aladdin.configuration import RequestTokens
from baselines.aladdin.constraints import Rules
from baselines.aladdin.demand import WorkerLine
from baselines.aladdin.fleet import choose, history, starting_number
from baselines.aladdin.moves import Outlived, Seen, errors_of, moves
from baselines.aladdin.performance import DecodeTime, PrefillTime
from baselines.aladdin.rebalance import PredictionErrors
from baselines.aladdin.scaling import WorkerDemand, requests_per_worker
from baselines.make import PLACEMENT_POLICIES
from llmscale_env.control.command import Command
from llmscale_env.control.reward import draw_requests
from llmscale_env.control.run import run_episode
from llmscale_env.control.view import FinishedRequests, RequestsUnderWay
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.sim.spec import RequestState
from llmscale_env.workload.requests import RequestTable
from tests.small_policies import Watched
from tests.small_tables import guesses
from tests.small_world import SMALL_WORLD

SCENARIOS = (
    "aladdin-13b-a100",
    "aladdin-70b-a100",
    "aladdin-7b-v100",
    "aladdin-13b-v100",
    "aladdin-large",
    "aladdin-split",
)


def made(name="aladdin-13b-a100", rate=None, arrivals_s=15.0, patience_s=45.0, seed=0, **changes):
    """A scenario with time for everything to end, and requests of its first seconds."""
    if rate is not None:
        changes["workload.streams.chat.rate_per_s"] = rate
    short = load_scenario(name, horizon_s=arrivals_s, impossible_commands="error", **changes)
    requests = draw_requests(short, np.random.default_rng(seed))
    return load_scenario(short, horizon_s=arrivals_s + patience_s), requests


# ---- episodes ----


@pytest.mark.parametrize(
    "name", [SCENARIOS[0], *(pytest.param(s, marks=pytest.mark.slow) for s in SCENARIOS[1:])]
)
def test_every_request_is_served(name):
    scenario, requests = made(name, rate=2.0 if "70b" not in name else 0.5, patience_s=90.0)
    assert policies_for(scenario) == ("static", *PLACEMENT_POLICIES)
    for policy in policies_for(scenario):
        result = run_episode(make_policy(policy), scenario, 0, requests=requests)
        assert set(result.requests["outcome"]) <= {"on_time", "late"}, policy
        assert result.summary["clipped"] == 0
        assert result.requests["itl_mean_s"].max() > 0


@pytest.mark.slow
def test_the_same_twice_and_switches_matter():
    scenario, requests = made(rate=12.0, arrivals_s=60.0)
    policy = make_policy("aladdin")
    first = run_episode(policy, scenario, 0, requests=requests)
    again = run_episode(policy, scenario, 0, requests=requests)
    assert again.decisions == first.decisions
    assert again.requests.equals(first.requests)
    for other in (
        "aladdin:theta=0.5",
        "aladdin:gamma=1",
        "aladdin:rebalance=false",
        "aladdin:repredict=false",
        "aladdin:relearn=false",
        "aladdin:fallback=least",
        "aladdin:saved_over=tokens",
        "aladdin:predict=history",
        "jsq",
        "jsq:by=tokens",
        "power-of-two",
        "machine-wide",
    ):
        result = run_episode(make_policy(other), scenario, 0, requests=requests)
        assert not result.requests.equals(first.requests), other


@pytest.mark.parametrize("said", ["wait", "least"])
@pytest.mark.parametrize("asked", [None, "wait", "least"])
def test_what_no_worker_takes_goes_where_the_scenario_says(said, asked):
    """Under ten times the load workers are full: requests wait in the gateway, or never do."""
    routes = load_scenario("aladdin-13b-a100").model_dump()["fleet"]["routes"]
    routes[0]["placement"]["fallback"] = said
    scenario, requests = made(
        rate=100.0, arrivals_s=3.0, patience_s=1.0, **{"fleet.routes": routes}
    )
    waited = []

    def beside(view, command):
        waited.append(bool((view.under_way.instance < 0).any()))

    policy = Watched(make_policy("aladdin", tp=1, fallback=asked), beside)
    run_episode(policy, scenario, 0, requests=requests)
    assert any(waited) == ((asked or said) == "wait")


def test_best_fit_packs_and_the_shortest_queue_spreads():
    scenario, requests = made(rate=2.0, arrivals_s=40.0)
    used = {}
    for policy in ("aladdin", "jsq"):
        table = run_episode(make_policy(policy), scenario, 0, requests=requests).requests
        used[policy] = table["instance"].value_counts(normalize=True).iloc[0]
    assert used["aladdin"] > 0.8
    assert used["jsq"] < 0.4


# ---- configuration ----


def test_the_degrees_of_table_3_on_a100():
    for name, tp in (("aladdin-13b-a100", 1), ("aladdin-70b-a100", 2)):
        scenario = load_scenario(name)
        tokens = RequestTokens.of(*history(scenario))
        found = choose(scenario, "x", tokens, None)
        assert scenario.fleet.pools[found.pool].tp == tp
        assert starting_number(scenario, found, None, None, "x") == 4 // tp
        wide = choose(scenario, "x", tokens, None, "largest")
        assert scenario.fleet.pools[wide.pool].tp == 4
        assert starting_number(scenario, wide, None, None, "x") == 1
        assert {found.pool, *found.others} == set(range(len(scenario.fleet.pools)))


def test_split_phases_have_prefill_workers_besides():
    scenario = load_scenario("aladdin-split")
    found = choose(scenario, "x", RequestTokens.of(*history(scenario)), None)
    assert (found.pool, found.prefill, found.others) == (1, 0, ())
    assert starting_number(scenario, found, 20, None, "x") == 20


def split(prefill_tp, prefill, most_prefill, decode, max_gpus, tp=1):
    """`aladdin-split` with other pools: prefill workers (and at most how many), decode workers."""
    return load_scenario(
        "aladdin-split",
        **{
            "fleet.max_gpus": max_gpus,
            "fleet.pools.prefill.tp": prefill_tp,
            "fleet.pools.prefill.initial_instances": prefill,
            "fleet.pools.prefill.max_instances": most_prefill,
            "fleet.pools.decode.tp": tp,
            "fleet.pools.decode.initial_instances": decode,
            "impossible_commands": "error",
            "horizon_s": 2.0,
        },
    )


@pytest.mark.parametrize(
    "policy, prefill_tp, message",
    [
        # Four prefill workers of 2 GPUs hold 8 of 12.
        ("jsq:workers=8", 2, "workers = 8: must be at most 4 of 1 GPUs each beside 8 GPUs of prefill"),
        ("jsq:workers=10+prefill_workers=8", 1, "workers = 10: must be at most 4 of 1 GPUs each beside 8"),
        ("jsq:prefill_workers=6", 2, "prefill_workers = 6: must be at most 5 of 2 GPUs each"),
        ("aladdin:workers=8", 2, "workers = 8: must be at most 4"),
        ("aladdin:prefill_workers=12", 1, "prefill_workers = 12: must be at most 11 of 1 GPUs each"),
    ],
)  # fmt: skip
def test_more_workers_than_there_are_gpus_beside_prefill_are_refused(policy, prefill_tp, message):
    scenario = split(prefill_tp, 4, 12, 4, 12)
    with pytest.raises(PolicyError, match=message):
        make_policy(policy).reset(scenario, 0)


@pytest.mark.parametrize(
    "policy, prefill_tp, prefill, decode",
    [
        ("jsq", 2, 4, 4),
        ("jsq:workers=4", 2, 4, 4),
        ("jsq:workers=10+prefill_workers=1", 2, 1, 10),
        ("jsq:prefill_workers=5", 2, 5, 2),  # as many as are left beside them
        ("aladdin:workers=2+prefill_workers=5", 2, 5, 2),
    ],
)
def test_workers_beside_prefill_are_as_many_as_was_said(policy, prefill_tp, prefill, decode):
    scenario = split(prefill_tp, 4, 5, 4, 12)
    result = run_episode(make_policy(policy), scenario, 0)
    assert set(result.series["prefill/active"][1:]) == {prefill}
    assert set(result.series["decode/active"][1:]) == {decode}


def test_prefill_workers_that_leave_nothing_are_told():
    scenario = split(1, 12, 12, 0, 12)
    with pytest.raises(PolicyError, match="prefill workers hold 12 of max_gpus = 12: at least 1"):
        make_policy("jsq").reset(scenario, 0)


def test_a_fleet_of_split_phases_grows_into_what_prefill_leaves():
    def most(policy, scenario):
        made = make_policy(policy)
        made.reset(scenario, 0)
        return made.demand.most

    # Prefill may grow to 4 workers of 2 GPUs; of 20 GPUs 12 are left.
    assert most("aladdin", split(2, 1, 4, 4, 20)) == 12
    # Two prefill workers that stay two hold 4.
    assert most("aladdin:prefill_workers=2", split(2, 1, 4, 4, 20)) == 16
    # Where prefill may take all GPUs, decode keeps what it starts with.
    assert most("aladdin", split(1, 4, 20, 8, 20)) == 8
    # A fleet that is full with its prefill workers does not grow.
    made = make_policy("aladdin:prefill_workers=12")
    made.reset(split(1, 4, 20, 8, 20), 0)
    assert made.demand is None


def test_prefill_grows_no_further_than_decode_leaves():
    scenario = split(1, 4, 20, 14, 20)
    scenario = load_scenario(
        scenario, **{"horizon_s": 25.0, "workload.streams.chat.rate_per_s": 150.0}
    )
    result = run_episode(make_policy("aladdin"), scenario, 0)  # impossible commands are errors
    assert result.series["prefill/active"].max() == 6
    assert result.series["decode/active"].max() <= 14


def test_history_is_the_same_for_all_episodes():
    scenario = load_scenario("aladdin-13b-a100")
    one, two = history(scenario), history(scenario)
    assert (one[1] == two[1]).all()
    assert 300 < one[1].mean() < 600  # the table's mean is 472


@pytest.mark.parametrize(
    "text, scenario, message",
    [
        ("aladdin:theta=1.5", "aladdin-13b-a100", "theta = '1.5'"),
        ("aladdin:norm=long", "aladdin-13b-a100", "norm = 'long'"),
        ("aladdin:gama=1", "aladdin-13b-a100", r"no parameter 'gama' \(did you mean gamma\?\)"),
        ("aladdin:tp=3", "aladdin-13b-a100", r"tp = 3: there are pools with \[1, 2, 4\]"),
        ("jsq:tp=8", "aladdin-70b-a100", r"tp = 8: there are pools with \[2, 4\]"),
        ("jsq:workers=5", "aladdin-13b-a100", "workers = 5: must be at most 4 of 1 GPUs"),
        ("machine-wide:workers=2", "aladdin-13b-a100", "workers = 2: must be at most 1 of 4 GPUs"),
        ("aladdin", "chiron-8b", "no placement on its routes"),
        ("jsq", "chiron-both", "serves one LLM, scenario 'chiron-both' has"),
        ("jsq", SMALL_WORLD, "all classes need routes to the same pools"),
        ("jsq:by=age", "aladdin-13b-a100", "by = 'age'"),
        ("power-of-two:by=tokens", "aladdin-13b-a100", "by = 'tokens': must be 'requests'"),
        ("jsq:prefill_workers=2", "aladdin-13b-a100", "prefill_workers = 2: must be left out"),
    ],
)  # fmt: skip
def test_bad_input_is_told_in_one_line(text, scenario, message):
    loaded = load_scenario(scenario)
    if scenario == "chiron-8b":  # one route for both classes, to get as far as placement
        routes = [{"kind": "jsq-requests", "pools": ["interactive"], "queue": "batch"}]
        loaded = load_scenario(scenario, **{"fleet.routes": routes})

    def act():
        make_policy(text).reset(loaded, 0)

    with pytest.raises(PolicyError, match=message) as error:
        act()
    assert "\n" not in str(error.value)


def test_slos_that_no_worker_keeps_are_told():
    scenario = load_scenario("aladdin-large", **{"classes.chat.itl_s": 0.005})
    with pytest.raises(PolicyError, match=r"itl_slo_s = 0\.005: one request takes"):
        make_policy("aladdin").reset(scenario, 0)


# ---- learning ----


def drifting(policy, instance, factor, at_s):
    def beside(view, command):
        if abs(view.time_s - at_s) < 1e-6:
            return replace(command, drift={instance: factor})
        return None

    return Watched(policy, beside)


@pytest.mark.parametrize("relearn", [True, False])
def test_a_worker_that_drifts_is_found_and_gets_less(relearn):
    scenario, requests = made(rate=7.0, arrivals_s=80.0)
    policy = make_policy("aladdin", relearn=relearn)
    result = run_episode(drifting(policy, 0, 1.5, 20.0), scenario, 0, requests=requests)
    at = result.requests["arrival_s"]
    # Ties go to the first worker, so best fit had filled it before.
    before, later = ((result.requests["instance"][some] == 0).mean() for some in (at < 20, at > 30))
    assert before > 0.2
    assert later < 0.1
    if (
        not relearn
    ):  # constraint (d) goes by the clock: without slack no prefill fits, whatever the model says
        assert policy.book.drifts == []
        return
    (at_s, instance), *_ = policy.book.drifts
    assert {i for _, i in policy.book.drifts} == {0}
    assert instance == 0
    assert 20 < at_s < 25
    typical = 10, 5000.0
    slow = policy.book.decode_of(0).seconds(*typical)
    assert slow / policy._profile.decode.seconds(*typical) == pytest.approx(1.5, rel=0.06)


def test_without_drift_none_is_found():
    scenario, requests = made(rate=8.0, arrivals_s=60.0)
    policy = make_policy("aladdin")
    run_episode(policy, scenario, 0, requests=requests)
    assert policy.book.drifts == []
    assert policy.book.learners()


# ---- predictions ----


@pytest.mark.parametrize("switch", [True, False])
def test_under_estimated_requests_are_predicted_again(switch):
    scenario, _ = made(patience_s=15.0)
    wrong = []

    def beside(view, command):
        seen = view.under_way
        told = (
            {}
            if command.predictions is None
            else dict(zip(*(column.tolist() for column in command.predictions), strict=True))
        )
        for request, predicted, emitted in zip(
            seen.request_id.tolist(),
            seen.predicted_output_tokens.tolist(),
            seen.emitted_tokens.tolist(),
            strict=True,
        ):
            if told.get(request, predicted) <= emitted:
                wrong.append(request)
            if request in told:
                assert predicted <= emitted < told[request]

    policy = Watched(make_policy("aladdin", repredict=switch), beside)
    result = run_episode(policy, scenario, 0, requests=guesses(scenario))
    corrected = sum(d.get("predictions", 0) for d in result.decisions)
    if switch:
        assert not wrong
        assert corrected >= 12
    else:
        assert len(set(wrong)) == 12
        assert corrected == 0


def test_predictions_from_history():
    """Every guess is 20; who waits when the heartbeat comes is predicted from finished requests."""
    scenario, _ = made(patience_s=15.0)
    told = []

    def beside(view, command):
        if command.predictions is not None:
            told.extend(command.predictions[1].tolist())

    policy = Watched(make_policy("aladdin", predict="history", fallback="wait"), beside)
    requests = guesses(scenario, n=40)
    together = replace(requests, arrival_ps=np.full(40, int(0.95e11)))
    run_episode(policy, scenario, 0, requests=together)
    assert min(told) > 100


# ---- re-balancing ----


def under_way(rows):
    """Of (request, instance, movable, input, predicted, emitted, first token)."""
    request, instance, movable, inputs, predicted, emitted, first = (
        np.array(column) for column in zip(*rows, strict=True)
    )
    n = len(rows)
    return RequestsUnderWay(
        request_id=request, arrival_s=np.zeros(n), slo_class=np.zeros(n, int), deadline_s=np.ones(n),
        input_tokens=inputs, predicted_output_tokens=predicted, emitted_tokens=emitted,
        llm=np.zeros(n, int), instance=instance, state=np.full(n, RequestState.RUNNING, np.int8),
        movable=movable, first_token_s=first,
    )  # fmt: skip


def finished(*pairs):
    ids, outputs = (np.array(column) for column in zip(*pairs, strict=True))
    nothing = np.zeros(len(ids), np.int64)
    return FinishedRequests(ids, nothing, nothing, nothing + 10, outputs)


def test_errors_by_hand():
    nan = float("nan")
    before = Seen.of(
        under_way(
            [
                (7, 0, False, 10, 50, 3, 1.0),
                (5, 1, False, 10, 40, 3, 1.0),
                (9, -1, True, 10, 90, 0, nan),
            ]
        ),
        np.array([50, 40, 90]),
    )
    outlived = Outlived(*np.array([[1, 2, 3], [1, 1, 3], [20, 30, 10], [60, 50, 99]]))
    # 7 ended 20 tokens early, 5 as predicted, 9 and 11 were at no worker when last seen.
    ended = finished((7, 30), (5, 40), (9, 10), (11, 10))
    assert errors_of([0, 1], before, ended, outlived) == [
        PredictionErrors(-20.0, -1.0),
        PredictionErrors(40.0 + 20.0, 2.0),
    ]
    printed = errors_of([0, 1], before, ended, outlived, printed=True)
    assert printed[1] == PredictionErrors(60.0 + 50.0, 2.0)
    assert errors_of([0], None, ended, outlived) == [PredictionErrors()]


def test_only_who_has_not_started_moves_and_only_where_it_may():
    nan = float("nan")
    rows = [
        (1, 0, False, 100, 200, 50, 0.0),
        (2, 0, True, 100, 80, 0, nan),
        (3, -1, True, 100, 80, 0, nan),
        (4, 1, False, 100, 200, 50, 0.0),
    ]
    seen = under_way(rows)
    errors = [PredictionErrors(100.0, 1.0), PredictionErrors(-100.0, -1.0)]
    times = [DecodeTime(1e-6, 1e-4, 0.01)] * 2
    rules = Rules(
        prefill=PrefillTime(1e-4, 0.001), decode=times[0], kv_capacity=10_000.0, ttft_slo_s=1.0,
        itl_slo_s=0.03,
    )  # fmt: skip
    at = seen.predicted_output_tokens
    ids, where = moves([0, 1], errors, times, seen, at, 1.0, lambda i: rules)
    assert (ids.tolist(), where.tolist()) == ([2], [1])
    # Nobody moves to a worker that is full, where nothing was wrong, or for nothing.
    full = replace(rules, kv_capacity=250.0)
    assert len(moves([0, 1], errors, times, seen, at, 1.0, lambda i: full)[0]) == 0
    assert len(moves([0, 1], errors, times, seen, at, 1.0, None)[0]) == 1
    assert len(moves([0, 1], [PredictionErrors()] * 2, times, seen, at, 1.0, None)[0]) == 0
    assert len(moves([0, 1], errors[::-1], times, seen, at, 1.0, None)[0]) == 0


def test_moves_in_an_episode_are_of_requests_that_have_not_started():
    scenario, requests = made(rate=12.0, arrivals_s=60.0)
    moved = []

    def beside(view, command):
        if command.assign is None:
            return
        seen = view.under_way
        for request, to in zip(*(column.tolist() for column in command.assign), strict=True):
            (k,) = np.flatnonzero(seen.request_id == request)
            assert seen.state[k] == RequestState.OWN_QUEUE
            assert seen.emitted_tokens[k] == 0
            assert seen.instance[k] not in (-1, to)
            moved.append(request)

    run_episode(Watched(make_policy("aladdin"), beside), scenario, 0, requests=requests)
    assert moved


# ---- demand ----


def test_what_a_worker_takes_by_hand():
    decode = DecodeTime(1e-6, 1e-4, 0.01)
    inputs, outputs = np.array([100, 100]), np.array([200, 200])
    # Context while decoding: 100 + 100; each request adds 0.1 + 0.2 ms, and 20 ms of prefill per 200 tokens.
    rate = requests_per_worker(
        PrefillTime(1e-4, 0.01), decode, 1e6, 0.03, inputs, outputs, theta=0.9
    )
    batch = 0.9 * 0.02 / (0.0003 + 0.0001)
    assert rate == pytest.approx(batch / (200 * 0.03))
    # A decode iteration at that batch fills what prefills leave of the target (theta 1).
    full = requests_per_worker(PrefillTime(1e-4, 0.01), decode, 1e6, 0.03, inputs, outputs)
    b = full * 200 * 0.03
    assert 0.01 + 0.0003 * b == pytest.approx(0.03 * (1 - full * 0.02))
    # Memory for 10 requests of 200 tokens.
    assert requests_per_worker(None, decode, 2000, 0.03, inputs, outputs) == pytest.approx(10 / 6)
    with pytest.raises(ValueError, match="one request takes"):
        requests_per_worker(None, decode, 1e6, 0.0101, inputs, outputs)


def test_the_number_of_workers_follows_the_rate():
    line = WorkerLine(0.5, 1.0, lower_rate=0.0)
    demand = WorkerDemand(line, 10.0, 1e-3, 1, 50)
    rng = np.random.default_rng(0)
    numbers = []
    for k in range(1, 601):
        rate = 10 if k <= 300 else 30
        told = demand.observe(0.1 * k * 1, int(rng.poisson(0.1 * rate)), 5)
        if told is not None:
            numbers.append(told)
    # Every 10 s; k5 is known, c5 is learnt: 5 workers were enough at 10 requests/s.
    assert len(numbers) == 6
    assert 5 <= numbers[0] <= 8
    assert numbers[-1] > 12
    assert WorkerDemand(line, 10.0, 1e-3, 1, 4).observe(10.0, 300, 1) == 4


@pytest.mark.slow
def test_a_fleet_grows_and_shrinks_with_demand():
    scenario, _ = made("aladdin-large")
    first, second, third = (
        made("aladdin-large", rate=rate, arrivals_s=60.0, seed=rate)[1] for rate in (8, 24, 8)
    )
    arrival = np.concatenate([t.arrival_s + 60 * k for k, t in enumerate((first, second, third))])
    requests = RequestTable.build(
        arrival,
        *(
            np.concatenate([getattr(t, name) for t in (first, second, third)])
            for name in ("input_tokens", "output_tokens")
        ),
        predicted_output_tokens=np.concatenate(
            [t.predicted_output_tokens for t in (first, second, third)]
        ),
        llm_names=first.llm_names,
        class_names=first.class_names,
    )
    scenario = load_scenario(scenario, horizon_s=240.0)
    policy = make_policy("aladdin")
    result = run_episode(policy, scenario, 0, requests=requests)
    active = result.series["tp1/active"]
    early, high, late = (active[a:b].mean() for a, b in ((300, 600), (900, 1200), (1500, 1800)))
    assert 3 <= early <= 6
    assert high > 2 * early
    assert late < 0.6 * high
    assert len(policy.demand.changes) >= 2
    assert (result.requests["outcome"] == "on_time").mean() > 0.9
    # A fixed fleet stays as it is.
    fixed = run_episode(make_policy("aladdin:workers=7"), scenario, 0, requests=requests)
    assert set(fixed.series["tp1/active"][1:]) == {7}


def test_commands_of_a_quiet_heartbeat_are_empty():
    scenario, _ = made(patience_s=2.0)
    result = run_episode(
        make_policy("aladdin"),
        scenario,
        0,
        requests=guesses(scenario, n=1, output=2, guess=5),
    )
    assert all(set(d) <= {"time_s", "clipped"} for d in result.decisions[1:] if d["time_s"] > 1.0)
    assert Command().to_dict() == {}
