"""Calibrating the roofline on times that are composed from measured A100 kernels."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from llmscale_env.cluster.cards import PLAIN_BYTES, gpu_card, llm_card
from llmscale_env.cluster.fitting import relative_error
from llmscale_env.cluster.measurements import PARTS, Floats, Measurements
from llmscale_env.cluster.roofline import (
    FLOPS_PER_WEIGHT,
    RooflineEfficiency,
    decode_context_s,
    matrix_s,
    prefill_pair_s,
)

KV_READ_SHARE = 0.7945
ATTENTION_COMPUTE_SHARE = 0.4968
"""1.62 of 2.039 TB/s and 155 of 312 TFLOP/s: the A100 attention kernels behind composed times."""

EXPERTS_FILE = Path(__file__).parent / "data" / "experts_h200.csv"
"""Matrix products of 128 experts, 8 per token, as Qwen3-30B-A3B has them (bf16, torch 2.11's grouped
product), medians on one H200; measured by this project on 26 November 2026. Columns: tokens of the batch,
experts that they went through, width of input and output, seconds."""

EXPERTS_GPU, EXPERTS_PER_TOKEN = "h200-141gb", 8


def fit_experts() -> tuple[float, float, float, Floats]:
    """Shares of an H200's peaks in the products of `EXPERTS_FILE` (log least squares).

    Returns:
        Share of bandwidth, share of bf16 FLOP/s, seconds of a product besides (which are in the roofline's
        `layer_s` already), and (n,) relative errors of the fit.
    """
    from scipy.optimize import least_squares

    gpu = gpu_card(EXPERTS_GPU)
    with EXPERTS_FILE.open(encoding="utf-8", newline="") as file:
        rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]
    tokens, read, inputs, outputs, seconds = np.array([list(row.values()) for row in rows]).T
    read_s = read * inputs * outputs * PLAIN_BYTES / gpu.memory_bytes_per_s
    compute_s = FLOPS_PER_WEIGHT * tokens * EXPERTS_PER_TOKEN * inputs * outputs / gpu.flops_per_s

    def off(x: Floats) -> Floats:
        made: Floats = np.maximum(read_s / x[0], compute_s / x[1]) + x[2] * 1e-6
        return np.log(made / seconds)

    found = least_squares(off, np.array([0.6, 0.6, 10.0]), bounds=([0.1, 0.1, 0], [1, 1, 100]))
    return float(found.x[0]), float(found.x[1]), float(found.x[2]) * 1e-6, np.expm1(off(found.x))


def fit_roofline(sets: list[Measurements]) -> dict[str, Any]:
    """Efficiencies from all composed sets, and the errors on LLMs that were held out whole.

    Returns:
        The `roofline` entry of the data file: `efficiency` and `errors`.
    """
    # Vicuna's kernels are Llama 2 13B's and would count twice; Llama 3.1 8B's are Mistral's and a
    # KV-append kernel that no peak explains (0.28 to 0.56 us per token and layer at any degree).
    doubles = ("vicuna-13b", "llama-3.1-8b")
    composed = [m for m in sets if m.kind == "composed" and m.llm not in doubles]
    off: dict[str, list[Floats]] = {name: [] for name in PARTS[:2]}
    for shape in sorted({_shape(m.llm) for m in composed}):
        # Llama 3.1 70B has the layers of Llama 2 70B: they are held out together.
        seen = fit_efficiency([m for m in composed if _shape(m.llm) != shape])
        for m in (m for m in composed if _shape(m.llm) == shape):
            rows = _roofline_rows(m)
            error = np.abs(roofline_seconds(rows, seen) / rows.seconds - 1)
            for part, name in enumerate(PARTS[:2]):
                off[name].append(error[rows.part == part])
    errors = {name: np.concatenate(values) for name, values in off.items()}
    return {
        # Those of experts are constants of the roofline (`fit_experts`).
        "efficiency": {
            name: value
            for name, value in vars(fit_efficiency(composed)).items()
            if not name.startswith("expert")
        },
        "errors": {name: vars(relative_error(len(e), e)) for name, e in errors.items()},
    }


def _shape(name: str) -> tuple[int, ...]:
    card = llm_card(name)
    return card.layers, card.hidden, card.kv_heads, card.mlp_hidden


def fit_efficiency(sets: list[Measurements]) -> RooflineEfficiency:
    """The roofline's efficiencies that bring it nearest to composed times (log least squares).

    The attention kernels' shares are those by which the times were composed; the rest is fitted.
    """
    from scipy.optimize import least_squares

    parts = [_roofline_rows(m) for m in sets]
    target = np.log(np.concatenate([m.seconds for m in parts]))
    start = np.array([0.8, 0.6, 20e-6, 30e-6, 0.5])
    low = np.array([0.3, 0.2, 0.0, 0.0, 0.05])
    high = np.array([1.0, 1.0, 1e-3, 1e-3, 1.0])

    def efficiency(x: Floats) -> RooflineEfficiency:
        weight_read, compute, layer_s, all_reduce_s, link = (float(v) for v in x)
        return RooflineEfficiency(
            weight_read=weight_read,
            compute=compute,
            kv_read=KV_READ_SHARE,
            attention_compute=ATTENTION_COMPUTE_SHARE,
            layer_s=layer_s,
            all_reduce_s=all_reduce_s,
            link=link,
        )

    def residual(x: Floats) -> Floats:
        made = [roofline_seconds(m, efficiency(x)) for m in parts]
        off: Floats = np.log(np.concatenate(made)) - target
        return off

    found = least_squares(
        residual, start, bounds=(low, high), x_scale=start, loss="soft_l1", f_scale=0.1
    )
    return efficiency(np.asarray([float(f"{v:.4g}") for v in found.x]))


def roofline_seconds(rows: Measurements, efficiency: RooflineEfficiency) -> Floats:
    """(n,) roofline of decode and prefill rows that leave out the LM head."""
    llm, gpu = llm_card(rows.llm), gpu_card(rows.gpu)
    tokens = rows.total_tokens.astype(np.float64)
    shares = efficiency.kv_read, efficiency.attention_compute
    context = decode_context_s(llm, gpu, rows.tp, *shares) * rows.context_tokens
    pairs = prefill_pair_s(llm, gpu, rows.tp, efficiency.attention_compute) * rows.pair_sum
    return matrix_s(llm, gpu, rows.tp, tokens, efficiency, lm_head=False) + context + pairs


def _roofline_rows(data: Measurements) -> Measurements:
    return data.only(data.scored & (data.part < PARTS.index("mixed")))
