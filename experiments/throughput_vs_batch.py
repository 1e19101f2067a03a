"""Throughput and inter-token latency against the batch limit: Chiron's Figure 3.

    python -m experiments.throughput_vs_batch [llms=NAME,NAME] [lengths=TABLE]
                                              [preemption=recompute|swap] [out=DIRECTORY]

One instance of each LLM (on as few A100-80GB as hold it with memory to spare: TP 1 for Llama 3.1 8B,
TP 4 for the 70B), saturated: a queue that never runs empty, ShareGPT lengths (single turn, as serving
benchmarks use them), prefill first. Measured over 40 minutes after 20 of warming up, without a
reserve of KV memory at admission and with vLLM's of 1 %. Writes `throughput_vs_batch.csv` and `.png`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.output import RESULTS, new_figure, save_figure, text_table, write_csv
from llmscale_env._cli import HELP_WORDS, Slip, one_of, parse_options, some_of
from llmscale_env.cluster.iteration_time import IterationTimeModel, iteration_time_model
from llmscale_env.sim.spec import (
    ClusterSpec,
    PoolSpec,
    PreemptionMode,
    ProfileSpec,
    RouterKind,
    RouteSpec,
)
from llmscale_env.workload import tables
from llmscale_env.workload.requests import PS_PER_S, RequestTable

GPU = "a100-80gb"
TP = {"llama-3.1-8b": 1, "llama-3.1-70b": 4}
BATCH_LIMITS = (8, 16, 32, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
WATERMARKS = (0.0, 0.01)
WARM_UP_S, MEASURED_S = 1200, 2400
N_REQUESTS = 200_000
MAX_REQUEST_TOKENS = 8192
HEAD = (
    "llm",
    "gpu",
    "tp",
    "preemption",
    "kv_watermark",
    "batch_limit",
    "throughput_tokens_per_s",
    "throughput_requests_per_s",
    "itl_mean_s",
    "preemptions_per_request",
)


def backlog(lengths: str, n: int = N_REQUESTS, seed: int = 0) -> RequestTable:
    """`n` requests with a table's lengths, all there at time 0."""
    drawn = tables.load_lengths(lengths).sample(n, np.random.default_rng(seed))
    prompt, output = (tables.round_tokens(column, MAX_REQUEST_TOKENS // 2) for column in drawn)
    return RequestTable.build(np.zeros(n), prompt, output)


def measure(
    model: IterationTimeModel,
    requests: RequestTable,
    batch_limit: int,
    *,
    watermark: float = 0.0,
    preemption: str = "recompute",
    kv_capacity_tokens: int | None = None,
    warm_up_s: int = WARM_UP_S,
    measured_s: int = MEASURED_S,
) -> tuple[float, float, float, float]:
    """One saturated instance.

    Args:
        model: iteration times.
        requests: the queue at time 0; must outlast the run.
        batch_limit: running requests allowed.
        watermark: share of KV memory kept free at admission.
        preemption: "recompute" or "swap".
        kv_capacity_tokens: KV memory; from the cards if left out.
        warm_up_s, measured_s: simulated seconds before and during the measurement.

    Returns:
        Tokens/s, requests/s, mean over finished requests of their mean inter-token latency (s),
        preemptions per finished request.

    Raises:
        ValueError: the queue ran empty, or nothing finished.
    """
    from llmscale_env.sim.fast import FastEngine

    profile = model.profile(max_batch=batch_limit, kv_capacity_tokens=kv_capacity_tokens)
    pool = PoolSpec(
        llm=0,
        profile=0,
        n_slots=1,
        gpus=model.tp,
        initial_active=1,
        batch_limit=batch_limit,
        preemption=PreemptionMode[preemption.upper()],
        watermark_tokens=round(watermark * profile.kv_capacity_tokens),
    )
    route = RouteSpec(kind=RouterKind.ROUND_ROBIN, pools=(0,))
    spec = ClusterSpec(profiles=(ProfileSpec(**vars(profile)),), pools=(pool,), routes=((route,),))
    engine = FastEngine(spec, requests)
    engine.advance(warm_up_s * PS_PER_S)
    tokens = int(engine.instances()[0]["tokens"])
    preemptions = int(engine.results()["preemptions"].sum())
    engine.advance((warm_up_s + measured_s) * PS_PER_S)
    instance, results = engine.instances()[0], engine.results()
    if instance["waiting"] == 0:
        raise ValueError(f"{len(requests)} requests do not outlast {warm_up_s + measured_s} s")
    finished = results["finished_ps"] >= warm_up_s * PS_PER_S
    several = finished & (requests.output_tokens > 1)
    if not several.any():
        raise ValueError(f"no request finished in {measured_s} s")
    decoding_s = (results["finished_ps"] - results["first_token_ps"])[several] / PS_PER_S
    return (
        (int(instance["tokens"]) - tokens) / measured_s,
        int(finished.sum()) / measured_s,
        float(np.mean(decoding_s / (requests.output_tokens[several] - 1))),
        (int(results["preemptions"].sum()) - preemptions) / int(finished.sum()),
    )


def sweep(llms: Sequence[str], lengths: str, preemption: str) -> list[tuple[Any, ...]]:
    """A row of `HEAD` for each LLM, watermark and batch limit."""
    requests = backlog(lengths)
    rows = []
    for llm in llms:
        model = iteration_time_model(llm, GPU, TP[llm])
        for watermark in WATERMARKS:
            for limit in BATCH_LIMITS:
                found = measure(model, requests, limit, watermark=watermark, preemption=preemption)
                rows.append((llm, GPU, TP[llm], preemption, watermark, limit, *found))
    return rows


def draw(rows: Sequence[tuple[Any, ...]], path: Path) -> Path:
    """One panel per LLM: throughput on the left axis, latency on the right."""
    llms = list(dict.fromkeys(row[0] for row in rows))
    figure = new_figure(5.6 * len(llms), 4.2)
    for axes, llm in zip(figure.subplots(1, len(llms), squeeze=False)[0], llms, strict=True):
        latency = axes.twinx()
        for watermark, style in zip(WATERMARKS, ("-", ":"), strict=True):
            mine = [row for row in rows if row[0] == llm and row[4] == watermark]
            limits = [row[5] for row in mine]
            name = f"{watermark:.0%} of KV memory kept free"
            axes.plot(limits, [row[6] for row in mine], f"o{style}", color="C0", ms=4, label=name)
            latency.plot(limits, [row[8] for row in mine], f"s{style}", color="C3", ms=4)
        axes.set_xscale("log", base=2)
        axes.set_xticks([8, 32, 128, 512, 2048], [8, 32, 128, 512, 2048])
        axes.set_xlabel("batch limit (requests)")
        axes.set_ylabel("throughput (tokens/s), circles", color="C0")
        latency.set_ylabel("mean inter-token latency (s), squares", color="C3")
        axes.set_ylim(bottom=0)
        latency.set_ylim(bottom=0)
        axes.set_title(f"{llm}, {TP[llm]} x {GPU}, preemption by {rows[0][3]}", fontsize=10)
        axes.legend(loc="upper left", fontsize=8)
        axes.grid(alpha=0.3)
    return save_figure(figure, path)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; 0 when it worked, 2 for a slip."""
    words = list(sys.argv[1:] if words is None else words)
    if any(word in HELP_WORDS for word in words):
        print(__doc__)
        return 0
    try:
        options = parse_options(words, ("llms", "lengths", "preemption", "out"))
        llms = some_of(options, "llms", tuple(TP))
        preemption = one_of(options, "preemption", ("recompute", "swap"))
        names = sorted(tables.names("lengths"), key=lambda name: name != "sharegpt-single-turn")
        lengths = one_of(options, "lengths", names)
    except Slip as slip:
        print(f"throughput_vs_batch: {slip}", file=sys.stderr)
        return 2
    rows = sweep(llms, lengths, preemption)
    print(text_table(HEAD, rows))
    out = Path(options.get("out", RESULTS / "throughput_vs_batch"))
    print(f"written: {write_csv(out / 'throughput_vs_batch.csv', HEAD, rows)}")
    print(f"drawn: {draw(rows, out / 'throughput_vs_batch.png')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
