"""Tokens per second of an instance, by LLM and GPU.

Each LLM of the week on a VM with 8 A100 or 8 H100: tokens of a request over the seconds of the instance
that it takes (its prefill alone, its decode in the largest batch that KV memory and the ITL target
allow), for requests drawn from the week. Boxes are quartiles, whiskers the 5th and 95th percentile,
dots the ratio of the sums, which is theta of the integer programme. The paper measures or simulates
real deployments and prints no numbers with the figure; its two sentences are the claims. Iteration
times are measured end to end for Bloom-176B and Llama-2-70B, and from the roofline for the two
small ones, which nobody has measured on 8 GPUs: an upper bound, without the engine's own overhead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from agents.statistics import mean_interval
from baselines.sageserve.throughput import throughput
from experiments.harness.claims import Claim, at_least
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from experiments.sageserve.setting import SHOWN
from llmscale_env.workload.arrivals import Arrivals
from llmscale_env.workload.generate import draw_lengths
from llmscale_env.workload.week import WEEK_LLMS, sageserve_week

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 2"
PERCENTILES = (5, 25, 50, 75, 95)


class ByGpu(Parameters):
    """Parameters of this figure."""

    gpus: Annotated[tuple[str, ...], paper("Figure 2")] = ("a100-80gb", "h100-80gb")
    llms: Annotated[tuple[str, ...], paper("section 4: the four LLMs")] = WEEK_LLMS
    tp: Annotated[int, paper("Figure 2: VMs with 8 GPUs each", ge=1)] = 8
    itl_s: Annotated[float, ours("target latency; the paper names none", gt=0)] = 0.2
    requests: Annotated[int, ours("interactive requests that are drawn", ge=10)] = 20_000


PARAMETERS = {"quick": ByGpu(seeds=3, requests=3000), "paper": ByGpu()}


def cases(parameters: ByGpu) -> list[dict[str, Any]]:
    """A run per LLM, GPU and seed."""
    common = {"tp": parameters.tp, "itl_s": parameters.itl_s, "requests": parameters.requests}
    return [
        {"llm": llm, "gpu": gpu, "seed": seed, **common}
        for llm in parameters.llms
        for gpu in parameters.gpus
        for seed in parameters.seed_list()
    ]


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row: theta, and percentiles of the requests' own tokens per second."""
    lengths = next(
        stream.lengths
        for stream in sageserve_week().streams
        if stream.llm == case["llm"] and stream.slo_class == "interactive"
    )
    nobody = Arrivals(np.zeros(case["requests"], np.int64))
    inputs, outputs = draw_lengths(lengths, nobody, np.random.default_rng(case["seed"]))
    found = throughput(case["llm"], case["gpu"], case["tp"], inputs, outputs, itl_s=case["itl_s"])
    own = (inputs.astype(np.float64) + outputs) / found.busy_s
    return [
        {
            "tokens_per_s": found.tokens_per_s,
            "prompt_tokens_per_s": found.prompt_tokens_per_s,
            "batch": found.batch,
            "times": found.kind,
            **{f"p{p}": float(np.percentile(own, p)) for p in PERCENTILES},
        }
    ]


def plot(frame: DataFrame, parameters: ByGpu) -> Any:
    """Boxes by LLM, a colour per GPU."""
    figure = new_figure(9, 4.5)
    axes = figure.subplots()
    width = 0.8 / len(parameters.gpus)
    for k, gpu in enumerate(parameters.gpus):
        for x, llm in enumerate(parameters.llms):
            mine = frame[(frame["llm"] == llm) & (frame["gpu"] == gpu)]
            low, first, middle, third, high = (
                float(mine[f"p{p}"].astype(float).mean()) for p in PERCENTILES
            )
            box = {"whislo": low, "q1": first, "med": middle, "q3": third, "whishi": high}
            at = x + (k - (len(parameters.gpus) - 1) / 2) * width
            axes.bxp(
                [{**box, "fliers": []}],
                positions=[at],
                widths=0.8 * width,
                patch_artist=True,
                boxprops={"facecolor": f"C{k}", "alpha": 0.6},
                medianprops={"color": "k"},
                manage_ticks=False,
            )
            theta = mine["tokens_per_s"].astype(float).mean()
            axes.plot([at], [theta], "ko", ms=4)
            axes.annotate(
                f"{theta:,.0f}",
                (at, high),
                (0, 4),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
    for k, gpu in enumerate(parameters.gpus):
        axes.plot([], [], "s", color=f"C{k}", alpha=0.6, label=f"{parameters.tp} x {gpu}")
    axes.plot([], [], "ko", ms=4, label="theta (number above)")
    axes.set_xticks(range(len(parameters.llms)), [SHOWN.get(llm, llm) for llm in parameters.llms])
    axes.set_yscale("log")
    axes.set_ylabel("tokens per second of an instance")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper left")
    return figure


def claims(frame: DataFrame, parameters: ByGpu) -> list[Claim]:
    """Throughput drops with model size and improves on newer GPUs."""
    theta = frame.set_index(["llm", "gpu", "seed"])["tokens_per_s"].astype(float)

    def ratio(above: tuple[str, str], below: tuple[str, str]) -> Any:
        return mean_interval((theta.loc[above] / theta.loc[below]).to_numpy())

    old, new = parameters.gpus[0], parameters.gpus[-1]
    found = [
        at_least(
            f"Throughput drops with model size: {SHOWN['llama-2-70b']} over {SHOWN['bloom-176b']} on 8 {gpu}",
            1.05,
            ratio(("llama-2-70b", gpu), ("bloom-176b", gpu)),
            nothing=1,
            unit="times",
            paper="drops; ours: by 5 % or more",
        )
        for gpu in parameters.gpus
    ]
    found += [
        at_least(
            f"Throughput improves on newer GPUs: {SHOWN[llm]}, {new} over {old}",
            1.05,
            ratio((llm, new), (llm, old)),
            nothing=1,
            unit="times",
            paper="improves; ours: by 5 % or more",
        )
        for llm in ("bloom-176b", "llama-2-70b")
    ]
    return found
