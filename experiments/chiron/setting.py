"""What the figures of Chiron's evaluation share: configurations, policies, one episode and what is measured.

The scenarios are shipped (`chiron-8b`, `chiron-70b`, `chiron-both`); their files say what of them is the
paper's and what is ours.

What they leave out: the paper runs both models "with additional optimizations such as prefix caching and
speculative decoding" (section 6) and gives no parameters of either. These scenarios, and all figures but 11
and 12, run the models plain; Figures 11 and 12 compare the four variants on one instance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baselines import make_policy
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.scenarios.schema import Scenario

if TYPE_CHECKING:
    from llmscale_env.control.results.result import EpisodeResult

CONFIGURATIONS = {"small": "chiron-8b", "large": "chiron-70b", "mixed": "chiron-both"}
"""Section 6: small model, large model, both sharing the GPUs; and their scenarios."""


def scenario_of(
    configuration: str,
    *,
    rate_per_s: float | None = None,
    batch_requests: int = 0,
    **overrides: Any,
) -> Scenario:
    """The scenario of a configuration.

    Args:
        configuration: key of `CONFIGURATIONS`.
        rate_per_s: interactive requests in all, equally divided over the models (the scenario's own
            if None).
        batch_requests: requests in the batch queues in all, equally divided.
        overrides: further fields by dotted path.
    """
    scenario = load_scenario(CONFIGURATIONS[configuration])
    changes: dict[str, Any] = {}
    streams, queues = scenario.workload.streams, scenario.workload.batch_queues
    for stream in streams:
        if rate_per_s is not None:
            changes[f"workload.streams.{stream.name}.rate_per_s"] = rate_per_s / len(streams)
    for queue in queues:
        changes[f"workload.batch_queues.{queue.name}.n_requests"] = batch_requests // len(queues)
    return load_scenario(scenario, **{**changes, **overrides})


def episode(policy: str, scenario: Scenario, seed: int, **parameters: Any) -> EpisodeResult:
    """One episode of a reference policy by name."""
    return run_episode(make_policy(policy, **parameters), scenario, seed)


def measured(
    result: EpisodeResult, scenario: Scenario, from_s: float = 0.0, until_s: float | None = None
) -> dict[str, float]:
    """What the paper's figures show, for a part of an episode: who arrived, what was done.

    Args:
        result: the episode.
        scenario: its scenario.
        from_s, until_s: the part; the whole episode if left out.

    Returns:
        `slo_attainment` (share of arrivals on time; also `CLASS_attainment`), `instances` (mean
        number that is billed), `gpus` (mean), `gpu_hours`, `throughput_per_instance` (requests
        finished per second and billed instance).
    """
    end = until_s if until_s is not None else scenario.horizon_s
    requests, series = result.requests, result.series
    came = requests[(requests["arrival_s"] >= from_s) & (requests["arrival_s"] < end)]
    on_time = came["outcome"] == "on_time"
    found = {"slo_attainment": float(on_time.mean()) if len(came) else 1.0}
    for slo_class in scenario.classes:
        mine = came["slo_class"] == slo_class.name
        found[f"{slo_class.name}_attainment"] = float(on_time[mine].mean()) if mine.any() else 1.0
    within = (series["time_s"] > from_s + 1e-9) & (series["time_s"] <= end + 1e-9)
    gpu_s = {p.name: float(series[f"{p.name}/gpu_s"][within].sum()) for p in scenario.fleet.pools}
    instance_s = sum(gpu_s[pool.name] / pool.tp for pool in scenario.fleet.pools)
    finished = (requests["arrival_s"] + requests["e2e_s"]).between(from_s, end)
    span = end - from_s
    return {
        **found,
        "instances": instance_s / span,
        "gpus": sum(gpu_s.values()) / span,
        "gpu_hours": sum(gpu_s.values()) / 3600,
        "throughput_per_instance": float(finished.sum()) / max(instance_s, 1e-9),
    }
