"""PlacementPerRequest-v0: when it is asked, what it sees of workers, where requests go.

What every environment has to keep is in test_envs.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from baselines import PolicyError, make_policy
from llmscale_env.control.command import Command, CommandError
from llmscale_env.control.reward import draw_requests
from llmscale_env.control.run import run_episode, true_rates
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.envs.action_heads.placing import Ranks
from llmscale_env.envs.codec import Codec
from llmscale_env.envs.placement_per_request import PlacementPerRequestEnv
from llmscale_env.scenarios import load_scenario
from llmscale_env.sim.linear import linear_times
from llmscale_env.sim.spec import InstanceState, RequestState
from llmscale_env.workload.requests import PS_PER_S
from tests.env_kinds import entries_of, played
from tests.small_tables import requests_of

SHORT = {"horizon_s": 20}
HALF = 8  # half a page of 16 tokens


def scenario_of(**changes):
    return load_scenario("placement-per-request", **{**SHORT, **changes})


def started(scenario, arrival_s, input_tokens, output_tokens):
    sim = ClusterSimulation(scenario)
    sim.start(0, requests_of(scenario, arrival_s, input_tokens, output_tokens))
    codec = Codec(scenario, PlacementPerRequestEnv.observation, PlacementPerRequestEnv.action)
    return sim, codec


def seen_by(codec, sim):
    return entries_of(codec, codec.encode(sim.view(0)))


def do(codec, sim, choice):
    """One decision; returns the orders clipped."""
    clipped = sim.apply(0, codec.decode(np.array([choice]), sim.view(0)))
    sim.advance()
    return clipped


# ---- when -----------------------------------------------------------------------------------------


def test_decisions_are_made_at_arrivals_while_somebody_waits_and_at_the_ends_of_intervals():
    scenario = scenario_of(horizon_s=7)
    sim, codec = started(scenario, [1.0, 1.01, 4.99], [100] * 3, [10] * 3)
    choices = (
        0,  # the first waits: the second comes
        1,  # the first is placed: the second comes at once
        0,  # it waits, and is looked at in 200 ms
        0,
        2,  # nobody waits
        0,  # the interval ends sooner than 200 ms from now
        3,
    )
    sim.advance()
    times = [sim.engine.now_ps(0)]
    for choice in choices:
        do(codec, sim, choice)
        times.append(sim.engine.now_ps(0))
    times = [round(time / PS_PER_S, 6) for time in times]
    assert times == [1.0, 1.01, 1.011, 1.211, 1.411, 4.99, 5.0, 7.0]
    assert sim.interval[0] == scenario.n_steps == 2
    assert sim.step[0] == 8
    assert sim.history[0, :2, 0].tolist() == [3, 0]
    results = sim.engine.results(0)
    assert results["instance"].tolist() == [0, 1, 2]
    # Prefill starts at the decision.
    assert results["admitted_ps"][1] - 1.411 * PS_PER_S == pytest.approx(0, abs=2)


def test_the_loop_of_policies_keeps_intervals_while_it_asks_at_arrivals():
    scenario = scenario_of()
    times, histories = [], []

    class Spread:
        name = "spread"

        def reset(self, scenario, seed):
            self.next = 0

        def act(self, view):
            times.append(view.time_s)
            histories.append(view.history)
            waiting = view.gateway("llama-2-13b")
            workers = [(self.next + k) % 4 for k in range(len(waiting))]
            self.next += len(waiting)
            return Command(assign=(waiting, workers) if waiting else None)

    requests = draw_requests(scenario, np.random.default_rng(3))
    result = run_episode(Spread(), scenario, 3, forecaster="last-value")
    assert result.requests.arrival_s.tolist() == requests.arrival_s.tolist()
    rates = true_rates(scenario, requests)
    for time_s, history in zip(times, histories, strict=True):
        ended = int(time_s // 5 + 1e-9)
        assert history.tolist() == rates[:ended].tolist()
    at = np.array(times[1:])
    gaps = np.abs(at[:, None] - requests.arrival_s[None]).min(axis=0)
    assert gaps.max() < 1e-9
    assert len(times) == len(requests) + 4  # time 0 and the ends of three intervals
    assert np.sum(result.series["reward"]) == pytest.approx(result.summary["reward"])
    gpu = np.sum(result.series["cost/gpu"])
    assert gpu == pytest.approx(scenario.n_steps)  # all four are held all the time


def test_static_with_a_rule_is_the_engines_router():
    by_rule = {}
    for rule in ("jsq-requests", "best-fit", None):
        name = "static" if rule is None else f"static:router={rule}"
        result = run_episode(make_policy(name), scenario_of(horizon_s=60), 0)
        by_rule[rule] = result.summary
    assert by_rule[None]["joint/slo_attainment"] == 0
    assert by_rule["jsq-requests"]["joint/slo_attainment"] > 0.3
    assert by_rule["best-fit"]["joint/slo_attainment"] > 0.3
    with pytest.raises(PolicyError, match=r"router = 'best_fit' is unknown; there are \['round-"):
        make_policy("static:router=best_fit").reset(scenario_of(), 0)
    with pytest.raises(PolicyError, match="the route has no shared queue"):
        make_policy("static:router=shared-queue").reset(scenario_of(), 0)


# ---- what is seen ---------------------------------------------------------------------------------


def test_workers_by_hand():
    scenario = scenario_of()
    sim, codec = started(scenario, [1.0, 1.001, 1.3], [100, 200, 50], [60, 30, 40])
    spec = sim.engine.spec
    c1, k1, c3, c2, k2 = linear_times(spec.profiles[0], 256)
    capacity = spec.profiles[0].kv_capacity_tokens
    ttft, itl = 0.6 * PS_PER_S, 0.03 * PS_PER_S

    start = seen_by(codec, sim)
    assert [start[f"request/{x}"] for x in ("there", "input", "predicted", "waited", "others")] == [
        0,
        0,
        0,
        0,
        0,
    ]
    assert start["rank-1/decode"] == pytest.approx(c3 / itl / 2)
    assert start["rank-1/kv"] == start["rank-1/kv_end"] == 0
    sim.advance()
    seen = seen_by(codec, sim)
    assert seen["request/there"] == 1
    assert seen["request/input"] == pytest.approx(np.log(101) / np.log(4097))
    assert seen["request/predicted"] == pytest.approx(np.log(61) / np.log(4097))
    assert seen["request/waited"] == pytest.approx(0, abs=1e-9)
    assert seen["rank-1/active"] == 1
    assert seen["rank-1/requests"] == 0
    assert seen["rank-1/prefill"] == pytest.approx((c1 + 100 * k1) / ttft / 2)
    assert seen["rank-1/decode"] == pytest.approx((c3 + c2 + 100 * k2) / itl / 2)
    assert seen["rank-1/decode_end"] == pytest.approx((c3 + c2 + 160 * k2) / itl / 2)
    assert seen["rank-1/kv"] == pytest.approx((100 + 1 + HALF) / capacity / 2)
    assert seen["rank-1/kv_end"] == pytest.approx((160 + HALF) / capacity / 2)
    assert seen["rank-1/slack"] == 1

    do(codec, sim, 1)
    # A millisecond later it is being prefilled: nothing is queued, no token is out. Its worker is last now.
    seen = seen_by(codec, sim)
    assert seen["rank-4/requests"] == pytest.approx(np.log(2) / np.log(257))
    assert seen["rank-4/prefill"] == pytest.approx((c1 + 200 * k1) / ttft / 2)
    assert seen["rank-4/decode"] == pytest.approx((c3 + 2 * c2 + 300 * k2) / itl / 2)
    assert seen["rank-4/decode_end"] == pytest.approx((c3 + 2 * c2 + 390 * k2) / itl / 2)
    assert seen["rank-4/kv"] == pytest.approx((100 + HALF + 200 + 1 + HALF) / capacity / 2)
    assert seen["rank-4/kv_end"] == pytest.approx((390 + 2 * HALF) / capacity / 2)
    assert seen["rank-4/slack"] == 1
    assert seen["rank-1/requests"] == 0
    assert seen["rank-1/decode"] == pytest.approx((c3 + c2 + 200 * k2) / itl / 2)

    do(codec, sim, 4)
    # It joined the queue of the same worker, and 20 ms later was prefilled: now both decode.
    seen = seen_by(codec, sim)
    results = sim.engine.results(0)
    running = np.flatnonzero(results["state"] == RequestState.RUNNING)
    assert running.tolist() == [0, 1]
    now = sim.engine.now_ps(0)
    ahead = [
        itl * results["emitted_tokens"][r] - (now - results["first_token_ps"][r]) for r in running
    ]
    assert seen["rank-4/slack"] == pytest.approx(min(ahead) / ttft, rel=1e-5)
    assert 0 < seen["rank-4/slack"] < 1
    context = sum(sim.requests[0].input_tokens[r] + results["emitted_tokens"][r] for r in running)
    expected = (c3 + c2 * (len(running) + 1) + k2 * (context + 50)) / itl / 2
    assert seen["rank-4/decode"] == pytest.approx(expected, rel=1e-5)


def test_a_queue_at_a_worker_counts_in_its_prefill():
    scenario = scenario_of()
    sim, codec = started(scenario, [1.0, 1.001, 1.002], [100, 200, 50], [60, 30, 40])
    c1, k1, *_ = linear_times(sim.engine.spec.profiles[0], 256)
    sim.advance()
    do(codec, sim, 1)
    do(codec, sim, 4)
    seen = seen_by(codec, sim)
    assert seen["rank-4/prefill"] == pytest.approx((c1 + 250 * k1) / (0.6 * PS_PER_S) / 2)
    capacity = sim.engine.spec.profiles[0].kv_capacity_tokens
    there = (100 + HALF) + (200 + 1 + HALF) + (50 + 1 + HALF)
    assert seen["rank-4/kv"] == pytest.approx(there / capacity / 2)


def test_how_long_a_request_has_waited_and_who_waits_behind_it():
    sim, codec = started(scenario_of(), [1.0, 1.02, 1.04], [100] * 3, [10] * 3)
    for _ in range(3):
        sim.advance()
    seen = seen_by(codec, sim)
    assert seen["request/waited"] == pytest.approx(0.04 / 0.6 / 2)
    assert seen["request/others"] == pytest.approx(np.log(3) / np.log(257))


def test_of_a_worker_that_does_not_serve_nothing_is_shown():
    sim, codec = started(
        scenario_of(**{"fleet.pools.worker.initial_instances": 2}), [1.0], [100], [10]
    )
    sim.advance()
    seen = seen_by(codec, sim)
    assert [v for name, v in seen.items() if name.startswith(("rank-3/", "rank-4/"))] == [0] * 16


def test_workers_come_by_rank():
    scenario = scenario_of(**{"fleet.pools.worker.initial_instances": 3})
    sim, codec = started(scenario, [1.0, 1.001, 1.002, 1.003], [100] * 4, [50] * 4)
    sim.advance()
    ranks = Ranks(scenario)
    orders = []
    for choice in (1, 1, 3):
        orders.append(ranks.order(sim.view(0).snapshot)[0].tolist())
        do(codec, sim, choice)
    orders.append(ranks.order(sim.view(0).snapshot)[0].tolist())
    # One on 0, one on 1, another one on 1 (both have one: 1 is the last of those that serve).
    assert orders == [[0, 1, 2, 3], [1, 2, 0, 3], [2, 0, 1, 3], [2, 0, 1, 3]]
    assert [len(sim.view(0).own_queue(i)) for i in range(4)] == [0, 1, 0, 0]


# ---- masks ----------------------------------------------------------------------------------------


def test_what_the_mask_allows_is_done_and_what_it_rules_out_is_to_wait():
    env = PlacementPerRequestEnv(
        overrides={
            **SHORT,
            "fleet.pools.worker.initial_instances": 3,
            "fleet.pools.worker.mtbf_s": 20.0,
            "fleet.pools.worker.repair_s": 2.0,
        }
    )
    env.reset(seed=1)
    rng = np.random.default_rng(0)
    ranks = Ranks(env.scenario)
    placed = waited = came_back = ruled_out = 0
    truncated = False
    while not truncated:
        mask = env.action_masks()
        gateway = env.view().gateway("llama-2-13b")
        states = env.view().instances["state"]
        n = (states == InstanceState.ACTIVE).sum() if gateway else 0
        assert mask.tolist() == [True] * (1 + n) + [False] * (4 - n)
        assert not mask[4]
        if rng.random() < 0.2:
            forks = {k: env.fork() for k in np.flatnonzero(~mask)}
            same = env.fork()
            _, reward, _, _, info = same.step([0])
            for k, fork in forks.items():
                _, other, _, _, told = fork.step([k])
                assert told["clipped"] == 1
                assert other == reward
                assert told["metrics"] == info["metrics"]
                ruled_out += 1
        choice = int(rng.choice(np.flatnonzero(mask)))
        if choice and len(gateway):
            fork = env.fork()
            fork.core.sim.apply(0, fork.codec.decode([choice], fork.view()))
            worker = ranks.order(env.core.snapshot())[0, choice - 1]
            assert gateway[0] in fork.view().own_queue(worker)
            placed += 1
        waited += choice == 0
        came_back += env.core.sim.engine.results(0)["restarts"].any()
        _, _, _, truncated, info = env.step([choice])
        assert info["clipped"] == 0
    assert min(placed, waited, ruled_out, came_back) > 5


def test_a_choice_that_is_ruled_out_can_be_an_error():
    env = PlacementPerRequestEnv(overrides={**SHORT, "impossible_commands": "error"})
    env.reset(seed=0)
    with pytest.raises(
        CommandError, match=r"action\[0\]: 1 choices that the action mask rules out"
    ):
        env.step([1])


# ---- cheating -------------------------------------------------------------------------------------


def shortest_queue(env):
    return [int(env.core.snapshot().workers.turn[0] >= 0)]


def test_to_let_requests_wait_does_not_pay():
    env = PlacementPerRequestEnv(overrides={"horizon_s": 30})

    def always_worker_0(env):
        now = env.core.snapshot()
        rank = int(np.argmin(Ranks(env.scenario).order(now)[0]))
        return [1 + rank if now.workers.turn[0] >= 0 else 0]

    rewards, infos = played(env, [0])
    never, info = rewards.sum(), infos[-1]
    shortest = played(env, shortest_queue)[0].sum()
    one = played(env, always_worker_0)[0].sum()
    assert info["metrics"]["queue/gateway"] == info["metrics"]["chat/arrived"]
    assert info["reward_parts"]["leftover"] < -1
    assert never < one < shortest
    assert never < shortest - 10


def test_the_cost_of_holding_workers_does_not_depend_on_how_often_is_asked():
    env = PlacementPerRequestEnv(overrides=SHORT)
    costs = []
    for choose in ([0], shortest_queue):
        infos = played(env, choose)[1]
        costs.append(-sum(info["reward_parts"]["gpu"] for info in infos))
    assert costs == pytest.approx([4.0, 4.0])
