"""Requests for episodes of a scenario."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from llmscale_env.scenarios.schema import Scenario
from llmscale_env.workload import DEFAULT_CLASSES, WorkloadConfig, generate_requests
from llmscale_env.workload.arrivals import generate_arrivals
from llmscale_env.workload.requests import PS_PER_S, RequestTable


def requests_of(
    scenario: Scenario,
    arrival_s: ArrayLike,
    input_tokens: ArrayLike,
    output_tokens: ArrayLike,
    slo_class: str | None = None,
    **columns: ArrayLike,
) -> RequestTable:
    """Requests of the scenario's first LLM, sorted by arrival, of one class: the first, or the one named."""
    names = tuple(c.name for c in scenario.classes)
    order = np.argsort(arrival_s, kind="stable")

    def column(values: ArrayLike) -> Any:
        return np.broadcast_to(values, len(order))[order]

    given = {"slo_class": 0 if slo_class is None else names.index(slo_class), **columns}
    return RequestTable.build(
        column(np.asarray(arrival_s, float)),
        column(input_tokens),
        column(output_tokens),
        **{name: column(values) for name, values in given.items()},
        llm_names=scenario.fleet.llms,
        class_names=names,
    )


def arrivals_s(
    config: Any, rate_per_s: float | None, horizon_s: float, seed: int = 0, **keys: Any
) -> Any:
    """(n,) arrivals of one process in seconds."""
    rng = np.random.default_rng(seed)
    return generate_arrivals(config, rate_per_s, horizon_s, rng, **keys).arrival_ps / PS_PER_S


def drawn(workload: WorkloadConfig, horizon_s: float, seed: int = 0, **keys: Any) -> RequestTable:
    """Requests of a workload, unless told otherwise of the default classes and its own LLMs."""
    llms = tuple(dict.fromkeys(str(part.llm) for part in workload.parts))
    rng = np.random.default_rng(seed)
    given = {"classes": DEFAULT_CLASSES, "llms": llms, **keys}
    return generate_requests(workload, horizon_s=horizon_s, rng=rng, **given)


def guesses(scenario: Scenario, n: int = 12, output: int = 200, guess: int = 20) -> RequestTable:
    """Requests within two seconds that are longer than predicted."""
    arrival_s = np.linspace(0.05, 2.0, n)
    return requests_of(scenario, arrival_s, 100, output, predicted_output_tokens=guess)
