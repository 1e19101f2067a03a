"""QLM, and what it compares itself with, on a small cluster of virtual queues."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines import make_policy
from baselines.parameters import PolicyError
from baselines.qlm import fixed
from baselines.qlm.book import Cell, GroupBook
from baselines.qlm.fixed import deal
from baselines.qlm.groups import TokenClustering
from baselines.qlm.problem import Profiler
from llmscale_env.control.command import Command
from llmscale_env.control.failures import draw_failures
from llmscale_env.control.reward import draw_requests
from llmscale_env.control.run import run_episode
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.scenarios import load_scenario
from llmscale_env.scenarios.load import ScenarioError
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.spec import InstanceState, RequestState
from llmscale_env.workload.requests import RequestTable
from tests.small_policies import Watched

LLMS = ("mistral-7b@a", "vicuna-13b@a")
PER_INSTANCE = ("vllm:queues=per-instance", "edf:queues=per-instance")
SWAPPING = ("vllm:swapping=true", "edf:queues=per-instance,swapping=true")
POLICIES = ("qlm", "edf-groups", "vllm", "edf", "edf:by=slo", "shepherd", *PER_INSTANCE, *SWAPPING)


def scenario(**changes):
    """Two LLMs in turn on three A100; classes of 20 s, a minute and ten minutes."""
    pool = {
        "name": "a100",
        "llm": LLMS[0],
        "swaps_to": [LLMS[1]],
        "v1": None,
        "max_instances": 3,
        "initial_instances": 3,
        "batch_limit": 64,
        "max_batch": 64,
        "pull": ["new"],
        "evicts_in_order": True,
        "async_kv": True,
    }
    streams = [
        {
            "name": f"s{m}{c}",
            "llm": llm,
            "slo_class": name,
            "rate_per_s": rate,
            "lengths": {"kind": "fixed", "input_tokens": 200, "output_tokens": 100},
        }
        for m, llm in enumerate(LLMS)
        for c, (name, rate) in enumerate((("interactive", 1.0), ("batch-1", 1.0), ("batch-2", 1.0)))
    ]
    base = {
        "name": "small",
        "horizon_s": 300,
        "control_interval_s": 5,
        "classes": [
            {"name": "interactive", "ttft_s": 20, "itl_s": 100, "priority": 0},
            {"name": "batch-1", "ttft_s": 60, "itl_s": 100, "priority": 1},
            {"name": "batch-2", "ttft_s": 600, "itl_s": 100, "priority": 1},
        ],
        "workload": {"streams": streams},
        "fleet": {
            "max_gpus": 3,
            "group_queues": 32,
            "queues": [{"name": "new"}],
            "pools": [pool],
            "routes": [{"slo_class": "*", "kind": "shared-queue", "queue": "new"}],
        },
    }
    return load_scenario(Scenario.model_validate(base), **changes)


def burst(made, *rows):
    """(arrival, LLM, class, input, output, how many) as a table."""
    columns = [[] for _ in range(5)]
    for *values, count in sorted(rows, key=lambda row: row[0]):
        for column, value in zip(columns, values, strict=True):
            column += [value] * count
    arrival, llm, slo_class, inputs, outputs = columns
    return RequestTable.build(
        arrival,
        inputs,
        outputs,
        llm=llm,
        slo_class=slo_class,
        llm_names=made.fleet.llms,
        class_names=tuple(c.name for c in made.classes),
    )


@pytest.mark.parametrize("name", POLICIES)
def test_every_request_is_served_and_the_episode_is_the_same_again(name):
    made = scenario(horizon_s=900)
    requests = burst(
        made, *((float(k), k % 2, k % 3, 100 + 7 * k, 20 + k % 90, 3) for k in range(100))
    )
    one = run_episode(make_policy(name), made, requests=requests)
    other = run_episode(make_policy(name), made, requests=requests)
    assert one.summary["clipped"] == 0
    assert (one.requests["e2e_s"].notna()).all()
    assert one.requests.equals(other.requests)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "qlm:scheduler=edf",
        "qlm:invoke=always,solve_time_s=0",
        "qlm:placement=round-robin",
        "qlm:placement=random",
        "qlm:pulling=false",
        "qlm:eviction=false",
        "qlm:evict=violation",
        "qlm:swapping=false",
        "qlm:delta=1,token_clusters=1,share=false,reserve=0,decode=mean",
        "qlm:delta=2,average_batch=profiled",
    ],
)
def test_what_can_be_switched_off(words):
    made = scenario(horizon_s=600)
    requests = burst(made, *((2.0 * k, k % 2, k % 3, 300, 60, 8) for k in range(60)))
    found = run_episode(make_policy(words), made, requests=requests)
    assert found.summary["clipped"] == 0
    assert (found.requests["e2e_s"].notna()).all()


def test_interactive_requests_pass_and_evict_batch_ones():
    alone = {"fleet.pools.a100.max_instances": 1, "fleet.pools.a100.initial_instances": 1}
    made = scenario(horizon_s=900, **alone)
    batch = [
        (0.0, 0, 2, 500, 300 + (37 * k) % 400, 5) for k in range(400)
    ]  # never done all at once
    requests = burst(made, *batch, (30.0, 0, 0, 200, 50, 10))
    with_it = run_episode(make_policy("qlm"), made, requests=requests)
    without = run_episode(make_policy("qlm:eviction=false"), made, requests=requests)
    fcfs = run_episode(make_policy("vllm"), made, requests=requests)

    def worst(result):
        mine = result.requests[result.requests["slo_class"] == "interactive"]
        return float(mine["ttft_s"].max())

    assert with_it.requests["evictions"].sum() > 0
    assert without.requests["evictions"].sum() == 0
    # At most one decision to notice, one for the plan to take effect, and the copies.
    assert worst(with_it) < 11 < worst(fcfs)
    assert worst(with_it) <= worst(without) <= worst(fcfs)


def test_grouping_by_llm_swaps_less_than_first_come_first_served():
    made = scenario(horizon_s=1800)
    requests = burst(made, *((float(k), k % 2, 2, 200, 80, 4) for k in range(120)))
    swaps = {}
    for name in ("qlm", "vllm:swapping=true"):
        sim = ClusterSimulation(made)
        run_episode(make_policy(name), made, requests=requests, simulation=sim)
        swaps[name] = int(sim.engine.instances(0)["swaps"].sum())
        assert sim.engine.conservation(0)[RequestState.FINISHED] == len(requests)
    assert swaps["qlm"] < swaps["vllm:swapping=true"] / 3


def test_without_swapping_every_instance_keeps_to_one_llm():
    made = scenario(horizon_s=900)
    requests = burst(made, *((float(k), k % 2, 1, 200, 80, 2) for k in range(60)))
    sim = ClusterSimulation(made)
    run_episode(make_policy("qlm:swapping=false"), made, requests=requests, simulation=sim)
    assert sim.engine.instances(0)["swaps"].tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    "name", ["no-swap", "vllm", "edf", "vllm:queues=per-instance", "edf:queues=per-instance"]
)
def test_a_fleet_without_swapping_serves_every_llm_from_instances_of_its_own(name):
    # Both LLMs bring as many tokens, and 13 billion weights take longer over each: the third instance is
    # Vicuna's, and so are the two last ones, since the first keeps the LLM that it has loaded.
    made = scenario(horizon_s=900)
    requests = burst(made, *((float(k), k % 2, k % 3, 200, 80, 2) for k in range(60)))
    sim = ClusterSimulation(made)
    found = run_episode(make_policy(name), made, requests=requests, simulation=sim).requests
    assert (found["e2e_s"].notna()).all()
    assert sim.engine.instances(0)["swaps"].tolist() == [0, 1, 1]
    assert set(found["instance"][found["llm"] == LLMS[0]]) == {0}
    assert set(found["instance"][found["llm"] == LLMS[1]]) <= {1, 2}


def test_instances_are_dealt_by_work_and_keep_what_they_have():
    # Work of 9, 4 and 1 on five instances: one each; 9 > 4 > 1 makes it two of the first (4.5 each), and
    # 4.5 > 4 makes it three. The first LLM is loaded on instance 0, the second on 1 and the third nowhere.
    able = np.ones((5, 3), np.bool_)
    found = deal(np.array([9.0, 4.0, 1.0]), able, np.array([0, 1, 0, 1, 0]))
    assert found.tolist() == [0, 1, 0, 0, 2]
    able[:, 2] = False
    with pytest.raises(ValueError, match="LLM 2 has no instance"):
        deal(np.array([9.0, 4.0, 1.0]), able, np.array([0, 1, 0, 1, 0]))


def test_the_llm_with_the_least_choice_is_dealt_first():
    # Instance 0 can serve both LLMs, instance 1 the busier one only.
    able = np.array([[True, True], [True, False]])
    assert deal(np.array([9.0, 1.0]), able, np.array([0, 0])).tolist() == [1, 0]
    # What cannot serve yet gets none.
    able = np.array([[True, True], [True, True], [False, False]])
    assert deal(np.array([9.0, 1.0]), able, np.array([0, 1, 0])).tolist() == [0, 1, -1]


@pytest.mark.parametrize("name", ["edf", "vllm", "no-swap"])
def test_llms_are_dealt_to_instances_that_serve(name):
    """Two of four instances are started: both LLMs are served."""
    few = {"fleet.pools.a100.max_instances": 4, "fleet.pools.a100.initial_instances": 2}
    made = scenario(horizon_s=900, **few)
    requests = burst(made, *((float(k), k % 2, 0, 200, 80, 2) for k in range(20)))
    found = run_episode(make_policy(name), made, requests=requests).requests
    assert found["e2e_s"].notna().all()


def test_a_policy_without_swapping_needs_an_instance_for_each_llm():
    alone = {"fleet.pools.a100.max_instances": 1, "fleet.pools.a100.initial_instances": 1}
    with pytest.raises(PolicyError, match="needs an instance for each of 2 LLMs"):
        make_policy("no-swap").reset(scenario(**alone), 0)


def test_edf_groups_is_qlm_without_its_programme():
    made = scenario(horizon_s=600)
    requests = burst(made, *((float(k), k % 2, k % 3, 200, 80, 8) for k in range(60)))
    one, other = (
        run_episode(make_policy(name), made, requests=requests)
        for name in ("edf-groups", "qlm:scheduler=edf")
    )
    assert one.requests.equals(other.requests)


@pytest.mark.parametrize("eviction, tail", [(True, False), (False, True)])
def test_what_runs_holds_up_a_swap_only_where_it_may_not_be_removed(eviction, tail):
    # Section 5: "current requests are removed from the running batch to make space for the incoming
    # requests at the head of the virtual queue"; Eq. 10 counts groups of the virtual queue only.
    made = scenario(horizon_s=60)
    requests = burst(made, (0.0, 0, 2, 200, 2000, 60), (22.0, 1, 0, 200, 80, 20))
    policy = make_policy(f"qlm:eviction={eviction}")
    tails = []
    inner = policy._problem

    def seen(view, instances, groups):
        problem = inner(view, instances, groups)
        if view.instances["running"].sum() > 0:
            tails.append(float(problem.ready_tail.max()))
        return problem

    policy._problem = seen
    run_episode(policy, made, requests=requests)
    assert tails
    assert all((each > 0) == tail for each in tails)


@pytest.mark.parametrize("running, tail", [(40, (0, 1, 1)), (100, (0, 0, 0))])
@pytest.mark.parametrize("coming", [0, 1, 2])
def test_the_estimate_has_a_group_wait_for_what_the_engine_leaves_at_a_swap(running, tail, coming):
    # An instance runs requests with a target of a minute, at most 64 at once; at 22 s some of the other LLM
    # come. 40 run and none wait: their group stands before those of equal and looser targets. Of 100, 36
    # wait: a group that came next would stand before theirs, whatever its target.
    made = scenario(
        horizon_s=600,
        **{"fleet.pools.a100.max_instances": 1, "fleet.pools.a100.initial_instances": 1},
    )
    requests = burst(made, (0.0, 0, 1, 300, 2500, running), (22.0, 1, coming, 300, 60, 4))
    policy = make_policy("qlm")
    tails = []
    inner = policy._problem

    def seen(view, instances, groups):
        problem = inner(view, instances, groups)
        other = np.flatnonzero(problem.llm == 1)
        if view.time_s == 25 and len(other):
            assert view.instances["running"][0] == min(running, 64)
            tails.append(float(problem.ready_tail[0, other[0]]))
        return problem

    policy._problem = seen
    found = run_episode(policy, made, requests=requests).requests
    # Eq. 4: the longest output that is assumed, at the time of a token in the average batch.
    profile = Profiler(made).profile(0, LLMS[0], 64, 300, 300)
    assert tails == pytest.approx([tail[coming] * 2048 * profile.decode_s_per_token])
    if running == 40:
        assert (found["evictions"].sum() == 0) == (tails[0] > 0)
        first = found["arrival_s"] + found["ttft_s"]
        ended = (found["arrival_s"] + found["e2e_s"])[found["llm"] == LLMS[0]].max()
        assert (first[found["llm"] == LLMS[1]].min() > ended) == (tails[0] > 0)


def one_instance(swap_flushes):
    """It runs 40 long requests of ten minutes' SLO; interactive ones of the other LLM come after 10 s."""
    alone = {"max_instances": 1, "initial_instances": 1, "swap_flushes": swap_flushes}
    changes = {f"fleet.pools.a100.{key}": value for key, value in alone.items()}
    made = scenario(horizon_s=600, **changes)
    return made, burst(made, (0.0, 0, 2, 300, 2500, 40), (10.0, 1, 0, 300, 60, 4))


def test_a_swap_flushes_what_runs_whatever_the_pool_says():
    # Section 5 removes what runs: they need a decision, a plan (5 s each) and a swap, not a drain.
    made, requests = one_instance(swap_flushes=False)
    found = run_episode(make_policy("qlm"), made, requests=requests).requests
    assert found["evictions"].sum() == 40
    waited = found["ttft_s"][found["slo_class"] == "interactive"].max()
    assert waited < 40 < found["e2e_s"].max()


def test_a_group_is_no_larger_than_an_even_share_while_instances_run_full():
    # 60 requests wait for three instances that run 64 each: four times what runs would be one group of
    # 256 in one virtual queue; an even share is 20 requests, on three.
    policy = make_policy("qlm")
    policy.reset(scenario(), 0)
    policy._waiting = 60 / 3
    assert policy._limit(0) == 20


def test_groups_of_a_failed_instance_go_to_others():
    made = scenario(horizon_s=1200)
    requests = burst(made, *((float(k), k % 2, k % 3, 200, 80, 5) for k in range(100)))

    def fails(view, command):
        if view.time_s == 50:
            busy = np.flatnonzero(view.instances["running"] > 0)
            return Command(**{**vars(command), "fail": (int(busy[0]),)})

    sim = ClusterSimulation(made.model_copy())
    found = run_episode(Watched(make_policy("qlm"), fails), made, requests=requests, simulation=sim)
    assert sim.engine.instances(0)["failures"].sum() == 1
    assert sim.engine.results(0)["restarts"].sum() > 0
    assert (found.requests["e2e_s"].notna()).all()


def test_all_instances_fail_while_a_plan_is_being_made():
    made = scenario(horizon_s=900, **{"fleet.pools.a100.repair_s": 30.0})
    requests = burst(made, *((float(k), k % 2, k % 3, 200, 80, 5) for k in range(100)))
    policy, failed_s = make_policy("qlm:invoke=always,scheduler=edf"), []

    def fails(view, command):
        if not failed_s and view.time_s >= 50 and policy._pending is not None:
            failed_s.append(view.time_s)
            return Command(**{**vars(command), "fail": (0, 1, 2)})

    found = run_episode(Watched(policy, fails), made, requests=requests)
    assert failed_s
    assert (found.requests["e2e_s"].notna()).all()


@pytest.mark.slow
def test_no_group_queue_is_given_away_while_a_request_of_it_is_preempted():
    """A request that is preempted and then evicted goes back to its queue: that must still be its own."""
    made = scenario(horizon_s=600, memory_fraction=0.42, **{"fleet.pools.a100.batch_limit": 64})
    rng = np.random.default_rng(0)
    rows = [
        (1.0 * k, k % 2, int(rng.integers(3)), 200, int(rng.integers(50, 1500)), 4)
        for k in range(300)
    ]
    preempted = 0

    class Checked:
        name = "checked"

        def __init__(self):
            self.policy = make_policy("qlm:delta=1")

        def reset(self, scenario, seed):
            self.policy.reset(scenario, seed)

        def act(self, view):
            nonlocal preempted
            waits, slots = view.waiting, view.instances
            preempted += int(slots["preempted"].sum())
            counted = view.running_from.sum(axis=1)
            assert (counted == slots["running"] + slots["preempted"]).all()
            for queue in np.unique(waits.queue).tolist():
                cell = self.policy._book.cell_of[queue]
                mine = waits.queue == queue
                assert (waits.llm[mine] == cell.llm).all()
                assert (waits.slo_class[mine] == cell.slo_class).all()
            return self.policy.act(view)

    run_episode(Checked(), made, requests=burst(made, *rows))
    assert preempted > 20


@pytest.mark.parametrize("eviction", [False, True])
def test_without_eviction_nobody_is_flushed_either(eviction):
    made, requests = one_instance(swap_flushes=True)
    found = run_episode(make_policy(f"qlm:eviction={eviction}"), made, requests=requests)
    assert (found.requests["evictions"].sum() > 0) == eviction
    assert (found.requests["e2e_s"].notna()).all()


@pytest.mark.slow
def test_failures_at_random_are_drawn_with_the_requests():
    made = scenario(**{"fleet.pools.a100.mtbf_s": 100.0, "fleet.pools.a100.repair_s": 20.0})
    one = draw_requests(made, np.random.default_rng(3))
    other = draw_requests(made, np.random.default_rng(3))
    plain = draw_requests(scenario(), np.random.default_rng(3))
    assert np.array_equal(one.failures, other.failures)
    assert np.array_equal(one.arrival_ps, plain.arrival_ps), "the requests are the same without"
    assert len(plain.failures) == 0
    assert set(one.failures[:, 1]) <= {0, 1, 2}
    rate = len(draw_failures(made.model_copy(update={"horizon_s": 1e6}), np.random.default_rng(0)))
    assert rate == pytest.approx(3 * 1e6 / 100, rel=0.03)
    sim = ClusterSimulation(made)
    run_episode(make_policy("qlm"), made, seed=3, simulation=sim)
    # A failure while the instance is being repaired begins the repair anew; an absent one cannot fail.
    assert sim.engine.instances(0)["failures"].sum() == len(one.failures)
    states = set(sim.engine.instances(0)["state"].tolist())
    assert states <= {InstanceState.ACTIVE, InstanceState.ACQUIRING, InstanceState.LOADING}


def test_what_is_learnt_of_an_llm_is_learnt_from_all_its_classes():
    made = scenario(horizon_s=300)
    policy = make_policy("qlm")
    run_episode(
        policy, made, requests=burst(made, *((float(k), 1, 2, 200, 80, 2) for k in range(60)))
    )
    assert policy._history.statistics(1).count == policy._history.statistics((1, 2)).count > 100
    assert policy._history.statistics(1).mean < 150 < policy._history.statistics((1, 0)).mean


@pytest.mark.slow
def test_a_group_that_can_never_meet_its_slo_does_not_stop_the_others():
    made = scenario(horizon_s=900, **{"classes.interactive.ttft_s": 0.001})
    requests = burst(made, *((float(k), k % 2, k % 3, 200, 80, 2) for k in range(60)))
    policy = make_policy("qlm")
    found = run_episode(policy, made, requests=requests)
    assert any(not call.feasible for _, _, call in policy.calls)
    mine = found.requests
    assert (mine["e2e_s"].notna()).all()
    assert (mine.loc[mine["slo_class"] != "interactive", "outcome"] == "on_time").mean() > 0.9


def test_an_llm_larger_than_any_gpu_is_refused():
    with pytest.raises(ScenarioError, match="does not fit on a100-80gb"):
        scenario(**{"fleet.pools.a100.swaps_to": ["llama-2-70b"]})


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"fleet.pools.a100.swaps_to": [LLMS[0]]}, "names an LLM twice"),
        ({"fleet.pools.a100.warm": ["llama-2-7b"]}, "warm"),
        ({"fleet.pools.a100.load_s": {"ssd": 3.0}}, "not together with swaps_to"),
        (
            {"fleet.pools.a100.static_batch": True, "fleet.pools.a100.chunk_tokens": 512},
            "not together with chunk_tokens",
        ),
        (
            {"fleet.routes": [{"kind": "jsq-requests", "pools": ["a100"], "queue": "new"}]},
            "swaps between LLMs",
        ),
    ],
)
def test_bad_pools_are_told_in_words(changes, message):
    with pytest.raises(ScenarioError, match=message):
        scenario(**changes)


def test_dealt_out_in_turn_each_instance_serves_its_own_in_order():
    made = scenario(horizon_s=900)
    # Nine of one LLM, then nine of the other: three of each on every instance, and a swap in between.
    requests = burst(made, (0.0, 0, 2, 200, 80, 9), (0.1, 1, 2, 200, 80, 9))
    sim = ClusterSimulation(made)
    found = run_episode(
        make_policy("vllm:queues=per-instance,swapping=true"),
        made,
        requests=requests,
        simulation=sim,
    )
    assert list(sim.engine.instances(0)["swaps"]) == [1, 1, 1]
    for llm in range(2):
        where = found.requests["instance"].to_numpy()[9 * llm : 9 * llm + 9]
        assert (where == [0, 1, 2] * 3).all()


def test_dealt_out_the_earliest_deadline_goes_first():
    alone = {"fleet.pools.a100.max_instances": 1, "fleet.pools.a100.initial_instances": 1}
    made = scenario(horizon_s=900, **{"fleet.pools.a100.batch_limit": 1}, **alone)
    requests = burst(made, (0.0, 0, 2, 200, 80, 2), (0.1, 0, 0, 200, 80, 1))
    for name, last in (("edf:queues=per-instance", 1), ("vllm:queues=per-instance", 2)):
        found = run_episode(make_policy(name), made, requests=requests).requests
        begun = (found["arrival_s"] + found["ttft_s"]).to_numpy()
        assert int(np.argmax(begun)) == last


def test_shepherd_serves_what_is_late_last():
    # One instance with batches of one. Of nine requests that come at once the target of 20 s passes while
    # the first ones are served; the one that comes after that is served before those that are late already.
    alone = {"fleet.pools.a100.max_instances": 1, "fleet.pools.a100.initial_instances": 1}
    made = scenario(horizon_s=900, **{"fleet.pools.a100.batch_limit": 1}, **alone)
    requests = burst(made, (0.0, 0, 0, 200, 1000, 9), (41.0, 0, 0, 200, 1000, 1))
    found = run_episode(make_policy("shepherd"), made, requests=requests).requests
    begun = (found["arrival_s"] + found["ttft_s"]).to_numpy()
    assert begun[9] < np.sort(begun[:9])[-2]
    assert (np.diff(begun[:9]) > 0).all()


@pytest.mark.parametrize("name", [*PER_INSTANCE, SWAPPING[1]])
def test_what_a_failed_instance_had_is_dealt_out_anew(name):
    made = scenario(horizon_s=900, **{"fleet.pools.a100.repair_s": 800.0})
    requests = burst(made, *((float(k), k % 2, k % 3, 200, 80, 4) for k in range(60)))

    def fails(view, command):
        return Command(**{**vars(command), "fail": (1,)}) if view.step == 5 else None

    found = run_episode(Watched(make_policy(name), fails), made, requests=requests)
    assert (found.requests["e2e_s"].notna()).all()


@pytest.mark.parametrize("name", ["qlm", "vllm", "edf", "shepherd", *PER_INSTANCE])
def test_too_few_group_queues_are_told(name):
    with pytest.raises(PolicyError, match="group queue"):
        make_policy(name).reset(scenario(**{"fleet.group_queues": 1}), 0)


def test_fine_tuned_versions_share_a_shape_and_are_different_llms():
    made = scenario(**{"fleet.pools.a100.swaps_to": [LLMS[1], "mistral-7b@b"]})
    assert made.fleet.llms == (*LLMS, "mistral-7b@b")
    profiler = Profiler(made)
    assert profiler.kv_tokens(0, "mistral-7b@a") == profiler.kv_tokens(0, "mistral-7b@b")


# ---- the book ----


class FakeView:
    """As much of a view as the book reads."""

    def __init__(self, waiting, n_queues, running=()):
        self.waiting = waiting
        self.running_from = np.zeros((1, n_queues), np.int64)
        for queue in running:
            self.running_from[0, queue] += 1


def waiting(*rows):
    """(queue, arrival, input tokens, started) of requests of LLM 0 and class 0."""
    from llmscale_env.control.view import WaitingRequests

    n = len(rows)
    queue, arrival, inputs, started = (
        (np.array(c) for c in zip(*rows, strict=True)) if n else (np.zeros(0, int),) * 4
    )
    zeros = np.zeros(n, np.int64)
    return WaitingRequests(
        request_id=np.arange(n),
        arrival_s=arrival.astype(float),
        slo_class=zeros,
        deadline_s=arrival + 10.0,
        input_tokens=inputs,
        predicted_output_tokens=zeros + 1,
        emitted_tokens=zeros,
        queue=queue,
        llm=zeros,
        started=started.astype(bool),
    )


def test_a_large_group_is_halved_and_its_later_half_takes_the_arrivals():
    book = GroupBook(range(5), [(0, 0)], lambda llm: 4, TokenClustering(max_clusters=1))
    assert book.arrival_queues(0, 0) == ((), (0,))
    groups, changes = book.update(FakeView(waiting(*((0, t, 10, False) for t in range(9))), 5))
    # 9 -> 5 + 4 -> 3 + 2 + 4; the youngest group takes the arrivals.
    sizes = {group.queue: group.waiting for group in groups}
    assert sorted(sizes.values()) == [2, 3, 4]
    youngest = max(groups, key=lambda group: group.arrival_s[0])
    assert sizes[youngest.queue] == 4
    assert book.arrival_queues(0, 0) == ((), (youngest.queue,))
    assert changes.arrivals == {(0, 0)}
    assert set(changes.parents) == set(sizes) - {0}
    moved = dict(zip(np.concatenate(changes.requests), np.concatenate(changes.queues), strict=True))
    assert set(moved) == {3, 4, 5, 6, 7, 8}


@given(arrivals=st.permutations(range(60)), n=st.integers(1, 60), limit=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_groups_are_a_partition_by_arrival_within_the_limit(arrivals, n, limit):
    book = GroupBook(range(200), [(0, 0)], lambda llm: limit, TokenClustering(max_clusters=1))
    groups, _ = book.update(FakeView(waiting(*((0, t, 10, False) for t in arrivals[:n])), 200))
    found = [group.arrival_s.tolist() for group in groups]
    assert max(map(len, found)) <= limit
    assert sorted(chain(*found)) == list(chain(*sorted(found))) == sorted(arrivals[:n])


def test_groups_are_freed_when_all_are_done_and_full_books_split_no_more():
    book = GroupBook(range(2), [(0, 0)], lambda llm: 1, TokenClustering(max_clusters=1))
    groups, _ = book.update(FakeView(waiting(*((0, t, 10, False) for t in range(6))), 2))
    assert sorted(group.waiting for group in groups) == [3, 3], "there are no more queues"
    _, changes = book.update(FakeView(waiting(), 2, running=(0,)))
    assert changes.freed == [], "one of them still runs, the other takes the arrivals"
    _, changes = book.update(FakeView(waiting(), 2))
    assert changes.freed == [0]


def test_long_prompts_come_apart_once_there_are_enough_to_tell():
    rows = [(0, t, 3500 if t % 10 == 0 else 100, False) for t in range(200)]
    book = GroupBook(range(4), [(0, 0)], lambda llm: 1000, TokenClustering(), least_to_cluster=300)
    groups, _ = book.update(FakeView(waiting(*rows), 4))
    assert len([g for g in groups if g.waiting]) == 1
    book = GroupBook(range(4), [(0, 0)], lambda llm: 1000, TokenClustering(), least_to_cluster=100)
    groups, changes = book.update(FakeView(waiting(*rows), 4))
    long = next(g for g in groups if g.cell == Cell(0, 0, 1))
    assert long.waiting == 20
    assert (long.input_tokens == 3500).all()
    uppers, queues = book.arrival_queues(0, 0)
    assert len(uppers) == 1
    assert 100 <= uppers[0] < 3500
    assert queues == (0, long.queue)
    assert changes.parents[long.queue] == 0


def test_who_comes_together_from_several_groups_stands_in_order_of_arrival():
    book = GroupBook(range(6), [(0, 0)], lambda llm: 100, TokenClustering(), least_to_cluster=200)
    early = [(0, 2 * t, 3500 if t % 10 == 0 else 100, False) for t in range(100)]
    book.update(FakeView(waiting(*early), 6))  # one group with queue 0
    # Two groups of one kind that overlap in time; the second one was evicted from, too.
    book.cell_of[5] = book.cell_of[0]
    book._free.remove(5)
    late = [(5, 2 * t + 1, 3500 if t % 10 == 0 else 100, False) for t in range(100)]
    rows = [*late, *early]
    _, changes = book.update(FakeView(waiting(*rows), 6))
    new = book.open[Cell(0, 0, 1)]
    moved = next(r for r, q in zip(changes.requests, changes.queues, strict=True) if q[0] == new)
    arrivals = np.array([row[1] for row in rows])[moved]
    assert len(moved) == 20
    assert (np.diff(arrivals) > 0).all()


def test_expected_outputs_count_in_whether_prompts_come_apart():
    # 400 tokens are ten times 40, but 872 only 1.7 times 512; 3,500 are 7.75 times 40 even so.
    for long, groups in ((400, 1), (3500, 2)):
        rows = [(0, t, long if t % 2 else 40, False) for t in range(100)]
        book = GroupBook(
            range(4),
            [(0, 0)],
            lambda llm: 1000,
            TokenClustering(),
            least_to_cluster=100,
            expected_output=lambda llm, slo_class: 472.0,
        )
        found, _ = book.update(FakeView(waiting(*rows), 4))
        assert len([g for g in found if g.waiting]) == groups


def test_the_largest_group_is_an_even_share_of_the_queue_or_profiled_batches():
    # Three instances, batches of 64: a share of 500 waiting requests is 167, four batches are 256.
    made = scenario(horizon_s=60)
    requests = burst(made, (0.0, 0, 2, 100, 50, 500))
    sizes = {}
    for words in ("qlm", "qlm:average_batch=profiled"):
        policy = make_policy(words)
        run_episode(policy, made, requests=requests)
        policy._waiting = 500 / 3
        sizes[words] = policy._limit(0)
    assert sizes == {"qlm": 166, "qlm:average_batch=profiled": 256}


def test_the_work_is_measured_once_on_episodes_that_no_window_has(monkeypatch):
    drawn = []

    def watched(scenario, rng):
        drawn.append(draw_requests(scenario, rng))
        return drawn[-1]

    monkeypatch.setattr(fixed, "draw_requests", watched)
    scenario = load_scenario(
        "qlm-multi", horizon_s=61
    )  # of its own, so that no other test has asked
    first = fixed.fixed_llms(scenario, "vllm")
    again = fixed.fixed_llms(load_scenario("qlm-multi", horizon_s=61), "edf")
    assert (first == again).all()
    assert len(drawn) == fixed.EPISODES
    windows = [
        draw_requests(scenario, np.random.default_rng(seed)) for seed in range(fixed.EPISODES)
    ]
    arrivals = {table.arrival_ps.tobytes() for table in [*drawn, *windows]}
    assert len(arrivals) == 2 * fixed.EPISODES
