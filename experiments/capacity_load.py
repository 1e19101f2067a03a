"""The load of `experiments.capacity`: windows of a trace, or of arrivals at a rate.

A window is simulated with some load before it, so that it does not begin with an empty cluster, and
as much after it, so that its last requests are not alone; only the requests that arrive in the
window itself are counted. A trace is cut into equal parts beside each other, which are its windows.
Where not all of them are simulated, the busiest half of those that are is chosen and not drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

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


def stream_of(case: Mapping[str, Any]) -> StreamConfig:
    """The load of a case (`experiments.capacity_serve.scenario_of`)."""
    return StreamConfig(name="mine", llm=case["llm"], slo_class="mine", **case["stream"])


def trace_of(stream: StreamConfig) -> tuple[Trace, float]:
    """A stream's trace, and what its times are multiplied with to reach the stream's rate."""
    source = stream.arrivals
    assert isinstance(source, TraceArrivals)
    block_tokens = source.hash_block_tokens
    trace = load_trace(source.path, source.format, source.sort, hash_block_tokens=block_tokens)
    if stream.rate_per_s is None:
        return trace, 1.0
    return trace, len(trace) / (trace.period_ps / PS_PER_S) / stream.rate_per_s


class Stratum(NamedTuple):
    """Windows that stand for the same part of the load.

    Attributes:
        windows: which.
        requests: of all of that part, simulated or not.
        census: whether the windows are all of that part, and not a sample of it.
    """

    windows: slice
    requests: int
    census: bool = False


@dataclass(frozen=True)
class Plan:
    """Which parts of a trace are simulated.

    Attributes:
        parts: (n,) numbers of the parts that are windows: the busiest ones first, then the drawn ones.
        busiest: how many are simulated for being the busiest; all of them where nothing is drawn.
        part_s: length of a part.
        requests: (parts,) that arrive in each part of the trace, simulated or not.
    """

    parts: NDArray[np.intp]
    busiest: int
    part_s: float
    requests: NDArray[np.int64]

    @property
    def whole(self) -> bool:
        """Whether all requests of the trace are simulated: parts without requests may be left out."""
        return self.coverage == 1

    @property
    def coverage(self) -> float:
        """Share of the trace's requests that is simulated."""
        return float(self.requests[self.parts].sum() / self.requests.sum())

    @property
    def strata(self) -> list[Stratum]:
        """The busiest windows, which stand for themselves, and the drawn ones."""
        if self.whole:
            return [Stratum(slice(None), int(self.requests.sum()))]
        sure = int(self.requests[self.parts[: self.busiest]].sum())
        rest = int(self.requests.sum()) - sure
        return [
            Stratum(slice(0, self.busiest), sure, census=True),
            Stratum(slice(self.busiest, None), rest),
        ]


def plan_of(stream: StreamConfig, case: Mapping[str, Any]) -> Plan | None:
    """The plan for a stream that replays a trace; None for one that is drawn.

    Half of the windows are the parts with the most tokens. The others are drawn by `seed`, one from each of
    as many equal runs of the parts that are left, so that they are spread over the trace.

    Args:
        stream: the load.
        case: as for `window`.
    """
    if stream.lengths.kind != "trace":
        return None
    trace, factor = trace_of(stream)
    duration_s = factor * trace.period_ps / PS_PER_S
    windows = case["windows"]
    number = max(windows, parts_of(duration_s, case["window_s"]))
    part_s = duration_s / number
    part = np.minimum((trace.arrival_ps * (factor / PS_PER_S) / part_s).astype(np.intp), number - 1)
    requests = np.bincount(part, minlength=number)
    if windows == number:
        return Plan(np.arange(number), number, part_s, requests)
    tokens = np.bincount(part, trace.input_tokens + trace.output_tokens, minlength=number)
    busiest = np.argsort(-tokens, kind="stable")[: windows // 2]
    others = np.setdiff1d(np.arange(number), busiest)
    rng = np.random.default_rng([case["seed"], windows])
    drawn = [rng.choice(run) for run in np.array_split(others, windows - len(busiest))]
    return Plan(np.array([*busiest, *drawn], np.intp), len(busiest), part_s, requests)


def parts_of(duration_s: float, window_s: float) -> int:
    """Windows of `window_s`, or a little shorter, that hold all of a trace."""
    return max(1, int(np.ceil(duration_s / window_s)))


def _of_trace(
    scenario: Scenario, stream: StreamConfig, case: Mapping[str, Any], rng: np.random.Generator
) -> Window:
    trace, factor = trace_of(stream)
    plan = plan_of(stream, case)
    assert plan is not None
    before_s = float(case["warm_up_s"])
    number = int(plan.parts[case["window"]])
    start_s, end_s = number * plan.part_s, (number + 1) * plan.part_s
    arrival_ps = np.rint(trace.arrival_ps * factor).astype(np.int64)
    # Before its first request a trace has no load: there the cluster is empty.
    begin, end, last = (round(s * PS_PER_S) for s in (start_s - before_s, end_s, end_s + before_s))
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
