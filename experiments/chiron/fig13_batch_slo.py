"""Queue kept, waiting time and throughput against the TTFT target of batch requests.

Chiron with interactive requests and batch requests of one TTFT target, which is varied; everything
else is as in section 6. Two workloads. "Queue": W_B, a queue that appears after five minutes, of the
largest size that the paper gives for the model (section 6.2), beside the paper's interactive rate;
everything is measured from then on, over the same time for all targets, so that throughput per instance
says how many instance-seconds the same requests took. "Stream" (ours): batch requests arrive at a
steady rate that is more than the mixed instances' spare throughput, beside fewer interactive requests (so
that twelve hours are short to simulate), with a decision a minute; measured over the second and third of
three times the TTFT target, when the queue has grown to what Chiron keeps. Where mixed instances
alone serve the whole queue in time (right panels at 1), a longer target changes nothing more. Bands: all
seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from agents.statistics import Interval, mean_interval
from experiments.chiron.batch_queue import last_finish_s, served
from experiments.chiron.setting import episode, scenario_of
from experiments.harness.claims import Claim, at_least
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.scenarios.schema import Scenario

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 13"
PANELS = (
    ("queue_mean", "requests waiting (mean)"),
    ("wait_mean_s", "time in the queue (mean, min)"),
    ("throughput_per_instance", "throughput (requests/s per instance)"),
    ("mixed_share", "batch requests served on mixed instances"),
)
CYCLES = 3
"""Length of a run with a stream, in times the TTFT target."""


class BatchSlo(Parameters):
    """Parameters of this figure; tuples of rates and sizes are in the order of `configurations`."""

    configurations: Annotated[tuple[Literal["small", "large"], ...], paper("section 6")] = (
        "small",
        "large",
    )
    workloads: Annotated[
        tuple[Literal["queue", "stream"], ...], ours("W_B of section 6.3, and a steady state")
    ] = ("queue", "stream")
    batch_ttft_s: Annotated[tuple[int, ...], ours("half an hour to four around the paper's hour")] = (
        1800, 3600, 7200, 14_400,
    )  # fmt: skip
    batch_requests: Annotated[tuple[int, ...], paper("section 6.2: 700k and 80k")] = (
        700_000,
        80_000,
    )
    stream_rate_per_s: Annotated[tuple[float, ...], ours("above the spare throughput")] = (40, 20)
    stream_interactive_rate_per_s: Annotated[
        tuple[float, ...], ours("a tenth and a fifth of the paper's: long runs stay short")
    ] = (5, 2)
    control_interval_s: Annotated[float, ours("as the scenarios")] = 10.0
    stream_control_interval_s: Annotated[
        float, ours("each look goes through a queue of up to hundreds of thousands of deadlines")
    ] = 60.0
    rest_s: Annotated[int, ours("to finish what was admitted late")] = 600


PARAMETERS = {
    "quick": BatchSlo(
        seeds=1,
        batch_ttft_s=(900, 1800, 3600),
        batch_requests=(300_000, 30_000),
        control_interval_s=30.0,
    ),
    "paper": BatchSlo(seeds=3),
}


def cases(parameters: BatchSlo) -> list[dict[str, Any]]:
    """A run per seed, workload, configuration and TTFT target."""
    found = []
    for seed in parameters.seed_list():
        for workload in parameters.workloads:
            for k, configuration in enumerate(parameters.configurations):
                for ttft_s in parameters.batch_ttft_s:
                    case: dict[str, Any] = {
                        "seed": seed,
                        "workload": workload,
                        "configuration": configuration,
                        "batch_ttft_s": ttft_s,
                    }
                    if workload == "queue":
                        case["control_interval_s"] = parameters.control_interval_s
                        case["batch_requests"] = parameters.batch_requests[k]
                        case["watched_s"] = max(parameters.batch_ttft_s) + parameters.rest_s
                    else:
                        case["control_interval_s"] = parameters.stream_control_interval_s
                        case["batch_rate_per_s"] = parameters.stream_rate_per_s[k]
                        case["rate_per_s"] = parameters.stream_interactive_rate_per_s[k]
                    found.append(case)
    return found


def scenario_for(case: Mapping[str, Any]) -> tuple[Scenario, float]:
    """The scenario of a case, and from when on it is watched (s)."""
    changes = {
        "classes.batch.ttft_s": case["batch_ttft_s"],
        "control_interval_s": case["control_interval_s"],
    }
    if case["workload"] == "queue":
        scenario = scenario_of(
            case["configuration"], batch_requests=case["batch_requests"], **changes
        )
        from_s = scenario.workload.batch_queues[0].at_s
        return load_scenario(scenario, horizon_s=from_s + case["watched_s"]), from_s
    scenario = scenario_of(case["configuration"], rate_per_s=case["rate_per_s"], **changes)
    streams = [stream.model_dump() for stream in scenario.workload.streams]
    batch = {
        **streams[0],
        "name": "batch-stream",
        "slo_class": "batch",
        "rate_per_s": case["batch_rate_per_s"],
    }
    changed = {
        "workload.streams": [*streams, batch],
        "horizon_s": CYCLES * float(case["batch_ttft_s"]),
    }
    return load_scenario(scenario, **changed), float(case["batch_ttft_s"])


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One episode of Chiron."""
    scenario, from_s = scenario_for(case)
    result = episode("chiron", scenario, case["seed"])
    row = served(result, scenario, from_s, scenario.horizon_s)
    if case["workload"] == "queue":
        row["done_s"] = last_finish_s(result, scenario) - from_s
    return [row]


def plot(frame: DataFrame, parameters: BatchSlo) -> Any:
    """A row per workload, a panel per quantity, a line per model."""
    figure = new_figure(15.5, 3.5 * len(parameters.workloads))
    panels = figure.subplots(len(parameters.workloads), len(PANELS), squeeze=False, sharex=True)
    for row, workload in zip(panels, parameters.workloads, strict=True):
        for axes, (what, name) in zip(row, PANELS, strict=True):
            for k, configuration in enumerate(parameters.configurations):
                mine = _part(frame, workload, configuration)
                scale = 60 if what.endswith("_s") else 1
                grouped = mine.groupby("batch_ttft_s")[what]
                mean, low, high = (
                    getattr(grouped, statistic)() / scale for statistic in ("mean", "min", "max")
                )
                axes.fill_between(mean.index / 60, low, high, color=f"C{k}", alpha=0.2, lw=0)
                label = _label(parameters, workload, configuration)
                axes.plot(mean.index / 60, mean, "o-", color=f"C{k}", ms=4, label=label)
            axes.set_ylim(bottom=0)
            axes.set_title(name, fontsize=10)
            axes.grid(alpha=0.3)
        row[1].axline((0, 0), slope=1, color="0.4", lw=0.8, ls=":", label="the target itself")
        row[1].legend(fontsize=8)
        row[0].legend(fontsize=8)
        row[3].set_ylim(0, 1.05)
        row[0].set_ylabel(f"workload: {workload}")
    for axes in panels[-1]:
        axes.set_xlabel("TTFT target of batch requests (min)")
    return figure


def claims(frame: DataFrame, parameters: BatchSlo) -> list[Claim]:
    """From the shortest to the longest target: queue, waiting time and throughput grow."""
    short, long = min(parameters.batch_ttft_s), max(parameters.batch_ttft_s)
    between = f"from {short / 60:g} to {long / 60:g} min"
    sentences = {
        "queue_mean": "A larger batch TTFT target leads to larger queues",
        "wait_mean_s": "A larger batch TTFT target leads to longer waiting",
        "throughput_per_instance": "Longer queueing improves throughput per instance",
        "mixed_share": "Longer queueing lets mixed instances serve more of the batch requests",
    }
    found = []
    for workload in parameters.workloads:
        for configuration in parameters.configurations:
            mine = _part(frame, workload, configuration)
            for what, sentence in sentences.items():
                found.append(
                    at_least(
                        f"{sentence} ({configuration}, {workload})",
                        1.01,
                        _ratio(mine, what, short, long),
                        nothing=1.0,
                        unit=f"x {between}",
                        paper="rises (no number)",
                        reason=_STEADY if workload == "stream" and what in _SHARED else "",
                    )
                )
    return found


_SHARED = ("throughput_per_instance", "mixed_share")
_STEADY = (
    "in a steady state the queue is never empty, so that mixed instances are full whatever the target, and "
    "batch instances must serve what is left of the same arrivals: a longer target makes the queue "
    "longer, not the share that mixed instances serve"
)


def _label(parameters: BatchSlo, workload: str, configuration: str) -> str:
    k = parameters.configurations.index(configuration)
    if workload == "queue":
        return f"{configuration}, {parameters.batch_requests[k]:,} requests"
    return f"{configuration}, {parameters.stream_rate_per_s[k]:g} requests/s"


def _part(frame: DataFrame, workload: str, configuration: str) -> DataFrame:
    mine = (frame["workload"] == workload) & (frame["configuration"] == configuration)
    return frame[mine]


def _ratio(frame: DataFrame, what: str, short: int, long: int) -> Interval:
    by_seed = frame.pivot(index="seed", columns="batch_ttft_s", values=what)
    return mean_interval(by_seed[long] / by_seed[short])
