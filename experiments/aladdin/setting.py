"""What Aladdin's figures share: LLMs, GPUs, SLOs (Table 2), degrees (Table 3), lengths, limits."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from baselines.aladdin.constraints import Rules
from baselines.aladdin.profiling import Profile, profile
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.workload.tables import load_lengths, round_tokens

SHORT = {"llama-2-7b": "Llama-2-7B", "llama-2-13b": "Llama-2-13B", "llama-2-70b": "Llama-2-70B"}
"""The paper's are the chat versions, which have the same shape."""

GPU_NAMES = {"a100-80gb": "A100", "v100-32gb": "V100"}

SLOS_S = {
    ("llama-2-70b", "a100-80gb"): (1.6, 0.075),
    ("llama-2-13b", "a100-80gb"): (0.6, 0.030),
    ("llama-2-7b", "a100-80gb"): (0.4, 0.015),
    ("llama-2-13b", "v100-32gb"): (0.8, 0.050),
    ("llama-2-7b", "v100-32gb"): (0.8, 0.030),
}
"""Table 2: T_pre and T_dec by LLM and GPU."""

DEGREES = {
    ("llama-2-70b", "a100-80gb"): 2,
    ("llama-2-13b", "a100-80gb"): 1,
    ("llama-2-7b", "a100-80gb"): 1,
    ("llama-2-13b", "v100-32gb"): 2,
    ("llama-2-7b", "v100-32gb"): 1,
}
"""Table 3: GPUs per worker."""

MAX_OUTPUT = 2048
"""Section 6.1: "a maximum output token limit of 2048"."""

MAX_PROMPT = 2048
"""What that leaves of the LLMs' context length, 4,096 tokens (section 6.1)."""

LENGTHS = "sharegpt-single-turn"


def shown(llm: str, gpu: str, tp: int) -> str:
    """For pictures: "Llama-2-70B, 2 x A100"."""
    return f"{SHORT[llm]}, {tp} x {GPU_NAMES.get(gpu, gpu)}"


def lengths(
    table: str, n: int, rng: np.random.Generator, max_prompt: int = MAX_PROMPT
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(n,) prompt and (n,) output tokens."""
    prompt, output = load_lengths(table).sample(n, rng)
    return round_tokens(prompt, max_prompt), round_tokens(output, MAX_OUTPUT)


@lru_cache(maxsize=32)
def profiled(llm: str, gpu: str, tp: int) -> Profile:
    """Eq. 2 and 3 of this project's iteration times."""
    return profile(iteration_time_model(llm, gpu, tp))


def rules_of(llm: str, gpu: str, *, gamma: float, theta: float, decode_only: bool = False) -> Rules:
    """Limits of a worker with Table 3's degree and Table 2's SLOs.

    Raises:
        KeyError: the paper does not serve this LLM on this GPU.
    """
    found = profiled(llm, gpu, DEGREES[llm, gpu])
    ttft_s, itl_s = SLOS_S[llm, gpu]
    return Rules(
        prefill=found.prefill,
        decode=found.decode,
        kv_capacity=float(found.kv_capacity_tokens),
        ttft_slo_s=ttft_s,
        itl_slo_s=itl_s,
        gamma=gamma,
        theta=theta,
        decode_only=decode_only,
    )
