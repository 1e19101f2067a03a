"""Every environment keeps Gymnasium's and SB3's contracts, and their own."""

from __future__ import annotations

import pickle
import re
import sys
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import llmscale_env
from llmscale_env.control.forecast import Forecaster, LastValue
from tests.env_kinds import (
    KINDS,
    REQUEST,
    assert_equal_to_singles,
    assert_replayed,
    each_kind,
    make,
)
from tests.small_world import SMALL_ID
from tests.waiting import printed


def play(env, seed):
    """Observations, rewards and infos of an episode of random (seeded) actions."""
    rng = np.random.default_rng(seed)
    out = [env.reset(seed=seed)[0]]
    rewards, infos = [], []
    truncated = False
    while not truncated:
        action = rng.integers(env.action_space.nvec)
        observation, reward, terminated, truncated, info = env.step(action)
        assert env.observation_space.contains(observation)
        assert not terminated
        out.append(observation)
        rewards.append(reward)
        infos.append(info)
    assert len(rewards) >= 12
    return np.array(out), np.array(rewards), infos


class Level(Forecaster):
    """A user's own: the same number for ever."""

    def _allocate(self, n_series):
        return {"level": np.zeros(n_series)}

    def _observe(self, values):
        self._state["level"][:] = 7.0

    def _path(self, steps):
        return np.broadcast_to(self._state["level"], (steps, self.n_series))


def test_an_environment_takes_a_forecaster_of_ones_own():
    kind = KINDS[0]
    blocks = ("forecast",)

    def played(forecaster):
        env = gym.make(kind.id, overrides=kind.short, observation=blocks, forecaster=forecaster)
        return play(env.unwrapped, 0)[0]

    assert (played(LastValue()) == played("last-value")).all()
    assert (played(Level())[1:] != played("last-value")[1:]).any()


@each_kind
@pytest.mark.filterwarnings("error")
def test_gymnasium_check_env_passes_without_warnings(kind):
    env = gym.make(kind.id, overrides=kind.short, render_mode="rgb_array").unwrapped
    check_env(env)


def test_a_picture_without_matplotlib_is_refused_before_the_episode(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'llmscale\[plots\]'"):
        gym.make(KINDS[0].id, render_mode="rgb_array")
    gym.make(KINDS[0].id, render_mode="ansi")


@each_kind
def test_sb3_check_env_passes(kind):
    from stable_baselines3.common.env_checker import check_env as check_sb3

    check_sb3(make(kind), warn=True, skip_render_check=True)


@each_kind
def test_a_new_process_makes_the_same_episode_by_module_and_id(kind):
    module = "tests.small_world" if kind.id == SMALL_ID else "llmscale_env"
    code = f"""
import gymnasium
env = gymnasium.make("{module}:{kind.id}", overrides={kind.short!r})
numbers = [env.reset(seed=0)[0].sum()]
for _ in range(12):
    observation, reward, *_ = env.step({kind.action!r})
    numbers += [observation.sum(), reward]
print([float(number) for number in numbers])
"""
    found = printed(code)
    env = make(kind)
    numbers = [env.reset(seed=0)[0].sum()]
    for _ in range(12):
        observation, reward, *_ = env.step(kind.action)
        numbers += [observation.sum(), reward]
    assert found.strip() == str([float(number) for number in numbers])


@each_kind
def test_one_seed_is_one_episode_and_seeds_differ(kind):
    a, ra, _ = play(make(kind), 0)
    b, rb, _ = play(make(kind), 0)
    c, _, _ = play(make(kind), 1)
    assert (a == b).all()
    assert (ra == rb).all()
    assert a.shape != c.shape or (a != c).any()


@each_kind
def test_requests_do_not_depend_on_the_actions(kind):
    env = make(kind)
    arrived = []
    for choice in (0, 6):
        env.reset(seed=3)
        truncated = False
        while not truncated:
            action = np.zeros(len(env.action_space.nvec), int)
            action[:3] = choice
            _, _, _, truncated, info = env.step(np.minimum(action, env.action_space.nvec - 1))
        arrived.append(
            [info["metrics"][f"{c.name}/arrived"] for c in env.scenario.classes],
        )
    assert arrived[0] == arrived[1]


@each_kind
def test_a_second_reset_without_seed_goes_on_with_the_generator(kind):
    env = make(kind)
    env.reset(seed=5)
    first = play_fixed(env, kind)
    env.reset()
    second = play_fixed(env, kind)
    env.reset(seed=5)
    again = play_fixed(env, kind)
    assert first == again
    assert first != second


def play_fixed(env, kind):
    """Sums of the observations of an episode."""
    sums = []
    truncated = False
    while not truncated:
        observation, _, _, truncated, _ = env.step(kind.action)
        sums.append(float(observation.sum()))
    return sums


@each_kind
def test_the_vectorised_form_equals_single_environments_seed_by_seed(kind):
    vector = gym.make_vec(
        kind.id,
        num_envs=3,
        vectorization_mode="vector_entry_point",
        overrides=kind.short,
        threads=2,
    )
    assert isinstance(vector.unwrapped, kind.vector)
    assert_equal_to_singles(vector, [make(kind) for _ in range(3)], 7)


@each_kind
def test_threads_change_nothing(kind):
    def rollout(threads):
        vector = kind.vector(4, overrides=kind.short, threads=threads)
        vector.reset(seed=0)
        rng = np.random.default_rng(1)
        nvec = vector.single_action_space.nvec
        steps = [vector.step(rng.integers(nvec, size=(4, len(nvec)))) for _ in range(15)]
        vector.close()
        return np.array([s[0] for s in steps]), np.array([s[1] for s in steps])

    one, two = rollout(1), rollout(2)
    assert (one[0] == two[0]).all()
    assert (one[1] == two[1]).all()


@each_kind
def test_a_fork_goes_on_as_the_original_does_and_does_not_disturb_it(kind):
    env = make(kind)
    env.reset(seed=2)
    rng = np.random.default_rng(0)
    nvec = env.action_space.nvec
    actions = rng.integers(nvec, size=(100 if kind is REQUEST else 30, len(nvec)))
    for action in actions[:5]:
        env.step(action)
    saved = pickle.loads(pickle.dumps(env.save_state()))
    fork = env.fork()
    for action in actions[5:9]:
        fork.step(action[::-1] % fork.action_space.nvec)
    straight = finish(env, actions[5:])
    env.restore_state(saved)
    again = finish(env, actions[5:])
    other = make(kind)
    other.restore_state(saved)
    elsewhere = finish(other, actions[5:])
    assert straight == again == elsewhere


def finish(env, actions):
    """Rewards to the horizon, and the first rewards of the episode after it."""
    rewards = []
    for action in actions:
        _, reward, _, truncated, _ = env.step(action)
        rewards.append(reward)
        if truncated:
            env.reset()
    return rewards


@each_kind
def test_what_is_kept_of_the_last_look_is_what_another_look_finds(kind):
    env, looks_again = make(kind), make(kind)
    core = looks_again.core
    plain = core._snapshot_of

    def look(sim):
        core._kept = (None, -1, None, None)
        return plain(sim)

    core._snapshot_of = look
    rng = np.random.default_rng(0)
    truncated = False
    assert (env.reset(seed=3)[0] == looks_again.reset(seed=3)[0]).all()
    while not truncated:
        action = rng.integers(env.action_space.nvec)
        masks = [e.action_masks() for e in (env, env, looks_again)]
        assert (masks[0] == masks[1]).all()
        assert (masks[0] == masks[2]).all()
        masks[0][:] = False  # a copy: nobody else sees it
        one, two = env.step(action), looks_again.step(action)
        assert (one[0] == two[0]).all()
        assert one[1] == two[1]
        assert (one[4]["action_mask"] == two[4]["action_mask"]).all()
        truncated = one[3]
    assert env.core.snapshot() is env.core.snapshot() or env.core.references


@each_kind
def test_an_environment_can_be_pickled(kind):
    env = make(kind)
    env.reset(seed=0)
    env.step(env.action_space.nvec - 1)
    other = pickle.loads(pickle.dumps(env))
    one, two = env.step(kind.action), other.step(kind.action)
    assert one[1] == two[1]
    assert (one[0] == two[0]).all()


@each_kind
def test_a_codec_with_run_episode_is_the_environment(kind):
    assert_replayed(make(kind))


@each_kind
@pytest.mark.parametrize(
    "action,message",
    [
        (lambda n: np.full(n, np.nan), "whole numbers"),
        (lambda n: np.full(n, 0.5), "whole numbers"),
        (lambda n: np.eye(n, dtype=int)[-1] * 99, r"action\[\d+\] \([\w-]+(/[\w-]+)*\) = 99"),
        (lambda n: -np.eye(n, dtype=int)[0], r"must be in 0\.\.\d+$"),
        (lambda n: np.zeros(n + 2, int), "shape"),
    ],
)
def test_a_bad_action_is_refused_and_nothing_happens(kind, action, message):
    env = make(kind)
    action = action(len(env.action_space.nvec))
    env.reset(seed=0)
    before = env.view().time_s
    with pytest.raises(ValueError, match=message):
        env.step(action)
    assert env.view().time_s == before


@each_kind
def test_step_needs_a_reset(kind):
    env = make(kind)
    with pytest.raises(gym.error.ResetNeeded):
        env.step(np.zeros(len(env.action_space.nvec), int))


@each_kind
def test_rewards_parts_add_up_and_metrics_are_physical(kind):
    env = make(kind)
    _, rewards, infos = play(env, 0)
    for reward, info in zip(rewards, infos, strict=True):
        assert sum(info["reward_parts"].values()) == pytest.approx(reward)
    metrics = infos[-1]["episode_summary"]
    assert metrics["reward"] == pytest.approx(rewards.sum())
    assert 0 <= metrics["joint/slo_attainment"] <= 1
    most = env.scenario.fleet.max_gpus * env.scenario.horizon_s / 3600
    assert 0 < metrics["gpu_hours"] <= most


@each_kind
def test_every_entry_and_every_choice_has_its_words(kind):
    env = kind.single()
    entries = env.observation_entries
    assert np.array_equal([x.low for x in entries], env.observation_space.low)
    assert np.array_equal([x.high for x in entries], env.observation_space.high)
    assert all(x.meaning for x in entries)
    assert len(set(env.observation_names)) == len(entries)
    assert [
        len(set(words)) for words in env.action_choices.values()
    ] == env.action_space.nvec.tolist()
    assert env.action_names == tuple(env.action_choices)


@each_kind
def test_the_manual_has_the_weights_of_the_reward(kind):
    env = kind.single()
    config, manual = env.scenario.reward, kind.single.__doc__
    if config.prices is not None:
        assert f"in units of {config.prices.unit_usd:g} $" in manual
        assert f"{config.prices.gpu_hour_usd:.2f} $ per GPU-hour" in manual
        assert f"{config.prices.late_request_usd:g} $ per request" in manual
        return
    (violations,) = re.findall(r"- `violations`: ([\d.]+) x", manual)
    assert float(violations) == config.violation_weight
    for load in re.findall(r"- `loads`: ([\d.]+) ", manual):
        assert float(load) == config.load_weight
    for gpus in re.findall(r"over those of all (\d+) GPUs", manual):
        assert int(gpus) == env.scenario.fleet.max_gpus


def test_every_registered_environment_can_be_made():
    short = {kind.id: kind.short for kind in KINDS}
    for entry in llmscale_env.ENVIRONMENTS:
        given = short.get(entry.id, {"horizon_s": 600, "workload.rate_scale": 0.1})
        env = gym.make(entry.id, overrides=given)
        env.reset(seed=0)
        env.close()


@each_kind
def test_the_view_does_not_change_when_the_future_does(kind):
    """Two episodes that part after half the time look the same until then, whatever a policy reads."""
    from llmscale_env.control.reward import draw_requests
    from llmscale_env.control.simulation import ClusterSimulation

    env = make(kind)
    scenario = env.scenario
    whole = draw_requests(scenario, np.random.default_rng(0))
    keep = (whole.arrival_s < scenario.horizon_s / 2) | (np.arange(len(whole)) % 3 == 0)
    columns = {
        name: getattr(whole, name)[keep]
        for name in whole.__dataclass_fields__
        if isinstance(getattr(whole, name), np.ndarray) and name != "failures"
    }
    other = replace(whole, **columns, failures=())
    views = []
    for table in (whole, other):
        sim = ClusterSimulation(scenario)
        sim.start(0, table)
        codec = env.make_codec()
        for _ in range(6):
            sim.apply(0, codec.decode(kind.action, sim.view(0)))
            sim.advance()
        view = sim.view(0)
        seen = [view.totals, view.pools, view.queues, view.instances, view.history, view.groups]
        seen += [view.running_from, codec.encode(view)]
        views.append(seen)
    for one, two in zip(*views, strict=True):
        assert one.tobytes() == two.tobytes()


@each_kind
def test_entries_and_parts_have_names(kind):
    one = make(kind)
    many = gym.make_vec(kind.id, num_envs=2, overrides=kind.short)
    for env in (one, many):
        assert env.unwrapped.observation_names == one.observation_names
        assert env.unwrapped.action_names == one.action_names
    assert len(one.observation_names) == one.observation_space.shape[0]
    assert len(one.action_names) == len(one.action_space.nvec)
    for names in (one.observation_names, one.action_names):
        assert len(set(names)) == len(names)
    one.close()
    many.close()


def test_the_package_exports_its_environments():
    from llmscale_env import envs

    assert envs.MultiRegionParallelEnv.__name__ in dir(envs)
    assert issubclass(envs.MixedSLOEnv, envs.ServingEnv)
    assert issubclass(envs.MixedSLOVectorEnv, envs.ServingVectorEnv)
    for entry in llmscale_env.ENVIRONMENTS:
        name = entry.entry_point.partition(":")[2]
        assert getattr(envs, name).__name__ == name
        assert {name, name.replace("Env", "VectorEnv")} <= set(dir(envs))
    with pytest.raises(AttributeError, match="has no attribute 'NoEnv'"):
        _ = envs.NoEnv
