"""Inter-token latency and token throughput against the batch size, with the inflection.

One saturated instance of each model under a growing batch limit: a queue of ShareGPT requests that never
runs empty, prefill first, preemption by recomputation. Throughput rises until KV memory runs out; then
requests are preempted and computed again. Throughput then falls only if the engine keeps no KV memory free at
admission (0 %); with vLLM's default of 1 % it levels off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PositiveInt

from experiments.chiron.instance import backlog, measure
from experiments.harness.claims import Claim, at_least, at_most, every, led_by
from experiments.harness.figure import SEEDS, Grid, by_seed, claimed, dress, line, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from llmscale_env.cluster.iteration_time import iteration_time_model

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 3"
GPU = "a100-80gb"
TENSOR_PARALLEL = {"llama-3.1-8b": 1, "llama-3.1-70b": 4}


class BatchSize(Parameters):
    """Parameters of this figure."""

    llms: Annotated[
        tuple[Literal["llama-3.1-8b", "llama-3.1-70b"], ...], paper("section 6", min_length=1)
    ] = ("llama-3.1-8b", "llama-3.1-70b")
    batch_limits: Annotated[
        tuple[PositiveInt, ...],
        ours("powers of two and some between them, to 4096", min_length=1),
    ] = (8, 16, 32, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
    kv_watermarks: Annotated[
        tuple[Annotated[float, Field(ge=0, lt=1)], ...],
        ours("none, and vLLM's default", min_length=1, max_length=4),
    ] = (0.0, 0.01)
    lengths: Annotated[str, ours("ShareGPT as serving benchmarks use it")] = "sharegpt-single-turn"
    preemption: Annotated[Literal["recompute", "swap"], ours("vLLM's default")] = "recompute"
    queued: Annotated[int, ours("outlasts the run", ge=1)] = 200_000
    warm_up_s: Annotated[int, ours("until the batch is full and old", ge=0)] = 1200
    measured_s: Annotated[int, ours("some thousand requests", ge=1)] = 2400


PARAMETERS = {
    "quick": BatchSize(
        seeds=1,
        batch_limits=(8, 64, 256, 512, 1024, 4096),
        queued=60_000,
        warm_up_s=600,
        measured_s=900,
    ),
    "paper": BatchSize(seeds=3),
}


cases = Grid(
    {"seed": SEEDS, "llm": "llms", "kv_watermark": "kv_watermarks", "batch_limit": "batch_limits"},
    keep=("lengths", "preemption", "queued", "warm_up_s", "measured_s"),
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Throughput and latency of one saturated instance."""
    found = measure(
        iteration_time_model(case["llm"], GPU, TENSOR_PARALLEL[case["llm"]]),
        backlog(case["lengths"], case["queued"], case["seed"]),
        case["batch_limit"],
        watermark=case["kv_watermark"],
        preemption=case["preemption"],
        warm_up_s=case["warm_up_s"],
        measured_s=case["measured_s"],
    )
    return [vars(found)]


def plot(frame: DataFrame, parameters: BatchSize) -> Any:
    """One panel per model: throughput on the left axis, latency on the right."""
    figure = new_figure(5.6 * len(parameters.llms), 4.2)
    panels = figure.subplots(1, len(parameters.llms), squeeze=False)[0]
    for axes, llm in zip(panels, parameters.llms, strict=True):
        latency = axes.twinx()
        for watermark, style in zip(parameters.kv_watermarks, ("-", ":", "--", "-."), strict=False):
            mine = where(frame, llm=llm, kv_watermark=watermark)
            look: dict[str, Any] = {"x": "batch_limit", "band": None, "ms": 4}
            name = f"{watermark:.0%} of KV memory kept free"
            line(axes, mine, y="tokens_per_s", style=f"o{style}", color="C0", label=name, **look)
            line(latency, mine, y="itl_s", style=f"s{style}", color="C3", **look)
        axes.set_xscale("log", base=2)
        axes.set_xticks([8, 32, 128, 512, 2048], [8, 32, 128, 512, 2048])
        axes.set_ylabel("throughput (tokens/s), circles", color="C0")
        latency.set_ylabel("mean inter-token latency (s), squares", color="C3")
        latency.set_ylim(bottom=0)
        title = f"{llm}, {TENSOR_PARALLEL[llm]} x {GPU}"
        dress(axes, title=title, bottom=0, legend="upper left", xlabel="batch limit (requests)")
    return figure


@claimed
def claims(frame: DataFrame, parameters: BatchSize) -> Iterator[Claim]:
    """Section 2.3: both rise with the batch. Section 4.1: throughput falls beyond an inflection point."""
    smallest = min(parameters.batch_limits)
    if smallest == max(parameters.batch_limits):
        return
    frame = frame.sort_values("batch_limit")
    models = {llm: llm.removeprefix("llama-3.1-").upper() for llm in parameters.llms}
    kept = where(frame, kv_watermark=parameters.kv_watermarks[-1])
    quantities = (
        ("latency", lambda one: one["itl_s"].iloc[-1] / one["itl_s"].iloc[0]),
        ("throughput", lambda one: one["tokens_per_s"].max() / one["tokens_per_s"].iloc[0]),
    )
    yield every(
        "A larger batch raises both inter-token latency and throughput",
        [
            at_least(
                f"{name}, {what}",
                1.01,
                by_seed(where(kept, llm=llm), growth),
                nothing=1.0,
                unit=f"x the one at a batch of {smallest}",
            )
            for llm, name in models.items()
            for what, growth in quantities
        ],
        paper="both rise (curve)",
        how="an iteration that decodes more requests takes longer, but by less than it yields more tokens",
        setting="latency at the largest batch limit, throughput at the best",
    )
    yield led_by(
        "Beyond an inflection point a larger batch lowers throughput",
        [
            every(
                f"{watermark:.0%} of KV memory kept free",
                [
                    at_most(
                        name,
                        0.99,
                        by_seed(where(frame, llm=llm, kv_watermark=watermark), _left_at_largest),
                        nothing=1.0,
                        unit="of the largest throughput, at the largest batch",
                    )
                    for llm, name in models.items()
                ],
            )
            for watermark in reversed(parameters.kv_watermarks)
        ],
        paper="falls (curve)",
        how=f"requests that do not fit are preempted and computed again: {_preempted(frame)}",
        reason=f"throughput levels off; with none kept free it falls. {_preempted(frame).capitalize()}",
        setting="vLLM's default, as the paper runs vLLM",
    )


def _left_at_largest(one: DataFrame) -> float:
    """Throughput at the largest batch over the largest throughput."""
    return float(one["tokens_per_s"].iloc[-1] / one["tokens_per_s"].max())


def _preempted(frame: DataFrame) -> str:
    """How often a request is preempted at the largest batch, by the memory kept free."""
    largest = frame[frame["batch_limit"] == frame["batch_limit"].max()]
    mean = largest.groupby("kv_watermark")["preemptions_per_request"].mean()
    shares = ", ".join(f"{each:.2f} with {watermark:.0%} free" for watermark, each in mean.items())
    return f"preemptions per request at the largest batch {shares}"
