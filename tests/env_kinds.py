"""Every environment with a short episode of it, for tests of what all of them keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from llmscale_env.control.run import run_episode
from llmscale_env.envs.burst_multicast import BurstMulticastEnv, BurstMulticastVectorEnv
from llmscale_env.envs.mixed_slo import MixedSLOEnv, MixedSLOVectorEnv
from llmscale_env.envs.multi_model_queue import MultiModelQueueEnv, MultiModelQueueVectorEnv
from llmscale_env.envs.multi_region import MultiRegionEnv, MultiRegionVectorEnv
from llmscale_env.envs.placement import PlacementEnv, PlacementVectorEnv
from llmscale_env.envs.placement_per_request import (
    PlacementPerRequestEnv,
    PlacementPerRequestVectorEnv,
)
from tests.small_fleets import FEW_VMS
from tests.small_world import SMALL_ID, SmallEnv, SmallVectorEnv

SHORT = {"horizon_s": 120, "workload.rate_scale": 0.5}


class Kind(NamedTuple):
    """An environment as the tests here need it: its episodes are 12 decisions long, or some 40."""

    id: str
    single: Any
    vector: Any
    short: dict[str, Any]
    action: list[int]


DAY = Kind(
    "llmscale/MixedSLO-v1",
    MixedSLOEnv,
    MixedSLOVectorEnv,
    {"horizon_s": 360, "workload": "mixed-slo-hours", "workload.rate_scale": 0.3},
    [4, 4, 0, 3, 3, 5, 0, 0],
)
MIXED = Kind(SMALL_ID, SmallEnv, SmallVectorEnv, SHORT, [4, 4, 0, 3, 3, 5, 0, 0])
QUEUE = Kind(
    "llmscale/MultiModelQueue-v0",
    MultiModelQueueEnv,
    MultiModelQueueVectorEnv,
    {"horizon_s": 60, "workload.batch_queues.archive-tuned.at_s": 20},
    [0, 1, 0, 13, 1, 0, 1, 0],
)
PLACEMENT = Kind(
    "llmscale/Placement-v1",
    PlacementEnv,
    PlacementVectorEnv,
    {"horizon_s": 60, "workload.rate_scale": 0.5},
    [6, 1, 0, 4, 2, 4],
)
REQUEST = Kind(
    "llmscale/PlacementPerRequest-v0",
    PlacementPerRequestEnv,
    PlacementPerRequestVectorEnv,
    {"horizon_s": 3, "control_interval_s": 0.5, "workload.rate_scale": 1.5},
    [2],
)
MULTICAST = Kind(
    "llmscale/BurstMulticast-v0",
    BurstMulticastEnv,
    BurstMulticastVectorEnv,
    {"horizon_s": 12, "workload.rate_scale": 1.5},
    [3, 2, 0, 3, 0, 0],
)
REGION = Kind(
    "llmscale/MultiRegion-v1",
    MultiRegionEnv,
    MultiRegionVectorEnv,
    {"horizon_s": 10_800, "workload.rate_scale": 0.1, **FEW_VMS},
    [*[3, 2] * 3, *[4, 0, 2, 1, 3, 2], *[3, 0, 2, 2, 5, 2], *[2] * 17, 0],
)
KINDS = (DAY, MIXED, QUEUE, PLACEMENT, REQUEST, MULTICAST, REGION)
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.id.partition("/")[2])


def make(kind=MIXED, **changes):
    return kind.single(overrides={**kind.short, **changes})


def entries_of(codec: Any, observation: np.ndarray) -> dict[str, float]:
    """An observation by name."""
    names = [entry.name for entry in codec.encoder.entries]
    return dict(zip(names, observation.tolist(), strict=True))


def masks_of(env: Any) -> list[np.ndarray]:
    """The action mask, by part of the action."""
    return np.split(env.action_masks(), np.cumsum(env.action_space.nvec)[:-1])


def played(env: Any, action: Any, seed: int = 0) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Rewards and infos of an episode with the same action at every step, or with `action(env)`."""
    env.reset(seed=seed)
    truncated, rewards, infos = False, [], []
    while not truncated:
        _, reward, _, truncated, info = env.step(
            np.array(action(env) if callable(action) else action)
        )
        rewards.append(reward)
        infos.append(info)
    return np.array(rewards), infos


def assert_replayed(env: Any) -> np.ndarray:
    """A policy behind `run_episode` sees and orders what the environment would; returns the observations."""
    rng = np.random.default_rng(4)
    actions, truncated = [], False
    observations, rewards = [env.reset(seed=11)[0]], []
    while not truncated:
        actions.append(rng.integers(env.action_space.nvec))
        observation, reward, _, truncated, _ = env.step(actions[-1])
        observations.append(observation)
        rewards.append(reward)

    class Replay:
        name = "replay"

        def reset(self, scenario: Any, seed: int) -> None:
            self.codec = env.make_codec()
            self.codec.reset(seed)
            self.seen: list[np.ndarray] = []

        def act(self, view: Any) -> Any:
            self.seen.append(self.codec.encode(view))
            return self.codec.decode(actions[len(self.seen) - 1], view)

    policy = Replay()
    result = run_episode(policy, env.scenario, 11)
    np.testing.assert_allclose(np.array(policy.seen), np.array(observations[:-1]), atol=1e-6)
    assert result.series["reward"].tolist() == pytest.approx(rewards, rel=1e-12)
    return np.array(observations)


def assert_equal_to_singles(
    vector: Any, singles: list[Any], seed: int, fork: Callable[[Any], Any] | None = None
) -> None:
    """Each episode of the vectorised form is that of an environment, past its end and over a `fork`."""
    n = len(singles)
    observation, _ = vector.reset(seed=seed)
    for e, env in enumerate(singles):
        assert (env.reset(seed=seed + e)[0] == observation[e]).all()
    rng = np.random.default_rng(0)
    nvec = vector.single_action_space.nvec
    ended = step = 0
    while ended < 2 * n:  # resets within a step are passed through
        actions = rng.integers(nvec, size=(n, len(nvec)))
        observation, reward, terminated, truncated, info = vector.step(actions)
        assert not terminated.any()
        step += 1
        if fork is not None and step == 5:
            singles[-1] = fork(singles[-1])
        for e, env in enumerate(singles):
            one, r, _, t, i = env.step(actions[e])
            assert (r, t) == (reward[e], truncated[e])
            assert i["cost"] == info["cost"][e]
            parts = {name: values[e] for name, values in info["reward_parts"].items()}
            assert i["reward_parts"] == parts
            if t:
                ended += 1
                assert (one == info["final_obs"][e]).all()
                assert i["metrics"]["reward"] == info["final_info"]["metrics"]["reward"][e]
                one, i = env.reset()
            assert (one == observation[e]).all()
            assert (i["action_mask"] == info["action_mask"][e]).all()
    vector.close()
