"""Iteration times from the cards alone, for what nobody has measured.

An iteration reads the weights once or computes them for all its tokens, whichever takes longer;
attention reads the KV cache (decode) or computes scores (prefill); tensor parallelism adds two
all-reduces per layer. How much of each peak a real kernel reaches is calibrated on the A100 times
that are composed from measured kernels, and is taken to be the same share of the peak elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from llmscale_env.cluster.cards import GpuCard, LlmCard, gpu_card, llm_card
from llmscale_env.cluster.iteration_data import DataFileError, read_data_file
from llmscale_env.cluster.iteration_model import FitError, IterationTimeModel, derive_mixed

BATCH_GRID = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
FLOPS_PER_WEIGHT = 2.0


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
    """

    weight_read: float
    compute: float
    kv_read: float
    attention_compute: float
    layer_s: float
    all_reduce_s: float
    link: float


def layer_weights(llm: LlmCard) -> int:
    """Weights of the layers alone, without embedding and LM head."""
    attention = llm.hidden * llm.head_dim * (2 * llm.heads + 2 * llm.kv_heads)
    gated = 2 if llm.mlp_hidden != 4 * llm.hidden else 1  # SwiGLU has two up projections
    return llm.layers * (attention + (gated + 1) * llm.hidden * llm.mlp_hidden)


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
    weights = layer_weights(llm) + (llm.vocab * llm.hidden if lm_head else 0)
    read_s = weights * llm.bytes_per_weight / tp / (gpu.memory_bytes_per_s * efficiency.weight_read)
    compute_s = FLOPS_PER_WEIGHT * weights * tokens / tp / (gpu.flops_per_s * efficiency.compute)
    seconds = np.maximum(read_s, compute_s) + llm.layers * efficiency.layer_s
    if tp > 1:
        sent = 2.0 * (tp - 1) / tp * llm.hidden * llm.bytes_per_weight * tokens
        link = gpu.nvlink_bytes_per_s * efficiency.link
        seconds = seconds + 2 * llm.layers * (efficiency.all_reduce_s + sent / link)
    return seconds


def decode_context_s(llm: LlmCard, gpu: GpuCard, tp: int, share: float) -> float:
    """Seconds per token of context in a decode iteration, at a share of memory bandwidth."""
    return llm.kv_bytes_per_token_per_gpu(tp) / (gpu.memory_bytes_per_s * share)


def prefill_pair_s(llm: LlmCard, gpu: GpuCard, tp: int, share: float) -> float:
    """Seconds per unit of the pair sum, at a share of peak FLOP/s."""
    return llm.attention_flops_per_pair(tp) / (gpu.flops_per_s * share)


def roofline_model(llm: str | LlmCard, gpu: str | GpuCard, tp: int = 1) -> IterationTimeModel:
    """Iteration times of any card, at the efficiencies calibrated on the A100."""
    llm, gpu = llm_card(llm), gpu_card(gpu)
    efficiency, errors = shipped_efficiency()
    batch = np.asarray(BATCH_GRID, dtype=np.float64)
    base = tuple(float(x) for x in matrix_s(llm, gpu, tp, batch, efficiency))
    context_s = decode_context_s(llm, gpu, tp, efficiency.kv_read)
    per_token = (context_s,) * len(BATCH_GRID)
    # The line bends where computing takes as long as reading the weights.
    bend = int(
        (gpu.flops_per_s * efficiency.compute)
        * llm.bytes_per_weight
        / (FLOPS_PER_WEIGHT * gpu.memory_bytes_per_s * efficiency.weight_read)
    )
    knots = (0, max(bend, 1), max(bend, 1) + 1)
    at = matrix_s(llm, gpu, tp, np.asarray(knots, dtype=np.float64), efficiency)
    line = tuple(float(x) for x in at[:2])
    slope = float(at[2] - at[1])
    pair = prefill_pair_s(llm, gpu, tp, efficiency.attention_compute)
    mixed_batch, mixed_base, mixed_per_token = derive_mixed(
        BATCH_GRID, base, per_token, knots[:2], line, slope
    )
    return IterationTimeModel(
        llm=llm.name,
        gpu=gpu.name,
        tp=tp,
        kind="roofline",
        source="roofline of the cards, efficiencies calibrated on A100 kernels (no CPU overhead)",
        decode_batch=BATCH_GRID,
        decode_base_s=base,
        decode_per_token_s=per_token,
        prefill_knot_tokens=knots[:2],
        prefill_knot_s=line,
        prefill_slope_s=slope,
        prefill_pair_s=pair,
        mixed_knot_tokens=knots[:2],
        mixed_knot_s=line,
        mixed_slope_s=slope,
        mixed_batch=mixed_batch,
        mixed_base_s=mixed_base,
        mixed_per_token_s=mixed_per_token,
        mixed_pair_s=pair,
        mixed_chunk_s=0.0,
        errors=dict(errors),
        notes="held-out errors are those of whole LLMs on the A100, composed from kernels",
    )


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
