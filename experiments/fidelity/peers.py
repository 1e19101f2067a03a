"""Beside other simulators: Vidur's published run, and a look-up of every kernel at every iteration.

Vidur (microsoft/vidur) simulates whole clusters from kernel times. Its run of Llama 2 70B is in the
shared data. For all other pairs the look-up takes its part: the same scheduling (`replay`), with each
iteration summed from its kernels. Vidur does that too, and our fitted tables abridge it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments import reference_run as reference
from experiments.fidelity.part import Part
from experiments.fidelity.replay import Chunks, Floats, Ints, IterationSeconds, Setting, replay
from llmscale_env.cluster.fitting import fit
from llmscale_env.cluster.iteration_model import IterationTimeModel
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.cluster.kernels import ComposedTimes
from llmscale_env.cluster.measurements import Measurements
from llmscale_env.cluster.readers import COMPOSED_MODELS, MEASURED_ATTENTION, composed_times
from llmscale_env.workload.requests import PS_PER_S, RequestTable

TOLERANCE_PERCENT = 2.0
TOLERANCE_OTHERS_PERCENT = 3.0

REPLICAS_OTHERS = 4
REQUESTS_OTHERS = 5_000
"""Of the comparisons beside the look-up alone: the first half of the reference run's requests."""

LOAD = 0.85
"""Load of those comparisons, as a share of what a replica serves at a batch of 32."""

GRANULARITY = 64
"""Vidur rounds contexts up to a multiple of this."""


class VidurTimes(ComposedTimes):
    """The same kernels as Vidur reads them: by a random forest, and with its rule for chunks.

    A forest blurs steps: a tree that was not given a size takes the nearest one that it was given. On
    Llama 2 70B at TP4 that makes iterations of 512 tokens, the last before a step, 1.6 % longer. And
    the chunks of an iteration are taken for one, all of whose tokens look at all that is cached.
    Source: Vidur, `sklearn_execution_time_predictor.py`, revision 7d47513.
    """

    def look_up(self, table: dict[int, float], x: Ints) -> Floats:
        """The mean of infinitely many fully grown trees, each on a bootstrap sample of the table."""
        grid = np.asarray(sorted(table))
        y = np.asarray([table[int(g)] for g in grid])
        taken = 1 - (1 - 1 / len(grid)) ** len(grid)
        return np.asarray([_forest(grid, y, taken, float(at)) for at in x])

    def decode_attention_ms(self, batch: int, mean_context: float) -> float:
        """As in `ComposedTimes`, at the context rounded up."""
        return super().decode_attention_ms(batch, _rounded_up(mean_context))

    def prefill_attention_ms(self, chunks: Sequence[tuple[float, float]]) -> float:
        """As in `ComposedTimes`, with Vidur's rule for several chunks."""
        cached = sum(_rounded_up(before) for _, before in chunks)
        chunk = round(float(np.sqrt(sum(tokens * tokens for tokens, _ in chunks))))
        once = super().prefill_attention_ms([(chunk, cached)])
        return once * self.batching(len(chunks))


def _rounded_up(context: float) -> float:
    return -(-int(context) // GRANULARITY) * GRANULARITY


def _forest(grid: Ints, y: Floats, taken: float, at: float) -> float:
    """Expected answer of a tree: of the nearest sizes it knows on both sides, the nearer one's time."""
    middle = int(np.searchsorted(grid, at, side="right"))
    below, above = (
        range(middle - 1, max(middle - 9, -1), -1),
        range(middle, min(middle + 8, len(y))),
    )
    total = weight = 0.0
    for a, left in enumerate(below):
        for b, right in enumerate(above):
            chance = taken * taken * (1 - taken) ** (a + b)
            nearer = left if at <= (grid[left] + grid[right]) / 2 else right
            total, weight = total + chance * float(y[nearer]), weight + chance
    if weight:
        return total / weight
    return float(y[min(max(middle - 1, 0), len(y) - 1)])


def looked_up(times: ComposedTimes, most_tokens: int) -> IterationSeconds:
    """Iteration times summed from kernels, for iterations of up to `most_tokens`."""
    matrix_ms = times.matrix_ms(np.arange(most_tokens + 1)).tolist()

    def seconds(decodes: int, context: int, chunks: Chunks) -> float:
        ms = matrix_ms[decodes + sum(tokens for tokens, _ in chunks)]
        if decodes:
            ms += times.decode_attention_ms(decodes, context / decodes)
        if chunks:
            ms += times.prefill_attention_ms(chunks)
        return float(ms / 1e3)

    return seconds


def on_times(data: Measurements, times: ComposedTimes) -> Measurements:
    """The rows of `data`, each taking what `times` sums its kernels to."""
    matrix_ms = times.matrix_ms(data.total_tokens)
    seconds = np.empty(len(data.seconds))
    for k, ms in enumerate(matrix_ms):
        decodes, chunks = int(data.decode_requests[k]), int(data.chunks[k])
        if decodes:
            ms += times.decode_attention_ms(decodes, data.context_tokens[k] / decodes)
        if chunks:
            chunk = (int(data.chunk_tokens[k]), int(data.cached_tokens[k]))
            ms += times.prefill_attention_ms([chunk] * chunks)
        seconds[k] = ms / 1e3
    return replace(data, seconds=seconds)


def vidur_part(directory: Path, sets: list[Measurements], requests: RequestTable) -> Part:
    """Both schedulers of Vidur's run: its quantiles, and what each simulation is away from them."""
    vidur = times_of(VidurTimes, directory, "Llama-2-70B", reference.TP)
    kernels = times_of(ComposedTimes, directory, "Llama-2-70B", reference.TP)
    data = composed_set(sets, "llama-2-70b", reference.TP)
    same = fit(on_times(data, vidur))
    rows = []
    for scheduler in reference.CHUNK_TOKENS:
        runs = [
            by_kernels(scheduler, requests, vidur),
            reference.compare(scheduler, requests, model=same).ours,
            reference.compare(scheduler, requests).ours,
            by_kernels(scheduler, requests, kernels),
        ]
        theirs = reference.reference_quantiles(scheduler)
        for metric in reference.METRICS:
            for q in reference.JUDGED:
                off = [percent(run[metric], q, theirs[metric][q]) for run in runs]
                rows.append((scheduler, metric, f"p{100 * q:g}", theirs[metric][q], *off))
    return Part(
        "Vidur's run: Llama 2 70B, TP 4, A100-80GB, 8 replicas, 10,000 requests",
        ("scheduler", "metric", "quantile", "Vidur (s)", "kernels read as Vidur does, %",
         "fitted to that, %", "shipped times, %", "kernels as measured, %"),
        rows,
        judged="fitted to that, %",
        tolerance_percent=TOLERANCE_PERCENT,
    )  # fmt: skip


def pairs_part(directory: Path, requests: RequestTable) -> Part:
    """Shipped times against the look-up of every kernel, for each LLM and degree with kernels."""
    rows = []
    for name, (cards, _) in COMPOSED_MODELS.items():
        for tp in (1, 2, 4, 8):
            try:
                model = iteration_time_model(cards[0], "a100-80gb", tp, kind="composed")
            except ValueError:
                continue
            times = times_of(ComposedTimes, directory, name, tp)
            table = at_load(model, requests)
            for scheduler in reference.CHUNK_TOKENS:
                cluster = reference.reference_cluster(scheduler, model, REPLICAS_OTHERS)
                ours = reference.serve(cluster, table)
                exact = by_kernels(scheduler, table, times, REPLICAS_OTHERS)
                off = {
                    metric: [
                        percent(ours[metric], q, float(np.quantile(exact[metric], q)))
                        for q in reference.JUDGED
                    ]
                    for metric in reference.METRICS
                }
                worst = max(abs(x) for three in off.values() for x in three)
                shown = [" ".join(f"{x:+.1f}" for x in three) for three in off.values()]
                rows.append((cards[0], tp, scheduler, *shown, worst))
    return Part(
        f"Every pair with kernels: shipped times against the look-up, {REPLICAS_OTHERS} replicas, "
        f"{REQUESTS_OTHERS:,} requests",
        ("LLM", "tp", "scheduler", *(f"{m[:-2]} p50 p90 p99, %" for m in reference.METRICS),
         "worst, %"),
        rows,
        judged="worst, %",
        tolerance_percent=TOLERANCE_OTHERS_PERCENT,
    )  # fmt: skip


def at_load(model: IterationTimeModel, requests: RequestTable) -> RequestTable:
    """The first requests, arriving at `LOAD` of what the replicas serve at a batch of 32."""
    some = slice(0, REQUESTS_OTHERS)
    prompt, output = requests.input_tokens[some], requests.output_tokens[some]
    context = float(prompt.mean() + output.mean() / 2)
    per_request = model.prefill_s(float(prompt.mean())) + float(output.mean()) * (
        model.decode_s(32, 32 * context) / 32
    )
    rate = LOAD * REPLICAS_OTHERS / per_request
    arrival_s = requests.arrival_ps[some] / PS_PER_S * (reference.RATE_PER_S / rate)
    return RequestTable.build(arrival_s, prompt, output)


def times_of(kind: type[ComposedTimes], directory: Path, model: str, tp: int) -> ComposedTimes:
    """Kernels of one of `COMPOSED_MODELS`, attention as profiled where it was."""
    measured = (model, tp) in MEASURED_ATTENTION
    return composed_times(directory, model, tp, measured_attention=measured, kind=kind)


def by_kernels(
    scheduler: str,
    requests: RequestTable,
    times: ComposedTimes,
    replicas: int = reference.N_REPLICAS,
) -> dict[str, Floats]:
    """Metric -> (n,) seconds, with every iteration summed from its kernels."""
    chunk_tokens = reference.CHUNK_TOKENS[scheduler]
    setting = Setting(reference.BATCH_LIMIT, reference.PREFILL_TOKENS, chunk_tokens)
    seconds = looked_up(times, reference.PREFILL_TOKENS + reference.BATCH_LIMIT)
    arrival_s = requests.arrival_ps / PS_PER_S
    prompt = requests.input_tokens.astype(np.int64)
    output = requests.output_tokens.astype(np.int64)
    first, last = replay(arrival_s, prompt, output, replicas, setting, seconds)
    return reference.metrics(first, last, requests.output_tokens)


def composed_set(sets: list[Measurements], llm: str, tp: int) -> Measurements:
    """The composed rows of a pair."""
    return next(m for m in sets if (m.llm, m.tp, m.kind) == (llm, tp, "composed"))


def percent(ours: Floats, quantile: float, theirs: float) -> float:
    """What a quantile of ours is away from theirs."""
    return 100 * (float(np.quantile(ours, quantile)) / theirs - 1)
