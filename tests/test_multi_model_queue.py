"""MultiModelQueue-v0: how groups form, what is shown of them, who serves what, and that masks are true.

What every environment has to keep is in test_envs.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from baselines import make_policy
from llmscale_env.control.run import run_episode
from llmscale_env.control.view import in_seconds
from llmscale_env.envs.groups import SIZE_LIMIT, GroupLayout
from llmscale_env.envs.multi_model_queue import MultiModelQueueEnv
from llmscale_env.scenarios import load_scenario
from llmscale_env.sim.observed import INSTANCE_DTYPE, QUEUE_SEEN, QUEUED_DTYPE, VirtualQueues
from llmscale_env.sim.orders import AS_IS, QueueOrders
from llmscale_env.sim.spec import InstanceState, RequestState
from llmscale_env.workload.requests import PS_PER_S
from tests.env_kinds import masks_of, played

BUSY = {"horizon_s": 200, "workload.batch_queues.archive-tuned.at_s": 20}
KEEP = np.zeros(8, int)


def make(**changes):
    return MultiModelQueueEnv(overrides={**BUSY, **changes})


def random_action(env, rng):
    return np.array([rng.choice(np.flatnonzero(mask)) for mask in masks_of(env)])


def action(**parts):
    """Everything kept and finished, but for parts such as `gpu_0="vicuna-13b/batch-1/first"`."""
    env = MultiModelQueueEnv(overrides={"horizon_s": 20})
    out = KEEP.copy()
    for name, choice in parts.items():
        i = int(name[-1])
        if choice == "evict":
            out[4 + i] = 1
        else:
            out[i] = env.codec.decoder.choices[i].index(choice)
    return out


# ---- masks ----------------------------------------------------------------------------------------


def test_what_a_mask_allows_is_carried_out_and_what_it_rules_out_does_nothing():
    env = make()
    env.reset(seed=3)
    rng = np.random.default_rng(0)
    layout = env.codec.decoder.heads[0]._layout
    carried_out = ruled_out = 0
    for _ in range(env.scenario.n_steps - 1):
        masks = masks_of(env)
        if rng.random() < 0.8:
            i = int(rng.integers(4))
            seen = env.core.sim.virtual_queues()
            queues = layout.queue_of_slot(layout.shown(seen))[0]
            possible = np.flatnonzero(masks[i][1:])
            if len(possible):
                k = int(rng.choice(possible))
                fork = env.fork()
                chosen = KEEP.copy()
                chosen[i] = k + 1
                assert fork.step(chosen)[4]["clipped"] == 0
                assert fork.view().virtual_queues[i][0] == queues[k]
                carried_out += 1
            k = int(rng.choice(np.flatnonzero(~masks[i])))
            kept, refused = env.fork(), env.fork()
            chosen = KEEP.copy()
            chosen[i] = k
            one, two = kept.step(KEEP), refused.step(chosen)
            assert two[4]["clipped"] == 1
            assert one[1] == two[1]
            assert (one[0][:-8] == two[0][:-8]).all()  # all but the last action
            ruled_out += 1
        env.step(random_action(env, rng))
    assert carried_out > 5
    assert ruled_out > 5


def test_an_instance_that_is_not_active_can_only_keep_and_finish():
    env = make()
    env.reset(seed=3)
    rng = np.random.default_rng(1)
    seen = 0
    for _ in range(env.scenario.n_steps - 1):
        env.step(random_action(env, rng))
        masks = masks_of(env)
        for i in np.flatnonzero(env.view().instances["state"] != InstanceState.ACTIVE):
            assert masks[i].sum() == masks[4 + i].sum() == 1
            seen += 1
    assert seen > 0


def test_a_group_of_an_llm_that_the_instance_cannot_serve_is_ruled_out():
    env = make(**{"fleet.pools.gpu-0.swaps_to": ["vicuna-13b"]})
    env.reset(seed=0)
    names = env.codec.decoder.choices[0]
    tuned = [name.startswith("vicuna-13b@a") for name in names]
    others = False
    for _ in range(8):
        env.step(KEEP)
        masks = masks_of(env)
        assert not masks[0][tuned].any()
        others = others or masks[1][tuned].any()
    assert others


def test_impossible_choices_can_be_errors():
    env = make(impossible_commands="error")
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"action\[0\]: 1 choices that the action mask rules out"):
        env.step(action(gpu_0="vicuna-13b/batch-2/first"))


# ---- groups ---------------------------------------------------------------------------------------


def pair(layout, llm, slo_class):
    return layout.llms.index(llm) * len(layout.classes) + layout.classes.index(slo_class)


def test_a_large_batch_is_split_into_groups_in_order_of_arrival():
    env = make(**{"workload.streams": []})
    layout = env.codec.decoder.heads[0]._layout
    env.reset(seed=0)
    for _ in range(5):  # 1,000 requests come at 20 s, at the decision at 25 s they are split
        env.step(KEEP)
    tuned = layout.first_queue + pair(layout, "vicuna-13b@a", "batch-2") * layout.per_pair
    assert env.view().groups["requests"].sum() > SIZE_LIMIT
    one_group = env.view().waiting.queue
    assert set(one_group.tolist()) == {tuned}
    env.step(KEEP)
    waiting = env.view().waiting
    ids = {q: waiting.request_id[waiting.queue == q] for q in np.unique(waiting.queue).tolist()}
    assert len(ids) == 3 or len(ids) == 4
    last = -1
    for q in sorted(ids):
        assert len(ids[q]) <= SIZE_LIMIT
        assert (np.diff(ids[q]) > 0).all()
        assert ids[q][0] > last
        last = ids[q][-1]


def test_without_a_free_group_the_open_one_grows_on():
    env = make(**{"workload.streams": [], "fleet.group_queues": 18})
    env.reset(seed=0)
    for _ in range(7):
        env.step(KEEP)
    sizes = env.view().groups["requests"]
    assert (sizes > 0).sum() == 2
    assert sizes.max() > SIZE_LIMIT


def test_an_open_group_is_closed_when_its_oldest_request_is_a_quarter_of_its_target_old():
    # Nobody is served, so the requests stay; an interactive group spans 5 s and one interval at most.
    env = make(**{"horizon_s": 60, "fleet.pools.gpu-2.initial_instances": 0})
    env.reset(seed=1)
    for _ in range(8):
        env.step(KEEP)
    waiting = env.view().waiting
    layout = env.codec.decoder.heads[0]._layout
    of_pair = layout.pair_of(waiting.queue)
    mine = of_pair == pair(layout, "vicuna-13b", "interactive")
    queues = np.unique(waiting.queue[mine])
    assert len(queues) >= 3
    for q in queues:
        arrival = waiting.arrival_s[waiting.queue == q]
        assert arrival.max() - arrival.min() <= 10.0


def test_too_few_group_queues_are_refused():
    with pytest.raises(ValueError, match=r"fleet.group_queues = 17: .* at least two .* 18"):
        make(**{"fleet.group_queues": 17})


def seen_by_hand(layout, n_inst=4, time_s=100.0):
    """A cluster in which nobody waits and everybody is idle."""
    n_queues = layout.first_queue + layout.n_pairs * layout.per_pair
    instances = np.zeros((1, n_inst), INSTANCE_DTYPE)
    instances["state"] = InstanceState.ACTIVE
    start = layout.first_queue + np.arange(layout.n_pairs) * layout.per_pair
    return VirtualQueues(
        time_ps=np.array([int(time_s * PS_PER_S)]),
        queues=np.zeros((1, n_queues), QUEUE_SEEN),
        oldest_fresh_ps=np.full((1, n_queues), -1),
        running=np.zeros((1, n_inst, n_queues), np.int64),
        running_by_class=np.zeros((1, n_inst, 3), np.int64),
        instances=instances,
        kv_share=np.zeros((1, n_inst)),
        pull=np.full((1, n_inst, n_queues), -1),
        # The last group of each pair is open.
        arrival=(start + layout.per_pair - 1).reshape(1, 3, 3),
        weights_ready_ps=np.full((1, n_inst, 3), -1),
        evicts=np.ones((1, 4), np.int64),
        waiting=lambda _e, _queue: np.zeros(0, QUEUED_DTYPE),
    )


def put(seen, queue, n, oldest_s, fresh_s=None):
    """`n` requests wait in a queue; the oldest came at `oldest_s`, the first without a token at `fresh_s`."""
    seen.queues["requests"][0, queue] = n
    seen.queues["oldest_ps"][0, queue] = int(oldest_s * PS_PER_S)
    seen.oldest_fresh_ps[0, queue] = int((oldest_s if fresh_s is None else fresh_s) * PS_PER_S)


def test_shown_are_the_earliest_group_and_the_next_that_is_not_late():
    layout = GroupLayout(load_scenario("multi-model-queue"))
    seen = seen_by_hand(layout)  # at 100 s; targets 20, 60, 600 s
    interactive, batch = 1, 1 + 8
    put(seen, interactive + 3, 5, 60.0)  # due at 80 s: late, the earliest
    put(seen, interactive + 1, 5, 70.0)  # due at 90 s: late too
    put(seen, interactive + 6, 5, 85.0)  # due at 105 s
    put(seen, interactive + 2, 5, 90.0)
    put(seen, batch + 4, 2, 20.0, fresh_s=95.0)  # evicted ones at the head: due at 155 s
    put(seen, batch + 5, 2, 94.0)  # due at 154 s
    shown = layout.shown(seen)
    assert shown.group[0, 0].tolist() == [3, 6]
    assert shown.group[0, 1].tolist() == [5, 4]
    assert shown.group[0, 2:].max() == -1
    assert shown.deadline_ps[0, 1, 4] == 155 * PS_PER_S
    queues = layout.queue_of_slot(shown)[0]
    assert queues[:4].tolist() == [interactive + 3, interactive + 6, batch + 5, batch + 4]


def orders_of(layout, seen, ahead):
    orders = QueueOrders.none(seen)
    layout.order(np.array([ahead]), seen, orders)
    return orders


def test_a_list_has_the_group_ahead_then_those_that_only_run_here_then_the_rest_by_deadline():
    layout = GroupLayout(load_scenario("multi-model-queue"))
    seen = seen_by_hand(layout)
    put(seen, 1, 5, 99.0)  # mistral, interactive, due at 119 s
    put(seen, 17, 5, 95.0)  # mistral, batch-2, due at 695 s
    put(seen, 25, 5, 0.0)  # vicuna, interactive
    seen.running[0, 0, 2] = 4  # nobody waits in group 2, four of it run on instance 0
    seen.running[0, 1, 17] = 1
    names = ["keep", *layout.slot_names]
    batch = names.index("mistral-7b/batch-2/first")
    other = names.index("vicuna-13b/interactive/first")
    orders = orders_of(layout, seen, [batch, 0, other, 0])
    lists = [orders.pulls[0, i, :n].tolist() for i, n in enumerate(orders.counts[0])]
    # Open groups (8, 16, 24 of mistral; 32, 40, 48 of vicuna) are due when whoever came now would be.
    assert lists[0] == [17, 2, 1, 8, 16, 24]
    assert lists[1] == [1, 8, 16, 17, 24]
    assert lists[2] == [25, 32, 40, 48]
    assert lists[3] == lists[1]
    assert orders.moves == []


def test_the_llm_of_a_list_stays_as_long_as_anybody_waits_for_it():
    layout = GroupLayout(load_scenario("multi-model-queue"))
    for waits in (True, False):
        seen = seen_by_hand(layout)
        seen.pull[0, 0, 0] = 25  # told to serve vicuna, still has mistral
        if waits:
            put(seen, 33, 1, 99.0)
        orders = orders_of(layout, seen, [0, 0, 0, 0])
        found = layout.pair_of(orders.pulls[0, 0, :1])[0] // 3
        assert found == (1 if waits else 0)


def test_a_list_that_is_as_it_was_is_not_ordered_again():
    layout = GroupLayout(load_scenario("multi-model-queue"))
    seen = seen_by_hand(layout)
    seen.pull[0, 0, :3] = [8, 16, 24]
    orders = orders_of(layout, seen, [0, 0, 0, 0])
    assert orders.counts[0].tolist() == [AS_IS, 3, 3, 3]


# ---- in the cluster -------------------------------------------------------------------------------


def test_what_many_episodes_show_is_what_a_view_shows():
    env = make()
    env.reset(seed=5)
    rng = np.random.default_rng(2)
    for _ in range(20):
        env.step(random_action(env, rng))
        seen = env.core.sim.engine.virtual_queues(0, 1)
        view = env.view()
        many = in_seconds(seen.instances[0])
        for column in many.dtype.names:
            np.testing.assert_array_equal(many[column], view.instances[column])
        assert (seen.running[0] == view.running_from).all()
        for i, queues in enumerate(view.virtual_queues):
            assert tuple(q for q in seen.pull[0, i].tolist() if q >= 0) == queues
        waiting = view.waiting
        for q in np.unique(waiting.queue):
            fresh = waiting.arrival_s[(waiting.queue == q) & ~waiting.started]
            found = seen.oldest_fresh_ps[0, q] / PS_PER_S
            assert found == (fresh.min() if len(fresh) else -1 / PS_PER_S)


def test_nobody_is_lost_and_everybody_waits_in_a_group_of_their_own_llm_and_class():
    env = make()
    env.reset(seed=6)
    layout = env.codec.decoder.heads[0]._layout
    rng = np.random.default_rng(3)
    for _ in range(env.scenario.n_steps):
        info = env.step(random_action(env, rng))[4]
        assert info["clipped"] == 0
        waiting = env.view().waiting
        expected = waiting.llm * len(layout.classes) + waiting.slo_class
        assert (layout.pair_of(waiting.queue) == expected).all()
        states = env.core.sim.engine.conservation(0)
        assert states[RequestState.GATEWAY] == 0
        known = sum(states.values()) - states[RequestState.FUTURE]
        arrived = sum(info["metrics"][f"{c}/arrived"] for c in layout.classes)
        assert known == arrived
    assert info["metrics"]["evictions"] > 0
    assert info["metrics"]["swaps"] > 0


def test_a_group_of_another_llm_ahead_swaps_at_once_or_when_the_batch_is_done():
    swapped_s = {}
    for way in ("finish", "evict"):
        env = make()
        env.reset(seed=0)
        for _ in range(6):
            env.step(KEEP)
        assert env.view().instances["running"][0] > 0
        choice = "vicuna-13b@a/batch-2/first"
        parts = {"gpu_0": choice}
        order = action(**parts)
        order[4] = int(way == "evict")
        while env.view().instances["swaps"][0] == 0:
            if masks_of(env)[0][order[0]]:
                env.step(order)
            else:
                env.step(KEEP)
        swapped_s[way] = env.view().time_s
        assert env.view().instances["llm"][0] == env.scenario.fleet.llms.index("vicuna-13b@a")
        if way == "finish":
            assert env.core.metrics()["evictions"][0] == 0
    assert swapped_s["evict"] == 35.0
    assert swapped_s["finish"] > 35.0


def test_finishing_evicts_nobody_and_evicting_evicts_somebody():
    evictions = {}
    for name, flag in (("finish", 0), ("evict", 1)):
        env = make(**{"workload.rate_scale": 1.5})
        env.reset(seed=1)
        for _ in range(env.scenario.n_steps):
            info = env.step(np.array([0, 0, 0, 0, flag, flag, flag, flag]))[4]
        evictions[name] = info["metrics"]["evictions"]
    assert evictions["finish"] == 0
    assert evictions["evict"] > 0


def test_the_order_matters_first_come_first_served_swaps_all_the_time():
    scenario = load_scenario("multi-model-queue", horizon_s=900)
    fcfs = run_episode(make_policy("static"), scenario, 0).summary
    infos = played(MultiModelQueueEnv(scenario), [0, 0, 0, 0, 1, 1, 1, 1])[1]
    by_deadline = infos[-1]["episode_summary"]
    assert by_deadline["joint/slo_attainment"] > fcfs["joint/slo_attainment"] + 0.3
    assert by_deadline["reward"] > fcfs["reward"]


def test_it_trains_and_its_model_is_a_policy(tmp_path, capsys):
    pytest.importorskip("stable_baselines3")
    from agents import evaluate, train

    short = ["scenario.horizon_s=60"]
    words = ["env=multi-model-queue", "total_timesteps=96", "n_envs=4", "env_threads=1"]
    words += ["ppo.n_steps=12", "ppo.batch_size=24", "validation_episodes=1"]
    words += ["evaluation_episodes=1", f"out={tmp_path / 'run'}", *short]
    assert train.main(words) == 0
    words = ["env=multi-model-queue", f"policies=static,{tmp_path / 'run'}", "episodes=2"]
    assert evaluate.main([*words, f"out={tmp_path / 'table'}", *short]) == 0
    table = capsys.readouterr().out
    assert "static" in table
    assert "batch-2 %" in table


def test_an_untrained_network_leans_towards_keeping():
    from agents.configuration.environments import make_codec
    from agents.exploration.prior import as_is_choices

    scenario = load_scenario("multi-model-queue", **{"fleet.pools.gpu-1.evicts_in_order": False})
    decoder = make_codec("multi-model-queue", scenario).decoder
    chosen = as_is_choices(decoder.parts, decoder.choices, scenario)
    assert chosen == [0, 0, 0, 0, 1, 0, 1, 1]


def test_make_way_sets_eviction_and_flushing_of_its_pool_together():
    env = make(**{"fleet.pools.gpu-1.swap_flushes": False})
    env.reset(seed=0)
    pools = env.core.sim.engine.states.pool[0]
    assert env.core.sim.virtual_queues().evicts[0].tolist() == [1, -1, 1, 1]
    env.step(np.array([0, 0, 0, 0, 0, 1, 1, 0]))
    assert pools["evicts_in_order"].tolist() == [0, 1, 1, 0]
    assert pools["swap_flushes"].tolist() == [0, 1, 1, 0]


def test_the_table_shows_how_many_wait_in_groups():
    env = MultiModelQueueEnv(overrides=BUSY, render_mode="ansi")
    env.reset(seed=0)
    for _ in range(5):
        env.step(KEEP)
    waiting = int(env.view().groups["requests"].sum())
    assert waiting > 0
    assert f"request groups: {waiting} waiting" in env.render()
