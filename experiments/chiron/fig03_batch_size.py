"""Inter-token latency and token throughput against the batch size, with the inflection.

One instance of each model, saturated: a queue of ShareGPT requests (single turn) that never runs
empty, prefill first, preemption by recomputation. As the batch limit grows, throughput rises until KV
memory runs out; then requests are preempted and computed again. Whether throughput then falls depends
on the share of KV memory that the engine keeps free at admission: vLLM's default of 1 % all but
prevents preemption and throughput levels off, without it (0 %) it bends as the paper shows. Both are
drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PositiveInt

from experiments.chiron.instance import backlog, measure
from experiments.harness.claims import Claim, at_least, at_most
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
    """Both rise with the batch, and throughput has a largest value inside the range."""
    if len(set(parameters.batch_limits)) < 2:
        return
    frame = frame.sort_values("batch_limit")
    for llm in parameters.llms:
        for watermark in parameters.kv_watermarks:
            mine = where(frame, llm=llm, kv_watermark=watermark)
            yield at_most(
                "Beyond an inflection point a larger batch lowers throughput "
                f"({llm}, {watermark:.0%} kept free)",
                0.99,
                by_seed(mine, lambda one: one["tokens_per_s"].iloc[-1] / one["tokens_per_s"].max()),
                nothing=1.0,
                unit="of the largest throughput, at the largest batch",
                paper="falls (curve)",
                reason=_preempted(where(frame, llm=llm)),
            )
        for column, what, unit in (
            ("tokens_per_s", "throughput", "best"),
            ("itl_s", "inter-token latency", "largest"),
        ):
            yield at_least(
                f"A larger batch raises {what} ({llm})",
                1.01,
                by_seed(mine, partial(_growth, column=column, unit=unit)),
                nothing=1.0,
                unit=f"x from a batch of {min(parameters.batch_limits)} to the {unit}",
                paper="rises (curve)",
                note=_rises(mine, column),
            )


def _growth(one: DataFrame, column: str, unit: str) -> float:
    """The best or the last value of a column over that of the smallest batch."""
    values = one[column]
    return float((values.max() if unit == "best" else values.iloc[-1]) / values.iloc[0])


def _preempted(frame: DataFrame) -> str:
    """How often the largest batch is preempted, by what is kept free."""
    largest = frame[frame["batch_limit"] == frame["batch_limit"].max()]
    mean = largest.groupby("kv_watermark")["preemptions_per_request"].mean()
    shares = ", ".join(f"{each:.2f} with {watermark:.0%}" for watermark, each in mean.items())
    return f"preemptions per request at the largest batch, by KV memory kept free: {shares}"


def _rises(frame: DataFrame, column: str) -> str:
    """At how many steps to a larger batch a column rises by a per cent or more, and falls so."""
    mean = frame.groupby("batch_limit")[column].mean()
    ratio = (mean / mean.shift()).dropna()
    up, down = int((ratio > 1.01).sum()), int((ratio < 0.99).sum())
    return f"of {len(ratio)} steps to a larger batch {up} raise it by more than 1 %, {down} lower it so"
