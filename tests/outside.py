"""A policy of one's own, as somebody writes it against the installed package; type checkers read it."""

from __future__ import annotations

import gymnasium as gym

from llmscale_env import (
    ENVIRONMENTS,
    ClusterView,
    Command,
    EpisodeResult,
    Policy,
    RequestTable,
    Scenario,
    __version__,
    load_scenario,
    register_environments,
    run_episode,
)


class Nothing:
    """Orders nothing."""

    name = "nothing"

    def reset(self, scenario: Scenario, seed: int) -> None:
        self.interval_s: float = scenario.control_interval_s

    def act(self, view: ClusterView) -> Command:
        self.time_s: float = view.time_s
        return Command()


def played(policy: Policy, requests: RequestTable | None = None) -> EpisodeResult:
    scenario: Scenario = load_scenario("mixed-slo-hours")
    return run_episode(policy, scenario, seed=1, requests=requests)


def main() -> None:
    register_environments()
    print(__version__, [entry.id for entry in ENVIRONMENTS], gym.make(ENVIRONMENTS[0].id))
    print(played(Nothing()))


if __name__ == "__main__":
    main()
