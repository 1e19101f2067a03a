"""Placement-v1: what orders do, what is shown of requests without a worker, that cheating does not pay.

What every environment has to keep is in test_envs.py.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from llmscale_env.control.as_command import as_command
from llmscale_env.control.command import Command
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.envs.actions import ActionDecoder
from llmscale_env.envs.codec import Codec
from llmscale_env.envs.placement import PlacementEnv
from llmscale_env.scenarios import load_scenario
from llmscale_env.sim.linear import linear_times
from llmscale_env.sim.spec import RouterKind
from tests.env_kinds import entries_of, masks_of, played
from tests.small_tables import requests_of
from tests.small_world import SmallEnv

SHORT = {"horizon_s": 60, "workload.rate_scale": 0.5}
ALL_TP1 = {"fleet.pools.tp1.initial_instances": 0}


def make(**changes):
    return PlacementEnv(overrides={**SHORT, **changes})


def action(env, **parts):
    """Choices by meaning, such as `tp1=6, rule="best-fit"`; counts left out are 0."""
    full = {"tp1": 0, "tp2": 0, "tp4": 0, "rule": "jsq-requests", "gamma": 0.5, "theta": 0.9}
    values = {**full, **parts}.values()
    decoder = env.codec.decoder
    return np.array(
        [choices.index(f"{v}") for v, choices in zip(values, decoder.choices, strict=True)]
    )


# ---- orders ---------------------------------------------------------------------------------------


def test_rule_and_strictness_reach_the_engine_and_every_degree_has_its_own_times():
    env = make()
    env.reset(seed=0)
    env.step(action(env, tp1=6, tp2=2, rule="best-fit", gamma=0.25, theta=1.2))
    states, spec = env.core.sim.engine.states, env.core.sim.engine.spec
    route = states.route[0, 0, 0]
    assert (route["kind"], route["gamma"], route["theta"]) == (RouterKind.BEST_FIT, 0.25, 1.2)
    assert (env.view().pools["active"] + env.view().pools["loading"]).tolist() == [6, 2, 0]
    slots = {0: 0, 24: 1, 36: 2}
    for slot, p in slots.items():
        fit = states.fit[0, slot]
        times = linear_times(spec.profiles[spec.pools[p].profile], 256)
        assert [fit[k] for k in ("c1", "k1", "c3", "c2", "k2")] == pytest.approx(times)
        assert fit["has_model"] == 1
    # A worker of four GPUs is faster than one of one.
    assert states.fit[0, 36]["c3"] < states.fit[0, 0]["c3"]
    env.step(action(env, tp1=6, rule="power-of-two"))
    assert route["kind"] == RouterKind.POWER_OF_TWO


def test_orders_as_a_command():
    scenario = load_scenario("placement", **SHORT)
    env = PlacementEnv(scenario)
    env.reset(seed=0)
    decoder = ActionDecoder(scenario, PlacementEnv.action)
    chosen = decoder.check(action(env, tp1=12, tp4=1, rule="best-fit", gamma=1, theta=0.5), 1)
    first = as_command(decoder.orders(chosen, env.core.snapshot()), 0, scenario)
    assert first.targets == {"tp4": 1}  # twelve of one GPU are there
    assert first.routers == {"chat": "best-fit"}
    assert first.placement == {"chat": {"gamma": 1.0, "theta": 0.5}}
    assert sorted(first.placement_models) == list(range(42))
    env.step(chosen[0])
    later = as_command(decoder.orders(chosen, env.core.snapshot()), 0, scenario)
    assert later.placement_models == {}


def test_without_a_placement_there_is_no_best_fit_to_choose():
    route = {"slo_class": "*", "kind": "jsq-requests", "pools": ["tp1", "tp2", "tp4"]}
    env = make(**{"fleet.routes": [route]})
    assert env.codec.decoder.parts[3:] == ["placement/rule"]
    assert env.codec.decoder.choices[3] == [
        "round-robin",
        "jsq-requests",
        "power-of-two",
        "least-kv",
    ]
    env.reset(seed=0)
    env.step(np.array([4, 0, 0, 2]))


def test_what_a_mask_allows_is_never_clipped_one_pool_at_a_time():
    env = make(**{"fleet.max_gpus": 16})
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    levels = [[int(c) for c in choices] for choices in env.codec.decoder.choices[:3]]
    refused = 0
    for _ in range(11):
        masks = masks_of(env)
        have = [env.view().instances_of(p) for p in range(3)]
        keep = [levels[p].index(n) if n in levels[p] else None for p, n in enumerate(have)]
        assert None not in keep
        pool = int(rng.integers(3))
        for allowed in (True, False):
            chosen = [*keep, *(rng.integers(n) for n in env.action_space.nvec[3:])]
            choices = np.flatnonzero(masks[pool] == allowed)
            if len(choices):
                chosen[pool] = rng.choice(choices)
                clipped = env.fork().step(np.array(chosen))[4]["clipped"]
                assert (clipped == 0) == allowed
                refused += not allowed
        chosen = list(keep)
        chosen[pool] = rng.choice(np.flatnonzero(masks[pool])[:5])
        env.step(np.array([*chosen, 1, 2, 4]))
    assert refused > 3


def test_requests_that_wait_for_room_are_tried_again_at_every_decision():
    """With `wait` nobody is forced on a full worker; the next decision asks again, by the new rule."""
    route = {
        "slo_class": "*",
        "kind": "best-fit",
        "pools": ["tp1", "tp2", "tp4"],
        "placement": {"fallback": "wait", "ttft_s": 0.001},  # no prefill is as short
    }
    env = make(**{"fleet.routes": [route]})
    env.reset(seed=0)
    info = env.step(action(env, tp1=12, rule="best-fit"))[4]
    waiting = info["metrics"]["queue/gateway"]
    assert waiting == info["metrics"]["chat/arrived"] > 10
    info = env.step(action(env, tp1=12, rule="jsq-requests"))[4]
    assert info["metrics"]["queue/gateway"] == 0


@pytest.mark.parametrize(
    "head, message",
    [
        ("placement", r"action = 'placement': the route of class 'interactive' .* has no pools"),
        ("place_request", r"action = 'place_request': routes are .*must be 'hold'"),
    ],
)
def test_a_scenario_that_does_not_fit_is_refused(head, message):
    with pytest.raises(ValueError, match=message):
        PlacementEnv("multi-model-queue", action=(head,))


def test_single_requests_are_placed_only_where_decisions_are_made_at_arrivals():
    with pytest.raises(ValueError, match="decisions = 'intervals'; must be 'arrivals'"):
        PlacementEnv(
            "placement-per-request",
            overrides={"decisions": "intervals"},
            action=("place_request",),
        )


# ---- observations ---------------------------------------------------------------------------------


def test_requests_without_a_worker_and_lengths_by_hand():
    scenario = load_scenario("placement", **ALL_TP1)
    sim = ClusterSimulation(scenario)
    sim.start(0, requests_of(scenario, [1.0, 4.7, 6.0], [100, 300, 40], [10, 20, 90]))
    codec = Codec(scenario, PlacementEnv.observation, PlacementEnv.action)
    start = entries_of(codec, codec.encode(sim.view(0)))
    assert start["llama-2-13b/unplaced"] == start["llama-2-13b/unplaced_age"] == 0
    assert start["chat/input"] == start["chat/predicted"] == 0
    sim.advance()
    seen = entries_of(codec, codec.encode(sim.view(0)))
    assert seen["llama-2-13b/unplaced"] == pytest.approx(np.log(3) / np.log(257))
    assert seen["llama-2-13b/unplaced_age"] == 1  # 4 s / 0.6 s / 2, clipped
    assert seen["chat/input"] == pytest.approx(np.log(201) / np.log(4097))
    assert seen["chat/predicted"] == pytest.approx(np.log(16) / np.log(4097))
    # One worker of one GPU, not from this machine's memory: 23.8 s, then both are served.
    sim.apply(0, Command(targets={"tp1": 1}))
    for _ in range(6):
        sim.advance()
    seen = entries_of(codec, codec.encode(sim.view(0)))
    assert seen["llama-2-13b/unplaced"] == 0
    assert seen["tp1/active"] == pytest.approx(1 / 24)
    assert seen["gpus/free"] == pytest.approx(23 / 24)


def test_age_of_the_first_in_a_gateway():
    scenario = load_scenario("placement", **ALL_TP1)
    sim = ClusterSimulation(scenario)
    sim.start(0, requests_of(scenario, [4.7, 4.9], [100, 300], [10, 20]))
    codec = Codec(scenario, PlacementEnv.observation, PlacementEnv.action)
    sim.advance()
    seen = entries_of(codec, codec.encode(sim.view(0)))
    assert seen["llama-2-13b/unplaced_age"] == pytest.approx(0.3 / 0.6 / 2)


# ---- cheating -------------------------------------------------------------------------------------


def by_rate(env):
    """A worker of one GPU for every 1.2 requests per second of the busiest interval of a minute, and one."""
    history = env.view().history
    rate = history[-12:].sum(axis=1).max() / 5 if len(history) else 20.0
    wanted = np.clip(rate / 1.2 + 1, 1, 24)
    levels = [int(c) for c in env.codec.decoder.choices[0]]
    return action(env, tp1=next(n for n in levels if n >= wanted))


def test_neither_no_workers_nor_all_of_them_is_best():
    env = PlacementEnv()
    for seed in (0, 1):
        never, gone = played(env, action, seed)
        always, full = played(env, partial(action, tp1=24), seed)
        sensible, infos = played(env, by_rate, seed)
        assert sensible.sum() > always.sum() + 5
        assert sensible.sum() > never.sum() + 100
        gone, full, found = (each[-1]["episode_summary"] for each in (gone, full, infos))
        assert gone["joint/slo_attainment"] < 0.2
        assert found["joint/slo_attainment"] > 0.9
        assert full["gpu_hours"] > found["gpu_hours"]


def test_work_left_in_the_gateway_is_charged():
    info = played(make(**ALL_TP1), action)[1][-1]
    metrics = info["metrics"]
    assert metrics["queue/gateway"] == metrics["chat/arrived"]
    assert info["reward_parts"]["leftover"] < -1
    # All but those of the last 600 ms are late by now.
    late = metrics["chat/violations"] / metrics["chat/arrived"]
    assert 0.9 < late <= 1


def test_other_environments_do_not_report_a_gateway():
    env = SmallEnv(overrides={"horizon_s": 20})
    assert "queue/gateway" not in env.reset(seed=0)[1]["metrics"]
