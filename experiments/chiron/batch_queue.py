"""What became of the batch requests of an episode: how many waited, how long, and who served them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from experiments.chiron.setting import measured
from llmscale_env.scenarios.schema import Scenario

if TYPE_CHECKING:
    from pandas import DataFrame, Series

    from llmscale_env.control.results.result import EpisodeResult

BATCH_CLASS = "batch"


def batch_requests(result: EpisodeResult) -> DataFrame:
    """Rows of the episode's batch requests."""
    return result.requests[result.requests["slo_class"] == BATCH_CLASS]


def queued(result: EpisodeResult, scenario: Scenario) -> Series:
    """Requests waiting in all shared queues, by the end of each control interval."""
    series = result.series
    return sum(series[f"queue/{queue.name}"] for queue in scenario.fleet.queues).astype(float)


def last_finish_s(result: EpisodeResult, scenario: Scenario) -> float:
    """When the last batch request has finished; the horizon if one has not."""
    requests = batch_requests(result)
    end = (requests["arrival_s"] + requests["e2e_s"]).max(skipna=False)
    return float(end) if np.isfinite(end) else scenario.horizon_s


def queue_kept(
    result: EpisodeResult, scenario: Scenario, from_s: float, until_s: float
) -> dict[str, float]:
    """The queue and who serves it, in a part of an episode.

    Args:
        result, scenario: the episode.
        from_s, until_s: the part.

    Returns:
        `queue_mean`, `queue_max` (requests waiting), `wait_mean_s` (time in the queue of those first
        admitted in this part; NaN without any), `finished_per_s` (batch requests finished in it),
        `mixed_share` (of these, last served by a mixed instance; NaN without any).
    """
    time = result.series["time_s"]
    waiting = queued(result, scenario)[(time > from_s) & (time <= until_s)]
    requests = batch_requests(result)
    admitted = (requests["arrival_s"] + requests["queued_s"]).between(from_s, until_s)
    finished = (requests["arrival_s"] + requests["e2e_s"]).between(from_s, until_s)
    ends = np.cumsum([pool.max_instances for pool in scenario.fleet.pools])
    roles = np.array([pool.role for pool in scenario.fleet.pools])
    served = roles[np.searchsorted(ends, requests.loc[finished, "instance"], side="right")]
    return {
        "queue_mean": float(waiting.mean()),
        "queue_max": float(waiting.max()),
        "wait_mean_s": float(requests.loc[admitted, "queued_s"].mean()),
        "finished_per_s": len(served) / (until_s - from_s),
        "mixed_share": float(np.mean(served == "mixed")) if len(served) else float("nan"),
    }


def served(
    result: EpisodeResult, scenario: Scenario, from_s: float, until_s: float
) -> dict[str, float]:
    """`queue_kept` and `setting.measured` of a part of an episode."""
    return {
        **queue_kept(result, scenario, from_s, until_s),
        **measured(result, scenario, from_s, until_s),
    }
