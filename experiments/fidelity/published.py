"""Decode alone beside an engine of CUDA graphs, and what the difference consists of."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments.fidelity.part import Part
from experiments.fidelity.peers import times_of
from llmscale_env.cluster.cards import gpu_card, llm_card
from llmscale_env.cluster.kernels import ComposedTimes
from llmscale_env.cluster.readers import COMPOSED_MODELS

PUBLISHED_TOKENS_PER_S = {
    ("Llama-2-7B", 1): 104.9,
    ("Llama-2-7B", 2): 168.84,
    ("Llama-2-7B", 4): 254.02,
    ("Llama-2-70B", 2): 21.32,
    ("Llama-2-70B", 4): 38.01,
    ("Llama-2-70B", 8): 62.50,
}
"""gpt-fast (README, "Tensor Parallelism", BSD-3): bf16, batch 1, prompt of 5 tokens, compiled into CUDA
graphs, 8 A100-80GB limited to 330 W. Its TP 8 of the 7B has no kernels in our data."""

CONTEXT_TOKENS = 105
"""Five tokens of prompt and half of the 200 that its benchmark generates."""


def cuda_graph_part(directory: Path) -> Part:
    """Milliseconds per token at batch 1: published, composed, and the parts of the composed time."""
    rows = []
    for (model, tp), rate in PUBLISHED_TOKENS_PER_S.items():
        times = times_of(ComposedTimes, directory, model, tp)
        card = llm_card(COMPOSED_MODELS[model][0][0])
        parts = decode_parts_ms(times)
        composed, published = sum(parts.values()), 1e3 / rate
        weights_ms = 1e3 * card.weight_bytes / tp / gpu_card("a100-80gb").memory_bytes_per_s
        alone = composed - parts["all-reduces"] - parts["all-reduce launches"]
        off = [100 * (ms / published - 1) for ms in (composed, alone)]
        rows.append((card.name, tp, published, composed, *off, weights_ms, *parts.values()))
    return Part(
        "Decode of one request beside gpt-fast (CUDA graphs), A100-80GB, ms per token",
        ("LLM", "tp", "published", "composed", "off, %", "off without all-reduces, %",
         "weights at peak", *PART_NAMES),
        rows,
    )  # fmt: skip


PART_NAMES = (
    "matrix products", "small kernels", "attention", "all-reduces", "all-reduce launches",
)  # fmt: skip


def decode_parts_ms(times: ComposedTimes) -> dict[str, float]:
    """One decode iteration of one request, by `PART_NAMES`."""
    layer = times.layer_parts_ms(np.asarray([1]))
    parts = {name: times.card.layers * float(ms[0]) for name, ms in layer.items()}
    parts["attention"] = times.decode_attention_ms(1, CONTEXT_TOKENS)
    return {name: parts.get(name, 0.0) for name in PART_NAMES}
