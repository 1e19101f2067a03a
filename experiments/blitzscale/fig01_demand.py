"""Requests, computation and memory of the conversation trace over time.

AzureConv's own counts per second on Llama-2-7B: (a) requests, (b) instances that computing them within the
targets takes, (c) KV cache that they hold. The left column is the whole hour, the right one the minute around
the steepest rise.

Computation is the prefill of each second's requests at the speed of one instance, and decode as the KV cache
that is held over that of the largest batch within 150 ms and memory; no queue smooths it. Arrivals are placed
at random within each second, lengths come from the trace's joint table; `traces=FOLDER` replays the trace
itself, request by request. Ours: a rise counts from seconds with at least half of the mean rate (from nothing
it is infinite), to the larger of the next two; KV cache is input and half of the output, from arrival to the
last token at the pace of a full batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from agents.statistics import mean_interval
from experiments.blitzscale.demand import bounds, demand
from experiments.blitzscale.setting import requests_of
from experiments.harness.claims import Claim, about, at_least, every, exact
from experiments.harness.figure import dress, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.harness.picture import Published
from experiments.output import new_figure
from llmscale_env.cluster.kv import kv_capacity_tokens
from llmscale_env.workload import StreamConfig, WorkloadConfig
from llmscale_env.workload.fitting import rises
from llmscale_env.workload.mixes import replayed
from llmscale_env.workload.tables import load_counts, load_lengths

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 1"
SERIES = ("second",)
GB = 1e9
EDGE_S = 60
"""The trace starts from nothing and ends: memory is looked at between the first and the last minute."""


class DemandOverTime(Parameters):
    """Parameters of this figure."""

    table: Annotated[str, paper("Figure 1: AzureConv")] = "azure-conv-2023"
    lengths: Annotated[str, paper("section 6: each trace with its own")] = "azure-conv"
    llm: Annotated[str, paper("section 2.2: Llama2-7B")] = "llama-2-7b"
    gpu: Annotated[str, ours("cluster A's A800 is calibrated as A100")] = "a100-80gb"
    ttft_s: Annotated[float, paper("section 3", gt=0)] = 0.45
    itl_s: Annotated[float, paper("section 3", gt=0)] = 0.15
    within_s: Annotated[int, paper("section 2.2: within 2 seconds", ge=1)] = 2
    base: Annotated[float, ours("least rate a rise starts from, over the mean", ge=0)] = 0.5
    traces: Annotated[str, ours("folder of the real traces; empty: counts and length table")] = ""


PARAMETERS = {"quick": DemandOverTime(seeds=3), "paper": DemandOverTime(seeds=20)}


def cases(parameters: DemandOverTime) -> list[dict[str, Any]]:
    """A run per seed: other lengths, other places within a second."""
    common = parameters.model_dump(exclude={"seeds"})
    return [{"seed": seed, **common} for seed in parameters.seed_list()]


def workload_of(case: Mapping[str, Any]) -> tuple[WorkloadConfig, int]:
    """The trace from its start at its own rate, and its seconds."""
    stream = StreamConfig(
        name="conversation",
        llm=case["llm"],
        arrivals={"kind": "counts", "table": case["table"], "start_s": 0.0},  # type: ignore[arg-type]
        lengths=case["lengths"],
    )
    workload = WorkloadConfig(streams=(stream,))
    if case["traces"]:
        workload = replayed(workload, case["traces"])
    return workload, len(load_counts(case["table"]).counts)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per second, and one with the largest rise of a Poisson process of the same mean."""
    workload, seconds = workload_of(case)
    table = load_lengths(case["lengths"])
    inputs, outputs = table.sample(20_000, np.random.default_rng(0))
    limits = bounds(
        case["llm"],
        case["gpu"],
        1,
        ttft_s=case["ttft_s"],
        itl_s=case["itl_s"],
        mean_input_tokens=float(inputs.mean()),
        mean_output_tokens=float(outputs.mean()),
    )
    found = demand(requests_of(workload, float(seconds), case["seed"]), limits, float(seconds))
    rise = rises(found.requests, case["base"] * found.requests.mean(), case["within_s"])
    rng = np.random.default_rng(case["seed"])
    steady = rng.poisson(found.requests.mean(), seconds)
    rows: list[dict[str, Any]] = [
        {
            "kind": "second",
            "second": t,
            "requests": int(found.requests[t]),
            "rise": float(rise[t]),
            "prefill": float(found.prefill[t]),
            "decode": float(found.decode[t]),
            "kv_gb": float(found.kv_tokens[t] * limits.kv_bytes_per_token / GB),
        }
        for t in range(seconds)
    ]
    chance = rises(steady, case["base"] * steady.mean(), case["within_s"])
    rows.append({"kind": "poisson", "rise": float(np.nanmax(chance))})
    return rows


def spread(values: NDArray[np.float64], within: int) -> float:
    """Largest over smallest of `values` that lie at most `within` apart, the smallest first."""
    best = 1.0
    for k in range(1, within + 1):
        before, after = values[:-k], values[k:]
        seen = before > 0
        if seen.any():
            best = max(best, float((after[seen] / before[seen]).max()))
    return best


def excerpt(frame: DataFrame, parameters: DemandOverTime) -> DataFrame:
    """What is drawn of the first seed: the steepest minute, and every third second."""
    first = where(frame, seed=frame["seed"].min(), kind="second")
    steepest = first.loc[first["rise"].astype(float).idxmax(), "second"]
    near = (first["second"] - steepest).abs() <= 30
    columns = ["seed", "kind", "second", "requests", "rise", "prefill", "decode", "kv_gb"]
    return first.loc[near | (first["second"] % 3 == 0), columns]


def plot(frame: DataFrame, parameters: DemandOverTime) -> Any:
    """Three rows: requests, computation, memory; the hour and its steepest minute."""
    first = where(frame, seed=frame["seed"].min(), kind="second")
    first = first.sort_values("second")
    steepest = int(first["second"].to_numpy()[np.nanargmax(first["rise"].to_numpy(dtype=float))])
    capacity = kv_capacity_tokens(parameters.llm, parameters.gpu) * _kv_bytes(parameters) / GB
    figure = new_figure(12, 7.5)
    grid = figure.subplots(3, 2, width_ratios=(2, 1))
    for column, (low, high) in enumerate(
        ((0, int(first["second"].max()) + 1), (max(steepest - 30, 0), steepest + 30))
    ):
        part = first[(first["second"] >= low) & (first["second"] < high)]
        at = part["second"]
        top, middle, bottom = grid[:, column]
        top.step(at, part["requests"], where="post", color="C0", lw=0.8)
        top.axvspan(steepest, steepest + parameters.within_s + 1, color="C3", alpha=0.3)
        total = part["prefill"] + part["decode"]
        middle.step(at, total, where="post", color="C1", lw=0.8, label="prefill and decode")
        middle.step(at, part["decode"], where="post", color="C2", lw=1.2, label="decode")
        bottom.plot(at, part["kv_gb"], color="C4", lw=1)
        if column == 0:
            top.set_ylabel("(a) requests per second")
            middle.set_ylabel("(b) computation\n(instances)")
            bottom.set_ylabel("(c) KV cache (GB)")
            bottom.axhline(capacity, color="0.5", ls="--", lw=1, label="KV cache of one instance")
            middle.legend(fontsize=8)
            bottom.legend(fontsize=8)
        for axes in (top, middle, bottom):
            dress(axes, xlim=(low, high), bottom=0)
        bottom.set_xlabel("time (s)")
    grid[0, 0].set_title("the trace")
    rise = float(np.nanmax(first["rise"].to_numpy(dtype=float)))
    grid[0, 1].set_title(f"its steepest rise: {rise:.1f} times within {parameters.within_s} s")
    return figure


PAPER_POINTS = (
    Published(
        "section 2.2", ((0.0, 0.5), (0.0, 50.0)), "span", panels=(4, 5),
        label="the paper: 0.5 to 50 GB",
    ),
)  # fmt: skip


def _kv_bytes(parameters: DemandOverTime) -> float:
    from llmscale_env.cluster.cards import llm_card

    return llm_card(parameters.llm).kv_bytes_per_token_per_gpu(1)


def claims(frame: DataFrame, parameters: DemandOverTime) -> list[Claim]:
    """The rise of requests, and the range of KV caches."""
    seconds = where(frame, kind="second")
    rise = seconds.groupby("seed")["rise"].max().astype(float)
    chance = where(frame, kind="poisson").groupby("seed")["rise"].max().astype(float)
    at = seconds["second"].astype(float)
    inner = seconds[(at >= EDGE_S) & (at <= at.max() - EDGE_S)]
    kv = inner.groupby("seed")["kv_gb"]
    load = inner.assign(total=inner["prefill"].astype(float) + inner["decode"].astype(float))
    jumps = [
        spread(part.sort_values("second")["total"].to_numpy(dtype=float), parameters.within_s)
        for _, part in load.groupby("seed")
    ]
    same = rise.nunique() == 1
    return [
        at_least(
            f"Incoming requests rise 5 times within {parameters.within_s} s",
            5,
            exact(float(rise.iloc[0])) if same else mean_interval(rise),
            nothing=1,
            unit="times",
            paper="5 times",
            reason="no second of the trace with that base is followed by such a one",
            how="the trace's own counts per second, from a second to the larger of the next "
            f"{parameters.within_s}",
            setting=f"from seconds of at least {parameters.base:g} of the mean rate",
            note=f"a Poisson process of the same mean rises {chance.mean():.1f} times at most; the "
            f"instances needed rise {np.mean(jumps):.1f} times",
        ),
        every(
            "Batches leave from 500 MB to 50 GB of KV cache",
            [
                about(f"the {end}", number, mean_interval(found), nothing=None, unit="GB")
                for end, number, found in (
                    ("least", 0.5, kv.min().astype(float)),
                    ("most", 50, kv.max().astype(float)),
                )
            ],
            paper="0.5 to 50 GB",
            how="KV cache of all requests in service, second by second",
            reason=f"ours is all that the service holds, {kv.min().astype(float).mean():.0f} to "
            f"{kv.max().astype(float).mean():.0f} GB, and the trace is never quiet; the paper's batches, "
            "and how long they stay, are not known",
        ),
    ]
