"""What the iteration times of a scenario rest on, in lines to stand under its tables."""

from __future__ import annotations

from llmscale_env.cluster.iteration_time import basis, iteration_time_model
from llmscale_env.scenarios.schema import Scenario


def times_told(scenario: Scenario) -> list[str]:
    """One line for each (LLM, GPU, degree) of the fleet: measured, interpolated or roofline."""
    lines: dict[str, None] = {}
    for pool in scenario.fleet.pools:
        for llm in pool.llms:
            model = iteration_time_model(llm, pool.gpu, pool.tp, data=scenario.iteration_times)
            lines[f"iteration times of {model.llm} on {pool.tp} x {pool.gpu}: {basis(model)}"] = (
                None
            )
    return list(lines)
