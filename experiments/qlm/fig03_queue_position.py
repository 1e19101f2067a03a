"""Waiting time against the position in the queue.

ShareGPT requests (single turn) wait in one queue in front of one instance with continuous batching that has
been at work on such requests for some time. The figure shows how long the k-th of them waits until it joins
the running batch, and what section 2.4 estimates. Queue length, batch limit and GPUs per instance are ours,
since the paper shows its axes in the picture only.

The estimate is the output tokens ahead over the token throughput, with the mean output of requests that have
finished and the throughput at which the instance served them. R2 of a straight line through the waits says
how linear waiting is, R2 of the estimate how accurate it is; the paper gives one number, 0.99, for the
latter. Where the estimate is a little short, that is partly because short outputs finish first: the history
has a lower mean than the queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from baselines.backpressure import waiting_time_s
from experiments.chiron.instance import backlog
from experiments.chiron.queue_waits import observe, r_squared
from experiments.harness.claims import Claim, at_least, every
from experiments.harness.figure import (
    SEEDS,
    Grid,
    claimed,
    dress,
    interval_of,
    where,
)
from experiments.harness.figure import (
    line as draw_line,
)
from experiments.harness.parameters import ours, paper
from experiments.output import new_figure
from experiments.qlm.readings import least_first
from experiments.qlm.setting import PaperLlms, gpus_per_instance, shown
from llmscale_env.cluster.iteration_time import iteration_time_model

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 3"
GPU = "a100-80gb"


class QueuePosition(PaperLlms):
    """Parameters of this figure."""

    queue: Annotated[int, paper("section 8: requests of a trace", ge=10)] = 3500
    points: Annotated[int, ours("positions that are drawn", ge=2)] = 100
    batch_limit: Annotated[int, ours("vLLM's default", ge=1)] = 256
    lengths: Annotated[str, ours("ShareGPT as serving benchmarks use it")] = "sharegpt-single-turn"
    queued: Annotated[int, ours("outlasts the history by the queue", ge=1)] = 40_000
    warm_up_s: Annotated[int, ours("until the batch is full and old", ge=0)] = 600
    history_s: Annotated[int, ours("half an hour of work before", ge=1)] = 1800


PARAMETERS = {"quick": QueuePosition(seeds=5), "paper": QueuePosition(seeds=30)}


cases = Grid(
    {"seed": SEEDS, "llm": "llms"},
    keep=("queue", "points", "batch_limit", "lengths", "queued", "warm_up_s", "history_s"),
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Some positions with their waits; R2 over all positions stands in every row."""
    waits = observe(
        iteration_time_model(case["llm"], GPU, gpus_per_instance(case["llm"])),
        backlog(case["lengths"], case["queued"], case["seed"]),
        instances=1,
        batch_limit=case["batch_limit"],
        warm_up_s=case["warm_up_s"],
        history_s=case["history_s"],
        queue=case["queue"],
    )
    history, place = waits.history, np.arange(case["queue"])
    estimate = waiting_time_s(
        place, history.mean_tokens, history.std_tokens, history.tokens_per_s, 0.5
    )
    line = straight(waits.busy_s)
    fits = {
        "r2_line": r_squared(waits.busy_s, line),
        "r2_estimate": r_squared(waits.busy_s, estimate),
        "slope_s": float(line[1] - line[0]),
        "tokens_per_s": history.tokens_per_s,
    }
    drawn = np.unique(np.rint(np.linspace(0, case["queue"] - 1, case["points"])).astype(int))
    return [
        {
            "position": int(k),
            "wait_s": float(waits.busy_s[k]),
            "estimate_s": float(estimate[k]),
            **fits,
        }
        for k in drawn
    ]


def straight(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The least-squares line through values at 0, 1, 2, ..."""
    place = np.arange(len(values))
    return np.asarray(np.polyval(np.polyfit(place, values, 1), place), np.float64)


def excerpt(frame: DataFrame, parameters: QueuePosition) -> DataFrame:
    """Every tenth position: the lines are straight."""
    positions = sorted(frame["position"].unique())
    few = [*positions[::10], positions[-1]]
    columns = ["seed", "llm", "position", "wait_s", "estimate_s", "r2_estimate"]
    return frame.loc[frame["position"].isin(few), columns]


def plot(frame: DataFrame, parameters: QueuePosition) -> Any:
    """Mean wait by position with its spread over seeds, and the mean estimate, for each LLM."""
    figure = new_figure(6.6, 4.6)
    axes = figure.subplots()
    estimate: dict[str, Any] = {"color": "0.2", "lw": 1, "style": ":"}
    for llm in parameters.llms:
        mine = where(frame, llm=llm)
        r2 = mine.groupby("seed")["r2_estimate"].first().mean()
        name = f"{shown(llm)} (R2 of the estimate {r2:.3f})"
        look: dict[str, Any] = {"color": f"C{parameters.llms.index(llm)}", "label": name}
        draw_line(axes, mine, "position", "wait_s", "-", band=(0.1, 0.9), shade=0.2, lw=1.8, **look)
        draw_line(axes, mine, "position", "estimate_s", band=None, **estimate)
    axes.plot([], [], ":", color="0.2", lw=1, label="estimate: tokens ahead over throughput")
    title = "Lines: mean over seeds; bands: 10 to 90 %"
    labels = {"xlabel": "position in the queue (requests ahead)", "ylabel": "time to admission (s)"}
    axes.set(xlim=(0, None), **labels)
    dress(axes, title=title, size=9, bottom=0, legend="upper left")
    return figure


@claimed
def claims(frame: DataFrame, parameters: QueuePosition) -> Iterator[Claim]:
    """Waiting is linear in the position, and the estimate accurate."""
    by_llm = {shown(llm): where(frame, llm=llm).groupby("seed") for llm in parameters.llms}
    for sentence, column, unit, paper_says, how in (
        (
            "Waiting time is linear in the queue position",
            "r2_line",
            "R2 of a straight line",
            "linear (curve)",
            "an instance with continuous batching admits requests at a steady rate",
        ),
        (
            "Tokens ahead over throughput estimate the waiting time with an R2 of 0.99",
            "r2_estimate",
            "R2",
            "0.99",
            "the mean output of finished requests and the throughput that the instance has logged",
        ),
    ):
        parts = [
            at_least(
                llm, 0.99, interval_of(by.first()[column]), nothing=None, unit=unit, reason=_off(by)
            )
            for llm, by in by_llm.items()
        ]
        yield every(
            sentence,
            least_first(parts),
            paper=paper_says,
            how=how,
            setting=f"{parameters.queue:,} requests ahead at most",
        )


def _off(by: Any) -> str:
    """How far the estimate is from the last one's wait, over the seeds."""
    last = by.last()
    off = 100 * ((last["estimate_s"] / last["wait_s"]).astype(float) - 1)
    return f"for the last position the estimate is {off.min():+.1f} to {off.max():+.1f} % off"
