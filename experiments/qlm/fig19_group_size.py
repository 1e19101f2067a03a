"""What the size of request groups costs: decisions and the global scheduler's time.

Workload W_B (Figure 14's rates) under QLM with groups of up to delta average batches. Degradation is how many
fewer SLOs are met than with delta = 1 on the same traces; overhead is the processor time of the scheduler's
calls. "Average batch" is read in two ways: the batch that memory and limit hold, and at most an even share of
what waits.

Times are those of the machine that the result names, each measured once; unlike the clock's they do not count
what else runs there. They are of our scheduler, a search (`baselines.qlm.programme.plan`), and not of the
paper's programme (Figure 20).

"profiled", on which the claims rest, is the batch that memory and limit hold, 256 requests here: with it the
3,500 requests of a trace are one group per LLM and class from delta = 4 on, so a trace of four times as many
is shown too. "shared" is what our QLM does where nothing else is said: a group is at most an instance's even
share of what waits, so that delta hardly matters until the queue is longer than delta batches on every
instance. In the simulation a plan takes effect one second after its call, whatever delta is (`solve_time_s`):
what was measured is shorter than the 5 s between decisions, so that it would delay no plan by more than one
decision.

Throughput of the longer trace says little of delta: once Batch-1 is served no SLO is in danger, the scheduler
is called no more (section 4), and Batch-2 groups stay in the virtual queues where they are while most
instances idle (at delta = 1 ten of twelve for 600 s; with `invoke=always` the trace ends in less than half
the time).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from agents.statistics import mean_interval
from baselines.qlm.policy import QlmPolicy
from baselines.qlm.schedule import Plan, QueueProblem
from experiments.harness.claims import Claim, asked, at_least, at_most, every
from experiments.harness.figure import (
    SEEDS,
    Grid,
    claimed,
    dress,
    legend_below,
    line,
    listed,
    where,
    wide,
)
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from experiments.qlm.loads import run_trace
from experiments.qlm.readings import least_first, read

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 19"
CLOCKS = ("seconds_per_call", "longest_s", "seconds")
KEPT = ("solve_time_s", "interval_s", "patience_s")
NEARLY_ZERO = 5.0
"""Per cent of SLOs met with delta = 1 that count as nearly no degradation."""
RULES = {"profiled": "the batch that fits", "shared": "at most an even share of the queue"}
CHOSEN, COARSE = 4.0, 16.0


class GroupSize(Parameters):
    """Parameters of this figure."""

    deltas: Annotated[
        tuple[Annotated[float, Field(ge=1, le=16)], ...], paper("section 8.3", min_length=2)
    ] = (1, 2, 4, 8, 16)
    average_batch: Annotated[
        tuple[Literal["profiled", "shared"], ...], ours("see above", min_length=1)
    ] = ("profiled", "shared")
    requests: Annotated[
        tuple[Annotated[int, Field(ge=10)], ...],
        ours("the paper's 3,500, and four times as many", min_length=1),
    ] = (3500, 14_000)
    batch_1_per_s: Annotated[float, ours("as in Figure 14", gt=0)] = 250.0
    batch_2_per_s: Annotated[float, ours("as in Figure 12", gt=0)] = 250.0
    solve_time_s: Annotated[float, ours("a call's time in the simulation, see above", ge=0)] = 1.0
    interval_s: Annotated[float, ours("as in Figure 12", gt=0)] = 5.0
    patience_s: Annotated[float, ours("as in Figure 12", gt=0)] = 3600.0


PARAMETERS = {
    "quick": GroupSize(seeds=1, requests=(3500,), deltas=(1, 4, 16)),
    "paper": GroupSize(seeds=3),
}


cases = Grid(
    {
        "scenario": ("qlm-multi",),
        "rates": lambda parameters, _: [
            {"rates": {f"batch-{k}": getattr(parameters, f"batch_{k}_per_s") for k in (1, 2)}}
        ],
        "seed": SEEDS,
        "requests": "requests",
        "average_batch": "average_batch",
        "delta": lambda parameters, _: map(float, parameters.deltas),
    },
    keep=KEPT,
    first=("scenario", "rates", "requests", "average_batch", "delta", *KEPT, "seed"),
)


class TimedQlm(QlmPolicy):
    """QLM that measures its scheduler: `seconds` of every call of the episode."""

    def __init__(self, **values: object) -> None:
        super().__init__("qlm", **values)
        self.seconds: list[float] = []

    def solve(self, problem: QueueProblem) -> Plan:
        """As QLM, with its processor time."""
        begin = time.process_time()
        found = super().solve(problem)
        self.seconds.append(time.process_time() - begin)
        return found


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One trace; groups and seconds per call, the longest call, and all calls together."""
    policy = TimedQlm(
        delta=case["delta"],
        average_batch=case["average_batch"],
        solve_time_s=case["solve_time_s"],
    )
    row = run_trace(case, policy)
    groups = [groups for _, groups, _ in policy.calls]
    calls = len(groups)
    return [
        {
            **row,
            "groups": max(groups, default=0),
            "seconds_per_call": sum(policy.seconds) / calls if calls else None,
            "longest_s": max(policy.seconds, default=None),
            "seconds": sum(policy.seconds),
        }
    ]


def plot(frame: DataFrame, parameters: GroupSize) -> Any:
    """Attainment, throughput, seconds per call and calls against delta."""
    figure = new_figure(11, 6.6)
    panels = figure.subplots(2, 2).reshape(-1)
    columns = (
        ("attainment", 100, "SLOs met (% of all requests)"),
        ("requests_per_s", 1, "throughput (requests/s)"),
        ("seconds_per_call", 1, "scheduler, mean processor seconds per call"),
        ("calls", 1, "calls of the scheduler per trace"),
    )
    for axes, (column, scale, label) in zip(panels, columns, strict=True):
        for k, rule in enumerate(parameters.average_batch):
            for style, requests in zip(("o-", "s--", "^:"), parameters.requests, strict=False):
                part = where(frame, average_batch=rule, requests=requests)
                name = f"{RULES[rule]}, {requests:,} requests"
                look: dict[str, Any] = {"ms": 4, "color": f"C{k}", "label": name}
                line(axes, part, "delta", column, style, scale=scale, shade=0.12, edge=None, **look)
        axes.set_xscale("log", base=2)
        axes.set(xlabel="delta (average batches per group)", ylabel=label)
        dress(axes, ticks=parameters.deltas, bottom=0)
    panels[0].set_ylim(0, 103)
    legend_below(figure, panels[0], 2)
    return figure


@claimed
def claims(frame: DataFrame, parameters: GroupSize) -> Iterator[Claim]:
    """Section 8.3, at the paper's trace; longer ones are variants."""
    if 1 not in parameters.deltas:
        return
    parts = {
        f"{RULES[rule]}, {requests:,} requests": where(frame, average_batch=rule, requests=requests)
        for requests in parameters.requests
        for rule in parameters.average_batch
    }
    met = {name: wide(part, "delta", "attainment") for name, part in parts.items()}
    lost = {name: 100 * (1 - table.div(table[1.0], axis=0)) for name, table in met.items()}
    first = next(iter(parts.values())).groupby("delta")[["groups", "swaps"]].mean()
    setting = next(iter(parts))
    if CHOSEN in parameters.deltas:
        near = [
            at_most(
                name, NEARLY_ZERO, mean_interval(table[CHOSEN]), nothing=None, unit="% fewer SLOs"
            )
            for name, table in lost.items()
        ]
        yield read(
            f"Delta = {CHOSEN:g} has nearly zero performance degradation compared to delta = 1",
            near,
            paper=f"nearly zero (read as {NEARLY_ZERO:g} % at most)",
            how="groups are small enough to be spread over the instances",
            reason=f"most groups in a trace: {listed(first['groups'], form='.0f')}. A group is in the queue "
            "of one of 12 instances, so few instances load the LLMs that are waited for",
            setting=setting,
        )
    if COARSE in parameters.deltas:
        coarse = [
            at_least(
                name, NEARLY_ZERO, mean_interval(table[COARSE]), nothing=0, unit="% fewer SLOs"
            )
            for name, table in lost.items()
        ]
        yield read(
            f"At delta = {COARSE:g} decisions are coarse and sub-optimal",
            coarse,
            paper=f"worse than at delta = 1 (read as {NEARLY_ZERO:g} % or more)",
            how=f"most groups in a trace: {listed(first['groups'], form='.0f')}; each is on one of 12 "
            "instances, so their queues differ in length",
            setting=setting,
        )
    slower = [
        at_least(
            f"{delta:g}, {name}",
            2.0,
            mean_interval(seconds[1.0] / seconds[delta]),
            nothing=1,
            unit=f"times that at delta = {delta:g}",
        )
        for name, part in parts.items()
        if name.startswith(RULES["profiled"])
        for seconds in (wide(part, "delta", "seconds_per_call"),)
        for delta in (CHOSEN, COARSE)
        if delta in seconds
    ]
    if slower:
        yield asked(
            every(
                "The overhead of our scheduler, a search, is much higher at delta = 1",
                least_first(slower),
                paper="much higher, of the programme (read as twice)",
                how="the search counts its rounds, and a round takes longer with more groups",
                reason="the search counts its rounds, so its time grows less than the groups",
            )
        )
