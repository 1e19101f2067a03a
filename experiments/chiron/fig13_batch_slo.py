"""Queue kept, waiting time and throughput against the TTFT target of batch requests.

Chiron with interactive and batch requests, whose TTFT target goes from half an hour to four hours. "Queue" is
workload B: the longest queue of section 6.2 appears after five minutes beside the paper's interactive rate.
"Stream" is ours: batch requests come at a steady rate that exceeds what mixed instances can spare.

A queue is measured from its arrival on, over the same time for all targets, so that throughput per instance
says how many instance-seconds the same requests took. Beside a stream there are fewer interactive requests,
so that twelve hours are short to simulate, and a decision a minute; it is measured over the second and third
of three times the TTFT target, when the queue has grown to what Chiron keeps. Where mixed instances
alone serve the whole queue in time (right panels at 1), a longer target changes nothing more. Bands: all
seeds. A stream ends with requests that still wait within their target, so that only the queue's
requests are said to be on time or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import PositiveFloat, PositiveInt

from agents.statistics import mean_interval
from experiments.chiron.batch_queue import last_finish_s, served
from experiments.chiron.setting import episode, scenario_of
from experiments.harness.claims import Claim, at_least, every, led_by
from experiments.harness.figure import SEEDS, Grid, claimed, dress, line, where, wide
from experiments.harness.parameters import Parameters, one_each, ours, paper
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
SENTENCES = (
    (
        "Increasing the batch TTFT target leads to larger queues and longer waiting",
        {"queue_mean": "queue", "wait_mean_s": "waiting"},
        "Chiron adds batch instances only when the estimated wait exceeds the target",
    ),
    (
        "Longer queueing lets batch requests multiplex on mixed instances, which improves throughput",
        {"mixed_share": "share on mixed instances", "throughput_per_instance": "throughput"},
        "mixed instances, which are there anyway, serve more of the queue before batch instances are added",
    ),
)
"""What the paper says, of which quantities, and why it should be so."""
WORKLOADS = {"queue": "queue of workload B", "stream": "steady stream (ours)"}
FEW = 3
"""Seeds up to which a sentence names the number of each."""
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
    batch_ttft_s: Annotated[
        tuple[PositiveInt, ...], ours("half an hour to four around the paper's hour")
    ] = (1800, 3600, 7200, 14_400)
    batch_requests: Annotated[tuple[PositiveInt, ...], paper("section 6.2: 700k and 80k")] = (
        700_000,
        80_000,
    )
    stream_rate_per_s: Annotated[tuple[PositiveFloat, ...], ours("above the spare throughput")] = (
        40,
        20,
    )
    stream_interactive_rate_per_s: Annotated[
        tuple[PositiveFloat, ...], ours("a tenth and a fifth of the paper's: long runs stay short")
    ] = (5, 2)
    stream_seeds: Annotated[int, ours("twelve hours each, and ours; at most `seeds`", ge=1)] = 3
    control_interval_s: Annotated[float, ours("as the scenarios", gt=0)] = 10.0
    stream_control_interval_s: Annotated[
        float,
        ours("each look goes through a queue of up to hundreds of thousands of deadlines", gt=0),
    ] = 60.0
    rest_s: Annotated[int, ours("to finish what was admitted late", ge=0)] = 600

    _one_each = one_each("batch_requests", "stream_rate_per_s", "stream_interactive_rate_per_s")


PARAMETERS = {
    "quick": BatchSlo(
        seeds=1,
        batch_ttft_s=(900, 1800, 3600),
        batch_requests=(300_000, 30_000),
        control_interval_s=30.0,
    ),
    "paper": BatchSlo(seeds=10),
}


def _loads(parameters: BatchSlo, case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Configurations with targets, and what else the workload of a case has."""
    longest_s = max(parameters.batch_ttft_s)
    for k, configuration in enumerate(parameters.configurations):
        queue = {
            "control_interval_s": parameters.control_interval_s,
            "batch_requests": parameters.batch_requests[k],
            "watched_s": longest_s + parameters.rest_s,
        }
        stream = {
            "control_interval_s": parameters.stream_control_interval_s,
            "batch_rate_per_s": parameters.stream_rate_per_s[k],
            "rate_per_s": parameters.stream_interactive_rate_per_s[k],
        }
        rest = queue if case["workload"] == "queue" else stream
        for ttft_s in parameters.batch_ttft_s:
            yield {"configuration": configuration, "batch_ttft_s": ttft_s, **rest}


def _workloads(parameters: BatchSlo, case: dict[str, Any]) -> list[str]:
    """Those of a seed."""
    few = parameters.seed_list()[: parameters.stream_seeds]
    return [name for name in parameters.workloads if name != "stream" or case["seed"] in few]


cases = Grid({"seed": SEEDS, "workload": _workloads, "load": _loads})


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
        "workload.batch_queues": [queue.model_dump() for queue in scenario.workload.batch_queues],
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
                mine = where(frame, workload=workload, configuration=configuration)
                mine = mine.assign(**{what: mine[what] / (60 if what.endswith("_s") else 1)})
                look: dict[str, Any] = {
                    "color": f"C{k}",
                    "label": _label(parameters, workload, configuration),
                }
                line(axes, mine, "batch_ttft_s", what, along=60, ms=4, shade=0.2, **look)
            dress(axes, title=name, bottom=0)
        row[1].axline((0, 0), slope=1, color="0.4", lw=0.8, ls=":", label="the target itself")
        row[1].legend(fontsize=8)
        row[0].legend(fontsize=8)
        row[3].set_ylim(0, 1.05)
        row[0].set_ylabel(f"workload: {workload}")
    for axes in panels[-1]:
        axes.set_xlabel("TTFT target of batch requests (min)")
    return figure


@claimed
def claims(frame: DataFrame, parameters: BatchSlo) -> Iterator[Claim]:
    """From the shortest to the longest target: queue, waiting time and throughput grow."""
    targets_s = min(parameters.batch_ttft_s), max(parameters.batch_ttft_s)
    if targets_s[0] == targets_s[1]:
        return
    for sentence, quantities, how in SENTENCES:
        yield led_by(
            sentence,
            [
                every(
                    WORKLOADS[workload],
                    [
                        _rises(
                            f"{configuration}, {name}",
                            where(frame, workload=workload, configuration=configuration),
                            what,
                            targets_s,
                        )
                        for configuration in parameters.configurations
                        for what, name in quantities.items()
                    ],
                )
                for workload in parameters.workloads
            ],
            paper="rises (no number; 1 % is ours)",
            how=how,
        )


def _rises(name: str, mine: DataFrame, what: str, targets_s: tuple[int, int]) -> Claim:
    """That a quantity is larger with the longest target than with the shortest."""
    short_s, long_s = targets_s
    by_target = wide(mine, "batch_ttft_s", what)
    ratios = by_target[long_s] / by_target[short_s]
    found = sorted(ratios)
    few = len(found) <= FEW
    shown = (", " if few else " to ").join(
        f"{x:.2f}" for x in (found if few else found[:: len(found) - 1])
    )
    served = 100 * mine.loc[mine["batch_ttft_s"] == short_s, "mixed_share"]
    return at_least(
        name,
        1.01,
        mean_interval(ratios),
        nothing=1.0,
        unit=f"x from {short_s / 60:g} to {long_s / 60:g} min",
        reason=f"it rises for {(ratios > 1).sum()} of {len(ratios)} seeds ({shown} x); with the shortest "
        f"target mixed instances already serve {served.min():.0f} to {served.max():.0f} % of the queue",
    )


def _label(parameters: BatchSlo, workload: str, configuration: str) -> str:
    k = parameters.configurations.index(configuration)
    if workload == "queue":
        return f"{configuration}, {parameters.batch_requests[k]:,} requests"
    return f"{configuration}, {parameters.stream_rate_per_s[k]:g} requests/s"
