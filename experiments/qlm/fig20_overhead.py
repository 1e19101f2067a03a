"""Seconds per call of the global scheduler against the length of the queue.

Request groups of one LLM (delta = 4) are put in order on as many instances as 50 A100 hold. A third of the
requests each has a TTFT target of 20 s, a minute and an hour. Measured is the processor time of one call: of
the paper's programme (Eq. 6 to 13), of our QLM's scheduler, which is a search, and of earliest deadline
first.

The programme is solved by HiGHS on one thread, building it included; longer queues than shown were not tried,
crosses are queues for which it gave up at its limit or did not prove its plan the best. Our scheduler
(`plan`) is a search, and the programme where that is small. Earliest deadline first is the fallback (section
9). Estimates are made before, from `Profiler`; forming groups is not part of a call. Times are of the machine
that the result names, and kept like all results of runs: each is measured once.
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
from experiments.harness.claims import Claim, asked, at_least, at_most, more
from experiments.harness.figure import SEEDS, Grid, claimed, dress, legend_below, line, where, wide
from experiments.harness.parameters import ours, paper
from experiments.output import new_figure
from experiments.qlm.setting import PaperLlms, cluster, gpus_per_instance, shown

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 20"
CLOCKS = ("seconds",)
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
    """400,000 requests of a 7B at 5 s; longer queues with larger groups in the same time."""
    small, *larger = parameters.llms
    tried = frame.dropna(subset=["seconds"])
    programme = where(tried, method="programme")
    mine = where(programme, llm=small)
    in_time = mine[mine["seconds"].astype(float) <= parameters.claimed_s]
    means = mine.astype({"seconds": float}).groupby(["queue", "groups"])["seconds"].mean()
    yield at_least(
        f"A queue of {parameters.claimed_queue:,} requests of a 7B model takes "
        f"{parameters.claimed_s:g} s per call",
        parameters.claimed_queue,
        mean_interval(in_time.groupby("seed")["queue"].max().astype(float)),
        nothing=None,
        unit=f"requests in {parameters.claimed_s:g} s, of the queues tried",
        paper=f"{parameters.claimed_queue:,} requests in {parameters.claimed_s:g} s",
        how="the programme of Eq. 6 to 13 puts the groups in order",
        reason="the programme takes "
        + ", ".join(
            f"{seconds:.2g} s for {groups:g} group{'s' * (groups > 1)} ({queue:,} requests)"
            for (queue, groups), seconds in means.items()
        )
        + ", and longer queues were not tried",
        setting=shown(small),
    )
    for llm in larger:
        both = where(programme, llm=llm)
        groups = [part.groupby("queue")["groups"].mean() for part in (mine, both)]
        queues = sorted(set(groups[0].index) & set(groups[1].index))
        if not queues or groups[1][queues[-1]] <= groups[0][queues[-1]]:
            continue
        seconds, its = (wide(part, "queue", "seconds")[queues[-1]] for part in (mine, both))
        yield more(
            "Configurations with larger groups handle a longer queue for the same overhead",
            1,
            mean_interval(its / seconds),
            unit=f"times the time of {shown(small)} ({shown(llm)}, {queues[-1]:,} requests)",
            paper="less time with larger groups (curve)",
            how=f"the programme has {groups[1][queues[-1]]:g} groups in place of {groups[0][queues[-1]]:g}",
            reason="times are of single calls",
        )
        break
    planned = where(tried, method="plan", queue=parameters.claimed_queue, llm=small)
    if len(planned):
        yield asked(
            at_most(
                f"Our search puts {parameters.claimed_queue:,} requests of a 7B model in order within "
                f"{parameters.claimed_s:g} s",
                parameters.claimed_s,
                mean_interval(planned["seconds"].astype(float)),
                nothing=None,
                unit="s per call",
                how=f"a search over {planned['groups'].iloc[0]:,.0f} groups, never worse than earliest "
                "deadline first",
            )
        )
