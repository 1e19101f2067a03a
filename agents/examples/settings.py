"""The command line that the examples share, and which episodes test what was learnt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agents.configuration.config import EVALUATION_SEED, environment_id
from llmscale_env._cli import Slip, parse_scenario_words, whole

WORDS = ("env", "total_timesteps", "seed", "episodes", "workload")
TEST_WORKLOADS = {"mixed-slo-hours": "mixed-slo/test-hours", "mixed-slo": "mixed-slo/test"}
"""Days that training does not draw, where an environment has them."""


@dataclass(frozen=True)
class Settings:
    """What an example is asked for.

    Attributes:
        env: short name of the environment.
        overrides: changed fields of its scenario.
        total_timesteps: environment steps (decisions) of all parallel episodes together.
        seed: of the network, the exploration and the training episodes.
        episodes: of each test.
        workload: of the test episodes; None: the environment's own.
        others: options of the example alone, as text.
    """

    env: str
    overrides: Mapping[str, Any]
    total_timesteps: int
    seed: int
    episodes: int
    workload: str | None
    others: Mapping[str, str]

    @property
    def id(self) -> str:
        """The environment's name in Gymnasium."""
        return environment_id(self.env)

    @property
    def test_seeds(self) -> list[int]:
        """Seeds of the test episodes, the same before and after learning."""
        return list(range(EVALUATION_SEED, EVALUATION_SEED + self.episodes))

    @property
    def test_options(self) -> dict[str, Any]:
        """Options of `reset` that begin a test episode."""
        return {} if self.workload is None else {"workload": self.workload}

    def tell(self, when: str, rewards: Any) -> None:
        """Print the mean reward of the test episodes."""
        seeds = self.test_seeds
        print(
            f"{when:<7}mean reward {np.mean(rewards):9.2f}  of {len(seeds)} test episodes, "
            f"seeds {seeds[0]} to {seeds[-1]}",
            flush=True,
        )


def read(
    words: Sequence[str],
    env: str = "mixed-slo-hours",
    total_timesteps: int = 60_000,
    more: Sequence[str] = (),
) -> Settings:
    """The settings that words of a command line ask for.

    Args:
        words: as `key=value`.
        env, total_timesteps: the example's defaults.
        more: keys of the example alone.

    Raises:
        Slip: an unknown word, environment, field or workload, or a number out of its range.
    """
    from llmscale_env.scenarios import ScenarioError, load_scenario

    options, scenario, overrides = parse_scenario_words(words, (*WORDS, *more))
    if scenario is not None:
        raise Slip(f"scenario = {scenario!r}: env= says which; scenario.FIELD= changes it")
    env = options.get("env", env)
    environment_id(env)
    workload = options.get("workload", TEST_WORKLOADS.get(env))
    try:
        loaded = load_scenario(env, **overrides)
        if workload is not None:
            load_scenario(loaded, workload=workload)
    except ScenarioError as error:
        raise Slip(str(error)) from None
    if loaded.decisions != "intervals":
        raise Slip(
            f"env = {env!r}: decides at arrivals; the examples are for decisions at intervals"
        )
    return Settings(
        env,
        overrides,
        whole(options, "total_timesteps", total_timesteps, 1, 10**10),
        whole(options, "seed", 0, 0, 2**31 - 1),
        whole(options, "episodes", 10, 1, 1000),
        workload,
        {key: options[key] for key in more if key in options},
    )
