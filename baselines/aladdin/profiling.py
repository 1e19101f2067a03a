"""Eq. 2 and 3 of this project's calibrated iteration times: Aladdin profiles before it serves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from baselines.aladdin.performance import (
    DecodeTime,
    LinearFit,
    PrefillTime,
    fit_decode,
    fit_prefill,
)
from llmscale_env.cluster.iteration_model import IterationTimeModel

PROMPT_TOKENS: tuple[int, ...] = (64, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
BATCHES: tuple[int, ...] = (2, 4, 8, 16, 24, 32, 48, 64)
CONTEXTS: tuple[int, ...] = (128, 256, 512, 1024, 2048)


@dataclass(frozen=True, eq=False)
class Profile:
    """Performance models of one (LLM, GPU, tensor-parallel degree).

    Attributes:
        prefill, decode: Eq. 2 and 3.
        prefill_fit, decode_fit: their fits, columns as `performance.fit_prefill` and `fit_decode`.
        kv_capacity_tokens: of one worker (M).
    """

    prefill: PrefillTime
    decode: DecodeTime
    prefill_fit: LinearFit
    decode_fit: LinearFit
    kv_capacity_tokens: int


def decode_grid(
    kv_capacity_tokens: int,
    batches: tuple[int, ...] = BATCHES,
    contexts: tuple[int, ...] = CONTEXTS,
) -> NDArray[np.int64]:
    """(n, 2) batches and their context in all: each batch with each mean context that fits in memory."""
    pairs = [(b, b * each) for b in batches for each in contexts if b * each <= kv_capacity_tokens]
    return np.array(pairs, np.int64).reshape(-1, 2)


def profile(
    model: IterationTimeModel,
    *,
    kv_capacity_tokens: int | None = None,
    prompt_tokens: tuple[int, ...] = PROMPT_TOKENS,
    batches: tuple[int, ...] = BATCHES,
    contexts: tuple[int, ...] = CONTEXTS,
) -> Profile:
    """Fits Eq. 2 and 3 to a model's times over a grid (ours: the paper does not give its own).

    Args:
        model: calibrated iteration times.
        kv_capacity_tokens: of a worker; from the cards if left out.
        prompt_tokens: prefill iterations.
        batches, contexts: decode iterations, see `decode_grid`.

    Raises:
        DoesNotFitError: the weights do not fit.
        ValueError: too few grid points fit in memory.
    """
    if kv_capacity_tokens is None:
        kv_capacity_tokens = model.profile(max_batch=1).kv_capacity_tokens
    prompts = np.array(prompt_tokens)
    prefill, prefill_fit = fit_prefill(prompts, [model.prefill_s(int(t)) for t in prompts])
    grid = decode_grid(kv_capacity_tokens, batches, contexts)
    seconds = [model.decode_s(int(b), int(c)) for b, c in grid]
    decode, decode_fit = fit_decode(grid[:, 0], grid[:, 1], seconds)
    return Profile(prefill, decode, prefill_fit, decode_fit, kv_capacity_tokens)
