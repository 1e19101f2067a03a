"""Tokens per second of an instance, by LLM and GPU.

Throughput of one VM with 8 A100 or 8 H100, for requests drawn from the week. It is the tokens of a request
over the seconds of the instance that it takes: its prefill alone, its decode in the largest batch that KV
memory and the ITL target allow. Boxes are quartiles, whiskers the 5th and 95th percentile, dots theta of
the integer programme (the ratio of the sums).

The paper measures or simulates real deployments and prints no numbers with the figure; its two sentences
are the claims. Iteration times are measured end to end for Bloom-176B and Llama-2-70B. Those of the two
small LLMs, which were not measured on 8 GPUs, are the roofline's: an upper bound, without the engine's own
overhead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from baselines.sageserve.throughput import throughput
from experiments.harness.claims import Claim, every, more
from experiments.harness.figure import SEEDS, Grid, claimed, dress, places, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from experiments.sageserve.setting import SHOWN, parts
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


cases = Grid({"llm": "llms", "gpu": "gpus", "seed": SEEDS}, keep=("tp", "itl_s", "requests"))


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
    names = ("whislo", "q1", "med", "q3", "whishi")
    for k, gpu in enumerate(parameters.gpus):
        at, width = places(k, len(parameters.gpus), len(parameters.llms))
        for x, llm in zip(at, parameters.llms, strict=True):
            mean = where(frame, llm=llm, gpu=gpu).mean(numeric_only=True)
            box = {name: mean[f"p{p}"] for name, p in zip(names, PERCENTILES, strict=True)}
            axes.bxp(
                [{**box, "fliers": []}],
                positions=[x],
                widths=0.8 * width,
                patch_artist=True,
                boxprops={"facecolor": f"C{k}", "alpha": 0.6},
                medianprops={"color": "k"},
                manage_ticks=False,
            )
            theta, look = mean["tokens_per_s"], {"ha": "center", "fontsize": 8}
            axes.plot([x], [theta], "ko", ms=4)
            high = (x, box["whishi"])
            axes.annotate(f"{theta:,.0f}", high, (0, 4), textcoords="offset points", **look)
    for k, gpu in enumerate(parameters.gpus):
        axes.plot([], [], "s", color=f"C{k}", alpha=0.6, label=f"{parameters.tp} x {gpu}")
    axes.plot([], [], "ko", ms=4, label="theta (number above)")
    axes.set_xticks(range(len(parameters.llms)), [SHOWN.get(llm, llm) for llm in parameters.llms])
    dress(axes, log="y", ylabel="tokens per second of an instance", legend="upper left")
    return figure


@claimed
def claims(frame: DataFrame, parameters: ByGpu) -> Iterator[Claim]:
    """Throughput drops with model size and improves on newer GPUs."""
    theta = frame.set_index(["llm", "gpu", "seed"])["tokens_per_s"]

    def over(one: tuple[str, str], other: tuple[str, str]) -> Any:
        return theta.loc[one] / theta.loc[other]

    large, small = "bloom-176b", "llama-2-70b"
    old, new = parameters.gpus[0], parameters.gpus[-1]
    how = "iteration times measured on both GPUs, with the batch that fits their memory"
    size = {gpu: over((small, gpu), (large, gpu)) for gpu in parameters.gpus}
    yield every(
        "Throughput drops with model size",
        parts(more, 1, size, unit="times"),
        paper="drops",
        setting=f"{SHOWN[small]} over {SHOWN[large]}",
        how=how,
    )
    age = {SHOWN[llm]: over((llm, new), (llm, old)) for llm in (large, small)}
    yield every(
        "Throughput improves on newer GPUs",
        parts(more, 1, age, unit="times"),
        paper="improves",
        setting=f"{new} over {old}",
        how=how,
    )
