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
from experiments.harness.claims import Claim, at_least
from experiments.harness.figure import SEEDS, Grid, claimed, dress, line, listed, where, wide
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
SENTENCES = {
    "queue_mean": ("A larger batch TTFT target leads to larger queues", False),
    "wait_mean_s": ("A larger batch TTFT target leads to longer waiting", False),
    "throughput_per_instance": ("Longer queueing improves throughput per instance", True),
    "mixed_share": (
        "Longer queueing lets mixed instances serve more of the batch requests",
        True,
    ),
}
"""What the paper says of each quantity, and whether it does so of spare throughput."""
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
    "paper": BatchSlo(seeds=3),
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


cases = Grid({"seed": SEEDS, "workload": "workloads", "load": _loads})


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
    short, *_, long = sorted(parameters.batch_ttft_s)[:1] + sorted(parameters.batch_ttft_s)
    for workload in parameters.workloads if short < long else ():
        for configuration in parameters.configurations:
            mine = where(frame, workload=workload, configuration=configuration)
            for what, (sentence, spare) in SENTENCES.items():
                reason = _steady if workload == "stream" and spare else _seeds
                yield at_least(
                    f"{sentence} ({configuration}, {workload})",
                    1.01,
                    mean_interval(_ratios(mine, what, short, long)),
                    nothing=1.0,
                    unit=f"x from {short / 60:g} to {long / 60:g} min",
                    paper="rises (no number; 1 % is ours)",
                    reason=reason(mine, what, short, long),
                    note=_by_target(mine, what),
                )


def _by_target(mine: DataFrame, what: str) -> str:
    """The mean at each target, and on how many steps it rises."""
    means = mine.groupby("batch_ttft_s")[what].mean()
    rises = int((means.diff().dropna() > 0).sum())
    form = ",.0f" if means.max() >= 100 else ".3g"
    shown = listed(means, form=form, scale=1 / 60, place=" min")
    text = f"{shown}{' (s)' if what.endswith('_s') else ''}: rises on {rises} of {len(means) - 1} steps"
    if what == "throughput_per_instance" and (mine["workload"] == "queue").all():
        on_time = 100 * mine.groupby("batch_ttft_s")["slo_attainment"].mean()
        text += f"; {on_time.min():.1f} to {on_time.max():.1f} % of the requests are on time"
    return text


def _steady(mine: DataFrame, what: str, short: int, long: int) -> str:
    """Why a longer queue changes neither share nor throughput of a stream."""
    rate = mine["mixed_share"] * mine["finished_per_s"]
    means = mine.assign(mixed_per_s=rate).groupby("batch_ttft_s")
    table = means[["mixed_per_s", "finished_per_s", "queue_mean"]].mean()
    shown = ", ".join(
        f"{table.loc[t, 'mixed_per_s']:.1f} of {table.loc[t, 'finished_per_s']:.1f} with a target of "
        f"{t / 60:g} min and {table.loc[t, 'queue_mean']:,.0f} requests waiting"
        for t in (short, long)
    )
    return (
        f"of batch requests finished per second, mixed instances serve {shown}: a queue is there in both "
        "cases, and its length adds nothing to what they serve; batch instances must serve the rest"
    )


def _seeds(mine: DataFrame, what: str, short: int, long: int) -> str:
    """What each seed says, and how much mixed instances served with the shortest target already."""
    ratios = sorted(_ratios(mine, what, short, long))
    shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    served = 100 * mine.loc[mine["batch_ttft_s"] == short, "mixed_share"]
    return (
        f"it rises for {sum(ratio > 1 for ratio in ratios)} of {len(ratios)} seeds ({shown} x), by how much "
        f"differs: with the shortest target mixed instances already serve {served.min():.0f} to "
        f"{served.max():.0f} % of the batch requests, and where it is all a longer one changes nothing"
    )


def _label(parameters: BatchSlo, workload: str, configuration: str) -> str:
    k = parameters.configurations.index(configuration)
    if workload == "queue":
        return f"{configuration}, {parameters.batch_requests[k]:,} requests"
    return f"{configuration}, {parameters.stream_rate_per_s[k]:g} requests/s"


def _ratios(frame: DataFrame, what: str, short: int, long: int) -> list[float]:
    by_target = wide(frame, "batch_ttft_s", what)
    return list(by_target[long] / by_target[short])
