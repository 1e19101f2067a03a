"""Other forms of the environments: by name, continuous, several objectives, costs, drawn loads."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import llmscale_env  # noqa: F401
from llmscale_env.envs import MixedSLOConstrainedEnv, MixedSLOEnv, MixedSLOVectorEnv
from llmscale_env.wrappers import (
    ContinuousAction,
    Curriculum,
    DomainRandomisation,
    NamedObservation,
    SafetyStep,
    VectorContinuousAction,
    VectorCurriculum,
    VectorFlatInfo,
    VectorNamedObservation,
    VectorReward,
)
from tests.small_world import SMALL_WORLD

pytestmark = pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version")
"""Which Gymnasium's checker says of every wrapper."""

SHORT: dict[str, Any] = {"horizon_s": 60.0}


def single(**given: Any) -> MixedSLOEnv:
    return MixedSLOEnv(SMALL_WORLD, overrides=SHORT, **given)


def vector(n: int = 3, **given: Any) -> MixedSLOVectorEnv:
    return MixedSLOVectorEnv(n, SMALL_WORLD, overrides=SHORT, **given)


@pytest.mark.parametrize("by", ["block", "entry"])
def test_observations_by_name_are_the_row_in_pieces(by):
    plain, named = single(), NamedObservation(single(), by)
    row, mapping = plain.reset(seed=3)[0], named.reset(seed=3)[0]
    assert np.array_equal(np.concatenate(list(mapping.values())), row)
    assert mapping in named.observation_space
    if by == "entry":
        assert tuple(mapping) == plain.observation_names
    else:
        assert set(mapping) == set(plain.core.codec.encoder.spans)
    check_env(named, skip_render_check=True)


def test_rows_by_name_side_by_side():
    plain, named = vector(), VectorNamedObservation(vector())
    rows, mapping = plain.reset(seed=3)[0], named.reset(seed=3)[0]
    assert np.array_equal(np.concatenate(list(mapping.values()), axis=1), rows)
    assert mapping in named.observation_space
    still = np.zeros((3, len(plain.single_action_space.nvec)), int)
    assert named.step(still)[0] in named.observation_space


def test_a_continuous_action_takes_equal_pieces_of_the_range():
    env = ContinuousAction(single())
    nvec = env.unwrapped.action_space.nvec
    every = {part: set() for part in range(len(nvec))}
    for value in np.linspace(-1, 1, 2001):
        for part, choice in enumerate(env.action(np.full(len(nvec), value))):
            every[part].add(int(choice))
    assert all(found == set(range(n)) for found, n in zip(every.values(), nvec, strict=True))
    assert (env.action(np.full(len(nvec), 7.0)) == nvec - 1).all()
    with pytest.raises(ValueError, match="must be finite"):
        env.action(np.full(len(nvec), np.nan))
    check_env(env, skip_render_check=True)


def test_a_continuous_action_does_what_its_choices_do():
    env, plain, many = ContinuousAction(single()), single(), VectorContinuousAction(vector(1))
    rng = np.random.default_rng(0)
    env.reset(seed=5), plain.reset(seed=5), many.reset(seed=5)
    for _ in range(5):
        move = rng.uniform(-1, 1, env.action_space.shape).astype(np.float32)
        seen, reward = env.step(move)[:2]
        other, same = plain.step(env.action(move))[:2]
        rows, rewards = many.step(move[None])[:2]
        assert np.array_equal(seen, other)
        assert np.array_equal(seen, rows[0])
        assert reward == same == rewards[0]


def test_a_vector_of_rewards_adds_up_to_the_reward():
    env, plain = VectorReward(single()), single()
    assert env.reward_space.shape == (len(env.parts),) == (env.reward_dim,)
    assert env.unwrapped.reward_space is env.reward_space
    env.reset(seed=1), plain.reset(seed=1)
    still = np.zeros(len(plain.action_space.nvec), int)
    done = False
    while not done:
        _, rewards, _, done, _ = env.step(still)
        assert rewards.sum() == pytest.approx(plain.step(still)[1], abs=1e-12)
        assert rewards in env.reward_space
    few = VectorReward(single(), ("violations", "gpu"))
    few.reset(seed=1)
    out = few.step(still)
    assert out[1].tolist() == [out[4]["reward_parts"][part] for part in ("violations", "gpu")]
    with pytest.raises(ValueError, match=r"parts = \['speed'\]: must be some of"):
        VectorReward(single(), ["speed"])


def test_a_step_of_safe_learning_has_its_cost():
    env = SafetyStep(MixedSLOConstrainedEnv(overrides={"horizon_s": 120.0}))
    assert env.cost_budget == env.unwrapped.cost_budget
    env.reset(seed=0)
    still = np.zeros(len(env.action_space.nvec), int)
    total = 0.0
    for _ in range(4):
        _, _, cost, terminated, truncated, info = env.step(still)
        assert cost == info["cost"]
        assert not terminated
        total += cost
    assert truncated
    assert total == sum(
        v for k, v in info["metrics"].items() if k.count("/") and k.endswith("/violations")
    )
    assert SafetyStep(single(), budget=3).cost_budget == 3.0
    for wrong in (None, -1, float("nan"), "few", True):
        with pytest.raises(ValueError, match=r"budget = .*: must be a number of at least 0"):
            SafetyStep(single(), budget=wrong)


def arrived(info: dict[str, Any]) -> float:
    return sum(v for k, v in info["metrics"].items() if k.endswith("/arrived"))


def play(env: Any, **given: Any) -> float:
    env.reset(**given)
    done = False
    while not done:
        *_, done, info = env.step(np.zeros(len(env.action_space.nvec), int))
    return arrived(info)


def test_every_episode_draws_its_load_and_follows_the_seed():
    env = DomainRandomisation(single(), {"rate_scale": (0.5, 2.0)})
    counts = [play(env, seed=seed) for seed in range(5)]
    assert max(counts) > 1.5 * min(counts)
    assert counts == [play(env, seed=seed) for seed in range(5)]
    check_env(env, skip_render_check=True)
    with pytest.raises(ValueError, match="must be rate_scale or a field of the workload"):
        DomainRandomisation(single(), {"fleet.max_gpus": (1, 2)})


def test_a_curriculum_goes_on_with_the_steps():
    stages = [(0, {"rate_scale": 0.2}), (8, {"rate_scale": 2.0})]
    env = Curriculum(single(), stages)
    first = play(env, seed=0)
    assert env.stage == 0
    play(env, seed=1)
    assert env.stage == 1
    assert play(env, seed=0) > 5 * first
    for wrong in ([], [(1, {})], [(0, {}), (0, {})]):
        with pytest.raises(ValueError, match="must be rising numbers of steps from 0 on"):
            Curriculum(single(), wrong)
    with pytest.raises(ValueError, match="unknown"):
        Curriculum(single(), [(0, {"speed": 2})])


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_a_curriculum_side_by_side_changes_the_next_episodes(mode):
    env = VectorCurriculum(
        vector(2, autoreset_mode=mode), [(0, {"rate_scale": 0.2}), (6, {"rate_scale": 2.0})]
    )
    env.reset(seed=0)
    totals = []
    while len(totals) < 2:
        *_, done, info = env.step(np.zeros((2, len(env.single_action_space.nvec)), int))
        if done.any():
            said = (
                info["final_info"]["metrics"]
                if mode is AutoresetMode.SAME_STEP
                else info["metrics"]
            )
            totals.append(sum(v.sum() for k, v in said.items() if k.endswith("/arrived")))
    assert totals[1] > 5 * totals[0]


@pytest.mark.parametrize(
    "wrap", [NamedObservation, ContinuousAction, VectorReward, SafetyStep, VectorNamedObservation]
)
def test_other_environments_are_refused(wrap):
    other = (
        gym.make_vec("CartPole-v1") if wrap is VectorNamedObservation else gym.make("CartPole-v1")
    )
    with pytest.raises(TypeError, match="is for environments of llmscale_env, not"):
        wrap(other)


def test_a_wrapped_environment_is_made_again_from_its_spec():
    env = ContinuousAction(gym.make("llmscale/MixedSLO-Hours-v1", overrides={"horizon_s": 60.0}))
    again = gym.make(env.spec)
    assert isinstance(again, ContinuousAction)
    assert isinstance(again.action_space, spaces.Box)
    assert again.unwrapped.scenario.horizon_s == 60.0


def test_gymnasiums_vector_wrappers_take_the_vectorised_form():
    from gymnasium.wrappers import vector as wrappers

    env: Any = vector(autoreset_mode="NextStep")
    for wrap in (
        wrappers.RecordEpisodeStatistics,
        wrappers.NormalizeObservation,
        wrappers.NormalizeReward,
        wrappers.FlattenObservation,
        wrappers.DictInfoToList,
    ):
        env = wrap(env)
    env.reset(seed=0)
    still = np.zeros((3, len(env.single_action_space.nvec)), int)
    ends = [env.step(still) for _ in range(15)]
    episodes = [info["episode"] for *_, infos in ends for info in infos if "episode" in info]
    assert len(episodes) >= 3
    assert {int(episode["l"]) for episode in episodes} == {6}


def test_infos_without_mappings():
    names = ("cost", "metrics/interactive/arrived")
    env = VectorFlatInfo(vector(2), names)
    _, info = env.reset(seed=0)
    assert set(info) == {*names, *(f"_{name}" for name in names)}
    still = np.zeros((2, len(env.single_action_space.nvec)), int)
    while "final_info" not in (info := env.step(still)[4]):
        pass
    assert (info["final_info"][names[1]] > 0).all()
    assert (info[names[1]] == 0).all()
    with pytest.raises(ValueError, match="there is no info 'metrics/speed'"):
        VectorFlatInfo(vector(2), ["metrics/speed"]).reset()


@pytest.mark.filterwarnings("ignore")
def test_torchrl_takes_both_forms():
    """Its own checks, and episodes that end side by side."""
    pytest.importorskip("torchrl")
    from torchrl.envs import GymEnv, GymWrapper
    from torchrl.envs.utils import check_env_specs

    one = GymEnv("llmscale_env:llmscale/MixedSLO-Hours-v1", overrides={"horizon_s": 120.0})
    check_env_specs(one)
    assert one.rollout(6).shape == (4,)
    many = gym.make_vec("llmscale/MixedSLO-Hours-v1", num_envs=3, overrides={"horizon_s": 120.0})
    env = GymWrapper(VectorFlatInfo(many, ["cost"]))
    check_env_specs(env)
    played = env.rollout(9, break_when_any_done=False)
    assert played.shape == (3, 9)
    assert played["next", "done"].squeeze(-1).sum(1).tolist() == [2, 2, 2]
    assert bool((played["next", "cost"] >= 0).all())


def test_frames_are_quick_and_go_on_after_a_copy():
    """What is drawn bit by bit is what is drawn at once."""
    slow, quick = single(render_mode="rgb_array"), single(render_mode="rgb_array")
    slow.reset(seed=2), quick.reset(seed=2)
    rng = np.random.default_rng(0)
    for _ in range(6):
        move = rng.integers(slow.action_space.nvec)
        slow.step(move), quick.step(move)
        bit_by_bit = quick.render()
    at_once = slow.render()
    assert bit_by_bit.shape == at_once.shape == (640, 800, 3)
    # Joints of lines are drawn twice.
    assert (np.abs(bit_by_bit.astype(int) - at_once) > 60).mean() < 0.005
    assert np.array_equal(slow.fork().render(), at_once)
    quick.reset(seed=2)
    assert not np.array_equal(quick.render(), bit_by_bit)


def test_a_copy_of_an_environment_draws_for_itself():
    env = single(render_mode="rgb_array")
    env.reset(seed=2)
    still = np.zeros(len(env.action_space.nvec), int)
    env.step(still)
    seen = env.render()
    for copied in (pickle.loads(pickle.dumps(env)), copy.deepcopy(env)):
        assert np.array_equal(copied.render(), seen)
        copied.step(still)
        assert copied.render().shape == seen.shape


def test_a_state_saved_without_pictures_goes_on_with_them():
    plain, drawn = single(), single(render_mode="rgb_array")
    plain.reset(seed=2)
    still = np.zeros(len(plain.action_space.nvec), int)
    plain.step(still), plain.step(still)
    drawn.restore_state(plain.save_state())
    drawn.step(still)
    assert drawn.render().std() > 0
