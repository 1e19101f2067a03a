"""Accuracy of the waiting-time estimator against the request groups in the queue.

A queue of ShareGPT requests, in groups of delta = 4 average batches (the fractions are parts of one group),
stands in front of one instance. QLM's estimator (section 6) says when each request is admitted; R2 and bias
compare that with the true wait. "At work", the instance has served such requests for half an hour; "idle", it
has nothing running when the queue appears.

The estimate is a request's position times the mean output, over the token throughput. Mean and deviation of
outputs come from other requests than those that wait (`OutputHistory`); the throughput is either that of one
profiled batch (`Profiler`, no preemption assumed), or what the instance's log shows, which is what fits the
inefficiency factor epsilon. R2 is over the requests of a queue: 1 - squared errors over squared distances
from the mean wait. The paper does not say in which state it measured; the estimate assumes an instance at
work. An idle one admits a first batch without any wait, of which the estimate knows nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from agents.statistics import Interval, mean_interval
from baselines.qlm.groups import size_limit
from baselines.qlm.history import OutputHistory
from baselines.qlm.problem import Profiler
from baselines.qlm.waiting import BatchProfile, outlook
from experiments.accuracy_axes import label_accuracy, mark_accuracy
from experiments.chiron.instance import backlog
from experiments.chiron.queue_waits import observe, r_squared, relative_bias
from experiments.harness.claims import Claim, at_least, every, more
from experiments.harness.figure import (
    SEEDS,
    Grid,
    claimed,
    dress,
    interval_of,
    line,
    where,
    wide,
)
from experiments.harness.parameters import FIRST_SEED, ours, paper
from experiments.output import new_figure
from experiments.qlm.readings import least_first, read
from experiments.qlm.setting import PaperLlms, cluster, gpus_per_instance, lengths, shown
from llmscale_env.cluster.iteration_time import iteration_time_model

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 18"
GPU = "a100-80gb"
STARTS = {"busy": "at work", "empty": "idle"}
THROUGHPUTS = {"log": "as logged", "profile": "of a profiled batch"}
PLACE = "groups_in_queue"
OTHER_SEEDS = 1_000_000 - FIRST_SEED
"""Added to a run's seed: the requests that the history has seen."""


class Estimator(PaperLlms):
    """Parameters of this figure."""

    groups: Annotated[
        tuple[Annotated[float, Field(gt=0)], ...],
        ours("below and above the paper's four", min_length=1),
    ] = (0.05, 0.1, 0.25, 0.5, 1, 2, 3, 4, 6, 8)
    claimed_groups: Annotated[float, paper("section 8.3", gt=0)] = 4
    short_groups: Annotated[float, ours("what counts as a short queue", gt=0)] = 0.25
    delta: Annotated[float, paper("section 8.3", ge=1, le=16)] = 4.0
    seen: Annotated[int, ours("requests in the history", ge=1)] = 1000
    prior_tokens: Annotated[float, ours("mean and deviation before any is seen", gt=0)] = 300.0
    max_output: Annotated[float, ours("most tokens of the LLMs; waits do not depend on it")] = 4096
    batch_limit: Annotated[int, ours("vLLM's default", ge=1)] = 256
    lengths: Annotated[str, ours("ShareGPT as serving benchmarks use it")] = "sharegpt-single-turn"
    queued: Annotated[int, ours("outlasts the history by the queue", ge=1)] = 60_000
    warm_up_s: Annotated[int, ours("from then on throughput is logged", ge=0)] = 600
    history_s: Annotated[int, ours("half an hour of work before", ge=1)] = 1800


PARAMETERS = {"quick": Estimator(seeds=6), "paper": Estimator(seeds=40)}


cases = Grid(
    {"seed": SEEDS, "llm": "llms"},
    keep=(
        *("groups", "delta", "seen", "prior_tokens", "max_output"),
        *("batch_limit", "lengths", "queued", "warm_up_s", "history_s"),
    ),
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """R2 and bias by start, throughput and groups in the queue."""
    rng = np.random.default_rng(case["seed"] + OTHER_SEEDS)
    other = lengths(case["lengths"], case["seen"], rng)
    history = OutputHistory(case["prior_tokens"], case["prior_tokens"])
    history.observe(case["llm"], other["output_tokens"])
    stats = history.statistics(case["llm"])
    limit = case["batch_limit"]
    profiler = Profiler(cluster((case["llm"],), ("all",), gpu=GPU, batch_limit=limit))
    mean_input = float(np.mean(other["input_tokens"]))
    profiled = profiler.profile(0, case["llm"], limit, mean_input, stats.mean)
    group = size_limit(profiled.batch, case["delta"])
    sizes = {groups: max(2, round(groups * group)) for groups in case["groups"]}
    waits = observe(
        iteration_time_model(case["llm"], GPU, gpus_per_instance(case["llm"])),
        backlog(case["lengths"], case["queued"], case["seed"]),
        instances=1,
        batch_limit=limit,
        warm_up_s=case["warm_up_s"],
        history_s=case["history_s"],
        queue=max(sizes.values()),
    )
    logged = BatchProfile(
        profiled.prefill_s, profiled.batch / waits.history.tokens_per_s, profiled.batch
    )
    rows = []
    for throughput, profile in (("log", logged), ("profile", profiled)):
        estimate = outlook(
            max(sizes.values()),
            stats.mean,
            stats.std,
            max(case["max_output"], stats.largest),
            profile,
        ).wait_s
        for start, true in (("busy", waits.busy_s), ("empty", waits.empty_s)):
            rows += [
                {
                    "throughput": throughput,
                    "start": start,
                    "groups_in_queue": groups,
                    "requests": n,
                    "r2": r_squared(true[:n], estimate[:n]),
                    "bias": relative_bias(true[:n], estimate[:n]),
                    "mean_wait_s": float(true[:n].mean()),
                    "first_wait_s": float(true[0]),
                    "tokens_per_s": profile.tokens_per_s,
                    "mean_output": stats.mean,
                }
                for groups, n in sizes.items()
            ]
    return rows


def excerpt(frame: DataFrame, parameters: Estimator) -> DataFrame:
    """The columns that are drawn, of every second length of the queue."""
    lengths = sorted(frame[PLACE].unique())
    kept = frame[frame[PLACE].isin([*lengths[::-2], parameters.claimed_groups])]
    return kept[["seed", "llm", "throughput", "start", PLACE, "requests", "r2", "bias"]]


def plot(frame: DataFrame, parameters: Estimator) -> Any:
    """A column per LLM: R2 above, bias below, against the groups in the queue."""
    figure = new_figure(4.2 * len(parameters.llms), 6.6)
    panels = figure.subplots(2, len(parameters.llms), squeeze=False, sharex=True, sharey="row")
    for column, llm in zip(panels.T, parameters.llms, strict=True):
        for k, (start, state) in enumerate(STARTS.items()):
            for throughput, style in zip(THROUGHPUTS, ("o-", "x:"), strict=True):
                mine = where(frame, llm=llm, throughput=throughput, start=start)
                name = f"instance {state}, throughput {THROUGHPUTS[throughput]}"
                look: dict[str, Any] = {"color": f"C{k}", "label": name, "ms": 4, "lw": 1.5}
                look |= {"band": (0.1, 0.9) if throughput == "log" else None}
                for axes, what in zip(column, ("r2", "bias"), strict=True):
                    line(axes, mine, PLACE, what, style, middle="median", **look)
        top, bottom = column
        mark = f"the paper: 0.99 at {parameters.claimed_groups:g} groups"
        mark_accuracy(top, bottom, parameters.claimed_groups, mark)
        busy = where(frame, llm=llm, throughput="log", start="busy")
        requests = busy.groupby(PLACE)["requests"].mean()
        per_group = (requests / requests.index).iloc[-1]
        top.set_title(f"{shown(llm)}\na group: {per_group:,.0f} requests", fontsize=10)
        bottom.set_xlabel("request groups in the queue")
        for axes in column:
            axes.set_xscale("log", base=2)
            axes.set_xticks([0.0625, 0.25, 1, 4], ["1/16", "1/4", "1", "4"])
            dress(axes)
    label_accuracy(figure, panels)
    return figure


READINGS = {
    "at work, throughput of a profiled batch": ("profile", "busy"),
    "at work, throughput as logged": ("log", "busy"),
    "idle, throughput as logged": ("log", "empty"),
}
"""Throughput and state of the instance; first sections 6 and 8.3: a single batch is profiled."""


@claimed
def claims(frame: DataFrame, parameters: Estimator) -> Iterator[Claim]:
    """R2 of 0.99 from four groups on; better with more; too long when short."""
    short, four = parameters.short_groups, parameters.claimed_groups
    long = [n for n in parameters.groups if n >= four]

    def judged(sentence: str, judge: Callable[..., Claim], **words: Any) -> Claim:
        """All LLMs, by each reading."""
        parts = [
            every(
                reading,
                least_first(
                    judge(shown(llm), where(frame, llm=llm, throughput=throughput, start=start))
                    for llm in parameters.llms
                ),
            )
            for reading, (throughput, start) in READINGS.items()
        ]
        return read(sentence, parts, **words)

    def accurate(llm: str, part: DataFrame) -> Claim:
        least = min((_at(part, n, "r2") for n in long), key=lambda r2: r2.mean)
        return at_least(llm, 0.99, least, nothing=None, unit="R2")

    def rises(llm: str, part: DataFrame) -> Claim:
        r2 = wide(part, PLACE, "r2")
        return more(llm, 0, mean_interval(r2[four] - r2[short]), unit="more R2")

    def conservative(llm: str, part: DataFrame) -> Claim:
        return more(llm, 0, _at(part, short, "bias"), unit="bias, of the true mean wait")

    if long:
        yield judged(
            f"With {four:g} request groups the estimator reaches an accuracy of 0.99",
            accurate,
            paper="R2 of 0.99",
            how="outputs ahead by their mean, over the throughput of one profiled batch",
            reason="one profiled batch knows no preemption, so that its throughput is too high where memory "
            "limits the batch",
            setting=f"the least of {four:g} groups and more; section 8.3 profiles a single batch",
        )
    if {short, four} <= set(parameters.groups):
        yield judged(
            "As the number of request groups increases, the estimate becomes more accurate",
            rises,
            paper="rises (curve)",
            how="errors of single outputs average out",
            setting=f"{four:g} groups against {short:g}",
        )
    if short in parameters.groups:
        yield judged(
            "Estimates for short queues are conservative, that is too long",
            conservative,
            paper="higher (no number)",
            how="the estimate knows nothing of a first batch that is admitted at once",
            reason="at work the estimate has no margin, and a profiled batch knows no preemption; "
            "estimates are too long where the instance is idle",
            setting=f"{short:g} groups in the queue",
        )


def _at(part: DataFrame, groups: float, what: str) -> Interval:
    return interval_of(where(part, **{PLACE: groups})[what])
