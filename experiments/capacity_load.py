"""The load of `experiments.capacity`: windows of a trace, or of arrivals at a rate.

A window is simulated with some load before it, so that it does not begin with an empty cluster, and
as much after it, so that its last requests are not alone; only the requests that arrive in the
window itself are counted. Windows of a trace lie in equal parts of it, one at a random place of each,
so that none is counted twice; where the parts are shorter than a window is to be, they are the windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.scenarios.schema import Scenario
from llmscale_env.workload.arrivals import Arrivals
from llmscale_env.workload.config import StreamConfig, TraceArrivals
from llmscale_env.workload.generate import draw_lengths, generate_requests, predict_outputs
from llmscale_env.workload.readers import Trace, load_trace
from llmscale_env.workload.requests import PS_PER_S, RequestTable


@dataclass(frozen=True)
class Window:
    """Requests of one window.

    Attributes:
        requests: those before and after it included.
        counted: (n,) whether each arrives in the window itself.
    """

    requests: RequestTable
    counted: NDArray[np.bool_]


def window(scenario: Scenario, case: Mapping[str, Any]) -> Window:
    """One window of the scenario's only stream; the same whatever serves it.

    Args:
        scenario: with one stream, LLM and class.
        case: `window` (its number), `windows` (how many), `window_s`, `warm_up_s`, `seed`.

    Raises:
        ValueError: a trace that is too short for the load before its windows.
    """
    (stream,) = scenario.workload.streams
    rng = np.random.default_rng([case["seed"], case["window"]])
    before_s = float(case["warm_up_s"])
    if stream.lengths.kind == "trace":
        return _of_trace(scenario, stream, case, rng)
    end_s = before_s + case["window_s"]
    requests = generate_requests(
        scenario.workload,
        classes=scenario.classes,
        llms=scenario.fleet.llms,
        horizon_s=end_s + before_s,
        rng=rng,
    )
    arrival_s = requests.arrival_s
    return Window(requests, (arrival_s >= before_s) & (arrival_s < end_s))


def trace_of(stream: StreamConfig) -> tuple[Trace, float]:
    """A stream's trace, and what its times are multiplied with to reach the stream's rate."""
    source = stream.arrivals
    assert isinstance(source, TraceArrivals)
    trace = load_trace(source.path, source.format, source.sort)
    if stream.rate_per_s is None:
        return trace, 1.0
    return trace, len(trace) / (trace.period_ps / PS_PER_S) / stream.rate_per_s


def place(
    duration_s: float, number: int, windows: int, window_s: float, warm_up_s: float, draw: float
) -> tuple[float, float]:
    """(start, length) of a window in a trace, in seconds.

    Args:
        duration_s: of the trace.
        number: of the window, from 0.
        windows: how many there are.
        window_s: how long it should be.
        warm_up_s: load that is needed before the first one.
        draw: in [0, 1), where it lies in its part.

    Raises:
        ValueError: the trace is shorter than twice `warm_up_s`.
    """
    if duration_s <= 2 * warm_up_s:
        raise ValueError(
            f"warm_up_s = {warm_up_s:g}: must be less than half of the trace, which lasts "
            f"{duration_s:.4g} s"
        )
    part = (duration_s - warm_up_s) / windows
    length = min(window_s, part)
    return warm_up_s + number * part + draw * (part - length), length


def room(stream: StreamConfig, case: Mapping[str, Any]) -> float:
    """Windows of `window_s` that a stream has beside each other: of a trace, its length allows no more."""
    if stream.lengths.kind != "trace":
        return np.inf
    trace, factor = trace_of(stream)
    duration_s = factor * trace.period_ps / PS_PER_S
    return (duration_s - case["warm_up_s"]) / case["window_s"]


def _of_trace(
    scenario: Scenario, stream: StreamConfig, case: Mapping[str, Any], rng: np.random.Generator
) -> Window:
    trace, factor = trace_of(stream)
    before_s = float(case["warm_up_s"])
    start_s, length_s = place(
        factor * trace.period_ps / PS_PER_S,
        case["window"],
        case["windows"],
        case["window_s"],
        before_s,
        rng.random(),
    )
    arrival_ps = np.rint(trace.arrival_ps * factor).astype(np.int64)
    begin, end, last = (
        round(s * PS_PER_S)
        for s in (start_s - before_s, start_s + length_s, start_s + length_s + before_s)
    )
    rows = np.arange(*np.searchsorted(arrival_ps, [begin, last]).tolist())
    arrivals = Arrivals(arrival_ps[rows] - begin, trace, rows)
    inputs, outputs = draw_lengths(stream.lengths, arrivals, rng)
    predicted = predict_outputs(
        scenario.workload.predictor, stream.lengths, arrivals, inputs, outputs, rng
    )
    n = len(inputs)
    table = RequestTable(
        arrival_ps=arrivals.arrival_ps,
        llm=np.zeros(n, np.int16),
        region=np.zeros(n, np.int16),
        slo_class=np.zeros(n, np.int16),
        input_tokens=inputs,
        output_tokens=outputs,
        predicted_output_tokens=predicted,
        llm_names=scenario.fleet.llms,
        class_names=tuple(c.name for c in scenario.classes),
    )
    counted = (arrival_ps[rows] >= round(start_s * PS_PER_S)) & (arrival_ps[rows] < end)
    return Window(table, counted)
