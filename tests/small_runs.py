"""Training runs of seconds, for tests of the commands around training."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from agents.configuration.config import make_config, parse_words
from agents.configuration.environments import make_scenario, make_vector_env
from tests.small_world import SMALL_WORLD, SmallEnv

ENV = "burst-multicast"
"""An environment whose options are plain ones; the small world takes the place of its own."""

WORLD = (f"env={ENV}", f"scenario={SMALL_WORLD}")
"""Words that name the small world."""

SEEN = (
    f"observation={','.join(SmallEnv.observation)}",
    f"action={','.join(SmallEnv.action)}",
    "as_is_bias_settings=1",
    "reward_scale=0.02",
)
"""Words of `agents.train` besides: what is seen and done there."""

SMALL_RUN = (
    *WORLD,
    *SEEN,
    "scenario.horizon_s=60",
    "scenario.fleet.max_gpus=4",
    "scenario.fleet.pools.interactive.initial_instances=2",
    "scenario.fleet.pools.mixed.initial_instances=1",
    "n_envs=2",
    "ppo.batch_size=16",
    "ppo.n_epochs=1",
)
"""Words of `agents.train`; how long and how it is validated is the test's."""

SMALL = (
    *WORLD,
    "scenario.horizon_s=120",
    "scenario.workload=chat",
    "scenario.fleet.max_gpus=6",
    "scenario.fleet.pools.interactive.initial_instances=2",
    "scenario.fleet.pools.mixed.initial_instances=1",
)
"""Two minutes of a small cluster under a light load: an episode takes milliseconds."""

BUSY = (
    *WORLD,
    "scenario.horizon_s=60",
    "scenario.fleet.max_gpus=2",
    "scenario.fleet.pools.interactive.initial_instances=1",
    "scenario.fleet.pools.mixed.initial_instances=0",
    "scenario.classes.interactive.ttft_s=1",
)
"""One instance; under a load that needs more, misses are sure."""

UNWATCHED = ("validation_episodes=1", "evaluation_episodes=0", "references=none")
"""A run that is about learning, and not about its tables."""


def asked(*words: str) -> list[str]:
    """Words of `agents.train` in the small world; of those that are given twice the last one counts."""
    given = (*WORLD, *SEEN, "references=none", *words)
    return list({word.partition("=")[0]: word for word in given}.values())


def config_of(*words: str) -> Any:
    """The configuration that `asked` words make."""
    return make_config(ENV, parse_words(asked(*words), ("env",))[0])


def copying(*words: str, agent: str = "ppo") -> Any:
    """The configuration of a small run that may begin as the copy of a policy."""
    net = [f"{agent}.net=[16]", f"{agent}.batch_size=16", f"{agent}.n_steps=8"]
    found = [*SMALL, f"agent={agent}", "n_envs=2", *net, *words]
    given = {word.partition("=")[0] for word in words}
    if any(key.startswith("warm_start.") for key in given) and "warm_start.policy" not in given:
        found.append("warm_start.policy=static")  # tests bring teachers of their own
    return config_of(*found)


def network_of(config: Any) -> Any:
    """A network that has learnt nothing."""
    from agents.models.algorithms import make_model
    from agents.vec_adapter import NativeVecEnv

    env = NativeVecEnv(make_vector_env(config, make_scenario(config), config.n_envs))
    model = make_model(config, env)
    env.close()
    return model


def rows(path: Path) -> list[dict[str, str]]:
    """Of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
