"""Gymnasium's forms: autoreset modes, `final_info`, limits of steps, `reset(options=)`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import llmscale_env  # noqa: F401
from llmscale_env.envs import MixedSLOEnv, MixedSLOVectorEnv
from tests.small_world import SMALL_WORLD

MODES = list(AutoresetMode)
SHORT: dict[str, Any] = {"horizon_s": 40.0}
PER_REQUEST = "llmscale/PlacementPerRequest-v0"


def single(**given: Any) -> MixedSLOEnv:
    return MixedSLOEnv(SMALL_WORLD, overrides=SHORT, **given)


def vector(n: int = 3, **given: Any) -> MixedSLOVectorEnv:
    return MixedSLOVectorEnv(n, SMALL_WORLD, overrides=SHORT, **given)


def actions_of(env: Any, rng: np.random.Generator, n: int) -> Any:
    nvec = env.single_action_space.nvec
    return rng.integers(nvec, size=(n, len(nvec)))


def assert_infos_alike(mine: Any, theirs: Any, where: str, which: np.ndarray) -> None:
    """What `SyncVectorEnv` gathers from single environments stands in ours, with the same masks."""
    for name, value in theirs.items():
        if isinstance(value, dict):
            assert_infos_alike(mine[name], value, f"{where}/{name}", which)
        elif name.startswith("_"):
            if name in mine:  # masks within a mapping are Gymnasium's own
                assert (mine[name] == value).all(), f"{where}/{name}"
        else:
            for e in np.flatnonzero(theirs.get(f"_{name}", which)):
                assert np.array_equal(mine[name][e], value[e]), (where, name)


OF_THE_STEP = ("reward_parts", "cost", "cost_by_class", "clipped")
"""Not those of the `reset` that a step has made, which `SyncVectorEnv` shows."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("delay_s", [0.0, 20.0])
def test_every_autoreset_mode_is_that_of_gymnasiums_own_vector_environment(mode, delay_s):
    """Episodes that end at different times, past their ends."""
    n, overrides = 3, {**SHORT, "metric_delay_s": delay_s}
    ours = MixedSLOVectorEnv(n, SMALL_WORLD, overrides=overrides, autoreset_mode=mode)
    theirs = SyncVectorEnv(
        [lambda: MixedSLOEnv(SMALL_WORLD, overrides=overrides)] * n, autoreset_mode=mode
    )
    assert ours.metadata["autoreset_mode"] is ours.autoreset_mode is mode
    rng = np.random.default_rng(0)
    every = np.ones(n, bool)
    first, last = ours.reset(seed=5), theirs.reset(seed=5)
    assert np.array_equal(first[0], last[0])
    # One begins a step later than the others.
    move = actions_of(ours, rng, n)
    ours.step(move), theirs.step(move)
    late = np.array([False, True, False])
    first = ours.reset(seed=9, options={"reset_mask": late})
    last = theirs.reset(seed=9, options={"reset_mask": late})
    assert np.array_equal(first[0], last[0])
    ended = 0
    for _ in range(14):
        move = actions_of(ours, rng, n)
        mine, other = ours.step(move), theirs.step(move)
        for k in range(4):
            assert np.array_equal(mine[k], other[k]), (mode, k)
        done, info = mine[3], other[4]
        if mode is AutoresetMode.SAME_STEP and done.any():
            info = {k: v for k, v in info.items() if k.removeprefix("_") not in OF_THE_STEP}
        assert_infos_alike(mine[4], info, "", every)
        ended += int(done.sum())
        if mode is AutoresetMode.DISABLED and done.any():
            with pytest.raises(gym.error.ResetNeeded):
                ours.step(move)
            first = ours.reset(options={"reset_mask": done.copy()})
            last = theirs.reset(options={"reset_mask": done.copy()})
            assert np.array_equal(first[0], last[0])
    assert ended >= 6
    ours.close(), theirs.close()


def test_the_last_info_of_an_episode_is_masked_like_gymnasiums():
    env = vector(2)
    env.reset(seed=0)
    while not (out := env.step(actions_of(env, np.random.default_rng(1), 2)))[3].any():
        pass
    final = out[4]["final_info"]
    assert (final["_episode_summary"] == out[3]).all()
    assert final["episode_summary"]["gpu_hours"].all()
    assert {name for name in final if not name.startswith("_")} == {
        name[1:] for name in final if name.startswith("_")
    }
    # What is shown beside it is the new episode's.
    assert (out[4]["metrics"]["reward"] == 0).all()
    assert (final["metrics"]["reward"] != 0).all()
    env.close()


@pytest.mark.parametrize("wrong", ["same", 3, None])
def test_an_unknown_mode_is_refused(wrong):
    with pytest.raises(ValueError, match=r"autoreset_mode = .*NextStep"):
        vector(autoreset_mode=wrong)


def test_the_spec_says_how_many_steps_an_episode_has():
    env = gym.make("llmscale/MixedSLO-Hours-v1", overrides={"horizon_s": 300.0})
    assert env.spec.max_episode_steps == 10
    assert gym.make(env.spec).spec.max_episode_steps == 10
    assert gym.make("llmscale/MixedSLO-Hours-v1", max_episode_steps=7).spec.max_episode_steps == 7
    assert gym.make_vec("llmscale/MixedSLO-Hours-v1", num_envs=2).spec.max_episode_steps == 240
    assert gym.make(PER_REQUEST).spec.max_episode_steps is None  # decisions are at arrivals


def test_a_limit_of_steps_is_that_of_the_time_limit():
    ours = vector(2, max_episode_steps=2)
    one = gym.wrappers.TimeLimit(single(), 2)
    seen = ours.reset(seed=4)[0][0]
    assert np.array_equal(seen, one.reset(seed=4)[0])
    rng = np.random.default_rng(3)
    for step in range(4):
        move = actions_of(ours, rng, 2)
        obs, reward, _, truncated, info = ours.step(move)
        single_obs, r, _, t, _ = one.step(move[0])
        assert (reward[0], truncated[0]) == (r, t)
        assert t == (step % 2 == 1)
        last = info["final_obs"][0] if t else obs[0]
        assert np.array_equal(last, single_obs)
        if t:
            assert np.array_equal(obs[0], one.reset()[0])
    with pytest.raises(ValueError, match="max_episode_steps = 0"):
        vector(max_episode_steps=0)


# ---- options of reset ----


def arrived(env: Any, options: Any, seed: int = 0) -> float:
    env.reset(seed=seed, options=options)
    done = False
    while not done:
        *_, done, info = env.step(np.zeros(len(env.action_space.nvec), int))
    return sum(v for k, v in info["metrics"].items() if k.endswith("/arrived"))


def test_a_load_is_scaled_for_one_episode():
    env = single()
    plain = arrived(env, None)
    assert 1.7 * plain < arrived(env, {"rate_scale": 2.0}) < 2.3 * plain
    assert arrived(env, {"workload.rate_scale": 2.0}) == arrived(env, {"rate_scale": 2.0})
    assert arrived(env, None) == plain
    other = MixedSLOEnv(SMALL_WORLD, overrides={**SHORT, "workload.rate_scale": 2.0})
    assert arrived(other, None) == arrived(env, {"rate_scale": 2.0})


def test_a_day_is_chosen_among_those_of_the_workload():
    env = gym.make(
        "llmscale/MixedSLO-Hours-v1", overrides={"horizon_s": 60.0, "workload": "mixed-slo/train"}
    )
    days = {arrived(env.unwrapped, {"day": day}) for day in range(1, 9)}
    assert len(days) > 1
    alone = {f"workload.streams.{name}.arrivals.days": [3] for name in ("chat", "code")}
    fixed = gym.make(
        "llmscale/MixedSLO-Hours-v1",
        overrides={"horizon_s": 60.0, "workload": "mixed-slo/train", **alone},
    )
    assert arrived(fixed.unwrapped, None) == arrived(env.unwrapped, {"day": 3})
    with pytest.raises(ValueError, match=r"options\['day'\] = 11: must be one of \[1, 2, 3"):
        env.reset(options={"day": 11})
    test = {"workload": "mixed-slo/test-hours"}
    assert arrived(env.unwrapped, {**test, "day": 12}) != arrived(env.unwrapped, {"day": 3})
    assert env.reset(options={"day": 12, **test})[1]["options"]["workload"] == test["workload"]
    assert "options" not in env.reset()[1]
    for options in ({**test, "day": 1}, {"day": 1, **test}):
        with pytest.raises(ValueError, match=r"must be one of \[11, 12, 13, 14\]"):
            env.reset(options=options)


def test_what_is_drawn_follows_the_seed_and_stays_in_its_range():
    env = single()
    options = {"randomise": {"rate_scale": [0.5, 2.0]}}
    counts = [arrived(env, options, seed) for seed in range(6)]
    assert counts == [arrived(env, options, seed) for seed in range(6)]
    assert max(counts) > 1.5 * min(counts)
    numpy = {"randomise": {"rate_scale": (np.float32(0.5), np.float32(2.0))}}
    assert [arrived(env, numpy, seed) for seed in range(6)] == counts
    words = {"randomise": {"workload.rate_scale": [0.5, 1.0, 4.0]}}
    assert len({arrived(env, words, seed) for seed in range(6)}) > 2


def test_options_hold_in_the_vectorised_form_until_the_next_reset():
    env, one = vector(2), single()
    env.reset(seed=0, options={"rate_scale": 3.0})
    counts = []
    while len(counts) < 2:
        *_, done, info = env.step(np.zeros((2, len(env.single_action_space.nvec)), int))
        if done.any():
            final = info["final_info"]["metrics"]
            counts.append(sum(v[0] for k, v in final.items() if k.endswith("/arrived")))
    plain = arrived(one, None)
    assert counts[0] == arrived(one, {"rate_scale": 3.0})
    assert counts[1] > 2 * plain
    env.close()


def test_what_is_over_cannot_be_played_again():
    env = vector(2, autoreset_mode="NextStep")
    env.reset(seed=0)
    still = np.zeros((2, len(env.single_action_space.nvec)), int)
    while not env.step(still)[3].any():
        env.so_far()
    with pytest.raises(ValueError, match=r"episodes \[0, 1\] are over"):
        env.so_far()
    env.step(still)
    assert len(env.so_far()) == 2


def test_an_episode_with_options_is_played_again():
    env = vector(2)
    env.reset(seed=0, options={"rate_scale": 3.0})
    for _ in range(2):
        seen = env.step(np.zeros((2, len(env.single_action_space.nvec)), int))[0]
    other = vector(2)
    assert np.array_equal(other.replay(env.so_far()), seen)
    # The next episode has the same options, too.
    still = np.zeros((2, len(env.single_action_space.nvec)), int)
    for _ in range(6):
        mine, its = env.step(still), other.step(still)
        assert np.array_equal(mine[0], its[0])
        assert np.array_equal(mine[1], its[1])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"load": 2}, r"options\['load'\]: unknown; there are \['rate_scale', 'day'"),
        ({"rate_scale": 0}, r"options\['rate_scale'\] = 0: must be a positive number"),
        ({"rate_scale": True}, "must be a positive number"),
        ({"rate_scale": float("nan")}, "must be a positive number"),
        ({"day": 1}, "left out: the workload has no days"),
        ({"workload.nothing": 1}, "options: .*nothing"),
        ({"fleet.max_gpus": 2}, r"options\['fleet.max_gpus'\]: unknown"),
        (
            {"randomise": {"fleet.max_gpus": [1, 2]}},
            "must be rate_scale or a field of the workload",
        ),
        ({"randomise": {"rate_scale": [2, 1]}}, "the lower one first"),
        ({"randomise": {"rate_scale": "many"}}, "must be .low, high. or a list of choices"),
        ({"randomise": 3}, "must be a mapping of fields to ranges"),
        ({"randomise": {"rate_scale": [-1.0, 1.0]}}, "must be a positive number"),
        ({"randomise": {"rate_scale": [1.0, -3.0, 2.0]}}, "must be a positive number"),
        ({"randomise": {"workload.rate_scale": [1.0, -3.0, 2.0]}}, "options: "),
        (5, "options = 5: must be a mapping"),
    ],
)
@pytest.mark.parametrize("make", [single, vector])
def test_options_that_mean_nothing_are_refused_and_nothing_happens(make, options, message):
    env = make()
    env.reset(seed=1)
    before = np.array([rng.bit_generator.state["state"]["state"] for rng in env.core.rngs])
    with pytest.raises(ValueError, match=message):
        env.reset(seed=2, options=options)
    after = np.array([rng.bit_generator.state["state"]["state"] for rng in env.core.rngs])
    assert (before == after).all()
