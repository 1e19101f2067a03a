"""An episode of a part of the trace: every request of it is followed until it is judged."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from baselines.tuning.trials import Outcome
from experiments.desk.advising.case import Case, Part
from experiments.desk.targets import Target
from llmscale_env.control.command import Command
from llmscale_env.control.policy import Policy
from llmscale_env.control.results.result import EpisodeResult
from llmscale_env.control.run import run_episode
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario


class Ending:
    """A policy whose orders about the fleet count until a time; from then on the fleet stays as it is.

    Nothing arrives after a part's end, and a policy that saw that would give its instances back, as it would
    not if the service went on. Orders about requests (routing, moves) still count.

    Args:
        policy: what decides.
        until_s: time of the episode.
    """

    def __init__(self, policy: Policy, until_s: float) -> None:
        self._policy = policy
        self._until_s = until_s
        self.name = policy.name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def reset(self, scenario: Scenario, seed: int) -> None:
        """A new episode begins."""
        self._policy.reset(scenario, seed)

    def act(self, view: ClusterView) -> Command:
        """What the policy orders; after the time without its orders about instances."""
        command = self._policy.act(view)
        if view.time_s < self._until_s - 1e-9:
            return command
        return replace(command, targets={}, drain=(), mutate=(), scale=None, scaling={})


def run(
    policy: Policy, part: Part, seed: int, simulation: ClusterSimulation | None = None
) -> EpisodeResult:
    """Let a policy run a part of the trace.

    Args:
        policy: what decides.
        part: of the trace.
        seed: of the policy's own draws.
        simulation: of the part's scenario; None: one that is kept for the next time.
    """
    if simulation is None:
        simulation = _simulation(part.scenario.model_dump_json())
    return run_episode(
        Ending(policy, part.end_s),
        part.scenario,
        seed,
        requests=part.requests,
        # Only trained policies read the view's forecast, and to keep one takes a sixth of an episode's time.
        forecaster=getattr(policy, "forecaster", None),
        simulation=simulation,
    )


@lru_cache(maxsize=16)
def _simulation(scenario: str) -> ClusterSimulation:
    return ClusterSimulation(Scenario.model_validate_json(scenario))


def gpu_hours(result: EpisodeResult, from_s: float, to_s: float) -> float:
    """Billed for the intervals that end in (from, to]."""
    end_s = result.series["time_s"].to_numpy()
    rows = (end_s > from_s + 1e-9) & (end_s <= to_s + 1e-9)
    return float(result.series["gpu_s"].to_numpy()[rows].sum()) / 3600


def play_tuning(
    case: Case, load: float, policy: Policy, simulation: ClusterSimulation, seed: int
) -> Outcome:
    """What a search is told of a policy on the first part (`baselines.tuning.episodes.Play`).

    Args:
        case: the cluster and its load.
        load: requests, over those of the trace.
        policy, simulation, seed: as `Play` takes them.
    """
    part = case.tuning(load)
    result = run(policy, part, seed, simulation)
    on_time = (result.requests["outcome"] == "on_time").to_numpy()
    slo_class = part.requests.slo_class
    shares = [
        float(on_time[slo_class == c].mean()) if (slo_class == c).any() else float("nan")
        for c in range(len(part.requests.class_names))
    ]
    hours = gpu_hours(result, 0.0, part.end_s)
    return Outcome(result.summary["reward"], float(on_time.mean()), tuple(shares), hours)


def worst_share(shares: dict[str, float | None], targets: tuple[Target, ...]) -> float:
    """Lowest share on time of a class; NaN where none was judged."""
    found = [x for target in targets if (x := shares[target.name]) is not None]
    return min(found, default=float(np.nan))
