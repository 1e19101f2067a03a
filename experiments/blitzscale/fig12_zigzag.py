"""The 7-layer example: best effort takes 32, zigzag 22.

Six batches wait at an instance of a 7-layer LLM when another has loaded its first layer, and the next layers
come one every six layer-times. Left is what both execute, by best effort and by zigzag. Right is throughput
when the new instance has so many layers and no more come, against one instance alone (section 4's example).

Best effort runs as many layers as are loaded, once. Zigzag is drawn as the released code pulls (one layer of
the first batch that still can have one); the integer programme with C3 corrected gives the same here. Times
count from when the first layer has come; the paper's 32 and 22 are the last request's, counted from when the
new instance takes it, at 5. On the right an endless queue is cut off at the number of batches given.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from baselines.blitzscale.live import SOURCE, TARGET, Execution, execute, loaded_at
from baselines.blitzscale.zigzag import best_effort, zigzag
from experiments.harness.claims import (
    Claim,
    about,
    asked,
    every,
    exact,
    exactly,
    gain,
    led_by,
    less,
)
from experiments.harness.figure import claimed, dress, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from llmscale_env.cluster.cards import llm_card
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.cluster.loading import GBIT_PER_S

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 12"
LAYERS = 7
"""Of the paper's example."""

RULES = {
    "best-effort": "best effort",
    "pull": "zigzag (pulling)",
    "programme": "zigzag (programme)",
}


class Zigzag(Parameters):
    """Parameters of this figure."""

    seeds: Annotated[int, ours("nothing is random", ge=1, le=1)] = 1
    layers: Annotated[int, paper("section 5.2", ge=2)] = LAYERS
    load_time: Annotated[float, paper("section 5.2: layers executed while one loads", gt=0)] = 6.0
    batches: Annotated[int, paper("section 5.2: requests 1 to 6", ge=2)] = 6
    endless: Annotated[int, ours("batches of a queue that never ends", ge=10)] = 200
    llm: Annotated[str, paper("section 5.2: Llama2-7B")] = "llama-2-7b"
    tokens: Annotated[int, paper("section 5.2: a moderate batch", ge=1)] = 2000
    link_gbps: Annotated[float, paper("section 5.2: RDMA", gt=0)] = 200.0


PARAMETERS = {"quick": Zigzag(), "paper": Zigzag()}


def cases(parameters: Zigzag) -> list[dict[str, Any]]:
    """A run per rule and number of layers, one for the programme as printed, one for a layer's time."""
    (seed,) = parameters.seed_list()
    shape = parameters.model_dump(include={"layers", "load_time", "batches"})
    real = parameters.model_dump(include={"llm", "tokens", "link_gbps"})
    return [
        *({"seed": seed, "part": "example", "rule": rule, **shape} for rule in RULES),
        {"seed": seed, "part": "average", **shape},
        *(
            {
                "seed": seed,
                "part": "throughput",
                "loaded": loaded,
                "layers": parameters.layers,
                "batches": parameters.endless,
            }
            for loaded in range(parameters.layers + 1)
        ),
        {"seed": seed, "part": "layer", **real},
    ]


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of a part."""
    return {"example": _example, "average": _average, "throughput": _throughput, "layer": _layer}[
        case["part"]
    ](case)


def executed(case: Mapping[str, Any]) -> Execution:
    """What both instances do in the example."""
    layers, n = case["layers"], case["batches"]
    loads = loaded_at(layers, case["load_time"])
    rule = zigzag(layers, case["load_time"], n) if case["rule"] == "programme" else case["rule"]
    return execute(rule, loads, (1.0,) * n)


def _example(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    done = executed(case)
    return [
        {
            "instance": step.instance,
            "batch": step.batch + 1,
            "first": step.first + 1,
            "count": step.layers,
            "begin": step.begin,
            "end": step.end,
            "latency": done.latency(step.batch),
        }
        for step in done.steps
    ]


def _average(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    layers, load, n = case["layers"], case["load_time"], case["batches"]
    pipelines = {
        "corrected": zigzag(layers, load, n),
        "printed": zigzag(layers, load, n, form="printed"),
        "best-effort": best_effort(layers, 1, n),
    }
    return [
        {
            "form": name,
            "average": each.average,
            "target_layers": " ".join(map(str, each.target_layers)),
            "third": each.latencies[min(2, n - 1)],
        }
        for name, each in pipelines.items()
    ]


def _throughput(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Batches per layer-time in the middle half of the queue."""
    layers, n, loaded = case["layers"], case["batches"], case["loaded"]
    loads = (0.0,) * loaded + (math.inf,) * (layers - loaded)
    ends = sorted(execute("pull", loads, (1.0,) * n).finished)
    first, last = n // 4, 3 * n // 4
    return [{"per_time": (last - first) / (ends[last] - ends[first])}]


def _layer(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    card = llm_card(case["llm"])
    load_s = card.weight_bytes / card.layers / (case["link_gbps"] * GBIT_PER_S)
    run_s = (
        iteration_time_model(case["llm"], "a100-80gb", 1).prefill_s(case["tokens"]) / card.layers
    )
    return [{"load_s": load_s, "execute_s": run_s}]


def plot(frame: DataFrame, parameters: Zigzag) -> Any:
    """What both execute by rule, and the throughput."""
    figure = new_figure(13.0, 4.6)
    grid = figure.add_gridspec(2, 2, width_ratios=(2.2, 1))
    example = where(frame, part="example")
    end = float(example["end"].astype(float).max())
    for row, rule in enumerate(("best-effort", "pull")):
        axes = figure.add_subplot(grid[row, 0])
        for step in where(example, rule=rule).itertuples():
            y = {TARGET: 1, SOURCE: 0}[step.instance]
            wide = float(step.end) - float(step.begin)
            axes.barh(y, wide, left=float(step.begin), height=0.8, color=f"C{int(step.batch) - 1}",
                      edgecolor="w", lw=0.6)  # fmt: skip
            axes.text((float(step.begin) + float(step.end)) / 2, y, f"{int(step.batch)}",
                      ha="center", va="center", fontsize=7, color="w")  # fmt: skip
        loads = loaded_at(parameters.layers, parameters.load_time)
        for k, at in enumerate(loads):
            if at <= end - 1.5:
                axes.axvline(at, color="0.4", ls=":", lw=1)
                axes.text(at + 0.1, 1.62, f"layer {k + 1}", fontsize=7, color="0.3")
        axes.set_yticks([0, 1], ["inst. 0\n(overloaded)", "inst. 1\n(loading)"], fontsize=8)
        axes.set_ylim(-0.6, 1.95)
        axes.set_xlim(0, end + 0.5)
        latency = last_latency(frame, rule)
        axes.set_title(f"{RULES[rule]}: batch {parameters.batches} takes {latency:g} "
                       "from when inst. 1 takes it", fontsize=10)  # fmt: skip
        if row:
            axes.set_xlabel("executions of a layer since the first has come (numbers: batches)")
        else:
            axes.tick_params(labelbottom=False)
    axes = figure.add_subplot(grid[:, 1])
    part = where(frame, part="throughput").astype({"loaded": int, "per_time": float})
    part = part.sort_values("loaded")
    alone = 1 / parameters.layers
    axes.plot(part["loaded"], part["per_time"] / alone, "o-", label="both instances, pulling")
    axes.axhline(1, color="k", ls="--", lw=1, label="the overloaded one alone")
    axes.axhline(2, color="k", ls=":", lw=1, label="doubled")
    dress(
        axes,
        ylim=(0, 2.2),
        xlabel="layers that the new instance has",
        ylabel=f"throughput (times 1/{parameters.layers})",
        legend="lower right",
    )
    return figure


def last_latency(frame: DataFrame, rule: str, batch: int | None = None) -> float:
    """Latency of a batch, the last one if left out, from when it was first taken."""
    mine = where(frame, part="example", rule=rule).astype({"batch": int})
    batch = int(mine["batch"].max()) if batch is None else batch
    return float(where(mine, batch=batch)["latency"].astype(float).iloc[0])


def is_papers(parameters: Zigzag) -> bool:
    """Whether the example is the one that the paper works out."""
    return (parameters.layers, parameters.load_time, parameters.batches) == (LAYERS, 6, 6)


BURSTS = (12, 8, 16, 24, 32)
"""Batches of a burst on Llama-2-7B: first "a dozen or so" (section 5.2)."""


def burst_saving(layers: int, load_time: float, batches: int) -> float:
    """By how many per cent pulling ends a burst sooner than best effort, from the first layer on."""
    loads, work = loaded_at(layers, load_time), (1.0,) * batches
    pulled, plain = (max(execute(rule, loads, work).finished) for rule in ("pull", "best-effort"))
    return 100 * (1 - pulled / plain)


@claimed
def _worked(frame: DataFrame) -> Iterator[Claim]:
    """The numbers of the paper's example, which are exact."""
    unit = "executions of a layer"
    yield every(
        "The inference time of request 6 falls from 32 to 22",
        [
            exactly(words, number, exact(last_latency(frame, rule)), unit=unit)
            for rule, words, number in (
                ("pull", "zigzag, pulling", 22),
                ("programme", "zigzag, programme", 22),
                ("best-effort", "best effort", 32),
            )
        ],
        paper="32 to 22",
        how="both instances execute the six batches layer by layer, by each rule",
        setting="the paper's example",
    )
    third = where(frame, part="average", form="corrected")["third"]
    yield exactly(
        "Request 3's latency is 17",
        17,
        exact(float(third.iloc[0])),
        unit=unit,
        how="the optimum of the integer programme",
        setting="the paper's example",
        reason="the paper's sum has request 2 at (1, 6), so that requests 1 and 2 take 12; the figure "
        "and the optimum have it at (2, 5), which makes that 11",
    )


@claimed
def claims(frame: DataFrame, parameters: Zigzag) -> Iterator[Claim]:
    """32 and 22; a burst; throughput; a layer's load time; averages."""
    yield from _worked(frame) if is_papers(parameters) else []
    layers = llm_card(parameters.llm).layers
    examples = (*((layers, n) for n in BURSTS), (parameters.layers, parameters.batches))
    yield led_by(
        "Zigzag scheduling achieves 50 % tail latency reduction under an extreme burst",
        [
            gain(
                f"{n} layers, {batches} batches",
                50,
                exact(burst_saving(n, parameters.load_time, batches)),
                nothing=0,
                unit="%",
            )
            for n, batches in examples
        ],
        paper="50 %",
        how="time until the last batch of a burst is done, pulling against best effort; nothing else "
        "differs",
        setting="the paper shows no run; section 5.2's sizes: a layer loads in 6 executions, a dozen or so "
        "batches on Llama-2-7B",
        reason="longer bursts have more batches after all layers are there, when both are alike",
    )
    part = where(frame, part="throughput").astype({"loaded": int, "per_time": float})
    rate = part.set_index("loaded")["per_time"] * parameters.layers
    half = (parameters.layers + 1) // 2
    how = "batches per time in the middle of an endless queue, pulling, with so many layers loaded"
    if parameters.layers == LAYERS:
        yield exactly(
            "After one layer has been loaded throughput rises from 1/7 to 1/6",
            7 / 6,
            exact(rate[1]),
            unit="times",
            how=how,
            reason=f"the endless queue is cut off, and the middle of it is {rate[1]:.4f} times as fast",
        )
    yield about(
        "Throughput has doubled after half of the layers",
        2,
        exact(rate[half]),
        nothing=1,
        unit="times",
        how=how,
    )
    layer = where(frame, part="layer").iloc[0]
    load_ms, run_ms = (1e3 * float(layer[name]) for name in ("load_s", "execute_s"))
    yield about(
        "The load time of one layer can do 6-layer computations",
        6,
        exact(load_ms / run_ms),
        nothing=1,
        unit="layers",
        how="bytes of a layer over link speed, against its prefill time on the calibrated A100",
        setting=f"{parameters.llm}, {parameters.tokens} tokens, {parameters.link_gbps:g} Gbps",
        reason=f"a layer loads in {load_ms:.1f} ms and executes in {run_ms:.1f} ms; the paper's own 0.65 s "
        "to load and its code's 13,000 tokens/s give 4.2",
    )
    average = where(frame, part="average").set_index("form")
    mean = average["average"].astype(float)
    yield asked(
        led_by(
            "Does the integer programme lower the average latency?",
            [
                less(words, 1, exact(mean[form] / mean["best-effort"]), unit="times best effort's")
                for form, words in (
                    ("printed", "as printed"),
                    ("corrected", "C3 as the text means it"),
                )
            ],
            paper="its aim",
            how="average latency of the programme's solution on the paper's example",
            reason="C3 as printed leaves the first batch free and gives nothing to the others: "
            f"T = ({average['target_layers']['printed']}); as the text means it the average is "
            f"{mean['corrected'] / mean['best-effort']:.2f} times best effort's",
        )
    )
