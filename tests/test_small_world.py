"""An environment of pools: what its actions do, what it refuses, how it is drawn.

What every environment has to keep is in test_envs.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from llmscale_env.control.as_command import as_command
from llmscale_env.envs.actions import ActionDecoder
from llmscale_env.scenarios import ScenarioError, load_scenario
from tests.env_kinds import SHORT, make
from tests.small_world import SMALL_WORLD, SmallEnv


def test_more_instances_shorten_the_queue():
    """The queue reacts to the action."""
    waiting = {}
    for name, change in (("fewer", 1), ("more", 5)):
        env = make(**{"workload.rate_scale": 1.5})
        env.reset(seed=0)
        queue = []
        for _ in range(12):
            action = np.array([change, change, change, 3, 3, 3, 0, 2])
            info = env.step(action)[4]
            metrics = info["metrics"]
            pools = ("interactive", "mixed", "batch")
            queue.append(metrics["queue/batch"] + sum(metrics[f"{p}/waiting"] for p in pools))
        waiting[name] = queue[-1]
    assert waiting["fewer"] > 10 * max(waiting["more"], 1)


def test_serving_nothing_costs_more_than_serving():
    """No way to gain by not serving: the anti-cheat policy that stops everything loses."""
    returns = {}
    for name, first in (("off", 0), ("steady", 4)):
        env = make()
        env.reset(seed=1)
        total = 0.0
        for _ in range(12):
            total += env.step(np.array([first, first, first, 3, 3, 5, 0, 0]))[1]
        returns[name] = total
    assert returns["off"] < returns["steady"] - 10


def test_masked_actions_are_never_clipped_one_pool_at_a_time():
    env = make(**{"fleet.max_gpus": 9})
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    levels = [int(choice) for choice in env.codec.decoder.choices[0]]
    for _ in range(12):
        mask = np.split(env.action_masks(), np.cumsum(env.action_space.nvec)[:-1])
        # The other pools keep what they have.
        have = [env.view().instances_of(p) for p in range(3)]
        action = np.array([*(levels.index(n) for n in have), 3, 3, 5, 0, 0])
        pool = rng.integers(3)
        allowed = [k for k in np.flatnonzero(mask[pool]) if levels[k] <= max(have[pool] + 1, 4)]
        action[pool] = rng.choice(allowed)
        assert env.step(action)[4]["clipped"] == 0


def test_an_order_for_too_many_gpus_is_clipped_and_counted():
    env = make(**{"fleet.max_gpus": 9})
    env.reset(seed=0)
    info = env.step(np.array([7, 4, 0, 3, 3, 5, 0, 0]))[4]
    assert info["clipped"] == 3


def test_a_part_is_changed_after_the_whole_in_whatever_order_they_are_given():
    load = {"workload.rate_scale": 1.2}
    for given in ({**load, "workload": "chat"}, {"workload": "chat", **load}):
        workload = load_scenario(SMALL_WORLD, **given).workload
        assert workload.rate_scale == 1.2
        assert (
            workload == load_scenario(load_scenario(SMALL_WORLD, workload="chat"), **load).workload
        )


def test_unknown_names_are_refused_with_what_there_is():
    with pytest.raises(ScenarioError, match="mixed-slo-hours"):
        SmallEnv(scenario="mixd-slo")
    with pytest.raises(ScenarioError, match="no such field"):
        SmallEnv(overrides={"flet.max_gpus": 3})
    with pytest.raises(ScenarioError, match=r"cannot hold one instance|already hold"):
        SmallEnv(overrides={"fleet.max_gpus": 1})
    with pytest.raises(ValueError, match="unknown block"):
        SmallEnv(observation=("clock", "weather"))
    with pytest.raises(ValueError, match="unknown head"):
        SmallEnv(action=("prayer",))
    with pytest.raises(ValueError, match="render_mode"):
        SmallEnv(render_mode="human")


def test_other_blocks_and_heads_make_other_spaces():
    env = SmallEnv(overrides=SHORT, observation=("clock", "queues"), action=("instance_counts",))
    assert env.observation_space.shape == (8,)
    assert env.action_space.nvec.tolist() == [11, 11, 11]
    env.reset(seed=0)
    env.step(np.array([3, 3, 3]))


def test_render_without_a_display():
    env = SmallEnv(overrides=SHORT, render_mode="rgb_array")
    env.reset(seed=0)
    for _ in range(3):
        env.step(np.array([4, 5, 0, 3, 3, 5, 0, 0]))
    frame = env.render()
    assert frame.dtype == np.uint8
    assert frame.ndim == 3
    assert frame.std() > 0
    text = SmallEnv(overrides=SHORT, render_mode="ansi")
    text.reset(seed=0)
    assert "queue batch" in text.render()
    # Nothing has been judged yet.
    assert "batch: - on time, 0 violations" in text.render()


def test_decoder_orders_and_commands_say_the_same():
    scenario = load_scenario(SMALL_WORLD, **SHORT)
    env = SmallEnv(scenario)
    env.reset(seed=0)
    decoder = ActionDecoder(scenario, SmallEnv.action)
    action = decoder.check(np.array([6, 3, 0, 1, 2, 4, 2, 1]), 1)
    command = as_command(decoder.orders(action, env.core.snapshot()), 0, scenario)
    assert command.targets == {"interactive": 6, "mixed": 3}
    assert command.batch_limits == {"interactive": 16, "mixed": 32, "batch": 128}
    assert command.overflow_share == {"interactive": 0.5}
    assert command.load_source == dict.fromkeys(("interactive", "mixed", "batch"), "host")


def test_orders_beyond_the_gpus_can_be_errors():
    env = make(**{"fleet.max_gpus": 9, "impossible_commands": "error"})
    env.reset(seed=0)
    with pytest.raises(ValueError, match="max_gpus = 9"):
        env.step(np.array([7, 4, 0, 3, 3, 5, 0, 0]))


def test_unfinished_requests_are_no_better_than_late_ones_at_the_horizon():
    """A batch so large that nobody finishes must not pay (a short, overloaded episode)."""
    overrides = {
        "horizon_s": 40,
        "workload.rate_scale": 0.6,
        "fleet.pools.interactive.initial_instances": 2,
        "fleet.pools.mixed.initial_instances": 0,
    }
    returns = {}
    for level in (3, 7):
        env = SmallEnv(overrides=overrides)
        env.reset(seed=0)
        total = 0.0
        for _ in range(4):
            total += env.step(np.array([2, 0, 0, level, 3, 5, 0, 0]))[1]
        returns[level] = total
        assert env.core.sim.engine.states.tally["itl_late"].sum() > 0
    assert returns[7] < returns[3] + 1.0
