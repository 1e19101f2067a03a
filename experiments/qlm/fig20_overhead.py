"""Seconds per call of the global scheduler against the length of the queue.

A queue of requests of one LLM, a third each with a TTFT target of 20 s, a minute and an hour (section 8),
in groups of delta = 4 average batches, is put in order on as many instances as 50 A100 hold. Measured is
the processor time, on the machine that the result names, of one call of the scheduler that our QLM
policy uses (`plan`: a search, and the programme where that is small), of the paper's programme itself (Eq.
6 to 13, HiGHS on one thread, building it included; longer queues than shown were not tried, crosses are
queues for which it gave up at its limit), and of earliest deadline first, the fallback. Estimates are made
before, from `Profiler`; forming groups is not part of a call. Times are kept like all results of runs: each
is measured once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from agents.statistics import mean_interval
from baselines.qlm.groups import size_limit
from baselines.qlm.problem import Profiler
from baselines.qlm.programme import exact, plan
from baselines.qlm.schedule import QueueProblem
from baselines.qlm.search import edf
from baselines.solver import SolverSettings
from experiments.harness.claims import Claim, at_least, at_most
from experiments.harness.figure import SEEDS, Grid, claimed, dress, legend_below, line, where, wide
from experiments.harness.parameters import ours, paper
from experiments.output import new_figure
from experiments.qlm.setting import PaperLlms, cluster, gpus_per_instance, shown

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 20"
GPU = "a100-80gb"
METHODS = {
    "plan": "scheduler (search; programme where small)",
    "programme": "the paper's programme alone",
    "edf": "earliest deadline first",
}


class Overhead(PaperLlms):
    """Parameters of this figure."""

    queues: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...],
        ours("about log-spaced, to the paper's 400,000 and beyond", min_length=1),
    ] = (1000, 3000, 10_000, 30_000, 100_000, 200_000, 400_000, 800_000)
    claimed_queue: Annotated[int, paper("section 8.3", ge=1)] = 400_000
    claimed_s: Annotated[float, paper("section 8.3", gt=0)] = 5.0
    gpus: Annotated[int, paper("section 8", ge=4)] = 50
    delta: Annotated[float, paper("section 8.3", ge=1, le=16)] = 4.0
    ttft_s: Annotated[tuple[float, ...], paper("section 8", min_length=1)] = (20.0, 60.0, 3600.0)
    mean_input: Annotated[float, ours("of sharegpt-single-turn", gt=0)] = 137.0
    mean_output: Annotated[float, ours("of sharegpt-single-turn", gt=0)] = 472.0
    max_output: Annotated[float, ours("of these LLMs", gt=0)] = 4096.0
    batch_limit: Annotated[int, ours("vLLM's default", ge=1)] = 256
    programme_groups: Annotated[int, ours("the programme is tried up to so many groups", ge=0)] = 32
    programme_limit_s: Annotated[float, ours("when it gives up", gt=0)] = 10.0
    gap: Annotated[float, ours("as the QLM policy", ge=0, lt=1)] = 0.01


PARAMETERS = {
    "quick": Overhead(seeds=4, programme_groups=8),
    "paper": Overhead(seeds=5),
}


cases = Grid(
    {"seed": SEEDS, "llm": "llms", "queue": "queues", "method": tuple(METHODS)},
    keep=(
        *("gpus", "delta", "ttft_s", "mean_input", "mean_output", "max_output"),
        *("batch_limit", "programme_groups", "programme_limit_s", "gap"),
    ),
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Seconds of one call; none where the programme is not tried."""
    problem = queue_of(case)
    row = {"groups": problem.groups, "instances": problem.instances}
    if case["method"] == "programme" and problem.groups > case["programme_groups"]:
        return [{**row, "seconds": None, "feasible": None, "optimal": None}]
    settings = SolverSettings(gap=case["gap"], time_limit_s=case["programme_limit_s"])
    call = {"plan": lambda p: plan(p, settings=settings), "edf": edf}.get(
        case["method"], lambda p: exact(p, settings, start=edf(p))
    )
    begin = time.process_time()
    found = call(problem)
    seconds = time.process_time() - begin
    return [{**row, "seconds": seconds, "feasible": found.feasible, "optimal": found.optimal}]


def queue_of(case: Mapping[str, Any]) -> QueueProblem:
    """The waiting groups and the instances; the last group is what is left."""
    llm, limit = case["llm"], case["batch_limit"]
    instances = int(case["gpus"]) // gpus_per_instance(llm)
    profiler = Profiler(cluster((llm,), ("all",), gpu=GPU, batch_limit=limit))
    profile = profiler.profile(0, llm, limit, case["mean_input"], case["mean_output"])
    size = size_limit(profile.batch, case["delta"])
    groups = -(-case["queue"] // size)
    requests = np.full(groups, float(size))
    requests[-1] = case["queue"] - size * (groups - 1)
    rng = np.random.default_rng(case["seed"])
    work = requests * case["mean_output"] / profile.tokens_per_s
    tail = profile.prefill_s + case["max_output"] * profile.decode_s_per_token
    return QueueProblem(
        llm=np.zeros(groups, np.int64),
        slo_s=rng.choice(case["ttft_s"], groups),
        requests=requests,
        work_s=np.tile(work, (instances, 1)),
        completion_s=np.tile(work + tail, (instances, 1)),
        swap_s=np.zeros((instances, 1)),
        loaded=np.zeros(instances, np.int64),
    )


def plot(frame: DataFrame, parameters: Overhead) -> Any:
    """Seconds against the queue: a colour per LLM, a style per method."""
    figure = new_figure(8.6, 5.6)
    axes = figure.subplots()
    for k, llm in enumerate(parameters.llms):
        for (method, name), style in zip(METHODS.items(), ("o-", "s--", ":"), strict=True):
            mine = where(frame, llm=llm, method=method).dropna(subset=["seconds"])
            label = f"{shown(llm)}: {name}" if method == "plan" else None
            look: dict[str, Any] = {"color": f"C{k}", "ms": 4, "lw": 1.5, "label": label}
            line(axes, mine, "queue", "seconds", style, band=None, **look)
            if method == "programme":
                late = mine[~mine["optimal"].astype(bool)]
                axes.plot(late["queue"], late["seconds"], "x", color=f"C{k}", ms=10)
    for method, style in (("programme", "s--"), ("edf", ":")):
        axes.plot([], [], style, color="0.4", ms=4, label=f"{METHODS[method]}, same colours")
    axes.axhline(parameters.claimed_s, color="0.4", lw=0.8)
    mark = f"the paper: a 7B at {parameters.claimed_queue:,} requests"
    axes.plot(parameters.claimed_queue, parameters.claimed_s, "k*", ms=12, label=mark)
    axes.set(xlabel="requests in the queue", ylabel="seconds per call (processor time)")
    dress(axes, log="xy")
    legend_below(figure, axes, 2)
    return figure


@claimed
def claims(frame: DataFrame, parameters: Overhead) -> Iterator[Claim]:
    """5 s at 400,000 requests of a 7B; larger groups, longer queues in the same time."""
    queue, small = parameters.claimed_queue, parameters.llms[0]
    if queue not in parameters.queues:
        return
    planned = where(frame, method="plan", queue=queue)
    seconds = wide(planned, "llm", "seconds")
    groups, instances = (planned.groupby("llm")[name].mean() for name in ("groups", "instances"))
    yield at_most(
        f"{queue:,} requests of a 7B model on A100 are handled at "
        f"{parameters.claimed_s:g} s per call ({shown(small)})",
        parameters.claimed_s,
        mean_interval(seconds[small]),
        nothing=None,
        unit="s per call",
        paper=f"{parameters.claimed_s:g} s",
        reason=f"{groups[small]:,.0f} groups",
        note=f"{groups[small]:,.0f} groups on {instances[small]:.0f} instances. The "
        f"paper's is the programme's time, ours a search's: {_programme(frame, small)}",
    )
    for llm in parameters.llms[1:]:
        if groups[llm] <= groups[small]:
            continue
        sizes = "; ".join(
            f"{shown(each)}: {groups[each]:,.0f} groups on {instances[each]:.0f} instances"
            for each in (llm, small)
        )
        yield at_least(
            "The larger its groups, the less time a queue of a length takes "
            f"({shown(llm)} against {shown(small)})",
            1.01,
            mean_interval(seconds[llm] / seconds[small]),
            nothing=1.0,
            unit=f"times the time at {queue:,} requests",
            paper="more time with smaller groups (curve)",
            reason=f"{sizes}; our search counts its rounds, so its time grows less than the groups",
        )


def _programme(frame: DataFrame, llm: str) -> str:
    mine = where(frame, method="programme", llm=llm).dropna(subset=["seconds"])
    if mine.empty:
        return "the programme was not tried"
    return "the programme takes " + ", ".join(
        f"{value:.2g} s for {groups} group{'s' if groups > 1 else ''}"
        for groups, value in mine.groupby("groups")["seconds"].mean().items()
    )
