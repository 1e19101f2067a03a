"""The reward of an environment: a potential for what will be late, and weights that move."""

from __future__ import annotations

import numpy as np
import pytest

from llmscale_env.envs.shaping import Shaping
from tests.env_kinds import played
from tests.small_world import SmallEnv, SmallVectorEnv

BUSY = {"horizon_s": 300, "fleet.pools.mixed.initial_instances": 1}
FLEETS = ([1, 1, 0], [2, 1, 0], [2, 3, 0], [4, 5, 0], [8, 7, 1])


def test_the_potential_adds_up_to_nothing_and_ranks_no_policy_differently():
    sums = []
    for shaping in (None, 10.0):
        env = SmallEnv(overrides=BUSY, action=("instance_counts",), shaping=shaping)
        sums.append([])
        for action in FLEETS:
            rewards, infos = played(env, action)
            sums[-1].append(rewards.sum())
            assert infos[-1]["metrics"]["reward"] == pytest.approx(sums[0][len(sums[-1]) - 1])
            for reward, info in zip(rewards, infos, strict=True):
                assert sum(info["reward_parts"].values()) == pytest.approx(reward)
            if shaping:
                terms = np.array([info["reward_parts"]["late_backlog"] for info in infos])
                assert abs(terms.sum()) < 1e-9
                if action == FLEETS[0]:
                    assert terms.min() < -1.0  # it says something where much is late
            else:
                assert "late_backlog" not in infos[0]["reward_parts"]
    assert sums[0] == pytest.approx(sums[1])
    assert np.argsort(sums[0]).tolist() == np.argsort(sums[1]).tolist()


def test_the_potential_discounted_adds_up_to_nothing_too():
    settings = {"weight": 5.0, "gamma": 0.9}
    env = SmallEnv(overrides=BUSY, action=("instance_counts",), shaping=settings)
    _, infos = played(env, FLEETS[0])
    terms = np.array([info["reward_parts"]["late_backlog"] for info in infos])
    assert abs((terms * 0.9 ** np.arange(len(terms))).sum()) < 1e-9
    assert abs(terms.sum()) > 1e-3


def test_the_potential_foresees_what_becomes_late():
    """Much waits for too few instances: the term comes before the violations, and is given back with them."""
    env = SmallEnv(overrides=BUSY, action=("instance_counts",), shaping=10.0)
    _, infos = played(env, FLEETS[0])
    parts = {
        name: np.array([info["reward_parts"][name] for info in infos])
        for name in ("late_backlog", "violations")
    }
    first = {name: int(np.argmax(values < -1e-6)) for name, values in parts.items()}
    assert first["late_backlog"] <= first["violations"]
    assert parts["late_backlog"].max() > 0


def test_the_potential_is_saved_and_forked():
    env = SmallEnv(overrides=BUSY, action=("instance_counts",), shaping=10.0)
    env.reset(seed=0)
    for _ in range(6):
        env.step(np.array([1, 1, 0]))
    fork = env.fork()
    for _ in range(6):
        assert env.step(np.array([2, 1, 0]))[1] == fork.step(np.array([2, 1, 0]))[1]


def test_shaping_is_checked():
    assert Shaping.of(None) is None
    assert Shaping.of({"weight": 2}) == Shaping.of(2.0) == Shaping(2.0)
    for bad in (-1.0, {"gamma": 0}, {"gamma": 1.5}, {"wait": 1}):
        with pytest.raises(ValueError, match="shaping"):
            Shaping.of(bad)


def test_weights_move_and_the_metrics_stay():
    plain, moved = (
        SmallVectorEnv(2, overrides=BUSY, action=("instance_counts",)) for _ in range(2)
    )
    assert moved.weights == {
        "gpu": 1.0,
        "violations": {"interactive": 10.0, "batch": 10.0},
        "loads": 0.02,
    }
    for env in (plain, moved):
        env.reset(seed=0)
    moved.set_weights(violations={"interactive": 30.0}, gpu=0.5)
    assert moved.weights["violations"] == {"interactive": 30.0, "batch": 10.0}
    late = np.zeros(2)
    for _ in range(12):
        action = np.tile([1, 1, 0], (2, 1))
        *_, one = plain.step(action)
        _, r1, _, _, two = moved.step(action)
        a, b = one["reward_parts"], two["reward_parts"]
        np.testing.assert_allclose(b["gpu"], 0.5 * a["gpu"])
        np.testing.assert_allclose(b["violations"], 3.0 * a["violations"])  # no batch is late yet
        np.testing.assert_allclose(b["loads"], a["loads"])
        np.testing.assert_allclose(r1, sum(b.values()))
        np.testing.assert_array_equal(one["metrics"]["reward"], two["metrics"]["reward"])
        late += two["cost_by_class"]["interactive"]
        np.testing.assert_array_equal(sum(two["cost_by_class"].values()), two["cost"])
    assert (late > 0).all()
    moved.set_weights(violations=2.0)
    assert set(moved.weights["violations"].values()) == {2.0}
    for bad in ({"violations": {"nobody": 1.0}}, {"gpu": -1.0}, {"loads": float("nan")}):
        with pytest.raises(ValueError, match=r"no class|weight must be"):
            moved.set_weights(**bad)
    assert moved.weights["gpu"] == 0.5


def test_a_fork_has_the_weights_of_the_moment():
    env = SmallEnv(overrides=BUSY, action=("instance_counts",))
    env.reset(seed=0)
    env.set_weights(violations=99.0)
    fork = env.fork()
    assert fork.weights == env.weights
    assert env.step(np.array([1, 1, 0]))[1] == fork.step(np.array([1, 1, 0]))[1]
