"""Small configurations of runs that begin as the copy of a policy."""

from __future__ import annotations

from typing import Any

from agents.configuration.config import make_config, parse_words

SMALL = [
    "scenario.horizon_s=120",
    "scenario.workload=chat",
    "scenario.fleet.max_gpus=6",
    "scenario.fleet.pools.interactive.initial_instances=2",
    "scenario.fleet.pools.mixed.initial_instances=1",
]


def config_of(*words: str, agent: str = "ppo") -> Any:
    plain = [f"agent={agent}", f"{agent}.net=[16]", "n_envs=2", f"{agent}.batch_size=16"]
    given = {word.partition("=")[0] for word in words}
    small = [word for word in SMALL if word.partition("=")[0] not in given]
    if any(key.startswith("warm_start.") for key in given) and "warm_start.policy" not in given:
        small.append("warm_start.policy=static")  # tests bring teachers of their own
    changes, _ = parse_words([*small, *plain, f"{agent}.n_steps=8", *words], ("env",))
    return make_config("mixed-slo-v0", changes)
