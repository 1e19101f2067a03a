"""Iteration times from the cards alone, for what nobody has measured.

An iteration reads the weights once or computes them for all its tokens, whichever takes longer;
attention reads the KV cache (decode) or computes scores (prefill); tensor parallelism adds two
all-reduces per layer. How much of each peak a real kernel reaches is calibrated on the A100 times
that are composed from measured kernels, and is taken to be the same share of the peak elsewhere.

Of a mixture of experts, an iteration reads the experts that its tokens go through
(`LlmCard.distinct_experts`, uniform routing) and computes those of each token. Quantised weights are
read in their format and multiplied at its peak, if the GPU has one. Layers with a sliding window attend
to the whole window. Left out: transfers between experts on several GPUs, an uneven load of experts,
the quantisation of activations, and all that an engine does besides its kernels.
`roofline_bands` says how far whole iterations that were measured are from it.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmscale_env.cluster.cards import PLAIN_BYTES, GpuCard, LlmCard, gpu_card, llm_card
from llmscale_env.cluster.iteration_data import DataFileError, load_models, read_data_file
from llmscale_env.cluster.iteration_model import FitError, IterationTimeModel, derive_mixed

BATCH_GRID = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
EXPERT_GRID = (*BATCH_GRID, 8192, 16384, 32768)
"""Hinges of a prefill line with experts: the bytes that it reads bend it all the way."""

FLOPS_PER_WEIGHT = 2.0

EXPERT_READ_SHARE = 0.62
EXPERT_COMPUTE_SHARE = 0.52
"""Of memory bandwidth and peak FLOP/s in the matrix products of 128 experts, as `fit_experts` finds them."""


@dataclass(frozen=True)
class RooflineEfficiency:
    """Shares of the peaks that kernels reach, and times that no peak explains.

    Attributes:
        weight_read: share of memory bandwidth when reading weights.
        compute: share of peak FLOP/s in matrix products.
        kv_read: share of memory bandwidth when decode attention reads KV.
        attention_compute: share of peak FLOP/s in prefill attention.
        layer_s: seconds per layer and iteration besides (norms, activation, kernel starts).
        all_reduce_s: seconds per all-reduce besides its bytes.
        link: share of NVLink (or PCIe) bandwidth in an all-reduce.
        expert_read, expert_compute: as the first two, in the matrix products of a mixture of experts.
    """

    weight_read: float
    compute: float
    kv_read: float
    attention_compute: float
    layer_s: float
    all_reduce_s: float
    link: float
    expert_read: float = EXPERT_READ_SHARE
    expert_compute: float = EXPERT_COMPUTE_SHARE


def matrix_s(
    llm: LlmCard,
    gpu: GpuCard,
    tp: int,
    tokens: NDArray[np.float64],
    efficiency: RooflineEfficiency,
    *,
    lm_head: bool = True,
) -> NDArray[np.float64]:
    """(n,) seconds of everything but attention in iterations of `tokens` tokens."""
    read, work = _dense(llm, gpu, lm_head)
    read_s = read / tp / (gpu.memory_bytes_per_s * efficiency.weight_read)
    compute_s = FLOPS_PER_WEIGHT * work * tokens / tp / (gpu.flops_per_s * efficiency.compute)
    seconds = np.maximum(read_s, compute_s) + llm.layers * efficiency.layer_s
    if llm.experts:
        seconds = seconds + llm.expert_layers * expert_s(llm, gpu, tp, tokens, efficiency)
    if tp > 1:
        sent = 2.0 * (tp - 1) / tp * llm.hidden * PLAIN_BYTES * tokens
        link = gpu.link_bytes_per_s(tp) * efficiency.link
        seconds = seconds + 2 * llm.layers * (efficiency.all_reduce_s + sent / link)
    return seconds


def _dense(llm: LlmCard, gpu: GpuCard, lm_head: bool) -> tuple[float, float]:
    """Bytes of the matrices that every token goes through; their weights as bf16's peak counts them."""
    plain = llm.router_weights + (llm.vocab * llm.hidden if lm_head else 0)
    faster = gpu.peak_flops_per_s(llm.compute) / gpu.flops_per_s
    read = llm.dense_weights * llm.bytes_per_weight + plain * llm.plain_bytes
    return read, llm.dense_weights / faster + plain


def expert_s(
    llm: LlmCard,
    gpu: GpuCard,
    tp: int,
    tokens: NDArray[np.float64],
    efficiency: RooflineEfficiency,
) -> NDArray[np.float64]:
    """(n,) seconds of the experts of one layer in iterations of `tokens` tokens."""
    touched = llm.distinct_experts(tokens)
    read_s = touched * llm.expert_bytes / tp
    read_s = read_s / (gpu.memory_bytes_per_s * efficiency.expert_read)
    weights = llm.experts_per_token * llm.expert_weights
    peak = gpu.peak_flops_per_s(llm.compute) * efficiency.expert_compute
    seconds: NDArray[np.float64] = np.maximum(
        read_s, FLOPS_PER_WEIGHT * weights * tokens / tp / peak
    )
    return seconds


def decode_context_s(
    llm: LlmCard, gpu: GpuCard, tp: int, share: float, compute_share: float
) -> float:
    """Seconds per token of context in a decode iteration, in layers that attend to all of it.

    Reading the KV cache at a share of memory bandwidth, or computing scores at one of peak FLOP/s: latent
    attention has so many heads per value that it may be bound by the second.
    """
    layers = llm.layers - llm.sliding_layers
    kv_bytes = layers * llm.kv_bytes_per_token_and_layer * llm.kv_share(tp)
    read_s = kv_bytes / (gpu.memory_bytes_per_s * share)
    return max(read_s, llm.decode_flops_per_token(tp) / (gpu.flops_per_s * compute_share))


def decode_window_s(llm: LlmCard, gpu: GpuCard, tp: int, share: float) -> float:
    """Seconds per decoding request in layers with a sliding window, which it has filled."""
    kv_bytes = llm.sliding_layers * llm.window * llm.kv_bytes_per_token_and_layer * llm.kv_share(tp)
    return kv_bytes / (gpu.memory_bytes_per_s * share)


def prefill_pair_s(llm: LlmCard, gpu: GpuCard, tp: int, share: float) -> float:
    """Seconds per unit of the pair sum, at a share of peak FLOP/s."""
    return llm.attention_flops_per_pair(tp) / (gpu.flops_per_s * share)


_EARLY_LLMS = frozenset(
    ("bloom-176b", "llama-2-7b", "llama-2-13b", "llama-2-70b", "llama-3.1-8b", "llama-3.1-70b",
     "llama-3.2-3b", "mistral-7b", "vicuna-13b")
)  # fmt: skip
_EARLY_GPUS = frozenset(("a100-80gb", "a100-80gb-pcie", "a10-24gb", "v100-32gb"))


def early_line(llm: LlmCard, gpu: GpuCard) -> bool:
    """Whether a pair's prefill line is the early one, on which results of this project's pages rest.

    Its slope beyond the bend was taken over the token in which the line bends, so it is too flat: 0.8 of the
    right one on the A100, 0.5 on the V100, 0.2 on the A10.
    """
    return llm.name.partition("@")[0] in _EARLY_LLMS and gpu.name in _EARLY_GPUS


def roofline_model(llm: str | LlmCard, gpu: str | GpuCard, tp: int = 1) -> IterationTimeModel:
    """Iteration times of any card, at the efficiencies calibrated on the A100."""
    llm, gpu = llm_card(llm), gpu_card(gpu)
    bands = roofline_bands()
    took = " and ".join(
        f"{band.low:.1f} to {band.high:.1f} ({part})" for part, band in bands.items()
    )
    return replace(
        _times(llm, gpu, tp, exact=not early_line(llm, gpu)),
        source="roofline of the cards, efficiencies calibrated on A100 kernels (no CPU overhead); "
        f"whole iterations that were measured took {took} times as long",
    )


def _times(llm: LlmCard, gpu: GpuCard, tp: int, *, exact: bool) -> IterationTimeModel:
    """The roofline; `exact` or with the early prefill line."""
    efficiency, errors = shipped_efficiency()
    batch = np.asarray(BATCH_GRID, dtype=np.float64)
    decoding = batch * decode_window_s(llm, gpu, tp, efficiency.kv_read)
    base = tuple(float(x) for x in matrix_s(llm, gpu, tp, batch, efficiency) + decoding)
    context_s = decode_context_s(llm, gpu, tp, efficiency.kv_read, efficiency.attention_compute)
    per_token = (context_s,) * len(BATCH_GRID)
    # The line bends where computing takes as long as reading the weights.
    read, work = _dense(llm, gpu, True)
    bend = int(
        (gpu.flops_per_s * efficiency.compute)
        * (read / work)
        / (FLOPS_PER_WEIGHT * gpu.memory_bytes_per_s * efficiency.weight_read)
    )
    hinges = {0, max(bend, 1), *(EXPERT_GRID if llm.experts else ())}
    if exact:
        hinges.add(max(bend, 1) + 1)
    knots = (*sorted(hinges), max(hinges) + 1)
    window_s = llm.window_flops_per_token(tp) / (gpu.flops_per_s * efficiency.attention_compute)
    tokens = np.asarray(knots, dtype=np.float64)
    at = matrix_s(llm, gpu, tp, tokens, efficiency) + window_s * tokens
    line = tuple(float(x) for x in at[:-1])
    slope = float(at[-1] - at[-2])
    pair = prefill_pair_s(llm, gpu, tp, efficiency.attention_compute)
    mixed_batch, mixed_base, mixed_per_token = derive_mixed(
        BATCH_GRID, base, per_token, knots[:-1], line, slope
    )
    notes = "held-out errors are those of whole LLMs on the A100, composed from kernels"
    if not exact:
        notes += "; the prefill line is the early one (early_line), too flat"
    if llm.experts:
        notes += "; experts by uniform routing, no server with a mixture of experts was measured"
    return IterationTimeModel(
        llm=llm.name,
        gpu=gpu.name,
        tp=tp,
        kind="roofline",
        source="roofline of the cards",
        decode_batch=BATCH_GRID,
        decode_base_s=base,
        decode_per_token_s=per_token,
        prefill_knot_tokens=knots[:-1],
        prefill_knot_s=line,
        prefill_slope_s=slope,
        prefill_pair_s=pair,
        mixed_knot_tokens=knots[:-1],
        mixed_knot_s=line,
        mixed_slope_s=slope,
        mixed_batch=mixed_batch,
        mixed_base_s=mixed_base,
        mixed_per_token_s=mixed_per_token,
        mixed_pair_s=pair,
        mixed_chunk_s=0.0,
        errors=dict(errors),
        notes=notes,
    )


@dataclass(frozen=True)
class MeasuredPair:
    """Whole iterations of one (LLM, GPU, degree) that were measured, over the roofline of the same cards.

    Attributes:
        llm, gpu, tp: card names and tensor-parallel degree.
        source: who measured, and what.
        decode, prefill: (n,) measured over roofline time.
    """

    llm: str
    gpu: str
    tp: int
    source: str
    decode: NDArray[np.float64]
    prefill: NDArray[np.float64]


@dataclass(frozen=True)
class RooflineBand:
    """Where measured times are, in roofline times.

    Attributes:
        low, high: 5th and 95th percentile of measured over roofline time; every pair counts the same.
        pairs, points: (LLM, GPU, degree) that were measured, and iterations of all of them.
        covered: share of the iterations of an LLM that the band of the other LLMs holds, its mean over LLMs,
            each left out once.
    """

    low: float
    high: float
    pairs: int
    points: int
    covered: float


BAND_SHARE = 0.9
"""Of measured iterations that a band holds."""

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_CONTEXTS = (256, 1024, 4096)
_PROMPTS = (128, 256, 512, 1024, 2048, 4096, 8192)

_H200 = ("llama-3.1-8b", "h200-141gb", 1)
_H200_FILE = Path(__file__).parent / "data" / "vllm_0_26_llama_3_1_8b_h200.csv"
"""Iterations of vLLM 0.26 with Llama 3.1 8B (bf16, random weights) on one H200, medians; measured by this
project on 26 November 2026, in the columns that `python -m llmscale_env.calibrate csv=` reads."""


@lru_cache(maxsize=1)
def roofline_pairs() -> tuple[MeasuredPair, ...]:
    """Every pair of which whole iterations were measured, none of which had a part in the calibration.

    The end-to-end times that ship (engines of 2023 and 2024), inside the range that was measured, and the
    iterations of vLLM 0.26 on an H200.
    """
    pairs = []
    for model in load_models():
        if model.kind != "end-to-end":
            continue
        floor = _times(llm_card(model.llm), gpu_card(model.gpu), model.tp, exact=True)
        decode = [
            model.decode_s(b, b * c) / floor.decode_s(b, b * c)
            for b in _BATCHES
            for c in _CONTEXTS
            if b <= model.max_batch and c <= model.max_context_tokens
        ]
        prompts = [t for t in _PROMPTS if t <= model.max_prefill_tokens]
        prefill = [model.prefill_s(t) / floor.prefill_s(t) for t in prompts]
        where = (model.llm, model.gpu, model.tp, model.source)
        pairs.append(MeasuredPair(*where, np.asarray(decode), np.asarray(prefill)))
    return (*pairs, _vllm_on_h200())


def _vllm_on_h200() -> MeasuredPair:
    """The iterations of `_H200_FILE`."""
    floor = _times(llm_card(_H200[0]), gpu_card(_H200[1]), _H200[2], exact=True)
    decode, prefill = [], []
    with _H200_FILE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            seconds = float(row["iteration_ms"]) / 1e3
            if row["kind"] == "decode":
                batch = int(row["decode_requests"])
                context = batch * float(row["decode_mean_context"])
                decode.append(seconds / floor.decode_s(batch, context))
            else:
                chunks, chunk = int(row["prefill_requests"]), int(row["prefill_chunk_tokens"])
                pairs = chunks * chunk * (2 * float(row["prefill_cached_tokens"]) + chunk)
                prefill.append(seconds / floor.prefill_s(chunks * chunk, pairs))
    source = "vLLM 0.26, whole iterations (this project)"
    return MeasuredPair(*_H200, source, np.asarray(decode), np.asarray(prefill))


@dataclass(frozen=True)
class PublishedRun:
    """A batch of equal requests that others have timed as a whole, and the roofline of the same.

    Attributes:
        llm, gpu, tp: card names and tensor-parallel degree.
        requests, input_tokens, output_tokens: that start together.
        seconds, roofline_s: from the start to the last token.
        source: who measured, and where it is published.
    """

    llm: str
    gpu: str
    tp: int
    requests: int
    input_tokens: int
    output_tokens: int
    seconds: float
    roofline_s: float
    source: str


_RUNS_FILE = Path(__file__).parent / "data" / "published_runs.csv"


@lru_cache(maxsize=1)
def published_runs() -> tuple[PublishedRun, ...]:
    """Runs of LLMs with a mixture of experts. They have no part in the calibration, nor in the bands."""
    runs = []
    with _RUNS_FILE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            llm, gpu, tp = row["llm"], row["gpu"], int(row["tp"])
            n, inputs, outputs = (
                int(row[key]) for key in ("requests", "input_tokens", "output_tokens")
            )
            times = _times(llm_card(llm), gpu_card(gpu), tp, exact=True)
            # Linear in the context, so that its mean over the decodes will do.
            decode_s = (outputs - 1) * times.decode_s(n, n * (inputs + outputs / 2))
            roofline_s = times.prefill_s(n * inputs, n * inputs**2) + decode_s
            runs.append(
                PublishedRun(
                    llm,
                    gpu,
                    tp,
                    n,
                    inputs,
                    outputs,
                    float(row["seconds"]),
                    roofline_s,
                    row["source"],
                )
            )
    return tuple(runs)


@lru_cache(maxsize=1)
def roofline_bands() -> dict[str, RooflineBand]:
    """How far whole iterations that were measured are from the roofline, by "decode" and "prefill"."""
    return {
        part: _band([(pair.llm, getattr(pair, part)) for pair in roofline_pairs()])
        for part in ("decode", "prefill")
    }


def _band(ratios: list[tuple[str, NDArray[np.float64]]]) -> RooflineBand:
    low, high = _limits([values for _, values in ratios])
    inside = []
    for llm in sorted({name for name, _ in ratios}):
        least, most = _limits([values for name, values in ratios if name != llm])
        own = np.concatenate([values for name, values in ratios if name == llm])
        inside.append(float(np.mean((own >= least) & (own <= most))))
    points = sum(len(values) for _, values in ratios)
    return RooflineBand(low, high, len(ratios), points, float(np.mean(inside)))


def _limits(ratios: list[NDArray[np.float64]]) -> tuple[float, float]:
    """Percentiles of values that weigh one over the length of their array."""
    values = np.concatenate(ratios)
    weights = np.concatenate([np.full(len(each), 1 / len(each)) for each in ratios])
    order = np.argsort(values)
    below = np.cumsum(weights[order]) / weights.sum()
    edges = ((1 - BAND_SHARE) / 2, (1 + BAND_SHARE) / 2)
    low, high = (float(values[order][np.searchsorted(below, edge)]) for edge in edges)
    return low, high


@lru_cache(maxsize=1)
def shipped_efficiency() -> tuple[RooflineEfficiency, dict[str, FitError]]:
    """The calibrated efficiencies of the shipped data file, with their held-out errors."""
    record = read_data_file()
    try:
        part = record["roofline"]
        errors = {name: FitError(**e) for name, e in part["errors"].items()}
        return RooflineEfficiency(**part["efficiency"]), errors
    except (KeyError, TypeError) as error:
        raise DataFileError(f"the shipped iteration_times.json: roofline: {error}") from None
