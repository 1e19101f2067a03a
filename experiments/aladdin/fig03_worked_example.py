"""The worked example of placement: shortest queue, the best placement, and Algorithm 1.

Four requests, two with a long prompt and two with a long output, go to two workers that hold 9 tokens of
KV each. Drawn is what each worker holds in each iteration if both of its requests begin together. A
worker that would need more than it has must let a request wait.

The paper's text gives the peaks and not the lengths. Prompts of 4 and 1 with outputs of 1 and 4 tokens
are the only whole ones that give them, counted as the paper's vector w does, which keeps a request for
the moment after its last token (`count_last_token`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from baselines.aladdin.placement import best_fit, figure_3, shortest_queue, smallest_peak
from experiments.harness.claims import Claim, exact, exactly
from experiments.harness.figure import SEEDS, Grid, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 3"
PLACEMENTS = {
    "shortest": "join the shortest queue",
    "best": "best placement (all tried)",
    "best-fit": "best fit (Algorithm 1)",
}
WORKERS = 2


class WorkedExample(Parameters):
    """Parameters of this figure."""

    seeds: Annotated[int, ours("nothing is random", ge=1, le=1)] = 1
    kv_capacity: Annotated[float, paper("section 4.2", gt=0)] = 9.0
    count_last_token: Annotated[bool, paper("section 4.2: w ends with kv(l_in + l_pred)")] = True


PARAMETERS = {"quick": WorkedExample(), "paper": WorkedExample()}


cases = Grid({"seed": SEEDS, "placement": PLACEMENTS}, keep=("kv_capacity", "count_last_token"))


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """KV memory of each request in each iteration, by worker."""
    example = figure_3()
    rules = replace(
        example.rules, kv_capacity=case["kv_capacity"], count_last_token=case["count_last_token"]
    )
    empty = ((),) * WORKERS
    placed = {
        "shortest": lambda: shortest_queue(example.requests, empty),
        "best": lambda: smallest_peak(example.requests, empty, rules),
        "best-fit": lambda: best_fit(example.requests, empty, rules, most_workers=WORKERS),
    }[case["placement"]]()
    return [
        {
            "request": j + 1,
            "worker": worker + 1,
            "input_tokens": request.input_tokens,
            "output_tokens": int(request.predicted_tokens),
            "iteration": k,
            "kv": rules.kv_at(request, k) if worker >= 0 else None,
        }
        for j, (request, worker) in enumerate(zip(example.requests, placed.assigned, strict=True))
        for k in range(rules.iterations(request))
    ]


def peak(frame: DataFrame, placement: str) -> float:
    """KV memory that the fuller worker needs at its peak."""
    mine = where(frame, placement=placement).astype({"kv": float})
    return float(mine.groupby(["worker", "iteration"])["kv"].sum().max())


def plot(frame: DataFrame, parameters: WorkedExample) -> Any:
    """A panel per placement: memory by iteration, a stack of requests for each worker."""
    figure = new_figure(11.0, 3.8)
    panels = figure.subplots(1, len(PLACEMENTS), sharey=True)
    for axes, (placement, name) in zip(panels, PLACEMENTS.items(), strict=True):
        mine = where(frame, placement=placement)
        last = int(frame["iteration"].max())
        for worker in range(1, WORKERS + 1):
            below = np.zeros(last + 1)
            for request, part in where(mine, worker=worker).groupby("request"):
                height = np.zeros(last + 1)
                height[part["iteration"].to_numpy(int)] = part["kv"].to_numpy(float)
                first = part.iloc[0]
                label = (
                    f"request {request}: prompt {first['input_tokens']}, output "
                    f"{first['output_tokens']}"
                )
                place = np.arange(last + 1) + (worker - 1) * (last + 2.5)
                axes.bar(place, height, bottom=below, color=f"C{request - 1}", label=label)
                below += height
        axes.axhline(parameters.kv_capacity, color="k", lw=1, ls="--", label="capacity of a worker")
        ticks = [k + w * (last + 2.5) for w in range(WORKERS) for k in range(last + 1)]
        axes.set_xticks(ticks, [str(k % (last + 1)) for k in range(WORKERS * (last + 1))])
        axes.set_xlabel("iteration: worker 1 (left), worker 2 (right)")
        axes.set_title(f"{name}: peak {peak(frame, placement):g}", fontsize=10)
    panels[0].set_ylabel("KV memory of a worker (tokens)")
    known = dict(zip(*reversed(panels[0].get_legend_handles_labels()), strict=True))
    names = sorted(known)
    handles = [known[name] for name in names]
    figure.legend(handles, names, fontsize=8, ncols=3, loc="outside lower center")
    return figure


def claims(frame: DataFrame, parameters: WorkedExample) -> list[Claim]:
    """Section 4.2."""
    peaks = {name: exact(peak(frame, name)) for name in PLACEMENTS}
    words: dict[str, Any] = {
        "unit": "tokens",
        "reason": "the lengths follow from the text's numbers with count_last_token only",
    }
    return [
        exactly(
            "With join the shortest queue, both workers need more at the peak than the 9 tokens they hold",
            10,
            peaks["shortest"],
            how="each request goes to the worker with fewer of them: two long prompts share one worker",
            **words,
        ),
        exactly(
            "With the best placement, no worker needs more than 7 tokens",
            7,
            peaks["best"],
            how="all placements tried: a long prompt and a long output share a worker",
            **words,
        ),
    ]
